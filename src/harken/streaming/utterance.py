"""An utterance in progress: its encoder windows, its hypotheses, the tokens that are committed, and their text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import numpy as np

from harken.audio.mel import FFT_SAMPLES, LOG_MEL_FLOOR, LogMel, normalize
from harken.contract import Floats, Ints, StreamingEncoderState
from harken.decoding import PartialHypothesis
from harken.decoding.candidate_generator import common_prefix_length
from harken.decoding.generate import compression_ratio
from harken.decoding.partial_window import TOKEN_POSITIONS
from harken.results import Segment, Word
from harken.streaming.config import MAX_LOCAL_AGREEMENT, StreamingConfig
from harken.text import Tokenizer
from harken.transcribe.hallucination import HallucinationFeatures, attention_concentration, score_hallucination
from harken.transcribe.word_timestamps import APPEND_PUNCTUATIONS, SENTENCE_END_MARKS
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, HOP_SAMPLES

TRAILING_SILENCE_FRAMES = 100
"""Silence encoded after the audio so far: without it the decoder repeats itself."""
FINAL_SILENCE_FRAMES = 400
"""Silence encoded after the end of an utterance, where no AlignAtt threshold stops the decoder."""
WINDOW_BUCKET_FRAMES = 100
"""The last window is rounded up to a multiple of this, so that few shapes are compiled."""
ALIGNATT_THRESHOLD_FRAMES = 16
"""An update stops before a token whose attention peaks within this many frames of the end of the audio."""
CLOSING_PUNCTUATION = " \n\"'”’»)]」』"
"""Characters that may follow the mark that ends a sentence."""
REPLACEMENT_CHARACTER = "�"
"""The decoded form of bytes that are not a whole character yet."""
ATTENDED_LATE = 10
"""Positions from where a word is spoken to where its tokens attend to most: 0.2 s."""


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
    n_earlier = config.local_agreement - 1
    if len(previous_hypotheses) < n_earlier:
        return 0
    lengths = (common_prefix_length(tokens, earlier) for earlier in previous_hypotheses[:n_earlier])
    agreed = min([len(tokens), *lengths])
    frames_behind = config.commit_delay_frames + n_earlier * config.hop_frames
    last_stable_position = heard_positions - frames_behind // FRAMES_PER_POSITION
    stable = 0
    for end in accumulate(word_lengths):
        if end > agreed:
            break
        if token_end(attended_positions[end - 1], attended_positions[end]) <= last_stable_position:
            stable = end
    return stable


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

    def moved(self, time: Callable[[int], int]) -> TimedToken:
        """Return the token at other times, each given the one that it has."""
        return replace(self, start_position=time(self.start_position), end_position=time(self.end_position))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncoderChunk:
    """The input of the encoder for the next window of an utterance.

    Parameters
    ----------
    mel : ndarray of shape (n_mels, frames), float32
    final_frames : int
        As for `harken.contract.Backend.encode_chunk`.
    positions : int
        Number of positions of the whole utterance that hold audio.
    frame_threshold : int
        As for `harken.decoding.PartialWindow`.
    """

    mel: Floats
    final_frames: int
    positions: int
    frame_threshold: int


@dataclass(slots=True, eq=False, kw_only=True)
class ActiveUtterance:
    """The current utterance of a stream.

    Parameters
    ----------
    encoder : StreamingEncoderState
        A new one.
    n_mels : int
    start_frame : int
        First mel frame of the utterance in the stream.
    committed : list of TimedToken
        Committed tokens; in the beginning those that a split has handed over.
    tentative : tuple of int
        Tokens of the last hypothesis after them.
    language : str or None
        Code of its language, once it is known.

    Attributes
    ----------
    hypothesis : PartialHypothesis or None
        The last hypothesis.
    encoded_frames : int
        Frames of the utterance that the last update encoded as audio.
    no_speech_prob : float
        From the last hypothesis that has one.
    rejected : bool
        True if the last hypothesis was rejected as a hallucination.
    skipped_frames : int
        Frames of silence behind them that no update has encoded yet.
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
    skipped_frames: int = 0
    _previous_hypotheses: list[tuple[int, ...]] = field(default_factory=list)
    _log_mel: LogMel = field(init=False)
    _mel_frames: Floats = field(init=False)
    _received_samples: int = 0

    def __post_init__(self) -> None:
        self._log_mel = LogMel(self.n_mels)
        self._mel_frames = np.empty((self.n_mels, 0), np.float32)

    @property
    def start_sample(self) -> int:
        """First sample of the utterance in the stream."""
        return self.start_frame * HOP_SAMPLES

    @property
    def tokens(self) -> tuple[int, ...]:
        """Committed and tentative tokens."""
        return (*(token.token for token in self.committed), *self.tentative)

    @property
    def next_sample(self) -> int:
        """Sample of the stream after those received so far."""
        return self.start_sample + self._received_samples

    @property
    def heard_frames(self) -> int:
        """Frames of the utterance that its text is about: the encoded ones, and silence behind them."""
        return self.encoded_frames + self.skipped_frames

    def next_update_sample(self, config: StreamingConfig) -> int:
        """Return the sample of the stream after the last one that the next update needs.

        The convolutions read one frame after the window, and half of that frame's FFT lies after its centre.
        """
        frames = self.heard_frames + config.hop_frames
        return self.start_sample + frames * HOP_SAMPLES + FFT_SAMPLES // 2

    def add_samples(self, samples: Floats) -> None:
        """Take the next samples, float32 at 16 kHz, from `next_sample` on."""
        self._received_samples += len(samples)
        self._mel_frames = np.concatenate([self._mel_frames, self._log_mel.feed(samples)], axis=1)

    def next_chunk(self, config: StreamingConfig) -> EncoderChunk:
        """Return the next window: as many whole hops as the samples received so far allow."""
        self.skipped_frames = 0
        hops = (self._mel_frames.shape[1] - 1 - self.encoded_frames) // config.hop_frames
        self.encoded_frames += hops * config.hop_frames
        first_frame = self.encoder.final_positions * FRAMES_PER_POSITION
        next_window_frames = self.encoded_frames + config.hop_frames - first_frame
        # While there is no history, the window covers what will be history: beginnings need right context.
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
        """Return the last window, up to a frame of the stream."""
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

    def is_complete(self, silence_start_frame: int | None) -> bool:
        """Return true if the last update has heard all speech before a silence, and its text ended by itself.

        Parameters
        ----------
        silence_start_frame : int or None
            First frame of the stream from which on there is silence; None if there is speech.
        """
        if silence_start_frame is None or self.hypothesis is None or self.rejected or self.language is None:
            return False
        return self.hypothesis.reached_eot and self.has_decoded(silence_start_frame)

    def can_skip(self, config: StreamingConfig, silence_start_frame: int | None) -> bool:
        """Return true if the next update would hear nothing but silence, and can be made up for by a later one."""
        if not self.is_complete(silence_start_frame):
            return False
        later_frames = self.heard_frames + 2 * config.hop_frames
        first_frame = self.encoder.final_positions * FRAMES_PER_POSITION
        return later_frames - first_frame <= config.max_window_frames

    def skip_update(self, config: StreamingConfig, tokenizer: Tokenizer) -> None:
        """Let a hop of silence pass: the last hypothesis holds, and more of it can be committed."""
        self.skipped_frames += config.hop_frames
        self.update(self.uncommitted, config, tokenizer)

    def update(self, hypothesis: PartialHypothesis, config: StreamingConfig, tokenizer: Tokenizer) -> None:
        """Take a hypothesis and commit its stable prefix; nothing before the language is known."""
        stable = 0
        if self.language is not None:
            _, words = tokenizer.split_words(hypothesis.tokens, self.language)
            stable = stable_prefix_length(
                hypothesis.tokens,
                hypothesis.attended_positions,
                [*map(len, words)],
                self._previous_hypotheses,
                self.heard_frames // FRAMES_PER_POSITION,
                config,
            )
        self._commit(hypothesis, stable)

    def finalize(self, hypothesis: PartialHypothesis) -> None:
        """Take the last hypothesis and commit all of it."""
        self._commit(hypothesis, len(hypothesis.tokens))

    def reject(self, hypothesis: PartialHypothesis) -> None:
        """Take a hypothesis that is probably a hallucination: it only serves as the next draft."""
        self._commit(hypothesis, 0, rejected=True)

    @property
    def uncommitted(self) -> PartialHypothesis:
        """The last hypothesis behind what is committed by now."""
        assert self.hypothesis, "there has been an update"
        return self.hypothesis.from_token(len(self.hypothesis.tokens) - len(self.tentative))

    def _commit(self, hypothesis: PartialHypothesis, count: int, *, rejected: bool = False) -> None:
        """Take a hypothesis and commit its first `count` tokens."""
        self.rejected = rejected
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
        """Return true if all speech before a frame of the stream is decoded: updates stop only after it."""
        return frame <= self.start_frame + self.encoded_frames - ALIGNATT_THRESHOLD_FRAMES

    def split(self, frame: int, following: ActiveUtterance, tokenizer: Tokenizer) -> list[TimedToken]:
        """Split the tokens at a frame of the stream, between words, and hand those behind it to another utterance.

        Returns
        -------
        list of TimedToken
            Those before it, tentative ones included; none if the last hypothesis was rejected.
        """
        position = (frame - self.start_frame) // FRAMES_PER_POSITION
        next_position = (following.start_frame - self.start_frame) // FRAMES_PER_POSITION
        tokens = [*self.committed, *self._tentative_tokens()]
        _, words = tokenizer.split_words([token.token for token in tokens], self.language or "en")
        word_bounds = [0, *accumulate(map(len, words))]
        # By the middle of a word: its first token may attend to the silence before it.
        split_index = next(
            (
                start
                for start, end in pairwise(word_bounds)
                if tokens[start].start_position + tokens[end - 1].end_position >= 2 * position
            ),
            len(tokens),
        )
        following.language = self.language
        following.committed = [
            token.moved(lambda time: max(0, time - next_position)) for token in self.committed[split_index:]
        ]
        following.tentative = self.tokens[max(split_index, len(self.committed)) :]
        before = [] if self.rejected else tokens[:split_index]
        return [token.moved(lambda time: min(time, position)) for token in before]

    def _tentative_tokens(self) -> list[TimedToken]:
        """Return the tentative tokens with their times."""
        if self.hypothesis is None or not self.tentative:
            return []
        return self._timed_tokens(self.hypothesis)[-len(self.tentative) :]

    def _timed_tokens(self, hypothesis: PartialHypothesis) -> list[TimedToken]:
        """Return the tokens of a hypothesis with their times, none of them before the last committed token."""
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
        """Return normalized frames for the encoder, followed by silence."""
        ceiling = float(np.max(self._mel_frames[:, : self.encoded_frames + 1], initial=LOG_MEL_FLOOR))
        silence = np.full((self.n_mels, silence_frames), LOG_MEL_FLOOR, np.float32)
        return normalize(np.concatenate([frames, silence], axis=1), ceiling)


def display_text(utterance: ActiveUtterance, tokenizer: Tokenizer) -> tuple[str, str]:
    """Return the committed text of an utterance and the tentative text after it."""
    committed = _text(utterance.committed, tokenizer).rstrip(REPLACEMENT_CHARACTER)
    whole = tokenizer.decode(utterance.tokens).rstrip(REPLACEMENT_CHARACTER)
    tentative = whole[len(committed) :]
    return (committed.lstrip(), tentative) if committed else ("", tentative.lstrip())


def ends_sentence(utterance: ActiveUtterance, tokenizer: Tokenizer) -> bool:
    """Return true if the text so far ends a sentence."""
    end = tokenizer.decode(utterance.tokens[-4:])
    return end.rstrip(CLOSING_PUNCTUATION).endswith(tuple(SENTENCE_END_MARKS))


def is_hallucination(
    utterance: ActiveUtterance,
    hypothesis: PartialHypothesis,
    speech_probs: Floats,
    threshold: float,
    tokenizer: Tokenizer,
) -> bool:
    """Return true if a hypothesis, which has all tokens of the utterance, is probably a hallucination.

    It is one from the threshold of the score on; the speech probabilities are those of the utterance so far.
    """
    text = tokenizer.decode(hypothesis.tokens)
    positions = utterance.encoded_frames // FRAMES_PER_POSITION
    no_speech_prob = hypothesis.no_speech_prob
    features = HallucinationFeatures(
        text=text,
        n_tokens=len(hypothesis.tokens),
        duration_s=utterance.encoded_frames / FRAMES_PER_SECOND,
        avg_logprob=sum(hypothesis.logprobs) / (len(hypothesis.tokens) + 1),
        no_speech_prob=utterance.no_speech_prob if no_speech_prob is None else no_speech_prob,
        compression_ratio=compression_ratio(text),
        speech_prob=float(speech_probs.mean()) if len(speech_probs) else None,
        attention_concentration=attention_concentration(hypothesis.attention[:, :-1], positions),
    )
    return score_hallucination(features).score >= threshold


def utterance_words(
    committed: Sequence[TimedToken], utterance: ActiveUtterance, tokenizer: Tokenizer
) -> list[Word]:
    """Return the words of some tokens, with the punctuation after them and times in the stream."""
    return [_word(word, utterance, tokenizer) for word in _group_by_word(committed, utterance, tokenizer)]


def utterance_segments(
    committed: Sequence[TimedToken], utterance: ActiveUtterance, tokenizer: Tokenizer, *, with_words: bool
) -> list[Segment]:
    """Return the sentences of committed tokens as segments, with times in the stream."""
    sentences: list[list[list[TimedToken]]] = [[]]
    for word in _group_by_word(committed, utterance, tokenizer):
        sentences[-1].append(word)
        if _text(word, tokenizer).rstrip().endswith(tuple(SENTENCE_END_MARKS)):
            sentences.append([])
    return [_segment(sentence, utterance, tokenizer, with_words) for sentence in sentences if sentence]


def _segment(
    sentence: Sequence[Sequence[TimedToken]], utterance: ActiveUtterance, tokenizer: Tokenizer, with_words: bool
) -> Segment:
    words = tuple(_word(word, utterance, tokenizer) for word in sentence)
    committed = [token for word in sentence for token in word]
    text = _text(committed, tokenizer)
    return Segment(
        index=0,
        start_s=words[0].start_s,
        end_s=words[-1].end_s,
        text=text,
        tokens=tuple(token.token for token in committed),
        temperature=0.0,
        avg_logprob=sum(token.logprob for token in committed) / len(committed),
        compression_ratio=compression_ratio(text),
        no_speech_prob=utterance.no_speech_prob,
        seek_s=utterance.start_frame / FRAMES_PER_SECOND,
        words=words if with_words else (),
        language=utterance.language,
    )


def _word(committed: Sequence[TimedToken], utterance: ActiveUtterance, tokenizer: Tokenizer) -> Word:
    def time_s(position: int) -> float:
        frame = FRAMES_PER_POSITION * max(0, position - ATTENDED_LATE)
        return (utterance.start_frame + frame) / FRAMES_PER_SECOND

    return Word(
        text=_text(committed, tokenizer),
        start_s=time_s(committed[0].start_position),
        end_s=time_s(committed[-1].end_position),
        probability=float(np.exp([token.logprob for token in committed]).mean()),
    )


def _group_by_word(
    committed: Sequence[TimedToken], utterance: ActiveUtterance, tokenizer: Tokenizer
) -> list[list[TimedToken]]:
    """Return the tokens of each word, with the punctuation after it."""
    texts, groups = tokenizer.split_words([token.token for token in committed], utterance.language or "en")
    grouped: list[list[TimedToken]] = []
    remaining = iter(committed)
    for text, group in zip(texts, groups, strict=True):
        word_tokens = [next(remaining) for _ in group]
        if grouped and text in APPEND_PUNCTUATIONS:
            grouped[-1] += word_tokens
        else:
            grouped.append(word_tokens)
    return grouped


def _text(committed: Sequence[TimedToken], tokenizer: Tokenizer) -> str:
    return tokenizer.decode([token.token for token in committed])
