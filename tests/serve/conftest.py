"""A server of tones that all share and its clients, and a model that is never in a hurry."""

from functools import partial

import pytest
from tone_server import serving_tones

import harken
from fakes.tone_backend import ToneBackend
from real_models import model_path
from serving import serving


@pytest.fixture(scope="session")
def tones():
    with serving_tones(ToneBackend(positions=200)) as server:
        yield server


@pytest.fixture(scope="session")
def http(tones):
    return tones.http


@pytest.fixture(scope="session")
def client(tones):
    with tones.client() as client:
        yield client


@pytest.fixture(scope="session")
def unhurried():
    """The embedded tiny.en; its live sessions do all their work however late they are, so texts are always equal."""
    recognizer = harken.load(model_path("tiny.en"), threads=1)
    recognizer.stream = partial(recognizer.stream, clock=None)
    return recognizer


@pytest.fixture(scope="session")
def unhurried_server(unhurried):
    with serving(lambda id: unhurried) as server:
        yield server
