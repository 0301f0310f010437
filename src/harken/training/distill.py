"""Distillation of an assistant: the encoder of the main model, and a decoder of few layers that learns its output.

The student begins as some layers of the main model's decoder, or as a smaller model's decoder stitched to its encoder:
a linear map predicts the output of the smaller model's encoder from that of the main encoder, on the same audio. Folded
into the keys and values of the cross-attention it costs nothing at inference. The stitched decoder starts with much of
what the smaller model learnt from far more speech than a user has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from harken.api import Recognizer
from harken.checkpoints import Checkpoint, Weights, encoder_digest
from harken.checkpoints.assistant import ASSISTANT_FILE, is_stitched_weight, serialize_assistant
from harken.checkpoints.huggingface import export
from harken.contract import Floats, Ints
from harken.errors import OptionError
from harken.files import write_atomic
from harken.text import Tokenizer
from harken.training.examples import (
    Example,
    ExampleStore,
    HalfFloats,
    Labeller,
    label_windows,
    main_model_labeller,
    window_log_mel,
    with_targets,
)
from harken.training.network import TOKEN_EMBEDDING, as_arrays, as_tensors, initial_factors, run_decoder
from harken.training.objective import Distillation, scored_token_ids
from harken.training.options import MAX_DECODER_LAYERS, DistillOptions
from harken.training.run import TrainingCallbacks, TrainingTask, prepare_examples, train
from harken.training.windows import TrainingWindow, find_speech
from harken.types import Dims

MAX_DRAFT_VOCABULARY_SHARE = 0.5
"""Largest share of a vocabulary for which scoring only a part of it saves enough time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialModel:
    """A smaller model whose decoder initialises the assistant."""

    name: str  # its name or path, under which the assistant finds it
    checkpoint: Checkpoint
    load_recognizer: Callable[[], Recognizer]  # loads the same model on the CPU engine


def distill(
    task: TrainingTask[DistillOptions],
    layers: int,
    callbacks: TrainingCallbacks,
    initial_model: InitialModel | None = None,
) -> bool:
    """Train an assistant; resumes where the same task was interrupted.

    It starts from 1 to 4 `layers` of the main model's decoder, or from a smaller model. It returns False if it was
    stopped before its end; either way the best assistant so far is in ``task.out``.

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
    start = initial_model.checkpoint.weights.digest if initial_model else None
    task.create_or_resume(task="distill", layers=layers, start=start)
    dtype = task.run_directory.matmul_dtype()
    windows, held_out = prepare_examples(
        task,
        find_speech,
        lambda: main_model_labeller(task.load_recognizer(), main_checkpoint, dtype),
        callbacks,
    )
    directory = task.run_directory
    texts = [directory.examples.first_text(window) for window in windows]
    if initial_model:
        dims, weights = _stitched_student(task, initial_model, windows, held_out, callbacks)
    else:
        dims = student_dims(main_checkpoint.dims, layers)
        weights = copy_decoder_layers(main_checkpoint.weights, layer_indices)
    low_rank = low_rank_changes(weights, rank, task.data.seed) if initial_model and rank else None
    objective = Distillation(
        dims=dims,
        weights=weights,
        trainable=low_rank or trainable_weights(weights),
        scored_ids=scored_token_ids(task.tokenizer, texts),
        teacher_embedding=torch.tensor(main_checkpoint.weights[TOKEN_EMBEDDING]).float(),
        dtype=dtype,
        options=task.options,
    )
    harken_config: dict[str, Any] = {"encoder_sha256": encoder_digest(main_checkpoint)}
    draft_vocabulary = frequent_token_ids(task.tokenizer, texts)
    if len(draft_vocabulary) < MAX_DRAFT_VOCABULARY_SHARE * main_checkpoint.dims.n_vocab:
        harken_config["draft_vocabulary"] = draft_vocabulary.tolist()

    def export_best() -> None:
        if initial_model and low_rank:
            changes, digest = as_arrays(low_rank), harken_config["encoder_sha256"]
            content = serialize_assistant(changes, digest, initial_model.name)
            write_atomic(task.out / ASSISTANT_FILE, content)
        else:
            arrays, folder = as_arrays(weights), task.source_folder
            export(task.out, dims, arrays, task.tokenizer, source_folder=folder, harken_config=harken_config)

    def load_example(window: TrainingWindow) -> Example:
        example = directory.examples.get(window)
        return with_targets(example, directory.small_model_examples.get(window)) if initial_model else example

    scale = _stitched_learning_rate_scale if initial_model else lambda name: 1.0
    return train(task, objective, windows, held_out, load_example, export_best, callbacks, scale)


def _stitched_student(
    task: TrainingTask[DistillOptions],
    small_model: InitialModel,
    windows: Sequence[TrainingWindow],
    held_out: Sequence[TrainingWindow],
    callbacks: TrainingCallbacks,
) -> tuple[Dims, dict[str, Tensor]]:
    """Return the initial dimensions and weights, and store the examples of the smaller model.

    A resumed training overwrites the weights, so it needs no stitching map.
    """
    directory, weights = task.run_directory, small_model.checkpoint.weights
    label_windows(
        [*windows, *held_out],
        directory.small_model_examples,
        lambda: small_model_labeller(small_model.load_recognizer(), weights, directory.examples),
        task.tokenizer.eot,
        partial(callbacks.on_progress, "windows, small model"),
    )
    main_dims, small_dims = task.checkpoint.dims, small_model.checkpoint.dims
    stitching_map = np.zeros((main_dims.n_audio_state + 1, small_dims.n_audio_state))
    if not directory.has_state:
        main, small = directory.examples, directory.small_model_examples
        pairs = ((main.get(window).audio_features, small.get(window).audio_features) for window in windows)
        stitching_map = fit_stitching_map(pairs, *stitching_map.shape)
    return stitched_dims(small_dims, main_dims), stitch_decoder(weights, stitching_map)


def _stitched_learning_rate_scale(name: str) -> float:
    if is_stitched_weight(name):
        return 1.0
    return FACTOR_LEARNING_RATE_SCALE if name.endswith((".A", ".B")) else OTHER_LEARNING_RATE_SCALE


def evenly_spaced_layers(layers: int, n_layers: int) -> tuple[int, ...]:
    """Choose the layers to start from: evenly spaced, the first and the last among them.

    Source: Shleifer and Rush 2020, arXiv:2010.13002; Gandhi et al. 2023, arXiv:2311.00430, section 3. A single layer
    is the last one, which the final layer norm was trained on. An `OptionError` says that there are not as many.
    """
    max_layers = min(MAX_DECODER_LAYERS, n_layers)
    if not 1 <= layers <= max_layers:
        raise OptionError("layers", layers, f"1 to {max_layers}, of a decoder with {n_layers}")
    if layers == 1:
        return (n_layers - 1,)
    return tuple(np.linspace(0, n_layers - 1, layers).round().astype(int).tolist())


def student_dims(dims: Dims, layers: int) -> Dims:
    """Return the dimensions of a decoder without an encoder."""
    return replace(dims.without_encoder(), n_text_layer=layers)


def copy_decoder_layers(weights: Weights, layers: Sequence[int]) -> dict[str, Tensor]:
    """Return the decoder's weights, float32, with only the given layers, in this order."""
    sources: dict[str, str] = {}
    for name in weights:
        match name.split("."):
            case "decoder", "blocks", layer, *part:
                if int(layer) in layers:
                    sources[".".join(("decoder.blocks", str(layers.index(int(layer))), *part))] = name
            case "decoder", *_:
                sources[name] = name
    return {name: torch.tensor(weights[source]).float() for name, source in sources.items()}


def trainable_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of an assistant that are trained: all but the token embedding.

    The embedding is the largest matrix of a small decoder, and most of its rows would not occur in a few hours of
    speech. Frozen, it preserves the main model's knowledge of rare tokens, and final states have the same meaning in
    both models.
    """
    return {name: values.requires_grad_() for name, values in weights.items() if name != TOKEN_EMBEDDING}


COVERAGE = 0.995
"""Share of the tokens of further text that a draft vocabulary is to have: each missing percent costs about two percent
of the speed."""


def frequent_token_ids(
    tokenizer: Tokenizer, texts: Iterable[Iterable[int]], coverage: float = COVERAGE
) -> Ints:
    """Return the ids that an assistant scores when it drafts, ascending: estimated to cover a share of further text.

    These are all tokens of the texts, all special tokens and timestamps, and as many of the lowest ids as needed: byte
    pairs merged first are the most frequent in written text, though not enough alone. The share of unseen tokens in
    further text is estimated by the share of tokens that occur once in the texts (Good 1953, "The population
    frequencies of species and the estimation of population parameters"). For a small text the result is nearly the
    whole vocabulary, for none all of it. The texts are token ids, of the kind that is to be drafted;
    those of special tokens are ignored.
    """
    eot = tokenizer.eot
    tokens = np.fromiter((token for text in texts for token in text if token < eot), np.int64)
    counts = np.bincount(tokens, minlength=eot)
    singletons = np.flatnonzero(counts == 1)[::-1]
    missing = int((1 - coverage) * len(tokens))
    n_always_included = 0 if len(tokens) else eot
    if missing < len(singletons):
        n_always_included = int(singletons[missing]) + 1
    included = (np.arange(eot) < n_always_included) | (counts > 0)
    return np.concatenate([np.flatnonzero(included), np.arange(eot, tokenizer.n_vocab)])


RIDGE_PENALTY = 1.0
OTHER_LEARNING_RATE_SCALE = 0.1
"""Learning rate of all but the stitched weights, relative to theirs: these are trained already."""

STITCHED_RANK_RATIO = 8
"""Rank of the stitched weights, which begin at nothing, over that of changes."""

FACTOR_LEARNING_RATE_SCALE = 0.3
"""Learning rate of the factors of all other changes, relative to the stitched weights'."""

StitchingMap = NDArray[np.float64]


def check_stitchable(small_model: Checkpoint, main_model: Checkpoint) -> None:
    """Refuse a decoder of too many layers, or of another vocabulary or length of a window than the encoder's model."""
    for field in ("n_vocab", "n_audio_ctx"):
        has, needs = getattr(small_model.dims, field), getattr(main_model.dims, field)
        if has != needs:
            raise OptionError("init_from", str(small_model.path), f"a model with {field}={needs}, not {has}")
    if small_model.dims.n_text_layer > MAX_DECODER_LAYERS:
        raise OptionError(
            "init_from", str(small_model.path), f"a decoder of at most {MAX_DECODER_LAYERS} layers"
        )


def stitched_dims(small_dims: Dims, main_dims: Dims) -> Dims:
    """Return the dimensions of the smaller decoder with the main encoder."""
    encoder_fields = {
        name: getattr(main_dims, name) for name in ("n_mels", "n_audio_ctx", "n_audio_state", "n_audio_head")
    }
    return replace(small_dims.without_encoder(), **encoder_fields)


def stitch_decoder(weights: Weights, stitching_map: StitchingMap) -> dict[str, Tensor]:
    """Return the smaller model's decoder weights, float32, with the map of `fit_stitching_map` folded in."""
    linear, offset = (torch.from_numpy(part).float() for part in (stitching_map[:-1].T, stitching_map[-1]))
    stitched = as_tensors(weights, "decoder.")
    for name in filter(is_stitched_weight, list(stitched)):
        if name.endswith(".value.weight"):
            bias = name.replace("weight", "bias")
            stitched[bias] = stitched[bias] + stitched[name] @ offset
        # The offset adds the same score to all keys, which softmax ignores.
        stitched[name] = stitched[name] @ linear
    return stitched


def low_rank_changes(weights: dict[str, Tensor], rank: int, seed: int) -> dict[str, Tensor]:
    """Return what is trained of a stitched decoder if its changes are of low rank: factors and vectors.

    The stitched weights, which the smaller model has not, become products altogether, of `STITCHED_RANK_RATIO` times
    the rank: they are replaced in `weights` by zeros.
    """
    matrices = [
        name for name, values in weights.items() if name.startswith("decoder.blocks.") and values.ndim == 2
    ]
    trained = initial_factors(weights, matrices, rank, seed)
    for name in filter(is_stitched_weight, matrices):
        left, sizes, right = torch.linalg.svd(weights[name], full_matrices=False)
        roots = sizes[: STITCHED_RANK_RATIO * rank].sqrt()
        trained[f"{name}.A"] = (roots[:, None] * right[: len(roots)]).requires_grad_()
        trained[f"{name}.B"] = (left[:, : len(roots)] * roots).requires_grad_()
        weights[name] = torch.zeros_like(weights[name])
    vectors = {name: values.requires_grad_() for name, values in weights.items() if values.ndim == 1}
    return trained | vectors


def small_model_labeller(recognizer: Recognizer, weights: Weights, store: ExampleStore) -> Labeller:
    """Return a labeller that runs the smaller model, with its own encoder, over the texts of the main model's examples.

    Its states are the targets of the stitched decoder.
    """
    backend, dims = recognizer.backend, recognizer.backend.dims
    decoder_weights = as_tensors(weights, "decoder.")

    def label(window: TrainingWindow, previous_text: Sequence[int]) -> Example:
        features = backend.encode(window_log_mel(window.samples(), dims)[None])
        (encoder_output,) = backend.encoder_output(features)
        sequences = []
        for sequence in store.get(window).sequences:
            with torch.inference_mode():
                tokens = torch.from_numpy(sequence.tokens[None, :-1])
                states = run_decoder(decoder_weights, dims, tokens, torch.from_numpy(encoder_output))[0]
            behind_prompt = states[sequence.text_start - 1 :].half().numpy()
            sequences.append(replace(sequence, teacher_states=behind_prompt))
        return Example(audio_features=encoder_output.astype(np.float16), sequences=tuple(sequences))

    return label


def fit_stitching_map(
    pairs: Iterable[tuple[HalfFloats | Floats, HalfFloats | Floats]], rows: int, columns: int
) -> StitchingMap:
    """Fit the map from one encoder's output to another's, of the same audio, by ridge regression.

    Outputs are of shape (positions, state); the last row of the map is the offset.
    """
    gram, cross_products = np.zeros((rows, rows)), np.zeros((rows, columns))
    for main_output, small_output in pairs:
        source = np.pad(main_output.astype(np.float32), ((0, 0), (0, 1)), constant_values=1.0)
        gram += source.T @ source
        cross_products += source.T @ small_output
    gram += RIDGE_PENALTY * np.eye(rows)
    solution: StitchingMap = np.linalg.solve(gram, cross_products).astype(np.float64)
    return solution
