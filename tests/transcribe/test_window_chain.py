"""Chains of windows: the context that they pass on, their starts, the times of their segments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, WindowText, window_text
from fakes.speech_detector import LoudIsSpeech, noise_and_silence
from harken.contract import Floats
from harken.results import Segment
from harken.transcribe import Callbacks, TranscribeOptions, window_chain, window_segments
from harken.transcribe.hallucination import HallucinationFeatures, HallucinationVerdict
from single_recording import SingleRecordingTranscriber
from tiny_models import DIMS, TOKENIZER

START = TOKENIZER.sot_sequence("en")
HELLO, WORLD, AGAIN = (window_text(0, text, WINDOW_POSITIONS) for text in ("hello", "world", "again"))
LIMIT = DIMS.n_text_ctx // 2
SHORT_PAUSES = {"vad_min_silence_s": 0.1, "vad_speech_pad_s": 0.0, "vad_min_speech_s": 0.0}
THREE = noise_and_silence(0, 0.5, 0.4, 31, 0.4, 31, 0.4, 1)
"""Three words far apart: each is packed into a window of its own."""


def work(
    backend: TranscriptBackend, samples: Floats, callbacks: Callbacks | None = None, **options: Any
) -> SingleRecordingTranscriber:
    made = TranscribeOptions(
        **{"language": "en", "best_of": 1, "hallucination_threshold": None, **SHORT_PAUSES, **options}
    )
    return SingleRecordingTranscriber(
        backend,
        TOKENIZER,
        iter([samples]),
        made,
        callbacks or Callbacks(),
        speech_detector=LoudIsSpeech,
    )


def spans(segments: Iterator[Segment]) -> list[tuple[float, float, str]]:
    return [(segment.start_s, segment.end_s, segment.text) for segment in segments]


def previous(prompts: Sequence[tuple[int, ...]]) -> list[str]:
    """Return the previous text of each window."""
    assert all(prompt[-len(START) :] == START for prompt in prompts)
    return [TOKENIZER.decode(prompt[: -len(START)]) for prompt in prompts]


class TestPackedSpeech:
    def test_times_are_mapped_back_over_the_silence_left_out(self) -> None:
        samples = noise_and_silence(0, 1.024, 0.128, 5.12, 0.256, 1)  # in whole chunks
        form = work(TranscriptBackend(window_text(0, "one", 6, 6, "two", 12)), samples)
        regions = [(1.02, 1.15), (6.27, 6.52)]
        found = spans(form.segments())
        assert form.speech == tuple(regions)
        assert found == [(1.02, 1.14, "one"), (1.14, 6.38, "two")]

    def test_unfinished_segment_at_the_end_of_packed_speech_is_kept(self) -> None:
        form = work(TranscriptBackend(window_text(0, "one", 6, 7, "two")), noise_and_silence(0.4, 1))
        assert [segment.text for segment in form.segments()] == ["one", "two"]

    def test_text_goes_on_where_a_segment_opens_before_the_end_of_the_speech(self) -> None:
        backend = TranscriptBackend(window_text(0, "one", 6, 7))
        segments = [*work(backend, noise_and_silence(0.4, 1)).segments()]
        assert len(backend.mels) == 1, "the rest is no window of its own"
        assert segments[0].text == "one"
        assert segments[-1].end_s == pytest.approx(0.4, abs=0.02)

    def test_text_may_end_where_no_speech_is_left(self) -> None:
        backend = TranscriptBackend(window_text(0, "one", 15, 15), window_text(0, "two", 5))
        segments = work(backend, noise_and_silence(0.4, 1), vad_min_speech_s=0.15).segments()
        assert [segment.text for segment in segments] == ["one", "two"]

    def test_text_that_ran_out_of_tokens_continues_in_another_window(self) -> None:
        endless = window_text(0, "one", 6, 7, "x" * 2 * LIMIT)
        backend = TranscriptBackend(endless, window_text(0, "two", 14))
        form = work(backend, noise_and_silence(0.4, 1))
        assert spans(form.segments()) == [(0, 0.12, "one"), (0.12, 0.4, "two")]
        assert len(backend.mels) == 2

    def test_silent_window_of_packed_speech_gives_no_segment(self) -> None:
        silent = WindowText(tokens=HELLO.tokens, gap=1.0, no_speech=0.9)
        form = work(
            TranscriptBackend(HELLO, silent, silent, WORLD), THREE, fidelity="exact", temperatures=(0.0,)
        )
        assert [segment.text for segment in form.segments()] == ["hello"]


class TestContext:
    def prompts(self, **options: Any) -> list[str]:
        backend = TranscriptBackend(HELLO, WORLD, AGAIN)
        list(work(backend, THREE, **options).segments())
        assert len(backend.prompts) == 3
        return previous(backend.prompts)

    @pytest.mark.parametrize(
        ("conditioned", "carried", "told"),
        [
            (True, False, [" Ann", " Annhello", " Annhelloworld"]),
            (False, False, [" Ann", "", ""]),
            (True, True, [" Ann", " Annhello", " Annhelloworld"]),
            (False, True, [" Ann", " Ann", " Ann"]),
        ],
    )
    def test_initial_prompt_with_and_without_conditioning(
        self, conditioned: bool, carried: bool, told: list[str]
    ) -> None:
        options = {"condition_on_previous_text": conditioned, "carry_initial_prompt": carried}
        assert self.prompts(initial_prompt="Ann", **options) == told

    def test_prefix_is_forced_in_the_first_window_only(self) -> None:
        backend = TranscriptBackend(HELLO, WORLD, AGAIN)
        form = work(backend, THREE, prefix="So", condition_on_previous_text=False, logprob_threshold=None)
        texts = [segment.text for segment in form.segments()]
        assert texts[0].startswith(" So")
        assert texts[1:] == ["world", "again"]

    def test_hallucinated_segments_are_dropped_and_not_passed_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def score_hallucination(facts: HallucinationFeatures) -> HallucinationVerdict:
            return HallucinationVerdict(score=0.9 if facts.text == "world" else 0.1, reason=None)

        monkeypatch.setattr(window_segments, "score_hallucination", score_hallucination)
        backend = TranscriptBackend(HELLO, WORLD, AGAIN)
        form = work(backend, THREE, hallucination_threshold=0.9, condition_on_previous_text=True)
        kept = list(form.segments())
        assert [(segment.index, segment.text, segment.hallucination_score) for segment in kept] == [
            (0, "hello", 0.1),
            (1, "again", 0.1),
        ]
        assert [(dropped.segment.index, dropped.segment.text, dropped.reason) for dropped in form.dropped] == [
            (1, "world", "score 0.90")
        ]
        assert previous(backend.prompts) == ["", "hello", "hello"]


class TestWords:
    def test_words_joined_are_the_text_of_the_segment(self) -> None:
        backend = TranscriptBackend(window_text(0, " one two", 9, 9, " three", 20))
        for options in ({"vad": False}, {"vad": True}):
            for fidelity in ("exact", "fast"):
                form = work(
                    backend, noise_and_silence(0.4, 1), word_timestamps=True, fidelity=fidelity, **options
                )
                for segment in form.segments():
                    assert "".join(word.text for word in segment.words) == segment.text
                    assert segment.start_s == segment.words[0].start_s
                    assert segment.end_s == segment.words[-1].end_s

    @pytest.mark.parametrize(
        ("last_s", "advance_s"),
        [(0.3, 0.3), (0.304, 0.3), (0.006, 0.01), (0.004, WINDOW_S), (0.0, WINDOW_S)],
    )
    def test_next_window_starts_after_the_last_word_and_never_where_this_one_did(
        self, monkeypatch: pytest.MonkeyPatch, last_s: float, advance_s: float
    ) -> None:
        def refine_word_boundaries(segments: Sequence[Segment], **_: Any) -> tuple[list[Segment], float]:
            segment = segments[0]
            (word,) = segment.words
            end_s = segment.seek_s + last_s
            return [replace(segment, words=(replace(word, start_s=segment.seek_s, end_s=end_s),))], end_s

        monkeypatch.setattr(window_chain, "refine_word_boundaries", refine_word_boundaries)
        seeks: list[float] = []

        def window(start_s: float, _: Any) -> None:
            assert len(seeks) < 300, "it does not get on"
            seeks.append(start_s)

        unfinished = window_text(0, " one")
        form = work(
            TranscriptBackend(unfinished),
            noise_and_silence(2 * WINDOW_S),
            Callbacks(on_window_start=window),
            vad=False,
            word_timestamps=True,
        )
        list(form.segments())
        assert seeks[1] == pytest.approx(advance_s)

    def test_window_that_ends_with_a_single_timestamp_is_finished(self) -> None:
        seeks: list[float] = []
        form = work(
            TranscriptBackend(window_text(0, " one", 9)),
            noise_and_silence(2 * WINDOW_S),
            Callbacks(on_window_start=lambda start_s, _: seeks.append(start_s)),
            vad=False,
            word_timestamps=True,
        )
        list(form.segments())
        assert seeks == [0, WINDOW_S]


def test_windows_of_a_chain_have_one_language_when_chains_are_decoded_together() -> None:
    backend = TranscriptBackend(window_text(0, " one", 6, 6), window_text(0, " two", 9), HELLO)
    form = work(
        backend, noise_and_silence(0.4, 31, 0.4, 1), multilingual=True, condition_on_previous_text=False
    )
    first, second, _ = (segment.language for segment in form.segments())
    assert first == second
