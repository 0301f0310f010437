"""Single windows against openai-whisper: features, logits, languages, tokens (record_windows.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from goldens import read_json
from transcript_inputs import need
from window_inputs import CASES, LANGUAGE_CASES, RANDOM, Case, make_weights, window

import harken
from checkpoint_files import write_huggingface, write_openai
from harken.contract import Features
from harken.decoding import (
    DecodingResult,
    Greedy,
    Window,
    decode,
    language_probabilities,
    make_logit_rules,
    make_prompt,
)
from real_models import larger_recognizer

GOLDEN = read_json("windows")
DEFAULT = "auto"
"""The engine that users have without choosing one."""
Load = Callable[[str, str], tuple[harken.Recognizer, Features]]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Load a model with random weights, from a file, in a backend in float32, and encode the example recording."""
    files = tmp_path_factory.mktemp("windows")

    @cache
    def written(model: str) -> Path:
        dims, weights = RANDOM[model], make_weights(model)
        if model == "large-v3":
            return write_huggingface(files / model, dims, weights)
        return write_openai(files / f"{model}.pt", dims, weights)

    @cache
    def build(model: str, engine: str) -> tuple[harken.Recognizer, Features]:
        recognizer = harken.load(written(model), backend=engine, precision="fp32", cache=files)
        return recognizer, recognizer.backend.encode(window("jfk", recognizer.dims.n_mels))

    return build


def marks(model: str, recording: str) -> list[pytest.MarkDecorator]:
    """Mark what needs published weights, and recordings of which others have the like."""
    nightly = [pytest.mark.nightly] * (recording not in ("german", "chinese"))
    return [] if model in RANDOM else [pytest.mark.real, *nightly]


@pytest.mark.parametrize("engine", [DEFAULT, "onnx", "numpy"])
@pytest.mark.parametrize("model", RANDOM)
def test_features_and_logits_equal_those_of_whisper(load: Load, model: str, engine: str) -> None:
    (recognizer, features), expected = load(model, engine), GOLDEN["computed"][model]
    output = recognizer.backend.encoder_output(features)
    np.testing.assert_allclose(output[0, ::50, ::3], expected["features"], atol=5e-5)
    tokens = expected["tokens"]
    logits = recognizer.backend.open_session(features, [0], recognizer.dims.n_text_ctx).extend(
        [tokens], last_n=len(tokens)
    )
    np.testing.assert_allclose(logits.values[:, ::1999], expected["logits"], atol=3e-4)
    assert logits.values.argmax(axis=1).tolist() == expected["best"]


@pytest.mark.parametrize(
    ("model", "recording", "expected"),
    [pytest.param(*case, marks=marks(*case[:2]), id=f"{case[0]}, {case[1]}") for case in GOLDEN["languages"]],
)
def test_language_probabilities_equal_those_of_whisper(
    load: Load, model: str, recording: str, expected: dict[str, float]
) -> None:
    need(recording)
    if model in RANDOM:
        recognizer, features = load(model, DEFAULT)
    else:
        recognizer = larger_recognizer(model)
        features = recognizer.backend.encode(window(recording, recognizer.dims.n_mels))
    (probabilities,) = language_probabilities(recognizer.backend, features, recognizer.tokenizer)
    assert next(iter(probabilities)) == max(expected, key=lambda code: expected[code])
    assert len(probabilities) == recognizer.dims.n_vocab - 51766
    for code, probability in probabilities.items():
        assert probability == pytest.approx(expected.get(code, 0), abs=1e-3), code


@pytest.mark.parametrize("name", CASES)
def test_window_is_decoded_to_the_tokens_of_whisper(load: Load, name: str) -> None:
    case, expected = CASES[name], GOLDEN["decoded"][name]
    recognizer, features = load(case.model, DEFAULT)
    decoded = decode_case(recognizer, features, case)
    tokens = list(decoded.hypothesis.tokens)
    if case.prefix:  # the reference leaves it out of what it returns, and out of the average
        assert tokens == encode_text(recognizer, case.prefix) + expected["tokens"]
        return
    assert tokens == expected["tokens"]
    assert decoded.hypothesis.avg_logprob == pytest.approx(expected["avg_logprob"], abs=1e-3)
    assert decoded.no_speech_prob == pytest.approx(expected["no_speech_prob"], rel=2e-3)


def decode_case(recognizer: harken.Recognizer, features: Features, case: Case) -> DecodingResult:
    prompt = make_prompt(
        recognizer.tokenizer,
        recognizer.dims.n_text_ctx,
        language=case.language,
        task=case.task,
        timestamps=case.timestamps,
        previous_tokens=encode_text(recognizer, case.previous),
    )
    rules = make_logit_rules(
        recognizer.tokenizer, timestamps=case.timestamps, forced_prefix=encode_text(recognizer, case.prefix)
    )
    (decoded,), _ = decode(
        recognizer.backend,
        features,
        [Window(window_index=0, prompt=prompt)],
        tokenizer=recognizer.tokenizer,
        logit_rules=rules,
        strategy=case.beam or Greedy(),
    )
    return decoded


def encode_text(recognizer: harken.Recognizer, text: str) -> list[int]:
    return recognizer.tokenizer.encode(f" {text}") if text else []


def test_every_case_is_recorded() -> None:
    assert GOLDEN["decoded"].keys() == CASES.keys()
    assert [tuple(recorded[:2]) for recorded in GOLDEN["languages"]] == LANGUAGE_CASES
