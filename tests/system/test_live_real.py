"""Live sessions on recordings: what was promised of them, with a published model and real voice activity detection."""

from __future__ import annotations

import json
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from harken.audio import load_audio
from harken.contract import Floats
from harken.streaming import Event, Interim
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE, SHARED, recognizer
from session_events import check_committed_text, check_events, final_text, run_session

pytestmark = [pytest.mark.real, pytest.mark.slow]

BLOCK = SAMPLE_RATE // 10


@cache
def example() -> Floats:
    return load_audio(EXAMPLE)


@cache
def events(finals: str, precision: str = "int8") -> list[Event]:
    samples = example()
    session = recognizer(precision).stream(clock=float, finals=finals)
    return run_session(session, samples, range(BLOCK, len(samples), BLOCK))


def words(said: str) -> list[str]:
    return "".join(letter if letter.isalnum() else " " for letter in said.lower()).split()


def recordings(folder: str) -> list[Path]:
    """Files of a set; skip where it is missing."""
    manifest = SHARED / "audio" / folder / "manifest.jsonl"
    if not manifest.is_file():
        pytest.skip(f"{manifest} is missing")
    entries = manifest.read_text(encoding="utf-8").splitlines()
    return [manifest.parent / json.loads(entry)["audio"] for entry in entries]


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_exact_finals_are_what_transcription_says_of_each_utterance(precision: str) -> None:
    told = check_events(events("exact", precision), len(example()))
    assert told
    for its in told:
        offline = recognizer(precision).transcribe(its.of(example())).result().segments
        assert [segment.tokens for segment in its.segments] == [segment.tokens for segment in offline]
        times = [(segment.start_s - its.began, segment.end_s - its.began) for segment in its.segments]
        assert times == [pytest.approx((segment.start_s, segment.end_s)) for segment in offline]


def test_streamed_finals_are_what_was_committed() -> None:
    told = check_events(events("streamed"), len(example()))
    check_committed_text(told)
    assert any(its.committed for its in told)


def test_words_are_shown_while_they_are_spoken() -> None:
    """Those of the recording, almost all of them before it ends."""
    offline = words(recognizer("int8").transcribe(example()).text)
    assert words(final_text(events("exact"))) == offline
    shown = [its for its in events("exact") if isinstance(its, Interim)]
    early = {word for its in shown for word in words(its.committed + its.tentative)}
    assert len(early & {*offline}) >= 0.8 * len({*offline})
    assert shown[0].emitted_samples < len(example()) / 2


def test_how_samples_are_cut_changes_nothing() -> None:
    samples = example()
    cuts = np.random.default_rng(0).integers(0, len(samples), 40)
    assert run_session(recognizer("int8").stream(clock=float), samples, cuts.tolist()) == events("exact")


def test_several_streams_say_what_each_says_alone() -> None:
    its = recognizer("int8").stream_many(2, clock=float)
    its.open("now")
    its.open("later")
    samples = example()
    found = {"now": its.feed({"now": samples[: 3 * SAMPLE_RATE]})["now"], "later": []}
    for name, more in its.feed({"now": samples[3 * SAMPLE_RATE :], "later": samples}).items():
        found[name] += more + its.close(name)
    assert final_text(found["now"]) == final_text(found["later"]) == final_text(events("exact"))


def test_a_stream_that_stops_in_a_word_keeps_what_was_said_before() -> None:
    stopped = example()[: round(7.3 * SAMPLE_RATE)]
    for finals in ("exact", "streamed"):
        session = recognizer("int8").stream(clock=float, finals=finals)
        told = run_session(session, stopped, range(BLOCK, len(stopped), BLOCK))
        check_events(told, len(stopped))
        assert words(final_text(told))[:5] == ["and", "so", "my", "fellow", "americans"]


@pytest.mark.parametrize("finals", ["exact", "streamed"])
def test_what_is_no_speech_produces_no_text(finals: str) -> None:
    for path in islice(recordings("non-speech"), 0, None, 6):
        samples = load_audio(path)[: 20 * SAMPLE_RATE]
        session = recognizer("int8").stream(clock=float, finals=finals)
        assert final_text(run_session(session, samples, range(BLOCK, len(samples), BLOCK))) == "", path.name


def test_speech_without_a_pause_is_cut_and_says_most_of_what_is_said() -> None:
    """Three quarters of a minute of utterances, with all that is soft taken out."""
    paths = recordings("librispeech-test-other")[:10]
    samples = np.concatenate([load_audio(path) for path in paths])[: 45 * SAMPLE_RATE]
    chunks = samples[: len(samples) // 512 * 512].reshape(-1, 512)
    samples = chunks[np.abs(chunks).max(axis=1) > 0.02].ravel()
    offline = words(recognizer("int8").transcribe(samples).text)
    for finals in ("exact", "streamed"):
        session = recognizer("int8").stream(clock=float, finals=finals)
        told = run_session(session, samples, range(BLOCK, len(samples), BLOCK))
        said = check_events(told, len(samples))
        if finals == "streamed":
            check_committed_text(said)
        found = words(final_text(told))
        assert len({*found} & {*offline}) >= 0.7 * len({*offline})
        assert 0.8 * len(offline) <= len(found) <= 1.2 * len(offline)
