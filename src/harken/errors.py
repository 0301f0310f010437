"""All errors that harken raises on purpose, in one tree.

::

    HarkenError
    ├── AudioError (ValueError)                the input cannot be read as audio
    │   └── AudioNotFound (FileNotFoundError)  the audio file does not exist
    ├── CheckpointError (ValueError)           a model file is damaged, truncated, hostile or not Whisper
    │   └── CheckpointNotFound (FileNotFoundError)  no model has that name or path
    ├── OptionError (ValueError)               an option has a value outside what is allowed
    ├── ManifestError (ValueError)             a list of recordings or of hypotheses is missing or malformed
    ├── BackendUnavailable (ImportError)       a required runtime is not installed
    ├── OutputError (OSError)                  a result cannot be written
    ├── PlanError (ValueError)                 the recordings or the folder of a batch allow no plan
    ├── WorkerError (RuntimeError)             the workers of a batch cannot do their work
    ├── OutOfMemory (MemoryError)              the model, or what it computes, does not fit into memory
    └── Cancelled                              the caller asked to stop

Each error is also a subclass of the builtin in parentheses, so a caller may catch either. Every message is one line
that names the file or the option, the value, and what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from reprlib import Repr
from typing import NoReturn


class HarkenError(Exception):
    """The base of all errors that harken raises on purpose."""


class AudioError(HarkenError, ValueError):
    """The input cannot be read as audio."""


class AudioNotFound(AudioError, FileNotFoundError):
    """The audio file does not exist."""


class CheckpointError(HarkenError, ValueError):
    """A model file is damaged, truncated, hostile or not a Whisper model."""


class CheckpointNotFound(CheckpointError, FileNotFoundError):
    """No model has that name or path."""


class OptionError(HarkenError, ValueError):
    """An option has a value outside what is allowed.

    Parameters
    ----------
    field : str
        Name of the option.
    value : object
        Value that was given.
    allowed : str
        Allowed values, in words.

    Notes
    -----
    The message is one line of less than 1000 characters, whatever was given: long texts are shortened in it.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        given = f"{_shortened(str(field), 80)}={_short_repr(value)}"
        super().__init__(f"{given}: allowed is {_shortened(allowed, 780)}")
        self.field, self.value, self.allowed = field, value, allowed

    def __reduce__(self) -> tuple[type[OptionError], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.allowed)


class ManifestError(HarkenError, ValueError):
    """A list of recordings or of hypotheses is missing or malformed; the message names file and line."""


class BackendUnavailable(HarkenError, ImportError):
    """A required runtime is not installed; the message says how to install it."""


class OutputError(HarkenError, OSError):
    """A result cannot be written."""


class PlanError(HarkenError, ValueError):
    """The recordings or the output folder of a batch allow no plan."""


class WorkerError(HarkenError, RuntimeError):
    """The workers of a batch cannot do their work."""


class OutOfMemory(HarkenError, MemoryError):
    """The model, or what it computes, does not fit into memory."""


class Cancelled(HarkenError):
    """The caller asked to stop; results up to that point have been delivered."""


def refuse_pickling(instance: object) -> NoReturn:
    """Raise a TypeError, for what holds a loaded model: it cannot be sent to another process."""
    raise TypeError(
        f"a {type(instance).__name__} stays in its process: load the model in each, as this one was"
    )


def on_one_line(name: str) -> str:
    """Return a name for messages, on one line whatever characters it has, and quoted if it has none."""
    return name if name and name.isprintable() else repr(name)


def install_hint(extra: str) -> str:
    """Return the words of a message that say how to install an extra: harken is on no package index."""
    return f"pip install '.[{extra}]' in a clone of harken"


@contextmanager
def importing(extra: str, need: str) -> Iterator[None]:
    """Import packages of an extra inside this block; `BackendUnavailable` says what needs one that cannot be."""
    try:
        yield
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError)
        problem = f"{error.name} is not installed" if is_missing else f"a package cannot be imported ({error})"
        raise BackendUnavailable(f"{problem}, which {need} needs: {install_hint(extra)}") from error


_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 100
_REPR.maxtuple = _REPR.maxlist = 8


def _short_repr(value: object) -> str:
    """Return the representation of any value in one line of up to 120 characters."""
    try:
        text = _REPR.repr(value)
    except Exception:  # of an integer of more than 4300 digits, or whatever the value's own code raises
        text = f"<{type(value).__name__}>"
    return _shortened(text, 120)


def _shortened(text: str, n_chars: int) -> str:
    """Return a text in one line, with dots for its middle if it is longer than allowed."""
    line = " ".join(text.splitlines())
    half = (n_chars - 3) // 2
    return line if len(line) <= n_chars else f"{line[:half]}...{line[-half:]}"
