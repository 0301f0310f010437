"""Live sessions at their worst: what is cut off, never pauses, comes in bursts, is silent, is music, or has gaps.

Each stream is heard by a session in simulated real time, and once offline. Printed are what computing took, how late
words came, how much of what the offline pass found was committed, how often words were said again and again,
and whether memory grew.

    python benchmarks/worst_cases.py
    python benchmarks/worst_cases.py --case silence bursts --finals streamed
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import (
    DEFAULT_SET,
    GAP_S,
    SAMPLE_RATE,
    limit_threads,
    machine,
    note,
    parser,
    require,
    run,
    stop,
    table,
)

if TYPE_CHECKING:
    import numpy as np

    from harken.streaming import Event

SPEECH, GERMAN, SILENT = DEFAULT_SET, "german", "non-speech"
BLOCK_S = 0.02
BURST_S = 10.0
SILENCE_S = 600.0
NOISE = 1e-3
MOST_PIECES = 8
LOST_EVERY_S = 2.0
LOST_S = (0.05, 0.2)
MEMORY_EVERY_S = 10.0
COLUMNS = (
    "case", "session", "minutes", "computing, s a second", "processors", "behind, s", "committed, s: median",
    "longest", "without computing: longest", "words offline", "lost", "most in a row", "heard otherwise", "in addition",
    "said again offline", "live", "taken back", "changes of load", "MB at a quarter", "at the end",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Streams of one kind.

    Parameters
    ----------
    make : callable
        Gives their samples, by the arguments of the script.
    block_s : float
        How much is fed at a time.
    multilingual : bool
        Whether it takes a model of several languages, and a session that looks for them again and again.
    """

    make: Callable[[argparse.Namespace], Iterator[np.ndarray]]
    block_s: float = BLOCK_S
    multilingual: bool = False


def main() -> None:
    args = arguments()
    require("harken", "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    print(machine())
    if unknown := [name for name in args.case if name not in CASES]:
        stop(f"--case {unknown[0]}: allowed are {', '.join(CASES)}")
    print(f"\n{table(COLUMNS, [])}", flush=True)
    for name, delay, finals in product(args.case, args.delay, args.finals):
        cells = measure(CASES[name], args, {"delay": delay, "finals": finals})
        print(table([name, f"{delay}, {finals}", *cells], []).splitlines()[0], flush=True)


def arguments() -> argparse.Namespace:
    its = parser(__doc__)
    its.add_argument("--model", default="tiny.en", metavar="M", help="name or path (tiny.en)")
    its.add_argument("--multilingual", default="tiny", metavar="M", help="for two languages (tiny)")
    its.add_argument("--minutes", type=float, default=4.0, metavar="M", help="of speech in a stream (4)")
    its.add_argument("--case", nargs="+", default=[*CASES], metavar="CASE", help=", ".join(CASES))
    its.add_argument("--delay", nargs="+", default=["low"], metavar="D", help="names or milliseconds (low)")
    its.add_argument("--finals", nargs="+", default=["exact", "streamed"], metavar="F", help="(exact streamed)")
    its.add_argument(
        "--one-core",
        action="store_true",
        help="let the time of all processors together pass, not that on the wall",
    )
    return its.parse_args()


def measure(case: Case, args: argparse.Namespace, live: dict[str, Any]) -> list[str]:
    """Cells of one line: all streams of a case, each heard by a session of its own."""
    from functools import reduce
    from operator import add

    from harken.evaluation.latency import Latencies, Percentiles
    from harken.evaluation.live_runs import ComputeCost, run_live

    recognizer = loaded(args.multilingual if case.multilingual else args.model, args.threads)
    options = {"language": None, "multilingual": True} if case.multilingual else {}
    clock = time.process_time if args.one_core else time.perf_counter
    takes, offline, memory = [], [], Memory()
    for samples in case.make(args):
        done = recognizer.transcribe(samples, word_timestamps=True, **options).result()
        words = [word for segment in done.segments for word in segment.words]
        session = Watched(recognizer.stream(**live, **options, clock=clock), memory)
        block_samples = round(case.block_s * SAMPLE_RATE)
        take = run_live(session, samples, block_samples, words, language=done.language, one_core=args.one_core)
        note(f"offline: {done.text}\nlive:    {take.final_text.strip()}")
        takes.append(take)
        offline.append(done.text)
    cost = reduce(add, (its.cost for its in takes), ComputeCost())
    found = reduce(add, (its.latencies for its in takes), Latencies())
    aware = Percentiles.of(word.commit_latency.computation_aware_s for word in found.words)
    unaware = Percentiles.of(word.commit_latency.computation_unaware_s for word in found.words)
    return [
        f"{cost.audio_s / 60:.1f}",
        f"{cost.real_time_factor:.3f}",
        f"{cost.cpu_real_time_factor:.3f}",
        f"{max(its.lag_s for its in takes):.2f}",
        f"{aware.p50:.2f}" if aware else "-",
        f"{aware.max:.2f}" if aware else "-",
        f"{unaware.max:.2f}" if unaware else "-",
        *missing(offline, [its.final for its in takes]),
        str(said_again(offline)),
        str(said_again(its.final for its in takes)),
        str(sum(its.retractions for its in takes)),
        str(sum(its.loads for its in takes)),
        *memory.cells(),
    ]


@cache
def loaded(model: str, threads: int) -> Any:
    import harken

    return harken.load(model, threads=threads)


def missing(offline: list[str], live: list[str]) -> list[str]:
    """Words of the offline passes; those with nothing in their place live, and most of them in a row; others."""
    from harken.evaluation import align_words
    from harken.evaluation.latency import unit_splitter

    units = unit_splitter("en")
    pieces = [
        piece
        for texts in zip(offline, live, strict=True)
        for piece in align_words(*(" ".join(units(text)) for text in texts))
    ]
    lost = [len(piece.reference) for piece in pieces if not piece.hypothesis]
    replaced = sum(len(piece.reference) for piece in pieces if piece.hypothesis and not piece.equal)
    added = sum(len(piece.hypothesis) for piece in pieces if not piece.reference)
    words = sum(len(piece.reference) for piece in pieces)
    return [*map(str, (words, sum(lost), max(lost, default=0), replaced, added))]


def said_again(texts) -> int:
    """How often some words stand one right after another, at most."""
    from harken.transcribe.hallucination import count_repetitions

    return max(map(count_repetitions, texts), default=1)


class Memory:
    """Resident memory of this process while streams go on."""

    def __init__(self) -> None:
        self._mb: list[float] = []

    def note(self) -> None:
        """Look once more."""
        self._mb.append(resident_mb())

    def cells(self) -> list[str]:
        """What it was after a quarter of the time, and at the end."""
        if not self._mb:
            return ["-", "-"]
        return [f"{mb:.0f}" for mb in (self._mb[len(self._mb) // 4], self._mb[-1])]


class Watched:
    """A session whose memory is looked at every ten seconds of sound."""

    def __init__(self, session: Any, memory: Memory) -> None:
        self._session, self._memory = session, memory
        self._left = 0

    def feed(self, samples: np.ndarray) -> list[Event]:
        """Feed the session."""
        events = self._session.feed(samples)
        self._left -= len(samples)
        if self._left < 0:
            self._memory.note()
            self._left = round(MEMORY_EVERY_S * SAMPLE_RATE)
        return events

    def close(self) -> list[Event]:
        """Close the session."""
        return self._session.close()


def resident_mb() -> float:
    """Memory of this process that is resident, in MB; nan where the platform does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return math.nan
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def clips(audio: Path, name: str) -> Iterator[np.ndarray]:
    """Recordings of a set, in order."""
    from harken.audio import load_audio
    from harken.evaluation import read_manifests

    for entry in read_manifests([audio / name], note=note):
        yield load_audio(entry.path)


def joined(pieces, gap_s: float = GAP_S) -> np.ndarray:
    """Pieces with silence between them."""
    import numpy as np

    silence = np.zeros(round(gap_s * SAMPLE_RATE), np.float32)
    together = np.concatenate([part for piece in pieces for part in (piece, silence)])
    return together


def some_speech(args: argparse.Namespace) -> np.ndarray:
    """Some minutes of speech."""
    return joined(clips(args.audio, SPEECH))[: round(args.minutes * 60 * SAMPLE_RATE)]


def mid_word(args: argparse.Namespace) -> Iterator[np.ndarray]:
    """Streams that end in the middle of a word, at once and with silence behind it."""
    import numpy as np

    silence = np.zeros(round(3 * SAMPLE_RATE), np.float32)
    for number, clip in zip(range(MOST_PIECES), clips(args.audio, SPEECH), strict=False):
        segments = loaded("tiny.en", 1).transcribe(clip, word_timestamps=True)
        longest = max(
            (word for segment in segments for word in segment.words), key=lambda word: word.end_s - word.start_s
        )
        cut = clip[: round((longest.start_s + longest.end_s) / 2 * SAMPLE_RATE)]
        yield cut if number % 2 else np.concatenate([cut, silence])


def without_pauses(args: argparse.Namespace) -> Iterator[np.ndarray]:
    """Speech of several speakers out of which all that is not speech was cut."""
    import numpy as np

    from harken.audio.vad import RegionTracker, SpeechDetector, VadOptions

    samples = some_speech(args)
    detector, regions = SpeechDetector(), RegionTracker(VadOptions(min_silence_s=0.05, speech_pad_s=0.0))
    probabilities = [*detector.feed(samples), *detector.flush()]
    spans = regions.feed(probabilities) + regions.flush(len(samples) // 160)
    yield np.concatenate([samples[160 * start : 160 * end] for start, end in spans])


def silence(args: argparse.Namespace) -> Iterator[np.ndarray]:
    """Digital silence, and then noise that is hardly heard."""
    import numpy as np

    half = round(SILENCE_S / 2 * SAMPLE_RATE)
    noise = NOISE * np.random.default_rng(0).standard_normal(half, np.float32)
    yield np.concatenate([np.zeros(half, np.float32), noise])


def two_languages(args: argparse.Namespace) -> Iterator[np.ndarray]:
    """German and English sentences in turns, one stream."""
    pairs = zip(clips(args.audio, GERMAN), clips(args.audio, SPEECH), range(MOST_PIECES), strict=False)
    yield joined((clip for *pair, _ in pairs for clip in pair), gap_s=1.0)


def lost_samples(args: argparse.Namespace) -> Iterator[np.ndarray]:
    """Speech that lacks a piece every other second."""
    import numpy as np

    rng = np.random.default_rng(0)
    samples = some_speech(args)
    kept, start = [], 0
    while start < len(samples):
        end = start + round(rng.uniform(0.5, 1.5) * LOST_EVERY_S * SAMPLE_RATE)
        kept.append(samples[start:end])
        start = end + round(rng.uniform(*LOST_S) * SAMPLE_RATE)
    yield np.concatenate(kept)


CASES = {
    "as it is": Case(make=lambda args: iter([some_speech(args)])),
    "stops mid-word": Case(make=mid_word),
    "never pauses": Case(make=without_pauses),
    "bursts": Case(make=lambda args: iter([some_speech(args)]), block_s=BURST_S),
    "silence": Case(make=silence),
    "no speech": Case(make=lambda args: clips(args.audio, SILENT)),
    "two languages": Case(make=two_languages, multilingual=True),
    "lost samples": Case(make=lost_samples),
}


if __name__ == "__main__":
    run(main)
