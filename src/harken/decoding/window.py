"""Decode windows that are already encoded: read the prompts, choose tokens, keep the best hypothesis of each."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harken.contract import Backend, Features, Floats, Logits, Session
from harken.decoding.beam import search
from harken.decoding.greedy import follow, pick_best, pick_sample
from harken.decoding.hypothesis import DecodeStats, Hypothesis, Observer, Step, deaf, listen_to
from harken.decoding.rules import Rules
from harken.decoding.speculation import Drafter, Speculation
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

    audio: int
    prompt: tuple[int, ...]
    seed: tuple[int, ...] = (0,)
    previous: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
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
    rules: Rules,
    strategy: Strategy,
    observe: Observer = lambda step: None,
    attention: bool = False,
    drafter: Drafter | None = None,
) -> tuple[list[Decoded], DecodeStats]:
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
    session = _Counted(backend.open(features, [window.audio for window in windows], n_ctx, attention=attention))
    listen = listen_to(session) if attention else deaf
    starts = [len(prompt) - prompt.index(tokenizer.sot) for prompt in prompts]
    tail = max(starts)
    logits = session.extend(prompts, tail)
    ends = np.cumsum([min(tail, len(prompt)) for prompt in prompts]).tolist()
    no_speech = logits.take([end - start for end, start in zip(ends, starts, strict=True)])
    no_speech_probs = no_speech.probability(tokenizer.no_speech).tolist()
    logits = logits.take([end - 1 for end in ends])

    chosen = 0

    def count(step: Step) -> None:
        nonlocal chosen
        chosen += 1
        observe(step)

    speculation: Speculation | None = None

    def speculate(rows: Sequence[int], *, sampling: bool = False) -> Speculation | None:
        its = [windows[row] for row in rows]
        return (
            None
            if drafter is None
            else drafter.open(
                [window.audio for window in its],
                [window.prompt for window in its],
                [window.previous for window in its],
                rules,
                sampling=sampling,
            )
        )

    match strategy:
        case Greedy():
            speculation = speculate(range(len(windows)))
            best = follow(session, logits, rules, pick_best, limits, count, listen, speculation)
        case Sample(temperature=temperature, best_of=n):
            fan_out = [row for row in range(len(windows)) for _ in range(n)]
            generators = [np.random.default_rng((*w.seed, sample)) for w in windows for sample in range(n)]
            session.select(fan_out)
            pick = pick_sample(temperature, generators)
            each_limit = [limits[row] for row in fan_out]
            speculation = speculate(fan_out, sampling=True)
            samples = follow(session, logits.take(fan_out), rules, pick, each_limit, count, listen, speculation)
            best = [_best(samples[i : i + n], strategy.length_penalty) for i in range(0, len(samples), n)]
        case Beam():
            found = search(session, logits, rules, strategy, limits, count, listen)
            best = [_best(hypotheses, strategy.length_penalty) for hypotheses in found]
    stats = DecodeStats(
        windows=len(windows),
        forwards=session.forwards,
        prompt_tokens=sum(map(len, prompts)),
        sampled_tokens=chosen,
        unspeculated=len(windows) if drafter and not speculation else 0,
    )
    if speculation:
        stats += speculation.stats
    decoded = [
        _decoded(hypothesis, tokenizer, probability, strategy.temperature)
        for hypothesis, probability in zip(best, no_speech_probs, strict=True)
    ]
    return decoded, stats


def compression_ratio(text: str) -> float:
    """How far a text deflates; repetition shows as a high ratio (openai/whisper, utils.py, compression_ratio)."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data))


def _best(hypotheses: Sequence[Hypothesis], length_penalty: float | None) -> Hypothesis:
    return max(hypotheses, key=lambda hypothesis: hypothesis.score(length_penalty))


def _decoded(
    hypothesis: Hypothesis, tokenizer: Tokenizer, no_speech_prob: float, temperature: float
) -> Decoded:
    text = tokenizer.decode(hypothesis.tokens).strip()
    return Decoded(
        hypothesis=hypothesis,
        text=text,
        no_speech_prob=no_speech_prob,
        compression_ratio=compression_ratio(text),
        temperature=temperature,
    )


class _Counted:
    """A session that counts its forward passes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.forwards = 0
        self.rewind, self.select = session.rewind, session.select

    @property
    def lengths(self) -> tuple[int, ...]:
        return self._session.lengths

    def extend(self, tokens: Sequence[Sequence[int]], tail: int = 1) -> Logits:
        self.forwards += 1
        return self._session.extend(tokens, tail)

    def attention(self, row: int) -> Floats:
        return self._session.attention(row)
