"""Damaged, truncated and malicious checkpoints: an error of one line, no code that runs, and no large allocation."""

import json
import pickle
import random
import re
import struct
import tracemalloc
import zipfile
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest

import checkpoint_files as files
from checkpoint_files import raises_checkpoint_error
from damage import damaged
from harken.checkpoints import open_checkpoint
from harken.checkpoints.torch_file import Global, PickledTensor, parse_pickle
from harken.checkpoints.weight_shapes import Declared, expected_shapes, infer_dims
from harken.errors import CheckpointError
from harken.types import Dims

WEIGHTS = files.random_weights()
HUGE, int32 = b"\xff" * 4, struct.Struct("<i").pack


# --- Writers of damage -------------------------------------------------------------------------------------

# Most return a function that writes a checkpoint to an empty folder, and returns what is opened.


def written(path, data):
    path.write_bytes(data)
    return path


def content(data):
    """Write a file of a neutral name."""
    return lambda folder: written(folder / "model", data)


def beside(name, data, shards=2):
    """Write a Hugging Face model, and replace one of its files."""
    return lambda folder: written(config(shards=shards)(folder) / name, data).parent


def shard(name):
    """Write a model whose index names a shard."""
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": name}
    return beside("model.safetensors.index.json", json.dumps({"weight_map": weight_map}).encode())


def safetensors(header, data=b"", size=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    header_size = struct.pack("<Q", len(text) if size is None else size)
    return beside("model.safetensors", header_size + text + data, shards=1)


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def config(weights=WEIGHTS, shards=1, **changes):
    """Write a Hugging Face model with changes to its configuration."""
    return lambda folder: files.write_huggingface(folder, files.TINY, weights, shards=shards, config=changes)


decoder = partial(config, files.decoder_of(WEIGHTS))
"""Writes a decoder without an encoder, with changes to the configuration of the whole model."""


def weights(name, *shape):
    """Write an OpenAI file with a weight of another shape; without it, if that is none."""
    changed = {**WEIGHTS, name: np.ones(shape, "f4")}
    if not shape:
        del changed[name]
    return lambda folder: files.write_openai(folder / "m.pt", files.TINY, changed)


def stored(change, format="openai", file=""):
    """Write a model in a format, and change the bytes of it, or of a file of it."""

    def write(folder):
        path = files.FORMATS[format](folder, files.TINY, WEIGHTS) / file
        return written(path, change(path.read_bytes()))

    return write


ct2 = partial(stored, format="ctranslate2", file="model.bin")
ggml = partial(stored, format="ggml")
openvino = partial(stored, format="openvino", file="openvino_decoder_model.xml")


def at(marker, skip, new):
    """Overwrite the bytes that come `skip` bytes after a marker."""

    def change(data):
        start = data.index(marker) + len(marker) + skip
        return data[:start] + new + data[start + len(new) :]

    return change


def archive(*members, compression=zipfile.ZIP_STORED):
    def write(folder):
        (folder / "config.json").write_text("{}")
        with zipfile.ZipFile(folder / "m.pt", "w", compression) as file:
            for name, data in members:
                file.writestr(name, data)
        return folder / "m.pt"

    return write


def pickled(data, compression=zipfile.ZIP_STORED):
    return archive(("archive/data.pkl", data), compression=compression)


DOUBLED = b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(200))
"""Instructions that repeatedly replace the top of the stack by a pair of itself."""


def torch(dims, state=WEIGHTS):
    return lambda folder: files.write_torch(folder / "m.pt", {"dims": dims, "model_state_dict": state})


def dims(**changes):
    return torch({**asdict(files.TINY), **changes})


def tensor(**changes):
    """Write a model with a false description of one tensor."""
    name = "decoder.ln.weight"
    true_entry = files.TorchTensor(kind="Half", key="0", items=32, offset=0, shape=(32,), strides=(1,))
    state = {name: true_entry, "first": WEIGHTS[name], **WEIGHTS} | {name: replace(true_entry, **changes)}
    return torch(asdict(files.TINY), state)


def oversized_member(data):
    """Have the first entry of the directory of a zip archive claim four gigabytes."""
    start = data.index(b"PK\x01\x02") + 20
    return data[:start] + struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0) + data[start + 8 :]


def outer_product(data):
    """Replace a matrix by the product of a column and a row, which takes more memory than the file has bytes."""
    column, row = (
        f'<layer id="{number}" name="self.layers.0.fc1.weight" type="Const"><data element_type="f16" shape="{shape}" '
        f'offset="0" size="{size}"/></layer>'
        for number, shape, size in ((900, "128, 1", 256), (901, "1, 32", 64))
    )
    product = f'{column}{row}<layer id="902" name="m" type="Multiply"/></layers>'.encode()
    edges = b'<edge from-layer="900" to-layer="902" to-port="0"/><edge from-layer="901" to-layer="902" to-port="1"/>'
    data = data.replace(b"self.layers.0.fc1.weight", b"gone").replace(b"</layers>", product)
    return data.replace(b"</edges>", edges + b"</edges>")


# --- The table ---------------------------------------------------------------------------------------------

OUTSIDE = "allowed are files of its own directory"
EMBEDDING, SCALE = b"decoder/embeddings/weight\0", b"decoder/embeddings/weight_scale\0"
STORAGE = "the storage of 'decoder.ln.weight' is missing or of another size"
REACH = "'decoder.ln.weight' reaches outside its storage"
MISFIT = "do not fit together"
NO_INTEGER = "is unknown or not an integer; known are n_mels, n_audio_ctx"
STORAGE_TYPE = b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage)"
NOT_IDS = "draft_vocabulary is not a list of token ids"
NOT_ASCENDING = "draft_vocabulary is not ascending, or not within 0 to 95"

DAMAGE = {
    "files of another kind": [
        (content(b""), "empty; allowed are"),
        (content(b"abcdef"), "not a model in a known format; allowed are a CTranslate2 directory"),
        (content(b"ID3\x04"), "a recording; allowed are"),
        (content(b"version https://git-lfs.github.com/spec/v1"), "a pointer of Git LFS"),
        (content(b"GGUF\x04\0\0\0"), "GGUF version 4, allowed is 2 or 3"),
        (content(b"GGUF\x03\0\0\0" + bytes(8) + b"\xff" * 16), "truncated: 18446744073709551615 bytes"),
        (content(b"lmgg\x0a\0\0\0silero-16k" + bytes(64)), "not a Whisper model: a ggml file of silero"),
        (content(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."), "saved by a torch older than 1.6"),
        (content(b"lmgg"), "truncated: 40 bytes expected, 0 are left"),
        (content(b"\6\0\0\0\x10\0TransformerSpec\0\7\0\0\0"), "revision 7: allowed is version 6"),
        (content(b"PK\3\4" + bytes(50)), "not a zip archive"),
        (content(b'{"weight_map": 3}'), "weights without a config.json beside them"),
    ],
    "files beside the weights": [
        (beside("generation_config.json", b"\xff"), "generation_config.json: not JSON"),
        (beside("config.json", b"{"), "config.json: not JSON"),
        (beside("config.json", b"[]"), "config.json: holds a JSON list"),
        *((shard(name), OUTSIDE) for name in ("../secret", "/etc/passwd", "a\\b", "C:x", "..", "", "a\0b")),
        (shard(7), "has no weight_map of names to files"),
        (shard("gone.safetensors"), "gone.safetensors: cannot be read: No such file"),
    ],
    "safetensors": [
        (safetensors({}, size=1 << 62), "a header of 4611686018427387904 bytes, allowed are 16777216"),
        (safetensors({}, size=1 << 20), "truncated: 1048576 bytes expected"),
        (safetensors(b'{"a": ' * 5000), "not JSON"),
        (safetensors(b'{"a": ' + b"[" * 100_000), "not JSON"),
        (safetensors({"w": entry(dtype="I64")}, bytes(4)), 'its type "I64" is none of F32, F16, BF16'),
        (safetensors({"w": entry(shape=[1 << 40])}, bytes(4)), "the entry of 'w' is damaged"),
        (safetensors({"w": entry(shape=[True])}, bytes(4)), "the entry of 'w' is damaged"),
        (safetensors({"w": entry(offsets=[-4, 0])}, bytes(4)), "'w' begins at byte -4 of the data"),
        (safetensors({"w": entry()}, bytes(3)), "3 bytes of data, its tensors have 4"),
        (safetensors({"v": entry(), "w": entry()}, bytes(4)), "'w' begins at byte 0 of the data, allowed is 4"),
        (safetensors({"w": entry()}, bytes(4)), "not a Whisper model: weight encoder.conv1.weight is missing"),
    ],
    "configurations that contradict the weights": [
        (config(model_type="wav2vec2"), 'json: not a Whisper model: model_type is "wav2vec2", allowed is'),
        (config(tie_word_embeddings=None), "tie_word_embeddings is null, allowed is true or false"),
        (config(vocab_size=97), "config.json: declares n_vocab=97, its weights have n_vocab=96"),
        (config(encoder_layers=10**9), "declares n_audio_layer=1000000000, its weights have n_audio_layer=2"),
        (config(encoder_attention_heads=5), "config.json: n_audio_head=5: allowed is a divisor of n_audio_st"),
        (config(encoder_attention_heads="2"), "config.json: dimension 'n_audio_head' is unknown or not an int"),
    ],
    "configurations of a decoder": [
        (decoder(encoder_attention_heads=5), "n_audio_head=5: allowed is a divisor of n_audio_state=32"),
        (decoder(d_model=64), "declares n_text_state=64, its weights have n_text_state=32"),
        (decoder(vocab_size=95), "declares n_vocab=95, its weights have n_vocab=96"),
        (decoder(harken=[]), "config.json: harken is a list, allowed is an object"),
        (decoder(harken={"encoder_sha256": "F" * 64}), "encoder_sha256 is not 64 digits in lower-case hex"),
        (decoder(harken={"draft_vocabulary": "0"}), NOT_IDS),
        (decoder(harken={"draft_vocabulary": [0, True]}), NOT_IDS),
        (decoder(harken={"draft_vocabulary": [1, 0]}), NOT_ASCENDING),
        (decoder(harken={"draft_vocabulary": [0, 96]}), NOT_ASCENDING),
        (decoder(harken={"draft_vocabulary": [0, 10**30]}), NOT_ASCENDING),
    ],
    "weights that are not those of Whisper": [
        (weights("encoder.conv1.weight"), "not a Whisper model: weight encoder.conv1.weight is missing"),
        (weights("decoder.ln.bias"), "misses weights, 1 in all, the first is 'decoder.ln.bias'"),
        (weights("decoder.lora.weight", 3), "has unknown weights, 1 in all, the first is 'decoder.lora"),
        (weights("decoder.ln.bias", 31), "decoder.ln.bias has shape (31,), allowed is (32,)"),
        (weights("encoder.conv1.weight", 8, 3), "allowed are 3 axes"),
        (weights("decoder.positional_embedding", 17, 32), "declares n_text_ctx=16, its weights have"),
        (weights("decoder.blocks.7.ln", 3), "declares n_text_layer=3, its weights have n_text_layer=4"),
    ],
    "CTranslate2": [
        (ct2(lambda data: data + b"x"), "1 bytes after the end of the model"),
        (ct2(lambda data: b"\x07" + data[1:]), "binary version 7, WhisperSpec revision 3: allowed"),
        (ct2(at(EMBEDDING, 1, HUGE)), "has 6144 bytes, which is not float16 of shape"),
        (ct2(at(EMBEDDING, 9, b"\x09")), "has data type 9, allowed is 0 to 5"),
        (ct2(at(EMBEDDING, 9, b"\x02")), "is int16 without a scale"),
        *(
            (ct2(at(SCALE, 10, struct.pack("<f", scale)), format="ctranslate2-int8"), "not finite and positive")
            for scale in (0.0, -1.0, float("nan"), float("inf"))
        ),
        (ct2(at(b"decoder/activation\0", 6, b"\0")), "decoder/activation=0, allowed for Whisper is 3"),
        (ct2(lambda data: data.replace(b"conv1/bias", b"conv2/bias")), "encoder/conv2/bias is there twice"),
        (ct2(lambda data: data[:-26] + b"decoder/embeddings/weighs\0"), "which is not in the file"),
    ],
    "ggml": [
        (ggml(lambda data: data + b"x"), "truncated: 12 bytes expected, 1 are left"),
        (ggml(at(b"lmgg", 0, int32(-1))), "declares n_vocab=-1, its weights have n_vocab=96"),
        (ggml(at(b"lmgg", 52 + 4 * 5 * 8, HUGE)), "truncated in the vocabulary"),
        (ggml(at(b"decoder.ln.weight", -33, int32(9))), "a weight with 9 axes, allowed is 1 to 4"),
        (ggml(at(b"decoder.ln.weight", -25, int32(99))), "has ggml type 99, allowed is float32, "),
        (ggml(at(b"lmgg", 12, int32(3))), "n_audio_head=3: allowed is a divisor"),
        (ggml(at(b"lmgg", 40, int32(1002)), format="ggml-q5_0"), "quantisation version 1, allowed is 2"),
    ],
    "OpenVINO": [
        (openvino(lambda data: data.replace(b'offset="0"', b'offset="99999999"')), "missing or too short"),
        (openvino(lambda data: data.replace(b'offset="', b'offset="-')), "token_embedding.weight is missing"),
        (openvino(outer_product), "weight decoder.blocks.0.mlp.0.weight has shape (1, 32)"),
    ],
    "pickles": [
        (pickled(b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R."), "it calls 'os system'"),
        (pickled(b"\x80\x02c__builtin__\neval\nX\x01\0\0\0a\x85R."), "it calls '__builtin__ eval'"),
        (pickled(b"\x80\x02ctorch\nHalfStorage\n)R."), "it calls 'torch HalfStorage'"),
        (pickled(b"(S'ls'\nios\nsystem\n."), "the instruction STRING"),
        (pickled(b"(ios\nsystem\n."), "the instruction INST"),
        (pickled(b"\x80\x02(cos\nsystem\no."), "the instruction OBJ"),
        (pickled(b"\x80\x02cos\nsystem\n)\x81."), "the instruction NEWOBJ"),
        (pickled(b"\x80\x04\x8c\x02os\x8c\x06system\x93\x94)R."), "it calls 'os system'"),
        (pickled(b"\x80\x04K\x01\x8c\x06system\x93."), MISFIT),
        (pickled(b"\x80\x04" + b"X\x2c\x01\0\0" + b"a" * 300 + b"\x94h\0\x93."), MISFIT),
        (pickled(b"\x80\x02\x82\x01."), "the instruction EXT1"),
        (pickled(b"\x80\x04\x8e\xff\xff\xff\xff\xff\0\0\0."), "bytes8"),
        (pickled(b"\x80\x02Nr\xff\xff\xff\x7fR."), MISFIT),
        (pickled(b"\x80\x02h\x05."), MISFIT),
        (pickled(b"\x80\x02t."), MISFIT),
        (pickled(b"\x80\x02]K\x01K\x01s."), MISFIT),
        (pickled(b"\x80\x02}"), "exhausted"),
        (pickled(b""), "exhausted"),
        (pickled(b"\x80\x02N."), "holds no dict of weights"),
    ],
    "pickles that take exponential time to hash or print": [
        (pickled(b"\x80\x02})" + DOUBLED + b"K\x01s."), MISFIT),
        (pickled(b"\x80\x02})" + DOUBLED + b")R."), MISFIT),
        (pickled(b"\x80\x02})" + DOUBLED + b"Q."), MISFIT),
        (pickled(b"\x80\x04\x8c\x02os)" + DOUBLED + b"\x93."), MISFIT),
        (pickled(STORAGE_TYPE + DOUBLED + b"NNNtQK\0))tRs."), "'w' has another type than torch Float"),
    ],
    "dimensions": [
        (dims(n_mels="8"), NO_INTEGER),
        (dims(n_mels=True), NO_INTEGER),
        (dims(n_mels=(8,)), NO_INTEGER),
        (dims(n_mals=8), NO_INTEGER),
        (torch({**asdict(files.TINY), 3: 8}), NO_INTEGER),
    ],
    "tensors outside of their storage": [
        (tensor(kind="Long"), "has another type than torch FloatStorage, torch HalfStorage, torch BFloat16"),
        (tensor(kind="Float"), STORAGE),
        (tensor(key="../data.pkl"), STORAGE),
        (tensor(items=-32), STORAGE),
        (tensor(offset=1), REACH),
        (tensor(strides=(-1,), offset=31), REACH),
        (tensor(shape=(1 << 30,), strides=(0,)), REACH),
        (tensor(shape=(1 << 20, 1 << 20), strides=(0, 0)), REACH),
        (tensor(shape=(0,)), REACH),
    ],
    "archives": [
        (archive(("other", b"x")), "a zip archive with 0 data.pkl"),
        (archive(("a/data.pkl", b"x"), ("b/data.pkl", b"x")), "a zip archive with 2 data.pkl"),
        (stored(oversized_member), "truncated: 'archive/data.pkl' reaches past the end"),
        (stored(at(WEIGHTS["decoder.ln.bias"].tobytes(), -1, b"\x55")), "is damaged: its checksum differs"),
        (pickled(bytes(50 << 20), zipfile.ZIP_DEFLATED), "'archive/data.pkl' is compressed, weights never are"),
    ],
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused_with_its_reason_in_one_line_that_names_the_file(tmp_path, kind):
    for number, (write, reason) in enumerate(DAMAGE[kind]):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = write(folder)
        with raises_checkpoint_error(f"{re.escape(str(folder))}.*{re.escape(reason)}"):
            [*open_checkpoint(path, assistant=True).weights.values()]


# --- What no table shows -----------------------------------------------------------------------------------


def test_imports_of_a_pickle_are_only_names_and_plain_data_and_tensors_are_parsed():
    assert parse_pickle(b"\x80\x02cos\nsystem\n.") == Global("os system")
    value = {"a": (1, 2.5, True, None), "b": [], "c": {3: "x"}, "d": [1, (2,), (3, 4), (5, 6, 7), ()]}
    for protocol in (2, 4, 5):
        assert parse_pickle(pickle.dumps(value, protocol)) == value
    view = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))NNt"
    assert parse_pickle(view + b"R.") == PickledTensor(None, 0, (), (), None, None)


def test_dimension_with_exponential_print_time_is_refused(tmp_path):
    deep = ()
    for _ in range(200):
        deep = (deep, deep)
    with raises_checkpoint_error("is unknown or not an integer"):
        infer_dims(tmp_path, files.weight_shapes(files.TINY), {"n_mels": Declared(deep, tmp_path)})


# --- any damage --------------------------------------------------------------------------------------------

# As small as quantised blocks allow: more of the bytes are headers.
SMALLEST = Dims(
    **{"n_mels": 1, "n_audio_ctx": 2, "n_audio_state": 32, "n_audio_head": 1, "n_audio_layer": 1},
    **{"n_vocab": 4, "n_text_ctx": 2, "n_text_state": 32, "n_text_head": 1, "n_text_layer": 1},
)
ROUNDS = 24


def write_decoder(folder, dims, weights):
    """Write a decoder without an encoder, with every entry that its configuration may have."""
    entry = {"encoder_sha256": "0f" * 32, "draft_vocabulary": [0, 2, 3]}
    return files.write_huggingface(folder, dims, files.decoder_of(weights), config={"harken": entry})


KINDS = (
    *("openai", "safetensors", "sharded", "torch-bin", "ctranslate2-int8", "ggml-q5_0"),
    *("gguf", "mlx", "onnx-int8", "openvino-int8"),
)
WRITERS = {kind: files.FORMATS[kind] for kind in KINDS} | {"decoder": write_decoder}


def headers(data):
    """Return positions of bytes that are not weights: text, and bytes close to it."""
    text = [i for i, byte in enumerate(data) if byte in b"abcdefghijklmnopqrstuvwxyz._/"]
    runs = [a for a, b in zip(text, text[5:], strict=False) if b - a == 5]
    return sorted({i + offset for i in runs for offset in range(-24, 24) if 0 <= i + offset < len(data)})


@pytest.mark.parametrize("writer", WRITERS)
def test_damaged_checkpoint_opens_whole_or_is_rejected(tmp_path, writer):
    opened = WRITERS[writer](tmp_path, SMALLEST, files.random_weights(SMALLEST))
    assert open_checkpoint(opened, assistant=True).dims in (SMALLEST, SMALLEST.without_encoder())
    originals = [
        (path, data, headers(data)) for path in sorted(tmp_path.iterdir()) if (data := path.read_bytes())
    ]
    survived = 0
    for seed in range(ROUNDS):
        rng = random.Random(f"{writer} {seed}")
        path, data, positions = rng.choice(originals)
        path.write_bytes(damaged(data, positions, rng))
        survived += opens_whole(opened, seed)
        path.write_bytes(data)
    assert survived < ROUNDS, "no damage was detected: it is not in the right positions"


def opens_whole(path, seed):
    """Return whether a checkpoint opens with all weights of its dimensions; else it is refused in one line."""
    refused = ""
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(path, assistant=True)
        weights = {name: (values.shape, values.dtype.name) for name, values in checkpoint.weights.items()}
        assert {name: shape for name, (shape, _) in weights.items()} == expected_shapes(checkpoint.dims), seed
        assert {dtype for _, dtype in weights.values()} <= {"float16", "float32"}, seed
    except CheckpointError as error:
        refused = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 << 20, seed
    if refused:
        assert str(path.parent if path.is_file() else path) in refused, seed
        assert "\n" not in refused, seed
    return not refused
