"""The errors with which runtimes report that memory is short, as one kind of error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from harken.errors import HarkenError, OutOfMemory

_SIGNS = re.compile(
    r"bad_alloc|bad allocation|out of memory"
    r"|(unable to|failed to|can't|cannot) allocate"
    r"|failed to map segment"  # of a shared library
    r"|Resource temporarily unavailable|can't start new thread",  # no room for the stack of another thread
    re.IGNORECASE,
)


@contextmanager
def reporting_memory(work: str) -> Iterator[None]:
    """Convert the errors of a block that say that memory is short to `OutOfMemory`.

    Parameters
    ----------
    work : str
        The work of the block, for the message: "loading PATH".
    """
    try:
        yield
    except HarkenError:
        raise
    except Exception as error:
        sign = _SIGNS.search(str(error))
        if sign is None and not isinstance(error, MemoryError):
            raise
        raise OutOfMemory(f"not enough memory for {work}{f' ({sign[0]})' if sign else ''}") from error
