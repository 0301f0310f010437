"""Bodies and forms as clients send them: bounded, and their files in unnamed temporary ones; and fields as data.

What each field means, how it is read, and the option of a transcription that it sets, stand in tables, of which the
description of the API is made too.
"""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import isfinite
from struct import Struct
from tempfile import SpooledTemporaryFile
from typing import Any, BinaryIO, cast

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from harken.audio.container import open_audio
from harken.serve.errors import RequestError
from harken.serve.live.audio import AudioFormat
from harken.text import from_language_tag, from_language_tags
from harken.transcribe import TranscribeOptions

MEGABYTE = 1_000_000
RECORDING = "file"
"""Usual name of the file that is the recording."""
PAUSE_LIMIT_S = 60.0
"""Seconds that a sender may pause; a connection and a file are held for it."""
USUAL_BYTES_PER_S = 4_000
"""Bytes of a second of compressed speech, to guess the length of a recording whose header does not tell it."""
MAX_FILES = 8
MAX_FIELDS = 64
MAX_FIELD_BYTES = 4 << 20
"""Largest field: ten seconds of a known voice as uncompressed audio, in base64."""
MAX_FIELDS_BYTES = 16 << 20
"""All fields together; they are kept in memory, unlike files."""
FORM_TYPE = "multipart/form-data"
_LIST_SUFFIX = re.compile(r"\[\d*\]$")
"""What follows the names of lists; PHP cannot repeat a field, so its programs number them."""
CHARSETS = ("utf-8", "ascii")
FLAGS = dict.fromkeys(("true", "1", "yes", "y", "on"), True) | dict.fromkeys(
    ("false", "0", "no", "n", "off"), False
)
WAV_HEAD = Struct("<4sI4s4sIHHIIHH4sI")
WAV_PCM, WAV_TAGS = 1, {"f32le": 3, "alaw": 6, "mulaw": 7}
"""Numbers of the formats of samples in WAV files."""
MAX_WAV_BYTES = (1 << 32) - 1


def bounded_body(scope: Scope, receive: Receive, max_bytes: int, param: str | None = None) -> Receive:
    """Return a function that receives the body of a request, and refuses one that is too large or compressed.

    Parameters
    ----------
    scope, receive
        Of the request.
    max_bytes : int
    param : str, optional
        Field of the request to name in the error.

    Raises
    ------
    RequestError
        If the header tells that it is too large or compressed; the function returned raises it if the header did not,
        or if the client pauses for too long.
    """
    too_large = RequestError(
        f"the request is larger than {max_bytes / MEGABYTE:g} MB, which are allowed",
        status=413,
        code="request_too_large",
        param=param,
    )
    headers = Headers(scope=scope)
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        message = f"Content-Encoding {encoding!r}: allowed is none, or identity"
        raise RequestError(message, status=415, code="unsupported_content_encoding")
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise too_large
    n_bytes = 0

    async def receive_bounded() -> Message:
        nonlocal n_bytes
        try:
            async with asyncio.timeout(PAUSE_LIMIT_S):
                message = await receive()
        except TimeoutError:
            raise RequestError(
                f"nothing more of the body has come for {PAUSE_LIMIT_S:g} s", status=408, code="request_timeout"
            ) from None
        n_bytes += len(message.get("body", b""))
        if n_bytes > max_bytes:
            raise too_large
        return message

    return receive_bounded


async def received_body(request: Request, max_bytes: int) -> bytes:
    """Receive the body of a request, which is bounded."""
    return await Request(request.scope, bounded_body(request.scope, request.receive, max_bytes)).body()


class Upload(io.RawIOBase):
    """An uploaded recording, under a name that tells nothing of the client or the server.

    Parameters
    ----------
    file : BinaryIO
        Closed with it.
    n_bytes : int
    client_name : str
        Name that the client gives it.
    """

    name = "file"

    def __init__(self, file: BinaryIO, n_bytes: int, client_name: str = "") -> None:
        self.n_bytes, self.client_name = n_bytes, client_name
        self._file, self._head, self._at = file, b"", 0

    @property
    def source(self) -> BinaryIO:
        """The same, as a source of audio."""
        return cast(BinaryIO, self)

    def declare_raw(self, audio: AudioFormat) -> None:
        """Have it begin with the header of a WAV file, if it has none."""
        self.seek(0)
        if self.read(4) != b"RIFF":
            n_bytes = min(self.n_bytes, MAX_WAV_BYTES - WAV_HEAD.size)
            frame_bytes = audio.bytes_per_s // audio.rate
            bits = 8 * frame_bytes // audio.channels
            tag = WAV_TAGS.get(audio.format, WAV_PCM)
            samples = (16, tag, audio.channels, audio.rate, audio.bytes_per_s, frame_bytes, bits)
            form = (b"RIFF", n_bytes + WAV_HEAD.size - 8, b"WAVE", b"fmt ", *samples, b"data", n_bytes)
            self._head = WAV_HEAD.pack(*form)
        self.seek(0)

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._head[self._at :][: None if size < 0 else size]
        data += self._file.read(-1 if size < 0 else size - len(data))
        self._at += len(data)
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = (0, self._at, len(self._head) + self.n_bytes)[whence]
        self._at = max(0, origin + offset)
        self._file.seek(max(0, self._at - len(self._head)))
        return self._at

    def close(self) -> None:
        self._file.close()
        super().close()


def probe_duration_s(upload: Upload) -> float | None:
    """Return how long a recording is by its header, or None if that does not tell.

    Raises
    ------
    AudioError
        If it is no recording.
    """
    upload.seek(0)
    with open_audio(upload.source) as decoder:
        duration_s = decoder.duration_s
    upload.seek(0)
    return None if duration_s is None else max(0.0, duration_s)


class Form:
    """The fields of a form; `x[]` and `x[0]` are the same field as `x`, and an empty field is none.

    Its methods raise `RequestError` for a field whose value is not of the kind that they return.

    Parameters
    ----------
    items : iterable of (str, str or UploadFile)
    recording : str
        Name of the file that is the recording.
    """

    def __init__(self, items: Iterable[tuple[str, str | UploadFile]], recording: str = RECORDING) -> None:
        self._recording = recording
        self._texts: defaultdict[str, list[str]] = defaultdict(list)
        self._uploads: list[tuple[str, Upload]] = []
        for name, value in items:
            if isinstance(value, UploadFile):
                self._uploads.append((name, Upload(value.file, value.size or 0, value.filename or "")))
            elif value.strip():
                self._texts[_LIST_SUFFIX.sub("", name)].append(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the values of a field that may be given several times, or as a JSON array."""
        return tuple(each for value in self._texts.get(name, ()) for each in _listed(value))

    def text(self, name: str) -> str | None:
        """Return the value of a field, the last one if it was given several times."""
        return self._texts[name][-1] if name in self._texts else None

    def flag(self, name: str) -> bool:
        """Return the value of a field that is true or false; without it, False."""
        value = self.text(name) or "false"
        if value.lower() not in FLAGS:
            raise bad_field(name, value, "true or false")
        return FLAGS[value.lower()]

    def number(self, name: str) -> float | None:
        """Return the value of a field that is a number."""
        value = self.text(name)
        return None if value is None else parse_number(name, value)

    def whole(self, name: str) -> int | None:
        """Return the value of a field that is a whole number."""
        value = self.number(name)
        if value is not None and not value.is_integer():
            raise bad_field(name, f"{value:g}", "a whole number")
        return None if value is None else int(value)

    def entries(self, name: str) -> dict[str, str]:
        """Return the fields `name[key]`, by their keys."""
        prefix = f"{name}["
        return {
            field.removeprefix(prefix).removesuffix("]"): values[-1]
            for field, values in self._texts.items()
            if field.startswith(prefix) and field.endswith("]")
        }

    @property
    def upload(self) -> Upload:
        """The recording.

        Raises
        ------
        RequestError
            If there is none.
        """
        for name, upload in self._uploads:
            if name == self._recording:
                return upload
        raise missing_field(self._recording, "a recording (a part with a filename)")

    def take_upload(self) -> Upload:
        """Return the recording, to be closed by the caller."""
        taken = self.upload
        self._uploads = [(name, upload) for name, upload in self._uploads if upload is not taken]
        return taken

    def close(self) -> None:
        """Close the files that were not taken."""
        for _, upload in self._uploads:
            upload.close()


@asynccontextmanager
async def received_form(
    scope: Scope, receive: Receive, max_bytes: int, recording: str | None = RECORDING
) -> AsyncIterator[Form]:
    """Receive the query and the form of a request; what the form says counts more.

    Its files are closed at the end of the block, except for one that was taken.

    Parameters
    ----------
    scope, receive
        Of the request.
    max_bytes : int
    recording : str or None
        Name of the file that is the recording; None if that is the whole body.

    Raises
    ------
    RequestError
        If it is no form, cannot be read, is too large or has too many parts.
    """
    request = Request(scope, bounded_body(scope, receive, max_bytes, recording or RECORDING))
    if recording is None:
        items: list[tuple[str, str | UploadFile]] = [(RECORDING, await _received_file(request))]
    elif request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_TYPE:
        raise RequestError(f"the body is not a form; allowed is {FORM_TYPE}", code="invalid_form")
    else:
        try:
            items = (await _Parser(request).parse()).multi_items()
        except MultiPartException as error:
            raise RequestError(f"the form cannot be read: {error.message}", code="invalid_form") from error
    form = Form([*request.query_params.multi_items(), *items], recording or RECORDING)
    try:
        yield form
    finally:
        form.close()


async def _received_file(request: Request) -> UploadFile:
    """Receive a body that is a file."""
    unnamed = SpooledTemporaryFile(max_size=MultiPartParser.spool_max_size)  # noqa: SIM115  closed by the form
    file = UploadFile(cast(BinaryIO, unnamed), size=0)
    try:
        async for chunk in request.stream():
            await file.write(chunk)
    except BaseException:
        await file.close()
        raise
    return file


class _Parser(MultiPartParser):
    """A parser that also refuses a form that is cut short, or in another charset than nearly all clients use.

    It would take any codec of Python, of which some raise errors of their own, and others take a long time.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(
            request.headers,
            self._chunks(request),
            max_files=MAX_FILES,
            max_fields=MAX_FIELDS,
            max_part_size=MAX_FIELD_BYTES,
        )
        self._ended = False
        self._n_field_bytes = 0

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._current_part.file is None:
            self._n_field_bytes += end - start
            if self._n_field_bytes > MAX_FIELDS_BYTES:
                raise MultiPartException(f"its fields have more than {MAX_FIELDS_BYTES >> 20} MiB")
        super().on_part_data(data, start, end)

    def on_part_begin(self) -> None:
        if self._charset not in CHARSETS:
            raise MultiPartException(f"its charset is {self._charset}; allowed is utf-8")
        super().on_part_begin()

    def on_headers_finished(self) -> None:
        disposition = self._current_part.content_disposition or b""
        if b"filename=" not in disposition:  # older clients send names beyond ASCII only so
            self._current_part.content_disposition = disposition.replace(b"filename*=", b"filename=")
        super().on_headers_finished()

    def on_end(self) -> None:
        self._ended = True

    async def _chunks(self, request: Request) -> AsyncGenerator[bytes, None]:
        async for chunk in request.stream():
            yield chunk
        if not self._ended:
            raise MultiPartException("it is cut short")


def _listed(value: str) -> list[str]:
    """Return the texts of a JSON array, or the value itself if it is none."""
    try:
        texts = json.loads(value)
    except (ValueError, RecursionError):
        texts = None
    is_list = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    return texts if is_list else [value]


def missing_field(name: str, what: str = "it") -> RequestError:
    """Return the error for a field that is missing."""
    return RequestError(f"{name} is missing; {what} is required", code="missing_required_parameter", param=name)


def parse_number(name: str, value: str) -> float:
    """Return a finite number.

    Raises
    ------
    RequestError
        If the text is none.
    """
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise bad_field(name, value, "a number")
    return number


def bad_field(name: str, value: str, allowed: str, code: str = "invalid_value") -> RequestError:
    """Return the error for a field with a value that is not allowed."""
    shown = value if len(value) <= 100 else f"{value[:97]}..."
    return RequestError(f"{name}={shown!r}: allowed is {allowed}", code=code, param=name)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form or a parameter of a query: what it means, and how it is read."""

    meaning: str
    # Returns its value by the form and its name, or raises `RequestError` or `OptionError`.
    read: Callable[[Form, str], Any]
    schema: Mapping[str, Any]  # JSON schema of its value
    option: str | None = None  # option of a transcription that its value sets, unless that is None
    required: bool = False


Kind = tuple[Callable[[Form, str], Any], dict[str, Any]]
"""How fields of a kind are read, and their schema."""
STRINGS = {"type": "array", "items": {"type": "string"}}
TEXT: Kind = (Form.text, {"type": "string"})
TEXTS: Kind = (Form.texts, STRINGS)
FLAG: Kind = (Form.flag, {"type": "boolean", "default": False})
NUMBER: Kind = (Form.number, {"type": "number"})
WHOLE: Kind = (Form.whole, {"type": "integer"})
LANGUAGE: Kind = (lambda form, name: from_language_tag(form.text(name), option=name), TEXT[1])
LANGUAGES: Kind = (lambda form, name: from_language_tags(form.texts(name), option=name), STRINGS)


def choice(*allowed: str, strict: bool = True) -> Kind:
    """Return the kind of fields whose value is one of some words, by default the first.

    Parameters
    ----------
    *allowed : str
    strict : bool
        False to take any other word for the default.
    """

    def read(form: Form, name: str) -> str:
        value = form.text(name) or allowed[0]
        if value in allowed:
            return value
        if not strict:
            return allowed[0]
        raise bad_field(name, value, f"one of {', '.join(allowed)}")

    return read, {"type": "string", "enum": [*allowed], "default": allowed[0]}


def read_fields(form: Form, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the values of fields by their names; others are ignored, as clients add some of their own.

    Raises
    ------
    RequestError, OptionError
        If one is missing that is required, or has a value that is not allowed.
    """
    for name, field in fields.items():
        if field.required and form.text(name) is None:
            raise missing_field(name)
    return {name: field.read(form, name) for name, field in fields.items()}


def field_names(fields: Mapping[str, Field]) -> dict[str, str]:
    """Return the names of fields by the options that they set."""
    return {field.option: name for name, field in fields.items() if field.option}


def transcribe_options(
    given: Mapping[str, Any], fields: Mapping[str, Field], **others: Any
) -> TranscribeOptions:
    """Return the options that the values of fields set, by their names, and others, which count more.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """
    options = {option: given[name] for option, name in field_names(fields).items() if given[name] is not None}
    return TranscribeOptions(**options | others)
