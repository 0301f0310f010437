"""Live sessions at their worst: speech that is cut off, never pauses, comes in bursts or with gaps, silence, music.

Each stream is transcribed by a session in simulated real time, and once offline, with which the words are compared.

    python benchmarks/streaming worst
    python benchmarks/streaming worst --case silence bursts --finals streamed
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
from arguments import DEFAULT_SET, limit_threads, note, parser, require
from process_memory import resident_mb
from recordings import NON_SPEECH, SAMPLE_RATE, join

if TYPE_CHECKING:
    from harken.contract import Floats
    from harken.streaming import Event

SPEECH, GERMAN = DEFAULT_SET, "german"
BLOCK_S = 0.02
BURST_S = 10.0
SILENCE_S = 600.0
NOISE = 1e-3
MAX_PIECES = 8
LOST_EVERY_S = 2.0
LOST_S = (0.05, 0.2)
MEMORY_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Streams of one kind.

    Parameters
    ----------
    make : callable
        Yields their samples, given the arguments of the program.
    block_s : float
        Audio fed at a time.
    multilingual : bool
        Whether they take a multilingual model, and a session that detects the language of every utterance.
    """

    make: Callable[[argparse.Namespace], Iterator[Floats]]
    block_s: float = BLOCK_S
    multilingual: bool = False


def main() -> None:
    args = arguments()
    require("harken", "jiwer", "whisper_normalizer")
    limit_threads(args.threads)
    settings = {"model": args.model, "multilingual model": args.multilingual, "threads": args.threads}
    result = results.begin(args.save or "live-worst", settings)
    for name, delay, finals in product(args.case, args.delay, args.finals):
        session = {"delay": delay, "finals": finals}
        result.add(case=name, **session, **measure(CASES[name], args, session))
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en")
    options.add_argument("--multilingual", default="tiny", metavar="M", help="for two languages (tiny)")
    options.add_argument("--minutes", type=float, default=4.0, metavar="M", help="of speech in a stream (4)")
    options.add_argument(
        "--case", nargs="+", default=[*CASES], choices=CASES, metavar="CASE", help=", ".join(CASES)
    )
    options.add_argument("--delay", nargs="+", default=["low"], metavar="D", help="names or milliseconds (low)")
    options.add_argument("--finals", nargs="+", default=["streamed"], metavar="F", help="(streamed)")
    options.add_argument("--one-core", action="store_true", help="count the CPU time of all cores as delay")
    return options.parse_args()


def measure(case: Case, args: argparse.Namespace, session_options: dict[str, Any]) -> dict[str, Any]:
    """Run a session over each stream of a case."""
    from harken.evaluation.latency import Latencies, Percentiles
    from harken.evaluation.live_runs import ComputeCost, run_live

    recognizer = loaded(args.multilingual if case.multilingual else args.model, args.threads)
    options: dict[str, Any] = {"language": None, "multilingual": True} if case.multilingual else {}
    clock = time.process_time if args.one_core else time.perf_counter
    runs, offline, memory = [], [], []
    for samples in case.make(args):
        transcript = recognizer.transcribe(samples, word_timestamps=True, **options).result()
        words = [word for segment in transcript.segments for word in segment.words]
        session = WatchedSession(recognizer.stream(**session_options, **options, clock=clock), memory)
        block_samples = round(case.block_s * SAMPLE_RATE)
        language = transcript.language
        runs.append(run_live(session, samples, block_samples, words, language=language, one_core=args.one_core))
        note(f"offline: {transcript.text}\nlive:    {runs[-1].final_text.strip()}")
        offline.append(transcript.text)
    live = [run.final_text for run in runs]
    cost = reduce(add, (run.cost for run in runs), ComputeCost())
    latencies = reduce(add, (run.latencies for run in runs), Latencies())
    committed = Percentiles.of(word.commit_latency.computation_aware_s for word in latencies.words)
    return {
        "minutes": round(cost.audio_s / 60, 2),
        **compare_words(offline, live),
        "repetitions_offline": repetitions(offline),
        "repetitions": repetitions(live),
        "committed_median_s": committed and round(committed.p50, 3),
        "committed_longest_s": committed and round(committed.max, 3),
        "real_time_factor": round(cost.real_time_factor, 4),
        "cpu_factor": round(cost.cpu_real_time_factor, 4),
        "lag_s": round(max(run.lag_s for run in runs), 3),
        "retractions": sum(run.retractions for run in runs),
        "load_changes": sum(run.load_changes for run in runs),
        "memory_quarter_mb": memory[len(memory) // 4] if memory else None,
        "memory_end_mb": memory[-1] if memory else None,
    }


@cache
def loaded(model: str, threads: int) -> Any:
    """Load a model once."""
    import harken

    return harken.load(model, threads=threads)


def compare_words(offline: Sequence[str], live: Sequence[str]) -> dict[str, int]:
    """Align the words of live texts with those of the offline passes, and count the differences."""
    from harken.evaluation.error_rate import align_words
    from harken.evaluation.latency import unit_splitter

    split_units = unit_splitter("en")
    chunks = [
        chunk
        for texts in zip(offline, live, strict=True)
        for chunk in align_words(*(" ".join(split_units(text)) for text in texts))
    ]
    deleted = [len(chunk.reference) for chunk in chunks if not chunk.hypothesis]
    return {
        "offline_words": sum(len(chunk.reference) for chunk in chunks),
        "deletions": sum(deleted),
        "deletions_in_a_row": max(deleted, default=0),
        "substitutions": sum(len(chunk.reference) for chunk in chunks if chunk.hypothesis and not chunk.equal),
        "insertions": sum(len(chunk.hypothesis) for chunk in chunks if not chunk.reference),
    }


def repetitions(texts: Iterable[str]) -> int:
    """Return the most consecutive occurrences of any words in a text."""
    from harken.transcribe.hallucination import count_repetitions

    return max(map(count_repetitions, texts), default=1)


class WatchedSession:
    """A session that notes the memory of this process every ten seconds of audio."""

    def __init__(self, session: Any, memory_mb: list[float]) -> None:
        self._session, self._memory_mb = session, memory_mb
        self._samples_left = 0

    def feed(self, samples: Floats) -> list[Event]:
        """Feed the session."""
        events: list[Event] = self._session.feed(samples)
        self._samples_left -= len(samples)
        if self._samples_left < 0 and (megabytes := resident_mb()):
            self._memory_mb.append(round(megabytes, 1))
            self._samples_left = round(MEMORY_EVERY_S * SAMPLE_RATE)
        return events

    def close(self) -> list[Event]:
        """Close the session."""
        events: list[Event] = self._session.close()
        return events


def load_set(audio: Path, name: str) -> Iterator[Floats]:
    """Yield the recordings of a set, in order."""
    from harken.audio import load_audio
    from harken.manifests import read_manifests

    for entry in read_manifests([audio / name], note=note):
        yield load_audio(entry.path)


def some_speech(args: argparse.Namespace) -> Floats:
    """Return some minutes of speech."""
    return join(load_set(args.audio, SPEECH))[: round(args.minutes * 60 * SAMPLE_RATE)]


def mid_word(args: argparse.Namespace) -> Iterator[Floats]:
    """Yield streams that end in the middle of a word, by turns with silence after it."""
    import numpy as np

    silence = np.zeros(round(3 * SAMPLE_RATE), np.float32)
    for number, clip in zip(range(MAX_PIECES), load_set(args.audio, SPEECH), strict=False):
        segments = loaded("tiny.en", 1).transcribe(clip, word_timestamps=True)
        longest = max(
            (word for segment in segments for word in segment.words), key=lambda word: word.end_s - word.start_s
        )
        cut = clip[: round((longest.start_s + longest.end_s) / 2 * SAMPLE_RATE)]
        yield cut if number % 2 else np.concatenate([cut, silence])


def without_pauses(args: argparse.Namespace) -> Iterator[Floats]:
    """Yield speech of several speakers without any pauses."""
    import numpy as np

    from harken.audio.vad import RegionTracker, SpeechDetector, VadOptions

    samples = some_speech(args)
    detector, regions = SpeechDetector(), RegionTracker(VadOptions(min_silence_s=0.05, speech_pad_s=0.0))
    probabilities = [*detector.feed(samples), *detector.flush()]
    spans = regions.feed(probabilities) + regions.flush(len(samples) // 160)
    yield np.concatenate([samples[160 * start : 160 * end] for start, end in spans])


def silence(args: argparse.Namespace) -> Iterator[Floats]:
    """Yield digital silence followed by very quiet noise."""
    import numpy as np

    half = round(SILENCE_S / 2 * SAMPLE_RATE)
    noise = NOISE * np.random.default_rng(0).standard_normal(half, np.float32)
    yield np.concatenate([np.zeros(half, np.float32), noise])


def two_languages(args: argparse.Namespace) -> Iterator[Floats]:
    """Yield one stream of German and English sentences in turns."""
    pairs = zip(load_set(args.audio, GERMAN), load_set(args.audio, SPEECH), range(MAX_PIECES), strict=False)
    yield join((clip for *pair, _ in pairs for clip in pair), gap_s=1.0)


def lost_samples(args: argparse.Namespace) -> Iterator[Floats]:
    """Yield speech that lacks a piece every two seconds or so."""
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
    "no speech": Case(make=lambda args: load_set(args.audio, NON_SPEECH)),
    "two languages": Case(make=two_languages, multilingual=True),
    "lost samples": Case(make=lost_samples),
}
