"""Properties of the tokenizer for any text and any tokens."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.text import IncrementalDetokenizer, Tokenizer
from harken.text.bpe import bytes_to_unicode, is_byte_level, pretokenize, unicode_to_bytes

BYTES = Tokenizer.bytes_only()
REAL = [Tokenizer.builtin(51864), Tokenizer.builtin(51866)]

tokenizers = st.sampled_from([BYTES, *REAL])
texts = st.text(st.characters(exclude_categories=["Cs"])) | st.text("aé♪🙂日 '.st\n", max_size=40)
languages = st.sampled_from(["en", "ja"])


@st.composite
def runs(draw: st.DrawFn) -> tuple[Tokenizer, list[int]]:
    """Draw any tokens, half of them without a whole character."""
    tokenizer = draw(tokenizers)
    partial = [token for token in range(256) if tokenizer.decode([token]) == "�"]
    token = st.integers(0, tokenizer.n_vocab - 1) | st.sampled_from(partial)
    return tokenizer, draw(st.lists(token, max_size=30))


@given(data=st.binary())
def test_byte_level_alphabet_is_reversible(data: bytes) -> None:
    assert is_byte_level(bytes_to_unicode(data))
    assert len(bytes_to_unicode(data)) == len(data)
    assert unicode_to_bytes(bytes_to_unicode(data)) == data


@given(text=texts)
def test_pretokens_joined_are_the_text(text: str) -> None:
    assert "".join(pretokenize(text)) == text


@given(tokenizer=tokenizers, text=texts)
def test_decode_inverts_encode(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert all(0 <= token < tokenizer.eot for token in tokens)


@given(run=runs(), language=languages)
def test_words_joined_are_the_decoded_text(run: tuple[Tokenizer, list[int]], language: str) -> None:
    tokenizer, tokens = run
    words, groups = tokenizer.split_words(tokens, language)
    assert [token for group in groups for token in group] == tokens
    assert "".join(words) == tokenizer.decode_with_timestamps(tokens)
    assert words == [tokenizer.decode_with_timestamps(group) for group in groups]


@given(tokenizer=tokenizers, text=texts, language=languages)
def test_no_word_ends_inside_a_character(tokenizer: Tokenizer, text: str, language: str) -> None:
    words, groups = tokenizer.split_words(tokenizer.encode(text), language)
    assert "".join(words) == text
    for word, group in zip(words, groups, strict=True):
        assert tokenizer.decode_bytes(group).decode() == word


@given(text=texts)
def test_byte_tokens_of_unspaced_languages_split_into_characters(text: str) -> None:
    assert BYTES.split_words(BYTES.encode(text), "ja")[0] == list(text)


@given(run=runs())
def test_incremental_detokenizer_equals_decode(run: tuple[Tokenizer, list[int]]) -> None:
    tokenizer, tokens = run
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert "".join(map(detokenizer.feed, tokens)) + detokenizer.flush() == tokenizer.decode(tokens)


@pytest.mark.parametrize("tokenizer", REAL, ids=["english", "multilingual"])
def test_heap_merges_equal_the_definition(tokenizer: Tokenizer) -> None:
    """Compare with the definition of byte-pair merges: lowest rank first, leftmost of equal ones."""
    ids = {tokenizer.decode_bytes([token]): token for token in range(tokenizer.eot)}

    @given(pretoken=st.text("aeinorst", min_size=1, max_size=30))
    def check(pretoken: str) -> None:
        parts = [bytes([byte]) for byte in pretoken.encode()]
        while len(parts) > 1:
            ranks = [ids.get(a + b, tokenizer.eot) for a, b in pairwise(parts)]
            if min(ranks) == tokenizer.eot:
                break
            at = ranks.index(min(ranks))
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        expected = [pretoken.encode()] if pretoken.encode() in ids else parts
        assert tokenizer.encode(pretoken) == [ids[part] for part in expected]

    check()
