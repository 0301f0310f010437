"""Journals: a transcription that was cut short anywhere goes on, and its transcript is that of one run."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audio_files import AUDIO_FORMATS
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, WindowText, window_text
from harken import Recognizer, Transcript
from harken.errors import AudioError, OptionError, OutputError
from harken.transcribe import TranscribeOptions
from tiny_models import TOKENIZER

WORDS = ("one", "two", "three", "four")
TEXTS = [window_text(0, word, WINDOW_POSITIONS) for word in WORDS]


def fake(texts: list[WindowText]) -> tuple[Recognizer, TranscriptBackend]:
    backend = TranscriptBackend(*texts)
    return Recognizer(backend, TOKENIZER, "fake"), backend


def transcribe(model: Recognizer, audio: Path, journal: Path | None, **options: Any) -> Transcript:
    made = TranscribeOptions(**{"language": "en", "vad": False, **options})
    (transcription,) = model.transcribe_many([audio], made, journals={0: journal} if journal else {})
    return transcription.result()


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A recording of four windows."""
    return AUDIO_FORMATS["wav s16"].write(tmp_path / "talk", WINDOW_S * len(WORDS))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "talk.resume.jsonl"


def cut_to_lines(journal: Path, count: int, torn: bytes = b"") -> None:
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:count]) + torn)


@pytest.mark.parametrize("conditioned", [False, True])
@pytest.mark.parametrize("done", [0, 2, 4])
def test_windows_of_the_journal_are_not_decoded_again(
    talk: Path, journal: Path, done: int, conditioned: bool
) -> None:
    options = {"condition_on_previous_text": conditioned}
    whole = transcribe(fake(TEXTS)[0], talk, journal, **options)
    cut_to_lines(journal, 1 + done, torn=b'{"chain": 0, "off')
    model, backend = fake(TEXTS[done:])
    assert transcribe(model, talk, journal, **options) == whole
    assert len(backend.mels) == len(WORDS) - done
    model, backend = fake([])
    assert transcribe(model, talk, journal, **options) == whole
    assert not backend.mels


@pytest.mark.parametrize("damage", [b"", b"\n", b"garbage\n", b"[]\n", b"[" * 100_000 + b"\n", b"\xff\n"])
def test_damaged_journal_is_begun_anew(talk: Path, journal: Path, damage: bytes) -> None:
    journal.write_bytes(damage)
    whole = transcribe(fake(TEXTS)[0], talk, journal)
    assert whole == transcribe(fake(TEXTS)[0], talk, None)
    model, backend = fake([])
    assert transcribe(model, talk, journal) == whole
    assert not backend.mels


def test_lines_behind_a_damaged_one_are_decoded_again(talk: Path, journal: Path) -> None:
    whole = transcribe(fake(TEXTS)[0], talk, journal)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], b"{}\n", *lines[3:]]))
    model, backend = fake(TEXTS[1:])
    assert transcribe(model, talk, journal) == whole
    assert len(backend.mels) == 3


@pytest.mark.parametrize("changed", ["options", "recording"])
def test_journal_of_other_options_or_a_recording_that_has_changed_is_begun_anew(
    talk: Path, journal: Path, changed: str
) -> None:
    transcribe(fake(TEXTS)[0], talk, journal)
    if changed == "recording":
        os.utime(talk, ns=(0, 0))
    model, backend = fake(TEXTS)
    transcribe(model, talk, journal, beam_size=1 + (changed == "options"))
    assert len(backend.mels) == len(WORDS)


def test_journal_in_use_by_another_transcription_is_refused(talk: Path, journal: Path) -> None:
    made = TranscribeOptions(language="en", vad=False)
    (first,) = fake(TEXTS)[0].transcribe_many([talk], made, journals={0: journal})
    next(iter(first))
    with pytest.raises(OutputError, match=rf"^{journal}: another process transcribes this recording$"):
        transcribe(fake(TEXTS)[0], talk, journal)
    assert first.result().text == "onetwothreefour"


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX does")
def test_journal_on_a_full_disk_ends_its_recording_only(talk: Path, journal: Path) -> None:
    import resource

    transcribe(fake(TEXTS)[0], talk, journal)
    size = journal.stat().st_size
    journal.unlink()
    made = TranscribeOptions(language="en", vad=False)
    failing, other = fake(TEXTS)[0].transcribe_many([talk, talk], made, journals={0: journal})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 100, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"talk\.resume\.jsonl: cannot be written"):
            failing.result()
        assert other.result().text
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert len(journal.read_bytes().splitlines()) == len(WORDS)  # its key, and all but the last window


def test_journal_keeps_what_was_decoded_before_the_recording_breaks_off(tmp_path: Path, journal: Path) -> None:
    path = AUDIO_FORMATS["flac"].write(tmp_path / "cut", WINDOW_S * 40)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    texts = [window_text(0, str(i), WINDOW_POSITIONS) for i in range(40)]
    with pytest.raises(AudioError):
        transcribe(fake(texts)[0], path, journal)
    decoded = len(journal.read_bytes().splitlines()) - 1
    model, backend = fake(texts[decoded:])
    with pytest.raises(AudioError):
        transcribe(model, path, journal)
    assert decoded > 10
    assert len(backend.mels) <= 1


def test_only_recordings_given_by_path_have_journals(journal: Path) -> None:
    with pytest.raises(OptionError, match="journals"):
        fake(TEXTS)[0].transcribe_many([np.zeros(16_000, np.float32)], journals={0: journal})
