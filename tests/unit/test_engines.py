"""What drafts for a model: how it is chosen, and when it is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import checkpoint_files as files
import harken
from harken import backend_factory
from harken.backend_factory import BackendFactory
from harken.checkpoints import encoder_digest, open_checkpoint
from harken.decoding import SpeculativeDecoder
from harken.errors import CheckpointError, CheckpointNotFound, HarkenError, OptionError
from harken.text import Tokenizer
from harken.text.byte_level import bytes_to_unicode
from harken.types import Dims
from tiny_models import TOKENIZER

BIG = replace(files.TINY, n_vocab=TOKENIZER.n_vocab, n_text_layer=12)
SMALL = replace(BIG, n_text_layer=3)
ENGINES = BackendFactory(backend="numpy")
Made = Mapping[str, Path]


def write(
    directory: Path,
    dims: Dims,
    *,
    seed: int = 0,
    encoder: bool = True,
    letters: str | None = None,
    **config: Any,
) -> Path:
    """Write a model with a vocabulary of bytes, or of bytes in another order."""
    weights = files.random_weights(dims, seed)
    files.write_huggingface(directory, dims, weights if encoder else files.decoder_of(weights), config=config)
    order = range(256) if letters is None else [*range(255, -1, -1)]
    vocabulary = {bytes_to_unicode(bytes([byte])): place for place, byte in enumerate(order)}
    (directory / "vocab.json").write_text(json.dumps({**vocabulary, "<|endoftext|>": 256}))
    return directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    at = tmp_path_factory.mktemp("models")
    big = write(at / "big", BIG)
    digest = encoder_digest(open_checkpoint(big))
    return {
        "big": big,
        "small": write(at / "small", SMALL, seed=1),
        "twin": write(at / "twin", SMALL),
        "decoder": write(
            at / "decoder",
            SMALL,
            encoder=False,
            harken={"encoder_sha256": digest, "draft_vocabulary": [1, 2, 256]},
        ),
        "stray": write(at / "stray", SMALL, encoder=False, harken={"encoder_sha256": "0f" * 32}),
        "wide": write(at / "wide", replace(SMALL, n_audio_state=64, n_text_state=64), encoder=False),
        "other words": write(at / "words", SMALL, letters="backwards"),
        "fewer words": write(at / "fewer", replace(SMALL, n_vocab=BIG.n_vocab - 1)),
        "n_mels": write(at / "mels", replace(SMALL, n_mels=16)),
        "n_audio_ctx": write(at / "audio", replace(SMALL, n_audio_ctx=24)),
        "n_text_ctx": write(at / "text", replace(SMALL, n_text_ctx=32)),
    }


def speculator(assistant: str | Path, model: Path, its: BackendFactory = ENGINES) -> SpeculativeDecoder:
    checkpoint = open_checkpoint(model)
    tokenizer = Tokenizer.from_source(checkpoint.vocabulary, checkpoint.dims.n_vocab)
    return its.make_speculative_decoder(
        assistant, checkpoint, tokenizer, model_name="the model", clock=float, download=False
    )


def described(its: SpeculativeDecoder) -> tuple[bool, int | None, bool | None]:
    """Whether it looks n-grams up; the layers of its assistant; whether that shares the encoder."""
    assistant = its.assistant
    return (
        its.ngram,
        *((assistant.backend.dims.n_text_layer, assistant.shares_encoder) if assistant else (None, None)),
    )


# --- chosen ------------------------------------------------------------------------------------------------


@dataclass
class Shelf:
    """Stands where `harken.checkpoints.resolve_model` stands: models by their names."""

    models: Mapping[str, Path]

    def __call__(
        self, model: str | os.PathLike[str], *, download: bool = True, revision: str | None = None
    ) -> Path:
        if isinstance(model, str) and model in backend_factory.DEFAULT_ASSISTANTS:
            assert not download, "nobody asked for a model"
            if model not in self.models:
                raise CheckpointNotFound(f"{model}: not on this machine")
            return self.models[model]
        return Path(model)


@pytest.mark.parametrize(
    ("model", "shelf", "expected"),
    [
        ("big", {"tiny": "small"}, (False, 3, False)),
        ("big", {"tiny": "twin"}, (False, 3, True)),
        ("big", {"tiny.en": "fewer words", "tiny": "small"}, (False, 3, False)),
        ("big", {}, (True, None, None)),
        ("big", {"tiny": "big"}, (True, None, None)),  # no smaller than the model
        ("small", {"tiny": "small"}, (True, None, None)),
        ("big", {"tiny.en": "other words", "tiny": "n_mels"}, (True, None, None)),
        ("big", {"tiny.en": "n_text_ctx", "tiny": "small"}, (False, 3, False)),
    ],
)
def test_auto_takes_what_is_there_and_fits(
    made: Made, monkeypatch: pytest.MonkeyPatch, model: str, shelf: dict[str, str], expected: Any
) -> None:
    monkeypatch.setattr(
        backend_factory, "resolve_model", Shelf({name: made[its] for name, its in shelf.items()})
    )
    assert described(speculator("auto", made[model])) == expected


def test_auto_drafts_with_tiny_for_an_english_model_that_is_much_larger() -> None:
    tiny = open_checkpoint(backend_factory.resolve_model("tiny.en", download=False))
    small = replace(tiny, dims=replace(tiny.dims, n_text_layer=12, n_text_state=768))
    tokenizer = Tokenizer.from_source(tiny.vocabulary, tiny.dims.n_vocab)
    chosen = backend_factory._find_smaller_model("small.en", small, tokenizer)
    assert chosen is not None
    assert chosen.path == tiny.path
    assert backend_factory._find_smaller_model("tiny.en", tiny, tokenizer) is None


def test_n_grams() -> None:
    assert described(harken.load("tiny.en", assistant="ngram", backend="numpy").speculator) == (
        True,
        None,
        None,
    )
    assert harken.load("tiny.en", backend="numpy").speculator is None


def test_auto_for_the_smallest_model_is_n_grams() -> None:
    assert described(harken.load("tiny.en", assistant="auto", backend="numpy").speculator) == (True, None, None)


@pytest.mark.parametrize(("assistant", "shares"), [("small", False), ("twin", True), ("decoder", True)])
def test_a_model_that_is_named(made: Made, assistant: str, shares: bool) -> None:
    its = speculator(made[assistant], made["big"])
    assert described(its) == (False, 3, shares)
    assert its.assistant is not None
    assert its.assistant.backend.dims.has_encoder is not shares


def test_a_decoder_scores_what_it_says(made: Made) -> None:
    backend = speculator(made["decoder"], made["big"]).assistant.backend
    heard = backend.reuse_encoder_output(
        ENGINES.make_backend(open_checkpoint(made["big"])).encode(np.zeros((1, 8, 24), np.float32))
    )
    ids, logprobs = backend.open_session(heard, [0], 16).extend([[257, 258]]).top(9)
    assert sorted(ids[0].tolist()) == [1, 2, 256]
    assert np.exp(logprobs).sum() == pytest.approx(1, abs=1e-5)


def test_on_the_cpu_it_computes_in_four_bits_whatever_the_model_does(made: Made, tmp_path: Path) -> None:
    its = BackendFactory(backend="onnx", precision="fp32", threads=1, cache=tmp_path)
    assert its.make_backend(open_checkpoint(made["twin"])).capabilities.precision == "fp32"
    assert speculator(made["twin"], made["big"], its).assistant.backend.capabilities.precision == "int4"


# --- refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assistant", "kind", "parts"),
    [
        ("fewer words", OptionError, ["1864 tokens of the model", "has 1863"]),
        ("other words", OptionError, ["1864 tokens of the model", "has 1864, but not the same"]),
        ("n_mels", OptionError, ["n_mels=8, as the model", "has 16"]),
        ("n_audio_ctx", OptionError, ["n_audio_ctx=12, as the model", "has 24"]),
        ("n_text_ctx", OptionError, ["n_text_ctx=16, as the model", "has 32"]),
        ("stray", CheckpointError, ["made for the encoder 0f0f0f0f"]),
        ("wide", CheckpointError, ["made for n_audio_state=64", "has n_audio_state=32"]),
    ],
)
def test_a_model_that_cannot_draft_is_refused_in_one_line_that_names_both(
    made: Made, assistant: str, kind: type[HarkenError], parts: list[str]
) -> None:
    with pytest.raises(kind) as caught:
        speculator(str(made[assistant]), made["big"])
    message = str(caught.value)
    assert "\n" not in message
    for part in [made[assistant].name, *parts]:
        assert part in message


def test_an_assistant_that_is_not_there(made: Made) -> None:
    with pytest.raises(CheckpointNotFound, match="no such model"):
        speculator("nobody", made["big"])
    with pytest.raises(CheckpointNotFound, match="no such file"):
        speculator(Path("no/where"), made["big"])


def test_a_decoder_is_no_model(made: Made) -> None:
    with pytest.raises(CheckpointError, match="has no encoder: give it as assistant"):
        harken.load(made["decoder"], backend="numpy")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"backend": "abacus"}, "backend"),
        ({"backend": "onnx", "device": "cuda"}, "device"),
        ({"backend": "numpy", "device": "cuda"}, "device"),
        ({"threads": 0}, "threads"),
        ({"threads": 2000}, "threads"),
    ],
)
def test_what_engines_there_are(options: dict[str, Any], field: str) -> None:
    with pytest.raises(OptionError) as caught:
        BackendFactory(**options)
    assert caught.value.field == field
