"""The tools for agents, called by the package's own client in memory: what may be read, and what comes back."""

import asyncio
import json
import logging
import os
import shutil
from contextlib import nullcontext, suppress
from pathlib import Path
from signal import SIGTERM

import httpx
import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed")

from mcp import Client

from audio_files import AUDIO_FORMATS
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, window_text
from fakes.speech_detector import LoudIsSpeech
from harken import Recognizer
from harken.errors import OptionError
from harken.serve import mcp
from harken.serve.options import ServeOptions
from harken.text import LANGUAGES
from tiny_models import TOKENIZER

OUTSIDE = "is not in a folder that may be read; allowed are files in"


class Agent:
    """An agent, and the server that it uses."""

    def __init__(self, *roots):
        self.loaded = []
        self.backend = TranscriptBackend(window_text(0, "one", WINDOW_POSITIONS))
        self._roots = roots

    def _load(self, name):
        self.loaded.append(name)
        return Recognizer(self.backend, TOKENIZER, name, speech_detector=LoudIsSpeech)

    def calls(self, *calls):
        """Return the results of calls in turn: what the tool returned, or the text of its error."""

        async def run():
            server = mcp.make_server(mcp.Tools(self._load, ("tiny", "base"), self._roots, pytest.fail))
            async with Client(server) as client:
                return [await self._call(client, *call) for call in calls]

        return asyncio.run(run())

    async def _call(self, client, name, arguments):
        self.progress = []

        async def note(done, total, message):
            self.progress.append((round(done, 2), total))

        result = await client.call_tool(name, arguments, progress_callback=note)
        return result.content[0].text if result.is_error else result.structured_content

    def transcribe(self, path, **arguments):
        return self.calls(("transcribe", {"file_path": str(path), **arguments}))[0]


@pytest.fixture
def agent(monkeypatch, tmp_path):
    """An agent that may use the folder ``talks``, with a recording of three windows; ``secret.wav`` is beside it."""
    monkeypatch.chdir(tmp_path)
    Path("talks").mkdir()
    AUDIO_FORMATS["wav s16"].write(Path("talks/talk"), 3 * WINDOW_S)
    AUDIO_FORMATS["wav s16"].write(Path("secret"), WINDOW_S)
    return Agent("talks")


def test_answer_has_the_text_and_progress_is_reported_and_the_model_stays_loaded(agent):
    talk = Path("talks/talk.wav").resolve()
    first, again, srt, segments, models = agent.calls(
        ("transcribe", {"file_path": str(talk), "language": "en"}),
        ("transcribe", {"file_path": "talk.wav", "language": "en"}),
        ("transcribe", {"file_path": "talk.wav", "language": "en", "format": "srt"}),
        ("transcribe", {"file_path": "talk.wav", "format": "json", "start": WINDOW_S, "end": 2 * WINDOW_S}),
        ("list_models", {}),
    )
    text = {"text": "one\none\none\n", "language": "en", "duration": 1.44, "characters": 12}
    assert first == again == text | {"next_offset": None, "saved_to": None}
    assert srt["text"].startswith("1\n00:00:00,000 --> 00:00:00,480\none\n")
    assert [segment["start"] for segment in json.loads(segments["text"])] == [WINDOW_S]
    assert len(agent.backend.mels) >= 4  # three windows once, and one
    assert agent.loaded == ["tiny"]
    assert models["result"] == [
        {"name": "tiny", "is_default": True, "is_loaded": True},
        {"name": "base", "is_default": False, "is_loaded": False},
    ]
    agent.transcribe(talk)
    assert [done for done, _ in agent.progress] == [WINDOW_S, 2 * WINDOW_S, 3 * WINDOW_S]


def test_long_answer_comes_in_parts_of_whole_lines(agent, monkeypatch):
    monkeypatch.setattr(mcp, "PART_CHARS", 9)
    whole, offset = "", 0
    while offset is not None:
        part = agent.transcribe("talk.wav", offset=offset)
        whole, offset = whole + part["text"], part["next_offset"]
        assert part["text"].endswith("one\n")
    assert whole == "one\none\none\n"
    assert "offset=13: allowed is 0 to 12" in agent.transcribe("talk.wav", offset=13)


def test_whole_transcript_is_saved_in_a_new_file_of_the_folder(agent):
    saved = agent.transcribe("talk.wav", save_to="talk.srt")
    assert (saved["text"], saved["saved_to"]) == ("", str(Path("talks/talk.srt").resolve()))
    assert Path("talks/talk.srt").read_text().count("one") == 3
    before = sorted(os.listdir("talks"))
    for name, reason in {
        "talk.srt": "exists already, and is not overwritten",
        "talk.wav": "exists already, and is not overwritten",
        "new.wav": "allowed endings are .txt, .srt",
        "new.rttm": "allowed is .rttm with speakers=true",
        "../new.srt": OUTSIDE,
        "none/new.srt": "there is no folder",
    }.items():
        assert reason in agent.transcribe("talk.wav", save_to=name)
    assert sorted(os.listdir("talks")) == before
    agent.transcribe("talk.wav", save_to="talk.words.tsv")
    assert Path("talks/talk.words.tsv").read_text().count("one") == 3


def test_a_file_that_appears_while_it_transcribes_is_not_overwritten(agent, monkeypatch):
    load = agent._load

    def write_and_load(name):
        Path("talks/talk.srt").write_text("mine")
        return load(name)

    monkeypatch.setattr(agent, "_load", write_and_load)
    assert "exists already" in agent.transcribe("talk.wav", save_to="talk.srt")
    assert Path("talks/talk.srt").read_text() == "mine"


def test_nothing_outside_the_folders_is_read_or_listed(agent):
    os.symlink(Path("secret.wav").resolve(), "talks/link.wav")
    os.symlink(Path().resolve(), "talks/up")
    paths = ("../secret.wav", "link.wav", "up/secret.wav", str(Path("secret.wav").resolve()), "/etc/passwd")
    reads = [(tool, {"file_path": path}) for tool in ("transcribe", "detect_language") for path in paths]
    *refused, listed = agent.calls(*reads, ("list_recordings", {}))
    assert len(refused) == 10
    assert all(OUTSIDE in text for text in refused)
    assert [Path(each["path"]).name for each in listed["result"]] == ["talk.wav"]
    assert agent.loaded == []


def test_a_name_that_no_message_can_hold_is_not_listed_and_hides_no_other(agent):
    with suppress(OSError, UnicodeError):  # macOS takes no such names
        shutil.copy("talks/talk.wav", os.fsdecode(b"talks/\xff.wav"))
    (listed,) = agent.calls(("list_recordings", {}))
    assert [Path(each["path"]).name for each in listed["result"]] == ["talk.wav"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"file_path": "none.wav"}, "none.wav: no such file"),
        ({"file_path": "notes.wav"}, "notes.wav: is not a recording that FFmpeg can read"),
        ({"file_path": "x" * 300}, "xxx: "),  # the system says why, each in its words
        ({"file_path": "talk.wav", "start": -1}, "start, end=(-1.0,): allowed is times in seconds from 0 to"),
        ({"file_path": "talk.wav", "start": 99}, "start=99: allowed is a time before the end, 1.44 s"),
        ({"file_path": "talk.wav", "language": "klingon"}, "language='klingon': allowed is one of en"),
        ({"file_path": "talk.wav", "model": "huge"}, "model='huge': allowed is tiny, base"),
        ({"file_path": "talk.wav", "format": "doc"}, "Input should be 'text', 'srt', 'vtt' or 'json'"),
    ],
)
def test_bad_use_says_what_is_allowed(agent, arguments, reason):
    Path("talks/notes.wav").write_text("Dear diary,\n" * 99)
    assert reason in agent.calls(("transcribe", arguments))[0]


def test_language_is_detected(agent):
    found = agent.calls(("detect_language", {"file_path": "talk.wav"}))[0]
    assert found["name"] == LANGUAGES[found["code"]]
    assert max(found["probabilities"], key=found["probabilities"].get) == found["code"]


def test_it_ends_by_a_signal_while_a_client_listens_and_says_why_it_cannot_begin(agent, caplog):
    about = {"protocolVersion": "2025-06-18", "capabilities": {}}
    client_info = about | {"clientInfo": {"name": "test", "version": "1"}}
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client_info}
    accepts = {"accept": "application/json, text/event-stream"}
    signals = []

    def on_signals(handle):
        signals.append(handle)
        return nullcontext()

    async def serve(port, addresses):
        server = mcp.make_server(mcp.Tools(pytest.fail, ("tiny",), ("talks",), pytest.fail))
        await mcp.serve_http(server, ServeOptions(port=port), addresses.put_nowait, on_signals)

    async def run():
        addresses = asyncio.Queue()
        serving = asyncio.create_task(serve(0, addresses))
        async with httpx.AsyncClient(base_url=await addresses.get(), headers=accepts) as client:
            with pytest.raises(OptionError, match="allowed is a port"):
                await serve(client.base_url.port or 0, addresses)
            opened = await client.post("/mcp", json=initialize)
            session = {"mcp-session-id": opened.headers["mcp-session-id"]}
            async with client.stream("GET", "/mcp", headers=session) as listening:
                signals[0](SIGTERM)
                await serving
                return (await listening.aread()).decode()

    assert asyncio.run(run()) == ""
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
