"""Data of a plot, collected from an ordinary transcription of an excerpt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf
from pathlib import Path

import numpy as np

from harken.api import Recognizer
from harken.audio import AudioSource, LogMel, mel_filters, normalize, stream_audio
from harken.audio.vad import CHUNK_SAMPLES, detect_speech
from harken.contract import Floats
from harken.decoding import DecodingResult, alignment_matrix
from harken.errors import AudioError, OptionError
from harken.option_types import checked_value
from harken.results import MAX_TIME_S, Attempt, Segment, Word
from harken.text import Tokenizer
from harken.transcribe import TranscribeOptions
from harken.transcribe.word_timestamps import token_starts
from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, TIMESTAMP_STEP_S

TICKS_HZ = (500, 1000, 2000, 4000)
ATTENTION_RANGE = (-0.5, 4.0)
"""Attention drawn darkest and lightest, in standard deviations over the tokens."""
CHUNK_S = CHUNK_SAMPLES / SAMPLE_RATE
"""Duration of what a probability of speech is of."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedWindow:
    """One decoded window.

    Parameters
    ----------
    start_s, end_s : float
        Start and end of the window in the recording.
    tokens : tuple of str
        Tokens in readable form, including the end of text if it was reached.
    probabilities : tuple of float
        Probability of each token, 0 to 1, after the logit rules.
    attention : ndarray of shape (tokens, positions), float32
        Normalized cross-attention of each token, which is the input of dynamic time warping (DTW); nan for tokens that
        DTW does not align.
    token_starts_s : tuple of (float or None)
        Start of each token on the DTW path; None for tokens that DTW does not align.
    attempts : tuple of Attempt
        All decoding attempts, the accepted one last.
    """

    start_s: float
    end_s: float
    tokens: tuple[str, ...]
    probabilities: tuple[float, ...]
    attention: Floats
    token_starts_s: tuple[float | None, ...]
    attempts: tuple[Attempt, ...]

    @property
    def dtw_path(self) -> tuple[tuple[float, int], ...]:
        """Corners of the DTW path: start and row of each token, then the end of the window."""
        corners = [(start_s, row) for row, start_s in enumerate(self.token_starts_s) if start_s is not None]
        return (*corners, (self.end_s, corners[-1][1] + 1)) if corners else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSpan:
    """A word, a segment without words, or a dropped segment."""

    start_s: float
    end_s: float
    text: str
    probability: float
    reason: str | None = None  # why it was dropped

    @property
    def label(self) -> str:
        """Text with the reason, if any."""
        return self.text if self.reason is None else f"{self.text} ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlotData:
    """Data of a plotted excerpt; all times are seconds from the start of the recording.

    Parameters
    ----------
    title : str
    start_s : float
        Start of the excerpt.
    mel : ndarray of shape (n_mels, frames), float32, normalized log10 mel
    speech_probabilities : ndarray of shape (chunks,), float32
        Probability of speech, 0 to 1, every `CHUNK_S`.
    vad_thresholds : tuple of float
        Speech begins at the first threshold and ends below the second.
    speech_regions : tuple of (float, float)
        Start and end of each speech region.
    windows : tuple of DecodedWindow
        In order of time.
    text_spans : tuple of TextSpan
        In order of time.
    """

    title: str
    start_s: float
    mel: Floats
    speech_probabilities: Floats
    vad_thresholds: tuple[float, float]
    speech_regions: tuple[tuple[float, float], ...]
    windows: tuple[DecodedWindow, ...]
    text_spans: tuple[TextSpan, ...]

    @property
    def end_s(self) -> float:
        """End of the excerpt."""
        return self.start_s + len(self.mel.T) / FRAMES_PER_SECOND

    @property
    def first_rows(self) -> tuple[int, ...]:
        """Row of the first token of each window if all windows are stacked, then the number of rows."""
        return tuple(accumulate((len(window.tokens) for window in self.windows), initial=0))


def text_spans_of(segment: Segment, start_s: float, reason: str | None = None) -> Iterator[TextSpan]:
    """Yield the words of a segment of an excerpt, or the segment itself if it has none or was dropped."""
    spans: list[tuple[Word | Segment, float]] = [(word, word.probability) for word in segment.words]
    if reason is not None or not spans:
        spans = [(segment, float(np.exp(min(0.0, segment.avg_logprob))))]
    for span, probability in spans:
        yield TextSpan(
            start_s=start_s + span.start_s,
            end_s=start_s + span.end_s,
            text=span.text.strip(),
            probability=probability,
            reason=reason,
        )


def mel_band(hertz: float, n_mels: int) -> int:
    """Return the mel band that responds most to a frequency."""
    bins = mel_filters(n_mels).shape[1]
    return int(np.argmax(mel_filters(n_mels)[:, round(hertz / (SAMPLE_RATE / 2) * (bins - 1))]))


def describe_attempt(attempt: Attempt) -> str:
    """Describe a decoding attempt in words."""
    if attempt.reason:
        return f"temperature {attempt.temperature:g} rejected: {attempt.reason}"
    return (
        f"temperature {attempt.temperature:g} kept: average log-probability {attempt.avg_logprob:.2f}, "
        f"compression ratio {attempt.compression_ratio:.2f}, no-speech probability {attempt.no_speech_prob:.2f}"
    )


def read_excerpt(source: AudioSource, start_s: float, duration_s: float) -> Floats:
    """Read the samples of an excerpt of a recording, as 16 kHz mono.

    They are as long as `duration_s` and at least a frame, or less if the recording ends before.

    Raises
    ------
    OptionError
        If a time is negative or not finite, or the recording ends before `start_s`, or less than a frame behind it.
    AudioError
        If the recording cannot be read, or is shorter than a frame.
    """
    for name, time_s in {"start_s": start_s, "duration_s": duration_s}.items():
        if not 0 <= checked_value(name, time_s, float) < inf:
            raise OptionError(name, time_s, "a number of seconds from 0 on")
    start, end = (round(min(time_s, MAX_TIME_S) * SAMPLE_RATE) for time_s in (start_s, start_s + duration_s))
    end = max(end, start + HOP_SAMPLES)
    blocks: list[Floats] = []
    position = 0
    for block in stream_audio(source):
        blocks.append(block[max(0, start - position) : max(0, end - position)])
        position += len(block)
        if position >= end:
            break
    if position - start < HOP_SAMPLES:
        if position < HOP_SAMPLES:
            name = f"{'<stdin>' if source == '-' else source}: " if isinstance(source, str | Path) else ""
            raise AudioError(
                f"{name}{position} samples at 16 kHz are too few for a picture; {HOP_SAMPLES} are enough"
            )
        raise OptionError(
            "start", start_s, f"a time before the end of the recording, {position / SAMPLE_RATE:.2f} s"
        )
    return np.concatenate(blocks)


def collect_plot_data(
    recognizer: Recognizer, samples: Floats, options: TranscribeOptions, *, title: str, start_s: float
) -> PlotData:
    """Transcribe an excerpt of a recording and collect the data of its plot.

    The excerpt is decoded as a recording of its own, including silence, so that everything has the same time axis; the
    results of voice activity detection are plotted beside it.

    Parameters
    ----------
    recognizer : Recognizer
    samples : ndarray of shape (samples,), float32, 16 kHz
        From `read_excerpt`.
    options : TranscribeOptions
        `word_timestamps` is always turned on, `vad` and `clip_timestamps` are turned off.
    title : str
    start_s : float
        Start of the excerpt in the recording.
    """
    windows: list[DecodedWindow] = []
    end_s, window_s = start_s + len(samples) / SAMPLE_RATE, recognizer.dims.n_audio_ctx * TIMESTAMP_STEP_S

    def add_window(seek_s: float, decoded: DecodingResult, attempts: tuple[Attempt, ...]) -> None:
        begin_s = start_s + seek_s
        windows.append(
            _decoded_window(recognizer.tokenizer, begin_s, min(begin_s + window_s, end_s), decoded, attempts)
        )

    options = replace(options, word_timestamps=True, vad=False, clip_timestamps=())
    transcript = recognizer.transcribe(samples, options, on_window_end=add_window).result()
    text_spans = [
        *(span for each in transcript.segments for span in text_spans_of(each, start_s)),
        *(span for each in transcript.dropped for span in text_spans_of(each.segment, start_s, each.reason)),
    ]
    mel = LogMel(recognizer.dims.n_mels)
    frames = np.concatenate([mel.feed(samples), mel.flush()], axis=1)
    vad = options.vad_options()
    speech_probabilities, regions = detect_speech(samples, vad)
    return PlotData(
        title=title,
        start_s=start_s,
        mel=normalize(frames, mel.ceiling),
        speech_probabilities=speech_probabilities,
        vad_thresholds=(vad.threshold, vad.neg_threshold),
        speech_regions=tuple(
            (start_s + start / FRAMES_PER_SECOND, start_s + end / FRAMES_PER_SECOND) for start, end in regions
        ),
        windows=tuple(windows),
        text_spans=tuple(sorted(text_spans, key=lambda span: span.start_s)),
    )


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
        token_starts_s=tuple(None if step is None else start_s + step * TIMESTAMP_STEP_S for step in starts),
        attempts=attempts,
    )


def _dtw_attention(
    attention: Floats | None, rows: Sequence[int], n_tokens: int, length_s: float
) -> tuple[Floats, list[int | None]]:
    """Return the normalized attention of the rows that DTW aligns, and the position at which each of them starts.

    These are the rows of `harken.transcribe.word_timestamps.align_decoded`: the text tokens and the token after them.
    """
    starts: list[int | None] = [None] * n_tokens
    if attention is None or not rows:
        return np.full((n_tokens, 1), np.nan, np.float32), starts
    steps = max(1, min(attention.shape[-1], round(length_s / TIMESTAMP_STEP_S)))
    normalized = np.full((n_tokens, steps), np.nan, np.float32)
    normalized[rows] = alignment_matrix(attention[:, rows], steps)
    for row, step in zip(rows, token_starts(normalized[rows]).tolist(), strict=True):
        starts[row] = step
    return normalized, starts
