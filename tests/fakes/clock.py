"""A clock that the test moves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class FakeClock:
    """A clock in seconds that moves only when a test or a fake spends time, and by `tick_s` at each reading."""

    tick_s: float = 0.0
    now_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += self.tick_s
        return self.now_s

    def spend(self, seconds: float) -> None:
        self.now_s += seconds
