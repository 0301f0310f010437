"""Record the output of openai-whisper for one window: features, logits, languages and tokens.

Run from the root of the repository, with openai-whisper installed, the recordings in ../shared/audio, and the
multilingual tiny in HARKEN_MODELS::

    PYTHONPATH=tests HARKEN_MODELS=path/to/models python tests/golden/record_windows.py

It writes tests/golden/windows.json. Models and cases come from `window_inputs.py`, as in the test. The reference
computes its own log-mel.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import torch
import whisper.version
from goldens import write_json
from references import provenance, reference_model
from whisper.audio import log_mel_spectrogram
from whisper.decoding import DecodingOptions
from window_inputs import CASES, LANGUAGE_CASES, RANDOM, Case, first_window, make_weights

from harken.checkpoints import open_checkpoint
from harken.text import Tokenizer
from real_models import model_path


def main() -> None:
    recorded = {
        **provenance(reference=f"openai-whisper {whisper.version.__version__}, decode"),
        "computed": {model: compute(model) for model in RANDOM},
        "languages": [[model, recording, detect(model, recording)] for model, recording in LANGUAGE_CASES],
        "decoded": {name: decode(case) for name, case in CASES.items()},
    }
    text = (
        json.dumps(recorded, separators=(",", ":"), ensure_ascii=False)
        .replace('},"', '},\n"')
        .replace("],[", "],\n[")
    )
    write_json("windows", text)


@cache
def openai_model(model: str) -> Any:
    if model in RANDOM:
        return reference_model(RANDOM[model], make_weights(model))
    checkpoint = open_checkpoint(model_path(model))
    return reference_model(checkpoint.dims, checkpoint.weights)


def openai_mel(model: str, recording: str) -> torch.Tensor:
    return log_mel_spectrogram(first_window(recording), openai_model(model).dims.n_mels)


def prompt(model: str) -> list[int]:
    """Return the start sequence and some tokens of text."""
    tokenizer = Tokenizer.builtin(RANDOM[model].n_vocab)
    return [
        *tokenizer.sot_sequence("fr"),
        tokenizer.timestamp_begin,
        *tokenizer.encode(" Bonjour tout le monde."),
    ]


@torch.no_grad()
def compute(model: str) -> dict[str, Any]:
    """Compute features and logits."""
    whisper_model = openai_model(model)
    features = whisper_model.encoder(openai_mel(model, "jfk")[None])
    return sampled_values(
        features, whisper_model.decoder(torch.tensor([prompt(model)]), features), prompt(model)
    )


def sampled_values(features: torch.Tensor, logits: torch.Tensor, tokens: list[int]) -> dict[str, Any]:
    """Return some of the numbers, and the best ids."""
    return {
        "tokens": tokens,
        "features": features[0, ::50, ::3].double().numpy().round(5).tolist(),
        "logits": logits[0, :, ::1999].double().numpy().round(4).tolist(),
        "best": logits[0].argmax(-1).tolist(),
    }


def detect(model: str, recording: str) -> dict[str, float]:
    """Detect languages of a probability of 0.0001 or more."""
    _, probabilities = openai_model(model).detect_language(openai_mel(model, recording))
    return {code: round(p, 5) for code, p in probabilities.items() if p >= 1e-4}


def decoding_options(case: Case) -> DecodingOptions:
    beam = {"beam_size": case.beam.width, "patience": case.beam.patience} if case.beam else {}
    return DecodingOptions(
        task=case.task,
        language=case.language,
        without_timestamps=not case.timestamps,
        prompt=case.previous or None,
        prefix=case.prefix or None,
        length_penalty=case.beam.length_penalty if case.beam else None,
        fp16=False,
        **beam,
    )


def decode(case: Case) -> dict[str, Any]:
    """Decode a window."""
    result = whisper.decode(openai_model(case.model), openai_mel(case.model, "jfk"), decoding_options(case))
    return {
        "tokens": result.tokens,
        "avg_logprob": round(result.avg_logprob, 5),
        "no_speech_prob": float(f"{result.no_speech_prob:.6g}"),
    }


if __name__ == "__main__":
    main()
