"""What can be chosen about a live session. Faces derive their flags from these fields."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from harken.errors import OptionError
from harken.transcribe.options import option

DELAYS = ("minimal", "low", "medium", "high")
FINALS = ("exact", "streamed")

_live_option = partial(option, "Live")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of a live session, beside those of a transcription.

    Raises
    ------
    OptionError
        If a value is outside what is allowed.
    """

    delay: str = _live_option(
        "low", "minimal, low, medium, high; or how many milliseconds a word may take to be committed."
    )
    finals: str = _live_option(
        "exact",
        "exact hears each utterance once more as a whole, and gives what a transcription of it would; streamed "
        "keeps what was committed word by word.",
    )
    adaptive: bool = _live_option(
        True, "Hear with shorter windows where it is quiet, with longer ones where it is noisy."
    )
    window_frames: int | None = _live_option(
        None, "Frames of 10 ms that attend to each other, instead of what the delay says."
    )
    hop_frames: int | None = _live_option(
        None, "Frames from one update to the next, instead of what the delay says."
    )
    history_frames: int | None = _live_option(
        None, "Frames that a window looks back at, instead of what the delay says."
    )
    commit_delay_frames: int | None = _live_option(
        None, "Frames of sound behind a word before it is committed, instead of what the delay says."
    )
    local_agreement: int | None = _live_option(
        None, "Hypotheses in a row that have to agree on a word, instead of what the delay says."
    )
    sentence_pause_s: float = _live_option(
        0.8, "Silence that ends an utterance behind the end of a sentence, in seconds."
    )
    pause_s: float = _live_option(1.5, "Silence that ends an utterance anywhere, in seconds.")

    def __post_init__(self) -> None:
        if self.delay not in DELAYS and not (self.delay.isdecimal() and 0 < int(self.delay) <= 60_000):
            raise OptionError("delay", self.delay, f"{', '.join(DELAYS)}, or milliseconds from 1 to 60000")
        if self.finals not in FINALS:
            raise OptionError("finals", self.finals, " or ".join(FINALS))
        if not 0.1 <= self.sentence_pause_s <= self.pause_s <= 10:
            allowed = "0.1 s to pause_s, which is at most 10 s"
            raise OptionError("sentence_pause_s", self.sentence_pause_s, allowed)
