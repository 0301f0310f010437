"""What recorders share: harken's weights in the models of the references, and the head of every recorded file."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import whisper
from whisper.model import ModelDimensions, Whisper

from harken.checkpoints import open_checkpoint
from harken.types import Dims
from real_models import model_path


def provenance(**references: str) -> dict[str, Any]:
    """Return the head of a recorded file; computing goes on in one thread, with the same random numbers."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return {
        **references,
        "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
        "command": "PYTHONPATH=tests HARKEN_MODELS=path/to/models python tests/golden/"
        + Path(sys.argv[0]).name,
        "date": datetime.now(UTC).date().isoformat(),
    }


def reference_model(dims: Dims, weights: Mapping[str, Any]) -> Whisper:
    """openai-whisper's model in float32."""
    model = Whisper(ModelDimensions(**asdict(dims))).eval()
    model.load_state_dict({name: torch.tensor(np.float32(weights[name])) for name in weights})
    return model


@cache
def published_model(name: str) -> Whisper:
    """openai-whisper's model with the weights that harken reads, and its own alignment heads."""
    checkpoint = open_checkpoint(model_path(name))
    model = reference_model(checkpoint.dims, checkpoint.weights)
    model.set_alignment_heads(whisper._ALIGNMENT_HEADS[name])
    return model
