"""Finding and downloading the models of diarization, offline: the hub and the server are stubs."""

from __future__ import annotations

import hashlib
import io
import re
import sys
import threading
from email.message import Message
from pathlib import Path
from types import ModuleType
from urllib.error import HTTPError, URLError
from urllib.request import Request

import huggingface_hub.errors
import pytest

from harken.errors import CheckpointError, CheckpointNotFound, OutputError
from harken.speakers import models
from harken.speakers.models import SpeakerModelFiles, resolve_speaker_models

CONTENT = {"segmentation-3.0.onnx": b"segmentation" * 1000, "campplus_cn_en_common.pt": b"embedding" * 9000}
WAY_ON = "give a directory with segmentation-3.0.onnx and campplus_cn_en_common.pt by --speaker-model DIR"


class Internet:
    """A stub of the hub and of the other server."""

    def __init__(self) -> None:
        self.content = dict(CONTENT)
        self.error: Exception | None = None
        self.requested: list[str] = []
        self.on_request = lambda: None

    def get_hf_file_metadata(self, url: str) -> None:
        if self.error:
            raise ConnectionError("no network\nsecond line")

    def hf_hub_download(self, repo_id: str, filename: str, *, local_dir: Path) -> str:
        assert not self.error, "tries for half a minute to reach a network that is not there"
        self.requested.append(f"{repo_id}/{filename}")
        path = Path(local_dir) / filename
        path.write_bytes(self.content[filename])
        return str(path)

    def open(self, url: str) -> io.BytesIO:
        self.requested.append(url)
        self.on_request()
        if self.error:
            raise self.error
        return io.BytesIO(self.content[url.rpartition("=")[2]])


@pytest.fixture
def internet(tmp_path, monkeypatch):
    internet = Internet()
    module = ModuleType("huggingface_hub")
    for name in ("hf_hub_url", "errors"):
        setattr(module, name, getattr(huggingface_hub, name))
    for name in ("get_hf_file_metadata", "hf_hub_download"):
        setattr(module, name, getattr(internet, name))
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setattr(models, "_open", internet.open)
    for name in ("SEGMENTATION", "EMBEDDING"):
        source = getattr(models, name)
        content = CONTENT[source.name]
        digest = hashlib.sha256(content).hexdigest()
        small = models.Source(source.name, len(content), digest, source.url, source.repository)
        monkeypatch.setattr(models, name, small)
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HARKEN_SPEAKER_MODEL", raising=False)
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)
    return internet


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "speakers"


def in_folder(folder: Path) -> SpeakerModelFiles:
    return SpeakerModelFiles(*(folder / name for name in CONTENT))


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def write_models(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    return folder


def test_a_directory_that_is_given_is_used_whatever_its_files_hold(internet, tmp_path):
    folder = write_models(tmp_path / "own")
    (folder / "campplus_cn_en_common.pt").write_bytes(b"trained further")
    assert resolve_speaker_models(folder) == resolve_speaker_models(str(folder)) == in_folder(folder)
    assert internet.requested == []


def test_the_environment_variable_names_a_directory(internet, tmp_path, monkeypatch):
    monkeypatch.setenv("HARKEN_SPEAKER_MODEL", str(write_models(tmp_path / "own")))
    assert resolve_speaker_models(None) == in_folder(tmp_path / "own")
    assert resolve_speaker_models(write_models(tmp_path / "other")) == in_folder(tmp_path / "other")


def test_what_is_missing_in_a_directory_is_named(internet, tmp_path):
    first, second = CONTENT
    folder = write_models(tmp_path / "own")
    for path, reason in (
        (folder / first, f"has no {first}"),
        (folder / second, f"has no {first} and no {second}"),
        (folder, "is not a directory"),
    ):
        path.rename(tmp_path / f"old-{path.name}")
        with pytest.raises(CheckpointNotFound) as e:
            resolve_speaker_models(folder)
        assert str(e.value) == f"{folder}: {reason}; allowed is a directory with {first} and {second}"


def test_models_are_downloaded_once(internet, cache, capsys):
    assert resolve_speaker_models(None) == in_folder(cache)
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == CONTENT
    hub, other = internet.requested
    assert hub == "altunenes/modelsfolder/segmentation-3.0.onnx"
    assert other.startswith("https://modelscope.cn/")
    assert capsys.readouterr().err == "downloading campplus_cn_en_common.pt (0 MB) from modelscope.cn\n"
    assert resolve_speaker_models(None) == resolve_speaker_models(None, download=False) == in_folder(cache)
    assert len(internet.requested) == 2
    assert capsys.readouterr().err == ""


def test_a_damaged_file_in_the_cache_is_downloaded_again(internet, cache):
    write_models(cache)
    (cache / "segmentation-3.0.onnx").write_bytes(b"damaged")
    resolve_speaker_models(None)
    assert internet.requested == ["altunenes/modelsfolder/segmentation-3.0.onnx"]
    assert (cache / "segmentation-3.0.onnx").read_bytes() == CONTENT["segmentation-3.0.onnx"]


def test_without_downloads_a_missing_file_is_named_with_the_way_on(internet, cache):
    with pytest.raises(CheckpointNotFound) as e:
        resolve_speaker_models(None, download=False)
    off = "not on this machine, and downloads are off (--no-download, download=False)"
    assert str(e.value) == f"{cache / 'segmentation-3.0.onnx'}: {off}; {WAY_ON}"
    assert internet.requested == []


@pytest.mark.parametrize("name", CONTENT)
@pytest.mark.parametrize("changed", [lambda content: content[:-1] + b"!", lambda content: content + b"!"])
def test_another_content_is_refused_and_not_kept(internet, cache, name, changed):
    internet.content[name] = changed(CONTENT[name])
    with pytest.raises(CheckpointError) as e:
        resolve_speaker_models(None)
    digests = [hashlib.sha256(content).hexdigest() for content in (internet.content[name], CONTENT[name])]
    assert str(e.value).startswith("https://")
    assert f"sha256 of the download is {digests[0]}, allowed is {digests[1]}" in str(e.value)
    assert left_in(cache).isdisjoint({name})
    assert left_in(cache) <= set(CONTENT)


class Answer(io.RawIOBase):
    """An answer without an end, or one that breaks off at once."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.n_read = error, 0

    def read(self, n_bytes: int = -1) -> bytes:
        if self.error:
            raise self.error
        self.n_read += n_bytes
        return bytes(n_bytes)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Answer(), "sha256 of the download"),
        (io.BytesIO(bytes(5000)), "the download ended after 5000 of 81000 bytes; try again"),
        (Answer(ConnectionResetError("Connection reset")), "the download failed: Connection reset"),
    ],
    ids=["endless", "cut off", "reset"],
)
def test_a_download_of_another_length_is_not_kept(internet, cache, monkeypatch, answer, message):
    monkeypatch.setattr(models, "_open", lambda url: answer)
    with pytest.raises(CheckpointError, match=message):
        resolve_speaker_models(None)
    assert left_in(cache) == {"segmentation-3.0.onnx"}
    if isinstance(answer, Answer) and not answer.error:
        assert answer.n_read == len(CONTENT["campplus_cn_en_common.pt"]) + 1, (
            "no more than the file has is read"
        )


@pytest.mark.parametrize(
    ("missing", "error", "reason"),
    [
        ("segmentation-3.0.onnx", URLError("unused"), "no network"),
        ("campplus_cn_en_common.pt", URLError(OSError("[Errno -2] unknown name")), "[Errno -2] unknown name"),
        (
            "campplus_cn_en_common.pt",
            HTTPError("https://x", 404, "Not Found", Message(), None),
            "HTTP Error 404: Not Found",
        ),
        ("campplus_cn_en_common.pt", TimeoutError("timed out"), "timed out"),
    ],
)
def test_without_a_network_the_error_says_how_to_get_on(internet, cache, missing, error, reason):
    write_models(cache)
    (cache / missing).unlink()
    internet.error = error
    with pytest.raises(CheckpointNotFound) as e:
        resolve_speaker_models(None)
    assert str(e.value).endswith(f"not on this machine, and cannot be downloaded: {reason}; {WAY_ON}")
    assert missing in str(e.value)
    assert "\n" not in str(e.value)
    assert left_in(cache) == {*CONTENT} - {missing}


@pytest.mark.parametrize("name", ["cache", "cache/speakers/segmentation-3.0.onnx"])
def test_a_cache_that_cannot_be_written_is_one_error_with_its_reason_once(internet, tmp_path, name):
    path = tmp_path / name
    if path.suffix:
        path.mkdir(parents=True)
    else:
        path.write_bytes(b"")  # root may write everywhere, but not into a file
    with pytest.raises(OutputError) as e:
        resolve_speaker_models(None)
    assert re.fullmatch(
        rf"{re.escape(str(path))}[^:]*: cannot be written: [^:]+; set HARKEN_CACHE .*", str(e.value)
    )


def test_two_downloads_at_once_do_not_disturb_one_another(internet, cache):
    both_have_begun = threading.Barrier(2, timeout=30)
    internet.on_request = both_have_begun.wait
    found = []
    threads = [threading.Thread(target=lambda: found.append(resolve_speaker_models(None))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [in_folder(cache)] * 2
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == CONTENT


def test_a_redirection_is_followed_to_https_only():
    handler, request = models.HttpsOnly(), Request("https://example.com/a")
    new = handler.redirect_request(request, io.BytesIO(), 302, "Found", Message(), "https://example.org/b")
    assert new is not None
    assert new.full_url == "https://example.org/b"
    with pytest.raises(URLError, match=r"redirected to http://example\.org/b, allowed is https"):
        handler.redirect_request(request, io.BytesIO(), 302, "Found", Message(), "http://example.org/b")
