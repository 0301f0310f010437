"""Time of each stage of a transcription, with a lower bound for this machine; or of a start of the program.

Every moment of a transcription belongs to one stage, so the stages add up to the whole. The lower bound of a stage is
the time that its operations take at the fastest multiplication of matrices measured here, or its bytes at the fastest
reading, whichever is longer. Only an idle machine shows its limits.

With ``--start-up`` the time from the start of ``harken transcribe`` to its first line is measured, with an empty cache
of graphs once and then with a full one, and the steps of a start, one after another in a process of their own. The
command lets some steps run at the same time.

    python benchmarks/breakdown.py --save breakdown
    python benchmarks/breakdown.py --start-up --repeats 9 --save start-up
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import results
from arguments import (
    COMMAND,
    DEFAULT_SET,
    EXAMPLE,
    importable,
    limit_threads,
    note,
    parser,
    positive,
    require,
    run,
    stop,
)
from recordings import read_set

if TYPE_CHECKING:
    from harken import Recognizer
    from harken.backends.native import NativeBackend
    from harken.backends.onnx import OnnxBackend
    from harken.contract import Features, Floats, Logits, Session
    from harken.manifests import Entry
    from roofline import Limits

AUDIO, MEL, ENCODER = "file to samples", "log-mel and voice activity", "encoder"
PROMPT, STEP = "decoder, prompts", "decoder, steps"
CHOICE, TEXT = "logit rules and choice", "segments and text"
STAGES = (AUDIO, MEL, ENCODER, PROMPT, STEP, CHOICE, TEXT)
TYPICAL_SLOTS = 64
"""Tokens before a step, for the bytes that a typical step reads."""
IMPORTS = "import numpy, onnxruntime, openvino"
STEPS = """
import json, sys
from time import perf_counter
times = [perf_counter()]
import harken
times.append(perf_counter())
recognizer = harken.load(sys.argv[1], precision=sys.argv[2], threads=int(sys.argv[3]))
times.append(perf_counter())
next(iter(recognizer.transcribe(sys.argv[4])))
times.append(perf_counter())
print(json.dumps([after - before for before, after in zip(times, times[1:])]))
"""


def main() -> None:
    args = arguments()
    require("harken")
    environment = limit_threads(args.threads)
    settings = {
        "model": args.model,
        "backend": args.backend,
        "precision": args.precision,
        "threads": args.threads,
    }
    if args.start_up:
        result = results.begin(args.save or "start-up", settings | {"starts": args.repeats})
        for step, seconds in starts(args, environment):
            milliseconds = {"median_ms": median(seconds), "least_ms": min(seconds), "most_ms": max(seconds)}
            result.add(step=step, **{key: round(1000 * value, 1) for key, value in milliseconds.items()})
    else:
        if not importable("openvino"):
            stop(
                "cannot import openvino, in which the limits of this machine are measured: pip install openvino"
            )
        result = results.begin(args.save or "breakdown", settings | {"set": args.set, "runs": args.repeats})
        for row in stages(args):
            result.add(**row)
    if args.save:
        print(results.write(result))


def arguments() -> argparse.Namespace:
    options = parser(__doc__, model="tiny.en", sets=(DEFAULT_SET,))
    options.add_argument(
        "--backend", default="auto", choices=("auto", "native", "onnx"), help="of the stages (auto)"
    )
    options.add_argument("--precision", default="int8", help="(int8)")
    options.add_argument("--repeats", type=positive, default=5, metavar="N", help="runs, or starts (5)")
    options.add_argument("--start-up", action="store_true", help="measure starts of the program")
    return options.parse_args()


def starts(args: argparse.Namespace, environment: Mapping[str, str]) -> Iterator[tuple[str, list[float]]]:
    """Yield the steps of a start, each with the seconds that it took every time."""
    options = ("--model", args.model, "--precision", args.precision, "--threads", str(args.threads))
    command = [*COMMAND, "transcribe", *options, str(EXAMPLE)]
    steps = [sys.executable, "-c", STEPS, args.model, args.precision, str(args.threads), str(EXAMPLE)]
    with tempfile.TemporaryDirectory() as cache:
        environment = {**environment, "HARKEN_CACHE": cache}
        yield "to the first line, nothing cached", [first_line_s(command, environment)]
        warm, python, imports, parts = [], [], [], []
        for number in range(args.repeats):
            warm.append(first_line_s(command, environment))
            python.append(process_s("pass", environment))
            imports.append(process_s(IMPORTS, environment))
            output = subprocess.run(steps, stdout=subprocess.PIPE, text=True, env=environment, check=True)
            parts.append(json.loads(output.stdout))
            note(f"{number + 1} of {args.repeats}: {warm[-1]:.2f} s")
    yield "to the first line", warm
    yield "a process that does nothing", python
    yield "a process that imports NumPy and both runtimes", imports
    for step, seconds in zip(
        ("import harken", "load the model", "first segment"), zip(*parts, strict=True), strict=True
    ):
        yield step, [*seconds]


def first_line_s(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Return the seconds from the start of a process to its first line."""
    started = perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
    ) as process:
        assert process.stdout
        line = process.stdout.readline()
        seconds = perf_counter() - started
        process.stdout.read()
    if process.returncode or not line:
        stop(f"harken transcribe gave no line, exit code {process.returncode}; the reason stands above")
    return seconds


def process_s(code: str, environment: Mapping[str, str]) -> float:
    """Return the seconds that a process takes for some code."""
    started = perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    return perf_counter() - started


def stages(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield a row for each stage, of the run with the median time, and one for all."""
    import harken
    from harken.backends.native import NativeBackend
    from harken.backends.onnx import OnnxBackend
    from roofline import FLOAT_BYTES, decoder_bytes, measure

    entries = [entry for name in args.set for entry in read_set(args.audio, name, args.limit, model=args.model)]
    recognizer = harken.load(args.model, backend=args.backend, precision=args.precision, threads=args.threads)
    backend, dims = recognizer.backend, recognizer.dims
    assert isinstance(backend, NativeBackend | OnnxBackend), "the CPU engines"
    note("measuring the limits of this machine")
    step_bytes = decoder_bytes(dims, backend.plan.decoder, 1, TYPICAL_SLOTS)
    limits = measure(step_bytes, dims.n_vocab * FLOAT_BYTES, args.threads)
    note(", ".join(f"{name} {rate / 1e9:.0f} G" for name, rate in asdict(limits).items()) + " a second")
    runs = []
    for repeat in range(args.repeats):
        runs.append(profile(recognizer, backend, entries, limits))
        note(f"{repeat + 1} of {args.repeats}: {runs[-1].total_s:.2f} s")
    middle = sorted(runs, key=lambda account: account.total_s)[len(runs) // 2]
    for stage in STAGES:
        yield row(stage, middle.seconds[stage], middle.calls[stage], middle.bounds.get(stage), middle.total_s)
    yield row("all", middle.total_s, None, sum(middle.bounds.values()), middle.total_s)


def row(stage: str, seconds: float, calls: int | None, bound_s: float | None, total_s: float) -> dict[str, Any]:
    """Return the row of one stage."""
    return {
        "stage": stage,
        "calls": calls,
        "call_ms": round(1000 * seconds / calls, 4) if calls else None,
        "seconds": round(seconds, 4),
        "share_percent": round(100 * seconds / total_s, 2),
        "bound_s": bound_s and round(bound_s, 4),
    }


class Account:
    """Seconds, calls and lower bounds of the stages: the time since the last call belongs to the stage named.

    Attributes
    ----------
    seconds, bounds : dict of str to float
    calls : dict of str to int
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.bounds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._last = perf_counter()

    def __call__(self, stage: str, bound_s: float = 0.0, calls: int = 1) -> None:
        """End a call of a stage; a part of a call counts as none."""
        now = perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self.calls[stage] = self.calls.get(stage, 0) + calls
        if bound_s:
            self.bounds[stage] = self.bounds.get(stage, 0.0) + bound_s
        self._last = perf_counter()

    @property
    def total_s(self) -> float:
        """Seconds of all stages."""
        return sum(self.seconds.values())


class TimedBackend:
    """A backend that books the time of its calls."""

    def __init__(self, backend: NativeBackend | OnnxBackend, account: Account, limits: Limits) -> None:
        self._backend, self._account, self._limits = backend, account, limits
        self._positions = backend.dims.n_audio_ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode(self, mel: Floats) -> Features:
        """Encode windows."""
        from roofline import encoder_operations

        self._account(MEL)
        features = self._backend.encode(mel)
        self._positions = mel.shape[-1] // 2
        limits, dims = self._limits, replace(self._backend.dims, n_audio_ctx=self._positions)
        # An instruction for 16-bit integers multiplies twice as many numbers as one for float32.
        rates = {"bf16": limits.bf16, "int16": 2 * limits.fp32}
        rate = rates.get(self._backend.plan.encoder[1], limits.fp32)
        self._account(ENCODER, len(mel) * encoder_operations(dims) / rate)
        return features

    def open_session(self, features: Features, row_windows: Sequence[int], *args: Any, **options: Any) -> Any:
        """Open a session that books the time of its calls."""
        session = self._backend.open_session(features, row_windows, *args, **options)
        return TimedSession(session, self._backend, self._account, self._limits, self._positions)


class TimedSession:
    """A session that books the time of its decoder passes."""

    def __init__(
        self,
        session: Session,
        backend: NativeBackend | OnnxBackend,
        account: Account,
        limits: Limits,
        positions: int,
    ) -> None:
        self._session, self._account, self._limits = session, account, limits
        self._dims = replace(backend.dims, n_audio_ctx=positions)
        self._decoder = backend.plan.decoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> Logits:
        """Append tokens."""
        from roofline import FLOAT_BYTES

        slots = max(self._session.lengths)
        self._account(CHOICE)
        logits = self._session.extend(tokens, last_n)
        stage = STEP if slots else PROMPT
        self._account(stage, self._bound_s(len(tokens), max(map(len, tokens)), slots, len(logits)))
        self._account(CHOICE, len(logits) * self._dims.n_vocab * FLOAT_BYTES / self._limits.logits, calls=0)
        return logits

    def _bound_s(self, rows: int, queries: int, slots: int, n_logits: int) -> float:
        """Return the lower bound of one forward pass of the decoder."""
        from roofline import attention_operations, decoder_bytes, linear_operations

        limits, dims = self._limits, self._dims
        linear = linear_operations(dims, rows * queries, n_logits)
        attention = rows * attention_operations(dims, queries, slots)
        rate = limits.int8 if self._decoder[1] == "int8" else limits.fp32
        read_s = decoder_bytes(dims, self._decoder, rows, slots) / limits.weights
        return max(linear / rate + attention / limits.fp32, read_s)


def profile(
    recognizer: Recognizer, backend: NativeBackend | OnnxBackend, entries: Sequence[Entry], limits: Limits
) -> Account:
    """Transcribe all recordings once."""
    import harken
    from harken.audio import load_audio
    from harken.types import HOP_SAMPLES
    from roofline import mel_operations

    account = Account()
    timed: Any = TimedBackend(backend, account, limits)
    timed_recognizer = harken.Recognizer(timed, recognizer.tokenizer, recognizer.model)
    for entry in entries:
        samples = load_audio(entry.path)
        account(AUDIO)
        account(MEL, mel_operations(len(samples) // HOP_SAMPLES, backend.dims.n_mels) / limits.fp32, calls=0)
        timed_recognizer.transcribe(
            samples,
            on_window_end=lambda start_s, decoded, attempts: account(CHOICE, calls=0),
            on_progress=lambda done_s, finished: account(TEXT, calls=int(not finished)),
        ).result()
        account(TEXT, calls=0)
    return account


if __name__ == "__main__":
    run(main)
