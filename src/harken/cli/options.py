"""The options of the commands, derived from `TranscribeOptions`, `Layout` and `harken.load`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import Field, fields
from functools import reduce
from itertools import chain
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin, get_type_hints

import click

from harken.api import Recognizer, load
from harken.backend_factory import BACKENDS
from harken.backends.onnx.runtime_plan import PRECISIONS
from harken.formats import Layout
from harken.transcribe import TranscribeOptions

if TYPE_CHECKING:
    from harken.cli.screen import Screen

WORD_FORMATS = {"words.tsv", "html"}
"""Formats that show words, so that word timestamps need not be asked for."""

OptionsT = TypeVar("OptionsT")
Decorator = Callable[[Any], Any]
Parse = Callable[[str], Any]


class Option(click.Option):
    """An option that is listed under a heading in the help."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class Command(click.Command):
    """A command whose help lists its options under their headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if record:
                sections.setdefault(getattr(option, "section", "Other"), []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def list_option(*names: str, parse_item: Parse, section: str, **settings: Any) -> Decorator:
    """Add an option that takes several values: given repeatedly, or separated by commas."""

    def parse(value: Any) -> tuple[Any, ...]:
        parts = filter(None, map(str.strip, value.split(","))) if isinstance(value, str) else (value,)
        return tuple(map(parse_item, parts))

    def flatten(ctx: click.Context, param: click.Parameter, value: Iterable[tuple[Any, ...]]) -> Any:
        return tuple(chain.from_iterable(value))

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
        {"default": "tiny.en", "help": "Name (see 'harken models'), path, or owner/name on Hugging Face."},
    ),
    "assistant": (
        ("--assistant",),
        {
            "metavar": "MODEL|ngram|auto",
            "help": "Draft model for speculative decoding: the same text in less time.",
        },
    ),
    "precision": (
        ("--precision",),
        {
            "default": "auto",
            "type": click.Choice((*PRECISIONS, "fp16")),
            "help": "Number format to compute in; auto is int8, with torch fp16 on a GPU and fp32 on the CPU.",
        },
    ),
    "threads": (
        ("--threads",),
        {"type": int, "help": "CPU threads; by default the processors that harken may use."},
    ),
    "backend": (
        ("--backend",),
        {
            "default": "onnx",
            "type": click.Choice(BACKENDS),
            "help": "CPU engine, PyTorch for a GPU, or the slow numpy reference.",
        },
    ),
    "device": (
        ("--device",),
        {
            "default": "auto",
            "help": "Device of torch: cuda, cuda:1, mps, cpu, or auto for the first that is available.",
        },
    ),
    "revision": (("--revision",), {"help": "Branch, tag or commit of a Hugging Face repository."}),
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


def decoding_options(command: Any) -> Any:
    """Add an option for every field of `TranscribeOptions`."""
    return add_options(_options_from_fields(TranscribeOptions), command)


def layout_options(command: Any) -> Any:
    """Add an option for every field of `Layout`."""
    return add_options(_options_from_fields(Layout), command)


def dataclass_options(options_class: type[Any], *, exclude: Collection[str] = ()) -> Decorator:
    """Add an option for every field of a dataclass of options, except those excluded."""
    return lambda command: add_options(_options_from_fields(options_class, exclude), command)


def load_model(params: Mapping[str, Any]) -> Recognizer:
    """Load the model that `model_options` chose."""
    return load(**model_params(params))


def load_model_with_status(screen: Screen, params: Mapping[str, Any]) -> Recognizer:
    """Load the model that `model_options` chose, with a status line if the screen shows progress."""
    if not screen.show_progress:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    screen.show_status("loading the model ...")
    try:
        return load_model(params)
    finally:
        screen.show_status("")


def model_params(params: Mapping[str, Any], *, exclude: Collection[str] = ()) -> dict[str, Any]:
    """Return the values of `model_options`, except those excluded."""
    return {name: params[name] for name in _MODEL_OPTIONS if name not in exclude}


def transcribe_options_from(params: Mapping[str, Any]) -> TranscribeOptions:
    """Return the options that `decoding_options` chose."""
    return options_from(TranscribeOptions, params)


def layout_from(params: Mapping[str, Any]) -> Layout:
    """Return the layout that `layout_options` chose."""
    return options_from(Layout, params)


def options_from(options_class: type[OptionsT], params: Mapping[str, Any]) -> OptionsT:
    """Return a dataclass of options, with defaults for the fields that the command has no option for."""
    names = [field.name for field in fields(cast(Any, options_class)) if field.name in params]
    return options_class(**{name: params[name] for name in names})


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
    settings = {"section": "Output", "default": field.default, **field.metadata}
    if hint is bool:
        return single_option(f"--{name}/--no-{name}", **settings)
    if get_origin(hint) is tuple:
        return list_option(
            f"--{name}", parse_item=_item_parser(get_args(hint)[0]), show_default=True, **settings
        )
    (value_type,) = (kind for kind in get_args(hint) or (hint,) if kind is not NoneType)
    # "none" may be a text: an optional text is None only if the option is not given.
    optional = value_type is not hint and value_type is not str
    return single_option(
        f"--{name}", type=_optional_number_parser(value_type) if optional else value_type, **settings
    )


def _item_parser(value_type: type) -> Parse:
    """Return the parser of one of several values."""
    return _parse_text if value_type is str else _number_parser(value_type)


def _parse_text(value: str) -> str:
    return value


_parse_text.__name__ = "text"


def _number_parser(value_type: type) -> Parse:
    """Return a parser of numbers, whose error names the expected type."""

    def parse(value: str) -> Any:
        try:
            return value_type(value)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not {parse.__doc__}") from None

    parse.__name__, parse.__doc__ = {int: ("integer", "an integer"), float: ("float", "a number")}[value_type]
    return parse


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
