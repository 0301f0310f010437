"""Speech that no word covers: found by the attention of tokens, placed in the text, and cut out of its segments."""

from __future__ import annotations

import numpy as np
import pytest

from harken.decoding import Hypothesis
from harken.transcribe.chunking import speech_in_window
from harken.transcribe.gap_filling import (
    SpeechGap,
    TokenPeak,
    divide_at,
    split_at_gaps,
    token_peaks,
    uncovered_spans,
)
from harken.transcribe.segments import TokenSegment
from tiny_models import TOKENIZER

BEGIN = TOKENIZER.timestamp_begin


def segment(start: int, text: str, end: int) -> TokenSegment:
    return TokenSegment(start=start, end=end, tokens=(BEGIN + start, *TOKENIZER.encode(text), BEGIN + end))


def peaks(*frames: int) -> list[TokenPeak]:
    return [TokenPeak(index, frame) for index, frame in enumerate(frames)]


class TestUncoveredSpans:
    def test_speech_with_a_word_every_second_is_covered(self) -> None:
        assert uncovered_spans(peaks(*range(0, 3000, 100)), [(0, 3000)], 3000) == []

    def test_jump_between_two_words_is_a_gap_between_the_silences_beside_it(self) -> None:
        speech = [(0, 480), (510, 1190), (1220, 2000)]
        assert uncovered_spans(peaks(*range(0, 500, 50), *range(1225, 2000, 50)), speech, 2000) == [(510, 1190)]

    def test_gap_without_a_silence_beside_it_leaves_a_little_to_the_words(self) -> None:
        assert uncovered_spans(peaks(100, 500), [(0, 600)], 600) == [(125, 475)]

    def test_text_that_ends_early_or_begins_late_leaves_a_gap(self) -> None:
        assert uncovered_spans(peaks(40), [(0, 80), (120, 400)], 400) == [(120, 400)]
        assert uncovered_spans(peaks(340), [(30, 250), (300, 400)], 400) == [(30, 250)]

    def test_less_than_a_second_of_speech_is_no_gap(self) -> None:
        assert uncovered_spans(peaks(0), [(50, 149)], 1000) == []
        assert uncovered_spans(peaks(0), [(60, 110), (800, 850)], 1000) == [(60, 850)]

    def test_silence_and_what_the_next_window_decodes_are_no_gaps(self) -> None:
        assert uncovered_spans(peaks(100), [(0, 140)], 3000) == []
        assert uncovered_spans(peaks(100), [(0, 3000)], 160) == []

    def test_gaps_do_not_overlap_whatever_the_peaks_are(self) -> None:
        rng = np.random.default_rng(0)
        for _ in range(200):
            bounds = sorted({*rng.integers(0, 3000, 12).tolist()})
            speech = list(zip(bounds[::2], bounds[1::2], strict=False))
            found = uncovered_spans(
                peaks(*rng.integers(0, 3000, 9).tolist()), speech, int(rng.integers(500, 3000))
            )
            flat = [frame for span in found for frame in span]
            assert flat == sorted(flat)
            assert all(start < end for start, end in found)


def test_speech_is_mapped_into_the_spans_of_a_packed_window() -> None:
    assert speech_in_window(((100, 200), (500, 600)), [(50, 120), (150, 550), (590, 700)]) == [
        (0, 20),
        (50, 100),
        (100, 150),
        (190, 200),
    ]


def test_punctuation_and_timestamps_have_no_peak() -> None:
    tokens = segment(0, "hi, ho", 9).tokens
    attention = np.zeros((2, len(tokens), 12), np.float32)
    attention[:, range(len(tokens)), range(1, len(tokens) + 1)] = 1
    hypothesis = Hypothesis(tokens=tokens, logprobs=(0.0,) * len(tokens), attention=attention)
    found = token_peaks(hypothesis, range(len(tokens)), TOKENIZER, 12)
    assert [(chr(tokens[peak.token_index]), peak.frame) for peak in found] == [
        ("h", 4),
        ("i", 6),
        ("h", 12),
        ("o", 14),
    ]
    assert token_peaks(hypothesis, (), TOKENIZER, 12) == []


class TestPlaceInTheText:
    ONE, TWO = segment(0, "one two.", 200), segment(400, " three", 500)

    def place(self, *peaks_: tuple[int, int]) -> int:
        found = [TokenPeak(*peak) for peak in peaks_]
        (gap,) = divide_at([(210, 390)], found, [self.ONE, self.TWO], TOKENIZER, "en")
        return gap.next_token

    def test_gap_between_two_segments_divides_neither(self) -> None:
        assert self.place((1, 10), (5, 150), (12, 420)) == len(self.ONE.tokens)

    def test_gap_in_a_segment_divides_it_at_a_word(self) -> None:
        assert self.place((1, 10), (3, 50), (5, 400), (12, 420)) == 4  # at " two"


class TestSplitSegments:
    def test_divided_segment_ends_before_the_gap_and_goes_on_behind_it(self) -> None:
        whole = segment(0, "one two", 500)
        before, behind = split_at_gaps([whole], [SpeechGap(100, 900, 4)], 1000)
        assert before == [(0, TokenSegment(start=0, end=50, tokens=whole.tokens[:4]))]
        assert behind == [(0, TokenSegment(start=450, end=500, tokens=whole.tokens[4:]))]

    @pytest.mark.parametrize("place", [0, 5, 10])
    def test_tokens_stay_in_order_and_none_is_lost(self, place: int) -> None:
        segments = [segment(0, "one", 50), segment(60, "two", 90)]
        groups = split_at_gaps(segments, [SpeechGap(20, 40, place), SpeechGap(50, 60, place)], 180)
        tokens = [token for group in groups for _, part in group for token in part.tokens]
        assert tokens == [*segments[0].tokens, *segments[1].tokens]
        assert not groups[1]

    def test_segment_that_reaches_into_the_gap_is_shortened(self) -> None:
        (first,), (second,) = split_at_gaps(
            [segment(0, "a", 300), segment(300, "b", 400)], [SpeechGap(100, 700, 3)], 800
        )
        assert (first[1].end, second[1].start) == (50, 350)
