"""Reader of OpenAI's ``.pt`` files, a dict of dimensions and weights (whisper/__init__.py `load_model`)."""

from __future__ import annotations

from pathlib import Path

from harken.checkpoints.checkpoint import Checkpoint, Vocabulary, assemble
from harken.checkpoints.torch_file import TorchFile
from harken.checkpoints.watched_file import watch
from harken.errors import CheckpointError


def read(path: Path) -> Checkpoint:
    """Open a ``.pt`` file.

    Raises
    ------
    CheckpointError
        If the file is damaged, contains more than data, or is not a Whisper model.
    """
    watched = watch(path)
    file = TorchFile(path)
    match file.content:
        case {"dims": dict(dims), "model_state_dict": state}:
            return assemble(path, "openai", file.tensors(state), dims, Vocabulary(), files=[watched])
    raise CheckpointError(f"{path}: holds no dict with dims and model_state_dict, as OpenAI's checkpoints do")
