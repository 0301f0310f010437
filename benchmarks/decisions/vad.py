"""Voice activity detection: speech found in every set at several thresholds; or the cost.

    python benchmarks/decisions vad
    python benchmarks/decisions vad --cost --graph DIRECTORY/silero_vad/data/silero_vad_16k_sequence.onnx

With a graph of the package silero-vad, the same is computed in ONNX Runtime, in turns with harken.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import results
from arguments import EXAMPLE, limit_threads, parser, require
from recordings import SAMPLE_RATE, read_set

if TYPE_CHECKING:
    from harken.contract import Floats

ROUNDS = 20
SECONDS = 30


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--limit", type=int, metavar="N", help="only N recordings of a set, spread evenly")
    options.add_argument("--cost", action="store_true", help="measure the time of 30 s of speech")
    options.add_argument("--graph", type=Path, metavar="FILE", help="published graph, for --cost")
    options.add_argument(
        "--threshold", type=float, nargs="*", default=[0.3, 0.4, 0.5, 0.6], metavar="P", help="(0.3 to 0.6)"
    )
    args = options.parse_args()
    limit_threads(args.threads)
    require("harken", *(["onnxruntime"] if args.graph else []))
    result = results.begin(args.save or "vad", {"rounds": ROUNDS} if args.cost else {})
    for row in costs(args.graph) if args.cost else found(args):
        result.add(**row)
    if args.save:
        print(results.write(result))


def costs(graph: Path | None) -> Iterator[dict[str, Any]]:
    """Yield the time that each engine takes for 30 s of speech."""
    import numpy as np

    from harken.audio import load_audio
    from harken.audio.vad import SpeechDetector

    speech = np.resize(load_audio(EXAMPLE), SECONDS * SAMPLE_RATE)
    engines: dict[str, Callable[[], object]] = {"harken, NumPy": lambda: SpeechDetector().feed(speech)}
    if graph:
        engines["published graph, ONNX Runtime, 1 thread"] = published(graph, speech)
    wall: dict[str, list[float]] = {name: [] for name in engines}
    cpu: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            began, began_cpu = perf_counter(), process_time()
            engine()
            wall[name].append(1000 * (perf_counter() - began))
            cpu[name].append(1000 * (process_time() - began_cpu))
    for name in engines:
        times = {"least_ms": min(wall[name]), "median_ms": median(wall[name]), "least_cpu_ms": min(cpu[name])}
        yield {"engine": name, **{key: round(value, 2) for key, value in times.items()}}


def published(graph: Path, speech: Floats) -> Callable[[], object]:
    """Return a call that computes the probabilities of `speech` in ONNX Runtime."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    padded = np.pad(speech, (64, -len(speech) % 512))
    chunks = np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(padded, 576)[::512])
    state = np.zeros((1, 1, 128), np.float32)
    return lambda: session.run(None, {"input": chunks, "h": state, "c": state})


def found(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the speech found in every set at every threshold."""
    for folder in sorted(path.parent for path in args.audio.glob("*/manifest.jsonl")):
        entries = read_set(args.audio, folder.name, args.limit, speech=False)
        detected = [detect(entry.path) for entry in entries]
        frames = sum(length for length, _ in detected)
        for threshold in args.threshold:
            speech = [regions(length, probabilities, threshold) for length, probabilities in detected]
            speech_frames = sum(end - start for spans in speech for start, end in spans)
            yield {
                "set": folder.name,
                "recordings": len(entries),
                "minutes": round(frames / 6000, 2),
                "threshold": threshold,
                "with_speech": sum(map(bool, speech)),
                "speech_percent": round(100 * speech_frames / frames, 2),
            }


def detect(path: Path) -> tuple[int, list[float]]:
    """Return the frames of a recording, and the probabilities of speech."""
    from harken.audio import load_audio
    from harken.audio.vad import SpeechDetector

    samples, detector = load_audio(path), SpeechDetector()
    return len(samples) // 160, [*detector.feed(samples), *detector.flush()]


def regions(frames: int, probabilities: list[float], threshold: float) -> list[tuple[int, int]]:
    """Return the regions of speech in frames."""
    from harken.audio.vad import RegionTracker, VadOptions

    tracker = RegionTracker(VadOptions(threshold=threshold))
    return tracker.feed(probabilities) + tracker.flush(frames)
