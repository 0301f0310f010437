"""``harken serve`` and ``harken mcp``: files and live speech for clients on the network, recordings for agents."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import click

from harken.api import Recognizer, load, load_diarizer
from harken.checkpoints import check_model_name
from harken.cli.exits import TERMINATED, Stop
from harken.cli.model_options import engine_options, model_params
from harken.cli.options import (
    HTTP_OPTIONS,
    Command,
    FilePath,
    dataclass_options,
    is_given,
    list_option,
    parse_text,
    single_option,
)
from harken.cli.signals import handling_signals, keeping_stop
from harken.cli.terminal import write_stderr
from harken.errors import OptionError, importing
from harken.option_types import options_from
from harken.serve.options import ServeOptions
from harken.speakers.diarizer import Diarizer
from harken.speakers.models import resolve_speaker_models

KEYS_VARIABLE, HOSTS_VARIABLE = "HARKEN_API_KEY", "HARKEN_ALLOWED_HOST"
MCP_OPTIONS = {*HTTP_OPTIONS, "speaker_model"}
"""Those of the server that are options of the other command, too."""

_offered_models = list_option(
    "-m",
    "--model",
    parse_item=parse_text,
    section="Model",
    empty=False,
    default=("tiny.en",),
    show_default=True,
    help="Models to offer: names, paths, or owner/name on Hugging Face; the first is the default.",
)


@click.command("serve", cls=Command)
@_offered_models
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
    ids = _offered(params["model"])
    aliases = dict(_parse_alias(alias, ids) for alias in params["alias"])
    with importing("serve", "the server"):
        from harken.serve.server import run
    with keeping_stop():
        load_speakers = _speaker_loader(params)
        finished = asyncio.run(
            run(partial(_load, params), ids, aliases, options, _announce, handling_signals, load_speakers)
        )
    if not finished:
        raise Stop(TERMINATED, "ended before all work was done")
    return 0


@click.command("mcp", cls=Command)
@single_option(
    "--root",
    "roots",
    section="Folders",
    type=FilePath(exists=True, file_okay=False),
    multiple=True,
    required=True,
    metavar="DIR",
    help="Folder whose recordings may be read, and in which transcripts may be saved; may be given repeatedly.",
)
@_offered_models
@engine_options
@single_option(
    "--http",
    section="Server",
    is_flag=True,
    help="Serve at http://HOST:PORT/mcp, and not by standard input and output.",
)
@dataclass_options(ServeOptions, exclude={field.name for field in fields(ServeOptions)} - MCP_OPTIONS)
def mcp_command(roots: tuple[str, ...], **params: Any) -> int:
    """Let agents, such as Claude or Cursor, transcribe recordings by the Model Context Protocol.

    A client starts it itself, with a line such as 'harken mcp --root ~/Recordings'; docs/clients.md has their settings.
    It reads and writes nothing outside the folders of --root, links followed, and overwrites nothing. A model is loaded
    when it is first needed, and kept.
    """
    with importing("mcp", "an agent"):
        from harken.serve.mcp import Tools, make_server, serve_http
    tools = Tools(
        lambda name: load(**model_params(params | {"model": name})),
        _offered(params["model"]),
        roots,
        _speaker_loader(params),
    )
    server = make_server(tools)
    if params["http"]:
        options = options_from(ServeOptions, _with_environment(params))
        asyncio.run(serve_http(server, options, _announce, handling_signals))
    else:
        server.run()
    return 0


def _offered(models: Sequence[str]) -> tuple[str, ...]:
    """Return each model once; a mistyped name is refused now, and not when it is the turn of that model."""
    for model in models:
        check_model_name(model)
    return tuple(dict.fromkeys(models))


def _load(params: dict[str, Any], model: str) -> Recognizer:
    """Load a model, and measure what an update of a live stream costs on this machine."""
    recognizer = load(**model_params(params | {"model": model}))
    recognizer.stream().close()
    return recognizer


def _speaker_loader(params: dict[str, Any]) -> Callable[[], Diarizer]:
    """Return what loads the models that tell speakers apart; a folder that is named is looked into at once."""
    if params["speaker_model"]:
        resolve_speaker_models(params["speaker_model"])
    return partial(load_diarizer, params["speaker_model"], download=params["download"])


def _with_environment(params: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with the keys of the environment, one a line, and the names of the server, one a word."""
    if is_given("api_key") and not params["api_key"]:  # of a variable that is not set
        raise OptionError("api_key", "", "a key that is not empty")
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
    """Say where the server is."""
    write_stderr(f"harken: serving at {address}")
