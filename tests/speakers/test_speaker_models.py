"""Finding and downloading the models of diarization, offline: the hub and the server are stubs."""

import hashlib
import io
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from email.message import Message
from pathlib import Path
from types import ModuleType
from urllib.error import HTTPError, URLError
from urllib.request import Request

import huggingface_hub.errors
import pytest

from harken.errors import CheckpointError, CheckpointNotFound, OutputError
from harken.speakers import models
from harken.speakers.models import resolve_speaker_models

FIRST, SECOND = "segmentation-3.0.onnx", "campplus_cn_en_common.pt"
CONTENT = {FIRST: b"segmentation" * 1000, SECOND: b"embedding" * 9000}
WAY_ON = (
    "give a directory with segmentation-3.0.onnx and campplus_cn_en_common.pt by --speaker-model DIR, "
    "load_diarizer(DIR) or HARKEN_SPEAKER_MODEL"
)


class Internet:
    """A stub of the hub and of the other server."""

    def __init__(self):
        self.content = dict(CONTENT)
        self.error = None
        self.requested = []
        self.on_request = lambda: None

    def get_hf_file_metadata(self, url):
        if self.error:
            raise ConnectionError("no network\nsecond line")

    def hf_hub_download(self, repo_id, filename, *, local_dir):
        assert not self.error, "tries for half a minute to reach a network that is not there"
        self.requested.append(f"{repo_id}/{filename}")
        path = Path(local_dir) / filename
        path.write_bytes(self.content[filename])
        return str(path)

    def open(self, url):
        self.requested.append(url)
        self.on_request()
        if self.error:
            raise self.error
        return io.BytesIO(self.content[url.rpartition("=")[2]])


def sha256(content):
    return hashlib.sha256(content).hexdigest()


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
    for name, content in zip(("SEGMENTATION", "EMBEDDING"), CONTENT.values(), strict=True):
        small = replace(getattr(models, name), n_bytes=len(content), sha256=sha256(content))
        monkeypatch.setattr(models, name, small)
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HARKEN_SPEAKER_MODEL", raising=False)
    monkeypatch.delenv("HF_HUB_DISABLE_PROGRESS_BARS", raising=False)
    return internet


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "speakers"


def in_folder(folder):
    return tuple(folder / name for name in CONTENT)


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_models(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in CONTENT.items():
        (folder / name).write_bytes(content)
    return folder


def error_of(kind=CheckpointError, folder=None, **options):
    """Return the message of the error that there are no models, which is one line."""
    with pytest.raises(kind) as caught:
        resolve_speaker_models(folder, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_directory_that_is_given_is_used_whatever_its_files_hold(internet, tmp_path, monkeypatch):
    folder = write_models(tmp_path / "own")
    (folder / SECOND).write_bytes(b"trained further")
    assert resolve_speaker_models(folder) == resolve_speaker_models(str(folder)) == in_folder(folder)
    monkeypatch.setenv("HARKEN_SPEAKER_MODEL", str(write_models(tmp_path / "named")))
    assert resolve_speaker_models(None) == in_folder(tmp_path / "named")
    assert resolve_speaker_models(folder) == in_folder(folder)
    assert internet.requested == []


def test_what_is_missing_in_a_directory_is_named(internet, tmp_path):
    folder = write_models(tmp_path / "own")
    for path, reason in (
        (folder / FIRST, f"has no {FIRST}"),
        (folder / SECOND, f"has no {FIRST} and no {SECOND}"),
        (folder, "is not a directory"),
    ):
        path.rename(tmp_path / f"old-{path.name}")
        allowed = f"allowed is a directory with {FIRST} and {SECOND}"
        assert error_of(CheckpointNotFound, folder) == f"{folder}: {reason}; {allowed}"


def test_models_are_downloaded_once_and_again_if_they_are_damaged(internet, cache, capsys):
    assert resolve_speaker_models(None) == in_folder(cache)
    assert content_of(cache) == CONTENT
    hub, other = internet.requested
    assert hub == f"altunenes/modelsfolder/{FIRST}"
    assert other.startswith("https://modelscope.cn/")
    assert capsys.readouterr().err == f"downloading {SECOND} (0 MB) from modelscope.cn\n"
    assert resolve_speaker_models(None) == resolve_speaker_models(None, download=False) == in_folder(cache)
    assert len(internet.requested) == 2
    (cache / FIRST).write_bytes(b"damaged")
    resolve_speaker_models(None)
    assert internet.requested == [hub, other, hub]
    assert content_of(cache) == CONTENT
    assert capsys.readouterr().err == ""


def test_without_downloads_a_missing_file_is_named_with_the_way_on(internet, cache):
    off = "not on this machine, and downloads are off (--no-download, download=False)"
    assert error_of(CheckpointNotFound, download=False) == f"{cache / FIRST}: {off}; {WAY_ON}"
    assert internet.requested == []


@pytest.mark.parametrize("name", CONTENT)
@pytest.mark.parametrize("changed", [lambda content: content[:-1] + b"!", lambda content: content + b"!"])
def test_another_content_is_refused_and_not_kept(internet, cache, name, changed):
    internet.content[name] = changed(CONTENT[name])
    digests = f"is {sha256(internet.content[name])}, allowed is {sha256(CONTENT[name])}"
    assert re.match(f"https://.*: sha256 of the download {digests}", error_of())
    assert content_of(cache).keys() <= CONTENT.keys() - {name}


class Answer(io.RawIOBase):
    """An answer without an end, or one that breaks off at once."""

    def __init__(self, error=None):
        self.error, self.n_read = error, 0

    def read(self, n_bytes=-1):
        if self.error:
            raise self.error
        self.n_read += n_bytes
        return bytes(n_bytes)


def test_a_download_of_another_length_is_not_kept_nor_read_to_its_end(internet, cache, monkeypatch):
    endless = Answer()
    for answer, message in (
        (endless, "sha256 of the download"),
        (io.BytesIO(bytes(5000)), "the download ended after 5000 of 81000 bytes; try again"),
        (Answer(ConnectionResetError("Connection reset")), "the download failed: Connection reset"),
    ):
        monkeypatch.setattr(models, "_open", lambda url, answer=answer: answer)
        assert message in error_of()
        assert content_of(cache).keys() == {FIRST}
    assert endless.n_read == len(CONTENT[SECOND]) + 1


@pytest.mark.parametrize(
    ("missing", "error", "reason"),
    [
        (FIRST, URLError("unused"), "no network"),
        (SECOND, URLError(OSError("[Errno -2] unknown name")), "[Errno -2] unknown name"),
        (SECOND, HTTPError("https://x", 404, "Not Found", Message(), None), "HTTP Error 404: Not Found"),
        (SECOND, TimeoutError("timed out"), "timed out"),
    ],
)
def test_without_a_network_the_error_says_how_to_get_on(internet, cache, missing, error, reason):
    (write_models(cache) / missing).unlink()
    internet.error = error
    message = error_of(CheckpointNotFound)
    assert message.endswith(f"not on this machine, and cannot be downloaded: {reason}; {WAY_ON}")
    assert missing in message
    assert content_of(cache).keys() == CONTENT.keys() - {missing}


@pytest.mark.parametrize("name", ["cache", f"cache/speakers/{FIRST}"])
def test_a_cache_that_cannot_be_written_is_one_error_with_its_reason_once(internet, tmp_path, name):
    path = tmp_path / name
    if path.suffix:
        path.mkdir(parents=True)
    else:
        path.write_bytes(b"")  # root may write everywhere, but not into a file
    expected = rf"{re.escape(str(path))}[^:]*: cannot be written: [^:]+; set HARKEN_CACHE .*"
    assert re.fullmatch(expected, error_of(OutputError))


def test_folders_that_cannot_be_searched_hold_no_models(internet, monkeypatch):
    unsearchable = "a" * 300  # root may search all others
    assert "is not a directory" in error_of(CheckpointNotFound, unsearchable)
    monkeypatch.setenv("HARKEN_CACHE", unsearchable)
    assert "cannot be written" in error_of(OutputError)


def test_two_downloads_at_once_do_not_disturb_one_another(internet, cache):
    internet.on_request = threading.Barrier(2, timeout=30).wait
    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(resolve_speaker_models, [None] * 2)] == [in_folder(cache)] * 2
    assert content_of(cache) == CONTENT


def test_a_redirection_is_followed_to_https_only():
    handler, request = models.HttpsOnly(), Request("https://example.com/a")
    new = handler.redirect_request(request, io.BytesIO(), 302, "Found", Message(), "https://example.org/b")
    assert new is not None
    assert new.full_url == "https://example.org/b"
    with pytest.raises(URLError, match=r"redirected to http://example\.org/b, allowed is https"):
        handler.redirect_request(request, io.BytesIO(), 302, "Found", Message(), "http://example.org/b")
