"""What drafting and verifying cost on the PyTorch backend, at the dimensions of a large model.

The assistant shares the main model's encoder and has a few decoder layers. Weights are random, which changes no
cost, but nothing is drafted well by them: acceptance is NOT measured here. The second table says which speed-up the
measured costs would give if each drafted token were accepted with a given probability a, independently of the
others: a round of k drafted tokens then brings (1 - a^(k + 1)) / (1 - a) tokens (Leviathan et al. 2023, equation 1)
for k steps of the assistant and one verification. All rows of a batch draft the same k; that some end before others
is left out.

Every step suppresses and bans tokens as rules do, and brings the chosen ones to the host. Widths take turns; figures
are medians. The first call of each width, which records its CUDA graph, is not counted.

    python benchmarks/gpu_speculation.py
    python benchmarks/gpu_speculation.py --dims tiny --layers 1 --device cpu --batch 1 2 --rounds 2
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from common import limit_threads, machine, note, parser, positive, require, run, table
from gpu import PROMPT, SIZES, draw_weights, make_dims

if TYPE_CHECKING:
    from harken.backends.torch import TorchBackend
    from harken.contract import Features

ACCEPTANCE = (0.6, 0.7, 0.8, 0.9)
SUPPRESSED = 90
"""How many ids Whisper never writes; which ones costs nothing."""
TIMESTAMPS = 1501
COSTS = ("batch", "drafted", "drafting, ms", "verifying, ms", "verifying : one step")
WOULD_GIVE = ("batch", *(f"accepted {rate:.0%}" for rate in ACCEPTANCE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of one batch size.

    Parameters
    ----------
    draft : float
        One step of the assistant.
    verify : dict of int to float
        One step of the main model over so many drafted tokens and the one before them.
    """

    draft: float
    verify: dict[int, float]

    def gain(self, drafted: int, rate: float) -> float:
        """Plain decoding's time over that of speculation, per token."""
        tokens = sum(rate**i for i in range(drafted + 1))
        return tokens * self.verify[0] / (drafted * self.draft + self.verify[drafted])


def main() -> None:
    args = arguments()
    require("harken", "torch")
    limit_threads(args.threads)
    backend, assistant = make_backends(args)
    print(f"* {backend.capabilities.detail}\n{machine()}")
    costs = {batch: measure(backend, assistant, batch, args) for batch in args.batch}
    print(f"\n### {args.dims} with {args.layers} layers as assistant: costs, median of {args.rounds}\n")
    print(table(COSTS, [line for batch, its in costs.items() for line in cost_lines(batch, its)]))
    print("\n### What these costs would give: acceptance is assumed, not measured (weights are random)\n")
    print(table(WOULD_GIVE, [gain_line(batch, its) for batch, its in costs.items()]))


def arguments() -> argparse.Namespace:
    its = parser(__doc__)
    its.add_argument("--dims", choices=SIZES, default="large-v3", help="whose dimensions (large-v3)")
    its.add_argument("--layers", type=positive, default=2, metavar="N", help="layers of the assistant (2)")
    its.add_argument(
        "--scored", type=positive, metavar="N", help="how many ids the assistant scores (all of them)"
    )
    its.add_argument("--device", default="auto", help="auto, cuda, mps or cpu (auto)")
    its.add_argument("--precision", default="auto", help="auto, fp32, fp16 or bf16, of both models (auto)")
    its.add_argument(
        "--batch", type=positive, nargs="+", default=[1, 4, 8], metavar="N", help="windows at a time (1 4 8)"
    )
    its.add_argument(
        "--drafted", type=positive, nargs="+", default=[1, 2, 4, 8, 16], metavar="K",
        help="how many tokens to draft (1 2 4 8 16)",
    )  # fmt: skip
    its.add_argument("--past", type=positive, default=100, metavar="N", help="tokens before (100)")
    its.add_argument("--rounds", type=positive, default=30, metavar="N", help="turns of each width (30)")
    return its.parse_args()


def make_backends(args: argparse.Namespace) -> tuple[TorchBackend, TorchBackend]:
    """Load the main model, and an assistant of its first layers that shares its encoder."""
    import numpy as np
    import torch

    from harken.backends.torch import TorchBackend
    from harken.checkpoints.weight_shapes import expected_shapes

    torch.set_num_threads(args.threads)
    dims = make_dims(args.dims)
    small = replace(dims, n_text_layer=args.layers).without_encoder()
    weights = draw_weights(dims)
    load = partial(TorchBackend, device=args.device, precision=args.precision)
    # Timestamps and the end of text come last, and an assistant always scores them.
    scored = None if args.scored is None else np.arange(max(0, dims.n_vocab - args.scored), dims.n_vocab)
    its = {name: weights[name] for name in expected_shapes(small)}
    return load(dims, weights), load(small, its, vocabulary=scored)


def measure(backend: TorchBackend, assistant: TorchBackend, batch: int, args: argparse.Namespace) -> Costs:
    """Let steps of all widths take turns, over the same windows."""
    import numpy as np

    dims = backend.dims
    mel = np.random.default_rng(0).standard_normal((batch, dims.n_mels, 2 * dims.n_audio_ctx), np.float32)
    features = backend.encode(mel)
    draft = stepper(assistant, assistant.reuse_encoder_output(features), args.past)
    verify = stepper(backend, features, args.past)
    widths = [0, *args.drafted]
    began = perf_counter()
    for step, tokens in [(draft, 1), *((verify, 1 + k) for k in widths)]:
        step(tokens)
    note(f"batch {batch}: first calls {perf_counter() - began:.1f} s")
    drafts: list[float] = []
    verifications: dict[int, list[float]] = {k: [] for k in widths}
    for _ in range(args.rounds):
        drafts.append(draft(1))
        for k in widths:
            verifications[k].append(verify(1 + k))
    return Costs(draft=median(drafts), verify={k: median(seconds) for k, seconds in verifications.items()})


def stepper(backend: TorchBackend, features: Features, past: int) -> Callable[[int], float]:
    """A session that reads tokens, chooses one after each, forgets them, and says how many seconds it took."""
    import numpy as np

    dims, rows = backend.dims, features.n_windows
    session = backend.open_session(features, range(rows), dims.n_text_ctx)
    session.extend([[*PROMPT, *range(1000, 1000 + past)]] * rows).top(1)
    suppressed, begin = np.arange(0, 100 * SUPPRESSED, 100), dims.n_vocab - TIMESTAMPS
    special = [[(PROMPT[0], begin)]]

    def step(tokens: int) -> float:
        before = session.lengths
        began = perf_counter()
        logits = session.extend([list(range(2000, 2000 + tokens))] * rows, tokens)
        logits.suppress_tokens(suppressed)
        logits.suppress_ranges(special * len(logits))
        logits.prefer_timestamps(begin)
        logits.top(1)
        seconds = perf_counter() - began
        session.rewind(before)
        return seconds

    return step


def cost_lines(batch: int, its: Costs) -> list[list[str]]:
    return [
        [
            str(batch),
            str(drafted),
            f"{1000 * drafted * its.draft:.2f}",
            f"{1000 * seconds:.2f}",
            f"{seconds / its.verify[0]:.2f}",
        ]
        for drafted, seconds in its.verify.items()
    ]


def gain_line(batch: int, its: Costs) -> list[str]:
    """The best length at each acceptance, and what it would give; 0 drafted is plain decoding."""
    best = {rate: max(its.verify, key=partial(its.gain, rate=rate)) for rate in ACCEPTANCE}
    return [str(batch), *(f"{its.gain(k, rate):.2f}x with {k}" for rate, k in best.items())]


if __name__ == "__main__":
    run(main)
