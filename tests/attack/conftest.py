"""Attacks that take minutes run only when they are asked for: ``pytest -m attack tests/attack``."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "attack" in config.getoption("-m"):
        return
    skip = pytest.mark.skip(reason="takes minutes; pytest -m attack runs it")
    for item in items:
        if item.get_closest_marker("attack"):
            item.add_marker(skip)
