"""The prompt of a window: initial and previous text, then the start sequence."""

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
    initial_prompt_tokens: Sequence[int] = (),
    previous_tokens: Sequence[int] = (),
) -> tuple[int, ...]:
    """Return the prompt tokens of one window.

    Parameters
    ----------
    tokenizer : Tokenizer
    n_text_ctx : int
        Context of the decoder, in tokens; one half is for the text before, the other for all that follows.
    language : str or None
        Language code; ignored by English-only vocabularies.
    task : {"transcribe", "translate"}
    timestamps : bool
    initial_prompt_tokens : sequence of int
        Text tokens that precede `previous_tokens` in every window; if they alone are too many, the oldest are dropped.
    previous_tokens : sequence of int
        Text tokens before this window; the oldest are dropped if `initial_prompt_tokens` leave no room for them.

    Notes
    -----
    Source: openai/whisper, decoding.py, DecodingTask._get_initial_tokens; transcribe.py,
    carry_initial_prompt.
    """
    max_tokens = n_text_ctx // 2 - 1
    initial = _last_n(initial_prompt_tokens, max_tokens)
    context = (*initial, *_last_n(previous_tokens, max_tokens - len(initial)))
    start = tokenizer.sot_sequence(language, task, timestamps=timestamps)
    return (tokenizer.sot_prev, *context, *start) if context else start


def _last_n(tokens: Sequence[int], n: int) -> Sequence[int]:
    return tokens[max(len(tokens) - n, 0) :]
