"""One stream: samples go in, work is asked for where the model is needed, events come out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harken.audio.vad import CHUNK_SAMPLES, SpeechDetector
from harken.contract import Floats
from harken.decoding import Grown
from harken.results import Segment
from harken.streaming.budget import Plan
from harken.streaming.endpoints import Began, Ended, Endpointer
from harken.streaming.events import Committed, Event, Interim, LoadChanged, SpeechEnded, SpeechStarted
from harken.streaming.finals import Utterance
from harken.streaming.load import LEVELS, Load, apply
from harken.streaming.noise import USUAL_FRAMES, SignalToNoise, window_for
from harken.streaming.options import StreamOptions
from harken.streaming.presets import adapted
from harken.streaming.running import CLOSING_QUIET_FRAMES, ROUND_FRAMES, Cut, Running, Sound, Spoken
from harken.streaming.setting import Setting
from harken.streaming.tape import Tape
from harken.streaming.telling import ends_sentence, is_invented, segments, shown, words
from harken.streaming.work import Done, Steps, Update, Work, Worker
from harken.types import FRAMES_PER_SECOND, FRAMES_PER_STEP, HOP_SAMPLES, SAMPLE_RATE

SENTENCE_FRAMES = 3 * FRAMES_PER_SECOND
"""So long an utterance is before the end of a sentence counts in it."""


class Stream:
    """One stream on its way.

    Parameters
    ----------
    worker : Worker
        For whom its work is meant: the encoder is opened there.
    options : StreamOptions
    plan : Plan

    Attributes
    ----------
    events : list of Event
        What has happened and not been taken yet.
    """

    def __init__(self, worker: Worker, options: StreamOptions, plan: Plan) -> None:
        self._worker, self._options, self._plan = worker, options, plan
        self.events: list[Event] = []
        self._load = Load(plan.setting, most=len(LEVELS) - 1 if options.finals == "exact" else len(LEVELS) - 2)
        self._detector, self._noise = SpeechDetector(), SignalToNoise()
        self._endpointer = Endpointer(
            worker.options.vad_options(),
            sentence_pause_s=options.sentence_pause_s,
            pause_s=options.pause_s,
            limit_frames=FRAMES_PER_STEP * worker.backend.dims.n_audio_ctx
            - CLOSING_QUIET_FRAMES
            - ROUND_FRAMES,
        )
        self._sound, self._speech = Tape(), Tape()
        self._now = 0
        self._window_frames = USUAL_FRAMES
        self._running: Running | None = None
        self._cut: Cut | None = None
        self._told: tuple[str, str] = ("", "")
        self._told_tokens = 0
        self._before: tuple[int, ...] = ()
        self._language: str | None = None
        self._segments = 0

    def feed(self, samples: Floats) -> Steps:
        """Take the next samples, float32 at 16 kHz."""
        self._sound.add(samples)
        yield from self._hear(self._detector.feed(samples))
        yield from self._update_until(self._sound.end)

    def flush(self) -> Steps:
        """End the utterance that is going on."""
        self._now = self._sound.end
        for happened in self._endpointer.flush(self._sound.end // HOP_SAMPLES):
            yield from self._turn(happened)

    def close(self) -> Steps:
        """End the stream."""
        yield from self._hear(self._detector.flush())
        self._now = self._sound.end
        for happened in self._endpointer.close(self._sound.end // HOP_SAMPLES):
            yield from self._turn(happened)

    def take_events(self) -> list[Event]:
        """What has happened since it was asked last."""
        taken, self.events = self.events, []
        return taken

    def _hear(self, probabilities: Floats) -> Steps:
        """Go through chunks in order of time, whatever was fed together."""
        for probability in probabilities.tolist():
            start = self._speech.end * CHUNK_SAMPLES
            end = min(start + CHUNK_SAMPLES, self._sound.end)
            yield from self._update_until(end)
            self._now = end
            self._speech.add(np.array([probability], np.float32))
            self._noise.hear(self._sound.between(start, end), [probability] * (end - start == CHUNK_SAMPLES))
            for happened in self._endpointer.hear(probability, sentence_ended=self._sentence_ended):
                yield from self._turn(happened)
            needed = min(self._endpointer.needed_frames * HOP_SAMPLES, self._now)
            self._sound.forget(needed)
            self._speech.forget(needed // CHUNK_SAMPLES)

    def _turn(self, happened: Began | Ended) -> Steps:
        if isinstance(happened, Ended):
            yield from self._end(happened)
        else:
            self._begin(happened)

    def _begin(self, began: Began) -> None:
        cut, self._cut = self._cut, None
        self._running = Running(
            encoder=self._worker.backend.open_encoder(self._plan.setting.history_frames),
            n_mels=self._worker.backend.dims.n_mels,
            start_frame=began.frame,
            committed=cut.committed if cut else [],
            tentative=cut.tentative if cut else (),
            language=self._language if cut else None,
        )
        self._told, self._told_tokens = ("", ""), len(self._running.committed)
        self._tell(SpeechStarted, began.frame / FRAMES_PER_SECOND, Done())

    def _update_until(self, end: int) -> Steps:
        """Do the updates that are due up to some sample."""
        while (running := self._running) is not None:
            setting = self._setting()
            due = max(running.due_sample(setting), self._now)
            if due > end:
                break
            self._now = due
            running.take_samples(self._sound.between(running.wanted_sample, due))
            done = yield self._asked(running, running.next_window(setting))
            assert done.updated, "an update gives a hypothesis"
            if done.updated.sure:
                running.language = done.updated.language
            grown = done.updated.grown
            if self._is_invented(running, grown):
                running.doubt(grown)
            else:
                running.take(grown, setting, self._worker.tokenizer)
                self._show(running, done)
            self._book(done)

    def _end(self, ended: Ended) -> Steps:
        """Give the final text of the utterance."""
        running, self._running = self._running, None
        assert running, "what ends has begun"
        exact = self._options.finals == "exact" and LEVELS[self._load.level].exact_finals
        done = Done()
        if exact:
            done = yield Utterance(
                samples=self._sound.between(running.start_sample, ended.frame * HOP_SAMPLES),
                start_s=running.start_frame / FRAMES_PER_SECOND,
                previous=running.tokens,
            )
        elif not ended.goes_on or not running.has_decoded(ended.frame):
            done = yield from self._hear_last(running, ended.frame)
        spoken = running.committed
        if ended.goes_on:
            self._cut = running.cut(ended.frame, self._worker.tokenizer)
            spoken = self._cut.before
        final = done.segments if exact else self._streamed(running, spoken)
        self._language = running.language or self._language
        for segment in final:
            self._tell(Committed, segment.end_s, done, segment=replace(segment, index=self._segments))
            self._segments += 1
        if self._worker.options.condition_on_previous_text:
            self._before = self._with_text(final)
        self._tell(SpeechEnded, ended.frame / FRAMES_PER_SECOND, done, reason=ended.reason)
        self._book(done)

    def _hear_last(self, running: Running, end_frame: int) -> Generator[Work, Done, Done]:
        """Hear the utterance to its end."""
        end = min(end_frame * HOP_SAMPLES, self._sound.end)
        if end > running.wanted_sample:
            running.take_samples(self._sound.between(running.wanted_sample, end))
        done = yield self._asked(running, running.last_window(end_frame))
        assert done.updated, "an update gives a hypothesis"
        running.language = running.language or done.updated.language
        if self._is_invented(running, done.updated.grown):
            running.doubt(done.updated.grown)
        else:
            running.take_last(done.updated.grown)
        return done

    def _streamed(self, running: Running, spoken: Sequence[Spoken]) -> list[Segment]:
        with_words = self._worker.options.word_timestamps
        its = segments(spoken, running, self._worker.tokenizer, with_words=with_words)
        return [segment for segment in its if segment.text.strip()]

    def _with_text(self, final: Sequence[Segment]) -> tuple[int, ...]:
        """The text before what is heard next, as much of it as fits into a prompt."""
        eot, most = self._worker.tokenizer.eot, self._worker.backend.dims.n_text_ctx
        tokens = (token for segment in final for token in segment.tokens if token < eot)
        return (*self._before, *tokens)[-most:]

    def _is_invented(self, running: Running, grown: Grown) -> bool:
        """Whether nothing of it is to be shown; what has been committed is not taken back."""
        threshold = self._worker.options.hallucination_threshold
        if running.committed or threshold is None:
            return False
        start = running.start_sample // CHUNK_SAMPLES
        speech = self._speech.between(start, self._speech.end)
        return is_invented(running, grown, speech, threshold, self._worker.tokenizer)

    @property
    def _sentence_ended(self) -> bool:
        """Whether a shorter pause may end the utterance; what is short is heard better with what follows it."""
        running = self._running
        if running is None or running.seen_frames < SENTENCE_FRAMES:
            return False
        return ends_sentence(running, self._worker.tokenizer)

    def _show(self, running: Running, done: Done) -> None:
        """Tell what is said by now, if that is news."""
        tokenizer = self._worker.tokenizer
        told, self._told = self._told, shown(running, tokenizer)
        if self._told != told:
            fresh, self._told_tokens = running.committed[self._told_tokens :], len(running.committed)
            committed, tentative = self._told
            self._tell(
                Interim,
                (running.start_frame + running.seen_frames) / FRAMES_PER_SECOND,
                done,
                committed=committed,
                tentative=tentative,
                words=tuple(words(fresh, running, tokenizer)),
            )

    def _asked(self, running: Running, sound: Sound) -> Update:
        return Update(
            encoder=running.encoder,
            history_frames=self._plan.setting.history_frames,
            sound=sound,
            committed=tuple(its.token for its in running.committed),
            previous=running.tentative,
            before=self._before,
            language=running.language,
            likely=self._language,
        )

    def _setting(self) -> Setting:
        """How to hear now: by the noise there is, and what the machine can keep up with."""
        setting = self._plan.setting
        if self._options.adaptive:
            self._window_frames = window_for(self._noise.snr_db, self._window_frames)
            setting = adapted(setting, self._window_frames)
        return apply(self._load.level, setting)

    def _book(self, done: Done) -> None:
        change = self._load.book(self._now / SAMPLE_RATE, done.compute_s)
        if change:
            what = {"level": change.level, "lag_s": change.lag_s, "detail": change.detail}
            self._tell(LoadChanged, self._now / SAMPLE_RATE, Done(), **what)

    def _tell(self, kind: Callable[..., Event], audio_s: float, done: Done, **what: Any) -> None:
        self.events.append(kind(audio_s=audio_s, emitted_samples=self._now, compute_s=done.compute_s, **what))
