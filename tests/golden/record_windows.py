"""Record the output of openai-whisper and transformers for one window: features, logits, languages and tokens.

Run from the root of the repository, with both installed, the recordings in ../shared/audio, and the multilingual
tiny in HARKEN_MODELS::

    PYTHONPATH=tests HARKEN_MODELS=path/to/models python tests/golden/record_windows.py

It writes tests/golden/windows.json. Models and cases come from `window_inputs.py`, as in the test. Each reference
computes its own log-mel. Beam search and forced beginnings are openai-whisper's alone: the beams of transformers stop
by another rule, and it has no forced beginnings.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers
import whisper.version
from goldens import write_json
from references import provenance, reference_model, transformers_model
from whisper.audio import log_mel_spectrogram
from whisper.decoding import DecodingOptions, DecodingTask
from window_inputs import (
    BEST_OF,
    CASES,
    LANGUAGE_CASES,
    RANDOM,
    SAMPLED,
    TEMPERATURE,
    Case,
    first_window,
    make_weights,
)

from harken.checkpoints import open_checkpoint
from harken.text import Tokenizer
from harken.types import SAMPLE_RATE
from real_models import model_path


def main() -> None:
    references = {
        "openai": f"openai-whisper {whisper.version.__version__}, decode",
        "transformers": f"transformers {transformers.__version__}, WhisperForConditionalGeneration.generate",
    }
    recorded = {
        **provenance(references=references),
        "computed": {
            model: {"openai": compute(model), "transformers": compute_transformers(model)} for model in RANDOM
        },
        "languages": [[model, recording, detect(model, recording)] for model, recording in LANGUAGE_CASES],
        "decoded": {
            name: {"openai": decode(case), **decode_transformers(case)} for name, case in CASES.items()
        },
        "sampled": [sample(penalty) for penalty in (None, 0.0, 0.6, 1.0)],
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


@cache
def other_model(model: str) -> Any:
    if model in RANDOM:
        random_model = transformers_model(RANDOM[model], make_weights(model))
        return configured(random_model, Tokenizer.builtin(RANDOM[model].n_vocab))
    checkpoint = open_checkpoint(model_path(model))
    tokenizer = Tokenizer.from_source(checkpoint.vocabulary, checkpoint.dims.n_vocab)
    return configured(transformers_model(checkpoint.dims, checkpoint.weights), tokenizer)


def configured(model: Any, tokenizer: Tokenizer) -> Any:
    """Set the generation config of a model like the published generation_config.json."""
    never = {*tokenizer.non_speech_tokens, tokenizer.transcribe, tokenizer.translate, tokenizer.sot}
    never |= {tokenizer.sot_prev, tokenizer.sot_lm, tokenizer.no_speech}
    model.generation_config = transformers.GenerationConfig(
        is_multilingual=True,
        lang_to_id={f"<|{code}|>": token for code, token in tokenizer.language_tokens.items()},
        task_to_id={"transcribe": tokenizer.transcribe, "translate": tokenizer.translate},
        no_timestamps_token_id=tokenizer.no_timestamps,
        decoder_start_token_id=tokenizer.sot,
        bos_token_id=tokenizer.eot,
        eos_token_id=tokenizer.eot,
        pad_token_id=tokenizer.eot,
        prev_sot_token_id=tokenizer.sot_prev,
        suppress_tokens=sorted(never),
        begin_suppress_tokens=list(tokenizer.blank_tokens),
        max_initial_timestamp_index=50,
        max_length=448,
    )
    return model


def openai_mel(model: str, recording: str) -> torch.Tensor:
    return log_mel_spectrogram(first_window(recording), openai_model(model).dims.n_mels)


def transformers_mel(model: str, recording: str) -> torch.Tensor:
    extractor = transformers.WhisperFeatureExtractor(feature_size=openai_model(model).dims.n_mels)
    return extractor(first_window(recording), sampling_rate=SAMPLE_RATE, return_tensors="pt").input_features


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
    """Compute features and logits by openai-whisper."""
    whisper_model = openai_model(model)
    features = whisper_model.encoder(openai_mel(model, "jfk")[None])
    return sampled_values(
        features, whisper_model.decoder(torch.tensor([prompt(model)]), features), prompt(model)
    )


@torch.no_grad()
def compute_transformers(model: str) -> dict[str, Any]:
    """Compute features and logits by transformers."""
    output = other_model(model)(transformers_mel(model, "jfk"), decoder_input_ids=torch.tensor([prompt(model)]))
    return sampled_values(output.encoder_last_hidden_state, output.logits, prompt(model))


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


def decoding_options(case: Case, **others: Any) -> DecodingOptions:
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
        **others,
    )


def decode(case: Case) -> dict[str, Any]:
    """Decode by openai-whisper."""
    result = whisper.decode(
        openai_model(case.model), openai_mel(case.model, case.recording), decoding_options(case)
    )
    return {
        "tokens": result.tokens,
        "avg_logprob": round(result.avg_logprob, 5),
        "no_speech_prob": float(f"{result.no_speech_prob:.6g}"),
    }


def decode_transformers(case: Case) -> dict[str, Any]:
    """Decode by transformers, without the end of text."""
    if case.beam or case.prefix:
        return {}
    model = other_model(case.model)
    tokenizer = Tokenizer.builtin(model.config.vocab_size)
    previous = [tokenizer.sot_prev, *tokenizer.encode(" " + case.previous)] if case.previous else []
    generated = model.generate(
        transformers_mel(case.model, case.recording),
        language=case.language,
        task=case.task,
        return_timestamps=case.timestamps,
        prompt_ids=torch.tensor(previous) if previous else None,
        force_unique_generate_call=True,
    )
    ids = generated[0].tolist()
    start = len(previous) + len(tokenizer.sot_sequence(case.language, case.task, timestamps=case.timestamps))
    return {"transformers": {"tokens": [token for token in ids[start:] if token != tokenizer.eot]}}


def sample(length_penalty: float | None) -> dict[str, Any]:
    """Draw candidates of best-of by openai-whisper: tokens, log-probabilities, and the best."""
    options = decoding_options(SAMPLED, temperature=TEMPERATURE, best_of=BEST_OF)
    task = DecodingTask(openai_model(SAMPLED.model), options)
    task.sequence_ranker.length_penalty = length_penalty
    rank, drawn = task.sequence_ranker.rank, {}

    def rank_and_record(tokens: Any, totals: Any) -> list[int]:
        (best,) = chosen = rank(tokens, totals)
        candidates = [candidate.tolist() for candidate in tokens[0]]
        drawn.update(candidates=candidates, totals=np.round(totals[0], 4).tolist(), best=int(best))
        return chosen

    task.sequence_ranker.rank = rank_and_record
    task.run(openai_mel(SAMPLED.model, SAMPLED.recording)[None])
    return {"length_penalty": length_penalty, **drawn}


if __name__ == "__main__":
    main()
