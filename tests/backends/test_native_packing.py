"""The packed layers of the native backend: integers and their scales, and the order in which they are stored."""

from __future__ import annotations

import numpy as np
import pytest

from harken.backends.native.packing import (
    BLOCK,
    GROUP,
    LARGEST_NORM,
    from_bfloat16,
    pack_integers,
    pack_pairs,
    pack_scales,
    padded_rows,
    quantise,
    quantise_rows,
    to_bfloat16,
)
from harken.contract import Floats

ROWS, COLUMNS = 3 * GROUP, 3 * BLOCK
LIMITS = {8: (-127, 127), 4: (-8, 7)}


@pytest.fixture(scope="module")
def weight() -> Floats:
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((ROWS, COLUMNS)) * np.exp(2 * rng.standard_normal((ROWS, 1)))).astype(
        np.float32
    )
    weight[5, BLOCK : 2 * BLOCK] = 0
    return weight


@pytest.mark.parametrize("bits", [8, 4])
def test_weights_are_the_nearest_multiples_of_the_scale_of_their_block(weight: Floats, bits: int) -> None:
    integers, scales = quantise(weight, bits)
    smallest, largest = LIMITS[bits]
    assert integers.dtype == np.int8
    assert smallest == integers.min()
    assert integers.max() <= largest
    for row in range(ROWS):
        for column in range(COLUMNS):
            scale = from_bfloat16(scales[row : row + 1, column // BLOCK])[0]
            clipped = np.clip(weight[row, column], *sorted((smallest * scale, largest * scale)))
            assert abs(integers[row, column] * scale - clipped) <= abs(scale) / 2 * (1 + 1e-6)


def test_eight_bits_reach_the_largest_magnitude_of_a_block(weight: Floats) -> None:
    integers, scales = quantise(weight, 8)
    blocks = np.abs(weight.reshape(ROWS, -1, BLOCK)).max(axis=2)
    used = blocks > 0
    reached = np.abs(integers.reshape(ROWS, -1, BLOCK)).max(axis=2)
    assert reached[used].min() >= 126  # the scale is rounded up by at most 1 in 128
    assert (from_bfloat16(scales)[used] * 127 >= blocks[used]).all()


def test_four_bits_give_the_largest_magnitude_the_integer_without_a_counterpart(weight: Floats) -> None:
    integers, scales = quantise(weight, 4)
    blocks = weight.reshape(ROWS, -1, BLOCK)
    peaks = np.abs(blocks).argmax(axis=2)[..., None]
    chosen = np.take_along_axis(integers.reshape(ROWS, -1, BLOCK), peaks, axis=2)[..., 0]
    used = np.take_along_axis(blocks, peaks, axis=2)[..., 0] != 0
    assert (chosen[used] == -8).all()
    assert (from_bfloat16(scales) < 0).any()


@pytest.mark.parametrize("bits", [8, 4])
def test_block_of_zeros_stays_zero(weight: Floats, bits: int) -> None:
    integers, scales = quantise(weight, bits)
    assert not integers[5, BLOCK : 2 * BLOCK].any()
    assert scales[5, 1] & 0x7FFF == 0


def test_bfloat16_is_rounded_away_from_zero() -> None:
    values = np.array([0, 1, -1, 1.001, -1.001, 3e-30, 1 / 3], np.float32)
    rounded = from_bfloat16(to_bfloat16(values))
    assert rounded[:3].tolist() == [0, 1, -1]
    assert (np.abs(rounded) >= np.abs(values)).all()
    np.testing.assert_allclose(rounded, values, rtol=2**-7)


def test_integers_of_8_bits_lie_in_runs_of_four_columns_of_sixteen_rows(weight: Floats) -> None:
    integers, _ = quantise(weight, 8)
    packed = pack_integers(integers, 8)
    assert packed.shape == (ROWS // GROUP, COLUMNS // 4, GROUP, 4)
    assert packed.flags.c_contiguous
    for row in range(ROWS):
        for column in range(COLUMNS):
            assert packed[row // GROUP, column // 4, row % GROUP, column % 4] == integers[row, column]


def test_integers_of_4_bits_share_a_byte_with_the_column_four_further(weight: Floats) -> None:
    integers, _ = quantise(weight, 4)
    packed = pack_integers(integers, 4)
    assert packed.shape == (ROWS // GROUP, COLUMNS // 8, GROUP, 4)
    assert packed.dtype == np.uint8
    for row in range(ROWS):
        for column in range(COLUMNS):
            byte = packed[row // GROUP, column // 8, row % GROUP, column % 4]
            half = byte >> 4 if column % 8 >= 4 else byte & 15
            assert int(half) - 8 == integers[row, column]


def test_scales_of_sixteen_rows_lie_side_by_side(weight: Floats) -> None:
    _, scales = quantise(weight, 8)
    packed = pack_scales(scales)
    assert packed.shape == (ROWS // GROUP, COLUMNS // BLOCK, GROUP)
    for row in range(ROWS):
        for block in range(COLUMNS // BLOCK):
            assert packed[row // GROUP, block, row % GROUP] == scales[row, block]


def test_integers_of_16_bits_are_the_nearest_multiples_of_the_scale_of_their_row(weight: Floats) -> None:
    integers, scales = quantise_rows(weight)
    assert (integers.dtype, scales.dtype, scales.shape) == (np.int16, np.float32, (ROWS,))
    error = np.abs(integers * scales[:, None].astype(np.float64) - weight)
    assert (error <= 0.5001 * scales[:, None]).all()


def test_rows_of_16_bits_reach_the_largest_norm_or_the_largest_integer(weight: Floats) -> None:
    weight = weight.copy()
    weight[3, 7] = 1e6  # that large only this number can be
    integers, _ = quantise_rows(weight)
    norms, peaks = np.linalg.norm(integers.astype(np.float64), axis=1), np.abs(integers.astype(int)).max(axis=1)
    assert norms.max() < LARGEST_NORM + np.sqrt(COLUMNS) / 2
    assert peaks.max() == peaks[3] == 32767
    np.testing.assert_allclose(np.delete(norms, 3), LARGEST_NORM, rtol=1e-4)


def test_row_of_zeros_stays_zero_in_16_bits(weight: Floats) -> None:
    integers, scales = quantise_rows(np.concatenate([np.zeros_like(weight[:1]), weight]))
    assert not integers[0].any()
    assert scales[0] == 0
    np.testing.assert_array_equal(integers[1:], quantise_rows(weight)[0])


def test_integers_of_16_bits_lie_in_pairs_of_columns_of_sixteen_rows(weight: Floats) -> None:
    integers, _ = quantise_rows(weight)
    packed = pack_pairs(integers)
    assert packed.shape == (ROWS // GROUP, COLUMNS // 2, GROUP, 2)
    assert packed.dtype == np.int16
    assert packed.flags.c_contiguous
    for row in range(ROWS):
        for column in range(COLUMNS):
            assert packed[row // GROUP, column // 2, row % GROUP, column % 2] == integers[row, column]


@pytest.mark.parametrize(("rows", "padded"), [(1, 16), (16, 16), (17, 32), (51864, 51872)])
def test_rows_are_padded_to_whole_groups(rows: int, padded: int) -> None:
    assert padded_rows(rows) == padded
