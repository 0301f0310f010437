"""A Realtime session without a socket: events in, events out, checked by the types of OpenAI's client."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from contextlib import suppress
from functools import cache
from typing import Any, get_args

from openai.types.beta import realtime as beta_types
from openai.types.beta.realtime.realtime_server_event import RealtimeServerEvent as BetaServerEvent
from openai.types.realtime import RealtimeServerEvent, RealtimeTranscriptionSessionCreateResponse
from pydantic import BaseModel

from fakes.live_sessions import make_segment
from harken.errors import HarkenError
from harken.results import Word
from harken.serve.errors import RequestError
from harken.serve.live.realtime import RealtimeSession
from harken.serve.live.realtime_config import SessionConfig
from harken.serve.live.translator import Audio, Check, CloseStream, Flush, OpenStream, Output, Outputs
from harken.serve.work.jobs import Flushed, LiveUpdate, Transcribed
from harken.serve.work.models import OPENAI_NAMES
from harken.streaming import Event, FinalSegment, Interim

MODELS = ("tiny.en", "base", *OPENAI_NAMES)
OWN_EVENTS = ("harken.interim",)
MANUAL = {"audio": {"input": {"turn_detection": None}}}


def resolve_model(name: str) -> str:
    if name not in MODELS:
        raise RequestError(f"model {name!r} is not served", code="model_not_found", param="model")
    return name


def pcm(seconds: float, rate_hz: int = 24_000) -> str:
    """Return silence as the audio of an append."""
    return b64encode(bytes(2 * round(seconds * rate_hz))).decode()


class Script:
    """A session that is told what happens; what it sends is checked."""

    def __init__(self, config: SessionConfig | None = None, **options: Any) -> None:
        self._strict = options.pop("strict", True)
        self._beta = options.get("beta", False)
        self.session = RealtimeSession(config or SessionConfig(), resolve_model, **options)
        self.flushes: list[object] = []  # tokens of those that have not been answered
        self.refusal: HarkenError | None = None  # of every stream
        self.closing: tuple[Event | Transcribed, ...] = ()  # the last updates of a stream
        self._ids: dict[str, str] = {}  # as they are shown, numbered as they come

    def open(self) -> list[Any]:
        return self.done(self.session.opened())

    def send(self, type: str, **fields: Any) -> list[Any]:
        """Send an event; return what is to be done: events without their id, and actions."""
        return self.send_text(json.dumps({"type": type} | fields))

    def send_text(self, message: str | bytes) -> list[Any]:
        return self.done(self.session.received(message))

    def append(self, seconds: float) -> list[Any]:
        return self.send("input_audio_buffer.append", audio=pcm(seconds))

    def say(self, *updates: LiveUpdate) -> list[Any]:
        """Take updates of the stream."""
        return [output for update in updates for output in self.done(self.session.updated(update))]

    def answer_flush(self) -> list[Any]:
        return self.say(Flushed(token=self.flushes.pop(0)))

    def done(self, outputs: Outputs) -> list[Any]:
        """Return what is to be done: events without their id, and actions; what is to be checked is checked."""
        done: list[Any] = []
        with suppress(StopIteration):
            output = next(outputs)
            while True:
                try:
                    if isinstance(output, Check):
                        resolve_model(output.stream.model)
                    else:
                        done.append(self._checked(output))
                    if isinstance(output, OpenStream) and self.refusal:
                        raise self.refusal
                    if isinstance(output, CloseStream):
                        done += self.say(*self.closing)
                except HarkenError as error:
                    output = outputs.throw(error)
                else:
                    output = next(outputs)
        return done

    def _checked(self, output: Output) -> Any:
        if isinstance(output, Flush):
            self.flushes.append(output.token)
        if not isinstance(output, str):
            return output
        event = json.loads(re.sub(r"\b([a-z]+)_[0-9a-f]{24}", self._shown_id, output))
        self._beta |= event["type"].startswith("transcription_session.")
        check_event(event, beta=self._beta, strict=self._strict)
        del event["event_id"]
        return event

    def _shown_id(self, id: re.Match[str]) -> str:
        of_its_kind = [shown for shown in self._ids if shown.startswith(id[1])]
        return self._ids.setdefault(id[0], f"{id[1]}_{len(of_its_kind) + 1}")


def check_event(event: dict[str, Any], *, beta: bool = False, strict: bool = True) -> None:
    """Hold an event of the server to the types of the client.

    These allow OpenAI's own models, rates and includes only; other ones are let pass where it is not strict.
    """
    assert event["event_id"]
    if event["type"] in OWN_EVENTS:
        return
    session = event.get("session")
    if session is None:
        server_events(beta)[event["type"]].model_validate(event)
        return
    assert event["type"].split(".")[1] in ("created", "updated")
    if not strict or session["include"]:
        return
    if event["type"].startswith("transcription_session."):
        secret = {"value": "none", "expires_at": 0}
        beta_types.TranscriptionSession.model_validate(session | {"client_secret": secret})
    else:
        RealtimeTranscriptionSessionCreateResponse.model_validate(session)
        server_events(beta)[event["type"]].model_validate(event)


@cache
def server_events(beta: bool) -> dict[str, type[BaseModel]]:
    """Return the types of the client's server events, by their names."""
    union = get_args(BetaServerEvent if beta else RealtimeServerEvent)[0]
    events = [event for event in get_args(union) if "type" in event.model_fields]
    return {get_args(event.model_fields["type"].annotation)[0]: event for event in events}


def brief(outputs: list[Any]) -> list[str]:
    """Return events in a line each: the end of their type, their item, and its text or time; and names of actions."""
    return [_line(output) if isinstance(output, dict) else type(output).__name__ for output in outputs]


def _line(event: dict[str, Any]) -> str:
    item = event.get("item") or {"id": event.get("item_id"), "content": [event]}
    content = item["content"][0]
    told = (content.get(name) for name in ("delta", "transcript", "audio_start_ms", "audio_end_ms", "text"))
    return " ".join(str(part) for part in (event["type"].split(".")[-1], item["id"], *told) if part is not None)


def without_audio(outputs: list[Any]) -> list[Any]:
    """Return what is to be done beside feeding the stream."""
    return [output for output in outputs if not isinstance(output, Audio)]


def interim(*words: str, tentative: str = "", at_s: float = 0.0) -> Interim:
    """Return an interim by which these words are newly committed."""
    told = {"committed": "".join(words).lstrip(), "tentative": tentative, "words": tuple(map(word, words))}
    return Interim(audio_s=at_s, emitted_samples=0, compute_s=0.0, **told)


def final(*words: str) -> FinalSegment:
    segment = make_segment(*map(word, words), language="en")
    return FinalSegment(audio_s=1.0, emitted_samples=0, compute_s=0.0, segment=segment)


def transcribed(*words: str) -> Transcribed:
    return Transcribed(segments=(final(*words).segment,))


def word(text: str) -> Word:
    return Word(start_s=0.25, end_s=0.5, text=text, probability=0.5)
