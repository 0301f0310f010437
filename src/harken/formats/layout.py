"""Layout options of the output formats, from which the command line derives its flags."""

from __future__ import annotations

from dataclasses import dataclass

from harken.errors import OptionError
from harken.option_types import check, option


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Options for line breaks and word times; the defaults leave segments unchanged.

    A segment without words is always written as a whole.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    max_line_width: int | None = option(
        None, "Characters a line of srt, vtt, ass and lrc; a longer one is broken between words.", low=1
    )
    max_line_count: int | None = option(
        None, "Lines a cue; together with the width above, cues are filled without regard to segments.", low=1
    )
    max_words_per_line: int | None = option(
        None, "Words a cue; without effect on cues that are filled without regard to segments.", low=1
    )
    highlight_words: bool = option(False, "In srt and vtt underline each word while it is spoken.")
    karaoke: bool = option(False, "In vtt, lrc and ass put the time of every word inside its line.")
    embed_audio: bool = option(False, "Put the recording into the html page, instead of a link to it.")
    speakers: bool = option(
        False, "Prepare tsv, words.tsv and ass for speakers, which segments alone tell too late."
    )

    def __post_init__(self) -> None:
        check(self)
        if self.highlight_words and self.karaoke:
            raise OptionError("karaoke", True, "False together with highlight_words=True")

    @property
    def breaks_lines(self) -> bool:
        """True if cues are made of words, not of segments."""
        return (self.max_line_width, self.max_line_count, self.max_words_per_line) != (None, None, None)

    @property
    def needs_words(self) -> bool:
        """True if segments need words."""
        return self.breaks_lines or self.highlight_words or self.karaoke
