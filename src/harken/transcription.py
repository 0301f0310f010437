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
from harken.errors import HarkenError
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


class Speakers:
    """The speakers of a recording, and its segments, which wait for them: who speaks is known at the end.

    Segments that are cut have their texts encoded to tokens.
    """

    def __init__(self, diarization: Diarization, encode: Callable[[str], Sequence[int]]) -> None:
        self.diarization, self._encode = diarization, encode
        self._waiting: list[Segment] = []
        self._attributed: list[Segment] | None = None

    def add(self, segments: Iterable[Segment]) -> None:
        """Add the next segments of the recording."""
        self._waiting.extend(segments)

    def so_far(self, ready: Sequence[Segment]) -> list[Segment]:
        """Return the segments so far, those that are ready included, with the speakers known so far."""
        if self._attributed is not None:
            return self._attributed
        return self.diarization.attribute([*self._waiting, *ready], self._encode)

    def finish(self) -> list[Segment]:
        """Return all segments with their speakers at the end of the recording; empty from the second call on."""
        if self.finished:
            return []
        self._attributed = self.so_far(())
        return self._attributed

    @property
    def finished(self) -> bool:
        """True once all segments have been given their speakers."""
        return self._attributed is not None


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
        speakers: Speakers | None = None,
    ) -> None:
        self._recording, self._scheduler, self._model, self._turn = recording, scheduler, model, turn
        self._speakers = speakers
        decoded = scheduler.segments(recording)
        self._segment_iterator = self._with_speakers(decoded, speakers) if speakers else decoded
        self._decoded_segments: list[Segment] = []
        self._failure: BaseException | None = None

    def __iter__(self) -> Iterator[Segment]:
        index = 0
        while index < len(self._decoded_segments) or self._decode_until(index):
            yield self._decoded_segments[index]
            index += 1

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
            if self._failure:
                raise self._failure
            try:
                segments = self._scheduler.step(self._recording)
                if self._speakers:
                    self._speakers.add(segments)
                    segments = self._speakers.finish() if self._recording.finished else []
                if not segments and self._recording.failure:
                    raise self._recording.failure
            except BaseException as failure:
                self._break_off(failure)
                raise
            self._decoded_segments += segments
        return segments

    @property
    def finished(self) -> bool:
        """True once all segments have been decoded and returned, and the error that ended the decoding raised."""
        recording = self._recording
        waiting = recording.ready_segments or (self._speakers and not self._speakers.finished)
        return bool(self._failure) or (recording.finished and not waiting and not recording.failure)

    @property
    def read_s(self) -> float:
        """Seconds of the recording that have been read."""
        return self._recording.duration_s

    @property
    def done_s(self) -> float:
        """Seconds of the recording that have been decoded."""
        return self._recording.done_s

    def _with_speakers(self, decoded: Iterator[Segment], speakers: Speakers) -> Iterator[Segment]:
        """Yield the segments with their speakers, once all have been decoded."""
        failure = None
        try:
            for segment in decoded:
                speakers.add([segment])
        except HarkenError as error:
            failure = error
        yield from speakers.finish()
        if failure:
            raise failure

    def _decode_until(self, index: int) -> bool:
        """Decode the segment of an index unless another thread has; return False if there is none."""
        with self._turn.taken():
            if index < len(self._decoded_segments):
                return True
            if self._failure:
                raise self._failure
            try:
                self._decoded_segments.append(next(self._segment_iterator))
            except StopIteration:
                return False
            except BaseException as failure:
                self._break_off(failure)
                raise
        return True

    def _break_off(self, failure: BaseException) -> None:
        """Remember what ended the decoding, whose traceback would keep the file and the journal open."""
        self._failure = failure
        self._recording.stop()

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
        ready = tuple(self._recording.ready_segments)  # before the others, to which they move one by one
        segments = [*self._decoded_segments]
        if self._speakers:
            segments, ready = self._speakers.so_far(ready), ()
        for segment in ready:
            if segment.index == len(segments):
                segments.append(segment)
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
            speakers=self._speakers.diarization.speakers if self._speakers else None,
            turns=self._speakers.diarization.turns if self._speakers else (),
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
        self._open_channels, self._on_progress = open_channels, on_progress
        self._empty = Transcript(segments=(), language="en", duration_s=0.0, model=model, task=task)
        self._reported_s = 0.0
        self._channels: Sequence[Transcription] | None = None
        self._waiting: list[deque[Segment]] = []
        self._merged: list[Segment] = []
        self._failure: HarkenError | None = None
        self._raised: BaseException | None = None
        self._turn = DecodingTurn()

    def __iter__(self) -> Iterator[Segment]:
        index = 0
        while True:
            with self._turn.lock:  # else another thread may add a segment between the two
                ended = self.finished
            while index < len(self._merged):
                yield self._merged[index]
                index += 1
            if ended:
                break
            self.step()
        if self._raised:
            raise self._raised

    def step(self) -> list[Segment]:
        """Decode at most one window of the channel that is most behind; see `Transcription.step`."""
        with self._turn.taken():
            if self._raised:
                raise self._raised
            try:
                self._advance()
            except HarkenError as failure:
                self._failure = self._failure or failure
                self._channels = self._channels or ()  # it could not be opened
            except BaseException as interruption:
                self._raised = interruption
                raise
            segments = [*self._ready()]
            self._report()
            if not segments and self._failure and self._all_returned:
                self._raised = self._failure
                raise self._raised
        return segments

    def _advance(self) -> None:
        """Open the recording, or take a step of the channel that is most behind of those that hold up the others."""
        if self._channels is None:
            self._channels = self._open_channels()
            del self._open_channels  # which holds the audio
            self._waiting = [deque() for _ in self._channels]
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
        channels = zip(self._channels or (), self._waiting, strict=True)
        return [(channel, waiting) for channel, waiting in channels if not (waiting or channel.finished)]

    def _ready(self) -> Iterator[Segment]:
        """Yield the segments before which no channel can have another one."""
        while any(self._waiting) and not self._without_segments():
            index = min(
                range(len(self._waiting)),
                key=lambda index: self._waiting[index][0].start_s if self._waiting[index] else inf,
            )
            self._merged.append(_named(self._waiting[index].popleft(), index, len(self._merged)))
            yield self._merged[-1]

    @property
    def _all_returned(self) -> bool:
        channels = self._channels
        return channels is not None and not any(self._waiting) and all(channel.finished for channel in channels)

    @property
    def finished(self) -> bool:
        """True once all segments have been returned, and the error that ended a channel raised; or an interruption."""
        return bool(self._raised) or (self._all_returned and not self._failure)

    @property
    def read_s(self) -> float:
        """Seconds of the recording that have been read."""
        return max((channel.read_s for channel in self._channels or ()), default=0.0)

    @property
    def done_s(self) -> float:
        """Seconds of the recording that have been decoded, of all channels."""
        return min((channel.done_s for channel in self._channels or ()), default=0.0)

    @property
    def language(self) -> str | None:
        """Code of the language of the first channel whose language is known."""
        return next((channel.language for channel in self._channels or () if channel.language), None)

    @property
    def stats(self) -> DecodeStats:
        """Decoding statistics of all channels so far."""
        return sum((channel.stats for channel in self._channels or ()), DecodeStats())

    @property
    def batch_stats(self) -> DecodeStats:
        """Decoding statistics so far of all recordings that were given together."""
        return self._channels[0].batch_stats if self._channels else DecodeStats()

    @property
    def peak(self) -> float | None:
        """Largest magnitude of the samples so far; None without voice activity detection."""
        return max((channel.peak or 0.0 for channel in self._channels or ()), default=None)

    def stop(self) -> None:
        """Stop decoding this recording."""
        with self._turn.lock:
            self._channels = self._channels or ()
            for channel in self._channels:
                channel.stop()

    def so_far(self) -> Transcript:
        """Return the transcript of what has been decoded so far."""
        transcripts = [channel.so_far() for channel in self._channels or ()] or [self._empty]
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
