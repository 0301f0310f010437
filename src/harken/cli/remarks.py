"""Remarks on a transcription, beside its text: warnings, and the lines of ``--verbose``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby

from harken.cli.terminal import format_time, format_timed_text
from harken.decoding import DecodeStats
from harken.results import Transcript
from harken.transcription import Transcription


def no_speech(duration_s: float, peak: float) -> str:
    """Return the warning about a recording in which nobody was found to speak."""
    level = f"peak {20 * math.log10(peak):.0f} dBFS"
    return f"no speech found in {duration_s:.1f} s of sound ({level}); --no-vad transcribes it all"


def uncertain_language(code: str | None, probability: float) -> str:
    """Return the warning about a language that is not certain."""
    return f"the language may be another than {code}, of probability {probability:.2f}; --language names it"


def verbose_lines(transcription: Transcription, transcript: Transcript, elapsed_s: float) -> Iterator[str]:
    """Yield lines about a recording that has been transcribed in some time."""
    yield from language_and_loss_lines(transcript)
    yield _speed_summary(transcription, elapsed_s)
    yield from _speculation_summary(transcription.stats)


def language_and_loss_lines(transcript: Transcript) -> Iterator[str]:
    """Yield lines about the language of a recording, the segments dropped from it, and speech without words."""
    if not transcript.segments:
        yield "no text"
    if transcript.speakers:
        yield "speakers: " + ", ".join(f"{each.name} {each.seconds:.1f} s" for each in transcript.speakers)
    languages = [
        (code, next(segments))
        for code, segments in groupby(transcript.segments, lambda segment: segment.language)
    ]
    if len(languages) > 1:
        yield "languages: " + ", ".join(
            f"{code} from {format_time(first.start_s)}" for code, first in languages
        )
    elif transcript.language_probability is not None:
        yield f"language: {transcript.language}, probability {transcript.language_probability:.2f}"
    for dropped in transcript.dropped:
        segment = dropped.segment
        yield f"dropped {format_timed_text(segment.start_s, segment.end_s, segment.text)}: {dropped.reason}"
    for missing in transcript.unwritten:
        times = f"{format_time(missing.start_s)} to {format_time(missing.end_s)}"
        yield f"speech without words from {times}: {missing.reason}"


def _speed_summary(transcription: Transcription, elapsed_s: float) -> str:
    done_s, stats = transcription.so_far().duration_s, transcription.stats
    return (
        f"{format_time(done_s)} in {elapsed_s:.2f} s, {done_s / elapsed_s:.1f} times real time, "
        f"{stats.sampled_tokens} tokens, windows decoded: {stats.windows}"
    )


def _speculation_summary(stats: DecodeStats) -> Iterator[str]:
    """Yield lines about drafted tokens, if anything was drafted."""
    if stats.drafted or stats.skipped_steps:
        yield (
            f"drafted tokens accepted: {stats.accepted} of {stats.drafted}, "
            f"{stats.tokens_per_forward:.2f} tokens per forward pass, steps without a draft: {stats.skipped_steps}"
        )
    if stats.undrafted_windows:
        yield f"windows without drafts, as beam search does not use them: {stats.undrafted_windows}"
