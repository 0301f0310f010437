"""Distillation of an assistant: the encoder of the main model, and a decoder of few layers that learns its output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harken.api import Recognizer
from harken.checkpoints import Checkpoint, encoder_digest
from harken.checkpoints.adapter import ASSISTANT_FILE, is_stitched_weight, serialize_assistant
from harken.checkpoints.huggingface import export
from harken.files import write_atomic
from harken.training.examples import ExampleStore, StateMatchedStore
from harken.training.labelling import Labeller, Teacher, label_windows
from harken.training.loop import TrainingCallbacks
from harken.training.network import as_arrays, fastest_matmul_dtype
from harken.training.objective import Distillation
from harken.training.options import DistillOptions
from harken.training.run import TrainingTask, prepare_examples, run_training
from harken.training.student import (
    FACTOR_LEARNING_RATE_SCALE,
    OTHER_LEARNING_RATE_SCALE,
    TOKEN_EMBEDDING,
    check_stitchable,
    copy_decoder_layers,
    evenly_spaced_layers,
    fit_stitching_map,
    frequent_token_ids,
    low_rank_changes,
    scored_token_ids,
    small_model_labeller,
    stitch_decoder,
    stitched_dims,
    student_dims,
    trainable_weights,
)
from harken.training.windows import TrainingWindow, find_speech
from harken.types import Dims

MAX_DRAFT_VOCABULARY_SHARE = 0.5
"""Largest share of a vocabulary for which scoring only a part of it saves enough time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialModel:
    """A smaller model whose decoder initialises the assistant.

    Parameters
    ----------
    name : str
        Its name or path, under which the assistant finds it.
    checkpoint : Checkpoint
    load_recognizer : callable
        Loads the same model on the CPU engine.
    """

    name: str
    checkpoint: Checkpoint
    load_recognizer: Callable[[], Recognizer]


def distill(
    task: TrainingTask[DistillOptions],
    layers: int,
    load_recognizer: Callable[[], Recognizer],
    callbacks: TrainingCallbacks,
    initial_model: InitialModel | None = None,
) -> bool:
    """Train an assistant; resumes where the same task was interrupted.

    Parameters
    ----------
    task : TrainingTask
    layers : int
        Layers of its decoder, 1 to 4, where it starts from layers of the main model.
    load_recognizer : callable
        Loads the main model on the CPU engine; called only if windows have to be transcribed.
    callbacks : TrainingCallbacks
    initial_model : InitialModel, optional
        A smaller model to start from instead.

    Returns
    -------
    bool
        True if the training was completed; False if it was stopped. Either way the best assistant so far is in
        ``task.out``.

    Raises
    ------
    OptionError
        If the model has fewer layers, or the smaller model does not fit it.
    ManifestError
        If there is no speech to learn from or to measure with.
    OutputError
        If ``task.out`` holds something else.
    """
    main_checkpoint, rank = task.checkpoint, task.options.rank
    layer_indices = evenly_spaced_layers(layers, main_checkpoint.dims.n_text_layer)
    if initial_model:
        check_stitchable(initial_model.checkpoint, main_checkpoint)
    task.create_or_resume(
        task="distill", layers=layers, start=initial_model.checkpoint.weights.digest if initial_model else None
    )
    windows, held_out = prepare_examples(
        task, find_speech, lambda: Teacher(load_recognizer(), main_checkpoint), callbacks
    )
    store = ExampleStore(task.run_directory.examples_folder)
    texts = [store.first_text(window) for window in windows]
    if initial_model:
        store = _add_small_model_states(task, initial_model, [*windows, *held_out], callbacks)
        dims, weights = _stitched_student(task, initial_model, windows, store)
    else:
        dims, weights = (
            student_dims(main_checkpoint.dims, layers),
            copy_decoder_layers(main_checkpoint.weights, layer_indices),
        )
    objective = Distillation(
        dims=dims,
        weights=weights,
        trainable=(
            low_rank_changes(weights, rank, task.data.seed)
            if initial_model and rank
            else trainable_weights(weights)
        ),
        scored_ids=scored_token_ids(task.tokenizer, texts),
        teacher_embedding=torch.tensor(main_checkpoint.weights[TOKEN_EMBEDDING]).float(),
        dtype=fastest_matmul_dtype(),
        options=task.options,
        learning_rate_scale=_stitched_learning_rate_scale if initial_model else lambda name: 1.0,
    )
    harken_config: dict[str, Any] = {"encoder_sha256": encoder_digest(main_checkpoint)}
    draft_vocabulary = frequent_token_ids(task.tokenizer, texts)
    if len(draft_vocabulary) < MAX_DRAFT_VOCABULARY_SHARE * main_checkpoint.dims.n_vocab:
        harken_config["draft_vocabulary"] = draft_vocabulary.tolist()

    def export_best() -> None:
        if initial_model and rank:
            changes, digest = as_arrays(objective.trainable), harken_config["encoder_sha256"]
            content = serialize_assistant(changes, digest, initial_model.name)
            write_atomic(task.out / ASSISTANT_FILE, content)
        else:
            export(
                task.out,
                dims,
                as_arrays(weights),
                task.tokenizer,
                source_folder=task.source_folder,
                harken_config=harken_config,
            )

    return run_training(task, objective, windows, held_out, store, export_best, callbacks)


def _add_small_model_states(
    task: TrainingTask[DistillOptions],
    initial_model: InitialModel,
    windows: Sequence[TrainingWindow],
    callbacks: TrainingCallbacks,
) -> StateMatchedStore:
    """Run the decoder of the smaller model over the texts of all windows and store its states."""
    store = ExampleStore(task.run_directory.examples_folder)
    matched = StateMatchedStore(store.folder, ExampleStore(task.run_directory.small_model_folder))

    def make_labeller() -> Labeller:
        return small_model_labeller(initial_model.load_recognizer(), initial_model.checkpoint.weights, store)

    progress = partial(callbacks.on_progress, "windows, small model")
    label_windows(windows, matched.target_store, make_labeller, task.tokenizer.eot, progress)
    return matched


def _stitched_student(
    task: TrainingTask[DistillOptions],
    initial_model: InitialModel,
    windows: Sequence[TrainingWindow],
    store: StateMatchedStore,
) -> tuple[Dims, dict[str, Tensor]]:
    """Return the initial dimensions and weights; a resumed training overwrites them, so it needs no stitching map."""
    main_dims, small_dims = task.checkpoint.dims, initial_model.checkpoint.dims
    stitching_map = np.zeros((main_dims.n_audio_state + 1, small_dims.n_audio_state))
    if not task.run_directory.has_state:
        pairs = (
            (ExampleStore.get(store, window).audio_features, store.target_store.get(window).audio_features)
            for window in windows
        )
        stitching_map = fit_stitching_map(pairs, *stitching_map.shape)
    return stitched_dims(small_dims, main_dims), stitch_decoder(initial_model.checkpoint.weights, stitching_map)


def _stitched_learning_rate_scale(name: str) -> float:
    if is_stitched_weight(name):
        return 1.0
    return FACTOR_LEARNING_RATE_SCALE if name.endswith((".A", ".B")) else OTHER_LEARNING_RATE_SCALE
