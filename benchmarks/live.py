"""Live sessions: latency, errors and cost beside the offline pass; hard cases; many streams; many hours.

python benchmarks/live.py sets --delay minimal low medium high --save live
python benchmarks/live.py sets --baseline --limit 8 --one-core --save live-baseline
python benchmarks/live.py worst --save live-worst
python benchmarks/live.py many --count 1 2 4 8 --save live-many
python benchmarks/live.py hours --hours 10 --save live-hours
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from itertools import cycle, product
from operator import add as plus
from typing import TYPE_CHECKING, Any

from program import DEFAULT_SET, Args, Program, Row, add, hours, main, note, percent, percentiles, resident_mb
from recordings import GAP_S, NON_SPEECH, SAMPLE_RATE, SPEECH, cut_streams, join, read_samples, read_set

if TYPE_CHECKING:
    from harken import Recognizer, TranscribeOptions
    from harken.contract import Floats

BASELINES = {
    "everything again every second": {"fidelity": "fast"},
    "the same in windows of 30 s": {"fidelity": "exact"},
}
"""Baselines: with short windows, as in harken's offline pass, and with whole ones, as in other engines."""
GERMAN = "german"
SILENCE_S, BURST_S = 600.0, 10.0
MAX_PIECES = 8
LOST_EVERY_S, LOST_S = 2.0, (0.05, 0.2)
MEMORY_EVERY_S = 10.0


def session_options(parser: argparse.ArgumentParser) -> None:
    add(parser, "--delay", ("low",), "names or milliseconds")
    add(parser, "--finals", ("streamed",), "exact, streamed or both", choices=("exact", "streamed"))
    parser.add_argument("--one-core", action="store_true", help="count the CPU time of all cores as delay")


def clock(args: Args) -> Callable[[], float]:
    """Return the clock of a session."""
    return time.process_time if args.one_core else time.perf_counter


# Sets: each stream is transcribed by a session of each delay and kind of finals, in turns.


def sets_options(parser: argparse.ArgumentParser) -> None:
    session_options(parser)
    add(parser, "--repeats", 1, "turns of each session, of which that of median time counts")
    parser.add_argument(
        "--baseline", action="store_true",
        help="also whisper_streaming's method, which encodes everything up to 30 s again every second",
    )  # fmt: skip


def sets(args: Args) -> Iterator[Row]:
    """Yield a row for each set and session."""
    import harken
    from harken.evaluation.live_runs import LiveRound, run_live_rounds, summarise_live

    recognizer = harken.load(args.model, threads=args.threads)
    options = harken.TranscribeOptions()
    sessions: dict[str, Any] = {
        f"{delay}, {finals}": partial(live, recognizer, delay, finals, clock(args))
        for delay, finals in product(args.delay, args.finals)
    }
    if args.baseline:
        sessions |= {name: partial(baseline, recognizer, changes) for name, changes in BASELINES.items()}
    for name in args.set:
        rounds = []
        for outcome in run_live_rounds(
            recognizer, sessions, read_streams(args, name), options, block_samples=SAMPLE_RATE // 50,
            repeats=args.repeats, one_core=args.one_core,
        ):  # fmt: skip
            if isinstance(outcome, LiveRound):
                rounds.append(outcome)
                note(f"{name}: {outcome.stream.entry.name}, {outcome.offline_cost.audio_s:.0f} s")
            else:
                note(outcome.reason)
        for session, open_session in sessions.items():
            plan = getattr(open_session(options), "plan", None)
            yield {"set": name, "session": session} | summary(summarise_live(rounds, session, options), plan)


def read_streams(args: Args, name: str) -> list[Any]:
    """Return the streams of a set: one a speaker where recordings are short, else one a recording."""
    from harken.evaluation.scoring import EvalRecording
    from harken.evaluation.simulation import JoinedStream, join_by_speaker
    from harken.manifests import read_manifests

    entries = read_manifests([args.audio / name], args.limit, note)
    recordings = [EvalRecording(entry=entry, has_reference=True) for entry in entries]
    if name in (DEFAULT_SET, NON_SPEECH):
        return [*join_by_speaker(recordings, GAP_S)]
    return [JoinedStream(recordings=(recording,)) for recording in recordings]


def live(
    recognizer: Recognizer, delay: str, finals: str, clock: Callable[[], float], options: TranscribeOptions
) -> Any:
    """Open a session."""
    return recognizer.stream(options, delay=delay, finals=finals, clock=clock)


def baseline(recognizer: Recognizer, changes: Mapping[str, Any], options: TranscribeOptions) -> Any:
    """Open a session of the baseline."""
    from local_agreement import LocalAgreement

    return LocalAgreement(recognizer, replace(options, **changes))


def summary(found: Any, plan: Any) -> Row:
    """Return the figures of one session; the planned waits are those of its latency plan."""
    interim, commit = found.interim_latency_aware, found.commit_latency_aware
    return {
        "streams": len(found.runs),
        "minutes": round(found.cost.audio_s / 60, 2),
        "wait_shown_s": plan and round(plan.bound.interim_s, 3),
        "shown_median_s": interim and round(interim.p50, 3),
        "shown_95_s": interim and round(interim.p95, 3),
        "wait_committed_s": plan and round(plan.bound.total_s, 3),
        "committed_median_s": commit and round(commit.p50, 3),
        "committed_95_s": commit and round(commit.p95, 3),
        "error_percent": percent(found.final_wer and found.final_wer.rate),
        "offline_error_percent": percent(found.offline_wer and found.offline_wer.rate),
        "words": len(" ".join(run.final_text for run in found.runs).split()),
        "cpu_factor": round(found.cost.cpu_real_time_factor, 4),
        "lag_s": round(max(run.lag_s for run in found.runs), 3),
        "retractions": found.counts.retractions,
        "flicker": None if found.flicker is None else round(found.flicker, 4),
    }


# Hard cases: speech that is cut off, never pauses, comes in bursts or with gaps, silence, music.


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
        True has a multilingual model detect the language of every utterance.
    """

    make: Callable[[Args], Iterable[Floats]]
    block_s: float = 0.02
    multilingual: bool = False


def worst_options(parser: argparse.ArgumentParser) -> None:
    session_options(parser)
    add(parser, "--multilingual", "tiny", "model for two languages")
    add(parser, "--minutes", 4.0, "of speech in a stream")
    add(parser, "--case", tuple(CASES), "cases", choices=CASES)


def worst(args: Args) -> Iterator[Row]:
    """Yield a row for each case, delay and kind of finals."""
    for name, delay, finals in product(args.case, args.delay, args.finals):
        session = {"delay": delay, "finals": finals}
        yield {"case": name} | session | measure_case(CASES[name], args, session)


def measure_case(case: Case, args: Args, session_options: dict[str, Any]) -> Row:
    """Run a session over each stream of a case, and compare its words with those of the offline pass."""
    from harken.evaluation.latency import Latencies, Percentiles
    from harken.evaluation.live_runs import ComputeCost, run_live

    recognizer = loaded(args.multilingual if case.multilingual else args.model, args.threads)
    options: dict[str, Any] = {"language": None, "multilingual": True} if case.multilingual else {}
    runs, offline, memory = [], [], []
    for samples in case.make(args):
        transcript = recognizer.transcribe(samples, word_timestamps=True, **options).result()
        words = [word for segment in transcript.segments for word in segment.words]
        session = WatchedSession(recognizer.stream(**session_options, **options, clock=clock(args)), memory)
        block_samples = round(case.block_s * SAMPLE_RATE)
        runs.append(
            run_live(
                session, samples, block_samples, words, language=transcript.language, one_core=args.one_core
            )
        )
        note(f"offline: {transcript.text}\nlive:    {runs[-1].final_text.strip()}")
        offline.append(transcript.text)
    cost = reduce(plus, (run.cost for run in runs), ComputeCost())
    latencies = reduce(plus, (run.latencies for run in runs), Latencies())
    committed = Percentiles.of(word.commit_latency.computation_aware_s for word in latencies.words)
    return {
        "minutes": round(cost.audio_s / 60, 2),
        **compare_words(offline, [run.final_text for run in runs]),
        "committed_median_s": committed and round(committed.p50, 3),
        "committed_longest_s": committed and round(committed.max, 3),
        "cpu_factor": round(cost.cpu_real_time_factor, 4),
        "lag_s": round(max(run.lag_s for run in runs), 3),
        "retractions": sum(run.counts.retractions for run in runs),
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
    return {
        "offline_words": sum(len(chunk.reference) for chunk in chunks),
        "deletions": sum(len(chunk.reference) for chunk in chunks if not chunk.hypothesis),
        "substitutions": sum(len(chunk.reference) for chunk in chunks if chunk.hypothesis and not chunk.equal),
        "insertions": sum(len(chunk.hypothesis) for chunk in chunks if not chunk.reference),
    }


class WatchedSession:
    """A session that notes the memory of this process every ten seconds of audio."""

    def __init__(self, session: Any, memory_mb: list[float]) -> None:
        self._session, self._memory_mb = session, memory_mb
        self._samples_left = 0
        self.close = session.close

    def feed(self, samples: Floats) -> list[Any]:
        """Feed the session."""
        events: list[Any] = self._session.feed(samples)
        self._samples_left -= len(samples)
        if self._samples_left < 0 and (megabytes := resident_mb()):
            self._memory_mb.append(megabytes)
            self._samples_left = round(MEMORY_EVERY_S * SAMPLE_RATE)
        return events


def some_speech(args: Args) -> Floats:
    """Return some minutes of speech."""
    return join(read_samples(args.audio, DEFAULT_SET))[: round(args.minutes * 60 * SAMPLE_RATE)]


def mid_word(args: Args) -> Iterator[Floats]:
    """Yield streams that end in the middle of a word, by turns with silence after it."""
    import numpy as np

    silence = np.zeros(3 * SAMPLE_RATE, np.float32)
    for number, clip in zip(range(MAX_PIECES), read_samples(args.audio, DEFAULT_SET), strict=False):
        segments = loaded(args.model, args.threads).transcribe(clip, word_timestamps=True)
        longest = max(
            (word for segment in segments for word in segment.words), key=lambda word: word.end_s - word.start_s
        )
        cut = clip[: round((longest.start_s + longest.end_s) / 2 * SAMPLE_RATE)]
        yield cut if number % 2 else np.concatenate([cut, silence])


def without_pauses(args: Args) -> Iterator[Floats]:
    """Yield speech of several speakers without any pauses."""
    import numpy as np

    from harken.audio.vad import RegionTracker, SpeechDetector, VadOptions

    samples = some_speech(args)
    detector, regions = SpeechDetector(), RegionTracker(VadOptions(min_silence_s=0.05, speech_pad_s=0.0))
    probabilities = [*detector.feed(samples), *detector.flush()]
    spans = regions.feed(probabilities) + regions.flush(len(samples) // 160)
    yield np.concatenate([samples[160 * start : 160 * end] for start, end in spans])


def silence(args: Args) -> Iterator[Floats]:
    """Yield digital silence followed by very quiet noise."""
    import numpy as np

    half = round(SILENCE_S / 2 * SAMPLE_RATE)
    noise = 1e-3 * np.random.default_rng(0).standard_normal(half, np.float32)
    yield np.concatenate([np.zeros(half, np.float32), noise])


def two_languages(args: Args) -> Iterator[Floats]:
    """Yield one stream of German and English sentences in turns."""
    german, english = (read_samples(args.audio, name) for name in (GERMAN, DEFAULT_SET))
    pairs = zip(german, english, range(MAX_PIECES), strict=False)
    yield join((clip for *pair, _ in pairs for clip in pair), gap_s=1.0)


def lost_samples(args: Args) -> Iterator[Floats]:
    """Yield speech that lacks a piece every two seconds or so."""
    import numpy as np

    rng, samples = np.random.default_rng(0), some_speech(args)
    kept, start = [], 0
    while start < len(samples):
        end = start + round(rng.uniform(0.5, 1.5) * LOST_EVERY_S * SAMPLE_RATE)
        kept.append(samples[start:end])
        start = end + round(rng.uniform(*LOST_S) * SAMPLE_RATE)
    yield np.concatenate(kept)


CASES = {
    "as it is": Case(make=lambda args: [some_speech(args)]),
    "stops mid-word": Case(make=mid_word),
    "never pauses": Case(make=without_pauses),
    "bursts": Case(make=lambda args: [some_speech(args)], block_s=BURST_S),
    "silence": Case(make=silence),
    "no speech": Case(make=lambda args: read_samples(args.audio, NON_SPEECH)),
    "two languages": Case(make=two_languages, multilingual=True),
    "lost samples": Case(make=lost_samples),
}


# Many streams: fed in blocks at the same time, in shared passes of the model and each by itself.


def many_options(parser: argparse.ArgumentParser) -> None:
    session_options(parser)
    add(parser, "--count", (1, 2, 4, 8), "numbers of streams")
    add(parser, "--seconds", 40, "length of each stream")
    add(parser, "--block-ms", 100, "audio fed at a time")


def many(args: Args) -> Iterator[Row]:
    """Yield a row for each number of streams and way to decode them.

    Work on a block begins when its samples are there and the work before is done; the lag of a block is the time until
    its work is done.
    """
    import harken

    recognizer = harken.load(args.model, threads=args.threads)
    streams = cut_streams(args.audio, args.seconds, max(args.count))
    block = args.block_ms * SAMPLE_RATE // 1000
    options = {"delay": args.delay[0], "finals": args.finals[0], "clock": None}
    for count in args.count:
        together = recognizer.stream_many(count, **options)
        for name in range(count):
            together.open(name)
        alone = [recognizer.stream(**options) for _ in range(count)]
        ways: dict[str, Callable[[dict[int, Floats]], object]] = {
            "together": together.feed,
            "each by itself": lambda blocks, own=alone: [own[i].feed(block) for i, block in blocks.items()],
        }
        for passes, feed in ways.items():
            done_s = busy_s = 0.0
            lags_s = []
            for start in range(0, len(streams[0]), block):
                arrival_s = (start + block) / SAMPLE_RATE
                began = time.perf_counter()
                feed({i: samples[start : start + block] for i, samples in enumerate(streams[:count])})
                seconds = time.perf_counter() - began
                done_s = max(arrival_s, done_s) + seconds
                busy_s += seconds
                lags_s.append(done_s - arrival_s)
            factor = round(busy_s * SAMPLE_RATE / len(streams[0]), 4)
            lags = percentiles("lag", lags_s, (50, 95, 100))
            yield {"streams": count, "passes": passes, "real_time_factor": factor} | lags


# Hours: the recordings of a set, one after the other, again and again, as fast as they are transcribed.


def hours_options(parser: argparse.ArgumentParser) -> None:
    session_options(parser)
    add(parser, "--hours", 10, "length of the stream")


def many_hours(args: Args) -> Iterator[Row]:
    """Yield a row for each hour of a session; what grew with the stream would show in the last."""
    import numpy as np

    import harken
    from harken.audio import load_audio
    from harken.streaming import FinalSegment

    session = harken.load(args.model, threads=args.threads).stream(
        delay=args.delay[0], finals=args.finals[0], clock=None
    )
    silence = np.zeros(round(GAP_S * SAMPLE_RATE), np.float32)
    words: list[str] = []

    def feed(samples: Floats) -> None:
        for event in session.feed(samples):
            words.extend(event.segment.text.split() if isinstance(event, FinalSegment) else ())

    def blocks() -> Iterator[tuple[float, Callable[[], None]]]:
        for entry in cycle(read_set(args.audio, SPEECH, args.limit, model=args.model)):
            samples = np.concatenate([load_audio(entry.path), silence])
            yield len(samples) / SAMPLE_RATE, partial(feed, samples)

    for row in hours(blocks(), args.hours, lambda: {"words": len(words)}):
        words.clear()
        yield row


if __name__ == "__main__":
    common: dict[str, Any] = {"doc": __doc__, "model": "tiny.en"}
    needs = ("harken", "jiwer", "whisper_normalizer")
    settings = ("delay", "finals")
    main(
        Program(
            name="live-sets", rows=sets, options=sets_options, sets=(DEFAULT_SET,), needs=needs,
            settings=("one_core",), **common,
        ),
        Program(
            name="live-worst", rows=worst, options=worst_options, needs=needs, settings=("multilingual",), **common
        ),
        Program(name="live-many", rows=many, options=many_options, settings=(*settings, "seconds"), **common),
        Program(name="live-hours", rows=many_hours, options=hours_options, settings=settings, sets=(SPEECH,), **common),
    )  # fmt: skip
