"""A file of packed weights: the place of every array in it, and that it is written once and whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harken.backends.native import packed_file
from harken.backends.native.decoder_weights import DecoderWeights
from harken.backends.native.encoder_weights import EncoderWeights
from harken.backends.native.packed_file import (
    ALIGNMENT_BYTES,
    PACKED_FILE,
    Arrays,
    PackedContents,
    load_packed,
    places,
    write_packed,
)
from harken.backends.onnx.graph_store import GraphStore
from harken.errors import CheckpointError, OutputError
from tiny_models import DIMS, make_weights

SUBSET = np.arange(3, DIMS.n_vocab, 7)
DECODER = DecoderWeights(dims=DIMS, bits=8)
CONTENTS = {
    "8 bits": (DECODER, "head.weights"),
    "4 bits, some tokens": (DecoderWeights(dims=DIMS, bits=4, vocab_subset=SUBSET), "head.weights"),
    "encoder": (EncoderWeights(DIMS), "layers.1.mlp_out.weights"),
}
"""Contents, and a large array of each."""
every_kind = pytest.mark.parametrize(("contents", "array"), CONTENTS.values(), ids=CONTENTS)


class Unreadable(dict[str, Any]):
    def __getitem__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read")


def load(
    cache: Path,
    weights: Any,
    check_unchanged: Callable[[], None] = lambda: None,
    contents: PackedContents = DECODER,
    digest: str = "digest",
) -> Arrays:
    return load_packed(
        weights, contents=contents, digest=digest, store=GraphStore(cache), check_unchanged=check_unchanged
    )


@every_kind
def test_arrays_lie_one_behind_the_other_in_whole_cache_lines(contents: PackedContents, array: str) -> None:
    end = 0
    for place in places(contents).values():
        assert place.offset % ALIGNMENT_BYTES == 0
        assert end <= place.offset < end + ALIGNMENT_BYTES
        end = place.end


@every_kind
def test_every_array_has_a_name_of_its_own(contents: PackedContents, array: str) -> None:
    names = [name for name, _, _ in contents.arrays()]
    assert len(set(names)) == len(names)
    assert array in names


@every_kind
def test_packed_weights_are_mapped_and_not_packed_again(
    tmp_path: Path, contents: PackedContents, array: str
) -> None:
    first = load(tmp_path, make_weights(), contents=contents)
    again = load(tmp_path, Unreadable(), contents=contents)
    np.testing.assert_array_equal(again[array], first[array])
    assert first[array].any()
    assert not again[array].flags.writeable
    base: Any = again[array]
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    with pytest.raises(AssertionError, match="read"):
        load(tmp_path, Unreadable(), contents=contents, digest="other")


def test_different_contents_of_the_same_weights_have_files_of_their_own(tmp_path: Path) -> None:
    for contents, _ in CONTENTS.values():
        load(tmp_path, make_weights(), contents=contents)
    assert len([*tmp_path.glob(f"*/{PACKED_FILE}")]) == len(CONTENTS)


@every_kind
@pytest.mark.parametrize("damage", ["cut", "flipped", "missing"])
def test_damaged_file_is_packed_again(
    tmp_path: Path, contents: PackedContents, array: str, damage: str
) -> None:
    expected = load(tmp_path, make_weights(), contents=contents)[array].copy()
    (file,) = tmp_path.glob(f"*/{PACKED_FILE}")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()
    if damage != "missing":
        file.write_bytes(data[:-1] if damage == "cut" else data)
    np.testing.assert_array_equal(load(tmp_path, make_weights(), contents=contents)[array], expected)
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


@pytest.mark.parametrize(
    ("contents", "last"),
    [(DECODER, "head.bias"), (EncoderWeights(DIMS), f"layers.{DIMS.n_audio_layer - 1}.mlp_out.bias")],
    ids=["decoder", "encoder"],
)
def test_file_that_is_not_whole_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contents: PackedContents, last: str
) -> None:
    put = packed_file._put
    monkeypatch.setattr(
        packed_file,
        "_put",
        lambda file, places, name, *rest, **options: (
            None if name == last else put(file, places, name, *rest, **options)
        ),
    )
    with pytest.raises(OSError, match="was not written whole"):
        write_packed(tmp_path / "packed", make_weights(), contents)
