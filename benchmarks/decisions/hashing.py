"""Attention of the streaming encoder by locality-sensitive hashing: cost, and loss of accuracy.

Recordings are joined up to half a minute, silence fills the rest, and each is encoded by the PyTorch backend as a
stream, in windows of several lengths, with full attention and with less. The text is decoded once, at the end. The
difference is the distance of the encoder's output from that of full attention over the same windows, relative to the
latter. Times are medians over windows, one stream at a time; the kinds of attention take turns.

With ``--attention`` attention alone is timed, over random queries and keys.

    python benchmarks/decisions hashing --windows 3000 --limit 4
    python benchmarks/decisions hashing --attention
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import results
from arguments import DEFAULT_SET, limit_threads, note, parser, positive, require
from recordings import error_percent, read_set

if TYPE_CHECKING:
    from harken.backends.torch import LSHAttention, TorchBackend
    from harken.contract import Floats, StreamingEncoderState
    from harken.manifests import Entry
    from harken.text import Tokenizer

WINDOWS = (200, 500, 1000, 2000, 3000)
HISTORY_FRAMES = 400
JOINED_S = 28.0
LENGTHS = (375, 750, 1500, 3000, 6000)
REPEATS = 5
FULL = "full"


@dataclass(slots=True)
class Streams:
    """Streams that were encoded with one kind of attention."""

    states: list[StreamingEncoderState] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def main() -> None:
    options = parser(__doc__, sets=(DEFAULT_SET,))
    options.set_defaults(limit=8)
    options.add_argument(
        "--windows", type=positive, nargs="+", default=WINDOWS, metavar="FRAMES",
        help="lengths of windows, even; 0.01 s a frame",
    )  # fmt: skip
    options.add_argument("--attention", action="store_true", help="time attention alone")
    args = options.parse_args()
    require("harken", "torch")
    limit_threads(args.threads)
    import torch

    torch.set_num_threads(args.threads)
    settings = {"model": "tiny.en", "threads": args.threads}
    result = results.begin(args.save or "hashing", settings, ("torch",))
    if args.attention:
        for length in LENGTHS:
            for name, seconds in attention_s(length).items():
                result.add(keys=length, attention=name, attention_ms=round(1000 * seconds, 3))
    else:
        from harken.checkpoints import open_checkpoint, resolve_model
        from harken.text import Tokenizer

        checkpoint = open_checkpoint(resolve_model("tiny.en"))
        tokenizer = Tokenizer.from_source(checkpoint.vocabulary, checkpoint.dims.n_vocab)
        backends = load(checkpoint)
        entries = [entry for name in args.set for entry in read_set(args.audio, name, language="en")]
        groups = [group for _, group in zip(range(args.limit), join(entries), strict=False)]
        for window in args.windows:
            for row in measure(backends, tokenizer, groups, window):
                result.add(window_s=window / 100, **row)
            note(f"windows of {window / 100:g} s are done")
    if args.save:
        print(results.write(result))


def kinds() -> dict[str, LSHAttention | None]:
    """Return the kinds of attention by name."""
    from harken.backends.torch import LSHAttention

    return {
        FULL: None,
        "near": LSHAttention(rounds=0),
        "near, 1 hash": LSHAttention(rounds=1),
        "near, 3 hashes": LSHAttention(rounds=3),
        "near, 7 hashes": LSHAttention(rounds=7),
        "4 hashes": LSHAttention(rounds=4, nearby=False),
    }


def load(checkpoint: Any) -> dict[str, TorchBackend]:
    """Load the model with each kind of attention."""
    from harken.backends.torch import TorchBackend

    return {
        name: TorchBackend(
            checkpoint.dims, checkpoint.weights, device="cpu", lsh_attention=attention, graph_capture=None
        )
        for name, attention in kinds().items()
    }


def join(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yield groups of recordings, each as long as fits."""
    group: list[Entry] = []
    for entry in entries:
        if group and sum(one.seconds or 0.0 for one in (*group, entry)) > JOINED_S:
            yield group
            group = []
        group.append(entry)


def joined_mel(entries: Sequence[Entry], n_mels: int) -> Floats:
    """Return the log-mel of recordings one behind the other, with silence after them, shape (n_mels, 3000)."""
    import numpy as np

    from harken.audio import load_audio, log_mel, pad_or_trim
    from harken.types import WINDOW_SAMPLES

    samples = np.concatenate([load_audio(entry.path) for entry in entries])
    return pad_or_trim(log_mel(samples, n_mels, WINDOW_SAMPLES))


def measure(
    backends: Mapping[str, TorchBackend], tokenizer: Tokenizer, groups: Sequence[Sequence[Entry]], window: int
) -> Iterator[dict[str, Any]]:
    """Yield a row for each kind of attention."""
    from dataclasses import replace

    streams = {name: Streams() for name in backends}
    for group in groups:
        encode(backends, joined_mel(group, backends[FULL].dims.n_mels), window, streams)
    joined = [replace(group[0], text=" ".join(entry.text for entry in group)) for group in groups]
    full_s = median(streams[FULL].seconds)
    full = encoder_output(backends[FULL], streams[FULL])
    for name, encoded in streams.items():
        output, seconds = encoder_output(backends[name], encoded), median(encoded.seconds)
        yield {
            "attention": name,
            "keys": n_keys(kinds()[name], min(window // 2 + HISTORY_FRAMES // 2, 1500)),
            "difference_percent": round(100 * float((output - full).norm() / full.norm()), 3),
            "error_percent": error_percent(joined, decode_texts(backends[name], tokenizer, encoded)),
            "ms_per_s": round(1000 * seconds / (window / 100), 3),
            "times_full": round(seconds / full_s, 4),
        }


def encode(
    backends: Mapping[str, TorchBackend], mel: Floats, window: int, streams: Mapping[str, Streams]
) -> None:
    """Encode a stream window by window with each kind of attention; whole windows are timed."""
    states = {name: backend.open_encoder(HISTORY_FRAMES) for name, backend in backends.items()}
    for first in range(0, mel.shape[1], window):
        frames = mel[None, :, first : first + window + 1]
        for name, backend in backends.items():
            began = perf_counter()
            backend.encode_chunk([states[name]], frames, frames.shape[2] // 2 * 2)
            if first + window <= mel.shape[1]:
                streams[name].seconds.append(perf_counter() - began)
    for name, state in states.items():
        streams[name].states.append(state)


def n_keys(attention: LSHAttention | None, available: int) -> int:
    """Return the number of keys that a query is compared with, at most."""
    if attention is None:
        return available
    return min(available, 3 * attention.chunk * (attention.rounds + attention.nearby))


def encoder_output(backend: TorchBackend, streams: Streams) -> Any:
    """Return the encoder's output for all streams, as a tensor."""
    features: Any = backend.stream_features(streams.states)
    return features.encoder_output


def decode_texts(backend: TorchBackend, tokenizer: Tokenizer, streams: Streams) -> list[str]:
    """Decode the text of each stream."""
    from harken.decoding import Greedy, Window, decode, make_logit_rules, make_prompt

    prompt = make_prompt(tokenizer, backend.dims.n_text_ctx, language="en", task="transcribe", timestamps=False)
    decoded, _ = decode(
        backend,
        backend.stream_features(streams.states),
        [Window(window_index=index, prompt=prompt) for index in range(len(streams.states))],
        tokenizer=tokenizer,
        logit_rules=make_logit_rules(tokenizer, timestamps=False),
        strategy=Greedy(),
    )
    return [result.text for result in decoded]


def attention_s(length: int, heads: int = 6, state: int = 384) -> dict[str, float]:
    """Return the median seconds of each kind of attention over so many random queries and keys."""
    import torch

    from harken.backends.torch.attention import attend

    query, key, value = torch.randn(3, 1, length, state, generator=torch.Generator().manual_seed(0))
    times: dict[str, list[float]] = {name: [] for name in kinds()}
    for _ in range(REPEATS):
        for name, attention in kinds().items():
            began = perf_counter()
            (attention or attend)(query, key, value, heads)
            times[name].append(perf_counter() - began)
    return {name: median(seconds) for name, seconds in times.items()}
