"""``harken mcp``: the recordings of some folders for agents, by the Model Context Protocol."""

from __future__ import annotations

import asyncio
from dataclasses import fields
from types import ModuleType
from typing import Any

import click

import harken
from harken.api import Recognizer
from harken.cli.exits import EPILOGUE
from harken.cli.model_options import engine_options, model_params
from harken.cli.options import NO_EFFECT, Command, FilePath, dataclass_options, single_option
from harken.cli.serve import announce, offered_models, on_signals, with_environment
from harken.errors import BackendUnavailable, install_hint
from harken.option_types import options_from
from harken.serve.options import ServeOptions

OPTIONS = {field.name for field in fields(ServeOptions)} & {*NO_EFFECT, "speaker_model"}
"""Those of the server that are options here, too."""


@click.command("mcp", cls=Command, epilog=EPILOGUE)
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
@offered_models
@engine_options
@single_option(
    "--http",
    section="Server",
    is_flag=True,
    help="Serve at http://HOST:PORT/mcp, and not by standard input and output.",
)
@dataclass_options(ServeOptions, exclude={field.name for field in fields(ServeOptions)} - OPTIONS)
def command(roots: tuple[str, ...], **params: Any) -> int:
    """Let agents, such as Claude or Cursor, transcribe recordings by the Model Context Protocol.

    A client starts it itself, with a line such as 'harken mcp --root ~/Recordings'; docs/clients.md has their settings.
    It reads and writes nothing outside the folders of --root, links followed, and overwrites nothing. A model is loaded
    when it is first needed, and kept.
    """
    protocol = _import_protocol()

    def load(name: str) -> Recognizer:
        return harken.load(**model_params(params | {"model": name}))

    models = tuple(dict.fromkeys(params["model"]))
    server = protocol.make_server(load, models, roots, lambda: harken.load_diarizer(params["speaker_model"]))
    if params["http"]:
        options = options_from(ServeOptions, with_environment(params))
        asyncio.run(protocol.serve_http(server, options, announce, on_signals))
    else:
        server.run()
    return 0


def _import_protocol() -> ModuleType:
    """Return `harken.serve.mcp`; its packages come with an extra."""
    try:
        from harken.serve import mcp
    except ImportError as error:
        raise BackendUnavailable(
            f"{error.name} is missing, which agents need; {install_hint('mcp')} installs it"
        ) from error
    return mcp
