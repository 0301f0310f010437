"""`harken serve` as a process: the address that it prints, what it refuses, standard input, and its end at a signal."""

import asyncio
import json
import logging
import plistlib
import re
import shlex
import signal
import socket
import subprocess
import sys
import warnings
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import click
import httpx
import numpy as np
import pytest
import yaml
from served_audio import pcm, wav
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from cli_runner import eventually
from harken.audio import load_audio
from harken.cli.root import main
from harken.cli.serve import command as serve_command
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE, model_path

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of audioop, which it imports up to Python 3.12
    from wyoming.asr import Transcribe
    from wyoming.audio import AudioChunk, AudioStart, AudioStop
    from wyoming.event import read_event, write_event
    from wyoming.info import Describe, Info

KEY = {"authorization": "Bearer secret-key"}
WAIT_S = 60.0  # only a failure takes as long
needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")


def command(*options):
    return [sys.executable, "-m", "harken", "serve", "--threads", "1", *options]


@contextmanager
def serve(*options):
    """Run the command on a free port; yield its address and the process, once a model is loaded."""
    process = subprocess.Popen(command("--port", "0", *options), stderr=subprocess.PIPE, text=True)
    try:
        (address,) = re.findall(r"http://\S+", process.stderr.readline())
        with httpx.Client(base_url=address, timeout=WAIT_S, verify=False) as http:
            assert eventually(lambda: http.get("/readyz").status_code != 503, 2 * WAIT_S)
        yield address, process
    finally:
        process.kill()
        process.wait(WAIT_S)
        process.stderr.close()


@pytest.fixture
def own_log(monkeypatch):
    """Loggers whose handlers go with the test: they would write to what pytest closes."""
    for name in ("harken", "uvicorn.error", "asyncio"):
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)


@pytest.mark.usefixtures("own_log")
def test_every_line_of_the_log_is_json_if_it_is_to_be(capsys):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        assert main(["serve", "--log-format", "json", "--port", str(taken.getsockname()[1])]) == 2
    capsys.readouterr()
    for name in ("harken", "harken.serve", "asyncio"):  # the first tells what loading a model had to do without
        logging.getLogger(name).error("a line")
        assert json.loads(capsys.readouterr().err)["event"] == "a line"
    logging.getLogger("asyncio").warning("socket.send() raised exception.")  # what is sent to one who has gone
    assert not capsys.readouterr().err


@pytest.mark.usefixtures("own_log")
def test_what_cannot_be_served_is_refused_in_one_line(capsys):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        for options, code, expected in (
            (("--port", port), 2, f"--port {port}: allowed is a port of 127.0.0.1 that is free"),
            (("--host", "no.such.name.invalid", "--no-auth"), 2, "invalid': allowed is an address"),
            (("--host", "0.0.0.0"), 2, "--host '0.0.0.0': allowed is an address of this machine alone"),
            (("--certfile", "cert.pem"), 2, "--certfile 'cert.pem': allowed is a file together with keyfile"),
            (("--alias", "x=large"), 2, "'x=large': allowed is NAME=MODEL, with a MODEL of tiny.en"),
            (("--max-streams", "0"), 2, "--max-streams 0: allowed is an integer from 1 on"),
            (("--log-format", "xml"), 2, "--log-format 'xml': allowed is text or json"),
            (("--port=0", "--model=no/such-model", "--no-download"), 4, "no/such-model: not on this machine"),
            (("--speaker-model", "no-such-folder"), 4, "no-such-folder: is not a directory"),
        ):
            assert main(["serve", *options]) == code
            assert expected in capsys.readouterr().err.strip().splitlines()[-1]
    for command in (["serve"], ["mcp", "--root", "."]):  # before anything else
        assert main([*command, "--model", "tiny.en,tinny"]) == 4
        assert capsys.readouterr().err.startswith("harken: tinny: no such model; allowed is ")


def test_speakers_are_not_downloaded_if_nothing_may_be(capsys, monkeypatch, tmp_path):
    async def ask_for_speakers(*given):
        *_, load_diarizer = given
        load_diarizer()

    monkeypatch.setattr("harken.serve.server.run", ask_for_speakers)
    monkeypatch.setenv("HARKEN_CACHE", str(tmp_path))
    monkeypatch.delenv("HARKEN_SPEAKER_MODEL", raising=False)
    assert main(["serve", "--no-download"]) == 4
    assert "downloads are off" in capsys.readouterr().err


@asynccontextmanager
async def at_work(address, said, recording):
    """Give a server a live stream and a file; the reply to the file is on its way."""
    hello = {"type": "hello", "finals": "streamed", "audio": {"format": "s16le", "rate": 16000, "channels": 1}}
    async with (
        connect(f"ws{address.removeprefix('http')}/v1/stream", additional_headers=KEY) as live,
        httpx.AsyncClient(base_url=address, timeout=WAIT_S, headers=KEY, verify=False) as client,
    ):
        await live.send(json.dumps(hello))
        await live.send(said)
        async for message in live:
            if json.loads(message).get("committed") or not any(said):
                break
        form = {"data": {"model": "whisper-1"}, "files": {"file": recording}}
        reply = asyncio.create_task(client.post("/v1/audio/transcriptions", **form))
        while (await client.get("/readyz")).json()["files"] == 0 and not reply.done():
            await asyncio.sleep(0.01)
        yield live, client, reply


@needs_signals
@pytest.mark.real
def test_sigterm_brings_the_last_words_and_finishes_files_and_the_log_keeps_secrets(monkeypatch):
    monkeypatch.setenv("HARKEN_API_KEY", "secret-key")
    monkeypatch.setenv("HARKEN_ALLOWED_HOST", "harken, whisper.lan")
    said = pcm(load_audio(EXAMPLE)[: 8 * SAMPLE_RATE])

    async def run(address, process):
        async with at_work(address, said, EXAMPLE.read_bytes()) as (live, client, reply):
            assert (await client.get("/v1/models", headers={"authorization": ""})).status_code == 401
            allowed = await client.get("/v1/models", headers={"host": "whisper.lan:8765"})
            assert [model["id"] for model in allowed.json()["data"]] == ["tiny.en"]
            url = f"ws{address.removeprefix('http')}/v1/stream"
            with pytest.raises(InvalidStatus):
                await connect(url)
            async with connect(url, additional_headers=KEY) as hostile:
                await hostile.send(b"\xff", text=True)
                await hostile.wait_closed()
                assert hostile.close_code == 1007
            host, port = address.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(b"POST /asr HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400")
            writer.close()
            reader, unfinished = await asyncio.open_connection(host, port)
            unfinished.write(
                b"POST /asr HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nand no more"
            )
            assert (await reader.readline()).startswith(b"HTTP/1.1 401")
            process.send_signal(signal.SIGTERM)
            finals = ""
            with suppress(ConnectionClosedError):
                async for message in live:
                    finals += json.loads(message).get("segment", {}).get("text", "")
            assert live.close_code == 1012
            text = (await reply).json()["text"]
            unfinished.close()
            return finals, text

    with serve("--log-format", "json") as (address, process):
        finals, text = asyncio.run(run(address, process))
        assert process.wait(WAIT_S) == 0
        log = process.stderr.read()
    assert "fellow Americans" in finals
    assert "country" in text
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"/v1/models", "/v1/audio/transcriptions"} <= {line.get("route") for line in lines}
    assert {200, 401} <= {line.get("status") for line in lines}
    assert {line["event"] for line in lines} == {"request", "draining"}
    assert not any(secret in log for secret in ("secret", "fellow", "country"))


@needs_signals
@pytest.mark.real
def test_a_second_signal_ends_the_server_at_once():
    async def run(address, process):
        long = wav(np.tile(load_audio(EXAMPLE), 10))
        async with at_work(address, bytes(32_000), long) as (_, client, reply):
            process.send_signal(signal.SIGTERM)
            while (await client.get("/readyz")).json()["status"] != "draining":
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            await asyncio.gather(reply, return_exceptions=True)

    with serve("--drain-s", "50") as (address, process):
        asyncio.run(run(address, process))
        assert process.wait(WAIT_S) == 143
        assert "ended before all work was done" in process.stderr.read()


@pytest.mark.real
@pytest.mark.slow
def test_wyoming_is_spoken_over_standard_input_and_output_to_their_end():
    model_path("tiny.en")  # skips where it is missing
    said, format = pcm(load_audio(EXAMPLE)[: 3 * SAMPLE_RATE]), {"rate": SAMPLE_RATE, "width": 2, "channels": 1}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command("--wyoming", "stdio://"), **pipes) as process:
        try:
            write_event(Describe().event(), process.stdin)
            assert Info.from_event(read_event(process.stdout)).asr[0].models[0].languages == ["en"]
            for _ in range(2):
                chunks = [AudioChunk(**format, audio=said[i : i + 2048]) for i in range(0, len(said), 2048)]
                for told in (Transcribe(language="en"), AudioStart(**format), *chunks, AudioStop()):
                    write_event(told.event(), process.stdin)
                texts = {}
                while "transcript-stop" not in texts and (event := read_event(process.stdout)):
                    texts[event.type] = texts.get(event.type, "") + event.data.get("text", "")
                assert "fellow Americans" in texts["transcript"]
                assert texts["transcript-chunk"] == texts["transcript"]
            process.stdin.close()
            assert process.stdout.read() == b""
            assert process.wait(WAIT_S) == 0, process.stderr.read().decode()
        finally:
            process.kill()


# --- examples/serve ----------------------------------------------------------------------------------------

SERVE = Path(__file__).parents[2] / "examples" / "serve"
DOCKERFILE = (SERVE / "Dockerfile").read_text(encoding="utf-8")
(ENTRYPOINT,) = re.findall(r"^ENTRYPOINT (\[.*\])$", DOCKERFILE, re.MULTILINE)
CHECK, COMMAND = re.findall(r"^ *CMD (\[.*\])$", DOCKERFILE, re.MULTILINE)
COMPOSE = yaml.safe_load((SERVE / "compose.yaml").read_text(encoding="utf-8"))["services"]["harken"]["command"]
UNITS = {
    "Dockerfile": json.loads(ENTRYPOINT) + json.loads(COMMAND),
    "compose.yaml": json.loads(ENTRYPOINT) + COMPOSE,
    "harken.service": shlex.split(re.findall(r"ExecStart=(.*)", (SERVE / "harken.service").read_text())[0]),
    "harken.plist": plistlib.loads((SERVE / "harken.plist").read_bytes())["ProgramArguments"],
}


@pytest.mark.parametrize("name", UNITS)
def test_units_and_containers_give_options_that_there_are(name):
    program, subcommand, *options = UNITS[name]
    assert (program, subcommand) == ("/opt/harken/bin/harken", "serve")
    assert isinstance(serve_command.make_context("serve", options), click.Context)


@pytest.mark.real
@pytest.mark.nightly
def test_server_of_the_image_is_healthy(monkeypatch):
    monkeypatch.setenv("HARKEN_API_KEY", "k")
    with serve(*UNITS["Dockerfile"][2:]) as (address, _):
        words = [word.replace("8765", address.rpartition(":")[2]) for word in json.loads(CHECK)[1:]]
        subprocess.run([sys.executable, *words], check=True, timeout=WAIT_S)
