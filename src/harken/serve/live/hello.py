"""The first message of a client of the own WebSocket: a new stream, or one to go on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Any

from harken.errors import OptionError
from harken.option_types import check, checked_value
from harken.serve.errors import RequestError, request_error
from harken.serve.live.audio import AudioFormat
from harken.streaming import StreamOptions
from harken.transcribe import TranscribeOptions

TRANSCRIBE_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "language": "language",
        "task": "task",
        "hotwords": "hotwords",
        "prompt": "initial_prompt",
        "words": "word_timestamps",
    }
)
"""Fields of a hello, and the options of a transcription that they set."""
STREAM_FIELDS = tuple(field.name for field in fields(StreamOptions))
PARAMS = MappingProxyType({option: name for name, option in TRANSCRIBE_FIELDS.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The wish for a new stream.

    Parameters
    ----------
    model : str or None
        The server's default if None.
    options : TranscribeOptions
    stream_options : StreamOptions
    audio : AudioFormat
    """

    model: str | None = None
    options: TranscribeOptions = field(default_factory=TranscribeOptions)
    stream_options: StreamOptions = field(default_factory=StreamOptions)
    audio: AudioFormat = field(default_factory=AudioFormat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """The wish to go on with a stream after a lost connection.

    Parameters
    ----------
    session, token : str
        From the message ``ready``.
    seq : int
        Number of the last message that was received.
    """

    session: str
    token: str
    seq: int = 0

    def __post_init__(self) -> None:
        check(self)


def parse_first_message(message: Mapping[str, Any]) -> Hello | Resume:
    """Return what a client wants.

    Raises
    ------
    RequestError
        If a field is unknown, missing, or has a value that is not allowed; it names the field.
    """
    given = dict(message)
    kind = given.pop("type", None)
    try:
        if kind == "hello":
            return _hello(given)
        if kind == "resume":
            return Resume(**_known(Resume, given))
    except OptionError as error:
        raise request_error(error, PARAMS) from error
    allowed = 'allowed is {"type": "hello", ...} or {"type": "resume", ...}'
    raise RequestError(f"the first message has another type; {allowed}", code="invalid_value", param="type")


def _hello(given: dict[str, Any]) -> Hello:
    model = checked_value("model", given.pop("model", None), str | None)
    audio = given.pop("audio", {})
    if not isinstance(audio, dict):
        raise OptionError("audio", audio, "an object such as {'format': 's16le', 'rate': 16000}")
    options = {option: given.pop(name) for name, option in TRANSCRIBE_FIELDS.items() if name in given}
    stream_options = {name: given.pop(name) for name in STREAM_FIELDS if name in given}
    if given:
        known = ("model", "audio", *TRANSCRIBE_FIELDS, *STREAM_FIELDS)
        raise OptionError(next(iter(given)), next(iter(given.values())), f"one of {', '.join(known)}")
    return Hello(
        model=model,
        options=TranscribeOptions(**options),
        stream_options=StreamOptions(**stream_options),
        audio=AudioFormat(**_known(AudioFormat, audio)),
    )


def _known(kind: type[Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return what is given for a dataclass, if it has these fields, and all without a default are there."""
    known = {field.name: field.default is MISSING for field in fields(kind)}
    for name, value in given.items():
        if name not in known:
            raise OptionError(name, value, f"one of {', '.join(known)}")
    for name, needed in known.items():
        if needed and name not in given:
            raise OptionError(name, None, "the value that the server has sent")
    return given
