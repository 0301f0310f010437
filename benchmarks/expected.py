"""What speculation may gain with models that are not here: computed, from costs that are measured with random weights.

A row is a model and an assistant of some dimensions: a decoder that attends to the model's encoder output, or, for
``tiny``, a model with an encoder of its own, which adds ``setup_ms`` to each window. Measured are a step of the model,
passes over 2 to 16 tokens, and draft steps. ``gain R`` is the time of plain decoding over that with drafts, for windows
of so many tokens, if each draft token is right with probability R where those before it were; of the draft lengths the
best counts. How often tokens are right depends on the models: ``speculative.py`` measures it.

    python benchmarks/expected.py --dims medium large-v3 large-v3-turbo --assistant tiny distil-large-v3 --save expected
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median
from typing import TYPE_CHECKING

from program import Args, Parser, Row, add, main, note
from random_weights import SIZES, draw_weights, make_dims
from steps import burst, encode, open_session, timed

if TYPE_CHECKING:
    from harken.contract import Backend

PASSES = (1, 2, 3, 5, 8, 16)
MOST_DRAFTED = 15
SHARED = "distil-large-v3"
"""Assistants with the encoder of the model; they need one as wide."""


def options(parser: Parser) -> None:
    add(parser, "--dims", ("medium", "large-v3", "large-v3-turbo"), "dimensions of these models", choices=SIZES)
    add(parser, "--assistant", ("tiny", SHARED), "and of these assistants", choices=SIZES)
    add(parser, "--rate", (0.6, 0.7, 0.8, 0.9), "probabilities that a draft token is right")
    add(parser, "--tokens", 100, "tokens of a window")
    add(parser, "--past", 40, "tokens before a pass")
    add(parser, "--bursts", 4, "bursts of each pass")
    add(parser, "--burst-s", 0.5, "seconds of a burst")
    add(parser, "--positions", 1500, "positions of a window")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each model and each assistant that fits it."""
    for name in args.dims:
        model, encode_ms = load(name, args, "int8")
        costs = pass_costs(model, args, PASSES)
        note(f"{name}: measured")
        for assistant in args.assistant:
            if assistant == SHARED and make_dims(SHARED).n_audio_state != model.dims.n_audio_state:
                continue
            drafter, own_ms = load(assistant, args, "int4")
            step = pass_costs(drafter, args, (1,))[1]
            setup_ms = 0.0 if assistant == SHARED else own_ms
            yield {
                "model": name,
                "assistant": assistant,
                "encode_ms": round(encode_ms),
                "step_ms": round(costs[1], 2),
                "5 over 1": round(costs[5] / costs[1], 2),
                "8 over 1": round(costs[8] / costs[1], 2),
                "draft over 1": round(step / costs[1], 3),
                "setup_ms": round(setup_ms),
                **{f"gain {rate:g}": gain(costs, step, setup_ms, rate, args.tokens) for rate in args.rate},
            }
            del drafter
        del model


def load(name: str, args: Args, precision: str) -> tuple[Backend, float]:
    """Return a backend with random weights, and the milliseconds that it takes to encode a window."""
    from harken.backends.native import NativeBackend

    dims = make_dims(name)
    backend = NativeBackend(dims, draw_weights(dims), precision=precision, threads=args.threads)
    return backend, 1000 * min(timed(lambda: encode(backend, 1, args)) for _ in range(3))


def pass_costs(backend: Backend, args: Args, passes: tuple[int, ...]) -> dict[int, float]:
    """Return the milliseconds of passes over so many tokens."""
    session = open_session(backend, 1, args)
    taken: dict[int, list[float]] = {n: [] for n in passes}
    for _ in range(args.bursts):
        for n in passes:
            taken[n] += burst(session, backend.dims, 1, n, args)
    return {n: 1000 * median(seconds) for n, seconds in taken.items()}


def gain(costs: Mapping[int, float], draft_step: float, setup: float, rate: float, n_tokens: int) -> float:
    """Return the time of plain decoding over that with the best number of draft tokens."""
    import numpy as np

    best = 1.0
    for drafted in range(1, MOST_DRAFTED + 1):
        verification = float(np.interp(drafted + 1, [*costs], [*costs.values()]))
        tokens_a_pass = (1 - rate ** (drafted + 1)) / (1 - rate)
        drafting = setup + n_tokens / tokens_a_pass * (drafted * draft_step + verification)
        best = max(best, n_tokens * costs[1] / drafting)
    return round(best, 2)


if __name__ == "__main__":
    main(rows, options, settings=("tokens", "past", "bursts", "burst_s"))
