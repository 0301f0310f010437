"""The tables of README.md and docs/ say what the results in benchmarks/results say."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from results import FOLDER, ROOT, Machine, Result, begin, command, portable, read, write
from tables import LISTS, TABLES, Table, fill, names, pages, refresh, render

PAGE = "Before.\n\n<!-- table: speed -->\n<!-- end table -->\n\nAfter.\n"
TABLE = Table({"engine": "{engine}", "WER, %": "{wer_percent:.2f}"})
MACHINE = Machine(
    name="maker-1-2c", processor="A processor", cores=2, flags=["avx2", "avx512_vnni"], system="Linux x86_64"
)
RESULT = Result(
    name="speed",
    command="python benchmarks/speed.py --threads 2 --save speed",
    date="2026-01-02 03:04",
    commit="0123abc",
    machine=MACHINE,
    load=0.1,
    versions={"Python": "3.11.7", "openvino": "2026.4.1", "faster-whisper": "1.2.1"},
    settings={"model": "tiny.en", "threads": 2, "dims": None},
    rows=[{"engine": "harken", "wer_percent": 14.476}, {"engine": "another", "wer_percent": None}],
)


@pytest.fixture
def folder(tmp_path):
    write(RESULT, tmp_path / "results")
    return tmp_path / "results"


def test_tables_are_those_of_the_results_and_each_has_one_place():
    """They have every kind of row, range and column."""
    assert [page for page in pages(ROOT) if refresh(page, check=True)] == [], "run: python benchmarks/tables.py"
    placed = [name for page in pages(ROOT) for name in names(page.read_text(encoding="utf-8"))]
    assert len(placed) == len({*placed})
    assert {*placed} == {*TABLES, *LISTS}
    shown = {result for name in placed if name in TABLES for result in TABLES[name].results or (name,)}
    assert {path.stem for path in FOLDER.glob("*.json")} == {*shown, "machines"}


def test_a_result_names_no_folder_of_the_machine_it_was_measured_on():
    for path in FOLDER.glob("*.json"):
        assert not re.search(r"(^|[\s\"=])(/|~|\.\./|[A-Z]:\\)\w", path.read_text(encoding="utf-8")), path


def test_a_changed_figure_makes_the_page_stale(folder, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    assert refresh(page, {"speed": TABLE}, folder)
    assert not refresh(page, {"speed": TABLE}, folder, check=True)
    page.write_text(page.read_text(encoding="utf-8").replace("14.48", "14.47"), encoding="utf-8")
    assert refresh(page, {"speed": TABLE}, folder, check=True)
    assert "14.47" in page.read_text(encoding="utf-8"), "a check writes nothing"


def test_settings_that_differ_stand_beside_their_commands():
    shown = render(TABLE, [RESULT, replace(RESULT, settings={"model": "base"})])
    assert re.findall(r"(?:on `maker-1-2c`|load 0.1), model (\S+)\)", shown) == ["tiny.en", "base"]


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (PAGE.replace("<!-- end table -->", ""), "without <!-- end table -->"),
        (PAGE.replace("speed", "unknown"), "without a layout: unknown"),
        (PAGE.replace("speed", "missing"), "missing.json"),
    ],
)
def test_a_page_that_cannot_be_filled_in_is_refused(page, message, folder):
    with pytest.raises(ValueError, match=message):
        fill(page, {"speed": TABLE, "missing": TABLE}, folder)


def test_a_result_is_read_as_it_was_written(folder):
    assert read("speed", folder) == RESULT


@pytest.mark.parametrize("rows", [[], [{"engine": "harken"}, {"wer_percent": 1.0}]])
def test_rows_with_different_keys_are_refused(rows, tmp_path):
    with pytest.raises(ValueError, match="all with the same keys"):
        write(replace(RESULT, rows=rows), tmp_path)


def test_a_measurement_notes_where_and_with_what_it_was_made():
    result = begin(
        "speed", {"model": Path("/models/tiny.en"), "set": ["one", "two"]}, packages=("no-such-package",)
    )
    assert result.settings == {"model": "tiny.en", "set": ["one", "two"]}
    assert result.machine.cores >= 1
    assert "Python" in result.versions
    assert "no-such-package" not in result.versions


def test_a_command_names_files_of_the_repository_and_no_other_folders():
    program = str(ROOT / "benchmarks" / "compare.py")
    shown = command([program, "--audio", "../other/audio", "--model", "/models/tiny.en"])
    assert shown == "python benchmarks/compare.py --audio audio --model tiny.en"
    assert portable("benchmarks/results") == "benchmarks/results"
    assert portable("openai-whisper=/models/tiny.en.pt") == "openai-whisper=tiny.en.pt"
