"""Tests of plots as HTML page and PNG, from plot data made by hand."""

import io
import re
from dataclasses import replace

import av
import numpy as np
import pytest

from harken.plot import PlotData, html_page
from harken.plot.plot_data import DecodedWindow, TextSpan
from harken.plot.svg import PALETTE, PIXELS_PER_S, Box, Image, draw, encode_png, probability_colour
from harken.results import Attempt
from html_pages import Parsed

HOSTILE = '</svg><script>alert("&")</script>'
ACCEPTED = Attempt(temperature=0.2, avg_logprob=-0.25, compression_ratio=1.5, no_speech_prob=0.125)
REJECTED = replace(ACCEPTED, temperature=0.0, reason="compression ratio 3.10")


def decoded_window(start_s, end_s, *tokens, attempts=(ACCEPTED,)):
    positions = round((end_s - start_s) / 0.02)
    attention = np.zeros((len(tokens), positions), np.float32)
    attention[0] = np.nan
    starts_s = (None, *(start_s + 0.1 * i for i in range(len(tokens) - 1)))
    return DecodedWindow(
        start_s=start_s,
        end_s=end_s,
        tokens=tokens,
        probabilities=tuple(0.5 for _ in tokens),
        attention=attention,
        token_starts_s=starts_s,
        attempts=attempts,
    )


def plot_data(**changes):
    values = {
        "title": "talk.mp3",
        "start_s": 7.5,
        "mel": np.linspace(-1, 1, 80 * 200, dtype=np.float32).reshape(80, 200),
        "speech_probabilities": np.full(63, 0.75, np.float32),
        "vad_thresholds": (0.5, 0.35),
        "speech_regions": ((7.6, 9.0),),
        "windows": (
            decoded_window(7.5, 9.5, "<|0.00|>", " Good", " day", attempts=(REJECTED, ACCEPTED)),
            decoded_window(8.75, 9.5, "<|0.00|>", " sir"),
        ),
        "text_spans": (
            TextSpan(start_s=7.6, end_s=8.0, text="Good", probability=0.9),
            TextSpan(start_s=8.0, end_s=8.1, text="day", probability=0.2),
            TextSpan(start_s=9.0, end_s=9.4, text="Thank you", probability=0.5, reason="a known phrase"),
        ),
    }
    return PlotData(**{**values, **changes})


def hostile_span(end_s):
    return TextSpan(start_s=7.6, end_s=end_s, text=HOSTILE, probability=0.9, reason=HOSTILE)


def parsed(data):
    return Parsed("".join(html_page(data)))


def test_page_contains_all_texts():
    text = parsed(plot_data()).text
    for expected in (
        *("talk.mp3", "·Good", "·day", "·sir", "Thank you", "left out: a known phrase", "4000 Hz"),
        "temperature 0 rejected: compression ratio 3.10",
        "temperature 0.2 kept: average log-probability -0.25",
    ):
        assert expected in text


def test_panels_share_one_time_axis():
    page = parsed(plot_data())
    mel, first, second = page.named("image")
    assert mel["x"] == first["x"]
    assert float(second["x"] or 0) - float(mel["x"] or 0) == pytest.approx(1.25 * PIXELS_PER_S)
    assert float(mel["width"] or 0) == pytest.approx(2 * PIXELS_PER_S)
    words = [box for box in page.named("rect") if box.get("fill") == probability_colour(0.9)]
    assert float(words[0]["x"] or 0) - float(mel["x"] or 0) == pytest.approx(0.1 * PIXELS_PER_S)
    assert float(words[0]["width"] or 0) == pytest.approx(0.4 * PIXELS_PER_S)


def test_dtw_path_runs_from_token_to_token_to_the_window_end():
    first, second = re.findall(r'stroke-width="1.5" d="([^"]*)"', "".join(html_page(plot_data())))
    assert re.findall("[MHV]", first) == ["M", "H", "V", "H", "V"]
    x, y, *corners = map(float, re.findall(r"[\d.]+", first))
    assert [corner - (y if i % 2 else x) for i, corner in enumerate(corners)] == [6, 13, 120, 26]
    assert second.count("H") == 1


@pytest.mark.parametrize(
    "hostile",
    [
        {"title": HOSTILE},
        {"text_spans": (hostile_span(9.4),)},
        {"text_spans": (hostile_span(7.7),)},  # upright, as it is narrow
        {"windows": (decoded_window(7.5, 9.5, "<|0.00|>", HOSTILE),)},
    ],
    ids=["title", "word", "narrow word", "token"],
)
def test_text_never_becomes_markup(hostile):
    page = parsed(plot_data(**hostile))
    assert len(page.named("script")) == 1
    assert {tag for tag, _ in page.elements} == {tag for tag, _ in parsed(plot_data()).elements}
    assert HOSTILE in page.text


def test_page_has_no_external_references():
    content = "".join(html_page(plot_data()))
    assert not re.search(r'(?:src|href)="(?!data:image/png;base64,)', content)
    assert {*re.findall(r"https?://[^\"']*", content)} == {"http://www.w3.org/2000/svg"}


def render(data, dots_per_inch):
    pytest.importorskip("matplotlib", reason="matplotlib (harken[plot]) is not installed")
    from harken.plot.figure import render_png

    return render_png(data, dots_per_inch)


def pixels_of(png):
    with av.open(io.BytesIO(png), format="png_pipe") as container:
        (frame,) = container.decode(video=0)
    return frame.to_ndarray(format="rgb24")


def test_picture_has_the_shapes_of_the_page():
    data = plot_data()
    painted, drawing = pixels_of(render(data, 96)), draw(data)
    title_height = len(painted) - round(drawing.height)

    def colour(area):
        """Return the colour of a point near the lower left corner of an area, which no text reaches."""
        return "#" + painted[title_height + round(area.y + area.height) - 3, round(area.x) + 2].tobytes().hex()

    assert painted.shape[1] == pytest.approx(drawing.width, abs=1)
    boxes = [shape for shape in drawing.shapes if isinstance(shape, Box) and shape.opacity == 1]
    solid = [box for box in boxes if box.colour.startswith("#") and box.area.width > 5]
    assert [colour(box.area) for box in solid] == [box.colour for box in solid]
    _, *attentions = (shape for shape in drawing.shapes if isinstance(shape, Image))
    for image in attentions:
        index = image.pixels[-1, 2 * image.pixels.shape[1] // round(image.area.width)]
        assert colour(image.area) == "#" + bytes(PALETTE[index]).hex()


@pytest.mark.parametrize(
    "changes",
    [
        {"windows": (), "text_spans": (), "speech_regions": ()},
        {
            "title": "$x$ \\frac",
            "text_spans": (TextSpan(start_s=7.6, end_s=9, text="5 $ a 語", probability=1.0),),
        },
    ],
    ids=["silence", "odd characters"],
)
def test_any_plot_is_drawn(changes):
    data = plot_data(**changes)
    assert len(parsed(data).named("image")) == 1 + len(data.windows)
    assert render(data, 40).startswith(b"\x89PNG\r\n\x1a\n")


def test_png_contains_its_pixels():
    pixels = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert np.array_equal(pixels_of(encode_png(pixels)), PALETTE[pixels])
