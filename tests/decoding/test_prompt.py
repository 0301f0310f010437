"""Tests of the prompt: initial and previous text, the start sequence, and what fits."""

from __future__ import annotations

import pytest

from harken.decoding import make_prompt
from harken.errors import OptionError
from harken.text import Tokenizer
from tiny_models import TOKENIZER

ENGLISH = Tokenizer.bytes_only(1, multilingual=False)
N_CTX = 448
ROOM = N_CTX // 2 - 1


def prompt(**changes: object) -> tuple[int, ...]:
    options = {"language": "de", "task": "transcribe", "timestamps": True} | changes
    return make_prompt(TOKENIZER, N_CTX, **options)


DE = TOKENIZER.language_tokens["de"]


START = (TOKENIZER.sot, DE, TOKENIZER.transcribe)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, START),
        ({"task": "translate"}, (TOKENIZER.sot, DE, TOKENIZER.translate)),
        ({"timestamps": False}, (*START, TOKENIZER.no_timestamps)),
        (
            {"initial_prompt_tokens": [8], "previous_tokens": [7], "timestamps": False},
            (TOKENIZER.sot_prev, 8, 7, *START, TOKENIZER.no_timestamps),
        ),
    ],
)
def test_prompt_parts_are_in_order(changes: dict[str, object], expected: tuple[int, ...]) -> None:
    assert prompt(**changes) == expected


def test_english_only_prompt_has_no_language_or_task() -> None:
    options = {"language": None, "task": "transcribe"}
    assert make_prompt(ENGLISH, N_CTX, timestamps=True, **options) == (ENGLISH.sot,)
    assert make_prompt(ENGLISH, N_CTX, timestamps=False, **options) == (ENGLISH.sot, ENGLISH.no_timestamps)


@pytest.mark.parametrize("n_initial", [0, 1, ROOM - 1, ROOM, 900])
@pytest.mark.parametrize("n_previous", [0, 1, ROOM - 1, ROOM, 900])
@pytest.mark.parametrize("timestamps", [True, False])
def test_initial_prompt_stays_and_previous_text_loses_its_oldest_tokens(
    n_initial: int, n_previous: int, timestamps: bool
) -> None:
    """What stands before the start sequence takes half the context."""
    initial, previous = (
        tuple(i % 250 + offset for i in range(n)) for n, offset in ((n_initial, 0), (n_previous, 5))
    )
    made = prompt(initial_prompt_tokens=initial, previous_tokens=previous, timestamps=timestamps)
    kept_initial = initial[-ROOM:]
    n_kept = min(n_previous, ROOM - len(kept_initial))
    text = (*kept_initial, *previous[n_previous - n_kept :])
    start = TOKENIZER.sot_sequence("de", timestamps=timestamps)
    assert made == (*((TOKENIZER.sot_prev, *text) if text else ()), *start)


@pytest.mark.parametrize(
    "changes", [{"language": "xx"}, {"language": None}, {"task": "sing"}], ids=lambda changes: str(changes)
)
def test_unknown_language_or_task_is_an_error(changes: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(changes))):
        prompt(**changes)
