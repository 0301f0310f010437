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
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from types import TracebackType
from typing import Any

from program import Args, add, limit_threads, peak_mb, require, stop

BATCH = 8
"""Windows that the batched pipelines decode together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A recording to transcribe or diarize; all other settings are the engine's defaults.

    Parameters
    ----------
    path : str
    language : str or None
        Code; None has it detected.
    beam_size : int
        1 is greedy.
    """

    path: str
    language: str | None = "en"
    beam_size: int = 1


Turns = list[tuple[float, float, str]]
Work = Callable[[Request], dict[str, Any]]
"""From a request to fields of `Reply`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What to load.

    Parameters
    ----------
    label : str
        A key of `LOADERS`, its name in results.
    model : str or None
        Name or path, as the engine takes it; for diarizers a folder, or None for their own.
    precision : str
        As the engine names it.
    threads : int
    """

    label: str
    model: str | None
    precision: str
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer of an engine's process: after loading, without a result, and after each recording.

    `turns` are those of a diarizer, by a label where it has several results; `language` is None where an engine does
    not tell.
    """

    seconds: float
    cpu_s: float
    peak_mb: float
    text: str = ""
    language: str | None = None
    turns: dict[str, Turns] = field(default_factory=dict)


class Worker:
    """An engine in a process of its own; a context manager that ends the process.

    Attributes
    ----------
    engine : Engine
    load_s : float
        Time to import and load the engine, in seconds.
    """

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # closes its standard input, at which it ends

    def work(self, path: Path, language: str | None = "en", beam_size: int = 1) -> Reply:
        """Have one recording transcribed or diarized; the time is taken over there."""
        assert self._process.stdin
        request = Request(path=str(path), language=language, beam_size=beam_size)
        self._process.stdin.write(json.dumps(asdict(request)) + "\n")
        self._process.stdin.flush()
        return self._reply()

    def _reply(self) -> Reply:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            stop(f"{self.engine.label}: its process has ended; the reason stands above")
        return Reply(**json.loads(line))


def harken(engine: Engine, *, precision: str | None = None, **options: Any) -> Work:
    """harken with options of `Recognizer.transcribe`."""
    from harken import load

    recognizer = load(engine.model, precision=precision or engine.precision, threads=engine.threads)

    def transcribe(request: Request) -> dict[str, Any]:
        transcription = recognizer.transcribe(
            request.path, language=request.language, beam_size=request.beam_size, **options
        )
        return {"text": transcription.text, "language": transcription.language}

    return transcribe


def faster_whisper(engine: Engine, **batch: int) -> Work:
    """faster-whisper, window after window; with a size of batches its pipeline, cut by voice activity detection."""
    module: Any = importlib.import_module("faster_whisper")
    model = module.WhisperModel(
        engine.model, device="cpu", compute_type=engine.precision, cpu_threads=engine.threads
    )
    pipeline = module.BatchedInferencePipeline(model) if batch else model

    def transcribe(request: Request) -> dict[str, Any]:
        segments, information = pipeline.transcribe(
            request.path, language=request.language, beam_size=request.beam_size, **batch
        )
        return {"text": "".join(segment.text for segment in segments), "language": str(information.language)}

    return transcribe


def openai_whisper(engine: Engine) -> Work:
    """openai-whisper, with the temperatures of its command line. harken reads the files, not ffmpeg."""
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(engine.threads)
    whisper: Any = importlib.import_module("whisper")
    from harken.audio import load_audio

    model = whisper.load_model(engine.model, device="cpu")
    temperatures = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

    def transcribe(request: Request) -> dict[str, Any]:
        beam = {"beam_size": request.beam_size} if request.beam_size > 1 else {}
        result = model.transcribe(
            load_audio(request.path),
            language=request.language,
            temperature=temperatures,
            best_of=5,
            fp16=False,
            **beam,
        )
        return {"text": str(result["text"]), "language": str(result["language"])}

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
        return {
            "text": str(pipeline.generate(load_audio(request.path), num_beams=request.beam_size, **language))
        }

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


TRANSCRIBERS: dict[str, Callable[[Engine], Work]] = {
    "harken": harken,
    "harken exact": partial(harken, fidelity="exact"),  # windows are encoded whole, as the reference does
    "harken int16": partial(harken, precision="int16"),
    "harken batched": partial(harken, batch_size=BATCH),
    "faster-whisper": faster_whisper,
    "faster-whisper batched": partial(faster_whisper, batch_size=BATCH),
    "openvino-genai": openvino_genai,
    "openai-whisper": openai_whisper,
}
DIARIZERS = {"harken": "harken diarizer", "senko": "senko diarizer"}
"""Labels of diarizers, by the names of the programs."""
LOADERS = TRANSCRIBERS | {"harken diarizer": harken_diarizer, "senko diarizer": senko_diarizer}
MODULES = {
    "harken": "harken",
    "faster-whisper": "faster_whisper",
    "openvino-genai": "openvino_genai",
    "openai-whisper": "whisper",
    "stable-ts": "stable_whisper",
}
"""Module of each engine, by the first word of its name."""
PACKAGES = ("faster-whisper", "ctranslate2", "openvino-genai", "openai-whisper", "torch")
PRECISIONS = {
    "faster-whisper": {"int8": "int8", "fp32": "float32"},
    "openai-whisper": {"int8": "fp32", "fp32": "fp32"},
}
"""Names of precisions in other engines; openai-whisper has float32 only on a CPU."""


def add_engine_options(parser: argparse.ArgumentParser, engines: tuple[str, ...]) -> None:
    """Add the arguments that `engine` reads; `engines` are the default ones."""
    add(parser, "--engines", engines, ", ".join(TRANSCRIBERS), choices=TRANSCRIBERS)
    parser.add_argument(
        "--peer-models", nargs="+", default=[], metavar="E=PATH",
        help="the same model for other engines; by default the directory of harken's model",
    )  # fmt: skip
    add(parser, "--precision", "int8", "of all engines", choices=("int8", "fp32"))


def engine(name: str, args: Args) -> Engine:
    """Return one engine with its model; stop where it is not installed."""
    kind = name.split()[0]
    require(MODULES[kind])
    peers = dict(pair.split("=", 1) for pair in args.peer_models)
    model = args.model if kind == "harken" else peers.get(kind) or model_directory(args.model)
    precision = PRECISIONS.get(kind, {}).get(args.precision, args.precision)
    return Engine(label=name, model=model, precision=precision, threads=args.threads)


def model_directory(model: str) -> str:
    """Return the directory of a model, for engines that read the same files."""
    from harken.checkpoints import resolve_model

    return str(resolve_model(model))


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
