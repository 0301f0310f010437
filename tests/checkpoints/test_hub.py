"""Resolution of model names, with Hugging Face's own library and a server that stands in for the hub."""

import hashlib
import json
import os
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants, file_download

import checkpoint_files as files
from harken.checkpoints import SHORT_NAMES, hub, open_checkpoint, resolve_model
from harken.errors import CheckpointError, CheckpointNotFound, OptionError

COMMIT = "c0" * 20


class Hub(ThreadingHTTPServer):
    """A hub with some repositories, a list of requests, and faults."""

    def __init__(self, cache):
        super().__init__(("127.0.0.1", 0), Request)
        self.cache, self.requests = cache, []
        self.repositories = {}
        self.refused = None
        """Status of every answer."""
        self.drops_at = None
        """Bytes of a file after which the connection is closed, and no further request is answered."""
        self.damaged = False

    def snapshot(self, repository):
        """Return where a repository lies in the cache."""
        return self.cache / f"models--{repository.replace('/', '--')}" / "snapshots" / COMMIT


class Request(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.server.requests.append(f"{self.command} {self.path} {self.headers.get('Range', '')}".strip())
        repository, rest = re.fullmatch(r"/(?:api/models/)?([^/]+/[^/]+)/?(.*)", self.path).groups()
        found = self.server.repositories.get(repository)
        if self.server.refused or found is None:
            self.answer(self.server.refused or 404, {"X-Error-Code": "RepoNotFound"} if found is None else {})
        elif rest.startswith("resolve/"):  # large files lie elsewhere
            name = rest.split("/", 2)[2]
            address = f"http://localhost:{self.server.server_port}/{repository}/cdn/{name}"
            headers = {"Location": address, "X-Repo-Commit": COMMIT}
            headers |= {"X-Linked-ETag": f'"{sha256(found[name])}"', "X-Linked-Size": str(len(found[name]))}
            self.answer(302, headers)
        elif rest.startswith("cdn/"):
            content = found[rest.removeprefix("cdn/")]
            first = int(re.sub(r"\D", "", self.headers.get("Range", "0")))
            headers = {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"} if first else {}
            sent = b"?" * len(content) if self.server.damaged else content
            self.answer(206 if first else 200, headers, sent[first:])
        elif rest.startswith("tree/"):
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": sha256(content)[:40]}
                | {"lfs": {"oid": sha256(content), "size": len(content), "pointerSize": 1}}
                for name, content in found.items()
            ]
            self.answer(200, {}, json.dumps(entries).encode())
        else:
            siblings = [{"rfilename": name} for name in found]
            info = {"id": repository, "sha": COMMIT, "siblings": siblings, "tags": ["whisper", "license:mit"]}
            self.answer(200, {}, json.dumps(info).encode())

    def answer(self, status, headers, body=b""):
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            drop = self.server.drops_at if "/cdn/" in self.path else None
            self.wfile.write(body[:drop])
            if drop is not None:
                self.server.refused = 503


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def stub(tmp_path, monkeypatch):
    with Hub(tmp_path / "cache") as stub:
        address = f"http://127.0.0.1:{stub.server_port}"
        settings = {"ENDPOINT": address, "HF_HUB_CACHE": str(stub.cache), "HF_HUB_OFFLINE": False}
        settings["HUGGINGFACE_CO_URL_TEMPLATE"] = address + "/{repo_id}/resolve/{revision}/{filename}"
        for name, value in (settings | {"DOWNLOAD_CHUNK_SIZE": 1000}).items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(file_download.time, "sleep", lambda _: None)
        monkeypatch.delenv("HARKEN_MODEL_DIR", raising=False)
        monkeypatch.chdir(tmp_path)
        serving = threading.Thread(target=stub.serve_forever, args=(0.01,))
        serving.start()
        yield stub
        stub.shutdown()
        serving.join()


KEPT = {"config.json", "generation_config.json", "tokenizer.json", "vocab.json"}
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
OFF = r"not on this machine, and downloads are off \(--no-download, download=False\)"


def assert_refused(message, model="someone/w", kind=CheckpointError, **options):
    """Assert that a model is refused with exactly this kind of error, of one line that begins with its name."""
    name = model if isinstance(model, Path) or model.strip() == model != "" else repr(model)
    with pytest.raises(kind, match=f"^{re.escape(str(name))}: {message}[^\n]*$") as caught:
        resolve_model(model, **options)
    assert type(caught.value) is kind


def test_path_takes_precedence_over_a_name_and_has_no_revision(tmp_path, stub, monkeypatch):
    path = files.write_openai(tmp_path / "small", files.TINY, files.random_weights())
    assert resolve_model("small") == Path("small")
    assert resolve_model(path) == path
    with pytest.raises(
        OptionError, match=r"revision='main': allowed is no revision with .*small, which is a path"
    ):
        resolve_model(path, revision="main")
    assert_refused("no such file or directory", Path("openai/whisper-small"), CheckpointNotFound)
    assert_refused("no such file", "models/ggml-small.bin", CheckpointNotFound)
    monkeypatch.chdir(tmp_path)
    Path("openai").mkdir()
    Path("openai/whisper-small").symlink_to("gone")
    assert_refused("no such file or directory", "openai/whisper-small", CheckpointNotFound)
    assert stub.requests == []


def test_names_that_cannot_be_of_a_model_are_refused_with_the_known_ones_and_no_request(stub, monkeypatch):
    known = r"no such model; allowed is a path, owner/name on Hugging Face, tiny\.en"
    for name in ("whisper-9", "a/b/c", "./small", "~/small", "../small", "", "a b/c", "a\n", "/x"):
        assert_refused(known, name, CheckpointNotFound)
    published = {"tiny", "base.en", "small", "medium", "large-v3", "large-v3-turbo", "distil-large-v3"}
    assert published <= set(SHORT_NAMES)
    for repository in SHORT_NAMES.values():
        assert re.fullmatch(r"(openai|distil-whisper)/[\w.-]+", repository)
        assert_refused(OFF, repository, CheckpointNotFound, download=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert_refused(r"the download failed: .*HF_HUB_OFFLINE", "openai/whisper-small")
    assert stub.requests == []


@pytest.mark.parametrize(
    ("weights", "wanted"),
    [
        (["model.safetensors", "model.fp32-00001-of-00002.safetensors", *SHARDS], ["model.safetensors"]),
        (["model.safetensors.index.json", *SHARDS], ["model.safetensors.index.json", *SHARDS]),
        (["model.bin", "vocabulary.json"], ["model.bin", "vocabulary.json"]),
        (
            [
                *(
                    f"onnx/{part}.onnx"
                    for part in ("encoder_model", "decoder_model_merged", "decoder_model_fp16")
                )
            ],
            ["onnx/encoder_model.onnx", "onnx/decoder_model_merged.onnx"],
        ),
        (["pytorch_model.bin", "tf_model.h5"], ["pytorch_model.bin"]),
    ],
)
def test_only_one_format_of_the_weights_is_downloaded_and_only_once(stub, weights, wanted):
    names = ["README.md", "flax_model.msgpack", *KEPT, *weights]
    stub.repositories["openai/whisper-small"] = {name: name.encode() for name in names}
    found = resolve_model("small")
    assert found == stub.snapshot("openai/whisper-small")
    paths = [path for path in found.rglob("*") if path.is_file()]
    assert {path.relative_to(found).as_posix(): path.read_text() for path in paths} == {
        name: name for name in (*KEPT, *wanted)
    }
    stub.requests.clear()
    assert resolve_model("small") == resolve_model("openai/whisper-small", download=False) == found
    assert stub.requests == []
    assert resolve_model("small", revision="main") == found
    assert not any(request.startswith("GET /openai") for request in stub.requests)
    stub.refused = 503
    assert resolve_model("small", revision="main") == found


def test_download_goes_on_where_it_was_broken_off(stub, capsys):
    content = os.urandom(50_000)
    stub.repositories["someone/w"] = {"config.json": b"{}", "model.safetensors": content}
    stub.drops_at = 20_000
    assert_refused(r"the download failed: .*503")
    assert_refused(OFF, kind=CheckpointNotFound, download=False)
    stub.drops_at = stub.refused = None
    stub.requests.clear()
    assert (resolve_model("someone/w") / "model.safetensors").read_bytes() == content
    got = [request for request in stub.requests if request.startswith("GET /someone/w/cdn/model")]
    assert got == ["GET /someone/w/cdn/model.safetensors bytes=20000-"]
    resolve_model("someone/w")
    assert capsys.readouterr().err.count("someone/w: licence mit\n") == 1


def test_download_that_is_damaged_or_fails_is_refused_and_not_kept(stub):
    assert_refused("not on Hugging Face: 404 Client Error", kind=CheckpointNotFound)
    stub.repositories["someone/w"] = {"config.json": b"", "encoder.onnx": b""}
    assert_refused(r"has no weights that can be read; allowed are model\.saf")
    stub.repositories["someone/w"] = {"config.json": b"{}", "model.safetensors": b"weights"}
    stub.refused = 503
    assert_refused(r"the download failed: .*503")
    stub.refused, stub.damaged = None, True
    digests = f"is {sha256(b'???????')}, allowed is {sha256(b'weights')}"
    assert_refused(rf"sha256 of model\.safetensors {digests}")
    stub.damaged = False
    assert (resolve_model("someone/w") / "model.safetensors").read_bytes() == b"weights"


def test_folder_of_ones_own_comes_first(stub, tmp_path, monkeypatch):
    for name in ("small", "small.pt", "ggml-small.bin", "whisper-small", "openai/whisper-small"):
        own = tmp_path / "own" / name.replace("/", "-")
        (own / name).mkdir(parents=True)
        monkeypatch.setenv("HARKEN_MODEL_DIR", str(own))
        assert resolve_model("small") == own / name
    monkeypatch.setenv("HARKEN_MODEL_DIR", "none")
    with pytest.raises(OptionError, match="HARKEN_MODEL_DIR='none': allowed is a directory"):
        resolve_model("small")


def test_folders_that_cannot_be_searched_hold_no_models(stub, tmp_path, monkeypatch):
    monkeypatch.setenv("HARKEN_MODEL_DIR", str(tmp_path))
    with pytest.raises(CheckpointNotFound, match="not on this machine"):
        resolve_model("someone/" + "a" * 300, download=False)  # root may search all others


def test_download_reports_nothing_beside_the_request(stub, monkeypatch):
    stub.repositories["openai/whisper-small"] = {"model.safetensors": b""}
    monkeypatch.delenv("HF_HUB_DISABLE_TELEMETRY", raising=False)
    for expected in ("1", "0"):
        resolve_model("small")
        assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == expected
        monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "0")


# --- the embedded model ------------------------------------------------------------------------------------


def test_embedded_model_is_verified_and_not_imported(stub, tmp_path, monkeypatch):
    def embed(**packages):
        monkeypatch.setattr(hub, "_EMBEDDED", {"harken_no_such_package": ("", ""), **packages})

    package = tmp_path / "site" / "harken_test_models"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(package.parent)
    weights = package / "model" / "model.bin"
    embed(harken_test_models=("model.bin", "5a"))
    with pytest.raises(CheckpointError, match=r"model\.bin: cannot be read: No such file"):
        resolve_model("tiny.en")
    files.write_ctranslate2(weights.parent, files.TINY, files.random_weights())
    digest = sha256(weights.read_bytes())
    with pytest.raises(CheckpointError, match=rf"model\.bin: sha256 is {digest}, allowed is 5a"):
        resolve_model("tiny.en")
    embed(harken_test_models=("model.bin", digest))
    assert open_checkpoint(resolve_model("tiny.en")).dims == files.TINY
    assert stub.requests == []
    # In another revision, or without the package, it is downloaded.
    stub.repositories["openai/whisper-tiny.en"] = {"model.safetensors": b"weights"}
    downloaded = stub.snapshot("openai/whisper-tiny.en")
    assert resolve_model("tiny.en", revision="main") == downloaded
    embed()
    assert resolve_model("tiny.en") == downloaded
