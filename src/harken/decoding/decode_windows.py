"""Decode windows that are already encoded: read the prompts, choose tokens, keep the best hypothesis of each."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harken.contract import Backend, Features, Floats, Logits, Session
from harken.decoding.beam import beam_search
from harken.decoding.generate import generate, pick_best, pick_sample
from harken.decoding.hypothesis import DecodeStats, Hypothesis, Observer, Step, capture_attention, no_attention
from harken.decoding.logit_rules import LogitRules
from harken.decoding.speculation import DraftContext, DraftSession
from harken.decoding.strategies import Beam, Greedy, Sample, Strategy
from harken.text import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window to decode.

    Parameters
    ----------
    audio : int
        Which of the encoded windows.
    prompt : tuple of int
        From `harken.decoding.prompt.make_prompt`.
    seed : tuple of int
        Where the random numbers of sampling start; equal seeds give equal samples, whatever else is in the batch.
    previous : tuple of int
        What an earlier attempt at the same audio has sampled; drafts are made of it.
    """

    window_index: int
    prompt: tuple[int, ...]
    seed: tuple[int, ...] = (0,)
    draft_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingResult:
    """The best hypothesis of one window and what is known of it.

    Parameters
    ----------
    hypothesis : Hypothesis
    text : str
    no_speech_prob : float
        Probability of <|nospeech|> right after <|startoftranscript|>, before any rule.
    compression_ratio : float
        Length of the text in UTF-8 over its length when deflated.
    temperature : float
    """

    hypothesis: Hypothesis
    text: str
    no_speech_prob: float
    compression_ratio: float
    temperature: float


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
    draft_context: DraftContext | None = None,
) -> tuple[list[DecodingResult], DecodeStats]:
    """Decode one window or a batch of them.

    Parameters
    ----------
    backend : Backend
    features : Features
        Of `backend.encode`.
    windows : sequence of Window
    tokenizer : Tokenizer
    rules : Rules
    strategy : Greedy, Sample or Beam
    observe : callable
        Called with every `Step`; decoding stops at once with whatever it raises.
    attention : bool
        Whether hypotheses tell what the decoder listened to.
    drafter : Drafter or None
        Drafts for these windows, which changes what decoding costs and not what is said. Beam search goes without: its
        hypotheses part at every step, and a draft follows only one of them (docs/decisions/speculation.md).

    Returns
    -------
    decoded : list of Decoded
        One a window.
    stats : DecodeStats
    """
    prompts = [window.prompt for window in windows]
    n_ctx = backend.dims.n_text_ctx
    limits = [min(n_ctx // 2, n_ctx + 1 - len(prompt)) for prompt in prompts]
    session = _CountingSession(
        backend.open_session(features, [window.window_index for window in windows], n_ctx, attention=attention)
    )
    capture = capture_attention(session) if attention else no_attention
    sot_offsets = [len(prompt) - prompt.index(tokenizer.sot) for prompt in prompts]
    last_n = max(sot_offsets)
    logits = session.extend(prompts, last_n)
    ends = np.cumsum([min(last_n, len(prompt)) for prompt in prompts]).tolist()
    no_speech = logits.select_positions([end - start for end, start in zip(ends, sot_offsets, strict=True)])
    no_speech_probs = no_speech.probability(tokenizer.no_speech).tolist()
    logits = logits.select_positions([end - 1 for end in ends])

    n_sampled = 0

    def count(step: Step) -> None:
        nonlocal n_sampled
        n_sampled += 1
        observe(step)

    draft_session: DraftSession | None = None

    def open_draft_session(rows: Sequence[int], *, sampling: bool = False) -> DraftSession | None:
        drafted_windows = [windows[row] for row in rows]
        return (
            None
            if draft_context is None
            else draft_context.open_draft_session(
                [window.window_index for window in drafted_windows],
                [window.prompt for window in drafted_windows],
                [window.draft_tokens for window in drafted_windows],
                logit_rules,
                sampling=sampling,
            )
        )

    match strategy:
        case Greedy():
            draft_session = open_draft_session(range(len(windows)))
            best = generate(session, logits, logit_rules, pick_best, limits, count, capture, draft_session)
        case Sample(temperature=temperature, best_of=n):
            sample_rows = [row for row in range(len(windows)) for _ in range(n)]
            generators = [np.random.default_rng((*w.seed, sample)) for w in windows for sample in range(n)]
            session.reorder(sample_rows)
            pick = pick_sample(temperature, generators)
            row_limits = [limits[row] for row in sample_rows]
            draft_session = open_draft_session(sample_rows, sampling=True)
            samples = generate(
                session,
                logits.select_positions(sample_rows),
                logit_rules,
                pick,
                row_limits,
                count,
                capture,
                draft_session,
            )
            best = [_best(samples[i : i + n], strategy.length_penalty) for i in range(0, len(samples), n)]
        case Beam():
            found = beam_search(session, logits, logit_rules, strategy, limits, count, capture)
            best = [_best(hypotheses, strategy.length_penalty) for hypotheses in found]
    stats = DecodeStats(
        windows=len(windows),
        forwards=session.forwards,
        prompt_tokens=sum(map(len, prompts)),
        sampled_tokens=n_sampled,
        undrafted_windows=len(windows) if draft_context and not draft_session else 0,
    )
    if draft_session:
        stats += draft_session.stats
    decoded = [
        _make_result(hypothesis, tokenizer, probability, strategy.temperature)
        for hypothesis, probability in zip(best, no_speech_probs, strict=True)
    ]
    return decoded, stats


def compression_ratio(text: str) -> float:
    """How far a text deflates; repetition shows as a high ratio (openai/whisper, utils.py, compression_ratio)."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data))


def _best(hypotheses: Sequence[Hypothesis], length_penalty: float | None) -> Hypothesis:
    return max(hypotheses, key=lambda hypothesis: hypothesis.score(length_penalty))


def _make_result(
    hypothesis: Hypothesis, tokenizer: Tokenizer, no_speech_prob: float, temperature: float
) -> DecodingResult:
    text = tokenizer.decode(hypothesis.tokens).strip()
    return DecodingResult(
        hypothesis=hypothesis,
        text=text,
        no_speech_prob=no_speech_prob,
        compression_ratio=compression_ratio(text),
        temperature=temperature,
    )


class _CountingSession:
    """A session that counts its forward passes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.forwards = 0
        self.rewind, self.reorder = session.rewind, session.reorder

    @property
    def lengths(self) -> tuple[int, ...]:
        return self._session.lengths

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> Logits:
        self.forwards += 1
        return self._session.extend(tokens, last_n)

    def attention(self, row: int) -> Floats:
        return self._session.attention(row)
