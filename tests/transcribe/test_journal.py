"""Journals: a transcription that was cut short anywhere goes on, and its transcript is that of one run."""

import os
import sys

import numpy as np
import pytest

from audio_files import AUDIO_FORMATS
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, window_text
from harken import Recognizer
from harken.errors import AudioError, OptionError, OutputError
from harken.transcribe import TranscribeOptions
from processes import no_file_above
from tiny_models import TOKENIZER

WORDS = ("one", "two", "three", "four")
TEXTS = [window_text(0, word, WINDOW_POSITIONS) for word in WORDS]


def start(texts, *audios, journal, **options):
    """Start transcriptions, the first of them with a journal."""
    made = TranscribeOptions(**{"language": "en", "vad": False, **options})
    model = Recognizer(TranscriptBackend(*texts), TOKENIZER, "fake")
    return model.transcribe_many(audios, made, journals={0: journal} if journal else {})


def transcribe(texts, audio, journal, **options):
    """Return a transcript, and the number of windows that were decoded for it."""
    (work,) = start(texts, audio, journal=journal, **options)
    return work.result(), work.stats.windows


@pytest.fixture
def talk(tmp_path):
    """A recording of four windows."""
    return AUDIO_FORMATS["wav s16"].write(tmp_path / "talk", WINDOW_S * len(WORDS))


@pytest.fixture
def journal(tmp_path):
    return tmp_path / "talk.resume.jsonl"


@pytest.mark.parametrize("damage", [b"", b"\n", b"garbage\n", b"[]\n", b"[" * 100_000 + b"\n", b"\xff\n"])
def test_damaged_journal_is_begun_anew(talk, journal, damage):
    """And the windows behind a damaged line are decoded again."""
    journal.write_bytes(b'{"harken": ' + damage if damage else b"")
    whole, _ = transcribe(TEXTS, talk, journal)
    assert transcribe(TEXTS, talk, None) == (whole, len(WORDS))
    assert transcribe([], talk, journal) == (whole, 0)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], damage or b"{}\n", *lines[3:]]))
    assert transcribe(TEXTS[1:], talk, journal) == (whole, 3)


@pytest.mark.parametrize("content", [b"\n", b"RIFF", b'{"text": "notes"}\n'])
def test_a_file_that_is_no_journal_is_left_alone(talk, journal, content):
    journal.write_bytes(content)
    with pytest.raises(OutputError, match=rf"^{journal}: is no journal; allowed are .+"):
        transcribe(TEXTS, talk, journal)
    assert journal.read_bytes() == content


@pytest.mark.parametrize("changed", ["options", "recording"])
def test_journal_of_other_options_or_a_recording_that_has_changed_is_begun_anew(talk, journal, changed):
    transcribe(TEXTS, talk, journal)
    if changed == "recording":
        os.utime(talk, ns=(0, 0))
    assert transcribe(TEXTS, talk, journal, beam_size=1 + (changed == "options"))[1] == len(WORDS)


def test_journal_in_use_by_another_transcription_is_refused(talk, journal):
    (first,) = start(TEXTS, talk, journal=journal)
    next(iter(first))
    with pytest.raises(OutputError, match=rf"^{journal}: another process transcribes this recording$"):
        transcribe(TEXTS, talk, journal)
    assert first.result().text == "onetwothreefour"


@pytest.mark.parametrize("stepwise", [False, True])
def test_journal_goes_on_in_the_program_in_which_it_was_broken_off(talk, journal, stepwise):
    def interrupt(start_s, *_):
        if start_s:
            raise KeyboardInterrupt

    whole, _ = transcribe(TEXTS, talk, None)
    model = Recognizer(TranscriptBackend(*TEXTS), TOKENIZER, "fake")
    (broken_off,) = model.transcribe_many(
        [talk], journals={0: journal}, language="en", vad=False, on_window_end=interrupt
    )
    with pytest.raises(KeyboardInterrupt):
        list(iter(broken_off.step, None)) if stepwise else broken_off.result()
    assert broken_off.so_far().text == "one"
    assert transcribe(TEXTS[1:], talk, journal) == (whole, 3)
    with pytest.raises(KeyboardInterrupt):
        broken_off.result()


@pytest.mark.skipif(sys.platform == "win32", reason="limits the size of files as POSIX does")
def test_journal_on_a_full_disk_ends_its_recording_only(talk, journal):
    transcribe(TEXTS, talk, journal)
    size = journal.stat().st_size
    journal.unlink()
    failing, other = start(TEXTS, talk, talk, journal=journal)
    with no_file_above(size - 100):
        with pytest.raises(OutputError, match=r"talk\.resume\.jsonl: cannot be written"):
            failing.result()
        assert other.result().text
    assert len(journal.read_bytes().splitlines()) == len(WORDS)  # its key, and all but the last window


def test_journal_keeps_what_was_decoded_before_the_recording_breaks_off(tmp_path, journal):
    path = AUDIO_FORMATS["flac"].write(tmp_path / "cut", WINDOW_S * 40)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    texts = [window_text(0, str(i), WINDOW_POSITIONS) for i in range(40)]
    with pytest.raises(AudioError):
        transcribe(texts, path, journal)
    decoded = len(journal.read_bytes().splitlines()) - 1
    assert decoded > 10
    (again,) = start(texts[decoded:], path, journal=journal)
    with pytest.raises(AudioError):
        again.result()
    assert again.stats.windows <= 1


def test_only_recordings_given_by_path_have_journals(journal):
    with pytest.raises(OptionError, match="journals"):
        start(TEXTS, np.zeros(16_000, np.float32), journal=journal)
