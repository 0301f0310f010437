"""The two models of diarization on disk: given by the user, or downloaded once and checked."""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from harken.checkpoints.hub import download_file
from harken.checkpoints.model_files import watch
from harken.errors import CheckpointError, CheckpointNotFound, OutputError
from harken.files import open_atomic
from harken.store import default_store_directory

ENVIRONMENT_VARIABLE = "HARKEN_SPEAKER_MODEL"
_TIMEOUT_S = 30.0
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a model file.

    Attributes
    ----------
    name : str
    n_bytes : int
    sha256 : str
        The only content that is accepted from a download.
    url : str
    repository : str
        Of the Hugging Face hub, which then serves the file; empty if the URL is fetched.
    """

    name: str
    n_bytes: int
    sha256: str
    url: str
    repository: str = ""


SEGMENTATION = Source(
    "segmentation-3.0.onnx",
    5_983_836,
    "b78fc48113bb46fd247ae6a9aea737079550c647638db961df7e0e1e9f4ba62e",
    "https://huggingface.co/altunenes/modelsfolder/resolve/main/segmentation-3.0.onnx",
    "altunenes/modelsfolder",
)
"""A public mirror of pyannote's weights, which are under the MIT licence, in ONNX."""
EMBEDDING = Source(
    "campplus_cn_en_common.pt",
    28_044_640,
    "92f29b94e6948786a26778c9e302525d185bb08c8b9f5252ed98776902840199",
    "https://modelscope.cn/api/v1/models/iic/speech_campplus_sv_zh_en_16k-common_advanced/repo"
    "?Revision=v1.0.0&FilePath=campplus_cn_en_common.pt",
)
"""3D-Speaker's CAM++ for Chinese and English, as its authors publish it."""
_FILES = f"a directory with {SEGMENTATION.name} and {EMBEDDING.name}"
_WAY_ON = f"give {_FILES} by --speaker-model DIR, load_diarizer(DIR) or {ENVIRONMENT_VARIABLE}"


def resolve_speaker_models(model: str | os.PathLike[str] | None, *, download: bool = True) -> tuple[Path, Path]:
    """Find the models of diarization on this machine, or download them.

    Parameters
    ----------
    model : str or path-like, optional
        A directory with both files. None for that in the environment variable ``HARKEN_SPEAKER_MODEL``, else for the
        user's cache (``HARKEN_CACHE``), to which what is missing or damaged is downloaded.
    download : bool
        False to use only what is already on this machine.

    Returns
    -------
    segmentation, embedding : Path

    Raises
    ------
    CheckpointNotFound
        If a file is missing, and cannot or must not be downloaded.
    CheckpointError
        If a download ends early or has another content than the published one; nothing of it is kept.
    OutputError
        If the cache cannot be written.
    """
    given = os.environ.get(ENVIRONMENT_VARIABLE) if model is None else model
    if given:
        return _files_in(Path(given))
    folder = default_store_directory().parent / "speakers"
    return _cached(SEGMENTATION, folder, download), _cached(EMBEDDING, folder, download)


def _files_in(folder: Path) -> tuple[Path, Path]:
    files = folder / SEGMENTATION.name, folder / EMBEDDING.name
    missing = [file.name for file in files if not os.path.isfile(file)]
    if missing:
        reason = f"has no {' and no '.join(missing)}" if os.path.isdir(folder) else "is not a directory"
        raise CheckpointNotFound(f"{folder}: {reason}; allowed is {_FILES}")
    return files


def _cached(source: Source, folder: Path, download: bool) -> Path:
    """Return the path of a file in the cache; download it first if it is missing or damaged."""
    path = folder / source.name
    if _is_intact(path, source):
        return path
    if not download:
        raise CheckpointNotFound(
            f"{path}: not on this machine, and downloads are off (--no-download, download=False); {_WAY_ON}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _save(path, source)
    except CheckpointError:
        raise
    except OSError as error:
        if not _is_intact(path, source):  # else another process has just written it, and Windows has it open
            reason = error.__cause__ if isinstance(error, OutputError) else error
            raise OutputError(
                f"{path}: cannot be written: {getattr(reason, 'strerror', None) or reason}; "
                f"set HARKEN_CACHE to a folder with room, or {_WAY_ON}"
            ) from error
    return path


def _is_intact(path: Path, source: Source) -> bool:
    return os.path.isfile(path) and watch(path).sha256() == source.sha256


def _save(path: Path, source: Source) -> None:
    """Download a file to a path, which has it only once its digest is checked."""
    digest = hashlib.sha256()
    with open_atomic(path, durable=True) as write:
        for chunk in _from_hub(source) if source.repository else _from_url(source):
            digest.update(chunk)
            write(chunk)
        if digest.hexdigest() != source.sha256:
            raise CheckpointError(
                f"{source.url}: sha256 of the download is {digest.hexdigest()}, allowed is {source.sha256}; "
                "nothing was kept"
            )


def _from_hub(source: Source) -> Iterator[bytes]:
    with TemporaryDirectory(prefix="harken-", ignore_cleanup_errors=True) as folder:
        try:
            file = download_file(source.repository, source.name, Path(folder))
        except CheckpointNotFound as error:
            raise CheckpointNotFound(f"{error}; {_WAY_ON}") from error
        with file.open("rb") as content:
            while chunk := content.read(_CHUNK_BYTES):
                yield chunk


def _from_url(source: Source) -> Iterator[bytes]:
    """Yield what a server sends, up to one byte more than the file has."""
    if sys.stderr is not None and not os.environ.get("HF_HUB_DISABLE_PROGRESS_BARS"):
        host, megabytes = urlsplit(source.url).hostname, source.n_bytes / 1e6
        print(f"downloading {source.name} ({megabytes:.0f} MB) from {host}", file=sys.stderr, flush=True)
    try:
        response = _open(source.url)
    except (OSError, http.client.HTTPException) as error:
        raise CheckpointNotFound(
            f"{source.url}: not on this machine, and cannot be downloaded: {_reason(error)}; {_WAY_ON}"
        ) from error
    with response:
        left = source.n_bytes + 1
        while chunk := _read(response, min(left, _CHUNK_BYTES), source):
            left -= len(chunk)
            yield chunk
    if left > 1:
        raise CheckpointError(
            f"{source.url}: the download ended after {source.n_bytes + 1 - left} of {source.n_bytes} bytes; "
            "try again"
        )


def _open(url: str) -> IO[bytes]:
    """Open an https URL, through the proxy of the environment if there is one."""
    request = Request(url, headers={"User-Agent": "harken"})
    response: IO[bytes] = build_opener(HttpsOnly()).open(request, timeout=_TIMEOUT_S)
    return response


class HttpsOnly(HTTPRedirectHandler):
    """Follow a redirection only to another https URL."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> Request | None:
        """Return the request for the new URL, or raise an URLError."""
        if urlsplit(newurl).scheme != "https":
            raise URLError(f"redirected to {newurl}, allowed is https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _read(response: IO[bytes], n_bytes: int, source: Source) -> bytes:
    try:
        return response.read(n_bytes)
    except (OSError, http.client.HTTPException) as error:
        raise CheckpointError(f"{source.url}: the download failed: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return why a download failed, in one line."""
    cause = error.reason if isinstance(error, URLError) and not str(error).startswith("HTTP Error") else error
    return " ".join(str(cause).split()) or type(error).__name__
