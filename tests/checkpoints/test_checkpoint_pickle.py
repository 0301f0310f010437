"""Tests of malicious torch files: no code runs, nothing large is allocated, nothing takes exponential time."""

from __future__ import annotations

import pickle
import struct
import zipfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import checkpoint_files as files
from checkpoint_files import raises_checkpoint_error
from harken.checkpoints import open_checkpoint
from harken.checkpoints.torch_file import Global, PickledTensor, parse_pickle
from harken.checkpoints.weight_shapes import infer_dims

WEIGHTS = files.random_weights()


# --- pickles -----------------------------------------------------------------------------------------------


class Call:
    """An object that is pickled as a function call."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


def archive(path: Path, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", data)
    return path


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_that_opens_a_file_is_not_executed(tmp_path: Path, protocol: int) -> None:
    victim = tmp_path / "victim"
    data = pickle.dumps(Call(open, str(victim), "w"), protocol)
    pickle.loads(data).close()
    assert victim.exists(), "the pickle should open the file in Python itself"
    victim.unlink()
    with raises_checkpoint_error(r"m\.pt: data\.pkl is refused: it "):
        open_checkpoint(archive(tmp_path / "m.pt", data))
    assert not victim.exists()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x80\x02cos\nsystem\nX\x02\0\0\0ls\x85R.", "it calls 'os system'"),
        (b"\x80\x02c__builtin__\neval\nX\x01\0\0\0a\x85R.", "it calls '__builtin__ eval'"),
        (b"\x80\x02ctorch\nHalfStorage\n)R.", "it calls 'torch HalfStorage'"),
        (b"(S'ls'\nios\nsystem\n.", "the instruction STRING"),
        (b"(ios\nsystem\n.", "the instruction INST"),
        (b"\x80\x02(cos\nsystem\no.", "the instruction OBJ"),
        (b"\x80\x02cos\nsystem\n)\x81.", "the instruction NEWOBJ"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "the instruction SHORT_BINUNICODE"),
        (b"\x80\x02\x82\x01.", "the instruction EXT1"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\0\0\0.", "BINBYTES8|bytes8"),
        (b"\x80\x02Nr\xff\xff\xff\x7fR.", "do not fit together"),
        (b"\x80\x02h\x05.", "do not fit together"),
        (b"\x80\x02t.", "do not fit together"),
        (b"\x80\x02]K\x01K\x01s.", "do not fit together"),
        (b"\x80\x02}", "exhausted"),
        (b"", "exhausted"),
        (b"\x80\x02N.", "holds no dict of weights"),
    ],
)
def test_malicious_or_damaged_pickle_is_rejected(tmp_path: Path, data: bytes, reason: str) -> None:
    path = archive(tmp_path / "m.pt", data)
    (tmp_path / "config.json").write_text("{}")
    with raises_checkpoint_error(reason):
        open_checkpoint(path)


def test_imports_of_a_pickle_are_only_names() -> None:
    assert parse_pickle(b"\x80\x02cos\nsystem\n.") == Global("os system")


def test_plain_data_and_tensors_are_parsed() -> None:
    value = {"a": (1, 2.5, True, None), "b": [], "c": {3: "x"}, "d": [1, (2,), (3, 4), (5, 6, 7), ()]}
    assert parse_pickle(pickle.dumps(value, 2)) == value
    view = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))NNt"
    assert parse_pickle(view + b"R.") == PickledTensor(None, 0, (), (), None, None)


def doubled(times: int) -> bytes:
    """Return instructions that repeatedly replace the top of the stack by a pair of itself."""
    return b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(times))


@pytest.mark.parametrize("end", [b"K\x01s.", b")R.", b"Q."], ids=["key", "function", "persistent id"])
def test_key_with_exponential_hash_time_is_rejected(tmp_path: Path, end: bytes) -> None:
    with raises_checkpoint_error("do not fit together|holds no dict"):
        open_checkpoint(archive(tmp_path / "m.pt", b"\x80\x02})" + doubled(200) + end))


def test_storage_type_with_exponential_hash_or_print_time_is_rejected(tmp_path: Path) -> None:
    start = b"\x80\x02}X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage)"
    data = start + doubled(200) + b"NNNtQK\0))tRs."
    (tmp_path / "config.json").write_text("{}")
    with raises_checkpoint_error("'w' has another type than torch FloatStorage"):
        open_checkpoint(archive(tmp_path / "m.pt", data))


@pytest.mark.parametrize("dims", [{"n_mels": "8"}, {"n_mels": True}, {"n_mels": (8,)}, {"n_mals": 8}, {3: 8}])
def test_unknown_or_non_integer_dimension_is_rejected(tmp_path: Path, dims: dict[object, object]) -> None:
    content = {"dims": {**asdict(files.TINY), **dims}, "model_state_dict": WEIGHTS}
    with raises_checkpoint_error("is unknown or not an integer; known are n_mels, n_audio_ctx"):
        open_checkpoint(files.write_torch(tmp_path / "m.pt", content))


def test_dimension_with_exponential_print_time_is_rejected(tmp_path: Path) -> None:
    deep: object = ()
    for _ in range(200):
        deep = (deep, deep)
    with raises_checkpoint_error("is unknown or not an integer"):
        infer_dims(tmp_path, files.weight_shapes(files.TINY), {"n_mels": deep})


# --- archives of torch -------------------------------------------------------------------------------------


def write_with(path: Path, **change: object) -> Path:
    """Write a model with a false description of one tensor."""
    name = "decoder.ln.weight"
    true_entry = files.TorchTensor(kind="Half", key="0", items=32, offset=0, shape=(32,), strides=(1,))
    weights = {name: replace(true_entry, **change), "first": WEIGHTS[name], **WEIGHTS}
    weights[name] = replace(true_entry, **change)
    content = {"dims": asdict(files.TINY), "model_state_dict": weights}
    return files.write_torch(path, content)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"kind": "Long"},
            "has another type than torch FloatStorage, torch HalfStorage, torch BFloat16Storage",
        ),
        ({"kind": "Float"}, "the storage of 'decoder.ln.weight' is missing or of another size"),
        ({"key": "../data.pkl"}, "the storage of 'decoder.ln.weight' is missing or of another size"),
        ({"items": -32}, "the storage of 'decoder.ln.weight' is missing or of another size"),
        ({"offset": 1}, "'decoder.ln.weight' reaches outside its storage"),
        ({"strides": (-1,), "offset": 31}, "'decoder.ln.weight' reaches outside its storage"),
        ({"shape": (1 << 30,), "strides": (0,)}, "'decoder.ln.weight' reaches outside its storage"),
        ({"shape": (1 << 20, 1 << 20), "strides": (0, 0)}, "'decoder.ln.weight' reaches outside its storage"),
        ({"shape": (0,)}, "'decoder.ln.weight' reaches outside its storage"),
    ],
)
def test_tensor_outside_its_storage_is_rejected(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    with raises_checkpoint_error(reason):
        open_checkpoint(write_with(tmp_path / "m.pt", **change))


def test_strided_tensors_are_read_as_in_torch(tmp_path: Path) -> None:
    name = "decoder.blocks.0.attn.out.weight"
    weights = {**WEIGHTS, name: np.asfortranarray(WEIGHTS[name])}
    stored = {**weights, name: weights[name].T.copy()}
    content = {"dims": asdict(files.TINY), "model_state_dict": stored}
    path = files.write_torch(tmp_path / "m.pt", content)
    key = str(list(stored).index(name))
    view = files.TorchTensor(kind="Half", key=key, items=1024, offset=0, shape=(32, 32), strides=(1, 32))
    bases = {f"x{i}": values for i, values in enumerate(stored.values())}
    with_view = {"bases": bases, "model_state_dict": {**WEIGHTS, name: view}, "dims": asdict(files.TINY)}
    found = open_checkpoint(files.write_torch(path, with_view)).weights[name]
    np.testing.assert_array_equal(found, WEIGHTS[name])
    assert found.flags.c_contiguous


def test_zip_bomb_is_not_inflated(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(50 << 20))
    with raises_checkpoint_error("'archive/data.pkl' is compressed, torch.save never does that"):
        open_checkpoint(path)


def test_archive_member_past_the_end_of_the_file_is_rejected(tmp_path: Path) -> None:
    path = files.write_openai(tmp_path / "m.pt", files.TINY, WEIGHTS)
    data = path.read_bytes()
    entry = data.index(b"PK\x01\x02")
    huge = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
    path.write_bytes(data[: entry + 20] + huge + data[entry + 28 :])
    with raises_checkpoint_error("truncated: 'archive/data.pkl' reaches past the end"):
        open_checkpoint(path)


def test_damaged_weights_fail_their_checksum(tmp_path: Path) -> None:
    path = files.write_openai(tmp_path / "m.pt", files.TINY, WEIGHTS)
    name = "decoder.token_embedding.weight"
    data = bytearray(path.read_bytes())
    data[data.index(WEIGHTS[name].tobytes()) + 100] ^= 1
    path.write_bytes(data)
    checkpoint = open_checkpoint(path)
    with raises_checkpoint_error(r"'archive/data/\d+' is damaged: its checksum differs"):
        checkpoint.weights[name]


@pytest.mark.parametrize("names", [[], ["a/data.pkl", "b/data.pkl"]])
def test_archive_without_exactly_one_pickle_is_rejected(tmp_path: Path, names: list[str]) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as file:
        for name in ["other", *names]:
            file.writestr(name, b"x")
    with raises_checkpoint_error(f"a zip archive with {len(names)} data.pkl"):
        open_checkpoint(tmp_path / "m.pt")
