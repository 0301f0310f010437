"""Options of a transcription. The command line derives its flags from these fields, so each is declared once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import ParamSpec, TypeVar

from harken.audio.vad import VadOptions
from harken.decoding import (
    MIN_TEMPERATURE,
    Beam,
    DecodingResult,
    Greedy,
    Observer,
    Sample,
    Step,
    Strategy,
    compile_suppress_regex,
    normalized_hotwords,
)
from harken.errors import Cancelled, OptionError
from harken.option_types import check, option
from harken.results import Attempt
from harken.text import Script, asks_for_detection, script_named, script_of, to_language_code
from harken.transcribe.replacement import Replacements
from harken.transcribe.word_timestamps import APPEND_PUNCTUATIONS, PREPEND_PUNCTUATIONS
from harken.types import FRAMES_PER_SECOND

P = ParamSpec("P")
T = TypeVar("T")

TASKS = ("transcribe", "translate")
CHANNELS = ("mixed", "apart")
FIDELITIES = ("auto", "exact", "fast")
TEMPERATURES = f"0, and numbers from {MIN_TEMPERATURE} to 10"
MAX_CLIP_S = 1e7
"""Latest time of a clip, about four months."""
DEFAULT_BEAMS = 5
OFFLINE_ONLY = ("batch_size", "channels", "clip_timestamps", "prefix", "vad")
"""Options without a meaning for a live stream, which is a single recording that is always split at pauses."""
GREEDY_LANGUAGE = "en"
"""Language in which beams gain little (docs/decisions/fallback.md)."""


_language = partial(option, section="Language")
_decoding = partial(option, section="Decoding")
_prompting = partial(option, section="Prompting")
_words = partial(option, section="Words")
_speech = partial(option, section="Speech")


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeOptions:
    """The options of a transcription, of which docs/reference.md (``harken transcribe``) says what each does.

    The defaults are those of the reference's command line, except for greedy search, voice activity detection, dropped
    hallucinations, and windows that are not conditioned on one another. docs/decisions/defaults.md gives the reasons,
    and the options to set for the reference's behaviour.

    Raises
    ------
    OptionError
        If a value is of another type than declared, or outside what is allowed.

    Notes
    -----
    Lists are taken as tuples and numbers of numpy as those of Python. A blank prompt, prefix or hotword is none. Beam
    search, as in the reference, is what happens at temperature 0; without a temperature of 0 there is none.
    """

    language: str | None = _language(
        None,
        "Language spoken: a code, a name or a tag, also with a script, as zh_Hant; auto, or none, detects it.",
    )
    languages: tuple[str, ...] = _language((), "The only candidates where the language is detected.")
    language_threshold: float = _language(
        0.5,
        "Probability at which the first window decides on the language; below it, later windows are used too.",
        low=0,
        high=1,
        noun="a probability",
    )
    language_windows: int = _language(4, "Most windows to detect the language in.", low=1, high=1000)
    multilingual: bool = _language(False, "The language may change: detect it for every stretch of speech.")
    task: str = _language("transcribe", "transcribe, or translate into English.", choices=TASKS)

    beam_size: int | None = _decoding(
        None,
        "Hypotheses of the beam search, at temperature 0; 1 is greedy. If not given: five; in English greedy, and with "
        "tiny and base again with five where that text is not sure.",
        low=1,
        high=64,
    )
    patience: float = _decoding(1.0, "Beam search ends after beam size times this many finished hypotheses.")
    length_penalty: float | None = _decoding(None, "Alpha of the length penalty; none divides by the length.")
    best_of: int = _decoding(5, "Samples drawn at each temperature above 0.", low=1, high=64)
    temperatures: tuple[float, ...] = _decoding(
        (0.0, 0.2, 0.4, 0.6, 0.8, 1.0),
        "Temperatures to try in turn until a text passes the three thresholds, or is no more probable than before.",
        low=0,
        high=10,
        allowed=TEMPERATURES,
    )
    compression_ratio_threshold: float | None = _decoding(
        2.4, "A text with a higher compression ratio than this is repetitive.", above=0
    )
    logprob_threshold: float | None = _decoding(
        -1.0, "An average log-probability below this is a failure.", high=0
    )
    no_speech_threshold: float | None = _decoding(
        0.6,
        "A window with a higher no-speech probability than this is skipped, if its text fails the threshold above too.",
        low=0,
        high=1,
        noun="a probability",
    )
    timestamps: bool = _decoding(True, "Decode timestamps; without them every segment is a window.")
    max_initial_timestamp_s: float | None = _decoding(
        1.0, "Latest start of the first segment of a window, in seconds.", low=0, high=30, noun="seconds"
    )
    clip_timestamps: tuple[float, ...] = _decoding(
        (), "Start and end of the clips to transcribe, in seconds; the last end may be left out."
    )
    fidelity: str = _decoding(
        "auto",
        "exact encodes every position of a window of 30 s, as the reference does; fast none of those behind the "
        "end of the audio, for which stored ones stand; auto is exact in fp32.",
        choices=FIDELITIES,
    )
    suppress_tokens: tuple[int, ...] = _decoding(
        (-1,),
        "Token ids that are never sampled; -1 stands for symbols that are not spoken.",
        low=-1,
        allowed="ids of the vocabulary, and -1",
    )
    suppress_blank: bool = _decoding(True, "Never begin a window with a blank.")
    suppress_regex: str | None = _decoding(
        None, "Tokens whose text matches this regular expression are never sampled."
    )
    batch_size: int | None = _decoding(
        None,
        "Most windows to decode together, of one or several recordings; each takes memory, with tiny.en about 20 MB. "
        "By default two of one recording, on a GPU four; harken batch takes eight of several.",
        low=1,
        high=256,
    )
    seed: int = _decoding(
        0,
        "Seed of the random numbers for sampling; equal seeds give equal texts.",
        low=0,
        high=2**128 - 1,
        allowed="an integer from 0 to 2**128 - 1",
    )

    condition_on_previous_text: bool = _prompting(
        False, "Prompt each window with the text before it; windows of one recording then wait for one another."
    )
    prompt_reset_temperature: float = _prompting(
        0.5, "Forget the previous text after a window decoded above this.", low=0, high=10
    )
    initial_prompt: str | None = _prompting(
        None,
        "Text to prompt the first window with: names, spelling, style; of a long one the last 223 tokens count.",
    )
    carry_initial_prompt: bool = _prompting(False, "Give the initial prompt to every window.")
    prefix: str | None = _prompting(
        None, "Text that the first window is forced to begin with, of up to 112 tokens."
    )
    hotwords: tuple[str, ...] = _prompting(
        (),
        "Words to expect, such as names of up to 100 characters; they are favoured where they are plausible.",
    )

    word_timestamps: bool = _words(False, "Add the start and end time of each word.")
    prepend_punctuations: str = _words(
        PREPEND_PUNCTUATIONS, "Punctuation that is merged into the word after it."
    )
    append_punctuations: str = _words(
        APPEND_PUNCTUATIONS, "Punctuation that is merged into the word before it."
    )
    replace: tuple[str, ...] = _words(
        (),
        "File of names and spellings to replace, a line each: wrong = right. Whole words, in any case.",
        from_file=True,
    )

    channels: str = _speech(
        "mixed",
        "mixed, or apart: transcribe each channel, as of a call, and name its segments by it.",
        choices=CHANNELS,
    )
    vad: bool = _speech(True, "Decode only the speech that voice activity detection finds.")
    vad_threshold: float = _speech(0.5, "Speech begins where its probability is at least this.")
    vad_min_speech_s: float = _speech(0.1, "Shorter speech is ignored, in seconds.")
    vad_min_silence_s: float = _speech(1.0, "Shorter silence belongs to the speech around it, in seconds.")
    vad_speech_pad_s: float = _speech(0.4, "Audio kept before and after speech, in seconds.")
    hallucination_threshold: float | None = _speech(
        0.5,
        "Segments with at least this hallucination score are dropped; none drops nothing.",
        above=0,
        high=1,
        noun="a score",
    )
    fill_gaps: bool = _speech(
        True, "Decode detected speech of a second or more that no word covers again, on its own."
    )

    def __post_init__(self) -> None:
        check(self)
        if not self.temperatures:
            raise OptionError("temperatures", self.temperatures, "at least one temperature")
        if any(0 < temperature < MIN_TEMPERATURE for temperature in self.temperatures):
            raise OptionError("temperatures", self.temperatures, TEMPERATURES)
        for name in ("initial_prompt", "prefix"):
            if not (getattr(self, name) or "").strip():
                object.__setattr__(self, name, None)
        object.__setattr__(self, "hotwords", normalized_hotwords(self.hotwords))
        if self.language and asks_for_detection(self.language):
            object.__setattr__(self, "language", None)
        if self.language is not None:
            to_language_code(self.language)
        for language in self.languages:
            to_language_code(language, option="languages")
        if self.suppress_regex is not None:
            compile_suppress_regex(self.suppress_regex)
        self.strategies()
        self.vad_options()
        self.replacements()
        self._check_clips()

    def _check_clips(self) -> None:
        times_s = self.clip_timestamps
        rising = all(a <= b for a, b in pairwise(times_s))
        if not rising or not all(0 <= t <= MAX_CLIP_S for t in times_s):
            allowed = f"times in seconds from 0 to {MAX_CLIP_S:.0f}, in rising order"
            raise OptionError("clip_timestamps", times_s, allowed)
        if any(start == end for start, end in self.clips):
            raise OptionError("clip_timestamps", times_s, "clips that end after their start, by 0.01 s or more")

    @property
    def language_code(self) -> str | None:
        """Code of the language, if it is given."""
        return None if self.language is None else to_language_code(self.language)

    @property
    def effective_batch_size(self) -> int:
        """Most windows of several recordings to decode together."""
        return self.batch_size or 1

    def in_language(self, language: str) -> TranscribeOptions:
        """Return the options of windows in a language, whose code is given: it decides whether to search by default."""
        if self.beam_size is not None or language == GREEDY_LANGUAGE:
            return self
        return replace(self, beam_size=DEFAULT_BEAMS)

    def strategies(self) -> tuple[Strategy, ...]:
        """Return the fallback schedule: the decoding strategies to try in turn.

        Source: openai/whisper, transcribe.py, decode_with_fallback.
        """
        beam = self._beam(self.beam_size or DEFAULT_BEAMS)  # it checks its options even if it is not used
        first = Greedy() if self.beam_size in (None, 1) else beam
        return tuple(
            Sample(temperature=t, best_of=self.best_of, length_penalty=self.length_penalty) if t else first
            for t in self.temperatures
        )

    @property
    def second_look(self) -> Beam | None:
        """The search by which greedy text that is not sure may be decoded again; None if a width was chosen."""
        return self._beam(DEFAULT_BEAMS) if self.beam_size is None else None

    def _beam(self, width: int) -> Beam:
        return Beam(width=width, patience=self.patience, length_penalty=self.length_penalty)

    def scripts(self) -> dict[str, Script]:
        """Return the scripts that languages are to be written in, by the code of the language."""
        tags = () if self.task == "translate" else (self.language,) if self.language else self.languages
        option = "language" if self.language else "languages"
        asked = {to_language_code(tag): script_of(tag, option=option) for tag in reversed(tags)}
        return {code: script_named(code, script) for code, script in asked.items() if script}

    def replacements(self) -> Replacements:
        """Return what is replaced in the text, and in which scripts it is written.

        Raises
        ------
        OptionError
            If a line is no replacement.
        """
        return Replacements(self.replace, self.scripts())

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
            allowed = re.sub(r"min_silence_s|speech_pad_s", r"vad_\g<0>", error.allowed)
            raise OptionError(f"vad_{error.field}", error.value, allowed) from None

    def rejection_reason(self, decoded: DecodingResult) -> str | None:
        """Return the reason to decode a window again at the next temperature; None if there is none.

        Source: openai/whisper, transcribe.py, decode_with_fallback.
        """
        ratio, ratio_limit = decoded.compression_ratio, self.compression_ratio_threshold
        logprob, logprob_limit = decoded.hypothesis.avg_logprob, self.logprob_threshold
        improbable = logprob_limit is not None and logprob < logprob_limit
        if improbable and self._is_no_speech(decoded):
            return None
        if decoded.loops:
            return "repeats itself"
        if ratio_limit is not None and ratio > ratio_limit:
            return f"compression ratio {ratio:.2f} above {ratio_limit}"
        return f"average log-probability {logprob:.2f} below {logprob_limit}" if improbable else None

    def is_silence(self, decoded: DecodingResult) -> bool:
        """Return whether to skip a window as silence (openai/whisper, transcribe.py, transcribe)."""
        limit = self.logprob_threshold
        return self._is_no_speech(decoded) and (limit is None or decoded.hypothesis.avg_logprob <= limit)

    def _is_no_speech(self, decoded: DecodingResult) -> bool:
        return self.no_speech_threshold is not None and decoded.no_speech_prob > self.no_speech_threshold

    @property
    def needs_attention(self) -> bool:
        """True if the attention of each token is kept: for its time, its score, or the speech that it covers."""
        return self.word_timestamps or self.hallucination_threshold is not None or (self.vad and self.fill_gaps)

    def is_exact(self, precision: str) -> bool:
        """Return whether windows equal the reference's frame by frame, for a backend of a precision."""
        return self.fidelity == "exact" or (self.fidelity == "auto" and precision == "fp32")

    @property
    def clips(self) -> list[tuple[int, int | None]]:
        """The clips in mel frames; an end of None is that of the recording."""
        points: list[int | None] = [round(t * FRAMES_PER_SECOND) for t in self.clip_timestamps] or [0]
        if len(points) % 2:
            points.append(None)
        return [(start or 0, end) for start, end in zip(points[::2], points[1::2], strict=True)]


ProgressCallback = Callable[[float, bool], None]
"""Called with the seconds of the recording that are done, and whether that is all of it."""
WindowStartCallback = Callable[[float, tuple[int, ...]], None]
"""Called with the start of a window in seconds, and its prompt."""
WindowEndCallback = Callable[[float, DecodingResult, tuple[Attempt, ...]], None]
"""Called with the start of a window in seconds, its result, and all attempts at it, the accepted one last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """The callbacks of a transcription.

    Parameters
    ----------
    on_progress : callable
        Called after every window.
    on_token : callable
        Called with every token that is picked; the compiled engine picks up to eight of each row before.
    on_window_start : callable
        Called before the first step of every window, and again if the whole window is encoded after a part of it.
    on_window_end : callable
        Called once a window has been decoded, before its segments.
    is_cancelled : callable
        Called before `on_token`; once it returns True, `Cancelled` is raised.

    Raises
    ------
    OptionError
        If one of them cannot be called.
    """

    on_progress: ProgressCallback = lambda done_s, finished: None
    on_token: Observer = lambda step: None
    on_window_start: WindowStartCallback = lambda start_s, prompt: None
    on_window_end: WindowEndCallback = lambda start_s, decoded, attempts: None
    is_cancelled: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        check(self)

    def handle_step(self, step: Step) -> None:
        """Raise `Cancelled` if the caller asks for it, else pass the step on."""
        if self.call(self.is_cancelled):
            raise Cancelled("cancelled by the caller")
        self.call(self.on_token, step)

    def call(self, callback: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Call one of them; an exception becomes a `CallbackError`, which says whose it is."""
        try:
            return callback(*given, **named)
        except Exception as error:
            raise CallbackError(self, error) from error


class CallbackError(Exception):
    """An exception of a callback on its way to the scheduler, which knows the recordings that have it."""

    def __init__(self, callbacks: Callbacks, error: Exception) -> None:
        super().__init__(callbacks, error)
        self.callbacks, self.error = callbacks, error
