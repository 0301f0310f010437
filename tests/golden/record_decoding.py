"""Record what openai-whisper's logit filters, beam search and model compute.

Run from the root of the repository, with openai-whisper installed::

    PYTHONPATH=tests python tests/golden/record_decoding.py

It writes tests/golden/decoding.json. Inputs are drawn from seeds by the functions that the test uses too
(`test_decoding_golden.py`); only the output of the reference is stored.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import whisper.version
from test_decoding_golden import (
    BEAM_EOT,
    BEAM_LIMIT,
    BEAM_SEEDS,
    BEAMS,
    FILTERS,
    PROMPTS,
    beam_logits,
    filter_logits,
)
from whisper.decoding import (
    ApplyTimestampRules,
    BeamSearchDecoder,
    MaximumLikelihoodRanker,
    SuppressBlank,
    SuppressTokens,
)
from whisper.model import ModelDimensions, Whisper

from tiny_models import DIMS, TOKENIZER, make_mel, make_weights

HERE = Path(__file__).parent


def record() -> dict[str, object]:
    """Compute the content of decoding.json."""
    torch.manual_seed(0)
    return {
        "reference": f"openai-whisper {whisper.version.__version__}",
        "command": "PYTHONPATH=tests python tests/golden/record_decoding.py",
        "filters": [walk(seed) for seed in range(len(FILTERS) * 6)],
        "beams": [search(width, patience, seed) for width, patience in BEAMS for seed in range(BEAM_SEEDS)],
        "model": compute(),
    }


def walk(seed: int, steps: int = 9) -> dict[str, object]:
    """Sample a legal sequence, and note at each step which ids the filters leave, as half-open ranges."""
    filters = make_filters(**FILTERS[seed % len(FILTERS)])
    rng = np.random.default_rng(seed)
    prefix: list[int] = []
    allowed = []
    for step in range(steps):
        logits = torch.tensor(filter_logits(seed, step))[None]
        for logit_filter in filters:
            logit_filter.apply(logits, torch.tensor([prefix], dtype=torch.long))
        left = np.flatnonzero(np.isfinite(logits[0].numpy()))
        allowed.append(ranges(left))
        # Text, a timestamp and the end each get their turn, if they are legal.
        kinds = [left[left < TOKENIZER.eot], left[left >= TOKENIZER.timestamp_begin][:80]]
        prefix.append(int(rng.choice([kind for kind in kinds if len(kind)][rng.integers(2) - 1])))
    return {"seed": seed, "tokens": prefix, "allowed": allowed}


def make_filters(*, suppress_blank: bool, timestamps: bool, last_initial: int | None) -> list[object]:
    """Make the filters of the reference's `DecodingTask`, over the vocabulary of the tiny model."""
    tokenizer = SimpleNamespace(
        encode=TOKENIZER.encode,
        eot=TOKENIZER.eot,
        no_timestamps=TOKENIZER.no_timestamps,
        timestamp_begin=TOKENIZER.timestamp_begin,
    )
    names = ("transcribe", "translate", "sot", "sot_prev", "sot_lm", "no_speech")
    never = [*TOKENIZER.non_speech_tokens, *(getattr(TOKENIZER, name) for name in names)]
    filters: list[object] = [SuppressBlank(tokenizer, 0)] if suppress_blank else []
    filters.append(SuppressTokens(never))
    if timestamps:
        filters.append(ApplyTimestampRules(tokenizer, 0, last_initial))
    return filters


def ranges(ids: np.ndarray) -> list[list[int]]:
    """Return ascending ids as half-open ranges."""
    cuts = np.flatnonzero(np.diff(ids) > 1) + 1
    return [[int(run[0]), int(run[-1]) + 1] for run in np.split(ids, cuts) if len(run)]


def search(width: int, patience: float, seed: int) -> dict[str, object]:
    """Run the reference's beam search over the scripted model."""
    inference = SimpleNamespace(rearrange_kv_cache=lambda sources: None)
    decoder = BeamSearchDecoder(width, BEAM_EOT, inference, patience)
    decoder.reset()
    # The reference needs a token to start from; it is not part of the prefix.
    tokens, sums = torch.zeros((width, 1), dtype=torch.long), torch.zeros(width)
    for _ in range(BEAM_LIMIT):
        logits = torch.tensor(np.array([beam_logits(seed, tuple(row[1:])) for row in tokens.tolist()]))
        tokens, completed = decoder.update(tokens, logits, sums)
        if completed:
            break
    (sequences,), (totals,) = decoder.finalize(tokens[None], sums[None])
    texts = [sequence.tolist()[1:] for sequence in sequences]
    texts = [text[: text.index(BEAM_EOT)] for text in texts]
    best = {
        str(penalty): int(MaximumLikelihoodRanker(penalty).rank([texts], [totals])[0])
        for penalty in (None, 0.6)
    }
    return {
        "width": width,
        "patience": patience,
        "seed": seed,
        "texts": texts,
        "totals": [round(total, 5) for total in totals],
        "best": best,
    }


def compute() -> dict[str, object]:
    """Run the reference's model over the tiny weights."""
    model = Whisper(ModelDimensions(**asdict(DIMS))).eval()
    model.load_state_dict({name: torch.from_numpy(value) for name, value in make_weights().items()})
    with torch.no_grad():
        features = model.encoder(torch.from_numpy(make_mel(len(PROMPTS))))
        logits = [
            model.decoder(torch.tensor([prompt]), features[window : window + 1])[0]
            for window, prompt in enumerate(PROMPTS)
        ]
    return {
        "features": features[:, ::5, ::8].double().numpy().round(5).tolist(),
        "logits": [rows[:, ::97].double().numpy().round(5).tolist() for rows in logits],
    }


if __name__ == "__main__":
    text = json.dumps(record(), separators=(",", ":")).replace("},{", "},\n{")
    (HERE / "decoding.json").write_text(text + "\n")
