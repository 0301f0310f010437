"""The diarizer of the server, which tells speakers apart: loaded once, when it is first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from logging import getLogger

from harken.errors import BackendUnavailable, CheckpointError, OptionError
from harken.serve.errors import RequestError
from harken.serve.waiting import in_daemon_thread
from harken.speakers.diarizer import Diarizer

log = getLogger("harken.serve")


class SharedDiarizer:
    """The diarizer of the server.

    Parameters
    ----------
    load : callable or None
        Loads it; None if the server tells no speakers apart.
    """

    def __init__(self, load: Callable[[], Diarizer] | None) -> None:
        self._load = load
        self._loading: asyncio.Task[Diarizer] | None = None

    async def get(self) -> Diarizer:
        """Return the diarizer, loaded if it is not in memory; after a failure the next request tries again.

        Raises
        ------
        RequestError
            If its models are not on this server, and cannot be fetched.
        """
        if self._load is None:
            raise _unavailable()
        failed = self._loading and self._loading.done() and self._loading.exception()
        if self._loading is None or failed:
            self._loading = asyncio.create_task(in_daemon_thread(self._load, "loading the diarizer"))
        try:
            # A request that is cancelled meanwhile does not end the loading, for which others may wait.
            return await asyncio.shield(self._loading)
        except (CheckpointError, OptionError, BackendUnavailable) as error:
            log.error("speakers cannot be told apart: %s", error)
            raise _unavailable() from error

    def close(self) -> None:
        """Wait no longer for the loading."""
        if self._loading:
            self._loading.cancel()


def _unavailable() -> RequestError:
    return RequestError(
        "response_format='diarized_json': allowed are the other formats: this server has no models to tell "
        "speakers apart",
        code="unsupported_value",
        param="response_format",
    )
