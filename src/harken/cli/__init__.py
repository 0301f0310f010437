"""The command line, on top of `harken.api`; each command is a module that is imported when it runs."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line in this process, as `harken.cli.root.main`, and return its exit code."""
    from harken.cli.root import main

    return main(arguments)
