"""The options of the commands, derived from dataclasses and from `harken.load`, and the types of their values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import Field, fields
from functools import reduce
from itertools import chain
from math import isfinite, isnan
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from harken.api import Recognizer, load
from harken.backend_factory import ATTENTIONS, AUTO, BACKENDS, LSH_BUCKET_SIZE, LSH_ROUNDS, PRECISIONS
from harken.cli.effects import NO_EFFECT, NoEffect
from harken.cli.signals import keeping_stop
from harken.errors import OptionError
from harken.formats import Layout
from harken.transcribe import TranscribeOptions

if TYPE_CHECKING:
    from harken.cli.terminal import Screen


WORD_FORMATS = {"words.tsv", "html"}
"""Formats that show words, so that word timestamps need not be asked for."""

_MODEL_FILE_PATTERNS = (
    *("model*.bin", "model*.safetensors*", "pytorch_model*.bin*", "config.json", "generation_config.json"),
    *("tokenizer.json", "vocab.json", "vocabulary.json", "vocabulary.txt", "adapter.safetensors"),
)
"""Names of the files of a model in its folder."""

Decorator = Callable[[Any], Any]
Parse = Callable[[str], Any]


class NumberRange(click.FloatRange):
    """A range of numbers; nan and infinity lie in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number."""
        number = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is not a number of the range {self._describe_range()}.", param, ctx)
        return number


class Text(click.types.StringParamType):
    """A text; one that the terminal passed in another encoding than UTF-8 is refused.

    Parameters
    ----------
    empty : bool
        Allow the empty text.
    """

    def __init__(self, *, empty: bool = True) -> None:
        self.empty = empty

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the text."""
        try:
            text = checked_text(super().convert(value, param, ctx))
        except click.BadParameter as error:
            self.fail(error.message, param, ctx)
        if not (text or self.empty):
            self.fail("it is empty.", param, ctx)
        return text


class FilePath(click.Path):
    """A path of a file or folder, which is not empty; opening it says whether it can be read."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"readable": False, **settings})

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("it is empty, and names no file.", param, ctx)
        return super().convert(value, param, ctx)


def checked_text(value: str) -> str:
    """Return a text that can be written as UTF-8.

    Raises
    ------
    click.BadParameter
        If bytes that are no text have become surrogates in it (see PEP 383).
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        raise click.BadParameter(f"{abridged(value)} is not UTF-8 text") from None
    return value


def checked_number(value: float, text: str) -> float:
    """Return a number that is not nan.

    Raises
    ------
    click.BadParameter
        If it is.
    """
    if isnan(value):
        raise click.BadParameter(f"{text!r} is not a number")
    return value


def abridged(value: object, length: int = 60) -> str:
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
    half = (length - 3) // 2
    return shown if len(shown) <= length else f"{shown[:half]}...{shown[-half:]}"


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
    """A command whose help lists its options under their headings, and whose errors name them as they were given."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, unless an option was given in vain.

        Raises
        ------
        click.UsageError
            If one was, or one has a value that is not allowed.
        """
        _refuse_options_in_vain(self, ctx)
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


def _refuse_options_in_vain(command: click.Command, context: click.Context) -> None:
    """Refuse options that were given with another value than their default, and have no effect."""
    for option in command.params:
        if not isinstance(option, Option) or option.no_effect is None or option.name is None:
            continue
        value = context.params[option.name]
        given = context.get_parameter_source(option.name) is not ParameterSource.DEFAULT
        if given and value != option.get_default(context) and option.no_effect.holds(context.params):
            circumstance = option.no_effect.circumstance
            raise click.UsageError(f"{_option_name(option, value)} has no effect {circumstance}")


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


# Arguments of `harken.load`, each with the names and the settings of its option.
_MODEL_OPTIONS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "model": (
        ("-m", "--model"),
        {
            "default": "tiny.en",
            "type": FilePath(),
            "metavar": "TEXT",
            "help": "Name (see 'harken models'), path, or owner/name on Hugging Face.",
        },
    ),
    "assistant": (
        ("--assistant",),
        {
            "type": FilePath(),
            "metavar": "MODEL|ngram|auto",
            "help": "Draft model for speculative decoding: the same text in less time.",
        },
    ),
    "adapter": (
        ("--adapter",),
        {
            "type": FilePath(),
            "metavar": "PATH|none",
            "help": "Adapter of the model's encoder, from 'harken adapt'; none gives the stock weights.",
        },
    ),
    "precision": (
        ("--precision",),
        {
            "default": "auto",
            "type": click.Choice((*PRECISIONS[AUTO], "fp16")),
            "help": (
                "Number format to compute in; auto is int8, bf16 needs the extra onnx; with "
                "torch fp16 on a GPU and fp32 on the CPU."
            ),
        },
    ),
    "threads": (
        ("--threads",),
        {"type": int, "help": "CPU threads; by default the processors that harken may use."},
    ),
    "backend": (
        ("--backend",),
        {
            "default": "auto",
            "type": click.Choice(BACKENDS),
            "help": (
                "Compiled CPU engine or the one on OpenVINO and ONNX Runtime, PyTorch for a GPU, or the slow numpy "
                "reference; auto is native where it was built and fits, else onnx."
            ),
        },
    ),
    "device": (
        ("--device",),
        {
            "default": "auto",
            "type": Text(empty=False),
            "help": "Device of torch: cuda, cuda:1, mps, cpu, or auto for the first that is available.",
        },
    ),
    "attention": (
        ("--attention",),
        {
            "default": "full",
            "type": click.Choice(ATTENTIONS),
            "help": "Attention of torch's encoder: full, or lsh, an approximation by hashing.",
        },
    ),
    "lsh_rounds": (
        ("--lsh-rounds",),
        {"default": LSH_ROUNDS, "type": int, "help": "Hashes of --attention lsh, 0 to 64."},
    ),
    "lsh_bucket_size": (
        ("--lsh-bucket-size",),
        {"default": LSH_BUCKET_SIZE, "type": int, "help": "Bucket size of --attention lsh, 1 to 1500."},
    ),
    "revision": (
        ("--revision",),
        {"type": Text(empty=False), "help": "Branch, tag or commit of a Hugging Face repository."},
    ),
    "download": (
        ("--download/--no-download",),
        {"default": True, "help": "Download a model that is not on this machine."},
    ),
}


def model_options(command: Any) -> Any:
    """Add the options that choose the model and its engine: the arguments of `harken.load`."""
    return add_options(
        (single_option(*names, section="Model", **settings) for names, settings in _MODEL_OPTIONS.values()),
        command,
    )


def engine_options(command: Any) -> Any:
    """Add the options that choose the engine of models that are named by another option."""
    names = (
        *("precision", "threads", "backend", "device"),
        *("attention", "lsh_rounds", "lsh_bucket_size", "download"),
    )
    return add_options(
        (single_option(*_MODEL_OPTIONS[name][0], section="Model", **_MODEL_OPTIONS[name][1]) for name in names),
        command,
    )


def decoding_options(command: Any) -> Any:
    """Add an option for every field of `TranscribeOptions`."""
    return add_options(_options_from_fields(TranscribeOptions), command)


def layout_options(command: Any) -> Any:
    """Add an option for every field of `Layout`, except `speakers`, which belongs to diarization."""
    return add_options(_options_from_fields(Layout, exclude=("speakers",)), command)


def dataclass_options(options_class: type[Any], *, exclude: Collection[str] = ()) -> Decorator:
    """Add an option for every field of a dataclass of options, except those excluded."""
    return lambda command: add_options(_options_from_fields(options_class, exclude), command)


def load_model(params: Mapping[str, Any]) -> Recognizer:
    """Load the model that `model_options` chose."""
    with keeping_stop():
        recognizer: Recognizer = chosen_loader("load", load)(**model_params(params))
        return recognizer


def chosen_loader(name: str, default: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of that name that `harken.cli.main` was given, or the default."""
    context = click.get_current_context(silent=True)
    loader: Callable[..., Any] = ((context and context.obj) or {}).get(name, default)
    return loader


def load_model_with_status(screen: Screen, params: Mapping[str, Any]) -> Recognizer:
    """Load the model that `model_options` chose, with a status line if the screen shows progress."""
    if not screen.show_progress:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    screen.show_status("loading the model ...")
    try:
        return load_model(params)
    finally:
        screen.show_status("")


def model_files(*models: str | None) -> Iterator[Path]:
    """Yield the files of the models that are given by their paths, to protect them from being overwritten."""
    for path in (Path(model) for model in models if model and os.path.exists(model)):
        folder = path if path.is_dir() else path.parent
        yield from [path] if path.is_file() else []
        yield from (file for pattern in _MODEL_FILE_PATTERNS for file in folder.glob(pattern))


def model_params(params: Mapping[str, Any], *, exclude: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of `model_options`, except those excluded."""
    return {name: params[name] for name in _MODEL_OPTIONS if name not in exclude}


def _options_from_fields(options_class: type[Any], exclude: Collection[str] = ()) -> Iterator[Decorator]:
    """Yield an option for every field, except those excluded."""
    hints = get_type_hints(options_class)
    return (
        _option_from_field(field, hints[field.name])
        for field in fields(options_class)
        if field.name not in exclude
    )


def _option_from_field(field: Field[Any], hint: Any) -> Decorator:
    """Make the option of a field: its name, type, default, help and heading."""
    name = field.name.replace("_", "-")
    settings = {"default": field.default, **{key: field.metadata[key] for key in ("help", "section")}}
    if hint is bool:
        return single_option(f"--{name}/--no-{name}", **settings)
    if get_origin(hint) is tuple:
        return list_option(
            f"--{name}", parse_item=_item_parser(get_args(hint)[0]), show_default=True, **settings
        )
    (value_type,) = (kind for kind in get_args(hint) or (hint,) if kind is not NoneType)
    # "none" may be a text: an optional text is None only if the option is not given.
    optional = value_type is not hint and value_type is not str
    parse = _optional_number_parser(value_type) if optional else _SINGLE_VALUE_TYPES[value_type]
    return single_option(f"--{name}", type=parse, **settings)


def _item_parser(value_type: type) -> Parse:
    """Return the parser of one of several values."""
    return parse_text if value_type is str else _number_parser(value_type)


def parse_text(value: str) -> str:
    """Return a text as `checked_text` does, under a name for the help."""
    return checked_text(value)


parse_text.__name__ = "text"


def _number_parser(value_type: type) -> Parse:
    """Return a parser of numbers, whose error names the expected type."""

    def parse(value: str) -> Any:
        try:
            return checked_number(value_type(value), value)
        except ValueError:
            raise click.BadParameter(f"{abridged(value)} is not {parse.__doc__}") from None

    parse.__name__, parse.__doc__ = {int: ("integer", "an integer"), float: ("float", "a number")}[value_type]
    return parse


_SINGLE_VALUE_TYPES = {int: click.INT, float: _number_parser(float), str: Text()}


def _optional_number_parser(value_type: type) -> Parse:
    """Return a parser of numbers and the word ``none``."""
    parse_number = _number_parser(value_type)

    def parse(value: str) -> Any:
        return None if str(value).lower() == "none" else parse_number(value)

    parse.__name__ = f"{parse_number.__name__}|none"
    return parse


def add_options(decorators: Iterable[Decorator], command: Any) -> Any:
    """Add options to a command, in the order in which the help shows them."""
    return reduce(lambda command, decorate: decorate(command), reversed([*decorators]), command)
