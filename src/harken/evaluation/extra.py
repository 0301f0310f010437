"""What evaluation needs beyond the rest of harken: the extra ``harken[eval]``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from harken.errors import BackendUnavailable


@contextmanager
def require_eval_extra() -> Iterator[None]:
    """Import modules of the extra inside this block.

    Raises
    ------
    BackendUnavailable
        If one is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in their docstrings, where they are first compiled
            yield
    except ImportError as error:
        raise BackendUnavailable(
            f"{error.name} is not installed, which evaluation needs: pip install 'harken[eval]'"
        ) from error
