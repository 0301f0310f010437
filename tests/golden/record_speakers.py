"""Record speaker embeddings of 3D-Speaker's network and filter bank in PyTorch into data/speakers.npz.

Run with torch and torchaudio installed, and with the wheel of modelscope, which has the network's code, unpacked:

    PYTHONPATH=tests python tests/golden/record_speakers.py DIRECTORY/modelscope campplus_cn_en_common.pt

The filter bank is computed as 3D-Speaker's `FBank(80, sample_rate=16000, mean_nor=True)` does
(speakerlab/process/processor.py).
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import numpy as np
import torch
import torchaudio
from goldens import sha256, write_arrays
from test_speakers_golden import INPUTS
from torchaudio.compliance import kaldi

FRAMES = 20
"""A filter bank's frames that are recorded: as many, equally spaced."""

_PACKAGE = "modelscope.models.audio.sv"
_FRAMEWORK = (
    *("modelscope", "modelscope.metainfo", "modelscope.models", "modelscope.models.audio", _PACKAGE),
    *("modelscope.utils", "modelscope.utils.constant", "modelscope.utils.device"),
)


def network_module(package: Path) -> ModuleType:
    """Load the network's two files without the framework around them."""
    sys.modules.update({name: MagicMock() for name in _FRAMEWORK})
    sys.modules["modelscope.models"].TorchModel = torch.nn.Module
    for name in ("DTDNN_layers", "DTDNN"):
        spec = importlib.util.spec_from_file_location(
            f"{_PACKAGE}.{name}", package / "models" / "audio" / "sv" / f"{name}.py"
        )
        assert spec
        assert spec.loader
        module = sys.modules[f"{_PACKAGE}.{name}"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


@torch.no_grad()
def main() -> None:
    package, weights = map(Path, sys.argv[1:])
    network = network_module(package).CAMPPlus(feat_dim=80, embedding_size=192).eval()
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    recorded = {}
    for name, make in INPUTS.items():
        fbank = kaldi.fbank(torch.from_numpy(make())[None], num_mel_bins=80, sample_frequency=16000, dither=0)
        fbank = fbank - fbank.mean(0, keepdim=True)
        embedding = network(fbank[None])[0]
        recorded[f"fbank {name}"] = fbank[np.linspace(0, len(fbank) - 1, FRAMES).astype(int)].numpy()
        recorded[f"embedding {name}"] = (embedding / embedding.norm()).numpy()
    write_arrays(
        "speakers",
        recorded,
        f"modelscope {(package / 'version.py').read_text().split(chr(39))[1]} models.audio.sv.DTDNN.CAMPPlus",
        f"torchaudio {torchaudio.__version__} compliance.kaldi, torch {torch.__version__}",
        f"sha256 of {weights.name} {sha256([weights])}",
        "PYTHONPATH=tests python tests/golden/record_speakers.py",
    )


if __name__ == "__main__":
    main()
