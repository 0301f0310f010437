"""The `harken` command: its subcommands, and the exit code and message of every error."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from errno import EBADF, EIO, ENOSPC
from importlib import import_module
from pathlib import Path
from typing import NoReturn, TypeGuard

import click

from harken import __version__
from harken.cli.exits import EPILOGUE, FIRST_SIGNAL_CODE, PIPE_CLOSED, Stop, describe_error, exit_code
from harken.cli.signals import keeping_stop, print_unless_stop, stop_again, watch_signals
from harken.cli.terminal import discard, open_closed_streams, stdout_errors, write_stderr
from harken.errors import HarkenError, OutputError
from harken.files import remove_own

COMMANDS = {
    "transcribe": "transcribe:command",
    "whisper": "whisper:command",
    "listen": "listen:command",
    "batch": "batch:command",
    "serve": "serve:command",
    "mcp": "serve:mcp_command",
    "decode": "decode:command",
    "eval": "eval:command",
    "bench": "bench:command",
    "plot": "plot:command",
    "check": "check:command",
    "distill": "training:distill_command",
    "finetune": "training:finetune_command",
    "adapt": "training:adapt_command",
    "models": "models:command",
    "convert": "models:convert_command",
    "doctor": "doctor:command",
}
"""The module and the function of each, in the order of the help."""

EXAMPLE = Path(__file__).with_name("example.ogg")
"""The recording of ``examples/README.md``, made smaller."""
FIRST_WORDS = "Eleven seconds of a speech of 1961, transcribed on this machine:\n"
LAST_WORDS = """
Your own recordings, and more:
  harken transcribe talk.mp3 --format srt,html    recordings and videos, to subtitles, text or a page
  harken listen                                   the microphone, live
  harken serve                                    a server for OpenAI's clients and others, with a page
  harken models                                   larger models, and other languages
  harken doctor                                   what works on this machine
  harken --help                                   all commands"""


class LazyGroup(click.Group):
    """The subcommands, each imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module_name, function_name = COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(import_module(f"harken.cli.{module_name}"), function_name)
        return command


@click.group(
    cls=LazyGroup,
    epilog=EPILOGUE,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        # openai-whisper spells it --output_dir
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)
@click.version_option(__version__, message="harken %(version)s")
@click.pass_context
def harken(context: click.Context) -> int:
    """Transcribe speech with Whisper, offline, on any processor.

    Without a command, an example is transcribed.
    """
    if context.invoked_subcommand is not None:
        return 0
    click.echo(FIRST_WORDS)
    command = harken.get_command(context, "transcribe")
    assert command
    code = command.main([str(EXAMPLE), "--no-download"], standalone_mode=False)
    click.echo(LAST_WORDS)
    return code or 0


def run() -> NoReturn:
    """Run the command line as a process, and end it."""
    open_closed_streams()
    sys.excepthook, sys.unraisablehook = print_unless_stop, stop_again
    if os.name == "posix":  # elsewhere only sockets can wake the thread
        watch_signals()
    code = main()
    flush_code = _exit_code_of_flush(code)
    if flush_code or code > FIRST_SIGNAL_CODE:
        remove_own()  # a signal can come before a block that removes its file has begun
        # `sys.exit` would flush once more what cannot be written, and wait for threads that still load a model.
        os._exit(code or flush_code)
    sys.exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        The arguments of the process by default.

    Returns
    -------
    int
        Exit code, one of `harken.cli.exits.EXITS`. An error is one line on standard error; if the environment
        variable ``HARKEN_DEBUG`` is set, it is raised with its traceback instead.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the terminal lacks must not fail the run.
            stream.reconfigure(errors="replace")
    try:
        with keeping_stop():
            return harken.main(arguments, prog_name="harken", standalone_mode=False) or 0
    except Stop as stop:
        if stop.code == PIPE_CLOSED:
            discard(sys.stdout)
        else:
            _print_error(str(stop))
        return stop.code
    except click.ClickException as error:
        _print_error(_usage_hint(error))
        return exit_code(error)
    except SystemExit:  # click's answer to a reader that went away
        discard(sys.stdout)
        return PIPE_CLOSED
    except Exception as error:
        if os.environ.get("HARKEN_DEBUG"):
            raise
        if _is_of_stdout(error):
            error = OutputError(f"standard output: cannot be written: {error.strerror or error}")
        elif type(error) is FileNotFoundError and _has_no_current_folder():
            error = click.ClickException("the current folder was removed; allowed is one that exists")
        _print_error(describe_error(error))
        return exit_code(error)


def _exit_code_of_flush(code: int) -> int:
    """Flush standard output, and return the exit code if that fails, else 0; `code` is that of the command."""
    try:
        with stdout_errors():
            sys.stdout.flush()
    except Stop as stop:
        return stop.code
    except OutputError as error:
        if code != exit_code(error):  # else it has been said: what could not be written is still in the buffer
            _print_error(str(error))
        return exit_code(error)
    return 0


def _is_of_stdout(error: Exception) -> TypeGuard[OSError]:
    """Return whether an error comes from click, which prints help and version itself."""
    if not isinstance(error, OSError) or isinstance(error, HarkenError):
        return False
    unwritable = error.errno in (ENOSPC, EIO, EBADF) or isinstance(error, io.UnsupportedOperation)
    return unwritable and not error.filename


def _has_no_current_folder() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _print_error(message: str) -> None:
    write_stderr(f"harken: {' '.join(message.split())}")


def _usage_hint(error: click.ClickException) -> str:
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message}; see '{context.command_path} --help'" if context else message
