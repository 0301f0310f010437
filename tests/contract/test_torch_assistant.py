"""Assistants in PyTorch that share an encoder: the weights that are read, and mixed precisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from harken.backends.numpy import NumpyBackend
from harken.contract import Floats
from tiny_models import (
    BACKENDS,
    DIMS,
    TOKENIZER,
    make_assistant_weights,
    make_mel,
    make_torch_backend,
    make_weights,
)

pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")

PROMPT = (TOKENIZER.sot, *TOKENIZER.sot_sequence("en")[1:])


class DecoderOnly(Mapping[str, Floats]):
    """Weights of a whole model that fail the test when the encoder's are read."""

    def __getitem__(self, name: str) -> Floats:
        assert name.startswith("decoder."), f"{name} is not needed"
        return make_assistant_weights()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(make_assistant_weights())

    def __len__(self) -> int:
        return len(make_assistant_weights())


def test_weights_of_a_shared_encoder_are_not_read() -> None:
    backend = make_torch_backend("fp32", DIMS, DecoderOnly(), shares_encoder=True)
    assert not backend.dims.has_encoder


def test_reused_encoder_output_gives_the_same_cross_kv_bit_for_bit() -> None:
    main = make_torch_backend("fp32", DIMS, make_weights())
    assistant = make_torch_backend("fp32", DIMS, make_assistant_weights())
    own, reused = assistant.encode(make_mel()), assistant.reuse_encoder_output(main.encode(make_mel()))
    np.testing.assert_array_equal(reused.cross_kv, own.cross_kv)


@pytest.mark.parametrize(("main_precision", "precision"), [("fp32", "bf16"), ("bf16", "fp32")])
def test_assistant_may_have_another_precision(main_precision: str, precision: str) -> None:
    main = make_torch_backend(main_precision, DIMS, make_weights())
    assistant = make_torch_backend(precision, DIMS, make_assistant_weights(), shares_encoder=True)
    session = assistant.open_session(
        assistant.reuse_encoder_output(main.encode(make_mel())), [1], DIMS.n_text_ctx
    )
    reference = NumpyBackend(DIMS, make_assistant_weights())
    expected = (
        reference.open_session(reference.encode(make_mel()), [1], DIMS.n_text_ctx).extend([PROMPT]).values
    )
    difference = session.extend([PROMPT]).values.numpy() - expected
    assert np.abs(difference).max() <= BACKENDS["torch-bf16"].tolerance * expected.std()
