"""Fine-tuning of a whole model on recordings with reference texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from harken.api import Recognizer
from harken.checkpoints.huggingface import export
from harken.contract import Floats
from harken.errors import AudioError, ManifestError, OptionError
from harken.manifests import Entry
from harken.results import Word
from harken.training.examples import (
    Example,
    Labeller,
    TrainingSequence,
    make_prompted_texts,
    timestamped_tokens,
    window_log_mel,
)
from harken.training.network import TOKEN_EMBEDDING, NamedWeights, as_arrays, as_tensors, run_encoder
from harken.training.objective import Objective, SequenceBatch, autocast
from harken.training.options import FineTuneOptions
from harken.training.run import TrainingCallbacks, TrainingTask, prepare_examples, train
from harken.training.windows import MAX_SPEECH_S, SpeechFinder, SpeechSpan, TrainingWindow, find_speech
from harken.transcribe.language_id import language_probabilities

SPEECH_PAD_S = 0.1
"""Seconds of audio kept around speech; short, as the timestamps should mark its start and end."""
UNHEARD_PROBABILITY, MAX_UNHEARD = 1e-3, 0.1
"""Probability below which a word of an aligned text is taken for one that is not spoken, and their largest share."""


def finetune(task: TrainingTask[FineTuneOptions], freeze_encoder: bool, callbacks: TrainingCallbacks) -> bool:
    """Fine-tune a model on recordings with texts; resumes where the same task was interrupted.

    With a frozen encoder only the decoder is trained, which is several times faster. It returns False if it was stopped
    before its end; either way the best model so far is in ``task.out``.

    Raises
    ------
    ManifestError
        If no recording has a text, or there is no speech to learn from or to measure with.
    OutputError
        If ``task.out`` holds something else.
    """
    if not any(entry.text.strip() for entry in (*task.entries, *task.held_out_entries)):
        raise ManifestError(
            f"{task.entries[0].path}: nothing tells what is said in it, nor in the others; "
            "allowed are manifests with text"
        )
    task.create_or_resume(task="finetune", freeze_encoder=freeze_encoder)
    weights = as_tensors(task.checkpoint.weights)
    recognizer = cache(task.load_recognizer)
    labeller = manifest_labeller(task, recognizer, weights if freeze_encoder else None)
    windows, held_out = prepare_examples(task, _speech_aligner(task, recognizer), lambda: labeller, callbacks)
    trainable = {
        name: values.requires_grad_()
        for name, values in weights.items()
        if name.startswith("decoder.") or not freeze_encoder
    }
    objective = FineTuning(
        dims=task.checkpoint.dims,
        weights=weights,
        trainable=trainable,
        dtype=task.run_directory.matmul_dtype(),
        options=task.options,
    )

    def export_best() -> None:
        dims, folder = task.checkpoint.dims, task.source_folder
        export(task.out, dims, as_arrays(weights), task.tokenizer, source_folder=folder)

    load_example = task.run_directory.examples.get
    return train(task, objective, windows, held_out, load_example, export_best, callbacks)


def manifest_labeller(
    task: TrainingTask[FineTuneOptions],
    recognizer: Callable[[], Recognizer],
    frozen_weights: dict[str, torch.Tensor] | None,
) -> Labeller:
    """Return a labeller that takes the texts from the manifest, and detects a language that it does not name."""
    tokenizer, dims, dtype = task.tokenizer, task.checkpoint.dims, task.run_directory.matmul_dtype()
    no_states = np.empty((0, dims.n_text_state), np.float16)

    def detect(log_mel: Floats) -> str:
        if not tokenizer.multilingual:
            return "en"
        backend = recognizer().backend
        (probabilities,) = language_probabilities(backend, backend.encode(log_mel[None]), tokenizer)
        return next(iter(probabilities))

    def label(window: TrainingWindow, previous_text: Sequence[int]) -> Example:
        log_mel = window_log_mel(window.samples(), dims)
        language, text_tokens = window.language or detect(log_mel), timestamped_tokens(tokenizer, window)
        prompted_texts = make_prompted_texts(
            tokenizer, dims.n_text_ctx, window, language, text_tokens, previous_text
        )
        sequences = tuple(
            TrainingSequence(
                tokens=np.array([*prompt, *text]), text_start=len(prompt), teacher_states=no_states
            )
            for prompt, text in prompted_texts
        )
        audio_features = torch.from_numpy(log_mel)
        if frozen_weights is not None:
            with torch.inference_mode(), autocast(dtype):
                audio_features = run_encoder(frozen_weights, dims, audio_features)
        return Example(audio_features=audio_features.half().numpy(), sequences=sequences)

    return label


def _speech_aligner(task: TrainingTask[FineTuneOptions], recognizer: Callable[[], Recognizer]) -> SpeechFinder:
    """Return a speech finder that aligns recordings longer than a window with their text and splits them.

    A recording whose text cannot be what is said in it has an AudioError.
    """

    def align(entry: Entry) -> tuple[tuple[SpeechSpan, ...], float]:
        regions, duration_s = find_speech(entry, SPEECH_PAD_S)
        if not entry.text.strip():
            return (), duration_s
        if not regions:  # to learn silence here would teach the model to leave out what is said quietly
            raise AudioError(f"{entry.path}: left out: it has a text, and no speech is found in it")
        start_s, end_s = regions[0].start_s, regions[-1].end_s
        if end_s - start_s <= MAX_SPEECH_S:
            n_tokens, most = len(task.tokenizer.encode(entry.text)), task.checkpoint.dims.n_text_ctx
            if n_tokens > most:
                raise AudioError(
                    f"{entry.path}: left out: its text has {n_tokens} tokens; allowed are at most {most}"
                )
            return (replace(regions[0], end_s=end_s, text=entry.text),), duration_s
        try:
            words = recognizer().align(entry.path, entry.text, language=entry.language)
        except (AudioError, OptionError) as error:
            raise AudioError(f"{entry.path}: left out: {error}") from error
        unheard = sum(word.probability < UNHEARD_PROBABILITY for word in words)
        if unheard > MAX_UNHEARD * len(words):
            raise AudioError(
                f"{entry.path}: left out: {unheard} of {len(words)} words of its text are not heard in it; "
                f"allowed are at most {MAX_UNHEARD:.0%}"
            )
        return tuple(split_at_pauses(str(entry.path), words, duration_s)), duration_s

    return align


def split_at_pauses(path: str, words: Sequence[Word], duration_s: float) -> Iterator[SpeechSpan]:
    """Split aligned words into spans that fit a window, each at its longest pause, the last of several.

    Pauses in the second half of what fits are preferred, so that no span is short.
    """
    remaining = list(words)
    while remaining:
        end_s = remaining[0].start_s + MAX_SPEECH_S - 2 * SPEECH_PAD_S
        n_fitting = max(1, sum(word.end_s <= end_s for word in remaining))
        if n_fitting < len(remaining):
            candidates = range(-(-n_fitting // 2), n_fitting + 1)
            n_fitting = max(candidates, key=lambda i: (remaining[i].start_s - remaining[i - 1].end_s, i))
        fitting, remaining = remaining[:n_fitting], remaining[n_fitting:]
        yield SpeechSpan(
            path=path,
            start_s=max(0.0, fitting[0].start_s - SPEECH_PAD_S),
            end_s=min(duration_s, fitting[-1].end_s + SPEECH_PAD_S),
            text="".join(word.text for word in fitting).strip(),
        )


class FineTuning(Objective):
    """Fine-tuning of a model on the texts of a manifest; where its encoder is not trained, examples hold its output."""

    __slots__ = ()

    def encode(self, weights: NamedWeights, example: Example, *, training: bool) -> Tensor:
        audio_features = Objective.encode(self, weights, example, training=training)
        if any(name.startswith("encoder.") for name in self.trainable):
            return run_encoder(weights, self.dims, audio_features)
        return audio_features

    def loss_of(self, states: Tensor, batch: SequenceBatch, progress: float) -> Tensor:
        logits = F.linear(states, self.weights[TOKEN_EMBEDDING])
        return F.cross_entropy(logits.float(), batch.labels, reduction="sum")
