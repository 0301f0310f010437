"""Full disks: a cache and outputs whose files cannot grow, and standard streams that take nothing.

A limit of the size of each file stands in for the disk: a write fails midway, wherever and whoever runs this.
Recordings on full disks are in tests/cli/test_cli_listen.py.
"""

import sys
from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from fakes.backends import WINDOW_POSITIONS, window_text
from processes import ended, error_faults, no_file_above, run, speech, started
from real_models import CACHE, model_path

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has neither such mounts nor limits of file sizes"
)
TEXT = "ask what you can do for your country"
FULL = Path("/dev/full")
needs_dev_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
attack = pytest.mark.attack
LINES = (
    *(
        "transcribe spoken.wav",
        "transcribe spoken.wav -f json -o -",
        "decode spoken.wav",
        "listen spoken.wav -q",
    ),
    *("models", "doctor"),
)


@pytest.fixture
def spoken(tmp_path):
    """A short recording of speech, for the embedded model."""
    model_path("tiny.en")
    return AUDIO_FORMATS["wav s16"].write(tmp_path / "spoken", samples=speech(7.5, 3.5))


@pytest.mark.real
@pytest.mark.parametrize("megabytes", [20, pytest.param(1, marks=attack)])
def test_text_is_right_where_the_files_of_the_cache_cannot_grow(spoken, tmp_path, megabytes):
    with no_file_above(megabytes << 20):  # which a process inherits
        outcome = run(["transcribe", spoken], tmp_path, tmp_path / "cache")
    assert not error_faults(outcome)
    assert (outcome.code == 0 and TEXT in " ".join(outcome.out.split())) or outcome.code == 5
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name.startswith(".")]


APPENDED = {"talk.resume.jsonl", "h.jsonl"}
"""Files that grow line by line, and may be there with the lines that had room."""


@pytest.mark.parametrize(
    "line",
    [
        "transcribe talk.wav -f srt,json,html -o out",
        "transcribe --resume talk.wav -f srt,vtt -o out",
        "transcribe talk.wav -f html --embed-audio -o out",
        "eval manifest.jsonl --json out/talk.json",
        "eval manifest.jsonl --hypotheses out/h.jsonl",
        "bench talk.wav --repeat 1 --json out/talk.json",
        "plot talk.wav -o out/talk.html",
    ],
)
def test_output_that_cannot_grow_is_refused_and_existing_files_stay(cli, line):
    cli.use_texts(window_text(0, "Dogs", WINDOW_POSITIONS))
    Path("manifest.jsonl").write_text('{"audio": "talk.wav", "text": "Dogs"}\n')
    out = Path("out")
    out.mkdir()
    existing = {name: f"existing {name}".encode() for name in ("talk.srt", "talk.json", "talk.html")}
    for name, content in existing.items():
        (out / name).write_bytes(content)
    with no_file_above(50):
        outcome = cli.run(*line.split())
    assert (outcome.code, error_faults(outcome)) == (5, [])
    assert "out/" in outcome.err
    assert {path.name for path in out.iterdir()} - APPENDED == {*existing}
    assert {name: (out / name).read_bytes() for name in existing} == existing


@needs_dev_full
@pytest.mark.parametrize(
    "line",
    ["--help", *(pytest.param(line, marks=attack) for line in LINES)],
)
def test_standard_output_that_takes_nothing_is_an_error_of_writing(tmp_path, spoken, line):
    with FULL.open("wb") as full, started(line.split(), tmp_path, CACHE, stdout=full) as process:
        outcome = ended(process)
    assert (outcome.code, error_faults(outcome)) == (5, [])
    assert outcome.err.endswith("harken: standard output: cannot be written: No space left on device\n")


@needs_dev_full
@pytest.mark.real
def test_standard_error_that_takes_nothing_does_not_lose_the_text(tmp_path, spoken):
    with FULL.open("wb") as full:
        outcome = run(["transcribe", "-v", "-"], tmp_path, CACHE, stdin=spoken.read_bytes(), stderr=full)
    assert outcome.code == 0
    assert TEXT in " ".join(outcome.out.split())
