"""Languages by any name or tag, and texts in either script of Chinese and of Serbian."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.errors import OptionError
from harken.text import LANGUAGES, from_language_tag, script_named, to_language_code
from harken.text.languages import TAGS

SPELLINGS = {
    "en": " ENGLISH |en-US|EN_us.UTF-8|en-GB",
    "de": "ger|deu| German |German",
    "pt": "pt_BR|pt_BR.UTF-8",
    "zh": "zh|mandarin",
    "zh-Hans": "zh-Hans-CN|zh-Hans-HK|chinese-hans",
    "zh-Hant": "zh-Hant|zh_TW|cmn-Hant",
    "yue-Hant": "yue-HK",
    "sr": "sr-RS",
    "sr-Latn": "sr_Latn|sr_RS@latin",
    "sr-Cyrl": "SR-cyrl",
    **{"es": "castilian", "ht": "Haitian Creole", "jw": "jv", "no": "nb-NO", "he": "iw", "haw": "haw"},
    **{"tl": "fil-PH", "uz": "uz-Latn"},
}


def test_languages_are_known_by_code_name_alias_and_tag():
    for found, spellings in SPELLINGS.items():
        for spelling in spellings.split("|"):
            assert from_language_tag(spelling) == found, spelling
            assert to_language_code(spelling) == found.partition("-")[0], spelling
    for code, name in LANGUAGES.items():
        assert to_language_code(code) == to_language_code(name) == from_language_tag(f"{code}-XX") == code
    assert len(LANGUAGES) == 100
    assert TAGS.keys().isdisjoint(LANGUAGES)
    assert LANGUAGES.keys() >= {*TAGS.values()}
    for anything in (None, "auto", "und", "multi", "", "  ", "*", "mul-Latn"):
        assert from_language_tag(anything) is None


def test_unknown_language_is_refused_with_the_nearest_and_the_allowed():
    with pytest.raises(OptionError, match=r"language='Germn': .*\byue\b.*nearest: de \(german\)") as caught:
        to_language_code("Germn")
    assert caught.value.field == "language"
    assert "\n" not in str(caught.value)
    for spelling in ("", "klingon", "xx", "<|en|>", "tlh-XX", "Hant"):
        with pytest.raises(OptionError, match="allowed is one of en"):
            to_language_code(spelling)
        if spelling:
            with pytest.raises(OptionError, match="allowed is one of en"):
                from_language_tag(spelling)


# --- scripts -----------------------------------------------------------------------------------------------

SCRIPTS = {"zh": ("Hans", "Hant"), "sr": ("Cyrl", "Latn")}
TEXTS = [
    ("zh", "以后皇后的头发", "以後皇后的頭髮"),
    ("zh", "发现了一台台式计算机", "發現了一臺臺式計算機"),
    ("zh", "他里里外外都很干净", "他裡裡外外都很乾淨"),
    ("zh", "过去三十年中国经济的高速发展", "過去三十年中國經濟的高速發展"),
    ("zh", "Let It Go，第3首", "Let It Go，第3首"),
    ("sr", "Љубав и њива, Џеп", "Ljubav i njiva, Džep"),
    ("sr", "ЉУБАВ КОЊ ЏАМИЈА", "LJUBAV KONJ DŽAMIJA"),
    ("sr", "Ђорђе, где је Ћира?", "Đorđe, gde je Ćira?"),
    ("sr", "инјекција и Конјункција", "injekcija i Konjunkcija"),
    ("sr", "Надживео је НАДЖИВЕЛЕ, а оџак", "Nadživeo je NADŽIVELE, a odžak"),
]


def written(text, language, script, *, unfinished=False):
    changes = script_named(language, script).changes(text, unfinished=unfinished)
    for start, end, after in reversed([*changes]):
        text = text[:start] + after + text[end:]
    return text


@pytest.mark.parametrize(("language", "first", "second"), TEXTS)
def test_a_text_is_written_in_either_script(language, first, second):
    for script, expected in zip(SCRIPTS[language], (first, second), strict=True):
        for text in (first, second):
            assert written(text, language, script) == expected


def test_words_with_letters_that_serbian_lacks_stay_and_forms_of_taiwan_are_traditional():
    assert written("Windows i YouTube rade", "sr", "Cyrl") == "Windows и YouTube раде"
    assert written("为什么里面", "zh", "Hant") == "為什麼裡面"
    assert written("头发", "zh", "Hant", unfinished=True) == "頭發"  # letter by letter


@given(st.text("后皇头发里干系统了解台面 a"), st.text("后皇头发里干系统了解台面 a"))
def test_what_follows_does_not_change_an_unfinished_chinese_text(text, following):
    for script in SCRIPTS["zh"]:
        whole = written(text + following, "zh", script, unfinished=True)
        assert whole.startswith(written(text, "zh", script, unfinished=True))
        assert len(whole) == len(text + following)


@given(st.text("абвљњџЉЊЏdžnjljDŽNJLJšć "))
def test_serbian_letters_of_the_other_alphabet_are_gone(text):
    assert not {*written(text, "sr", "Latn")} & {*"абвљњџЉЊЏ"}
    assert not {*written(text, "sr", "Cyrl")} & {*"džnjljDŽNJLJšć"}
