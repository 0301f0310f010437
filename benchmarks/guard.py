"""The hallucination guard on segments that are true and on segments that are invented.

Whisper is given recordings with and without speech, voice activity detection and the guard switched off. Every
segment of a recording in `non-speech` is invented, nearly every one of the other sets is true. Printed is what tells
them apart.

    python benchmarks/guard.py --model tiny.en --limit 12
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path

from common import machine, note, parser, positive, require, run, table

SILENT = "non-speech"
SETS = (SILENT, "long-form", "librispeech-test-other", "telephone", "noisy")
LONGEST_S = 60
DROPPED = 0.5
WAYS: dict[str, dict[str, None]] = {
    "score": {},
    "without attention": {"attention": None},
    "without VAD": {"speech_prob": None},
    "without both": {"attention": None, "speech_prob": None},
}


def main() -> None:
    its = parser(__doc__)
    its.add_argument("--model", default="tiny.en", metavar="M", help="what to transcribe with (tiny.en)")
    its.add_argument("--sets", nargs="*", default=SETS, metavar="SET", help="folders of recordings")
    its.add_argument(
        "--limit", type=positive, metavar="N", help="only the first N recordings with speech of a set"
    )
    args = its.parse_args()
    require("harken")
    import harken

    print(machine())
    recognizer = harken.load(args.model, threads=args.threads)
    rows, wrong = [], []
    for name in args.sets:
        note(name)
        judged = [
            (entry["audio"], facts)
            for entry in manifest(args.audio / name, args.limit if name != SILENT else None)
            for facts in segments(recognizer, args.audio / name / entry["audio"], language(recognizer, entry))
        ]
        rows.append(row(name, [facts for _, facts in judged]))
        wrong += [
            f"* {way}: {name}, {audio}, {said}"
            for audio, facts in judged
            for way, score, said in verdicts(facts)
            if (score >= DROPPED) != (name == SILENT) and "VAD" not in way and "both" not in way
        ]
    header = ("set", "segments", "speech prob.", "attention", "log-prob.", *(f"{way}, dropped" for way in WAYS))
    print(f"\n{table(header, rows)}\n\n{len(wrong)} wrong:", *wrong, sep="\n")


def manifest(folder: Path, limit: int | None) -> list[dict]:
    lines = (folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines][:limit]


def language(recognizer, entry: dict) -> str | None:
    """The language spoken; detected where nothing is."""
    return "en" if not recognizer.tokenizer.multilingual else entry["language"] if entry["text"] else None


def segments(recognizer, path: Path, language: str | None) -> list:
    """Facts of every segment of a recording."""
    import numpy as np

    from harken.audio import load_audio
    from harken.audio.vad import SpeechDetector
    from harken.transcribe.hallucination import HallucinationFeatures, mean_speech_probability

    samples, detector = load_audio(path)[: LONGEST_S * 16000], SpeechDetector()
    probabilities = np.concatenate([detector.feed(samples), detector.flush()])
    done = recognizer.transcribe(samples, language=language, vad=False, hallucination_threshold=None).result()
    found = []
    for seek_s, window in groupby(done.segments, key=lambda segment: segment.seek_s):
        together = list(window)
        focus = attentions(recognizer, samples[round(seek_s * 16000) :], together, done.language)
        for segment, attention in zip(together, focus, strict=True):
            span = round(100 * segment.start_s), round(100 * segment.end_s)
            found.append(
                HallucinationFeatures(
                    text=segment.text,
                    n_tokens=sum(token < recognizer.tokenizer.eot for token in segment.tokens),
                    duration_s=segment.end_s - segment.start_s,
                    avg_logprob=segment.avg_logprob,
                    no_speech_prob=segment.no_speech_prob,
                    compression_ratio=segment.compression_ratio,
                    speech_prob=mean_speech_probability(probabilities, (span,)),
                    attention_concentration=attention,
                )
            )
    return found


def attentions(recognizer, samples, segments: list, language: str) -> list[float]:
    """How concentrated the attention is for each segment of one window, by reading them once more."""
    from harken.audio import log_mel, pad_or_trim
    from harken.transcribe.hallucination import attention_concentration

    backend, tokenizer = recognizer.backend, recognizer.tokenizer
    steps = min(1500, len(samples) // 320)
    mel = pad_or_trim(log_mel(samples[: 30 * 16000], backend.dims.n_mels))
    start = tokenizer.sot_sequence(language, "transcribe", timestamps=False)
    texts = [[token for token in segment.tokens if token < tokenizer.eot] for segment in segments]
    prompt = [*start, *(token for text in texts for token in text)]
    session = backend.open(backend.encode(mel[None]), [0], len(prompt), attention=True)
    session.extend([prompt])
    weights, at, found = session.attention(0), len(start) - 1, []
    for text in texts:
        found.append(attention_concentration(weights[:, at : at + len(text)], steps))
        at += len(text)
    return found


def verdicts(facts) -> list[tuple[str, float, str]]:
    """What the guard says with all that is known, and with less: the way, the score and the rest in words."""
    from dataclasses import replace

    from harken.transcribe.hallucination import score_hallucination

    found = [(way, score_hallucination(replace(facts, **unknown))) for way, unknown in WAYS.items()]
    return [
        (way, verdict.score, f"{facts.text.strip()!r}, {verdict.score:.2f}: {verdict.reason}")
        for way, verdict in found
    ]


def row(name: str, known: list) -> tuple[str, ...]:
    def extent(values) -> str:
        ordered = sorted(values)
        return f"{ordered[0]:.2f} to {ordered[-1]:.2f}" if ordered else ""

    scores = list(zip(*([score for _, score, _ in verdicts(facts)] for facts in known), strict=True))
    return (
        name,
        str(len(known)),
        extent(facts.speech_prob for facts in known),
        extent(facts.attention for facts in known),
        extent(facts.avg_logprob for facts in known),
        *(f"{extent(column)}, {sum(score >= DROPPED for score in column)}" for column in scores),
    )


if __name__ == "__main__":
    run(main)
