"""Tests of the resolution of model names, with a stub of the Hugging Face hub."""

from __future__ import annotations

import fnmatch
import os
import sys
from pathlib import Path
from types import ModuleType

import huggingface_hub.errors
import pytest

import checkpoint_files as files
from harken.checkpoints import SHORT_NAMES, hub, open_checkpoint, resolve_model
from harken.errors import CheckpointError, CheckpointNotFound, OptionError


class Hub:
    """A stub of `huggingface_hub` with some repositories, a cache and a list of calls."""

    def __init__(self, cache: Path) -> None:
        self.cache, self.calls = cache, list[dict[str, object]]()
        self.repositories: dict[str, list[str]] = {}
        self.error: BaseException | None = None

    def snapshot_download(self, repo_id: str, **options: object) -> str:
        self.calls.append({"repo_id": repo_id, **options})
        if self.error is not None:
            raise self.error
        directory = self.cache / repo_id
        directory.mkdir(parents=True, exist_ok=True)
        for name in self.repositories[repo_id]:
            if any(fnmatch.fnmatch(name, pattern) for pattern in options["allow_patterns"]):  # type: ignore[attr-defined]
                (directory / name).write_bytes(b"")
        return str(directory)


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    stub = Hub(tmp_path / "cache")
    module = ModuleType("huggingface_hub")
    module.snapshot_download = stub.snapshot_download  # type: ignore[attr-defined]
    module.errors = huggingface_hub.errors  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.chdir(tmp_path)
    return stub


KEPT = {"config.json", "generation_config.json", "tokenizer.json", "vocab.json"}


def test_path_takes_precedence_over_a_name_and_has_no_revision(tmp_path: Path, stub: Hub) -> None:
    path = files.write_openai(tmp_path / "small", files.TINY, files.random_weights())
    assert resolve_model("small") == Path("small")
    assert resolve_model(path) == path
    with pytest.raises(OptionError, match=r"revision='main': allowed is None with .*small, which is a path"):
        resolve_model(path, revision="main")
    with pytest.raises(CheckpointNotFound, match="openai/whisper-small: no such file or directory"):
        resolve_model(Path("openai/whisper-small"))
    assert stub.calls == []


@pytest.mark.parametrize("name", ["whisper-9", "a/b/c", "./small", "~/small", "../small", "", "a b/c", "/x"])
def test_invalid_name_is_rejected_with_the_known_names(stub: Hub, name: str) -> None:
    allowed = r"no such model; allowed is a path, owner/name on Hugging Face, tiny\.en[^\n]*$"
    with pytest.raises(CheckpointNotFound, match=allowed):
        resolve_model(name)
    assert stub.calls == []


def test_every_short_name_is_downloaded_from_its_repository(stub: Hub) -> None:
    published = {"tiny", "base.en", "small", "medium", "large-v3", "large-v3-turbo", "distil-large-v3"}
    assert published <= set(SHORT_NAMES)
    for name, repository in SHORT_NAMES.items():
        stub.repositories[repository] = ["model.safetensors"]
        assert resolve_model(name, revision="main") == stub.cache / repository
    assert {(call["revision"], call["local_files_only"]) for call in stub.calls} == {("main", False)}
    assert len(stub.calls) == len(SHORT_NAMES)


SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [
        (["model.safetensors", "model.fp32-00001-of-00002.safetensors", *SHARDS], ["model.safetensors"]),
        (["model.safetensors.index.json", *SHARDS], ["model.safetensors.index.json", *SHARDS]),
        (["model.bin", "vocabulary.json"], ["model.bin"]),
        (["pytorch_model.bin", "tf_model.h5"], ["pytorch_model.bin"]),
    ],
)
def test_only_one_format_of_the_weights_is_downloaded(stub: Hub, weights: list[str], wanted: list[str]) -> None:
    stub.repositories["someone/whisper"] = ["README.md", "flax_model.msgpack", *KEPT, *weights]
    found = resolve_model("someone/whisper", revision="v2")
    assert {path.name for path in found.iterdir()} == {*KEPT, *wanted}
    assert {call["revision"] for call in stub.calls} == {"v2"}


def test_repository_without_weights_is_rejected(stub: Hub) -> None:
    stub.repositories["someone/onnx"] = ["config.json", "encoder.onnx"]
    allowed = r"someone/onnx: has no weights that can be read; allowed are model\.saf"
    with pytest.raises(CheckpointError, match=allowed):
        resolve_model("someone/onnx")


def test_download_reports_nothing_beside_the_request(stub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_DISABLE_TELEMETRY", raising=False)
    stub.repositories["openai/whisper-small"] = ["model.safetensors"]
    resolve_model("small")
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "0")
    resolve_model("small")
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "0"


class Unknown(huggingface_hub.errors.RepositoryNotFoundError):
    def __init__(self) -> None:
        OSError.__init__(self, "404 Client Error.\nRepository Not Found")


NOT_LOCAL = huggingface_hub.errors.LocalEntryNotFoundError("Cannot find a snapshot.\nEnable the network.")


@pytest.mark.parametrize(
    ("error", "download", "kind", "message"),
    [
        (NOT_LOCAL, False, CheckpointNotFound, r"not on this machine, and downloads are off \(--no-download"),
        (NOT_LOCAL, True, CheckpointNotFound, r"machine, and cannot be downloaded: Cannot find .*\.$"),
        (Unknown(), True, CheckpointNotFound, "someone/w: not on Hugging Face: 404 Client Error."),
        (ConnectionResetError("Reset"), True, CheckpointError, "someone/w: the download failed: Reset"),
        (OSError(28, "No space left"), True, CheckpointError, "the download failed: .*No space left"),
        (RuntimeError(), True, CheckpointError, "someone/w: the download failed: RuntimeError"),
    ],
)
def test_download_failures_are_one_line(
    stub: Hub, error: Exception, download: bool, kind: type[CheckpointError], message: str
) -> None:
    stub.error = error
    with pytest.raises(kind, match=message) as caught:
        resolve_model("someone/w", download=download)
    assert "\n" not in str(caught.value)
    assert type(caught.value) is kind
    assert stub.calls[0]["local_files_only"] is not download


def test_real_hub_library_reports_a_missing_model() -> None:
    with pytest.raises(CheckpointNotFound, match="not on this machine, and downloads are off"):
        resolve_model("harken-tests/there-is-none", download=False)


# --- the embedded model ------------------------------------------------------------------------------------


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package that raises an error when it is imported."""
    root = tmp_path / "site"
    (root / "harken_test_models").mkdir(parents=True)
    (root / "harken_test_models" / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(root)
    monkeypatch.setattr(hub, "_EMBEDDED_PACKAGE", "harken_test_models")
    return root / "harken_test_models"


def test_embedded_model_is_verified_and_not_imported(
    package: Path, stub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_ctranslate2(package / "model", files.TINY, files.random_weights())
    digest = hub.file_sha256(package / "model" / "model.bin")
    with pytest.raises(CheckpointError, match=rf"model\.bin: sha256 is {digest}, allowed is 1a5afae0"):
        resolve_model("tiny.en")
    monkeypatch.setattr(hub, "_EMBEDDED_SHA256", digest)
    assert open_checkpoint(resolve_model("tiny.en")).dims == files.TINY
    assert stub.calls == []


def test_default_model_is_downloaded_in_another_revision_or_without_the_package(
    package: Path, stub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub.repositories["openai/whisper-tiny.en"] = ["model.safetensors"]
    assert resolve_model("tiny.en", revision="main") == stub.cache / "openai/whisper-tiny.en"
    monkeypatch.setattr(hub, "_EMBEDDED_PACKAGE", "harken_no_such_package")
    assert resolve_model("tiny.en") == stub.cache / "openai/whisper-tiny.en"


def test_embedded_model_without_weights_is_rejected(package: Path, stub: Hub) -> None:
    with pytest.raises(CheckpointError, match=r"model\.bin: cannot be read: No such file"):
        resolve_model("tiny.en")
