"""What streams ask for, and who does it for several of them at once.

A stream is a generator that yields a piece of `Work` where it needs the model, and is sent what came of it. So it waits
for nobody, and whoever drives some of them decides what is done together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

from harken.contract import Backend, Encoder, Features
from harken.decoding import (
    DecodeStats,
    Growing,
    Grown,
    decode_growing,
    language_probabilities,
    make_prompt,
    make_rules,
)
from harken.results import Segment
from harken.streaming.finals import Finals, Utterance
from harken.streaming.running import Sound
from harken.text import resolve
from harken.transcribe import Hearing


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Update:
    """Hear the next window of an utterance, and what is said in it by now.

    Parameters
    ----------
    encoder : Encoder
    history_frames : int
        With which the encoder was opened.
    sound : Sound
    committed, previous : tuple of int
        As for `harken.decoding.Growing`.
    before : tuple of int
        Text of the stream before the utterance.
    language : str or None
        Its code, if it is known.
    likely : str or None
        That of the utterance before it.
    """

    encoder: Encoder
    history_frames: int
    sound: Sound
    committed: tuple[int, ...]
    previous: tuple[int, ...]
    before: tuple[int, ...]
    language: str | None
    likely: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """What came of an update.

    Parameters
    ----------
    grown : Grown
    language : str
        In which it is.
    sure : bool
        Whether that is known, by enough of the sound.
    """

    grown: Grown
    language: str
    sure: bool = True


ENOUGH_POSITIONS = 100
"""2 s: of less sound a language is often mistaken."""

Work = Update | Utterance
"""Of an utterance that goes on, or one that has ended (see `harken.streaming.finals`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A piece of work that has been done.

    Parameters
    ----------
    updated : Updated or None
        What came of an update.
    segments : tuple of Segment
        What came of an utterance.
    compute_s : float
        What it took, with whatever was done together with it.
    """

    updated: Updated | None = None
    segments: tuple[Segment, ...] = ()
    compute_s: float = 0.0


Steps = Generator[Work, Done, None]
"""A stream that goes on as far as it can, asking for work on the way."""


class Worker:
    """Does the work of streams.

    Parameters
    ----------
    hearing : Hearing
        The model, and the options of a transcription.
    clock : callable
        Seconds, for the account of what computing takes.
    batch_size : int
        Most utterances to decode together.

    Attributes
    ----------
    stats : DecodeStats
        What all updates have cost.
    compute_s : float
        What all work has taken.
    """

    def __init__(self, hearing: Hearing, clock: Callable[[], float] = float, batch_size: int = 16) -> None:
        self.backend: Backend = hearing.backend
        self.tokenizer, self.options = hearing.tokenizer, hearing.options
        self.stats = DecodeStats()
        self.compute_s = 0.0
        self._clock = clock
        self._finals = Finals(hearing, batch_size)
        self._known = resolve(self.options.language) if self.options.language is not None else None
        options = self.options
        self._rules = make_rules(
            self.tokenizer,
            timestamps=False,
            suppress_tokens=options.suppress_tokens,
            suppress_blank=options.suppress_blank,
            suppress_regex=options.suppress_regex,
            hotwords=options.hotwords,
        )
        self._prompted = tuple(hearing.encode(options.initial_prompt))

    def drive(self, streams: Sequence[Steps]) -> None:
        """Let streams go on as far as they can; what they ask for at the same time is done together."""
        waiting = {i: work for i, steps in enumerate(streams) if (work := next(steps, None))}
        while waiting:
            done = self._do([*waiting.values()])
            waiting = {
                i: work
                for i, its in zip([*waiting], done, strict=True)
                if (work := _send(streams[i], its)) is not None
            }

    def _do(self, works: Sequence[Work]) -> list[Done]:
        updates = [work for work in works if isinstance(work, Update)]
        utterances = [work for work in works if isinstance(work, Utterance)]
        began = self._clock()
        updated = iter(self._update(updates) if updates else [])
        updates_s = self._clock() - began
        segments = iter(self._finals.hear(utterances) if utterances else [])
        all_s = self._clock() - began
        self.compute_s += all_s
        return [
            Done(updated=next(updated), compute_s=updates_s)
            if isinstance(work, Update)
            else Done(segments=next(segments), compute_s=all_s)
            for work in works
        ]

    def _update(self, updates: Sequence[Update]) -> list[Updated]:
        self._hear(updates)
        features = self.backend.gather([update.encoder for update in updates])
        languages = self._languages(updates, features)
        windows = [
            Growing(
                audio=audio,
                prompt=self._prompt(language, update.before),
                committed=update.committed,
                previous=update.previous,
                positions=update.sound.positions,
                margin=update.sound.margin,
            )
            for audio, (update, (language, _)) in enumerate(zip(updates, languages, strict=True))
        ]
        grown, stats = decode_growing(self.backend, features, windows, self._rules, self.tokenizer)
        self.stats += stats
        return [
            Updated(grown=its, language=language, sure=sure)
            for its, (language, sure) in zip(grown, languages, strict=True)
        ]

    def _hear(self, updates: Sequence[Update]) -> None:
        """Encode windows of one size together."""
        sizes = [(its.sound.mel.shape, its.sound.keep, its.history_frames) for its in updates]
        for size in dict.fromkeys(sizes):
            alike = [update for update, its in zip(updates, sizes, strict=True) if its == size]
            mel = np.stack([update.sound.mel for update in alike])
            self.backend.hear([update.encoder for update in alike], mel, alike[0].sound.keep)

    def _languages(self, updates: Sequence[Update], features: Features) -> list[tuple[str, bool]]:
        """Language of each, and whether it is known; if not, that of the utterance before is as good a guess."""
        given = [update.language or self._known for update in updates]
        if None not in given:
            return [(language, True) for language in given if language is not None]
        probabilities = language_probabilities(self.backend, features, self.tokenizer, self.options.languages)
        languages = []
        for update, language, found in zip(updates, given, probabilities, strict=True):
            best, probability = next(iter(found.items()))
            heard = update.sound.positions >= ENOUGH_POSITIONS or not self.tokenizer.multilingual
            sure = heard and probability >= self.options.language_threshold
            languages.append((language, True) if language else (best if sure else update.likely or best, sure))
        return languages

    def _prompt(self, language: str, before: Sequence[int]) -> tuple[int, ...]:
        return make_prompt(
            self.tokenizer,
            self.backend.dims.n_text_ctx,
            language=language,
            task=self.options.task,
            timestamps=False,
            carried=self._prompted,
            previous=before,
        )


def _send(steps: Steps, done: Done) -> Work | None:
    try:
        return steps.send(done)
    except StopIteration:
        return None
