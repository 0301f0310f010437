"""Every backend on the bench."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bench import Bench

from harken.contract import Backend
from tiny_models import BACKENDS, make_mel


@pytest.fixture(scope="session", params=BACKENDS)
def bench(
    request: pytest.FixtureRequest, open_backend: Callable[[str], Backend], reference_backend: Backend
) -> Bench:
    """Each of `models.ENGINES` in turn."""
    backend, mel = open_backend(request.param), make_mel()
    tolerance = BACKENDS[request.param].tolerance
    return Bench(
        request.param, backend, reference_backend, backend.encode(mel), reference_backend.encode(mel), tolerance
    )
