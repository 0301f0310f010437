"""The command line: a face over `harken.api`. A module a command, imported when it is asked for."""

from harken.cli.root import main

__all__ = ["main"]
