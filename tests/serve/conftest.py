"""A server of tones that all share and its clients, and a model that is never in a hurry."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import httpx
import openai
import pytest
from tone_server import serving_tones

import harken
from fakes.tone_backend import ToneBackend
from harken.api import Recognizer
from real_models import model_path
from serving import Serving, serving


@pytest.fixture(scope="session")
def tones() -> Iterator[Serving]:
    with serving_tones(ToneBackend(positions=200)) as server:
        yield server


@pytest.fixture(scope="session")
def http(tones: Serving) -> httpx.Client:
    return tones.http


@pytest.fixture(scope="session")
def client(tones: Serving) -> Iterator[openai.OpenAI]:
    with tones.client() as client:
        yield client


@pytest.fixture(scope="session")
def unhurried() -> Recognizer:
    """The embedded tiny.en; its live sessions do all their work however late they are, so texts are always equal."""
    recognizer = harken.load(model_path("tiny.en"), threads=1)
    recognizer.stream = partial(recognizer.stream, clock=None)  # type: ignore[method-assign]
    return recognizer


@pytest.fixture(scope="session")
def unhurried_server(unhurried: Recognizer) -> Iterator[Serving]:
    with serving(lambda id: unhurried) as server:
        yield server
