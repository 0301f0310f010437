"""Tiny random Whisper weights, and writers of every checkpoint format that harken reads.

The writers follow the descriptions of the formats and share no code with the readers, so that each checks the other.
"""

from __future__ import annotations

import json
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from harken.errors import CheckpointError
from harken.types import Dims

Array = npt.NDArray[np.generic]
Arrays = Mapping[str, Array]

TINY = Dims(
    n_mels=8,
    n_audio_ctx=12,
    n_audio_state=32,
    n_audio_head=2,
    n_audio_layer=2,
    n_vocab=96,
    n_text_ctx=16,
    n_text_state=32,
    n_text_head=4,
    n_text_layer=3,
)


def weight_shapes(dims: Dims) -> dict[str, tuple[int, ...]]:
    """Return the name and the shape of every weight in OpenAI's state dict."""
    n = dims.n_audio_state
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.positional_embedding": (dims.n_audio_ctx, n),
        "encoder.conv1.weight": (n, dims.n_mels, 3),
        "encoder.conv1.bias": (n,),
        "encoder.conv2.weight": (n, n, 3),
        "encoder.conv2.bias": (n,),
        "encoder.ln_post.weight": (n,),
        "encoder.ln_post.bias": (n,),
        "decoder.positional_embedding": (dims.n_text_ctx, n),
        "decoder.token_embedding.weight": (dims.n_vocab, n),
        "decoder.ln.weight": (n,),
        "decoder.ln.bias": (n,),
    }
    sides = [("encoder", dims.n_audio_layer, ["attn"]), ("decoder", dims.n_text_layer, ["attn", "cross_attn"])]
    for side, layers, attentions in sides:
        for block in (f"{side}.blocks.{layer}" for layer in range(layers)):
            linear = {"mlp.0": (4 * n, n), "mlp.2": (n, 4 * n)}
            linear |= {f"{a}.{part}": (n, n) for a in attentions for part in ("query", "key", "value", "out")}
            for module, shape in linear.items():
                shapes[f"{block}.{module}.weight"] = shape
                if not module.endswith("key"):
                    shapes[f"{block}.{module}.bias"] = shape[:1]
            for module in ["mlp_ln", *(f"{a}_ln" for a in attentions)]:
                shapes |= {f"{block}.{module}.{leaf}": (n,) for leaf in ("weight", "bias")}
    return shapes


def random_weights(dims: Dims = TINY, seed: int = 0, dtype: npt.DTypeLike = np.float16) -> dict[str, Array]:
    """Draw weights of a size that keeps activations near one."""
    rng = np.random.default_rng(seed)
    weights: dict[str, Array] = {}
    for name, shape in weight_shapes(dims).items():
        values = rng.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:]) if len(shape) > 1 else 10)
        if name.endswith((".ln_post.weight", "_ln.weight", ".ln.weight")):
            values += 1
        weights[name] = values.astype(dtype)
    return weights


def decoder_of(weights: Arrays) -> Arrays:
    """Return the weights of the decoder alone."""
    return {name: values for name, values in weights.items() if name.startswith("decoder.")}


def bfloat16_bits(values: Array) -> npt.NDArray[np.uint16]:
    """Round to nearest even and keep the upper halves."""
    bits = values.astype("<f4").view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


# --- OpenAI .pt, and pytorch_model.bin ---------------------------------------------------------------------


def write_openai(path: Path, dims: Dims, weights: Arrays) -> Path:
    """Write the bytes of `torch.save({"dims": ..., "model_state_dict": ...})`."""
    return write_torch(path, {"dims": asdict(dims), "model_state_dict": dict(weights)})


@dataclass(frozen=True, kw_only=True)
class TorchTensor:
    """The description of a tensor in a pickle of PyTorch."""

    kind: str
    key: str
    items: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def write_torch(path: Path, content: object) -> Path:
    """Write a `torch.save` archive of dicts, tuples, numbers, text, arrays and `TorchTensor` (protocol 2)."""
    storages: list[Array] = []
    data = b"\x80\x02" + b"".join(_opcodes(content, storages)) + b"."
    members = {"data.pkl": data, "version": b"3\n", "byteorder": b"little"}
    members |= {f"data/{key}": values.tobytes() for key, values in enumerate(storages)}
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in members.items():
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), member)
    return path


def _opcodes(value: object, storages: list[Array]) -> Iterator[bytes]:
    match value:
        case bool():
            yield b"\x88" if value else b"\x89"
        case int():
            yield b"J" + struct.pack("<i", value)
        case str():
            yield b"X" + struct.pack("<I", len(value.encode())) + value.encode()
        case tuple():
            yield b"("
            for item in value:
                yield from _opcodes(item, storages)
            yield b"t"
        case dict():
            yield b"}("
            for key, item in value.items():
                yield from _opcodes(key, storages)
                yield from _opcodes(item, storages)
            yield b"u"
        case np.ndarray():
            yield from _opcodes(_torch_tensor(value, str(len(storages))), storages)
            storages.append(value)
        case TorchTensor():
            yield b"ctorch._utils\n_rebuild_tensor_v2\n(("
            yield from _opcodes("storage", storages)
            yield b"ctorch\n" + value.kind.encode() + b"Storage\n"
            for item in (value.key, "cpu", value.items):
                yield from _opcodes(item, storages)
            yield b"tQ"
            for field in (value.offset, value.shape, value.strides, False):
                yield from _opcodes(field, storages)
            yield b"ccollections\nOrderedDict\n)RtR"
        case _:
            raise TypeError(value)


def _torch_tensor(values: Array, key: str) -> TorchTensor:
    return TorchTensor(
        kind={"float32": "Float", "float16": "Half", "uint16": "BFloat16", "int64": "Long"}[values.dtype.name],
        key=key,
        items=values.size,
        offset=0,
        shape=values.shape,
        strides=tuple(stride // values.itemsize for stride in values.strides),
    )


# --- Hugging Face ------------------------------------------------------------------------------------------

_HUGGINGFACE_NAMES = [
    ("encoder.positional_embedding", "encoder.embed_positions.weight"),
    ("decoder.positional_embedding", "decoder.embed_positions.weight"),
    ("decoder.token_embedding", "decoder.embed_tokens"),
    ("encoder.ln_post", "encoder.layer_norm"),
    ("decoder.ln.", "decoder.layer_norm."),
    (".blocks.", ".layers."),
    (".cross_attn_ln", ".encoder_attn_layer_norm"),
    (".attn_ln", ".self_attn_layer_norm"),
    (".mlp_ln", ".final_layer_norm"),
    (".cross_attn.", ".encoder_attn."),
    (".attn.", ".self_attn."),
    (".query", ".q_proj"),
    (".key", ".k_proj"),
    (".value", ".v_proj"),
    (".out.", ".out_proj."),
    (".mlp.0", ".fc1"),
    (".mlp.2", ".fc2"),
]


def huggingface_name(name: str) -> str:
    """Return the name of a weight in `WhisperForConditionalGeneration`."""
    for openai, huggingface in _HUGGINGFACE_NAMES:
        name = name.replace(openai, huggingface)
    return f"model.{name}"


def write_huggingface(
    directory: Path,
    dims: Dims,
    weights: Arrays,
    *,
    shards: int = 1,
    torch: bool = False,
    config: Mapping[str, object] | None = None,
) -> Path:
    """Write a model directory; uint16 arrays are bfloat16, and `config` is added to config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    entries = {
        "model_type": "whisper",
        "num_mel_bins": dims.n_mels,
        "max_source_positions": dims.n_audio_ctx,
        "d_model": dims.n_audio_state,
        "encoder_attention_heads": dims.n_audio_head,
        "encoder_layers": dims.n_audio_layer,
        "vocab_size": dims.n_vocab,
        "max_target_positions": dims.n_text_ctx,
        "decoder_attention_heads": dims.n_text_head,
        "decoder_layers": dims.n_text_layer,
    }
    (directory / "config.json").write_text(json.dumps({**entries, **(config or {})}))
    (directory / "generation_config.json").write_text(json.dumps({"alignment_heads": [[1, 0], [2, 3]]}))
    tensors = {huggingface_name(name): values for name, values in weights.items()}
    write: Callable[[Path, Arrays], object] = write_torch if torch else write_safetensors
    stem, suffix = ("pytorch_model", "bin") if torch else ("model", "safetensors")
    if shards == 1:
        write(directory / f"{stem}.{suffix}", tensors)
        return directory
    weight_map = {}
    for shard in range(shards):
        part = dict(list(tensors.items())[shard::shards])
        name = f"{stem}-{shard + 1:05}-of-{shards:05}.{suffix}"
        write(directory / name, part)
        weight_map |= dict.fromkeys(part, name)
    (directory / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def write_safetensors(path: Path, tensors: Arrays) -> Path:
    """Write a safetensors file."""
    header, offset = {}, 0
    for name, values in tensors.items():
        dtype = {"float64": "F64", "float32": "F32", "float16": "F16", "uint16": "BF16"}[values.dtype.name]
        header[name] = {"dtype": dtype, "shape": values.shape, "data_offsets": [offset, offset + values.nbytes]}
        offset += values.nbytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(v.tobytes() for v in tensors.values()))
    return path


# --- CTranslate2 -------------------------------------------------------------------------------------------

_CT2_TYPES = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4, "uint16": 5}


def write_ctranslate2(directory: Path, dims: Dims, weights: Arrays, precision: str = "stored") -> Path:
    """Write a model directory; `precision` is "stored", "bfloat16", "int8" or "int16"."""
    directory.mkdir(parents=True, exist_ok=True)
    variables: dict[str, Array] = {}
    for name, values in _ctranslate2_arrays(dims, weights).items():
        if precision in ("int8", "int16") and name.endswith("/weight"):
            variables |= _ctranslate2_quantised(name, values.astype(np.float32), precision)
        else:
            variables[name] = bfloat16_bits(values) if precision == "bfloat16" else values
    for side, heads in (("encoder", dims.n_audio_head), ("decoder", dims.n_text_head)):
        variables[f"{side}/num_heads"] = np.int16(heads)[...]
    variables |= {"decoder/activation": np.int8(3)[...], "decoder/scale_embeddings": np.int8(0)[...]}
    data = struct.pack("<I", 6) + _ctranslate2_name("WhisperSpec") + struct.pack("<II", 3, len(variables))
    for name, values in sorted(variables.items()):
        data += _ctranslate2_name(name) + struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)
        data += struct.pack("<BI", _CT2_TYPES[values.dtype.name], values.nbytes) + values.tobytes()
    data += struct.pack("<I", 1)
    data += _ctranslate2_name("decoder/projection/weight") + _ctranslate2_name("decoder/embeddings/weight")
    (directory / "model.bin").write_bytes(data)
    (directory / "config.json").write_text(json.dumps({"alignment_heads": [[1, 0], [2, 3]]}))
    return directory


def _ctranslate2_name(name: str) -> bytes:
    return struct.pack("<H", len(name) + 1) + name.encode() + b"\0"


def _ctranslate2_arrays(dims: Dims, weights: Arrays) -> dict[str, Array]:
    def linear(target: str, *sources: str) -> None:
        arrays[f"{target}/weight"] = np.concatenate([weights[f"{source}.weight"] for source in sources])
        zeros = np.zeros(dims.n_audio_state, weights[f"{sources[0]}.weight"].dtype)
        arrays[f"{target}/bias"] = np.concatenate([weights.get(f"{source}.bias", zeros) for source in sources])

    def norm(target: str, source: str) -> None:
        arrays[f"{target}/gamma"] = weights[f"{source}.weight"]
        arrays[f"{target}/beta"] = weights[f"{source}.bias"]

    arrays = {
        "encoder/position_encodings/encodings": weights["encoder.positional_embedding"],
        "decoder/position_encodings/encodings": weights["decoder.positional_embedding"],
        "decoder/embeddings/weight": weights["decoder.token_embedding.weight"],
    }
    linear("encoder/conv1", "encoder.conv1")
    linear("encoder/conv2", "encoder.conv2")
    norm("encoder/layer_norm", "encoder.ln_post")
    norm("decoder/layer_norm", "decoder.ln")
    for side, layers in (("encoder", dims.n_audio_layer), ("decoder", dims.n_text_layer)):
        for layer in range(layers):
            target, source = f"{side}/layer_{layer}", f"{side}.blocks.{layer}"
            norm(f"{target}/self_attention/layer_norm", f"{source}.attn_ln")
            packed = (f"{source}.attn.{part}" for part in ("query", "key", "value"))
            linear(f"{target}/self_attention/linear_0", *packed)
            linear(f"{target}/self_attention/linear_1", f"{source}.attn.out")
            norm(f"{target}/ffn/layer_norm", f"{source}.mlp_ln")
            linear(f"{target}/ffn/linear_0", f"{source}.mlp.0")
            linear(f"{target}/ffn/linear_1", f"{source}.mlp.2")
            if side == "decoder":
                norm(f"{target}/attention/layer_norm", f"{source}.cross_attn_ln")
                linear(f"{target}/attention/linear_0", f"{source}.cross_attn.query")
                linear(f"{target}/attention/linear_1", f"{source}.cross_attn.key", f"{source}.cross_attn.value")
                linear(f"{target}/attention/linear_2", f"{source}.cross_attn.out")
    return arrays


def _ctranslate2_quantised(name: str, values: Array, precision: str) -> dict[str, Array]:
    if precision == "int16":
        scale = np.float32(2**10 / np.abs(values).max())[...]
    else:
        scale = (127 / np.abs(values.reshape(len(values), -1)).max(1)).astype(np.float32)
    codes = np.rint(values * scale.reshape(-1, *[1] * (values.ndim - 1)))
    return {name: codes.astype(precision), f"{name}_scale": scale}


# --- ggml --------------------------------------------------------------------------------------------------

GGML_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8}


def write_ggml(
    path: Path, dims: Dims, weights: Arrays, kind: str = "f16", tokens: tuple[bytes, ...] = (b"a", b"b", b"ab")
) -> Path:
    """Write a whisper.cpp file: matrices in `kind`, convolutions f16 at most, everything else f32."""
    ftype = GGML_TYPES[kind] + (2000 if kind[0] == "q" else 0)
    hparams = [dims.n_vocab, dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head, dims.n_audio_layer]
    hparams += [dims.n_text_ctx, dims.n_text_state, dims.n_text_head, dims.n_text_layer, dims.n_mels, ftype]
    data = bytearray(struct.pack("<I11i", 0x67676D6C, *hparams))
    data += struct.pack("<2i", dims.n_mels, 5) + bytes(4 * 5 * dims.n_mels)
    data += struct.pack("<i", len(tokens)) + b"".join(struct.pack("<I", len(t)) + t for t in tokens)
    for name, values in weights.items():
        matrix = values.ndim > 1 and "positional" not in name
        stored = "f32" if not matrix or kind == "f32" else "f16" if values.ndim == 3 else kind
        shape = (*values.shape, 1) if ".conv" in name and values.ndim == 1 else values.shape
        data += struct.pack("<3i", len(shape), len(name), GGML_TYPES[stored])
        data += struct.pack(f"<{len(shape)}i", *shape[::-1]) + name.encode() + _ggml_bytes(values, stored)
    path.write_bytes(data)
    return path


def _ggml_bytes(values: Array, kind: str) -> bytes:
    if kind in ("f32", "f16"):
        return values.astype({"f32": "<f4", "f16": "<f2"}[kind]).tobytes()
    blocks = values.astype(np.float32).reshape(-1, 32)
    return b"".join(_ggml_block(block, kind) for block in blocks)


def _ggml_block(x: npt.NDArray[np.float32], kind: str) -> bytes:
    """Quantise 32 values as ggml/src/ggml-quants.c `quantize_row_*_ref` does."""
    if kind == "q8_0":
        scale = np.abs(x).max() / 127
        return np.float16(scale).tobytes() + np.rint(x / scale).astype(np.int8).tobytes()
    levels = 1 << int(kind[1])
    if kind.endswith("_0"):
        scale, minimum = x[np.abs(x).argmax()] / -(levels // 2), b""
        codes = np.minimum(levels - 1, np.floor(x / scale + levels // 2 + 0.5)).astype(int)
    else:
        scale, minimum = (x.max() - x.min()) / (levels - 1), np.float16(x.min()).tobytes()
        codes = np.minimum(levels - 1, np.floor((x - x.min()) / scale + 0.5)).astype(int)
    high = sum(int(code >> 4) << i for i, code in enumerate(codes))
    fifth = struct.pack("<I", high) if levels == 32 else b""
    nibbles = bytes(int(codes[i] & 15 | (codes[i + 16] & 15) << 4) for i in range(16))
    return np.float16(scale).tobytes() + minimum + fifth + nibbles


# --- GGUF --------------------------------------------------------------------------------------------------


def write_gguf(path: Path, dims: Dims, weights: Arrays) -> Path:
    """Write a GGUF file of version 3 with the names of transformers."""
    entries: dict[str, str | int | list[str]] = {
        "general.architecture": "whisper",
        "whisper.encoder.attention.head_count": dims.n_audio_head,
        "whisper.n_text_head": dims.n_text_head,
        "tokens": ["a", "b"],
    }
    data = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(entries))
    for key, value in entries.items():
        data += _gguf_text(key) + _gguf_value(value)
    body = b""
    for name, values in weights.items():
        kind = {"float32": 0, "float16": 1, "uint16": 30}[values.dtype.name]
        data += _gguf_text(huggingface_name(name)) + struct.pack(
            f"<I{values.ndim}Q", values.ndim, *values.shape[::-1]
        )
        data += struct.pack("<IQ", kind, len(body))
        body += values.tobytes() + bytes(-values.nbytes % 32)
    path.write_bytes(data + bytes(-len(data) % 32) + body)
    return path


def _gguf_text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _gguf_value(value: str | int | list[str]) -> bytes:
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_gguf_text, value))
    if isinstance(value, str):
        return struct.pack("<I", 8) + _gguf_text(value)
    return struct.pack("<II", 4, value)


# --- MLX ---------------------------------------------------------------------------------------------------


def write_mlx(directory: Path, dims: Dims, weights: Arrays, *, npz: bool = True) -> Path:
    """Write a directory as convert.py of mlx-examples does, without the positions of the encoder."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**asdict(dims), "model_type": "whisper"}))
    arrays = {
        name.replace("mlp.0", "mlp1").replace("mlp.2", "mlp2"): v.swapaxes(1, 2).copy() if v.ndim == 3 else v
        for name, v in weights.items()
        if name != "encoder.positional_embedding"
    }
    if npz:
        np.savez(directory / "weights.npz", **arrays, alignment_heads=np.array([[1, 0]]))
    else:
        write_safetensors(directory / "weights.safetensors", arrays)
    return directory


# --- ONNX and OpenVINO -------------------------------------------------------------------------------------


def graph_names(weights: Arrays, side: str) -> Iterator[tuple[str, Array, str]]:
    """Yield the names of transformers in the graph of an encoder or a decoder, the weights, and the operations."""
    prefix = {"encoder": "model.encoder.", "decoder": ""}[side]
    for name, values in weights.items():
        if name.startswith(side):
            module, _, leaf = huggingface_name(name).removeprefix(prefix).rpartition(".")
            is_linear = leaf == "weight" and values.ndim == 2 and "embed" not in module
            yield f"{module}.{leaf}", values, "MatMul" if is_linear else "Conv" if values.ndim == 3 else "Add"


def write_onnx(
    directory: Path, dims: Dims, weights: Arrays, *, bits: int | None = None, external: bool = False
) -> Path:
    """Write what of the graphs of torch.onnx matters: matrices transposed and nameless, the rest with its name.

    Matrices may have 8 bits, as `onnxruntime.quantization` writes them, or 4, those of the operation `MatMulNBits`.
    """
    import onnx
    from onnx import helper, numpy_helper

    write_huggingface(directory, dims, {})
    (directory / "model.safetensors").unlink()
    for side in ("encoder", "decoder"):
        stored: dict[str, Array] = {}
        nodes = []
        for number, (name, values, operation) in enumerate(graph_names(weights, side)):
            label, inputs, sizes = name, [], {}
            if operation == "MatMul" and bits == 4:
                operation, label, inputs = "MatMulNBits", f"onnx::MatMul_{number}_Q4", [f"{number}_scales"]
                sizes = {"N": len(values), "K": values.shape[1], "bits": 4, "block_size": 32}
                blocks = values.reshape(len(values), -1, 32).astype(np.float32)
                scales = np.abs(blocks).max(axis=2, keepdims=True) / 7
                codes = (np.rint(blocks / scales) + 8).astype(np.uint8)
                stored[inputs[0]], values = scales.ravel(), codes[..., ::2] | codes[..., 1::2] << 4
            elif operation == "MatMul":
                label, values = f"onnx::MatMul_{number}", np.ascontiguousarray(values.T)
            if operation == "MatMul" and bits == 8:
                scale = np.float32(np.abs(values).max() / 127)
                stored |= {f"{label}_scale": scale[...], f"{label}_zero_point": np.int8(0)[...]}
                label, values = f"{label}_quantized", np.rint(values / scale).astype(np.int8)
            stored[label] = values
            path = "/".join(name.rpartition(".")[0].replace("layers.", "layers#").split(".")).replace("#", ".")
            nodes.append(
                helper.make_node(
                    operation, ["x", label, *inputs], [f"y{number}"], f"/{path}/{operation}", **sizes
                )
            )
        initializers = [numpy_helper.from_array(values, name) for name, values in stored.items()]
        model = helper.make_model(helper.make_graph(nodes, side, [], [], initializers))
        onnx.save(
            model,
            directory / f"{side}_model.onnx",
            save_as_external_data=external,
            location=f"{side}_model.onnx_data",
            size_threshold=0,
        )
    return directory


def write_openvino(directory: Path, dims: Dims, weights: Arrays, *, quantised: bool = False) -> Path:
    """Write what of OpenVINO's IR matters: constants, and with 8 bits what is computed of them."""
    write_huggingface(directory, dims, {})
    (directory / "model.safetensors").unlink()
    for side in ("encoder", "decoder"):
        text, data = _openvino_graph(weights, side, quantised)
        path = directory / f"openvino_{side}_model.xml"
        path.write_text(f'<?xml version="1.0"?>\n<net name="Model0" version="11">{text}</net>')
        path.with_suffix(".bin").write_bytes(data)
    return directory


def _openvino_graph(weights: Arrays, side: str, quantised: bool) -> tuple[str, bytes]:
    layers: list[str] = []
    edges: list[str] = []
    data = bytearray()

    def add(kind: str, name: str, *sources: int, values: Array | None = None) -> int:
        entry, number = "", len(layers)
        if values is not None:
            element = {"float32": "f32", "float16": "f16", "uint8": "u8"}[values.dtype.name]
            shape, start = ", ".join(map(str, values.shape)), len(data)
            entry = f'<data element_type="{element}" shape="{shape}" offset="{start}" size="{values.nbytes}"/>'
            data.extend(values.tobytes())
        layers.append(f'<layer id="{number}" name="{name}" type="{kind}">{entry}</layer>')
        edges.extend(
            f'<edge from-layer="{source}" to-layer="{number}" to-port="{port}"/>'
            for port, source in enumerate(sources)
        )
        return number

    for name, values, operation in graph_names(weights, side):
        if "norm" in name:  # gains and biases of normalisations have lost their names
            module, _, leaf = name.rpartition(".")
            constant = add("Const", f"Constant_{len(layers)}", values=values.reshape(1, 1, -1))
            add({"weight": "Multiply", "bias": "Add"}[leaf], f"__module.{module}/aten::layer_norm/x", constant)
        elif side == "encoder" and name.endswith("q_proj.bias"):
            module = name.removesuffix(".q_proj.bias")  # whose queries are scaled before the bias is added
            product = add("MatMul", f"__module.{module}.q_proj/aten::linear/MatMul")
            factor = add("Const", f"Constant_{len(layers)}", values=np.full((1, 1, 1), 0.5, values.dtype))
            half = add("Const", f"Constant_{len(layers)}", values=values.reshape(1, 1, -1) / 2)
            scaled = add("Multiply", "m", product, factor)
            add("Add", f"__module.{module}/aten::mul/Multiply", scaled, half)
        elif side == "encoder" and "embed" in name:
            add("Add", "aten::add/Add", add("Const", f"Constant_{len(layers)}", values=values[None]))
        elif operation == "MatMul" and quantised:
            step = (np.ptp(values) / 255).astype(np.float32)
            zero = np.uint8(np.rint(-values.min() / step))
            codes = np.clip(np.rint(values / step) + zero, 0, 255).astype(np.uint8)
            first = add("Convert", "c", add("Const", f"self.{name}", values=codes))
            second = add("Convert", "c", add("Const", f"self.{name}/zero_point", values=np.full((1, 1), zero)))
            difference = add("Subtract", "s", first, second)
            add("Multiply", "m", difference, add("Const", f"self.{name}/scale", values=np.full((1, 1), step)))
        else:
            add("Const", f"self.{name}", values=values)
    return f"<layers>{''.join(layers)}</layers><edges>{''.join(edges)}</edges>", bytes(data)


# --- every format ------------------------------------------------------------------------------------------


FORMATS: dict[str, Callable[[Path, Dims, Arrays], Path]] = {
    "openai": lambda folder, dims, weights: write_openai(folder / "m.pt", dims, weights),
    "safetensors": write_huggingface,
    "sharded": partial(write_huggingface, shards=3),
    "torch-bin": partial(write_huggingface, torch=True),
    "torch-shards": partial(write_huggingface, torch=True, shards=2),
    "ctranslate2": write_ctranslate2,
    "ctranslate2-int8": partial(write_ctranslate2, precision="int8"),
    "ggml": lambda folder, dims, weights: write_ggml(folder / "ggml.bin", dims, weights),
    "ggml-q5_0": lambda folder, dims, weights: write_ggml(folder / "ggml.bin", dims, weights, "q5_0"),
    "gguf": lambda folder, dims, weights: write_gguf(folder / "tiny.gguf", dims, weights),
    "mlx": write_mlx,
    "onnx": write_onnx,
    "onnx-external": partial(write_onnx, external=True),
    "onnx-int8": partial(write_onnx, bits=8),
    "openvino": write_openvino,
    "openvino-int8": partial(write_openvino, quantised=True),
}
"""Writers of a model into an empty folder; each returns what is opened."""


# --- adapters of peft --------------------------------------------------------------------------------------


def write_peft(directory: Path, arrays: Arrays, **config: object) -> Path:
    """Write a LoRA adapter as `PeftModel.save_pretrained` does; `arrays` have the names of peft."""
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / "adapter_model.safetensors", arrays)
    (directory / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 8, **config}))
    return directory


# --- damaged files -----------------------------------------------------------------------------------------


@contextmanager
def raises_checkpoint_error(reason: str, most_bytes: int = 4 << 20) -> Iterator[None]:
    """Expect a `CheckpointError` of one line that matches `reason`, and no large allocation before it."""
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=reason) as caught:
            yield
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
