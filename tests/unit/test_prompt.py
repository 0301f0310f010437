"""Prompts: previous text, the start sequence, a forced beginning, and what fits."""

from __future__ import annotations

import pytest

from harken.decoding import make_prompt
from harken.errors import OptionError
from harken.text import Tokenizer
from models import TOKENIZER

ENGLISH = Tokenizer.bytes_only(1, multilingual=False)
N_CTX = 448


def prompt(**changes: object) -> tuple[int, ...]:
    options = {"language": "de", "task": "transcribe", "timestamps": True} | changes
    return make_prompt(TOKENIZER, N_CTX, **options)


DE = TOKENIZER.language_tokens["de"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (TOKENIZER.sot, DE, TOKENIZER.transcribe)),
        ({"task": "translate"}, (TOKENIZER.sot, DE, TOKENIZER.translate)),
        ({"timestamps": False}, (TOKENIZER.sot, DE, TOKENIZER.transcribe, TOKENIZER.no_timestamps)),
        ({"previous": (65, 66)}, (TOKENIZER.sot_prev, 65, 66, TOKENIZER.sot, DE, TOKENIZER.transcribe)),
        ({"prefix": (65, 66)}, (TOKENIZER.sot, DE, TOKENIZER.transcribe, 65, 66)),
        (
            {"previous": [7], "prefix": [8], "timestamps": False},
            (TOKENIZER.sot_prev, 7, TOKENIZER.sot, DE, TOKENIZER.transcribe, TOKENIZER.no_timestamps, 8),
        ),
    ],
)
def test_parts_in_their_order(changes: dict[str, object], expected: tuple[int, ...]) -> None:
    assert prompt(**changes) == expected


def test_english_only_vocabularies_name_neither_language_nor_task() -> None:
    options = {"language": None, "task": "transcribe"}
    assert make_prompt(ENGLISH, N_CTX, timestamps=True, **options) == (ENGLISH.sot,)
    assert make_prompt(ENGLISH, N_CTX, timestamps=False, **options) == (ENGLISH.sot, ENGLISH.no_timestamps)


def test_previous_text_loses_its_oldest_tokens() -> None:
    text = [i % 256 for i in range(1000)]
    made = prompt(previous=text)
    assert made[1 : made.index(TOKENIZER.sot)] == tuple(text[-(N_CTX // 2 - 1) :])


def test_previous_text_of_just_the_right_length_is_kept() -> None:
    text = [i % 256 for i in range(N_CTX // 2 - 1)]
    assert prompt(previous=text)[1 : len(text) + 1] == tuple(text)


@pytest.mark.parametrize("n_previous", [0, 1, 222, 223, 224, 900])
@pytest.mark.parametrize("n_prefix", [0, 1, 219, 220, 221, 223, 224, 900])
@pytest.mark.parametrize("timestamps", [True, False])
def test_whatever_is_given_a_token_can_follow(n_previous: int, n_prefix: int, timestamps: bool) -> None:
    made = prompt(previous=[65] * n_previous, prefix=[66] * n_prefix, timestamps=timestamps)
    assert len(made) <= N_CTX
    assert made.count(66) >= min(n_prefix, N_CTX // 2 - 4)


@pytest.mark.parametrize(
    "changes", [{"language": "xx"}, {"language": None}, {"task": "sing"}], ids=lambda changes: str(changes)
)
def test_unknown_language_or_task(changes: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(changes))):
        prompt(**changes)
