"""Segments and words of decoded tokens: splitting at timestamps, alignment, punctuation, boundaries, known texts."""

import json
import re
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import harken
import transcripts
from harken.cli.inputs import read_draft
from harken.decoding.speculation import SpeculativeDecoder
from harken.errors import AudioError
from harken.results import Word
from harken.text import Tokenizer
from harken.transcribe.forced_alignment import split_text
from harken.transcribe.window_chain import KnownText
from harken.transcribe.window_segments import split_at_timestamps
from harken.transcribe.word_boundaries import MIN_WORD_S, SEGMENT_TOLERANCE_S, refine_word_boundaries
from harken.transcribe.word_timestamps import Alignment, token_spans, token_starts, words_by_segment
from harken.types import WordHead
from real_models import EXAMPLE, recognizer

MULTILINGUAL = Tokenizer.builtin(51865)

# --- segments, against a copy of the reference's loop -------------------------------------------------------

BEGIN = 100


def reference_segments(tokens, size):
    """Return segments and seek as whisper/transcribe.py does, from `timestamp_tokens` to the word timestamps."""
    segments = []
    is_timestamp = [token >= BEGIN for token in tokens]
    single_timestamp_ending = is_timestamp[-2:] == [False, True]
    slices = [i + 1 for i in range(len(tokens) - 1) if is_timestamp[i] and is_timestamp[i + 1]]
    if not slices:
        timestamps = [token for token in tokens if token >= BEGIN]
        duration = timestamps[-1] - BEGIN if timestamps and timestamps[-1] != BEGIN else size
        return [(0, duration, list(tokens))], size
    slices += [len(tokens)] * single_timestamp_ending
    last_slice = 0
    for current_slice in slices:
        sliced = list(tokens[last_slice:current_slice])
        segments.append((sliced[0] - BEGIN, sliced[-1] - BEGIN, sliced))
        last_slice = current_slice
    return segments, size if single_timestamp_ending else tokens[last_slice - 1] - BEGIN


times = st.integers(BEGIN, BEGIN + 1500)
any_tokens = st.lists(st.integers(0, BEGIN + 1500) | times, max_size=12)


@st.composite
def legal(draw):
    """Draw tokens that the timestamp rules allow: pairs that never decrease, the last of them perhaps unfinished."""
    drawn, tokens = sorted(draw(st.lists(times, min_size=2, max_size=10))), []
    for start, end in zip(drawn[::2], drawn[1::2], strict=False):
        tokens += [start, *draw(st.lists(st.integers(0, BEGIN - 1), min_size=1, max_size=4)), end]
    ending = draw(st.sampled_from(["closed", "pair", "unfinished", "open"]))
    tokens += {"pair": [tokens[-1]], "unfinished": [tokens[-1], 5]}.get(ending, [])
    return tokens[:-1] if ending == "open" else tokens


@given(tokens=any_tokens | legal(), size=st.integers(1, 3000).map(lambda frames: frames / 2))
@example(tokens=[BEGIN, BEGIN], size=0.5)
def test_segments_are_those_of_the_reference(tokens, size):
    segments, advance = split_at_timestamps(tokens, BEGIN, size)
    expected, seek = reference_segments(tokens, size)
    assert [(segment.start, segment.end, list(segment.tokens)) for segment in segments] == expected
    # Where the reference would decode the same window for ever, this one is done.
    assert advance == (seek or size)
    assert advance > 0


# --- alignment ----------------------------------------------------------------------------------------------


def reference_token_starts(attention):
    """Return the token starts by the full table (openai/whisper, timing.py, dtw_cpu and backtrace)."""
    n_tokens, n_positions = attention.shape
    total = np.full((n_tokens + 1, n_positions + 1), np.inf)
    total[0, 0] = 0
    for i in range(n_tokens):
        for j in range(n_positions):
            total[i + 1, j + 1] = min(total[i, j], total[i, j + 1], total[i + 1, j]) - attention[i, j]
    path = [(n_tokens, n_positions)]
    while path[-1] != (1, 1):
        i, j = path[-1]
        path.append(min([(i - 1, j - 1), (i - 1, j), (i, j - 1)], key=lambda at: total[at]))
    return [min(j for i, j in path if i == token + 1) - 1 for token in range(n_tokens)]


@given(st.integers(1, 9), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_path_is_that_of_the_full_table(n_tokens, n_positions, seed):
    attention = np.random.default_rng(seed).standard_normal((n_tokens, n_positions)).astype(np.float32)
    assert token_starts(attention).tolist() == reference_token_starts(attention)


@pytest.mark.parametrize("lag", [-2, 0, 3])
def test_tokens_begin_and_end_where_word_heads_attend_to(lag):
    """One head attends behind each start, one to each end; the first attends elsewhere once, against the order."""
    spans = [(4, 9), (9, 14), (30, 37)]
    weights = np.zeros((2, 4, 50), np.float32)
    for token, (start, end) in enumerate(spans):
        weights[0, token, start + lag] = 0.9 if token != 1 else 0.3
        weights[1, token + 1, end] = 0.8
    weights[0, 1, 45] = 0.6
    starts, ends = token_spans(weights, (WordHead(0, 0, lag), WordHead(0, 1, 0, tells_end=True)))
    np.testing.assert_allclose(starts, [4, 9, 30])
    np.testing.assert_allclose(ends, [9, 14, 37])


@given(st.integers(-40, 40), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_tokens_of_any_audio_are_within_it_in_order(lag, n_positions, seed):
    weights = np.random.default_rng(seed).random((2, 4, n_positions), np.float32)
    spans = np.stack(token_spans(weights, (WordHead(0, 0, lag), WordHead(0, 1, lag, tells_end=True))), axis=1)
    assert 0 <= spans.min() <= spans.max() <= n_positions - 1
    assert np.all(np.diff(spans.ravel()) >= 0)


# --- words --------------------------------------------------------------------------------------------------


def timed(*texts, bounds=(), probabilities=(), language="en", **marks):
    """Return the words of segments, and their median duration; by default every token is one position long."""
    segments = [MULTILINGUAL.encode(text) for text in texts]
    n_tokens = sum(map(len, segments))
    positions = np.array(bounds or range(n_tokens + 1), float)
    alignment = Alignment(
        starts=positions[:-1],
        ends=positions[1:],
        precise=False,
        probabilities=np.array(probabilities or [0.5] * n_tokens, np.float32),
    )
    return words_by_segment(segments, alignment, MULTILINGUAL, language=language, **marks)


def test_punctuation_is_merged_into_its_word_as_asked_for_and_not_across_segments():
    def texts(*said, **options):
        return [[word.text for word in segment] for segment in timed(*said, **options)[0]]

    for words in (
        *([" Yes,", " we", " can."], [" (now)", " go"], [" he", " said", ' "go"', " then"], [" ¿qué?"]),
        *([" what?!"], [" - no"], [" a", " -"], [" «so»"], [" it's"], [" a", " well", "-known", " fact"]),
    ):
        assert texts("".join(words)) == [words]
    assert texts(" a, b", append_punctuations="") == [[" a", ",", " b"]]
    assert texts(" - b", prepend_punctuations="") == [[" -", " b"]]
    assert texts(" a -", " b") == [[" a", " -"], [" b"]]
    for language in ("zh", "ja", "yue", "th"):  # without spaces, words are characters
        assert texts("豚，犬。", language=language) == [["豚，", "犬。"]]


def test_long_sentence_end_mark_or_word_after_it_is_shortened_by_the_median_duration():
    """It is 2 positions; one word is stretched over a pause of 50. In it words count that have a duration."""
    for bounds, expected in (
        ([0, 2, 4, 6, 56, 58], [(".", 6, 10), (" d", 56, 58)]),
        ([0, 2, 4, 6, 7, 58], [(".", 6, 7), (" d", 54, 58)]),
    ):
        ((*_, mark, after),), _ = timed(" a b c. d", bounds=bounds, append_punctuations="")
        assert [(word.text, word.start, word.end) for word in (mark, after)] == expected
    for bounds, median in (([0, 4, 6, 20], 4), ([0, 0, 3, 6], 3), ([0, 100, 200, 300], 35), ([5] * 4, 0)):
        assert timed(" a b c", bounds=bounds)[1] == median


TEXT_PARTS = st.sampled_from([" a", " well", "-known", " (", " «", " ", *',."你好。)é'])


@given(
    st.lists(st.lists(TEXT_PARTS, max_size=12).map("".join), max_size=4),
    st.sampled_from(["en", "fr", "zh", "ja"]),
    st.randoms(use_true_random=False),
)
def test_words_of_a_segment_join_to_its_text_in_order(texts, language, random):
    n_tokens = sum(len(MULTILINGUAL.encode(text)) for text in texts)
    words_of_segments, _ = timed(
        *texts,
        language=language,
        bounds=sorted(random.randrange(1500) for _ in range(n_tokens + 1)),
        probabilities=[random.random() for _ in range(n_tokens)],
    )
    assert ["".join(word.text for word in words) for words in words_of_segments] == texts
    words = [word for segment_words in words_of_segments for word in segment_words]
    assert all(0 <= word.start <= word.end for word in words)
    assert all(word.end <= following.start for word, following in pairwise(words))
    assert all(0 <= word.probability <= 1 for word in words)


def test_word_probability_is_the_mean_of_its_tokens():
    ((first, second),), _ = timed(" a Lynde", probabilities=[0.2, 0.4, 0.8])
    assert (first.probability, second.probability) == (pytest.approx(0.2), pytest.approx(0.6))


# --- boundaries ---------------------------------------------------------------------------------------------

MEDIAN_S = 0.3


def segment(start_s, end_s, *words):
    timed = (Word(start_s=a, end_s=b, text=f" {i}", probability=0.5) for i, (a, b) in enumerate(words))
    return transcripts.segment(start_s, end_s, words=tuple(timed))


@pytest.mark.parametrize(
    ("bounds", "words", "last_s", "speech", "refined"),
    [
        # As in the reference: a first word, or two words, that are long after a pause.
        ((4.5, 6), [(3, 5), (5, 5.5)], 0.5, [], [(4.4, 5), (5, 5.5)]),
        ((6, 7), [(3, 5), (5, 7)], 0.5, [], [(5.8, 6.4), (6.4, 7)]),
        # A first word that starts much earlier than its segment. In the first case the median duration, 0.3 s,
        # before the end of the word is before the start of the segment.
        ((1.9, 3), [(1, 2), (2, 3)], 1, [], [(1.7, 2), (2, 3)]),
        ((1.6, 3), [(1, 2), (2, 3)], 1, [], [(1.6, 2), (2, 3)]),
        # A last word that ends much later than its segment.
        ((1, 2.5), [(1, 2), (2, 4)], 1, [], [(1, 2), (2, 2.5)]),
        # No word begins before the end of the last window.
        ((1, 2), [(1, 1.2), (1.2, 1.6), (1.6, 2)], 1.3, [], [(1.3, 1.32), (1.32, 1.6), (1.6, 2)]),
        ((1, 2), [(1, 1.4), (1.4, 2)], 0, [], [(1, 1.4), (1.4, 2)]),
        ((1, 2), [(1.1, 1.5)], 1.4, [(1, 1.45), (1.6, 2)], [(1.4, 1.45)]),
        # Silence is cut out: of a word stretched over the pause behind it, or begun in the pause before it,
        ((1, 4), [(1.5, 3.1)], 1, [(1, 2), (3, 4)], [(1.5, 2)]),
        ((1, 4), [(1.9, 3.4)], 1, [(1, 2), (3, 4)], [(3, 3.4)]),
        # of one in silence, which moves to the nearer speech, and of words without duration.
        ((1, 4), [(2.1, 2.4)], 1, [(1, 2), (3, 4)], [(1.98, 2)]),
        ((1, 4), [(2.6, 2.9)], 1, [(1, 2), (3, 4)], [(3, 3.02)]),
        ((1, 4), [(1.2, 1.2)], 1, [(1, 2), (3, 4)], [(1.2, 1.22)]),
        # Of words that attend to no speech only the times of their segment tell.
        ((2.4, 3.5), [(0.05, 0.05), (0.05, 0.05)], 0, [(0.78, 3.2)], [(2.4, 2.42), (2.42, 2.44)]),
        ((1, 2), [(1, 1.98), *[(2, 2)] * 3], 1, [(1, 2)], [(1, 1.94), (1.94, 1.96), (1.96, 1.98), (1.98, 2)]),
    ],
)
def test_words_are_fitted_to_their_segment_and_to_speech(bounds, words, last_s, speech, refined):
    (found,), end_s = refine_word_boundaries(
        [segment(*bounds, *words)], median_duration_s=MEDIAN_S, last_speech_s=last_s, speech=speech
    )
    assert [(word.start_s, word.end_s) for word in found.words] == refined
    assert found.end_s == end_s == refined[-1][1]


@st.composite
def rising_s(draw, count):
    return [0.02 * p for p in sorted(draw(st.lists(st.integers(0, 800), min_size=count, max_size=count)))]


@st.composite
def windows(draw):
    counts = draw(st.lists(st.integers(0, 6), max_size=4))
    times = draw(rising_s(2 * sum(counts)))
    ends = iter(draw(rising_s(2 * len(counts))))
    words = zip(times[::2], times[1::2], strict=True)
    return [segment(next(ends), next(ends), *(next(words) for _ in range(count))) for count in counts]


@st.composite
def regions(draw):
    times = sorted(set(draw(rising_s(2 * draw(st.integers(0, 5))))))
    return list(zip(times[::2], times[1::2], strict=False))


@given(windows(), regions() | st.sampled_from([[], [(0, 100)]]), st.integers(0, 60), st.integers(0, 100))
def test_refined_words_are_in_order_and_in_speech(segments, speech, median_positions, last):
    last_s = round(last * 0.02, 2)
    refined, end_s = refine_word_boundaries(
        segments, median_duration_s=median_positions * 0.02, last_speech_s=last_s, speech=speech
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
    for word in words:
        assert not near or any(start - 1e-3 <= word.start_s and word.end_s <= end + 1e-3 for start, end in near)
        has_room = speech in ([], [(0, 100)])
        assert not has_room or word.end_s - word.start_s >= MIN_WORD_S - 1e-3


# --- chunks of a known text ---------------------------------------------------------------------------------


def recognized(words):
    """Return words of their texts and times, as in " a 0-1| b 4-6"."""
    spans = (re.fullmatch(r"(.*) (.*)-(.*)", word) for word in words.split("|") if word)
    return [Word(text=span[1], start_s=float(span[2]), end_s=float(span[3]), probability=1.0) for span in spans]


@pytest.mark.parametrize(
    ("text", "words", "language", "chunks"),
    [
        # In the longest pause of the second half, or in the first one, where no later words match;
        ("A, b c! D.", " a 0-1| b 4-6| c 7-8| d 8.2-11", "en", [("A, b ", 6.5), ("c! D.", 12.0)]),
        (
            "one two three four",
            *(" one 0-1| two 2-3| tree 7-8| four 8-11", "en", [("one ", 1.5), ("two three four", 11.0)]),
        ),
        # beside what was recognized wrongly, it is next to what was recognized right.
        (
            "Call me Ishmael. Some years ago",
            *(" call 0-1| me 1-2| fish 2-7| some 8-8.5| years 8.6-9| ago 9-12", "en"),
            [("Call me Ishmael. ", 7.8), ("Some years ago", 13.0)],
        ),
        # Vowel marks and accents may be written or not.
        ("قَالَ رَبِّ", " قال 0-1| رب 8-11", "ar", [("قَالَ ", 4.5), ("رَبِّ", 12.0)]),
        ("e\u0301te\u0301 Élan", " été 0-1| élan 8-11", "fr", [("e\u0301te\u0301 ", 4.5), ("Élan", 12.0)]),
        # Marks that stand apart are no words.
        ("A — b ! c 😀 d", " a 0-1| b 4-6| c 7-8| d 8.2-11", "en", [("A — b ! ", 6.5), ("c 😀 d", 12.0)]),
        # A chunk without text lies in long silence.
        ("a b", " a 12-13| b 14-15", "en", [("", 8.0), ("a b", 16.0)]),
        ("a b c", " a 0-1| b 2-3| c 22-23", "en", [("a b ", 7.75), ("", 17.25), ("c", 24.0)]),
        ("a b", " a 0-1| b 2-3", "en", [("a b", 7.0), ("", 15.0)]),
        ("你好世界再见", "你好 0-2|世界 6-8|再见 8-12", "zh", [("你好世界", 8.0), ("再见", 13.0)]),
    ],
)
def test_text_is_split_between_words_that_were_recognized(text, words, language, chunks):
    duration_s = chunks[-1][1]
    found = list(split_text(text, recognized(words), duration_s, 10.0, lambda _: True, language=language))
    assert [(chunk.text, chunk.end_s) for chunk in found] == chunks
    assert [chunk.start_s for chunk in found] == [0.0, *(chunk.end_s for chunk in found[:-1])]


def test_text_that_does_not_match_the_recording_is_refused():
    for words in ("", " x 0-1| y 2-3", " a 1-2| x 7-9"):
        with pytest.raises(
            AudioError, match=r"does not match the text: 0 of \d words .* allowed are more than 10%"
        ):
            list(split_text("a b", recognized(words), 20.0, 10.0, lambda _: True, language="en"))


@given(
    passages=st.lists(st.tuples(st.sampled_from(["both", "speech", "text"]), st.integers(3, 60)), max_size=8),
    language=st.sampled_from(["en", "zh"]),
)
def test_words_are_looked_for_where_they_are_spoken_also_beside_passages_of_one_of_both(passages, language):
    """What the text lacks, or only the text has, may be longer than a chunk."""
    known = {"both": range(0x4E00, 0x6000), "speech": range(0x6000, 0x7000), "text": range(0x7000, 0x8000)}
    signs = {kind: iter(map(chr, codes)) for kind, codes in known.items()}
    text, words, separator = [], [], "" if language == "zh" else " "
    for kind, size in [*passages, ("both", 60)]:
        for sign in islice(signs[kind], size):
            text += [sign] if kind != "speech" else []
            words += [separator + sign + f" {len(words)}-{len(words) + 0.9}"] if kind != "text" else []
    found = split_text(
        separator.join(text),
        recognized("|".join(words)),
        len(words),
        10.0,
        lambda part: len(part) < 40,
        language=language,
    )
    spoken_s = {word.text.strip(): word.start_s for word in recognized("|".join(words))}
    for chunk in found:
        times_s = [spoken_s[sign] for sign in chunk.text.replace(" ", "") if sign in spoken_s]
        assert all(chunk.start_s <= time_s < chunk.end_s for time_s in times_s)
        assert round(chunk.end_s - chunk.start_s, 3) <= 10.0


# --- a known text as the draft ------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(20, 80), min_size=1, max_size=8),
    wrong=st.integers(0, 7),
    unspoken=st.integers(0, 60),
)
def test_the_place_in_the_text_is_found_behind_every_window(sizes, wrong, unspoken):
    """Also where the last tokens differ, and where the text has more than was spoken."""
    text = list(range(unspoken + sum(sizes) + 20))
    known, start = KnownText(text, 448), unspoken
    for size in sizes:
        spoken = [*text[start : start + size - wrong], *[-1] * wrong]
        known.advance(spoken)
        start += size
        assert known.ahead()[:20] == tuple(text[start : start + 20])


@pytest.mark.real
@pytest.mark.slow
def test_a_known_text_costs_passes_or_saves_them_and_changes_nothing():
    loaded = recognizer("int8")
    drafter = SpeculativeDecoder(lambda: 0.0)  # no time passes, so drafts always pay
    model = harken.Recognizer(loaded.backend, loaded.tokenizer, loaded.model, drafter)
    plain = model.transcribe(EXAMPLE)
    wrong = " ".join(reversed(plain.text.split()))
    by_right, by_wrong = (model.transcribe(EXAMPLE, draft=text) for text in (plain.text, wrong))
    assert by_right.text == by_wrong.text == plain.text
    assert by_right.stats.forwards < plain.stats.forwards / 2


SCRIPT = "And so my fellow Americans ask not"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("talk.txt", SCRIPT),
        ("talk.json", json.dumps({"text": SCRIPT})),
        ("talk.srt", f"1\n00:00:00,000 --> 00:00:02,000\n<i>{SCRIPT[:16]}</i>\n{SCRIPT[17:]}\n\n"),
        ("talk.vtt", f"WEBVTT\nNOTE x\n\n00:00.000 --> 00:02.000\n{SCRIPT}\n"),
    ],
)
def test_drafts_are_read_from_texts_and_subtitles(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_draft(str(tmp_path / name)).split() == SCRIPT.split()
