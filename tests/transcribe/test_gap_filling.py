"""Speech that no word of a window covers: found, decoded again on its own, put in, or reported."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.backends import TranscriptBackend, window_text
from fakes.speech_detector import LoudIsSpeech, noise_and_silence
from harken import Recognizer
from harken.decoding import Hypothesis
from harken.streaming.worker import FinalRequest, final_pass
from harken.transcribe import TranscribeOptions, WindowDecoder, gap_filling
from harken.transcribe.chunking import speech_in_window
from harken.transcribe.gap_filling import TokenPeak, token_peaks, uncovered_spans
from tiny_models import TOKENIZER

OPTIONS = {
    "language": "en",
    "best_of": 1,
    "hallucination_threshold": None,
    "vad_min_silence_s": 0.1,
    "vad_speech_pad_s": 0.0,
    "vad_min_speech_s": 0.0,
    "suppress_blank": False,
    "suppress_tokens": (),
}
SPEECH = noise_and_silence(0.4, 0.6)
JUMP = window_text(0, " one", 4, 16, " two", 20, attended=(0, *[2] * 4, 4, 16, *[18] * 4, 20))
"""Its words attend to 0.04 s and to 0.36 s."""
STRETCHED = window_text(0, " one two", 20, attended=(0, *[2] * 4, *[18] * 4, 20))
MIDDLE = window_text(0, " and", 14, attended=(0, 3, 6, 8, 10, 12))
UNSURE = window_text(0, " hm", 10, gap=1.0)
SILENCE = window_text(0, " hm", 5, gap=1.0, no_speech=0.9)


@pytest.fixture
def small_numbers(monkeypatch):
    """A window of the tiny model is half a second long."""
    monkeypatch.setattr(gap_filling, "MIN_SPEECH_FRAMES", 10)
    monkeypatch.setattr(gap_filling, "WORD_REACH_FRAMES", 4)
    monkeypatch.setattr(gap_filling, "NEIGHBOUR_FRAMES", 2)


def transcribe(*windows, samples=SPEECH, **options):
    backend = TranscriptBackend(*windows)
    made = TranscribeOptions(**{**OPTIONS, **options})
    return Recognizer(backend, TOKENIZER, "fake", speech_detector=LoudIsSpeech).transcribe(
        samples, made
    ).result(), backend


def peaks(frames):
    return [TokenPeak(index, frame) for index, frame in enumerate(frames)]


@pytest.mark.parametrize(
    ("words", "speech", "end", "gaps"),
    [
        (range(0, 3000, 100), [(0, 3000)], 3000, []),  # a word every second
        # A jump between two words, with silences beside it.
        ([450, 1225, 1300], [(410, 480), (510, 1190), (1220, 1300)], 1300, [(510, 1190)]),
        ([100, 500], [(0, 600)], 600, [(125, 475)]),  # without a silence a little is left to the words
        ([40], [(0, 80), (120, 400)], 400, [(120, 400)]),  # the text ends early,
        ([340], [(30, 250), (300, 400)], 400, [(30, 250)]),  # or begins late
        ([0], [(50, 149)], 1000, []),  # less than a second
        ([0], [(60, 110), (800, 850)], 1000, [(60, 850)]),
        ([100], [(0, 140)], 3000, []),  # silence
        ([100], [(0, 3000)], 160, []),  # the next window decodes it
    ],
)
def test_gaps_are_speech_far_from_any_word(words, speech, end, gaps):
    assert uncovered_spans(peaks(words), speech, end) == gaps


frames = st.integers(0, 3000)


@given(words=st.lists(frames, max_size=9), edges=st.sets(frames, max_size=12), end=st.integers(500, 3000))
def test_gaps_do_not_overlap(words, edges, end):
    bounds = sorted(edges)
    speech = list(zip(bounds[::2], bounds[1::2], strict=False))
    found = uncovered_spans(peaks(words), speech, end)
    flat = [frame for span in found for frame in span]
    assert flat == sorted(flat)
    assert all(first < last for first, last in found)


def test_punctuation_and_timestamps_have_no_peak():
    begin = TOKENIZER.timestamp_begin
    tokens = (begin, *TOKENIZER.encode("hi, ho"), begin + 9)
    attention = np.zeros((2, len(tokens), 12), np.float32)
    attention[:, range(len(tokens)), range(1, len(tokens) + 1)] = 1
    hypothesis = Hypothesis(tokens=tokens, logprobs=(0.0,) * len(tokens), attention=attention)
    found = [(peak.token_index, peak.frame) for peak in token_peaks(hypothesis, range(8), TOKENIZER, 12)]
    assert found == [(1, 4), (2, 6), (5, 12), (6, 14)]
    assert token_peaks(hypothesis, (), TOKENIZER, 12) == []


def test_speech_is_mapped_into_the_spans_of_a_packed_window():
    speech = [(50, 120), (150, 550), (590, 700)]
    mapped = [(0, 20), (50, 100), (100, 150), (190, 200)]
    assert speech_in_window(((100, 200), (500, 600)), speech) == mapped


@pytest.mark.usefixtures("small_numbers")
class TestFilling:
    @pytest.mark.parametrize("first", [JUMP, STRETCHED], ids=["between segments", "in a stretched segment"])
    def test_speech_without_words_is_decoded_and_put_between_the_words(self, first):
        transcript, backend = transcribe(first, MIDDLE)
        found = [(each.index, each.start_s, each.end_s, each.text) for each in transcript.segments]
        assert found == [(0, 0.0, 0.06, " one"), (1, 0.06, 0.34, " and"), (2, 0.34, 0.4, " two")]
        assert transcript.unwritten == ()
        assert len(backend.mels) == 2

    @pytest.mark.parametrize(
        ("attended", "text"),
        [
            ((0, 2, 2, 18, 18, *[19] * 4, 20), "and one two"),  # a letter of "one" at the beginning
            ((0, *[1] * 4, 19, 10, 19, 19, 20), "one and two"),  # a letter of "two" in the middle
            ((0, *[1] * 4, 1, 1, 1, 18, 20), "one two and"),  # a letter of "two" at the end
        ],
    )
    def test_speech_beside_a_gap_belongs_to_it_where_no_text_is_on_that_side(self, attended, text):
        filler = window_text(0, " and", 20, attended=(0, 2, 6, 10, 14, 20))
        transcript, backend = transcribe(window_text(0, " one two", 20, attended=attended), filler)
        assert (transcript.text, len(backend.mels)) == (text, 2)
        times = [time for each in transcript.segments for time in (each.start_s, each.end_s)]
        assert (times[0], times[-1], times[1:-1:2]) == (0, pytest.approx(0.4, abs=0.02), times[2::2])

    def test_text_that_ends_early_is_continued_and_gaps_in_it_are_decoded_but_none_in_those(self):
        early = window_text(0, " one", 4, attended=(0, *[2] * 4, 4))
        rest = window_text(0, " and on", 17, attended=(0, *range(3, 17, 2), 17))
        begin = window_text(0, " a", 2, attended=(0, 1, 1, 2))
        for windows, text, n_decoded in (
            *(((early, rest), "one and on", 2), ((JUMP, begin, MIDDLE), "one a and two", 3)),
            ((JUMP, begin, begin, MIDDLE), "one a a two", 3),
        ):
            transcript, backend = transcribe(*windows)
            assert (transcript.text, len(backend.mels)) == (text, n_decoded)

    def test_gap_is_decoded_before_the_next_window_and_its_text_is_passed_on(self):
        samples = noise_and_silence(0.4, 0.6, 0.4, 1)
        last = window_text(0, " end", 20, attended=(0, *range(2, 18, 4), 20))
        transcript, backend = transcribe(JUMP, MIDDLE, last, samples=samples, condition_on_previous_text=True)
        assert transcript.text == "one and two end"
        assert TOKENIZER.decode([t for t in backend.prompts[-1] if t < TOKENIZER.eot]) == " one and two"

    def test_times_beside_a_gap_are_in_the_order_of_the_text_whatever_its_words_attend_to(self):
        attended = (0, *[6] * 4, 8, 8, *[2] * 4, 10, 10, *[18] * 4, 20)
        crossed = window_text(0, " one", 8, 8, " two", 10, 10, " end", 20, attended=attended)
        transcript, _ = transcribe(crossed, MIDDLE)
        times = [time for each in transcript.segments for time in (each.start_s, each.end_s)]
        assert len(transcript.segments) == 4
        assert times == sorted(times)

    def test_words_stay_on_their_side_of_the_gap(self):
        transcript, _ = transcribe(JUMP, MIDDLE, word_timestamps=True)
        words = [word for segment in transcript.segments for word in segment.words]
        assert [word.text for word in words] == [" one", " and", " two"]
        assert [word.start_s for word in words] == sorted(word.start_s for word in words)
        assert words[0].end_s <= 0.06 <= words[1].start_s
        assert words[1].end_s <= 0.34 <= words[2].start_s

    @pytest.mark.parametrize(
        ("first", "options"),
        [
            (window_text(0, " one two", 20, attended=(0, *range(2, 18, 2), 20)), {}),  # covered by words
            (JUMP, {"fill_gaps": False}),
            (JUMP, {"vad": False}),
        ],
    )
    def test_what_is_covered_or_not_asked_for_is_not_decoded_again(self, first, options):
        transcript, backend = transcribe(first, MIDDLE, samples=SPEECH[:6400], **options)
        assert (transcript.text, transcript.unwritten) == ("one two", ())
        assert len(backend.mels) == 1

    @pytest.mark.parametrize(("first", "text"), [(STRETCHED, "one two"), (JUMP, "one and two")])
    def test_translation_is_about_the_time_of_its_segments_whatever_it_attends_to(self, first, text):
        transcript, _ = transcribe(first, MIDDLE, task="translate", language="de")
        assert (transcript.text, transcript.unwritten) == (text, ())

    def test_exact_finals_of_a_live_stream_are_filled_too(self):
        backend, options = TranscriptBackend(JUMP, MIDDLE), TranscribeOptions(**OPTIONS)
        decoder = WindowDecoder(backend, TOKENIZER, options, speech_detector=LoudIsSpeech)
        (response,) = final_pass(decoder, [FinalRequest(samples=SPEECH[:6400], start_s=7.0)])
        assert [(segment.start_s, segment.text) for segment in response.segments] == [
            (7.0, " one"), (7.06, " and"), (7.34, " two")
        ]  # fmt: skip


@pytest.mark.usefixtures("small_numbers")
class TestReporting:
    @pytest.mark.parametrize(
        ("gap", "reason"),
        [
            (UNSURE, "average log-probability"),
            (window_text(0, "\n", 5), "no words"),
            (SILENCE, "no-speech probability 0.90"),
        ],
    )
    def test_gap_that_stays_without_words_is_reported_after_one_attempt(self, gap, reason):
        transcript, backend = transcribe(JUMP, gap, beam_size=1)
        assert transcript.text == "one two"
        (missing,) = transcript.unwritten
        assert (missing.start_s, missing.end_s) == (0.06, 0.34)
        assert missing.reason.startswith(reason)
        assert len(backend.prompts) == 2

    def test_no_time_beside_a_gap_without_words_reaches_into_it(self):
        beside = window_text(0, " one", 12, 12, " two", 20, attended=(0, *[2] * 4, 12, 12, *[18] * 4, 20))
        inside = window_text(0, " one", 4, 4, " two", 9, attended=(0, *[2] * 4, 4, 4, *[18] * 4, 9))
        for first in (JUMP, beside, inside):
            transcript, _ = transcribe(first, UNSURE, word_timestamps=True)
            plain, _ = transcribe(first, UNSURE)
            assert [time for each in plain.segments for time in (each.start_s, each.end_s)] == [
                *(0.0, 0.06),
                *(0.34, 0.4),
            ]
            one, two = (word for segment in transcript.segments for word in segment.words)
            assert one.end_s <= 0.06
            assert two.start_s >= 0.34
        stretched, _ = transcribe(STRETCHED, UNSURE)
        assert [segment.text for segment in stretched.segments] == [" one two"]

    def test_no_word_stands_in_speech_reported_as_without_words(self):
        for first in (STRETCHED, JUMP):
            transcript, _ = transcribe(first, UNSURE, word_timestamps=True)
            for word in (word for segment in transcript.segments for word in segment.words):
                assert not any(
                    word.start_s < each.end_s and each.start_s < word.end_s for each in transcript.unwritten
                )

    @pytest.mark.parametrize("speech_s", [0.4, 0.06])  # the second is too short for a gap beside words
    def test_window_taken_for_silence_is_reported_and_not_decoded_again(self, speech_s):
        samples = noise_and_silence(speech_s, 0.6)
        transcript, backend = transcribe(SILENCE, samples=samples, fidelity="exact", temperatures=(0.0,))
        (missing,) = transcript.unwritten
        assert missing.start_s == 0
        assert missing.end_s == pytest.approx(speech_s, abs=0.03)
        assert len(backend.mels) == 1

    @pytest.mark.parametrize(
        ("end", "attended", "n_dropped"),
        [
            (4, 20, 0),  # the model has closed the segment in the quiet before the speech
            (4, 2, 1),
            (25, 2, 1),
            (25, 0, 0),  # that is where attention rests, and not where the word is
        ],
    )
    def test_text_is_judged_by_where_its_words_attend(self, end, attended, n_dropped):
        early = window_text(0, " one", end, attended=(0, *[attended] * 4, 4))
        samples = np.concatenate([np.zeros(4800, np.float32), noise_and_silence(0.2)])
        options = {"vad_speech_pad_s": 0.3, "vad_min_silence_s": 0.6, "hallucination_threshold": 0.1}
        transcript, _ = transcribe(early, samples=samples, fill_gaps=False, **options)
        assert len(transcript.dropped) == n_dropped

    def test_a_segment_closed_before_its_words_lasts_as_long_as_these(self):
        closed = window_text(0, " one", 1, 12, " two", 20, attended=(0, 2, 4, 6, 8, 1, 12, *[18] * 4, 20))
        transcript, _ = transcribe(closed, fill_gaps=False, hallucination_threshold=1.0)
        assert [segment.start_s for segment in transcript.segments] == [0, pytest.approx(0.24)]
        assert [segment.end_s for segment in transcript.segments] == pytest.approx([0.24, 0.4])

    @pytest.mark.parametrize("word_timestamps", [False, True])
    def test_dropped_text_is_reported_as_dropped_only_with_all_the_speech_it_covers(self, word_timestamps):
        options = {"hallucination_threshold": 1e-6, "word_timestamps": word_timestamps}
        transcript, backend = transcribe(window_text(0, " one", 20, attended=(0, *[2] * 4, 20)), **options)
        (dropped,) = transcript.dropped
        assert (dropped.segment.start_s, dropped.segment.end_s) == (0, pytest.approx(0.4))
        assert (transcript.unwritten, len(backend.mels)) == ((), 1)
