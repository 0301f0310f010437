"""Plots as PNG with matplotlib; importing this module without it raises `BackendUnavailable`."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from harken.errors import BackendUnavailable, install_hint
from harken.plot.colours import ACCEPTED, DTW_PATH, INK, PALETTE, REJECTED, SPEECH, probability_colour
from harken.plot.plot_data import ATTENTION_RANGE, TICKS_HZ, DecodedWindow, PlotData, describe_attempt, mel_band

try:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle
except ImportError as error:
    raise BackendUnavailable(
        f"a PNG needs matplotlib: {install_hint('plot')}; an HTML page (-o out.html) needs nothing"
    ) from error

INCHES_PER_S = 0.46
INCHES_PER_TOKEN = 0.125
WORDS_INCHES = 1.0
_CHARACTER_INCHES = 0.072
_LEFT, _RIGHT, _TOP, _BOTTOM, _GAP = 1.0, 1.35, 0.6, 0.3, 0.28  # inches of margins, and between panels
_COLOURS = ListedColormap(PALETTE / 255)
_BAR = 1.0  # inches, width of the token probabilities


def render_png(data: PlotData, dots_per_inch: int = 110) -> bytes:
    """Draw a plot and encode it as a PNG; characters that the font lacks become boxes."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        draw_figure(data).savefig(buffer, format="png", dpi=dots_per_inch)
    return buffer.getvalue()


def draw_figure(data: PlotData) -> Figure:
    """Draw a plot as panels below one another with a shared time axis."""
    panels = [
        (_draw_mel, 1.9),
        (_draw_speech, 0.9),
        (_draw_words, WORDS_INCHES),
        (_draw_tokens, max(1.0, INCHES_PER_TOKEN * data.first_rows[-1])),
        (_draw_attempts, 0.2 * max(1, data.max_attempts)),
    ]
    panel_width = max(6.0, INCHES_PER_S * (data.end_s - data.start_s))
    width = _LEFT + panel_width + _RIGHT
    height = _TOP + sum(size + _GAP for _, size in panels) + _BOTTOM
    figure = Figure(figsize=(width, height))
    figure.text(_LEFT / width, 1 - 0.3 / height, data.title, fontsize=11, weight="bold", parse_math=False)
    top = height - _TOP
    shared_axes: Axes | None = None
    for draw, size in panels:
        top -= size
        axes = figure.add_axes(
            (_LEFT / width, top / height, panel_width / width, size / height), sharex=shared_axes
        )
        shared_axes = shared_axes or axes
        axes.tick_params(labelsize=8, labelbottom=draw is _draw_attempts)
        draw(axes, data)
        top -= _GAP
    axes.set_xlim(data.start_s, data.end_s)
    axes.set_xlabel("seconds", fontsize=9)
    return figure


def _set_title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=8, loc="left", pad=3)


def _legend(axes: Axes, **settings: Any) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), fontsize=7, frameon=False, **settings)


def _draw_mel(axes: Axes, data: PlotData) -> None:
    n_mels = len(data.mel)
    axes.imshow(
        data.mel,
        cmap=_COLOURS,
        origin="lower",
        aspect="auto",
        extent=(data.start_s, data.end_s, 0, n_mels),
        interpolation="nearest",
    )
    axes.set_yticks([mel_band(hertz, n_mels) for hertz in TICKS_HZ], [f"{hertz} Hz" for hertz in TICKS_HZ])
    _set_title(axes, "log-mel spectrogram")


def _draw_speech(axes: Axes, data: PlotData) -> None:
    for i, (start_s, end_s) in enumerate(data.speech_regions):
        axes.axvspan(start_s, end_s, color=SPEECH, alpha=0.18, lw=0, label=None if i else "region")
    times = data.start_s + data.vad_chunk_s * np.arange(len(data.speech_probabilities) + 1)
    axes.stairs(data.speech_probabilities, times, color=SPEECH, lw=1.0, label="probability")
    for threshold, style in zip(data.vad_thresholds, ("--", ":"), strict=True):
        axes.axhline(threshold, color=INK, lw=0.6, ls=style, label=f"threshold {threshold:.2f}")
    axes.set_ylim(0, 1.02)
    axes.set_yticks([0, 1])
    _set_title(axes, "probability of speech")
    _legend(axes)


def _draw_words(axes: Axes, data: PlotData) -> None:
    for span in data.text_spans:
        style: dict[str, Any] = {"facecolor": probability_colour(span.probability), "edgecolor": "white"}
        if span.reason is not None:
            style = {"facecolor": "white", "edgecolor": "#aaaaaa", "hatch": "//"}
        length = max(span.end_s - span.start_s, 0.02)
        rectangle = Rectangle((span.start_s, 0), length, 1, lw=0.5, **style)
        axes.add_patch(rectangle)
        needed_inches, available_inches = _CHARACTER_INCHES * len(span.label), length * INCHES_PER_S
        upright = available_inches < min(needed_inches, WORDS_INCHES)
        text = axes.text(
            span.start_s + length / 2,
            0.5,
            span.label,
            rotation=90 if upright else 0,
            ha="center",
            va="center",
            fontsize=7.5,
            color=INK,
            clip_on=True,
            parse_math=False,
        )
        if not upright:
            text.set_clip_path(rectangle)
    axes.set_ylim(0, 1)
    axes.set_yticks([])
    _set_title(axes, "words")
    shades = (1.0, 0.75, 0.5, 0.25)
    _legend(axes, handles=[Patch(color=probability_colour(p), label=f"probability {p:.2f}") for p in shades])


def _draw_tokens(axes: Axes, data: PlotData) -> None:
    rows = data.first_rows
    for first, window in zip(rows, data.windows, strict=False):
        _draw_window(axes, first, window)
    axes.set_facecolor("#eeeeee")
    axes.set_ylim(max(1, rows[-1]), 0)
    axes.set_yticks([row + 0.5 for row in range(rows[-1])], data.token_labels, fontsize=6.5, parse_math=False)
    axes.tick_params(axis="y", length=0)
    _set_title(axes, "cross-attention of each token and its DTW path")
    bars = axes.inset_axes((1.005, 0, _BAR / axes.get_window_extent().width * axes.figure.dpi, 1), sharey=axes)
    probabilities = data.token_probabilities
    bars.barh(
        [row + 0.5 for row in range(len(probabilities))],
        probabilities,
        height=0.8,
        color=[probability_colour(p) for p in probabilities],
    )
    bars.set_xlim(0, 1)
    bars.set_xticks([0, 0.5, 1])
    bars.tick_params(labelsize=6.5, labelleft=False, left=False)
    bars.set_title("probability", fontsize=8, pad=3)


def _draw_window(axes: Axes, first: int, window: DecodedWindow) -> None:
    """Draw the attention of one window, and its DTW path from the start of each token to that of the next."""
    tokens = len(window.tokens)
    axes.imshow(
        window.attention,
        cmap=_COLOURS,
        vmin=ATTENTION_RANGE[0],
        vmax=ATTENTION_RANGE[1],
        aspect="auto",
        extent=(window.start_s, window.end_s, first + tokens, first),
        interpolation="nearest",
    )
    if window.dtw_path:
        times, rows = zip(*window.dtw_path, strict=True)
        axes.step(times, [first + row for row in rows], where="post", color=DTW_PATH, lw=1.3)


def _draw_attempts(axes: Axes, data: PlotData) -> None:
    for window in data.windows:
        for index, attempt in enumerate(window.attempts):
            axes.barh(
                index + 0.5,
                window.end_s - window.start_s,
                left=window.start_s,
                height=0.84,
                color=REJECTED if attempt.reason else ACCEPTED,
                edgecolor="white",
            )
            axes.text(
                window.start_s + 0.1,
                index + 0.5,
                describe_attempt(attempt),
                va="center",
                fontsize=7,
                color="white",
                clip_on=True,
                parse_math=False,
            )
    axes.set_ylim(max(1, data.max_attempts), 0)
    axes.set_yticks([])
    _set_title(axes, "attempts at each window")
