"""Training examples: the encoder output of a window, token sequences with the teacher's states, and files of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harken.api import Recognizer
from harken.audio import LOG_MEL_FLOOR, LogMel, normalize
from harken.checkpoints import Checkpoint
from harken.contract import Features, Floats, Ints
from harken.decoding import Greedy, Window, decode, make_logit_rules, make_prompt
from harken.errors import OutputError
from harken.files import write_atomic
from harken.text import Tokenizer
from harken.training.network import run_decoder
from harken.training.windows import Progress, TrainingWindow
from harken.transcribe import TranscribeOptions
from harken.transcribe.language_id import language_probabilities
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, TIMESTAMP_STEP_S, Dims

HalfFloats = NDArray[np.float16]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One text of a window.

    Attributes
    ----------
    tokens : ndarray of shape (n,), int64
        Prompt, text and end of text.
    text_start : int
        Start of the text behind the prompt: the tokens from here on are to be predicted.
    teacher_states : ndarray of shape (n - text_start, n_text_state), float16; or (0, n_text_state)
        Final states of the main decoder where it predicts ``tokens[text_start:]``. Multiplied with the token
        embedding they give all of its logits. Empty where no decoder was run.
    target_states : ndarray of shape (n - text_start, n_text_state of the student), float16; or None
        States that the student should have there, where these are not those of the main decoder.
    """

    tokens: Ints
    text_start: int
    teacher_states: HalfFloats
    target_states: HalfFloats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One window to learn from.

    Attributes
    ----------
    audio_features : ndarray of shape (positions, n_audio_state) or (n_mels, frames), float16; or (samples,), float32
        The output of the encoder; or where the encoder is trained too its input, or the audio of which it hears parts.
    sequences : tuple of TrainingSequence
        Empty where the transcript of the main model was rejected.
    """

    audio_features: HalfFloats | Floats
    sequences: tuple[TrainingSequence, ...]


@dataclass(frozen=True, slots=True)
class ExampleStore:
    """Examples in a folder, each in a file of its own.

    Parameters
    ----------
    folder : Path
        Folder of the examples of one model.
    """

    folder: Path

    def path(self, window: TrainingWindow) -> Path:
        """Return the path of the file for a window, whether or not it exists."""
        return self.folder / f"{window.key}.npz"

    def has(self, window: TrainingWindow) -> bool:
        """Return whether the example of a window is stored."""
        return self.path(window).is_file()

    @contextmanager
    def _open(self, window: TrainingWindow) -> Iterator[Any]:
        """Open the file of an example; raise an `OutputError` if it cannot be read."""
        path = self.path(window)
        try:
            with path.open("rb") as raw, np.load(raw) as file:
                yield file
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise OutputError(
                f"{path}: is damaged ({error}); delete it, and the same command makes it anew"
            ) from error

    def put(self, window: TrainingWindow, example: Example) -> None:
        """Write an example; its file is complete or absent."""
        arrays: dict[str, Any] = {
            "audio_features": example.audio_features,
            "text_start": np.array([sequence.text_start for sequence in example.sequences], np.int64),
        }
        for i, sequence in enumerate(example.sequences):
            arrays |= {f"tokens.{i}": sequence.tokens, f"states.{i}": sequence.teacher_states}
        content = io.BytesIO()
        np.savez(content, **arrays)
        write_atomic(self.path(window), [content.getvalue()])

    def get(self, window: TrainingWindow) -> Example:
        """Read an example."""
        with self._open(window) as file:
            sequences = tuple(
                TrainingSequence(
                    tokens=file[f"tokens.{i}"], text_start=int(text_start), teacher_states=file[f"states.{i}"]
                )
                for i, text_start in enumerate(file["text_start"])
            )
            return Example(audio_features=file["audio_features"], sequences=sequences)

    def first_text(self, window: TrainingWindow) -> list[int]:
        """Return the tokens of the first text of an example, without the prompt."""
        with self._open(window) as file:
            text: list[int] = (
                file["tokens.0"][file["text_start"][0] :].tolist() if len(file["text_start"]) else []
            )
            return text


def with_targets(example: Example, targets: Example) -> Example:
    """Return an example with the states of another decoder for the same texts as targets for the student."""
    pairs = zip(example.sequences, targets.sequences, strict=True)
    sequences = (replace(sequence, target_states=target.teacher_states) for sequence, target in pairs)
    return replace(example, sequences=tuple(sequences))


ACCEPTANCE_OPTIONS = TranscribeOptions(no_speech_threshold=None)
"""Options whose thresholds reject transcripts of the teacher, as in the first attempt of a transcription."""

SILENCE_FRAMES = 4 * FRAMES_PER_SECOND
"""Silence behind the audio of a training window; a third of the time and memory of whole windows."""
LENGTH_STEP_FRAMES = 2 * FRAMES_PER_SECOND
"""Lengths of training windows are rounded up to a multiple of this."""

PromptedText = tuple[tuple[int, ...], Sequence[int]]
"""A prompt, and the text tokens that follow it."""


class Teacher:
    """The main model, which transcribes windows and computes its states for the texts.

    Parameters
    ----------
    recognizer : Recognizer
        On the CPU engine: it encodes and transcribes as it will with the assistant.
    checkpoint : Checkpoint
        The same model.
    dtype : torch.dtype
        Type in which matrices are multiplied.
    for_encoder : bool
        True for examples from which an encoder learns: windows are encoded whole, and the examples hold their samples.
    """

    def __init__(
        self, recognizer: Recognizer, checkpoint: Checkpoint, dtype: torch.dtype, *, for_encoder: bool = False
    ) -> None:
        self._for_encoder = for_encoder
        self._backend, self._tokenizer, self._dims = recognizer.backend, recognizer.tokenizer, checkpoint.dims
        self._rules = make_logit_rules(self._tokenizer, timestamps=True)
        self._dtype = dtype
        self._weights = {
            name: torch.tensor(checkpoint.weights[name]).to(self._dtype)
            for name in checkpoint.weights
            if name.startswith("decoder.")
        }

    def __call__(self, training_window: TrainingWindow, previous_text: Sequence[int]) -> Example:
        """Transcribe a window and return the example, with the states that give the probability of each token.

        Parameters
        ----------
        training_window : TrainingWindow
        previous_text : sequence of int
            Text tokens before it, for the sequence with previous text.
        """
        samples = training_window.samples()
        log_mel = (whole_log_mel if self._for_encoder else window_log_mel)(samples, self._dims)
        features = self._backend.encode(log_mel[None])
        (encoder_output,) = self._backend.encoder_output(features)
        language = training_window.language or next(
            iter(language_probabilities(self._backend, features, self._tokenizer)[0])
        )
        prompted_texts = self._prompted_texts(training_window, features, language, previous_text)
        with torch.inference_mode():
            source = torch.from_numpy(encoder_output).to(self._dtype)
            sequences = tuple(self._make_sequence(source, prompt, text) for prompt, text in prompted_texts)
        audio_features = samples if self._for_encoder else encoder_output.astype(np.float16)
        return Example(audio_features=audio_features, sequences=sequences)

    def _prompted_texts(
        self, training_window: TrainingWindow, features: Features, language: str, previous_text: Sequence[int]
    ) -> list[PromptedText]:
        """Return the prompted texts; none if the transcript is repetitive or improbable."""
        tokenizer, n_ctx = self._tokenizer, self._dims.n_text_ctx
        prompt = make_prompt(tokenizer, n_ctx, language=language, task="transcribe", timestamps=True)
        (decoded,), _ = decode(
            self._backend,
            features,
            [Window(window_index=0, prompt=prompt)],
            tokenizer=tokenizer,
            logit_rules=self._rules,
            strategy=Greedy(),
        )
        if ACCEPTANCE_OPTIONS.rejection_reason(decoded):
            return []
        text_tokens = (*decoded.hypothesis.tokens, tokenizer.eot)
        return make_prompted_texts(tokenizer, n_ctx, training_window, language, text_tokens, previous_text)

    def _make_sequence(
        self, encoder_output: Tensor, prompt: Sequence[int], text: Sequence[int]
    ) -> TrainingSequence:
        tokens = torch.tensor([*prompt, *text])
        states = run_decoder(self._weights, self._dims, tokens[None, :-1], encoder_output)[0, len(prompt) - 1 :]
        return TrainingSequence(
            tokens=tokens.numpy(), text_start=len(prompt), teacher_states=states.half().numpy()
        )


def make_prompted_texts(
    tokenizer: Tokenizer,
    n_ctx: int,
    training_window: TrainingWindow,
    language: str,
    text_tokens: Sequence[int],
    previous_text: Sequence[int],
) -> list[PromptedText]:
    """Return the texts of a window with their prompts, the first one with timestamps.

    Where the window asks for it, more follow: without timestamps, and with the previous text in the prompt.
    """

    def prompt(timestamps: bool = True, previous: Sequence[int] = ()) -> tuple[int, ...]:
        return make_prompt(
            tokenizer,
            n_ctx,
            language=language,
            task="transcribe",
            timestamps=timestamps,
            previous_tokens=previous,
        )

    prompted_texts: list[PromptedText] = [(prompt(), text_tokens)]
    if training_window.without_timestamps:
        prompted_texts.append(
            (prompt(timestamps=False), [token for token in text_tokens if token < tokenizer.timestamp_begin])
        )
    if training_window.with_previous_text and previous_text:
        prompted_texts.append((prompt(previous=previous_text), text_tokens))
    # The decoder has n_ctx positions, and the last token is only predicted.
    return [(prefix, text[: n_ctx + 1 - len(prefix)]) for prefix, text in prompted_texts]


def timestamped_tokens(tokenizer: Tokenizer, training_window: TrainingWindow) -> list[int]:
    """Tokenize the texts of a window as a model would output them: each between its timestamps, then the end."""

    def timestamp_token(time_s: float) -> int:
        return tokenizer.timestamp_begin + round(time_s / TIMESTAMP_STEP_S)

    tokens = [
        token
        for start_s, end_s, text in training_window.span_times_s()
        for token in (
            timestamp_token(start_s),
            *tokenizer.encode(f" {(text or '').strip()}"),
            timestamp_token(end_s),
        )
    ]
    return [*(() if training_window.no_speech else tokens), tokenizer.eot]


def window_log_mel(samples: Floats, dims: Dims, silence_frames: int = SILENCE_FRAMES) -> Floats:
    """Return the log-mel of a training window, shape (n_mels, frames), with some silence behind it."""
    log_mel, max_frames = LogMel(dims.n_mels), 2 * dims.n_audio_ctx
    frames = np.concatenate([log_mel.feed(samples), log_mel.flush()], axis=1)[:, :max_frames]
    with_silence = frames.shape[1] + silence_frames
    n_frames = min(-(-with_silence // LENGTH_STEP_FRAMES) * LENGTH_STEP_FRAMES, max_frames)
    padded = np.pad(frames, ((0, 0), (0, n_frames - frames.shape[1])), constant_values=LOG_MEL_FLOOR)
    return normalize(padded, log_mel.ceiling)


def whole_log_mel(samples: Floats, dims: Dims) -> Floats:
    """Return the log-mel of a whole window, shape (n_mels, frames), with silence behind the audio."""
    return window_log_mel(samples, dims, FRAMES_PER_POSITION * dims.n_audio_ctx)


Labeller = Callable[[TrainingWindow, Sequence[int]], Example]
"""Returns the example of a window, given the text tokens of the window before it."""


def label_windows(
    windows: Sequence[TrainingWindow],
    store: ExampleStore,
    make_labeller: Callable[[], Labeller],
    eot: int,
    progress: Progress,
) -> None:
    """Store the example of every window; windows that the store holds are not labelled again.

    Parameters
    ----------
    windows : sequence of TrainingWindow
    store : ExampleStore
    make_labeller : callable
        Called once, and only if there is a window to label.
    eot : int
        First id that is not text.
    progress : callable
    """
    labeller: Labeller | None = None
    previous_texts: dict[tuple[str, bool], list[int]] = {}
    for done, window in enumerate(windows):
        progress(done, len(windows))
        group = window.group, window.held_out
        if not store.has(window):
            labeller = labeller or make_labeller()
            store.put(window, labeller(window, previous_texts.get(group, [])))
        text = store.first_text(window)
        previous_texts[group] = [token for token in text if token < eot] or previous_texts.get(group, [])
    progress(len(windows), len(windows))
