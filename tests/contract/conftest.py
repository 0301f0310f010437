"""Every backend beside the reference backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pairs import BackendPair

from harken.contract import Backend
from models import ENGINES, make_mel


@pytest.fixture(scope="session", params=ENGINES)
def backends(
    request: pytest.FixtureRequest, open_backend: Callable[[str], Backend], oracle: Backend
) -> BackendPair:
    """Each of `models.ENGINES` in turn."""
    tested, mel = open_backend(request.param), make_mel()
    return BackendPair(
        name=request.param,
        tested=tested,
        reference=oracle,
        features=tested.encode(mel),
        reference_features=oracle.encode(mel),
        tolerance=ENGINES[request.param].tolerance,
    )
