"""What the decoder is told before it speaks: previous text, then the start sequence, then a forced beginning."""

from __future__ import annotations

from collections.abc import Sequence

from harken.text import Tokenizer


def make_prompt(
    tokenizer: Tokenizer,
    n_text_ctx: int,
    *,
    language: str | None,
    task: str,
    timestamps: bool,
    previous: Sequence[int] = (),
    prefix: Sequence[int] = (),
) -> tuple[int, ...]:
    """Prompt tokens of one window.

    Parameters
    ----------
    tokenizer : Tokenizer
    n_text_ctx : int
        Context of the decoder; one half is for the previous text, the other for all that follows it.
    language : str or None
        Code of the language; ignored by English-only vocabularies.
    task : {"transcribe", "translate"}
    timestamps : bool
    previous : sequence of int
        Text tokens before this window; the oldest are dropped.
    prefix : sequence of int
        Text tokens with which the window must begin; the oldest are dropped where they do not fit.

    Notes
    -----
    Source: openai/whisper, decoding.py, DecodingTask._get_initial_tokens.
    """
    half = n_text_ctx // 2
    start = tokenizer.sot_sequence(language, task, timestamps=timestamps)
    before = (tokenizer.sot_prev, *previous[-(half - 1) :]) if previous else ()
    return (*before, *start, *prefix[-(half - len(start)) :])
