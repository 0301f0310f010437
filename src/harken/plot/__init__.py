"""See what harken heard: a stretch of a recording as one picture with one axis of time.

`gather` transcribes the stretch and collects what there is to see as a `Picture`, which is plain data. `page` makes a
self-contained HTML page of that, and `harken.plot.figure.png` a PNG with matplotlib, which comes with ``harken[plot]``.
"""

from harken.plot.plot_data import DecodedWindow, PlotData, collect_plot_data, read_excerpt
from harken.plot.svg import html_page

__all__ = ["DecodedWindow", "PlotData", "collect_plot_data", "html_page", "read_excerpt"]
