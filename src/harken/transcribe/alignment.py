"""Tokens of a window and when each was spoken: from what the decoder listened to, or from reading them once more.

Source: openai/whisper, timing.py, find_alignment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harken.contract import Backend, Features, Floats, Ints
from harken.decoding import Hypothesis
from harken.decoding.alignment_attention import alignment_matrix
from harken.errors import OptionError
from harken.text import Tokenizer
from harken.transcribe.dtw import token_starts
from harken.transcribe.segments import TokenSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """When the text tokens of a window were spoken.

    Parameters
    ----------
    tokens : tuple of int
        Text tokens alone.
    bounds : ndarray of shape (len(tokens) + 1,), int64
        Step at which each of them begins, in rising order, and at which the last one ends; steps of 0.02 s from
        the start of the window.
    probabilities : ndarray of shape (len(tokens),), float32
    """

    tokens: tuple[int, ...]
    bounds: Ints
    probabilities: Floats


def text_tokens(token_segments: Sequence[TokenSegment], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Text tokens of some segments, one segment after the other."""
    return tuple(
        token for token_segment in token_segments for token in token_segment.tokens if token < tokenizer.eot
    )


def align_decoded(
    hypothesis: Hypothesis, token_segments: Sequence[TokenSegment], tokenizer: Tokenizer, n_positions: int
) -> Alignment:
    """Align the text of a window by what its decoding listened to: no pass of the model at all.

    Timestamps are left out of the path, but for the token behind the text, which takes what is heard after it. Text
    behind the last segment takes part too, so that no word of a segment is drawn out over it.

    Parameters
    ----------
    hypothesis : Hypothesis
        Decoded with `attention`.
    cuts : sequence of Cut
        What `cut` made of its tokens.
    tokenizer : Tokenizer
    steps : int
        How many steps of the window hold sound.

    Returns
    -------
    Alignment
        Of the text tokens of the cuts.

    Notes
    -----
    How closely this agrees with `align_text` is measured in docs/decisions/words.md.
    """
    assert hypothesis.attention is not None, "the hypothesis was decoded with attention"
    n_segment_tokens = sum(len(token_segment.tokens) for token_segment in token_segments)
    text_rows = [i for i, token in enumerate(hypothesis.tokens) if token < tokenizer.eot]
    segment_rows = [i for i in text_rows if i < n_segment_tokens]
    if not segment_rows:
        return _empty_alignment()
    end_row = segment_rows[-1] + 1
    rows = sorted({*text_rows, end_row} & {*range(len(hypothesis.logprobs))})
    starts = token_starts(alignment_matrix(hypothesis.attention[:, rows], max(1, n_positions)))
    ends = starts[len(segment_rows)] if len(segment_rows) < len(rows) else n_positions
    return Alignment(
        tokens=tuple(hypothesis.tokens[i] for i in segment_rows),
        bounds=np.append(starts[: len(segment_rows)], ends),
        probabilities=np.exp(np.array([hypothesis.logprobs[i] for i in segment_rows], np.float32)),
    )


def align_tokens(
    backend: Backend,
    features: Features,
    audio_index: int,
    tokens: Sequence[int],
    tokenizer: Tokenizer,
    n_positions: int,
    *,
    language: str,
    task: str = "transcribe",
) -> Alignment:
    """Align a text with a window as the reference does: one pass of the decoder over the whole text.

    Parameters
    ----------
    backend : Backend
    features : Features
        Of `backend.encode`.
    audio : int
        Which of the encoded windows.
    tokens : sequence of int
        Text tokens.
    tokenizer : Tokenizer
    steps : int
        How many steps of the window hold sound.
    language : str
        Code of the language spoken.
    task : {"transcribe", "translate"}

    Raises
    ------
    OptionError
        If the text does not fit into the decoder.
    """
    if not tokens:
        return _empty_alignment()
    sot_sequence = tokenizer.sot_sequence(language, task, timestamps=False)
    prompt = (*sot_sequence, *tokens, tokenizer.eot)
    if len(prompt) > backend.dims.n_text_ctx:
        room = backend.dims.n_text_ctx - len(sot_sequence) - 1
        raise OptionError("text", f"{len(tokens)} tokens", f"at most {room} tokens for one window")
    session = backend.open_session(features, [audio_index], len(prompt), attention=True)
    logits = session.extend([prompt], last_n=len(tokens) + 2)
    logits.suppress_ranges([[(tokenizer.eot, tokenizer.n_vocab)]] * len(logits))
    probabilities = [logits.select_positions([i]).probability(token)[0] for i, token in enumerate(tokens)]
    # What follows <|notimestamps|> is the first token, and the end follows the last.
    rows = alignment_matrix(session.attention(0), max(1, n_positions))[len(sot_sequence) - 1 : -1]
    return Alignment(
        tokens=tuple(tokens), bounds=token_starts(rows), probabilities=np.array(probabilities, np.float32)
    )


def _empty_alignment() -> Alignment:
    return Alignment(tokens=(), bounds=np.zeros(1, np.int64), probabilities=np.zeros(0, np.float32))
