"""Entry points of the commands `harken` and `harken-whisper`, and of ``python -m harken``."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as in typing, whose import takes longer than all of this module
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn


def run() -> NoReturn:
    """Run the command; from its first moment on, a signal ends it without a traceback."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end_at_once)
    from harken.cli.root import run

    run()


def run_whisper() -> NoReturn:
    """Run ``harken whisper``."""
    sys.argv.insert(1, "whisper")
    run()


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """End the process while its modules are imported, or after its work: there is nothing to save."""
    os._exit(128 + number)


if __name__ == "__main__":
    run()
