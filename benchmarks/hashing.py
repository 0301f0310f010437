"""Attention of the streaming encoder by locality-sensitive hashing: what it costs, and what it loses.

Recordings are joined up to half a minute, silence fills the rest, and each is heard by the PyTorch backend as a stream,
in windows of several lengths, with full attention and with less. The text is decoded once, at the end. Error is the
distance of the encoder's output from that of full attention over the same windows, relative to the latter. Times are
medians over windows, by the second of audio, one stream at a time, the ways to attend taking turns.

    python benchmarks/hashing.py
    python benchmarks/hashing.py --windows 3000 --limit 4
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from common import (
    DEFAULT_SET,
    Recording,
    limit_threads,
    machine,
    note,
    parser,
    positive,
    read_set,
    require,
    run,
    table,
    word_error_rate,
)

if TYPE_CHECKING:
    import harken
    from harken.backends.torch import LSHAttention, TorchBackend
    from harken.backends.torch.streaming_encoder import TorchEncoderState
    from harken.contract import Floats

WINDOWS = (200, 500, 1000, 2000, 3000)
HISTORY_FRAMES = 400
JOINED_S = 28.0
LENGTHS = (375, 750, 1500, 3000, 6000)
REPEATS = 5
FULL = "full"
COLUMNS = (
    "window, s", "attention", "keys of a query, at most", "error, %", "WER, %", "ms per s", "times full",
)  # fmt: skip


@dataclass(slots=True)
class Result:
    """What one way to attend has come to over all recordings."""

    encoders: list[TorchEncoderState] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)


def main() -> None:
    its = parser(__doc__)
    its.add_argument("--set", default=DEFAULT_SET, metavar="NAME", help=f"set to read ({DEFAULT_SET})")
    its.add_argument("--limit", type=positive, default=8, metavar="N", help="joined recordings (8)")
    its.add_argument(
        "--windows", type=positive, nargs="+", default=WINDOWS, metavar="FRAMES",
        help="lengths of windows, even; 0.01 s a frame",
    )  # fmt: skip
    args = its.parse_args()
    require("harken", "torch")
    limit_threads(args.threads)
    print(machine())
    import harken

    recognizer = harken.load("tiny.en", backend="torch", device="cpu", threads=args.threads)
    joined = [
        recordings
        for _, recordings in zip(range(args.limit), join(read_set(args.audio, args.set)), strict=False)
    ]
    references = [" ".join(recording.text for recording in recordings) for recordings in joined]
    sounds = [listen(recordings, recognizer.dims.n_mels) for recordings in joined]
    rows: list[Sequence[str]] = []
    for window in args.windows:
        rows += measure(recognizer, sounds, references, window)
        note(f"windows of {window / 100:g} s are done")
    print(f"\n{table(COLUMNS, rows)}\n")
    print(table(("keys = queries", *ways()), [[str(length), *attention_ms(length)] for length in LENGTHS]))


def ways() -> dict[str, LSHAttention | None]:
    """Ways to attend, by name."""
    from harken.backends.torch import LSHAttention

    return {
        FULL: None,
        "near": LSHAttention(rounds=0),
        "near, 1 hash": LSHAttention(rounds=1),
        "near, 3 hashes": LSHAttention(rounds=3),
        "near, 7 hashes": LSHAttention(rounds=7),
        "4 hashes": LSHAttention(rounds=4, nearby=False),
    }


def join(recordings: Sequence[Recording]) -> Iterator[list[Recording]]:
    """Groups of recordings, each as long as fits."""
    group: list[Recording] = []
    for recording in recordings:
        if group and sum(its.seconds for its in (*group, recording)) > JOINED_S:
            yield group
            group = []
        group.append(recording)


def listen(recordings: Sequence[Recording], n_mels: int) -> Floats:
    """Log-mel of recordings one behind the other, with silence behind them, shape (n_mels, 3000)."""
    import numpy as np

    from harken.audio import load_audio, log_mel, pad_or_trim
    from harken.types import WINDOW_SAMPLES

    samples = np.concatenate([load_audio(recording.path) for recording in recordings])
    return pad_or_trim(log_mel(samples, n_mels, WINDOW_SAMPLES))


def measure(
    recognizer: harken.Recognizer, sounds: Sequence[Floats], references: Sequence[str], window: int
) -> Iterator[Sequence[str]]:
    """Rows of the table for one length of windows."""
    from harken.backends.torch import TorchBackend

    backend = recognizer.backend
    assert isinstance(backend, TorchBackend), "the PyTorch backend was loaded"
    results = {name: Result() for name in ways()}
    for sound in sounds:
        hear(backend, sound, window, results)
    exact, full_s = results[FULL].encoders, median(results[FULL].times_s)
    for name, result in results.items():
        text = decode(recognizer, result.encoders)
        time_s = median(result.times_s)
        yield (
            f"{window / 100:g}",
            name,
            f"{keys(ways()[name], min(window // 2 + HISTORY_FRAMES // 2, 1500))}",
            f"{100 * difference(result.encoders, exact):.1f}",
            f"{word_error_rate(references, text):.1f}",
            f"{1000 * time_s / (window / 100):.1f}",
            f"{time_s / full_s:.2f}",
        )


def hear(backend: TorchBackend, sound: Floats, window: int, results: Mapping[str, Result]) -> None:
    """Hear a recording window by window in every way; windows that are as long as most of them are timed."""
    from harken.backends.torch.attention import attend
    from harken.backends.torch.streaming_encoder import TorchEncoderState

    encoders = {
        name: TorchEncoderState(backend._model, HISTORY_FRAMES // 2, hashing or attend)
        for name, hashing in ways().items()
    }
    for first in range(0, sound.shape[1], window):
        mel = sound[None, :, first : first + window + 1]
        for name, encoder in encoders.items():
            began_s = perf_counter()
            TorchEncoderState.encode_chunk([encoder], mel, mel.shape[2] // 2)
            if first + window <= sound.shape[1]:
                results[name].times_s.append(perf_counter() - began_s)
    for name, encoder in encoders.items():
        results[name].encoders.append(encoder)


def keys(hashing: LSHAttention | None, there_are: int) -> str:
    """How many keys a query is compared with."""
    if hashing is None:
        return str(there_are)
    return str(min(there_are, 3 * hashing.chunk * (hashing.rounds + hashing.nearby)))


def difference(encoders: Sequence[TorchEncoderState], exact: Sequence[TorchEncoderState]) -> float:
    """Distance of what was encoded from what full attention gives, relative to that."""
    from harken.backends.torch.streaming_encoder import TorchEncoderState

    its, expected = (TorchEncoderState.stream_features(them, 1).encoder_output for them in (encoders, exact))
    return float((its - expected).norm() / expected.norm())


def decode(recognizer: harken.Recognizer, encoders: Sequence[TorchEncoderState]) -> list[str]:
    """What is said in each stream."""
    from harken.decoding import Greedy, Window, decode, make_logit_rules, make_prompt

    backend, tokenizer = recognizer.backend, recognizer.tokenizer
    prompt = make_prompt(tokenizer, backend.dims.n_text_ctx, language="en", task="transcribe", timestamps=False)
    decoded, _ = decode(
        backend,
        backend.stream_features(encoders),
        [Window(window_index=audio, prompt=prompt) for audio in range(len(encoders))],
        tokenizer=tokenizer,
        logit_rules=make_logit_rules(tokenizer, timestamps=False),
        strategy=Greedy(),
    )
    return [its.text for its in decoded]


def attention_ms(length: int, heads: int = 6, state: int = 384) -> list[str]:
    """Milliseconds of attention alone, each way, over so many random queries and keys."""
    import torch

    from harken.backends.torch.attention import attend

    query, key, value = torch.randn(3, 1, length, state, generator=torch.Generator().manual_seed(0))
    times_s: dict[str, list[float]] = {name: [] for name in ways()}
    for _ in range(REPEATS):
        for name, hashing in ways().items():
            began_s = perf_counter()
            (hashing or attend)(query, key, value, heads)
            times_s[name].append(perf_counter() - began_s)
    return [f"{1000 * median(times):.1f}" for times in times_s.values()]


if __name__ == "__main__":
    run(main)
