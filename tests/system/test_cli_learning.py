"""``harken distill`` and ``harken finetune`` on a tiny model, from recordings to a folder that loads."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest

torch = pytest.importorskip("torch")

import harken  # noqa: E402
from checkpoint_files import random_weights  # noqa: E402
from faces import Face, Outcome  # noqa: E402
from harken.checkpoints import encoder_digest, open_checkpoint  # noqa: E402
from harken.cli import distill, finetune  # noqa: E402
from harken.cli.options import Option  # noqa: E402
from harken.training import run  # noqa: E402
from harken.training.example_store import ExampleStore  # noqa: E402
from harken.training.export import export  # noqa: E402
from harken.training.labelling import Teacher  # noqa: E402
from tiny_models import DIMS, TOKENIZER  # noqa: E402
from training_data import write_model, write_speech  # noqa: E402

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
SMALL = ("--epochs", 2, "--batch", 4, "--measure", 2, "--threads", 1, "--held-out", 0.3, "--draws", 1)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and speech with and without a manifest."""
    shelf = tmp_path_factory.mktemp("shelf")
    write_model(shelf / "model")
    for name in ("speech", "told"):
        write_speech(shelf / name, recordings=6)
    lines = [
        json.dumps({"audio": f"{i}.wav", "text": f"ask not {i}", "language": "en", "speaker": i // 2})
        for i in range(6)
    ]
    (shelf / "told" / "manifest.jsonl").write_text("\n".join(lines))
    return shelf


@pytest.fixture
def face(
    shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Face]:
    monkeypatch.chdir(shelf)
    monkeypatch.setenv("HARKEN_CACHE", str(shelf / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    threads = torch.get_num_threads()
    yield Face(capsys, monkeypatch)
    torch.set_num_threads(threads)


def distilled(face: Face, out: Path, *more: object) -> Outcome:
    return face.run("distill", "model", "--data", "speech", "--layers", 1, "--out", out, *SMALL, *more)


def test_an_assistant_is_made_of_a_folder_of_speech(face: Face, shelf: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "assistant"
    outcome = distilled(face, out)
    assert outcome.code == 0, outcome.err
    assert re.search(r"step 0: [\d.]+% of \d+ held-out tokens foretold", outcome.err)
    assert "best" in outcome.out
    made = open_checkpoint(out, assistant=True)
    assert (made.dims.n_text_layer, made.has_encoder) == (1, False)
    assert made.encoder_sha256 == encoder_digest(open_checkpoint(shelf / "model"))
    plain = harken.load(shelf / "model", threads=1)
    helped = harken.load(shelf / "model", assistant=out, threads=1)
    recording = shelf / "speech" / "0.wav"
    options = {"vad": False, "temperatures": (0.0,), "hallucination_threshold": None}
    assert helped.transcribe(recording, **options).text == plain.transcribe(recording, **options).text
    again = distilled(face, out)
    assert (again.code, again.out) == (0, outcome.out)


def test_an_assistant_starts_from_the_decoder_of_a_smaller_model(
    face: Face, shelf: Path, tmp_path: Path
) -> None:
    narrow = replace(DIMS, n_audio_state=32, n_text_state=32)
    if not (shelf / "narrow").exists():
        (shelf / "narrow").mkdir()
        export(shelf / "narrow", narrow, random_weights(narrow, 3), TOKENIZER)
        shutil.copy(shelf / "model" / "vocab.json", shelf / "narrow")
    outcome = distilled(face, tmp_path / "out", "--start", "narrow")
    assert outcome.code == 0, outcome.err
    made = open_checkpoint(tmp_path / "out", assistant=True)
    assert (made.dims.n_audio_state, made.dims.n_text_state, made.dims.n_text_layer) == (64, 32, 2)
    helped = harken.load(shelf / "model", assistant=tmp_path / "out", threads=1)
    plain = harken.load(shelf / "model", threads=1)
    recording = shelf / "speech" / "0.wav"
    options = {"vad": False, "temperatures": (0.0,), "hallucination_threshold": None}
    assert helped.transcribe(recording, **options).text == plain.transcribe(recording, **options).text
    assert distilled(face, tmp_path / "out", "--start", "narrow").out == outcome.out
    assert "allowed is the same command" in distilled(face, tmp_path / "out").err


def test_an_interrupted_preparation_goes_on(
    face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = Teacher.__call__

    def interrupted(self: Teacher, piece, previous):
        asked.append(piece.key)
        if len(asked) == 2:
            signal.raise_signal(signal.SIGINT)
        return ask(self, piece, previous)

    monkeypatch.setattr(Teacher, "__call__", interrupted)
    first = distilled(face, tmp_path / "out", "--alone", 1)
    assert first.code == 130
    assert first.err.endswith("and the same command goes on from there\n")
    assert len([*(tmp_path / "out" / "training" / "pieces").iterdir()]) == 2
    second = distilled(face, tmp_path / "out", "--alone", 1)
    assert second.code == 0, second.err
    assert len(asked) == len(set(asked)) > 3


def test_an_interrupted_training_goes_on(face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = distilled(face, tmp_path / "whole", "--alone", 1, "--batch", 1)
    get, count = ExampleStore.get, [0]

    def interrupted(self: ExampleStore, piece):
        count[0] += 1
        if count[0] == 3:
            signal.raise_signal(signal.SIGTERM)
        return get(self, piece)

    with monkeypatch.context() as patched:
        patched.setattr(ExampleStore, "get", interrupted)
        first = distilled(face, tmp_path / "parts", "--alone", 1, "--batch", 1)
    assert first.code == 143
    second = distilled(face, tmp_path / "parts", "--alone", 1, "--batch", 1)
    assert second.out == whole.out
    one, other = (torch.load(tmp_path / name / "training" / "state.pt") for name in ("whole", "parts"))
    assert one["step"] == other["step"]
    assert all(torch.equal(one["weights"][name], other["weights"][name]) for name in one["weights"])


@pytest.mark.parametrize("frozen", ["--freeze-encoder", "--no-freeze-encoder"])
def test_a_model_learns_what_a_manifest_says(face: Face, shelf: Path, tmp_path: Path, frozen: str) -> None:
    out = tmp_path / "tuned"
    outcome = face.run(
        *("finetune", "model", frozen, "--data", "told", "--out", out, *SMALL),
        *("--epochs", 8, "--rate", 0.003, "--batch", 1, "--measure", 100),
    )
    assert outcome.code == 0, outcome.err
    points = [json.loads(line) for line in (out / "training" / "acceptance.jsonl").read_text().splitlines()]
    assert points[-1]["held_out_loss"] < 0.7 * points[0]["held_out_loss"]
    before, after = open_checkpoint(shelf / "model"), open_checkpoint(out)
    assert after.dims == before.dims
    assert (encoder_digest(after) == encoder_digest(before)) is (frozen == "--freeze-encoder")
    assert harken.load(out, threads=1).dims == before.dims


def wrong(face: Face, *arguments: object) -> tuple[int, str]:
    outcome = face.run(*arguments)
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""
    return outcome.code, outcome.err


def test_what_is_wrong_is_one_line(face: Face, shelf: Path, tmp_path: Path) -> None:
    new, data = ("--out", tmp_path / "x"), ("--data", "speech")
    empty = tmp_path / "empty"
    empty.mkdir()
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis").touch()
    (tmp_path / "none.jsonl").touch()
    (tmp_path / "mute.jsonl").write_text(json.dumps({"audio": str(shelf / "told" / "0.wav"), "text": ""}))
    cases = [
        (("distill", "nosuch", *data, *new), 4, "nosuch"),
        (("distill", "model", *new), 2, "--data"),
        (("distill", "model", "--data", empty, *new), 3, "holds neither manifest.jsonl nor sound"),
        (("distill", "model", "--data", tmp_path / "none.jsonl", *new), 3, "holds no recordings"),
        (("distill", "model", *data, "--out", full), 5, "is there, and is no training"),
        (("distill", "model", *data, *new, "--layers", 5), 2, "1<=x<=4"),
        (("distill", "model", *data, *new, "--layers", 3), 2, "layers=3: allowed is 1 to 2"),
        (("distill", "model", *data, *new, "--rate", 0), 2, "rate=0.0: allowed is"),
        (("finetune", "model", *data, *new), 3, "manifest.jsonl"),
        (("finetune", "model", "--data", tmp_path / "mute.jsonl", *new), 3, "nothing tells what is said"),
    ]
    for arguments, code, message in cases:
        assert wrong(face, *arguments)[0] == code
        assert message in wrong(face, *arguments)[1]
    assert not (tmp_path / "x").exists()


def test_without_pytorch_the_line_says_how_to_install_it(
    face: Face, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, run.__name__)
    monkeypatch.setitem(sys.modules, "torch", None)
    code, line = wrong(face, "distill", "model", "--data", "speech", "--out", tmp_path / "x")
    assert code == 6
    assert "pip install 'harken[torch]'" in line


@pytest.mark.parametrize("command", [distill.command, finetune.command], ids=["distill", "finetune"])
def test_every_option_is_on_the_page(command: click.Command) -> None:
    context = click.Context(command, max_content_width=1000)
    options = [option for option in command.params if isinstance(option, Option)]
    for section in dict.fromkeys(option.section for option in options):
        records = [
            option.get_help_record(context) or ("", "") for option in options if option.section == section
        ]
        rows = "\n".join(f"| `{flags}` | {' '.join(text.split())} |" for flags, text in records)
        assert rows in PAGE, f"docs/cli.md, {section}: the table should be\n{rows}"
