"""The language of each window of a recording in several languages: alone, and tracked with several odds of a change.

The recording is made of sets that are cut into blocks of 5 to 80 s, in an order that is drawn once. A window counts as
right if its language is spoken in it. ``alone`` takes the most probable language of each window; a column with two
numbers tracks with the first as the odds of a change, and the second as the seconds of full evidence.

    python benchmarks/mixed_languages.py --model tiny
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from common import SAMPLE_RATE, machine, note, parser, require, run, stop, table

if TYPE_CHECKING:
    import numpy as np

    import harken
    from harken.contract import Floats

SETS = {"de": "german", "nl": "dutch", "fr": "french", "zh": "chinese", "en": "librispeech-test-other"}
EACH_S = 150
BLOCKS_S = (6, 12, 25, 45, 70)
WINDOWS_S = {30: 30, 12: 60, 5: 120, 2: 150}
"""Lengths of windows, and how many of each are heard at most."""
SETTINGS = (
    (1.0, 0.0),
    (0.3, 4.0),
    (0.1, 4.0),
    (0.05, 4.0),
    (0.05, 0.0),
    (0.05, 8.0),
    (0.01, 4.0),
    (0.003, 4.0),
)

Heard = tuple[frozenset[str], dict[str, float]]
"""What is spoken in a window, and what the model takes it for."""


def main() -> None:
    its = parser(__doc__)
    its.add_argument("--model", default="tiny", help="name or path (tiny)")
    its.add_argument("--only", action="store_true", help="allow only the languages of the recording")
    args = its.parse_args()
    require("harken")
    import harken

    print(machine())
    recognizer = harken.load(args.model, threads=args.threads)
    samples, spoken = mixed(args.audio)
    rows = []
    for window_s, most in WINDOWS_S.items():
        heard = list(hear(recognizer, samples, spoken, window_s, most, tuple(SETS) if args.only else ()))
        cells = [right(heard, [max(found, key=found.__getitem__) for _, found in heard])]
        cells += [right(heard, tracked(heard, window_s, *setting)) for setting in SETTINGS]
        rows.append([str(window_s), str(len(heard)), *cells])
        note(f"{window_s} s done")
    header = ("window, s", "windows", "alone", *(f"{odds:g}, {full_s:g} s" for odds, full_s in SETTINGS))
    print(f"\nRight, %, and changes of the language:\n\n{table(header, rows)}")


def mixed(audio: Path) -> tuple[Floats, np.ndarray]:
    """The recording, and the index in `SETS` of what is spoken at each sample."""
    import numpy as np

    rng = np.random.default_rng(0)
    left = [joined(audio / name) for name in SETS.values()]
    blocks: list[tuple[int, Floats]] = []
    while True:
        last = blocks[-1][0] if blocks else None
        open_ = [i for i, samples in enumerate(left) if len(samples) > 3 * SAMPLE_RATE and i != last]
        if not open_:
            break
        chosen = int(rng.choice(open_))
        length = int(rng.choice(BLOCKS_S) * rng.uniform(0.8, 1.2) * SAMPLE_RATE)
        blocks.append((chosen, left[chosen][:length]))
        left[chosen] = left[chosen][length:]
    spoken = np.concatenate([np.full(len(samples), chosen) for chosen, samples in blocks])
    return np.concatenate([samples for _, samples in blocks]), spoken


def joined(folder: Path) -> Floats:
    """The first minutes of a set, one recording behind the other."""
    import numpy as np

    from harken.audio import load_audio

    manifest = folder / "manifest.jsonl"
    if not manifest.is_file():
        stop(f"{manifest}: no such file; --audio names a folder of sets")
    parts: list[Floats] = []
    for line in manifest.read_text(encoding="utf-8").splitlines():
        parts += [load_audio(folder / json.loads(line)["audio"]), np.zeros(3 * SAMPLE_RATE // 10, np.float32)]
        if sum(map(len, parts)) >= EACH_S * SAMPLE_RATE:
            break
    return np.concatenate(parts)[: EACH_S * SAMPLE_RATE]


def hear(
    recognizer: harken.Recognizer, samples: Floats, spoken: np.ndarray, window_s: int, most: int,
    languages: tuple[str, ...],
) -> Iterator[Heard]:  # fmt: skip
    """Windows of one length, one behind the other."""
    from harken.audio import log_mel
    from harken.decoding import language_probabilities
    from harken.types import WINDOW_SAMPLES

    backend, codes, length = recognizer.backend, tuple(SETS), window_s * SAMPLE_RATE
    for start in range(0, len(samples) - length + 1, length)[:most]:
        window = samples[start : start + length]
        features = backend.encode(log_mel(window, backend.dims.n_mels, WINDOW_SAMPLES - length)[None])
        (found,) = language_probabilities(backend, features, recognizer.tokenizer, languages)
        yield frozenset(codes[i] for i in set(spoken[start : start + length].tolist())), found


def tracked(heard: list[Heard], window_s: int, odds: float, full_s: float) -> list[str]:
    """Language of each window with other constants than harken's own."""
    from harken.transcribe import language_id

    tracker, found = language_id.LanguageFilter(), []
    language_id.SWITCH_ODDS, language_id.FULL_EVIDENCE_S = odds, full_s or 1e-9
    for _, probabilities in heard:
        tracker = tracker.update(probabilities, window_s)
        found.append(tracker.result[0])
    return found


def right(heard: list[Heard], found: list[str]) -> str:
    """Share of windows with a language that is spoken in them, in percent, and how often the language changes."""
    share = sum(code in spoken for (spoken, _), code in zip(heard, found, strict=True)) / len(heard)
    return f"{100 * share:.0f} ({sum(one != other for one, other in pairwise(found))})"


if __name__ == "__main__":
    run(main)
