"""How much of a hypothesis is committed, as a table."""

from __future__ import annotations

import numpy as np
import pytest

from harken.streaming.config import StreamingConfig
from harken.streaming.utterance import stable_prefix_length


def count(
    tokens: str,
    places: list[int],
    lengths: list[int],
    *earlier: str,
    positions: int = 100,
    hold_frames: int = 40,
    agreement: int = 1,
) -> int:
    """How many tokens are settled; a letter is a token."""
    setting = StreamingConfig(commit_delay_frames=hold_frames, local_agreement=agreement)
    return stable_prefix_length(
        [*map(ord, tokens)],
        np.array(places, np.int64),
        lengths,
        [[*map(ord, its)] for its in earlier],
        positions,
        setting,
    )


@pytest.mark.parametrize(
    ("tokens", "places", "lengths", "expected"),
    [
        # hold: the next word begins 20 positions before the end, or earlier
        ("abc", [10, 30, 60, 80], [1, 1, 1], 3),
        ("abc", [10, 30, 60, 81], [1, 1, 1], 2),
        ("abc", [10, 70, 81, 90], [1, 1, 1], 1),
        ("abc", [60, 81, 90, 95], [1, 1, 1], 0),
        # a pause behind a word is not part of it
        ("abc", [10, 55, 90, 95], [1, 1, 1], 2),
        ("abc", [10, 56, 90, 95], [1, 1, 1], 1),
        ("abc", [80, 80, 80, 80], [1, 1, 1], 3),
        ("abc", [81, 81, 81, 81], [1, 1, 1], 0),
        # whole words: where a token of the word behind it begins does not help
        ("abcd", [10, 20, 30, 81, 90], [2, 2], 2),
        ("abcd", [10, 20, 30, 70, 81], [2, 2], 2),
        ("abcd", [10, 20, 30, 40, 80], [2, 2], 4),
        ("abcd", [10, 20, 30, 70, 81], [4], 0),
        ("abcd", [10, 20, 30, 40, 80], [4], 4),
        ("abcd", [10, 20, 30, 90, 91], [1, 3], 1),
        # nothing is said
        ("", [0], [], 0),
        ("", [100], [], 0),
    ],
)
def test_whole_words_with_sound_behind_them(tokens: str, places: list[int], lengths: list[int], expected: int):
    assert count(tokens, places, lengths) == expected


@pytest.mark.parametrize(
    ("hold_frames", "positions", "expected"),
    [
        (0, 100, 4),
        (0, 94, 3),
        (12, 100, 3),
        (13, 100, 3),
        (20, 100, 3),
        (22, 100, 3),
        (32, 100, 2),
        (200, 100, 0),
        (40, 50, 1),
    ],
)
def test_the_hold_is_counted_in_frames_from_the_end_of_the_sound(
    hold_frames: int, positions: int, expected: int
):
    places = [10, 30, 60, 90, 95]
    found = count("abcd", places, [1] * 4, positions=positions, hold_frames=hold_frames)
    assert found == expected


@pytest.mark.parametrize(
    ("agreement", "earlier", "expected"),
    [
        (1, [], 4),
        (1, ["xyzw"], 4),
        (2, [], 0),
        (2, ["abcd"], 4),
        (2, ["abcdef"], 4),
        (2, ["abc"], 2),
        (2, ["abxd"], 2),
        (2, ["axcd"], 0),
        (2, ["xbcd"], 0),
        (2, [""], 0),
        (2, ["abcd", "xyzw"], 4),
        (3, ["abcd"], 0),
        (3, ["abcd", "abcd"], 4),
        (3, ["abcd", "abxd"], 2),
        (3, ["abxd", "abcd"], 2),
        (3, ["abcd", "abcd", "xyzw"], 4),
    ],
)
def test_as_many_hypotheses_in_a_row_say_it(agreement: int, earlier: list[str], expected: int):
    """Of words of two tokens each, of which half a word is none."""
    assert count("abcd", [0, 10, 20, 30, 40], [2, 2], *earlier, agreement=agreement) == expected


def test_both_have_to_hold():
    places = [0, 60, 81, 85, 90]
    assert count("abcd", places, [1] * 4, "abxd", agreement=2) == 1
    assert count("abcd", places, [1] * 4, "xbcd", agreement=2) == 0
    assert count("abcd", [0, 10, 20, 30, 40], [1] * 4, "abcx", agreement=2) == 3
