"""The tokenizer on small and real vocabularies: special tokens, languages, prompts, words, incremental decoding."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harken.errors import CheckpointError, OptionError
from harken.text import (
    LANGUAGES,
    IncrementalDetokenizer,
    Tokenizer,
    TokenKind,
    from_language_tag,
    to_language_code,
)
from harken.text.bpe import pretokenize
from harken.text.languages import TAGS


@pytest.fixture(scope="module")
def english() -> Tokenizer:
    return Tokenizer.builtin(51864)


@pytest.fixture(scope="module")
def multilingual() -> Tokenizer:
    return Tokenizer.builtin(51865)


def test_bytes_only_vocabulary_has_the_real_layout() -> None:
    tokenizer = Tokenizer.bytes_only(n_languages=3)
    names = [tokenizer.describe_token(token) for token in range(256, tokenizer.n_vocab)]
    assert names[:13] == [
        *("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|zh|>", "<|de|>", "<|translate|>"),
        *("<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
        *("<|0.00|>", "<|0.02|>"),
    ]
    assert names[-1] == "<|30.00|>"
    assert tokenizer.language_tokens == {"en": 258, "zh": 259, "de": 260}
    assert tokenizer.timestamp_begin == 267


def test_kinds_of_tokens(multilingual: Tokenizer) -> None:
    first_of_kind = {
        0: TokenKind.TEXT, 50257: TokenKind.EOT, 50258: TokenKind.SOT, 50259: TokenKind.LANGUAGE,
        50358: TokenKind.TASK, 50360: TokenKind.CONTROL, 50364: TokenKind.TIMESTAMP,
    }  # fmt: skip
    for token in range(51865):
        assert (
            multilingual.kind(token) is first_of_kind[max(first for first in first_of_kind if first <= token)]
        )


def test_timestamps_are_exact_hundredths(multilingual: Tokenizer) -> None:
    begin = multilingual.timestamp_begin
    times = [multilingual.timestamp_s(token) for token in range(begin, multilingual.n_vocab)]
    assert times == [float(f"{i * 0.02:.2f}") for i in range(1501)]


def test_decode_ignores_special_tokens(multilingual: Tokenizer) -> None:
    hello = multilingual.encode(" hello")
    tokens = [*multilingual.sot_sequence("en"), 50364, *hello, 50384, multilingual.eot]
    assert multilingual.decode(tokens) == " hello"
    assert multilingual.decode_bytes(tokens) == b" hello"
    assert multilingual.decode_with_timestamps(tokens) == (
        "<|startoftranscript|><|en|><|transcribe|><|0.00|> hello<|0.40|><|endoftext|>"
    )


def test_lone_surrogate_is_encoded_as_question_mark(multilingual: Tokenizer) -> None:
    assert multilingual.encode("a\udc80b") == multilingual.encode("a?b")


def test_sot_sequence_of_language_and_task(english: Tokenizer, multilingual: Tokenizer) -> None:
    assert english.sot_sequence() == (50257,)
    assert english.sot_sequence("english", timestamps=False) == (50257, 50362)
    assert multilingual.sot_sequence("German") == (50258, 50261, 50359)
    assert multilingual.sot_sequence("de", "translate", timestamps=False) == (50258, 50261, 50358, 50363)


def test_unsupported_language_or_task_is_rejected(english: Tokenizer, multilingual: Tokenizer) -> None:
    with pytest.raises(OptionError, match="language='de': allowed is en, as this model is English-only"):
        english.sot_sequence("de")
    with pytest.raises(OptionError, match="task='translate'"):
        english.sot_sequence(task="translate")
    with pytest.raises(OptionError, match="task='sing': allowed is transcribe or translate"):
        multilingual.sot_sequence("en", "sing")
    with pytest.raises(OptionError, match="language=None"):
        multilingual.sot_sequence()


def test_every_code_and_name_resolves_to_its_code() -> None:
    assert len(LANGUAGES) == 100
    given = {" ENGLISH ": "en", "German": "de", "castilian": "es", "Haitian Creole": "ht", "jv": "jw"}
    given |= {
        "zh-Hant": "zh",
        "chinese-hans": "zh",
        "sr_Latn": "sr",
        "en-GB": "en",
        "pt_BR.UTF-8": "pt",
        "ger": "de",
    }
    assert {name: to_language_code(name) for name in given} == given
    assert [to_language_code(code) for code in LANGUAGES] == list(LANGUAGES)
    assert [to_language_code(name) for name in LANGUAGES.values()] == list(LANGUAGES)


def test_unknown_language_is_rejected_with_the_nearest_and_the_allowed() -> None:
    with pytest.raises(OptionError, match=r"language='Germn': .*\byue\b.*nearest: de \(german\)") as caught:
        to_language_code("Germn")
    assert caught.value.field == "language"
    assert "\n" not in str(caught.value)
    for given in ("", "klingon", "xx", "<|en|>", "tlh-XX", "Hant"):
        with pytest.raises(OptionError):
            to_language_code(given)


def test_blank_tokens_are_space_and_end_of_text(english: Tokenizer) -> None:
    assert english.blank_tokens == (220, 50256)


def test_invalid_utf8_neither_loses_tokens_nor_splits_a_neighbour() -> None:
    tokenizer = Tokenizer.bytes_only()
    invalid = [0xE2, 0x20, 0xFF, *"é".encode(), 0xF0, 0x9F]
    words, groups = tokenizer.split_words(invalid, "ja")
    assert words == ["�", " ", "�", "é", "�"]
    assert groups == [[0xE2], [0x20], [0xFF], [0xC3, 0xA9], [0xF0, 0x9F]]


def test_detokenizer_waits_until_a_character_is_complete() -> None:
    tokenizer = Tokenizer.bytes_only()
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.feed(token) for token in [*"a♪".encode(), tokenizer.eot]] == ["a", "", "", "♪", ""]
    assert detokenizer.feed(0xE2) == ""
    assert detokenizer.flush() == "�"
    assert detokenizer.feed(0x62) == "b"


@pytest.mark.parametrize("n_vocab", [1765, 1866, 51864])
def test_vocabulary_of_another_size_is_rejected(n_vocab: int) -> None:
    with pytest.raises(CheckpointError, match=f"n_vocab={n_vocab}; allowed is 1766 to 1865"):
        Tokenizer.from_tokens([bytes([byte]) for byte in range(256)], n_vocab)


@pytest.mark.parametrize(
    "pretokens",
    [
        ["It", "'s", " John", "'", "S", " we", "'ll"],
        [" ", " two", "  ", " three", "\n\n"],
        ["a", "1", "b", "½Ⅷ", "一二", "_", "٣"],
        ["a", " ", "\x85", "b"],
        ["a", "\xa0", "b", "\u2028", "c"],
        ["a", " \x1c\u200b", "b"],
        [" Größe", "...", "日本", "、"],
    ],
)
def test_pretokens_are_those_of_gpt2(pretokens: list[str]) -> None:
    assert pretokenize("".join(pretokens)) == pretokens


def test_long_text_without_spaces_is_encoded(multilingual: Tokenizer) -> None:
    text = "日本語テキスト" * 2000
    assert multilingual.decode(multilingual.encode(text)) == text


def test_import_of_text_loads_no_tokenizer_library() -> None:
    code = "import sys, harken.text; print(*{'tokenizers', 'tiktoken', 'regex'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_tags_of_other_programs_are_languages_of_whisper_or_any() -> None:
    given = {
        **{
            "en-US": "en",
            "EN_us.UTF-8": "en",
            "zh-Hans-CN": "zh-Hans",
            "pt_BR": "pt",
            "nb-NO": "no",
            "iw": "he",
        },
        **{"ger": "de", "deu": "de", "haw": "haw", "Haitian Creole": "ht", " German ": "de", "fil-PH": "tl"},
        **{
            "zh_TW": "zh-Hant",
            "cmn-Hant": "zh-Hant",
            "yue-HK": "yue-Hant",
            "sr_RS@latin": "sr-Latn",
            "sr-RS": "sr",
        },
        **{"SR-cyrl": "sr-Cyrl", "uz-Latn": "uz", "zh": "zh", "zh-Hans-HK": "zh-Hans"},
        **dict.fromkeys(("auto", "und", "multi", "", "  ", "*", "mul-Latn"), None),
    }
    assert {tag: from_language_tag(tag) for tag in given} == given
    assert from_language_tag(None) is None
    assert TAGS.keys().isdisjoint(LANGUAGES)
    assert LANGUAGES.keys() >= {*TAGS.values()}
    for code in LANGUAGES:
        assert from_language_tag(f"{code}-XX") == code
    with pytest.raises(OptionError, match="language='tlh-XX': allowed is one of en"):
        from_language_tag("tlh-XX")
