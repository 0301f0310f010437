"""Decoding of encoded windows: read the prompts, pick tokens by a strategy, keep the best hypothesis of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harken.contract import Backend, Features
from harken.decoding.beam import beam_search
from harken.decoding.generate import (
    LoopRule,
    Pick,
    Row,
    WindowEnd,
    compression_ratio,
    generate,
    pick_best,
    pick_sample,
    prefill,
)
from harken.decoding.logit_rules import LogitRules
from harken.decoding.speculation import DraftContext, DraftSession
from harken.decoding.types import (
    Beam,
    CapturedAttention,
    DecodeStats,
    Greedy,
    Hypothesis,
    Observer,
    Sample,
    Step,
    Strategy,
    Window,
    copy_attention,
    no_attention,
)
from harken.text import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingResult:
    """The best hypothesis of one window, with the measures of its quality.

    Parameters
    ----------
    hypothesis : Hypothesis
    text : str
    no_speech_prob : float
        Probability of <|nospeech|> right after <|startoftranscript|>, before any logit rule.
    compression_ratio : float
        Bytes of the text in UTF-8 over bytes when deflated.
    temperature : float
    loops : bool
        True if the text went on to repeat itself, and was cut there.
    """

    hypothesis: Hypothesis
    text: str
    no_speech_prob: float
    compression_ratio: float
    temperature: float
    loops: bool = False


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
    initial = initial_prompt_tokens[-max_tokens:]
    n_previous = min(max_tokens - len(initial), len(previous_tokens))
    context = (*initial, *previous_tokens[len(previous_tokens) - n_previous :])
    start = tokenizer.sot_sequence(language, task, timestamps=timestamps)
    return (tokenizer.sot_prev, *context, *start) if context else start


def decode(
    backend: Backend,
    features: Features,
    windows: Sequence[Window],
    *,
    tokenizer: Tokenizer,
    logit_rules: LogitRules,
    strategy: Strategy,
    observe: Observer = lambda step: None,
    attention: bool = False,
    word_attention: bool = False,
    draft_context: DraftContext | None = None,
    max_compression_ratio: float | None = None,
) -> tuple[list[DecodingResult], DecodeStats]:
    """Decode one window or a batch of them.

    Parameters
    ----------
    backend : Backend
    features : Features
        From `backend.encode`.
    windows : sequence of Window
    tokenizer : Tokenizer
    logit_rules : LogitRules
    strategy : Greedy, Sample or Beam
    observe : callable
        Called with every `Step`; decoding stops at once with whatever it raises.
    attention : bool
        Whether to capture the cross-attention of each hypothesis.
    word_attention : bool
        Whether that of the word heads is captured with it, if the backend has some.
    draft_context : DraftContext or None
        Source of drafts for these windows, which change the cost of decoding but not the tokens. Beam search does
        without: its hypotheses diverge at every step, and a draft fits only one of them
        (docs/decisions/speculation.md).
    max_compression_ratio : float or None
        Compression ratio above which a text that repeats itself is stopped and cut; None never stops one.

    Returns
    -------
    results : list of DecodingResult
        One a window.
    stats : DecodeStats
    """
    loop_rule = (
        LoopRule(tokenizer.decode, tokenizer.eot, max_compression_ratio) if max_compression_ratio else None
    )
    n_ctx = backend.dims.n_text_ctx
    session = backend.open_session(
        features, [window.window_index for window in windows], n_ctx, attention=attention
    )
    n_word_heads = len(backend.word_heads) if word_attention else 0

    def copy_last(row: int, n_tokens: int) -> CapturedAttention:
        return copy_attention(session, row, slice(-n_tokens, None), n_word_heads)

    capture = copy_last if attention else no_attention
    n_samples = strategy.best_of if isinstance(strategy, Sample) else 1
    row_windows = [window for window in windows for _ in range(n_samples)]
    rows = [
        Row(
            window.prompt,
            min(n_ctx // 2, n_ctx + 1 - len(window.prompt)),
            WindowEnd(logit_rules.eot, loop_rule),
            speech_end=window.speech_end,
        )
        for window in row_windows
    ]
    draft_session: DraftSession | None = None
    if draft_context is not None and not isinstance(strategy, Beam):
        draft_session = draft_context.open_draft_session(
            row_windows, logit_rules, sampling=isinstance(strategy, Sample)
        )
    if draft_session and isinstance(strategy, Greedy):
        most = {i: row.max_draft for i, row in enumerate(rows)}
        for i, draft in draft_session.propose(dict.fromkeys(most, ()), most, behind_prompt=True).items():
            rows[i].draft = draft
    logits, no_speech_probs = prefill(session, rows[::n_samples], tokenizer.sot, tokenizer.no_speech)

    n_sampled = 0

    def count(step: Step) -> None:
        nonlocal n_sampled
        n_sampled += 1
        observe(replace(step, strategy=strategy))

    if isinstance(strategy, Beam):
        found, forwards = beam_search(
            session, logits, logit_rules, strategy, rows, count, capture, loop_rule=loop_rule
        )
    else:
        pick: Pick = pick_best
        greedy = logit_rules.greedy if backend.capabilities.picks_best else None
        if isinstance(strategy, Sample):
            seeds = [(*window.seed, sample) for window in windows for sample in range(n_samples)]
            generators = [np.random.default_rng(seed) for seed in seeds]
            pick, greedy = pick_sample(strategy.temperature, generators), None
            window_of_row = [i for i in range(len(windows)) for _ in range(n_samples)]
            session.reorder(window_of_row)
            logits = logits.select_positions(window_of_row)
        forwards = generate(
            session,
            rows,
            logits,
            logit_rules,
            pick,
            greedy=greedy,
            observe=count,
            capture=capture,
            draft_session=draft_session,
        )
        hypotheses = [row.hypothesis(logit_rules.eot) for row in rows]
        found = [hypotheses[i : i + n_samples] for i in range(0, len(rows), n_samples)]
    length_penalty = None if isinstance(strategy, Greedy) else strategy.length_penalty
    best = [max(candidates, key=lambda hypothesis: hypothesis.score(length_penalty)) for candidates in found]
    stats = DecodeStats(
        windows=len(windows),
        forwards=1 + forwards,
        prompt_tokens=sum(len(window.prompt) for window in windows),
        sampled_tokens=n_sampled,
        undrafted_windows=len(windows)
        if draft_context and draft_context.has_source and not draft_session
        else 0,
    )
    if draft_session:
        stats += draft_session.stats
    results = [
        _make_result(hypothesis, tokenizer, probability, strategy.temperature, loop_rule)
        for hypothesis, probability in zip(best, no_speech_probs, strict=True)
    ]
    return results, stats


def _make_result(
    hypothesis: Hypothesis,
    tokenizer: Tokenizer,
    no_speech_prob: float,
    temperature: float,
    loop_rule: LoopRule | None,
) -> DecodingResult:
    loop = loop_rule and loop_rule.begins(hypothesis.tokens)
    if loop:
        hypothesis = hypothesis.first(loop)
    text = tokenizer.decode(hypothesis.tokens).strip()
    return DecodingResult(
        hypothesis=hypothesis,
        text=text,
        no_speech_prob=no_speech_prob,
        compression_ratio=compression_ratio(text),
        temperature=temperature,
        loops=loop is not None,
    )
