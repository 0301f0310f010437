"""Decoding strategies: a sum type, so that an illegal combination cannot be written.

`Greedy` and `Beam` are deterministic; `Sample` draws at a temperature. A fallback schedule is a tuple of them.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass

from harken.errors import OptionError
from harken.option_types import check, option

MIN_TEMPERATURE = 0.001
"""Least temperature to sample at: logits that are divided by less overflow, and it is as greedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """Pick the most probable token at every step."""

    @property
    def temperature(self) -> float:
        """Zero: the choice is deterministic."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Draw tokens at a temperature, `best_of` times, and keep the best.

    Parameters
    ----------
    temperature : float
        Above 0; 1 draws from the model's own distribution.
    best_of : int
        Number of independent samples.
    length_penalty : float or None
        As in `Beam`.
    """

    temperature: float = option(MISSING, low=MIN_TEMPERATURE, high=10)
    best_of: int = option(5, low=1, high=64)
    length_penalty: float | None = option(None, low=0, high=1)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam:
    """Keep the `width` best hypotheses at every step.

    Parameters
    ----------
    width : int
        Number of hypotheses kept.
    patience : float
        Stop after ``round(width * patience)`` finished ones (Kasai et al. 2022, arXiv:2204.05424).
    length_penalty : float or None
        Alpha in ((5 + length) / 6) ** alpha, by which a finished hypothesis' log-probability is divided
        (Wu et al. 2016, arXiv:1609.08144, equation 14); None divides by the length.
    """

    width: int = option(5, low=1, high=64)
    patience: float = option(1.0, above=0, high=100)
    length_penalty: float | None = option(None, low=0, high=1)

    def __post_init__(self) -> None:
        check(self)

    @property
    def temperature(self) -> float:
        """Zero: the search is deterministic."""
        return 0.0


Strategy = Greedy | Sample | Beam


def fallback_schedule(
    temperatures: tuple[float, ...], *, first: Greedy | Beam, best_of: int, length_penalty: float | None
) -> tuple[Strategy, ...]:
    """Return one strategy for each temperature: `first` at 0, sampling above.

    Source: openai/whisper, transcribe.py, decode_with_fallback.
    """
    if not temperatures:
        raise OptionError("temperatures", temperatures, "at least one temperature")
    return tuple(
        first if t == 0 else Sample(temperature=t, best_of=best_of, length_penalty=length_penalty)
        for t in temperatures
    )
