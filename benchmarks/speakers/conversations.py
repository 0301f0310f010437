"""Conversations with known turns, made from recordings of single speakers.

    python benchmarks/speakers conversations DEST
    python benchmarks/speakers conversations DEST --kind clean-2 room-3 --count 2

writes DEST/{tune,report}/KIND/KIND-N.wav with .rttm (who speaks when) and .json (texts by speaker, and how it was
made), and a manifest.jsonl for `harken eval --speakers`. The speakers of tune and report are different people. The
same seed gives the same files. `_voices` finds the speech, `_recipe` places and mixes it.
"""

from __future__ import annotations

import json
import wave
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arguments import limit_threads, note, parser, positive, require
from speakers._recipe import Conversation, Kind, converse
from speakers._voices import HALVES, MIXED_LENGTHS, SAMPLE_RATE, SHORT_LENGTHS, Voice, read_voices

if TYPE_CHECKING:
    import numpy as np

HALF_NAMES = ("tune", "report")
COUNT = 8
"""Conversations of a kind in each half."""

GROUPS: Mapping[str, Callable[[Voice], bool]] = {
    "long": lambda voice: voice.language == "en" and voice.seconds >= 25,
    "worded": lambda voice: voice.language == "en" and voice.seconds >= 25 and voice.name not in CUT_ONLY,
    "short": lambda voice: voice.language == "en" and 12 <= voice.seconds < 25,
    "other": lambda voice: voice.language != "en",
    "other-long": lambda voice: voice.language != "en" and voice.seconds >= 20,
}
CUT_ONLY = ("bush", "wills", "two-cities")
"""Voices of one long recording each, whose words cannot be placed."""

KINDS = {
    "clean-2": Kind(voices=("worded", "worded")),
    "clean-4": Kind(voices=("worded", "worded", "short", "short")),
    "overlap-2": Kind(voices=("worded", "worded"), overlap=(0.06, 0.17)),
    "overlap-4": Kind(voices=("long", "long", "short", "short"), lengths_s=MIXED_LENGTHS, overlap=(0.06, 0.17)),
    "room-3": Kind(
        voices=("worded", "worded", "short"), overlap=(0.0, 0.08), snr_db=(10.0, 25.0), level_db=3.0, room=True
    ),
    "six": Kind(
        voices=("long", "long", "long", "short", "short", "short"), lengths_s=MIXED_LENGTHS, seconds=(150.0, 300.0),
        overlap=(0.0, 0.1), snr_db=(15.0, 30.0),
    ),
    "short-answers": Kind(
        voices=("long", "long", "short"), lengths_s=SHORT_LENGTHS,
        overlap=(0.0, 0.08), snr_db=(15.0, 30.0), level_db=6.0,
    ),
    "languages": Kind(
        voices=("other-long", "other", "other"), lengths_s=MIXED_LENGTHS, overlap=(0.0, 0.1), snr_db=(15.0, 30.0)
    ),
    "mixed": Kind(voices=("other-long", "other-long", "worded"), overlap=(0.0, 0.1), snr_db=(15.0, 30.0)),
}  # fmt: skip


def main() -> None:
    options = parser(__doc__)
    options.add_argument("dest", type=Path, metavar="DEST", help="folder to write to")
    options.add_argument("--kind", nargs="+", choices=KINDS, default=[*KINDS], help="kinds (all)")
    options.add_argument("--count", type=positive, default=COUNT, metavar="N", help=f"of each kind ({COUNT})")
    options.add_argument("--seed", type=int, default=0, metavar="N", help="other conversations (0)")
    args = options.parse_args()
    limit_threads(args.threads)
    require("harken", "numpy")
    voices = read_voices(args.audio)
    for half, half_name in enumerate(HALF_NAMES):
        own = [voice for voice in voices if voice.half == half]
        for name in args.kind:
            write_kind(args.dest / half_name / name, name, own, args.count, args.seed)


def write_kind(folder: Path, name: str, voices: Sequence[Voice], count: int, seed: int) -> None:
    """Write some conversations of a kind between speakers of one half, and their manifest."""
    import numpy as np

    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(count):
        # Not from the kinds made before, so that one kind alone gives the same files.
        rng = np.random.default_rng([seed, number, voices[0].half, zlib.crc32(name.encode())])
        chosen = choose(KINDS[name], voices, number, rng)
        conversation = converse(KINDS[name], chosen, rng)
        languages = {voice.language for voice in chosen}
        language = languages.pop() if len(languages) == 1 else None
        lines.append(write(folder, f"{name}-{number}", conversation, language))
        facts = conversation.facts
        note(
            f"{folder.parent.name} {name}-{number}: {len(conversation.samples) / SAMPLE_RATE:.0f} s, {len(chosen)} "
            f"speakers, {len(conversation.turns)} turns, overlap {facts['overlap']:.1%}, SNR {facts['snr_db']} dB"
        )
    (folder / "manifest.jsonl").write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def choose(kind: Kind, voices: Sequence[Voice], number: int, rng: np.random.Generator) -> list[Voice]:
    """Return one voice of each group of a kind, all of different people and of fitting languages.

    Groups of which nobody is left are skipped: some languages have two voices only.
    """
    codes = [code for code in HALVES if HALVES[code] == voices[0].half]
    single = "other" in kind.voices
    chosen: list[Voice] = []
    for group in kind.voices:
        allowed = [
            voice
            for voice in voices
            if GROUPS[group](voice)
            and voice.name not in {other.name for other in chosen}
            and not (single and voice.language != codes[number % len(codes)])
            and not (not single and voice.language != "en" and voice.language in {o.language for o in chosen})
        ]
        if allowed:
            chosen.append(allowed[int(rng.integers(len(allowed)))])
    return [chosen[i] for i in rng.permutation(len(chosen))]


def write(folder: Path, name: str, conversation: Conversation, language: str | None) -> str:
    """Write one conversation; return its line of the manifest."""
    import numpy as np

    with wave.open(str(folder / f"{name}.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(np.rint(conversation.samples * 32767).astype("<i2").tobytes())
    turns = [
        f"SPEAKER {name} 1 {start:.3f} {end - start:.3f} <NA> <NA> {speaker} <NA> <NA>\n"
        for start, end, speaker in conversation.turns
    ]
    (folder / f"{name}.rttm").write_text("".join(turns), encoding="utf-8")
    described = {"language": language, "texts": texts(conversation), **conversation.facts}
    (folder / f"{name}.json").write_text(
        json.dumps(described, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
    line: dict[str, Any] = {"audio": f"{name}.wav", "rttm": f"{name}.rttm", "language": language or "none"}
    line["seconds"] = round(len(conversation.samples) / SAMPLE_RATE, 3)
    if None not in texts(conversation).values():
        line["said"] = [{"speaker": speaker, "text": text} for speaker, text in conversation.said]
    return json.dumps(line, ensure_ascii=False)


def texts(conversation: Conversation) -> dict[str, str | None]:
    """Return all words of each speaker, in order; None where some of them were cut."""
    pieces: dict[str, list[str | None]] = {}
    for speaker, text in conversation.said:
        pieces.setdefault(speaker, []).append(text)
    return {
        speaker: None if None in parts else " ".join(filter(None, parts)) for speaker, parts in pieces.items()
    }
