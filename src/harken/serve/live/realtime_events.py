"""Events as text: those of clients read, those of the server written."""

from __future__ import annotations

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from secrets import token_hex
from typing import Any, NoReturn

from harken.serve.errors import RequestError, object_in
from harken.serve.live.realtime_config import invalid_value, unknown_parameter

APPEND = "input_audio_buffer.append"
FIELDS: Mapping[str, tuple[str, ...]] = {
    "session.update": ("session",),
    "transcription_session.update": ("session",),
    APPEND: ("audio",),
    "input_audio_buffer.commit": (),
    "input_audio_buffer.clear": (),
}
"""Fields of the events of clients, beside their type and id."""
MAX_APPEND_CHARS = 15 << 20
MAX_EVENT_ID_CHARS = 512


def read_json(message: str | bytes) -> dict[str, Any]:
    """Return the object in a message.

    Raises
    ------
    RequestError
        If there is none.
    """
    problem = RequestError("a message is not a JSON object; allowed is one event in each", code="invalid_json")
    return object_in(message, problem, parse_constant=_refuse_constant)


def client_event_id(event: dict[str, Any]) -> str | None:
    """Return the id that the client has given to an event, None if it is not usable."""
    event_id = event.get("event_id")
    return event_id if isinstance(event_id, str) and len(event_id) <= MAX_EVENT_ID_CHARS else None


def check_event(event: dict[str, Any]) -> str:
    """Return the type of an event of a client.

    Raises
    ------
    RequestError
        If it is not an event of transcription sessions, or has a field too few or too many.
    """
    name = event.get("type")
    if name is None:
        raise RequestError("the event has no type", code="missing_required_parameter", param="type")
    if not isinstance(name, str) or name not in FIELDS:
        raise invalid_value("type", name, ", ".join(FIELDS))
    for field in FIELDS[name]:
        if field not in event:
            message = f"an event of type {name} has no {field}"
            raise RequestError(message, code="missing_required_parameter", param=field)
    for key in event:
        if key not in ("type", "event_id", *FIELDS[name]):
            raise unknown_parameter("", key)
    return name


def decoded_audio(audio: Any) -> bytes:
    """Return the bytes of an append.

    Raises
    ------
    RequestError
        If it is not base64, or too long.
    """
    if not isinstance(audio, str):
        raise invalid_value("audio", audio, "a text in base64", "invalid_type")
    if len(audio) > MAX_APPEND_CHARS:
        raise RequestError(
            f"audio has {len(audio)} characters; allowed are {MAX_APPEND_CHARS}",
            code="string_above_max_length",
            param="audio",
        )
    try:
        return b64decode(audio, validate=True)
    except (Base64Error, ValueError):
        raise RequestError("audio is not base64", code="invalid_value", param="audio") from None


def new_id(prefix: str) -> str:
    """Return an id that no other session, event or item has."""
    return f"{prefix}_{token_hex(12)}"


class EventWriter:
    """A writer of the server's events.

    Parameters
    ----------
    beta : bool
        True for the beta dialect.
    new_id : callable
        Makes ids with a prefix.
    """

    def __init__(self, beta: bool, new_id: Callable[[str], str]) -> None:
        self.beta, self.new_id = beta, new_id

    def event(self, type: str, **fields: Any) -> str:
        """Return an event."""
        return json.dumps({"type": type, "event_id": self.new_id("event")} | fields, separators=(",", ":"))

    def error(self, error: RequestError, event_id: str | None = None) -> str:
        """Return an error event; the session goes on."""
        return self.event("error", error=error.body()["error"] | {"event_id": event_id})

    def transcription(self, kind: str, item_id: str, **fields: Any) -> str:
        """Return an event about the transcription of an item."""
        type = f"conversation.item.input_audio_transcription.{kind}"
        return self.event(type, item_id=item_id, content_index=0, **fields)

    def item(self, kind: str, item_id: str, previous_id: str | None, transcript: str | None) -> str:
        """Return an event about an item."""
        content = [{"type": "input_audio", "transcript": transcript}]
        shown = {"id": item_id, "object": "realtime.item", "type": "message", "role": "user"}
        return self.event(
            f"conversation.item.{kind}",
            previous_item_id=previous_id,
            item=shown | {"status": "completed", "content": content},
        )


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
