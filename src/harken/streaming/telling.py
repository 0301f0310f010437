"""What tokens of a running utterance come to: text, words, segments, and whether anybody said it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harken.contract import Floats
from harken.decoding import Grown
from harken.decoding.window import compression_ratio
from harken.results import Segment, Word
from harken.streaming.running import Running, Spoken
from harken.text import Tokenizer
from harken.transcribe.guard import Facts, assess, concentration
from harken.transcribe.words import APPENDED, SENTENCE_ENDS
from harken.types import FRAMES_PER_SECOND, FRAMES_PER_STEP

CLOSING = " \n\"'”’»)]」』"
"""What may stand behind the mark that ends a sentence."""
UNFINISHED = "�"
"""What bytes decode to that are not a character yet."""


def shown(running: Running, tokenizer: Tokenizer) -> tuple[str, str]:
    """Committed text of an utterance, and the tentative text behind it; together they are its text."""
    committed = tokenizer.decode([its.token for its in running.committed]).rstrip(UNFINISHED)
    whole = tokenizer.decode(running.tokens).rstrip(UNFINISHED)
    tentative = whole[len(committed) :]
    return (committed.lstrip(), tentative) if committed else ("", tentative.lstrip())


def ends_sentence(running: Running, tokenizer: Tokenizer) -> bool:
    """Whether what is said by now is the end of a sentence."""
    return tokenizer.decode(running.tokens[-4:]).rstrip(CLOSING).endswith(tuple(SENTENCE_ENDS))


def is_invented(running: Running, grown: Grown, speech: Floats, threshold: float, tokenizer: Tokenizer) -> bool:
    """Whether probably nobody said what a hypothesis says.

    Parameters
    ----------
    running : Running
    grown : Grown
        All that is said in the utterance.
    speech : ndarray of shape (chunks,), float32
        Probabilities of speech in what has been heard of it.
    threshold : float
        Hallucination score from which on it is.
    tokenizer : Tokenizer
    """
    text = tokenizer.decode(grown.tokens)
    positions = running.seen_frames // FRAMES_PER_STEP
    facts = Facts(
        text=text,
        tokens=len(grown.tokens),
        duration_s=running.seen_frames / FRAMES_PER_SECOND,
        avg_logprob=sum(grown.logprobs) / (len(grown.tokens) + 1),
        no_speech_prob=running.no_speech_prob if grown.no_speech_prob is None else grown.no_speech_prob,
        compression_ratio=compression_ratio(text),
        speech_prob=float(speech.mean()) if len(speech) else None,
        attention=concentration(grown.attention[:, :-1], positions),
    )
    return assess(facts).score >= threshold


def words(spoken: Sequence[Spoken], running: Running, tokenizer: Tokenizer) -> list[Word]:
    """Whole words of an utterance with the punctuation behind them, in the times of the stream."""
    return [_word(its, running, tokenizer) for its in _grouped(spoken, running, tokenizer)]


def segments(
    spoken: Sequence[Spoken], running: Running, tokenizer: Tokenizer, *, with_words: bool
) -> list[Segment]:
    """Sentences of an utterance as it was committed word by word."""
    sentences: list[list[list[Spoken]]] = [[]]
    for word in _grouped(spoken, running, tokenizer):
        sentences[-1].append(word)
        if _text(word, tokenizer).rstrip().endswith(tuple(SENTENCE_ENDS)):
            sentences.append([])
    return [_segment(sentence, running, tokenizer, with_words) for sentence in sentences if sentence]


def _segment(
    sentence: Sequence[Sequence[Spoken]], running: Running, tokenizer: Tokenizer, with_words: bool
) -> Segment:
    its_words = tuple(_word(word, running, tokenizer) for word in sentence)
    spoken = [token for word in sentence for token in word]
    text = _text(spoken, tokenizer)
    return Segment(
        index=0,
        start_s=its_words[0].start_s,
        end_s=its_words[-1].end_s,
        text=text,
        tokens=tuple(its.token for its in spoken),
        temperature=0.0,
        avg_logprob=sum(its.logprob for its in spoken) / len(spoken),
        compression_ratio=compression_ratio(text),
        no_speech_prob=running.no_speech_prob,
        seek_s=running.start_frame / FRAMES_PER_SECOND,
        words=its_words if with_words else (),
        language=running.language,
    )


def _word(spoken: Sequence[Spoken], running: Running, tokenizer: Tokenizer) -> Word:
    def time_s(position: int) -> float:
        return (running.start_frame + FRAMES_PER_STEP * max(0, position)) / FRAMES_PER_SECOND

    return Word(
        text=_text(spoken, tokenizer),
        start_s=time_s(spoken[0].start),
        end_s=time_s(spoken[-1].end),
        probability=float(np.exp([its.logprob for its in spoken]).mean()),
    )


def _grouped(spoken: Sequence[Spoken], running: Running, tokenizer: Tokenizer) -> list[list[Spoken]]:
    """Tokens of each word, with the punctuation behind it."""
    texts, groups = tokenizer.split_words([its.token for its in spoken], running.language or "en")
    grouped: list[list[Spoken]] = []
    tokens = iter(spoken)
    for text, group in zip(texts, groups, strict=True):
        its = [next(tokens) for _ in group]
        if grouped and text in APPENDED:
            grouped[-1] += its
        else:
            grouped.append(its)
    return grouped


def _text(spoken: Sequence[Spoken], tokenizer: Tokenizer) -> str:
    return tokenizer.decode([its.token for its in spoken])
