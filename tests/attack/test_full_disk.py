"""Full disks: a cache, outputs and recordings whose files cannot grow, and standard streams that take nothing.

A limit of the size of each file stands in for the disk: a write fails midway, wherever and whoever runs this.
"""

from __future__ import annotations

import signal
import sys
import wave
from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from cli_runner import Outcome
from processes import ended, error_faults, run, speech, started
from real_models import CACHE, EXAMPLE, model_path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform == "win32", reason="Windows has neither such mounts nor limits of file sizes"
    ),
]
TEXT = "ask what you can do for your country"
FULL = Path("/dev/full")
needs_dev_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
attack = pytest.mark.attack


def limited(size: int, arguments: list[object], folder: Path, cache: Path) -> Outcome:
    """Run harken where no file can become larger than a size; the write fails as on a full disk."""
    import resource

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return run(arguments, folder, cache, preexec_fn=limit)


def is_right_or_refused(outcome: Outcome) -> bool:
    """Return whether a process wrote the right text, or said why not with code 5."""
    assert not error_faults(outcome)
    return (outcome.code == 0 and TEXT in " ".join(outcome.out.split())) or outcome.code == 5


@pytest.fixture(scope="module")
def cache_with_graphs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Fill the cache, so that no command of this file fails for want of it."""
    model_path("tiny.en")
    assert run(["transcribe", EXAMPLE], tmp_path_factory.mktemp("first"), CACHE).code == 0


@pytest.fixture
def talk(tmp_path: Path, cache_with_graphs: None) -> Path:
    """A short recording in the current folder of the command."""
    return AUDIO_FORMATS["wav s16"].write(tmp_path / "talk", samples=speech(7.5, 3.5))


@pytest.mark.parametrize("megabytes", [20, pytest.param(1, marks=attack)])
def test_text_is_right_where_the_files_of_the_cache_cannot_grow(tmp_path: Path, megabytes: int) -> None:
    model_path("tiny.en")
    cache = tmp_path / "cache"
    assert is_right_or_refused(limited(megabytes << 20, ["transcribe", EXAMPLE], tmp_path, cache))
    assert not [path for path in cache.rglob("*") if path.name.startswith(".")]


APPENDED = {"talk.resume.jsonl", "h.jsonl"}
"""Files that grow line by line, and may be there with the lines that had room."""


@pytest.mark.parametrize(
    "line",
    [
        "transcribe talk.wav -f srt,json,html -o out",
        *(
            pytest.param(line, marks=attack)
            for line in (
                "transcribe --resume talk.wav -f srt,vtt -o out",
                "transcribe talk.wav -f html --embed-audio -o out",
                "eval manifest.jsonl --json out/talk.json",
                "eval manifest.jsonl --hypotheses out/h.jsonl",
                "bench talk.wav --repeat 1 --json out/talk.json",
                "plot talk.wav -o out/talk.html",
            )
        ),
    ],
)
def test_output_that_cannot_grow_is_refused_and_existing_files_stay(
    tmp_path: Path, talk: Path, line: str
) -> None:
    (tmp_path / "manifest.jsonl").write_text('{"audio": "talk.wav", "text": "ask what you can do"}\n')
    out = tmp_path / "out"
    out.mkdir()
    existing = {name: f"existing {name}".encode() for name in ("talk.srt", "talk.json", "talk.html")}
    for name, content in existing.items():
        (out / name).write_bytes(content)
    outcome = limited(50, line.split(), tmp_path, CACHE)
    assert (outcome.code, error_faults(outcome)) == (5, [])
    assert "out/" in outcome.err
    assert {path.name for path in out.iterdir()} - APPENDED == {*existing}
    assert {name: (out / name).read_bytes() for name in existing} == existing


@needs_dev_full
@pytest.mark.parametrize(
    "line",
    [
        "transcribe talk.wav",
        "--help",
        pytest.param("models", marks=attack),
        pytest.param("transcribe talk.wav -f json -o -", marks=attack),
        pytest.param("decode talk.wav", marks=attack),
        pytest.param("listen talk.wav -q", marks=attack),
        pytest.param("doctor", marks=attack),
    ],
)
def test_standard_output_that_takes_nothing_is_an_error_of_writing(
    tmp_path: Path, talk: Path, line: str
) -> None:
    with FULL.open("wb") as full, started(line.split(), tmp_path, CACHE, stdout=full) as process:
        outcome = ended(process)
    assert (outcome.code, error_faults(outcome)) == (5, [])
    assert outcome.err.endswith("harken: standard output: cannot be written: No space left on device\n")


@needs_dev_full
def test_standard_error_that_takes_nothing_does_not_lose_the_text(tmp_path: Path, talk: Path) -> None:
    with FULL.open("wb") as full, started(["transcribe", "-v", talk], tmp_path, CACHE, stderr=full) as process:
        outcome = ended(process)
    assert outcome.code == 0
    assert TEXT in " ".join(outcome.out.split())


def test_what_was_recorded_stays_when_the_file_cannot_grow(tmp_path: Path, talk: Path) -> None:
    outcome = limited(60_000, ["listen", "talk.wav", "-q", "--record", "x.wav"], tmp_path, CACHE)
    assert (outcome.code, error_faults(outcome)) == (5, [])
    with wave.open(str(tmp_path / "x.wav")) as recorded:
        assert recorded.getnframes() * 2 > 60_000 - 44 - 1_600  # but for one block of 50 ms
    assert {path.name for path in tmp_path.iterdir()} == {"talk.wav", "x.wav"}
