"""Samples of another level, and wild ones among them, have the same words with the model that comes with harken."""

from __future__ import annotations

import re
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


def words_of(samples: Floats) -> list[str]:
    return re.findall(r"\w+", recognizer("int8").transcribe(samples).text.lower())


@pytest.mark.parametrize("change", [standardised, with_wild_sample], ids=lambda change: change.__name__)
def test_changed_samples_have_the_same_words(change: Callable[[Floats], Floats]) -> None:
    """Punctuation may differ: log-mel moves with the level, by more than decides a near tie."""
    samples = load_audio(EXAMPLE)
    words = words_of(samples)
    assert len(words) == 22
    assert words_of(change(samples)) == words
