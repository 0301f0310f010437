"""The body of a request, refused as soon as it is larger than allowed."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from harken.serve.errors import RequestError

MEGABYTE = 1_000_000
PAUSE_LIMIT_S = 60.0
"""Seconds that a sender may pause; a connection and a file are held for it."""


def bounded_body(scope: Scope, receive: Receive, max_bytes: int, param: str | None = None) -> Receive:
    """Return a function that receives the body of a request, and refuses one that is too large.

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
        If the header tells that it is too large; the function returned raises it if the header did not, or if the
        client pauses for too long.
    """
    too_large = RequestError(
        f"the request is larger than {max_bytes / MEGABYTE:g} MB, which are allowed",
        status=413,
        code="request_too_large",
        param=param,
    )
    declared = Headers(scope=scope).get("content-length", "")
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
