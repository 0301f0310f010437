"""Live sessions as a whole: any sound, cut anyhow, alone or beside others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from checkpoint_files import random_weights
from fakes.speech_detector import AmplitudeSpeechDetector, noise_and_silence
from fakes.tone_backend import LETTER_OPTIONS, ToneBackend, ToneSpeech, silence, speak_random_words, speak_words
from harken.api import Recognizer
from harken.contract import Floats
from harken.results import Segment
from harken.streaming import Event, LiveSessions, stream
from harken.transcribe import chunking
from session_events import check_committed_text, check_events, final_text, run_session
from tiny_models import DIMS, TOKENIZER, make_backend

TINY = replace(
    DIMS,
    n_audio_ctx=600,
    n_text_ctx=96,
    n_audio_state=32,
    n_text_state=32,
    n_audio_layer=1,
    n_text_layer=1,
)
QUICK = (Phase.explicit, Phase.generate)
"""A session takes too long for a hundred attempts at a shorter one that fails."""
RANDOM: dict[str, Any] = {"language": None, "hallucination_threshold": None, "temperatures": (0.0,)}


@pytest.fixture(autouse=True, scope="module")
def _loud_is_speech() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunking, "SpeechDetector", AmplitudeSpeechDetector)
        patch.setattr(stream, "SpeechDetector", AmplitudeSpeechDetector)
        yield


@pytest.fixture(scope="module", params=[1, 4])
def random_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recognizer:
    """A random model that has something to say of noise."""
    seed: int = request.param
    sharp = {"query.weight": 3, "decoder.ln.weight": 3}
    weights = {
        name: np.float32(next((by for end, by in sharp.items() if name.endswith(end)), 1)) * values
        for name, values in random_weights(TINY, seed, np.float32).items()
    }
    graphs: Path = tmp_path_factory.mktemp(f"graphs-{seed}")
    return Recognizer(make_backend("onnx-fp32", graphs, weights, dims=TINY), TOKENIZER, "tiny")


def hearing(**changes: Any) -> Recognizer:
    """A model that hears words."""
    return Recognizer(ToneBackend(**changes), TOKENIZER, "listener")


@st.composite
def speeches(draw: st.DrawFn) -> ToneSpeech:
    """Speech with pauses that end an utterance and pauses that do not, and now and then with none for long."""
    its = silence(draw(st.sampled_from([0.0, 0.2, 1.0])))
    for _ in range(draw(st.integers(1, 3))):
        words = draw(st.sampled_from([1, 2, 5, 9, 30]))
        gap_s = draw(st.sampled_from([0.1, 0.13, 0.25]))
        its = its + speak_random_words(words, seed=draw(st.integers(0, 9)), gap_s=gap_s)
        if draw(st.booleans()):
            its = its + speak_words(9)
        its = its + silence(draw(st.sampled_from([0.0, 0.3, 0.6, 2.0])))
    return its


settings_of_streams = st.fixed_dictionaries(
    {
        "delay": st.sampled_from(["minimal", "low", "medium", "high", "3000"]),
        "finals": st.sampled_from(["exact", "streamed"]),
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
places = st.lists(st.integers(0, 400_000), max_size=12)


def flushed(
    recognizer: Recognizer, samples: Floats, cuts: list[int], flushes: set[int], **its: Any
) -> list[Event]:
    """All events of samples that are cut, and of utterances that are ended, at some places."""
    session = recognizer.stream(clock=float, **its)
    flushes = {place for place in flushes if place <= len(samples)}
    events, at = [], 0
    for place in sorted([*(cut for cut in cuts if cut <= len(samples)), *flushes, len(samples)]):
        events += session.feed(samples[at:place])
        if place in flushes:
            events += session.flush()
        at = place
    return events + session.close()


@settings(max_examples=12, phases=QUICK)
@given(
    speech=speeches(),
    cuts=places,
    flushes=st.sets(st.integers(0, 200_000), max_size=2),
    unstable=st.booleans(),
    its=settings_of_streams,
)
def test_how_samples_are_cut_changes_nothing(
    speech: ToneSpeech, cuts: list[int], flushes: set[int], unstable: bool, its: dict[str, Any]
) -> None:
    recognizer = hearing(unstable=unstable)
    at_once = flushed(recognizer, speech.samples, [], flushes, **LETTER_OPTIONS, **its)
    in_pieces = flushed(recognizer, speech.samples, cuts + cuts[:2], flushes, **LETTER_OPTIONS, **its)
    assert in_pieces == at_once
    told = check_events(at_once, len(speech.samples))
    assert told
    if its["finals"] == "streamed":
        check_committed_text(told)


@pytest.mark.parametrize("block", [1, 160, 511, 512, 513, 100_000])
def test_blocks_of_any_length_give_the_same(block: int) -> None:
    samples = (silence(0.3) + speak_words(1, 2, 9) + silence(0.7)).samples
    recognizer = hearing(unstable=True)
    expected = run_session(recognizer.stream(clock=float, **LETTER_OPTIONS), samples)
    assert (
        run_session(recognizer.stream(clock=float, **LETTER_OPTIONS), samples, range(0, len(samples), block))
        == expected
    )


@settings(max_examples=2, phases=QUICK)
@given(seed=st.integers(0, 9), cuts=places, finals=st.sampled_from(["exact", "streamed"]))
def test_how_samples_are_cut_changes_nothing_for_a_random_model(
    random_model: Recognizer, seed: int, cuts: list[int], finals: str
) -> None:
    samples = noise_and_silence(2.0, 1.2, 4.0, 0.3, 2.5, seed=seed)
    at_once, in_pieces = (
        run_session(
            random_model.stream(clock=float, finals=finals, **RANDOM),
            samples,
            [cut % len(samples) for cut in its],
        )
        for its in ([], cuts)
    )
    assert in_pieces == at_once
    told = check_events(at_once, len(samples))
    if finals == "streamed":
        check_committed_text(told)


def timed(segments: tuple[Segment, ...] | list[Segment], by_s: float = 0.0) -> list[tuple[Any, ...]]:
    """What segments say, and when."""
    return [
        (
            its.tokens,
            its.text,
            its.language,
            round(its.start_s - by_s, 6),
            round(its.end_s - by_s, 6),
            [(word.text, round(word.start_s - by_s, 6), round(word.end_s - by_s, 6)) for word in its.words],
        )
        for its in segments
    ]


def check_exact(recognizer: Recognizer, samples: Floats, its: dict[str, Any], options: dict[str, Any]) -> None:
    """Check that each utterance says what a transcription of its samples says."""
    told = check_events(run_session(recognizer.stream(clock=float, **its, **options), samples), len(samples))
    assert told
    for utterance in told:
        offline = recognizer.transcribe(utterance.of(samples), **options).result().segments
        assert timed(utterance.segments, utterance.began) == timed(offline)


@settings(max_examples=8, phases=QUICK)
@given(speech=speeches(), unstable=st.booleans(), its=settings_of_streams)
def test_exact_finals_are_what_transcription_says(
    speech: ToneSpeech, unstable: bool, its: dict[str, Any]
) -> None:
    names = ("condition_on_previous_text", "word_timestamps", "hallucination_threshold")
    options = {name: its.pop(name) for name in names}
    its["finals"] = "exact"
    check_exact(hearing(unstable=unstable), speech.samples, its, LETTER_OPTIONS | options)


@settings(max_examples=2, phases=QUICK)
@given(seed=st.integers(0, 9), delay=st.sampled_from(["minimal", "low"]), times=st.booleans())
def test_exact_finals_are_what_transcription_says_with_a_random_model(
    random_model: Recognizer, seed: int, delay: str, times: bool
) -> None:
    samples = noise_and_silence(2.0, 1.2, 9.0, 0.3, 2.5, seed=seed)
    check_exact(random_model, samples, {"delay": delay}, RANDOM | {"word_timestamps": times})


@settings(max_examples=10, phases=QUICK)
@given(speech=speeches(), its=settings_of_streams)
@example(speech=speak_random_words(60), its={"delay": "high", "finals": "streamed"})
@example(speech=speak_random_words(60, gap_s=0.13), its={"delay": "low", "finals": "streamed"})
@example(speech=speak_random_words(60), its={"delay": "low", "finals": "exact"})
def test_every_word_is_said_once(speech: ToneSpeech, its: dict[str, Any]) -> None:
    """Where utterances are cut too, and where the stream ends in a word."""
    events = run_session(hearing().stream(clock=float, **LETTER_OPTIONS, **its), speech.samples)
    assert final_text(events) == speech.text


@settings(max_examples=8, phases=QUICK)
@given(
    speech=speeches(),
    ends=st.lists(st.integers(0, 60), max_size=3),
    finals=st.sampled_from(["exact", "streamed"]),
)
def test_a_flush_between_words_loses_nothing(speech: ToneSpeech, ends: list[int], finals: str) -> None:
    gaps = {round((speech.words[end % len(speech.words)][2] + 0.05) * 16_000) for end in ends}
    events = flushed(hearing(), speech.samples, [], gaps, finals=finals, **LETTER_OPTIONS)
    check_events(events, len(speech.samples))
    assert final_text(events) == speech.text


def together(sessions: LiveSessions, fed: list[Floats], order: list[tuple[int, int]]) -> list[list[Event]]:
    """Events of several streams that are fed some of them at a time, and then all that is left."""
    events: list[list[Event]] = [[] for _ in fed]
    at = [0] * len(fed)
    for name in range(len(fed)):
        sessions.open(name)
    for which, count in [*order, (7, max(map(len, fed)))]:
        some = [name for name in range(len(fed)) if which & 1 << name]
        for name, its in sessions.feed({name: fed[name][at[name] :][:count] for name in some}).items():
            events[name] += its
            at[name] += count
    return [its + sessions.close(name) for name, its in enumerate(events)]


steps = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 60_000)), min_size=4, max_size=12)


@settings(max_examples=6, phases=QUICK)
@given(
    many=st.lists(speeches(), min_size=3, max_size=3),
    order=steps,
    unstable=st.booleans(),
    its=settings_of_streams,
)
def test_several_streams_give_each_what_it_gives_alone(
    many: list[ToneSpeech], order: list[tuple[int, int]], unstable: bool, its: dict[str, Any]
) -> None:
    recognizer = hearing(unstable=unstable)
    check_together(recognizer, [speech.samples for speech in many], order, LETTER_OPTIONS | its)


@settings(max_examples=2, phases=QUICK)
@given(order=steps, finals=st.sampled_from(["exact", "streamed"]))
def test_several_streams_of_a_random_model_give_each_what_it_gives_alone(
    random_model: Recognizer, order: list[tuple[int, int]], finals: str
) -> None:
    many = [noise_and_silence(2.0, 1.2, 3.0, 0.3, seed=seed) for seed in range(3)]
    check_together(random_model, many, order, RANDOM | {"finals": finals}, exactly=False)


def check_together(
    recognizer: Recognizer,
    many: list[Floats],
    order: list[tuple[int, int]],
    its: dict[str, Any],
    *,
    exactly: bool = True,
) -> None:
    sessions = recognizer.stream_many(3, clock=float, **its)
    for found, samples in zip(together(sessions, many, order), many, strict=True):
        alone = run_session(recognizer.stream(clock=float, **its), samples)
        assert final_text(found) == final_text(alone)
        assert [(type(e), e.audio_s, e.emitted_samples) for e in found] == [
            (type(e), e.audio_s, e.emitted_samples) for e in alone
        ]
        if exactly:  # but for how sums are rounded in another batch
            assert found == alone
