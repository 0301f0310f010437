"""Languages: the probabilities of a window, the vote on a recording, the filter where the language may change."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.errors import OptionError
from harken.text import LANGUAGES
from harken.transcribe import TranscribeOptions, WindowDecoder
from harken.transcribe.language_id import (
    FULL_EVIDENCE_S,
    allowed_languages,
    language_probabilities,
    next_posterior,
    vote_on_language,
)
from harken.transcribe.window_decoder import DecodeRequest
from single_recording import audio_window
from tiny_models import ENGLISH_TOKENIZER, N_WINDOWS, TOKENIZER, make_mel

CODES = sorted(TOKENIZER.language_tokens)

# --- the probabilities of a window --------------------------------------------------------------------------


@settings(max_examples=12)
@given(languages=st.sets(st.sampled_from(CODES)))
def test_probabilities_are_those_of_the_tokens_of_allowed_languages(reference_backend, languages):
    """In a batch of windows those of each alone, from the most probable down."""
    features = reference_backend.encode(make_mel())
    found = language_probabilities(reference_backend, features, TOKENIZER, languages)
    assert len(found) == N_WINDOWS
    for window, probabilities in enumerate(found):
        logits = reference_backend.open_session(features, [window], 1).extend([[TOKENIZER.sot]])
        chances = {
            code: float(logits.probability(token)[0])
            for code, token in TOKENIZER.language_tokens.items()
            if code in languages or not languages
        }
        total = sum(chances.values())
        expected = {code: chance / total for code, chance in chances.items()}
        assert probabilities == pytest.approx(expected, rel=1e-4)
        assert list(probabilities.values()) == sorted(probabilities.values(), reverse=True)


def test_between_two_languages_in_doubt_the_probability_of_their_texts_decides(reference_backend):
    mel, options = make_mel(1), TranscribeOptions(temperatures=(0.0,), beam_size=1, fidelity="exact")
    alone, weighed = (
        WindowDecoder(reference_backend, TOKENIZER, replace(options, language_threshold=threshold))
        for threshold in (0.0, 1.0)
    )
    (encoded,) = weighed.encode([audio_window(mel[0])])
    detected, found = (decoder.language_probabilities(encoded) for decoder in (alone, weighed))
    (first, second, *others), logprobs = detected, []
    for code in (first, second):
        request = DecodeRequest(encoded=encoded, language=code, prompt=weighed.build_prompt(code, ()))
        ((result,), _) = weighed.decode([request])
        logprobs.append(result.decoded.hypothesis.avg_logprob)
    odds = detected[first] / detected[second] * np.exp(3 * (logprobs[0] - logprobs[1]))
    assert found[first] / found[second] == pytest.approx(odds, rel=1e-3)
    assert sum(found.values()) == pytest.approx(1)
    assert [found[code] for code in others] == [detected[code] for code in others]


def test_languages_are_allowed_by_name_or_code_as_far_as_the_model_knows_them(reference_backend):
    assert allowed_languages(TOKENIZER, ["German", "en", "de", "Castilian"]) == ("de", "en", "es")
    assert allowed_languages(TOKENIZER, ()) == tuple(TOKENIZER.language_tokens)
    assert (
        allowed_languages(ENGLISH_TOKENIZER, ["English"]) == allowed_languages(ENGLISH_TOKENIZER, ()) == ("en",)
    )
    features = reference_backend.encode(make_mel())
    assert language_probabilities(reference_backend, features, ENGLISH_TOKENIZER) == [{"en": 1.0}] * N_WINDOWS
    assert set(LANGUAGES) - set(CODES) == {"yue"}
    for tokenizer, languages, message in (
        (TOKENIZER, ["de", "klingon"], "klingon"),
        (TOKENIZER, ["de", "yue"], r"languages='yue': allowed is one of en, zh, .*su$"),
        (ENGLISH_TOKENIZER, ["en", "de"], "languages='de': allowed is en, as this model is English-only"),
    ):
        with pytest.raises(OptionError, match=message):
            language_probabilities(reference_backend, features, tokenizer, languages)


# --- the vote on a recording --------------------------------------------------------------------------------


def window(**named):
    """Return the probabilities of one window; the remaining probability is shared by all other languages."""
    rest = (1 - sum(named.values())) / (4 - len(named))
    return {each: named.get(each, rest) for each in ("de", "en", "nl", "fr")}


@pytest.mark.parametrize(
    ("windows", "result"),
    [
        ([window(de=0.5)], ("de", 0.5)),  # the first window that reaches the threshold decides,
        ([window(nl=0.45), window(de=0.6)], ("de", 0.6)),  # also against those before;
        # where none does, the mean of all
        ([window(**{code: 0.45, "de": 0.4}) for code in ("nl", "fr", "en")], ("de", pytest.approx(0.4))),
    ],
)
def test_language_of_a_recording_is_voted_on(windows, result):
    following = iter([*windows, window(fr=1.0)])
    voted = vote_on_language(following, 0.5, 3)
    assert next(iter(voted.items())) == result
    assert list(voted.values()) == sorted(voted.values(), reverse=True)
    assert sum(voted.values()) == pytest.approx(1)
    assert [*following] == [window(fr=1.0)], "no more windows are read than decide"


# --- the filter ---------------------------------------------------------------------------------------------


DE, FR = window(de=0.97, fr=0.01), window(fr=0.97, de=0.01)
WEAK, FAIR = window(fr=0.55, de=0.35), window(fr=0.8, de=0.1)


@pytest.mark.parametrize(
    ("windows", "languages"),
    [
        ([FR, DE, DE], "fdd"),
        ([DE, FR, FR], "dff"),  # a window with strong evidence changes it at once
        ([DE, DE, WEAK, WEAK, DE], "ddddd"),  # weak evidence does not, nor does it twice,
        ([DE, DE, WEAK, DE, WEAK, DE, WEAK, DE], "dddddddd"),  # nor often with others in between
        ([DE, DE, FAIR, DE], "dddd"),  # nor fairly strong evidence,
        ([DE, DE, FAIR, FAIR], "dddf"),  # but that twice in a row does
        ([DE] * 50 + [FR], "d" * 50 + "f"),  # however long the other language has lasted
        ([WEAK, DE], "fd"),  # a weak first window is soon outweighed
        ([DE, FR, DE, FR], "dfdf"),
        ([DE, (window(fr=0.88, de=0.02), 2.0)], "df"),  # a short sentence may be clear
        # Little speech has little weight.
        *(([DE, (FR, speech_s)], "dd") for speech_s in (0.0, 0.5)),
        *(([DE, (FR, speech_s)], "df") for speech_s in (FULL_EVIDENCE_S, 30.0)),
        # A language with probability zero can come back.
        ([{"de": 1.0, "en": 0.0}, {"de": 0.0, "en": 1.0}, {"de": 1.0, "en": 0.0}], "ded"),
    ],
)
def test_language_changes_only_with_enough_evidence(windows, languages):
    """Each is given by its first letter."""
    posterior = {}
    for observed, language in zip(windows, languages, strict=True):
        probabilities, speech_s = observed if isinstance(observed, tuple) else (observed, FULL_EVIDENCE_S)
        posterior = next_posterior(posterior, probabilities, speech_s)
        assert sum(posterior.values()) == pytest.approx(1)
        assert max(posterior, key=posterior.__getitem__)[0] == language
