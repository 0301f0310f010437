"""Extract the weights of Silero VAD from its package, and record the results of ONNX Runtime with them.

Run with onnx and onnxruntime installed, and the package's wheel unpacked or installed:

    PYTHONPATH=tests python tests/golden/record_vad.py DIRECTORY/silero_vad
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from goldens import sha256, write_arrays
from numpy.typing import NDArray
from onnx.numpy_helper import to_array
from test_vad_golden import INPUTS

ROOT = Path(__file__).parents[2]
WEIGHTS = ROOT / "src" / "harken" / "audio" / "data" / "silero_vad_6.2.npz"
LSTM = {"input": "onnx::LSTM_209", "recurrent": "onnx::LSTM_210", "bias": "onnx::LSTM_211"}

CHUNK, CONTEXT = 512, 64


def main() -> None:
    graph = Path(sys.argv[1]) / "data" / "silero_vad_16k_sequence.onnx"
    found = {tensor.name: to_array(tensor) for tensor in onnx.load(graph).graph.initializer}
    np.savez(
        WEIGHTS,
        **{
            f"encoder.{i}.{part}": found[f"encoder.{i}.{part}"] for i in range(4) for part in ("weight", "bias")
        },
        **{f"lstm.{part}": found[name][0] for part, name in LSTM.items()},
        **{"output.weight": found["output.weight"].ravel(), "output.bias": found["output.bias"]},
    )
    write_arrays(
        "vad",
        {name: reference(graph, make()) for name, make in INPUTS.items()},
        f"onnxruntime {onnxruntime.__version__}, silero_vad_16k_sequence.onnx of silero-vad 6.2.3",
        f"sha256 {sha256([graph])}",
        "PYTHONPATH=tests python tests/golden/record_vad.py",
    )


def reference(graph: Path, samples: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute probabilities with the published graph in ONNX Runtime."""
    chunks = -(-len(samples) // CHUNK)
    padded = np.zeros(CONTEXT + chunks * CHUNK, np.float32)
    padded[CONTEXT : CONTEXT + len(samples)] = samples
    inputs = np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + CHUNK)[::CHUNK]
    state = np.zeros((1, 1, 128), np.float32)
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    probabilities, *_ = session.run(None, {"input": np.ascontiguousarray(inputs), "h": state, "c": state})
    return probabilities.ravel()


if __name__ == "__main__":
    main()
