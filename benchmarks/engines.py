"""Speech engines and diarizers, each in a process of its own that is kept alive and given its work over pipes.

So thread pools and memory of one engine do not touch those of another, and peak memory is each engine's own.
Run as a program, this file is such a process: it loads the engine that its argument describes, then answers
each request on standard input with one line of JSON. The interpreter may be that of another environment, in which the
engine is installed and harken is not.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from program import Args, add, limit_threads, peak_mb, require, stop

BATCH = 8
"""Windows that the batched pipelines decode together."""
HOP_SAMPLES = 1600
"""Samples that a live session is fed at once."""

Turns = list[tuple[float, float, str]]
"""Start, end and speaker."""
Words = list[tuple[str, float | None, float | None]]
"""Text, start and end in seconds; None where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A recording to transcribe or diarize; all other settings are the engine's defaults."""

    path: str
    language: str | None = "en"  # None has it detected
    beam_size: int = 1  # greedy
    words: bool = False  # with their times
    text: str = ""  # to align


Work = Callable[[Request], dict[str, Any]]
"""From a request to fields of `Reply`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What to load: a key of `LOADERS`, the model as the engine names it, and a precision; diarizers may have none."""

    label: str
    model: str | None
    precision: str
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer of an engine's process: after loading, without a result, and after each recording."""

    seconds: float
    cpu_s: float
    peak_mb: float
    text: str = ""
    language: str | None = None  # where the engine does not tell
    words: Words = field(default_factory=list)
    turns: dict[str, Turns] = field(default_factory=dict)  # by a label where a diarizer has several results


class Worker:
    """An engine in a process of its own, loaded in `load_s` seconds; a context manager that ends the process."""

    def __init__(self, engine: Engine, python: str = sys.executable) -> None:
        self.engine = engine
        self._process = subprocess.Popen(
            [python, __file__, json.dumps(asdict(engine))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=limit_threads(engine.threads),
        )
        self.load_s = self._reply().seconds

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()  # closes its standard input, at which it ends

    def work(self, path: Path, **fields: Any) -> Reply:
        """Have one recording transcribed or diarized, by the fields of `Request`; the time is taken over there."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps(asdict(Request(path=str(path), **fields))) + "\n")
        self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> Reply:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            stop(f"{self.engine.label}: its process has ended; the reason stands above")
        return Reply(**json.loads(line))


def times_of(words: Any) -> Words:
    """Return words of harken."""
    return [(word.text, word.start_s, word.end_s) for word in words]


def harken(engine: Engine, *, precision: str | None = None, assistant: str = "auto", **options: Any) -> Work:
    """harken with options of `Recognizer.transcribe`."""
    from harken import load

    recognizer = load(
        engine.model, assistant=assistant, precision=precision or engine.precision, threads=engine.threads
    )

    def transcribe(request: Request) -> dict[str, Any]:
        found = recognizer.transcribe(
            request.path,
            language=request.language,
            beam_size=request.beam_size,
            word_timestamps=request.words,
            **options,
        ).result()
        words = [word for segment in found.segments for word in segment.words]
        return {"text": found.text, "language": found.language, "words": times_of(words)}

    return transcribe


def harken_live(engine: Engine) -> Work:
    """harken's live session, whose final segments count."""
    from harken import load
    from harken.audio import load_audio

    recognizer = load(engine.model, precision=engine.precision, threads=engine.threads)

    def transcribe(request: Request) -> dict[str, Any]:
        session = recognizer.stream(language=request.language, word_timestamps=request.words)
        samples, events = load_audio(request.path), []
        for at in range(0, len(samples), HOP_SAMPLES):
            events += session.feed(samples[at : at + HOP_SAMPLES])
        segments = [each.segment for each in [*events, *session.close()] if getattr(each, "segment", None)]
        words = times_of(word for segment in segments for word in segment.words)
        return {"text": "".join(segment.text for segment in segments), "words": words}

    return transcribe


def harken_align(engine: Engine) -> Work:
    """harken's times of the words of a known text."""
    from harken import load

    recognizer = load(engine.model, precision=engine.precision, threads=engine.threads)

    def align(request: Request) -> dict[str, Any]:
        return {"words": times_of(recognizer.align(request.path, request.text, language=request.language))}

    return align


def faster_whisper(engine: Engine, **options: Any) -> Work:
    """faster-whisper, window after window; with a size of batches its pipeline, cut by voice activity detection."""
    module: Any = importlib.import_module("faster_whisper")
    compute_type = {"fp32": "float32"}.get(engine.precision, engine.precision)
    model = module.WhisperModel(
        engine.model, device="cpu", compute_type=compute_type, cpu_threads=engine.threads
    )
    pipeline = module.BatchedInferencePipeline(model) if "batch_size" in options else model

    def transcribe(request: Request) -> dict[str, Any]:
        found, information = pipeline.transcribe(
            request.path,
            language=request.language,
            beam_size=request.beam_size,
            word_timestamps=request.words,
            **options,
        )
        segments = [*found]
        words = [(word.word, word.start, word.end) for segment in segments for word in segment.words or ()]
        text = "".join(segment.text for segment in segments)
        return {"text": text, "language": str(information.language), "words": words}

    return transcribe


def openai_whisper(engine: Engine, module: str = "whisper") -> Work:
    """openai-whisper, or stable-ts, in float32, with the temperatures of its command line; harken reads the files."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(engine.threads)
    from harken.audio import load_audio

    model = importlib.import_module(module).load_model(engine.model, device="cpu")
    options = {"temperature": (0.0, 0.2, 0.4, 0.6, 0.8, 1.0), "best_of": 5, "fp16": False, "verbose": None}

    def transcribe(request: Request) -> dict[str, Any]:
        beam = {"beam_size": request.beam_size} if request.beam_size > 1 else {}
        samples = load_audio(request.path)
        result = model.transcribe(
            samples, language=request.language, word_timestamps=request.words, **options, **beam
        )
        result = result if isinstance(result, dict) else result.to_dict()
        words = [
            (word["word"], word["start"], word["end"])
            for segment in result["segments"]
            for word in segment.get("words", ())
        ]
        return {"text": str(result["text"]), "language": str(result["language"]), "words": words}

    return transcribe


def openvino_genai(engine: Engine) -> Work:
    """OpenVINO GenAI's Whisper pipeline: one attempt a window, no voice activity detection.

    harken reads the files, since the pipeline takes samples. Only multilingual models are given the language: the
    pipeline refuses it for others. The model is a directory of OpenVINO's graphs (docs/benchmarks.md).
    """
    genai: Any = importlib.import_module("openvino_genai")
    from harken.audio import load_audio

    pipeline = genai.WhisperPipeline(engine.model, "CPU", INFERENCE_NUM_THREADS=engine.threads)
    multilingual = pipeline.get_generation_config().is_multilingual

    def transcribe(request: Request) -> dict[str, Any]:
        language = {"language": f"<|{request.language}|>"} if multilingual and request.language else {}
        found = pipeline.generate(load_audio(request.path), num_beams=request.beam_size, **language)
        return {"text": str(found)}

    return transcribe


def harken_diarizer(engine: Engine) -> Work:
    """harken's diarizer with its defaults."""
    from harken import load_diarizer

    diarizer = load_diarizer(engine.model, threads=engine.threads)

    def diarize(request: Request) -> dict[str, Any]:
        turns = diarizer.diarize(request.path).turns
        return {"turns": {"harken": [(turn.start_s, turn.end_s, turn.speaker) for turn in turns]}}

    return diarize


def senko_diarizer(engine: Engine) -> Work:
    """senko's diarizer: its `merged_segments` bridge pauses of one speaker, `raw_segments` keep them."""
    os.cpu_count = lambda: engine.threads  # type: ignore[assignment]  # from which it takes its number of threads
    diarizer = importlib.import_module("senko").Diarizer(device="cpu", warmup=True, quiet=True)

    def diarize(request: Request) -> dict[str, Any]:
        found = diarizer.diarize(request.path) or {"merged_segments": [], "raw_segments": []}
        return {
            "turns": {
                label: [(part["start"], part["end"], str(part["speaker"])) for part in found[key]]
                for label, key in (("senko", "merged_segments"), ("senko-raw", "raw_segments"))
            }
        }

    return diarize


ENGINES: dict[str, Callable[[Engine], Work]] = {
    "harken": harken,
    "harken exact": partial(harken, fidelity="exact"),  # windows are encoded whole, as the reference does
    "harken int16": partial(harken, precision="int16"),
    "harken alone": partial(harken, assistant="none"),
    "harken batched": partial(harken, batch_size=BATCH),
    "harken live": harken_live,
    "harken align": harken_align,  # times of words alone
    "faster-whisper": faster_whisper,
    "faster-whisper batched": partial(faster_whisper, batch_size=BATCH),
    "openvino-genai": openvino_genai,
    "openai-whisper": openai_whisper,
    "stable-ts": partial(openai_whisper, module="stable_whisper"),
}
DIARIZERS = {"harken": "harken diarizer", "senko": "senko diarizer"}
"""Labels of diarizers, by the names of the programs."""
LOADERS = ENGINES | {"harken diarizer": harken_diarizer, "senko diarizer": senko_diarizer}
MODULES = {
    "harken": "harken",
    "faster-whisper": "faster_whisper",
    "openvino-genai": "openvino_genai",
    "openai-whisper": "whisper",
    "stable-ts": "stable_whisper",
}
"""Module of each engine, by the first word of its name."""
PACKAGES = ("faster-whisper", "ctranslate2", "openvino-genai", "openai-whisper", "torch")


def add_engine_options(parser: argparse.ArgumentParser, engines: tuple[str, ...]) -> None:
    """Add the arguments that `engine` reads; `engines` are the default ones."""
    add(parser, "--engines", engines, ", ".join(ENGINES), choices=ENGINES)
    add(
        parser, "--peer-models", (), "ENGINE=PATH of the same model; by default the directory of harken's model"
    )
    add(parser, "--precision", "int8", "of all engines", choices=("int8", "fp32"))


def engine(name: str, args: Args) -> Engine:
    """Return one engine with its model; stop where it is not installed."""
    kind = name.split()[0]
    require(MODULES[kind])
    model = args.model
    if kind != "harken":
        from harken.checkpoints import resolve_model

        peers = dict(pair.split("=", 1) for pair in args.peer_models)
        model = peers.get(kind) or str(resolve_model(model))  # for engines that read the same files
    return Engine(label=name, model=model, precision=args.precision, threads=args.threads)


@contextmanager
def workers_of(args: Args) -> Iterator[list[Worker]]:
    """Start the engines that a program is given, each in a process that ends with the block."""
    with ExitStack() as stack:
        yield [stack.enter_context(Worker(engine(name, args))) for name in args.engines]


def serve(engine: Engine) -> None:
    """Load an engine, then answer requests until standard input ends."""
    replies = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # what an engine prints must not come between the replies

    def reply(started: tuple[float, float], fields: dict[str, Any]) -> None:
        seconds, cpu_s = perf_counter() - started[0], process_time() - started[1]
        answer = Reply(seconds=seconds, cpu_s=cpu_s, peak_mb=peak_mb(), **fields)
        replies.write(json.dumps(asdict(answer)) + "\n")

    started = perf_counter(), process_time()
    work = LOADERS[engine.label](engine)
    reply(started, {})
    for line in sys.stdin:
        started = perf_counter(), process_time()
        reply(started, work(Request(**json.loads(line))))


if __name__ == "__main__":
    serve(Engine(**json.loads(sys.argv[1])))
