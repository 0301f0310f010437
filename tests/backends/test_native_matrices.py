"""Linear layers of a packed file: how they are written, and what the library is told of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from harken.backends.native import matrices
from harken.backends.native.decoder_weights import DecoderWeights
from harken.backends.native.encoder_weights import EncoderWeights
from harken.backends.native.matrices import BlockMatrix, Int16Matrix
from harken.backends.native.packed_file import Arrays, PackedContents, write_packed
from harken.backends.native.packing import GROUP
from harken.contract import Floats
from packed_matrices import unpack_rows
from tiny_models import DIMS, make_weights

ROWS, COLUMNS = 3 * GROUP + 5, 96
LARGEST_NORM, LARGEST_INTEGER = 46_100, 32_767
"""What the library relies on."""

Matrix = BlockMatrix | Int16Matrix


def draw(rows: int = ROWS, columns: int = COLUMNS) -> Floats:
    return np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)


def write(matrix: Matrix, weight: Floats, bias: Floats | None = None) -> Arrays:
    """Write a matrix to arrays in memory, which are 77 where nothing is written."""
    arrays = {name: np.full(shape, 77, dtype) for name, dtype, shape in matrix.arrays()}

    def put(name: str, array: np.ndarray, first: int = 0) -> None:
        arrays[name][first : first + len(array)] = array

    matrix.write(put, weight, bias)
    return arrays


def norms_and_peaks(arrays: Arrays, name: str) -> tuple[Floats, Floats]:
    """Return the norm and the largest magnitude of the integers of each row."""
    rows = arrays[f"{name}.weights"].transpose(0, 2, 1, 3).astype(np.float64)
    rows = rows.reshape(len(rows) * GROUP, -1)
    return np.linalg.norm(rows, axis=1), np.abs(rows).max(axis=1)


@pytest.mark.parametrize("contents", [DecoderWeights(dims=DIMS, bits=8), EncoderWeights(DIMS)])
def test_large_matrix_is_packed_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contents: PackedContents
) -> None:
    write_packed(tmp_path / "whole", make_weights(), contents)
    monkeypatch.setattr(matrices, "ROWS_AT_ONCE", 3 * GROUP)
    write_packed(tmp_path / "parts", make_weights(), contents)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("matrix", [BlockMatrix("a", ROWS, COLUMNS, 8), Int16Matrix("a", ROWS, COLUMNS)])
def test_rows_of_the_padding_are_zeros(matrix: Matrix) -> None:
    arrays = write(matrix, draw(), np.ones(ROWS, np.float32))
    for name, array in arrays.items():
        rows = array if array.ndim == 1 else np.moveaxis(array, 2, 1).reshape(4 * GROUP, -1)
        assert rows[:ROWS].any(), name
        assert not rows[ROWS:].any(), name


def test_layer_without_a_bias_has_no_array_for_it() -> None:
    matrix = Int16Matrix("key", ROWS, COLUMNS, has_bias=False)
    arrays = write(matrix, draw())
    assert set(arrays) == {"key.weights", "key.scales"}
    assert matrix.structure(arrays).bias is None


@pytest.mark.parametrize("matrix", [BlockMatrix("a", ROWS, COLUMNS, 4), Int16Matrix("a", ROWS, COLUMNS)])
def test_library_is_told_shape_and_addresses(matrix: Matrix) -> None:
    arrays = write(matrix, draw(), np.ones(ROWS, np.float32))
    told = matrix.structure(arrays)
    assert (told.rows, told.columns) == (ROWS, COLUMNS)
    for part in ("weights", "scales", "bias"):
        assert getattr(told, part) == arrays[f"a.{part}"].ctypes.data
    assert getattr(told, "bits", 4) == 4


def test_integers_of_every_layer_of_an_encoder_are_within_their_bounds() -> None:
    contents = EncoderWeights(DIMS)
    for matrix in [*contents.convolutions(), *contents.layer_matrices(1)]:
        weight = draw(matrix.rows, matrix.columns) ** 3
        norms, peaks = norms_and_peaks(write(matrix, weight, np.zeros(matrix.rows, np.float32)), matrix.name)
        assert norms.max() <= LARGEST_NORM
        assert peaks.max() <= LARGEST_INTEGER


EXTREME_ROWS = {
    "one dominates": np.where(np.arange(COLUMNS) == 40, 1e6, 1e-3),
    "two dominate": np.where(np.arange(COLUMNS) % 60 == 7, -1e6, 1.0),
    "all equal": np.full(COLUMNS, -0.25),
    "zeros": np.zeros(COLUMNS),
    "tiny": np.full(COLUMNS, 1e-30),
    "huge": np.where(np.arange(COLUMNS) % 2, 3e38, -3e38),
}


@pytest.mark.parametrize("row", EXTREME_ROWS.values(), ids=EXTREME_ROWS)
def test_extreme_row_has_integers_within_their_bounds_and_disturbs_no_other(row: Floats) -> None:
    matrix, weight = Int16Matrix("a", ROWS, COLUMNS, has_bias=False), draw()
    expected = write(matrix, weight)
    weight[5] = row
    arrays = write(matrix, weight)
    norms, peaks = norms_and_peaks(arrays, "a")
    assert norms[5] <= LARGEST_NORM
    assert peaks[5] <= LARGEST_INTEGER
    unpacked, steps = unpack_rows(arrays, "a", COLUMNS)
    assert np.isfinite(unpacked).all()
    assert (np.abs(unpacked[5].astype(np.float64) - row) <= 0.51 * steps[5]).all()
    if row.any():
        assert peaks[5] == LARGEST_INTEGER or norms[5] >= 0.99 * 46_000
    else:
        assert not unpacked[5].any()
        assert steps[5] == 0
    others = np.arange(len(unpacked)) != 5
    np.testing.assert_array_equal(unpacked[others], unpack_rows(expected, "a", COLUMNS)[0][others])
