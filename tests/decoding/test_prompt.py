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


def context(**changes: object) -> tuple[int, ...]:
    """Return the tokens between <|startofprev|> and <|startoftranscript|>."""
    made = prompt(**changes)
    assert made[0] == TOKENIZER.sot_prev
    return made[1 : made.index(TOKENIZER.sot)]


DE = TOKENIZER.language_tokens["de"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (TOKENIZER.sot, DE, TOKENIZER.transcribe)),
        ({"task": "translate"}, (TOKENIZER.sot, DE, TOKENIZER.translate)),
        ({"timestamps": False}, (TOKENIZER.sot, DE, TOKENIZER.transcribe, TOKENIZER.no_timestamps)),
        ({"previous_tokens": (65, 66)}, (TOKENIZER.sot_prev, 65, 66, TOKENIZER.sot, DE, TOKENIZER.transcribe)),
        (
            {"initial_prompt_tokens": (65, 66)},
            (TOKENIZER.sot_prev, 65, 66, TOKENIZER.sot, DE, TOKENIZER.transcribe),
        ),
        (
            {"initial_prompt_tokens": [8], "previous_tokens": [7], "timestamps": False},
            (TOKENIZER.sot_prev, 8, 7, TOKENIZER.sot, DE, TOKENIZER.transcribe, TOKENIZER.no_timestamps),
        ),
    ],
)
def test_prompt_parts_are_in_order(changes: dict[str, object], expected: tuple[int, ...]) -> None:
    assert prompt(**changes) == expected


def test_english_only_prompt_has_no_language_or_task() -> None:
    options = {"language": None, "task": "transcribe"}
    assert make_prompt(ENGLISH, N_CTX, timestamps=True, **options) == (ENGLISH.sot,)
    assert make_prompt(ENGLISH, N_CTX, timestamps=False, **options) == (ENGLISH.sot, ENGLISH.no_timestamps)


@pytest.mark.parametrize("n", [ROOM - 1, ROOM, ROOM + 1, 1000])
def test_previous_text_loses_its_oldest_tokens(n: int) -> None:
    text = tuple(i % 256 for i in range(n))
    assert context(previous_tokens=text) == text[-ROOM:]


@pytest.mark.parametrize("n", [1, 100, ROOM - 1])
def test_initial_prompt_stays_and_previous_text_is_cut(n: int) -> None:
    text = tuple(i % 250 for i in range(1000))
    assert context(initial_prompt_tokens=[255] * n, previous_tokens=text) == (255,) * n + text[n - ROOM :]


@pytest.mark.parametrize("n", [ROOM, ROOM + 1, 1000])
def test_initial_prompt_may_leave_no_room_for_previous_text(n: int) -> None:
    text = tuple(i % 250 for i in range(n))
    assert context(initial_prompt_tokens=text, previous_tokens=[255] * 9) == text[-ROOM:]


@pytest.mark.parametrize("n_initial", [0, 1, 222, 223, 224, 900])
@pytest.mark.parametrize("n_previous", [0, 1, 222, 223, 224, 900])
@pytest.mark.parametrize("timestamps", [True, False])
def test_prompt_leaves_half_the_context(n_initial: int, n_previous: int, timestamps: bool) -> None:
    made = prompt(
        initial_prompt_tokens=[65] * n_initial, previous_tokens=[66] * n_previous, timestamps=timestamps
    )
    start = TOKENIZER.sot_sequence("de", timestamps=timestamps)
    assert len(made) - len(start) <= N_CTX // 2
    assert made[-len(start) :] == start


@pytest.mark.parametrize(
    "changes", [{"language": "xx"}, {"language": None}, {"task": "sing"}], ids=lambda changes: str(changes)
)
def test_unknown_language_or_task_is_an_error(changes: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(changes))):
        prompt(**changes)
