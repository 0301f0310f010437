"""Recordings of the benchmarks: sets with references, joined recordings, error rates."""

from __future__ import annotations

import math
import wave
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from program import Args, Row, note, percent, stop

if TYPE_CHECKING:
    from harken.contract import Floats

GAP_S = 0.3
"""Silence between two joined recordings."""
SAMPLE_RATE = 16_000
NON_SPEECH = "non-speech"
"""Set of recordings without speech."""
SPEECH = "librispeech-train-clean"
"""Set that is joined where a benchmark needs long speech."""


def read_set(
    audio: Path, name: str, limit: int | None = None, *, model: str | None = None, language: str | None = None
) -> Sequence[Any]:
    """Return the recordings with speech of one set.

    Parameters
    ----------
    audio : Path
        Folder of sets.
    name : str
    limit : int, optional
        Number of recordings, spread evenly over the set.
    model : str, optional
        Model that transcribes them: an English-only one gets English only.
    language : str, optional
        Code of the only language wanted.
    """
    from harken.manifests import read_manifests, subsample_evenly

    only = {language} if language else {"en", None} if model and not multilingual(model) else None
    entries = [
        entry
        for entry in read_manifests([audio / name], note=note)
        if entry.text and (only is None or entry.language in only)
    ]
    if not entries:
        stop(f"{audio / name}: has no recordings in {language or 'a language of the model'}")
    return subsample_evenly(entries, limit)


def read_sets(args: Args, **choice: Any) -> list[tuple[str, Any]]:
    """Return the recordings of all sets that a program is given, each with the name of its set."""
    return [
        (name, entry)
        for name in args.set
        for entry in read_set(args.audio, name, args.limit, model=args.model, **choice)
    ]


def multilingual(model: str) -> bool:
    """Return whether a model knows more than English."""
    from harken.checkpoints import open_checkpoint, resolve_model

    return open_checkpoint(resolve_model(model)).dims.multilingual


def read_samples(audio: Path, name: str) -> Iterator[Floats]:
    """Yield the samples of the recordings of a set, in order."""
    from harken.audio import load_audio
    from harken.manifests import read_manifests

    for entry in read_manifests([audio / name], note=note):
        yield load_audio(entry.path)


def evaluate(entries: Sequence[Any], texts: Iterable[str]) -> Any:
    """Score texts against the references of recordings."""
    from harken.evaluation.scoring import EvalHypothesis, score, summarise

    return summarise(
        score(entry, EvalHypothesis(text=text), entry.language)
        for entry, text in zip(entries, texts, strict=True)
    )


def error_percent(evaluation: Any) -> float | None:
    """Return the errors of an evaluation in percent; None where the references are empty."""
    return percent(evaluation.overall and evaluation.overall.rate)


def difference(name: str, one: Any, other: Any) -> Row:
    """Return the difference between the errors of two evaluations in percent, with its 95 % interval."""
    from harken.evaluation.scoring import compare_evaluations

    found = compare_evaluations(one, other)
    low, high = (found and found.confidence_interval) or (None, None)
    return {
        name: percent(found and found.rate),
        f"{name}, low": percent(low),
        f"{name}, high": percent(high),
    }


def join(pieces: Iterable[Floats], gap_s: float = GAP_S) -> Floats:
    """Return pieces of audio one after the other, with silence after each."""
    import numpy as np

    silence = np.zeros(round(gap_s * SAMPLE_RATE), np.float32)
    return np.concatenate([part for piece in pieces for part in (piece, silence)])


def cut_streams(audio: Path, seconds: int, count: int) -> list[Floats]:
    """Return some streams of the same length, cut from joined speech."""
    size, pieces, length = seconds * SAMPLE_RATE, [], 0
    for samples in read_samples(audio, SPEECH):
        pieces.append(samples)
        length += len(samples)
        if length >= count * size:
            break
    samples = join(pieces)
    if len(samples) < count * size:
        stop(f"{SPEECH} holds {len(samples) // size} streams of {seconds} s, not {count}")
    return [samples[i * size : (i + 1) * size] for i in range(count)]


def write_joined(recordings: Iterable[Path], to: Path, seconds: float = math.inf) -> float:
    """Write recordings one after the other into a wav file, in constant memory.

    Parameters
    ----------
    recordings : iterable of Path
        May be endless where `seconds` is not. Two of them are `GAP_S` apart.
    to : Path
    seconds : float
        Length at which to cut.

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
