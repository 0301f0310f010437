"""The two things a program needs: `load` a model, `transcribe` a recording."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from harken.audio import AudioSource, stream_audio
from harken.backend_factory import BackendFactory
from harken.checkpoints import open_checkpoint, resolve_model
from harken.contract import Backend
from harken.decoding import SpeculativeDecoder
from harken.decoding.language import allowed_languages
from harken.errors import OptionError
from harken.results import Word
from harken.streaming import LiveSession, LiveSessions, StreamOptions
from harken.streaming.latency import (
    LatencyPlan,
    LatencyPlanner,
    SyntheticUpdate,
    UpdateCost,
    measure_update_cost,
)
from harken.streaming.worker import ModelWorker
from harken.text import Tokenizer
from harken.transcribe import (
    Callbacks,
    RecordingTranscriber,
    Scheduler,
    TranscribeOptions,
    WindowDecoder,
    force_align,
)
from harken.transcription import Transcription
from harken.types import Dims


def load(
    model: str | os.PathLike[str] = "tiny.en",
    *,
    assistant: str | os.PathLike[str] | None = None,
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
    assistant : str or path, optional
        What drafts for the model, which makes it faster and changes no word: a model, named like `model`, of the same
        vocabulary, or a decoder that was made for it (see docs/training.md); ``"ngram"``, which looks up what was said
        before; or ``"auto"``, a much smaller model if there is one on this machine, else "ngram".
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
        If there is no such model or assistant.
    CheckpointError
        If it is damaged or not Whisper.
    OptionError
        If `backend`, `device` or `precision` is not one of those above, or this machine cannot compute there or in it;
        or if the assistant has another vocabulary.
    BackendUnavailable
        If the runtime is not installed.
    """
    engines = BackendFactory(
        backend=backend,
        device=device,
        precision=precision,
        threads=threads,
        cache=Path(cache) if cache is not None else None,
    )
    checkpoint = open_checkpoint(resolve_model(model, revision=revision, download=download))
    tokenizer = Tokenizer.from_source(checkpoint.vocabulary, checkpoint.dims.n_vocab)
    speculator = None
    if assistant is not None:
        speculator = engines.make_speculative_decoder(
            assistant, checkpoint, tokenizer, model_name=str(model), clock=perf_counter, download=download
        )
    return Recognizer(engines.make_backend(checkpoint), tokenizer, str(model), speculator)


class Recognizer:
    """A model ready to work; it holds no state of any recording, so one may serve many calls in turn.

    Parameters
    ----------
    backend : Backend
    tokenizer : Tokenizer
    model : str
        How results name the model.
    speculator : Speculator or None
        What drafts for it.
    """

    def __init__(
        self, backend: Backend, tokenizer: Tokenizer, model: str, speculator: SpeculativeDecoder | None = None
    ) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.model = model
        self.speculator = speculator
        self._costs: dict[int, UpdateCost] = {}

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
        (transcription,) = self.transcribe_many([audio], options, **changes)
        return transcription

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
        callbacks_by_index = changes.pop("callbacks", {})
        callbacks = Callbacks(
            **{field.name: changes.pop(field.name) for field in fields(Callbacks) if field.name in changes}
        )
        options = self.resolve_options(options, **changes)
        window_decoder = self._make_window_decoder(options)
        recordings = [
            RecordingTranscriber(window_decoder, stream_audio(audio), callbacks_by_index.get(index, callbacks))
            for index, audio in enumerate(audios)
        ]
        scheduler = Scheduler(window_decoder, recordings, options.batch_size)
        return [Transcription(work, scheduler, self.model) for work in recordings]

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
        options = self.resolve_options(options, **{**changes, "language": None})
        return RecordingTranscriber(self._make_window_decoder(options), stream_audio(audio)).detect_language()

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
        options = self.resolve_options(options, **changes)
        return tuple(force_align(self._make_window_decoder(options), stream_audio(audio), text))

    def stream(
        self,
        options: TranscribeOptions | None = None,
        /,
        *,
        stream_options: StreamOptions | None = None,
        clock: Callable[[], float] = perf_counter,
        **changes: Any,
    ) -> LiveSession:
        """Begin a live session.

        Parameters
        ----------
        options : TranscribeOptions, optional
            As for `transcribe`; clips and timestamps do not count.
        live : StreamOptions, optional
        clock : callable
            Seconds. The session adapts itself to what computing takes by it; with ``float``, which stands still, events
            are the same in every run.
        **changes
            Single options of either kind by name.

        Returns
        -------
        LiveSession

        Raises
        ------
        OptionError
            If an option is unknown or its value not allowed, the model does not know that language or task, or this
            machine cannot keep the delay.

        Examples
        --------
        >>> import harken
        >>> session = harken.load("tiny.en").stream(delay="low")
        >>> for block in harken.audio.stream_audio("examples/jfk.flac", block_samples=1600):
        ...     for event in session.feed(block):
        ...         print(event)
        >>> for event in session.close():
        ...     print(event)
        """
        return LiveSession(*self._prepare_streams(1, options, stream_options, clock, changes))

    def stream_many(
        self,
        count: int,
        options: TranscribeOptions | None = None,
        /,
        *,
        stream_options: StreamOptions | None = None,
        clock: Callable[[], float] = perf_counter,
        **changes: Any,
    ) -> LiveSessions:
        """Begin several live sessions that compute together what they need at the same time.

        Parameters
        ----------
        count : int
            How many are expected to speak at once: the delay that the machine can keep depends on it.
        options, live, clock, **changes
            As for `stream`.

        Raises
        ------
        OptionError
            As for `stream`.
        """
        if not 1 <= count <= 256:
            raise OptionError("count", count, "an integer from 1 to 256")
        return LiveSessions(*self._prepare_streams(count, options, stream_options, clock, changes))

    def _prepare_streams(
        self,
        count: int,
        options: TranscribeOptions | None,
        stream_options: StreamOptions | None,
        clock: Callable[[], float],
        changes: dict[str, Any],
    ) -> tuple[ModelWorker, StreamOptions, LatencyPlan]:
        """What a live session is made of."""
        stream_option_names = {field.name for field in fields(StreamOptions)} & changes.keys()
        stream_options = replace(
            stream_options or StreamOptions(), **{name: changes.pop(name) for name in stream_option_names}
        )
        options = self.resolve_options(options, **changes)
        # What was heard while it was spoken drafts the final text, also without an assistant.
        speculator = self.speculator or SpeculativeDecoder(clock)
        window_decoder = WindowDecoder(self.backend, self.tokenizer, options, speculator, clock)
        if clock is not float and count not in self._costs:
            self._costs[count] = measure_update_cost(
                SyntheticUpdate(self.backend, self.tokenizer, count).run, clock
            )
        cost = self._costs.get(count, UpdateCost())
        planner = LatencyPlanner(cost=cost, options=stream_options, min_speech_s=options.vad_min_speech_s)
        return ModelWorker(window_decoder, clock), stream_options, planner.choose()

    def resolve_options(self, options: TranscribeOptions | None = None, /, **changes: Any) -> TranscribeOptions:
        """Options with some changes, if this model can do what they ask for.

        Raises
        ------
        OptionError
            If an option is unknown or its value not allowed, or the model does not know that language or task.
        """
        option_names = {field.name for field in fields(TranscribeOptions)}
        for name in sorted(changes.keys() - option_names):
            raise OptionError(name, changes[name], f"one of the options {', '.join(sorted(option_names))}")
        options = replace(options or TranscribeOptions(), **changes)
        self.tokenizer.sot_sequence(options.language or "en", options.task, timestamps=options.timestamps)
        allowed_languages(self.tokenizer, options.languages)
        if max(options.suppress_tokens, default=0) >= self.dims.n_vocab:
            allowed = f"-1, and ids below {self.dims.n_vocab}"
            raise OptionError("suppress_tokens", options.suppress_tokens, allowed)
        return options

    def _make_window_decoder(self, options: TranscribeOptions) -> WindowDecoder:
        return WindowDecoder(self.backend, self.tokenizer, options, self.speculator, perf_counter)
