"""Gather a picture out of one ordinary transcription."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from harken.api import Recognizer
from harken.audio import AudioSource, LogMel, normalize, stream
from harken.audio.vad import CHUNK_SAMPLES, Regions, SpeechDetector
from harken.contract import Floats
from harken.decoding import Decoded
from harken.decoding.listening import listening
from harken.errors import OptionError
from harken.plot.picture import STEP_S, Heard, Mark, Picture, marks_of
from harken.results import Attempt
from harken.text import Tokenizer
from harken.transcribe import TranscribeOptions
from harken.transcribe.warping import token_starts
from harken.types import FRAMES_PER_SECOND, SAMPLE_RATE


def stretch(source: AudioSource, start_s: float, duration_s: float) -> Floats:
    """Samples of a recording from a time on.

    Returns
    -------
    ndarray of shape (samples,), float32, 16 kHz mono
        As long as `duration_s`, or shorter where the recording ends.

    Raises
    ------
    OptionError
        If the recording ends before `start_s`.
    AudioError
        If it cannot be read.
    """
    start, end = round(start_s * SAMPLE_RATE), round((start_s + duration_s) * SAMPLE_RATE)
    wanted: list[Floats] = []
    read = 0
    for block in stream(source):
        wanted.append(block[max(0, start - read) : max(0, end - read)])
        read += len(block)
        if read >= end:
            break
    if read <= start:
        raise OptionError(
            "start", start_s, f"a time before the end of the recording, {read / SAMPLE_RATE:.2f} s"
        )
    return np.concatenate(wanted)


def gather(
    recognizer: Recognizer, samples: Floats, options: TranscribeOptions, *, title: str, start_s: float
) -> Picture:
    """Transcribe a stretch of a recording and collect what there is to see.

    The stretch is decoded as a recording of its own, silence included, so that there is one axis of time for
    everything; what voice activity detection would have left out shows beside it.

    Parameters
    ----------
    recognizer : Recognizer
    samples : ndarray of shape (samples,), float32, 16 kHz
        From `stretch`.
    options : TranscribeOptions
        Words are asked for and voice activity detection is not obeyed, whatever they say.
    title : str
    start_s : float
        Where the stretch begins in the recording.
    """
    windows: list[Heard] = []
    end_s, window_s = start_s + len(samples) / SAMPLE_RATE, recognizer.dims.n_audio_ctx * STEP_S

    def decided(seek_s: float, decoded: Decoded, attempts: tuple[Attempt, ...]) -> None:
        begin_s = start_s + seek_s
        windows.append(_heard(recognizer.tokenizer, begin_s, min(begin_s + window_s, end_s), decoded, attempts))

    # Exact windows keep no attention of the decode, so they are drawn only where they are asked for.
    fidelity = "fast" if options.fidelity == "auto" else options.fidelity
    options = replace(options, word_timestamps=True, vad=False, fidelity=fidelity, clip_timestamps=())
    transcript = recognizer.transcribe(samples, options, decided=decided).result()
    marks = [mark for segment in transcript.segments for mark in marks_of(segment)]
    marks += [mark for dropped in transcript.dropped for mark in marks_of(dropped.segment, dropped.reason)]
    vad = options.vad_options()
    speech = _speech(samples)
    return Picture(
        title=title,
        start_s=start_s,
        mel=_mel(samples, recognizer.dims.n_mels),
        speech=speech,
        chunk_s=CHUNK_SAMPLES / SAMPLE_RATE,
        thresholds=(vad.onset, vad.silence_below),
        regions=_regions(speech, Regions(vad), len(samples), start_s),
        windows=tuple(windows),
        marks=tuple(sorted((_moved(mark, start_s) for mark in marks), key=lambda mark: mark.start_s)),
    )


def _mel(samples: Floats, n_mels: int) -> Floats:
    mel = LogMel(n_mels)
    frames = np.concatenate([mel.feed(samples), mel.flush()], axis=1)
    return normalize(frames, mel.ceiling)


def _speech(samples: Floats) -> Floats:
    detector = SpeechDetector()
    return np.concatenate([detector.feed(samples), detector.flush()])


def _regions(
    speech: Floats, regions: Regions, n_samples: int, start_s: float
) -> tuple[tuple[float, float], ...]:
    frames = n_samples * FRAMES_PER_SECOND // SAMPLE_RATE
    found = chain(regions.feed(speech.tolist()), regions.flush(frames))
    return tuple((start_s + a / FRAMES_PER_SECOND, start_s + b / FRAMES_PER_SECOND) for a, b in found)


def _moved(mark: Mark, seconds: float) -> Mark:
    return replace(mark, start_s=mark.start_s + seconds, end_s=mark.end_s + seconds)


def _heard(
    tokenizer: Tokenizer, start_s: float, end_s: float, decoded: Decoded, attempts: tuple[Attempt, ...]
) -> Heard:
    hypothesis = decoded.hypothesis
    tokens = (*hypothesis.tokens, tokenizer.eot)[: len(hypothesis.logprobs)]
    text = [row for row, token in enumerate(tokens) if token < tokenizer.eot]
    closing = [text[-1] + 1] if text and text[-1] + 1 < len(tokens) else []
    seen, begins = _aligned(hypothesis.attention, text + closing, len(tokens), end_s - start_s)
    return Heard(
        start_s=start_s,
        end_s=end_s,
        tokens=tuple(tokenizer.describe(token) for token in tokens),
        probabilities=tuple(float(np.exp(logprob)) for logprob in hypothesis.logprobs),
        listening=seen,
        begins_s=tuple(None if step is None else start_s + step * STEP_S for step in begins),
        attempts=attempts,
    )


def _aligned(
    attention: Floats | None, rows: Sequence[int], tokens: int, length_s: float
) -> tuple[Floats, list[int | None]]:
    """What dynamic time warping sees of the rows that take part in it, and the step at which each of them begins.

    Those are the rows of `harken.transcribe.alignment.align_decoded`: text, and the token behind it.
    """
    begins: list[int | None] = [None] * tokens
    if attention is None or not rows:
        return np.full((tokens, 1), np.nan, np.float32), begins
    steps = max(1, min(attention.shape[-1], round(length_s / STEP_S)))
    seen = np.full((tokens, steps), np.nan, np.float32)
    seen[rows] = listening(attention[:, rows], steps)
    for row, step in zip(rows, token_starts(seen[rows]).tolist(), strict=True):
        begins[row] = step
    return seen, begins
