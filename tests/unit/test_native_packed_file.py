"""The file of packed weights: the place of every array, what is in it, and that it is written once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harken.backends.native import packed_file
from harken.backends.native.packed_file import (
    ALIGNMENT_BYTES,
    PACKED_FILE,
    Arrays,
    PackedFormat,
    load_packed,
    map_packed,
    write_packed,
)
from harken.backends.native.packing import BLOCK, GROUP, from_bfloat16
from harken.backends.onnx.graph_store import GraphStore
from harken.backends.onnx.rotation import LM_HEAD, RotatedWeights
from harken.contract import Floats
from harken.errors import CheckpointError, OutputError
from tiny_models import DIMS, make_weights

BLOCK_0 = "decoder.blocks.0"
SUBSET = np.arange(3, DIMS.n_vocab, 7)
INT8 = PackedFormat(dims=DIMS, bits=8)
LARGEST_ERROR = {8: 0.0041, 4: 0.13}
"""Relative to the largest magnitude of a block: half a step of 8 bits; of 4 bits a whole one, where 8 becomes 7."""


class Unreadable(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read")


def load(
    cache: Path,
    weights: Any,
    check_unchanged: Callable[[], None] = lambda: None,
    packed: PackedFormat = INT8,
    digest: str = "digest",
) -> Arrays:
    return load_packed(
        weights, packed=packed, digest=digest, store=GraphStore(cache), check_unchanged=check_unchanged
    )


def unpack(arrays: Arrays, name: str, rows: int, columns: int, bits: int) -> Floats:
    """Return the weights that the integers and scales of a matrix stand for, with the rows of the padding."""
    integers = np.empty((len(arrays[f"{name}.weights"]) * GROUP, columns), np.float32)
    scales = from_bfloat16(np.ascontiguousarray(arrays[f"{name}.scales"]))
    for row in range(len(integers)):
        group, lane = divmod(row, GROUP)
        stored = arrays[f"{name}.weights"][group, :, lane]
        if bits == 4:
            stored = np.stack([stored & 15, stored >> 4], axis=1).astype(np.int8) - 8
        integers[row] = stored.reshape(-1) * np.repeat(scales[group, :, lane], BLOCK)
    return integers


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("subset", [None, SUBSET], ids=["all tokens", "some tokens"])
def test_file_holds_the_rotated_weights(tmp_path: Path, bits: int, subset: Any) -> None:
    packed = PackedFormat(dims=DIMS, bits=bits, vocab_subset=subset)
    write_packed(tmp_path / "packed", make_weights(), packed)
    arrays, rotated = map_packed(tmp_path / "packed", packed), RotatedWeights(make_weights(), DIMS)
    scale = np.float32((DIMS.n_text_state // DIMS.n_text_head) ** -0.5)
    head_rows = slice(None) if subset is None else subset
    cases = {
        "head": (rotated[f"{LM_HEAD}.weight"][head_rows], rotated[f"{LM_HEAD}.bias"][head_rows]),
        "layers.0.query": tuple(rotated[f"{BLOCK_0}.attn.query.{part}"] * scale for part in ("weight", "bias")),
        "layers.0.cross_query": tuple(
            rotated[f"{BLOCK_0}.cross_attn.query.{part}"] * scale for part in ("weight", "bias")
        ),
        "layers.0.mlp_out": tuple(rotated[f"{BLOCK_0}.mlp.2.{part}"] for part in ("weight", "bias")),
        "layers.0.key": (rotated[f"{BLOCK_0}.attn.key.weight"], None),
    }
    for name, (weight, bias) in cases.items():
        unpacked = unpack(arrays, name, *weight.shape, bits)
        peaks = np.repeat(np.abs(weight.reshape(len(weight), -1, BLOCK)).max(axis=2), BLOCK, axis=1)
        assert (np.abs(unpacked[: len(weight)] - weight) <= LARGEST_ERROR[bits] * peaks).all()
        assert not unpacked[len(weight) :].any()
        if bias is None:
            assert f"{name}.bias" not in arrays
        else:
            np.testing.assert_array_equal(arrays[f"{name}.bias"][: len(bias)], bias)
            assert not arrays[f"{name}.bias"][len(bias) :].any()
    np.testing.assert_array_equal(arrays["positions"], rotated["decoder.positional_embedding"])
    embedding = rotated["decoder.token_embedding.weight"].astype(np.float16)
    np.testing.assert_array_equal(arrays["embedding"], embedding)


@pytest.mark.parametrize("bits", [8, 4])
def test_arrays_lie_one_behind_the_other_in_whole_cache_lines(bits: int) -> None:
    end = 0
    for place in PackedFormat(dims=DIMS, bits=bits, vocab_subset=SUBSET).places().values():
        assert place.offset % ALIGNMENT_BYTES == 0
        assert end <= place.offset < end + ALIGNMENT_BYTES
        end = place.end


def test_large_matrix_is_packed_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_packed(tmp_path / "whole", make_weights(), INT8)
    monkeypatch.setattr(packed_file, "ROWS_AT_ONCE", 3 * GROUP)
    write_packed(tmp_path / "parts", make_weights(), INT8)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_packed_weights_are_mapped_and_not_packed_again(tmp_path: Path) -> None:
    first = load(tmp_path, make_weights())
    again = load(tmp_path, Unreadable())
    np.testing.assert_array_equal(again["head.weights"], first["head.weights"])
    assert not again["head.weights"].flags.writeable
    base: Any = again["head.weights"]
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    with pytest.raises(AssertionError, match="read"):
        load(tmp_path, Unreadable(), digest="other")


def test_each_format_has_a_file_of_its_own() -> None:
    formats = [
        INT8,
        PackedFormat(dims=DIMS, bits=4),
        PackedFormat(dims=DIMS, bits=8, vocab_subset=SUBSET),
        PackedFormat(dims=DIMS, bits=8, vocab_subset=SUBSET[1:]),
        PackedFormat(dims=replace(DIMS, n_text_head=4), bits=8),
    ]
    assert len({packed.key for packed in formats}) == len(formats)
    assert PackedFormat(dims=DIMS.without_encoder(), bits=8).key == formats[0].key


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing"])
def test_damaged_file_is_packed_again(tmp_path: Path, damage: str) -> None:
    expected = load(tmp_path, make_weights())["head.weights"].copy()
    (file,) = tmp_path.glob(f"*/{PACKED_FILE}")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()
    if damage != "missing":
        file.write_bytes(data[:-1] if damage == "cut" else data)
    np.testing.assert_array_equal(load(tmp_path, make_weights())["head.weights"], expected)
    assert len([*tmp_path.iterdir()]) == 1


def test_weights_that_changed_while_they_were_packed_are_not_stored(tmp_path: Path) -> None:
    def changed() -> None:
        raise CheckpointError("changed")

    with pytest.raises(CheckpointError, match="changed"):
        load(tmp_path / "cache", make_weights(), changed)
    assert not [*(tmp_path / "cache").iterdir()]


def test_unwritable_cache_falls_back_to_a_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    load(tmp_path / "file" / "graphs", make_weights())
    assert (tmp_path / "file").read_text() == "not a folder"


def test_file_that_cannot_be_written_anywhere_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packed_file, "write_packed", fail)
    with pytest.raises(OutputError, match=r"No space left.*HARKEN_CACHE"):
        load(tmp_path, make_weights())


def test_file_that_is_not_whole_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = packed_file._put
    monkeypatch.setattr(
        packed_file,
        "_put",
        lambda file, places, name, *rest, **options: (
            None if name == "head.bias" else put(file, places, name, *rest, **options)
        ),
    )
    with pytest.raises(OSError, match="was not written whole"):
        write_packed(tmp_path / "packed", make_weights(), INT8)
