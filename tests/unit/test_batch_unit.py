"""Several recordings in one batch: whose turn it is, and what one of them that ends early does to the others."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fakes.backends import (
    WINDOW_POSITIONS,
    WINDOW_S,
    TranscriptBackend,
    window_text,
)
from fakes.speech_detector import AmplitudeSpeechDetector, noise_and_silence
from harken.api import Recognizer
from harken.contract import Floats
from harken.errors import AudioError, Cancelled
from harken.transcribe import (
    Callbacks,
    RecordingTranscriber,
    Scheduler,
    TranscribeOptions,
    WindowDecoder,
    chunking,
    mel_windows,
)
from harken.transcription import Transcription
from tiny_models import TOKENIZER

WINDOWS = 5
NOISE = noise_and_silence(WINDOWS * WINDOW_S)
PLAIN: dict[str, Any] = {"language": "en", "vad": False, "hallucination_threshold": None}
HELLO = window_text(0, "hello", WINDOW_POSITIONS)


class Interruption(Exception):
    """What a hook raises that is not for harken to know."""


def together(many: int, **changes: Any) -> list[Transcription]:
    its = Recognizer(TranscriptBackend(HELLO), TOKENIZER, "recital")
    return its.transcribe_many([NOISE] * many, **{**PLAIN, "batch_size": many, **changes})


def texts(work: Transcription) -> list[str]:
    return [segment.text for segment in work]


@pytest.mark.parametrize("step", [3, 10, 20])
def test_what_a_hook_raises_ends_one_iteration_and_loses_no_window(step: int) -> None:
    left = [step]

    def observe(_: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise Interruption

    first, second, third = together(3, on_token=observe)
    with pytest.raises(Interruption):
        first.result()
    assert texts(second) == texts(third) == ["hello"] * WINDOWS
    with pytest.raises(Interruption):
        first.result()


@pytest.mark.parametrize("delivered", [0, 1, 2])
def test_one_that_is_cancelled_does_not_end_the_others(delivered: int) -> None:
    stop: list[bool] = []
    cancelled, other = together(2, callbacks={0: Callbacks(is_cancelled=lambda: bool(stop))})
    segments = iter(cancelled)
    for _ in range(delivered):
        next(segments)
    stop.append(True)
    assert texts(other) == ["hello"] * WINDOWS
    with pytest.raises(Cancelled):
        cancelled.result()
    assert len(cancelled.so_far().segments) == delivered


def test_all_are_cancelled_where_all_ask_for_it() -> None:
    for work in together(3, is_cancelled=lambda: True):
        with pytest.raises(Cancelled):
            work.result()


def test_cancelling_that_nobody_asked_for_is_handed_on() -> None:
    def observe(_: Any) -> None:
        raise Cancelled("by a hook of its own")

    work, _ = together(2, on_token=observe)
    with pytest.raises(Cancelled, match="of its own"):
        work.result()


@pytest.mark.parametrize("vad", [False, True])
def test_one_that_is_stopped_before_its_turn_is_not_even_opened(vad: bool) -> None:
    opened: list[int] = []

    def blocks(which: int) -> Iterator[Floats]:
        opened.append(which)
        yield NOISE

    options = TranscribeOptions(**{**PLAIN, "vad": vad, "condition_on_previous_text": False})
    hearing = WindowDecoder(TranscriptBackend(HELLO), TOKENIZER, options)
    forms = [RecordingTranscriber(hearing, blocks(which)) for which in range(3)]
    batch = Scheduler(hearing, forms, 3)
    forms[1].stop()
    assert list(batch.segments(forms[1])) == []
    assert list(batch.segments(forms[2])) != [] or vad
    assert opened == [0, 2]


def test_nobody_waits_for_others_to_know_that_a_recording_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "SpeechDetector", AmplitudeSpeechDetector)
    seen: list[float] = []
    hooks = {1: Callbacks(on_window_start=lambda start_s, prompt: seen.append(start_s))}
    parallel = {**PLAIN, "vad": True, "vad_min_silence_s": 0.1, "vad_padding_s": 0.05}
    its = Recognizer(TranscriptBackend(HELLO), TOKENIZER, "recital")
    short, long = noise_and_silence(*[0.3, 31] * 2), noise_and_silence(*[0.3, 31] * 5)
    work, other = its.transcribe_many(
        [short, long], **parallel, condition_on_previous_text=False, batch_size=3, callbacks=hooks
    )
    assert len(work.result().segments) == 2
    assert len(seen) == 2  # beside the last of the short one
    assert len(other.result().segments) == len(seen) == 5


def test_several_fail_and_the_others_come_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "SpeechDetector", AmplitudeSpeechDetector)
    its = Recognizer(TranscriptBackend(HELLO), TOKENIZER, "recital")
    damaged = np.concatenate([NOISE, np.zeros(30 * 16_000, np.float32), np.array([np.nan], np.float32)])
    audios = ["none.wav", NOISE, np.empty(0, np.float32), damaged, NOISE]
    for vad in (False, True):
        options = {**PLAIN, "vad": vad, "batch_size": 2}
        works = its.transcribe_many(audios, **options)
        for failing, match in ((3, "not finite|finite"), (0, "none.wav"), (2, "no audio samples")):
            with pytest.raises(AudioError, match=match):
                works[failing].result()
        whole = texts(its.transcribe(NOISE, **options))
        assert whole
        assert texts(works[1]) == texts(works[4]) == whole
        heard = [segment.text for segment in works[3].so_far().segments]
        assert heard[: len(whole)] == whole


@pytest.mark.parametrize("vad", [False, True])
def test_recordings_that_are_done_or_stopped_keep_no_sound(monkeypatch: pytest.MonkeyPatch, vad: bool) -> None:
    monkeypatch.setattr(chunking, "SpeechDetector", AmplitudeSpeechDetector)
    its = Recognizer(TranscriptBackend(HELLO), TOKENIZER, "recital")
    works = its.transcribe_many([noise_and_silence(0.4, 60, 0.4, 5)] * 3, **{**PLAIN, "vad": vad})
    tracemalloc.start()
    try:
        works[0].result()
        works[1].result()
        next(iter(works[2]))
        works[2].stop()
        sound = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, mel_windows.__file__)])
        assert sum(trace.size for trace in sound.traces) < 10_000
    finally:
        tracemalloc.stop()
