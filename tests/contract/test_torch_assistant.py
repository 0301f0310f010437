"""A small decoder beside the PyTorch backend: it hears what the other encoded, and may score a part of the ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harken.backends.numpy import NumpyBackend
from harken.contract import Floats
from models import AUDIOS, DIMS, ENGINES, TOKENIZER, make_mel, make_weights

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'harken[torch]'")

from harken.backends.torch import TorchBackend
from tape import Tape

PROMPT = (TOKENIZER.sot, *TOKENIZER.sot_sequence("en")[1:])
SMALL = replace(DIMS, n_text_layer=1)
PART = np.array([3, 7, *range(60, 90), TOKENIZER.eot, *range(TOKENIZER.timestamp_begin, DIMS.n_vocab, 5)])
PRECISIONS = [name.partition("-")[2] for name in ENGINES if name.startswith("torch")]


def make_torch(dims: Any, weights: Mapping[str, Floats], precision: str, **options: Any) -> TorchBackend:
    if precision == "taped":
        options |= {"recorder": Tape}
        precision = "fp32"
    return TorchBackend(dims, weights, device="cpu", precision=precision, threads=1, **options)


def small_weights() -> dict[str, Floats]:
    """The encoder of the tiny model, and one layer of another decoder."""
    encoder = {name: value for name, value in make_weights().items() if name.startswith("encoder.")}
    decoder = {
        name: value
        for name, value in make_weights(seed=5).items()
        if name.startswith("decoder.") and not name.startswith("decoder.blocks.1.")
    }
    return encoder | decoder


class DecoderOnly(Mapping[str, Floats]):
    """Weights that fail the test where the encoder's are read."""

    def __init__(self, weights: Mapping[str, Floats]) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> Floats:
        assert name.startswith("decoder."), f"{name} is not needed"
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("frames", [2 * DIMS.n_audio_ctx, 10])
def test_an_assistant_hears_what_the_main_model_encoded(precision: str, frames: int) -> None:
    mel = make_mel()[:, :, :frames]
    main = make_torch(DIMS, make_weights(), precision)
    assistant = make_torch(SMALL, DecoderOnly(small_weights()), precision, shares_encoder=True)
    assert not assistant.dims.has_encoder
    features = assistant.adopt(main.encode(mel))
    assert features.audios == AUDIOS
    oracle = NumpyBackend(SMALL, small_weights())
    expected = oracle.open(oracle.encode(mel), range(AUDIOS), DIMS.n_text_ctx)
    session = assistant.open(features, range(AUDIOS), DIMS.n_text_ctx)
    for tokens in [[PROMPT] * AUDIOS, [[65], [66, 67], [], [68]]]:
        wanted, got = expected.extend(tokens, 2).values, session.extend(tokens, 2).values.numpy()
        centred = [its - its.mean(1, keepdims=True) for its in (wanted, got)]
        assert np.abs(centred[1] - centred[0]).max() <= ENGINES[f"torch-{precision}"].tolerance * wanted.std()


def test_what_was_adopted_is_what_the_same_decoder_would_have_heard() -> None:
    main, other = (make_torch(SMALL, small_weights(), "fp32") for _ in range(2))
    mel = make_mel()
    own, adopted = other.encode(mel), other.adopt(main.encode(mel))
    np.testing.assert_array_equal(adopted.cross, own.cross)


def test_an_assistant_of_another_precision() -> None:
    main, mel = make_torch(DIMS, make_weights(), "fp32"), make_mel()
    assistant = make_torch(SMALL, small_weights(), "bf16", shares_encoder=True)
    session = assistant.open(assistant.adopt(main.encode(mel)), [1], DIMS.n_text_ctx)
    oracle = NumpyBackend(SMALL, small_weights())
    expected = oracle.open(oracle.encode(mel), [1], DIMS.n_text_ctx).extend([PROMPT]).values
    difference = session.extend([PROMPT]).values.numpy() - expected
    assert np.abs(difference - difference.mean()).max() <= ENGINES["torch-bf16"].tolerance * expected.std()


def test_a_decoder_alone_does_not_encode() -> None:
    decoder = {name: value for name, value in small_weights().items() if name.startswith("decoder.")}
    assistant = make_torch(SMALL.without_encoder(), decoder, "fp32")
    with pytest.raises(AssertionError, match="no encoder of its own"):
        assistant.encode(make_mel())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_part_of_the_vocabulary(precision: str) -> None:
    whole, part = (make_torch(DIMS, make_weights(), precision, vocabulary=its) for its in (None, PART))
    mel, rest = make_mel(), np.setdiff1d(np.arange(DIMS.n_vocab), PART)
    assert not np.isin(PROMPT, PART).all()  # what is read need not be what can be chosen
    sessions = [its.open(its.encode(mel), range(AUDIOS), DIMS.n_text_ctx) for its in (whole, part)]
    for tokens in [[PROMPT] * AUDIOS, [[65], [66, 67], [], [68]]]:
        expected, logits = (session.extend(tokens, 2) for session in sessions)
        expected.suppress(rest)
        ids, logprobs = logits.top(4)
        wanted, wanted_logprobs = expected.top(4)
        np.testing.assert_array_equal(ids, wanted)
        np.testing.assert_allclose(logprobs, wanted_logprobs, atol=1e-4)
        assert np.isin(ids, PART).all()
    assert len(sessions[1].extend([[]] * AUDIOS)) == 0
