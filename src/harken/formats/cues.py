"""Segments cut into cues: what stands on the screen at once, in lines of a given width.

Source: openai/whisper, utils.py, SubtitlesWriter.iterate_result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import inf

from harken.formats.layout import Layout
from harken.formats.plain import without_blank_lines
from harken.results import Segment, Word

LONG_PAUSE_S = 3.0
"""Between the starts of two words, where cues are filled without regard to segments: the second begins a cue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """Some text and when it is shown.

    Parameters
    ----------
    start_s, end_s : float
    text : str
        With line breaks, none of them at an end or beside another.
    words : tuple of Word
        What `text` is made of, line breaks included; empty where nothing is known of its words.
    """

    start_s: float
    end_s: float
    text: str
    words: tuple[Word, ...] = ()

    def map_text(self, change: Callable[[str], str]) -> Cue:
        """The same with all of its text changed, that of its words too."""
        words = tuple(replace(word, text=change(word.text)) for word in self.words)
        return replace(self, text=change(self.text), words=words)


class CueBuilder:
    """Cuts segments into cues as they arrive.

    Parameters
    ----------
    layout : Layout
    """

    def __init__(self, layout: Layout) -> None:
        self._splits_at_words = layout.needs_words
        self._max_width = layout.max_line_width or inf
        self._max_lines = layout.max_line_count or inf
        self._max_words = layout.max_words_per_line or inf
        self._across_segments = max(self._max_width, self._max_lines) < inf
        self._words: list[Word] = []
        self._line_length = 0
        self._n_lines = 1
        self._last_start_s = 0.0

    def feed(self, segment: Segment) -> Iterator[Cue]:
        """Cues that this segment completes; none if it has no text."""
        if not segment.text.strip():
            return
        if not (self._splits_at_words and any(word.text.strip() for word in segment.words)):
            yield from self.flush()
            yield Cue(start_s=segment.start_s, end_s=segment.end_s, text=without_blank_lines(segment.text))
            return
        for index, word in enumerate(segment.words):
            if not self._across_segments and index % self._max_words == 0:
                yield from self.flush()
            yield from self._add(word)
        if not self._across_segments:
            yield from self.flush()

    def flush(self) -> Iterator[Cue]:
        """The cue that has been begun, if any."""
        words, self._words, self._line_length, self._n_lines = tuple(self._words), [], 0, 1
        if words:
            text = without_blank_lines("".join(word.text for word in words))
            yield Cue(start_s=words[0].start_s, end_s=words[-1].end_s, text=text, words=words)

    def _add(self, word: Word) -> Iterator[Cue]:
        """Put a word on the line, on a new one, or into a new cue, which completes the one before."""
        text = " ".join(word.text.splitlines())
        if self._line_length and self._line_length + len(text) > self._max_width:
            self._n_lines += 1
            self._line_length = 0
        pauses = self._across_segments and word.start_s - self._last_start_s > LONG_PAUSE_S
        if pauses or self._n_lines > self._max_lines:
            yield from self.flush()
        self._last_start_s = word.start_s
        if not self._line_length:
            text = text.lstrip()
        if text:
            breaks = bool(self._words) and not self._line_length
            self._line_length += len(text)
            self._words.append(replace(word, text=f"\n{text}" if breaks else text))
