"""Every backend on the bench."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bench import Bench

from harken.contract import Backend
from models import ENGINES, make_mel


@pytest.fixture(scope="session", params=ENGINES)
def bench(request: pytest.FixtureRequest, open_backend: Callable[[str], Backend], oracle: Backend) -> Bench:
    """Each of `models.ENGINES` in turn."""
    backend, mel = open_backend(request.param), make_mel()
    tolerance = ENGINES[request.param].tolerance
    return Bench(request.param, backend, oracle, backend.encode(mel), oracle.encode(mel), tolerance)
