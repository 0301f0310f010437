"""The text, words and segments of an utterance in progress, and the check for hallucinations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harken.contract import Floats
from harken.decoding import PartialHypothesis
from harken.decoding.generate import compression_ratio
from harken.results import Segment, Word
from harken.streaming.utterance import ActiveUtterance, TimedToken
from harken.text import Tokenizer
from harken.transcribe.hallucination import HallucinationFeatures, attention_concentration, score_hallucination
from harken.transcribe.word_timestamps import APPEND_PUNCTUATIONS, SENTENCE_END_MARKS
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND

CLOSING_PUNCTUATION = " \n\"'”’»)]」』"
"""Characters that may follow the mark that ends a sentence."""
REPLACEMENT_CHARACTER = "�"
"""The decoded form of bytes that are not a whole character yet."""


ATTENDED_LATE = 10
"""Positions from where a word is spoken to where its tokens attend to most: 0.2 s."""


def display_text(utterance: ActiveUtterance, tokenizer: Tokenizer) -> tuple[str, str]:
    """Return the committed text of an utterance and the tentative text after it."""
    committed = tokenizer.decode([token.token for token in utterance.committed]).rstrip(REPLACEMENT_CHARACTER)
    whole = tokenizer.decode(utterance.tokens).rstrip(REPLACEMENT_CHARACTER)
    tentative = whole[len(committed) :]
    return (committed.lstrip(), tentative) if committed else ("", tentative.lstrip())


def ends_sentence(utterance: ActiveUtterance, tokenizer: Tokenizer) -> bool:
    """Return true if the text so far ends a sentence."""
    return (
        tokenizer.decode(utterance.tokens[-4:]).rstrip(CLOSING_PUNCTUATION).endswith(tuple(SENTENCE_END_MARKS))
    )


def is_hallucination(
    utterance: ActiveUtterance,
    hypothesis: PartialHypothesis,
    speech_probs: Floats,
    threshold: float,
    tokenizer: Tokenizer,
) -> bool:
    """Return true if a hypothesis is probably a hallucination.

    Parameters
    ----------
    utterance : ActiveUtterance
    hypothesis : PartialHypothesis
        All tokens of the utterance.
    speech_probs : ndarray of shape (chunks,), float32
        Speech probabilities of the utterance so far.
    threshold : float
        Hallucination score from which on it counts as one.
    tokenizer : Tokenizer
    """
    text = tokenizer.decode(hypothesis.tokens)
    positions = utterance.encoded_frames // FRAMES_PER_POSITION
    features = HallucinationFeatures(
        text=text,
        n_tokens=len(hypothesis.tokens),
        duration_s=utterance.encoded_frames / FRAMES_PER_SECOND,
        avg_logprob=sum(hypothesis.logprobs) / (len(hypothesis.tokens) + 1),
        no_speech_prob=utterance.no_speech_prob
        if hypothesis.no_speech_prob is None
        else hypothesis.no_speech_prob,
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
        return (
            utterance.start_frame + FRAMES_PER_POSITION * max(0, position - ATTENDED_LATE)
        ) / FRAMES_PER_SECOND

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
