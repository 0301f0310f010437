"""Requests of other programs, as their sources write them: they are answered as these expect (docs/clients.md)."""

import re

import pytest
from served_audio import FORM_TYPE, form_body, pcm, wav
from tone_server import ToneRecognizer, speak

from fakes.tone_backend import ToneBackend
from harken.serve.options import ServeOptions
from serving import serving

SPEECH, TEXT = speak(3).samples, "ba ha na"
RECORDINGS = {"WAVE": wav(SPEECH), "RAW": pcm(SPEECH)}
PLAIN, JSON = "text/plain; charset=utf-8", "application/json"
CUE = r"1\n00:00:0\d,\d{3} --> 00:00:0\d,\d{3}\nba ha na\n\n"
ANSWERS = {
    "cue": (PLAIN, CUE),
    "vtt": (PLAIN, r"WEBVTT\n\n00:0\d\.\d{3} --> 00:0\d\.\d{3}\nba ha na\n\n"),
    "line": (PLAIN, r"[\w ]+\n"),
    "words": (
        PLAIN,
        r'\{"language": "en", "segments": \[\{"id": 0, .*"words": \[\{"word": " ba", .*"text": "ba ha na"\}',
    ),
    "language": (JSON, r'\{"detected_language":"\w[\w ]+","language_code":"\w{2,3}","confidence":[01]\.\d+\}'),
    "whisper.cpp": (JSON, r'\{"text":" ba ha na\\n"\}'),
    "short lines": (JSON, r'\{"text":" ba ha\\n na\\n"\}'),
    "srt": ("application/x-subrip; charset=utf-8", CUE),
    "details": (
        JSON,
        r'\{"text":" ba ha na\\n","task":"transcribe","language":"english",.*"words":\[\{.*"t_dtw":-1.*'
        r'"detected_language":"english","detected_language_probability":1.0,"language_probabilities":\{"en":1.0\}\}',
    ),
    "text": (PLAIN, TEXT),
    "tag": (JSON, r'\{"lang":"(en|de)","conf":[01]\.\d+\}'),
    "deepgram": (JSON, r'\{"metadata":.*"transcript":"ba ha na".*\}'),
    "openai": (JSON, r'\{"text":"ba ha na",.*\}'),
    "verbose": (
        JSON,
        r'\{"task":"transcribe","language":"english",.*"segments":\[\{"id":0,.*"words":\[\{"start".*\}',
    ),
    "events": (
        "text/event-stream; charset=utf-8",
        r'(event: (transcript\.text\.\w+)\ndata: \{"type": "\2", .*\}\n\n)*event: transcript.text.done\ndata: .*'
        r'"segments": \[\{"id": 0, "start": [\d.]+, "end": [\d.]+, "text": " ?ba ha na"\}\].*\}\n\ndata: \[DONE\]\n\n',
    ),
}
"""Types and patterns of answers."""

REQUESTS = """
Bazarr > /asr?task=transcribe&language=en&output=srt&encode=false > cue
    audio_file/audio_file=RAW
Bazarr, language > /detect-language?encode=false > language
    audio_file/audio_file=RAW
obsidian-transcription > /asr?output=json&word_timestamps=true&language=en&initial_prompt=&vad_filter=true > words
    &encode=true audio_file/note.webm=WAVE
whisper-to-input > /asr?encode=true&task=transcribe&language=&word_timestamps=false&output=txt > line
    audio_file/recorded.m4a=WAVE
a script, with a WAV file that it calls raw > /asr?language=en&output=vtt&encode=false > vtt
    audio_file/a.wav=WAVE
a script, for an output that there is not > /asr?output=text&language=en > line
    audio_file/a.wav=WAVE
whisper.el > /inference > whisper.cpp
    file/whisper.wav=WAVE temperature=0.0 temperature_inc=0.2 response_format=json language=en
wyoming-whisper-api-client > /inference?temperature=0.0&temperature_inc=0.2&response_format=json > whisper.cpp
    file/upload=WAVE
a script, for short segments of whisper.cpp > /inference > short lines
    file/audio.wav=WAVE max_len=5 split_on_word=true
a script, for subtitles of whisper.cpp > /inference > srt
    file/audio.wav=WAVE response_format=srt language=en beam_size=-1 offset_t=-1 duration=-1
the example of whisper.cpp, in full > /inference > details
    file/jfk.wav=WAVE response_format=verbose_json
ovos-stt-plugin-server > /stt?lang=en-us > text
    =WAVE
ovos-stt-plugin-server, language > /lang_detect?valid_langs=en-us,de-de > tag
    =WAVE
deepgram-sdk, samples without a header > /v1/listen?model=2-general&encoding=linear16&sample_rate=16000 > deepgram
    =RAW
AnythingLLM > /v1/audio/transcriptions > openai
    file/a.mp3=WAVE model=whisper-small temperature=0 language=en-US
whisper-obsidian-plugin > /v1/audio/transcriptions > openai
    file/r.webm=WAVE model=whisper-1 language=en prompt=Names origin:=app://obsidian.md
Open WebUI, with an address without /v1 > /audio/transcriptions > openai
    model=Systran/faster-whisper-large-v3-turbo language=en file/a.wav=WAVE
Groq's library > /openai/v1/audio/transcriptions > openai
    file/a.mp3=WAVE model=whisper-large-v3
a program in Java, whose library offers HTTP/2 > /v1/audio/transcriptions > openai
    file/a.mp3=WAVE model=whisper-1 connection:=Upgrade,HTTP2-Settings upgrade:=h2c http2-settings:=AAEAAEAA
Subtitle Edit > /v1/audio/transcriptions > verbose
    model=whisper-1 response_format=verbose_json language=en file/a.mp3=WAVE
    timestamp_granularities[]=segment timestamp_granularities[]=word
Subtitle Edit, streaming > /v1/audio/transcriptions > events
    model=whisper-1 language=en stream=true file/a.mp3=WAVE
"""
"""Clients, their addresses and answers; and more of the address, fields, files as field/name, headers, or a body."""


def request_of(lines):
    """Return the client, the target, the body, the headers and the answer of a request."""
    head, *parts = lines.strip().splitlines()
    client, target, answer = head.split(" > ")
    headers, fields = {"content-type": FORM_TYPE}, []
    for name, _, value in (part.partition("=") for part in " ".join(parts).split()):
        content = RECORDINGS.get(value, value.encode())
        if not name:
            return client, target, content, {"content-type": "audio/wav"}, answer
        if name.startswith("&"):
            target += f"{name}={value}"
        elif name.endswith(":"):
            headers[name[:-1]] = value
        else:
            field, _, file_name = name.partition("/")
            fields.append((f'name="{field}"' + (f'; filename="{file_name}"' if file_name else ""), content))
    return client, target, form_body(*fields), headers, answer


@pytest.fixture(scope="module")
def server():
    model = ToneRecognizer(ToneBackend(positions=200))
    options = ServeOptions(preload=False, origin=("app://obsidian.md",))
    with serving(lambda id: model, ["tones"], options, aliases={"*": "tones"}) as server:
        yield server


@pytest.mark.parametrize(
    "lines", re.split(r"\n(?=\S)", REQUESTS.strip()), ids=lambda lines: lines.split(" > ")[0]
)
def test_what_a_client_sends_is_answered_as_it_expects(server, lines):
    _, target, body, headers, answer = request_of(lines)
    type, pattern = ANSWERS[answer]
    reply = server.http.post(target, content=body, headers=headers)
    assert (reply.status_code, reply.headers["content-type"]) == (200, type), reply.text
    assert re.fullmatch(pattern, reply.text), reply.text


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        ("/asr?output=srt", {}, 400),
        ("/asr?language=00:00:00,000 --> 00:00:09,000", {}, 400),
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
def test_nobody_takes_an_error_for_subtitles(server, target, headers, status):
    reply = server.http.post(target, files={"other": (None, b"value")}, headers=headers)
    assert (reply.status_code, reply.headers["content-type"]) == (status, PLAIN)
    assert len(reply.text.splitlines()) == 1
    assert len(reply.text) <= 301
    assert "-->" not in reply.text
    assert reply.text.startswith("error: ") == (status != 200)


def test_a_model_that_is_loaded_is_that_of_whisper_cpp_from_then_on():
    with serving(lambda id: ToneRecognizer(ToneBackend(positions=200)), ["tones", "others"]) as server:
        http = server.http
        for name, status in (("/tmp/ggml.bin", 400), ("others", 200)):
            assert http.post("/load", files={"model": (None, name)}).status_code == status
        assert http.post("/inference", files={"file": RECORDINGS["WAVE"]}).json()["text"] == f" {TEXT}\n"
        assert [model.id for model in server.service.models.loaded] == ["others"]
        assert http.get("/status").json()["version"].startswith("harken ")
        assert http.get("/health").json() == {"status": "ok"}


def test_the_description_has_the_routes_and_fields_that_are_read(server):
    document, page = server.http.get("/openapi.json").json(), server.http.get("/docs")
    paths = document["paths"]
    form = paths["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["required"] == ["file", "model"]
    assert form["properties"]["response_format"]["enum"][0] == "json"
    parameters = {parameter["name"] for parameter in paths["/asr"]["post"]["parameters"]}
    asked = re.findall(r"[?&](\w+)=", " ".join(re.findall(r"/asr\?.*\n.*", REQUESTS)))
    assert {*asked} - parameters == {"vad_filter"}
    assert all(operation["summary"] for path in paths.values() for operation in path.values())
    assert "unsafe" not in page.headers["content-security-policy"]
    assert all(f" {path}<" in page.text for path in paths)
    assert not re.search(r'(src|href)="(https?:)?//', page.text)
