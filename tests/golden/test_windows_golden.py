"""Single windows against openai-whisper and transformers: features, logits, languages, tokens (record_windows.py)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transcript_inputs import need
from window_inputs import BEST_OF, CASES, HEARD, RANDOM, SAMPLED, Case, make_weights, window

import harken
from checkpoint_files import write_huggingface, write_openai
from harken.contract import Logits
from harken.decoding import (
    DecodingResult,
    Greedy,
    LogitRules,
    Window,
    decode,
    language_probabilities,
    make_logit_rules,
    make_prompt,
)
from harken.decoding.generate import PickedTokens, RowPosition, generate
from real_models import larger_recognizer

GOLDEN = json.loads(Path(__file__).with_name("windows.json").read_text(encoding="utf-8"))
ENGINES = ("numpy", "onnx")
Load = Callable[[str, str], harken.Recognizer]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Give a model in an engine in float32; those with random weights are written to a file and read from it."""
    files = tmp_path_factory.mktemp("windows")

    @cache
    def written(model: str) -> Path:
        dims, weights = RANDOM[model], make_weights(model)
        if model == "large-v3":
            return write_huggingface(files / model, dims, weights)
        return write_openai(files / f"{model}.pt", dims, weights)

    @cache
    def build(model: str, engine: str) -> harken.Recognizer:
        if model not in RANDOM:
            return larger_recognizer(model)
        precision = "fp32" if engine == "onnx" else "auto"
        return harken.load(written(model), backend=engine, precision=precision, cache=files)

    return build


def real(model: str) -> list[pytest.MarkDecorator]:
    return [] if model in RANDOM else [pytest.mark.real]


@pytest.mark.parametrize("reference", ["openai", "transformers"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", RANDOM)
def test_features_and_logits_are_those_of_the_reference(
    load: Load, model: str, engine: str, reference: str
) -> None:
    its, expected = load(model, engine), GOLDEN["computed"][model][reference]
    features = its.backend.encode(window("jfk", its.dims.n_mels))
    if engine == "numpy":
        np.testing.assert_allclose(features.values[0, ::50, ::3], expected["features"], atol=5e-5)
    tokens = expected["tokens"]
    logits = its.backend.open_session(features, [0], its.dims.n_text_ctx).extend([tokens], last_n=len(tokens))
    np.testing.assert_allclose(logits.values[:, ::1999], expected["logits"], atol=3e-4)
    assert logits.values.argmax(axis=1).tolist() == expected["best"]


@pytest.mark.parametrize(
    ("model", "recording", "expected"),
    [pytest.param(*its, marks=real(its[0]), id=f"{its[0]}, {its[1]}") for its in GOLDEN["languages"]],
)
def test_languages_have_the_probabilities_of_the_reference(
    load: Load, model: str, recording: str, expected: dict[str, float]
) -> None:
    need(recording)
    its = load(model, "onnx")
    features = its.backend.encode(window(recording, its.dims.n_mels))
    (probabilities,) = language_probabilities(its.backend, features, its.tokenizer)
    assert next(iter(probabilities)) == max(expected, key=lambda code: expected[code])
    assert len(probabilities) == its.dims.n_vocab - 51766
    for code, probability in probabilities.items():
        assert probability == pytest.approx(expected.get(code, 0), abs=1e-3), code


def on_engines() -> list[Any]:
    """Every case in the CPU engine, and what is greedy and random in the reference too."""
    reference_backend = [
        ("numpy", name) for name, case in CASES.items() if case.model in RANDOM and not case.beam
    ]
    pairs = [*(("onnx", name) for name in CASES), *reference_backend]
    return [pytest.param(*pair, marks=real(CASES[pair[1]].model)) for pair in pairs]


@pytest.mark.parametrize(("engine", "name"), on_engines())
def test_window_gives_the_tokens_of_the_references(load: Load, engine: str, name: str) -> None:
    case, golden = CASES[name], GOLDEN["decoded"][name]
    need(case.recording)
    its = load(case.model, engine)
    decoded = decode_case(its, case)
    tokens = list(decoded.hypothesis.tokens)
    if case.prefix:  # the reference leaves it out of what it returns, and out of the average
        assert tokens == spell(its, case.prefix) + golden["openai"]["tokens"]
        return
    for reference, expected in golden.items():
        assert tokens == expected["tokens"], reference
    assert decoded.hypothesis.avg_logprob == pytest.approx(golden["openai"]["avg_logprob"], abs=1e-3)
    assert decoded.no_speech_prob == pytest.approx(golden["openai"]["no_speech_prob"], rel=2e-3)


def decode_case(its: harken.Recognizer, case: Case) -> DecodingResult:
    features = its.backend.encode(window(case.recording, its.dims.n_mels))
    (decoded,), _ = decode(
        its.backend,
        features,
        [Window(window_index=0, prompt=prompt(its, case))],
        tokenizer=its.tokenizer,
        logit_rules=rules(its, case),
        strategy=case.beam or Greedy(),
    )
    return decoded


def prompt(its: harken.Recognizer, case: Case) -> tuple[int, ...]:
    return make_prompt(
        its.tokenizer,
        its.dims.n_text_ctx,
        language=case.language,
        task=case.task,
        timestamps=case.timestamps,
        previous_tokens=spell(its, case.previous),
    )


def rules(its: harken.Recognizer, case: Case) -> LogitRules:
    return make_logit_rules(its.tokenizer, timestamps=case.timestamps, forced_prefix=spell(its, case.prefix))


def spell(its: harken.Recognizer, text: str) -> list[int]:
    return its.tokenizer.encode(f" {text}") if text else []


@pytest.mark.parametrize(
    "drawn", GOLDEN["sampled"], ids=lambda drawn: f"length penalty {drawn['length_penalty']}"
)
def test_candidates_of_best_of_are_scored_and_ranked_as_by_the_reference(load: Load, drawn: dict) -> None:
    """Random numbers differ from the reference's, so here they are what it drew."""
    its, candidates = load(SAMPLED.model, "onnx"), drawn["candidates"]
    features = its.backend.encode(window(SAMPLED.recording, its.dims.n_mels))
    session = its.backend.open_session(features, [0] * BEST_OF, its.dims.n_text_ctx)
    logits = session.extend([prompt(its, SAMPLED)] * BEST_OF)

    def pick(logits: Logits, places: Sequence[RowPosition], compare: bool) -> PickedTokens:
        ids = [[*candidates[row], its.tokenizer.eot][index] for row, index in places]
        chances = [logits.select_positions([i]).probability(token)[0] for i, token in enumerate(ids)]
        return PickedTokens(
            np.array(ids), np.log(np.array(chances, np.float32)), np.zeros(len(ids), np.float32)
        )

    limits = [its.dims.n_text_ctx // 2] * BEST_OF
    hypotheses = generate(session, logits, rules(its, SAMPLED), pick, limits, lambda step: None)
    assert [list(hypothesis.tokens) for hypothesis in hypotheses] == candidates
    totals = [hypothesis.sum_logprob for hypothesis in hypotheses]
    np.testing.assert_allclose(totals, drawn["totals"], atol=2e-3)
    scores = [hypothesis.score(drawn["length_penalty"]) for hypothesis in hypotheses]
    assert int(np.argmax(scores)) == drawn["best"]


def test_everything_that_is_asked_for_is_recorded() -> None:
    assert GOLDEN["decoded"].keys() == CASES.keys()
    assert [tuple(heard[:2]) for heard in GOLDEN["languages"]] == HEARD
