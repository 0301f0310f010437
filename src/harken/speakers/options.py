"""Options of diarization."""

from __future__ import annotations

from dataclasses import dataclass

from harken.errors import OptionError
from harken.option_types import check, option

MAX_SPEAKERS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerOptions:
    """Options of diarization.

    Attributes
    ----------
    num_speakers : int or None
        Number of speakers, if it is known: the recording is divided among that many voices, or fewer where it has not
        that many pieces of speech.
    min_speakers, max_speakers : int or None
        Bounds of the number of speakers, if it is not known.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    num_speakers: int | None = option(None, low=1, high=MAX_SPEAKERS)
    min_speakers: int | None = option(None, low=1, high=MAX_SPEAKERS)
    max_speakers: int | None = option(None, low=1, high=MAX_SPEAKERS)

    def __post_init__(self) -> None:
        check(self)
        if self.num_speakers is not None and (self.min_speakers, self.max_speakers) != (None, None):
            raise OptionError("num_speakers", self.num_speakers, "None with min_speakers or max_speakers")
        if self.min_speakers and self.max_speakers and self.min_speakers > self.max_speakers:
            raise OptionError("min_speakers", self.min_speakers, f"at most max_speakers={self.max_speakers}")

    @property
    def bounds(self) -> tuple[int, int]:
        """Fewest and most speakers."""
        if self.num_speakers is not None:
            return self.num_speakers, self.num_speakers
        return self.min_speakers or 1, self.max_speakers or MAX_SPEAKERS
