"""Memory of processes."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path


def peak_mb() -> float:
    """Return the most memory that this process has had resident, in MB; nan where the platform does not tell.

    Linux counts the memory of the program before in `ru_maxrss`, where one process image replaces another.
    """
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6
    except (OSError, IndexError):
        pass
    try:
        import resource
    except ImportError:
        return math.nan
    return maxrss_mb(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def maxrss_mb(maxrss: int) -> float:
    """Return `ru_maxrss` in MB: macOS counts bytes, all others kibibytes."""
    return maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def resident_mb() -> float | None:
    """Return the memory of this process that is resident, in MB; None where the platform does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
