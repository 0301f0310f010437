"""What the server loads: each model once, when it is first asked for, with an engine of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from threading import Thread
from time import monotonic, time
from typing import Any, Generic, TypeVar

from harken.api import Recognizer
from harken.serve.errors import not_found
from harken.serve.work.engine import Engine, Job

T = TypeVar("T")

OPENAI_NAMES = (
    *("whisper-1", "gpt-transcribe", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", "gpt-live-transcribe"),
    *("gpt-4o-mini-transcribe-2025-12-15", "gpt-4o-transcribe-diarize", "gpt-realtime-whisper"),
)
"""Names that clients of OpenAI send; all mean the default model, unless an alias says otherwise."""


class LoadOnce(Generic[T]):
    """Something that is loaded when it is first asked for; after a failure the next request tries again.

    Parameters
    ----------
    load : coroutine function
    """

    def __init__(self, load: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._load = load
        self._loading: asyncio.Task[T] | None = None

    @property
    def value(self) -> T | None:
        """What was loaded; None before, and after a failure."""
        task = self._loading
        loaded = task is not None and task.done() and not task.cancelled() and task.exception() is None
        return task.result() if task and loaded else None

    async def get(self) -> T:
        """Return it, loaded if it is not in memory."""
        if self._loading is None or (self._loading.done() and self.value is None):
            self._loading = asyncio.create_task(self._load())
        # A request that is cancelled meanwhile does not end the loading, for which others may wait.
        return await asyncio.shield(self._loading)

    def forget(self) -> None:
        """Let go of it, and wait no longer for the loading."""
        if self._loading:
            self._loading.cancel()
            self._loading = None


@dataclass(eq=False)
class LoadedModel:
    """A model in memory, and the engine that serves its jobs.

    Attributes
    ----------
    id : str
    recognizer : Recognizer
    engine : Engine
    clock : callable
        Returns seconds.
    uses : int
        Requests that are using it.
    used_s : float
        Time of the last use, by the clock.
    """

    id: str
    recognizer: Recognizer
    engine: Engine
    clock: Callable[[], float]
    uses: int = 0

    def __post_init__(self) -> None:
        self.used_s = self.clock()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep it in memory."""
        self.uses += 1
        try:
            yield
        finally:
            self.uses -= 1
            self.used_s = self.clock()


class Models:
    """The models that the server offers.

    Parameters
    ----------
    load : callable
        Loads the model of an id.
    ids : sequence of str
        The first is the default.
    aliases : mapping
        Further names, and the ids that they stand for.
    on_step : callable
        As for `Engine`.

    Attributes
    ----------
    load_s : dict
        Seconds that loading took the last time, by ids of the models that have been in memory.
    """

    def __init__(
        self,
        load: Callable[[str], Recognizer],
        ids: Sequence[str],
        aliases: Mapping[str, str],
        on_step: Callable[[Job, float], None],
    ) -> None:
        self.ids = tuple(ids)
        self.created_s = int(time())
        self.load_s: dict[str, float] = {}
        self._load, self._on_step, self._clock = load, on_step, asyncio.get_running_loop().time
        self._aliases = dict.fromkeys(OPENAI_NAMES, ids[0]) | dict(aliases)
        self._models = {id: LoadOnce(partial(self._load_model, id)) for id in ids}

    @property
    def loaded(self) -> list[LoadedModel]:
        """Models in memory."""
        return [loaded for model in self._models.values() if (loaded := model.value)]

    def resolve(self, name: str) -> str:
        """Return the id of a model by its id or an alias.

        Raises
        ------
        RequestError
            If the server does not offer it.
        """
        id = self._aliases.get(name, name)
        if id not in self.ids:
            raise not_found(name, [*self.ids, *sorted(self._aliases)])
        return id

    async def get(self, name: str) -> LoadedModel:
        """Return a model, loaded if it is not in memory."""
        return await self._models[self.resolve(name)].get()

    async def unload_idle(self, after_s: float) -> None:
        """Unload the models that nobody has used for some time."""
        for model in self.loaded:
            if not model.uses and self._clock() - model.used_s >= after_s:
                self._models[model.id].forget()
                await asyncio.to_thread(model.engine.stop, "the model was unloaded")

    async def close(self, reason: str) -> None:
        """Abandon all jobs and end the engines."""
        loaded = self.loaded
        for model in self._models.values():
            model.forget()
        await asyncio.gather(*(asyncio.to_thread(model.engine.stop, reason) for model in loaded))

    async def _load_model(self, id: str) -> LoadedModel:
        start_s = monotonic()
        recognizer = await in_daemon_thread(partial(self._load, id), f"loading {id}")
        self.load_s[id] = monotonic() - start_s
        return LoadedModel(id, recognizer, Engine(f"harken {id}", self._on_step), self._clock)


async def in_daemon_thread(function: Callable[[], T], name: str) -> T:
    """Return what a function returns, called in a thread of its own.

    Unlike threads of `asyncio.to_thread`, it does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def settle(set_result: Callable[[Any], None], value: object) -> None:
        if not result.done():  # else nobody waits any more
            set_result(value)

    def call() -> None:
        try:
            outcome: tuple[Callable[[Any], None], object] = result.set_result, function()
        except BaseException as error:
            outcome = result.set_exception, error
        with suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(settle, *outcome)

    Thread(target=call, name=name, daemon=True).start()
    return await result
