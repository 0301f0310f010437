"""Time that leaps ahead, so that no test waits for a limit of seconds or minutes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

Given = ParamSpec("Given")


class LeapLoop(asyncio.SelectorEventLoop):
    """An event loop whose time leaps ahead when it is told to."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


async def leap(seconds: float) -> None:
    """Let time pass, in steps so small that everybody who waits sees it."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, LeapLoop)
    for _ in range(100):
        loop.ahead_s += seconds / 100
        await settled()


async def settled() -> None:
    """Let all go on who can."""
    for _ in range(20):
        await asyncio.sleep(0)


def leaping(test: Callable[Given, Coroutine[Any, Any, None]]) -> Callable[Given, None]:
    """Run a test in a loop of such time."""

    @wraps(test)
    def run(*given: Given.args, **named: Given.kwargs) -> None:
        with asyncio.Runner(loop_factory=LeapLoop) as runner:
            runner.run(test(*given, **named))

    return run
