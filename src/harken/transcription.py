"""The transcription of one recording while it is in progress, also of its channels: each on its own, merged by time."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from heapq import merge
from itertools import chain, islice, takewhile
from math import inf
from operator import attrgetter, itemgetter
from threading import RLock
from typing import TypeVar

from harken.decoding import DecodeStats
from harken.errors import HarkenError, refuse_pickling
from harken.results import DroppedSegment, Segment, SpeakerTurn, Transcript, Word, speakers_of
from harken.speakers.clustering import MAX_PAUSE_S, Stretch, join_over_pauses
from harken.speakers.diarizer import Diarization
from harken.transcribe import RecordingTranscriber, Scheduler
from harken.transcribe.options import ProgressCallback

SpokenT = TypeVar("SpokenT", Segment, Word)
_by_start: Callable[[Segment], float] = attrgetter("start_s")


class DecodingTurn:
    """The right to decode, held by one thread at a time: recordings that were given together share their decoder."""

    def __init__(self) -> None:
        self.lock = RLock()
        self._taken = False

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Wait for other threads, and keep them waiting."""
        with self.lock:
            if self._taken:
                raise HarkenError("a callback asked for segments that its own transcription is decoding")
            try:
                self._taken = True
                yield
            finally:
                self._taken = False


class Transcription:
    """A transcription in progress: iterate over it for the segments as they are decoded.

    Iterating again starts from the first segment and decodes nothing twice. An error that ended the decoding is raised
    again after the last segment. Several threads may iterate at once: one decodes, the others wait for it.
    """

    def __init__(
        self,
        recording: RecordingTranscriber,
        scheduler: Scheduler,
        model: str,
        turn: DecodingTurn,
        diarization: Diarization | None = None,
    ) -> None:
        self._recording, self._scheduler, self._model, self._turn = recording, scheduler, model, turn
        self._diarization, self._attributed = diarization, False
        self._decoded: list[Segment] = []
        # Those that have been returned: with a diarizer at the end, as only then it is known who speaks.
        self._segments: list[Segment] = [] if diarization else self._decoded
        self._failure: BaseException | None = None

    __reduce__ = refuse_pickling

    def __iter__(self) -> Iterator[Segment]:
        index = 0
        while index < len(self._segments) or self._decode_until(index):
            yield self._segments[index]
            index += 1

    def _decode_until(self, index: int) -> bool:
        """Decode the segment of an index unless another thread does; return False if there is none."""
        while index >= len(self._segments):
            with self._turn.taken():
                if index < len(self._segments):
                    break
                ended = self.finished
                try:
                    self._advance()
                except Exception:
                    if index >= len(self._segments):
                        raise  # else it is raised again behind the segments that are there by now
                if ended:
                    return False
        return True

    def step(self) -> list[Segment]:
        """Decode at most one window, and return the segments that it completes.

        For programs that do other work between the steps. A step may also pass over some minutes without speech, and
        return nothing. With recordings that were given together, a step decodes up to `batch_size` windows of them.

        Returns
        -------
        list of Segment
            Those that no step and no iteration has returned before.

        Raises
        ------
        HarkenError
            What ended the decoding, once all segments before it have been returned. Whatever else breaks off a step,
            such as Ctrl-C, ends it too, and is raised again by further ones.
        """
        with self._turn.taken():
            return self._advance(stepwise=True)

    def _advance(self, *, stepwise: bool = False) -> list[Segment]:
        """Decode on and return what that completes; what breaks it off is remembered, and raised again."""
        if self._failure:
            raise self._failure
        try:
            return self._decode(stepwise)
        except BaseException as failure:
            self._failure = failure
            self.stop()  # else its traceback would keep the file and the journal open
            if isinstance(failure, Exception):  # an interruption does not wait for speakers
                self._take()
            raise

    def _decode(self, stepwise: bool) -> list[Segment]:
        recording = self._recording
        recording.report_progress()  # the caller has the segments up to there
        if not (recording.ready_segments or recording.finished):
            self._scheduler.advance(stepwise=stepwise)
        segments = self._take()
        if stepwise or not segments:
            recording.report_progress()
        if not segments and recording.failure:
            raise recording.failure
        return segments

    def _take(self) -> list[Segment]:
        """Take the segments that can be returned now, and return them."""
        recording = self._recording
        segments = [*recording.ready_segments]
        self._decoded += segments
        recording.ready_segments.clear()
        if self._diarization:
            segments = []
            if recording.finished and not self._attributed:
                segments = self._with_speakers(self._diarization, self._decoded)
                self._segments += segments
                self._attributed = True
        return segments

    def _with_speakers(self, diarization: Diarization, decoded: Sequence[Segment]) -> list[Segment]:
        return diarization.attribute(decoded, self._recording.window_decoder.tokenizer.encode)

    @property
    def finished(self) -> bool:
        """True once all segments have been decoded and returned, and the error that ended the decoding raised."""
        recording = self._recording
        waiting = recording.ready_segments or (self._diarization and not self._attributed)
        return bool(self._failure) or (recording.finished and not waiting and not recording.failure)

    @property
    def read_s(self) -> float:
        """Seconds of the recording that have been read."""
        return self._recording.duration_s

    @property
    def done_s(self) -> float:
        """Seconds of the recording that have been decoded."""
        return self._recording.done_s

    @property
    def language(self) -> str | None:
        """Code of the language; None until the first window has been decoded."""
        return self._recording.language

    @property
    def stats(self) -> DecodeStats:
        """Decoding statistics so far; a pass over windows of several recordings counts for each of them."""
        return self._recording.stats

    @property
    def batch_stats(self) -> DecodeStats:
        """Decoding statistics so far of all recordings that were given together."""
        return self._scheduler.stats

    @property
    def text(self) -> str:
        """Text of the whole recording; decodes the rest of it first."""
        return self.result().text

    @property
    def peak(self) -> float | None:
        """Largest magnitude of the samples so far, 0 in digital silence; None without voice activity detection."""
        return self._recording.peak

    def stop(self) -> None:
        """Stop decoding this recording."""
        with self._turn.lock:
            self._recording.stop()

    def so_far(self) -> Transcript:
        """Return the transcript of what has been decoded so far; never waits for a thread that decodes."""
        ready = tuple(self._recording.ready_segments)  # before the others, to which they are added
        segments = [*self._decoded]
        segments += [segment for segment in ready if segment.index >= len(segments)]
        diarization = self._diarization
        if diarization:
            segments = self._segments if self._attributed else self._with_speakers(diarization, segments)
        return Transcript(
            segments=tuple(segments),
            language=self._recording.language or "en",
            language_probability=self._recording.language_probability,
            duration_s=self._recording.duration_s,
            model=self._model,
            task=self._recording.options.task,
            dropped=tuple(self._recording.dropped),
            speech=self._recording.speech,
            unwritten=tuple(self._recording.unwritten),
            speakers=diarization.speakers if diarization else None,
            turns=diarization.turns if diarization else (),
        )

    def result(self) -> Transcript:
        """Decode the rest of the recording, and return the whole transcript."""
        for _ in self:
            pass
        return self.so_far()


class ChannelsTranscription(Transcription):
    """A transcription in progress of several channels, whose speakers are named ``channel 1``, ``channel 2``, ...

    Of channels whose speakers are told apart, they are ``channel 1 A`` and so on. The first step opens the recording,
    and with it the transcription of each channel.
    """

    def __init__(
        self,
        open_channels: Callable[[], Sequence[Transcription]],
        on_progress: ProgressCallback,
        *,
        model: str,
        task: str,
    ) -> None:
        # None once they are open: it holds the audio.
        self._open_channels: Callable[[], Sequence[Transcription]] | None = open_channels
        self._on_progress = on_progress
        self._empty = Transcript(segments=(), language="en", duration_s=0.0, model=model, task=task)
        self._reported_s = 0.0
        self._channels: Sequence[Transcription] = ()
        self._channel_failure: HarkenError | None = None
        self._waiting: list[deque[Segment]] = []
        self._segments = []
        self._failure = None
        self._turn = DecodingTurn()

    def _decode(self, stepwise: bool) -> list[Segment]:
        self._report()
        try:
            self._step_behind()
        except HarkenError as failure:
            self._channel_failure = self._channel_failure or failure
            self._open_channels = None  # it could not be opened
        segments = self._take()
        if stepwise or not segments:
            self._report()
        if not segments and self._channel_failure and self._all_returned:
            raise self._channel_failure
        return segments

    def _step_behind(self) -> None:
        """Open the recording, or take a step of the channel that is most behind of those that hold up the others."""
        if self._open_channels:
            self._channels = self._open_channels()
            self._waiting = [deque() for _ in self._channels]
            self._open_channels = None
        elif behind := self._without_segments():
            channel, waiting = min(behind, key=lambda each: each[0].done_s)
            waiting.extend(channel.step())

    def _report(self) -> None:
        """Report the progress of the channel that is most behind, and the end once."""
        ended = self._all_returned
        done_s = inf if ended else self.done_s
        if done_s > self._reported_s:
            self._reported_s = done_s
            self._on_progress(self.read_s if ended else done_s, ended)

    def _without_segments(self) -> list[tuple[Transcription, deque[Segment]]]:
        """Return the channels that may have segments before those that wait."""
        channels = zip(self._channels, self._waiting, strict=True)
        return [(channel, waiting) for channel, waiting in channels if not (waiting or channel.finished)]

    def _take(self) -> list[Segment]:
        """Take the segments before which no channel can have another one, and return them."""
        n_before = len(self._segments)
        while any(self._waiting) and not self._without_segments():
            index = min(
                range(len(self._waiting)),
                key=lambda index: self._waiting[index][0].start_s if self._waiting[index] else inf,
            )
            self._segments.append(_named(self._waiting[index].popleft(), index, len(self._segments)))
        return self._segments[n_before:]

    @property
    def _all_returned(self) -> bool:
        waiting = self._open_channels or any(self._waiting)
        return not waiting and all(channel.finished for channel in self._channels)

    @property
    def finished(self) -> bool:
        """True once all segments have been returned, and the error that ended a channel raised; or an interruption."""
        return bool(self._failure) or (self._all_returned and not self._channel_failure)

    @property
    def read_s(self) -> float:
        """Seconds of the recording that have been read."""
        return max((channel.read_s for channel in self._channels), default=0.0)

    @property
    def done_s(self) -> float:
        """Seconds of the recording that have been decoded, of all channels."""
        return min((channel.done_s for channel in self._channels), default=0.0)

    @property
    def language(self) -> str | None:
        """Code of the language of the first channel whose language is known."""
        return next((channel.language for channel in self._channels if channel.language), None)

    @property
    def stats(self) -> DecodeStats:
        """Decoding statistics of all channels so far."""
        return sum((channel.stats for channel in self._channels), DecodeStats())

    @property
    def batch_stats(self) -> DecodeStats:
        """Decoding statistics so far of all recordings that were given together."""
        return self._channels[0].batch_stats if self._channels else DecodeStats()

    @property
    def peak(self) -> float | None:
        """Largest magnitude of the samples so far; None without voice activity detection."""
        return max((channel.peak or 0.0 for channel in self._channels), default=None)

    def stop(self) -> None:
        """Stop decoding this recording."""
        with self._turn.lock:
            self._open_channels = None
            for channel in self._channels:
                channel.stop()

    def so_far(self) -> Transcript:
        """Return the transcript of what has been decoded so far."""
        transcripts = [channel.so_far() for channel in self._channels] or [self._empty]
        named = [
            [_named(segment, index, 0) for segment in transcript.segments]
            for index, transcript in enumerate(transcripts)
        ]
        segments = tuple(
            replace(segment, index=index) for index, segment in enumerate(merge(*named, key=_by_start))
        )
        spoken = next((each for each in transcripts if each.segments), transcripts[0])
        turns = [
            turn
            for index, transcript in enumerate(transcripts)
            for turn in _turns(transcript, index, named[index])
        ]
        return replace(
            spoken,
            segments=segments,
            duration_s=max(each.duration_s for each in transcripts),
            dropped=tuple(_renumbered(chain.from_iterable(each.dropped for each in transcripts), segments)),
            speech=_joined(each.speech for each in transcripts),
            unwritten=tuple(
                sorted(chain.from_iterable(each.unwritten for each in transcripts), key=attrgetter("start_s"))
            ),
            speakers=speakers_of(turns),
            turns=tuple(sorted(turns, key=attrgetter("start_s"))),
        )


def _name(channel: int, speaker: str = "") -> str:
    return f"channel {channel + 1} {speaker}".rstrip()


def _named(segment: Segment, channel: int, index: int) -> Segment:
    """Return a segment with the name of its channel before that of its speaker."""
    words = tuple(_with_channel(word, channel) for word in segment.words)
    return replace(_with_channel(segment, channel), index=index, words=words)


def _with_channel(spoken: SpokenT, channel: int) -> SpokenT:
    return replace(spoken, speakers=tuple(_name(channel, each) for each in spoken.speakers or ("",)))


def _turns(transcript: Transcript, channel: int, named: Iterable[Segment]) -> Iterator[SpeakerTurn]:
    """Yield the turns of a channel: its segments without the pauses in them, unless its speakers are told apart."""
    if transcript.speakers is None:
        spoken = [span for segment in named for span in _spoken(segment, transcript.speech)]
        for start_s, end_s in join_over_pauses(sorted(spoken), MAX_PAUSE_S):
            yield SpeakerTurn(start_s=start_s, end_s=end_s, speaker=_name(channel))
    for turn in transcript.turns:
        yield replace(turn, speaker=_name(channel, turn.speaker))


def _spoken(segment: Segment, speech: Sequence[Stretch] | None) -> Sequence[Stretch]:
    """Return the stretches of a segment in which somebody speaks: its words, or the detected speech in it."""
    if segment.words:
        return [(word.start_s, word.end_s) for word in segment.words]
    first = bisect_right(speech or (), segment.start_s, key=itemgetter(1))
    near = takewhile(lambda region: region[0] < segment.end_s, islice(speech or (), first, None))
    inside = [(max(start_s, segment.start_s), min(end_s, segment.end_s)) for start_s, end_s in near]
    return inside or [(segment.start_s, segment.end_s)]


def _renumbered(dropped: Iterable[DroppedSegment], segments: Sequence[Segment]) -> Iterator[DroppedSegment]:
    """Yield dropped segments in order of time, each with the number of the segment behind it."""
    for each in sorted(dropped, key=lambda each: each.segment.start_s):
        index = sum(segment.start_s < each.segment.start_s for segment in segments)
        yield replace(each, segment=replace(each.segment, index=index))


def _joined(regions: Iterable[Sequence[Stretch] | None]) -> tuple[Stretch, ...] | None:
    """Return the stretches in which there is speech in any channel; None without voice activity detection."""
    of_channels = [*regions]
    if None in of_channels:
        return None
    return tuple(join_over_pauses(sorted(chain.from_iterable(filter(None, of_channels))), 0.0))
