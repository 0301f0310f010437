"""Properties of language detection: allowed sets, batches, and independence of open sessions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.contract import Backend
from harken.decoding import language_probabilities
from harken.decoding.language import allowed_languages
from harken.errors import OptionError
from harken.text import LANGUAGES, Tokenizer
from tiny_models import DIMS, N_WINDOWS, TOKENIZER, make_mel

ENGLISH = Tokenizer.bytes_only(multilingual=False)
CODES = sorted(TOKENIZER.language_tokens)


@settings(max_examples=12)
@given(languages=st.sets(st.sampled_from(CODES), min_size=1))
def test_probabilities_of_allowed_languages_are_renormalized(
    reference_backend: Backend, languages: set[str]
) -> None:
    features = reference_backend.encode(make_mel())
    everything = language_probabilities(reference_backend, features, TOKENIZER)
    for unrestricted, found in zip(
        everything, language_probabilities(reference_backend, features, TOKENIZER, languages), strict=True
    ):
        total = sum(unrestricted[code] for code in languages)
        assert found == pytest.approx({code: unrestricted[code] / total for code in languages}, rel=1e-4)
        assert list(found) == [code for code in unrestricted if code in languages]


def test_a_batch_equals_its_windows_alone(reference_backend: Backend) -> None:
    mel = make_mel()
    together = language_probabilities(reference_backend, reference_backend.encode(mel), TOKENIZER, ["de", "en"])
    for index in range(N_WINDOWS):
        (alone,) = language_probabilities(
            reference_backend, reference_backend.encode(mel[index : index + 1]), TOKENIZER, ["de", "en"]
        )
        assert together[index] == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("name", ["numpy", "onnx-fp32", "onnx-int8"])
def test_language_detection_leaves_open_sessions_alone(
    open_backend: Callable[[str], Backend], name: str
) -> None:
    backend = open_backend(name)
    features = backend.encode(make_mel())
    prompt = TOKENIZER.sot_sequence("de")

    def decode(detect: bool) -> np.ndarray:
        session = backend.open_session(features, [1, 0], DIMS.n_text_ctx)
        session.extend([[*prompt, 97], prompt])
        if detect:
            language_probabilities(backend, features, TOKENIZER)
        assert session.lengths == (4, 3)
        logits = session.extend([[98], [99]])
        return np.concatenate([logits.probability(token) for token in (97, 98, TOKENIZER.eot)])

    np.testing.assert_array_equal(decode(detect=True), decode(detect=False))


def test_language_names_stand_for_codes() -> None:
    assert allowed_languages(TOKENIZER, ["German", "en", "de", "Castilian"]) == ("de", "en", "es")
    assert allowed_languages(TOKENIZER, ()) == tuple(TOKENIZER.language_tokens)
    assert allowed_languages(ENGLISH, ["English"]) == allowed_languages(ENGLISH, ()) == ("en",)


@pytest.mark.parametrize(
    ("tokenizer", "languages", "message"),
    [
        (TOKENIZER, ["de", "klingon"], "klingon"),
        (TOKENIZER, ["de", "yue"], r"languages='yue': allowed is one of en, zh, .*su$"),
        (ENGLISH, ["en", "de"], "languages='de': allowed is en, as this model is English-only"),
    ],
)
def test_unknown_language_is_an_error(
    reference_backend: Backend, tokenizer: Tokenizer, languages: list[str], message: str
) -> None:
    assert set(LANGUAGES) - set(CODES) == {"yue"}
    with pytest.raises(OptionError, match=message):
        language_probabilities(reference_backend, reference_backend.encode(make_mel()), tokenizer, languages)
