"""Properties of words with timestamps that hold for every text, alignment and speech region."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harken.results import Segment, Word
from harken.text import Tokenizer
from harken.transcribe.segments import TokenSegment
from harken.transcribe.word_boundaries import MIN_WORD_S, SEGMENT_TOLERANCE_S, refine_word_boundaries
from harken.transcribe.word_timestamps import Alignment, words_by_segment

TOKENIZER = Tokenizer.builtin(51865)
POSITION_S = 0.02
TEXT_PARTS = st.sampled_from(
    [" a", " well", "-known", " fact", ",", ".", '"', " (", ")", " «", "你", "好", "。", " ", "é"]
)
TEXTS = st.lists(TEXT_PARTS, max_size=12).map("".join)


@given(
    st.lists(TEXTS, max_size=4), st.sampled_from(["en", "fr", "zh", "ja"]), st.randoms(use_true_random=False)
)
def test_words_of_a_segment_join_to_its_text_in_order(texts, language, random) -> None:
    segments = [TokenSegment(start=0, end=1, tokens=tuple(TOKENIZER.encode(text))) for text in texts]
    tokens = tuple(token for segment in segments for token in segment.tokens)
    alignment = Alignment(
        tokens=tokens,
        bounds=np.sort([random.randrange(1500) for _ in range(len(tokens) + 1)]),
        probabilities=np.array([random.random() for _ in tokens], np.float32),
    )
    words_of_segments, median_duration = words_by_segment(segments, alignment, TOKENIZER, language=language)
    assert ["".join(word.text for word in words) for words in words_of_segments] == texts
    assert 0 <= median_duration <= 35
    words = [word for segment_words in words_of_segments for word in segment_words]
    assert all(0 <= word.start <= word.end for word in words)
    assert all(word.end <= following.start for word, following in pairwise(words))
    assert all(0 <= word.probability <= 1 for word in words)


@st.composite
def rising_s(draw: st.DrawFn, count: int) -> list[float]:
    return [
        position * POSITION_S
        for position in sorted(draw(st.lists(st.integers(0, 800), min_size=count, max_size=count)))
    ]


@st.composite
def windows(draw: st.DrawFn) -> list[Segment]:
    counts = draw(st.lists(st.integers(0, 6), max_size=4))
    times = draw(rising_s(2 * sum(counts)))
    ends = iter(draw(rising_s(2 * len(counts))))
    words = iter(
        Word(start_s=start, end_s=end, text=f" {i}", probability=0.5)
        for i, (start, end) in enumerate(zip(times[::2], times[1::2], strict=True))
    )
    return [
        Segment(
            index=0,
            start_s=next(ends),
            end_s=next(ends),
            text="",
            tokens=(),
            temperature=0,
            avg_logprob=0,
            compression_ratio=1,
            no_speech_prob=0,
            seek_s=0,
            words=tuple(next(words) for _ in range(count)),
        )
        for count in counts
    ]


@st.composite
def regions(draw: st.DrawFn) -> list[tuple[float, float]]:
    times = sorted(set(draw(rising_s(2 * draw(st.integers(0, 5))))))
    return list(zip(times[::2], times[1::2], strict=False))


@given(windows(), regions(), st.integers(0, 60), st.integers(0, 100))
def test_refined_words_are_in_order_and_in_speech(segments, speech, median_positions, last) -> None:
    last_s = round(last * POSITION_S, 2)
    refined, end_s = refine_word_boundaries(
        segments, median_duration_s=median_positions * POSITION_S, last_speech_s=last_s, speech=speech
    )
    assert [[word.text for word in segment.words] for segment in refined] == [
        [word.text for word in segment.words] for segment in segments
    ]
    words = [word for segment in refined for word in segment.words]
    assert all(word.end_s <= following.start_s for word, following in pairwise(words))
    assert all(word.start_s >= last_s for word in words)
    assert end_s == (words[-1].end_s if words else segments[-1].end_s if segments else last_s)
    for segment in refined:
        if segment.words:
            assert (segment.start_s, segment.end_s) == (segment.words[0].start_s, segment.words[-1].end_s)
    original = [word for segment in segments for word in segment.words]
    near = [
        (max(start, last_s), end)
        for start, end in speech
        if original
        and end > max(last_s, original[0].start_s - SEGMENT_TOLERANCE_S)
        and start < original[-1].end_s + SEGMENT_TOLERANCE_S
    ]
    for word in words if near else []:
        assert any(start - 1e-3 <= word.start_s and word.end_s <= end + 1e-3 for start, end in near)


@given(windows(), st.integers(1, 60))
def test_refined_words_in_long_speech_have_the_shortest_duration(segments, median_positions) -> None:
    refined, _ = refine_word_boundaries(
        segments, median_duration_s=median_positions * POSITION_S, last_speech_s=0, speech=[(0, 100)]
    )
    words = [word for segment in refined for word in segment.words]
    assert all(word.end_s - word.start_s >= MIN_WORD_S - 1e-3 for word in words)


@given(windows(), regions())
def test_refining_again_changes_nothing(segments, speech) -> None:
    # A median duration so long that no word is too long for it.
    refined, _ = refine_word_boundaries(segments, median_duration_s=1e6, last_speech_s=0, speech=speech)
    again, _ = refine_word_boundaries(refined, median_duration_s=1e6, last_speech_s=0, speech=speech)
    for pair in zip(refined, again, strict=True):
        times = [[(word.start_s, word.end_s) for word in segment.words] for segment in pair]
        np.testing.assert_allclose(*times, atol=2e-3)
