"""``harken serve``: files and live speech for clients on the network."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

import harken
from harken.api import Recognizer, load
from harken.cli.exits import EPILOGUE, TERMINATED, Stop
from harken.cli.model_options import engine_options, model_params
from harken.cli.options import Command, dataclass_options, list_option, parse_text
from harken.cli.signals import handling_signals, keeping_stop
from harken.cli.terminal import write_stderr
from harken.errors import BackendUnavailable, OptionError, install_hint
from harken.option_types import options_from
from harken.serve.options import ServeOptions

if TYPE_CHECKING:  # the packages of the server come with an extra
    from harken.speakers.diarizer import Diarizer

KEYS_VARIABLE, HOSTS_VARIABLE = "HARKEN_API_KEY", "HARKEN_ALLOWED_HOST"


@click.command("serve", cls=Command, epilog=EPILOGUE)
@list_option(
    "-m",
    "--model",
    parse_item=parse_text,
    section="Model",
    empty=False,
    default=("tiny.en",),
    show_default=True,
    help="Models to offer: names, paths, or owner/name on Hugging Face; the first is the default.",
)
@list_option(
    "--alias",
    parse_item=parse_text,
    section="Model",
    metavar="NAME=MODEL,...",
    help="Further names of these models, * for any; those of OpenAI, such as whisper-1, mean the first.",
)
@engine_options
@dataclass_options(ServeOptions)
def command(**params: Any) -> int:
    """Serve files and live speech to clients on the network.

    Clients of OpenAI's audio API, browsers, Home Assistant and own programs can use it as they are; docs/serve.md has
    examples. It prints the address of its page, and ends when it is told to by Ctrl-C or SIGTERM: streams get their
    last words, files are finished. A second signal ends it at once.
    """
    options = options_from(ServeOptions, _with_environment(params))
    ids = tuple(dict.fromkeys(params["model"]))
    aliases = dict(_parse_alias(alias, ids) for alias in params["alias"])
    run = _import_server()
    with keeping_stop():
        load_diarizer = partial(_load_diarizer, params)
        finished = asyncio.run(
            run(partial(_load, params), ids, aliases, options, _announce, _on_signals, load_diarizer)
        )
    if not finished:
        raise Stop(TERMINATED, "ended before all work was done")
    return 0


def _import_server() -> Callable[..., Any]:
    """Return `harken.serve.server.run`; its packages come with an extra."""
    try:
        from harken.serve.server import run
    except ImportError as error:
        raise BackendUnavailable(
            f"{error.name} is missing, which the server needs; {install_hint('serve')} installs it"
        ) from error
    return run


def _load(params: dict[str, Any], model: str) -> Recognizer:
    """Load a model, and measure what an update of a live stream costs on this machine."""
    recognizer = load(**model_params(params | {"model": model}, exclude=("adapter", "assistant", "revision")))
    recognizer.stream().close()
    return recognizer


def _load_diarizer(params: dict[str, Any]) -> Diarizer:
    """Load the models that tell speakers apart."""
    return harken.load_diarizer(params["speaker_model"])


def _with_environment(params: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with the keys of the environment, one a line, and the names of the server, one a word."""
    keys = [key.strip() for key in os.environ.get(KEYS_VARIABLE, "").splitlines()]
    hosts = os.environ.get(HOSTS_VARIABLE, "").replace(",", " ").split()
    return params | {
        "api_key": (*params["api_key"], *filter(None, keys)),
        "allowed_host": (*params["allowed_host"], *hosts),
    }


def _parse_alias(alias: str, ids: tuple[str, ...]) -> tuple[str, str]:
    name, equals, model = alias.partition("=")
    if not name or not equals or model not in ids:
        raise OptionError("alias", alias, f"NAME=MODEL, with a MODEL of {', '.join(ids)}")
    return name, model


def _announce(address: str) -> None:
    write_stderr(f"harken: serving at {address}")


def _on_signals(handle: Callable[[], object]) -> AbstractContextManager[None]:
    def handle_signal(number: int, frame: FrameType | None) -> None:
        handle()

    return handling_signals(handle_signal)
