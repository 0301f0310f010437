"""Recordings of the benchmarks: sets with references, joined recordings, error rates."""

from __future__ import annotations

import math
import wave
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arguments import note, stop

if TYPE_CHECKING:
    from harken.contract import Floats
    from harken.evaluation.scoring import Evaluation
    from harken.evaluation.simulation import JoinedStream
    from harken.manifests import Entry

GAP_S = 0.3
"""Silence between two joined recordings."""
SAMPLE_RATE = 16_000
NON_SPEECH = "non-speech"
"""Set of recordings without speech."""


def read_set(
    audio: Path,
    name: str,
    limit: int | None = None,
    *,
    model: str | None = None,
    language: str | None = None,
    speech: bool = True,
) -> Sequence[Entry]:
    """Return recordings of one set.

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
    speech : bool
        Whether to leave out recordings without speech.
    """
    from harken.manifests import read_manifests, subsample_evenly

    only = {language} if language else {"en", None} if model and not multilingual(model) else None
    entries = [
        entry
        for entry in read_manifests([audio / name], note=note)
        if (entry.text or not speech) and (only is None or entry.language in only)
    ]
    if not entries:
        stop(f"{audio / name}: has no recordings in {language or 'a language of the model'}")
    return subsample_evenly(entries, limit)


def multilingual(model: str) -> bool:
    """Return whether a model knows more than English."""
    from harken.checkpoints import open_checkpoint, resolve_model

    return open_checkpoint(resolve_model(model)).dims.multilingual


def read_streams(audio: Path, name: str, limit: int | None = None) -> list[JoinedStream]:
    """Return the streams of a set: one a speaker where recordings are short, else one a recording."""
    from harken.evaluation.scoring import EvalRecording
    from harken.evaluation.simulation import JoinedStream, join_by_speaker
    from harken.manifests import read_manifests

    entries = read_manifests([audio / name], limit, note)
    recordings = [EvalRecording(entry=entry, has_reference=True) for entry in entries]
    if name in ("librispeech-test-other", NON_SPEECH):
        return [*join_by_speaker(recordings, GAP_S)]
    return [JoinedStream(recordings=(recording,)) for recording in recordings]


def evaluate(entries: Sequence[Entry], texts: Iterable[str]) -> Evaluation:
    """Score texts against the references of recordings."""
    from harken.evaluation.hypotheses import EvalHypothesis
    from harken.evaluation.scoring import score, summarise

    return summarise(
        score(entry, EvalHypothesis(text=text), entry.language)
        for entry, text in zip(entries, texts, strict=True)
    )


def error_percent(entries: Sequence[Entry], texts: Iterable[str]) -> float | None:
    """Return the errors in texts in percent of the references; None where the references are empty."""
    overall = evaluate(entries, texts).overall
    return percent(overall and overall.rate)


def percent(rate: float | None) -> float | None:
    """Return a rate in percent; None where there is none."""
    return None if rate is None else round(100 * rate, 3)


def join(pieces: Iterable[Floats], gap_s: float = GAP_S) -> Floats:
    """Return pieces of audio one behind the other, with silence after each."""
    import numpy as np

    silence = np.zeros(round(gap_s * SAMPLE_RATE), np.float32)
    return np.concatenate([part for piece in pieces for part in (piece, silence)])


def cut_streams(audio: Path, name: str, seconds: int, count: int) -> list[Floats]:
    """Return some streams of the same length, cut from the joined recordings of a set."""
    from harken.audio import load_audio
    from harken.manifests import read_manifests

    size = seconds * SAMPLE_RATE
    pieces, length = [], 0
    for entry in read_manifests([audio / name]):
        pieces.append(load_audio(entry.path))
        length += len(pieces[-1])
        if length >= count * size:
            break
    samples = join(pieces)
    if len(samples) < count * size:
        stop(f"{name} holds {len(samples) // size} streams of {seconds} s, not {count}")
    return [samples[i * size : (i + 1) * size] for i in range(count)]


def write_joined(recordings: Iterable[Path], to: Path, seconds: float = math.inf) -> float:
    """Write recordings one behind the other into a wav file, in constant memory.

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
