"""Fuzz tests of checkpoints: a damaged one is rejected in one line, or opens as a complete model.

One that took long would end at the time limit of the test.
"""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

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
ROUNDS = 24


def write_decoder(folder: Path, dims: Dims, weights: files.Arrays) -> Path:
    """Write a decoder without an encoder, with every entry that its configuration may have."""
    entry = {"encoder_sha256": "0f" * 32, "draft_vocabulary": [0, 2, 3]}
    return files.write_huggingface(folder, dims, files.decoder_of(weights), config={"harken": entry})


KINDS = (
    *("openai", "safetensors", "sharded", "torch-bin", "ctranslate2-int8", "ggml-q5_0"),
    *("gguf", "mlx", "onnx-int8", "openvino-int8"),
)
WRITERS = {kind: files.FORMATS[kind] for kind in KINDS} | {"decoder": write_decoder}


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
    opened = WRITERS[writer](tmp_path, DIMS, WEIGHTS)
    assert open_checkpoint(opened, assistant=True).dims in (DIMS, DIMS.without_encoder())
    originals = [
        (path, data, headers(data)) for path in sorted(tmp_path.iterdir()) if (data := path.read_bytes())
    ]
    survived = 0
    for seed in range(ROUNDS):
        rng = random.Random(f"{writer} {seed}")
        path, data, positions = rng.choice(originals)
        path.write_bytes(damaged(data, positions, rng))
        survived += opens_whole(opened, seed)
        path.write_bytes(data)
    assert survived < ROUNDS, "no damage was detected: it is not in the right positions"


def opens_whole(path: Path, seed: int) -> bool:
    """Return whether a checkpoint opens with all weights of its dimensions; else it is refused in one line."""
    refused = ""
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(path, assistant=True)
        weights = {name: (values.shape, values.dtype.name) for name, values in checkpoint.weights.items()}
        assert {name: shape for name, (shape, _) in weights.items()} == expected_shapes(checkpoint.dims), seed
        assert {dtype for _, dtype in weights.values()} <= {"float16", "float32"}, seed
    except CheckpointError as error:
        refused = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 << 20, seed
    if refused:
        assert str(path.parent if path.is_file() else path) in refused, seed
        assert "\n" not in refused, seed
    return not refused
