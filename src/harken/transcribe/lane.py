"""A chain of windows, and the segments that come of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from harken.decoding import DecodeStats
from harken.errors import AudioError, HarkenError
from harken.results import Segment, Word
from harken.transcribe.alignment import Alignment, align_decoded, align_text, text_tokens
from harken.transcribe.guard import Facts, Verdict, assess, concentration
from harken.transcribe.hearing import Hearing, Job, Outcome, Probabilities
from harken.transcribe.hooks import Hooks
from harken.transcribe.options import TranscribeOptions
from harken.transcribe.packing import Spans, length
from harken.transcribe.segments import Cut, cut, earlier, ends_alone
from harken.transcribe.settle import settle
from harken.transcribe.views import View
from harken.transcribe.words import window_words
from harken.types import FRAMES_PER_SECOND, FRAMES_PER_STEP, TIMESTAMP_STEP_S


class Recording(Protocol):
    """What the chains of one recording have in common (`harken.transcribe.longform.LongForm`)."""

    hearing: Hearing
    options: TranscribeOptions
    hooks: Hooks
    finished: bool
    failure: HarkenError | None
    parallel: bool

    def heard_frames(self, frames: int) -> int: ...

    def settle_language(self, seek: int, frames: int, probabilities: Callable[[], Probabilities]) -> str: ...

    def prompt(self, language: str, previous: list[int]) -> tuple[int, ...]: ...

    def account(self, stats: DecodeStats) -> None: ...

    def speech_between(self, start: int, end_s: float) -> list[tuple[float, float]] | None: ...

    def speech_under(self, spans: Spans) -> float | None: ...


@dataclass(slots=True)
class Context:
    """What windows know of those before them.

    Attributes
    ----------
    previous : list of int
        Text tokens said before.
    last_speech_s : float
        Where the last word ended.
    """

    previous: list[int] = field(default_factory=list)
    last_speech_s: float = 0.0


class Lane:
    """A chain of windows: each begins where what was said in the one before it ended.

    Parameters
    ----------
    form : Recording
    view : View
        What the windows slide over.
    context : Context
    first : bool
        Whether it begins the recording.
    previous : tuple of int
        What is said in its first window, as far as that is known; a draft.

    Attributes
    ----------
    ended : bool
        Whether it has no more windows.
    done_s : float
        How far it has come in the recording.
    """

    def __init__(
        self,
        form: Recording,
        view: View,
        context: Context,
        *,
        first: bool,
        previous: tuple[int, ...] = (),
    ) -> None:
        self._form, self._view, self._context, self._first = form, view, context, first
        self._at, self._frames = 0, 0
        self._language: str | None = None
        self._segments: list[tuple[Segment, str | None]] = []
        self._unfinished = previous
        self.ended = False
        self.done_s = 0.0

    def job(self) -> Job | None:
        """The next window, if there is one."""
        form = self._form
        if form.finished:
            return None
        try:
            mel, self._frames = self._view.window(self._at)
        except AudioError as failure:
            form.failure, self._frames = failure, 0
        if not self._frames:
            self.ended = True
            return None
        return Job(
            mel=mel,
            heard=form.heard_frames(self._frames),
            seek=self._seek,
            opens=self._first and not self._at,
            language=self._settle_language,
            prompt=lambda language: form.prompt(language, self._context.previous),
            account=form.account,
            hooks=form.hooks,
            previous=self._unfinished,
        )

    def take(self, outcome: Outcome) -> None:
        """Cut what was said into segments and go on behind it."""
        form, decoded = self._form, outcome.decoded
        advance = self._frames / FRAMES_PER_STEP
        self._unfinished = ()
        if not form.options.is_silence(decoded):
            # A window without timestamps is one segment, whatever a model puts into it.
            tokenizer, tokens = form.hearing.tokenizer, decoded.hypothesis.tokens
            begin = tokenizer.timestamp_begin if form.options.timestamps else tokenizer.n_vocab
            # A text that ran out of tokens is not all that is said, even where that ends in the window.
            complete = len(decoded.hypothesis.logprobs) > len(tokens)
            cuts, advance = cut(tokens, begin, advance, whole=self._view.whole and complete)
            last_word_s = self._keep(cuts, outcome)
            # Source: openai/whisper, transcribe.py: with words, the next window begins behind the last of them.
            if last_word_s is not None and not (self._view.whole or ends_alone(tokens, begin)):
                behind = last_word_s * FRAMES_PER_SECOND - self._seek
                advance = behind / FRAMES_PER_STEP if round(behind) > 0 else advance  # else it would stay
            self._unfinished = earlier(tokens[sum(len(its.tokens) for its in cuts) :], begin, round(advance))
        self._at += min(round(advance * FRAMES_PER_STEP), self._frames)  # not into the padding
        self.done_s = self._view.end_s(self._at)
        if not form.parallel:  # else other lanes may have gone on, and what is known of the language with them
            self._language = None

    def take_segments(self) -> list[tuple[Segment, str | None]]:
        """What has been said since it was asked last, each with the reason if it was taken for invented."""
        taken, self._segments = self._segments, []
        return taken

    @property
    def _seek(self) -> int:
        """Frame of the recording where the next window begins."""
        return round(self._view.start_s(self._at) * FRAMES_PER_SECOND)

    def _settle_language(self, probabilities: Callable[[], Probabilities]) -> str:
        """Settled once a window, however often it is encoded."""
        if self._language is None:
            self._language = self._form.settle_language(self._seek, self._frames, probabilities)
        return self._language

    def _keep(self, cuts: Sequence[Cut], outcome: Outcome) -> float | None:
        """Keep the segments that say something; what they say is the next window's previous text.

        Returns
        -------
        float or None
            Where the last word ends, if words were asked for.
        """
        form, decoded = self._form, outcome.decoded
        options, tokenizer = form.options, form.hearing.tokenizer
        segments = [self._segment(piece, tokenizer.decode(piece.tokens), outcome) for piece in cuts]
        last_word_s = None
        if options.word_timestamps:
            segments = self._with_words(segments, cuts, outcome)
            last_word_s = next((its.words[-1].end_s for its in reversed(segments) if its.words), None)
        verdicts = self._verdicts(cuts, segments, outcome)
        for piece, segment, verdict in zip(cuts, segments, verdicts, strict=True):
            if piece.start >= piece.end or not segment.text.strip():
                continue
            segment = replace(segment, hallucination_score=round(verdict.score, 4))
            limit = options.hallucination_threshold
            if limit is not None and verdict.score >= limit:
                self._segments.append((segment, verdict.reason or f"score {verdict.score:.2f}"))
                continue
            self._segments.append((segment, None))
            self._context.previous += piece.tokens
        del self._context.previous[: -form.hearing.backend.dims.n_text_ctx]  # more than a prompt takes
        if decoded.temperature > options.prompt_reset_temperature or not options.condition_on_previous_text:
            self._context.previous.clear()
        return last_word_s

    def _segment(self, piece: Cut, text: str, outcome: Outcome) -> Segment:
        decoded = outcome.decoded
        start_s = self._view.start_s(self._place(piece.start))
        return Segment(
            index=0,
            start_s=start_s,
            end_s=max(start_s, self._view.end_s(self._place(piece.end))),
            text=text,
            tokens=piece.tokens,
            temperature=decoded.temperature,
            avg_logprob=decoded.hypothesis.avg_logprob,
            compression_ratio=decoded.compression_ratio,
            no_speech_prob=decoded.no_speech_prob,
            seek_s=self._seek / FRAMES_PER_SECOND,
            attempts=outcome.attempts,
            language=outcome.language,
        )

    def _place(self, step: float) -> float:
        """Frame of the view for a timestamp; those in the padding stand for the end of what the window holds."""
        return self._at + min(step * FRAMES_PER_STEP, self._frames)

    def _with_words(self, segments: Sequence[Segment], cuts: Sequence[Cut], outcome: Outcome) -> list[Segment]:
        """Find out when each word was spoken, and correct the segments by it."""
        form, options = self._form, self._form.options
        language = "en" if options.task == "translate" else outcome.language
        words, usual = window_words(
            cuts,
            self._alignment(cuts, outcome),
            form.hearing.tokenizer,
            language=language,
            prepended=options.prepend_punctuations,
            appended=options.append_punctuations,
        )

        def word(text: str, start: float, end: float, probability: float) -> Word:
            start_s = self._view.start_s(self._place(start))
            end_s = max(start_s, self._view.end_s(self._place(end)))
            return Word(text=text, start_s=start_s, end_s=end_s, probability=probability)

        timed = [
            replace(segment, words=tuple(word(w.text, w.start, w.end, w.probability) for w in its))
            for segment, its in zip(segments, words, strict=True)
        ]
        settled, self._context.last_speech_s = settle(
            timed,
            usual_s=usual * TIMESTAMP_STEP_S,
            last_speech_s=self._context.last_speech_s,
            speech=form.speech_between(self._seek, self._view.end_s(self._at + self._frames)),
        )
        return settled

    def _alignment(self, cuts: Sequence[Cut], outcome: Outcome) -> Alignment:
        """By what decoding listened to, or as the reference does, by reading the text once more."""
        hearing, steps = self._form.hearing, self._frames // FRAMES_PER_STEP
        if not hearing.exact:
            return align_decoded(outcome.decoded.hypothesis, cuts, hearing.tokenizer, steps)
        return align_text(
            hearing.backend,
            outcome.features,
            outcome.audio,
            text_tokens(cuts, hearing.tokenizer),
            hearing.tokenizer,
            steps,
            language=outcome.language,
            task=hearing.options.task,
        )

    def _verdicts(self, cuts: Sequence[Cut], segments: Sequence[Segment], outcome: Outcome) -> list[Verdict]:
        """How likely each segment was invented."""
        attention = outcome.decoded.hypothesis.attention
        eot, first, verdicts = self._form.hearing.tokenizer.eot, 0, []
        for piece, segment in zip(cuts, segments, strict=True):
            spans = self._view.spans(round(self._place(piece.start)), round(self._place(piece.end)))
            rows = [first + i for i, token in enumerate(piece.tokens) if token < eot]
            first += len(piece.tokens)
            facts = Facts(
                text=segment.text,
                tokens=len(rows),
                duration_s=length(spans) / FRAMES_PER_SECOND,
                avg_logprob=segment.avg_logprob,
                no_speech_prob=segment.no_speech_prob,
                compression_ratio=segment.compression_ratio,
                speech_prob=self._form.speech_under(spans),
                attention=None
                if attention is None
                else concentration(attention[:, rows], self._frames // FRAMES_PER_STEP),
            )
            verdicts.append(assess(facts))
        return verdicts
