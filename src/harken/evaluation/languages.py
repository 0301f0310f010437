"""The options of each recording: those of the command, with the language that the manifest gives."""

from __future__ import annotations

from harken.api import Recognizer
from harken.errors import ManifestError, OptionError
from harken.transcribe import TranscribeOptions


def resolve_entry_options(
    recognizer: Recognizer, options: TranscribeOptions, name: str, language: str | None
) -> TranscribeOptions:
    """Return the options of a recording, checked against the model.

    Parameters
    ----------
    recognizer : Recognizer
    options : TranscribeOptions
        A language given here holds for all recordings.
    name : str
        Name of the recording.
    language : str or None
        Its language in the manifest; None where it is to be detected.

    Raises
    ------
    OptionError
        If the model does not know the options' language or task.
    ManifestError
        If it does not know the language of the recording.
    """
    checked = recognizer.resolve_options(options)
    if options.language or language is None:
        return checked
    try:
        return recognizer.resolve_options(options, language=language)
    except OptionError as error:
        raise ManifestError(f"{name}: {error}") from error
