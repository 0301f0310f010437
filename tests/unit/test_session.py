"""What a live session says, and when: speech of which every word is known, and a model that hears it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fakes.clock import FakeClock
from fakes.speech_detector import AmplitudeSpeechDetector
from fakes.tone_backend import (
    LETTER_OPTIONS,
    WORDS,
    ToneBackend,
    ToneEncoderState,
    ToneSpeech,
    silence,
    speak_random_words,
    speak_words,
)
from harken.api import Recognizer
from harken.contract import Floats
from harken.decoding import PartialHypothesis
from harken.errors import AudioError, HarkenError, OptionError
from harken.streaming import (
    Event,
    FinalSegment,
    Interim,
    LiveSession,
    LoadChanged,
    SpeechEnded,
    SpeechStarted,
    stream,
)
from harken.streaming.utterance import ActiveUtterance
from harken.streaming.utterance_text import utterance_words
from harken.transcribe import chunking
from harken.types import SAMPLE_RATE
from session_events import check_committed_text, check_events, final_text, group_utterances, run_session
from tiny_models import TOKENIZER

FINALS = ["exact", "streamed"]
SENTENCE = silence(1.0) + speak_words(0, 1, 2, 9) + silence(2.0)
BLOCK = SAMPLE_RATE // 4


@pytest.fixture(autouse=True)
def _loud_is_speech(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "SpeechDetector", AmplitudeSpeechDetector)
    monkeypatch.setattr(stream, "SpeechDetector", AmplitudeSpeechDetector)


def opened(backend: ToneBackend | None = None, **changes: Any) -> LiveSession:
    """A session with a model that hears words."""
    recognizer = Recognizer(backend or ToneBackend(), TOKENIZER, "listener")
    return recognizer.stream(**{"clock": float, **LETTER_OPTIONS, **changes})


def heard(speech: ToneSpeech, **changes: Any) -> list[Event]:
    """All events of some speech."""
    return run_session(opened(**changes), speech.samples)


def kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


# --- one utterance -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("finals", FINALS)
def test_a_sentence(finals: str) -> None:
    events = heard(SENTENCE, finals=finals)
    assert [kind for kind in kinds(events) if kind != "Interim"] == [
        "SpeechStarted",
        "Committed",
        "SpeechEnded",
    ]
    (said,) = check_events(events, len(SENTENCE.samples))
    assert (said.text, said.reason) == (" ba co du mi.", "sentence")
    assert said.began <= 1.0
    assert 2.5 <= said.ended <= 3.0
    assert said.segments[0].end_s == pytest.approx(2.5, abs=0.03)
    assert [interim.committed + interim.tentative for interim in said.interims][-1] == "ba co du mi."


def test_text_is_committed_before_the_utterance_ends_and_words_have_times() -> None:
    (said,) = check_events(heard(SENTENCE), len(SENTENCE.samples))
    its = _words(said.interims)
    assert [word.text for word in its] == [" ba", " co"]
    for word, (_, start_s, end_s) in zip(its, SENTENCE.words, strict=False):
        assert word.start_s == pytest.approx(start_s, abs=0.11), (
            "a space listens to the silence before the word"
        )
        assert word.end_s == pytest.approx(end_s, abs=0.03)


def test_a_pause_ends_an_utterance_where_no_sentence_does() -> None:
    speech = silence(0.5) + speak_words(0, 1) + silence(0.7) + speak_words(2) + silence(2.0)
    (said,) = check_events(heard(speech), len(speech.samples))
    assert (said.text, said.reason) == (" ba co du", "silence")


@pytest.mark.parametrize("finals", FINALS)
def test_a_stream_that_stops_in_a_word_says_it(finals: str) -> None:
    speech = silence(0.5) + speak_words(0, 1, 2)
    stopped = speech.samples[: -round(0.25 * SAMPLE_RATE)]  # in the middle of the last word
    events = run_session(opened(finals=finals), stopped)
    (said,) = check_events(events, len(stopped))
    assert (said.text, said.reason) == (" ba co du", "close")


@pytest.mark.parametrize("finals", FINALS)
def test_one_word_that_is_over_before_there_is_an_update_is_said(finals: str) -> None:
    speech = speak_words(3)
    assert final_text(heard(speech, finals=finals)) == " fe"


@pytest.mark.parametrize("finals", FINALS)
def test_a_flush_ends_the_utterance_and_what_follows_is_another(finals: str) -> None:
    session, speech = opened(finals=finals), silence(0.5) + speak_words(0, 1)
    events = session.feed(speech.samples) + session.flush()
    assert events[-1].emitted_samples == len(speech.samples)
    assert session.flush() == []
    events += session.feed(speak_words(2, 3).samples) + session.close()
    said = check_events(events, len(speech.samples) + len(speak_words(2, 3).samples))
    assert [(its.text, its.reason) for its in said] == [(" ba co", "flush"), (" du fe", "close")]


def test_times_of_words_do_not_run_backwards_whatever_is_listened_to() -> None:
    """A word that listens to sound before the words that stand already: they are one group with its full stop."""
    running = ActiveUtterance(encoder=ToneEncoderState(), n_mels=1, start_frame=100)
    for said, places in ((" ba", [40, 45, 50, 60]), (".", [10, 12]), (" co", [5, 6, 7, 70])):
        tokens = TOKENIZER.encode(said)
        grown = PartialHypothesis(
            tokens=tuple(tokens),
            logprobs=(0.0,) * len(tokens),
            attended_positions=np.array(places),
            attention=np.zeros((1, len(places), 80), np.float32),
            reached_eot=True,
            no_speech_prob=0.0,
        )
        running.finalize(grown)
    ba, co = utterance_words(running.committed, running, TOKENIZER)
    assert (ba.text, ba.start_s, ba.end_s) == (" ba.", 1.8, 2.2)
    assert (co.text, co.start_s, co.end_s) == (" co", 2.2, 2.4)


# --- finals ------------------------------------------------------------------------------------------------


def test_with_streamed_finals_the_model_hears_no_utterance_as_a_whole() -> None:
    backend = ToneBackend()
    run_session(opened(backend, finals="streamed"), SENTENCE.samples)
    assert backend.stream_frames
    assert not backend.encoded_frames
    run_session(opened(backend, finals="exact"), SENTENCE.samples)
    assert backend.encoded_frames


def test_what_was_misheard_and_committed_is_mended_by_exact_finals_only() -> None:
    speech = silence(0.5) + speak_random_words(12) + silence(2.0)
    changes = {"delay": "minimal", "commit_delay_frames": 0, "local_agreement": 1}
    backends = {finals: ToneBackend(unstable=True) for finals in FINALS}
    said = {
        finals: check_events(
            run_session(opened(its, finals=finals, **changes), speech.samples), len(speech.samples)
        )
        for finals, its in backends.items()
    }
    (offline,) = Recognizer(ToneBackend(unstable=True), TOKENIZER, "listener").transcribe(
        said["exact"][0].of(speech.samples), **LETTER_OPTIONS
    )
    assert said["exact"][0].text == offline.text
    assert not offline.text.lstrip().startswith(said["exact"][0].committed), "nothing was misheard"
    check_committed_text(said["streamed"])


def test_agreement_keeps_what_changes_from_being_committed() -> None:
    """A word that is heard anew with each window for a second is right by the time that three windows agree."""
    speech = silence(0.5) + speak_random_words(12) + silence(2.0)
    wrong = {}
    for agreement in (1, 4):
        changes = {
            "commit_delay_frames": 0,
            "hop_frames": 26,
            "window_frames": 100,
            "local_agreement": agreement,
        }
        (said,) = group_utterances(run_session(opened(ToneBackend(unstable=True), **changes), speech.samples))
        wrong[agreement] = sum(
            word.text != right for word, (right, _, _) in zip(_words(said.interims), speech.words, strict=False)
        )
    assert wrong[1] > wrong[4] == 0


def _words(interims: list[Interim]) -> list[Any]:
    return [word for interim in interims for word in interim.words]


# --- the limit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("finals", FINALS)
@pytest.mark.parametrize("delay", ["minimal", "low", "high"])
def test_who_never_pauses_is_cut_and_nothing_is_lost_or_repeated(delay: str, finals: str) -> None:
    speech = silence(0.4) + speak_random_words(75, gap_s=0.12)
    events = heard(speech, delay=delay, finals=finals)
    said = check_events(events, len(speech.samples))
    assert [its.reason for its in said].count("limit") >= 3
    assert final_text(events) == speech.text
    check_committed_text(said)


@pytest.mark.parametrize("finals", FINALS)
def test_what_was_committed_behind_a_cut_stands_in_the_next_utterance(finals: str) -> None:
    """One pause early in the second half, where the cut is made long after."""
    speech = silence(0.4) + speak_random_words(10, seed=1) + silence(0.3) + speak_random_words(40, seed=2)
    first, second, *_ = check_events(heard(speech, finals=finals), len(speech.samples))
    assert first.reason == "limit"
    assert first.ended == pytest.approx(second.began)
    carried = first.committed.removeprefix(first.text.lstrip()).lstrip()
    assert carried
    assert second.interims[0].committed.startswith(carried)
    assert (first.text + second.text) == speech.text[: len(first.text + second.text)]


def test_what_nobody_is_believed_to_have_said_is_not_said_at_the_limit_either() -> None:
    speech = silence(0.4) + speak_random_words(40)
    events = heard(speech, finals="streamed", hallucination_threshold=1e-9)
    assert "limit" in [event.reason for event in events if isinstance(event, SpeechEnded)]
    assert {*kinds(events)} == {"SpeechStarted", "SpeechEnded"}


# --- silence, and what it costs ----------------------------------------------------------------------------


def test_silence_brings_nothing_and_asks_the_model_for_nothing() -> None:
    backend = ToneBackend()
    session = opened(backend)
    assert run_session(session, silence(120).samples, range(0, 120 * SAMPLE_RATE, BLOCK)) == []
    assert backend.calls == 0
    assert session.compute_s == 0


def test_a_click_is_no_utterance() -> None:
    backend = ToneBackend()
    speech = silence(1) + speak_words(0, word_s=0.05) + silence(2)
    assert run_session(opened(backend), speech.samples) == []
    assert backend.calls == 0


def held_bytes(its: object, shared: tuple[object, ...]) -> int:
    """Bytes of an object and of all that only it holds."""
    seen, waiting, total = {id(other) for other in shared}, [its], 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type) or callable(one):
            continue
        seen.add(id(one))
        total += sys.getsizeof(one)
        waiting += gc.get_referents(one)
    return total


@pytest.mark.slow
def test_an_hour_holds_memory_and_cost_flat() -> None:
    """A minute of which 6 s are speech, again and again."""
    backend = ToneBackend()
    session = opened(backend, sentence_pause_s=0.5)
    shared = (backend, TOKENIZER, session._worker)
    minute = speak_random_words(12) + speak_words(9) + silence(60 - 13 * 0.4)
    assert len(minute.samples) == 60 * SAMPLE_RATE
    bytes_held, costs, said = [], [], []
    for _ in range(60):
        backend.stream_frames, backend.encoded_frames, backend.sessions = [], [], []
        events = [event for second in np.split(minute.samples, 60) for event in session.feed(second)]
        said.append(final_text(events))
        costs.append((sum(backend.stream_frames), sum(backend.encoded_frames), _read_tokens(backend)))
        bytes_held.append(held_bytes(session, shared))
    assert {*said} == {minute.text}
    frames, encoded, tokens = (max(its[10:]) / max(its[:10]) for its in zip(*costs, strict=True))
    assert max(frames, encoded, tokens) <= 1.1
    assert max(bytes_held[10:]) <= max(bytes_held[:10]) + 200  # numbers grow by some bytes
    assert max(bytes_held) < 500_000, "2 s of sound are 128 KB"


def _read_tokens(backend: ToneBackend) -> int:
    return sum(len(row) for session in backend.sessions for rows in session.read for row in rows)


def test_what_is_held_while_somebody_speaks_is_bounded_too() -> None:
    session = opened(backend := ToneBackend())
    shared = (backend, TOKENIZER, session._worker)
    speech = speak_random_words(150, gap_s=0.12)
    bytes_held = []
    for block in np.split(speech.samples, range(BLOCK, len(speech.samples), BLOCK)):
        session.feed(block)
        bytes_held.append(held_bytes(session, shared))
    half = len(bytes_held) // 2
    assert max(bytes_held[half:]) <= 1.1 * max(bytes_held[:half])


# --- latency -----------------------------------------------------------------------------------------------

SMEARED_S = 0.04
"""By so much a tone is heard for longer than it lasts: two positions of 20 ms."""


@pytest.mark.parametrize(
    "changes",
    [
        {"delay": "minimal"},
        {"delay": "low"},
        {"delay": "medium"},
        {"delay": "high"},
        {"delay": "1500"},
        {"hop": 10, "hold": 0},
        {"hop_frames": 26, "commit_delay_frames": 31, "local_agreement": 3},
        {"hop_frames": 100, "window_frames": 100, "commit_delay_frames": 60, "local_agreement": 2},
        {"adaptive": False, "delay": "low"},
    ],
    ids=str,
)
def test_no_word_is_shown_or_committed_later_than_the_bound_says(changes: dict[str, Any]) -> None:
    speech = silence(0.83) + speak_random_words(60, gap_s=0.1) + silence(2.0)
    session = opened(**changes)
    events, bound = run_session(session, speech.samples), session.plan.bound
    check_events(events, len(speech.samples))
    shown, committed = told_at(events)
    ends_s = [end_s for _, _, end_s in speech.words]
    assert len(committed) == len(shown) == len(ends_s)
    late_s = [at_s - end_s for at_s, end_s in zip(committed, ends_s, strict=True)]
    assert max(late_s) <= bound.wait_s + SMEARED_S
    assert max(late_s) >= session.config.commit_delay_frames / 100
    assert (
        max(at_s - end_s for at_s, end_s in zip(shown, ends_s, strict=True)) <= bound.interim_wait_s + SMEARED_S
    )


def told_at(events: list[Event]) -> tuple[list[float], list[float]]:
    """When each word of a stream was shown first, and when it was committed, in seconds."""
    shown: list[float] = []
    committed: list[float] = []
    before = 0
    for event in events:
        at_s = event.emitted_samples / SAMPLE_RATE
        now = ""
        if isinstance(event, Interim):
            committed += [at_s] * (before + _count(event.committed) - len(committed))
            now = event.committed + event.tentative
        elif isinstance(event, FinalSegment):
            before += _count(event.segment.text)
            committed += [at_s] * (before - len(committed))
            shown += [at_s] * (before - len(shown))
        shown += [at_s] * (before + _count(now) - len(shown))
    return shown, committed


def _count(said: str) -> int:
    """How many whole words there are."""
    return sum(f" {word}" in WORDS for word in said.split())


# --- load --------------------------------------------------------------------------------------------------


def test_a_machine_that_falls_behind_does_less_and_says_so_and_recovers() -> None:
    clock = FakeClock()
    backend = ToneBackend(clock=clock)
    session = opened(backend, clock=clock)
    backend.encode_s = 0.8
    slow = silence(0.5) + speak_random_words(40)
    events = session.feed(slow.samples)
    backend.encode_s = 0.0
    fast = silence(2.0) + speak_random_words(60) + silence(2.0)
    # A machine that is behind gets its sound late, but a session knows no time but that of the sound.
    events += session.feed(fast.samples) + session.close()
    check_events(events, len(slow.samples) + len(fast.samples))
    changes = [event for event in events if isinstance(event, LoadChanged)]
    levels = [event.level for event in changes]
    top = max(levels)
    assert top >= 1
    assert levels == [*range(1, top + 1), *range(top - 1, -1, -1)]
    assert all(event.detail and event.lag_s >= 0 for event in changes)
    assert changes[0].lag_s > session.config.hop_frames / 100
    assert final_text(events) == slow.text + fast.text
    assert session.compute_s == pytest.approx(clock.now_s, abs=1.0)
    assert max(event.compute_s for event in events if isinstance(event, Interim)) == pytest.approx(0.8)


def test_less_is_computed_while_it_is_behind() -> None:
    frames = {}
    for encode_s in (0.0, 0.8):
        clock = FakeClock()
        backend = ToneBackend(clock=clock)
        session = opened(backend, clock=clock)
        backend.encode_s, backend.stream_frames = encode_s, []
        run_session(session, (silence(0.5) + speak_random_words(75)).samples)
        frames[encode_s] = sum(backend.stream_frames)
    assert frames[0.8] < 0.75 * frames[0.0]


def test_where_no_time_passes_nothing_changes() -> None:
    assert not [event for event in heard(speak_random_words(40)) if isinstance(event, LoadChanged)]


def test_a_delay_that_the_machine_cannot_keep_is_refused() -> None:
    clock = FakeClock()
    with pytest.raises(OptionError, match="delay='low'"):
        opened(ToneBackend(clock=clock, encode_s=5.0), clock=clock)


# --- what a session takes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        (np.zeros(100, np.int32), "int32"),
        (np.zeros(100, complex), "complex"),
        (np.zeros((50, 2), np.float32), r"\(50, 2\)"),
        (np.array([0.0, np.nan], np.float32), "finite"),
        (np.array([0.0, np.inf], np.float32), "finite"),
        (np.array(0.5, np.float32), r"\(\)"),
        (b"\0\0\0\0", r"\(\)"),
    ],
)
def test_what_is_no_sound_is_refused_and_the_session_goes_on(samples: Any, told: str) -> None:
    expected = heard(SENTENCE)
    session = opened()
    half = len(SENTENCE.samples) // 2
    events = session.feed(SENTENCE.samples[:half])
    with pytest.raises(AudioError, match=told) as error:
        session.feed(samples)
    assert "\n" not in str(error.value)
    assert events + session.feed(SENTENCE.samples[half:]) + session.close() == expected


def test_one_that_is_refused_keeps_the_samples_of_the_other_streams_out() -> None:
    sessions = Recognizer(ToneBackend(), TOKENIZER, "listener").stream_many(2, clock=float, **LETTER_OPTIONS)
    sessions.open("a")
    sessions.open("b")
    with pytest.raises(AudioError, match="finite"):
        sessions.feed({"a": SENTENCE.samples, "b": np.full(10, np.nan, np.float32)})
    assert sessions.feed({"a": SENTENCE.samples})["a"] == heard(SENTENCE)
    assert sessions.close("a") == sessions.close("b") == []


def test_16_bit_samples_are_taken() -> None:
    pcm = (SENTENCE.samples * 32768).astype(np.int16)
    assert run_session(opened(), pcm) == run_session(opened(), pcm.astype(np.float32) / 32768)
    assert final_text(run_session(opened(), pcm)) == SENTENCE.text


def test_the_samples_are_left_as_they_are_and_may_change_afterwards() -> None:
    def fed(block: Floats) -> Iterator[Event]:
        reused = block.copy()
        yield from session.feed(reused)
        np.testing.assert_array_equal(reused, block)
        reused[:] = 1.0

    session = opened()
    blocks = np.split(SENTENCE.samples, range(BLOCK, len(SENTENCE.samples), BLOCK))
    assert [event for block in blocks for event in fed(block)] + session.close() == heard(SENTENCE)


def test_a_session_that_is_closed_takes_nothing_more() -> None:
    session = opened()
    session.feed(SENTENCE.samples)
    session.close()
    assert session.close() == []
    for more in (lambda: session.feed(SENTENCE.samples), session.flush):
        with pytest.raises(HarkenError, match=r"^the session is closed$"):
            more()


def test_a_session_without_samples() -> None:
    session = opened()
    assert session.feed(np.empty(0, np.float32)) == session.flush() == session.close() == []


# --- several streams ---------------------------------------------------------------------------------------


def test_streams_have_names() -> None:
    sessions = Recognizer(ToneBackend(), TOKENIZER, "listener").stream_many(2, clock=float, **LETTER_OPTIONS)
    sessions.open("door")
    with pytest.raises(HarkenError, match="there is a stream 'door' already"):
        sessions.open("door")
    with pytest.raises(HarkenError, match="'window' is closed, or was never opened"):
        sessions.feed({"window": SENTENCE.samples, "door": SENTENCE.samples})
    assert sessions.feed({"door": SENTENCE.samples})["door"] == heard(SENTENCE), "nothing of it had been taken"
    sessions.close("door")
    sessions.open("door")
    assert isinstance(sessions.feed({"door": SENTENCE.samples})["door"][0], SpeechStarted)


@pytest.mark.parametrize("finals", FINALS)
def test_what_streams_need_at_the_same_time_is_computed_together(finals: str) -> None:
    backend = ToneBackend()
    sessions = Recognizer(backend, TOKENIZER, "listener").stream_many(
        3, clock=float, finals=finals, **LETTER_OPTIONS
    )
    for name in "abc":
        sessions.open(name)
    events = sessions.feed(dict.fromkeys("abc", SENTENCE.samples))
    assert events["a"] == events["b"] == events["c"] == heard(SENTENCE, finals=finals)
    together = len(backend.sessions)
    alone = ToneBackend()
    run_session(opened(alone, finals=finals), SENTENCE.samples)
    assert together == len(alone.sessions)
    assert len(backend.stream_frames) == 3 * len(alone.stream_frames)


@pytest.mark.parametrize("count", [0, 257])
def test_how_many_streams_there_may_be(count: int) -> None:
    with pytest.raises(OptionError, match=f"count={count}"):
        Recognizer(ToneBackend(), TOKENIZER, "listener").stream_many(count)
