"""Every backend beside the reference backend."""

import pytest
from pairs import BackendPair

from tiny_models import BACKENDS, BY_DAY, make_mel


def open_pair(request):
    tested = request.getfixturevalue("open_backend")(request.param)
    reference = request.getfixturevalue("reference_backend")
    return BackendPair(
        name=request.param,
        tested=tested,
        reference=reference,
        features=tested.encode(make_mel()),
        reference_features=reference.encode(make_mel()),
        tolerance=BACKENDS[request.param].tolerance,
    )


backends = pytest.fixture(open_pair, scope="session", params=BY_DAY)
other_backends = pytest.fixture(
    open_pair, scope="session", params=[name for name in BACKENDS if name not in BY_DAY]
)
