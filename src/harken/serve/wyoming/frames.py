"""Frames of the Wyoming protocol: a line of JSON, then data as JSON, then a payload, each of a size that is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harken.errors import HarkenError

MAX_LINE_BYTES = 1 << 16
MAX_DATA_BYTES = 1 << 16
MAX_PAYLOAD_BYTES = 1 << 20


class FrameError(HarkenError):
    """A frame that cannot be read, nor what follows it."""


@dataclass(frozen=True, slots=True)
class WyomingEvent:
    """An event.

    Parameters
    ----------
    type : str
    data : dict
    payload : bytes
    """

    type: str
    data: dict[str, Any]
    payload: bytes = b""


async def read_event(reader: asyncio.StreamReader) -> WyomingEvent | None:
    """Read the next event; None at the end.

    Parameters
    ----------
    reader : StreamReader
        With a limit of `MAX_LINE_BYTES`.

    Raises
    ------
    FrameError
        If it is malformed or too large, before memory is taken for it.
    """
    try:
        header = _as_object(await reader.readuntil(b"\n"), "the line of an event")
        kind = header.get("type")
        if not isinstance(kind, str):
            raise FrameError("type: missing; allowed is the name of an event")
        data_bytes = await reader.readexactly(_length(header, "data_length", MAX_DATA_BYTES))
        payload = await reader.readexactly(_length(header, "payload_length", MAX_PAYLOAD_BYTES))
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        raise FrameError(f"the line of an event is longer than {MAX_LINE_BYTES} bytes") from None
    inline = header.get("data") or {}
    if not isinstance(inline, dict):
        raise FrameError("data: allowed is an object")
    separate = _as_object(data_bytes, "the data of an event") if data_bytes else {}
    return WyomingEvent(kind, inline | separate, payload)


def encode_event(kind: str, data: Mapping[str, Any]) -> bytes:
    """Return the frame of an event without a payload."""
    data_bytes = json.dumps(data).encode() if data else b""
    length = {"data_length": len(data_bytes)} if data_bytes else {}
    return json.dumps({"type": kind} | length).encode() + b"\n" + data_bytes


def _length(header: dict[str, Any], name: str, limit: int) -> int:
    length = header.get(name) or 0
    if not isinstance(length, int) or not 0 <= length <= limit:
        raise FrameError(f"{name}={str(length)[:40]}: allowed is 0 to {limit}")
    return length


def _as_object(text: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise FrameError(f"{name} is no JSON object")
    return value
