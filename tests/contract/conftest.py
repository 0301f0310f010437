"""Every backend beside the reference backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pairs import BackendPair

from harken.contract import Backend
from tiny_models import BACKENDS, make_mel


@pytest.fixture(scope="session", params=BACKENDS)
def backends(
    request: pytest.FixtureRequest, open_backend: Callable[[str], Backend], reference_backend: Backend
) -> BackendPair:
    """Each of `models.ENGINES` in turn."""
    tested, mel = open_backend(request.param), make_mel()
    return BackendPair(
        name=request.param,
        tested=tested,
        reference=reference_backend,
        features=tested.encode(mel),
        reference_features=reference_backend.encode(mel),
        tolerance=BACKENDS[request.param].tolerance,
    )
