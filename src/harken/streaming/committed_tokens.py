"""The tokens of an utterance with their times, and how many of a hypothesis can be committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from harken.contract import Ints
from harken.decoding.candidate_generator import common_prefix_length
from harken.decoding.partial_window import TOKEN_POSITIONS
from harken.streaming.config import StreamingConfig
from harken.types import FRAMES_PER_POSITION


def stable_prefix_length(
    tokens: Sequence[int],
    attended_positions: Ints,
    word_lengths: Sequence[int],
    previous_hypotheses: Sequence[Sequence[int]],
    heard_positions: int,
    config: StreamingConfig,
) -> int:
    """Return the number of tokens of a hypothesis that can be committed.

    These are whole words on which this and the previous `local_agreement - 1` hypotheses agree, all of them with at
    least `commit_delay_frames` of audio behind the word. A word ends where the next one begins, or half a second after
    its last token if there is a pause.

    Parameters
    ----------
    tokens : sequence of int
        Tokens after the committed ones.
    attended_positions : ndarray of shape (len(tokens) + 1,), int64
        Encoder position that each token attends to most, and that of the token after them, in rising order.
    word_lengths : sequence of int
        Number of tokens of each word.
    previous_hypotheses : sequence of sequence of int
        Earlier hypotheses, after the same committed tokens, the latest first.
    heard_positions : int
        Number of positions that hold audio, or silence that was left out.
    config : StreamingConfig
    """
    if len(previous_hypotheses) < config.local_agreement - 1:
        return 0
    agreed = min(
        [
            len(tokens),
            *(
                common_prefix_length(tokens, hypothesis)
                for hypothesis in previous_hypotheses[: config.local_agreement - 1]
            ),
        ]
    )
    frames_behind = config.commit_delay_frames + (config.local_agreement - 1) * config.hop_frames
    last_stable_position = heard_positions - frames_behind // FRAMES_PER_POSITION
    ends = [end for end in accumulate(word_lengths) if end <= agreed]
    return max(
        (
            end
            for end in ends
            if token_end(attended_positions[end - 1], attended_positions[end]) <= last_stable_position
        ),
        default=0,
    )


def token_end(position: int, next_position: int) -> int:
    """Return the end of a token, from the positions that it and the next token attend to."""
    return min(next_position, position + TOKEN_POSITIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedToken:
    """A token with its time in an utterance.

    Parameters
    ----------
    token : int
    logprob : float
    start_position, end_position : int
        Encoder positions of the utterance: the one that the token attends to most, and its end.
    """

    token: int
    logprob: float
    start_position: int
    end_position: int

    def rebased(self, origin_position: int) -> TimedToken:
        """Return the token for an utterance that begins `origin_position` positions later."""
        return replace(
            self,
            start_position=self.start_position - origin_position,
            end_position=self.end_position - origin_position,
        )

    def clipped(self, max_position: int) -> TimedToken:
        """Return the token for an utterance that ends at `max_position`."""
        return replace(
            self,
            start_position=min(self.start_position, max_position),
            end_position=min(self.end_position, max_position),
        )
