"""Plots as self-contained HTML pages, drawn in SVG so that they can be enlarged."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

import numpy as np
from numpy.typing import NDArray

from harken.plot.colours import (
    ACCEPTED,
    DTW_PATH,
    INK,
    REJECTED,
    SPEECH,
    encode_png,
    palette_indices,
    probability_colour,
)
from harken.plot.plot_data import ATTENTION_RANGE, TICKS_HZ, PlotData, TextSpan, describe_attempt, mel_band

PIXELS_PER_S = 60
ROW_PIXELS = 13
_CHARACTER_PIXELS = 6.5
_LEFT, _BAR, _MARGIN, _GAP = 130, 120, 16, 26
_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class _Panel:
    """A panel of the plot, in pixels; all panels share one time axis."""

    data: PlotData
    top: float
    height: float

    def x(self, seconds: float) -> float:
        """Return the horizontal position of a time."""
        return round(_LEFT + (seconds - self.data.start_s) * PIXELS_PER_S, 2)

    @property
    def end_x(self) -> float:
        """Horizontal position of the end of the excerpt."""
        return self.x(self.data.end_s)

    def box(
        self, start_s: float, end_s: float, top: float, height: float, style: str, tooltip: str = ""
    ) -> str:
        """Return a rectangle with a tooltip."""
        width = max(1.0, self.x(end_s) - self.x(start_s))
        geometry = f'x="{self.x(start_s)}" y="{top:g}" width="{width:g}" height="{height:g}"'
        return f"<rect {geometry} {style}><title>{escape(tooltip)}</title></rect>"

    def image(self, pixels: NDArray[np.uint8], start_s: float, end_s: float, top: float, height: float) -> str:
        """Return a palette image, stretched over an area."""
        data = b64encode(encode_png(pixels)).decode()
        geometry = (
            f'x="{self.x(start_s)}" y="{top:g}" width="{self.x(end_s) - self.x(start_s):g}" height="{height:g}"'
        )
        return f'<image {geometry} preserveAspectRatio="none" href="data:image/png;base64,{data}"/>'

    def clipped(self, start_s: float, end_s: float, top: float, height: float, content: str) -> str:
        """Return content that is clipped at the edges of an area."""
        geometry = (
            f'x="{self.x(start_s)}" y="{top:g}" width="{self.x(end_s) - self.x(start_s):g}" height="{height:g}"'
        )
        return f"<svg {geometry}>{content}</svg>\n"

    def title(self, text: str) -> str:
        """Return the title of the panel."""
        return f'<text class="name" x="{_LEFT}" y="{self.top - 6:g}">{escape(text)}</text>'


def html_page(data: PlotData) -> Iterator[str]:
    """Yield the page."""
    panels = [
        (_mel, 150.0),
        (_speech, 70.0),
        (_words, 84.0),
        (_tokens, float(ROW_PIXELS * max(1, data.first_rows[-1]))),
        (_attempts, 18.0 * max(1, data.max_attempts)),
    ]
    before, _, after = (_DATA / "page.html").read_text(encoding="utf-8").partition("$drawing")
    height = sum(size + _GAP for _, size in panels) + 2 * _GAP
    width = _Panel(data, 0, 0).end_x + _BAR + 2 * _MARGIN
    yield Template(before).substitute(title=escape(data.title))
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{escape(data.title)}" data-left="{_LEFT}" data-start="{data.start_s:g}" '
        f'data-end="{data.end_s:g}" data-scale="{PIXELS_PER_S}">\n'
    )
    top = float(_GAP)
    for draw, size in panels:
        yield from draw(_Panel(data, top, size))
        top += size + _GAP
    yield from _time_axis(_Panel(data, _GAP, top - 2 * _GAP))
    yield "</svg>\n"
    yield after


def _mel(panel: _Panel) -> Iterator[str]:
    data = panel.data
    n_mels = len(data.mel)
    pixels = palette_indices(data.mel[::-1], float(data.mel.min()), float(data.mel.max()))
    yield panel.title("log-mel spectrogram")
    yield panel.image(pixels, data.start_s, data.end_s, panel.top, panel.height)
    for hertz in TICKS_HZ:
        y = panel.top + panel.height * (1 - mel_band(hertz, n_mels) / n_mels)
        yield f'<text class="tick" x="{_LEFT - 6}" y="{y:.1f}">{hertz} Hz</text>\n'


def _speech(panel: _Panel) -> Iterator[str]:
    data, bottom = panel.data, panel.top + panel.height
    yield panel.title("probability of speech, its two thresholds, and the regions they give")
    for start_s, end_s in data.speech_regions:
        tooltip = f"speech from {start_s:.2f} to {end_s:.2f} s"
        yield panel.box(start_s, end_s, panel.top, panel.height, f'fill="{SPEECH}" fill-opacity="0.2"', tooltip)
    for threshold, dashes in zip(data.vad_thresholds, ("6 3", "2 3"), strict=True):
        y = bottom - threshold * panel.height
        yield (
            f'<path class="rule" stroke-dasharray="{dashes}" d="M{_LEFT} {y:g}H{panel.end_x}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{y:g}">{threshold:.2f}</text>\n'
        )
    times = data.start_s + data.vad_chunk_s * np.arange(len(data.speech_probabilities))
    steps = "".join(
        f"V{bottom - probability * panel.height:.1f}H{min(panel.x(time + data.vad_chunk_s), panel.end_x)}"
        for time, probability in zip(times.tolist(), data.speech_probabilities.tolist(), strict=True)
    )
    yield f'<path fill="none" stroke="{SPEECH}" d="M{_LEFT} {bottom:g}{steps}"/>\n'


def _words(panel: _Panel) -> Iterator[str]:
    yield panel.title("words: blue if probable, orange if not, hatched if left out")
    for span in panel.data.text_spans:
        style = (
            f'fill="{probability_colour(span.probability)}"'
            if span.reason is None
            else 'fill="url(#hatch)" class="left-out"'
        )
        tooltip = f"{span.text}\n{span.start_s:.2f} to {span.end_s:.2f} s, probability {span.probability:.3f}"
        if span.reason is not None:
            tooltip += f"\nleft out: {span.reason}"
        yield panel.box(span.start_s, span.end_s, panel.top, panel.height, style, tooltip)
        yield _word_text(panel, span)


def _word_text(panel: _Panel, span: TextSpan) -> str:
    """Return the text of a word: horizontal and clipped, or vertical if its box is narrower than high."""
    left, width = panel.x(span.start_s), panel.x(span.end_s) - panel.x(span.start_s)
    css_class = "word" if span.reason is None else "word left-out"
    if width < min(panel.height, _CHARACTER_PIXELS * len(span.label)):
        transform = f'transform="translate({left + width / 2:g} {panel.top + panel.height / 2:g}) rotate(-90)"'
        return f'<text class="{css_class}" {transform}>{escape(span.label)}</text>\n'
    text = f'<text class="{css_class}" x="{width / 2:g}" y="50%">{escape(span.label)}</text>'
    return panel.clipped(span.start_s, span.end_s, panel.top, panel.height, text)


def _tokens(panel: _Panel) -> Iterator[str]:
    data = panel.data
    yield panel.title("cross-attention of each token and its DTW path, and the probabilities of the tokens")
    yield panel.box(data.start_s, data.end_s, panel.top, panel.height, 'class="ground"')
    for first, window in zip(data.first_rows, data.windows, strict=False):
        top = panel.top + first * ROW_PIXELS
        pixels = palette_indices(window.attention, *ATTENTION_RANGE)
        yield panel.image(pixels, window.start_s, window.end_s, top, len(window.tokens) * ROW_PIXELS)
        if window.dtw_path:
            (start_s, row), *corners = window.dtw_path
            steps = "".join(f"H{panel.x(time_s)}V{top + row * ROW_PIXELS:g}" for time_s, row in corners)
            start = f"M{panel.x(start_s)} {top + row * ROW_PIXELS:g}"
            yield f'<path fill="none" stroke="{DTW_PATH}" stroke-width="1.5" d="{start}{steps}"/>\n'
    rows = zip(data.token_labels, data.token_probabilities, strict=True)
    for row, (label, probability) in enumerate(rows):
        top = panel.top + row * ROW_PIXELS
        yield (
            f'<text class="token" x="{_LEFT - 6}" y="{top + ROW_PIXELS / 2:g}">{escape(label)}</text>'
            f'<rect x="{panel.end_x + 8:g}" y="{top + 1:g}" width="{probability * _BAR:.1f}" '
            f'height="{ROW_PIXELS - 2}" fill="{probability_colour(probability)}">'
            f"<title>{escape(label)}: probability {probability:.4f}</title></rect>\n"
        )


def _attempts(panel: _Panel) -> Iterator[str]:
    yield panel.title("attempts at each window")
    for window in panel.data.windows:
        for index, attempt in enumerate(window.attempts):
            top, description = panel.top + index * 18, describe_attempt(attempt)
            style = f'fill="{REJECTED if attempt.reason else ACCEPTED}"'
            yield panel.box(window.start_s, window.end_s, top + 1, 16, style, description)
            text = f'<text class="attempt" x="6" y="50%">{escape(description)}</text>'
            yield panel.clipped(window.start_s, window.end_s, top, 18, text)


def _time_axis(panel: _Panel) -> Iterator[str]:
    """Yield a tick per second below all panels, and a number at every fifth."""
    bottom = panel.top + panel.height + _GAP / 2
    for second in range(int(np.ceil(panel.data.start_s)), int(panel.data.end_s) + 1):
        x = panel.x(second)
        length = 8 if second % 5 == 0 else 4
        yield f'<path stroke="{INK}" class="rule" d="M{x} {bottom:g}v{length}"/>'
        yield f'<text class="second" x="{x}" y="{bottom + 18:g}">{second}</text>\n' if second % 5 == 0 else ""
