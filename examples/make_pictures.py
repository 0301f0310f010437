"""Make the pictures of README.md: a plot, the html transcript, and live captions of the example recording.

    python examples/make_pictures.py

They are written to docs/images. The plot takes the extra ``plot``, the captions the package ``rich``; the picture of
the html transcript takes Chromium or Chrome, and is skipped if there is none.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

import harken
from harken.audio import stream_audio
from harken.formats import Layout, RecordingLink, render
from harken.plot import collect_plot_data, read_excerpt
from harken.plot.figure import render_png
from harken.streaming import FinalSegment, Interim

ROOT = Path(__file__).resolve().parents[1]
RECORDING = ROOT / "examples" / "jfk.flac"
IMAGES = ROOT / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
UPDATES_SHOWN = 4
"""Every so many updates of the live text, one is in the picture."""


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    recognizer = harken.load("tiny.en", precision="fp32")
    plot(recognizer)
    captions(recognizer)
    transcript(recognizer)


def plot(recognizer: harken.Recognizer) -> None:
    """Draw what ``harken plot`` draws."""
    samples = read_excerpt(RECORDING, 0.0, 30.0)
    options = harken.TranscribeOptions()
    data = collect_plot_data(recognizer, samples, options, title=RECORDING.name, start_s=0.0)
    (IMAGES / "plot.png").write_bytes(render_png(data, dots_per_inch=90))


def captions(recognizer: harken.Recognizer) -> None:
    """Write down some updates of a live session, tentative text dim, and the final segments."""
    console = Console(record=True, width=96, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text("$ harken listen examples/jfk.flac", "bold"))
    session = recognizer.stream(delay="low", clock=None)
    updates = 0
    for block in [*stream_audio(RECORDING, block_samples=1600), None]:
        for event in session.close() if block is None else session.feed(block):
            match event:
                case Interim():
                    updates += 1
                    if updates % UPDATES_SHOWN == 0:
                        texts = (event.committed.lstrip(), (event.tentative, "dim"))
                        console.print(Text.assemble((f"{event.audio_s:5.1f} s  ", "cyan"), *texts))
                case FinalSegment():
                    text = event.segment.text.strip()
                    console.print(Text.assemble(("  final  ", "green"), (text, "bold")))
    svg = re.sub(
        r"@font-face \{.*?\n    \}", "", console.export_svg(title="live captions"), flags=re.DOTALL
    )  # no web fonts
    (IMAGES / "captions.svg").write_text(svg, encoding="utf-8")


def transcript(recognizer: harken.Recognizer) -> None:
    """Take a picture of the html transcript."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if browser is None:
        print("transcript.png: skipped, as there is neither Chromium nor Chrome")
        return
    result = recognizer.transcribe(RECORDING, word_timestamps=True).result()
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "jfk.html"
        recording = RecordingLink(path=RECORDING, transcript_folder=Path(folder))
        page.write_text("".join(render(result, "html", Layout(embed_audio=True), recording)), encoding="utf-8")
        subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--window-size=900,460", "--virtual-time-budget=4000"),
                *(f"--screenshot={IMAGES / 'transcript.png'}", page.as_uri()),
            ],
            check=True,
            capture_output=True,
        )


if __name__ == "__main__":
    main()
