"""Published models: dimensions, vocabularies, and the same weights out of two formats."""

from collections import OrderedDict
from dataclasses import asdict

import numpy as np
import pytest

import checkpoint_files as files
from harken.checkpoints import open_checkpoint
from harken.text import Tokenizer
from real_models import model_path

pytestmark = pytest.mark.real


def model(name):
    return open_checkpoint(model_path(name))


# format, precision, n_vocab, state, heads, layers, first alignment head
PUBLISHED = {
    "tiny.en": ("ctranslate2", "float16", 51864, 384, 6, 4, (1, 0)),
    "tiny.en-pt": ("openai", "float16", 51864, 384, 6, 4, (1, 0)),
    "base.en": ("ggml", "float16", 51864, 512, 8, 6, (3, 3)),
    "tiny": ("ggml", "float16", 51865, 384, 6, 4, (2, 2)),
    "base": ("ctranslate2", "float16", 51865, 512, 8, 6, (3, 1)),
    "small": ("huggingface", "float16", 51865, 768, 12, 12, (5, 3)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_open(name):
    checkpoint = model(name)
    dims, (format, precision, n_vocab, state, heads, layers, alignment_head) = checkpoint.dims, PUBLISHED[name]
    assert (checkpoint.format, checkpoint.stored_dtype) == (format, precision)
    assert (dims.n_mels, dims.n_audio_ctx, dims.n_text_ctx, dims.n_vocab) == (80, 1500, 448, n_vocab)
    assert dims.n_audio_state == dims.n_text_state == state
    assert dims.n_audio_head == dims.n_text_head == heads
    assert dims.n_audio_layer == dims.n_text_layer == layers
    assert checkpoint.alignment_heads is not None
    assert checkpoint.alignment_heads[0] == alignment_head
    tokenizer = checkpoint.vocabulary.tokenizer(n_vocab)
    standard = Tokenizer.builtin(n_vocab)
    text = " And so, my fellow Americans: ask not what your country can do for you — Übergröße, 大丈夫。"
    assert tokenizer.encode(text) == standard.encode(text)
    assert tokenizer.eot == standard.eot == (50257 if dims.multilingual else 50256)


def test_two_formats_of_one_model_are_equal_bit_for_bit():
    original, converted = model("tiny.en-pt"), model("tiny.en")
    assert original.dims == converted.dims
    assert original.alignment_heads == converted.alignment_heads
    assert set(original.weights) == set(converted.weights)
    for name, values in original.weights.items():
        assert values.dtype == converted.weights[name].dtype == np.float16
        np.testing.assert_array_equal(values.view(np.uint16), converted.weights[name].view(np.uint16), name)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_what_torch_saves_today_is_read(tmp_path, dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    weights = files.random_weights(dtype=np.float32)
    state = OrderedDict((name, torch.from_numpy(v).to(getattr(torch, dtype))) for name, v in weights.items())
    state._metadata = {"": {"version": 1}}
    transposed = "decoder.blocks.0.attn.out.weight"
    state[transposed] = state[transposed].t().contiguous().t()
    shared = torch.cat([state["decoder.ln.weight"], state["decoder.ln.bias"]])
    state["decoder.ln.weight"], state["decoder.ln.bias"] = shared[:32], shared[32:]
    state["encoder.ln_post.bias"] = torch.nn.Parameter(state["encoder.ln_post.bias"])
    path = tmp_path / "model.pt"
    torch.save({"dims": asdict(files.TINY), "model_state_dict": state}, path)
    checkpoint = open_checkpoint(path)
    assert (checkpoint.dims, checkpoint.stored_dtype) == (files.TINY, dtype)
    for name, tensor in state.items():
        wide = tensor.float() if dtype in ("bfloat16", "float64") else tensor
        np.testing.assert_array_equal(checkpoint.weights[name], wide.detach().numpy(), name)
