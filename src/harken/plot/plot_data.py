"""Gather a picture out of one ordinary transcription."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from harken.api import Recognizer
from harken.audio import AudioSource, LogMel, normalize, stream_audio
from harken.audio.vad import CHUNK_SAMPLES, RegionTracker, SpeechDetector
from harken.contract import Floats
from harken.decoding import DecodingResult
from harken.decoding.alignment_attention import alignment_matrix
from harken.errors import OptionError
from harken.plot.picture import ENCODER_POSITION_S, DecodedWindow, PlotData, TextSpan, text_spans_of
from harken.results import Attempt
from harken.text import Tokenizer
from harken.transcribe import TranscribeOptions
from harken.transcribe.dtw import token_starts
from harken.types import FRAMES_PER_SECOND, SAMPLE_RATE


def read_excerpt(source: AudioSource, start_s: float, duration_s: float) -> Floats:
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
    blocks: list[Floats] = []
    position = 0
    for block in stream_audio(source):
        blocks.append(block[max(0, start - position) : max(0, end - position)])
        position += len(block)
        if position >= end:
            break
    if position <= start:
        raise OptionError(
            "start", start_s, f"a time before the end of the recording, {position / SAMPLE_RATE:.2f} s"
        )
    return np.concatenate(blocks)


def collect_plot_data(
    recognizer: Recognizer, samples: Floats, options: TranscribeOptions, *, title: str, start_s: float
) -> PlotData:
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
    windows: list[DecodedWindow] = []
    end_s, window_s = start_s + len(samples) / SAMPLE_RATE, recognizer.dims.n_audio_ctx * ENCODER_POSITION_S

    def decided(seek_s: float, decoded: DecodingResult, attempts: tuple[Attempt, ...]) -> None:
        begin_s = start_s + seek_s
        windows.append(
            _decoded_window(recognizer.tokenizer, begin_s, min(begin_s + window_s, end_s), decoded, attempts)
        )

    # Exact windows keep no attention of the decode, so they are drawn only where they are asked for.
    fidelity = "fast" if options.fidelity == "auto" else options.fidelity
    options = replace(options, word_timestamps=True, vad=False, fidelity=fidelity, clip_timestamps=())
    transcript = recognizer.transcribe(samples, options, on_window_end=decided).result()
    text_spans = [mark for segment in transcript.segments for mark in text_spans_of(segment)]
    text_spans += [
        mark for dropped in transcript.dropped for mark in text_spans_of(dropped.segment, dropped.reason)
    ]
    vad = options.vad_options()
    speech_probabilities = _speech_probabilities(samples)
    return PlotData(
        title=title,
        start_s=start_s,
        mel=_mel(samples, recognizer.dims.n_mels),
        speech_probabilities=speech_probabilities,
        vad_chunk_s=CHUNK_SAMPLES / SAMPLE_RATE,
        vad_thresholds=(vad.threshold, vad.effective_neg_threshold),
        speech_regions=_speech_regions(speech_probabilities, RegionTracker(vad), len(samples), start_s),
        windows=tuple(windows),
        text_spans=tuple(
            sorted((_shifted(mark, start_s) for mark in text_spans), key=lambda mark: mark.start_s)
        ),
    )


def _mel(samples: Floats, n_mels: int) -> Floats:
    mel = LogMel(n_mels)
    frames = np.concatenate([mel.feed(samples), mel.flush()], axis=1)
    return normalize(frames, mel.ceiling)


def _speech_probabilities(samples: Floats) -> Floats:
    detector = SpeechDetector()
    return np.concatenate([detector.feed(samples), detector.flush()])


def _speech_regions(
    probabilities: Floats, detector: RegionTracker, n_samples: int, start_s: float
) -> tuple[tuple[float, float], ...]:
    frames = n_samples * FRAMES_PER_SECOND // SAMPLE_RATE
    found = chain(detector.feed(probabilities.tolist()), detector.flush(frames))
    return tuple((start_s + a / FRAMES_PER_SECOND, start_s + b / FRAMES_PER_SECOND) for a, b in found)


def _shifted(span: TextSpan, seconds: float) -> TextSpan:
    return replace(span, start_s=span.start_s + seconds, end_s=span.end_s + seconds)


def _decoded_window(
    tokenizer: Tokenizer, start_s: float, end_s: float, decoded: DecodingResult, attempts: tuple[Attempt, ...]
) -> DecodedWindow:
    hypothesis = decoded.hypothesis
    tokens = (*hypothesis.tokens, tokenizer.eot)[: len(hypothesis.logprobs)]
    text_rows = [row for row, token in enumerate(tokens) if token < tokenizer.eot]
    end_row = [text_rows[-1] + 1] if text_rows and text_rows[-1] + 1 < len(tokens) else []
    attention, starts = _dtw_attention(hypothesis.attention, text_rows + end_row, len(tokens), end_s - start_s)
    return DecodedWindow(
        start_s=start_s,
        end_s=end_s,
        tokens=tuple(tokenizer.describe_token(token) for token in tokens),
        probabilities=tuple(float(np.exp(logprob)) for logprob in hypothesis.logprobs),
        attention=attention,
        token_starts_s=tuple(None if step is None else start_s + step * ENCODER_POSITION_S for step in starts),
        attempts=attempts,
    )


def _dtw_attention(
    attention: Floats | None, rows: Sequence[int], n_tokens: int, length_s: float
) -> tuple[Floats, list[int | None]]:
    """What dynamic time warping sees of the rows that take part in it, and the step at which each of them begins.

    Those are the rows of `harken.transcribe.word_timestamps.align_decoded`: text, and the token behind it.
    """
    starts: list[int | None] = [None] * n_tokens
    if attention is None or not rows:
        return np.full((n_tokens, 1), np.nan, np.float32), starts
    steps = max(1, min(attention.shape[-1], round(length_s / ENCODER_POSITION_S)))
    normalized = np.full((n_tokens, steps), np.nan, np.float32)
    normalized[rows] = alignment_matrix(attention[:, rows], steps)
    for row, step in zip(rows, token_starts(normalized[rows]).tolist(), strict=True):
        starts[row] = step
    return normalized, starts
