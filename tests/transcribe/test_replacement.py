"""Words that are always written otherwise."""

from itertools import pairwise

import pytest

from harken.errors import OptionError
from harken.transcribe import TranscribeOptions
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
    *("ſ = s", "x = ex"),
    "north sea = Nordic Ocean",
    "राम = Ram",
    "โรงเรียน = Schule",
    "Andre\u0301 = Andrée",
)
TEXTS = {
    " Harkin's harkin, HARKIN!": " Harken's Harken, HARKEN!",
    " Open  AI, open ai and reopen air": " OpenAI, OpenAI and reopen air",
    " New York, the New York Times": " New York City, the NYT",
    " Colour of the colours COLOUR": " Color of the colours COLOR",
    " My I phone, i phone I Phone GPT": " My iPhone, iPhone iPhone ChatGPT",
    " 看完三星的": " 看完3星的",
    " (ab) ab-ab": " (a b) a b-a b",
    " nothing X of the North Sea": " nothing Ex of the Nordic Ocean",
    " राम रामा अराम": " Ram रामा अराम",
    " ฉันไปโรงเรียนทุกวัน": " ฉันไปSchuleทุกวัน",
    " Andr\xe9 Andre\u0301": " Andrée Andrée",
}


def said(text):
    """Return a segment whose words, a second each, have the punctuation around them."""
    return spoken(*((second, second + 1, f" {part}") for second, part in enumerate(text.split(" ")[1:])))


@pytest.mark.parametrize("text", TEXTS)
def test_words_are_replaced_in_text_and_words_whose_times_stay_in_order(text):
    before = said(text)
    after = Replacements(LINES).apply(before)
    assert after.text == "".join(word.text for word in after.words) == TEXTS[text]
    assert all(word.end_s <= following.start_s for word, following in pairwise(after.words))
    assert (after.words[0].start_s, after.words[-1].end_s) == (0, before.words[-1].end_s)
    if len(after.words) == len(before.words):
        assert [word.start_s for word in after.words] == [word.start_s for word in before.words]
    assert Replacements(LINES).apply(segment(0, 1, text)).text == TEXTS[text]


@pytest.mark.parametrize("line", ["harken", "harkin =", "= Harken", "a = b\nA = c"])
def test_a_line_that_is_no_replacement_is_refused(line):
    with pytest.raises(OptionError, match="replace="):
        Replacements([line])


def test_a_segment_is_written_in_the_script_of_its_language_and_then_replaced():
    chinese = spoken(
        *((i, i + 1, character) for i, character in enumerate("以后皇后发现")), language="zh", tokens=(5, 6)
    )
    options = TranscribeOptions(languages=("zh-Hant", "sr-Cyrl", "en"), replace=("皇后 = 女王",))
    after = options.replacements().apply(chinese)
    assert after.text == "".join(word.text for word in after.words) == "以後女王發現"
    assert (after.words[1].start_s, after.words[-1].end_s, after.tokens) == (1, 6, (5, 6))
    serbian = spoken((0, 1, " Ljubav"), (1, 3, " njiva."), language="sr")
    after = options.replacements().apply(serbian)
    assert (after.text, [word.text for word in after.words]) == (" Љубав њива.", [" Љубав", " њива."])
    # Not a text in another language, and no translation.
    translating = TranscribeOptions(language="sr-Cyrl", task="translate")
    for others, language in ((options, "en"), (translating, "sr")):
        english = spoken((0, 1, " Love"), language=language)
        assert others.replacements().apply(english) == english
