"""The language of a recording by vote, and of its windows by a filter: sequences of probabilities as tables."""

from __future__ import annotations

import pytest

from harken.errors import OptionError
from harken.transcribe.language_id import FULL_EVIDENCE_S, LanguageFilter, LanguageVote

CODES = ("de", "en", "nl", "fr")


def heard(code: str, probability: float, other: str | None = None, its: float = 0.0) -> dict[str, float]:
    """One window; what is left of the probability is shared by all the rest."""
    named = {code: probability} | ({other: its} if other else {})
    rest = (1 - sum(named.values())) / (len(CODES) - len(named))
    return {code: named.get(code, rest) for code in CODES}


def vote(*windows: dict[str, float], threshold: float = 0.5, most: int = 3) -> LanguageVote:
    its = LanguageVote(threshold, most)
    for window in windows:
        assert its.wants_more
        its = its.update(window)
    return its


def test_a_window_that_reaches_the_threshold_decides() -> None:
    its = vote(heard("de", 0.5))
    assert not its.wants_more
    assert its.result == ("de", 0.5)


def test_a_later_window_that_reaches_it_decides_against_those_before() -> None:
    its = vote(heard("nl", 0.45), heard("de", 0.6))
    assert not its.wants_more
    assert its.result == ("de", 0.6)


def test_otherwise_all_decide_together() -> None:
    windows = [heard("nl", 0.45, "de", 0.4), heard("fr", 0.45, "de", 0.4), heard("en", 0.45, "de", 0.4)]
    its = vote(*windows)
    assert not its.wants_more
    assert its.result == ("de", pytest.approx(0.4))


def test_a_recording_may_end_before_all_windows_are_heard() -> None:
    its = vote(heard("nl", 0.4))
    assert its.wants_more
    assert its.result == ("nl", 0.4)


def test_probabilities_come_with_the_most_probable_first() -> None:
    its = vote(heard("nl", 0.4), heard("de", 0.45))
    assert next(iter(its.probabilities)) == its.result[0] == "de"
    assert list(its.probabilities.values()) == sorted(its.probabilities.values(), reverse=True)
    assert sum(its.probabilities.values()) == pytest.approx(1)


@pytest.mark.parametrize(("threshold", "most"), [(0.0, 1), (0.0, 9), (0.3, 9), (1.0, 1)])
def test_one_window_is_enough_where_one_is_all_that_is_asked(threshold: float, most: int) -> None:
    assert not vote(heard("nl", 0.3), threshold=threshold, most=most).wants_more


def test_hearing_leaves_the_vote_before_it_as_it_was() -> None:
    before = LanguageVote()
    before.update(heard("de", 0.9))
    assert before.observed == ()


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("language_threshold", {"threshold": -0.1}),
        ("language_threshold", {"threshold": 1.1}),
        ("language_threshold", {"threshold": float("nan")}),
        ("language_windows", {"max_windows": 0}),
    ],
)
def test_what_a_vote_may_not_be(field: str, arguments: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=field):
        LanguageVote(**arguments)


def track(*windows: dict[str, float] | tuple[dict[str, float], float]) -> str:
    """Language after each window, by first letters."""
    tracker, found = LanguageFilter(), ""
    for window in windows:
        tracker = tracker.update(*window) if isinstance(window, tuple) else tracker.update(window)
        assert sum(tracker.posterior.values()) == pytest.approx(1)
        found += tracker.result[0][0]
    return found


DE, FR = heard("de", 0.97, "fr", 0.01), heard("fr", 0.97, "de", 0.01)
WEAK, FAIR = heard("fr", 0.55, "de", 0.35), heard("fr", 0.8, "de", 0.1)


@pytest.mark.parametrize(
    ("windows", "languages"),
    [
        ([DE, DE, DE], "ddd"),
        ([FR, DE, DE], "fdd"),
        ([DE, FR, FR], "dff"),  # a strong window changes it, at once
        ([DE, DE, WEAK, DE], "dddd"),  # a weak one does not,
        ([DE, DE, WEAK, WEAK, DE], "ddddd"),  # nor do two,
        ([DE, DE, WEAK, DE, WEAK, DE, WEAK, DE], "dddddddd"),  # nor many that are contradicted
        ([DE, DE, FAIR, DE], "dddd"),  # nor a fairly strong one,
        ([DE, DE, FAIR, FAIR], "dddf"),  # but two in a row do
        ([DE] * 50 + [FR], "d" * 50 + "f"),  # however long it has been the other
        ([WEAK, DE], "fd"),  # a weak beginning is soon forgotten
        ([DE, FR, DE, FR], "dfdf"),
    ],
)
def test_what_changes_the_language(windows: list[dict[str, float]], languages: str) -> None:
    assert track(*windows) == languages


@pytest.mark.parametrize(("speech_s", "after"), [(0.0, "d"), (0.5, "d"), (FULL_EVIDENCE_S, "f"), (30.0, "f")])
def test_little_speech_is_little_evidence(speech_s: float, after: str) -> None:
    assert track(DE, (FR, speech_s)) == "d" + after


def test_impossible_languages_are_not_lost() -> None:
    assert track({"de": 1.0, "en": 0.0}, {"de": 0.0, "en": 1.0}, {"de": 1.0, "en": 0.0}) == "ded"


def test_the_number_of_languages_does_not_matter() -> None:
    """The odds of a change are those of one language against another, however many come into question."""
    many = {f"x{i}": 0.0 for i in range(97)}
    assert track(DE | many, FAIR | many, FAIR | many) == track(DE, FAIR, FAIR) == "ddf"


def test_nothing_heard_has_no_result() -> None:
    for its in (LanguageVote(), LanguageFilter()):
        with pytest.raises(AssertionError, match="no window"):
            its.result  # noqa: B018
