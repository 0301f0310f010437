"""Adaptation of an encoder to windows that it was not trained for, without labels: LoRA by self-distillation.

The student hears a part of what its teacher, the same model, hears with the whole window, and learns to give the
decoder what the teacher gives it. Hu et al. 2021, "LoRA: Low-rank adaptation of large language models", for the
matrices of the encoder's attention; the audio-context fine-tuning of FUTO's whisper-acft for the idea.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from harken.api import Recognizer
from harken.checkpoints import encoder_digest
from harken.checkpoints.adapter import ADAPTER_FILE, adapted_names, serialize_adapter
from harken.errors import OptionError
from harken.files import write_atomic
from harken.streaming.config import PRESETS
from harken.training.examples import Example, ExampleStore
from harken.training.hearing import HEARINGS, max_live_s, run_streaming_encoder
from harken.training.labelling import Teacher
from harken.training.loop import TrainingCallbacks
from harken.training.network import as_arrays, as_tensors, fastest_matmul_dtype, initial_factors, with_changes
from harken.training.objective import Acceptance, Distillation, autocast
from harken.training.options import AdaptDataOptions, AdaptOptions
from harken.training.run import TrainingTask, prepare_examples, run_training
from harken.training.student import TOKEN_EMBEDDING, scored_token_ids
from harken.training.windows import MAX_SPEECH_S, SpeechSpan, TrainingWindow, find_speech
from harken.types import Dims

MIN_CUT_S = 1.5
"""Least that is left of a window that is cut off."""


def adapt(
    task: TrainingTask[AdaptOptions],
    load_recognizer: Callable[[], Recognizer],
    callbacks: TrainingCallbacks,
) -> bool:
    """Train an adapter; resumes where the same task was interrupted.

    Parameters
    ----------
    task : TrainingTask
        Its data options are `AdaptDataOptions`.
    load_recognizer : callable
        Loads the model on the CPU engine; called only if windows have to be transcribed.
    callbacks : TrainingCallbacks

    Returns
    -------
    bool
        True if the training was completed; False if it was stopped. Either way the best adapter so far is in
        ``task.out``.

    Raises
    ------
    OptionError
        If the model is too small for live windows.
    ManifestError
        If there is no speech to learn from or to measure with.
    OutputError
        If ``task.out`` holds something else.
    """
    checkpoint, options, data = task.checkpoint, task.options, task.data
    assert isinstance(data, AdaptDataOptions), "the options of an adapter's windows"
    max_s = max_live_s(checkpoint.dims) if "live" in options.hears else MAX_SPEECH_S
    if max_s < MIN_CUT_S:
        raise OptionError("hears", "live", "whole, with a model of so short a window")
    task.create_or_resume(task="adapt")
    windows, held_out = prepare_examples(
        task,
        find_speech,
        lambda: Teacher(load_recognizer(), checkpoint, for_encoder=True),
        callbacks,
        edit=lambda windows: cut_windows(windows, data, max_s),
    )
    store = ExampleStore(task.run_directory.examples_folder)
    weights = as_tensors(checkpoint.weights)
    objective = Adaptation(
        dims=checkpoint.dims,
        weights=weights,
        trainable=initial_factors(weights, adapted_names(weights), options.rank, task.data.seed),
        distillation=Distillation(
            dims=checkpoint.dims,
            weights=weights,
            trainable={},
            scored_ids=scored_token_ids(task.tokenizer, [store.first_text(window) for window in windows]),
            teacher_embedding=weights[TOKEN_EMBEDDING],
            dtype=fastest_matmul_dtype(),
            options=options,
        ),
        options=options,
    )
    digest = encoder_digest(checkpoint)

    def export_best() -> None:
        factors = as_arrays(objective.trainable)
        hears = ",".join(options.hears)
        write_atomic(task.out / ADAPTER_FILE, serialize_adapter(factors, digest, hears=hears))

    return run_training(task, objective, windows, held_out, store, export_best, callbacks)


def cut_windows(
    windows: Sequence[TrainingWindow], data: AdaptDataOptions, max_s: float
) -> list[TrainingWindow]:
    """Cut a share of the windows off at a random place, and all of them at a length."""
    rng = np.random.default_rng(data.seed)
    cut_off = rng.random(len(windows)) < data.cut_fraction
    lengths_s = [
        float(rng.uniform(MIN_CUT_S, max(MIN_CUT_S, min(window.duration_s, max_s)))) if cut else max_s
        for window, cut in zip(windows, cut_off, strict=True)
    ]
    return [
        window if window.duration_s <= length_s else _shortened(window, length_s)
        for window, length_s in zip(windows, lengths_s, strict=True)
    ]


def _shortened(window: TrainingWindow, length_s: float) -> TrainingWindow:
    room_s, spans = length_s * window.speed, list[SpeechSpan]()
    for span in window.spans:
        if room_s > span.pause_s:
            end_s = min(span.end_s, span.start_s + room_s - span.pause_s)
            spans.append(replace(span, end_s=round(end_s, 2)))
        room_s -= span.duration_s
    return replace(window, spans=tuple(spans))


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptation:
    """Self-distillation of an encoder.

    Parameters
    ----------
    dims : Dims
    weights : dict of str to Tensor
        All weights of the model, none of which is trained.
    trainable : dict of str to Tensor
        Factors A and B of the change to each matrix, which is their product B A.
    distillation : Distillation
        The loss of the decoder's states and distribution, given the output of the encoder.
    options : AdaptOptions
    """

    dims: Dims
    weights: dict[str, Tensor]
    trainable: dict[str, Tensor]
    distillation: Distillation
    options: AdaptOptions

    def learning_rate_scale(self, name: str) -> float:
        return 1.0

    def loss(self, example: Example, progress: float = 0.0) -> tuple[Tensor, int]:
        choice = int(torch.randint(1_000_000, ()))
        return self.distillation.loss_of(self.encode(example, choice), example)

    def evaluate(self, example: Example) -> Acceptance:
        with torch.inference_mode():
            encoded = self.encode(example, choice=len(example.audio_features))
        return self.distillation.evaluate_with(encoded, example)

    def encode(self, example: Example, choice: int) -> Tensor:
        """Return the output of the adapted encoder for what it hears of an example, float32.

        Parameters
        ----------
        example : Example
        choice : int
            Chooses one of the ways of hearing.
        """
        hearings = [hearing for name in self.options.hears for hearing in HEARINGS[name]]
        hearing = hearings[choice % len(hearings)]
        chunks = hearing(np.asarray(example.audio_features, np.float32), self.dims, self.options)
        history_frames = PRESETS[self.options.delay].history_frames
        with autocast(self.distillation.dtype):
            weights = with_changes(self.weights, self.trainable)
            encoded = run_streaming_encoder(weights, self.dims, chunks, history_frames)
        return encoded.float()
