"""Prompts: carried and previous text, the start sequence, and what fits."""

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


def before(**changes: object) -> tuple[int, ...]:
    """What stands between the two starts."""
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
def test_parts_in_their_order(changes: dict[str, object], expected: tuple[int, ...]) -> None:
    assert prompt(**changes) == expected


def test_english_only_vocabularies_name_neither_language_nor_task() -> None:
    options = {"language": None, "task": "transcribe"}
    assert make_prompt(ENGLISH, N_CTX, timestamps=True, **options) == (ENGLISH.sot,)
    assert make_prompt(ENGLISH, N_CTX, timestamps=False, **options) == (ENGLISH.sot, ENGLISH.no_timestamps)


@pytest.mark.parametrize("n", [ROOM - 1, ROOM, ROOM + 1, 1000])
def test_previous_text_loses_its_oldest_tokens(n: int) -> None:
    text = tuple(i % 256 for i in range(n))
    assert before(previous_tokens=text) == text[-ROOM:]


@pytest.mark.parametrize("n", [1, 100, ROOM - 1])
def test_what_is_carried_stays_and_the_previous_text_has_what_is_left(n: int) -> None:
    text = tuple(i % 250 for i in range(1000))
    assert before(initial_prompt_tokens=[255] * n, previous_tokens=text) == (255,) * n + text[n - ROOM :]


@pytest.mark.parametrize("n", [ROOM, ROOM + 1, 1000])
def test_what_is_carried_may_leave_no_room(n: int) -> None:
    text = tuple(i % 250 for i in range(n))
    assert before(initial_prompt_tokens=text, previous_tokens=[255] * 9) == text[-ROOM:]


@pytest.mark.parametrize("n_carried", [0, 1, 222, 223, 224, 900])
@pytest.mark.parametrize("n_previous", [0, 1, 222, 223, 224, 900])
@pytest.mark.parametrize("timestamps", [True, False])
def test_whatever_is_given_half_the_context_is_left(n_carried: int, n_previous: int, timestamps: bool) -> None:
    made = prompt(
        initial_prompt_tokens=[65] * n_carried, previous_tokens=[66] * n_previous, timestamps=timestamps
    )
    start = TOKENIZER.sot_sequence("de", timestamps=timestamps)
    assert len(made) - len(start) <= N_CTX // 2
    assert made[-len(start) :] == start


@pytest.mark.parametrize(
    "changes", [{"language": "xx"}, {"language": None}, {"task": "sing"}], ids=lambda changes: str(changes)
)
def test_unknown_language_or_task(changes: dict[str, object]) -> None:
    with pytest.raises(OptionError, match=next(iter(changes))):
        prompt(**changes)
