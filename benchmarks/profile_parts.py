"""Where the time of a transcription goes, and how far each part is from the limit of this machine.

Every moment of a run belongs to one part, so the parts add up to the whole. The floor of a part is the time
that its operations take at the fastest multiplication of matrices measured here, or its bytes at the fastest
reading, whichever is longer. What has no floor should take no time at all. Only a quiet machine shows its
limits.

    python benchmarks/profile_parts.py
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from common import (
    DEFAULT_SET,
    Laps,
    Recording,
    importable,
    limit_threads,
    machine,
    note,
    parser,
    positive,
    read_set,
    require,
    run,
    stop,
    table,
)

if TYPE_CHECKING:
    import harken
    from harken.backends.onnx import OnnxBackend
    from harken.contract import Features, Floats, Logits, Session
    from limits import Limits

FILE, MEL, ENCODER = "file to samples", "log-mel", "encoder"
PROMPT, STEP = "decoder, prompts", "decoder, steps"
SESSION, CHOICE, TEXT = "masks and cache, Python", "rules and choice, Python", "segments and text, Python"
PARTS = (FILE, MEL, ENCODER, PROMPT, STEP, SESSION, CHOICE, TEXT)
COLUMNS = ("part", "calls", "ms a call", "seconds", "share %", "floor, s", "over its floor")
TYPICAL_SLOTS = 64


def main() -> None:
    args = arguments()
    require("harken")
    if not importable("openvino"):
        stop("cannot import openvino, in which the limit of this machine is measured: pip install openvino")
    recordings = read_set(args.audio, args.set, args.limit)
    limit_threads(args.threads)
    print(machine())
    import harken
    from harken.backends.onnx import OnnxBackend
    from limits import FLOAT_BYTES, decoder_bytes, measure

    recognizer = harken.load(args.model, precision=args.precision, threads=args.threads)
    backend, dims = recognizer.backend, recognizer.dims
    assert isinstance(backend, OnnxBackend), "the default backend"
    note("measuring the limits of this machine")
    step_bytes = decoder_bytes(dims, backend.plan.decoder[1], 1, TYPICAL_SLOTS)
    limits = measure(step_bytes, dims.n_vocab * FLOAT_BYTES, args.threads)
    print(f"\n### Limits\n\n{limits_table(limits, step_bytes)}")
    runs = []
    for repeat in range(args.repeats):
        runs.append(profile(recognizer, backend, recordings, limits))
        note(f"{repeat + 1} of {args.repeats}: {runs[-1].total_s:.2f} s")
    middle = sorted(runs, key=lambda its: its.total_s)[len(runs) // 2]
    audio_s = sum(recording.seconds for recording in recordings)
    title = f"{args.set}, {len(recordings)} files, {audio_s:.0f} s: {backend.capabilities.detail}"
    print(f"\n### {title}; middle run of {args.repeats}\n\n{parts_table(middle)}")
    print(f"\n### Start-up\n\n{start_table(args)}")


def arguments() -> argparse.Namespace:
    its = parser(__doc__)
    its.add_argument("--model", default="tiny.en", help="name or path of harken's model (tiny.en)")
    its.add_argument("--precision", default="int8", help="of harken (int8)")
    its.add_argument("--set", default=DEFAULT_SET, metavar="NAME", help=f"set to run ({DEFAULT_SET})")
    its.add_argument("--limit", type=positive, metavar="N", help="only the first N recordings")
    its.add_argument("--repeats", type=positive, default=5, metavar="N", help="runs, and starts (5)")
    return its.parse_args()


class Account(Laps):
    """Seconds and calls of each part, and the floor of its seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.floor: dict[str, float] = {}

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    def needs(self, part: str, seconds: float) -> None:
        """Add to the floor of a part."""
        self.floor[part] = self.floor.get(part, 0.0) + seconds


class TimedBackend:
    """A backend that attributes its time to the parts of an account."""

    def __init__(self, backend: OnnxBackend, account: Account, limits: Limits) -> None:
        self._backend, self._account, self._limits = backend, account, limits
        self.dims, self.capabilities = backend.dims, backend.capabilities

    def encode(self, mel: Floats) -> Features:
        from limits import encoder_operations

        self._account(MEL)
        features = self._backend.encode(mel)
        self._account(ENCODER)
        heard = replace(self.dims, n_audio_ctx=mel.shape[-1] // 2)
        peak = self._limits.bf16 if self._backend.plan.encoder[1] == "bf16" else self._limits.fp32
        self._account.needs(ENCODER, len(mel) * encoder_operations(heard) / peak)
        return features

    def open_session(
        self, features: Features, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> Session:
        session = self._backend.open_session(features, row_windows, capacity, attention=attention)
        bind, extend, positions = session._bind, session.extend, session._features.positions

        def timed_bind() -> Any:
            run = bind()

            def timed_run(inputs: Any, into: Any) -> None:
                self._account(SESSION, calls=0)
                run(inputs, into)
                part = STEP if inputs["positions"].min() else PROMPT
                self._account(part)
                self._account.needs(part, self._pass_s(inputs, positions))

            return timed_run

        def timed_extend(tokens: Sequence[Sequence[int]], tail: int = 1) -> Logits:
            self._account(CHOICE)
            logits = extend(tokens, tail)
            self._account(SESSION)
            self._account.needs(CHOICE, logits.values.nbytes / self._limits.logits)
            return logits

        session._bind, session.extend = timed_bind, timed_extend  # type: ignore[method-assign, assignment]
        return session

    def _pass_s(self, inputs: Any, positions: int) -> float:
        """Floor of one forward pass of the decoder."""
        from limits import attention_operations, decoder_bytes, linear_operations

        limits, precision = self._limits, self._backend.plan.decoder[1]
        audios, queries = inputs["tokens"].shape
        slots = inputs["mask"].shape[-1]
        dims = replace(self.dims, n_audio_ctx=positions)
        linear = linear_operations(dims, audios * queries, len(inputs["wanted"]))
        attention = audios * attention_operations(dims, queries, slots)
        computed_s: float = (
            linear / (limits.int8 if precision == "int8" else limits.fp32) + attention / limits.fp32
        )
        return max(computed_s, decoder_bytes(dims, precision, audios, slots) / limits.weights)


def profile(
    recognizer: harken.Recognizer, backend: OnnxBackend, recordings: Sequence[Recording], limits: Limits
) -> Account:
    """Transcribe all recordings once."""
    import harken
    from harken.audio import load_audio
    from harken.types import HOP_SAMPLES
    from limits import mel_operations

    account = Account()
    timed = harken.Recognizer(TimedBackend(backend, account, limits), recognizer.tokenizer, recognizer.model)
    for recording in recordings:
        samples = load_audio(recording.path)
        account(FILE)
        account.needs(MEL, mel_operations(len(samples) // HOP_SAMPLES, backend.dims.n_mels) / limits.fp32)
        timed.transcribe(
            samples,
            on_window_end=lambda start_s, decoded, attempts: account(CHOICE),
            on_progress=lambda done_s, finished: account(TEXT, calls=int(not finished)),
        ).result()
        account(TEXT, calls=0)
    return account


def limits_table(limits: Limits, step_bytes: float) -> str:
    rates = (
        ("multiplying matrices, fp32", limits.fp32, "operations"),
        ("multiplying matrices, bf16", limits.bf16, "operations"),
        ("multiplying matrices, int8", limits.int8, "operations"),
        ("reading 256 MB", limits.memory, "bytes"),
        (f"reading the {step_bytes / 1e6:.0f} MB of a decoder step", limits.weights, "bytes"),
        ("reading the logits of one position", limits.logits, "bytes"),
    )
    rows = [[name, f"{rate / 1e9:.0f} G {unit}"] for name, rate, unit in rates]
    return table(["limit", "a second"], rows)


def parts_table(account: Account) -> str:
    def line(part: str, calls: str, each_ms: str, seconds: float, floor: float) -> list[str]:
        share = f"{100 * seconds / account.total_s:.1f}"
        limit = [f"{floor:.3f}", f"{seconds / floor:.1f}"] if floor else ["-", "-"]
        return [part, calls, each_ms, f"{seconds:.3f}", share, *limit]

    rows = []
    for part in PARTS:
        seconds, calls = account.seconds[part], account.calls[part]
        rows.append(line(part, str(calls), f"{1e3 * seconds / calls:.2f}", seconds, account.floor.get(part, 0)))
    rows.append(line("all", "", "", account.total_s, sum(account.floor.values())))
    return table(COLUMNS, rows)


def start_table(args: argparse.Namespace) -> str:
    """Loading the model in a new process, against one that only imports what it cannot do without."""
    load = f"import harken; harken.load({args.model!r}, precision={args.precision!r}, threads={args.threads})"
    imports = "import numpy, onnxruntime, openvino"
    starts = [(code, median(start_s(code) for _ in range(args.repeats))) for code in (load, imports)]
    rows = [[f"`{code}`", f"{seconds:.2f}", f"{seconds / starts[-1][1]:.1f}"] for code, seconds in starts]
    return table(["a process that does", "seconds", "over the floor"], rows)


def start_s(code: str) -> float:
    started = perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return perf_counter() - started


if __name__ == "__main__":
    run(main)
