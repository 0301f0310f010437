"""Clients that go away while their request is worked on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive


async def finish_unless_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Do some work, and cancel it if the client goes away.

    Parameters
    ----------
    receive
        Of a request whose body has been received.
    work : coroutine

    Returns
    -------
    bool
        False if the client has gone.
    """
    working, going = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({working, going}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        working.cancel()
        going.cancel()
        await asyncio.gather(working, going, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
