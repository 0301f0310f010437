"""``harken transcribe --watch``: what is put into a folder is transcribed once, whatever happens; a sleep is a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, window_text
from harken.cli import transcribe
from harken.cli.exits import Stop

DONE = "harken: 1 recording done\n"
Step = Callable[[], object]


@pytest.fixture
def run(cli, monkeypatch):
    """Return a function that watches the folder ``in``, with a step between two looks, and a signal after the last."""
    cli.use_texts(window_text(0, "one", WINDOW_POSITIONS))
    Path("in").mkdir(exist_ok=True)

    def run(*steps: Step | None, names: tuple[str, ...] = ("in",), options: tuple[str, ...] = ()) -> str:
        waiting: Iterator[Step | None] = iter([*steps, None, None])

        def sleep(seconds: float) -> None:
            try:
                step = next(waiting)
            except StopIteration:
                raise Stop(143, "terminated") from None
            if step:
                step()

        monkeypatch.setattr(transcribe, "sleep", sleep)
        outcome = cli.run("transcribe", "--watch", *names, "--no-vad", "--language", "en", *options)
        assert outcome.code == 143
        assert outcome.err.startswith(f"harken: watching {', '.join(names)}\n")
        assert outcome.err.endswith("harken: terminated\n")
        return outcome.err.removeprefix(f"harken: watching {', '.join(names)}\n").removesuffix(
            "harken: terminated\n"
        )

    return run


def recording(n_windows: int) -> bytes:
    path = AUDIO_FORMATS["wav s16"].write(Path("made"), n_windows * WINDOW_S)
    return path.read_bytes()


def put(name: str, content: bytes) -> Step:
    return lambda: Path(name).write_bytes(content)


def texts() -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(Path("in").glob("*.txt"))}


def test_recordings_are_done_once_when_they_are_whole_and_again_when_they_change(run):
    one, two = recording(1), recording(2)
    put("in/there.wav", one)()
    put("in/notes.md", b"no recording by its name")()
    put("in/.hidden.wav", one)()
    steps = [
        put("in/grows.wav", two[:900]),  # two looks see it grow, and one is needed to see that it does not
        put("in/grows.wav", two[:9000]),
        put("in/grows.wav", two),
        None,
        put("in/empty.wav", b""),
        put("in/there.wav", two),
    ]
    assert run(*steps) == DONE * 3
    assert texts() == {"grows.txt": "one\none\n", "there.txt": "one\none\n"}
    assert run() == ""  # the next process finds the transcripts
    Path("in/there.txt").unlink()
    assert run() == DONE


def test_one_that_fails_is_reported_once_until_it_changes(run, cli):
    put("in/bad.wav", b"no recording at all")()
    failed = run(put("in/good.wav", recording(1)))
    assert failed.count("bad.wav: is not a recording") == 1
    assert run() == ""  # nor by the next process
    assert run(put("in/bad.wav", recording(1))) == DONE
    assert texts() == {"bad.txt": "one\n", "good.txt": "one\n"}
    assert [path.name for path in Path("in").glob("*.json")] == []


def test_one_that_was_cut_short_goes_on(run, cli, monkeypatch):
    put("in/talk.wav", recording(3))()
    backend = cli.use_texts(*(window_text(0, word, WINDOW_POSITIONS) for word in ("one", "two", "three")))
    encode = backend.encode

    def interrupted(mel, positions):
        if len(backend.mels) == 2:
            raise Stop(143, "terminated")
        return encode(mel, positions)

    monkeypatch.setattr(backend, "encode", interrupted)
    monkeypatch.setattr(transcribe, "sleep", lambda seconds: None)
    assert cli.run("transcribe", "--watch", "in", "--no-vad", "--language", "en").code == 143
    assert texts() == {}
    cli.use_texts(window_text(0, "three", WINDOW_POSITIONS))
    assert run() == DONE
    assert texts() == {"talk.txt": "one\ntwo\nthree\n"}


def test_two_recordings_of_one_transcript_are_reported_and_the_first_is_done(run):
    put("in/talk.wav", recording(1))()
    AUDIO_FORMATS["flac"].write(Path("in/talk"), WINDOW_S)
    said = run(names=("in/*",), options=("-f", "txt,srt"))
    assert (
        said
        == f"harken: {Path('in/talk.flac')} and {Path('in/talk.wav')} would both be written to in/talk.txt\n{DONE}"
    )
