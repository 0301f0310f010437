"""Options of the command line, derived from `TranscribeOptions`, `Layout` and `harken.load`: each is written once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import Field, fields
from functools import reduce
from itertools import chain
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import click

from harken.api import Recognizer, load
from harken.backends.onnx.plan import PRECISIONS
from harken.engines import BACKENDS
from harken.formats import Layout
from harken.transcribe import TranscribeOptions

Decorator = Callable[[Any], Any]
Parse = Callable[[str], Any]


class Option(click.Option):
    """An option that stands under a heading in the help."""

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


def listed(*names: str, item: Parse, section: str, **settings: Any) -> Decorator:
    """Add an option that takes several values, repeated or with commas between them."""

    def parse(value: Any) -> tuple[Any, ...]:
        parts = filter(None, map(str.strip, value.split(","))) if isinstance(value, str) else (value,)
        return tuple(map(item, parts))

    def flatten(ctx: click.Context, param: click.Parameter, value: Iterable[tuple[Any, ...]]) -> Any:
        return tuple(chain.from_iterable(value))

    parse.__name__ = f"{item.__name__},..."  # how the help shows it
    return click.option(
        *names, cls=Option, section=section, type=parse, multiple=True, callback=flatten, **settings
    )


def flag(*names: str, section: str, **settings: Any) -> Decorator:
    """Add any other option; its default is shown, if it has one."""
    return click.option(*names, cls=Option, section=section, show_default=True, **settings)


# Arguments of `harken.load`, each with the flags and the settings of its option.
_MODEL: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "model": (
        ("-m", "--model"),
        {"default": "tiny.en", "help": "Name (see 'harken models'), path, or owner/name on Hugging Face."},
    ),
    "assistant": (
        ("--assistant",),
        {"metavar": "MODEL|ngram|auto", "help": "What drafts for the model: the same text in less time."},
    ),
    "precision": (
        ("--precision",),
        {
            "default": "auto",
            "type": click.Choice((*PRECISIONS, "fp16")),
            "help": "What to compute in; auto is int8, with torch fp16 on a GPU and fp32 on the CPU.",
        },
    ),
    "threads": (
        ("--threads",),
        {"type": int, "help": "Threads to compute with; by default the processors that harken may use."},
    ),
    "backend": (
        ("--backend",),
        {
            "default": "onnx",
            "type": click.Choice(BACKENDS),
            "help": "CPU engine, PyTorch for a GPU, or the slow numpy oracle.",
        },
    ),
    "device": (
        ("--device",),
        {
            "default": "auto",
            "help": "Where torch computes: cuda, cuda:1, mps, cpu, or auto for the first it finds.",
        },
    ),
    "hash_rounds": (
        ("--hash-rounds",),
        {
            "type": int,
            "help": "Rounds of hashed attention in the streams of torch; by default they attend to all.",
        },
    ),
    "revision": (("--revision",), {"help": "Branch, tag or commit of a Hugging Face repository."}),
    "download": (
        ("--download/--no-download",),
        {"default": True, "help": "Whether a model that is not on this machine may be fetched."},
    ),
}


def model_options(command: Any) -> Any:
    """Add the options that say what to compute with: the arguments of `harken.load`."""
    return _all((flag(*names, section="Model", **settings) for names, settings in _MODEL.values()), command)


def decoding_options(command: Any) -> Any:
    """Add an option for every field of `TranscribeOptions`."""
    return _all(_derived(TranscribeOptions), command)


def layout_options(command: Any) -> Any:
    """Add an option for every field of `Layout`."""
    return _all(_derived(Layout), command)


def options_of(kind: type[Any], *, without: Collection[str] = ()) -> Decorator:
    """Add an option for every field of any dataclass of options, but for some."""
    return lambda command: _all(_derived(kind, without), command)


def load_model(given: Mapping[str, Any]) -> Recognizer:
    """Load what was chosen among `model_options`."""
    return load(**{name: given[name] for name in _MODEL})


def chosen_options(given: Mapping[str, Any]) -> TranscribeOptions:
    """What was chosen among `decoding_options`."""
    return TranscribeOptions(**{field.name: given[field.name] for field in fields(TranscribeOptions)})


def chosen_layout(given: Mapping[str, Any]) -> Layout:
    """What was chosen among `layout_options`."""
    return Layout(**{field.name: given[field.name] for field in fields(Layout)})


def _derived(options: type[Any], without: Collection[str] = ()) -> Iterator[Decorator]:
    """One option out of every field."""
    hints = get_type_hints(options)
    return (_option(field, hints[field.name]) for field in fields(options) if field.name not in without)


def _option(field: Field[Any], hint: Any) -> Decorator:
    """One option out of one field: its name, type, default, help and heading."""
    name = field.name.replace("_", "-")
    settings = {"section": "Output", "default": field.default, **field.metadata}
    if hint is bool:
        return flag(f"--{name}/--no-{name}", **settings)
    if get_origin(hint) is tuple:
        return listed(f"--{name}", item=_item(get_args(hint)[0]), show_default=True, **settings)
    (kind,) = (kind for kind in get_args(hint) or (hint,) if kind is not NoneType)
    # A text is left out by leaving out the option, as "none" may be one.
    may_be_none = kind is not hint and kind is not str
    return flag(f"--{name}", type=_or_none(kind) if may_be_none else kind, **settings)


def _item(kind: type) -> Parse:
    """Read one of several values."""
    return _text if kind is str else _number(kind)


def _text(value: str) -> str:
    return value


_text.__name__ = "text"


def _number(kind: type) -> Parse:
    """Read a number, or say what was expected."""

    def parse(value: str) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise click.BadParameter(f"{value!r} is not {parse.__doc__}") from None

    parse.__name__, parse.__doc__ = {int: ("integer", "an integer"), float: ("float", "a number")}[kind]
    return parse


def _or_none(kind: type) -> Parse:
    """Read a number or the word ``none``."""
    number = _number(kind)

    def parse(value: str) -> Any:
        return None if str(value).lower() == "none" else number(value)

    parse.__name__ = f"{number.__name__}|none"
    return parse


def _all(decorators: Iterable[Decorator], command: Any) -> Any:
    """Add options in the order in which the help is to show them."""
    return reduce(lambda command, decorate: decorate(command), reversed([*decorators]), command)
