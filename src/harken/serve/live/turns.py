"""The turns of a session: updates of the stream to events about items, in the dialect of the client.

With turn detection an utterance of the stream is a turn, also one that the stream splits at its greatest length.
Without, a turn has all utterances up to a commit, and is then transcribed once more as a whole. A commit, a clear and a
check for silence flush the stream; what comes before the flush is answered belongs to the item of the commit, or is
dropped by the clear.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from harken.formats import main_speaker
from harken.results import Segment, Word
from harken.serve.errors import RequestError
from harken.serve.live.realtime_config import INTERIM, LOGPROBS, SEGMENTS, SessionConfig
from harken.serve.live.translator import Flush, Outputs
from harken.serve.rest.transcripts import logprobs_json
from harken.serve.work.jobs import Flushed, OpenStream, Transcribed
from harken.streaming import Event, FinalSegment, Interim, SpeechEnded, SpeechStarted


def new_id(prefix: str) -> str:
    """Return an id that no other session, event or item has."""
    return f"{prefix}_{token_hex(12)}"


def event_json(type: str, **fields: Any) -> str:
    """Return an event of the server."""
    return json.dumps({"type": type, "event_id": new_id("event")} | fields, separators=(",", ":"))


def error_json(error: RequestError, event_id: str | None = None) -> str:
    """Return an error event; the session goes on."""
    return event_json("error", error=error.body()["error"] | {"event_id": event_id})


def _transcription_json(kind: str, item_id: str, **fields: Any) -> str:
    """Return an event about the transcription of an item."""
    type = f"conversation.item.input_audio_transcription.{kind}"
    return event_json(type, item_id=item_id, content_index=0, **fields)


def _item_json(kind: str, item_id: str, previous_id: str | None, transcript: str | None) -> str:
    """Return an event about an item."""
    content = [{"type": "input_audio", "transcript": transcript}]
    shown = {"id": item_id, "object": "realtime.item", "type": "message", "role": "user"}
    return event_json(
        f"conversation.item.{kind}",
        previous_item_id=previous_id,
        item=shown | {"status": "completed", "content": content},
    )


@dataclass(eq=False)
class Item:
    """An item: the audio of a turn, and the words in it.

    Deltas are the committed words. Final segments may differ from them; what these say more is a delta as long as they
    do not differ. They are the transcript, unless the turn is transcribed as a whole.
    """

    id: str
    # In the session.
    start_s: float
    end_s: float
    segments: list[Segment] = field(default_factory=list)  # of the transcript
    previous_id: str | None = None  # the item before it, once it is committed
    _streamed: str = ""  # text of final segments until the turn is transcribed
    _ahead: str = ""  # text of deltas of this utterance that no final segment has brought yet
    _has_deltas: bool = False
    _is_revised: bool = False  # final segments of this utterance differ from the deltas

    @property
    def text(self) -> str:
        """The text of the transcript."""
        return "".join(segment.text for segment in self.segments)

    @property
    def shown(self) -> str:
        """The text so far, and the committed words behind it."""
        return (self.text + self._streamed + self._ahead).lstrip()

    def commit(self, words: Iterable[Word]) -> str:
        """Take words as they are committed, and return their delta."""
        text = "".join(word.text for word in words)
        self._ahead += text
        return self._delta(text)

    def finish(self, segment: Segment) -> tuple[str, list[Word]]:
        """Take a final segment; return the delta of what was not committed before, and its words."""
        self._streamed += segment.text
        ahead, final = _bare(self._ahead), _bare(segment.text)
        n_known = min(len(ahead), len(final))
        self._is_revised |= ahead[:n_known] != final[:n_known]
        if self._is_revised:
            self._ahead = ""
            return "", []
        self._ahead = _behind(self._ahead, n_known)
        return self._delta(_behind(segment.text, n_known)), _words_behind(segment.words, n_known)

    def transcribe(self, segments: Iterable[Segment]) -> None:
        """Take segments of the transcript, in place of what the final segments said so far."""
        self._streamed = ""
        self.segments += segments

    def end_utterance(self) -> None:
        """Note that final segments have brought all that there is."""
        self._ahead, self._is_revised = "", False

    def _delta(self, text: str) -> str:
        delta = text if self._has_deltas else text.lstrip()
        self._has_deltas |= bool(delta)
        return delta


@dataclass(eq=False)
class Commit:
    """A commit of the client, in the order of the audio."""

    item: Item


@dataclass(eq=False)
class Clear:
    """A clear of the client."""


@dataclass(eq=False)
class SilenceCheck:
    """Silence from a time to another in the session, unless speech is found before the flush is answered."""

    start_s: float
    end_s: float
    heard: bool = False


Mark = Commit | Clear | SilenceCheck


class Turns:
    """The turns of a session.

    Parameters
    ----------
    config : SessionConfig
        It says what the client wants beside the usual.
    beta : bool
        True for the beta dialect.

    Attributes
    ----------
    config, beta
        As given; they may change.
    committed_s : float
        Time in the session up to which the audio belongs to items, or was cleared.
    """

    def __init__(self, config: SessionConfig, *, beta: bool) -> None:
        self.config, self.beta = config, beta
        self.committed_s = 0.0
        self._active_s = 0.0  # time of the last speech, or silence that was reported
        self._start_s = 0.0  # time in the session at which the open stream began
        self._detects = True  # if it ends turns
        self._whole = False  # if it brings turns transcribed as a whole
        self._item: Item | None = None
        self._previous_id: str | None = None
        self._marks: deque[Mark] = deque()
        self._is_continued = False

    def commit(self, end_s: float) -> Outputs:
        """End the turn at a time."""
        item = self._current_item()
        item.end_s = self.committed_s = end_s
        self._item = None
        self._marks.append(mark := Commit(item))
        yield from self._announce(item)
        yield Flush(mark)

    def clear(self, end_s: float) -> Outputs:
        """Drop the turn up to a time."""
        self._item, self.committed_s = None, end_s
        self._marks.append(mark := Clear())
        yield Flush(mark, drops=True)

    def check_silence(self, end_s: float) -> Outputs:
        """Report silence up to a time, if there has been no speech for as long as the client allows."""
        turns, silence_s = self.config.turns, end_s - self._active_s
        limit_ms = turns.idle_timeout_ms if turns and turns.type == "server_vad" else None
        is_silent = self._item is None and not self._marks
        if limit_ms is not None and is_silent and round(silence_s * 1000, 3) >= limit_ms:
            self._marks.append(mark := SilenceCheck(self._active_s, end_s))
            self._active_s = end_s
            yield Flush(mark)

    def update(self, update: Event | Flushed | Transcribed) -> Iterator[str]:
        """Take an update of the stream."""
        match update:
            case Flushed(token=token):
                if token is not None and token is self._mark:
                    yield from self._pass(self._marks.popleft())
            case _ if isinstance(self._mark, Clear):
                return
            case SpeechStarted(audio_s=audio_s):
                yield from self._start_speech(self._start_s + audio_s)
            case Interim():
                yield from self._add_words(update)
            case FinalSegment(segment=segment):
                yield from self._add_segment(segment)
            case Transcribed(segments=segments):
                yield from self._add_transcription(segments)
            case SpeechEnded(audio_s=audio_s, reason=reason):
                yield from self._end_speech(self._start_s + audio_s, reason)

    def begin_stream(self, start_s: float, opened_with: OpenStream) -> None:
        """Note the time in the session at which a stream begins, and what it is opened with."""
        self._start_s, self._is_continued = start_s, False
        self._detects, self._whole = opened_with.stream_options.finals == "turns", opened_with.whole_turns

    def fail(self, problem: RequestError, end_s: float) -> Iterator[str]:
        """Report that nothing comes of the turns in progress, up to a time."""
        self.committed_s = end_s
        items = [mark.item for mark in self._marks if isinstance(mark, Commit)]
        for item in [*items, *filter(None, [self._item])]:
            yield _transcription_json("failed", item.id, error=problem.body()["error"])
        self._marks.clear()
        self._item = None

    @property
    def _mark(self) -> Mark | None:
        """The mark whose flush is answered next."""
        return self._marks[0] if self._marks else None

    def _pass(self, mark: Mark) -> Iterator[str]:
        """Answer a mark, as the stream has been flushed."""
        self._is_continued = False
        match mark:
            case Commit(item=item):
                yield from self._complete(item)
            case SilenceCheck() if not mark.heard:
                item = self._new_item(mark.start_s)
                item.end_s = self.committed_s = mark.end_s
                times_ms = {"audio_start_ms": _ms(mark.start_s), "audio_end_ms": _ms(mark.end_s)}
                yield event_json("input_audio_buffer.timeout_triggered", item_id=item.id, **times_ms)
                yield from self._announce(item)
                yield from self._complete(item)

    def _start_speech(self, start_s: float) -> Iterator[str]:
        if isinstance(self._mark, SilenceCheck):
            self._mark.heard = True
        if not self._detects or isinstance(self._mark, Commit) or self._is_continued:
            return
        self._item = self._item or self._new_item(start_s)
        yield event_json(
            "input_audio_buffer.speech_started", item_id=self._item.id, audio_start_ms=_ms(start_s)
        )

    def _add_words(self, interim: Interim) -> Iterator[str]:
        item = self._target()
        yield from self._delta(item, item.commit(interim.words), interim.words)
        if INTERIM in self.config.include:
            yield event_json(
                "harken.interim",
                item_id=item.id,
                committed=item.shown,
                tentative=interim.tentative if item.shown else interim.tentative.lstrip(),
                audio_end_ms=_ms(self._start_s + interim.audio_s),
            )

    def _add_segment(self, segment: Segment) -> Iterator[str]:
        item = self._target()
        delta, words = item.finish(segment)
        yield from self._delta(item, delta, words)
        if not self._whole:
            item.transcribe([segment])
            yield from self._segments(item, [segment], self._start_s)

    def _add_transcription(self, segments: Iterable[Segment]) -> Iterator[str]:
        item = self._target()
        item.transcribe(segments)
        yield from self._segments(item, segments, max(item.start_s, self._start_s))

    def _segments(self, item: Item, segments: Iterable[Segment], start_s: float) -> Iterator[str]:
        """Yield the events of segments of the transcript, whose times begin at one in the session."""
        with_words = SEGMENTS in self.config.include
        if not (with_words or self.config.speakers):
            return
        for segment in segments:
            words = [
                {
                    "word": word.text,
                    "start": round(start_s + word.start_s, 3),
                    "end": round(start_s + word.end_s, 3),
                    "probability": round(word.probability, 4),
                }
                for word in segment.words
            ]
            yield _transcription_json(
                "segment",
                item.id,
                id=new_id("seg"),
                text=segment.text.strip(),
                start=round(start_s + segment.start_s, 3),
                end=round(start_s + segment.end_s, 3),
                speaker=main_speaker(segment.speakers),
                **({"words": words} if with_words else {}),
            )

    def _end_speech(self, end_s: float, reason: str) -> Iterator[str]:
        self._is_continued = reason == "limit"
        if self._is_continued:
            return
        self._target().end_utterance()
        self._active_s = max(self._active_s, end_s)
        item = self._item
        if self._detects and item and not isinstance(self._mark, Commit):
            item.end_s = end_s
            self.committed_s = max(self.committed_s, end_s)
            self._item = None
            yield event_json("input_audio_buffer.speech_stopped", item_id=item.id, audio_end_ms=_ms(end_s))
            yield from self._announce(item)
            yield from self._complete(item)

    def _announce(self, item: Item) -> Iterator[str]:
        previous_id, self._previous_id = self._previous_id, item.id
        item.previous_id = previous_id
        yield event_json("input_audio_buffer.committed", item_id=item.id, previous_item_id=previous_id)
        yield _item_json("created" if self.beta else "added", item.id, previous_id, None)

    def _complete(self, item: Item) -> Iterator[str]:
        usage = {"type": "duration", "seconds": round(max(item.end_s - item.start_s, 0.0), 3)}
        transcript = item.text.strip()
        languages = dict.fromkeys(segment.language for segment in item.segments if segment.language)
        fields: dict[str, Any] = {"transcript": transcript, "usage": usage}
        if languages and not self.beta:
            fields["languages"] = [{"code": code} for code in languages]
        if LOGPROBS in self.config.include:
            fields["logprobs"] = logprobs_json(word for segment in item.segments for word in segment.words)
        yield _transcription_json("completed", item.id, **fields)
        if not self.beta:
            yield _item_json("done", item.id, item.previous_id, transcript)

    def _delta(self, item: Item, delta: str, words: Iterable[Word]) -> Iterator[str]:
        if delta:
            logprobs = {"logprobs": logprobs_json(words)} if LOGPROBS in self.config.include else {}
            yield _transcription_json("delta", item.id, delta=delta, **logprobs)

    def _target(self) -> Item:
        """Return the item that the present updates of the stream belong to."""
        return self._mark.item if isinstance(self._mark, Commit) else self._current_item()

    def _current_item(self) -> Item:
        """Return the item of the turn in progress; without turn detection it begins where the last one ended."""
        self._item = self._item or self._new_item(self.committed_s)
        return self._item

    def _new_item(self, start_s: float) -> Item:
        return Item(new_id("item"), start_s, start_s)


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


def _bare(text: str) -> str:
    """Return a text without spaces, which words and segments may have in other places."""
    return "".join(text.split())


def _behind(text: str, n_characters: int) -> str:
    """Return what is behind some characters, spaces not counted."""
    for i, character in enumerate(text):
        if not n_characters:
            return text[i:]
        n_characters -= not character.isspace()
    return ""


def _words_behind(words: Iterable[Word], n_characters: int) -> list[Word]:
    behind = []
    for word in words:
        if n_characters <= 0:
            behind.append(word)
        n_characters -= len(_bare(word.text))
    return behind
