"""Normalizers, error counts, confidence intervals, and what they amount to."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path

import jiwer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.errors import BackendUnavailable, OptionError
from harken.evaluation import (
    AlignmentChunk,
    Entry,
    ErrorCounts,
    EvalHypothesis,
    Evaluation,
    Score,
    align_words,
    compare_evaluations,
    score,
    summarise,
)
from harken.evaluation.error_rate import (
    RESAMPLES,
    bootstrap_error_rates,
    confidence_interval,
    count_character_errors,
    count_word_errors,
    is_spaced,
    normalizer,
)
from harken.evaluation.scoring import report

# Language, text, and what openai-whisper 20250625 makes of it: EnglishTextNormalizer for en, BasicTextNormalizer
# for others, with split_letters for languages without spaces; strip() at the end.
NORMALIZED = [
    ("en", "Mr. Smith's TV cost $2 and 7 cents -- he won't say.", "mister smith is tv cost $2.07 he will not say"),
    ("en", "Twenty-one thousand and one, double oh seven; the 1960s", "21001007 the 1960s"),
    ("en", "Um, [laughter] three point one four (approximately) per cent", "3.14%"),
    ("en", "She'd been   there, gonna honour 1,000 café's", "she had been there going to honor 1000 cafe is"),
    ("en", "I've two and a half million euros and five cents", "i have €2500000.05"),
    ("en", "", ""),
    ("de", "Die nächstgrößere Straße, (ähm) ist 3,5 km lang!", "die nächstgrößere straße ist 3 5 km lang"),
    ("fr", "L'été, <bruit> où êtes-vous ? Çà et là…", "l été où êtes vous çà et là"),
    ("ru", "Ёлка — 25 %", "ёлка 25"),
    ("hi", "नमस्ते दुनिया", "नमस त द न य"),
    ("ko", "안녕하세요, 여러분!", "안녕하세요 여러분"),
    (None, "MiXeD Case #1", "mixed case 1"),
    ("zh", "过去三十年，中国经济的高速发展。", "过 去 三 十 年 中 国 经 济 的 高 速 发 展"),
    ("ja", "キャンプの外れの電柱に Abc ２５", "キ ャ ン プ の 外 れ の 電 柱 に a b c 2 5"),
    ("th", "สวัสดีครับ", "ส ว ส ด ค ร บ"),
    ("km", "សួស្តី", "ស ស ត"),
    ("yue", "你好嗎？", "你 好 嗎"),
]  # fmt: skip


def entry(name: str = "set/a.wav", text: str = "", **known: object) -> Entry:
    return Entry(name=name, path=Path(name), text=text, **known)


def scored(
    said: str, heard: str, language: str | None = "en", name: str = "set/a.wav", **known: object
) -> Score:
    seconds = {"seconds": 2.0, "wall_s": 0.5}
    return score(entry(name, said, language=language, **known), EvalHypothesis(text=heard, **seconds), language)


@pytest.mark.parametrize(("language", "text", "expected"), NORMALIZED)
def test_normalizers_are_those_of_the_reference(language: str | None, text: str, expected: str) -> None:
    assert normalizer(language)(text) == expected


def test_where_letters_count() -> None:
    languages = ("en", "zh", "ja", "th", "lo", "my", "km", "yue", "ko", None)
    assert [its for its in languages if is_spaced(its)] == ["en", "ko", None]


def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., object] = builtins.__import__

    def absent(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith(("jiwer", "whisper_normalizer")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(BackendUnavailable, match=r"jiwer is not installed.*pip install 'harken\[eval\]'"):
        count_word_errors("a", "b")
    normalizer.cache_clear()
    with pytest.raises(BackendUnavailable, match=r"whisper_normalizer.* is not installed"):
        normalizer("en")


class TestTally:
    def test_words(self) -> None:
        tally = count_word_errors("a b c d", "a x c e f")
        assert tally == ErrorCounts(hits=2, substitutions=2, deletions=0, insertions=1)
        assert (tally.errors, tally.reference_length, tally.rate) == (3, 4, 0.75)

    def test_nothing_said_or_nothing_heard(self) -> None:
        assert count_word_errors("", "thank you") == ErrorCounts(insertions=2)
        assert count_character_errors("", "you") == ErrorCounts(insertions=3)
        assert count_word_errors("", "") == ErrorCounts()
        assert count_word_errors("a b", "") == ErrorCounts(deletions=2)
        assert count_word_errors("", "a").rate is None

    words = st.lists(st.sampled_from("abcd"), min_size=1, max_size=8).map(" ".join)

    @given(words, words)
    def test_errors_are_the_edit_distance(self, said: str, heard: str) -> None:
        for count, rate in ((count_word_errors, jiwer.wer), (count_character_errors, jiwer.cer)):
            assert count(said, heard).rate == pytest.approx(rate(said, heard))

    @given(words, words)
    def test_differences_spell_both_texts_and_hold_the_errors(self, said: str, heard: str) -> None:
        pieces = align_words(said, heard)
        assert " ".join(word for piece in pieces for word in piece.reference) == said
        assert " ".join(word for piece in pieces for word in piece.hypothesis) == heard
        errors = sum(max(len(its.reference), len(its.hypothesis)) for its in pieces if not its.equal)
        assert errors == count_word_errors(said, heard).errors

    def test_differences_where_nothing_is_said(self) -> None:
        assert align_words("", "thank you") == (AlignmentChunk((), ("thank", "you")),)
        assert align_words("", "") == ()


class TestInterval:
    def test_it_holds_the_rate_of_many_in_19_of_20_cases(self) -> None:
        """Coverage over 200 test sets of 60 recordings whose true rate is 20 %; binomial 1 % bounds: 0.90 to 0.985."""
        rng = np.random.default_rng(1)
        held = 0
        for errors in rng.binomial(10, 0.2, size=(200, 60)):
            low, high = confidence_interval(
                bootstrap_error_rates([ErrorCounts(hits=10 - e, substitutions=int(e)) for e in errors])
            )
            held += low <= 0.2 <= high
        assert 0.90 <= held / 200 <= 0.985

    def test_it_is_the_same_every_time(self) -> None:
        tallies = [ErrorCounts(hits=3, deletions=n) for n in range(5)]
        assert bootstrap_error_rates(tallies).shape == (RESAMPLES,)
        assert (bootstrap_error_rates(tallies) == bootstrap_error_rates(tallies)).all()

    def test_few_speakers_say_little_of_others(self) -> None:
        """Errors that go by speaker make the interval wider if speakers are drawn."""
        known = [
            scored(
                "a b c d",
                "a b c d" if speaker % 2 else "x y z d",
                name=f"s/{speaker}-{n}",
                speaker=str(speaker),
            )
            for speaker in range(6)
            for n in range(10)
        ]
        anonymous = [scored(its.entry.text, its.hypothesis.text, name=its.entry.name) for its in known]
        by_speaker, by_recording = summarise(known), summarise(anonymous)
        assert (by_speaker.resampling_unit, by_recording.resampling_unit) == ("speakers", "recordings")
        assert by_speaker.wer
        assert by_recording.wer
        assert by_speaker.wer.rate == by_recording.wer.rate == 0.375
        assert width(by_speaker) > 1.5 * width(by_recording)

    def test_fewer_than_five_speakers_are_not_drawn(self) -> None:
        assert (
            summarise(scored("a", "a", name=str(n), speaker=str(n % 4)) for n in range(20)).resampling_unit
            == "recordings"
        )


def width(evaluation: Evaluation) -> float:
    assert evaluation.wer
    assert evaluation.wer.confidence_interval
    low, high = evaluation.wer.confidence_interval
    return high - low


class TestSummary:
    def test_words_where_there_are_spaces_and_characters_everywhere(self) -> None:
        its = summarise([scored("Big house.", "big horse"), scored("你好吗", "你好", "zh", name="set/b.wav")])
        assert its.wer
        assert its.cer
        assert its.overall
        assert its.wer.error_counts == ErrorCounts(hits=1, substitutions=1)
        assert its.cer.error_counts.reference_length == len("big house") + len("你好吗")
        assert its.overall.error_counts == ErrorCounts(hits=3, substitutions=1, deletions=1)
        assert {code: rate.rate for code, rate in its.languages.items()} == {
            "en": 0.5,
            "zh": pytest.approx(1 / 3),
        }

    def test_only_characters(self) -> None:
        its = summarise([scored("你好吗", "你好", "zh")])
        assert its.wer is None
        assert its.cer
        assert its.cer.confidence_interval is None, "one recording tells nothing about others"

    def test_what_is_heard_where_nothing_is_said_is_no_word_error(self) -> None:
        its = summarise(
            [
                scored("a", "a"),
                scored("[noise]", "Thank you.", name="set/b"),
                scored("", "", None, name="set/c"),
            ]
        )
        assert its.wer
        assert its.wer.error_counts == ErrorCounts(hits=1)
        assert (its.hallucinations.recordings, its.hallucinations.affected, its.hallucinations.words) == (
            2,
            1,
            2,
        )
        assert its.hallucinations.seconds == 4.0

    def test_nothing_at_all(self) -> None:
        its = summarise([])
        assert (its.wer, its.cer, its.overall, its.languages, its.times_real_time) == (
            None,
            None,
            None,
            {},
            None,
        )

    def test_speed_is_of_those_whose_time_is_known(self) -> None:
        known, unknown = (
            scored("a", "a"),
            score(entry("set/b", "b", seconds=9.0), EvalHypothesis(text="b"), "en"),
        )
        its = summarise([known, unknown])
        assert (its.audio_s, its.wall_s, its.times_real_time) == (2.0, 0.5, 4.0)

    def test_the_worst_are_those_with_most_errors_and_never_those_without(self) -> None:
        its = summarise(
            [
                scored("a b", "a c", name="1"),
                scored("a", "", name="2"),
                scored("c d e", "", name="3"),
                scored("a", "a"),
            ]
        )
        assert [worst.entry.name for worst in its.worst(9)] == ["3", "1", "2"]
        assert [worst.entry.name for worst in its.worst(1)] == ["3"]

    def test_report(self) -> None:
        its = report(
            summarise([scored("a b", "a c"), scored("d", "d", name="set/b")]), {"model": "m"}, complete=True
        )
        assert its["by"] == {"model": "m"}
        assert its["complete"] is True
        assert its["wer"]["rate"] == pytest.approx(1 / 3)
        assert its["wer"]["low"] <= its["wer"]["rate"] <= its["wer"]["high"]
        assert [one["normalized_hypothesis"] for one in its["recordings"]] == ["a c", "d"]
        assert its["recordings"][0]["words"]["substitutions"] == 1


class TestDifference:
    def engines(self) -> tuple[Evaluation, Evaluation]:
        names = [f"set/{n}" for n in range(30)]
        worse = summarise(
            scored("a b c d", "a b x" if n % 3 else "a b c d", name=name) for n, name in enumerate(names)
        )
        better = summarise(
            scored("a b c d", "a b c" if n % 3 else "a b c d", name=name) for n, name in enumerate(names)
        )
        return worse, better

    def test_it_is_narrower_than_what_each_is_uncertain_of(self) -> None:
        worse, better = self.engines()
        its = compare_evaluations(worse, better)
        assert its
        assert its.confidence_interval
        assert its.rate == pytest.approx(1 / 6)
        low, high = its.confidence_interval
        assert 0 < low < its.rate < high
        assert high - low < width(worse)

    def test_of_an_engine_with_itself(self) -> None:
        worse, _ = self.engines()
        its = compare_evaluations(worse, worse)
        assert its
        assert (its.rate, its.confidence_interval) == (0.0, (0.0, 0.0))

    def test_of_different_recordings(self) -> None:
        with pytest.raises(OptionError, match="an evaluation of the same recordings"):
            compare_evaluations(summarise([scored("a", "a")]), summarise([scored("b", "b")]))

    def test_where_nothing_is_said(self) -> None:
        assert compare_evaluations(summarise([scored("", "a")]), summarise([scored("", "")])) is None
