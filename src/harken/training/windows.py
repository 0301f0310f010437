"""Training windows: the speech in recordings, the held-out ones, and segments of it joined to the length of a window.

Segments are packed into windows as in a transcription, those of one recording in their order, then those of the next.
So the encoder's window is full, as it will be at inference. The recordings can be shuffled several times, each
time with another order and other playback speeds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

import numpy as np

from harken.audio import load_audio
from harken.audio.vad import VadOptions, detect_speech
from harken.contract import Floats
from harken.errors import AudioError
from harken.manifests import Entry
from harken.training.options import DataOptions
from harken.types import FRAMES_PER_SECOND, SAMPLE_RATE, WINDOW_S

MAX_SPEECH_S = WINDOW_S - 1.0
MAX_PAUSE_S = 0.5
"""Longest silence that is inserted between two recordings, in seconds."""
Progress = Callable[[int, int], None]
"""Called with the number of items done, and their total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechSpan:
    """A segment of speech in a recording, its reference text if known, and the silence inserted before it."""

    path: str
    start_s: float
    end_s: float
    pause_s: float = 0.0
    text: str | None = None

    @property
    def duration_s(self) -> float:
        """Length in seconds, with the silence before it."""
        return self.pause_s + self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecording:
    """A recording, and the speech in it in spans of at most `MAX_SPEECH_S`.

    One that is held out is only measured with.
    """

    entry: Entry
    held_out: bool
    spans: tuple[SpeechSpan, ...]
    duration_s: float


SpeechFinder = Callable[[Entry], tuple[tuple[SpeechSpan, ...], float]]
"""Returns the speech in a recording, in spans short enough for a window, and its length in seconds."""


def choose_held_out(entries: Sequence[Entry], fraction: float) -> list[Entry]:
    """Choose the recordings to hold out.

    A group with enough speakers holds out all recordings of some speakers, any other single recordings. The choice
    depends on the names alone, so that it stays the same when recordings are added.
    """
    chosen: list[Entry] = []
    for group in dict.fromkeys(entry.set for entry in entries):
        members = [entry for entry in entries if entry.set == group]
        by_speaker = fraction * len({entry.speaker for entry in members if entry.speaker}) >= 1
        units = [(by_speaker and entry.speaker) or entry.name for entry in members]
        ordered = sorted({*units}, key=lambda unit: hashlib.sha256(unit.encode()).digest())
        held_out = {*ordered[: round(fraction * len(ordered))]}
        chosen += [entry for entry, unit in zip(members, units, strict=True) if unit in held_out]
    return chosen


def scan_recordings(
    entries: Sequence[Entry],
    held_out: Sequence[Entry],
    speech_finder: SpeechFinder,
    note: Callable[[str], None],
    progress: Progress,
) -> Iterator[TrainingRecording]:
    """Find the speech in every recording; one that cannot be read is reported and left out.

    Those that are held out are known by their paths: recordings of two folders may have one name.
    """
    held_out_paths = {entry.path.resolve() for entry in held_out}
    for done, entry in enumerate(entries):
        progress(done, len(entries))
        try:
            spans, duration_s = speech_finder(entry)
        except AudioError as error:
            note(str(error))
            continue
        is_held_out = entry.path.resolve() in held_out_paths
        yield TrainingRecording(entry=entry, held_out=is_held_out, spans=spans, duration_s=duration_s)


def find_speech(
    entry: Entry, speech_pad_s: float = VadOptions().speech_pad_s
) -> tuple[tuple[SpeechSpan, ...], float]:
    """Find the speech in a recording (see `SpeechFinder`)."""
    samples = load_audio(entry.path)
    _, regions = detect_speech(samples, VadOptions(max_speech_s=MAX_SPEECH_S, speech_pad_s=speech_pad_s))
    spans = tuple(
        SpeechSpan(path=str(entry.path), start_s=start / FRAMES_PER_SECOND, end_s=end / FRAMES_PER_SECOND)
        for start, end in regions
    )
    return spans, len(samples) / SAMPLE_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWindow:
    """The audio and texts of one training window."""

    spans: tuple[SpeechSpan, ...]
    group: str
    language: str | None
    held_out: bool
    no_speech: bool = False  # true if it has no speech
    speed: float = 1.0  # playback speed; above 1 is faster, and higher in pitch
    # Whether it is also learnt without timestamps, and with the previous text in the prompt.
    without_timestamps: bool = False
    with_previous_text: bool = False

    @property
    def json_line(self) -> str:
        """The window as a line of JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, line: str) -> TrainingWindow:
        """Parse a line of JSON."""
        values = json.loads(line)
        return cls(**values | {"spans": tuple(SpeechSpan(**span) for span in values["spans"])})

    @property
    def key(self) -> str:
        """Unique name of the window: a digest of its content."""
        return hashlib.sha256(self.json_line.encode()).hexdigest()[:24]

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return sum(span.duration_s for span in self.spans) / self.speed

    def samples(self) -> Floats:
        """Load the samples of all spans, shape (samples,), float32, 16 kHz."""
        parts: list[Floats] = []
        for span in self.spans:
            start, end, pause = (
                round(seconds * SAMPLE_RATE) for seconds in (span.start_s, span.end_s, span.pause_s)
            )
            parts += np.zeros(pause, np.float32), _load_cached(span.path)[start:end]
        samples = np.concatenate(parts)
        if self.speed == 1.0:
            return samples
        sample_times = np.arange(0, len(samples) - 1, self.speed)
        resampled: Floats = np.interp(sample_times, np.arange(len(samples)), samples).astype(np.float32)
        return resampled

    def span_times_s(self) -> Iterator[tuple[float, float, str | None]]:
        """Yield start and end of each span in the window, in seconds, and its text."""
        end_s = 0.0
        for span in self.spans:
            start_s = end_s + span.pause_s / self.speed
            end_s += span.duration_s / self.speed
            yield start_s, end_s, span.text


def make_windows(recordings: Sequence[TrainingRecording], options: DataOptions) -> Iterator[TrainingWindow]:
    """Split and join recordings: held-out ones once and unchanged, the others as often as the options demand.

    Equal recordings and options give equal windows.
    """
    groups: dict[tuple[bool, str, str], list[TrainingRecording]] = {}
    for recording in recordings:
        key = not recording.held_out, recording.entry.set, recording.entry.language or ""
        groups.setdefault(key, []).append(recording)
    for shuffle in range(options.shuffles):
        for key, members in sorted(groups.items(), key=lambda item: item[0]):
            if shuffle == 0 or not members[0].held_out:
                # The seed is the bytes of the key, as the hash of a string differs between processes.
                rng = np.random.default_rng([options.seed, shuffle, *f"{key}".encode()])
                yield from _shuffle_and_pack(
                    members, options, rng, speed_perturbation=options.speed_perturbation if shuffle else 0.0
                )


def _shuffle_and_pack(
    recordings: Sequence[TrainingRecording],
    options: DataOptions,
    rng: np.random.Generator,
    *,
    speed_perturbation: float,
) -> Iterator[TrainingWindow]:
    order = [recordings[i] for i in rng.permutation(len(recordings))]
    spans = [span for recording in order for span in recording.spans]
    entry, held_out = order[0].entry, order[0].held_out
    template = TrainingWindow(spans=(), group=entry.set, language=entry.language, held_out=held_out)
    for window_spans in _pack_spans(spans, options.unpacked_fraction, rng):
        # The slowest speed must still fit into the window.
        length_s = sum(span.duration_s for span in window_spans)
        slowest = max(1.0 - speed_perturbation, min(1.0, length_s / MAX_SPEECH_S))
        yield replace(
            template,
            spans=window_spans,
            speed=round(float(rng.uniform(slowest, 1.0 + speed_perturbation)), 3)
            if speed_perturbation
            else 1.0,
            without_timestamps=bool(rng.random() < options.without_timestamps_fraction),
            with_previous_text=bool(rng.random() < options.with_previous_text_fraction),
        )
    for recording in order:
        if not recording.spans and rng.random() < options.no_speech_fraction:
            end_s = min(recording.duration_s, MAX_SPEECH_S)
            span = SpeechSpan(path=str(recording.entry.path), start_s=0.0, end_s=end_s)
            yield replace(template, spans=(span,), no_speech=True)


def _pack_spans(
    spans: Iterable[SpeechSpan], unpacked_fraction: float, rng: np.random.Generator
) -> Iterator[tuple[SpeechSpan, ...]]:
    """Pack spans in order, as many as fit into a window; a random share of the windows gets one span only."""
    packed: list[SpeechSpan] = []
    room_s = 0.0
    for span in spans:
        if packed and packed[-1].path != span.path:
            span = replace(span, pause_s=round(float(rng.uniform(0, MAX_PAUSE_S)), 2))
        if packed and span.duration_s > room_s:
            yield tuple(packed)
            packed, span = [], replace(span, pause_s=0.0)
        if not packed:
            room_s = 0.0 if rng.random() < unpacked_fraction else MAX_SPEECH_S
        packed.append(span)
        room_s -= span.duration_s
    if packed:
        yield tuple(packed)


_load_cached = lru_cache(maxsize=2)(load_audio)
