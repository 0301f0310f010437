"""Comparison of encoders: an assistant that shares the main model's encoder can reuse its output."""

from __future__ import annotations

import hashlib

import numpy as np

from harken.checkpoints.checkpoint import Checkpoint
from harken.errors import CheckpointError


def encoder_digest(checkpoint: Checkpoint) -> str:
    """Return the SHA-256, in hex, of an encoder's weights, independent of the file format.

    The hash covers, in order of name, each weight's name and shape, as ``name (1, 2, 3)`` and a newline, and its values
    as little-endian float32. This reads the whole encoder, which takes 0.5 s for small.

    Raises
    ------
    CheckpointError
        If the checkpoint has no encoder, or its file cannot be read any more.
    """
    if not checkpoint.has_encoder:
        raise CheckpointError(f"{checkpoint.path}: has no encoder")
    digest = hashlib.sha256()
    for name in sorted(name for name in checkpoint.weights if name.startswith("encoder.")):
        values = np.ascontiguousarray(checkpoint.weights[name], "<f4")
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(values.data)
    return digest.hexdigest()


def shares_encoder(assistant: Checkpoint, model: Checkpoint) -> bool:
    """Return True if an assistant can use the output of a model's encoder.

    A whole model can if both encoders have the same weights. A decoder without an encoder must: the digest of the
    encoder that it was made for has to match if it is stored, otherwise the dimensions.

    Raises
    ------
    CheckpointError
        If the assistant has no encoder and was made for another one.
    """
    if not assistant.has_encoder:
        _check_encoder_matches(assistant, model)
        return True
    return _encoder_dims(assistant) == _encoder_dims(model) and encoder_digest(assistant) == encoder_digest(
        model
    )


def _check_encoder_matches(decoder: Checkpoint, model: Checkpoint) -> None:
    for field in ("n_audio_state", "n_audio_ctx"):
        has, needs = getattr(model.dims, field), getattr(decoder.dims, field)
        if has != needs:
            raise CheckpointError(f"{decoder.path}: made for {field}={needs}, {model.path} has {field}={has}")
    if decoder.encoder_sha256 and (digest := encoder_digest(model)) != decoder.encoder_sha256:
        raise CheckpointError(
            f"{decoder.path}: made for the encoder {decoder.encoder_sha256[:8]}, {model.path} has {digest[:8]}"
        )


def _encoder_dims(checkpoint: Checkpoint) -> tuple[int, ...]:
    dims = checkpoint.dims
    return dims.n_mels, dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head, dims.n_audio_layer
