"""Hostile checkpoints on the command line: nothing is executed, one line, code 4.

`tests/checkpoints/test_checkpoint_bytes.py` has random damage.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import error_faults, is_control

import checkpoint_files as files
from audio_files import AUDIO_FORMATS
from cli_runner import CliRunner
from fakes.backends import WINDOW_POSITIONS, window_text
from harken.text.bpe import bytes_to_unicode
from tiny_models import DIMS, make_weights
from training_data import write_model

MARKER = "executed"
WEIGHTS = {name: values.astype(np.float16) for name, values in make_weights().items()}


class Executes:
    """An object whose pickle makes the marker when it is loaded."""

    def __init__(self, how: Callable[..., Any], *arguments: Any) -> None:
        self._call = how, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


PAYLOADS = {
    "system": lambda: Executes(os.system, f"echo > {MARKER}"),
    "open": lambda: Executes(open, MARKER, "w"),
    "eval": lambda: Executes(eval, f"open({MARKER!r}, 'w')"),
    "nested": lambda: {"model_state_dict": {"a": [Executes(os.mkdir, MARKER)]}, "dims": {}},
}


def plain_pickle(payload: str, protocol: int) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "model.pt"
        path.write_bytes(pickle.dumps(PAYLOADS[payload](), protocol))
        return path

    return write


def zipped_pickle(payload: str, protocol: int) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "model.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(PAYLOADS[payload](), protocol))
            archive.writestr("archive/version", "3\n")
        return path

    return write


def zip_bomb(folder: Path) -> Path:
    path = folder / "model.pt"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
        archive.open("archive/data.pkl", "w", force_zip64=True) as member,
    ):
        for _ in range(256):
            member.write(bytes(1 << 20))
    return path


def _huggingface(folder: Path) -> Path:
    write_model(folder / "model")
    return folder / "model"


def weights_that_are_not_numbers(folder: Path) -> Path:
    name = "decoder.blocks.1.mlp.0.weight"
    poisoned = {**WEIGHTS, name: np.full_like(WEIGHTS[name], np.nan)}
    model = _huggingface(folder)
    return files.write_huggingface(model, DIMS, poisoned)


def cut(share: float) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        model = _huggingface(folder)
        (weights,) = model.glob("*.safetensors")
        os.truncate(weights, round(weights.stat().st_size * share))
        return model

    return write


def lying_length(folder: Path) -> Path:
    model = _huggingface(folder)
    (weights,) = model.glob("*.safetensors")
    weights.write_bytes((1 << 62).to_bytes(8, "little") + weights.read_bytes()[8:])
    return model


def index_outside(folder: Path) -> Path:
    secret = files.write_safetensors(folder / "secret", {})
    model = files.write_huggingface(folder / "model", DIMS, WEIGHTS, shards=2)
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": f"../{secret.name}"}}))
    return model


def escaped_names(folder: Path) -> Path:
    """Names of tensors come into messages."""
    model = _huggingface(folder)
    (weights,) = model.glob("*.safetensors")
    files.write_safetensors(weights, {"\x1b]0;title\x07\x9b\0": np.zeros(3, np.float32)})
    return model


def escaped_configuration(folder: Path) -> Path:
    model = _huggingface(folder)
    (model / "config.json").write_text(json.dumps({"model_type": "\x1b[2J\nharken: all is well\n"}))
    return model


HOSTILE = {
    **{
        f"pickle {payload} {protocol}": plain_pickle(payload, protocol)
        for payload in PAYLOADS
        for protocol in (0, 2, 4)
    },
    **{
        f"zip {payload} {protocol}": zipped_pickle(payload, protocol)
        for payload in PAYLOADS
        for protocol in (2, 4)
    },
    **{f"cut at {share:.0%}": cut(share) for share in (0.0, 0.001, 0.5, 0.999)},
    "zip bomb": zip_bomb,
    "weights that are not numbers": weights_that_are_not_numbers,
    "lying length": lying_length,
    "index outside of its folder": index_outside,
    "escapes in names of weights": escaped_names,
    "escapes in the configuration": escaped_configuration,
}


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> CliRunner:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    AUDIO_FORMATS["wav s16"].write(Path("talk"), 0.4)
    return CliRunner(capsys, monkeypatch)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_checkpoint_is_refused_in_one_line_and_runs_nothing(cli: CliRunner, name: str) -> None:
    model = HOSTILE[name](Path())
    for arguments in (
        ["transcribe", "talk.wav", "--backend", "numpy", "--no-vad", "--temperatures", "0", "-m", model],
        ["models", "check", model],
        ["transcribe", "talk.wav", "--backend", "numpy", "-m", _model(), "--assistant", model],
    ):
        outcome = cli.run(*arguments)
        assert not error_faults(outcome)  # type: ignore[arg-type]
        assert outcome.code == 4, (arguments, outcome)
        assert len(outcome.err.splitlines()) == 1
        assert outcome.out == ""
        assert not Path(MARKER).exists()


def _model() -> Path:
    """A good model beside the hostile one."""
    path = Path("good")
    if not path.exists():
        write_model(path)
    return path


def test_good_model_passes(cli: CliRunner) -> None:
    """The models above are refused for their faults."""
    assert cli.run("models", "check", _model()).code == 0
    outcome = cli.run(
        "transcribe", "talk.wav", "--backend", "numpy", "--no-vad", "--temperatures", "0", "-m", _model()
    )
    assert (outcome.code, outcome.err) == (0, "")


@pytest.mark.slow
def test_flipped_bits_end_in_a_text_or_in_one_line(cli: CliRunner) -> None:
    rng, model = np.random.default_rng(3), _model()
    (weights,) = model.glob("*.safetensors")
    whole = weights.read_bytes()
    for number in range(25):
        data = bytearray(whole)
        data[rng.integers(0, 4_000 if number % 2 else len(data))] ^= 1 << rng.integers(8)
        weights.write_bytes(data)
        outcome = cli.run(
            "transcribe", "talk.wav", "--backend", "numpy", "--no-vad", "--temperatures", "0", "-m", model
        )
        assert not error_faults(outcome)  # type: ignore[arg-type]
        assert outcome.code in (0, 4), outcome
        assert "nan" not in outcome.out


def test_hostile_vocabulary_steers_no_terminal_and_no_file(cli: CliRunner) -> None:
    cli.use_texts(window_text(0, "a\x1b]0;title\x07b\x9b31mc\0d\x7f", WINDOW_POSITIONS))
    plain = ("txt", "srt", "vtt", "tsv", "words.tsv", "ass", "lrc", "html", "json")
    for suppressed in (["--suppress-tokens", ""], []):
        screen = cli.run("transcribe", "talk.wav", *suppressed)
        assert screen.code == 0
        assert not [character for character in screen.out + screen.err if is_control(character)]
    assert cli.run("transcribe", "talk.wav", "-f", "all", "--suppress-tokens", "").code == 0
    for form in plain:
        written = Path(f"talk.{form}")
        if written.exists():
            text = written.read_text(encoding="utf-8")
            assert not [character for character in text if is_control(character)], form


def test_hostile_vocabulary_file_is_refused_or_harmless(cli: CliRunner) -> None:
    good = {bytes_to_unicode(bytes([byte])): byte for byte in range(256)} | {"<|endoftext|>": 256}
    hostile: dict[str, object] = {
        "deep": "[" * 100_000,
        "huge ids": json.dumps({"a": 10**30}),
        "negative": json.dumps({**good, "x": -1}),
        "not text": json.dumps([1, 2]),
        "nan": '{"a": NaN}',
        "empty": "",
    }
    for name, content in hostile.items():
        shutil.rmtree("good", ignore_errors=True)
        (_model() / "vocab.json").write_text(str(content))
        outcome = cli.run("transcribe", "talk.wav", "--backend", "numpy", "--no-vad", "-m", "good")
        assert not error_faults(outcome), name  # type: ignore[arg-type]
        assert outcome.code == 4, (name, outcome)
