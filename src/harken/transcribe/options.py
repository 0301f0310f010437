"""Options of a transcription. The command line derives its flags from these fields, so each is declared once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import isfinite
from typing import Any

from harken.audio.vad import VadOptions
from harken.decoding import Beam, DecodingResult, Greedy, Strategy, fallback_schedule
from harken.errors import OptionError
from harken.transcribe.word_timestamps import APPEND_PUNCTUATIONS, PREPEND_PUNCTUATIONS

TASKS = ("transcribe", "translate")
FIDELITIES = ("auto", "exact", "fast")


def option(section: str, default: Any, help: str) -> Any:
    """Declare an option with its default, its section heading and its help sentence."""
    return field(default=default, metadata={"section": section, "help": help})


_language = partial(option, "Language")
_decoding = partial(option, "Decoding")
_prompting = partial(option, "Prompting")
_words = partial(option, "Words")
_speech = partial(option, "Speech")


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeOptions:
    """The options of a transcription.

    The defaults are those of the reference's command line, except for greedy search, voice activity detection, dropped
    hallucinations, and windows that are not conditioned on one another. docs/decisions/defaults.md gives the reasons,
    and the options to set for the reference's behaviour.

    Raises
    ------
    OptionError
        If a value is outside what is allowed.
    """

    language: str | None = _language(None, "Language spoken, as a code or a name; detected if not given.")
    languages: tuple[str, ...] = _language((), "The only candidates where the language is detected.")
    language_threshold: float = _language(
        0.5,
        "Probability at which the first window decides on the language; below it, later windows are used too.",
    )
    language_windows: int = _language(4, "Most windows to detect the language in.")
    multilingual: bool = _language(False, "The language may change: detect it for every window.")
    task: str = _language("transcribe", "transcribe, or translate into English.")

    beam_size: int = _decoding(1, "Hypotheses of the beam search; 1 is greedy.")
    patience: float = _decoding(1.0, "Beam search ends after beam size times this many finished hypotheses.")
    length_penalty: float | None = _decoding(None, "Alpha of the length penalty; none divides by the length.")
    best_of: int = _decoding(5, "Samples drawn at each temperature above 0.")
    temperatures: tuple[float, ...] = _decoding(
        (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        "Temperatures to try in turn until a result passes the three thresholds.",
    )
    compression_ratio_threshold: float | None = _decoding(
        2.4, "A text with a higher compression ratio than this is repetitive."
    )
    logprob_threshold: float | None = _decoding(-1.0, "An average log-probability below this is a failure.")
    no_speech_threshold: float | None = _decoding(
        0.6,
        "A window with a higher no-speech probability than this is skipped, if its text fails the threshold above too.",
    )
    timestamps: bool = _decoding(True, "Decode timestamps; without them every segment is a window.")
    max_initial_timestamp_s: float | None = _decoding(
        1.0, "Latest start of the first segment of a window, in seconds."
    )
    clip_timestamps: tuple[float, ...] = _decoding(
        (), "Start and end of the clips to transcribe, in seconds; the last end may be left out."
    )
    fidelity: str = _decoding(
        "auto",
        "exact makes windows as the reference does, 30 s with zeros behind the end; fast encodes a few seconds of "
        "silence behind the end instead; auto is exact in fp32.",
    )
    suppress_tokens: tuple[int, ...] = _decoding(
        (-1,), "Token ids that are never sampled; -1 stands for symbols that are not spoken."
    )
    suppress_blank: bool = _decoding(True, "Never begin a window with a blank.")
    suppress_regex: str | None = _decoding(
        None, "Tokens whose text matches this regular expression are never sampled."
    )
    batch_size: int = _decoding(1, "Most windows to decode together, of one or several recordings.")
    seed: int = _decoding(0, "Seed of the random numbers for sampling; equal seeds give equal texts.")

    condition_on_previous_text: bool = _prompting(
        False, "Prompt each window with the text before it; windows of one recording then wait for one another."
    )
    prompt_reset_temperature: float = _prompting(
        0.5, "Forget the previous text after a window decoded above this."
    )
    initial_prompt: str | None = _prompting(
        None, "Text to prompt the first window with: names, spelling, style."
    )
    carry_initial_prompt: bool = _prompting(False, "Give the initial prompt to every window.")
    prefix: str | None = _prompting(None, "Text that the first window is forced to begin with.")
    hotwords: tuple[str, ...] = _prompting(
        (), "Words to expect, such as names; they are favoured where they are plausible."
    )

    word_timestamps: bool = _words(False, "Add the start and end time of each word.")
    prepend_punctuations: str = _words(
        PREPEND_PUNCTUATIONS, "Punctuation that is merged into the word after it."
    )
    append_punctuations: str = _words(
        APPEND_PUNCTUATIONS, "Punctuation that is merged into the word before it."
    )

    vad: bool = _speech(True, "Decode only the speech that voice activity detection finds.")
    vad_threshold: float = _speech(0.5, "Speech begins where its probability is at least this.")
    vad_min_speech_s: float = _speech(0.1, "Shorter speech is ignored, in seconds.")
    vad_min_silence_s: float = _speech(1.0, "Shorter silence belongs to the speech around it, in seconds.")
    vad_speech_pad_s: float = _speech(0.4, "Audio kept before and after speech, in seconds.")
    hallucination_threshold: float | None = _speech(
        0.5, "Segments with at least this hallucination score are dropped; none drops nothing."
    )

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise OptionError("task", self.task, " or ".join(TASKS))
        if self.fidelity not in FIDELITIES:
            raise OptionError("fidelity", self.fidelity, ", ".join(FIDELITIES))
        if not 1 <= self.beam_size <= 64:
            raise OptionError("beam_size", self.beam_size, "an integer from 1 to 64")
        self.strategies()
        _check_temperature("prompt_reset_temperature", self.prompt_reset_temperature)
        if self.seed < 0:
            raise OptionError("seed", self.seed, "an integer from 0 on")
        if self.max_initial_timestamp_s is not None and not 0 <= self.max_initial_timestamp_s <= 30:
            raise OptionError(
                "max_initial_timestamp_s", self.max_initial_timestamp_s, "0 to 30 seconds, or none"
            )
        if min(self.suppress_tokens, default=0) < -1:
            raise OptionError("suppress_tokens", self.suppress_tokens, "ids of the vocabulary, and -1")
        self.vad_options()
        if not 1 <= self.batch_size <= 256:
            raise OptionError("batch_size", self.batch_size, "an integer from 1 to 256")
        clips = self.clip_timestamps
        rising = all(a <= b for a, b in pairwise(clips))
        if not (rising and all(isfinite(t) and t >= 0 for t in clips)):
            raise OptionError("clip_timestamps", clips, "times in seconds from 0 on, in rising order")

    def strategies(self) -> tuple[Strategy, ...]:
        """Return the fallback schedule: the decoding strategies to try in turn."""
        for temperature in self.temperatures:
            _check_temperature("temperatures", temperature)
        beam = Beam(width=self.beam_size, patience=self.patience, length_penalty=self.length_penalty)
        first = Greedy() if self.beam_size == 1 else beam
        return fallback_schedule(
            self.temperatures, first=first, best_of=self.best_of, length_penalty=self.length_penalty
        )

    def vad_options(self) -> VadOptions:
        """Return the options of voice activity detection.

        Raises
        ------
        OptionError
            If one of them is outside what is allowed; it names the option as it is called here.
        """
        try:
            return VadOptions(
                threshold=self.vad_threshold,
                min_speech_s=self.vad_min_speech_s,
                min_silence_s=self.vad_min_silence_s,
                speech_pad_s=self.vad_speech_pad_s,
            )
        except OptionError as error:
            raise OptionError(f"vad_{error.field}", error.value, error.allowed) from None

    def rejection_reason(self, decoded: DecodingResult) -> str | None:
        """Return the reason to decode a window again at the next temperature; None if there is none.

        Source: openai/whisper, transcribe.py, decode_with_fallback.
        """
        ratio, ratio_limit = decoded.compression_ratio, self.compression_ratio_threshold
        logprob, logprob_limit = decoded.hypothesis.avg_logprob, self.logprob_threshold
        improbable = logprob_limit is not None and logprob < logprob_limit
        if improbable and self._is_no_speech(decoded):
            return None
        if ratio_limit is not None and ratio > ratio_limit:
            return f"compression ratio {ratio:.2f} above {ratio_limit}"
        return f"average log-probability {logprob:.2f} below {logprob_limit}" if improbable else None

    def is_silence(self, decoded: DecodingResult) -> bool:
        """Return whether to skip a window as silence (openai/whisper, transcribe.py, transcribe)."""
        limit = self.logprob_threshold
        return self._is_no_speech(decoded) and (limit is None or decoded.hypothesis.avg_logprob <= limit)

    def _is_no_speech(self, decoded: DecodingResult) -> bool:
        return self.no_speech_threshold is not None and decoded.no_speech_prob > self.no_speech_threshold

    def is_exact(self, precision: str) -> bool:
        """Return whether windows equal the reference's frame by frame, for a backend of a precision."""
        return self.fidelity == "exact" or (self.fidelity == "auto" and precision == "fp32")

    def clips(self, frames_per_second: int) -> Iterable[tuple[int, int | None]]:
        """Return the clips in frames; an end of None is that of the recording."""
        points: list[int | None] = [round(t * frames_per_second) for t in self.clip_timestamps] or [0]
        if len(points) % 2:
            points.append(None)
        return [(start or 0, end) for start, end in zip(points[::2], points[1::2], strict=True)]


def _check_temperature(field: str, value: float) -> None:
    if not 0 <= value <= 10:
        raise OptionError(field, value, "numbers from 0 to 10")
