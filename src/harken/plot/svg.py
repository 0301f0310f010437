"""The drawing of a plot, and the self-contained HTML page that shows it in SVG, so that it can be enlarged."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harken.contract import Floats
from harken.plot.plot_data import (
    ATTENTION_RANGE,
    CHUNK_S,
    TICKS_HZ,
    PlotData,
    TextSpan,
    describe_attempt,
    mel_band,
)

PIXELS_PER_S = 60
ROW_PIXELS = 13
_CHARACTER_PIXELS = 6.5
_LEFT, _BAR, _MARGIN, _GAP = 130, 120, 16, 26
_DATA = Path(__file__).parent / "data"

# Nine colours of matplotlib's "magma", dark to light; those in between are interpolated.
_MAGMA = (
    (0, 0, 4), (29, 17, 71), (81, 18, 124), (131, 38, 129), (183, 55, 121), (231, 82, 99), (252, 137, 97),
    (254, 196, 136), (252, 253, 191),
)  # fmt: skip
PALETTE: NDArray[np.uint8] = np.stack(
    [np.interp(np.linspace(0, 8, 256), range(9), channel) for channel in zip(*_MAGMA, strict=True)], axis=1
).astype(np.uint8)
_PROBABLE, _IMPROBABLE = (198, 219, 239), (240, 110, 60)
_DTW_PATH, _SPEECH, _ACCEPTED, _REJECTED = "#00c2d1", "#2a6fbb", "#3c9d5d", "#c9463d"
QUIET, GROUND, LEFT_OUT = "quiet", "ground", "left-out"
"""Colours that the page has in a light and in a dark version: of rules, behind images, and of what was left out."""


class Area(NamedTuple):
    """A rectangle in pixels."""

    x: float
    y: float
    width: float
    height: float


class Box(NamedTuple):
    """A filled rectangle."""

    area: Area
    colour: str
    tooltip: str
    opacity: float = 1.0


class Image(NamedTuple):
    """Indices of `PALETTE`, stretched over an area."""

    area: Area
    pixels: NDArray[np.uint8]


class Line(NamedTuple):
    """A line from point to point; one without a colour is a thin rule."""

    points: Sequence[tuple[float, float]]
    colour: str = QUIET
    width: float = 1.0
    dashes: tuple[int, int] | None = None


class Text(NamedTuple):
    """A text, clipped at the edges of an area if it has one; its style is a class of the page's style sheet."""

    x: float
    y: float
    text: str
    style: str
    clip: Area | None = None
    upright: bool = False


Shape = Box | Image | Line | Text


class Drawing(NamedTuple):
    """Width and height of a drawing in pixels, and its shapes, those behind others first."""

    width: float
    height: float
    shapes: list[Shape]


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

    def area(self, start_s: float, end_s: float, top: float | None = None, height: float | None = None) -> Area:
        """Return the area of a stretch of time, by default as high as the panel."""
        width = max(1.0, self.x(end_s) - self.x(start_s))
        return Area(
            self.x(start_s), self.top if top is None else top, width, self.height if height is None else height
        )

    def title(self, text: str) -> Text:
        """Return the title of the panel."""
        return Text(_LEFT, self.top - 6, text, "name")


def draw(data: PlotData) -> Drawing:
    """Draw a plot as panels below one another with a shared time axis."""
    panels = [
        (_mel, 150.0),
        (_speech, 70.0),
        (_words, 84.0),
        (_tokens, float(ROW_PIXELS * max(1, data.first_rows[-1]))),
        (_attempts, 18.0 * max([1, *(len(window.attempts) for window in data.windows)])),
    ]
    shapes: list[Shape] = []
    top = float(_GAP)
    for shapes_of, size in panels:
        shapes += shapes_of(_Panel(data, top, size))
        top += size + _GAP
    shapes += _time_axis(_Panel(data, _GAP, top - 2 * _GAP))
    return Drawing(_Panel(data, 0, 0).end_x + _BAR + 2 * _MARGIN, top + _GAP, shapes)


def _mel(panel: _Panel) -> Iterator[Shape]:
    data = panel.data
    n_mels = len(data.mel)
    pixels = palette_indices(data.mel[::-1], float(data.mel.min()), float(data.mel.max()))
    yield panel.title("log-mel spectrogram")
    yield Image(panel.area(data.start_s, data.end_s), pixels)
    for hertz in TICKS_HZ:
        y = panel.top + panel.height * (1 - mel_band(hertz, n_mels) / n_mels)
        yield Text(_LEFT - 6, y, f"{hertz} Hz", "tick")


def _speech(panel: _Panel) -> Iterator[Shape]:
    data, bottom = panel.data, panel.top + panel.height
    yield panel.title("probability of speech, its two thresholds, and the regions they give")
    for start_s, end_s in data.speech_regions:
        yield Box(
            panel.area(start_s, end_s), _SPEECH, f"speech from {start_s:.2f} to {end_s:.2f} s", opacity=0.2
        )
    for threshold, dashes in zip(data.vad_thresholds, ((6, 3), (2, 3)), strict=True):
        y = bottom - threshold * panel.height
        yield Line([(_LEFT, y), (panel.end_x, y)], dashes=dashes)
        yield Text(_LEFT - 6, y, f"{threshold:.2f}", "tick")
    points = [(float(_LEFT), bottom)]
    for chunk, probability in enumerate(data.speech_probabilities.tolist(), start=1):
        end_x = min(panel.x(data.start_s + CHUNK_S * chunk), panel.end_x)
        y = round(bottom - probability * panel.height, 1)
        points += [(points[-1][0], y), (end_x, y)]
    yield Line(points, _SPEECH)


def _words(panel: _Panel) -> Iterator[Shape]:
    yield panel.title("words: blue if probable, orange if not, hatched if left out")
    for span in panel.data.text_spans:
        tooltip = f"{span.text}\n{span.start_s:.2f} to {span.end_s:.2f} s, probability {span.probability:.3f}"
        if span.reason is not None:
            tooltip += f"\nleft out: {span.reason}"
        colour = probability_colour(span.probability) if span.reason is None else LEFT_OUT
        yield Box(panel.area(span.start_s, span.end_s), colour, tooltip)
        yield _word_text(panel, span)


def _word_text(panel: _Panel, span: TextSpan) -> Text:
    """Return the text of a word: horizontal and clipped, or vertical if its box is narrower than high."""
    left, width = panel.x(span.start_s), panel.x(span.end_s) - panel.x(span.start_s)
    upright = width < min(panel.height, _CHARACTER_PIXELS * len(span.label))
    return Text(
        left + width / 2,
        panel.top + panel.height / 2,
        span.label,
        "word" if span.reason is None else f"word {LEFT_OUT}",
        None if upright else panel.area(span.start_s, span.end_s),
        upright,
    )


def _tokens(panel: _Panel) -> Iterator[Shape]:
    data = panel.data
    yield panel.title("cross-attention of each token and its DTW path, and the probabilities of the tokens")
    yield Box(panel.area(data.start_s, data.end_s), GROUND, "")
    for first, window in zip(data.first_rows, data.windows, strict=False):
        top = panel.top + first * ROW_PIXELS
        pixels = palette_indices(window.attention, *ATTENTION_RANGE)
        yield Image(panel.area(window.start_s, window.end_s, top, len(window.tokens) * ROW_PIXELS), pixels)
        points: list[tuple[float, float]] = []
        for time_s, row in window.dtw_path:
            x, y = panel.x(time_s), top + row * ROW_PIXELS
            points += [(x, points[-1][1]), (x, y)] if points else [(x, y)]
        if points:
            yield Line(points, _DTW_PATH, 1.5)
    rows = (pair for own in data.windows for pair in zip(own.tokens, own.probabilities, strict=True))
    for row, (token, probability) in enumerate(rows):
        label = repr(token)[1:-1].replace(" ", "·")  # invisible characters can be seen
        top = panel.top + row * ROW_PIXELS
        area = Area(panel.end_x + 8, top + 1, round(probability * _BAR, 1), ROW_PIXELS - 2)
        yield Text(_LEFT - 6, top + ROW_PIXELS / 2, label, "token")
        yield Box(area, probability_colour(probability), f"{label}: probability {probability:.4f}")


def _attempts(panel: _Panel) -> Iterator[Shape]:
    yield panel.title("attempts at each window")
    for window in panel.data.windows:
        for index, attempt in enumerate(window.attempts):
            top, description = panel.top + index * 18, describe_attempt(attempt)
            area = panel.area(window.start_s, window.end_s, top + 1, 16)
            yield Box(area, _REJECTED if attempt.reason else _ACCEPTED, description)
            yield Text(area.x + 6, top + 9, description, "attempt", area)


def _time_axis(panel: _Panel) -> Iterator[Shape]:
    """Yield a tick per second below all panels, and a number at every fifth."""
    bottom = panel.top + panel.height + _GAP / 2
    for second in range(int(np.ceil(panel.data.start_s)), int(panel.data.end_s) + 1):
        x = panel.x(second)
        yield Line([(x, bottom), (x, bottom + (8 if second % 5 == 0 else 4))])
        if second % 5 == 0:
            yield Text(x, bottom + 18, str(second), "second")
    yield Text(panel.end_x + 8, bottom + 22, "seconds", "name")


def html_page(data: PlotData) -> Iterator[str]:
    """Yield the page."""
    drawing = draw(data)
    before, _, after = (_DATA / "page.html").read_text(encoding="utf-8").partition("$drawing")
    yield Template(before).substitute(title=escape(data.title))
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawing.width:g}" height="{drawing.height:g}" role="img" '
        f'aria-label="{escape(data.title)}" data-left="{_LEFT}" data-start="{data.start_s:g}" '
        f'data-end="{data.end_s:g}" data-scale="{PIXELS_PER_S}">\n'
    )
    for shape in drawing.shapes:
        yield f"{_svg(shape)}\n"
    yield "</svg>\n"
    yield after


def _svg(shape: Shape) -> str:
    match shape:
        case Box(area, colour, tooltip, opacity):
            fill = {LEFT_OUT: f'fill="url(#hatch)" class="{LEFT_OUT}"', GROUND: f'class="{GROUND}"'}.get(
                colour, f'fill="{colour}"' + (f' fill-opacity="{opacity:g}"' if opacity < 1 else "")
            )
            return f"<rect {_geometry(area)} {fill}><title>{escape(tooltip)}</title></rect>"
        case Image(area, pixels):
            png = b64encode(encode_png(pixels)).decode()
            return f'<image {_geometry(area)} preserveAspectRatio="none" href="data:image/png;base64,{png}"/>'
        case Line(points, colour, width, dashes):
            stroke = 'class="rule"' if colour == QUIET else f'stroke="{colour}"'
            thickness = f' stroke-width="{width:g}"' if width != 1 else ""
            gaps = f' stroke-dasharray="{dashes[0]} {dashes[1]}"' if dashes else ""
            return f'<path fill="none" {stroke}{thickness}{gaps} d="{_path(points)}"/>'
        case Text(x, y, text, style, clip, upright):
            if upright:
                turn = f'transform="translate({x:g} {y:g}) rotate(-90)"'
                return f'<text class="{style}" {turn}>{escape(text)}</text>'
            if clip is None:
                return f'<text class="{style}" x="{x:g}" y="{y:g}">{escape(text)}</text>'
            inner = f'<text class="{style}" x="{x - clip.x:g}" y="{y - clip.y:g}">{escape(text)}</text>'
            return f"<svg {_geometry(clip)}>{inner}</svg>"


def _geometry(area: Area) -> str:
    return f'x="{area.x:g}" y="{area.y:g}" width="{area.width:g}" height="{area.height:g}"'


def _path(points: Sequence[tuple[float, float]]) -> str:
    """Return the commands of a path: from each point first across, then up or down, to the next."""
    (x, y), *others = points
    path = f"M{x:g} {y:g}"
    for next_x, next_y in others:
        if next_x != x:
            path += f"H{next_x:g}"
        if next_y != y:
            path += f"V{next_y:g}"
        x, y = next_x, next_y
    return path


def palette_indices(values: Floats, low: float, high: float) -> NDArray[np.uint8]:
    """Map values to indices of `PALETTE`: 1 for `low` to 255 for `high`, and 0, which is transparent, for nan."""
    scaled = 1 + np.clip((values - low) / max(high - low, 1e-9), 0, 1) * 254
    indices: NDArray[np.uint8] = np.nan_to_num(scaled, nan=0).astype(np.uint8)
    return indices


def probability_colour(probability: float) -> str:
    """Return the colour of a probability as ``#rrggbb``."""
    mixed = (
        round(low + (high - low) * min(1.0, max(0.0, probability)))
        for high, low in zip(_PROBABLE, _IMPROBABLE, strict=True)
    )
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode indices of `PALETTE`, shape (rows, columns), as a PNG (W3C, Portable Network Graphics, 11.2 and 11.3)."""
    height, width = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels], axis=1)  # 0: no filter on this line
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        (b"PLTE", PALETTE.tobytes()),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(lines.tobytes(), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(_png_chunk(kind, data) for kind, data in chunks)


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
