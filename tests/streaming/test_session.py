"""Live sessions: events and their times for synthetic speech with known words and a model that recognises them."""

import tracemalloc
from dataclasses import replace
from threading import Thread

import numpy as np
import pytest

from comparable import comparable
from fakes.clock import FakeClock
from fakes.speech_detector import LoudIsSpeech
from fakes.tone_backend import LETTER_OPTIONS, WORDS, ToneBackend, silence, speak_random_words, speak_words
from harken.api import Recognizer
from harken.errors import AudioError, HarkenError, OptionError, OutOfMemory
from harken.streaming import FinalSegment, Interim, LoadChanged, SpeechEnded, SpeechStarted, StreamOptions
from harken.streaming.config import FINALS
from harken.transcribe import TranscribeOptions
from harken.types import HOP_SAMPLES, SAMPLE_RATE
from session_events import check_events, final_text, group_utterances, run_session
from tiny_models import TOKENIZER

SENTENCE = silence(1.0) + speak_words(0, 1, 2, 9) + silence(2.0)
BLOCK = SAMPLE_RATE // 4


def listener(backend=None):
    """Return a model that recognises the synthetic words."""
    return Recognizer(backend or ToneBackend(), TOKENIZER, "listener", speech_detector=LoudIsSpeech)


def open_session(backend=None, **changes):
    return listener(backend).stream(**{"clock": None, **LETTER_OPTIONS, **changes})


LATE_S = 0.2
"""A word is taken to be spoken so long before what its tokens attend to; here they attend to the word itself."""


def events_of(speech, **changes):
    """Return all events of some speech."""
    return run_session(open_session(**changes), speech.samples)


# --- one utterance ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finals", FINALS)
def test_sentence_gives_one_utterance_with_one_segment_and_words_committed_before_it_ends(finals):
    backend = ToneBackend()
    events = run_session(open_session(backend, finals=finals), SENTENCE.samples)
    assert backend.stream_frames
    assert bool(backend.encoded_frames) == (finals != "streamed"), "streamed finals need no final pass"
    assert {*map(type, events)} == {SpeechStarted, Interim, FinalSegment, SpeechEnded}
    (utterance,) = check_events(events, len(SENTENCE.samples))
    assert len(utterance.segments) == 1
    assert (utterance.text, utterance.reason) == (" ba co du mi.", "sentence")
    assert utterance.began <= 1.0
    assert 2.5 <= utterance.ended <= 3.0
    late_s = LATE_S if finals == "streamed" else 0
    assert utterance.segments[0].end_s == pytest.approx(2.5 - late_s, abs=0.03)
    assert utterance.interims[-1].committed + utterance.interims[-1].tentative == "ba co du mi."
    (word,), ((text, start_s, end_s), *_) = _words(utterance.interims), SENTENCE.words
    assert word.text == text
    # A space attends to the silence before the word.
    assert word.start_s + LATE_S == pytest.approx(start_s, abs=0.11)
    assert word.end_s + LATE_S == pytest.approx(end_s, abs=0.03)


def test_streamed_segment_ends_in_its_utterance_where_attention_goes_on_into_the_silence():
    class LateBackend(ToneBackend):
        def _transcribe(self, tones):
            window = super()._transcribe(tones)
            return replace(window, attended=tuple(position + 40 for position in window.attended))

    events = run_session(open_session(LateBackend(), finals="streamed", word_timestamps=True), SENTENCE.samples)
    (utterance,) = check_events(events, len(SENTENCE.samples))
    (segment,) = utterance.segments
    assert segment.text == " ba co du mi."
    assert segment.end_s == segment.words[-1].end_s == utterance.ended


@pytest.mark.parametrize("finals", FINALS)
def test_a_script_holds_for_interims_finals_and_words(finals):
    events = events_of(SENTENCE, finals=finals, language="sr-Cyrl", word_timestamps=True)
    (utterance,) = check_events(events, len(SENTENCE.samples))
    (segment,), last = utterance.segments, utterance.interims[-1]
    assert segment.text.lstrip() == last.committed + last.tentative == "ба цо ду ми."
    words = [word.text for word in segment.words]
    assert words == [" ба", " цо", " ду", " ми."]
    assert {word.text for word in _words(utterance.interims)} <= {*words}
    assert segment.language == "sr"


@pytest.mark.parametrize("finals", FINALS)
def test_stream_that_ends_within_a_word_has_that_word(finals):
    stopped = (silence(0.5) + speak_words(0, 1, 2)).samples[: -round(0.25 * SAMPLE_RATE)]
    (utterance,) = check_events(run_session(open_session(finals=finals), stopped), len(stopped))
    assert (utterance.text, utterance.reason) == (" ba co du", "close")


def test_a_stream_of_one_utterance_is_transcribed_as_its_recording_to_the_last_sample():
    class RecordingBackend(ToneBackend):
        def encode(self, mel, *, padded=False):
            heard.append(mel)
            return super().encode(mel, padded=padded)

    heard = []
    samples = speak_words(0, 1, 2).samples[: HOP_SAMPLES * 100 + HOP_SAMPLES // 2]
    events = run_session(open_session(RecordingBackend()), samples)
    text = listener(RecordingBackend()).transcribe(samples, **LETTER_OPTIONS).text
    assert final_text(events).strip() == text != ""
    live, offline = heard
    np.testing.assert_array_equal(live, offline)


@pytest.mark.parametrize("finals", FINALS)
def test_flush_ends_the_utterance_and_speech_after_it_is_another(finals):
    session, speech = open_session(finals=finals), silence(0.5) + speak_words(0, 1)
    events = session.feed(speech.samples) + session.flush()
    assert events[-1].emitted_samples == len(speech.samples)
    assert session.flush() == []
    events += session.feed(speak_words(2, 3).samples) + session.close()
    found = check_events(events, len(speech.samples) + len(speak_words(2, 3).samples))
    assert [(each.text, each.reason) for each in found] == [(" ba co", "flush"), (" du fe", "close")]


@pytest.mark.parametrize("finals", FINALS)
def test_an_utterance_is_conditioned_on_the_text_before_it_if_that_was_asked_for(finals):
    for conditioned in (True, False):
        backend = ToneBackend()
        session = open_session(backend, finals=finals, condition_on_previous_text=conditioned)
        session.feed((SENTENCE + speak_words(0, 1)).samples)
        session.close()
        (last_prompt,) = backend.sessions[-1].read[0]
        text = TOKENIZER.encode(" ba co du mi.")
        assert (last_prompt[: len(text) + 1] == (TOKENIZER.sot_prev, *text)) == conditioned


def test_short_sentence_is_heard_with_its_continuation():
    speech = silence(0.5) + speak_words(0, 9) + silence(1.0) + speak_words(1, 2) + silence(2.0)
    (utterance,) = group_utterances(events_of(speech))
    assert utterance.text == " ba mi. co du"


def test_local_agreement_commits_no_unstable_words():
    """The model changes each word for a second; by the time that some windows agree it is right."""
    speech = silence(0.5) + speak_random_words(12) + silence(2.0)
    wrong, changes = {}, {"commit_delay_frames": 0, "hop_frames": 26, "window_frames": 100}
    for agreement in (1, 4):
        session = open_session(ToneBackend(unstable=True), local_agreement=agreement, **changes)
        (utterance,) = group_utterances(run_session(session, speech.samples))
        words = zip(_words(utterance.interims), speech.words, strict=False)
        wrong[agreement] = sum(word.text != right for word, (right, _, _) in words)
    assert wrong[1] > wrong[4] == 0


def _words(interims):
    return [word for interim in interims for word in interim.words]


# --- the limit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finals", ["exact", "streamed"])
def test_committed_words_after_a_split_go_to_the_next_utterance(finals):
    """One pause early in the second half of the limit, where the split happens long after it."""
    speech = silence(0.4) + speak_random_words(10, seed=1) + silence(0.3) + speak_random_words(40, seed=2)
    events = events_of(speech, finals=finals, local_agreement=1)
    first, second, *_ = check_events(events, len(speech.samples))
    assert first.reason == "limit"
    assert first.ended == pytest.approx(second.began)
    carried = first.committed.removeprefix(first.text.lstrip()).lstrip()
    assert carried
    assert second.interims[0].committed.startswith(carried)
    assert (first.text + second.text) == speech.text[: len(first.text + second.text)]


def test_words_behind_a_split_at_a_long_pause_have_their_times():
    """An utterance without a silence in its second half is split at an earlier one, of which a part is in neither."""
    fluent = speak_random_words(15, seed=2, gap_s=0.03)
    speech = silence(0.4) + speak_random_words(3, seed=1) + silence(1.3) + fluent + silence(2.0)
    events = events_of(speech, finals="streamed", word_timestamps=True)
    first, second = check_events(events, len(speech.samples))
    assert (first.reason, second.began > first.ended + 0.5) == ("limit", True)
    words = [word for each in (first, second) for segment in each.segments for word in segment.words]
    found = [(word.text, word.start_s + LATE_S) for word in words]
    assert found == [(text, pytest.approx(start_s, abs=0.11)) for text, start_s, _ in speech.words]


def test_a_turn_longer_than_a_window_has_the_segments_of_a_recording_of_all_its_samples():
    speech = silence(0.4) + speak_random_words(60, seed=1) + silence(2.0) + speak_words(0, 2) + silence(0.5)
    events = events_of(speech, finals="turns", word_timestamps=True)
    first, *parts, last = check_events(events, len(speech.samples))
    assert {part.reason for part in (first, *parts[:-1])} == {"limit"}
    assert not any(part.segments for part in (first, *parts[:-1]))
    for began, turn in ((first.began, parts[-1]), (last.began, last)):
        samples = speech.samples[round(began * SAMPLE_RATE) : round(turn.ended * SAMPLE_RATE)]
        offline = listener().transcribe(samples, word_timestamps=True, **LETTER_OPTIONS).result().segments
        assert comparable(turn.segments, began) == comparable(offline)


def test_hallucinations_are_not_emitted_at_the_limit():
    speech = silence(0.4) + speak_random_words(40)
    events = events_of(speech, finals="streamed", hallucination_threshold=1e-9)
    assert "limit" in [event.reason for event in events if isinstance(event, SpeechEnded)]
    assert {*map(type, events)} == {SpeechStarted, SpeechEnded}


# --- silence, memory and cost -------------------------------------------------------------------------------


def test_silence_gives_no_events_and_no_model_calls():
    backend = ToneBackend()
    session = open_session(backend)
    assert run_session(session, silence(120).samples, range(0, 120 * SAMPLE_RATE, BLOCK)) == []
    assert backend.calls == 0
    assert session.compute_s == 0


@pytest.mark.parametrize(
    ("speech", "times"),
    [(speak_random_words(12) + speak_words(9) + silence(4.0), 4), (speak_random_words(30, gap_s=0.12), 6)],
    ids=["utterances", "without a pause"],
)
def test_memory_does_not_grow(speech, times):
    backend, held = ToneBackend(), []
    session = open_session(backend, delay="high")
    tracemalloc.start()
    try:
        for block in np.array_split(np.tile(speech.samples, times), 72):
            session.feed(block)
            backend.stream_frames, backend.encoded_frames, backend.sessions = [], [], []
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(held[36:]) <= 1.1 * max(held[:36])


# --- latency ------------------------------------------------------------------------------------------------

SMEAR_S = 0.04
"""The model recognises a tone for longer than it lasts: two positions of 20 ms."""


@pytest.mark.parametrize(
    "changes",
    [
        *({"delay": delay} for delay in ("minimal", "medium")),
        {"hop_frames": 10, "commit_delay_frames": 0},
        {"hop_frames": 26, "commit_delay_frames": 31, "local_agreement": 3},
        {"hop_frames": 100, "window_frames": 100, "commit_delay_frames": 60, "local_agreement": 2},
        {"adaptive": False, "delay": "low"},
    ],
    ids=str,
)
def test_no_word_is_shown_or_committed_after_its_latency_bound(changes):
    speech = silence(0.83) + speak_random_words(40, gap_s=0.1) + silence(2.0)
    session = open_session(**changes)
    events, bound = run_session(session, speech.samples), session.plan.bound
    check_events(events, len(speech.samples))
    shown, committed = emission_times(events)
    ends_s = [end_s for _, _, end_s in speech.words]
    committed_late_s, shown_late_s = (
        max(at_s - end_s for at_s, end_s in zip(times_s, ends_s, strict=True)) for times_s in (committed, shown)
    )
    assert session.config.commit_delay_frames / 100 <= committed_late_s <= bound.wait_s + SMEAR_S
    assert shown_late_s <= bound.interim_wait_s + SMEAR_S


def emission_times(events):
    """Return the times at which each word of a stream was first shown, and at which it was committed."""
    shown = []
    committed = []
    finished = ""
    for event in events:
        certain = tentative = ""
        if isinstance(event, Interim):
            certain, tentative = f" {event.committed}", event.tentative
        elif isinstance(event, FinalSegment):
            finished += event.segment.text
        for times_s, text in ((committed, certain), (shown, certain + tentative)):
            n_words = sum(f" {word}" in WORDS for word in (finished + text).split())
            times_s += [event.emitted_samples / SAMPLE_RATE] * (n_words - len(times_s))
    return shown, committed


# --- load ---------------------------------------------------------------------------------------------------


def load_changes(events):
    return [event for event in events if isinstance(event, LoadChanged)]


def test_load_level_rises_on_a_slow_machine_and_falls_after_it():
    clock = FakeClock()
    backend = ToneBackend(clock=clock)
    session, slow = open_session(backend, clock=clock), silence(0.5) + speak_random_words(40)
    fast = silence(2.0) + speak_random_words(60) + silence(2.0)
    backend.encode_s = 0.8
    events = session.feed(slow.samples)
    backend.encode_s = 0.0
    # A slow machine would get its audio late, but a session knows no time but that of the audio.
    events += session.feed(fast.samples) + session.close()
    check_events(events, len(slow.samples) + len(fast.samples))
    levels = [event.level for event in load_changes(events)]
    top = max(levels)
    assert top >= 1
    assert levels == [*range(1, top + 1), *range(top - 1, -1, -1)]
    assert all(event.detail and event.lag_s >= 0 for event in load_changes(events))
    assert load_changes(events)[0].lag_s > session.config.hop_frames / 100
    assert final_text(events) == slow.text + fast.text
    assert session.compute_s == pytest.approx(clock.now_s, abs=1.0)
    assert max(event.compute_s for event in events if isinstance(event, Interim)) == pytest.approx(0.8)
    assert not load_changes(events_of(slow)), "without a clock nothing is late"


def test_session_on_a_busy_machine_says_its_level_first_and_climbs_back():
    clock = FakeClock()
    backend = ToneBackend(clock=clock, encode_s=0.7)
    session = open_session(backend, clock=clock, delay="low")
    level = session.plan.level
    assert level > 0
    assert session.plan.bound.sustainable
    busy, free = silence(0.5) + speak_random_words(20), speak_random_words(60) + silence(2.0)
    events = session.feed(busy.samples)
    assert load_changes(events) == events[:1]
    nothing = {"audio_s": 0.0, "emitted_samples": 0, "compute_s": 0.0, "lag_s": 0.0}
    assert events[0] == LoadChanged(level=level, detail=session.plan.detail, **nothing)
    backend.encode_s = 0.0
    events += session.feed(free.samples) + session.close()
    assert [event.level for event in load_changes(events)] == [*range(level, -1, -1)]
    check_events(events, len(busy.samples) + len(free.samples))
    assert final_text(events) == busy.text + free.text


@pytest.mark.parametrize("finals", FINALS)
def test_no_word_is_lost_on_a_machine_that_can_keep_no_level(finals):
    clock = FakeClock()
    session = open_session(ToneBackend(clock=clock, encode_s=5.0), clock=clock, finals=finals)
    assert not session.plan.bound.sustainable
    speech = silence(0.5) + speak_random_words(40) + silence(2.0)
    events = run_session(session, speech.samples)
    changes = load_changes(events)
    assert {event.level for event in changes} == {session.plan.level}
    assert [event.lag_s > 0 for event in changes] == [False, *[True] * (len(changes) - 1)]
    assert len(changes) > 1, "the lag is shown as it grows"
    assert final_text(events) == speech.text


def test_options_that_mean_nothing_in_a_stream_are_refused():
    for name, value in {"clip_timestamps": (0.0, 3.0), "prefix": "a", "vad": False}.items():
        with pytest.raises(OptionError, match=f"{name}=.*: allowed is none in a live stream"):
            listener(ToneBackend()).stream(**{name: value})
        with pytest.raises(OptionError, match=f"{name}=.*: allowed is none in a live stream"):
            listener(ToneBackend()).stream(TranscribeOptions(**{name: value}))


def test_a_delay_is_an_integer_of_any_kind_or_refused_in_its_own_words():
    assert StreamOptions(delay=np.int64(2000)) == StreamOptions(delay="2000")
    for delay in (None, 1500.5, True, 0, b"low"):
        with pytest.raises(OptionError, match=f"delay={delay!r}: .*, or whole milliseconds"):
            StreamOptions(delay=delay)


def test_next_session_is_measured_again_if_the_machine_was_busy():
    clock = FakeClock()
    backend = ToneBackend(clock=clock, encode_s=5.0)
    recognizer = listener(backend)
    options = {"clock": clock, **LETTER_OPTIONS}
    assert recognizer.stream(**options).plan.level
    with pytest.raises(OptionError, match="best_effort"):
        recognizer.stream(delay="2000", **options)
    backend.encode_s = 0.01
    assert recognizer.stream(delay="2000", **options).plan.level == 0
    backend.encode_s = 5.0
    calls = backend.calls
    with pytest.raises(OptionError, match="delay='1': "):
        recognizer.stream(delay="1", **options)
    assert recognizer.stream(delay="low", **options).plan.level == 0
    assert backend.calls == calls, "what was measured on a machine that keeps up is kept"


# --- samples ------------------------------------------------------------------------------------------------


def test_invalid_samples_are_refused_and_the_session_goes_on():
    session, half = open_session(), len(SENTENCE.samples) // 2
    events = session.feed(SENTENCE.samples[:half])
    for samples, message in (
        (np.zeros(100, np.int32), "int32"),
        (np.array(["0.1"]), "<U3"),
        (np.zeros((50, 2), np.float32), r"\(50, 2\)"),
        (np.array([0.0, np.inf], np.float32), "finite"),
        (b"\0\0\0\0", r"\(\)"),
        ((16000, np.zeros(100, np.float32)), "<tuple>: allowed is an array"),
        (SENTENCE.samples * 32768, r"as large as \d+.*allowed are floats in \[-1, 1\]"),
    ):
        with pytest.raises(AudioError, match=message) as error:
            session.feed(samples)
        assert "\n" not in str(error.value)
    for waited_s in ("1", None, np.nan, np.inf):
        with pytest.raises(OptionError, match=r"waited_s=.*: allowed is a.* number"):
            session.feed(SENTENCE.samples, waited_s=waited_s)
    assert events + session.feed(SENTENCE.samples[half:]) + session.close() == events_of(SENTENCE)


@pytest.mark.parametrize("value", [9.0, -1e20, 3e38])
def test_one_wild_sample_costs_no_words(value):
    samples = SENTENCE.samples.copy()
    samples[SAMPLE_RATE // 2] = value
    for cuts in ((), range(0, len(samples), 2000)):
        assert final_text(run_session(open_session(), samples, cuts)) == SENTENCE.text


def test_session_in_use_by_another_thread_is_refused_and_unharmed():
    refusals = []

    class SharingBackend(ToneBackend):
        """A backend during whose work another thread uses the session."""

        def encode_chunk(self, states, mel, final_frames):
            other = Thread(target=use_at_once)
            other.start()
            other.join()
            super().encode_chunk(states, mel, final_frames)

    def use_at_once():
        for use in (lambda: session.feed(SENTENCE.samples), session.flush, session.close):
            try:
                use()
            except HarkenError as error:
                refusals.append(str(error))

    session = open_session(SharingBackend())
    assert session.feed(SENTENCE.samples) + session.close() == events_of(SENTENCE)
    assert len(refusals) >= 3
    assert set(refusals) == {
        "this session is in use, by another thread or by the call that this one came from; "
        "allowed is one call at a time, or a session for each thread"
    }


def test_samples_of_16_bits_are_taken_and_neither_modified_nor_kept_by_reference():
    pcm = (SENTENCE.samples * 32768).astype(np.int16)
    expected = run_session(open_session(), pcm.astype(np.float32) / 32768)
    assert final_text(expected) == SENTENCE.text
    session, events = open_session(), []
    for block in np.split(pcm, range(BLOCK, len(pcm), BLOCK)):
        reused = block.copy()
        events += session.feed(reused)
        np.testing.assert_array_equal(reused, block)
        reused[:] = 1
    assert events + session.close() == expected


# --- failures -----------------------------------------------------------------------------------------------


class FailingBackend(ToneBackend):
    """A backend that raises its failure once, when an utterance is transcribed."""

    failure = None

    def encode(self, mel, *, padded=False):
        if failure := self.failure:
            self.failure = None
            raise failure
        return super().encode(mel, padded=padded)


@pytest.mark.parametrize("failure", [MemoryError(), OutOfMemory("too little memory"), KeyboardInterrupt()])
def test_a_stream_whose_call_failed_says_so_and_its_events_until_then_and_other_streams_are_kept(failure):
    backend = FailingBackend()
    sessions = listener(backend).stream_many(2, clock=None, **LETTER_OPTIONS)
    for name in ("door", "gate"):
        sessions.open(name)
    expected = events_of(SENTENCE)
    half = len(SENTENCE.samples) // 2
    events = sessions.feed(dict.fromkeys(("door", "gate"), SENTENCE.samples[:half]))
    backend.failure = failure
    with pytest.raises(type(failure)):
        sessions.feed({"door": SENTENCE.samples[half:]})
    for use in (
        lambda: sessions.feed({"gate": SENTENCE.samples, "door": SENTENCE.samples}),
        *[lambda: sessions.flush("door")] * 2,
    ):
        with pytest.raises(
            HarkenError, match=f"stream 'door' cannot go on.*{type(failure).__name__}.*close it"
        ):
            use()
    gate = events["gate"] + sessions.feed({"gate": SENTENCE.samples[half:]})["gate"] + sessions.close("gate")
    assert gate == expected
    before = events["door"] + sessions.close("door")
    assert before == expected[: len(before)]
    assert {*map(type, expected[len(before) :])} == {FinalSegment, SpeechEnded}
    sessions.open("door")
    assert sessions.feed({"door": SENTENCE.samples})["door"] == expected


def test_a_close_that_failed_is_no_close():
    backend = FailingBackend()
    session, stopped = open_session(backend), (silence(0.5) + speak_words(0, 1, 2)).samples
    session.feed(stopped)
    backend.failure = MemoryError()
    with pytest.raises(MemoryError):
        session.close()
    with pytest.raises(HarkenError, match=r"^the session cannot go on"):
        session.flush()
    assert not any(isinstance(event, SpeechEnded) for event in session.close())
    with pytest.raises(HarkenError, match=r"^the session is closed$"):
        session.feed(stopped)


# --- several streams ----------------------------------------------------------------------------------------


def test_what_is_closed_unknown_or_invalid_is_refused_and_no_stream_is_fed():
    session, sessions = open_session(), listener().stream_many(2, clock=None, **LETTER_OPTIONS)
    session.close()
    assert session.close() == []
    sessions.open("door")
    sessions.open("gate")
    invalid, said = np.full(10, np.nan, np.float32), SENTENCE.samples
    for use, message in (
        (lambda: session.feed(said), "^the session is closed$"),
        (session.flush, "^the session is closed$"),
        (lambda: sessions.open("door"), "there is a stream 'door' already"),
        (lambda: sessions.feed({"window": said, "door": said}), "'window' is closed, or was never opened"),
        (lambda: sessions.feed({"door": said, "gate": invalid}), "finite"),
    ):
        with pytest.raises(HarkenError, match=message):
            use()
    assert sessions.feed({"door": said})["door"] == events_of(SENTENCE), "its samples had not been fed"
    assert sessions.close("door") == sessions.close("gate") == []
    sessions.open("door")
    assert isinstance(sessions.feed({"door": said})["door"][0], SpeechStarted)


@pytest.mark.parametrize("finals", FINALS)
def test_simultaneous_requests_of_streams_are_batched(finals):
    backend = ToneBackend()
    sessions = listener(backend).stream_many(3, clock=None, finals=finals, **LETTER_OPTIONS)
    for name in "abc":
        sessions.open(name)
    events = sessions.feed(dict.fromkeys("abc", SENTENCE.samples))
    assert events["a"] == events["b"] == events["c"] == events_of(SENTENCE, finals=finals)
    together = len(backend.sessions)
    alone = ToneBackend()
    run_session(open_session(alone, finals=finals), SENTENCE.samples)
    assert together == len(alone.sessions)
    assert len(backend.stream_frames) == 3 * len(alone.stream_frames)
