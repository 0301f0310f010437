"""What the commands that measure are given by tests: two recordings of known texts, and engines that know them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audio_files import AUDIO_FORMATS
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, window_text
from fakes.live_sessions import ScriptedLiveSession, final_segment, interim_text, speech_ended, speech_started
from harken import Recognizer, TranscribeOptions
from harken.results import SpeakerTurn, Word
from harken.streaming import StreamOptions
from tiny_models import TOKENIZER

OPTIONS = ("--no-vad", "--temperatures", "0", "--suppress-tokens", "", "--hallucination-threshold", "none")
"""Options with which a model of known texts returns them for noise."""
TEXTS = ("One dog.", "A big house")
SCRIPT = (
    speech_started(0.0),
    interim_text(0.3, " One", " fog"),
    interim_text(0.5, " One dog."),
    final_segment(0.6, " One dog."),
    speech_ended(0.6),
    speech_started(0.7),
    interim_text(0.9, " A pig", " house"),
    final_segment(1.2, " A big house"),
    speech_ended(1.2),
)


def write_talks(folder: Path, texts: Sequence[str] = TEXTS, languages: Sequence[str] = ("en", "en")) -> Path:
    """Write recordings of one window by one speaker, a manifest of their texts, and their turns."""
    folder.mkdir()
    lines = []
    for number, (text, language) in enumerate(zip(texts, languages, strict=True)):
        AUDIO_FORMATS["wav s16"].write(folder / str(number), WINDOW_S)
        (folder / f"{number}.rttm").write_text(f"SPEAKER {number} 1 0.0 {WINDOW_S} <NA> <NA> anna <NA> <NA>\n")
        known = {"text": text, "language": language, "seconds": WINDOW_S, "speaker": "anna"}
        lines.append(f"{json.dumps({'audio': f'{number}.wav', **known})}\n")
    (folder / "manifest.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


class KnownTextRecognizer(Recognizer):
    """A recognizer of known texts, whose streams follow `SCRIPT`."""

    opened: list[tuple[TranscribeOptions, StreamOptions]]

    def align(self, audio: Any, text: str, *options: Any, **changes: Any) -> tuple[Word, ...]:
        return tuple(Word(start_s=0.0, end_s=0.1, text=word, probability=1.0) for word in text.split())

    def stream(self, options: Any = None, /, *, stream_options: Any = None, **changes: Any) -> Any:
        self.opened.append((options, stream_options))
        return ScriptedLiveSession(SCRIPT)


def known_text_recognizer(texts: Sequence[str] = TEXTS) -> KnownTextRecognizer:
    """Return a recognizer that returns the texts, one for each stream."""
    recognizer = KnownTextRecognizer(
        TranscriptBackend(*(window_text(0, text, WINDOW_POSITIONS) for text in texts)), TOKENIZER, "recital"
    )
    recognizer.opened = []
    return recognizer


@dataclass
class FixedDiarizer:
    """Finds the same turns in every recording, and counts them."""

    turns: tuple[SpeakerTurn, ...]
    calls: int = 0

    def diarize(self, audio: Any, /) -> FixedDiarizer:
        self.calls += 1
        return self


def table_rows(text: str) -> dict[str, list[str]]:
    """Return the rows of a printed table by their labels."""
    rows = (re.split(r"  +", line.strip()) for line in text.splitlines())
    return {label: cells for label, *cells in rows if cells}


def without_times(text: str) -> str:
    """Return the output of an evaluation without what the clock decides."""
    return re.sub(r"in [\d.]+ s, [\d.]+ times", "in 0.0 s, 0.0 times", text).strip("\n")


def read_report() -> dict[str, Any]:
    """Return the results that a command wrote to ``out.json``."""
    report: dict[str, Any] = json.loads(Path("out.json").read_text(encoding="utf-8"))
    return report
