"""The language of a recording by vote, and of each of voted windows by a filter, from tables of probabilities."""

from __future__ import annotations

import pytest

from harken.errors import OptionError
from harken.transcribe.language_id import FULL_EVIDENCE_S, LanguageFilter, LanguageVote

CODES = ("de", "en", "nl", "fr")


def window(
    code: str, probability: float, other: str | None = None, other_probability: float = 0.0
) -> dict[str, float]:
    """Return the probabilities of one window; the remaining probability is shared by all other languages."""
    named = {code: probability} | ({other: other_probability} if other else {})
    rest = (1 - sum(named.values())) / (len(CODES) - len(named))
    return {code: named.get(code, rest) for code in CODES}


def vote(*windows: dict[str, float], threshold: float = 0.5, max_windows: int = 3) -> LanguageVote:
    voted = LanguageVote(threshold, max_windows)
    for probabilities in windows:
        assert voted.wants_more
        voted = voted.update(probabilities)
    return voted


def test_first_window_that_reaches_the_threshold_decides() -> None:
    voted = vote(window("de", 0.5))
    assert not voted.wants_more
    assert voted.result == ("de", 0.5)


def test_later_window_that_reaches_the_threshold_outvotes_those_before() -> None:
    voted = vote(window("nl", 0.45), window("de", 0.6))
    assert not voted.wants_more
    assert voted.result == ("de", 0.6)


def test_mean_of_all_windows_decides_when_none_reaches_the_threshold() -> None:
    windows = [window("nl", 0.45, "de", 0.4), window("fr", 0.45, "de", 0.4), window("en", 0.45, "de", 0.4)]
    voted = vote(*windows)
    assert not voted.wants_more
    assert voted.result == ("de", pytest.approx(0.4))


def test_probabilities_are_sorted_from_the_most_probable() -> None:
    voted = vote(window("nl", 0.4), window("de", 0.45))
    assert next(iter(voted.probabilities)) == voted.result[0] == "de"
    assert list(voted.probabilities.values()) == sorted(voted.probabilities.values(), reverse=True)
    assert sum(voted.probabilities.values()) == pytest.approx(1)


def test_vote_options_outside_their_range_are_refused() -> None:
    for threshold in (-0.1, 1.1, float("nan")):
        with pytest.raises(OptionError, match="language_threshold"):
            LanguageVote(threshold)
    with pytest.raises(OptionError, match="language_windows"):
        LanguageVote(max_windows=0)


def track(*windows: dict[str, float] | tuple[dict[str, float], float]) -> str:
    """Return the first letter of the language after each window."""
    language_filter, languages = LanguageFilter(), ""
    for observed in windows:
        arguments = observed if isinstance(observed, tuple) else (observed,)
        language_filter = language_filter.update(*arguments)
        assert sum(language_filter.posterior.values()) == pytest.approx(1)
        languages += language_filter.result[0][0]
    return languages


DE, FR = window("de", 0.97, "fr", 0.01), window("fr", 0.97, "de", 0.01)
WEAK, FAIR = window("fr", 0.55, "de", 0.35), window("fr", 0.8, "de", 0.1)


@pytest.mark.parametrize(
    ("windows", "languages"),
    [
        ([DE, DE, DE], "ddd"),
        ([FR, DE, DE], "fdd"),
        ([DE, FR, FR], "dff"),  # a window with strong evidence changes it at once
        ([DE, DE, WEAK, DE], "dddd"),  # one with weak evidence does not,
        ([DE, DE, WEAK, WEAK, DE], "ddddd"),  # nor do two,
        ([DE, DE, WEAK, DE, WEAK, DE, WEAK, DE], "dddddddd"),  # nor many with others in between
        ([DE, DE, FAIR, DE], "dddd"),  # nor one with fairly strong evidence,
        ([DE, DE, FAIR, FAIR], "dddf"),  # but two in a row do
        ([DE] * 50 + [FR], "d" * 50 + "f"),  # however long the other language has lasted
        ([WEAK, DE], "fd"),  # a weak first window is soon outweighed
        ([DE, FR, DE, FR], "dfdf"),
    ],
)
def test_language_changes_only_with_enough_evidence(windows: list[dict[str, float]], languages: str) -> None:
    assert track(*windows) == languages


def test_window_with_little_speech_does_not_change_the_language() -> None:
    found = [track(DE, (FR, speech_s)) for speech_s in (0.0, 0.5, FULL_EVIDENCE_S, 30.0)]
    assert found == ["dd", "dd", "df", "df"]


def test_language_with_probability_zero_can_come_back() -> None:
    assert track({"de": 1.0, "en": 0.0}, {"de": 0.0, "en": 1.0}, {"de": 1.0, "en": 0.0}) == "ded"
