"""The two things a program needs: `load` a model, `transcribe` a recording."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from harken.audio import AudioSource, stream
from harken.contract import Backend
from harken.decoding import DecodeStats
from harken.decoding.language import allowed_languages
from harken.errors import OptionError
from harken.results import Segment, Transcript, Word
from harken.text import Tokenizer
from harken.transcribe import Batch, Hearing, Hooks, LongForm, TranscribeOptions, find_words
from harken.types import Dims

BACKENDS = ("onnx", "torch", "numpy")


def load(
    model: str | os.PathLike[str] = "tiny.en",
    *,
    backend: str = "onnx",
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    download: bool = True,
) -> Recognizer:
    """Load a Whisper model.

    Parameters
    ----------
    model : str or path
        ``"tiny.en"``, which comes with harken; a path to a checkpoint (CTranslate2 or Hugging Face directory, original
        ``.pt``, ggml file); a name such as ``"small"``; or a Hugging Face repository such as
        ``"openai/whisper-small"``.
    backend : {"onnx", "torch", "numpy"}
        The CPU engine, the GPU engine (which takes the extra ``harken[torch]``), or the slow oracle.
    device : str
        Of the GPU engine: ``"cuda"``, ``"cuda:1"``, ``"mps"`` or ``"cpu"``; "auto" is the first there is of cuda, mps,
        cpu. The other backends compute on the CPU and take no other.
    precision : str
        Of the CPU engine ``"int8"``, ``"bf16"`` or ``"fp32"``, "auto" is int8; of the GPU engine ``"fp16"``, ``"bf16"``
        or ``"fp32"``, "auto" is fp16, on the CPU fp32.
    threads : int, optional
        Threads on the CPU; by default the processors that this process may use.
    cache : path, optional
        Where compiled graphs are kept; by default the user's cache directory, or ``HARKEN_CACHE``.
    revision : str, optional
        Branch, tag or commit of a Hugging Face repository.
    download : bool
        Whether a model that is not on this machine may be downloaded.

    Returns
    -------
    Recognizer

    Raises
    ------
    CheckpointNotFound
        If there is no such model.
    CheckpointError
        If it is damaged or not Whisper.
    OptionError
        If `backend`, `device` or `precision` is not one of those above, or this machine cannot compute there or in it.
    BackendUnavailable
        If the runtime is not installed.
    """
    from harken.checkpoints import open_checkpoint, resolve

    if backend not in BACKENDS:
        raise OptionError("backend", backend, " or ".join(BACKENDS))
    if backend != "torch" and device not in ("auto", "cpu"):
        raise OptionError("device", device, f"auto or cpu with backend={backend!r}")
    if threads is not None and not 1 <= threads <= 1024:
        raise OptionError("threads", threads, "an integer from 1 to 1024")
    checkpoint = open_checkpoint(resolve(model, revision=revision, download=download))
    engine: Backend
    if backend == "numpy":
        from harken.backends.numpy import NumpyBackend

        engine = NumpyBackend(checkpoint.dims, checkpoint.weights, alignment_heads=checkpoint.alignment_heads)
    elif backend == "torch":
        from harken.backends.torch import TorchBackend

        engine = TorchBackend(
            checkpoint.dims,
            checkpoint.weights,
            device=device,
            precision=precision,
            threads=threads,
            alignment_heads=checkpoint.alignment_heads,
        )
    else:
        from harken.backends.onnx import OnnxBackend

        engine = OnnxBackend(
            checkpoint.dims,
            checkpoint.weights,
            checkpoint.weights.digest,
            precision=precision,
            threads=threads,
            cache=Path(cache) if cache is not None else None,
            alignment_heads=checkpoint.alignment_heads,
        )
    return Recognizer(engine, Tokenizer.open(checkpoint.vocabulary, checkpoint.dims.n_vocab), str(model))


class Recognizer:
    """A model ready to work; it holds no state of any recording, so one may serve many calls in turn.

    Parameters
    ----------
    backend : Backend
    tokenizer : Tokenizer
    model : str
        How results name the model.
    """

    def __init__(self, backend: Backend, tokenizer: Tokenizer, model: str) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.model = model

    def __repr__(self) -> str:
        return f"Recognizer({self.model!r}, {self.backend.capabilities.detail})"

    @property
    def dims(self) -> Dims:
        """Dimensions of the model."""
        return self.backend.dims

    def transcribe(
        self, audio: AudioSource, options: TranscribeOptions | None = None, /, **changes: Any
    ) -> Transcription:
        """Transcribe a recording, lazily: work is done as segments are asked for.

        Parameters
        ----------
        audio : path, "-", file or ndarray
            Anything that FFmpeg's libraries read, video included; or samples at 16 kHz.
        options : TranscribeOptions, optional
        **changes
            Single options by name (see `TranscribeOptions`), and hooks by name (see `harken.transcribe.Hooks`).

        Returns
        -------
        Transcription
            Iterate for segments, or ask for `text` or `result()`.

        Raises
        ------
        OptionError
            If an option is unknown or its value not allowed, or the model does not know that language or task.
        AudioError
            While iterating, if the recording cannot be read; what could be read is delivered first.

        Examples
        --------
        >>> import harken
        >>> for segment in harken.load("tiny.en").transcribe("examples/jfk.flac"):
        ...     print(f"{segment.start_s:.2f} {segment.text}")
        """
        (work,) = self.transcribe_many([audio], options, **changes)
        return work

    def transcribe_many(
        self, audios: Iterable[AudioSource], options: TranscribeOptions | None = None, /, **changes: Any
    ) -> list[Transcription]:
        """Transcribe several recordings, `batch_size` windows of them at a time.

        Parameters
        ----------
        audios : iterable of path, "-", file or ndarray
            As for `transcribe`. They are opened in this order, as their turn comes.
        options : TranscribeOptions, optional
        **changes
            As for `transcribe`. Hooks are called for all of them; a mapping ``hooks`` of positions to `Hooks` gives
            each its own.

        Returns
        -------
        list of Transcription
            One a recording, in the given order; one that fails does not keep the others from their end.

        Raises
        ------
        OptionError
            As for `transcribe`.
        """
        each = changes.pop("hooks", {})
        hooks = Hooks(
            **{field.name: changes.pop(field.name) for field in fields(Hooks) if field.name in changes}
        )
        options = self.checked(options, **changes)
        hearing = Hearing(self.backend, self.tokenizer, options)
        works = [
            LongForm(hearing, stream(audio), each.get(position, hooks)) for position, audio in enumerate(audios)
        ]
        batch = Batch(hearing, works, options.batch_size)
        return [Transcription(work, batch, self.model) for work in works]

    def detect_language(
        self, audio: AudioSource, options: TranscribeOptions | None = None, /, **changes: Any
    ) -> dict[str, float]:
        """Find the language of a recording.

        Parameters
        ----------
        audio, options, **changes
            As for `transcribe`; `languages`, `language_threshold`, `language_windows` and those of the voice activity
            detection count.

        Returns
        -------
        dict of str to float
            Probability of each language that comes into question, most probable first; those of the window that
            decided, or else the mean of all that were asked. Empty for a recording without speech.
        """
        options = self.checked(options, **{**changes, "language": None})
        return LongForm(Hearing(self.backend, self.tokenizer, options), stream(audio)).detect_language()

    def align(
        self, audio: AudioSource, text: str, options: TranscribeOptions | None = None, /, **changes: Any
    ) -> tuple[Word, ...]:
        """Find out when each word of a text is spoken, where it is known what is said.

        Parameters
        ----------
        audio : path, "-", file or ndarray
            As for `transcribe`. One that is longer than a window is kept in memory and transcribed first.
        text : str
            What is said in it, all of it and nothing else.
        options, **changes
            As for `transcribe`. Up to 30 s only `language`, `languages`, `fidelity` and those of the voice activity
            detection count.

        Returns
        -------
        tuple of Word
            The words of the text in order, with the punctuation around them. The probability of a word that is not
            said is low. With `vad`, no word lasts over silence.

        Raises
        ------
        AudioError
            If the recording cannot be read; or is longer than a window, and for as long no word of the text is heard.
        OptionError
            If more text falls on a window than fits into the decoder (about 440 tokens), or as for `transcribe`.

        Examples
        --------
        >>> import harken
        >>> for word in harken.load("tiny.en").align("examples/jfk.flac", "And so my fellow Americans ..."):
        ...     print(f"{word.start_s:.2f} {word.text}")
        """
        options = self.checked(options, **changes)
        return tuple(find_words(Hearing(self.backend, self.tokenizer, options), stream(audio), text))

    def checked(self, options: TranscribeOptions | None = None, /, **changes: Any) -> TranscribeOptions:
        """Options with some changes, if this model can do what they ask for.

        Raises
        ------
        OptionError
            If an option is unknown or its value not allowed, or the model does not know that language or task.
        """
        known = {field.name for field in fields(TranscribeOptions)}
        for name in sorted(changes.keys() - known):
            raise OptionError(name, changes[name], f"one of the options {', '.join(sorted(known))}")
        options = replace(options or TranscribeOptions(), **changes)
        self.tokenizer.sot_sequence(options.language or "en", options.task, timestamps=options.timestamps)
        allowed_languages(self.tokenizer, options.languages)
        if max(options.suppress_tokens, default=0) >= self.dims.n_vocab:
            allowed = f"-1, and ids below {self.dims.n_vocab}"
            raise OptionError("suppress_tokens", options.suppress_tokens, allowed)
        return options


class Transcription:
    """A transcription in progress: iterate for segments as they are decoded.

    Iterating again starts from the first segment and decodes nothing twice; what ended the work early is raised
    again behind the last segment.
    """

    def __init__(self, work: LongForm, batch: Batch, model: str) -> None:
        self._work, self._model = work, model
        self._segments = batch.segments(work)
        self._done: list[Segment] = []
        self._failure: BaseException | None = None

    def __iter__(self) -> Iterator[Segment]:
        index = 0
        while index < len(self._done) or self._decode_one():
            yield self._done[index]
            index += 1

    def _decode_one(self) -> bool:
        """Decode one more segment; False where there is none."""
        if self._failure:
            raise self._failure
        try:
            self._done.append(next(self._segments))
        except StopIteration:
            return False
        except BaseException as failure:
            self._failure = failure
            raise
        return True

    @property
    def language(self) -> str | None:
        """Code of the language; None until the first window has been decoded."""
        return self._work.language

    @property
    def stats(self) -> DecodeStats:
        """What decoding has cost so far."""
        return self._work.stats

    @property
    def text(self) -> str:
        """The whole text; decodes what has not been decoded."""
        return self.result().text

    def stop(self) -> None:
        """Decode no more than has been decoded."""
        self._work.stop()

    def so_far(self) -> Transcript:
        """What has been decoded up to now."""
        return Transcript(
            segments=(*self._done, *self._work.ready),
            language=self._work.language or "en",
            language_probability=self._work.language_probability,
            duration_s=self._work.duration_s,
            model=self._model,
            task=self._work.options.task,
            dropped=tuple(self._work.dropped),
            speech=self._work.speech,
        )

    def result(self) -> Transcript:
        """Decode what has not been decoded and return the whole."""
        for _ in self:
            pass
        return self.so_far()
