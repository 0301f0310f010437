"""A model that learns what a manifest says: names, spelling, a way of speaking, a language it knows little of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import torch

from harken.api import Recognizer
from harken.errors import ManifestError
from harken.evaluation import Entry
from harken.results import Word
from harken.training.example_store import ExampleStore
from harken.training.examples import Example, TrainingSequence
from harken.training.export import export
from harken.training.labelling import make_prompted_texts, timestamped_tokens, window_log_mel
from harken.training.network import run_encoder
from harken.training.objective import FineTuning
from harken.training.options import FineTuneOptions
from harken.training.precision import fastest_matmul_dtype
from harken.training.recordings import MAX_SPEECH_S, SpeechSegment, find_speech
from harken.training.run import TrainingCallbacks, TrainingTask, prepare_examples, run_training
from harken.training.windows import TrainingWindow

SPEECH_PAD_S = 0.1
"""Sound kept around what is said: timestamps are to be where it begins and ends."""


def finetune(
    task: TrainingTask[FineTuneOptions],
    freeze_encoder: bool,
    load_recognizer: Callable[[], Recognizer],
    callbacks: TrainingCallbacks,
) -> bool:
    """Fine-tune a model; goes on where the same task was interrupted.

    Parameters
    ----------
    task : Task
        Its recordings have texts.
    freeze_encoder : bool
        Whether only the decoder learns, which is several times faster.
    load : callable
        Loads the main model; called only if a recording longer than a window has to be cut.
    audience : Audience

    Returns
    -------
    bool
        Whether it came to its end; False if it was stopped. The best model so far is in ``task.out`` either way.

    Raises
    ------
    ManifestError
        If no recording has a text, or there is nothing to learn from or to measure with.
    OutputError
        If ``task.out`` holds something else.
    """
    _check_has_text(task)
    task.create_or_resume(task="finetune", freeze_encoder=freeze_encoder)
    weights = {name: torch.tensor(task.checkpoint.weights[name]).float() for name in task.checkpoint.weights}
    labeller = _ManifestLabeller(task, weights if freeze_encoder else None)
    windows, held_out = prepare_examples(task, _SpeechAligner(load_recognizer), lambda: labeller, callbacks)
    trainable = {
        name: values.requires_grad_()
        for name, values in weights.items()
        if name.startswith("decoder.") or not freeze_encoder
    }
    objective = FineTuning(
        dims=task.checkpoint.dims,
        weights=weights,
        trainable=trainable,
        dtype=fastest_matmul_dtype(),
        options=task.options,
    )

    def export_best() -> None:
        arrays = {name: values.detach().half().numpy() for name, values in weights.items()}
        export(task.out, task.checkpoint.dims, arrays, task.tokenizer, source_folder=task.source_folder)

    return run_training(
        task,
        objective,
        windows,
        held_out,
        ExampleStore(task.run_directory.examples_folder),
        export_best,
        callbacks,
    )


class _ManifestLabeller:
    """Answers with what the manifest says about a piece."""

    def __init__(
        self, task: TrainingTask[FineTuneOptions], frozen_weights: dict[str, torch.Tensor] | None
    ) -> None:
        self._tokenizer, self._dims, self._frozen_weights = task.tokenizer, task.checkpoint.dims, frozen_weights

    def __call__(self, training_window: TrainingWindow, previous_text: Sequence[int]) -> Example:
        text_tokens = timestamped_tokens(self._tokenizer, training_window)
        sequences = []
        for prompt, text in make_prompted_texts(
            self._tokenizer,
            self._dims.n_text_ctx,
            training_window,
            training_window.language or "en",
            text_tokens,
            previous_text,
        ):
            no_states = np.empty((0, self._dims.n_text_state), np.float16)
            sequences.append(
                TrainingSequence(
                    tokens=np.array([*prompt, *text]), text_start=len(prompt), teacher_states=no_states
                )
            )
        audio_features = torch.from_numpy(window_log_mel(training_window.samples(), self._dims))
        if self._frozen_weights is not None:
            with (
                torch.inference_mode(),
                torch.autocast("cpu", fastest_matmul_dtype(), enabled=fastest_matmul_dtype() != torch.float32),
            ):
                audio_features = run_encoder(self._frozen_weights, self._dims, audio_features)
        return Example(audio_features=audio_features.half().numpy(), sequences=tuple(sequences))


class _SpeechAligner:
    """Says what is spoken where; a recording that is longer than a window is aligned by the model, and cut."""

    def __init__(self, load_recognizer: Callable[[], Recognizer]) -> None:
        self._recognizer = cache(load_recognizer)

    def __call__(self, entry: Entry) -> tuple[tuple[SpeechSegment, ...], float]:
        regions, duration_s = find_speech(entry, SPEECH_PAD_S)
        if not entry.text.strip() or not regions:
            return (), duration_s
        start_s, end_s = regions[0].start_s, regions[-1].end_s
        if end_s - start_s <= MAX_SPEECH_S:
            return (SpeechSegment(start_s=start_s, end_s=end_s, text=entry.text),), duration_s
        words = self._recognizer().align(entry.path, entry.text, language=entry.language)
        return tuple(split_at_pauses(words, duration_s)), duration_s


def split_at_pauses(words: Sequence[Word], duration_s: float) -> Iterator[SpeechSegment]:
    """Cut aligned words into stretches that fit into a window, each at its longest pause, the last of several.

    A pause in the second half of what fits, if there is one, so that no stretch is short.
    """
    remaining = list(words)
    while remaining:
        end_s = remaining[0].start_s + MAX_SPEECH_S - 2 * SPEECH_PAD_S
        n_fitting = max(1, sum(word.end_s <= end_s for word in remaining))
        if n_fitting < len(remaining):
            candidates = range(-(-n_fitting // 2), n_fitting + 1)
            n_fitting = max(candidates, key=lambda i: (remaining[i].start_s - remaining[i - 1].end_s, i))
        segment, remaining = remaining[:n_fitting], remaining[n_fitting:]
        yield SpeechSegment(
            start_s=max(0.0, segment[0].start_s - SPEECH_PAD_S),
            end_s=min(duration_s, segment[-1].end_s + SPEECH_PAD_S),
            text="".join(word.text for word in segment).strip(),
        )


def _check_has_text(task: TrainingTask[FineTuneOptions]) -> None:
    if not any(entry.text.strip() for entry in (*task.entries, *task.held_out_entries)):
        raise ManifestError(
            f"{task.entries[0].path}: nothing tells what is said in it, nor in the others; "
            "allowed are manifests with text"
        )
