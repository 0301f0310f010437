"""A server of tones that all share, and its clients."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest
from tone_server import GatedToneBackend, serving_tones

from serving import Serving


@pytest.fixture(scope="session")
def tones() -> Iterator[Serving]:
    with serving_tones(GatedToneBackend()) as server:
        yield server


@pytest.fixture(scope="session")
def http(tones: Serving) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=tones.url, timeout=60) as http:
        yield http


@pytest.fixture(scope="session")
def client(tones: Serving) -> Iterator[openai.OpenAI]:
    with tones.client() as client:
        yield client
