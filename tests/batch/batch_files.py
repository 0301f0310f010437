"""What batches are given: recordings, manifests, archives, and servers of them."""

from __future__ import annotations

import functools
import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np

from audio_files import wav_bytes
from harken.batch.inputs import BatchRecording
from harken.batch.plan import Recipe
from harken.formats import Layout
from harken.transcribe import TranscribeOptions

RATE = 16_000
RECIPE = Recipe(
    name="tiny.en",
    load={"model": "tiny.en"},
    weights="w",
    options=TranscribeOptions(batch_size=1),
    layout=Layout(),
)


def noise(seconds: float) -> np.ndarray:
    return np.random.default_rng(0).integers(-20_000, 20_000, round(seconds * RATE)).astype(np.int16)


def write(path: Path, content: bytes | str = b"") -> Path:
    """Write a file, and the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_wav(path: Path, samples: np.ndarray) -> Path:
    return write(path, wav_bytes(samples))


def write_files(folder: Path, *names: str) -> None:
    for name in names:
        write(folder / name)


def write_lines(path: Path, *lines: object) -> Path:
    """Write a manifest of texts and of objects as JSON."""
    texts = (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
    return write(path, "".join(f"{text}\n" for text in texts))


def tar_bytes(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


def write_tar(path: Path, files: Mapping[str, bytes]) -> Path:
    return write(path, tar_bytes(files))


def recordings_of(*seconds: float) -> list[BatchRecording]:
    """Return recordings of known lengths, named by their numbers."""
    return [
        BatchRecording(location=f"/t/{n}.wav", name=f"{n}.wav", keys={"n": n}, duration_s=each)
        for n, each in enumerate(seconds)
    ]


@contextmanager
def web_server(handler: Callable[..., object], *given: object, **options: object) -> Iterator[str]:
    """Run a web server with a class of handlers, which get these arguments, and return its URL."""
    make = functools.partial(handler, *given, **options)
    with ThreadingHTTPServer(("127.0.0.1", 0), make) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
