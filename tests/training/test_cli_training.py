"""``harken distill``, ``finetune`` and ``adapt`` on a tiny model, from recordings to a folder that loads."""

import json
import re
import shutil
import signal
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from small_training import all_equal, torch

import harken
from audio_files import wav_bytes
from checkpoint_files import random_weights
from cli_runner import signal_at
from harken.api import Recognizer
from harken.checkpoints import encoder_digest, open_checkpoint
from harken.checkpoints.huggingface import export
from harken.results import Word
from harken.training.examples import ExampleStore
from tiny_models import DIMS, TOKENIZER
from training_data import RATE, write_model, write_speech

FINETUNE = ("finetune", "model", "--data", "labelled")
SHORT_TRAINING = (
    *("--epochs", 2, "--batch-size", 4, "--eval-steps", 2, "--threads", 1),
    *("--held-out-fraction", 0.3, "--shuffles", 1),
)


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory):
    """A folder with a model, and speech with and without a manifest."""
    data_folder = tmp_path_factory.mktemp("data_folder")
    write_model(data_folder / "model")
    for name in ("speech", "labelled"):
        write_speech(data_folder / name)
    line = '{{"audio": "{}.wav", "text": "ask not {}", "language": "en", "speaker": {}}}\n'
    lines = [line.format(i, i, i // 2) for i in range(6)]
    (data_folder / "labelled" / "manifest.jsonl").write_text("".join(lines))
    return data_folder


@pytest.fixture
def cli(cli, data_folder):
    cli.monkeypatch.chdir(data_folder)
    cli.monkeypatch.setenv("HARKEN_CACHE", str(data_folder / "cache"))
    return cli


def distilled(cli, out, *more):
    layers = () if "--init-from" in more else ("--layers", 1)
    return cli.run("distill", "model", "--data", "speech", *layers, "--out", out, *SHORT_TRAINING, *more)


def assert_assists(data_folder, assistant):
    """Assert that an assistant changes no text."""
    options = {"vad": False, "temperatures": (0.0,), "hallucination_threshold": None}
    texts = {
        harken.load(data_folder / "model", assistant=given, threads=1)
        .transcribe(data_folder / "speech" / "0.wav", **options)
        .text
        for given in (None, assistant)
    }
    assert len(texts) == 1


def test_assistant_is_distilled_from_a_folder_of_speech(cli, data_folder, tmp_path):
    out = tmp_path / "new" / "assistant"
    outcome = distilled(cli, out)
    assert outcome.code == 0, outcome.err
    assert re.search(r"step 0: [\d.]+% of \d+ held-out tokens predicted", outcome.err)
    assert "best" in outcome.out
    made = open_checkpoint(out, assistant=True)
    assert (made.dims.n_text_layer, made.dims.has_encoder) == (1, False)
    assert made.encoder_sha256 == encoder_digest(open_checkpoint(data_folder / "model"))
    assert_assists(data_folder, out)
    shutil.rmtree(out / "training" / "examples")
    again = distilled(cli, out)
    assert (again.code, again.out) == (0, outcome.out)
    (out / "model.safetensors").unlink()
    lost = distilled(cli, out)
    assert (lost.code, "has lost its result" in lost.err) == (5, True)


@pytest.mark.parametrize("rank", [(), ("--rank", 4)], ids=["whole", "low rank"])
def test_assistant_is_initialized_from_a_smaller_model(rank, cli, data_folder, tmp_path):
    narrow = replace(DIMS, n_audio_state=32, n_text_state=32)
    if not (data_folder / "narrow").exists():
        (data_folder / "narrow").mkdir()
        export(data_folder / "narrow", narrow, random_weights(narrow, 3), TOKENIZER)
        shutil.copy(data_folder / "model" / "vocab.json", data_folder / "narrow")
    outcome = distilled(cli, tmp_path / "out", "--init-from", "narrow", *rank)
    assert outcome.code == 0, outcome.err
    made = open_checkpoint(tmp_path / "out", assistant=True)
    assert (made.dims.n_audio_state, made.dims.n_text_state, made.dims.n_text_layer) == (64, 32, 2)
    assert_assists(data_folder, tmp_path / "out")
    assert distilled(cli, tmp_path / "out", "--init-from", "narrow", *rank).out == outcome.out
    refused = distilled(cli, tmp_path / "out", "--init-from", "narrow", *rank, "--dropout", 0.5)
    assert "holds a training with dropout=0.0, not 0.5; allowed is the same command" in refused.err
    assert "--rank has no effect without --init-from" in distilled(cli, tmp_path / "other", "--rank", 4).err


def test_interrupted_labelling_and_training_continue(cli, tmp_path):
    def run(name):
        return distilled(cli, tmp_path / name, "--unpacked-fraction", 1, "--batch-size", 1)

    def written():
        return {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("parts/training/examples/*")}

    # Later, on a machine that is busy, another is faster.
    dtypes = [torch.bfloat16, torch.bfloat16, torch.float32]
    cli.monkeypatch.setattr("harken.training.run_directory.fastest_matmul_dtype", lambda: dtypes.pop(0))
    whole, before = run("whole"), {}
    for *call, number in ((ExampleStore, "put", 2, signal.SIGINT), (ExampleStore, "get", 2, signal.SIGTERM)):
        with cli.monkeypatch.context() as patch:
            signal_at(patch, *call, number)
            stopped = run("parts")
        assert stopped.code == 128 + number
        assert stopped.err.endswith("and the same command goes on from there\n")
        assert before.items() < written().items()
        before = written()
        assert (len(before) == 2) is (number == signal.SIGINT)
    assert run("parts").out == whole.out
    assert written() == before
    one, other = (torch.load(tmp_path / name / "training" / "state.pt") for name in ("whole", "parts"))
    assert one["step"] == other["step"]
    assert all_equal(one["weights"], other["weights"])


@pytest.mark.parametrize("frozen", ["--freeze-encoder", "--no-freeze-encoder"])
def test_fine_tuning_reduces_the_held_out_loss(cli, data_folder, tmp_path, frozen):
    out = tmp_path / "tuned"
    outcome = cli.run(
        *("finetune", "model", frozen, "--data", "labelled", "--out", out, *SHORT_TRAINING),
        *("--epochs", 8, "--learning-rate", 0.003, "--batch-size", 1, "--eval-steps", 100),
    )
    assert outcome.code == 0, outcome.err
    points = [json.loads(line) for line in (out / "training" / "acceptance.jsonl").read_text().splitlines()]
    assert points[-1]["held_out_loss"] < 0.7 * points[0]["held_out_loss"]
    before, after = open_checkpoint(data_folder / "model"), open_checkpoint(out)
    assert after.dims == before.dims
    assert (encoder_digest(after) == encoder_digest(before)) is (frozen == "--freeze-encoder")
    assert harken.load(out, threads=1).dims == before.dims


def test_adapter_is_trained_from_a_folder_of_speech_and_goes_on_after_its_time_limit(
    cli, data_folder, tmp_path
):
    out = tmp_path / "adapter"
    arguments = ("adapt", "model", "--data", "speech", "--hears", "whole", "--out", out, *SHORT_TRAINING)
    with cli.monkeypatch.context() as patch:
        patch.setattr("harken.cli.training.perf_counter", count().__next__)
        stopped = cli.run(*arguments, "--time-limit", 0.01)
    assert (stopped.code, stopped.err.splitlines()[-1][:23]) == (0, "stopped at --time-limit")
    outcome = cli.run(*arguments)
    assert outcome.code == 0, outcome.err
    assert "best" in outcome.out
    for adapter, code in ((out, 0), (tmp_path / "no", 4)):
        arguments = ("speech/0.wav", "--model", "model", "--output-dir", tmp_path, "--adapter", adapter)
        transcribed = cli.run("transcribe", *arguments, "--no-vad")
        assert transcribed.code == code
    assert transcribed.err == f"harken: {tmp_path / 'no'}: no such adapter\n"


def fail(cli, *arguments):
    outcome = cli.run(*arguments)
    assert (outcome.out, outcome.err.count("\n")) == ("", 1)
    return outcome.code, outcome.err


REFUSED = [
    (("distill", "nosuch", "--data", "speech"), 4, "nosuch"),
    (("distill", "model"), 2, "--data"),
    (("distill", "model", "--data", "empty"), 3, "holds neither manifest.jsonl nor audio"),
    (("distill", "model", "--data", "none.jsonl"), 3, "holds no recordings"),
    (("distill", "model", "--data", "speech", "--out", "full"), 5, "is there, and is no training"),
    (("distill", "model", "--data", "speech", "--layers", 3), 2, "--layers 3: allowed is 1 to 2"),
    (("distill", "model", "--data", "speech", "--time-limit", "nan"), 2, "'nan' is not a number of the range"),
    (("adapt", "model", "--data", "speech"), 2, "--hears 'live': allowed is whole, with"),
    (("adapt", "model", "--data", "speech", "--hears="), 2, "--hears '': allowed is one or more of live"),
    (("finetune", "model", "--data", "speech"), 3, "manifest.jsonl"),
    (("finetune", "model", "--data", "mute.jsonl"), 3, "nothing tells what is said"),
    ((*FINETUNE, "--out", "y" * 5000), 5, "cannot be made a folder"),
    ((*FINETUNE, "--held-out-data", "labelled", "--held-out-fraction", 1), 2, "-fraction has no effect with"),
    ((*FINETUNE, "--revision", "main"), 2, "--revision has no effect with a model given by its path"),
]


def test_each_error_is_one_line(cli, data_folder, tmp_path):
    cli.monkeypatch.chdir(tmp_path)
    for name in ("model", "speech", "labelled"):
        shutil.copytree(data_folder / name, name)
    Path("empty").mkdir()
    Path("full").mkdir()
    Path("full/thesis").touch()
    Path("none.jsonl").touch()
    Path("mute.jsonl").write_text('{"audio": "labelled/0.wav", "text": ""}')
    for arguments, code, message in REFUSED:
        out = () if "--out" in arguments else ("--out", "x")
        refused, line = fail(cli, *arguments, *out)
        assert refused == code, arguments
        assert message in line
        assert not (tmp_path / "x").exists()


def test_refused_training_does_not_block_its_folder(cli, tmp_path):
    arguments = (*FINETUNE, "--out", tmp_path / "out", *SHORT_TRAINING)
    code, line = fail(cli, *arguments, "--held-out-fraction", 1)
    assert (code, line) == (
        3,
        "harken: there is no speech to learn from, in 6 recordings with a held-out fraction of 1\n",
    )
    assert not (tmp_path / "out").exists()
    assert cli.run(*arguments, "--epochs", 1).code == 0


def test_a_recording_whose_text_cannot_be_its_own_is_left_out_by_name(cli, tmp_path):
    """One without speech teaches no silence, and text for more than a window does not end the work on the others."""
    folder = shutil.copytree("labelled", tmp_path / "labelled")
    silence = np.zeros(3 * RATE, "<i2")
    (folder / "silent.wav").write_bytes(wav_bytes(silence))
    (folder / "long.wav").write_bytes((folder / "0.wav").read_bytes())
    with (folder / "manifest.jsonl").open("a") as manifest:
        for name, text in (("silent", "ask"), ("long", "ask not " * 999)):
            manifest.write(f'{{"audio": "{name}.wav", "text": "{text}", "speaker": 0}}\n')
    arguments = ("finetune", "model", "--data", folder, "--out", tmp_path / "out", *SHORT_TRAINING)
    outcome = cli.run(*arguments, "--epochs", 1, "--held-out-fraction", 0.5, "--no-speech-fraction", 1)
    assert outcome.code == 0, outcome.err
    notes = [line for line in outcome.err.splitlines() if "left out" in line]
    assert [line.partition(": left out: ")[0] for line in notes] == [
        str(folder / f"{name}.wav") for name in ("silent", "long")
    ]
    windows = (tmp_path / "out" / "training" / "windows.jsonl").read_text()
    assert "silent.wav" not in windows
    assert "long.wav" not in windows


def test_a_recording_in_which_the_words_of_its_text_are_not_heard_is_left_out_by_name(cli, tmp_path):
    def align(self, audio, text, **options):
        heard = Path(audio).name != "0.wav"
        return tuple(
            Word(start_s=0.2 * i, end_s=0.2 * i + 0.1, text=f" {word}", probability=float(heard))
            for i, word in enumerate(text.split())
        )

    cli.monkeypatch.setattr("harken.training.finetune.MAX_SPEECH_S", 1.0)  # so recordings are aligned
    cli.monkeypatch.setattr(Recognizer, "align", align)
    outcome = cli.run(*FINETUNE, "--out", tmp_path / "out", *SHORT_TRAINING, "--epochs", 1)
    assert outcome.code == 0, outcome.err
    (note,) = [line for line in outcome.err.splitlines() if "left out" in line]
    assert "0.wav: left out: " in note
    windows = (tmp_path / "out" / "training" / "windows.jsonl").read_text()
    assert "1.wav" in windows
    assert "0.wav" not in windows


def test_recordings_are_learnt_from_though_held_out_ones_have_their_names(cli, tmp_path):
    shutil.copytree("labelled", tmp_path / "labelled")
    more = ("--held-out-data", tmp_path / "labelled", "--epochs", 1, "--threads", 1, "--shuffles", 1)
    outcome = cli.run(*FINETUNE, "--freeze-encoder", "--out", tmp_path / "out", *more)
    assert outcome.code == 0, outcome.err
    windows = (tmp_path / "out" / "training" / "windows.jsonl").read_text().splitlines()
    own = {True: str(tmp_path / "labelled"), False: "labelled"}
    for window in map(json.loads, windows):
        assert {str(Path(span["path"]).parent) for span in window["spans"]} == {own[window["held_out"]]}


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_result_does_not_go_into_a_folder_that_is_read(cli, data_folder):
    (data_folder / "link").symlink_to("labelled")
    before = {*data_folder.rglob("*")}
    reasons = {"model": "model", "model/tuned": "lies in ", "": "it is empty"}
    for out, reason in (reasons | dict.fromkeys(("labelled", ".", "link"), "holds ")).items():
        code, line = fail(cli, *FINETUNE, "--out", out, *SHORT_TRAINING)
        assert code == 2, out
        assert reason in line
        assert {*data_folder.rglob("*")} == before
