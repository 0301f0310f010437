"""An utterance in progress: its hypotheses, the tokens that are committed, and their text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import numpy as np

from harken.contract import Floats, Ints
from harken.decoding import PartialHypothesis
from harken.decoding.candidate_generator import common_prefix_length
from harken.decoding.generate import compression_ratio
from harken.decoding.partial_window import TOKEN_POSITIONS
from harken.results import Segment, Word
from harken.streaming.config import MAX_LOCAL_AGREEMENT, StreamingConfig
from harken.streaming.utterance_audio import UtteranceAudio
from harken.text import Tokenizer
from harken.text.languages import SENTENCE_END
from harken.transcribe.hallucination import HallucinationFeatures, attention_concentration, score_hallucination
from harken.transcribe.word_boundaries import one_after_another
from harken.transcribe.word_timestamps import APPEND_PUNCTUATIONS
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND

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


@dataclass(slots=True, eq=False, kw_only=True)
class ActiveUtterance:
    """The current utterance of a stream.

    Parameters
    ----------
    audio : UtteranceAudio
    tokenizer : Tokenizer
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
    no_speech_prob : float
        From the last hypothesis that has one.
    rejected : bool
        True if the last hypothesis was rejected as a hallucination.
    """

    audio: UtteranceAudio
    tokenizer: Tokenizer
    committed: list[TimedToken] = field(default_factory=list)
    tentative: tuple[int, ...] = ()
    language: str | None = None
    hypothesis: PartialHypothesis | None = None
    no_speech_prob: float = 0.0
    rejected: bool = False
    _previous_hypotheses: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Committed and tentative tokens."""
        return (*(token.token for token in self.committed), *self.tentative)

    @property
    def text(self) -> tuple[str, str]:
        """The committed text and the tentative text after it, to be shown."""
        committed = self._decode(self.committed).rstrip(REPLACEMENT_CHARACTER)
        whole = self.tokenizer.decode(self.tokens).rstrip(REPLACEMENT_CHARACTER)
        tentative = whole[len(committed) :]
        return (committed.lstrip(), tentative) if committed else ("", tentative.lstrip())

    @property
    def ends_sentence(self) -> bool:
        """True if the text so far ends a sentence."""
        return SENTENCE_END.search(self.tokenizer.decode(self.tokens[-4:])) is not None

    @property
    def uncommitted(self) -> PartialHypothesis:
        """The last hypothesis behind what is committed by now."""
        assert self.hypothesis, "there has been an update"
        return self.hypothesis.from_token(len(self.hypothesis.tokens) - len(self.tentative))

    def is_complete(self, silence_start_frame: int | None) -> bool:
        """Return true if the last update has heard all speech before a silence, and its text ended by itself.

        Parameters
        ----------
        silence_start_frame : int or None
            First frame of the stream from which on there is silence; None if there is speech.
        """
        if silence_start_frame is None or self.hypothesis is None or self.rejected or self.language is None:
            return False
        return self.hypothesis.reached_eot and self.audio.has_decoded(silence_start_frame)

    def skip_update(self, config: StreamingConfig) -> None:
        """Let a hop of silence pass: the last hypothesis holds, and more of it can be committed."""
        self.audio.skip(config)
        self.update(self.uncommitted, config)

    def update(self, hypothesis: PartialHypothesis, config: StreamingConfig) -> None:
        """Take a hypothesis and commit its stable prefix; nothing before the language is known."""
        stable = 0
        if self.language is not None:
            _, words = self.tokenizer.split_words(hypothesis.tokens, self.language)
            stable = stable_prefix_length(
                hypothesis.tokens,
                hypothesis.attended_positions,
                [*map(len, words)],
                self._previous_hypotheses,
                self.audio.heard_frames // FRAMES_PER_POSITION,
                config,
            )
        self._commit(hypothesis, stable)

    def finalize(self, hypothesis: PartialHypothesis) -> None:
        """Take the last hypothesis and commit all of it, but for half a character at the end."""
        count = len(hypothesis.tokens)
        while count and self.tokenizer.decode(hypothesis.tokens[:count]).endswith(REPLACEMENT_CHARACTER):
            count -= 1
        self._commit(hypothesis, count)
        self.tentative = ()

    def reject(self, hypothesis: PartialHypothesis) -> None:
        """Take a hypothesis that is probably a hallucination: it only serves as the next draft."""
        self._commit(hypothesis, 0, rejected=True)

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

    def committed_until(self, frame: int) -> list[TimedToken]:
        """Return the committed tokens, none of them later than a frame of the stream, as the last may be in silence."""
        end_position = (frame - self.audio.start_frame) // FRAMES_PER_POSITION + ATTENDED_LATE
        return [token.moved(lambda time: min(time, end_position)) for token in self.committed]

    def split(self, frame: int, following: ActiveUtterance) -> list[TimedToken]:
        """Split the tokens at a frame of the stream, between words, and hand those behind it to another utterance.

        Returns
        -------
        list of TimedToken
            Those before it, tentative ones included; none if the last hypothesis was rejected.
        """
        position = (frame - self.audio.start_frame) // FRAMES_PER_POSITION
        next_position = (following.audio.start_frame - self.audio.start_frame) // FRAMES_PER_POSITION
        tokens = [*self.committed, *(self._timed_tokens(self.uncommitted) if self.hypothesis else ())]
        _, words = self.tokenizer.split_words([token.token for token in tokens], self.language or "en")
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

    def is_hallucination(self, hypothesis: PartialHypothesis, speech_probs: Floats, threshold: float) -> bool:
        """Return true if a hypothesis, which has all tokens of the utterance, is probably a hallucination.

        It is one from the threshold of the score on; the speech probabilities are those of the utterance so far.
        """
        assert hypothesis.no_speech_prob is not None, "nothing is committed yet"
        text = self.tokenizer.decode(hypothesis.tokens)
        encoded_frames = self.audio.encoded_frames
        features = HallucinationFeatures(
            text=text,
            n_tokens=len(hypothesis.tokens),
            duration_s=encoded_frames / FRAMES_PER_SECOND,
            avg_logprob=sum(hypothesis.logprobs) / (len(hypothesis.tokens) + 1),
            no_speech_prob=hypothesis.no_speech_prob,
            compression_ratio=compression_ratio(text),
            speech_prob=float(speech_probs.mean()) if len(speech_probs) else None,
            attention_concentration=attention_concentration(
                hypothesis.attention[:, :-1], encoded_frames // FRAMES_PER_POSITION
            ),
        )
        score, _ = score_hallucination(features)
        return score >= threshold

    def words(self, tokens: Sequence[TimedToken], not_before_s: float = 0.0) -> list[Word]:
        """Return the words of some tokens, with the punctuation after them and times in the stream, none too early."""
        return [word for word, _ in self._timed_words(tokens, not_before_s)]

    def segments(self, tokens: Sequence[TimedToken], *, with_words: bool) -> list[Segment]:
        """Return the sentences of some tokens as segments, with times in the stream."""
        sentences: list[list[tuple[Word, list[TimedToken]]]] = [[]]
        for word, word_tokens in self._timed_words(tokens):
            sentences[-1].append((word, word_tokens))
            if SENTENCE_END.search(word.text):
                sentences.append([])
        return [self._segment(sentence, with_words) for sentence in sentences if sentence]

    def _segment(self, sentence: Sequence[tuple[Word, Sequence[TimedToken]]], with_words: bool) -> Segment:
        words = tuple(word for word, _ in sentence)
        tokens = [token for _, word_tokens in sentence for token in word_tokens]
        text = self._decode(tokens)
        return Segment(
            index=0,
            start_s=words[0].start_s,
            end_s=words[-1].end_s,
            text=text,
            tokens=tuple(token.token for token in tokens),
            temperature=0.0,
            avg_logprob=sum(token.logprob for token in tokens) / len(tokens),
            compression_ratio=compression_ratio(text),
            no_speech_prob=self.no_speech_prob,
            seek_s=self.audio.start_frame / FRAMES_PER_SECOND,
            words=words if with_words else (),
            language=self.language,
        )

    def _timed_words(
        self, tokens: Sequence[TimedToken], not_before_s: float = 0.0
    ) -> Iterator[tuple[Word, list[TimedToken]]]:
        """Yield the words of some tokens, each with its tokens and a time of its own."""
        groups = self._group_by_word(tokens)
        words = [*map(self._word, groups)]
        not_before_s = max(not_before_s, self.audio.start_frame / FRAMES_PER_SECOND)
        return zip(one_after_another(words, not_before_s), groups, strict=True)

    def _word(self, tokens: Sequence[TimedToken]) -> Word:
        def time_s(position: int) -> float:
            frame = FRAMES_PER_POSITION * max(0, position - ATTENDED_LATE)
            return (self.audio.start_frame + frame) / FRAMES_PER_SECOND

        return Word(
            text=self._decode(tokens),
            start_s=time_s(tokens[0].start_position),
            end_s=time_s(tokens[-1].end_position),
            probability=float(np.exp([token.logprob for token in tokens]).mean()),
        )

    def _group_by_word(self, tokens: Sequence[TimedToken]) -> list[list[TimedToken]]:
        """Return the tokens of each word, with the punctuation after it."""
        texts, groups = self.tokenizer.split_words([token.token for token in tokens], self.language or "en")
        grouped: list[list[TimedToken]] = []
        remaining = iter(tokens)
        for text, group in zip(texts, groups, strict=True):
            word_tokens = [next(remaining) for _ in group]
            if grouped and text in APPEND_PUNCTUATIONS:
                grouped[-1] += word_tokens
            else:
                grouped.append(word_tokens)
        return grouped

    def _decode(self, tokens: Sequence[TimedToken]) -> str:
        return self.tokenizer.decode([token.token for token in tokens])
