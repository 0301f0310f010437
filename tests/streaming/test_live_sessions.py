"""Live sessions: any speech, in any blocks, alone or together with other streams."""

from dataclasses import replace

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from comparable import comparable
from fakes.speech_detector import LoudIsSpeech, noise_and_silence
from fakes.tone_backend import LETTER_OPTIONS, ToneBackend, silence, speak_random_words, speak_words
from harken.api import Recognizer
from harken.streaming.config import FINALS
from session_events import check_committed_text, check_events, final_text, run_session
from tiny_models import DIMS, TOKENIZER, make_backend, make_weights

NARROW = {"n_audio_state": 32, "n_text_state": 32, "n_audio_layer": 1, "n_text_layer": 1}
TINY = replace(DIMS, n_audio_ctx=600, n_text_ctx=96, **NARROW)
QUICK = (Phase.explicit, Phase.generate)
"""No shrinking: a session takes too long for a hundred attempts."""
WITHOUT_PAUSES = silence(0.4) + speak_random_words(75, gap_s=0.12)
RANDOM = {"language": None, "hallucination_threshold": None, "temperatures": (0.0,)}


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    """A random model that decodes noise to varied text."""
    folder, weights = tmp_path_factory.mktemp("packed"), make_weights(1, dims=TINY)
    backend = make_backend("native-int8", folder, weights, dims=TINY)
    return Recognizer(backend, TOKENIZER, "tiny", speech_detector=LoudIsSpeech)


def word_recognizer(**changes):
    """Return a model that recognises the synthetic words."""
    return Recognizer(ToneBackend(**changes), TOKENIZER, "listener", speech_detector=LoudIsSpeech)


@st.composite
def speeches(draw):
    """Draw speech with pauses that end an utterance, pauses that do not, and sometimes long speech without any."""
    speech = silence(draw(st.sampled_from([0.0, 0.2, 1.0])))
    for _ in range(draw(st.integers(1, 3))):
        words = draw(st.sampled_from([1, 2, 5, 9, 30]))
        gap_s = draw(st.sampled_from([0.1, 0.13, 0.25]))
        speech = speech + speak_random_words(words, seed=draw(st.integers(0, 9)), gap_s=gap_s)
        if draw(st.booleans()):
            speech = speech + speak_words(9)
        speech = speech + silence(draw(st.sampled_from([0.0, 0.3, 0.6, 2.0])))
    return speech


session_options = st.fixed_dictionaries(
    {
        "delay": st.sampled_from(["minimal", "low", "medium", "high", "3000"]),
        "finals": st.sampled_from(FINALS),
        "adaptive": st.booleans(),
        "condition_on_previous_text": st.booleans(),
        "word_timestamps": st.booleans(),
        "hallucination_threshold": st.sampled_from([None, 0.5]),
    },
    optional={
        "hop_frames": st.sampled_from([26, 70]),
        "commit_delay_frames": st.sampled_from([0, 30, 151]),
        "local_agreement": st.integers(1, 3),
        "window_frames": st.sampled_from([80, 240]),
    },
)
offsets = st.lists(st.integers(0, 400_000), max_size=12)


def events_with_flushes(recognizer, samples, cuts, flushes, **options):
    """Return all events of samples that are split into blocks, with flushes at some offsets."""
    session = recognizer.stream(clock=None, **options)
    flushes = {offset for offset in flushes if offset <= len(samples)}
    events, start = [], 0
    for offset in sorted([*(cut for cut in cuts if cut <= len(samples)), *flushes, len(samples)]):
        events += session.feed(samples[start:offset])
        if offset in flushes:
            events += session.flush()
        start = offset
    return events + session.close()


def check_exact(recognizer, utterances, samples, options):
    """Check that the segments of each utterance are those of an offline transcription of its samples."""
    for utterance in utterances:
        offline = recognizer.transcribe(utterance.of(samples), **options).result().segments
        assert comparable(utterance.segments, utterance.began) == comparable(offline)


@settings(max_examples=12, phases=QUICK)
@given(
    speech=speeches(),
    cuts=offsets,
    flushes=st.sets(st.integers(0, 200_000), max_size=2) | st.just(set()),
    unstable=st.booleans(),
    options=session_options,
)
@example(WITHOUT_PAUSES, [], set(), False, {"delay": "high", "finals": "streamed"})
@example(WITHOUT_PAUSES, [], set(), False, {"delay": "low", "finals": "streamed"})
@example(WITHOUT_PAUSES, [], set(), False, {"delay": "minimal", "finals": "exact"})
def test_events_depend_on_no_blocks_and_finals_have_every_word_once(speech, cuts, flushes, unstable, options):
    """Also where utterances are split, and where the stream ends within a word; exact ones as offline."""
    recognizer, samples, options = word_recognizer(unstable=unstable), speech.samples, LETTER_OPTIONS | options
    at_once, in_blocks = (
        events_with_flushes(recognizer, samples, blocks, flushes, **options) for blocks in ([], cuts + cuts[:2])
    )
    assert in_blocks == at_once
    found = check_events(at_once, len(samples))
    assert found
    if options["finals"] == "exact":
        offline = ("condition_on_previous_text", "word_timestamps", "hallucination_threshold", *LETTER_OPTIONS)
        check_exact(recognizer, found, samples, {name: options[name] for name in offline if name in options})
    if options["finals"] == "streamed" or (options["finals"] == "exact" and speech is WITHOUT_PAUSES):
        check_committed_text(found)
    assert unstable or flushes or final_text(at_once) == speech.text
    assert speech is not WITHOUT_PAUSES or [each.reason for each in found].count("limit") >= 3


@settings(max_examples=8, phases=QUICK)
@given(
    speech=speeches(),
    ends=st.lists(st.integers(0, 60), max_size=3),
    finals=st.sampled_from(["exact", "streamed"]),
)
def test_flush_between_words_loses_no_word(speech, ends, finals):
    gaps = {round((speech.words[end % len(speech.words)][2] + 0.05) * 16_000) for end in ends}
    events = events_with_flushes(word_recognizer(), speech.samples, [], gaps, finals=finals, **LETTER_OPTIONS)
    check_events(events, len(speech.samples))
    assert final_text(events) == speech.text


def events_together(sessions, streams, order):
    """Return the events of streams that are fed some of them at a time, and then all that is left."""
    events = [[] for _ in streams]
    offsets = [0] * len(streams)
    for name in range(len(streams)):
        sessions.open(name)
    for mask, count in [*order, (7, max(map(len, streams)))]:
        names = [name for name in range(len(streams)) if mask & 1 << name]
        blocks = {name: streams[name][offsets[name] :][:count] for name in names}
        for name, new_events in sessions.feed(blocks).items():
            events[name] += new_events
            offsets[name] += count
    return [found + sessions.close(name) for name, found in enumerate(events)]


steps = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 60_000)), min_size=4, max_size=12)


@settings(max_examples=3, phases=QUICK)
@given(
    streams=st.lists(speeches(), min_size=3, max_size=3),
    order=steps,
    unstable=st.booleans(),
    options=session_options,
)
def test_streams_give_the_same_events_together_and_alone(streams, order, unstable, options):
    recognizer = word_recognizer(unstable=unstable)
    check_together(recognizer, [speech.samples for speech in streams], order, LETTER_OPTIONS | options)


@pytest.mark.parametrize(("finals", "delay"), [("exact", "low"), ("streamed", "minimal")])
@settings(max_examples=1, phases=QUICK)
@given(seed=st.integers(0, 9), cuts=offsets, order=steps, times=st.booleans())
def test_streams_of_a_random_model(random_model, seed, cuts, order, finals, delay, times):
    """In any blocks, together and alone, and as recordings."""
    options = RANDOM | {"word_timestamps": times}
    samples = noise_and_silence(2.0, 1.2, 3.0, 0.3, 1.5, seed=seed)
    at_once, in_blocks = (
        run_session(random_model.stream(clock=None, delay=delay, finals=finals, **options), samples, points)
        for points in ([], [cut % len(samples) for cut in cuts])
    )
    assert in_blocks == at_once
    found = check_events(at_once, len(samples))
    assert found
    if finals == "streamed":
        check_committed_text(found)
    else:
        check_exact(random_model, found, samples, options)
    streams = [noise_and_silence(1.0, 1.2, 2.0, 0.3, seed=seed) for seed in range(3)]
    check_together(random_model, streams, order, options | {"finals": finals})


def check_together(recognizer, streams, order, options):
    sessions = recognizer.stream_many(3, clock=None, **options)
    for found, samples in zip(events_together(sessions, streams, order), streams, strict=True):
        assert found == run_session(recognizer.stream(clock=None, **options), samples)
