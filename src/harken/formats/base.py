"""What every form of a transcript can do."""

from __future__ import annotations

from typing import Protocol

from harken.results import Segment, Transcript


class TranscriptFormat(Protocol):
    """One transcript on its way into one form; every call gives the next piece of text."""

    def header(self) -> str:
        """What comes before the first segment."""
        ...

    def segment(self, segment: Segment) -> str:
        """What the next segment adds; it may be held back until a later call."""
        ...

    def footer(self, transcript: Transcript) -> str:
        """What comes after the last segment."""
        ...
