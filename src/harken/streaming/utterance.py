"""An utterance while it is spoken: what was heard of it, and what is said in it by now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import numpy as np

from harken.audio.mel import FFT_SAMPLES, LOG_MEL_FLOOR, LogMel, normalize
from harken.contract import Floats, Ints, StreamingEncoderState
from harken.decoding import PartialHypothesis
from harken.decoding.candidate_generator import common_prefix_length
from harken.streaming.config import MAX_LOCAL_AGREEMENT, StreamingConfig
from harken.text import Tokenizer
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, HOP_SAMPLES

MAX_TOKEN_POSITIONS = FRAMES_PER_SECOND // FRAMES_PER_POSITION // 2
"""Positions, half a second: what a token listens to is seldom further from its end."""


def stable_prefix_length(
    tokens: Sequence[int],
    attended_positions: Ints,
    word_lengths: Sequence[int],
    previous_hypotheses: Sequence[Sequence[int]],
    encoded_positions: int,
    config: StreamingConfig,
) -> int:
    """How many tokens of a hypothesis will not change any more.

    Whole words that end at least `hold_frames` before the end of the sound, and which the last hypotheses before this
    one have too. A word ends where the next one begins, or half a second behind its last token if there is a pause.

    Parameters
    ----------
    tokens : sequence of int
        Behind what is committed already.
    places : ndarray of shape (len(tokens) + 1,), int64
        Position that each of them listens to, and what would come next, in rising order.
    lengths : sequence of int
        How many tokens each word has.
    earlier : sequence of sequence of int
        Hypotheses before this one, behind the same committed text, the last one first.
    positions : int
        How many positions have been heard.
    setting : Setting
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
    last_stable_position = encoded_positions - config.commit_delay_frames // FRAMES_PER_POSITION
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
    """Where a token ends that listens to one position, and the one behind it to another."""
    return min(next_position, position + MAX_TOKEN_POSITIONS)


TRAILING_SILENCE_FRAMES = 100
"""Silence that is heard behind the sound so far: without it a decoder repeats itself."""
FINAL_SILENCE_FRAMES = 400
"""And behind the end of an utterance, where nothing else stops it."""
WINDOW_BUCKET_FRAMES = 100
"""To which the last window is rounded up, so that there are few shapes to compile for."""
ALIGNATT_THRESHOLD_FRAMES = 16
"""What is said in the last of the sound is not guessed at yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedToken:
    """A token that is committed.

    Parameters
    ----------
    token : int
    logprob : float
    start, end : int
        Positions of the utterance: the one that it listens to, and where it ends.
    """

    token: int
    logprob: float
    start_position: int
    end_position: int

    def rebased(self, origin_position: int) -> TimedToken:
        """The same token in an utterance that begins so many positions later."""
        return replace(
            self,
            start_position=self.start_position - origin_position,
            end_position=self.end_position - origin_position,
        )

    def clipped(self, max_position: int) -> TimedToken:
        """The same token in an utterance that ends at a position."""
        return replace(
            self,
            start_position=min(self.start_position, max_position),
            end_position=min(self.end_position, max_position),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UtteranceSplit:
    """What is said before some place of an utterance, and behind it, as an utterance that begins there counts it.

    Parameters
    ----------
    before : list of Spoken
        Tokens, tentative ones included unless they are doubted.
    committed : list of Spoken
    tentative : tuple of int
    """

    finished_tokens: list[TimedToken]
    next_committed: list[TimedToken]
    next_tentative: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncoderChunk:
    """The next window of an utterance.

    Parameters
    ----------
    mel : ndarray of shape (n_mels, frames), float32
    keep : int
        As for `harken.contract.Backend.hear`.
    positions : int
        How many positions of the whole utterance hold sound.
    margin : int
        As for `harken.decoding.Growing`.
    """

    mel: Floats
    final_frames: int
    positions: int
    frame_threshold: int


@dataclass(slots=True, eq=False, kw_only=True)
class ActiveUtterance:
    """One utterance of a stream.

    Parameters
    ----------
    encoder : Encoder
        That has heard nothing yet.
    n_mels : int
    start_frame : int
        Where it begins in the stream.
    committed : list of Spoken
        Tokens that stand; those of an utterance that was cut, in the beginning.
    tentative : tuple of int
        What is said behind them by the last hypothesis.
    language : str or None
        Code of its language, once it is known.

    Attributes
    ----------
    heard : Grown or None
        The last hypothesis.
    seen_frames : int
        How much of it the last update heard.
    doubted : bool
        Whether nothing of the last hypothesis is believed.
    """

    encoder: StreamingEncoderState
    n_mels: int
    start_frame: int
    committed: list[TimedToken] = field(default_factory=list)
    tentative: tuple[int, ...] = ()
    language: str | None = None
    hypothesis: PartialHypothesis | None = None
    encoded_frames: int = 0
    no_speech_prob: float = 0.0
    rejected: bool = False
    _previous_hypotheses: list[tuple[int, ...]] = field(default_factory=list)
    _log_mel: LogMel = field(init=False)
    _mel_frames: Floats = field(init=False)
    _received_samples: int = 0

    def __post_init__(self) -> None:
        self._log_mel = LogMel(self.n_mels)
        self._mel_frames = np.empty((self.n_mels, 0), np.float32)

    @property
    def start_sample(self) -> int:
        """Its first sample in the stream."""
        return self.start_frame * HOP_SAMPLES

    @property
    def tokens(self) -> tuple[int, ...]:
        """All that is said in it by now."""
        return (*(committed.token for committed in self.committed), *self.tentative)

    @property
    def next_sample(self) -> int:
        """Sample of the stream behind those that have been taken."""
        return self.start_sample + self._received_samples

    def next_update_sample(self, config: StreamingConfig) -> int:
        """Sample of the stream behind the last one that the next update needs.

        The convolutions see one frame behind the window, and half of that frame's FFT lies behind its centre.
        """
        frames = self.encoded_frames + config.hop_frames
        return self.start_sample + frames * HOP_SAMPLES + FFT_SAMPLES // 2

    def add_samples(self, samples: Floats) -> None:
        """Take the next samples, float32 at 16 kHz, from `wanted_sample` on."""
        self._received_samples += len(samples)
        self._mel_frames = np.concatenate([self._mel_frames, self._log_mel.feed(samples)], axis=1)

    def next_chunk(self, config: StreamingConfig) -> EncoderChunk:
        """Hear on as far as whole hops go in what has been taken."""
        hops = (self._mel_frames.shape[1] - 1 - self.encoded_frames) // config.hop_frames
        self.encoded_frames += hops * config.hop_frames
        first_frame = self.encoder.final_positions * FRAMES_PER_POSITION
        next_window_frames = self.encoded_frames + config.hop_frames - first_frame
        # While there is no history, what would be history is heard again too: beginnings need what follows them.
        max_frames = config.window_frames if first_frame else config.max_window_frames
        final_frames = next_window_frames - config.window_frames if next_window_frames > max_frames else 0
        return EncoderChunk(
            mel=self._with_silence(
                self._mel_frames[:, first_frame : self.encoded_frames + 1], TRAILING_SILENCE_FRAMES
            ),
            final_frames=min(final_frames, self.encoded_frames - first_frame)
            // FRAMES_PER_POSITION
            * FRAMES_PER_POSITION,
            positions=self.encoded_frames // FRAMES_PER_POSITION,
            frame_threshold=ALIGNATT_THRESHOLD_FRAMES // FRAMES_PER_POSITION,
        )

    def last_chunk(self, end_frame: int) -> EncoderChunk:
        """Hear the rest, up to a frame of the stream."""
        first_frame = self.encoder.final_positions * FRAMES_PER_POSITION
        self.encoded_frames = max(end_frame - self.start_frame, first_frame)
        if self._mel_frames.shape[1] < self.encoded_frames:
            self._mel_frames = np.concatenate([self._mel_frames, self._log_mel.flush()], axis=1)
        frames = self._mel_frames[:, first_frame : self.encoded_frames]
        silence_frames = FINAL_SILENCE_FRAMES + -(frames.shape[1] + FINAL_SILENCE_FRAMES) % WINDOW_BUCKET_FRAMES
        mel = self._with_silence(frames, silence_frames)
        return EncoderChunk(
            mel=mel,
            final_frames=mel.shape[1],
            positions=-(-self.encoded_frames // FRAMES_PER_POSITION),
            frame_threshold=0,
        )

    def update(self, hypothesis: PartialHypothesis, config: StreamingConfig, tokenizer: Tokenizer) -> None:
        """Take a hypothesis, and commit what will not change in it; nothing before the language is known.

        Parameters
        ----------
        grown : Grown
        setting : Setting
        tokenizer : Tokenizer
        """
        self.rejected = False
        if self.language is None:
            self._commit(hypothesis, 0)
            return
        _, words = tokenizer.split_words(hypothesis.tokens, self.language)
        word_lengths = [*map(len, words)]
        encoded_positions = self.encoded_frames // FRAMES_PER_POSITION
        self._commit(
            hypothesis,
            stable_prefix_length(
                hypothesis.tokens,
                hypothesis.attended_positions,
                word_lengths,
                self._previous_hypotheses,
                encoded_positions,
                config,
            ),
        )

    def finalize(self, hypothesis: PartialHypothesis) -> None:
        """Take the last hypothesis, and commit all of it."""
        self.rejected = False
        self._commit(hypothesis, len(hypothesis.tokens))

    def reject(self, hypothesis: PartialHypothesis) -> None:
        """Take a hypothesis of which nothing is believed yet: it is the next draft, and that is all."""
        self.rejected = True
        self._commit(hypothesis, 0)

    def _commit(self, hypothesis: PartialHypothesis, count: int) -> None:
        """Take a hypothesis, so many tokens of which are final."""
        if hypothesis.no_speech_prob is not None:
            self.no_speech_prob = hypothesis.no_speech_prob
        self.hypothesis = hypothesis
        self.committed += self._timed_tokens(hypothesis)[:count]
        self.tentative = hypothesis.tokens[count:]
        agreeing = [
            earlier[count:]
            for earlier in self._previous_hypotheses
            if earlier[:count] == hypothesis.tokens[:count]
        ]
        self._previous_hypotheses = [self.tentative, *agreeing][:MAX_LOCAL_AGREEMENT]

    def has_decoded(self, frame: int) -> bool:
        """Whether all that is said before a frame of the stream has been decoded: the margin lies behind it."""
        return frame <= self.start_frame + self.encoded_frames - ALIGNATT_THRESHOLD_FRAMES

    def split(self, frame: int, tokenizer: Tokenizer) -> UtteranceSplit:
        """Cut what is said at a frame of the stream, between words."""
        position = (frame - self.start_frame) // FRAMES_PER_POSITION
        tokens = [*self.committed, *self._tentative_tokens()]
        _, words = tokenizer.split_words([its.token for its in tokens], self.language or "en")
        word_bounds = [0, *accumulate(map(len, words))]
        # By the middle of a word: its first token may listen to the silence before it.
        split_index = next(
            (
                at
                for at, end in pairwise(word_bounds)
                if tokens[at].start_position + tokens[end - 1].end_position >= 2 * position
            ),
            len(tokens),
        )
        next_tokens = [token.rebased(position) for token in tokens[split_index:]]
        n_committed = max(0, len(self.committed) - split_index)
        return UtteranceSplit(
            finished_tokens=[] if self.rejected else [its.clipped(position) for its in tokens[:split_index]],
            next_committed=next_tokens[:n_committed],
            next_tentative=tuple(its.token for its in next_tokens[n_committed:]),
        )

    def _tentative_tokens(self) -> list[TimedToken]:
        """Tentative tokens with what is known of them."""
        if self.hypothesis is None or not self.tentative:
            return []
        return self._timed_tokens(self.hypothesis)[-len(self.tentative) :]

    def _timed_tokens(self, hypothesis: PartialHypothesis) -> list[TimedToken]:
        """Tokens of a hypothesis: none listens to what is before the committed ones, whatever it does."""
        min_position = self.committed[-1].end_position if self.committed else 0
        positions = np.maximum(hypothesis.attended_positions, min_position).tolist()
        return [
            TimedToken(
                token=token,
                logprob=logprob,
                start_position=position,
                end_position=token_end(position, next_position),
            )
            for token, logprob, position, next_position in zip(
                hypothesis.tokens, hypothesis.logprobs, positions[:-1], positions[1:], strict=True
            )
        ]

    def _with_silence(self, frames: Floats, silence_frames: int) -> Floats:
        """Frames as the encoder takes them, with silence behind them."""
        ceiling = float(np.max(self._mel_frames[:, : self.encoded_frames + 1], initial=LOG_MEL_FLOOR))
        silence = np.full((self.n_mels, silence_frames), LOG_MEL_FLOOR, np.float32)
        return normalize(np.concatenate([frames, silence], axis=1), ceiling)
