"""Language detection: the language of the first window of recordings; or of every window of a mixed recording.

``any`` chooses among all languages of the model, ``allowed`` among those of the recordings (or of --languages).

With ``--mixed`` one recording is made of sets cut into blocks of 5 to 80 s, in an order that is drawn once. A window
counts as right if its language is spoken in it. Rows without odds take the most probable language of each window; the
others filter over windows, with some odds of a change and some seconds of full evidence.

    python benchmarks/decisions languages --models tiny base
    python benchmarks/decisions languages --mixed
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import results
from arguments import limit_threads, parser, require
from recordings import SAMPLE_RATE, join, read_set

if TYPE_CHECKING:
    from harken import Recognizer
    from harken.contract import Floats, Ints

SETS = ("german", "dutch", "french", "chinese", "many-languages", "telephone", "librispeech-test-other")
MIXED = {"de": "german", "nl": "dutch", "fr": "french", "zh": "chinese", "en": "librispeech-test-other"}
EACH_S = 150
BLOCKS_S = (6, 12, 25, 45, 70)
WINDOWS_S = {30: 30, 12: 60, 5: 120, 2: 150}
"""Lengths of windows, and the largest number of each."""
FILTERS = (
    (1.0, 0.0),
    (0.3, 4.0),
    (0.1, 4.0),
    (0.05, 4.0),
    (0.05, 0.0),
    (0.05, 8.0),
    (0.01, 4.0),
    (0.003, 4.0),
)
"""Odds of a change, and seconds of full evidence."""

Window = tuple[frozenset[str], dict[str, float]]
"""Languages spoken in a window, and the probabilities of the model."""


def main() -> None:
    options = parser(__doc__, sets=SETS)
    options.add_argument("--models", nargs="+", default=["tiny"], metavar="M", help="names or paths (tiny)")
    options.add_argument(
        "--languages", nargs="+", metavar="CODE", help="the allowed ones (those of the recordings)"
    )
    options.add_argument("--mixed", action="store_true", help="windows of one recording in several languages")
    args = options.parse_args()
    require("harken")
    limit_threads(args.threads)
    result = results.begin(args.save or "languages", {"threads": args.threads})
    for model in args.models:
        for row in mixed(model, args) if args.mixed else first_windows(model, args):
            result.add(model=Path(model).name, **row)
    if args.save:
        print(results.write(result))


def first_windows(model: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the share of recordings whose language is detected, by language."""
    import harken

    recognizer = harken.load(model, threads=args.threads)
    entries = [entry for name in args.set for entry in read_set(args.audio, name, args.limit)]
    spoken = Counter(entry.language for entry in entries)
    allowed = args.languages or sorted(filter(None, spoken))
    right_any, right_allowed = Counter[str | None](), Counter[str | None]()
    for entry in entries:
        among_all, among_allowed = detect(recognizer, entry.path, allowed)
        right_any[entry.language] += among_all == entry.language
        right_allowed[entry.language] += among_allowed == entry.language
    for language, count in [*sorted(spoken.items(), key=str), ("all", len(entries))]:
        of_any, of_allowed = (
            right.total() if language == "all" else right[language] for right in (right_any, right_allowed)
        )
        yield {
            "language": language,
            "recordings": count,
            "any_percent": round(100 * of_any / count, 2),
            "allowed_percent": round(100 * of_allowed / count, 2),
        }


def detect(recognizer: Recognizer, path: Path, allowed: Collection[str]) -> tuple[str, str]:
    """Return the most probable language of the first window: among all, and among those allowed."""
    from harken.audio import stream_audio
    from harken.decoding import language_probabilities
    from harken.transcribe.mel_windows import MelWindows

    backend = recognizer.backend
    windows = MelWindows(stream_audio(path), backend.dims.n_mels, 2 * backend.dims.n_audio_ctx)
    features = backend.encode(windows.window(0, None)[0])
    (among_all,) = language_probabilities(backend, features, recognizer.tokenizer)
    (among_allowed,) = language_probabilities(backend, features, recognizer.tokenizer, allowed)
    return next(iter(among_all)), next(iter(among_allowed))


def mixed(model: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the share of windows whose language is right, for each length of windows and each filter."""
    import harken

    recognizer = harken.load(model, threads=args.threads)
    samples, spoken = mixed_recording(args.audio, args.limit)
    for window_s, most in WINDOWS_S.items():
        windows = [*detect_windows(recognizer, samples, spoken, window_s, most, args.languages or ())]
        alone = [max(probabilities, key=probabilities.__getitem__) for _, probabilities in windows]
        filtered = [
            (odds, full_s, filter_languages(windows, window_s, odds, full_s)) for odds, full_s in FILTERS
        ]
        for odds, full_s, found in [(None, None, alone), *filtered]:
            right = sum(code in languages for (languages, _), code in zip(windows, found, strict=True))
            yield {
                "window_s": window_s,
                "windows": len(windows),
                "odds": odds,
                "full_evidence_s": full_s,
                "right_percent": round(100 * right / len(windows), 2),
                "changes": sum(one != other for one, other in pairwise(found)),
            }


def mixed_recording(audio: Path, limit: int | None) -> tuple[Floats, Ints]:
    """Return the recording, and the index in `MIXED` of the language at each sample."""
    import numpy as np

    from harken.audio import load_audio

    rng = np.random.default_rng(0)
    left = []
    for name in MIXED.values():
        pieces = (load_audio(entry.path) for entry in read_set(audio, name, limit))
        left.append(join(pieces)[: EACH_S * SAMPLE_RATE])
    blocks: list[tuple[int, Floats]] = []
    while True:
        last = blocks[-1][0] if blocks else None
        usable = [i for i, samples in enumerate(left) if len(samples) > 3 * SAMPLE_RATE and i != last]
        if not usable:
            break
        chosen = int(rng.choice(usable))
        length = int(rng.choice(BLOCKS_S) * rng.uniform(0.8, 1.2) * SAMPLE_RATE)
        blocks.append((chosen, left[chosen][:length]))
        left[chosen] = left[chosen][length:]
    spoken = np.concatenate([np.full(len(samples), chosen) for chosen, samples in blocks])
    return np.concatenate([samples for _, samples in blocks]), spoken


def detect_windows(
    recognizer: Recognizer, samples: Floats, spoken: Ints, window_s: int, most: int, languages: Collection[str]
) -> Iterator[Window]:
    """Yield windows of one length, one behind the other."""
    from harken.audio import log_mel
    from harken.decoding import language_probabilities
    from harken.types import WINDOW_SAMPLES

    backend, codes, length = recognizer.backend, tuple(MIXED), window_s * SAMPLE_RATE
    for start in range(0, len(samples) - length + 1, length)[:most]:
        window = samples[start : start + length]
        features = backend.encode(log_mel(window, backend.dims.n_mels, WINDOW_SAMPLES - length)[None])
        (found,) = language_probabilities(backend, features, recognizer.tokenizer, languages)
        yield frozenset(codes[i] for i in set(spoken[start : start + length].tolist())), found


def filter_languages(windows: Sequence[Window], window_s: int, odds: float, full_s: float) -> list[str]:
    """Return the language of each window with other constants than harken's."""
    from harken.transcribe import language_id

    language_filter, found = language_id.LanguageFilter(), []
    language_id.SWITCH_ODDS, language_id.FULL_EVIDENCE_S = odds, full_s or 1e-9
    for _, probabilities in windows:
        language_filter = language_filter.update(probabilities, window_s)
        found.append(language_filter.result[0])
    return found
