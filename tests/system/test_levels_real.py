"""Samples of another level, and wild ones among them, have the same text with the model that comes with harken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harken.audio import load_audio
from harken.contract import Floats
from real_models import EXAMPLE, recognizer

pytestmark = [pytest.mark.real, pytest.mark.slow]


def standardised(samples: Floats) -> Floats:
    """Return samples of mean 0 and variance 1, as the preprocessors of other models make them."""
    return (samples - samples.mean()) / samples.std()


def with_wild_sample(samples: Floats) -> Floats:
    changed = samples.copy()
    changed[5 * 16_000] = 1e20
    return changed


@pytest.mark.parametrize("change", [standardised, with_wild_sample], ids=lambda change: change.__name__)
def test_changed_samples_have_the_same_text(change: Callable[[Floats], Floats]) -> None:
    samples = load_audio(EXAMPLE)
    text = recognizer("int8").transcribe(samples).text
    assert len(text.split()) == 22
    assert recognizer("int8").transcribe(change(samples)).text == text
