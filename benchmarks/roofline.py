"""Limits of this machine, measured, and operations and bytes of the stages of a transcription, counted.

Operations count a multiplication and an addition as two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import openvino
from openvino import opset13

from harken.audio import mel_filters
from harken.backends.native.decoder_weights import DecoderWeights
from harken.backends.native.packed_file import places
from harken.backends.native.packing import padded_rows

if TYPE_CHECKING:
    from harken.types import Dims

SIZE = 2048
CHAIN = 4
FLOAT_BYTES = 4
WEIGHT_BYTES = {"fp32": FLOAT_BYTES, "int8": 1}
"""Bytes of one weight of the decoder; the scales of rows are negligible."""
LARGE_BYTES = 256_000_000
HALF_BYTES = 2
NOT_READ = {"embedding", "positions", "cross_key", "cross_value"}
"""Arrays of the native decoder of which a step reads a row or nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a machine.

    Parameters
    ----------
    fp32, bf16, int8 : float
        Operations a second of multiplying matrices.
    memory, weights, logits : float
        Bytes a second of reading 256 MB, the bytes of a decoder step, and those of its logits.
    """

    fp32: float
    bf16: float
    int8: float
    memory: float
    weights: float
    logits: float


def measure(step_bytes: float, logits_bytes: float, threads: int) -> Limits:
    """Measure this machine, in some ten seconds."""
    return Limits(
        fp32=max(gemm_numpy(), gemm_openvino("f32", threads)),
        bf16=gemm_openvino("bf16", threads),
        int8=gemm_int8(threads),
        memory=read_bandwidth(LARGE_BYTES),
        weights=read_bandwidth(step_bytes),
        logits=read_bandwidth(logits_bytes),
    )


def best_of(run: Callable[[], Any], times: int) -> float:
    """Return the least seconds of some runs after a first one."""
    run()
    seconds = []
    for _ in range(times):
        started = perf_counter()
        run()
        seconds.append(perf_counter() - started)
    return min(seconds)


def gemm_numpy() -> float:
    """Return the operations a second in float32, in the library under NumPy."""
    a, b = np.random.default_rng(0).standard_normal((2, SIZE, SIZE), np.float32)
    return 2 * SIZE**3 / best_of(lambda: a @ b, 10)


def gemm_openvino(precision: str, threads: int) -> float:
    """Return the operations a second in OpenVINO; "bf16" computes in float32 on a processor without bfloat16."""
    a, b = np.random.default_rng(0).standard_normal((2, SIZE, SIZE), np.float32) / np.float32(SIZE**0.5)
    x = start = opset13.parameter([SIZE, SIZE], np.float32)
    for _ in range(CHAIN):
        x = opset13.matmul(x, opset13.constant(b), False, False)
    config = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    request = openvino.compile_model(openvino.Model([x], [start]), "CPU", config).create_infer_request()
    return CHAIN * 2 * SIZE**3 / best_of(lambda: request.infer([a], share_inputs=True), 6)


def gemm_int8(threads: int) -> float:
    """Return the operations a second of 8-bit numbers in ONNX Runtime."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    a, b = np.random.default_rng(0).integers(0, 100, (2, SIZE, SIZE)).astype(np.uint8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["c"])],
        "gemm",
        [helper.make_tensor_value_info("a", TensorProto.UINT8, [SIZE, SIZE])],
        [helper.make_tensor_value_info("c", TensorProto.INT32, [SIZE, SIZE])],
        [numpy_helper.from_array(b.astype(np.int8), "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return 2 * SIZE**3 / best_of(lambda: session.run(None, {"a": a}), 10)


def read_bandwidth(size_bytes: float) -> float:
    """Return the bytes a second at which so many bytes are read repeatedly."""
    read, n_bytes = make_reading(size_bytes)
    return n_bytes / best_of(read, 40)


def make_reading(size_bytes: float) -> tuple[Callable[[], Any], int]:
    """Return a function that reads about so many bytes by a matrix times a vector, and their exact number.

    The library under NumPy uses the threads of `arguments.limit_threads`, and computes faster than memory brings.
    """
    columns = 4096
    rows = max(1, round(size_bytes / FLOAT_BYTES / columns))
    matrix, vector = np.ones((rows, columns), np.float32), np.ones(columns, np.float32)
    return lambda: matrix @ vector, matrix.nbytes


def mel_operations(frames: int, n_mels: int) -> float:
    """Return the operations of some frames of log-mel: a real FFT of 400 samples, powers, nonzero filters."""
    samples = 400
    transform = 2.5 * samples * np.log2(samples)
    return float(frames * (transform + 3 * (samples // 2 + 1) + 2 * np.count_nonzero(mel_filters(n_mels))))


def encoder_operations(dims: Dims) -> float:
    """Return the operations of one window: encoder, and the decoder's cross-attention keys and values."""
    frames, state = dims.n_audio_ctx, dims.n_audio_state
    convolutions = 2 * 3 * dims.n_mels * state * 2 * frames + 2 * 3 * state**2 * frames
    layer = 2 * 12 * state**2 * frames + 2 * 2 * state * frames**2
    cross = 2 * 2 * state * dims.n_text_state * frames
    return float(convolutions + dims.n_audio_layer * layer + dims.n_text_layer * cross)


def linear_operations(dims: Dims, queries: int, logits: int) -> float:
    """Return the operations of the decoder's linear layers for some queries, some of which get logits."""
    return float(2 * queries * _layer_weights(dims) + 2 * logits * dims.n_text_state * dims.n_vocab)


def attention_operations(dims: Dims, queries: int, slots: int) -> float:
    """Return the operations of the decoder's attention: queries to each other, to the past, and to the window."""
    keys = queries + slots + dims.n_audio_ctx
    return float(dims.n_text_layer * 2 * 2 * queries * keys * dims.n_text_state)


def decoder_bytes(dims: Dims, decoder: tuple[str, str], windows: int, slots: int) -> float:
    """Return the bytes that a forward pass reads: all weights, and the keys and values of each window and past.

    `decoder` are the runtime and the precision, as in `harken.backends.onnx.runtimes.RuntimePlan`.
    """
    runtime, precision = decoder
    if runtime == "native":
        return native_step_bytes(dims, windows, dims.n_audio_ctx, slots)
    weights = _layer_weights(dims) + dims.n_text_state * dims.n_vocab
    keys_and_values = 2 * dims.n_text_layer * dims.n_text_state * (dims.n_audio_ctx + slots)
    return weights * WEIGHT_BYTES[precision] + windows * keys_and_values * FLOAT_BYTES


def native_step_bytes(dims: Dims, rows: int, positions: int, past: int) -> int:
    """Return the bytes that a step of the native decoder reads, each once: scales and biases count, too."""
    weights = sum(
        place.end - place.offset
        for name, place in places(DecoderWeights(dims=dims, bits=8)).items()
        if NOT_READ.isdisjoint(name.split("."))
    )
    keys_and_values = 2 * dims.n_text_layer * dims.n_text_state * (padded_rows(positions) + past) * HALF_BYTES
    key_scales = dims.n_text_layer * dims.n_text_head * padded_rows(positions) * FLOAT_BYTES
    return weights + rows * (keys_and_values + key_scales)


def _layer_weights(dims: Dims) -> int:
    """Return the weights of all layers: 4 squares of self-attention, 2 of cross-attention, 8 of the MLP."""
    return dims.n_text_layer * 14 * dims.n_text_state**2
