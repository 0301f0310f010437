"""Chinese in simplified and traditional characters, Serbian in Latin and Cyrillic letters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.text import script_named

CHINESE = {
    "以后皇后的头发": "以後皇后的頭髮",
    "发现了一台台式计算机": "發現了一臺臺式計算機",
    "他里里外外都很干净": "他裡裡外外都很乾淨",
    "过去三十年中国经济的高速发展": "過去三十年中國經濟的高速發展",
    "Let It Go，第3首": "Let It Go，第3首",
}
SERBIAN = {
    "Љубав и њива, Џеп": "Ljubav i njiva, Džep",
    "ЉУБАВ КОЊ ЏАМИЈА": "LJUBAV KONJ DŽAMIJA",
    "Ђорђе, где је Ћира?": "Đorđe, gde je Ćira?",
    "инјекција и Конјункција": "injekcija i Konjunkcija",
    "Надживео је НАДЖИВЕЛЕ, а оџак": "Nadživeo je NADŽIVELE, a odžak",
}


def written(text: str, language: str, script: str, *, unfinished: bool = False) -> str:
    changes = script_named(language, script).changes(text, unfinished=unfinished)
    for start, end, after in reversed([*changes]):
        text = text[:start] + after + text[end:]
    return text


@pytest.mark.parametrize("simplified", CHINESE)
def test_chinese_is_written_in_either_script_as_its_phrases_are(simplified: str) -> None:
    traditional = CHINESE[simplified]
    assert written(simplified, "zh", "Hant") == written(traditional, "zh", "Hant") == traditional
    assert written(traditional, "zh", "Hans") == written(simplified, "zh", "Hans") == simplified


@pytest.mark.parametrize("cyrillic", SERBIAN)
def test_serbian_is_written_in_either_alphabet(cyrillic: str) -> None:
    latin = SERBIAN[cyrillic]
    assert written(cyrillic, "sr", "Latn") == written(latin, "sr", "Latn") == latin
    assert written(latin, "sr", "Cyrl") == written(cyrillic, "sr", "Cyrl") == cyrillic


def test_words_with_letters_that_serbian_lacks_stay_latin() -> None:
    assert written("Windows i YouTube rade", "sr", "Cyrl") == "Windows и YouTube раде"


def test_forms_of_taiwan_are_traditional() -> None:
    assert written("为什么里面", "zh", "Hant") == "為什麼裡面"


@given(st.text("后皇头发里干系统了解台面 a"), st.text("后皇头发里干系统了解台面 a"))
def test_what_follows_does_not_change_an_unfinished_chinese_text(text: str, following: str) -> None:
    for script in ("Hans", "Hant"):
        whole = written(text + following, "zh", script, unfinished=True)
        assert whole.startswith(written(text, "zh", script, unfinished=True))
        assert len(whole) == len(text + following)


@given(st.text("абвљњџЉЊЏdžnjljDŽNJLJšć "))
def test_serbian_letters_of_the_other_alphabet_are_gone(text: str) -> None:
    assert not {*written(text, "sr", "Latn")} & {*"абвљњџЉЊЏ"}
    assert not {*written(text, "sr", "Cyrl")} & {*"džnjljDŽNJLJšć"}
