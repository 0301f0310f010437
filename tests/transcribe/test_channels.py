"""Recordings whose channels are transcribed apart."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
import pytest

from audio_files import Pipe
from fakes.tone_backend import LETTER_OPTIONS, ToneBackend, ToneSpeech, silence, speak_words
from harken import Recognizer
from harken.errors import AudioError
from harken.formats import render
from tiny_models import TOKENIZER

ANN = speak_words(0, 1, 2) + silence(7) + speak_words(3, 4)
BOB = silence(4) + speak_words(5, 6) + silence(8) + speak_words(7)
OPTIONS: dict[str, Any] = {**LETTER_OPTIONS, "vad": False, "word_timestamps": True}


def model() -> Recognizer:
    return Recognizer(ToneBackend(positions=150), TOKENIZER, "tones")


def stereo(*channels: ToneSpeech) -> np.ndarray:
    length = max(len(channel.samples) for channel in channels)
    return np.stack([np.pad(each.samples, (0, length - len(each.samples))) for each in channels], axis=1)


def wav(samples: np.ndarray, kind: type[io.BytesIO] = io.BytesIO, *, cut: int = 0) -> io.BytesIO:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((samples.shape[1], 2, 16_000, 0, "NONE", ""))
        writer.writeframes((samples * 32767).astype("<i2").tobytes())
    return kind(file.getvalue()[: -cut or None])


@pytest.mark.parametrize(
    ("source", "batch_size"),
    [(np.asarray, 1), (wav, 4), (lambda samples: wav(samples, Pipe), 1)],
    ids=["array", "file", "pipe"],
)
def test_channels_are_transcribed_as_recordings_of_their_own_and_merged_by_time(
    source: Any, batch_size: int
) -> None:
    progress: list[tuple[float, bool]] = []
    work = model().transcribe(
        source(stereo(ANN, BOB)),
        channels="apart",
        batch_size=batch_size,
        on_progress=lambda *at: progress.append(at),
        **OPTIONS,
    )
    assert (work.finished, work.so_far().segments) == (False, ())
    result = work.result()
    assert tuple(work) == result.segments
    starts = [segment.start_s for segment in result.segments]
    assert starts == sorted(starts)
    assert [segment.index for segment in result.segments] == [*range(len(starts))]
    for name, samples in zip(("channel 1", "channel 2"), stereo(ANN, BOB).T, strict=True):
        alone = model().transcribe(samples, **OPTIONS).result()
        own = [segment for segment in result.segments if segment.speakers == (name,)]
        assert [segment.text for segment in own] == [segment.text for segment in alone.segments]
        assert all(word.speakers == (name,) for segment in own for word in segment.words)
    assert [speaker.name for speaker in result.speakers or ()] == ["channel 1", "channel 2"]
    assert {turn.speaker for turn in result.turns} == {"channel 1", "channel 2"}
    assert "channel 2: " in "".join(render(result, "srt", None))
    assert progress[-1] == (result.duration_s, True)
    assert progress == sorted(progress)


def test_steps_return_what_iteration_does() -> None:
    work = model().transcribe(stereo(ANN, BOB), channels="apart", **OPTIONS)
    stepped = []
    while not work.finished:
        stepped += work.step()
    assert stepped == [*work] == [*work.so_far().segments]


def test_a_recording_that_breaks_off_fails_after_its_segments() -> None:
    work = model().transcribe(wav(stereo(ANN, BOB), cut=80_000), channels="apart", **OPTIONS)
    for _ in range(2):
        with pytest.raises(AudioError, match="cut short"):
            for _ in work:
                pass
        assert {segment.speakers for segment in work.so_far().segments} == {("channel 1",), ("channel 2",)}
