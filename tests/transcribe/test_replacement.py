"""Words that are always written otherwise."""

from __future__ import annotations

from itertools import pairwise

import pytest

from harken.errors import OptionError
from harken.results import Segment
from harken.transcribe.replacement import Replacements
from transcripts import segment, spoken

LINES = (
    "# names\n\nharkin = Harken",
    "open ai = OpenAI",
    "new york = New York City",
    "new york times = NYT",
    "colour = color",
    "I phone = iPhone",
    "GPT = ChatGPT",
    "三星 = 3星",
    "ab = a b",
    "ſ = s",
)
TEXTS = {
    " Harkin's harkin, HARKIN!": " Harken's Harken, HARKEN!",
    " Open  AI, open ai and reopen air": " OpenAI, OpenAI and reopen air",
    " New York, the New York Times": " New York City, the NYT",
    " Colour of the colours COLOUR": " Color of the colours COLOR",
    " My I phone, i phone GPT": " My iPhone, iPhone ChatGPT",
    " 看完三星的": " 看完3星的",
    " (ab) ab-ab": " (a b) a b-a b",
    " nothing": " nothing",
}


def said(text: str) -> Segment:
    """Return a segment whose words, a second each, have the punctuation around them."""
    return spoken(*((second, second + 1, f" {part}") for second, part in enumerate(text.split(" ")[1:])))


@pytest.mark.parametrize("text", TEXTS)
def test_words_are_replaced_in_text_and_words_whose_times_stay_in_order(text: str) -> None:
    before = said(text)
    after = Replacements(LINES).apply(before)
    assert after.text == "".join(word.text for word in after.words) == TEXTS[text]
    assert all(word.end_s <= following.start_s for word, following in pairwise(after.words))
    assert (after.words[0].start_s, after.words[-1].end_s) == (0, before.words[-1].end_s)
    unchanged = [word for word in before.words if word.text in TEXTS[text].split()]
    assert {*unchanged} <= {*after.words}
    assert Replacements(LINES).apply(segment(0, 1, text)).text == TEXTS[text]


@pytest.mark.parametrize("line", ["harken", "harkin =", "= Harken", "a = b\nA = c"])
def test_a_line_that_is_no_replacement_is_refused(line: str) -> None:
    with pytest.raises(OptionError, match="replace="):
        Replacements([line])
