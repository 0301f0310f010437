"""Models of the server: each loaded once, when it is first asked for, with an engine of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import time
from typing import Any

from harken.api import Recognizer
from harken.serve.errors import RequestError
from harken.serve.waiting import LoadOnce, in_daemon_thread
from harken.serve.work.engine import Engine, Job

OPENAI_NAMES = (
    *("whisper-1", "gpt-transcribe", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", "gpt-live-transcribe"),
    *("gpt-4o-mini-transcribe-2025-12-15", "gpt-4o-transcribe-diarize", "gpt-realtime-whisper"),
)
"""Names that clients of OpenAI send; all mean the default model, unless an alias says otherwise."""
ANY = "*"
"""Alias of all names that mean no model otherwise."""


def _now_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass(eq=False)
class LoadedModel:
    """A model in memory, and the engine that serves its jobs."""

    id: str
    recognizer: Recognizer
    engine: Engine
    uses: int = 0  # requests that are using it
    used_s: float = field(default_factory=_now_s)  # when the last of them ended

    @property
    def languages(self) -> list[str]:
        """Codes of the languages that it knows."""
        tokenizer = self.recognizer.tokenizer
        return [*tokenizer.language_tokens] if tokenizer.multilingual else ["en"]

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep it in memory."""
        self.uses += 1
        try:
            yield
        finally:
            self.uses -= 1
            self.used_s = _now_s()


class Models:
    """The models that the server offers.

    Parameters
    ----------
    load : callable
        Loads the model of an id.
    ids : sequence of str
        The first is the default.
    aliases : mapping
        Further names, and the ids that they stand for; "*" stands for every other name.
    on_step : callable
        As for `Engine`.

    Attributes
    ----------
    has_loaded : bool
        True once a model has been in memory.
    """

    def __init__(
        self,
        load: Callable[[str], Recognizer],
        ids: Sequence[str],
        aliases: Mapping[str, str],
        on_step: Callable[[Job[Any], float], None],
    ) -> None:
        self.ids = tuple(ids)
        self.created_s = int(time())
        self.has_loaded = False
        self._load, self._on_step = load, on_step
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
        if id := self._aliases.get(name):
            return id
        if name in self.ids:
            return name
        if ANY in self._aliases:
            return self._aliases[ANY]
        known = ", ".join([*self.ids, *sorted(self._aliases)])
        option = f"the option --alias '*={self.ids[0]}' allows any name"
        message = f"model {name[:100]!r} is not served; allowed is one of {known}; {option}"
        # With a status of 400, as to clients a 404 says that the route is missing.
        raise RequestError(message, code="model_not_found", param="model")

    async def get(self, name: str) -> LoadedModel:
        """Return a model, loaded if it is not in memory."""
        return await self._models[self.resolve(name)].get()

    async def unload_idle(self, after_s: float) -> None:
        """Unload the models that nobody has used for some time."""
        for model in self.loaded:
            if not model.uses and _now_s() - model.used_s >= after_s:
                self._models[model.id].forget()
                # Of a thread of the loop's pool that has not begun yet, a cancellation would leave the engine running.
                stop = partial(model.engine.stop, "the model was unloaded")
                await in_daemon_thread(stop, f"unloading {model.id}")

    async def close(self, reason: str) -> None:
        """Abandon all jobs and end the engines."""
        loaded = self.loaded
        for model in self._models.values():
            model.forget()
        await asyncio.gather(*(asyncio.to_thread(model.engine.stop, reason) for model in loaded))

    async def _load_model(self, id: str) -> LoadedModel:
        recognizer = await in_daemon_thread(partial(self._load, id), f"loading {id}")
        self.has_loaded = True
        return LoadedModel(id, recognizer, Engine(f"harken {id}", self._on_step))
