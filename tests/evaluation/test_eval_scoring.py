"""Tests of error rates: normalizers, error counts, confidence intervals, totals, and the difference of two engines."""

from pathlib import Path
from unittest.mock import Mock

import jiwer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.evaluation.error_rate import (
    AlignmentChunk,
    ErrorCounts,
    align_words,
    bootstrap_error_rates,
    confidence_interval,
    count_character_errors,
    count_word_errors,
    difference,
    error_rate_of,
    normalizer,
)
from harken.evaluation.evaluate import Engine, HypothesisStore, evaluate_entries
from harken.evaluation.scoring import EvalHypothesis, Lost, score, summarise, worst
from harken.manifests import Entry
from harken.results import DroppedSegment, UnwrittenSpeech
from harken.transcribe import TranscribeOptions
from transcripts import segment, transcript

# Language, text, and its normalization by openai-whisper 20250625: EnglishTextNormalizer for en, BasicTextNormalizer
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


def entry(name="set/a.wav", text="", **known):
    return Entry(name=name, path=Path(name), text=text, **known)


def scored(reference, text, language="en", name="set/a.wav", **known):
    hypothesis = EvalHypothesis(text=text, seconds=2.0, wall_s=0.5)
    return score(entry(name, reference, language=language, **known), hypothesis, language)


def test_normalizers_are_those_of_the_reference():
    assert [normalizer(language)(text) for language, text, _ in NORMALIZED] == [each for *_, each in NORMALIZED]


def test_errors_are_counted_by_kind_and_those_of_empty_texts_are_insertions_or_deletions():
    counts = count_word_errors("a b c d", "a x c e f")
    assert counts == ErrorCounts(hits=2, substitutions=2, deletions=0, insertions=1)
    assert (counts.errors, counts.reference_length, counts.rate) == (3, 4, 0.75)
    assert count_word_errors("", "thank you") == ErrorCounts(insertions=2)
    assert count_character_errors("", "you") == ErrorCounts(insertions=3)
    assert count_word_errors("", "") == ErrorCounts()
    assert count_word_errors("a b", "") == ErrorCounts(deletions=2)
    assert count_word_errors("", "a").rate is None
    assert align_words("", "thank you") == (AlignmentChunk((), ("thank", "you")),)


words = st.lists(st.sampled_from("abcd"), min_size=1, max_size=8).map(" ".join)


@given(words, words)
def test_errors_are_the_edit_distance_and_the_alignment_holds_both_texts(reference, hypothesis):
    for count, rate in ((count_word_errors, jiwer.wer), (count_character_errors, jiwer.cer)):
        assert count(reference, hypothesis).rate == pytest.approx(rate(reference, hypothesis))
    chunks = align_words(reference, hypothesis)
    assert " ".join(word for chunk in chunks for word in chunk.reference) == reference
    assert " ".join(word for chunk in chunks for word in chunk.hypothesis) == hypothesis
    errors = sum(max(len(chunk.reference), len(chunk.hypothesis)) for chunk in chunks if not chunk.equal)
    assert errors == count_word_errors(reference, hypothesis).errors


def test_interval_contains_the_true_rate_in_19_of_20_test_sets():
    """Coverage over 200 test sets of 60 recordings whose true rate is 20 %; binomial 1 % bounds: 0.90 to 0.985."""
    n_containing = 0
    for errors in np.random.default_rng(1).binomial(10, 0.2, size=(200, 60)):
        counts = [ErrorCounts(hits=10 - each, substitutions=int(each)) for each in errors]
        low, high = confidence_interval(bootstrap_error_rates(counts))
        n_containing += low <= 0.2 <= high
    assert 0.90 <= n_containing / 200 <= 0.985


def test_errors_without_a_reference_count_in_the_rate_and_are_not_resampled():
    rate = error_rate_of([ErrorCounts(insertions=1), ErrorCounts(hits=1), ErrorCounts(hits=1)])
    assert (rate.rate, rate.confidence_interval) == (0.5, (0.0, 0.0))
    assert confidence_interval(np.arange(1001.0)) == pytest.approx((25, 975))


def width(evaluation):
    low, high = evaluation.wer.confidence_interval
    return high - low


def test_the_interval_is_wider_where_speakers_with_errors_of_their_own_are_resampled_if_they_are_five():
    def evaluated(speaker):
        texts = ("x y z d", "a b c d")
        return summarise(scored("a b c d", texts[n % 2], name=str(n), speaker=speaker(n)) for n in range(60))

    by_speaker, by_recording = evaluated(lambda n: str(n % 6)), evaluated(lambda n: None)
    assert (by_speaker.resampling_unit, by_recording.resampling_unit) == ("speakers", "recordings")
    assert by_speaker.wer.rate == by_recording.wer.rate == 0.375
    assert width(by_speaker) > 1.5 * width(by_recording)
    for speaker in (lambda n: str(n % 4), lambda n: str(n % 6) if n else None):
        assert evaluated(speaker).resampling_unit == "recordings"


# Language, reference, hypothesis; then errors and length of each class: deleted and inserted in runs, names, numbers.
CLASSES = [
    ("en", "So, my fellow Americans, I'm not here.", "So my fellow, I'm not here now.", (0, 8), (0, 8), (1, 1), (0, 0)),
    ("en", "He left. Then Mr Smith's wife came to NASA", "He left, then", (7, 10), (0, 10), (2, 2), (0, 0)),
    ("en", "It has twenty-one doors in 1960.", "It has 20 doors in the year of 1960", (0, 6), (3, 6), (0, 0), (1, 2)),
    ("en", "Now Will has an iPhone you will", "", (7, 7), (0, 7), (0, 0), (0, 0)),
    ("en", "THE CAT SAT", "", (3, 3), (0, 3), (0, 0), (0, 0)),
    ("fr", "C'est l'Amérique de Jean.", "c'est la merique de jean", (0, 6), (0, 6), (1, 2), (0, 0)),
    ("de", "Das ist ein Haus.", "Das ist ein", (0, 4), (0, 4), (0, 0), (0, 0)),
    ("zh", "我很好 Bob", "我", (5, 6), (0, 6), (0, 0), (0, 0)),
]  # fmt: skip


def test_lost_and_invented_passages_names_and_numbers_are_counted():
    for language, reference, hypothesis, *expected in CLASSES:
        found = scored(reference, hypothesis, language).classes
        names = ("deleted_in_runs", "inserted_in_runs", "names", "numbers")
        assert [(found[name].errors, found[name].reference_length) for name in names] == expected, reference
        assert found["language"] == ErrorCounts()  # nothing is known of that of the hypothesis


def test_speed_counts_recordings_with_known_times_and_lost_speech_is_added_up():
    unknown = score(
        entry("set/b", "b", seconds=9.0), EvalHypothesis(text="", dropped_s=1.5, unwritten_s=0.5), "en"
    )
    evaluation = summarise([scored("a", "a"), unknown, unknown])
    assert evaluation.lost == Lost(recordings=2, dropped_s=3.0, unwritten_s=1.0)
    assert (evaluation.audio_s, evaluation.wall_s, evaluation.times_real_time) == (2.0, 0.5, 4.0)


@pytest.mark.parametrize(("task", "language"), [("transcribe", "de"), ("translate", "en")])
def test_speech_that_was_dropped_or_not_written_counts_as_far_as_it_is_speech(task, language):
    done = transcript(
        speech=((1.0, 2.0), (3.0, 5.0)),
        dropped=(DroppedSegment(segment=segment(0.5, 4.0), reason="noise"),),
        unwritten=(UnwrittenSpeech(start_s=4.5, end_s=8.0, reason="noise"),),
    )
    recognizer = Mock(**{"transcribe.return_value.result.return_value": done})
    engine = Engine(lambda: recognizer, TranscribeOptions(task=task, language="de"), HypothesisStore())
    (((found,),),) = [[*evaluate_entries([entry()], [engine])]]
    assert (found.hypothesis.dropped_s, found.hypothesis.unwritten_s, found.language) == (2.0, 0.5, language)


def test_worst_recordings_have_the_most_errors_and_at_least_one():
    texts = {"1": ("a b", "a c"), "2": ("a", ""), "3": ("c d e", ""), "4": ("a", "a")}
    scores = [(scored(*each, name=name),) for name, each in texts.items()]
    assert [own.entry.name for (own,) in worst(scores)] == ["3", "1", "2"]


def test_the_interval_of_a_difference_is_narrower_than_that_of_an_engine_on_the_same_recordings():
    worse, better = (
        summarise(scored("a b c d", text if n % 3 else "a b c d", name=f"set/{n}") for n in range(30))
        for text in ("a b x", "a b c")
    )
    found = difference(worse.overall, better.overall)
    assert found.rate == pytest.approx(1 / 6)
    low, high = found.confidence_interval
    assert 0 < low < found.rate < high
    assert high - low < width(worse)
    assert difference(worse.overall, summarise([scored("b", "b")]).overall) is None
