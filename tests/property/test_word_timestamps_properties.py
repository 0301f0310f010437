"""What must hold of words whatever was said and heard."""

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
STEP_S = 0.02
PIECES = st.sampled_from(
    [" a", " well", "-known", " fact", ",", ".", '"', " (", ")", " «", "你", "好", "。", " ", "é"]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@given(
    st.lists(TEXTS, max_size=4), st.sampled_from(["en", "fr", "zh", "ja"]), st.randoms(use_true_random=False)
)
def test_the_words_of_a_segment_are_its_text_in_order(texts, language, random) -> None:
    cuts = [TokenSegment(start=0, end=1, tokens=tuple(TOKENIZER.encode(text))) for text in texts]
    tokens = tuple(token for cut in cuts for token in cut.tokens)
    alignment = Alignment(
        tokens=tokens,
        bounds=np.sort([random.randrange(1500) for _ in range(len(tokens) + 1)]),
        probabilities=np.array([random.random() for _ in tokens], np.float32),
    )
    found, usual = words_by_segment(cuts, alignment, TOKENIZER, language=language)
    assert ["".join(word.text for word in words) for words in found] == texts
    assert 0 <= usual <= 35
    every = [word for words in found for word in words]
    assert all(0 <= word.start <= word.end for word in every)
    assert all(one.end <= other.start for one, other in pairwise(every))
    assert all(0 <= word.probability <= 1 for word in every)


@st.composite
def rising_s(draw: st.DrawFn, count: int) -> list[float]:
    return [
        step * STEP_S for step in sorted(draw(st.lists(st.integers(0, 800), min_size=count, max_size=count)))
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
def test_settled_words(segments, speech, usual, last) -> None:
    last_s = round(last * STEP_S, 2)
    found, end_s = refine_word_boundaries(
        segments, median_duration_s=usual * STEP_S, last_speech_s=last_s, speech=speech
    )
    assert [[word.text for word in its.words] for its in found] == [
        [word.text for word in its.words] for its in segments
    ]
    words = [word for its in found for word in its.words]
    assert all(one.end_s <= other.start_s for one, other in pairwise(words))
    assert all(word.start_s >= last_s for word in words)
    assert end_s == (words[-1].end_s if words else segments[-1].end_s if segments else last_s)
    for its in found:
        if its.words:
            assert (its.start_s, its.end_s) == (its.words[0].start_s, its.words[-1].end_s)
    heard = [word for its in segments for word in its.words]
    near = [
        (max(start, last_s), end)
        for start, end in speech
        if heard
        and end > max(last_s, heard[0].start_s - SEGMENT_TOLERANCE_S)
        and start < heard[-1].end_s + SEGMENT_TOLERANCE_S
    ]
    for word in words if near else []:
        assert any(start - 1e-3 <= word.start_s and word.end_s <= end + 1e-3 for start, end in near)


@given(windows(), st.integers(1, 60))
def test_words_with_room_are_never_nothing(segments, usual) -> None:
    found, _ = refine_word_boundaries(
        segments, median_duration_s=usual * STEP_S, last_speech_s=0, speech=[(0, 100)]
    )
    assert all(word.end_s - word.start_s >= MIN_WORD_S - 1e-3 for its in found for word in its.words)


@given(windows(), regions())
def test_what_is_settled_stays(segments, speech) -> None:
    # A usual duration so long that no word is too long for it.
    found, _ = refine_word_boundaries(segments, median_duration_s=1e6, last_speech_s=0, speech=speech)
    again, _ = refine_word_boundaries(found, median_duration_s=1e6, last_speech_s=0, speech=speech)
    for one, other in zip(found, again, strict=True):
        times = [[(word.start_s, word.end_s) for word in its.words] for its in (one, other)]
        np.testing.assert_allclose(*times, atol=2e-3)
