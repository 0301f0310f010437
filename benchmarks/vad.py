"""Voice activity: what it costs, and what it takes for speech at several thresholds.

    python benchmarks/vad.py --graph DIRECTORY/silero_vad/data/silero_vad_16k_sequence.onnx

With a graph of the package silero-vad, the same is computed in ONNX Runtime in turns with harken.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

from common import EXAMPLE, SAMPLE_RATE, limit_threads, machine, parser, require, run, table

ROUNDS = 20
SECONDS = 30


def main() -> None:
    its = parser(__doc__)
    its.add_argument("--graph", type=Path, metavar="FILE", help="the published graph, to compare with")
    its.add_argument(
        "--onset", type=float, nargs="*", default=[0.3, 0.4, 0.5, 0.6], metavar="P", help="thresholds"
    )
    args = its.parse_args()
    limit_threads(args.threads)
    require("harken", *(["onnxruntime"] if args.graph else []))
    print(machine())
    print(f"\n{cost(args.graph)}")
    print(f"\n{found(args.audio, args.onset)}")


def cost(graph: Path | None) -> str:
    """Milliseconds for 30 s of speech."""
    import numpy as np

    from harken.audio import load_audio
    from harken.audio.vad import SpeechDetector

    speech = np.resize(load_audio(EXAMPLE), SECONDS * SAMPLE_RATE)
    engines: dict[str, Callable[[], object]] = {"harken, numpy": lambda: SpeechDetector().feed(speech)}
    if graph:
        engines["the graph in ONNX Runtime, 1 thread"] = published(graph, speech)
    wall: dict[str, list[float]] = {name: [] for name in engines}
    cpu: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(ROUNDS):
        for name, engine in engines.items():
            began, began_cpu = perf_counter(), process_time()
            engine()
            wall[name].append(1000 * (perf_counter() - began))
            cpu[name].append(1000 * (process_time() - began_cpu))
    rows = [
        (name, *(f"{value:.1f}" for value in (min(wall[name]), statistics.median(wall[name]), min(cpu[name]))))
        for name in engines
    ]
    return table((f"{SECONDS} s of speech", "best, ms", "median, ms", "least processor time, ms"), rows)


def published(graph: Path, speech) -> Callable[[], object]:
    """A call that computes the probabilities of `speech` in ONNX Runtime."""
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    padded = np.pad(speech, (64, -len(speech) % 512))
    heard = np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(padded, 576)[::512])
    rest = np.zeros((1, 1, 128), np.float32)
    return lambda: session.run(None, {"input": heard, "h": rest, "c": rest})


def found(audio: Path, onsets: list[float]) -> str:
    """What is taken for speech in every set."""
    rows = []
    for folder in sorted(path.parent for path in audio.glob("*/manifest.jsonl")):
        entries = (folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
        heard = [listen(folder / json.loads(entry)["audio"]) for entry in entries]
        seconds = sum(frames for frames, _ in heard) / 100
        cells = []
        for onset in onsets:
            speech = [regions(frames, probabilities, onset) for frames, probabilities in heard]
            share = sum(end - start for found in speech for start, end in found) / seconds
            cells.append(f"{sum(map(bool, speech))}, {share:.1f} %")
        rows.append((folder.name, str(len(heard)), f"{seconds / 60:.1f}", *cells))
    return table(("files with speech, and its share", "files", "minutes", *map(str, onsets)), rows)


def listen(path: Path):
    """Frames of a recording, and how probable speech is."""
    from harken.audio import load_audio
    from harken.audio.vad import SpeechDetector

    samples, detector = load_audio(path), SpeechDetector()
    return len(samples) // 160, [*detector.feed(samples), *detector.flush()]


def regions(frames: int, probabilities: list[float], onset: float) -> list[tuple[int, int]]:
    from harken.audio.vad import RegionTracker, VadOptions

    its = RegionTracker(VadOptions(threshold=onset))
    return its.feed(probabilities) + its.flush(frames)


if __name__ == "__main__":
    run(main)
