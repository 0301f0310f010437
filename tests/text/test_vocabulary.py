"""Tests of vocabulary files: all kinds are read, and damaged ones rejected."""

import json
from pathlib import Path

import pytest

from harken.checkpoints.checkpoint import Vocabulary
from harken.errors import CheckpointError
from harken.text.vocabulary import bytes_to_unicode

N_VOCAB = 1509 + 259 + 2
TOKENS = [*(bytes([byte]) for byte in range(256)), b"he", b"hello", b""]
SPELLED = [bytes_to_unicode(token) for token in TOKENS]
SPECIALS = ["<|endoftext|>", "<|startoftranscript|>", "<|en|>"]


IDS = {token: i for i, token in reversed([*enumerate(SPELLED + SPECIALS)])}
CONTENTS = {
    "tokenizer.json": json.dumps({"model": {"vocab": IDS, "merges": ["h e"]}, "added_tokens": []}),
    "vocab.json": json.dumps(IDS, ensure_ascii=False),
    "vocabulary.txt": "".join(f"{token}\n" for token in SPELLED + SPECIALS),
    "vocabulary.json": json.dumps(SPELLED + SPECIALS),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_every_kind_of_file_gives_the_same_tokenizer(tmp_path, name):
    for line_end in ("\n", "\r\n"):
        (tmp_path / name).write_text(CONTENTS[name], encoding="utf-8", newline=line_end)
        tokenizer = Vocabulary(path=tmp_path / name).tokenizer(N_VOCAB)
        assert tokenizer.eot == 259
        assert [tokenizer.decode_bytes([i]) for i in range(259)] == TOKENS
        assert tokenizer.encode("hello hell") == [257, 32, 256, 108, 108]


def test_ggml_tokens_may_include_end_of_text_and_a_checkpoint_without_tokens_has_the_builtin_ones():
    for tokens in (TOKENS, [*TOKENS, b"<|endoftext|>"]):
        tokenizer = Vocabulary(tokens=tuple(tokens)).tokenizer(N_VOCAB)
        assert tokenizer.eot == 259
        assert tokenizer.encode("hello") == [257]
    assert Vocabulary().tokenizer(51864).decode([15496]) == "Hello"
    assert Vocabulary().tokenizer(51866).multilingual


DAMAGED = {
    "empty": ("tokenizer.json", b""),
    "cut": ("tokenizer.json", CONTENTS["tokenizer.json"].encode()[:1000]),
    "no model": ("tokenizer.json", b"{}"),
    "no vocab": ("tokenizer.json", b'{"model": {}}'),
    "a list": ("tokenizer.json", b"[]"),
    "unigram": ("tokenizer.json", b'{"model": {"vocab": [["a", -1.0]]}}'),
    "null": ("tokenizer.json", b'{"model": {"vocab": null}}'),
    "not UTF-8": ("vocabulary.txt", b"\xff\xfe\xfd"),
    "no end of text": ("vocabulary.txt", b"a\nb\n"),
    "a hole": ("vocab.json", b'{"a": 0, "<|endoftext|>": 2}'),
    "a list of numbers": ("vocab.json", b"[1, 2]"),
    "ids of text": ("vocab.json", b'{"a": "0", "<|endoftext|>": 1}'),
    "negative ids": ("vocab.json", json.dumps({**IDS, "x": -1}).encode()),
    "huge ids": ("vocab.json", json.dumps({"a": 10**30}).encode()),
    "nan": ("vocab.json", b'{"a": NaN}'),
    "numbers": ("vocabulary.json", b'[1, 2, "<|endoftext|>"]'),
    "lone surrogate": ("vocabulary.json", b'["\\ud800", "<|endoftext|>"]'),
    "not byte-level": ("vocabulary.json", json.dumps([*SPELLED[:-1], "▁the", *SPECIALS]).encode()),
    "too few bytes": ("vocabulary.json", json.dumps(["a", "<|endoftext|>"]).encode()),
    "too deep": ("tokenizer.json", b"[" * 200_000),
}


@pytest.mark.parametrize(("name", "content"), DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_file_is_rejected_by_name(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        Vocabulary(path=path).tokenizer(N_VOCAB)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", CONTENTS)
def test_missing_end_of_text_is_named(tmp_path, name):
    path = tmp_path / name
    path.write_text(CONTENTS[name].replace("<|endoftext|>", "<|other|>"), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"it has no <\|endoftext\|>"):
        Vocabulary(path=path).tokenizer(N_VOCAB)


def test_file_that_does_not_fit_or_cannot_be_read_is_rejected_by_name(tmp_path):
    path = tmp_path / "vocabulary.txt"
    with pytest.raises(CheckpointError, match=r"vocabulary\.txt: cannot be read: No such file"):
        Vocabulary(path=path).tokenizer(N_VOCAB)
    path.write_text(CONTENTS[path.name], encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"vocabulary\.txt: .* n_vocab=51864"):
        Vocabulary(path=path).tokenizer(51864)
    with pytest.raises(CheckpointError, match=r"^model\.bin: a vocabulary of 259 text tokens does not fit"):
        Vocabulary(tokens=tuple(TOKENS), model=Path("model.bin")).tokenizer(51864)
    (tmp_path / "vocab.json").mkdir()
    with pytest.raises(CheckpointError, match=r"vocab\.json: cannot be read"):
        Vocabulary(path=tmp_path / "vocab.json").tokenizer(N_VOCAB)
