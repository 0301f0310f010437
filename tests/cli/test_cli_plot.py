"""``harken plot`` on the embedded model: its files and its errors."""

import os
import re
import shutil
from pathlib import Path

import pytest

from real_models import CACHE, EXAMPLE, model_path


@pytest.fixture(autouse=True)
def example(cli):
    shutil.copy(EXAMPLE, "jfk.flac")


@pytest.mark.real
class TestDrawn:
    @pytest.fixture(autouse=True)
    def tiny(self, cli, monkeypatch):
        model_path("tiny.en")
        cli.loaders.clear()
        monkeypatch.setenv("HARKEN_CACHE", str(CACHE))

    def test_html_page_is_written_beside_the_recording(self, cli):
        outcome = cli.run("plot", "jfk.flac")
        assert (outcome.code, outcome.out, outcome.err) == (0, "", "jfk.plot.html\n")
        content = Path("jfk.plot.html").read_text(encoding="utf-8")
        assert "<title>jfk.flac, tiny.en, int8</title>" in content
        tokens = re.findall(r'<text class="token"[^>]*>([^<]*)<', content)
        assert tokens[0] == "&lt;|0.00|&gt;"
        assert "·country" in tokens
        assert "temperature 0 kept" in content

    def test_png_of_an_excerpt_is_written(self, cli):
        pytest.importorskip("matplotlib", reason="matplotlib (harken[plot]) is not installed")
        outcome = cli.run("plot", "jfk.flac", "-o", "out.PNG", "--start", "3", "--duration", "2")
        assert (outcome.code, outcome.err) == (0, "out.PNG\n")
        assert Path("out.PNG").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


class TestRefused:
    def test_picture_does_not_replace_its_recording(self, cli):
        shutil.move("jfk.flac", "jfk.html")
        os.link("jfk.html", "other.html")
        before = Path("jfk.html").read_bytes()
        for output in ("jfk.html", "./other.html"):
            outcome = cli.run("plot", "jfk.html", "-o", output)
            assert (outcome.code, outcome.err.count("\n")) == (2, 1)
            assert "jfk.html" in outcome.err
            assert "would be overwritten" in outcome.err
        assert Path("jfk.html").read_bytes() == before
        assert cli.loaded == []
