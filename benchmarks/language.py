"""Language detection: how often the first window is taken for the language that is spoken in it.

``any`` chooses among all languages of the model, ``allowed`` among those of the recordings (or of --languages).

    python benchmarks/language.py --model tiny --model base
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from common import machine, parser, positive, require, run, stop, table

if TYPE_CHECKING:
    import harken

SETS = ("german", "dutch", "french", "chinese", "many-languages", "telephone", "librispeech-test-other")


def main() -> None:
    its = parser(__doc__)
    its.add_argument("--model", action="append", metavar="MODEL", help="name or path; may be repeated (tiny)")
    its.add_argument("--set", action="append", metavar="NAME", help=f"set to hear ({', '.join(SETS)})")
    its.add_argument(
        "--languages", nargs="+", metavar="CODE", help="the allowed ones (those of the recordings)"
    )
    its.add_argument("--limit", type=positive, metavar="N", help="only the first N recordings of each set")
    args = its.parse_args()
    require("harken")
    import harken

    print(machine())
    recordings = [its for name in args.set or SETS for its in read(args.audio / name, args.limit)]
    spoken = Counter(language for _, language in recordings)
    allowed = args.languages or sorted(spoken)
    header = ["language", "files"]
    columns: list[Counter[str]] = []
    for model in args.model or ["tiny"]:
        recognizer = harken.load(model, threads=args.threads)
        freely, restricted = Counter[str](), Counter[str]()
        for path, language in recordings:
            found = detect(recognizer, path, allowed)
            freely[language] += found[0] == language
            restricted[language] += found[1] == language
        columns += [freely, restricted]
        header += [f"{Path(model).name}, any, %", f"{Path(model).name}, allowed, %"]
    rows = [
        [language, str(files), *(f"{100 * column[language] / files:.0f}" for column in columns)]
        for language, files in sorted(spoken.items())
    ]
    totals = (f"{100 * column.total() / len(recordings):.1f}" for column in columns)
    print(f"\n{table(header, [*rows, ['all', str(len(recordings)), *totals]])}")


def read(folder: Path, limit: int | None) -> Iterator[tuple[Path, str]]:
    """Recordings of one set that hold speech, and their languages."""
    manifest = folder / "manifest.jsonl"
    if not manifest.is_file():
        stop(f"{manifest}: no such file; --audio names a folder of sets, --set one of them")
    for line in manifest.read_text(encoding="utf-8").splitlines()[:limit]:
        entry = json.loads(line)
        if entry["text"]:
            yield folder / entry["audio"], entry["language"]


def detect(recognizer: harken.Recognizer, path: Path, allowed: list[str]) -> tuple[str, str]:
    """Most probable language of a recording's first window: among all, and among those allowed."""
    from harken.audio import stream_audio
    from harken.decoding import language_probabilities
    from harken.transcribe.mel_windows import MelWindows

    backend = recognizer.backend
    windows = MelWindows(
        stream_audio(path), backend.dims.n_mels, 2 * backend.dims.n_audio_ctx, pad_with_silence=True
    )
    features = backend.encode(windows.window(0, None)[0])
    (among_all,) = language_probabilities(backend, features, recognizer.tokenizer)
    (among_allowed,) = language_probabilities(backend, features, recognizer.tokenizer, allowed)
    return next(iter(among_all)), next(iter(among_allowed))


if __name__ == "__main__":
    run(main)
