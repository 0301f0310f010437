"""Recordings of the benchmarks: sets with references, joined recordings, error rates."""

from __future__ import annotations

import math
import wave
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from program import Args, Row, note, percent, stop

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from harken.contract import Floats
    from harken.evaluation.error_rate import ErrorRate

SCORING = ("harken", "jiwer", "whisper_normalizer")
"""Modules that `evaluate` needs."""
GAP_S = 0.3
"""Silence between two joined recordings."""
SAMPLE_RATE = 16_000
SPEECH = "librispeech-train-clean"
"""Set that is joined where a benchmark needs long speech."""


def read_set(
    audio: Path, name: str, limit: int | None = None, *, model: str | None = None, language: str | None = None
) -> Sequence[Any]:
    """Return the recordings with speech of one set: a number of them, spread evenly; in one language, if it is wanted.

    An English-only model gets English only.
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


def evaluate(entries: Sequence[Any], texts: Iterable[str]) -> ErrorRate | None:
    """Return the errors of texts against the references of recordings; None where these are empty."""
    from harken.evaluation.scoring import EvalHypothesis, score, summarise

    return summarise(
        score(entry, EvalHypothesis(text=text), entry.language)
        for entry, text in zip(entries, texts, strict=True)
    ).overall


def difference(name: str, one: ErrorRate | None, other: ErrorRate | None) -> Row:
    """Return the difference between two error rates on the same recordings in percent, with its 95 % interval."""
    from harken.evaluation.error_rate import difference as compare

    found = compare(one, other)
    low, high = (found and found.confidence_interval) or (None, None)
    return {
        name: percent(found and found.rate),
        f"{name}, low": percent(low),
        f"{name}, high": percent(high),
    }


def cut_streams(audio: Path, seconds: int, count: int) -> list[Floats]:
    """Return some streams of the same length, cut from joined speech."""
    import numpy as np

    from harken.audio import load_audio

    size, pieces = seconds * SAMPLE_RATE, [np.zeros(0, np.float32)]
    silence = np.zeros(round(GAP_S * SAMPLE_RATE), np.float32)
    for entry in read_set(audio, SPEECH):
        if sum(map(len, pieces)) >= count * size:
            break
        pieces += [load_audio(entry.path), silence]
    samples = np.concatenate(pieces)
    if len(samples) < count * size:
        stop(f"{SPEECH} holds {len(samples) // size} streams of {seconds} s, not {count}")
    return [samples[i * size : (i + 1) * size] for i in range(count)]


def write_joined(recordings: Iterable[Path], to: Path, seconds: float = math.inf) -> float:
    """Write recordings, `GAP_S` apart, into a wav file, up to some seconds, in constant memory; return how many."""
    import numpy as np

    from harken.audio import load_audio

    def pieces() -> Iterator[Floats]:
        for index, path in enumerate(recordings):
            if index:
                yield np.zeros(round(GAP_S * SAMPLE_RATE), np.float32)
            yield load_audio(path)

    return write_wav(to, pieces(), seconds) / SAMPLE_RATE


def write_wav(
    path: Path, pieces: Iterable[Floats], seconds: float = math.inf, *, full_scale: int = 32768
) -> int:
    """Write samples into a wav file of 16 bits, up to a length; return how many."""
    limit, written = seconds * SAMPLE_RATE, 0
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        for samples in pieces:
            kept = samples[: round(limit - written)] if written + len(samples) > limit else samples
            file.writeframesraw(to_pcm(kept, full_scale).tobytes())
            written += len(kept)
            if written >= limit:
                break
    return written


def to_pcm(samples: Floats, full_scale: int = 32768) -> NDArray[np.int16]:
    """Return samples in 16 bits."""
    import numpy as np

    return np.rint(samples * full_scale).clip(-32768, 32767).astype("<i2")
