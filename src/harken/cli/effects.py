"""Options that have no effect beside others: given in vain, they are refused, as the user expects something of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from harken.streaming import StreamOptions

Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A circumstance in which an option has no effect.

    Parameters
    ----------
    circumstance : str
        In the words of the command line, such as ``"without --streaming"``.
    holds : callable
        Called with the values of all parameters; true if they make it so.
    """

    circumstance: str
    holds: Callable[[Given], object]


def without_flag(name: str) -> NoEffect:
    """Return that an option has no effect without a flag; a command without the flag is as if it were given."""
    return NoEffect(f"without --{name.replace('_', '-')}", lambda given: not given.get(name, True))


def with_option(name: str) -> NoEffect:
    """Return that an option has no effect beside another one."""
    return NoEffect(f"with --{name.replace('_', '-')}", lambda given: given[name])


def without_format(*format_names: str) -> NoEffect:
    """Return that an option has no effect unless a file of one of these formats is written."""

    def none_chosen(given: Given) -> bool:
        return not {"all", *format_names} & {*given.get("format_names", format_names)}

    return NoEffect(f"without a --format of {', '.join(format_names)}", none_chosen)


def _beam_search_is_left_out(given: Given) -> bool:
    return given["beam_size"] > 1 and 0 not in given["temperatures"]


def _language_is_not_voted_on(given: Given) -> object:
    """Return whether no first windows decide on the language; those of a live stream, which has no --vad, do."""
    return given["language"] or (given["multilingual"] and "vad" in given)


NO_EFFECT: Mapping[str, NoEffect] = {
    "languages": NoEffect("with --language", lambda given: given["language"] and not given["multilingual"]),
    **dict.fromkeys(
        ("language_threshold", "language_windows"),
        NoEffect("with --language or --multilingual", _language_is_not_voted_on),
    ),
    "beam_size": NoEffect("with --temperatures that leave out 0", _beam_search_is_left_out),
    "patience": NoEffect("with --beam-size 1", lambda given: given["beam_size"] == 1),
    "best_of": NoEffect("with --temperatures 0 alone", lambda given: not any(given["temperatures"])),
    "max_initial_timestamp_s": NoEffect("with --no-timestamps", lambda given: not given["timestamps"]),
    "prompt_reset_temperature": without_flag("condition_on_previous_text"),
    "carry_initial_prompt": NoEffect("without --initial-prompt", lambda given: not given["initial_prompt"]),
    **dict.fromkeys(
        ("vad_threshold", "vad_min_speech_s", "vad_min_silence_s", "vad_speech_pad_s"),
        NoEffect("with --no-vad", lambda given: not given.get("vad", True)),
    ),
    # All that show words make json list them, too.
    **dict.fromkeys(
        ("max_line_width", "max_line_count", "max_words_per_line"),
        without_format("srt", "vtt", "ass", "lrc", "json"),
    ),
    "highlight_words": without_format("srt", "vtt", "json"),
    "karaoke": without_format("vtt", "lrc", "ass", "json"),
    "embed_audio": without_format("html"),
    "held_out_fraction": with_option("held_out_data"),
    "speed_perturbation": NoEffect("with --shuffles 1", lambda given: given["shuffles"] == 1),
    "revision": NoEffect(
        "with a model given by its path",
        lambda given: os.path.exists(given["model"]) and not given.get("init_from"),
    ),
    "precision": NoEffect(
        "with --backend numpy, which computes in fp32",
        lambda given: given.get("backend") == "numpy" and given["precision"] != "fp32",
    ),
    "threads": NoEffect("with --backend numpy", lambda given: given.get("backend") == "numpy"),
    **dict.fromkeys(
        ("lsh_rounds", "lsh_bucket_size"),
        NoEffect("without --attention lsh", lambda given: given.get("attention") != "lsh"),
    ),
    # Fields of `StreamOptions` are options of 'listen' too, which has no flag for them.
    **{field.name: without_flag("streaming") for field in fields(StreamOptions)},
}
"""By the name of the parameter; for the options that several commands derive from one declaration."""
