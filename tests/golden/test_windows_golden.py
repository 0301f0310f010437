"""Single windows against openai-whisper: features, logits, languages, tokens (see record_whisper.py).

Two models have random weights and the shape of published ones, but narrow: large-v3, with 128 bands and a vocabulary
of 51866, and a distilled model, with fewer layers in the decoder than in the encoder. Their input is the example
recording. Of the published multilingual tiny only languages are here; `transcript_inputs.py` has its texts.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
from goldens import read_json
from transcript_inputs import files, need

import harken
from checkpoint_files import random_weights, write_huggingface, write_openai
from harken.audio import load_audio, log_mel
from harken.decoding import Beam, Greedy, Window, decode, make_logit_rules, make_prompt
from harken.text import Tokenizer
from harken.transcribe.language_id import language_probabilities
from harken.types import WINDOW_SAMPLES, Dims
from real_models import larger_recognizer

LARGE_V3 = Dims(
    n_mels=128, n_audio_ctx=1500, n_audio_state=32, n_audio_head=2, n_audio_layer=2,
    n_vocab=51866, n_text_ctx=448, n_text_state=32, n_text_head=2, n_text_layer=2,
)  # fmt: skip
RANDOM = {"large-v3": LARGE_V3, "distilled": replace(LARGE_V3, n_mels=80, n_vocab=51865, n_audio_layer=4)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A window, the example recording, with text before it or forced at its beginning; greedy, or by a beam."""

    model: str
    language: str = "fr"
    task: str = "transcribe"
    timestamps: bool = True
    previous: str = ""
    prefix: str = ""
    beam: Beam | None = None


CASES = {
    f"{model}, {name}": Case(model=model, **options)
    for model in RANDOM
    for name, options in {
        "plain": {},
        "translation": {"language": "de", "task": "translate"},
        "no timestamps": {"timestamps": False},
        "text before": {"previous": "what came before"},
        "prefix": {"timestamps": False, "prefix": "and so it begins"},
        "beam": {"beam": Beam(width=5)},
        "patient beam": {"beam": Beam(width=3, patience=2.0, length_penalty=0.6)},
    }.items()
} | {"large-v3, Cantonese": Case(model="large-v3", language="yue")}
SPOKEN = ("german", "french", "dutch", "chinese", "russian", "book")
LANGUAGE_CASES = [*((model, "jfk") for model in RANDOM), *(("tiny", recording) for recording in SPOKEN)]
"""Models and recordings whose language is detected."""


def make_weights(model):
    """Draw weights with peaked distributions, whose end of text becomes likelier with every position."""
    dims = RANDOM[model]
    weights = {name: values.astype(np.float32) for name, values in random_weights(dims, 3).items()}
    sharp = {name: 4 for name in weights if name.endswith("query.weight") or name == "decoder.ln.weight"}
    weights |= {name: factor * weights[name] for name, factor in sharp.items()}
    end = Tokenizer.builtin(dims.n_vocab).eot
    direction = np.sign(weights["decoder.token_embedding.weight"][end]) / 4
    weights["decoder.token_embedding.weight"][end] = direction
    urge = (np.arange(dims.n_text_ctx, dtype=np.float32) - 16) / 4
    weights["decoder.positional_embedding"] *= 8
    weights["decoder.positional_embedding"] += np.outer(urge, direction)
    return weights


def first_window(recording):
    """Load the first 30 s, with digital silence behind the end."""
    samples = load_audio(files(recording)[0])[:WINDOW_SAMPLES]
    return np.pad(samples, (0, WINDOW_SAMPLES - len(samples)))


GOLDEN = read_json("windows")
DEFAULT = "auto"
"""The engine that users have without choosing one."""


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Load a model with random weights, from a file, in a backend in float32, and encode the example recording."""
    folder = tmp_path_factory.mktemp("windows")

    @cache
    def written(model):
        dims, weights = RANDOM[model], make_weights(model)
        if model == "large-v3":
            return write_huggingface(folder / model, dims, weights)
        return write_openai(folder / f"{model}.pt", dims, weights)

    @cache
    def build(model, engine):
        recognizer = harken.load(written(model), backend=engine, precision="fp32", cache=folder)
        return recognizer, encode(recognizer, "jfk")

    return build


def encode(recognizer, recording):
    return recognizer.backend.encode(log_mel(first_window(recording), recognizer.dims.n_mels)[None])


@pytest.mark.parametrize("engine", [DEFAULT, "onnx", "numpy"])
@pytest.mark.parametrize("model", RANDOM)
def test_features_and_logits_equal_those_of_whisper(load, model, engine):
    (recognizer, features), expected = load(model, engine), GOLDEN["computed"][model]
    backend, tokens = recognizer.backend, expected["tokens"]
    output = backend.encoder_output(features)
    np.testing.assert_allclose(output[0, ::50, ::3], expected["features"], atol=5e-5)
    session = backend.open_session(features, [0], recognizer.dims.n_text_ctx)
    logits = session.extend([tokens], last_n=len(tokens))
    np.testing.assert_allclose(logits.values[:, ::1999], expected["logits"], atol=3e-4)
    assert logits.values.argmax(axis=1).tolist() == expected["best"]


def marks(model, recording):
    """Mark what needs published weights, and recordings of which others have the like."""
    nightly = [pytest.mark.nightly] * (recording not in ("german", "chinese"))
    return [] if model in RANDOM else [pytest.mark.real, *nightly]


@pytest.mark.parametrize(
    ("model", "recording", "expected"),
    [pytest.param(*case, marks=marks(*case[:2]), id=f"{case[0]}, {case[1]}") for case in GOLDEN["languages"]],
)
def test_language_probabilities_equal_those_of_whisper(load, model, recording, expected):
    need(recording)
    recognizer = load(model, DEFAULT)[0] if model in RANDOM else larger_recognizer(model)
    features = encode(recognizer, recording)
    (probabilities,) = language_probabilities(recognizer.backend, features, recognizer.tokenizer)
    assert next(iter(probabilities)) == max(expected, key=lambda code: expected[code])
    assert len(probabilities) == recognizer.dims.n_vocab - 51766
    for code, probability in probabilities.items():
        assert probability == pytest.approx(expected.get(code, 0), abs=1e-3), code


@pytest.mark.parametrize("name", CASES)
def test_window_is_decoded_to_the_tokens_of_whisper(load, name):
    case, expected = CASES[name], GOLDEN["decoded"][name]
    recognizer, features = load(case.model, DEFAULT)
    tokenizer = recognizer.tokenizer
    before, prefix = (tokenizer.encode(f" {text}") if text else [] for text in (case.previous, case.prefix))
    prompt = make_prompt(
        tokenizer,
        recognizer.dims.n_text_ctx,
        language=case.language,
        task=case.task,
        timestamps=case.timestamps,
        previous_tokens=before,
    )
    (decoded,), _ = decode(
        recognizer.backend,
        features,
        [Window(window_index=0, prompt=prompt)],
        tokenizer=tokenizer,
        logit_rules=make_logit_rules(tokenizer, timestamps=case.timestamps, forced_prefix=prefix),
        strategy=case.beam or Greedy(),
    )
    # The reference leaves a prefix out of what it returns, and out of the average.
    assert list(decoded.hypothesis.tokens) == prefix + expected["tokens"]
    if not prefix:
        assert decoded.hypothesis.avg_logprob == pytest.approx(expected["avg_logprob"], abs=1e-3)
        assert decoded.no_speech_prob == pytest.approx(expected["no_speech_prob"], rel=2e-3)


def test_every_case_is_recorded():
    assert GOLDEN["decoded"].keys() == CASES.keys()
    assert [tuple(recorded[:2]) for recorded in GOLDEN["languages"]] == LANGUAGE_CASES
