"""The public API: `load` returns a `Recognizer`, which transcribes recordings and live streams."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from io import IOBase
from logging import getLogger
from pathlib import Path
from time import perf_counter
from typing import Any, Unpack

import numpy as np

from harken.audio import AudioSource, stream_audio, stream_channels
from harken.audio.vad import SpeechDetector
from harken.backend_factory import AUTO, LSH_BUCKET_SIZE, LSH_ROUNDS, NGRAM, NO_ASSISTANT, BackendFactory
from harken.checkpoints import Adapters, check_model_name, open_checkpoint, resolve_model, with_adapters
from harken.contract import Backend, Floats
from harken.decoding import SpeculativeDecoder
from harken.errors import HarkenError, OptionError, refuse_pickling
from harken.keywords import (
    RecordingKeywords,
    RecordingsKeywords,
    StreamKeywords,
    TranscribeKeywords,
    check_by_position,
    options_or_default,
    pop_fields,
)
from harken.option_types import checked_value
from harken.results import Word
from harken.speakers.clustering import require_packages
from harken.speakers.diarizer import Diarization, Diarizer, SpeakerOptions
from harken.speakers.embedding import EmbeddingModel
from harken.speakers.live import DEFAULT_DELAY_S, checked_delay
from harken.speakers.models import resolve_speaker_models
from harken.speakers.pieces import SegmentationModel
from harken.streaming import LiveSession, LiveSessions, StreamOptions
from harken.streaming.latency import (
    LatencyPlanner,
    UpdateCost,
    measure_update_cost,
    synthetic_update,
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
from harken.transcribe.journal import Journal, recording_identity
from harken.transcribe.language_id import allowed_languages
from harken.transcribe.options import FIDELITIES, OFFLINE_ONLY
from harken.transcription import ChannelsTranscription, DecodingTurn, Transcription
from harken.types import Dims
from harken.version import __version__

ADAPTED_FIDELITIES = tuple(fidelity for fidelity in FIDELITIES if fidelity != "exact")
"""What an adapter may be used with: the stock weights are the promise of "exact"."""


def load(
    model: str | os.PathLike[str] = "tiny.en",
    *,
    assistant: str | os.PathLike[str] | None = AUTO,
    adapter: Adapters = None,
    backend: str = "auto",
    device: str = "auto",
    precision: str = "auto",
    threads: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    attention: str = "full",
    lsh_rounds: int = LSH_ROUNDS,
    lsh_bucket_size: int = LSH_BUCKET_SIZE,
    revision: str | None = None,
    download: bool = True,
) -> Recognizer:
    """Load a Whisper model.

    Parameters
    ----------
    model : str or path
        ``"tiny.en"``, which comes with harken; a path to a checkpoint of any format of docs/models.md; a name such as
        ``"small"``; or a Hugging Face repository such as ``"openai/whisper-small"``.
    assistant : str or path, optional
        Source of draft tokens for speculative decoding, which makes the model faster and changes no word: a model of
        the same vocabulary, named like `model`, or a decoder trained for it (see docs/training.md); ``"ngram"``, which
        looks up earlier text; ``"none"``, or None; or ``"auto"``, with the compiled engine ``"tiny"`` or ``"tiny.en"``
        if it is on this machine and pays, as it does for ``"small"`` and larger models of its vocabulary.
    adapter : path or sequence of paths, optional
        Changes to the model: of its encoder, which ``harken adapt`` has made for it (see docs/training.md), or folders
        of peft (LoRA), added one after the other. ``"none"``, or nothing, gives the stock weights, and only they decode
        with ``fidelity="exact"``.
    backend : {"auto", "native", "onnx", "torch", "numpy"}
        The compiled CPU engine ("native") or the one on OpenVINO and ONNX Runtime ("onnx", an extra), the GPU engine
        (the extra ``torch``), or the slow reference backend. "auto" is torch where `device` names a GPU or `attention`
        is "lsh", native where it was built and fits the model and the precision, else onnx.
    device : str
        For the GPU engine ``"cuda"``, ``"cuda:1"``, ``"mps"`` or ``"cpu"``; "auto" is the first available of cuda,
        mps, cpu. The other backends compute on the CPU only.
    precision : str
        For the CPU engines ``"int8"`` or ``"fp32"``, with native ``"int16"`` (an encoder in 16 bits, as int8 has below
        `base`, but for attention), with onnx ``"bf16"``. "auto" is int8; with native the text is the same on every
        processor. For the GPU engine ``"fp16"``, ``"bf16"`` or ``"fp32"``, "auto" is fp16, on the CPU fp32.
    threads : int, optional
        Threads on the CPU; by default the processors that this process may use.
    cache : path, optional
        Directory of built graphs and packed weights; by default the user's cache directory, or ``HARKEN_CACHE``.
    attention : {"full", "lsh"}
        Attention of the GPU engine's encoder: to all positions, or by locality-sensitive hashing, which is approximate
        (see docs/hashed-attention.md).
    lsh_rounds : int
        Hashes that look for keys, beside those near in time: 0 to 64, only with ``attention="lsh"``.
    lsh_bucket_size : int
        Queries that share their keys: 1 to 1500, only with ``attention="lsh"``. Each round compares a query with three
        times as many keys.
    revision : str, optional
        Branch, tag or commit of a Hugging Face repository.
    download : bool
        Allow the download of a model that is not on this machine.

    Returns
    -------
    Recognizer

    Raises
    ------
    CheckpointNotFound
        If there is no such model, assistant or adapter.
    CheckpointError
        If it is damaged or not Whisper, or the adapter was made for another model.
    OptionError
        If a value is of another type; if `backend`, `device`, `precision` or `attention` is not one of those above, or
        this machine cannot compute there or in it; if the assistant has another vocabulary; or if the environment
        variable ``HARKEN_MODEL_DIR`` names no directory.
    BackendUnavailable
        If the runtime is not installed, or the native decoder was not built.
    """
    path = str | os.PathLike[str]
    model = checked_value("model", model, path)
    assistant = checked_value("assistant", assistant, path | None)
    adapter = checked_value("adapter", adapter, path | tuple[os.PathLike[str], ...] | None)
    cache = checked_value("cache", cache, path | None)
    revision = checked_value("revision", revision, str | None)
    download = checked_value("download", download, bool)
    engines = BackendFactory(
        backend=backend,
        device=device,
        precision=precision,
        threads=threads,
        cache=Path(cache) if cache is not None else None,
        attention=attention,
        lsh_rounds=lsh_rounds,
        lsh_bucket_size=lsh_bucket_size,
    )
    if assistant not in (None, AUTO, NGRAM, NO_ASSISTANT):
        check_model_name(assistant)  # a mistyped name is known before the model is downloaded, or loaded
    stock = open_checkpoint(resolve_model(model, revision=revision, download=download))
    checkpoint = with_adapters(stock, adapter)
    tokenizer = checkpoint.vocabulary.tokenizer(checkpoint.dims.n_vocab)
    # Opened first: loading the model takes longer.
    drafter = engines.open_assistant(assistant, stock, tokenizer, model_name=str(model), download=download)
    loaded = engines.make_backend(checkpoint)
    speculator = SpeculativeDecoder(loaded.clock, ngram=True) if assistant == NGRAM else None
    if drafter:
        try:
            speculator = engines.make_speculative_decoder(drafter, stock, clock=loaded.clock)
        except HarkenError as error:  # a model that nobody named keeps no other from loading
            if assistant != AUTO:
                raise
            getLogger("harken").warning("harken: no assistant for %s: %s", model, error)
    return Recognizer(
        loaded,
        tokenizer,
        str(model),
        speculator,
        weights_digest=lambda: checkpoint.weights.digest,
        is_adapted=checkpoint is not stock,
    )


def load_diarizer(
    model: str | os.PathLike[str] | None = None,
    *,
    num_speakers: int | None = None,
    min_speakers: int | None = None,
    max_speakers: int | None = None,
    threads: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    download: bool = True,
) -> Diarizer:
    """Load the models that tell speakers apart.

    Parameters
    ----------
    model : path, optional
        Directory with ``segmentation-3.0.onnx`` and ``campplus_cn_en_common.pt``; by default that of the environment
        variable ``HARKEN_SPEAKER_MODEL``, or the two files in the user's cache, where they are downloaded to.
    num_speakers, min_speakers, max_speakers : int, optional
        Number of speakers, if it is known, or bounds of it (see `harken.speakers.diarizer.SpeakerOptions`).
    threads : int, optional
        Threads on the CPU; by default one, which is fastest beside a transcription.
    cache : path, optional
        Directory of built graphs, as for `load`.
    download : bool
        Allow the download of files that are not on this machine.

    Returns
    -------
    Diarizer
        To be given to `Recognizer.transcribe`, or used by itself.

    Raises
    ------
    CheckpointNotFound
        If the files are not on this machine, and cannot or must not be downloaded.
    CheckpointError
        If one of them is damaged, or holds another model.
    OptionError
        If a value is not allowed.
    BackendUnavailable
        If the extra ``harken[speakers]`` is not installed.

    Examples
    --------
    >>> import harken
    >>> diarizer = harken.load_diarizer(num_speakers=2)
    >>> for segment in harken.load("tiny.en").transcribe("meeting.mp3", diarizer=diarizer):
    ...     print(segment.speakers, segment.text)
    """
    path = str | os.PathLike[str]
    options = SpeakerOptions(num_speakers=num_speakers, min_speakers=min_speakers, max_speakers=max_speakers)
    threads = checked_value("threads", threads, int | None)
    if threads is not None and threads < 1:
        raise OptionError("threads", threads, "an integer of at least 1")
    cache = checked_value("cache", cache, path | None)
    require_packages()
    segmentation, embedding = resolve_speaker_models(
        checked_value("model", model, path | None), download=checked_value("download", download, bool)
    )
    return Diarizer(
        SegmentationModel(segmentation, threads or 1),
        EmbeddingModel(embedding, threads=threads or 1, cache=Path(cache) if cache is not None else None),
        options,
    )


class Recognizer:
    """A loaded model; it holds nothing of a recording that changes the text of another: one may serve many calls.

    Parameters
    ----------
    backend : Backend
    tokenizer : Tokenizer
    model : str
        Name of the model in results.
    speculator : SpeculativeDecoder or None
        Drafts tokens for it.
    is_adapted : bool
        True if an adapter has changed the weights, which then are not those of ``fidelity="exact"``.
    weights_digest : callable
        Returns the digest of the weights, by which journals know the model; without it they know it by its name.
    speech_detector : callable
        Makes the detector of speech of a recording or a live stream.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        model: str,
        speculator: SpeculativeDecoder | None = None,
        *,
        weights_digest: Callable[[], str] = str,
        is_adapted: bool = False,
        speech_detector: Callable[[], SpeechDetector] = SpeechDetector,
    ) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.model = model
        self.speculator = speculator
        # Texts that are there anyway are drafts, also without an assistant: those given, and those of earlier attempts.
        self._drafter = speculator or SpeculativeDecoder(backend.clock)
        self._weights_digest = weights_digest
        self._is_adapted, self._speech_detector = is_adapted, speech_detector
        self._costs: dict[int, UpdateCost] = {}

    __reduce__ = refuse_pickling

    def __repr__(self) -> str:
        drafts = f", drafts: {self.speculator.detail}" if self.speculator else ""
        return f"Recognizer({self.model!r}, {self.backend.capabilities.detail}{drafts})"

    @property
    def dims(self) -> Dims:
        """Dimensions of the model."""
        return self.backend.dims

    def transcribe(
        self,
        audio: AudioSource,
        options: TranscribeOptions | None = None,
        /,
        **keywords: Unpack[RecordingKeywords],
    ) -> Transcription:
        """Transcribe a recording lazily: windows are decoded as segments are asked for.

        Parameters
        ----------
        audio : path, "-", file or ndarray
            Any recording that FFmpeg's libraries read, video included; or samples at 16 kHz, int16, or float32 or
            float64 of a level up to 8 (full scale is 1), of shape (samples,); with ``channels="apart"`` of shape
            (samples, channels).
        options : TranscribeOptions, optional
        **keywords
            Single options by name (see `TranscribeOptions`), and callbacks by name (see
            `harken.transcribe.Callbacks`). With ``diarizer``, of `harken.load_diarizer`, segments and words name their
            speakers; they then come at the end of the recording, since only then it is known who speaks. ``draft`` is a
            text that the recording is expected to have, such as a script: it makes decoding faster and changes nothing.

        Returns
        -------
        Transcription
            Iterate for segments, or ask for `text` or `result()`.

        Raises
        ------
        OptionError
            If an option is unknown or its value not allowed, or the model does not know that language or task.
        AudioError
            While iterating, if the recording cannot be read; the segments before that are delivered first.
        Cancelled
            While iterating, once ``is_cancelled`` has returned True.

        Examples
        --------
        >>> import harken
        >>> for segment in harken.load("tiny.en").transcribe("examples/jfk.flac"):
        ...     print(f"{segment.start_s:.2f} {segment.text}")
        """
        (transcription,) = self.transcribe_many([audio], options, **keywords)
        return transcription

    def transcribe_many(
        self,
        audios: Iterable[AudioSource],
        options: TranscribeOptions | None = None,
        /,
        **keywords: Unpack[RecordingsKeywords],
    ) -> list[Transcription]:
        """Transcribe several recordings, `batch_size` windows of them at a time.

        Parameters
        ----------
        audios : iterable of path, "-", file or ndarray
            As for `transcribe`. They are opened in this order, as their turn comes.
        options : TranscribeOptions, optional
        **keywords
            As for `transcribe`. Callbacks are called for all recordings; ``callbacks``, a mapping of positions to
            `Callbacks`, gives some of them their own, and ``drafts`` their texts. ``journals``, a mapping of positions
            to paths, names files in which the work on a recording is kept: with its journal, a transcription that was
            cut short, by whatever, goes on where it was, to the same text. The files are yours to delete.

        Returns
        -------
        list of Transcription
            One a recording, in the given order; the others go on if one fails.

        Raises
        ------
        OptionError
            As for `transcribe`.
        """
        is_samples = isinstance(audios, np.ndarray) and audios.ndim < 2 and audios.dtype.kind in "iuf"
        if is_samples or isinstance(audios, str | IOBase) or not isinstance(audios, Iterable):
            raise OptionError("audios", audios, "a list of recordings")
        audios = list(audios)
        given: dict[str, Any] = {**keywords}
        draft: str | None = checked_value("draft", given.pop("draft", None), str | None)
        drafts = check_by_position("drafts", given.pop("drafts", {}), len(audios), str)
        callbacks_by_index = check_by_position("callbacks", given.pop("callbacks", {}), len(audios), Callbacks)
        journals = check_by_position("journals", given.pop("journals", {}), len(audios), (str, os.PathLike))
        diarizer: Diarizer | None = checked_value("diarizer", given.pop("diarizer", None), Diarizer | None)
        callbacks = Callbacks(**pop_fields(Callbacks, given))
        options = self._resolve_options(options, given, keywords=RecordingsKeywords)
        if diarizer:
            options = replace(options, word_timestamps=True)
        window_decoder = self._window_decoder(options, self._drafter)
        if options.channels == "apart":
            for name, value in {"journals": journals, "draft": draft, "drafts": drafts}.items():
                if value:
                    raise OptionError(name, value, "none with channels='apart'")
            each_callbacks = [callbacks_by_index.get(index, callbacks) for index in range(len(audios))]
            return [
                ChannelsTranscription(
                    partial(self._open_channels, window_decoder, audio, each, diarizer),
                    each.on_progress,
                    model=self.model,
                    task=options.task,
                )
                for audio, each in zip(audios, each_callbacks, strict=True)
            ]
        heard = [_hear(stream_audio(audio), diarizer) for audio in audios]
        recordings = [
            RecordingTranscriber(
                window_decoder,
                blocks,
                callbacks_by_index.get(index, callbacks),
                draft=window_decoder.encode_text(" ".join((drafts.get(index, draft) or "").split())),
                journal=self._make_journal(journals[index], audio, options) if index in journals else None,
            )
            for index, (audio, (blocks, _)) in enumerate(zip(audios, heard, strict=True))
        ]
        scheduler, turn = Scheduler(window_decoder, recordings, options.batch_size), DecodingTurn()
        return [
            Transcription(recording, scheduler, self.model, turn, diarization)
            for recording, (_, diarization) in zip(recordings, heard, strict=True)
        ]

    def _open_channels(
        self,
        window_decoder: WindowDecoder,
        audio: AudioSource,
        callbacks: Callbacks,
        diarizer: Diarizer | None,
    ) -> list[Transcription]:
        """Open a recording, and make a transcription of each of its channels; without batches they take turns."""
        heard = [_hear(blocks, diarizer) for blocks in stream_channels(audio)]
        callbacks = replace(callbacks, on_progress=Callbacks().on_progress)
        recordings = [RecordingTranscriber(window_decoder, blocks, callbacks) for blocks, _ in heard]
        batch_size = window_decoder.options.effective_batch_size
        if batch_size > 1:
            schedulers = [Scheduler(window_decoder, recordings, batch_size)] * len(recordings)
        else:
            schedulers = [Scheduler(window_decoder, [recording], 1) for recording in recordings]
        turn = DecodingTurn()
        return [
            Transcription(recording, scheduler, self.model, turn, diarization)
            for recording, scheduler, (_, diarization) in zip(recordings, schedulers, heard, strict=True)
        ]

    def detect_language(
        self,
        audio: AudioSource,
        options: TranscribeOptions | None = None,
        /,
        **keywords: Unpack[TranscribeKeywords],
    ) -> dict[str, float]:
        """Find the language of a recording.

        Parameters
        ----------
        audio, options, **keywords
            As for `transcribe`; only `languages`, `language_threshold`, `language_windows`, `multilingual`,
            `clip_timestamps`, `fidelity` and the options of voice activity detection have an effect.

        Returns
        -------
        dict of str to float
            Probability of each allowed language, most probable first: of the first window that is confident enough,
            or the mean of all windows asked. Empty for a recording without speech.

        Raises
        ------
        AudioError
            If the recording cannot be read.
        OptionError
            As for `transcribe`.
        """
        options = self._resolve_options(options, {**keywords, "language": None})
        return RecordingTranscriber(
            self._window_decoder(options, self.speculator), stream_audio(audio)
        ).detect_language()

    def align(
        self,
        audio: AudioSource,
        text: str,
        options: TranscribeOptions | None = None,
        /,
        **keywords: Unpack[TranscribeKeywords],
    ) -> tuple[Word, ...]:
        """Align a known text with its recording: return the time of each word.

        Parameters
        ----------
        audio : path, "-", file or ndarray
            As for `transcribe`. One that is longer than a window is kept in memory and transcribed first.
        text : str
            Text that is spoken in the recording. In one longer than a window, speech that the text lacks is passed
            over, and a passage that is not spoken moves no other word.
        options, **keywords
            As for `transcribe`, without `clip_timestamps` and `channels`. Up to 30 s only `language`, `languages`,
            `fidelity` and the options of voice activity detection have an effect.

        Returns
        -------
        tuple of Word
            The words of the text in order, with the punctuation around them. A word that is not spoken has a low
            probability. With `vad`, no word extends over silence.

        Raises
        ------
        AudioError
            If the recording cannot be read; or if in one longer than a window hardly a word of the text is
            recognized with the word that follows, so that a single word is found in shorter ones only.
        OptionError
            If the text of a recording of up to a window does not fit into the decoder (about 440 tokens), or as for
            `transcribe`.

        Examples
        --------
        >>> import harken
        >>> for word in harken.load("tiny.en").align("examples/jfk.flac", "And so my fellow Americans ..."):
        ...     print(f"{word.start_s:.2f} {word.text}")
        """
        text = checked_value("text", text, str).removeprefix("\ufeff")  # with which files of Windows begin
        options = self._resolve_options(options, {**keywords})
        _refuse_changed(options, ("channels", "clip_timestamps"), "none with align")
        return tuple(force_align(self._window_decoder(options, self.speculator), stream_audio(audio), text))

    def stream(
        self,
        options: TranscribeOptions | None = None,
        /,
        *,
        stream_options: StreamOptions | None = None,
        clock: Callable[[], float] | None = perf_counter,
        diarizer: Diarizer | None = None,
        speaker_delay: float = DEFAULT_DELAY_S,
        **keywords: Unpack[StreamKeywords],
    ) -> LiveSession:
        """Open a live session.

        Parameters
        ----------
        options : TranscribeOptions, optional
            As for `transcribe`, without `batch_size`, `channels`, `clip_timestamps`, `prefix` and `vad`.
        stream_options : StreamOptions, optional
        clock : callable, optional
            Returns seconds. The session measures computing times by it and adapts to them. With None nothing is
            measured, and the events are the same in every run.
        diarizer : Diarizer, optional
            Of `load_diarizer`: final segments and their words then name their speakers, and
            `harken.streaming.SpeakersChanged` corrects them. Only its greatest number of speakers counts.
        speaker_delay : float
            Seconds from 1 to 60 after which the speakers of a word do not change any more.
        **keywords
            Single options of either kind by name.

        Returns
        -------
        LiveSession

        Raises
        ------
        OptionError
            If an option is unknown or its value not allowed, the model does not know that language or task, or this
            machine cannot keep a delay in milliseconds, without `best_effort`.

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
        sessions = self.stream_many(
            1,
            options,
            stream_options=stream_options,
            clock=clock,
            diarizer=diarizer,
            speaker_delay=speaker_delay,
            **keywords,
        )
        return LiveSession(sessions)

    def stream_many(
        self,
        count: int,
        options: TranscribeOptions | None = None,
        /,
        *,
        stream_options: StreamOptions | None = None,
        clock: Callable[[], float] | None = perf_counter,
        diarizer: Diarizer | None = None,
        speaker_delay: float = DEFAULT_DELAY_S,
        **keywords: Unpack[StreamKeywords],
    ) -> LiveSessions:
        """Open several live sessions that share the passes of the model.

        Parameters
        ----------
        count : int
            Number of streams expected to speak at once; the delay that the machine can keep depends on it.
        options, stream_options, clock, diarizer, speaker_delay, **keywords
            As for `stream`; the speakers of each stream are its own.

        Raises
        ------
        OptionError
            As for `stream`.
        """
        count = checked_value("count", count, int)
        if not 1 <= count <= 256:
            raise OptionError("count", count, "an integer from 1 to 256")
        checked_value("clock", clock, Callable[[], float] | None)
        diarizer = checked_value("diarizer", diarizer, Diarizer | None)
        speaker_delay = checked_delay(speaker_delay)
        if not diarizer and speaker_delay != DEFAULT_DELAY_S:
            raise OptionError("speaker_delay", speaker_delay, f"{DEFAULT_DELAY_S:g} without a diarizer")
        stream_options = options_or_default("stream_options", stream_options, StreamOptions)
        given: dict[str, Any] = {**keywords}
        stream_options = replace(stream_options, **pop_fields(StreamOptions, given))
        if diarizer:  # who says the words
            given |= {"word_timestamps": True}
        options = self._resolve_options(options, given, keywords=StreamKeywords)
        _refuse_changed(options, OFFLINE_ONLY, "none in a live stream")
        # Streamed tokens are the draft of the final text, also without an assistant.
        speculator = self.speculator or SpeculativeDecoder(clock or (lambda: 0.0))
        window_decoder = self._window_decoder(options, speculator, clock)
        cost = UpdateCost()
        if clock:
            run_update = partial(synthetic_update, self.backend, self.tokenizer, count)
            cost = self._costs.get(count) or measure_update_cost(run_update, clock)
        planner = LatencyPlanner(cost=cost, options=stream_options, min_speech_s=options.vad_min_speech_s)
        plan = planner.choose()
        if plan.level:  # measured again by the next session: the machine may be free by then
            self._costs.pop(count, None)
        elif clock:
            self._costs[count] = cost
        begin_diarization = partial(diarizer.begin_live, speaker_delay) if diarizer else None
        return LiveSessions(ModelWorker(window_decoder), stream_options, plan, begin_diarization)

    def resolve_options(
        self, options: TranscribeOptions | None = None, /, **keywords: Unpack[TranscribeKeywords]
    ) -> TranscribeOptions:
        """Return options with some of them replaced, checked against this model.

        Raises
        ------
        OptionError
            If an option is unknown or its value not allowed, or the model does not know that language or task.
        """
        return self._resolve_options(options, {**keywords})

    def _resolve_options(
        self, options: TranscribeOptions | None, given: Mapping[str, Any], keywords: Any = TranscribeKeywords
    ) -> TranscribeOptions:
        """Return options with those given by name, checked against this model.

        Other keywords are allowed by name too, and have been removed from what is given.
        """
        for name in sorted(given.keys() - TranscribeKeywords.__optional_keys__):
            # Those most alike come first: the message has no room for all that a stream knows.
            known = get_close_matches(name, sorted(keywords.__optional_keys__), n=99, cutoff=0)
            raise OptionError(name, given[name], f"one of {', '.join(known)}")
        options = replace(options_or_default("options", options, TranscribeOptions), **given)
        if not self.tokenizer.has_timestamps:
            options = replace(options, timestamps=False)
        if not self.tokenizer.multilingual:
            options = replace(options, multilingual=False)
        self.tokenizer.sot_sequence(options.language or "en", options.task, timestamps=options.timestamps)
        allowed_languages(self.tokenizer, options.languages)
        if self._is_adapted and options.fidelity == "exact":
            raise OptionError("fidelity", options.fidelity, f"{', '.join(ADAPTED_FIDELITIES)} with an adapter")
        if max(options.suppress_tokens, default=0) >= self.dims.n_vocab:
            allowed = f"-1, and ids below {self.dims.n_vocab}"
            raise OptionError("suppress_tokens", options.suppress_tokens, allowed)
        # A window has half of the context; at least half of that is left for what follows the prefix.
        max_tokens = self.dims.n_text_ctx // 4
        if options.prefix and len(self.tokenizer.encode(" " + options.prefix.strip())) > max_tokens:
            raise OptionError("prefix", options.prefix, f"at most {max_tokens} tokens")
        return options

    def _make_journal(
        self, path: str | os.PathLike[str], audio: AudioSource, options: TranscribeOptions
    ) -> Journal:
        """Make the journal of a recording; its key holds everything that decides the text."""
        capabilities = self.backend.capabilities
        key = {
            "harken": __version__,
            "model": self._weights_digest() or self.model,
            "engine": [capabilities.name, capabilities.precision, capabilities.device],
            "options": repr(replace(options, batch_size=1)),
            "recording": recording_identity(audio),
        }
        return Journal(Path(path), key)

    def _window_decoder(
        self,
        options: TranscribeOptions,
        speculator: SpeculativeDecoder | None,
        clock: Callable[[], float] | None = perf_counter,
    ) -> WindowDecoder:
        return WindowDecoder(self.backend, self.tokenizer, options, speculator, clock, self._speech_detector)


def _hear(blocks: Iterator[Floats], diarizer: Diarizer | None) -> tuple[Iterator[Floats], Diarization | None]:
    """Return the blocks of a recording, and what hears its speakers while they are read."""
    if not diarizer:
        return blocks, None
    diarization = diarizer.begin()
    return diarization.listen(blocks), diarization


def _refuse_changed(options: TranscribeOptions, names: Iterable[str], allowed: str) -> None:
    """Refuse options that would have no effect, if they are not the default."""
    defaults = TranscribeOptions()
    for name in names:
        if (value := getattr(options, name)) != getattr(defaults, name):
            raise OptionError(name, value, allowed)
