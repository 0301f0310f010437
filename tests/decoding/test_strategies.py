"""Tests of strategies: their range of values, the fallback schedule, and the score of hypotheses."""

from __future__ import annotations

import pytest

from harken.decoding import Beam, Greedy, Hypothesis, Sample, fallback_schedule
from harken.errors import OptionError


@pytest.mark.parametrize(
    ("make", "options", "field"),
    [
        (Sample, {"temperature": 0}, "temperature"),
        (Sample, {"temperature": 11}, "temperature"),
        (Sample, {"temperature": 1e-308}, "temperature"),  # logits divided by it would overflow
        (Sample, {"temperature": float("nan")}, "temperature"),
        (Sample, {"temperature": 1, "best_of": 0}, "best_of"),
        (Sample, {"temperature": 1, "best_of": 65}, "best_of"),
        (Sample, {"temperature": 1, "length_penalty": 1.1}, "length_penalty"),
        (Beam, {"width": 0}, "width"),
        (Beam, {"patience": 0}, "patience"),
        (Beam, {"patience": float("inf")}, "patience"),
        (Beam, {"length_penalty": -0.1}, "length_penalty"),
    ],
)
def test_values_out_of_range_are_errors(make: type, options: dict[str, float], field: str) -> None:
    with pytest.raises(OptionError, match=f"^{field}=.*allowed is") as error:
        make(**options)
    assert error.value.field == field


def test_fallback_schedule_samples_above_temperature_zero() -> None:
    schedule = fallback_schedule((0.0, 0.2), first=Beam(width=3), best_of=4, length_penalty=0.5)
    assert schedule == (Beam(width=3), Sample(temperature=0.2, best_of=4, length_penalty=0.5))
    with pytest.raises(OptionError, match="temperatures"):
        fallback_schedule((), first=Greedy(), best_of=5, length_penalty=None)


@pytest.mark.parametrize(
    ("length_penalty", "score"),
    [(None, -6 / 3), (0.0, -6.0), (1.0, -6 / (8 / 6)), (0.6, -6 / (8 / 6) ** 0.6)],
)
def test_score_divides_by_the_length_without_eot(length_penalty: float | None, score: float) -> None:
    hypothesis = Hypothesis(tokens=(1, 2, 3), logprobs=(-1.0, -2.0, -1.0, -2.0))
    assert hypothesis.score(length_penalty) == pytest.approx(score)


def test_avg_logprob_counts_eot() -> None:
    assert Hypothesis(tokens=(1, 2, 3), logprobs=(-1.0, -2.0, -1.0, -2.0)).avg_logprob == -6 / 4
    assert Hypothesis(tokens=(), logprobs=(-1.0,)).avg_logprob == -1
