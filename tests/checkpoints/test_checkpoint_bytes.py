"""Fuzz tests of checkpoints: a damaged one is rejected in one line, or opens as a complete model.

One that took long would end at the time limit of the test.
"""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import checkpoint_files as files
from harken.checkpoints import open_checkpoint
from harken.checkpoints.weight_shapes import expected_shapes
from harken.errors import CheckpointError
from harken.types import Dims

# As small as quantised blocks allow: more of the bytes are headers.
DIMS = Dims(
    **{"n_mels": 1, "n_audio_ctx": 2, "n_audio_state": 32, "n_audio_head": 1, "n_audio_layer": 1},
    **{"n_vocab": 4, "n_text_ctx": 2, "n_text_state": 32, "n_text_head": 1, "n_text_layer": 1},
)
WEIGHTS = files.random_weights(DIMS)
ROUNDS = 80
SHARD, INDEX = "model-00001-of-00002.safetensors", "model.safetensors.index.json"


def write_decoder(path: Path) -> Path:
    """Write a decoder without an encoder, with every entry that its configuration may have."""
    entry = {"encoder_sha256": "0f" * 32, "draft_vocabulary": [0, 2, 3]}
    return files.write_huggingface(path, DIMS, files.decoder_of(WEIGHTS), config={"harken": entry})


WRITERS: dict[str, Callable[[Path], Path]] = {
    "openai": lambda path: files.write_openai(path / "m.pt", DIMS, WEIGHTS),
    "safetensors": lambda path: files.write_huggingface(path, DIMS, WEIGHTS) / "model.safetensors",
    "index": lambda path: (
        files.write_huggingface(path, DIMS, WEIGHTS, shards=2) / "model.safetensors.index.json"
    ),
    "config": lambda path: files.write_huggingface(path, DIMS, WEIGHTS) / "config.json",
    "decoder": lambda path: write_decoder(path) / "model.safetensors",
    "decoder-config": lambda path: write_decoder(path) / "config.json",
    "torch-bin": lambda path: files.write_huggingface(path, DIMS, WEIGHTS, torch=True) / "pytorch_model.bin",
    "ctranslate2": lambda path: files.write_ctranslate2(path, DIMS, WEIGHTS) / "model.bin",
    "ctranslate2-int8": lambda path: files.write_ctranslate2(path, DIMS, WEIGHTS, "int8") / "model.bin",
    "ggml": lambda path: files.write_ggml(path / "ggml.bin", DIMS, WEIGHTS),
    "gguf": lambda path: files.write_gguf(path / "tiny.gguf", WEIGHTS, {"tokens": ["a", "b"]}),
    "mlx": lambda path: files.write_mlx(path, DIMS, WEIGHTS) / "weights.npz",
    "mlx-config": lambda path: files.write_mlx(path, DIMS, WEIGHTS, npz=False) / "config.json",
    "onnx": lambda path: files.write_onnx(path, DIMS, WEIGHTS, quantised=True) / "decoder_model.onnx",
    "openvino": (
        lambda path: files.write_openvino(path, DIMS, WEIGHTS, quantised=True) / "openvino_encoder_model.xml"
    ),
    "ggml-q5_0": lambda path: files.write_ggml(path / "ggml.bin", DIMS, WEIGHTS, "q5_0"),
}


def headers(data: bytes) -> list[int]:
    """Return positions of bytes that are not weights: text, and bytes close to it."""
    text = [i for i, byte in enumerate(data) if byte in b"abcdefghijklmnopqrstuvwxyz._/"]
    runs = [a for a, b in zip(text, text[5:], strict=False) if b - a == 5]
    return sorted({i + offset for i in runs for offset in range(-24, 24) if 0 <= i + offset < len(data)})


def damaged(data: bytes, positions: list[int], rng: random.Random) -> bytes:
    """Cut, flip, overwrite, insert, remove or repeat a few bytes, most of them in headers."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.choice(positions) if rng.random() < 0.8 else rng.randrange(len(data))
        at = min(at, len(changed) - 1)
        match rng.randrange(7):
            case 0:
                del changed[max(at, 1) :]
            case 1:
                changed[at] ^= 1 << rng.randrange(8)
            case 2:
                changed[at] = rng.randrange(256)
            case 3:
                changed[at : at + 4] = rng.choice((b"\xff" * 4, bytes(4), b"\xff\xff\xff\x7f", b"\0\0\0\x80"))
            case 4:
                changed[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 5:
                del changed[at : at + rng.randrange(1, 9)]
            case 6:
                start = rng.choice(positions)
                changed[at:at] = data[start : start + rng.randrange(1, 200)]
        if not changed:
            break
    return bytes(changed)


@pytest.mark.parametrize("writer", WRITERS)
def test_damaged_checkpoint_opens_whole_or_is_rejected(tmp_path: Path, writer: str) -> None:
    path = WRITERS[writer](tmp_path)
    opened = path if path.suffix in (".bin", ".pt", ".gguf") else path.parent
    original = path.read_bytes()
    positions = headers(original)
    whole = open_checkpoint(opened, assistant=True)
    assert whole.dims in (DIMS, DIMS.without_encoder())
    survived = 0
    for seed in range(ROUNDS):
        path.write_bytes(damaged(original, positions, random.Random(f"{writer} {seed}")))
        message = str(tmp_path)
        tracemalloc.start()
        try:
            checkpoint = open_checkpoint(opened, assistant=True)
            shapes = {name: values.shape for name, values in checkpoint.weights.items()}
            kinds = {values.dtype for values in checkpoint.weights.values()}
            assert shapes == expected_shapes(checkpoint.dims), seed
            assert kinds <= {np.dtype(np.float16), np.dtype(np.float32)}, seed
            survived += 1
        except CheckpointError as error:
            message = str(error)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert str(tmp_path) in message, seed
        assert "\n" not in message, seed
        assert peak < 8 << 20, seed
    assert survived < ROUNDS, "no damage was detected: it is not in the right positions"
