"""A chain of windows: where each begins, what it knows of the ones before, and the segments of its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harken.results import Segment, UnwrittenSpeech
from harken.transcribe.gap_filling import GapFilling, beside_words
from harken.transcribe.language_id import LanguageProbabilities
from harken.transcribe.options import Callbacks
from harken.transcribe.window_decoder import (
    AudioWindow,
    DecodeRequest,
    EncodedWindow,
    WindowResult,
)
from harken.transcribe.window_segments import (
    SegmentMaker,
    WindowText,
    shift_timestamps,
    single_timestamp_ending,
)
from harken.transcribe.word_boundaries import refine_word_boundaries
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, TIMESTAMP_STEP_S

# No text ends that early in a window. Words invented for music get such times; windows that began behind them would
# repeat the words for every few hundredths of a second.
_LEAST_ADVANCE_FRAMES = FRAMES_PER_SECOND // 10

MOST_REST_FRAMES = FRAMES_PER_SECOND // 2
"""Most speech behind the last timestamp that needs no words, as segments often end a little before their last word; of
a shorter word on its own, half of it."""

LONGEST_MATCH, SHORTEST_MATCH = 8, 3
"""Tokens that have to be the same for a place in the text to be found, most and fewest."""
MOST_SKIPPED = 8
"""Tokens at the end of a window that may differ from the text."""
LEAST_SLACK = 100
"""Tokens that may be missing from the text, or stand in it without being spoken, between two windows."""


@dataclass(slots=True)
class ChainContext:
    """State that a window takes over from the windows before it.

    Attributes
    ----------
    previous_tokens : tuple of int
        Text tokens before the window, for its prompt.
    last_speech_s : float
        End of the last word, in seconds of the recording.
    """

    previous_tokens: tuple[int, ...] = ()
    last_speech_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageState:
    """The language of a window, and what decides on the language of the next one.

    Attributes
    ----------
    code : str
    probability : float or None
        Probability of a language that was detected.
    posterior : mapping
        From `harken.transcribe.language_id.next_posterior`, of a recording whose language may change.
    """

    code: str
    probability: float | None
    posterior: LanguageProbabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOutcome:
    """Everything that the result of a window changes in its chain, which can take it without decoding, too.

    Attributes
    ----------
    chain, offset : int
        Index of its chain, and its place in it.
    language : LanguageState
    segments : tuple of (Segment, str or None)
        Segments of the window, each with the reason if it was taken for a hallucination.
    next_offset : int
        Frame of the chain's source at which the next window begins.
    previous_tokens : tuple of int
    last_speech_s : float
        The context of the next window, as in `ChainContext`.
    draft_tokens : tuple of int
        Tokens expected in the next window.
    unwritten : tuple of UnwrittenSpeech
        Speech of the window that has no words.
    """

    chain: int
    offset: int
    language: LanguageState
    segments: tuple[tuple[Segment, str | None], ...]
    next_offset: int
    previous_tokens: tuple[int, ...]
    last_speech_s: float
    draft_tokens: tuple[int, ...]
    unwritten: tuple[UnwrittenSpeech, ...] = ()


class KnownText:
    """A text that a recording is expected to have, as a source of drafts, and how far it has been spoken.

    It may be a script, an old transcript, subtitles, or what a stream has written of an utterance.

    Parameters
    ----------
    tokens : sequence of int
        Text tokens.
    context : int
        Most tokens of a window.
    """

    def __init__(self, tokens: Sequence[int], context: int) -> None:
        self._tokens, self._context, self._spoken = tuple(tokens), context, 0

    def ahead(self) -> tuple[int, ...]:
        """Return what is expected to be spoken next, of some windows that are decoded together."""
        return self._tokens[self._spoken : self._spoken + 2 * self._context]

    def advance(self, spoken: Sequence[int]) -> None:
        """Go on behind the text tokens of a window: to where the text has its last ones, else as far as it is long."""
        expected = self._spoken + len(spoken)
        for length in range(LONGEST_MATCH, SHORTEST_MATCH - 1, -1):
            for skipped in range(min(MOST_SKIPPED, len(spoken) - length) + 1):
                end = len(spoken) - skipped
                ngram = tuple(spoken[end - length : end])
                slack = LEAST_SLACK + len(spoken)
                starts = range(max(0, expected - slack), min(len(self._tokens), expected + slack))
                if matches := [start for start in starts if self._tokens[start : start + length] == ngram]:
                    found = min(matches, key=lambda start: abs(start + length + skipped - expected))
                    self._spoken = found + length + skipped
                    return
        self._spoken = min(expected, len(self._tokens))


class WindowChain:
    """A chain of windows: each begins where the text of the one before it ended.

    Speech of a window that no word covers is decoded again, as windows of its own, before the next one.

    Its windows are read from the frame source of the maker of its segments. A known text is of the whole recording.

    Attributes
    ----------
    index : int
        Its place in the recording, from 0.
    offset : int
        Frame of the source at which the next window begins.
    language : LanguageState or None
        Language of the next window, once it is known.
    ended : bool
        True if it has no more windows.
    decoded_until_s : float
        End of the part that has been decoded, in seconds of the recording.
    """

    def __init__(
        self,
        maker: SegmentMaker,
        context: ChainContext,
        *,
        index: int,
        known_text: KnownText | None = None,
    ) -> None:
        self._maker, self._context = maker, context
        self._frame_source, self._options = maker.frame_source, maker.decoder.options
        self.index, self._known_text = index, known_text
        self._draft_tokens: tuple[int, ...] = ()
        self.offset, self._content_frames = 0, 0
        self._filling: GapFilling | None = None
        self._outcomes: list[WindowOutcome] = []
        self.language: LanguageState | None = None
        self.ended = False
        self.decoded_until_s = 0.0

    def next_window(self) -> AudioWindow | None:
        """Read the next window, or the next gap in the text of the last one, if there is one.

        Raises
        ------
        AudioError
            If the recording cannot be read on.
        """
        start, end = (self._filling and self._filling.next_span) or (self.offset, None)
        mel, self._content_frames = self._frame_source.window(start, end)
        if not self._content_frames:
            self.ended = True
            return None
        text_end = self._text_end(start, self._content_frames)
        return AudioWindow(
            mel=mel,
            content_frames=self._content_frames,
            seek=self._seek(start),
            is_first=not self.index and not start and not self._filling,
            is_gap=bool(self._filling),
            speech_end=None if text_end is None else self._maker.timestamp_begin + text_end,
        )

    def request(self, encoded: EncodedWindow, language: str, callbacks: Callbacks) -> DecodeRequest:
        """Return the request to decode the window that was read last."""
        expected = self._known_text.ahead() if self._known_text else self._draft_tokens
        return DecodeRequest(
            encoded=encoded,
            language=language,
            prompt=self._maker.decoder.build_prompt(language, self._context.previous_tokens),
            draft_tokens=() if self._filling else expected,
            callbacks=callbacks,
        )

    def add_result(self, result: WindowResult) -> WindowOutcome | None:
        """Make segments of a result, and go on behind them.

        Returns
        -------
        WindowOutcome or None
            None if speech of the window is to be decoded again first.
        """
        if self._filling:
            self._filling.add_result(result, self._content_frames)
        else:
            window = self._maker.read(result, self.offset, self._content_frames)
            self._filling = GapFilling(self._maker, window)
        if self._filling.next_span:
            return None
        filling, self._filling = self._filling, None
        outcome = self._make_outcome(filling)
        self.take(outcome)
        return outcome

    def take(self, outcome: WindowOutcome) -> None:
        """Take the outcome of the window that was read last, and go on behind it."""
        self._outcomes.append(outcome)
        self.language = outcome.language
        self._context.previous_tokens = outcome.previous_tokens
        self._context.last_speech_s = outcome.last_speech_s
        self._draft_tokens = outcome.draft_tokens
        if self._known_text:
            first = self._maker.timestamp_begin
            self._known_text.advance(
                [t for segment, _ in outcome.segments for t in segment.tokens if t < first]
            )
        self.offset = outcome.next_offset
        self.decoded_until_s = self._frame_source.end_s(self.offset)

    def pop_outcomes(self) -> list[WindowOutcome]:
        """Return the outcomes since the last call."""
        popped, self._outcomes = self._outcomes, []
        return popped

    def _make_outcome(self, filling: GapFilling) -> WindowOutcome:
        """Return the outcome of a window and its gaps."""
        assert self.language, "the language is resolved with the request"
        window = filling.window
        previous_tokens, last_speech_s = self._context.previous_tokens, self._context.last_speech_s
        segments: list[tuple[Segment, str | None]] = []
        draft_tokens: tuple[int, ...] = ()
        if window.scored:
            scored_segments, median_duration = filling.segments()
            refined = [segment for _, segment in scored_segments]
            if self._options.word_timestamps:
                refined, last_speech_s = refine_word_boundaries(
                    refined,
                    median_duration_s=None if median_duration is None else median_duration * TIMESTAMP_STEP_S,
                    last_speech_s=last_speech_s,
                    speech=self._word_regions_s(window),
                )
                window = replace(window, advance=self._advance_behind_words(window, refined))
            # What is left out is reported with all the speech that it covers, for which nothing else is sought.
            segments = [
                (segment if scored.drop_reason is None else _spanning(segment, made), scored.drop_reason)
                for (scored, made), segment in zip(scored_segments, refined, strict=True)
                if scored.is_segment
            ]
            decoded = window.result.decoded
            previous_tokens = self._text_before_next(decoded.temperature, segments)
            draft_tokens = shift_timestamps(
                decoded.hypothesis.tokens[window.scored[-1].behind :],
                self._maker.timestamp_begin,
                round(window.advance),
            )
        advance_frames = window.end_frame
        text_end = self._text_end(window.offset, window.n_frames)
        if text_end is not None and advance_frames >= text_end * FRAMES_PER_POSITION:
            advance_frames = window.n_frames
        return WindowOutcome(
            chain=self.index,
            offset=window.offset,
            language=self.language,
            segments=tuple(segments),
            next_offset=self.offset + advance_frames,
            previous_tokens=previous_tokens,
            last_speech_s=last_speech_s,
            draft_tokens=draft_tokens,
            unwritten=tuple(beside_words(filling.unwritten, [segment for segment, _ in segments])),
        )

    def _text_before_next(
        self, temperature: float, segments: Sequence[tuple[Segment, str | None]]
    ) -> tuple[int, ...]:
        """Return the text tokens before the next window; none if they are to be forgotten."""
        options = self._options
        if temperature > options.prompt_reset_temperature or not options.condition_on_previous_text:
            return ()
        kept = [token for segment, reason in segments if reason is None for token in segment.tokens]
        most = self._maker.decoder.backend.dims.n_text_ctx  # a prompt takes no more
        return (*self._context.previous_tokens, *kept)[-most:]

    def _advance_behind_words(self, window: WindowText, segments: Sequence[Segment]) -> float:
        """Return the position at which the next window begins: behind the last word, unless that ends its window.

        Source: openai/whisper, transcribe.py.
        """
        tokens, timestamp_begin = window.result.decoded.hypothesis.tokens, self._maker.timestamp_begin
        last_word_s = next((segment.words[-1].end_s for segment in reversed(segments) if segment.words), None)
        ends = self._frame_source.self_contained or single_timestamp_ending(tokens, timestamp_begin)
        if last_word_s is None or ends:
            return window.advance
        last_word_frame = last_word_s * FRAMES_PER_SECOND - self._seek(window.offset)
        if round(last_word_frame) < _LEAST_ADVANCE_FRAMES:
            return window.advance
        return last_word_frame / FRAMES_PER_POSITION

    def _text_end(self, offset: int, n_frames: int) -> int | None:
        """Return the position up to which a window has to be written; None if speech may go on behind the window."""
        if not self._frame_source.self_contained:
            return None
        speech = self._maker.speech(offset, n_frames)
        if not speech:
            return 0
        start, end = speech[-1]
        # Voice activity detection would ignore the least speech on its own.
        least = round(self._options.vad_min_speech_s * FRAMES_PER_SECOND)
        return (end - max(least, min(MOST_REST_FRAMES, (end - start) // 2))) // FRAMES_PER_POSITION

    def _seek(self, offset: int) -> int:
        """Return the frame of the recording at which a window begins."""
        return round(self._frame_source.start_s(offset) * FRAMES_PER_SECOND)

    def _word_regions_s(self, window: WindowText) -> list[tuple[float, float]]:
        """Return speech in the window in seconds, without the silences between words; none without its detection.

        Speech goes on behind the end of a clip, but no word of the window does.
        """
        if self._maker.segmenter is None:
            return []
        start = self._seek(window.offset)
        end = round(self._frame_source.end_s(window.offset + window.n_frames) * FRAMES_PER_SECOND)
        return [
            (max(first, start) / FRAMES_PER_SECOND, min(last, end) / FRAMES_PER_SECOND)
            for first, last in self._maker.segmenter.word_regions(start, end)
            if first < end and last > start
        ]


def _spanning(segment: Segment, other: Segment) -> Segment:
    """Return a segment that also spans the time of another."""
    start_s, end_s = min(segment.start_s, other.start_s), max(segment.end_s, other.end_s)
    return replace(segment, start_s=start_s, end_s=end_s)
