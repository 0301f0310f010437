"""The tokenizer on small and real vocabularies: special tokens, prompts, and text to tokens and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.errors import CheckpointError, OptionError
from harken.text import IncrementalDetokenizer, Tokenizer, TokenKind
from harken.text.vocabulary import pretokenize
from tiny_models import TOKENIZER

ENGLISH, MULTILINGUAL, LATEST = map(Tokenizer.builtin, (51864, 51865, 51866))


def test_kinds_of_tokens_and_times_of_timestamps():
    first_of_kind = {
        0: TokenKind.TEXT, 50257: TokenKind.EOT, 50258: TokenKind.SOT, 50259: TokenKind.LANGUAGE,
        50358: TokenKind.TASK, 50360: TokenKind.CONTROL, 50364: TokenKind.TIMESTAMP,
    }  # fmt: skip
    for token in range(51865):
        first = max(first for first in first_of_kind if first <= token)
        assert MULTILINGUAL.kind(token) is first_of_kind[first]
    times = [MULTILINGUAL.timestamp_s(token) for token in range(50364, 51865)]
    assert times == [float(f"{i * 0.02:.2f}") for i in range(1501)]
    assert ENGLISH.blank_tokens == (220, 50256)  # space and end of text


def test_decode_ignores_special_tokens():
    hello = MULTILINGUAL.encode(" hello")
    tokens = [*MULTILINGUAL.sot_sequence("en"), 50364, *hello, 50384, MULTILINGUAL.eot]
    assert MULTILINGUAL.decode(tokens) == " hello"
    assert MULTILINGUAL.decode_bytes(tokens) == b" hello"
    assert MULTILINGUAL.decode_with_timestamps(tokens) == (
        "<|startoftranscript|><|en|><|transcribe|><|0.00|> hello<|0.40|><|endoftext|>"
    )


def test_sot_sequence_of_language_and_task():
    assert ENGLISH.sot_sequence() == (50257,)
    assert ENGLISH.sot_sequence("english", timestamps=False) == (50257, 50362)
    assert MULTILINGUAL.sot_sequence("German") == (50258, 50261, 50359)
    assert MULTILINGUAL.sot_sequence("de", "translate", timestamps=False) == (50258, 50261, 50358, 50363)
    for tokenizer, asked, message in (
        (ENGLISH, ("de",), "language='de': allowed is en, as this model is English-only"),
        (ENGLISH, (None, "translate"), "task='translate': allowed is transcribe, as this"),
        (MULTILINGUAL, ("en", "sing"), "task='sing': allowed is transcribe or translate"),
        (MULTILINGUAL, (), "language=None"),
    ):
        with pytest.raises(OptionError, match=message):
            tokenizer.sot_sequence(*asked)


def test_detokenizer_waits_until_a_character_is_complete():
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    assert [detokenizer.feed(token) for token in [*"a♪".encode(), TOKENIZER.eot]] == ["a", "", "", "♪", ""]
    assert detokenizer.feed(0xE2) == ""
    assert detokenizer.flush() == "�"
    assert detokenizer.feed(0x62) == "b"


@pytest.mark.parametrize("n_vocab", [1765, 1866, 51864])
def test_vocabulary_of_another_size_is_rejected(n_vocab):
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
def test_pretokens_are_those_of_gpt2(pretokens):
    assert pretokenize("".join(pretokens)) == pretokens


def test_long_text_without_spaces_and_lone_surrogates_are_encoded():
    text = "日本語テキスト" * 2000
    assert MULTILINGUAL.decode(MULTILINGUAL.encode(text)) == text
    assert MULTILINGUAL.encode("a\udc80b") == MULTILINGUAL.encode("a?b")


# --- any text, and any tokens ------------------------------------------------------------------------------

tokenizers = st.sampled_from([TOKENIZER, ENGLISH, LATEST])
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.text("aé♪🙂日 '.st\n", max_size=40)
languages = st.sampled_from(["en", "ja"])


@st.composite
def runs(draw):
    """Draw any tokens, half of them without a whole character."""
    tokenizer = draw(tokenizers)
    partial = [token for token in range(256) if tokenizer.decode([token]) == "�"]
    token = st.integers(0, tokenizer.n_vocab - 1) | st.sampled_from(partial)
    return tokenizer, draw(st.lists(token, max_size=30))


@given(tokenizer=tokenizers, text=texts, language=languages)
def test_text_comes_back_of_its_tokens_and_of_words_that_end_between_characters(tokenizer, text, language):
    assert "".join(pretokenize(text)) == text
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert all(0 <= token < tokenizer.eot for token in tokens)
    words, groups = tokenizer.split_words(tokens, language)
    assert "".join(words) == text
    for word, group in zip(words, groups, strict=True):
        assert tokenizer.decode_bytes(group).decode() == word
    if tokenizer is TOKENIZER and language == "ja":
        assert words == list(text)


@given(run=runs(), language=languages)
def test_words_and_pieces_joined_are_the_decoded_tokens(run, language):
    tokenizer, tokens = run
    words, groups = tokenizer.split_words(tokens, language)
    assert [token for group in groups for token in group] == tokens
    assert "".join(words) == tokenizer.decode_with_timestamps(tokens)
    assert words == [tokenizer.decode_with_timestamps(group) for group in groups]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert "".join(map(detokenizer.feed, tokens)) + detokenizer.flush() == tokenizer.decode(tokens)
