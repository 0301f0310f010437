"""The hallucination guard on segments that were spoken and on segments that were invented.

Recordings with and without speech are transcribed without voice activity detection and without dropping segments.
Every segment of the set `non-speech` is invented, nearly every one of the other sets was spoken. A row has the ranges
of the evidence, and the scores with all evidence and without some of it.

    python benchmarks/decisions guard --limit 12
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

import results
from arguments import limit_threads, note, parser, require
from recordings import NON_SPEECH, SAMPLE_RATE, read_set

if TYPE_CHECKING:
    from harken import Recognizer
    from harken.decoding import DecodingResult
    from harken.manifests import Entry
    from harken.transcribe.hallucination import HallucinationFeatures

SETS = (NON_SPEECH, "long-form", "librispeech-test-other", "telephone", "noisy")
LONGEST_S = 60
THRESHOLD = 0.5
VARIANTS: dict[str, dict[str, None]] = {
    "all": {},
    "no_attention": {"attention_concentration": None},
    "no_vad": {"speech_prob": None},
    "neither": {"attention_concentration": None, "speech_prob": None},
}
"""Evidence that is left out, by name of the variant."""


def main() -> None:
    args = parser(__doc__, model="tiny.en", sets=SETS).parse_args()
    require("harken")
    limit_threads(args.threads)
    import harken

    result = results.begin(args.save or "guard", {"model": args.model, "threads": args.threads})
    recognizer = harken.load(args.model, threads=args.threads)
    for name in args.set:
        entries = read_set(args.audio, name, args.limit, model=args.model, speech=False)
        found = [(entry, features) for entry in entries for features in segments(recognizer, entry)]
        for entry, features in found:
            report_wrong(entry, features, invented=name == NON_SPEECH)
        result.add(set=name, **row([features for _, features in found]))
    if args.save:
        print(results.write(result))


def segments(recognizer: Recognizer, entry: Entry) -> Iterator[HallucinationFeatures]:
    """Yield the features of every segment of a recording."""
    import numpy as np

    from harken.audio import load_audio
    from harken.audio.vad import SpeechDetector
    from harken.transcribe.hallucination import (
        HallucinationFeatures,
        attention_concentration,
        mean_speech_probability,
    )

    samples, detector = load_audio(entry.path)[: LONGEST_S * SAMPLE_RATE], SpeechDetector()
    probabilities = np.concatenate([detector.feed(samples), detector.flush()])
    windows: dict[float, DecodingResult] = {}
    # Attention is captured where there is a threshold; no score reaches 1.
    transcript = recognizer.transcribe(
        samples,
        language=entry.language if entry.text else None,
        vad=False,
        hallucination_threshold=1.0,
        on_window_end=lambda start_s, decoded, attempts: windows.update({start_s: decoded}),
    ).result()
    eot = recognizer.tokenizer.eot
    for seek_s, window_segments in groupby(transcript.segments, key=lambda segment: segment.seek_s):
        nearest = min(windows, key=lambda start_s: abs(start_s - seek_s))
        attention = windows[nearest].hypothesis.attention
        n_positions = min(1500, round((len(samples) / SAMPLE_RATE - seek_s) * 50))
        first_row = 0
        for segment in window_segments:
            rows = [first_row + i for i, token in enumerate(segment.tokens) if token < eot]
            first_row += len(segment.tokens)
            span = round(100 * segment.start_s), round(100 * segment.end_s)
            yield HallucinationFeatures(
                text=segment.text,
                n_tokens=len(rows),
                duration_s=segment.end_s - segment.start_s,
                avg_logprob=segment.avg_logprob,
                no_speech_prob=segment.no_speech_prob,
                compression_ratio=segment.compression_ratio,
                speech_prob=mean_speech_probability(probabilities, (span,)),
                attention_concentration=attention_concentration(attention[:, rows], n_positions),
            )


def report_wrong(entry: Entry, features: HallucinationFeatures, *, invented: bool) -> None:
    """Print a segment that the guard judges wrongly with all evidence."""
    from harken.transcribe.hallucination import score_hallucination

    verdict = score_hallucination(features)
    if (verdict.score >= THRESHOLD) != invented:
        note(f"wrong: {entry.name}: {features.text.strip()!r}, {verdict.score:.2f}: {verdict.reason}")


def row(found: list[HallucinationFeatures]) -> dict[str, Any]:
    """Return the ranges of the evidence of some segments, and of their scores."""
    from dataclasses import replace

    from harken.transcribe.hallucination import score_hallucination

    cells: dict[str, Any] = {"segments": len(found)}
    for name in ("speech_prob", "attention_concentration", "avg_logprob"):
        cells |= extent(name, (getattr(features, name) for features in found))
    for variant, missing in VARIANTS.items():
        scores = [score_hallucination(replace(features, **missing)).score for features in found]
        cells |= extent(f"score_{variant}", scores)
        cells[f"dropped_{variant}"] = sum(score >= THRESHOLD for score in scores)
    return cells


def extent(name: str, values: Iterable[float]) -> dict[str, float | None]:
    """Return the least and the greatest value."""
    known = [round(float(value), 3) for value in values]
    return {f"{name}_low": min(known, default=None), f"{name}_high": max(known, default=None)}
