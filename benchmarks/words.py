"""When words are spoken: what a decode has listened to against reading the text once more, and both against silence.

The first table compares starts of words. Reading once more is openai-whisper's way (timing.py, find_alignment). The
others take the attention of the decode, and differ in which tokens take part in the path.

The second table joins utterances with pauses of 0.4 to 2.5 s, so that it is known where speech begins and ends, and
tells how far the nearest beginning and end of a word are from there, and how much silence the words hold.

    python benchmarks/words.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common import limit_threads, machine, parser, positive, read_set, require, run, table

if TYPE_CHECKING:
    import harken
    from harken.contract import Features, Floats, Ints
    from harken.decoding import Hypothesis
    from harken.results import Segment
    from harken.transcribe.segments import TokenSegment
    from harken.transcribe.word_timestamps import Alignment

SETS = ("librispeech-test-other", "librispeech-train-clean", "ljspeech")
STEP_S = 0.02
PAUSE_S = (0.4, 2.5)
PART_S = (2.0, 7.0)
FULL_S = 28.0
LOUD = 0.05
NOISE = 3e-4

Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One window that has been decoded."""

    samples: Floats
    features: Features
    hypothesis: Hypothesis
    cuts: list[TokenSegment]
    steps: int


def main() -> None:
    its = parser(__doc__)
    its.add_argument("--model", default="tiny.en", metavar="M", help="model to listen with (tiny.en)")
    its.add_argument("--precision", default="fp32", metavar="P", help="precision to compute in (fp32)")
    its.add_argument("--limit", type=positive, default=16, metavar="N", help="recordings of each set (16)")
    its.add_argument("--windows", type=positive, default=12, metavar="N", help="joined windows (12)")
    args = its.parse_args()
    limit_threads(args.threads)
    require("harken")
    import harken
    from harken.audio import load_audio

    print(machine())
    recognizer = harken.load(args.model, precision=args.precision, threads=args.threads)
    print(f"* {args.model} in {recognizer.backend.capabilities.precision}")
    every = [its for name in SETS for its in read_set(args.audio, name)]
    some = [its for name in SETS for its in read_set(args.audio, name, args.limit) if its.seconds < FULL_S]
    rows = agreement(recognizer, [load_audio(recording.path) for recording in some])
    header = ("tokens on the path", "mean, s", "90%, s", "95%, s", "within 0.02 s, %", "0.06 s, %", "0.2 s, %")
    print(f"\n{table(header, rows)}", flush=True)
    parts = [load_audio(its.path) for its in every if PART_S[0] < its.seconds < PART_S[1]]
    rows = silence(recognizer, parts, args.windows)
    header = ("words", "starts: median, s", "mean, s", "ends: median, s", "mean, s", "silence in words, s")
    print(f"\n{table(header, rows)}")


def hear(recognizer: harken.Recognizer, samples: Floats) -> Heard:
    """Decode one window, and keep what the decoder has listened to."""
    from harken.audio import log_mel, pad_or_trim
    from harken.decoding import Greedy, Window, decode, make_logit_rules, make_prompt
    from harken.transcribe.segments import split_at_timestamps
    from harken.types import HOP_SAMPLES, WINDOW_FRAMES, WINDOW_SAMPLES

    backend, tokenizer = recognizer.backend, recognizer.tokenizer
    mel = pad_or_trim(log_mel(samples, backend.dims.n_mels, WINDOW_SAMPLES), WINDOW_FRAMES)
    features = backend.encode(mel[None])
    prompt = make_prompt(tokenizer, backend.dims.n_text_ctx, language="en", task="transcribe", timestamps=True)
    (decoded,), _ = decode(
        backend,
        features,
        [Window(window_index=0, prompt=prompt)],
        tokenizer=tokenizer,
        logit_rules=make_logit_rules(tokenizer, timestamps=True),
        strategy=Greedy(),
        attention=True,
    )
    steps = len(samples) // HOP_SAMPLES // 2
    cuts, _ = split_at_timestamps(decoded.hypothesis.tokens, tokenizer.timestamp_begin, steps)
    return Heard(samples=samples, features=features, hypothesis=decoded.hypothesis, cuts=cuts, steps=steps)


def read_again(recognizer: harken.Recognizer, heard: Heard) -> Alignment:
    from harken.transcribe.word_timestamps import align_tokens, text_tokens

    tokenizer = recognizer.tokenizer
    tokens = text_tokens(heard.cuts, tokenizer)
    return align_tokens(recognizer.backend, heard.features, 0, tokens, tokenizer, heard.steps, language="en")


def agreement(recognizer: harken.Recognizer, recordings: Sequence[Floats]) -> Iterator[list[str]]:
    """Rows of the first table."""
    import numpy as np

    tokenizer = recognizer.tokenizer
    apart: dict[str, list[Floats]] = {}
    for samples in recordings:
        heard = hear(recognizer, samples)
        expected = read_again(recognizer, heard)
        if not expected.tokens:
            continue
        _, groups = tokenizer.split_words(expected.tokens, "en")
        first = np.cumsum([0, *(len(group) for group in groups)])[:-1]
        for name, starts in ways(tokenizer.eot, heard).items():
            apart.setdefault(name, []).append(abs(starts - expected.bounds[:-1])[first] * STEP_S)
    for name, pieces in apart.items():
        all_s = np.concatenate(pieces)
        shares = [100 * np.mean(all_s <= limit + 1e-6) for limit in (0.02, 0.06, 0.2)]
        yield [
            name,
            *(f"{value:.3f}" for value in (all_s.mean(), *np.percentile(all_s, [90, 95]))),
            *(f"{share:.1f}" for share in shares),
        ]


def ways(eot: int, heard: Heard) -> dict[str, Ints]:
    """Starts of the text tokens of the segments, by which tokens take part in the path."""
    from harken.transcribe.dtw import listening, token_starts

    attention, tokens = heard.hypothesis.attention, heard.hypothesis.tokens
    kept = sum(len(cut.tokens) for cut in heard.cuts)
    every = list(range(len(heard.hypothesis.logprobs)))
    text = [i for i, token in enumerate(tokens) if token < eot]
    spoken = [i for i in text if i < kept]
    closing = {i + 1 for i in text} & {*every}
    rows = {
        "all": every,
        "text, and what follows each run of it": sorted({*text, *closing}),
        "text": text,
        "**text, and what follows the last segment**": sorted({*text, min(spoken[-1] + 1, every[-1])}),
    }
    return {
        name: token_starts(listening(attention[:, its], heard.steps))[[its.index(i) for i in spoken]]
        for name, its in rows.items()
    }


def silence(recognizer: harken.Recognizer, parts: Sequence[Floats], windows: int) -> Iterator[list[str]]:
    """Rows of the second table."""
    import numpy as np

    from harken.transcribe.word_timestamps import align_decoded

    tokenizer = recognizer.tokenizer
    found: dict[str, list[tuple[list[Span], list[Span]]]] = {}
    for samples, spans in joined(parts, windows):
        heard = hear(recognizer, samples)
        aligned = {
            "read once more": read_again(recognizer, heard),
            "decode": align_decoded(heard.hypothesis, heard.cuts, tokenizer, heard.steps),
        }
        for name, alignment in aligned.items():
            for how, words in settled(recognizer, heard, alignment).items():
                found.setdefault(f"{name}, {how}", []).append((words, spans))
    for name, pairs in found.items():
        starts = [min(abs(word[0] - span[0]) for word in words) for words, spans in pairs for span in spans]
        ends = [min(abs(word[1] - span[1]) for word in words) for words, spans in pairs for span in spans]
        quiet = sum(word[1] - word[0] - covered(word, spans) for words, spans in pairs for word in words)
        numbers = (np.median(starts), np.mean(starts), np.median(ends), np.mean(ends))
        yield [name, *(f"{value:.3f}" for value in numbers), f"{quiet:.1f}"]


def joined(parts: Sequence[Floats], windows: int) -> Iterator[tuple[Floats, list[Span]]]:
    """Windows of utterances with faint noise between them, and where in a window they are."""
    import numpy as np

    from harken.types import SAMPLE_RATE

    rng = np.random.default_rng(0)
    waiting = [trimmed(parts[i]) for i in rng.permutation(len(parts))]
    for _ in range(windows):
        pieces, spans, end_s = [], [], 0.0
        while waiting:
            start_s = end_s + rng.uniform(*PAUSE_S)
            if start_s + len(waiting[-1]) / SAMPLE_RATE > FULL_S:
                break
            utterance = waiting.pop()
            pause = NOISE * rng.standard_normal(round(start_s * SAMPLE_RATE) - sum(map(len, pieces)))
            pieces += [pause, utterance]
            end_s = start_s + len(utterance) / SAMPLE_RATE
            spans.append((start_s, end_s))
        if spans:
            yield (
                np.concatenate([*pieces, NOISE * rng.standard_normal(SAMPLE_RATE // 2)], dtype=np.float32),
                spans,
            )


def trimmed(samples: Floats) -> Floats:
    """From the first loud moment to the last, at one volume."""
    import numpy as np

    from harken.types import HOP_SAMPLES

    frames = samples[: len(samples) // HOP_SAMPLES * HOP_SAMPLES].reshape(-1, HOP_SAMPLES)
    loudness = np.convolve(np.sqrt((frames**2).mean(axis=1)), np.full(3, 1 / 3), "same")
    loud = np.flatnonzero(loudness > LOUD * np.percentile(loudness, 95))
    kept = frames[loud[0] : loud[-1] + 1].ravel()
    return np.asarray(kept / (2 * np.abs(kept).max()), np.float32)


def settled(recognizer: harken.Recognizer, heard: Heard, alignment: Alignment) -> dict[str, list[Span]]:
    """Words as they come, by the usual durations, and with silence cut out."""
    from harken.transcribe.word_boundaries import refine_word_boundaries
    from harken.transcribe.word_timestamps import words_by_segment

    words, usual = words_by_segment(heard.cuts, alignment, recognizer.tokenizer, language="en")
    segments = [segment(*pair) for pair in zip(heard.cuts, words, strict=True)]
    by_usual, by_speech = (
        refine_word_boundaries(segments, median_duration_s=usual * STEP_S, last_speech_s=0, speech=speech)[0]
        for speech in (None, speech_in(heard.samples))
    )
    return {"as it is": times(segments), "settled": times(by_usual), "silence cut out": times(by_speech)}


def segment(cut: TokenSegment, words: Sequence[object]) -> Segment:
    from harken.results import Segment, Word

    return Segment(
        index=0,
        start_s=cut.start * STEP_S,
        end_s=cut.end * STEP_S,
        text="",
        tokens=cut.tokens,
        temperature=0,
        avg_logprob=0,
        compression_ratio=1,
        no_speech_prob=0,
        seek_s=0,
        words=tuple(
            Word(start_s=word.start * STEP_S, end_s=word.end * STEP_S, text=word.text, probability=1)
            for word in words
        ),
    )


def speech_in(samples: Floats) -> list[Span]:
    from harken.audio.vad import RegionTracker, SpeechDetector
    from harken.transcribe.chunking import WORD_VAD_OPTIONS
    from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES

    detector, regions = SpeechDetector(), RegionTracker(WORD_VAD_OPTIONS)
    found = regions.feed(detector.feed(samples)) + regions.feed(detector.flush())
    found += regions.flush(len(samples) // HOP_SAMPLES)
    return [(start / FRAMES_PER_SECOND, end / FRAMES_PER_SECOND) for start, end in found]


def times(segments: Sequence[Segment]) -> list[Span]:
    return [(word.start_s, word.end_s) for its in segments for word in its.words]


def covered(word: Span, spans: Sequence[Span]) -> float:
    """Seconds of speech in a word."""
    return sum(max(0.0, min(word[1], end) - max(word[0], start)) for start, end in spans)


if __name__ == "__main__":
    run(main)
