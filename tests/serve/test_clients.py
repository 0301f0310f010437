"""Requests of other programs, as their sources write them: they are answered as these expect (docs/clients.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from served_audio import FORM_TYPE, form_body, pcm, wav
from tone_server import ToneRecognizer, events_of, speak

from fakes.tone_backend import ToneBackend
from harken.serve.options import ServeOptions
from serving import Serving, serving

SPEECH, TEXT = speak(3).samples, "ba ha na"
WAVE, RAW = wav(SPEECH), pcm(SPEECH)
PLAIN, JSON, SRT, VTT = "text/plain; charset=utf-8", "application/json", "application/x-subrip", "text/vtt"
CUE = r"1\n00:00:0\d,\d{3} --> 00:00:0\d,\d{3}\nba ha na\n\n"


def of_form(*parts: tuple[str, Any]) -> tuple[str, bytes]:
    """Return the type and the body of a form; a part is a name, with that of a file if it is one, and its content."""
    described = []
    for name, content in parts:
        head, _, file_name = name.partition("/")
        disposition = f'name="{head}"' + (f'; filename="{file_name}"' if file_name else "")
        described.append((disposition, content if isinstance(content, bytes) else content.encode()))
    return FORM_TYPE, form_body(*described)


@dataclass(frozen=True)
class Recorded:
    """A request, whose body has its type in front, and the type and the text (a pattern) of the answer."""

    client: str
    target: str
    body: tuple[str, bytes]
    type: str
    answer: str
    headers: dict[str, str] = field(default_factory=dict)


ASR_JSON = r'\{"language": "en", "segments": \[\{"id": 0, .*"words": \[\{"word": " ba", .*"text": "ba ha na"\}'
CPP_DETAILS = (
    r'\{"text":" ba ha na\\n","task":"transcribe","language":"english",.*"words":\[\{.*"t_dtw":-1.*'
    r'"detected_language":"english","detected_language_probability":1.0,"language_probabilities":\{"en":1.0\}\}'
)
LANGUAGE = r'\{"detected_language":"\w[\w ]+","language_code":"\w{2,3}","confidence":[01]\.\d+\}'
VERBOSE = r'\{"task":"transcribe","language":"english",.*"segments":\[\{"id":0,.*"words":\[\{"start".*\}'
OPENAI = r'\{"text":"ba ha na",.*\}'
REQUESTS = (
    Recorded(
        "Bazarr",
        "/asr?task=transcribe&language=en&output=srt&encode=false",
        of_form(("audio_file/audio_file", RAW)),
        PLAIN,
        CUE,
    ),
    Recorded(
        "Bazarr, language",
        "/detect-language?encode=false",
        of_form(("audio_file/audio_file", RAW)),
        JSON,
        LANGUAGE,
    ),
    Recorded(
        "obsidian-transcription",
        "/asr?output=json&word_timestamps=true&language=en&initial_prompt=&vad_filter=true&encode=true",
        of_form(("audio_file/note.webm", WAVE)),
        PLAIN,
        ASR_JSON,
    ),
    Recorded(
        "whisper-to-input",
        "/asr?encode=true&task=transcribe&language=&word_timestamps=false&output=txt",
        of_form(("audio_file/recorded.m4a", WAVE)),
        PLAIN,
        r"[\w ]+\n",
    ),
    Recorded(
        "a script, with a WAV file that it calls raw",
        "/asr?language=en&output=vtt&encode=false",
        of_form(("audio_file/a.wav", WAVE)),
        PLAIN,
        r"WEBVTT\n\n00:0\d\.\d{3} --> 00:0\d\.\d{3}\nba ha na\n\n",
    ),
    Recorded(
        "whisper.el",
        "/inference",
        of_form(
            *(("file/whisper.wav", WAVE), ("temperature", "0.0"), ("temperature_inc", "0.2")),
            *(("response_format", "json"), ("language", "en")),
        ),
        JSON,
        r'\{"text":" ba ha na\\n"\}',
    ),
    Recorded(
        "wyoming-whisper-api-client",
        "/inference?temperature=0.0&temperature_inc=0.2&response_format=json",
        of_form(("file/upload", WAVE)),
        JSON,
        r'\{"text":" ba ha na\\n"\}',
    ),
    Recorded(
        "a script, for subtitles of whisper.cpp",
        "/inference",
        of_form(("file/audio.wav", WAVE), ("response_format", "srt"), ("language", "en"), ("beam_size", "-1")),
        f"{SRT}; charset=utf-8",
        CUE,
    ),
    Recorded(
        "the example of whisper.cpp, in full",
        "/inference",
        of_form(("file/jfk.wav", WAVE), ("response_format", "verbose_json")),
        JSON,
        CPP_DETAILS,
    ),
    Recorded("ovos-stt-plugin-server", "/stt?lang=en-us", ("audio/wav", WAVE), PLAIN, TEXT),
    Recorded(
        "ovos-stt-plugin-server, language",
        "/lang_detect?valid_langs=en-us,de-de",
        ("audio/wav", WAVE),
        JSON,
        r'\{"lang":"(en|de)","conf":[01]\.\d+\}',
    ),
    Recorded(
        "AnythingLLM",
        "/v1/audio/transcriptions",
        of_form(("file/a.mp3", WAVE), ("model", "whisper-small"), ("temperature", "0"), ("language", "en-US")),
        JSON,
        OPENAI,
    ),
    Recorded(
        "whisper-obsidian-plugin",
        "/v1/audio/transcriptions",
        of_form(("file/r.webm", WAVE), ("model", "whisper-1"), ("language", "en"), ("prompt", "Names")),
        JSON,
        OPENAI,
        {"origin": "app://obsidian.md"},
    ),
    Recorded(
        "Open WebUI, with an address without /v1",
        "/audio/transcriptions",
        of_form(("model", "Systran/faster-whisper-large-v3-turbo"), ("language", "en"), ("file/a.wav", WAVE)),
        JSON,
        OPENAI,
    ),
    Recorded(
        "Subtitle Edit",
        "/v1/audio/transcriptions",
        of_form(
            *(("model", "whisper-1"), ("response_format", "verbose_json"), ("language", "en")),
            *(
                ("timestamp_granularities[]", "segment"),
                ("timestamp_granularities[]", "word"),
                ("file/a.mp3", WAVE),
            ),
        ),
        JSON,
        VERBOSE,
    ),
    Recorded(
        "Subtitle Edit, streaming",
        "/v1/audio/transcriptions",
        of_form(("model", "whisper-1"), ("language", "en"), ("stream", "true"), ("file/a.mp3", WAVE)),
        "text/event-stream; charset=utf-8",
        r"(event: (transcript\.text\.\w+)\ndata: \{\"type\": \"\2\", .*\}\n\n)+data: \[DONE\]\n\n",
    ),
)


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    model = ToneRecognizer(ToneBackend(positions=200))
    options = ServeOptions(preload=False, origin=("app://obsidian.md",))
    with serving(lambda id: model, ["tones"], options, aliases={"*": "tones"}) as server:
        yield server


@pytest.mark.parametrize("recorded", REQUESTS, ids=lambda recorded: recorded.client)
def test_what_a_client_sends_is_answered_as_it_expects(server: Serving, recorded: Recorded) -> None:
    content_type, body = recorded.body
    headers = recorded.headers | {"content-type": content_type}
    reply = server.http.post(recorded.target, content=body, headers=headers)
    assert (reply.status_code, reply.headers["content-type"]) == (200, recorded.type), reply.text
    assert re.fullmatch(recorded.answer, reply.text), reply.text


def test_subtitles_are_in_the_last_event_of_a_stream(server: Serving) -> None:
    (recorded,) = (recorded for recorded in REQUESTS if recorded.client == "Subtitle Edit, streaming")
    content_type, body = recorded.body
    reply = server.http.post(recorded.target, content=body, headers={"content-type": content_type})
    *_, done = events_of(reply.text)
    (segment,) = done["segments"]
    assert (segment["id"], segment["text"].strip()) == (0, TEXT)
    assert 0 <= segment["start"] < segment["end"]


ARROW = "00:00:00,000 --> 00:00:09,000"


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        ("/asr?output=srt", {}, 400),
        (f"/asr?language={ARROW}", {}, 400),
        ("/asr?min_speakers=many", {}, 400),
        ("/asr", {"host": "elsewhere"}, 403),
        ("/asr", {"origin": "https://evil.example"}, 403),
        ("/detect-language", {}, 400),
        ("/inference?temperature=2", {}, 400),
        ("/inference?temperature_inc=1e-300&best_of=1.5", {}, 400),
        ("/stt?lang=tlh", {}, 400),
        ("/lang_detect", {}, 400),
        ("/load?model=/etc/passwd", {}, 200),  # any name means the only model here
        ("/load", {}, 400),
    ],
)
def test_nobody_takes_an_error_for_subtitles(
    server: Serving, target: str, headers: dict[str, str], status: int
) -> None:
    content_type, body = of_form(("other", "value"))
    given = {"content-type": content_type} | headers
    reply = server.http.post(target, content=body, headers=given)
    assert (reply.status_code, reply.headers["content-type"]) == (status, PLAIN)
    assert len(reply.text.splitlines()) == 1
    assert len(reply.text) <= 301
    assert "-->" not in reply.text
    assert reply.text.startswith("error: ") == (status != 200)


def test_a_model_that_is_loaded_is_that_of_whisper_cpp_from_then_on() -> None:
    def load(id: str) -> Any:
        return ToneRecognizer(ToneBackend(positions=200))

    with serving(load, ["tones", "others"]) as server:
        http = server.http
        for name, status in (("/tmp/ggml.bin", 400), ("others", 200)):
            assert http.post("/load", files={"model": (None, name)}).status_code == status
        assert http.post("/inference", files={"file": WAVE}).json()["text"] == f" {TEXT}\n"
        assert [model.id for model in server.service.models.loaded] == ["others"]
        assert http.get("/status").json()["version"].startswith("harken ")
        assert http.get("/health").json() == {"status": "ok"}


def test_the_description_has_the_routes_and_fields_that_are_read(server: Serving) -> None:
    document, page = server.http.get("/openapi.json").json(), server.http.get("/docs")
    form = document["paths"]["/v1/audio/transcriptions"]["post"]["requestBody"]["content"][
        "multipart/form-data"
    ]
    assert form["schema"]["required"] == ["file", "model"]
    assert form["schema"]["properties"]["response_format"]["enum"][0] == "json"
    parameters = document["paths"]["/asr"]["post"]["parameters"]
    asked = re.findall(
        r"[?&](\w+)=", " ".join(each.target for each in REQUESTS if each.target.startswith("/asr"))
    )
    assert {*asked} - {parameter["name"] for parameter in parameters} == {"vad_filter"}
    assert all(operation["summary"] for path in document["paths"].values() for operation in path.values())
    assert "unsafe" not in page.headers["content-security-policy"]
    assert all(f" {path}<" in page.text for path in document["paths"])
    assert not re.search(r'(src|href)="(https?:)?//', page.text)
