"""Hostile checkpoints on the command line: nothing is executed, one line, code 4.

`tests/checkpoints/test_checkpoint_damage.py` has random damage.
"""

import json
import os
import pickle
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import checkpoint_files as files
from fakes.backends import WINDOW_POSITIONS, window_text
from processes import error_faults, is_control
from tiny_models import DIMS, make_weights
from training_data import write_model

MARKER = "executed"
WEIGHTS = {name: values.astype(np.float16) for name, values in make_weights().items()}


class Executes:
    """An object whose pickle makes the marker when it is loaded."""

    def __init__(self, how, *arguments):
        self._call = how, arguments

    def __reduce__(self):
        return self._call


PAYLOADS = {
    "system": Executes(os.system, f"echo > {MARKER}"),
    "nested": {"model_state_dict": {"a": [Executes(os.mkdir, MARKER)]}, "dims": {}},
}


def pickled(payload, protocol, *, zipped):
    path, data = Path("model.pt"), pickle.dumps(PAYLOADS[payload], protocol)
    if not zipped:
        path.write_bytes(data)
        return path
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")
    return path


def zip_bomb():
    path = Path("model.pt")
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("archive/data.pkl", "w", force_zip64=True) as member,
    ):
        for _ in range(64):
            member.write(bytes(1 << 20))
    return path


def good_model(folder="model"):
    if not Path(folder).exists():
        write_model(Path(folder))
    return Path(folder)


def onnx_data_outside():
    import onnx

    model = files.write_onnx(Path("model"), DIMS, WEIGHTS, external=True)
    graph = onnx.load(model / "encoder_model.onnx", load_external_data=False)
    for entry in graph.graph.initializer[0].external_data:
        entry.value = "../secret" if entry.key == "location" else entry.value
    (model / "encoder_model.onnx").write_bytes(graph.SerializeToString())
    return model


def xml_bomb():
    model = files.write_openvino(Path("model"), DIMS, WEIGHTS)
    entities = "".join(f'<!ENTITY a{i + 1} "{f"&a{i};" * 10}">' for i in range(12))
    text = f'<?xml version="1.0"?><!DOCTYPE net [<!ENTITY a0 "a">{entities}]><net name="m">&a12;</net>'
    (model / "openvino_encoder_model.xml").write_text(text)
    return model


def with_escapes_in_names():
    """Names of tensors come into messages."""
    (weights,) = good_model().glob("*.safetensors")
    files.write_safetensors(weights, {"\x1b]0;title\x07\x9b\0": np.zeros(3, np.float32)})
    return Path("model")


def with_escapes_in_configuration():
    configuration = {"model_type": "\x1b[2J\nharken: all is well\n"}
    (good_model() / "config.json").write_text(json.dumps(configuration))
    return Path("model")


def huge(name):
    with open(good_model() / name, "wb") as file:
        file.truncate(1 << 31)
    return Path("model")


def empty_weights():
    model = files.write_huggingface(Path("model"), DIMS, WEIGHTS, shards=2)
    next(model.glob("*-00002-*")).write_bytes(b"")
    return model


def pipe(name):
    """Reading it would wait for a writer for ever."""
    model = good_model()
    (model / name).unlink(missing_ok=True)
    if hasattr(os, "mkfifo"):
        os.mkfifo(model / name)
    else:
        (model / name).mkdir()
    return model


HOSTILE = {
    "zip bomb": zip_bomb,
    "data of ONNX outside of its folder": onnx_data_outside,
    "XML bomb": xml_bomb,
    "huge configuration": partial(huge, "config.json"),
    "huge added tokens": partial(huge, "added_tokens.json"),
    "empty weights": empty_weights,
    "a pipe in place of weights": partial(pipe, "model.bin"),
    "a pipe in place of the configuration": partial(pipe, "config.json"),
    "escapes in names of weights": with_escapes_in_names,
    "escapes in the configuration": with_escapes_in_configuration,
    **{
        f"{'zipped' if zipped else 'plain'} {payload} {protocol}": partial(
            pickled, payload, protocol, zipped=zipped
        )
        for payload in PAYLOADS
        for protocol in (0, 4)
        for zipped in (False, True)
    },
}


def transcribe(cli, *options):
    return cli.run("transcribe", "talk.wav", "--backend", "numpy", "--no-vad", "--temperatures", "0", *options)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_checkpoint_is_refused_in_one_line_and_runs_nothing(cli, name):
    model = HOSTILE[name]()
    for outcome in (
        transcribe(cli, "-m", model),
        cli.run("models", "check", model),
        transcribe(cli, "-m", good_model("good"), "--assistant", model),
    ):
        assert not error_faults(outcome)
        assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (4, "", 1), outcome
        assert not Path(MARKER).exists()


def test_good_model_passes(cli):
    """The models above are refused for their faults."""
    assert cli.run("models", "check", good_model()).code == 0
    outcome = transcribe(cli, "-m", good_model())
    assert (outcome.code, outcome.err) == (0, "")


def test_hostile_vocabulary_steers_no_terminal_and_no_file(cli):
    cli.use_texts(window_text(0, "a\x1b]0;title\x07b\x9b31mc\0d\x7f", WINDOW_POSITIONS))
    screen = cli.run("transcribe", "talk.wav", "--suppress-tokens", "")
    assert cli.run("transcribe", "talk.wav", "-f", "all", "--suppress-tokens", "").code == 0
    written = {
        path.name: path.read_text(encoding="utf-8") for path in Path().glob("talk.*") if path.suffix != ".wav"
    }
    assert (screen.code, len(written)) == (0, 9)
    for name, text in {**written, "screen": screen.out + screen.err}.items():
        assert not [character for character in text if is_control(character)], name
