"""The parts of one start, taken in this process one after another; `startup.py` runs it and reads its JSON.

python benchmarks/start_parts.py examples/jfk.flac 2
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from common import Laps

if TYPE_CHECKING:
    from harken.backends.onnx.runtimes import Arrays


def parts(recording: str, threads: int) -> dict[str, float]:
    """Do what ``harken transcribe`` does until the first segment; seconds of each part."""
    lap = Laps()
    import harken.cli.transcribe

    lap("import harken and its command line")
    import onnxruntime  # noqa: F401

    lap("import ONNX Runtime")
    import openvino  # noqa: F401

    lap("import OpenVINO")
    from harken.checkpoints import open_checkpoint, resolve_model

    path = resolve_model("tiny.en")
    lap("find the model and check its hash")
    checkpoint = open_checkpoint(path)
    digest = checkpoint.weights.digest
    lap("open the model and hash it for the cache")
    from harken.backends.onnx import OnnxBackend

    backend = OnnxBackend(checkpoint.dims, checkpoint.weights, digest, threads=threads)
    lap("check and load both graphs")
    from harken.text import Tokenizer

    tokenizer = Tokenizer.from_source(checkpoint.vocabulary, checkpoint.dims.n_vocab)
    lap("tokenizer")
    from harken.audio import load_audio

    samples = load_audio(recording)
    lap("import PyAV and decode the recording")
    recognizer = harken.Recognizer(backend, tokenizer, "tiny.en")
    encode = backend._encoder

    def timed(inputs: Arrays, into: Arrays) -> Arrays:
        lap("log-mel")
        outputs = encode(inputs, into)
        lap("first window through the encoder")
        return outputs

    backend._encoder = timed
    next(iter(recognizer.transcribe(samples)))
    lap("decode to the first segment")
    return lap.seconds


if __name__ == "__main__":
    print(json.dumps(parts(sys.argv[1], int(sys.argv[2]))))
