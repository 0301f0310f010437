"""Windows and logit rules to draw for a model of random logits: few tokens, so that their text ends now and then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from harken.decoding import LogitRules, Window, make_logit_rules, make_prompt
from tiny_models import DIMS, N_WINDOWS, TOKENIZER

END, BEGIN = TOKENIZER.eot, TOKENIZER.timestamp_begin
TEXT = [*b" aeinorst,.", 0xC3, 0xA9]
TIMES = [BEGIN + step for step in (0, 10, 25, 50, 100, 200, 400, 800, 1200, 1500)]
TOKEN = st.sampled_from(TEXT)


def rules_over(kept: Iterable[int], *, timestamps: bool, **options: Any) -> LogitRules:
    """Make rules under which only some tokens may be picked."""
    suppressed = sorted(set(range(DIMS.n_vocab)) - set(kept))
    return make_logit_rules(TOKENIZER, timestamps=timestamps, suppress_tokens=suppressed, **options)


@st.composite
def windows(draw: st.DrawFn, timestamps: bool, n_text_ctx: int = DIMS.n_text_ctx) -> Window:
    """Draw a window with any prompt that fits the context."""
    prompt = make_prompt(
        TOKENIZER,
        n_text_ctx,
        language=draw(st.sampled_from(["en", "de", "jw"])),
        task=draw(st.sampled_from(["transcribe", "translate"])),
        timestamps=timestamps,
        initial_prompt_tokens=draw(st.lists(TOKEN, max_size=3)),
        previous_tokens=draw(st.lists(TOKEN, max_size=12)),
    )
    return Window(
        window_index=draw(st.integers(0, N_WINDOWS - 1)), prompt=prompt, seed=(draw(st.integers(0, 9)), 7)
    )
