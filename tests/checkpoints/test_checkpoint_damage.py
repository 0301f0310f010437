"""Tests of damaged, truncated and malicious checkpoints: an error of one line, and no large allocation."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import checkpoint_files as files
from checkpoint_files import raises_checkpoint_error
from harken.checkpoints import open_checkpoint

WEIGHTS = files.random_weights()


# --- Hugging Face ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a\\b", "C:x", "..", "", "a\0b", 7])
def test_shard_outside_the_model_directory_is_rejected(tmp_path: Path, name: object) -> None:
    directory = files.write_huggingface(tmp_path / "model", files.TINY, WEIGHTS, shards=2)
    files.write_safetensors(tmp_path / "secret", {})
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": name}}))
    with raises_checkpoint_error("allowed are files of its own directory|has no weight_map of names to files"):
        open_checkpoint(directory)


def safetensors(header: object, data: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(dtype: str = "F32", shape: object = (1,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (safetensors({}, size=1 << 62), "truncated: 4611686018427387904 bytes expected"),
        (safetensors(b'{"a": ' * 5000), "not JSON"),
        (safetensors(b'{"a": ' + b"[" * 100_000), "not JSON"),
        (safetensors({"w": entry(dtype="I64")}, bytes(4)), "its type is none of F32, F16, BF16"),
        (safetensors({"w": entry(shape=[1 << 40])}, bytes(4)), "the entry of 'w' is damaged"),
        (safetensors({"w": entry(shape=[True])}, bytes(4)), "the entry of 'w' is damaged"),
        (safetensors({"w": entry(offsets=[-4, 0])}, bytes(4)), "'w' begins at byte -4 of the data"),
        (safetensors({"w": entry()}, bytes(3)), "3 bytes of data, its tensors have 4"),
        (safetensors({"v": entry(), "w": entry()}, bytes(4)), "'w' begins at byte 0 of the data, allowed is 4"),
        (safetensors({"w": entry()}, bytes(4)), "not a Whisper model: weight encoder.conv1.weight is missing"),
    ],
)
def test_damaged_safetensors_header_is_rejected(tmp_path: Path, content: bytes, reason: str) -> None:
    files.write_huggingface(tmp_path, files.TINY, WEIGHTS)
    (tmp_path / "model.safetensors").write_bytes(content)
    with raises_checkpoint_error(reason):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "wav2vec2"}, "config.json: model_type is not 'whisper', which Whisper has"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is not True"),
        ({"vocab_size": 97}, "declares n_vocab=97, its weights have n_vocab=96"),
        ({"encoder_layers": 10**9}, "declares n_audio_layer=1000000000, its weights have n_audio_layer=2"),
        ({"encoder_attention_heads": 5}, "n_audio_head=5: allowed is a divisor of n_audio_state=32"),
        ({"encoder_attention_heads": "2"}, "dimension 'n_audio_head' is unknown or not an integer"),
    ],
)
def test_configuration_that_contradicts_the_weights_is_rejected(
    tmp_path: Path, config: dict[str, object], reason: str
) -> None:
    files.write_huggingface(tmp_path, files.TINY, WEIGHTS)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    with raises_checkpoint_error(reason):
        open_checkpoint(tmp_path)


# --- CTranslate2 and ggml ----------------------------------------------------------------------------------

Change = Callable[[bytes], bytes]


def at(marker: bytes, skip: int, new: bytes) -> Change:
    """Overwrite the bytes that come `skip` bytes after a marker."""

    def change(data: bytes) -> bytes:
        start = data.index(marker) + len(marker) + skip
        return data[:start] + new + data[start + len(new) :]

    return change


HUGE = struct.pack("<I", 0xFFFFFFFF)


Files = Callable[[Path], Path]
CTRANSLATE2: Files = lambda folder: files.write_ctranslate2(folder, files.TINY, WEIGHTS) / "model.bin"  # noqa: E731
GGML: Files = lambda folder: files.write_ggml(folder / "ggml.bin", files.TINY, WEIGHTS)  # noqa: E731


@pytest.mark.parametrize(
    ("write", "change", "reason"),
    [
        (CTRANSLATE2, lambda data: data + b"x", "1 bytes after the end of the model"),
        (CTRANSLATE2, lambda data: b"\x07" + data[1:], "binary version 7, WhisperSpec revision 3: allowed"),
        (CTRANSLATE2, at(b"decoder/embeddings/weight\0", 1, HUGE), "has 6144 bytes, which is not float16 of shape"),
        (CTRANSLATE2, at(b"decoder/embeddings/weight\0", 9, b"\x09"), "has data type 9, allowed is 0 to 5"),
        (CTRANSLATE2, at(b"decoder/embeddings/weight\0", 9, b"\x02"), "is int16 without a scale"),
        (CTRANSLATE2, at(b"decoder/activation\0", 6, b"\0"), "decoder/activation=0, allowed for Whisper is 3"),
        (CTRANSLATE2, lambda data: data[:-26] + b"decoder/embeddings/weighs\0", "which is not in the file"),
        (GGML, lambda data: data + b"x", "truncated: 12 bytes expected, 1 are left"),
        (GGML, at(b"lmgg", 0, struct.pack("<i", -1)), "declares n_vocab=-1, its weights have n_vocab=96"),
        (GGML, at(b"lmgg", 52 + 4 * 5 * 8, HUGE), "truncated in the vocabulary"),
        (GGML, at(b"decoder.ln.weight", -33, struct.pack("<i", 9)), "a weight with 9 axes, allowed is 1 to 4"),
        (GGML, at(b"decoder.ln.weight", -25, struct.pack("<i", 14)), "has ggml type 14, allowed is float32, "),
        (GGML, at(b"lmgg", 12, struct.pack("<i", 3)), "n_audio_head=3: allowed is a divisor"),
    ],
    ids=range(13),
)  # fmt: skip
def test_damaged_file_is_rejected_with_the_reason(
    tmp_path: Path, write: Files, change: Change, reason: str
) -> None:
    path = write(tmp_path)
    path.write_bytes(change(path.read_bytes()))
    with raises_checkpoint_error(reason):
        open_checkpoint(path)


def test_files_beside_the_weights_are_named(tmp_path: Path) -> None:
    files.write_huggingface(tmp_path, files.TINY, WEIGHTS, shards=2)
    for name, text, reason in (
        ("generation_config.json", b"\xff", "not JSON"),
        ("config.json", b"{", "not JSON"),
        ("config.json", b"[]", "holds a JSON list"),
    ):
        whole = (tmp_path / name).read_bytes() if (tmp_path / name).exists() else b"{}"
        (tmp_path / name).write_bytes(text)
        with raises_checkpoint_error(f"{name}: {reason}"):
            open_checkpoint(tmp_path)
        (tmp_path / name).write_bytes(whole)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with raises_checkpoint_error("model-00002-of-00002.safetensors: cannot be read: No such file"):
        open_checkpoint(tmp_path)
