"""The options of the commands: the types of their values, their headings, and those that are given in vain."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import Field, dataclass, fields
from functools import partial, reduce
from itertools import chain
from math import isfinite, isnan
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from harken.cli.exits import EPILOGUE
from harken.cli.inputs import FILES_READ
from harken.errors import OptionError
from harken.formats import RULES, Layout
from harken.streaming import StreamOptions
from harken.transcribe import TranscribeOptions

HTTP_OPTIONS = ("host", "port", "certfile", "keyfile", "api_key", "auth", "origin", "allowed_host")
"""Fields of `ServeOptions` that are options of 'mcp' too, which is no server on the network without its flag."""
TURNS = "rttm"
"""The format that is empty without speakers."""

MOST_SHOWN = 60
"""Characters of a value in a message."""

Decorator = Callable[[Any], Any]
Parse = Callable[[str], Any]
Given = Mapping[str, Any]


class NumberRange(click.FloatRange):
    """A range of numbers; nan and infinity lie in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is not a number of the range {self._describe_range()}.", param, ctx)
        return number


class FilePath(click.Path):
    """A path of a file or folder, which is not empty; opening it says whether it can be read."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"readable": False, **settings})

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("it is empty, and names no file.", param, ctx)
        return super().convert(value, param, ctx)


class ResultPath(FilePath):
    """A path of a file for results, which standard output, where the text is, does not take."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "-":
            self.fail("'-': allowed is a file, since standard output shows the text", param, ctx)
        return super().convert(value, param, ctx)


def parse_text(value: str) -> str:
    """Return a text, or refuse one in which bytes that are no text have become surrogates (see PEP 383)."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{abridged(value)} is not UTF-8 text") from None
    return value


def parse_nonempty_text(value: str) -> str:
    """Return a text that is not empty."""
    if not value:
        raise click.BadParameter("it is empty.")
    return parse_text(value)


parse_text.__name__ = parse_nonempty_text.__name__ = "text"  # for the help


def checked_number(value: float, text: str) -> float:
    """Return a number, or refuse nan."""
    if isnan(value):
        raise click.BadParameter(f"{text!r} is not a number")
    return value


def abridged(value: object) -> str:
    """Return a value as it would be typed, on one line, and without its middle if it is long."""
    match value:
        case str():
            shown = repr(value)
        case list() | tuple():
            texts = any(isinstance(item, str) for item in value)
            joined = ",".join(map(str, value))
            shown = repr(joined) if texts or not joined else joined
        case None:
            shown = "none"
        case _:
            shown = str(value)
    half = (MOST_SHOWN - 3) // 2
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:half]}...{shown[-half:]}"


@dataclass(frozen=True, slots=True)
class NoEffect:
    """A circumstance in which an option has no effect."""

    circumstance: str  # in the words of the command line, such as ``"without --streaming"``
    holds: Callable[[Given], object]  # called with the values of all parameters; true if they make it so


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


def _language_is_not_voted_on(given: Given) -> object:
    """Return whether no first windows decide on the language; those of a live stream, which has no --vad, do."""
    return given["language"] or (given["multilingual"] and "vad" in given)


def _is_beam_search(given: Given) -> bool:
    """Return whether beams are searched, as far as that is known before the language is detected."""
    options = TranscribeOptions(language=given["language"], beam_size=given["beam_size"])
    if code := options.language_code:
        options = options.in_language(code)
    return (options.beam_size or 1) > 1


NO_EFFECT: Mapping[str, NoEffect] = {
    "language": NoEffect("with --multilingual", lambda given: given.get("multilingual")),
    "draft": NoEffect(
        "in beam search, the default in other languages than English: --beam-size 1", _is_beam_search
    ),
    "languages": NoEffect("with --language", lambda given: given["language"]),
    **dict.fromkeys(
        ("language_threshold", "language_windows"),
        NoEffect("with --language or --multilingual", _language_is_not_voted_on),
    ),
    "beam_size": NoEffect(
        "with --temperatures that leave out 0",
        lambda given: (given["beam_size"] or 1) > 1 and 0 not in given["temperatures"],
    ),
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
        ("subtitle_style", *RULES),
        without_format("srt", "vtt", "ass", "lrc", "json"),
    ),
    "rank": without_flag("init_from"),  # of an assistant
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
    **dict.fromkeys(HTTP_OPTIONS, without_flag("http")),
    # Fields of `StreamOptions` are options of 'listen' too, which has no flag for them.
    **{field.name: without_flag("streaming") for field in fields(StreamOptions)},
}
"""When an option does nothing, by the name of the parameter; for those that several commands derive from one
declaration. Given in vain, they are refused, as the user expects something of them."""


class Option(click.Option):
    """An option that is listed under a heading in the help.

    Parameters
    ----------
    section : str
        The heading.
    no_effect : NoEffect, optional
        When the option is refused, as it would do nothing.
    """

    def __init__(self, *args: Any, section: str, no_effect: NoEffect | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.no_effect = no_effect or NO_EFFECT.get(self.name or "")


class Command(click.Command):
    """A command whose help lists its options under their headings, and whose errors name them as they were given.

    Its help ends with the exit codes.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.epilog = EPILOGUE

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, unless an option was given in vain or has a value that is not allowed."""
        refuse_options_in_vain(self, ctx)
        try:
            return super().invoke(ctx)
        except OptionError as error:
            raise click.UsageError(option_error_line(self, error)) from error

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record:
                sections.setdefault(getattr(option, "section", "Other"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def option_error_line(command: click.Command, error: OptionError) -> str:
    """Return the message of an error with the option's name, its value as it is typed, and what is allowed.

    That of a field without an option is the message of the error.
    """
    options = {param.name: param for param in command.params if isinstance(param, click.Option)}
    if error.field not in options:
        return str(error)

    def name_of_field(match: re.Match[str]) -> str:
        return _option_name(options[match[0]]) if match[0] in options else match[0]

    name = _option_name(options[error.field], error.value)
    value = "" if isinstance(error.value, bool) else f" {abridged(error.value)}"
    allowed = re.sub(r"[a-z]+(_[a-z]+)+", name_of_field, error.allowed)
    return f"{name}{value}: allowed is {allowed}"


def refuse_options_in_vain(command: click.Command, context: click.Context) -> None:
    """Refuse options that were given with another value than their default, and have no effect."""
    for option in command.params:
        if not isinstance(option, Option) or option.no_effect is None or option.name is None:
            continue
        value = context.params[option.name]
        if (
            is_given(option.name, context)
            and value != option.get_default(context)
            and option.no_effect.holds(context.params)
        ):
            circumstance = option.no_effect.circumstance
            raise click.UsageError(f"{_option_name(option, value)} has no effect {circumstance}")


def is_given(name: str, context: click.Context | None = None) -> bool:
    """Return whether an option is on the command line, by the name of its parameter; by default of this command."""
    context = context or click.get_current_context()
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def _option_name(option: click.Option, value: object = None) -> str:
    """Return the long name of an option, or of a flag that has this value."""
    names = option.secondary_opts if value is False and option.secondary_opts else option.opts
    return max(names, key=len)


def list_option(*names: str, parse_item: Parse, section: str, empty: bool = True, **settings: Any) -> Decorator:
    """Add an option that takes several values: given repeatedly, or separated by commas or line ends; `empty` allows
    none."""

    def parse(value: Any) -> tuple[Any, ...]:
        parts = filter(None, map(str.strip, re.split("[,\n]", value))) if isinstance(value, str) else (value,)
        return tuple(map(parse_item, parts))

    def flatten(ctx: click.Context, param: click.Parameter, value: Iterable[tuple[Any, ...]]) -> Any:
        items = tuple(chain.from_iterable(value))
        if value and not (items or empty):
            raise click.BadParameter("it is empty", ctx, param)
        return items

    parse.__name__ = f"{parse_item.__name__},..."  # shown in the help
    return click.option(
        *names, cls=Option, section=section, type=parse, multiple=True, callback=flatten, **settings
    )


def single_option(*names: str, section: str, **settings: Any) -> Decorator:
    """Add an option that takes one value, or a flag; the help shows its default."""
    return click.option(*names, cls=Option, section=section, show_default=True, **settings)


def dataclass_options(options_class: type[Any], *, exclude: Collection[str] = ()) -> Decorator:
    """Add an option for every field of a dataclass of options, except those excluded."""
    hints = get_type_hints(options_class)
    added = [
        _option_from_field(field, hints[field.name])
        for field in fields(options_class)
        if field.name not in exclude
    ]
    return add_options(added)


def _option_from_field(field: Field[Any], hint: Any) -> Decorator:
    """Make the option of a field: its name, type, default, help and heading."""
    name = field.name.replace("_", "-")
    about = {key: field.metadata[key] for key in ("help", "section")}
    if field.metadata["from_file"]:
        return click.option(f"--{name}", cls=Option, metavar="FILE", callback=_read_lines, **about)
    settings = {"default": field.default, **about}
    if hint is bool:
        return single_option(f"--{name}/--no-{name}", **settings)
    if get_origin(hint) is tuple:
        item = get_args(hint)[0]
        parse_item = parse_text if item is str else number_parser(item)
        return list_option(f"--{name}", parse_item=parse_item, show_default=True, **settings)
    (value_type,) = (kind for kind in get_args(hint) or (hint,) if kind is not NoneType)
    # "none" may be a text: an optional text is None only if the option is not given.
    optional = value_type is not hint and value_type is not str
    parse = number_parser(value_type, optional=True) if optional else _SINGLE_VALUE_TYPES[value_type]
    return single_option(f"--{name}", type=parse, **settings)


def _read_lines(context: click.Context, param: click.Parameter, path: str | None) -> tuple[str, ...]:
    """Return the lines of a file of text, which belongs to `FILES_READ` from then on; none without a file."""
    if path is None:
        return ()
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise click.BadParameter(f"{abridged(path)}: {reason or error}.", context, param) from None
    context.meta.setdefault(FILES_READ, []).append(path)
    return tuple(lines)


def number_parser(value_type: type, *, optional: bool = False) -> Parse:
    """Return a parser of numbers, and if it is `optional` of the word ``none``; its error names the expected type."""
    name, expected = {int: ("integer", "an integer"), float: ("float", "a number")}[value_type]

    def parse(value: str) -> Any:
        if optional and str(value).lower() == "none":
            return None
        try:
            return checked_number(value_type(value), value)
        except ValueError:
            raise click.BadParameter(f"{abridged(value)} is not {expected}") from None

    parse.__name__ = f"{name}|none" if optional else name
    return parse


_SINGLE_VALUE_TYPES = {int: click.INT, float: number_parser(float), str: parse_text}


def add_options(decorators: Iterable[Decorator]) -> Decorator:
    """Add options to a command, in the order in which the help shows them."""
    last_first = [*decorators][::-1]
    return lambda command: reduce(lambda command, decorate: decorate(command), last_first, command)


progress_option = partial(
    single_option, "--progress/--no-progress", default=True, help="Show a progress bar on a terminal."
)
decoding_options = dataclass_options(TranscribeOptions)
layout_options = dataclass_options(Layout, exclude=("speakers",))
"""All of a layout but `speakers`, which belongs to diarization."""
