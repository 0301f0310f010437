"""Plots as PNG: the drawing of the page, painted by matplotlib, which brings its fonts.

Importing this module without matplotlib raises `BackendUnavailable`.
"""

from __future__ import annotations

import io
import warnings
from typing import Any

from harken.errors import importing
from harken.plot.plot_data import PlotData
from harken.plot.svg import GROUND, LEFT_OUT, PALETTE, QUIET, Area, Box, Image, Line, Shape, Text, draw

with importing("plot", "a PNG, unlike an HTML page (-o out.html),"):
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

_DOTS_PER_INCH, _POINTS_PER_INCH = 96, 72
_TITLE_PIXELS = 26
_PAPER = "#fdfdfb"
# The light version of the page's style sheet: size in pixels, colour, and alignment of each style of text.
_COLOURS = {QUIET: "#666666", GROUND: "#e9e9e6", LEFT_OUT: _PAPER}
_TEXT_STYLES = {
    "title": (15, "#222222", "left", "baseline"),
    "name": (12, "#666666", "left", "baseline"),
    "tick": (11, "#222222", "right", "center"),
    "token": (10, "#222222", "right", "center"),
    "second": (11, "#222222", "center", "center"),
    "word": (10, "#222222", "center", "center"),
    f"word {LEFT_OUT}": (10, "#666666", "center", "center"),
    "attempt": (11, "#ffffff", "left", "center"),
}
_PALETTE = ListedColormap([(*colour / 255, bool(index)) for index, colour in enumerate(PALETTE)])


def render_png(data: PlotData, dots_per_inch: int = 110) -> bytes:
    """Draw a plot and encode it as a PNG; characters that the font lacks become boxes."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        _paint(data).savefig(buffer, format="png", dpi=dots_per_inch)
    return buffer.getvalue()


def _paint(data: PlotData) -> Figure:
    drawing = draw(data)
    width, height = drawing.width, drawing.height + _TITLE_PIXELS
    figure = Figure(figsize=(width / _DOTS_PER_INCH, height / _DOTS_PER_INCH), facecolor=_PAPER)
    axes = figure.add_axes((0, 0, 1, 1))
    for order, shape in enumerate((Text(16, -6, data.title, "title"), *drawing.shapes)):
        _paint_shape(axes, shape).set_zorder(order)
    axes.set(xlim=(0, width), ylim=(drawing.height, -_TITLE_PIXELS), aspect="auto")
    axes.axis("off")
    return figure


def _paint_shape(axes: Axes, shape: Shape) -> Artist:
    match shape:
        case Box(area, colour, _, opacity):
            hatch: dict[str, Any] = {"hatch": "//", "edgecolor": "#888888"} if colour == LEFT_OUT else {}
            fill = _COLOURS.get(colour, colour)
            return axes.add_patch(_rectangle(area, facecolor=fill, alpha=opacity, linewidth=0, **hatch))
        case Image(area, pixels):
            extent = (area.x, area.x + area.width, area.y + area.height, area.y)
            return axes.imshow(pixels, cmap=_PALETTE, vmin=0, vmax=255, extent=extent, interpolation="nearest")
        case Line(points, colour, width, dashes):
            style = (0, dashes) if dashes else "-"
            (painted,) = axes.plot(
                *zip(*points, strict=True), color=_COLOURS.get(colour, colour), lw=_points(width), ls=style
            )
            return painted
        case Text(x, y, text, style, clip, upright):
            size, colour, horizontal, vertical = _TEXT_STYLES[style]
            label = axes.text(
                *(x, y, text),
                color=colour,
                fontsize=_points(size),
                family="monospace" if style == "token" else "sans-serif",
                weight="bold" if style == "title" else "normal",
                rotation=90 * upright,
                horizontalalignment=horizontal,
                verticalalignment=vertical,
                parse_math=False,
            )
            if clip:
                label.set_clip_path(_rectangle(clip, transform=axes.transData))
            return label


def _rectangle(area: Area, **style: Any) -> Rectangle:
    return Rectangle((area.x, area.y), area.width, area.height, **style)


def _points(pixels: float) -> float:
    return pixels * _POINTS_PER_INCH / _DOTS_PER_INCH
