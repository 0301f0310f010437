"""Times of words: attention kept while decoding against a second pass over the text, and both against silence.

Starts of words are compared with those of a second pass, which is openai-whisper's method (timing.py, find_alignment).
The rows take the attention of the decode, and differ in the tokens that are part of the path.

With ``--silence`` utterances are joined with pauses of 0.4 to 2.5 s, so that the start and the end of speech are known.
The rows have the distance of the nearest start and end of a word from these, and the silence inside words.

    python benchmarks/decisions words
    python benchmarks/decisions words --silence
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import results
from arguments import limit_threads, parser, positive, require
from recordings import read_set

if TYPE_CHECKING:
    from harken import Recognizer
    from harken.contract import Features, Floats, Ints
    from harken.decoding import Hypothesis
    from harken.results import Segment
    from harken.transcribe.segments import TokenSegment
    from harken.transcribe.word_timestamps import Alignment

SETS = ("librispeech-test-other", "librispeech-train-clean", "ljspeech")
STEP_S = 0.02
PAUSE_S = (0.4, 2.5)
UTTERANCE_S = (2.0, 7.0)
FULL_S = 28.0
RELATIVE_LEVEL = 0.05
NOISE = 3e-4

Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedWindow:
    """One window that has been decoded."""

    samples: Floats
    features: Features
    hypothesis: Hypothesis
    token_segments: list[TokenSegment]
    n_positions: int


def main() -> None:
    options = parser(__doc__, model="tiny.en", sets=SETS)
    options.set_defaults(limit=16)
    options.add_argument("--precision", default="fp32", metavar="P", help="(fp32)")
    options.add_argument("--silence", action="store_true", help="compare with silence that is known")
    options.add_argument("--windows", type=positive, default=12, metavar="N", help="joined windows (12)")
    args = options.parse_args()
    require("harken")
    limit_threads(args.threads)
    import harken
    from harken.audio import load_audio

    settings = {"model": args.model, "precision": args.precision}
    result = results.begin(args.save or "words", settings)
    recognizer = harken.load(args.model, precision=args.precision, threads=args.threads)
    limit = None if args.silence else args.limit
    entries = [entry for name in args.set for entry in read_set(args.audio, name, limit, model=args.model)]
    shortest, longest = UTTERANCE_S if args.silence else (0.0, FULL_S)
    recordings = [load_audio(e.path) for e in entries if e.seconds and shortest < e.seconds < longest]
    rows = silence(recognizer, recordings, args.windows) if args.silence else agreement(recognizer, recordings)
    for row in rows:
        result.add(**row)
    if args.save:
        print(results.write(result))


def decode_window(recognizer: Recognizer, samples: Floats) -> DecodedWindow:
    """Decode one window, and keep the attention of the decoder."""
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
    n_positions = len(samples) // HOP_SAMPLES // 2
    token_segments, _ = split_at_timestamps(decoded.hypothesis.tokens, tokenizer.timestamp_begin, n_positions)
    return DecodedWindow(
        samples=samples,
        features=features,
        hypothesis=decoded.hypothesis,
        token_segments=token_segments,
        n_positions=n_positions,
    )


def second_pass(recognizer: Recognizer, window: DecodedWindow) -> Alignment:
    """Align the text of a window with another pass of the decoder."""
    from harken.transcribe.word_timestamps import align_tokens, text_tokens

    backend, tokenizer = recognizer.backend, recognizer.tokenizer
    tokens = text_tokens(window.token_segments, tokenizer)
    return align_tokens(backend, window.features, 0, tokens, tokenizer, window.n_positions, language="en")


def agreement(recognizer: Recognizer, recordings: Sequence[Floats]) -> Iterator[dict[str, Any]]:
    """Yield a row for each choice of tokens."""
    import numpy as np

    tokenizer = recognizer.tokenizer
    differences: dict[str, list[Floats]] = {}
    for samples in recordings:
        window = decode_window(recognizer, samples)
        expected = second_pass(recognizer, window)
        if not expected.tokens:
            continue
        _, groups = tokenizer.split_words(expected.tokens, "en")
        first = np.cumsum([0, *(len(group) for group in groups)])[:-1]
        for name, starts in starts_by_tokens(tokenizer.eot, window).items():
            differences.setdefault(name, []).append(abs(starts - expected.bounds[:-1])[first] * STEP_S)
    for name, pieces in differences.items():
        seconds = np.concatenate(pieces)
        yield {
            "tokens": name,
            "words": len(seconds),
            "mean_s": round(float(seconds.mean()), 4),
            "high_90_s": round(float(np.percentile(seconds, 90)), 4),
            "high_95_s": round(float(np.percentile(seconds, 95)), 4),
            **{
                f"within_{limit}_percent": round(100 * float(np.mean(seconds <= limit + 1e-6)), 2)
                for limit in (0.02, 0.06, 0.2)
            },
        }


def starts_by_tokens(eot: int, window: DecodedWindow) -> dict[str, Ints]:
    """Return the starts of the text tokens of the segments, by the tokens that are part of the path."""
    from harken.decoding.alignment_attention import alignment_matrix
    from harken.transcribe.word_timestamps import token_starts

    attention, tokens = window.hypothesis.attention, window.hypothesis.tokens
    assert attention is not None, "the window was decoded with attention"
    n_segment_tokens = sum(len(token_segment.tokens) for token_segment in window.token_segments)
    every = list(range(len(window.hypothesis.logprobs)))
    text = [i for i, token in enumerate(tokens) if token < eot]
    of_segments = [i for i in text if i < n_segment_tokens]
    closing = {i + 1 for i in text} & {*every}
    paths = {
        "all": every,
        "text, and the token after each run of it": sorted({*text, *closing}),
        "text": text,
        "text, and the token after the last segment": sorted({*text, min(of_segments[-1] + 1, every[-1])}),
    }
    return {
        name: token_starts(alignment_matrix(attention[:, rows], window.n_positions))[
            [rows.index(i) for i in of_segments]
        ]
        for name, rows in paths.items()
    }


def silence(recognizer: Recognizer, utterances: Sequence[Floats], windows: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each alignment and each treatment of silence."""
    import numpy as np

    from harken.transcribe.word_timestamps import align_decoded

    tokenizer = recognizer.tokenizer
    found: dict[tuple[str, str], list[tuple[list[Span], list[Span]]]] = {}
    for samples, spans in join_utterances(utterances, windows):
        window = decode_window(recognizer, samples)
        hypothesis, token_segments = window.hypothesis, window.token_segments
        alignments = {
            "second pass": second_pass(recognizer, window),
            "decode": align_decoded(hypothesis, token_segments, tokenizer, window.n_positions),
        }
        for name, alignment in alignments.items():
            for treatment, words in treated_words(recognizer, window, alignment).items():
                found.setdefault((name, treatment), []).append((words, spans))
    for (name, treatment), pairs in found.items():
        starts = [min(abs(word[0] - span[0]) for word in words) for words, spans in pairs for span in spans]
        ends = [min(abs(word[1] - span[1]) for word in words) for words, spans in pairs for span in spans]
        quiet_s = sum(word[1] - word[0] - covered_s(word, spans) for words, spans in pairs for word in words)
        yield {
            "alignment": name,
            "words": treatment,
            "starts_median_s": round(float(np.median(starts)), 4),
            "starts_mean_s": round(float(np.mean(starts)), 4),
            "ends_median_s": round(float(np.median(ends)), 4),
            "ends_mean_s": round(float(np.mean(ends)), 4),
            "silence_s": round(float(quiet_s), 2),
        }


def join_utterances(utterances: Sequence[Floats], windows: int) -> Iterator[tuple[Floats, list[Span]]]:
    """Yield windows of utterances with faint noise between them, and the spans of these in seconds."""
    import numpy as np

    from harken.types import SAMPLE_RATE

    rng = np.random.default_rng(0)
    waiting = [trim(utterances[i]) for i in rng.permutation(len(utterances))]
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


def trim(samples: Floats) -> Floats:
    """Cut the silence at both ends, and scale to one volume."""
    import numpy as np

    from harken.types import HOP_SAMPLES

    frames = samples[: len(samples) // HOP_SAMPLES * HOP_SAMPLES].reshape(-1, HOP_SAMPLES)
    level = np.convolve(np.sqrt((frames**2).mean(axis=1)), np.full(3, 1 / 3), "same")
    active = np.flatnonzero(level > RELATIVE_LEVEL * np.percentile(level, 95))
    kept = frames[active[0] : active[-1] + 1].ravel()
    return np.asarray(kept / (2 * np.abs(kept).max()), np.float32)


def treated_words(recognizer: Recognizer, window: DecodedWindow, alignment: Alignment) -> dict[str, list[Span]]:
    """Return words as aligned, shortened by the median duration, and with silence cut out."""
    from harken.transcribe.word_boundaries import refine_word_boundaries
    from harken.transcribe.word_timestamps import words_by_segment

    words, median_duration = words_by_segment(
        window.token_segments, alignment, recognizer.tokenizer, language="en"
    )
    segments = [make_segment(*pair) for pair in zip(window.token_segments, words, strict=True)]
    shortened, cut = (
        refine_word_boundaries(
            segments, median_duration_s=median_duration * STEP_S, last_speech_s=0, speech=speech
        )[0]
        for speech in (None, speech_spans(window.samples))
    )
    return {"as aligned": times(segments), "shortened": times(shortened), "silence cut out": times(cut)}


def make_segment(token_segment: TokenSegment, words: Sequence[Any]) -> Segment:
    """Make a segment of aligned words."""
    from harken.results import Segment, Word

    return Segment(
        index=0,
        start_s=token_segment.start * STEP_S,
        end_s=token_segment.end * STEP_S,
        text="",
        tokens=token_segment.tokens,
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


def speech_spans(samples: Floats) -> list[Span]:
    """Return the spans of speech in seconds, as word boundaries use them."""
    from harken.audio.vad import RegionTracker, SpeechDetector, VadOptions
    from harken.types import FRAMES_PER_SECOND, HOP_SAMPLES

    detector, regions = SpeechDetector(), RegionTracker(VadOptions(min_silence_s=0.3, speech_pad_s=0.05))
    found = regions.feed(detector.feed(samples)) + regions.feed(detector.flush())
    found += regions.flush(len(samples) // HOP_SAMPLES)
    return [(start / FRAMES_PER_SECOND, end / FRAMES_PER_SECOND) for start, end in found]


def times(segments: Sequence[Segment]) -> list[Span]:
    """Return the spans of all words."""
    return [(word.start_s, word.end_s) for segment in segments for word in segment.words]


def covered_s(word: Span, spans: Sequence[Span]) -> float:
    """Return the seconds of speech in a word."""
    return sum(max(0.0, min(word[1], end) - max(word[0], start)) for start, end in spans)
