"""The picture as one HTML page that needs neither server nor network: drawn in SVG, so that it can be enlarged."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

import numpy as np
from numpy.typing import NDArray

from harken.plot.colours import INK, KEPT, PATH, REJECTED, SPEECH, confidence, levels, png
from harken.plot.picture import LISTENING_RANGE, TICKS_HZ, Mark, Picture, band_of, explained

PIXELS_PER_S = 60
ROW_PIXELS = 13
_CHARACTER_PIXELS = 6.5
_LEFT, _BAR, _MARGIN, _GAP = 130, 120, 16, 26
_DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class _Panel:
    """A rectangle of the drawing, in pixels, all of them with the same axis of time."""

    picture: Picture
    top: float
    height: float

    def x(self, seconds: float) -> float:
        """Where a time stands."""
        return round(_LEFT + (seconds - self.picture.start_s) * PIXELS_PER_S, 2)

    @property
    def end_x(self) -> float:
        """Where the stretch ends."""
        return self.x(self.picture.end_s)

    def box(self, start_s: float, end_s: float, top: float, height: float, look: str, told: str = "") -> str:
        """A rectangle, which a pointer over it explains."""
        width = max(1.0, self.x(end_s) - self.x(start_s))
        place = f'x="{self.x(start_s)}" y="{top:g}" width="{width:g}" height="{height:g}"'
        return f"<rect {place} {look}><title>{escape(told)}</title></rect>"

    def image(self, pixels: NDArray[np.uint8], start_s: float, end_s: float, top: float, height: float) -> str:
        """An image with a row a line, stretched over its place."""
        data = b64encode(png(pixels)).decode()
        place = (
            f'x="{self.x(start_s)}" y="{top:g}" width="{self.x(end_s) - self.x(start_s):g}" height="{height:g}"'
        )
        return f'<image {place} preserveAspectRatio="none" href="data:image/png;base64,{data}"/>'

    def clipped(self, start_s: float, end_s: float, top: float, height: float, content: str) -> str:
        """Something that is cut off at the edges of its place."""
        place = (
            f'x="{self.x(start_s)}" y="{top:g}" width="{self.x(end_s) - self.x(start_s):g}" height="{height:g}"'
        )
        return f"<svg {place}>{content}</svg>\n"

    def name(self, text: str) -> str:
        """What the panel shows, above it."""
        return f'<text class="name" x="{_LEFT}" y="{self.top - 6:g}">{escape(text)}</text>'


def page(picture: Picture) -> Iterator[str]:
    """Make the page, piece by piece."""
    panels = [
        (_mel, 150.0),
        (_speech, 70.0),
        (_marks, 84.0),
        (_tokens, float(ROW_PIXELS * max(1, picture.rows[-1]))),
        (_attempts, 18.0 * max(1, picture.most_attempts)),
    ]
    before, _, after = (_DATA / "page.html").read_text(encoding="utf-8").partition("$drawing")
    height = sum(size + _GAP for _, size in panels) + 2 * _GAP
    width = _Panel(picture, 0, 0).end_x + _BAR + 2 * _MARGIN
    yield Template(before).substitute(title=escape(picture.title))
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" role="img" '
        f'aria-label="{escape(picture.title)}" data-left="{_LEFT}" data-start="{picture.start_s:g}" '
        f'data-end="{picture.end_s:g}" data-scale="{PIXELS_PER_S}">\n'
    )
    top = float(_GAP)
    for draw, size in panels:
        yield from draw(_Panel(picture, top, size))
        top += size + _GAP
    yield from _time_axis(_Panel(picture, _GAP, top - 2 * _GAP))
    yield "</svg>\n"
    yield after


def _mel(panel: _Panel) -> Iterator[str]:
    picture = panel.picture
    n_mels = len(picture.mel)
    pixels = levels(picture.mel[::-1], float(picture.mel.min()), float(picture.mel.max()))
    yield panel.name("log-mel spectrogram")
    yield panel.image(pixels, picture.start_s, picture.end_s, panel.top, panel.height)
    for hertz in TICKS_HZ:
        y = panel.top + panel.height * (1 - band_of(hertz, n_mels) / n_mels)
        yield f'<text class="tick" x="{_LEFT - 6}" y="{y:.1f}">{hertz} Hz</text>\n'


def _speech(panel: _Panel) -> Iterator[str]:
    picture, bottom = panel.picture, panel.top + panel.height
    yield panel.name("probability of speech, its two thresholds, and the regions they give")
    for start_s, end_s in picture.regions:
        told = f"speech from {start_s:.2f} to {end_s:.2f} s"
        yield panel.box(start_s, end_s, panel.top, panel.height, f'fill="{SPEECH}" fill-opacity="0.2"', told)
    for threshold, dashes in zip(picture.thresholds, ("6 3", "2 3"), strict=True):
        y = bottom - threshold * panel.height
        yield (
            f'<path class="rule" stroke-dasharray="{dashes}" d="M{_LEFT} {y:g}H{panel.end_x}"/>'
            f'<text class="tick" x="{_LEFT - 6}" y="{y:g}">{threshold:.2f}</text>\n'
        )
    times = picture.start_s + picture.chunk_s * np.arange(len(picture.speech))
    steps = "".join(
        f"V{bottom - probability * panel.height:.1f}H{min(panel.x(time + picture.chunk_s), panel.end_x)}"
        for time, probability in zip(times.tolist(), picture.speech.tolist(), strict=True)
    )
    yield f'<path fill="none" stroke="{SPEECH}" d="M{_LEFT} {bottom:g}{steps}"/>\n'


def _marks(panel: _Panel) -> Iterator[str]:
    yield panel.name("words, as probable as they are blue; left out, if hatched")
    for mark in panel.picture.marks:
        look = (
            f'fill="{confidence(mark.probability)}"'
            if mark.reason is None
            else 'fill="url(#hatch)" class="left-out"'
        )
        told = f"{mark.text}\n{mark.start_s:.2f} to {mark.end_s:.2f} s, probability {mark.probability:.3f}"
        if mark.reason is not None:
            told += f"\nleft out: {mark.reason}"
        yield panel.box(mark.start_s, mark.end_s, panel.top, panel.height, look, told)
        yield _mark_text(panel, mark)


def _mark_text(panel: _Panel, mark: Mark) -> str:
    """What was said: lying, and cut off where it has no room; upright where its place is rather high than wide."""
    left, width = panel.x(mark.start_s), panel.x(mark.end_s) - panel.x(mark.start_s)
    kind = "word" if mark.reason is None else "word left-out"
    if width < min(panel.height, _CHARACTER_PIXELS * len(mark.label)):
        place = f'transform="translate({left + width / 2:g} {panel.top + panel.height / 2:g}) rotate(-90)"'
        return f'<text class="{kind}" {place}>{escape(mark.label)}</text>\n'
    text = f'<text class="{kind}" x="{width / 2:g}" y="50%">{escape(mark.label)}</text>'
    return panel.clipped(mark.start_s, mark.end_s, panel.top, panel.height, text)


def _tokens(panel: _Panel) -> Iterator[str]:
    picture = panel.picture
    yield panel.name(
        "what each token listened to, the path of dynamic time warping, and the probabilities of the tokens"
    )
    yield panel.box(picture.start_s, picture.end_s, panel.top, panel.height, 'class="ground"')
    for first, window in zip(picture.rows, picture.windows, strict=False):
        top = panel.top + first * ROW_PIXELS
        pixels = levels(window.listening, *LISTENING_RANGE)
        yield panel.image(pixels, window.start_s, window.end_s, top, len(window.tokens) * ROW_PIXELS)
        if window.path:
            (begin_s, row), *corners = window.path
            steps = "".join(f"H{panel.x(time_s)}V{top + row * ROW_PIXELS:g}" for time_s, row in corners)
            begin = f"M{panel.x(begin_s)} {top + row * ROW_PIXELS:g}"
            yield f'<path fill="none" stroke="{PATH}" stroke-width="1.5" d="{begin}{steps}"/>\n'
    rows = zip(picture.token_labels, picture.token_probabilities, strict=True)
    for row, (label, probability) in enumerate(rows):
        top = panel.top + row * ROW_PIXELS
        yield (
            f'<text class="token" x="{_LEFT - 6}" y="{top + ROW_PIXELS / 2:g}">{escape(label)}</text>'
            f'<rect x="{panel.end_x + 8:g}" y="{top + 1:g}" width="{probability * _BAR:.1f}" '
            f'height="{ROW_PIXELS - 2}" fill="{confidence(probability)}">'
            f"<title>{escape(label)}: probability {probability:.4f}</title></rect>\n"
        )


def _attempts(panel: _Panel) -> Iterator[str]:
    yield panel.name("attempts at each window")
    for window in panel.picture.windows:
        for rung, attempt in enumerate(window.attempts):
            top, told = panel.top + rung * 18, explained(attempt)
            look = f'fill="{REJECTED if attempt.reason else KEPT}"'
            yield panel.box(window.start_s, window.end_s, top + 1, 16, look, told)
            text = f'<text class="attempt" x="6" y="50%">{escape(told)}</text>'
            yield panel.clipped(window.start_s, window.end_s, top, 18, text)


def _time_axis(panel: _Panel) -> Iterator[str]:
    """A tick every second below all panels, and a number at every fifth."""
    bottom = panel.top + panel.height + _GAP / 2
    for second in range(int(np.ceil(panel.picture.start_s)), int(panel.picture.end_s) + 1):
        x = panel.x(second)
        length = 8 if second % 5 == 0 else 4
        yield f'<path stroke="{INK}" class="rule" d="M{x} {bottom:g}v{length}"/>'
        yield f'<text class="second" x="{x}" y="{bottom + 18:g}">{second}</text>\n' if second % 5 == 0 else ""
