"""A served model that understands tones: its text follows from the audio, and costs nothing to compute."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import httpx

from fakes.speech_detector import LoudIsSpeech
from fakes.tone_backend import LETTER_OPTIONS, ToneBackend, ToneSpeech, speak_words
from harken.api import Recognizer
from harken.audio import AudioSource
from harken.serve.options import ServeOptions
from harken.transcribe import TranscribeOptions
from harken.transcription import Transcription
from serving import Serving, serving
from tiny_models import TOKENIZER

FIELDS = {"model": "tones", "language": "en"}
PATH = "/v1/audio/transcriptions"


class ToneRecognizer(Recognizer):
    """A recognizer whose words may begin with a space that is a token of its own."""

    def __init__(self, backend: ToneBackend) -> None:
        super().__init__(backend, TOKENIZER, "/secret/tones", speech_detector=LoudIsSpeech)

    def transcribe(
        self, audio: AudioSource, options: TranscribeOptions | None = None, /, **keywords: Any
    ) -> Transcription:
        return super().transcribe(audio, replace(options or TranscribeOptions(), **LETTER_OPTIONS), **keywords)


def serving_tones(backend: ToneBackend | None = None, **options: Any) -> AbstractContextManager[Serving]:
    """Serve a model of tones under the name "tones"."""
    recognizer = ToneRecognizer(backend or ToneBackend())
    return serving(lambda id: recognizer, ["tones"], ServeOptions(preload=False, **options))


def post(http: httpx.Client, recording: bytes, path: str = PATH, **fields: Any) -> httpx.Response:
    """Have a recording transcribed."""
    return http.post(path, data=FIELDS | fields, files={"file": recording})


def check_refused(answer: httpx.Response, status: int, code: str, param: str | None) -> str:
    """Hold a refusal to the body that OpenAI's clients read, and return its line."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert answer.headers["x-should-retry"] == "false"
    assert len(error["message"]) < 1000
    assert "\n" not in error["message"]
    return str(error["message"])


def transcribe_tones(speech: ToneSpeech, **options: Any) -> str:
    """Return the text of tones as the API gives it."""
    return ToneRecognizer(ToneBackend(**options)).transcribe(speech.samples).text


def speak(n_words: int, first: int = 0) -> ToneSpeech:
    """Speak words in turn, beginning with any; 2.5 of them a second."""
    return speak_words(*((first + 5 * n) % 12 for n in range(n_words)))


def events_of(body: str) -> list[dict[str, Any]]:
    """Return the server-sent events of a response."""
    lines = body.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
