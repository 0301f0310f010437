"""Training examples: the encoder output of a window, token sequences with the teacher's states, and files of them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
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
from harken.training.network import as_tensors, run_decoder
from harken.training.windows import Progress, TrainingWindow
from harken.transcribe import TranscribeOptions
from harken.transcribe.language_id import language_probabilities
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, TIMESTAMP_STEP_S, Dims

HalfFloats = NDArray[np.float16]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSequence:
    """One text of a window."""

    tokens: Ints  # prompt, text and end of text: shape (n,), int64
    text_start: int  # start of the text behind the prompt: the tokens from here on are to be predicted
    # Final states of the main decoder where it predicts ``tokens[text_start:]``: shape (n - text_start,
    # n_text_state), or (0, n_text_state) where no decoder was run. Multiplied with the token embedding they give all
    # of its logits.
    teacher_states: HalfFloats
    # States that the student should have there, where these are not those of the main decoder: shape (n - text_start,
    # n_text_state of the student).
    target_states: HalfFloats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One window to learn from."""

    # The output of the encoder, shape (positions, n_audio_state); or where the encoder is trained too its input, shape
    # (n_mels, frames), or the audio of which it hears parts, shape (samples,).
    audio_features: HalfFloats | Floats
    sequences: tuple[TrainingSequence, ...]  # empty where the transcript of the main model was rejected


@dataclass(frozen=True, slots=True)
class ExampleStore:
    """Examples in a folder, each in a file of its own."""

    folder: Path  # of the examples of one model

    def path(self, window: TrainingWindow) -> Path:
        """Return the path of the file for a window, whether or not it exists."""
        return self.folder / f"{window.key}.npz"

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

Labeller = Callable[[TrainingWindow, Sequence[int]], Example]
"""Returns the example of a window, given the text tokens of the window before it."""

PromptedText = tuple[tuple[int, ...], Sequence[int]]
"""A prompt, and the text tokens that follow it."""


def main_model_labeller(
    recognizer: Recognizer, checkpoint: Checkpoint, dtype: torch.dtype, *, for_encoder: bool = False
) -> Labeller:
    """Return a labeller that transcribes windows with the main model, and computes its states for the texts.

    The recognizer is the checkpoint on the CPU engine, which encodes and transcribes as it will with the assistant; its
    states are computed with matrix products of `dtype`. A window whose transcript is repetitive or improbable has no
    texts. Examples from which an encoder learns hold the samples of windows, which are encoded whole.
    """
    backend, tokenizer, dims = recognizer.backend, recognizer.tokenizer, checkpoint.dims
    rules = make_logit_rules(tokenizer, timestamps=True)
    weights = as_tensors(checkpoint.weights, "decoder.", dtype)

    def transcribe(features: Features, language: str) -> list[int] | None:
        prompt = make_prompt(tokenizer, dims.n_text_ctx, language=language, task="transcribe", timestamps=True)
        (decoded,), _ = decode(
            backend,
            features,
            [Window(window_index=0, prompt=prompt)],
            tokenizer=tokenizer,
            logit_rules=rules,
            strategy=Greedy(),
        )
        rejected = ACCEPTANCE_OPTIONS.rejection_reason(decoded)
        return None if rejected else [*decoded.hypothesis.tokens, tokenizer.eot]

    def with_states(prompt: Sequence[int], text: Sequence[int], encoder_output: Tensor) -> TrainingSequence:
        tokens = torch.tensor([*prompt, *text])
        states = run_decoder(weights, dims, tokens[None, :-1], encoder_output)[0, len(prompt) - 1 :]
        return TrainingSequence(
            tokens=tokens.numpy(), text_start=len(prompt), teacher_states=states.half().numpy()
        )

    def label(window: TrainingWindow, previous_text: Sequence[int]) -> Example:
        samples = window.samples()
        features = backend.encode((whole_log_mel if for_encoder else window_log_mel)(samples, dims)[None])
        (encoder_output,) = backend.encoder_output(features)
        language = window.language or next(iter(language_probabilities(backend, features, tokenizer)[0]))
        text = transcribe(features, language)
        texts = text and make_prompted_texts(tokenizer, dims.n_text_ctx, window, language, text, previous_text)
        with torch.inference_mode():
            source = torch.from_numpy(encoder_output).to(dtype)
            sequences = tuple(with_states(*prompted, source) for prompted in texts or ())
        audio_features = samples if for_encoder else encoder_output.astype(np.float16)
        return Example(audio_features=audio_features, sequences=sequences)

    return label


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
    prompt = partial(make_prompt, tokenizer, n_ctx, language=language, task="transcribe")
    prompted_texts: list[PromptedText] = [(prompt(timestamps=True), text_tokens)]
    if training_window.without_timestamps:
        untimed = [token for token in text_tokens if token < tokenizer.timestamp_begin]
        prompted_texts.append((prompt(timestamps=False), untimed))
    if training_window.with_previous_text and previous_text:
        prompted_texts.append((prompt(timestamps=True, previous_tokens=previous_text), text_tokens))
    # The decoder has n_ctx positions, and the last token is only predicted.
    return [(prefix, text[: n_ctx + 1 - len(prefix)]) for prefix, text in prompted_texts]


def timestamped_tokens(tokenizer: Tokenizer, training_window: TrainingWindow) -> list[int]:
    """Tokenize the texts of a window as a model would output them: each between its timestamps, then the end."""
    tokens: list[int] = []
    for start_s, end_s, text in () if training_window.no_speech else training_window.span_times_s():
        start, end = (
            tokenizer.timestamp_begin + round(time_s / TIMESTAMP_STEP_S) for time_s in (start_s, end_s)
        )
        tokens += [start, *tokenizer.encode(f" {(text or '').strip()}"), end]
    return [*tokens, tokenizer.eot]


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


def label_windows(
    windows: Sequence[TrainingWindow],
    store: ExampleStore,
    make_labeller: Callable[[], Labeller],
    eot: int,
    progress: Progress,
) -> None:
    """Store the example of every window; windows that the store holds are not labelled again.

    The labeller is made only if there is a window to label. The first id that is not text is `eot`.
    """
    labeller = cache(make_labeller)
    previous_texts: dict[tuple[str, bool], list[int]] = {}
    for done, window in enumerate(windows):
        progress(done, len(windows))
        group = window.group, window.held_out
        if not store.path(window).is_file():
            store.put(window, labeller()(window, previous_texts.get(group, [])))
        text = store.first_text(window)
        previous_texts[group] = [token for token in text if token < eot] or previous_texts.get(group, [])
    progress(len(windows), len(windows))
