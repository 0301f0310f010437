"""The PyTorch backend: what it loads and refuses, its precisions, and the text of a published model."""

from __future__ import annotations

import numpy as np
import pytest

import harken
from harken.backends.numpy import NumpyBackend
from harken.errors import OptionError
from real_models import EXAMPLE, recognizer
from tiny_models import (
    BACKENDS,
    DIMS,
    TOKENIZER,
    make_assistant_weights,
    make_mel,
    make_torch_backend,
    make_weights,
)

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install '.[torch]'")

from harken.backends.torch import TorchBackend, model  # noqa: E402


@pytest.mark.real
@pytest.mark.nightly
def test_torch_transcribes_the_text_of_the_cpu_engine() -> None:
    expected = list(recognizer("fp32").transcribe(EXAMPLE))
    loaded = harken.load("tiny.en", backend="torch", device="cpu", threads=1, download=False)
    segments = list(loaded.transcribe(EXAMPLE))
    assert [segment.tokens for segment in segments] == [segment.tokens for segment in expected]
    for segment, expected_segment in zip(segments, expected, strict=True):
        assert segment.avg_logprob == pytest.approx(expected_segment.avg_logprob, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, r"device='tpu': allowed is auto, .*cpu"),
        ({"device": "cuda:99"}, r"device='cuda:99': allowed is auto, .*cpu"),
        ({"device": "cpu", "precision": "int8"}, "precision='int8': allowed is auto, fp32, fp16, bf16"),
    ],
)
def test_unavailable_device_or_precision_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TorchBackend(DIMS, make_weights(), **options)


def test_read_only_half_precision_weights_are_loaded() -> None:
    weights = {name: value.astype(np.float16) for name, value in make_weights().items()}
    for value in weights.values():
        value.flags.writeable = False
    backend = TorchBackend(DIMS, weights, device="cpu", precision="fp16")
    assert backend.encode(make_mel(1)).cross_kv.dtype == torch.float16


@pytest.mark.parametrize(("main_precision", "precision"), [("fp32", "bf16"), ("bf16", "fp32")])
def test_assistant_may_have_another_precision(main_precision: str, precision: str) -> None:
    main = make_torch_backend(main_precision, DIMS, make_weights())
    assistant = make_torch_backend(precision, DIMS, make_assistant_weights(), shares_encoder=True)
    session = assistant.open_session(
        assistant.reuse_encoder_output(main.encode(make_mel())), [1], DIMS.n_text_ctx
    )
    reference = NumpyBackend(DIMS, make_assistant_weights())
    plain = reference.open_session(reference.encode(make_mel()), [1], DIMS.n_text_ctx)
    prompt = TOKENIZER.sot_sequence("en")
    expected = plain.extend([prompt]).values
    difference = session.extend([prompt]).values.cpu().numpy() - expected
    assert np.abs(difference).max() <= BACKENDS["torch-bf16"].tolerance * expected.std()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 9, 68])
def test_prepacked_matrices_multiply_like_plain_ones(dtype: torch.dtype, rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype) for shape in [(2, rows, 96), (160, 96), 160]
    )
    weight /= 96**0.5
    expected = x.double() @ weight.double().T + bias.double()
    actual = model.linear(x, model.prepack(weight), bias)
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual.double(), expected, rtol=0, atol=16 * torch.finfo(dtype).eps)
