"""Live streams of the server: clients in real time, each of which sends other speech over a connection of its own.

They speak the server's own protocol or several. The latency of a word is the time from its end in the audio, as an
offline alignment gives it, until the client has it: shown, tentative or not, and committed.

    python benchmarks/serving.py --count 1 2 4 8 12 --delay minimal low --save serving-live
    python benchmarks/serving.py --count 16 --protocol own realtime deepgram vosk wyoming --seconds 40 --repeat 15
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from live_clients import Dialect, Reply, deepgram, own, realtime, speak, vosk, wyoming
from program import Args, Parser, Row, add, harken_command, main, note, percentiles, stop
from recordings import SAMPLE_RATE, cut_streams, to_pcm

if TYPE_CHECKING:
    from harken.contract import Floats

ADDRESS = re.compile(r"http://([\d.]+):(\d+)")
END_S = 60
START_GAP_S = 0.3
"""Time between the starts of two clients: real ones do not begin in step."""


@dataclass(frozen=True)
class Server:
    """A server that runs, at an address."""

    url: str
    process: subprocess.Popen[str]

    def cpu_s(self) -> float:
        """Return the time of the processors that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(args: Args, *options: str) -> Iterator[Server]:
    """Run the server while the block runs."""
    command = harken_command(args, "serve", *options, "--port", 0)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := ADDRESS.search(line):
                break
        else:
            stop(f"the server did not start: {''.join(lines[-3:])}")
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield Server(f"http://{found[1]}:{found[2]}", process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(END_S)
    drain.wait(END_S)


PROTOCOLS = ("own", "realtime", "deepgram", "vosk", "wyoming")


def options(parser: Parser) -> None:
    add(parser, "--count", (1, 2, 4, 8), "numbers of streams")
    add(parser, "--protocol", ("own",), "protocols of the streams, in turn", choices=PROTOCOLS)
    add(parser, "--delay", ("minimal", "low"), "delays")
    add(parser, "--finals", "streamed", "kind of finals of the own protocol", choices=("exact", "streamed"))
    add(parser, "--seconds", 40, "length of each stream")
    add(parser, "--repeat", 1, "times that it is said")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each delay and number of streams, and one for each of several protocols."""
    import harken

    streams = cut_streams(args.audio, args.seconds, max(args.count))
    transcripts = harken.load(args.model, threads=args.threads).transcribe_many(streams, word_timestamps=True)
    words = [[word for segment in transcript for word in segment.words] for transcript in transcripts]
    vosk, wyoming = free_ports(2)
    doors = "--vosk", f"127.0.0.1:{vosk}", "--wyoming", f"tcp://127.0.0.1:{wyoming}"
    with running(args, "--max-load", "100", *doors) as server:
        socket_url = server.url.replace("http", "ws", 1)
        urls = dict.fromkeys(PROTOCOLS, socket_url) | {"vosk": f"ws://127.0.0.1:{vosk}", "wyoming": doors[-1]}
        asyncio.run(measure_live(server, urls, streams[:1], words[:1], args, args.delay[0], 1))  # warms up
        for delay in args.delay:
            for count in args.count:
                speaking = streams[:count], words[:count]
                for row in asyncio.run(measure_live(server, urls, *speaking, args, delay, args.repeat)):
                    yield {"delay": delay, "streams": count} | row


def free_ports(count: int) -> list[int]:
    """Return ports at which nobody listens."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


async def measure_live(
    server: Server,
    urls: dict[str, str],
    streams: Sequence[Floats],
    words: Sequence[Any],
    args: Args,
    delay: str,
    repeat: int,
) -> list[Row]:
    """Run clients at the same time, and return their latencies together, and by protocol if there are several."""
    hello = {"model": args.model, "delay": delay, "finals": args.finals, "best_effort": True}
    dialects = {
        "own": own(hello), "realtime": realtime(delay), "deepgram": deepgram(), "vosk": vosk(), "wyoming": wyoming()
    }  # fmt: skip
    protocols = [name for name, _ in zip(cycle(args.protocol), streams, strict=False)]

    async def client(index: int, samples: Floats) -> Reply:
        await asyncio.sleep(index * START_GAP_S)
        name = protocols[index]
        return await speak(urls[name], dialects[name], to_pcm(samples).tobytes() * repeat)

    cpu_s = server.cpu_s()
    replies = await asyncio.gather(*(client(i, samples) for i, samples in enumerate(streams)))
    cpu_s = server.cpu_s() - cpu_s
    spoken = [said_again(own_words, args.seconds, repeat) for own_words in words]
    sessions = [
        (name, reply, latencies(reply, dialects[name], own_words))
        for name, reply, own_words in zip(protocols, replies, spoken, strict=True)
    ]
    seconds = sum(len(samples) / SAMPLE_RATE for samples in streams) * repeat
    total = summary(sessions) | {"cpu_s_a_second": round(cpu_s / seconds, 3)}
    if len(args.protocol) == 1:
        return [total]
    by_protocol = {name: [each for each in sessions if each[0] == name] for name in dict.fromkeys(protocols)}
    apart = [{"protocol": name} | summary(of_name) for name, of_name in by_protocol.items()]
    return [{"protocol": "all"} | total, *(row | {"cpu_s_a_second": None} for row in apart)]


def summary(sessions: Sequence[tuple[str, Reply, Sequence[Any]]]) -> Row:
    """Return the latencies of sessions together, and how many ended in order."""
    found = [one for _, _, own_words in sessions for one in own_words]
    events = [message for _, reply, _ in sessions for message in reply.messages if "event" in message.fields]
    levels = [each.fields["level"] for each in events if each.fields["event"] == "load_changed"]
    for name, reply, _ in sessions:
        if reply.problem:
            note(f"{name}: {reply.problem}")
    return {
        **percentiles("shown", [each.interim_latency.computation_aware_s for each in found]),
        **percentiles("committed", [each.commit_latency.computation_aware_s for each in found]),
        **percentiles("lag", [message.came_s - message.fields["emitted_s"] for message in events]),
        "load_level": max(levels, default=0) if events else None,
        "words": len(found),
        "sessions": len(sessions),
        "ended": sum(not reply.problem for _, reply, _ in sessions),
    }


def said_again(words: Sequence[Any], seconds: int, repeat: int) -> list[Any]:
    """Return the words of a stream that is said some times."""
    return [
        replace(word, start_s=word.start_s + i * seconds, end_s=word.end_s + i * seconds)
        for i in range(repeat)
        for word in words
    ]


def latencies(reply: Reply, dialect: Dialect, spoken: Sequence[Any]) -> Sequence[Any]:
    """Return the latency of each spoken word."""
    from harken.evaluation.latency import Display, StreamTime, measure_latencies, unit_splitter

    split_units = unit_splitter("en")
    display = Display(split_units)
    for message in reply.messages:
        time = StreamTime(computation_unaware_s=message.came_s, computation_aware_s=message.came_s)
        for event in dialect.shown(message.fields):
            display.update(event, time)
    return measure_latencies(display.words(), spoken, split_units).words


if __name__ == "__main__":
    main(
        rows, options, model="tiny.en", needs=("harken", "websockets", "starlette"),
        packages=("uvicorn", "websockets"), settings=("finals", "seconds", "repeat"),
    )  # fmt: skip
