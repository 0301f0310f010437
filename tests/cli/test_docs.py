"""The documentation: its reference is up to date, its examples print what it says, and its links lead somewhere."""

import functools
import re
import runpy
import shlex
import shutil
from pathlib import Path

import click
import pytest

import harken
from cli_runner import CliRunner
from harken import Recognizer
from harken.cli import root
from real_models import CACHE, model_path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
JSON = re.compile(r"^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Its examples need a server: tests/serve runs them.
ELSEWHERE = {"serve.md"}

PAGES = {
    path.name: path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if path.name not in ELSEWHERE
}
BY_NIGHT = {"speakers.md", "speculation.md"}
"""Pages whose Python takes longer, and does what tests/speakers and tests/decoding do by day."""
WITH_PYTHON = [
    pytest.param(name, marks=[pytest.mark.nightly] * (name in BY_NIGHT))
    for name, page in PAGES.items()
    if PYTHON.search(page)
]
COMMANDS = {
    name: [
        (line.removeprefix("harken "), output)
        for block in CONSOLE.findall(page)
        for line, _, output in (part.partition("\n") for part in block.split("$ ")[1:])
        if line.startswith("harken ")
    ]
    for name, page in PAGES.items()
}


@pytest.fixture(scope="module")
def loaded():
    """`harken.load` that loads a model with the same arguments once for all pages and commands."""
    return functools.cache(harken.load)


@pytest.fixture(autouse=True)
def cache(monkeypatch):
    monkeypatch.setenv("HARKEN_CACHE", str(CACHE))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_the_reference_is_up_to_date_and_has_every_option():
    generator = runpy.run_path(str(ROOT / "docs" / "reference.py"))
    page = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert page == generator["page"](), "python docs/reference.py > docs/reference.md"
    context = click.Context(root.harken, max_content_width=1000)
    for name in root.COMMANDS:
        for rows in generator["sections_of"](root.harken.get_command(context, name), context).values():
            for row in rows:
                assert [*generator["table"]([row])][-1] in page or not row[1]
                assert generator["long_name"](row) in page


@pytest.mark.real
@pytest.mark.parametrize("name", WITH_PYTHON)
def test_python_prints_what_the_page_says(name, loaded, tmp_path, monkeypatch, capsys):
    model_path("tiny.en")
    monkeypatch.setattr(harken, "load", loaded)
    if "load_diarizer" in PAGES[name]:
        monkeypatch.setenv("HARKEN_SPEAKER_MODEL", str(model_path("speakers")))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    for live in (Recognizer.stream, Recognizer.stream_many):  # a page has time, however busy the machine is
        monkeypatch.setitem(live.__kwdefaults__, "clock", None)
    names = {}
    for code, expected in PYTHON.findall(PAGES[name]):
        exec(compile(code, name, "exec"), names)  # the blocks of a page share their names
        printed = capsys.readouterr().out
        if expected:
            assert printed.strip() == expected.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the commands of the pages read."""
    folder = tmp_path_factory.mktemp("page")
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copy(ROOT / "examples" / "jfk.flac", folder / "a.flac")
    (folder / "notes.mp3").write_text("Dear diary,\n")
    (folder / "damaged.jsonl").write_text('{"audio": "a.flac", "text": ""}\n{"audio": "b.flac", "text": ""}\n')
    (folder / "other.jsonl").write_text(JSON.findall(PAGES["eval.md"])[-1], encoding="utf-8")
    return folder


@pytest.mark.real
@pytest.mark.parametrize("name", [name for name, commands in COMMANDS.items() if commands])
def test_commands_print_what_the_page_says(folder, loaded, capsys, monkeypatch, name):
    model_path("tiny.en")
    monkeypatch.chdir(folder)
    cli = CliRunner(capsys, monkeypatch)
    cli.loaders["load"] = loaded
    for line, expected in COMMANDS[name]:  # which read what those before them have written
        outcome = cli.run(*shlex.split(line))
        assert shape(outcome.out + outcome.err) == shape(expected), line


def shape(text):
    """Return a text without the parts that differ between machines: numbers, runtimes and some punctuation."""
    text = re.sub(r"encoder .*, decoder .*, \d+ threads?", "ENGINE", text)
    text = re.sub(r"[\d.,]+", "0", re.sub(r"[,.](?=\s)", "", text))
    return re.sub(r"0( 0)+", "0", text).strip()


LINKED = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "tests/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]*)\)")
FENCE = re.compile(r"^(```+).*?^\1\s*$", re.MULTILINE | re.DOTALL)


def anchors(page):
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_links_of_the_pages_lead_somewhere():
    dead = []
    for page in LINKED:
        for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert dead == []


def test_programs_that_the_pages_name_exist():
    named = {
        (page.name, name)
        for page in LINKED
        for name in re.findall(
            r"`((?:src|tests|benchmarks|docs)/[\w/]+\.py)`", page.read_text(encoding="utf-8")
        )
    }
    assert sorted((page, name) for page, name in named if not (ROOT / name).exists()) == []
    assert len(named) > 10


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} - {
        "index.md"
    }
    assert sorted(pages - {link.partition("#")[0] for link in LINK.findall(index)}) == []
