"""What the benchmarks share: arguments, recordings with references, error rates, the machine, tables.

Nothing heavy is imported before it is needed, so that ``--help`` is quick and needs no installation.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import subprocess
import sys
import wave
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "jfk.flac"
DEFAULT_SET = "librispeech-test-other"
GAP_S = 0.3
SAMPLE_RATE = 16_000
PACKAGES = (
    "harken", "numpy", "onnxruntime", "openvino", "faster-whisper", "ctranslate2", "openai-whisper", "torch",
    "transformers",
)  # fmt: skip
COMMAND = [sys.executable, "-c", "import sys; from harken.cli import main; sys.exit(main())"]
"""What the console script `harken` does."""


def stop(message: str) -> NoReturn:
    """End the script with one line."""
    sys.exit(f"{Path(sys.argv[0]).name}: {message}")


def run(main: Callable[[], None]) -> None:
    """Run a script; what harken says went wrong becomes one line."""
    try:
        main()
    except Exception as error:
        from harken.errors import HarkenError

        if isinstance(error, HarkenError):
            stop(str(error))
        raise


def note(message: str) -> None:
    """Say something beside the results, on standard error."""
    print(message, file=sys.stderr, flush=True)


def require(*modules: str) -> None:
    """Stop unless all modules can be imported."""
    missing = [module for module in modules if not importable(module)]
    if missing:
        stop(f"cannot import {', '.join(missing)}: pip install -e '.[bench]'")


def importable(module: str) -> bool:
    """Whether a top-level module is installed, without importing it."""
    return importlib.util.find_spec(module) is not None


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Parser with the arguments that every script takes, described by the script's docstring."""
    its = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    its.add_argument(
        "--audio", type=Path, metavar="DIR", default=ROOT.parent / "shared" / "audio",
        help="folder of sets, each with a manifest.jsonl; ../shared/audio beside the repository if not given",
    )  # fmt: skip
    its.add_argument("--threads", type=positive, default=2, metavar="N", help="threads of each engine (2)")
    return its


def positive(text: str) -> int:
    """An integer from 1 on, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value}: allowed is an integer from 1 on")
    return value


def limit_threads(threads: int) -> dict[str, str]:
    """Environment in which libraries of linear algebra use that many threads; also set for this process.

    Such libraries read it when they are loaded, so this comes before numpy is imported.
    """
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    os.environ.update(dict.fromkeys(names, str(threads)))
    return dict(os.environ)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A file and what is said in it."""

    path: Path
    text: str
    seconds: float


def read_set(
    audio: Path, name: str, limit: int | None = None, *, language: str | None = "en"
) -> list[Recording]:
    """Recordings in one language of one set, or in any, the first `limit` of them."""
    manifest = audio / name / "manifest.jsonl"
    if not manifest.is_file():
        stop(f"{manifest}: no such file; --audio names a folder of sets, --set one of them")
    entries = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
    recordings = [
        Recording(path=manifest.parent / entry["audio"], text=entry["text"], seconds=entry["seconds"])
        for entry in entries
        if language in (None, entry["language"]) and entry["text"]
    ]
    if not recordings:
        stop(f"{manifest}: has no speech in {language or 'any language'} with a reference")
    return recordings[:limit]


def write_joined(recordings: Iterable[Path], to: Path, seconds: float = math.inf) -> float:
    """Write recordings one behind the other into a wav file, in constant memory.

    Parameters
    ----------
    recordings : iterable of Path
        May be endless where `seconds` is not. 0.3 s of silence stand between two of them.
    to : Path
    seconds : float
        Where to cut.

    Returns
    -------
    float
        Length of what was written, in seconds.
    """
    import numpy as np

    from harken.audio import load_audio

    silence = np.zeros(round(GAP_S * SAMPLE_RATE), np.float32)
    written = 0
    with wave.open(str(to), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        for path in recordings:
            samples = np.concatenate([silence, load_audio(path)]) if written else load_audio(path)
            if seconds != math.inf:
                samples = samples[: round(seconds * SAMPLE_RATE) - written]
            file.writeframesraw(np.rint(samples * 32768).clip(-32768, 32767).astype("<i2").tobytes())
            written += len(samples)
            if written >= seconds * SAMPLE_RATE:
                break
    return written / SAMPLE_RATE


def word_error_rate(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Word error rate in percent, both sides through Whisper's English normaliser."""
    import jiwer
    from whisper_normalizer.english import EnglishTextNormalizer

    normalize = EnglishTextNormalizer()
    return 100 * float(jiwer.wer([*map(normalize, references)], [*map(normalize, hypotheses)]))


class Laps:
    """Attributes every moment to a part: what has passed since the last lap belongs to the part that is named.

    Attributes
    ----------
    seconds : dict of str to float
    calls : dict of str to int
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._last = perf_counter()

    def __call__(self, part: str, calls: int = 1) -> None:
        """End a lap; one that is only a piece of a call counts as none."""
        now = perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self.calls[part] = self.calls.get(part, 0) + calls
        self._last = perf_counter()


def peak_memory_mb() -> float:
    """Most memory that this process has had resident, in MB; nan where the platform does not tell."""
    try:
        import resource
    except ImportError:
        return math.nan
    return rss_mb(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def rss_mb(maxrss: int) -> float:
    """`ru_maxrss` in MB: macOS counts bytes, all others kibibytes."""
    return maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; columns behind the first are aligned to the right."""
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows))


def machine() -> str:
    """What the numbers were measured on, as a Markdown list."""
    versions = [f"{name} {version}" for name in PACKAGES if (version := _version(name))]
    load = f"; load {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    return "\n".join(
        (
            f"* {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {_commit()}{load}",
            f"* {_processor()}, {_processors()} processors, {platform.system()} {platform.machine()}",
            f"* Python {platform.python_version()}, {', '.join(versions)}",
        )
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    try:
        git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    except OSError:
        return "unknown"
    return git.stdout.strip() or "unknown"


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    """Name of the processor, with the instruction sets that matter here where Linux tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    facts = dict(line.replace("\t", "").split(": ", 1) for line in lines if ": " in line)
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
    sets = [flag for flag in wanted if flag in facts.get("flags", "").split()]
    return f"{facts.get('model name', platform.machine())} ({', '.join(sets)})"
