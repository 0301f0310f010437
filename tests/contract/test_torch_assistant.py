"""What only the PyTorch backend says of a decoder beside another model: what it reads, in which precision it hears."""

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

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'harken[torch]'")

PROMPT = (TOKENIZER.sot, *TOKENIZER.sot_sequence("en")[1:])


class DecoderOnly(Mapping[str, Floats]):
    """Weights of a whole model that fail the test where the encoder's are read."""

    def __getitem__(self, name: str) -> Floats:
        assert name.startswith("decoder."), f"{name} is not needed"
        return make_assistant_weights()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(make_assistant_weights())

    def __len__(self) -> int:
        return len(make_assistant_weights())


def test_an_encoder_that_is_shared_is_not_read() -> None:
    backend = make_torch_backend("fp32", DIMS, DecoderOnly(), shares_encoder=True)
    assert not any(name.startswith("encoder.") for name in backend._model._weights)


def test_what_is_adopted_is_bit_for_bit_what_its_own_encoder_hears() -> None:
    main = make_torch_backend("fp32", DIMS, make_weights())
    assistant = make_torch_backend("fp32", DIMS, make_assistant_weights())
    own, adopted = assistant.encode(make_mel()), assistant.reuse_encoder_output(main.encode(make_mel()))
    np.testing.assert_array_equal(adopted.cross, own.cross)


@pytest.mark.parametrize(("heard", "precision"), [("fp32", "bf16"), ("bf16", "fp32")])
def test_an_assistant_of_another_precision(heard: str, precision: str) -> None:
    main = make_torch_backend(heard, DIMS, make_weights())
    assistant = make_torch_backend(precision, DIMS, make_assistant_weights(), shares_encoder=True)
    session = assistant.open_session(
        assistant.reuse_encoder_output(main.encode(make_mel())), [1], DIMS.n_text_ctx
    )
    reference_backend = NumpyBackend(DIMS, make_assistant_weights())
    expected = (
        reference_backend.open_session(reference_backend.encode(make_mel()), [1], DIMS.n_text_ctx)
        .extend([PROMPT])
        .values
    )
    difference = session.extend([PROMPT]).values.numpy() - expected
    assert np.abs(difference).max() <= BACKENDS["torch-bf16"].tolerance * expected.std()
