"""Every backend beside the reference backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pairs import BackendPair

from harken.contract import Backend
from tiny_models import BACKENDS, BY_DAY, make_mel


@pytest.fixture(scope="session", params=BY_DAY)
def backends(
    request: pytest.FixtureRequest, open_backend: Callable[[str], Backend], reference_backend: Backend
) -> BackendPair:
    """Each of `tiny_models.BY_DAY` in turn."""
    return make_pair(request.param, open_backend(request.param), reference_backend)


@pytest.fixture(scope="session", params=[name for name in BACKENDS if name not in BY_DAY])
def other_backends(
    request: pytest.FixtureRequest, open_backend: Callable[[str], Backend], reference_backend: Backend
) -> BackendPair:
    """Each of the other backends in turn."""
    return make_pair(request.param, open_backend(request.param), reference_backend)


def make_pair(name: str, tested: Backend, reference: Backend) -> BackendPair:
    mel = make_mel()
    return BackendPair(
        name=name,
        tested=tested,
        reference=reference,
        features=tested.encode(mel),
        reference_features=reference.encode(mel),
        tolerance=BACKENDS[name].tolerance,
    )
