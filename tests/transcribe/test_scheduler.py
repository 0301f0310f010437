"""Several recordings in one batch: their order, and the effect of one that ends early on the others."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from fakes.backends import (
    WINDOW_POSITIONS,
    WINDOW_S,
    FakeFeatures,
    TranscriptBackend,
    TranscriptSession,
    WindowText,
    window_text,
)
from fakes.speech_detector import LoudIsSpeech, noise_and_silence
from harken.api import Recognizer
from harken.backends.host_logits import HostLogits
from harken.contract import Floats
from harken.errors import AudioError, Cancelled
from harken.transcribe import (
    Callbacks,
    RecordingTranscriber,
    Scheduler,
    TranscribeOptions,
    WindowDecoder,
    mel_windows,
)
from harken.transcription import Transcription
from tiny_models import TOKENIZER

WINDOWS = 5
NOISE = noise_and_silence(WINDOWS * WINDOW_S)
PLAIN: dict[str, Any] = {"language": "en", "vad": False, "hallucination_threshold": None}
HELLO = window_text(0, "hello", WINDOW_POSITIONS)


class Interruption(Exception):
    """An exception of a callback that harken does not know."""


class Choir(TranscriptBackend):
    """A `TranscriptBackend` that says one line of every window, of several at a time."""

    def __init__(self, text: WindowText) -> None:
        super().__init__(text)
        self._line = text

    def open_session(
        self, features: FakeFeatures, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> TranscriptSession:
        return ChoirSession(self, self._line, len(row_windows))


class ChoirSession(TranscriptSession):
    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> HostLogits:
        prompts = len(tokens) if not any(self.lengths) else 1
        return HostLogits(np.concatenate([super().extend(tokens, last_n).values] * prompts))


def choir() -> Recognizer:
    return Recognizer(Choir(HELLO), TOKENIZER, "choir", speech_detector=LoudIsSpeech)


def together(many: int, **changes: Any) -> list[Transcription]:
    return choir().transcribe_many([NOISE] * many, **{**PLAIN, "batch_size": many, **changes})


def texts(work: Transcription) -> list[str]:
    return [segment.text for segment in work]


@pytest.mark.parametrize("step", [3, 10, 20])
def test_exception_of_a_callback_ends_one_iteration_and_loses_no_window(step: int) -> None:
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
def test_cancelled_recording_does_not_end_the_others(delivered: int) -> None:
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


def test_cancelled_error_that_no_callback_asked_for_is_raised() -> None:
    def observe(_: Any) -> None:
        raise Cancelled("by a hook of its own")

    work, _ = together(2, on_token=observe)
    with pytest.raises(Cancelled, match="of its own"):
        work.result()


@pytest.mark.parametrize("vad", [False, True])
def test_recording_stopped_before_its_turn_is_never_opened(vad: bool) -> None:
    opened: list[int] = []

    def blocks(which: int) -> Iterator[Floats]:
        opened.append(which)
        yield NOISE

    options = TranscribeOptions(**{**PLAIN, "vad": vad, "condition_on_previous_text": False})
    hearing = WindowDecoder(Choir(HELLO), TOKENIZER, options, speech_detector=LoudIsSpeech)
    forms = [RecordingTranscriber(hearing, blocks(which)) for which in range(3)]
    batch = Scheduler(hearing, forms, 3)
    forms[1].stop()
    assert list(batch.segments(forms[1])) == []
    assert list(batch.segments(forms[2])) != []
    assert opened == [0, 2]


def test_end_of_a_recording_is_known_without_decoding_others() -> None:
    seen: list[float] = []
    callbacks = {1: Callbacks(on_window_start=lambda start_s, prompt: seen.append(start_s))}
    parallel = {**PLAIN, "vad": True, "vad_min_silence_s": 0.1, "vad_speech_pad_s": 0.05}
    short, long = noise_and_silence(*[0.3, 31] * 2), noise_and_silence(*[0.3, 31] * 5)
    work, other = choir().transcribe_many(
        [short, long], **parallel, condition_on_previous_text=False, batch_size=3, callbacks=callbacks
    )
    assert len(work.result().segments) == 2
    assert len(seen) == 2  # beside the last of the short one
    assert len(other.result().segments) == len(seen) == 5


def test_failing_recordings_do_not_end_the_others() -> None:
    damaged = np.concatenate([NOISE, np.zeros(30 * 16_000, np.float32), np.array([np.nan], np.float32)])
    audios = ["none.wav", NOISE, np.empty(0, np.float32), damaged, NOISE]
    for vad in (False, True):
        options = {**PLAIN, "vad": vad, "batch_size": 2}
        works = choir().transcribe_many(audios, **options)
        for failing, match in ((3, "not finite|finite"), (0, "none.wav"), (2, "no audio samples")):
            with pytest.raises(AudioError, match=match):
                works[failing].result()
        whole = texts(choir().transcribe(NOISE, **options))
        assert whole
        assert texts(works[1]) == texts(works[4]) == whole
        heard = [segment.text for segment in works[3].so_far().segments]
        assert heard[: len(whole)] == whole


@pytest.mark.parametrize("vad", [False, True])
def test_finished_and_stopped_recordings_release_their_audio(vad: bool) -> None:
    works = choir().transcribe_many([noise_and_silence(0.4, 60, 0.4, 5)] * 3, **{**PLAIN, "vad": vad})
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
