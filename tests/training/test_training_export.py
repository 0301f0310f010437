"""Tests of harken.checkpoints.huggingface: exported weights load in harken and in transformers and compute the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_training import torch

from harken.backends.onnx import OnnxBackend
from harken.checkpoints import encoder_digest, open_checkpoint
from harken.checkpoints.huggingface import COPIED_FILES, export
from harken.training.distill import copy_decoder_layers, student_dims
from harken.training.network import TOKEN_EMBEDDING, run_decoder, run_encoder
from tiny_models import DIMS, TOKENIZER, make_mel, make_weights
from training_data import write_model

TOKENS = [1, 5, 9, 200, 4]


def write_assistant(folder: Path, digest: str = "0" * 64) -> dict[str, torch.Tensor]:
    folder.mkdir()
    weights = copy_decoder_layers(make_weights(), (1,))
    arrays = {name: values.half().numpy() for name, values in weights.items()}
    entry = {"encoder_sha256": digest, "draft_vocabulary": [1, 3, 300]}
    export(folder, student_dims(DIMS, 1), arrays, TOKENIZER, harken_config=entry)
    return {name: torch.tensor(values).float() for name, values in arrays.items()}


def test_exported_assistant_computes_the_trained_logprobs_on_the_cpu_engine(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    weights = write_assistant(tmp_path / "assistant", encoder_digest(model))
    checkpoint = open_checkpoint(tmp_path / "assistant", assistant=True)
    assert checkpoint.dims == student_dims(DIMS, 1)
    assert checkpoint.encoder_sha256 == encoder_digest(model)
    assert checkpoint.draft_vocabulary is not None
    assert checkpoint.draft_vocabulary.tolist() == [1, 3, 300]

    def engine(source) -> OnnxBackend:
        weights, cache = source.weights, tmp_path / "cache"
        return OnnxBackend(source.dims, weights, weights.digest, precision="fp32", threads=1, cache=cache)

    mel = make_mel(1)
    main, assistant = engine(model), engine(checkpoint)
    session = assistant.open_session(assistant.reuse_encoder_output(main.encode(mel)), [0], len(TOKENS))
    ids, logprobs = session.extend([TOKENS], len(TOKENS)).top(5)
    encoder = {name: torch.tensor(model.weights[name]).float() for name in model.weights}
    with torch.inference_mode():
        encoder_output = run_encoder(encoder, DIMS, torch.tensor(mel[0]))
        states = run_decoder(weights, checkpoint.dims, torch.tensor([TOKENS]), encoder_output)[0]
        expected = torch.log_softmax(states @ weights[TOKEN_EMBEDDING].T, -1).numpy()
    np.testing.assert_allclose(logprobs, np.take_along_axis(expected, ids, 1), atol=2e-4)
    assert (ids[:, 0] == expected.argmax(1)).all()


def test_transformers_loads_exported_assistant(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.logging.disable_progress_bar()
    weights = write_assistant(tmp_path / "assistant")
    model, report = transformers.WhisperForCausalLM.from_pretrained(
        tmp_path / "assistant", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    encoder_output = torch.randn(1, DIMS.n_audio_ctx, DIMS.n_audio_state)
    tokens = torch.tensor([TOKENS])
    with torch.inference_mode():
        logits = model.float().eval()(input_ids=tokens, encoder_outputs=(encoder_output,)).logits[0]
        states = run_decoder(weights, student_dims(DIMS, 1), tokens, encoder_output[0])[0]
        expected = states @ weights[TOKEN_EMBEDDING].T
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_export_copies_tokenizer_files(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    (tmp_path / "copy").mkdir()
    export(tmp_path / "copy", DIMS, make_weights(), TOKENIZER, source_folder=tmp_path / "model")
    assert {"vocab.json"} == {path.name for path in (tmp_path / "copy").iterdir()} & {*COPIED_FILES}
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    assert config["eos_token_id"] == TOKENIZER.eot
    assert "harken" not in config
