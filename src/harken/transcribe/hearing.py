"""Hear windows: encode them, settle their language, and decode those of one length together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from harken.contract import Backend, Features, Floats
from harken.decoding import (
    Decoded,
    DecodeStats,
    Rules,
    Speculator,
    Step,
    Window,
    language_probabilities,
    make_rules,
)
from harken.results import Attempt
from harken.text import Tokenizer
from harken.transcribe.fallback import decode_with_fallback
from harken.transcribe.hooks import Hooks
from harken.transcribe.options import TranscribeOptions
from harken.types import FRAMES_PER_SECOND

Probabilities = dict[str, float]
"""Of languages by their codes, most probable first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One window that waits to be decoded.

    Parameters
    ----------
    mel : ndarray of shape (1, n_mels, window_frames), float32
        The whole window.
    heard : int
        How many of its frames are tried first; a result that fails a threshold or says that nothing was spoken is
        not relied on where that is less than all of it.
    seek : int
        Frame of the recording where the window begins.
    opens : bool
        Whether it is the first of its recording.
    language : callable
        Answers with the language to decode in; may ask for the probabilities in this window.
    prompt : callable
        Makes the prompt for a language.
    account : callable
        Told what decoding has cost.
    hooks : Hooks
    previous : tuple of int
        What has been sampled of it before, as a draft.
    """

    mel: Floats
    heard: int
    seek: int
    opens: bool
    language: Callable[[Callable[[], Probabilities]], str]
    prompt: Callable[[str], tuple[int, ...]]
    account: Callable[[DecodeStats], None]
    hooks: Hooks
    previous: tuple[int, ...] = ()

    @property
    def start_s(self) -> float:
        """Where the window begins in the recording."""
        return self.seek / FRAMES_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a window: the result that was kept, all that was tried, and which features it comes from."""

    decoded: Decoded
    attempts: tuple[Attempt, ...]
    language: str
    features: Features
    audio: int


@dataclass(slots=True)
class Hearing:
    """A model and the options that it works with.

    Parameters
    ----------
    backend : Backend
    tokenizer : Tokenizer
    options : TranscribeOptions
    speculator : Speculator or None
        Drafts what is decoded.
    clock : callable
        Seconds, for the account of what encoding and decoding take.

    Attributes
    ----------
    exact : bool
        Whether windows are the reference's, frame by frame.
    stats : DecodeStats
        What all that was heard has cost.
    """

    backend: Backend
    tokenizer: Tokenizer
    options: TranscribeOptions
    speculator: Speculator | None = None
    clock: Callable[[], float] = float
    exact: bool = field(init=False)
    stats: DecodeStats = field(init=False, default_factory=DecodeStats)
    _rules: Rules = field(init=False)
    _opening_rules: Rules = field(init=False)

    def __post_init__(self) -> None:
        options = self.options
        self.exact = options.is_exact(self.backend.capabilities.precision)
        make = partial(
            make_rules,
            self.tokenizer,
            timestamps=options.timestamps,
            suppress_tokens=options.suppress_tokens,
            suppress_blank=options.suppress_blank,
            max_initial_timestamp_s=options.max_initial_timestamp_s,
            suppress_regex=options.suppress_regex,
            hotwords=options.hotwords,
        )
        self._rules = make()
        prefix = self.encode(options.prefix)
        self._opening_rules = make(prefix=prefix) if prefix else self._rules

    def encode(self, text: str | None) -> list[int]:
        """Tokens of a text as it stands behind other text; none of no text."""
        return self.tokenizer.encode(" " + text.strip()) if text else []

    def languages(self, mel: Floats) -> list[Probabilities]:
        """Probability of each allowed language in each window."""
        return self._languages(self.backend.encode(mel))

    def decode(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Decode windows, one outcome each; what they say does not depend on which are decoded together."""
        outcomes = self._hear(jobs, [job.heard for job in jobs])
        doubts = {
            i: reason
            for i, (job, outcome) in enumerate(zip(jobs, outcomes, strict=True))
            if job.heard < job.mel.shape[-1] and (reason := self._doubt(outcome.decoded))
        }
        whole = [replace(jobs[i], previous=outcomes[i].decoded.hypothesis.tokens) for i in doubts]
        for i, outcome in zip(doubts, self._hear(whole, [job.mel.shape[-1] for job in whole]), strict=True):
            reason = f"{doubts[i]}, in the part of the window that was heard"
            rejected = replace(outcomes[i].attempts[0], reason=reason)
            outcomes[i] = replace(outcome, attempts=(rejected, *outcome.attempts))
        for job, outcome in zip(jobs, outcomes, strict=True):
            job.hooks.decided(job.start_s, outcome.decoded, outcome.attempts)
        return outcomes

    def _hear(self, jobs: Sequence[Job], frames: Sequence[int]) -> list[Outcome]:
        """Decode so many frames of each window, together those that are alike in it."""
        kinds = [(size, job.opens) for job, size in zip(jobs, frames, strict=True)]
        members = {kind: [i for i, its in enumerate(kinds) if its == kind] for kind in dict.fromkeys(kinds)}
        groups = {
            kind: _Group(self, np.concatenate([jobs[i].mel[:, :, : kind[0]] for i in its]))
            for kind, its in members.items()
        }
        # In the order of the windows, whatever their lengths: what is known of a recording's language grows with them.
        languages = [
            job.language(partial(groups[kind].language, members[kind].index(i)))
            for i, (job, kind) in enumerate(zip(jobs, kinds, strict=True))
        ]
        outcomes: dict[int, Outcome] = {}
        for kind, its in members.items():
            heard = self._decode_group(groups[kind], [jobs[i] for i in its], [languages[i] for i in its], *kind)
            outcomes.update(zip(its, heard, strict=True))
        return [outcomes[i] for i in range(len(jobs))]

    def _decode_group(
        self, group: _Group, jobs: Sequence[Job], languages: Sequence[str], size: int, opens: bool
    ) -> list[Outcome]:
        options = self.options
        if any(size < job.mel.shape[-1] for job in jobs):
            options = replace(options, temperatures=options.temperatures[:1])
        windows = []
        for audio, (job, language) in enumerate(zip(jobs, languages, strict=True)):
            prompt = job.prompt(language)
            job.hooks.window(job.start_s, prompt)
            seed = (options.seed, job.seek)
            windows.append(Window(audio=audio, prompt=prompt, seed=seed, previous=job.previous))
        callers = list(dict.fromkeys(job.hooks for job in jobs))

        def observe(step: Step) -> None:
            for hooks in callers:
                hooks.on_step(step)

        began = self.clock()
        kept, stats = decode_with_fallback(
            self.backend,
            group.features,
            windows,
            tokenizer=self.tokenizer,
            rules=self._opening_rules if opens else self._rules,
            options=options,
            observe=observe,
            attention=options.word_timestamps or options.hallucination_threshold is not None,
            drafter=group.drafter,
        )
        stats += DecodeStats(encode_s=group.encode_s, decode_s=self.clock() - began)
        self.stats += stats
        for account in dict.fromkeys(job.account for job in jobs):
            account(stats)
        return [
            Outcome(decoded=decoded, attempts=attempts, language=language, features=group.features, audio=audio)
            for audio, ((decoded, attempts), language) in enumerate(zip(kept, languages, strict=True))
        ]

    def _languages(self, features: Features) -> list[Probabilities]:
        return language_probabilities(self.backend, features, self.tokenizer, self.options.languages)

    def _doubt(self, decoded: Decoded) -> str | None:
        """Why a result of a part of a window is not relied on."""
        return self.options.rejection(decoded) or ("no speech" if self.options.is_silence(decoded) else None)


class _Group:
    """Windows of one length, encoded together; their languages are looked for once, and only if somebody asks."""

    def __init__(self, hearing: Hearing, mel: Floats) -> None:
        self._hearing = hearing
        began = hearing.clock()
        self.features = hearing.backend.encode(mel)
        self.encode_s = hearing.clock() - began
        self.drafter = hearing.speculator.listen(mel, self.features) if hearing.speculator else None
        self._found: list[Probabilities] = []

    def language(self, audio: int) -> Probabilities:
        """Probabilities in one of the windows."""
        self._found = self._found or self._hearing._languages(self.features)
        return self._found[audio]
