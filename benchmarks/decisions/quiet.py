"""Quiet speech: how much of it is found, with and without the second, amplified detector; or the words of it.

Every recording is scaled by some factors. What Silero alone finds at factor 1 counts as speech. Samples are rounded to
16 bits, as in a file, unless --float is given. The rows "alone" are Silero without the second detector.

    python benchmarks/decisions quiet
    python benchmarks/decisions quiet --words --limit 5
    python benchmarks/decisions quiet --turns
    python benchmarks/decisions quiet --noise
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import results
from arguments import DEFAULT_SET, limit_threads, parser, require
from recordings import SAMPLE_RATE, error_percent, evaluate, multilingual, read_set

if TYPE_CHECKING:
    from harken.audio.silero import SileroDetector
    from harken.audio.vad import SpeechDetector
    from harken.contract import Floats

    Detector = Callable[[], SpeechDetector | SileroDetector]
    Region = tuple[int, int]

LONGEST_S = 20
FACTORS = (1.0, 0.1, 0.03, 0.01, 0.003, 0.001)
NOISE_S, NOISE_PEAKS_DB = 120, (-20, -40, -45, -50, -60, -70, -80)


def main() -> None:
    options = parser(__doc__, model="tiny.en")
    options.add_argument("--limit", type=int, metavar="N", help="only N recordings of a set, spread evenly")
    options.add_argument("--float", action="store_true", help="do not round to 16 bits")
    options.add_argument("--factor", type=float, nargs="+", default=FACTORS, metavar="F", help="(1 to 0.001)")
    kind = options.add_mutually_exclusive_group()
    kind.add_argument("--words", action="store_true", help="transcribe, and count errors in words")
    kind.add_argument("--turns", action="store_true", help="a loud and a quiet speaker in turns")
    kind.add_argument("--noise", action="store_true", help="noise that is computed, at several levels")
    args = options.parse_args()
    limit_threads(args.threads)
    require("harken", *(["jiwer", "whisper_normalizer"] if args.words else []))
    measure = words if args.words else turns if args.turns else noise if args.noise else found
    settings = {"model": args.model, "threads": args.threads} if args.words else {}
    result = results.begin(args.save or "quiet", settings)
    for row in measure(args):
        result.add(**row)
    if args.save:
        print(results.write(result))


def detectors() -> Mapping[str, Detector]:
    """Return the detectors to compare, by name."""
    from harken.audio.silero import SileroDetector
    from harken.audio.vad import SpeechDetector

    return {"alone": SileroDetector, "harken": SpeechDetector}


def set_names(args: argparse.Namespace) -> list[str]:
    """Return the names of all sets."""
    return sorted(path.parent.name for path in args.audio.glob("*/manifest.jsonl"))


def scaled(samples: Floats, factor: float, *, rounded: bool) -> Floats:
    """Return samples times a factor, rounded to 16 bits if wanted."""
    import numpy as np

    quiet = samples * np.float32(factor)
    return np.rint(quiet * 32768).astype(np.float32) / np.float32(32768) if rounded else quiet


def regions(samples: Floats, make_detector: Detector) -> list[Region]:
    """Return the regions of speech in frames."""
    import numpy as np

    from harken.audio.vad import RegionTracker, VadOptions

    detector, tracker = make_detector(), RegionTracker(VadOptions())
    probabilities = np.concatenate([detector.feed(samples), detector.flush()])
    return tracker.feed(probabilities.tolist()) + tracker.flush(len(samples) // 160)


def mask(spans: list[Region], frames: int) -> Floats:
    """Return 1 for every frame in a span and 0 for the others."""
    import numpy as np

    inside = np.zeros(frames, np.float32)
    for start, end in spans:
        inside[start:end] = 1
    return inside


def found(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the speech of every set that is found at every factor, and the seconds found beside it."""
    import numpy as np

    from harken.audio import load_audio

    alone, _ = detectors().values()
    for name in set_names(args):
        recordings = [load_audio(entry.path) for entry in read_set(args.audio, name, args.limit, speech=False)]
        speech = [regions(samples, alone) for samples in recordings]
        masks = [mask(spans, len(samples) // 160) for spans, samples in zip(speech, recordings, strict=True)]
        speech_frames = float(sum(map(np.sum, masks)))
        for detector_name, make_detector in detectors().items():
            row: dict[str, Any] = {"set": name, "detector": detector_name, "recordings": len(recordings)}
            row["changed"] = sum(
                regions(samples, make_detector) != spans
                for samples, spans in zip(recordings, speech, strict=True)
            )
            for factor in args.factor:
                now = [
                    mask(
                        regions(scaled(samples, factor, rounded=not args.float), make_detector),
                        len(samples) // 160,
                    )
                    for samples in recordings
                ]
                both = float(sum(np.sum(a * b) for a, b in zip(now, masks, strict=True)))
                row[f"found_{factor:g}_percent"] = round(100 * both / max(1.0, speech_frames), 1)
                row[f"beside_{factor:g}_s"] = round((float(sum(map(np.sum, now))) - both) / 100, 1)
            yield row


def words(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the errors in the words of recordings of up to `LONGEST_S` of all sets, at every factor."""
    import harken
    from harken.audio import load_audio

    model = harken.load(args.model, threads=args.threads)
    every_language = multilingual(args.model)
    every_entry = [
        entry
        for name in set_names(args)
        for entry in read_set(args.audio, name, args.limit, speech=False)
        if every_language or entry.language in {"en", None}
    ]
    loaded = {entry.path: load_audio(entry.path) for entry in every_entry}
    entries = [entry for entry in every_entry if len(loaded[entry.path]) <= LONGEST_S * SAMPLE_RATE]
    spoken = [entry for entry in entries if entry.text]
    silent = [entry for entry in entries if not entry.text]
    for factor in args.factor:
        for detector_name, make_detector in detectors().items():
            samples = [scaled(loaded[entry.path], factor, rounded=not args.float) for entry in entries]
            languages = [entry.language if every_language and entry.text else None for entry in entries]
            recognizer = harken.Recognizer(
                model.backend, model.tokenizer, model.model, speech_detector=make_detector
            )
            texts = {
                entry.path: recognizer.transcribe(recording, language=language).text
                for entry, recording, language in zip(entries, samples, languages, strict=True)
            }
            spoken_texts = [texts[entry.path] for entry in spoken]
            errors = evaluate(spoken, spoken_texts).overall
            yield {
                "factor": factor,
                "detector": detector_name,
                "recordings": len(spoken),
                "error_percent": error_percent(spoken, spoken_texts),
                "deletions": errors and errors.error_counts.deletions,
                "empty": sum(not text.strip() for text in spoken_texts),
                "without_speech": len(silent),
                "words_in_them": sum(len(texts[entry.path].split()) for entry in silent),
            }


def turns(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield how much is found of a quiet speaker who takes turns with a loud one, over noise of -80 dBFS."""
    import numpy as np

    from harken.audio import load_audio

    alone, _ = detectors().values()
    entries = read_set(args.audio, DEFAULT_SET, args.limit)
    speakers = [load_audio(entry.path) for entry in entries]
    random = np.random.default_rng(0)
    for gap_s in (0.2, 0.5, 1.0, 3.0):
        gap = np.zeros(round(gap_s * SAMPLE_RATE), np.float32)
        for peak_db in (-46, -52, -60):
            pieces = [
                np.concatenate([samples * np.float32(10 ** (level / 20) / np.abs(samples).max()), gap])
                for samples, level in zip(speakers, (-6, peak_db) * len(speakers), strict=False)
            ]
            starts = [at // 160 for at in accumulate(map(len, pieces), initial=0)]
            recording = np.concatenate(pieces)
            recording += (1e-4 * random.standard_normal(len(recording))).astype(np.float32)
            row: dict[str, Any] = {"gap_s": gap_s, "quiet_peak_db": peak_db}
            for detector_name, make_detector in detectors().items():
                now = mask(regions(recording, make_detector), len(recording) // 160)
                shares = np.zeros((2, 2))
                for turn, (samples, start) in enumerate(zip(speakers, starts, strict=False)):
                    speech = mask(regions(samples, alone), len(samples) // 160)
                    shares[turn % 2] += np.sum(now[start : start + len(speech)] * speech), np.sum(speech)
                loud, quiet = 100 * shares[:, 0] / shares[:, 1]
                row |= {
                    f"loud_{detector_name}_percent": round(loud, 1),
                    f"quiet_{detector_name}_percent": round(quiet, 1),
                }
            yield row


def noise(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the seconds of speech that are found in noise, two minutes of it at each of `NOISE_PEAKS_DB`."""
    import numpy as np

    n_samples = NOISE_S * SAMPLE_RATE
    random, time = np.random.default_rng(0), np.arange(n_samples) / SAMPLE_RATE

    def coloured(exponent: float) -> Floats:
        frequencies = np.fft.rfftfreq(n_samples, 1 / SAMPLE_RATE)
        frequencies[0] = frequencies[1]
        return np.fft.irfft(np.fft.rfft(random.standard_normal(n_samples)) / frequencies**exponent)

    noises = {
        "white": coloured(0),
        "pink": coloured(0.5),
        "brown": coloured(1),
        "fan": coloured(0.7) * (1 + 0.3 * np.sin(2 * np.pi * 0.3 * time)),
        "syllables of noise": coloured(0.5) * np.abs(np.sin(2 * np.pi * 2 * time)),
        "mains hum": np.sin(2 * np.pi * 50 * time) + 0.3 * np.sin(2 * np.pi * 150 * time) + 0.02 * coloured(0),
        "clicks": 0.01 * coloured(0) + (random.random(n_samples) < 1e-4),
    }
    for name, samples in noises.items():
        row: dict[str, Any] = {"noise": name, "minutes": NOISE_S * len(NOISE_PEAKS_DB) / 60}
        for detector_name, make_detector in detectors().items():
            frames = 0
            for peak_db in NOISE_PEAKS_DB:
                recording = (samples * (10 ** (peak_db / 20) / np.abs(samples).max())).astype(np.float32)
                quiet = scaled(recording, 1, rounded=not args.float)
                frames += sum(end - start for start, end in regions(quiet, make_detector))
            row[f"found_{detector_name}_s"] = frames / 100
        yield row
