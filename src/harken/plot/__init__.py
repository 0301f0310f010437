"""Plots of an excerpt of a recording: features, speech, words, attention and decoding attempts on one time axis.

`collect_plot_data` transcribes the excerpt and returns `PlotData`, which is plain data. `html_page` renders it as a
self-contained HTML page, and `harken.plot.figure.render_png` as a PNG with matplotlib, which ``harken[plot]`` installs.
"""

from harken.plot.plot_data import PlotData, collect_plot_data, read_excerpt
from harken.plot.svg import html_page

__all__ = ["PlotData", "collect_plot_data", "html_page", "read_excerpt"]
