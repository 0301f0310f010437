"""Conversations with known turns, made from recordings of single speakers.

    python benchmarks/conversations.py --to DEST
    python benchmarks/conversations.py --to DEST --kind clean-2 room-3 --count 2

writes DEST/{tune,report}/KIND/KIND-N.wav with .rttm (who speaks when), and a manifest.jsonl for `harken eval
--speakers`. The speakers of tune and report are different people. The
same seed gives the same files. `voices` finds the speech.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from program import Args, Parser, Row, add, main
from recordings import SAMPLE_RATE, write_wav
from voices import (
    HALVES,
    MIXED_LENGTHS,
    SHORT_LENGTHS,
    SHORTEST_SPEECH_S,
    Piece,
    Region,
    Voice,
    bridge,
    read_voices,
)

if TYPE_CHECKING:
    from harken.contract import Floats

PAUSE_S = 0.3
"""Shorter pauses of a speaker are part of the turn, as in NIST's rules for Rich Transcription."""
GAP_MEDIAN_S, GAP_SPREAD, LONGEST_GAP_S = 0.5, 0.8, 4.0
"""Silence between two turns: log-normal."""
BREATH_S = (0.1, 0.6)
"""Silence between two pieces of a turn."""
LONGEST_TURN_S = 15.0
OVERLAP_S = (0.3, 3.0)
"""How long two speak at once at a change of turns."""
SAME_AGAIN = 0.02
"""Weight of the last speaker against others with as much to say."""
ALONE_AFTER_S = 60.0
"""Once only one speaker has something left to say, a conversation that is longer than this ends."""
INTERJECTION_S = 1.2
"""A piece up to this long may be spoken in the middle of the turn of somebody else."""
LEVEL = 0.05
"""Level of a voice at 1 m, before the gain that differs between speakers."""
PEAK = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of conversation; ranges are drawn from evenly."""

    voices: tuple[str, ...]
    """Group of each speaker, a key of `GROUPS`."""
    lengths_s: tuple[Region, ...] = ()
    """Lengths of parts of recordings; none for whole ones, of which the words are known."""
    seconds: Region = (120.0, 240.0)
    """Length of a conversation; it is shorter where the recordings run out."""
    overlap: Region = (0.0, 0.0)
    """Share of speech in which two speak at once."""
    snr_db: Region = (20.0, 30.0)
    """Level of the mean voice above that of the noise."""
    level_db: float = 4.0
    """Levels of voices differ by up to this much from the mean, up and down."""
    room: bool = False
    """Speakers stand at 0.5 to 3 m from the microphone in a room; else at 1 m in one that swallows all sound."""


HALF_NAMES = ("tune", "report")

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


def options(parser: Parser) -> None:
    parser.add_argument("--to", type=Path, required=True, metavar="DEST", help="folder to write to")
    add(parser, "--kind", tuple(KINDS), "kinds", choices=KINDS)
    add(parser, "--count", 8, "conversations of a kind in each half")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="other conversations (0)")


def rows(args: Args) -> Iterator[Row]:
    """Write the conversations; yield a row for each."""
    voices = read_voices(args.audio)
    for half, half_name in enumerate(HALF_NAMES):
        own = [voice for voice in voices if voice.half == half]
        for name in args.kind:
            yield from write_kind(args.to / half_name / name, name, own, args.count, args.seed)


def write_kind(folder: Path, name: str, voices: Sequence[Voice], count: int, seed: int) -> Iterator[Row]:
    """Write some conversations of a kind between speakers of one half, and their manifest; yield what they are like."""
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
        yield {
            "half": folder.parent.name,
            "name": f"{name}-{number}",
            "seconds": round(len(conversation.samples) / SAMPLE_RATE),
            "speakers": len(chosen),
            "turns": len(conversation.turns),
            "overlap_percent": round(100 * conversation.overlap, 1),
            "snr_db": round(conversation.snr_db, 1),
        }
    manifest = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (folder / "manifest.jsonl").write_text(manifest, encoding="utf-8")


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


def write(folder: Path, name: str, conversation: Conversation, language: str | None) -> Row:
    """Write one conversation; return the fields of its line in the manifest."""
    write_wav(folder / f"{name}.wav", [conversation.samples], full_scale=32767)
    turns = [
        f"SPEAKER {name} 1 {start:.3f} {end - start:.3f} <NA> <NA> {speaker} <NA> <NA>\n"
        for start, end, speaker in conversation.turns
    ]
    (folder / f"{name}.rttm").write_text("".join(turns), encoding="utf-8")
    line: Row = {"audio": f"{name}.wav", "rttm": f"{name}.rttm", "language": language or "none"}
    line["seconds"] = round(len(conversation.samples) / SAMPLE_RATE, 3)
    if all(text is not None for _, text in conversation.said):
        line["said"] = [{"speaker": speaker, "text": text} for speaker, text in conversation.said]
    return line


@dataclass(frozen=True, slots=True)
class Placed:
    """A piece at its place."""

    speaker: int
    start_s: float
    piece: Piece

    @property
    def end_s(self) -> float:
        return self.start_s + duration([self.piece])


@dataclass(slots=True, kw_only=True)
class Conversation:
    """A conversation and what is known of it, in order of time."""

    samples: Floats
    turns: list[tuple[float, float, str]]
    """Start, end and speaker of each stretch of speech without a pause of `PAUSE_S`."""
    said: list[tuple[str, str | None]]
    """Speaker and words of each piece; None for the words of one that was cut."""
    overlap: float
    """Share of the speech in which two or more speak."""
    snr_db: float


def converse(kind: Kind, voices: Sequence[Voice], rng: np.random.Generator) -> Conversation:
    """Make a conversation between some voices."""
    share, snr_db = float(rng.uniform(*kind.overlap)), float(rng.uniform(*kind.snr_db))
    placed = place(
        [voice.pieces(kind.lengths_s) for voice in voices], float(rng.uniform(*kind.seconds)), share, rng
    )
    speech = [speech_of(placed, speaker) for speaker in range(len(voices))]
    samples = mix(kind, placed, len(voices), snr_db, rng)
    turns = [
        (start, end, voice.name)
        for voice, regions in zip(voices, speech, strict=True)
        for start, end in regions
    ]
    overlap_s, speech_s = overlapped(turns)
    return Conversation(
        samples=samples,
        turns=sorted(turns),
        said=[(voices[p.speaker].name, p.piece.text) for p in placed],
        overlap=overlap_s / speech_s,
        snr_db=snr_db,
    )


def place(
    pieces: Sequence[list[Piece]], seconds: float, overlap: float, rng: np.random.Generator
) -> list[Placed]:
    """Return pieces in the order and at the times at which they are spoken.

    Whose turn is next is chosen by how much each still has to say; seldom the same again. As long as less speech
    overlaps than wanted, a turn begins before the end of that before it, or is an interjection in the middle of it.
    """
    remaining = [[own[i] for i in rng.permutation(len(own))] for own in pieces]
    placed: list[Placed] = []
    ends = [0.0] * len(pieces)  # of each speaker's last piece
    now, last, overlapped_s, spoken_s = float(rng.uniform(0.3, 2.0)), -1, 0.0, 0.0
    while now < seconds:
        left = np.array([duration(own) * (SAME_AGAIN if i == last else 1) for i, own in enumerate(remaining)])
        if not left.any() or (np.count_nonzero(left) == 1 and now > ALONE_AFTER_S):
            break
        speaker = int(rng.choice(len(left), p=np.sqrt(left) / np.sqrt(left).sum()))
        turn = [remaining[speaker].pop()]
        length = duration(turn)
        wants_overlap = bool(placed) and overlapped_s < overlap * spoken_s
        if (
            wants_overlap
            and speaker != last
            and length <= INTERJECTION_S
            and now - placed[-1].start_s > length + 1.0
        ):
            start = max(float(rng.uniform(placed[-1].start_s + 0.5, now - length - 0.2)), ends[speaker] + 0.2)
            overlapped_s += min(length, max(0.0, now - start))
            placed.append(Placed(speaker, start, turn[0]))
            placed[-2:] = placed[:-3:-1]  # the turn goes on: what comes next follows it
            ends[speaker], spoken_s = placed[-2].end_s, spoken_s + length
            now = max(now, ends[speaker])
            continue
        while length < 4.0 and remaining[speaker] and rng.random() < 0.35:
            if length + duration(remaining[speaker][-1:]) > LONGEST_TURN_S:
                break
            turn.append(remaining[speaker].pop())
            length = duration(turn)
        if wants_overlap:
            both_s = min(float(rng.uniform(*OVERLAP_S)), 0.6 * duration([placed[-1].piece]), 0.6 * length)
            start = max(now - both_s, ends[speaker] + 0.2)
            overlapped_s += max(0.0, now - start)
        else:
            start = now + min(GAP_MEDIAN_S * float(np.exp(GAP_SPREAD * rng.standard_normal())), LONGEST_GAP_S)
        for piece in turn:
            placed.append(Placed(speaker, start, piece))
            spoken_s += duration([piece])
            ends[speaker] = placed[-1].end_s
            start = ends[speaker] + float(rng.uniform(*BREATH_S))
        now, last = max(now, ends[speaker]), speaker
    return sorted(placed, key=lambda p: p.start_s)


def duration(pieces: Sequence[Piece]) -> float:
    """Return the length of some pieces in seconds."""
    return sum(len(piece.samples) for piece in pieces) / SAMPLE_RATE


def speech_of(placed: Sequence[Placed], speaker: int) -> list[Region]:
    """Return where a speaker speaks, without what a cut left of a sound."""
    regions = bridge(
        [
            (round(p.start_s + start, 3), round(p.start_s + end, 3))
            for p in placed
            if p.speaker == speaker
            for start, end in p.piece.speech
        ],
        PAUSE_S,
    )
    return [(start, end) for start, end in regions if end - start >= SHORTEST_SPEECH_S]


def overlapped(turns: Sequence[tuple[float, float, str]]) -> Region:
    """Return the time in which two or more speak, and in which anybody does."""
    changes = sorted([(start, 1) for start, _, _ in turns] + [(end, -1) for _, end, _ in turns])
    several = anybody = 0.0
    active, before = 0, 0.0
    for time, change in changes:
        several += (time - before) * (active > 1)
        anybody += (time - before) * (active > 0)
        active, before = active + change, time
    return several, anybody


def mix(kind: Kind, placed: Sequence[Placed], speakers: int, snr_db: float, rng: np.random.Generator) -> Floats:
    """Return the sound of a conversation."""
    seconds = max(p.end_s for p in placed) + float(rng.uniform(0.5, 2.0))
    tracks = np.zeros((speakers, round(seconds * SAMPLE_RATE)), np.float32)
    for p in placed:
        at = round(p.start_s * SAMPLE_RATE)
        tracks[p.speaker, at : at + len(p.piece.samples)] += p.piece.samples
    gains_db = rng.uniform(-kind.level_db, kind.level_db, speakers)
    decay_s, volume_m3 = float(rng.uniform(0.2, 0.8)), float(rng.uniform(30, 200))
    distances_m = rng.uniform(0.5, 3.0, speakers)
    total, level = np.zeros(tracks.shape[1], np.float32), []
    for track, gain_db, distance_m in zip(tracks, gains_db, distances_m, strict=True):
        spoken = track[track != 0]
        track *= np.float32(LEVEL * 10 ** (gain_db / 20) / np.sqrt(np.mean(spoken.astype(np.float64) ** 2)))
        heard = reverberate(track, distance_m, decay_s, volume_m3, rng)[: len(total)] if kind.room else track
        level.append(np.mean(heard[track != 0].astype(np.float64) ** 2))
        total += heard
    noise = make_noise(len(total), float(rng.uniform(0.0, 2.0)), rng)
    total += noise * np.float32(np.sqrt(np.mean(level)) * 10 ** (-snr_db / 20))
    return total * np.float32(min(1.0, PEAK / np.abs(total).max()))


def reverberate(
    samples: Floats, distance_m: float, decay_s: float, volume_m3: float, rng: np.random.Generator
) -> Floats:
    """Return a voice as a microphone at a distance hears it; the direct sound keeps its time.

    The impulse response is the direct sound and behind it noise that decays by 60 dB in `decay_s`. Their energies are
    equal at the critical distance of the room, ``0.057 * sqrt(volume / decay)`` in metres; the direct sound has the
    level that it would have at 1 m from the microphone divided by the distance.
    """
    tail = rng.standard_normal(round(decay_s * SAMPLE_RATE))
    tail *= 10 ** (-3 * np.arange(len(tail)) / len(tail))
    tail[: round(0.0025 * SAMPLE_RATE)] = 0.0  # no wall is nearer than half a metre or so
    critical_m = 0.057 * np.sqrt(volume_m3 / decay_s)
    tail /= np.sqrt(np.sum(tail**2)) * critical_m
    tail[0] = 1 / distance_m
    size = len(samples) + len(tail) - 1
    length = 1 << (size - 1).bit_length()
    heard = np.fft.irfft(np.fft.rfft(samples, length) * np.fft.rfft(tail, length), length)[:size]
    return heard.astype(np.float32)


def make_noise(size: int, slope: float, rng: np.random.Generator) -> Floats:
    """Return noise of level 1 whose power falls with frequency to the power of `slope`: 0 is white, 2 is brown."""
    spectrum = np.fft.rfft(rng.standard_normal(size))
    frequencies = np.maximum(np.fft.rfftfreq(size, 1 / SAMPLE_RATE), 50.0)
    noise = np.fft.irfft(spectrum * frequencies ** (-slope / 2), size)
    return (noise / np.sqrt(np.mean(noise**2))).astype(np.float32)


if __name__ == "__main__":
    main(rows, options)
