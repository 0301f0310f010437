"""Adaptation of an encoder to windows that it was not trained for, without labels: LoRA by self-distillation.

The student hears a part of what its teacher, the same model, hears with the whole window, and learns to give the
decoder what the teacher gives it. Hu et al. 2021, "LoRA: Low-rank adaptation of large language models", for the
matrices of the encoder's attention; the audio-context fine-tuning of FUTO's whisper-acft for the idea.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from harken.audio.mel import FFT_SAMPLES
from harken.checkpoints import encoder_digest
from harken.checkpoints.adapter import ADAPTER_FILE, adapted_names, serialize_adapter
from harken.contract import Floats
from harken.errors import OptionError
from harken.files import write_atomic
from harken.streaming.config import PRESETS
from harken.streaming.utterance_audio import UtteranceAudio
from harken.training.examples import Example, main_model_labeller, whole_log_mel
from harken.training.network import (
    ALL_ROWS,
    TOKEN_EMBEDDING,
    NamedWeights,
    as_arrays,
    as_tensors,
    convolve,
    encode_layer,
    initial_factors,
    norm,
)
from harken.training.objective import Distillation, SequenceBatch, scored_token_ids
from harken.training.options import AdaptDataOptions, AdaptOptions
from harken.training.run import TrainingCallbacks, TrainingTask, prepare_examples, train
from harken.training.windows import MAX_SPEECH_S, SpeechSpan, TrainingWindow, find_speech
from harken.types import FRAMES_PER_POSITION, FRAMES_PER_SECOND, HOP_SAMPLES, SAMPLE_RATE, Dims

MIN_CUT_S = 1.5
"""Least that is left of a window that is cut off."""


def adapt(task: TrainingTask[AdaptOptions], callbacks: TrainingCallbacks) -> bool:
    """Train an adapter; resumes where the same task was interrupted.

    It returns False if it was stopped before its end; either way the best adapter so far is in ``task.out``.

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
    dtype = task.run_directory.matmul_dtype()
    windows, held_out = prepare_examples(
        task,
        find_speech,
        lambda: main_model_labeller(task.load_recognizer(), checkpoint, dtype, for_encoder=True),
        callbacks,
        edit=lambda windows: cut_windows(windows, data, max_s),
    )
    store = task.run_directory.examples
    weights = as_tensors(checkpoint.weights)
    objective = Adaptation(
        dims=checkpoint.dims,
        weights=weights,
        trainable=initial_factors(weights, adapted_names(weights), options.rank, task.data.seed),
        scored_ids=scored_token_ids(task.tokenizer, [store.first_text(window) for window in windows]),
        teacher_embedding=weights[TOKEN_EMBEDDING],
        dtype=dtype,
        options=options,
    )
    digest = encoder_digest(checkpoint)

    def export_best() -> None:
        factors = as_arrays(objective.trainable)
        hears = ",".join(options.hears)
        write_atomic(task.out / ADAPTER_FILE, serialize_adapter(factors, digest, hears=hears))

    return train(task, objective, windows, held_out, store.get, export_best, callbacks)


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


@dataclass(slots=True, eq=False, kw_only=True)
class Adaptation(Distillation):
    """Self-distillation of an encoder, of which an adapter is trained; the decoder stays as it is."""

    options: AdaptOptions

    def encode(self, weights: NamedWeights, example: Example, *, training: bool) -> Tensor:
        choice = int(torch.randint(1_000_000, ())) if training else len(example.audio_features)
        hearings = [hearing for name in self.options.hears for hearing in HEARINGS[name]]
        samples = np.asarray(example.audio_features, np.float32)
        chunks = hearings[choice % len(hearings)](samples, self.dims, self.options)
        history_frames = PRESETS[self.options.delay].history_frames
        return run_streaming_encoder(weights, self.dims, chunks, history_frames).float()

    def loss_of(self, states: Tensor, batch: SequenceBatch, progress: float) -> Tensor:
        # The targets are what the adapter is to give to the end.
        return Distillation.loss_of(self, states, batch, progress=0.0)


MAX_LIVE_SILENCE_FRAMES = 500
"""Most frames of silence behind the last chunk of an utterance, so that utterances are shorter than a window by it."""


class HeardChunk(NamedTuple):
    """The arguments of one call of `harken.contract.Backend.encode_chunk`, for one stream."""

    mel: Floats  # of shape (n_mels, frames)
    final_frames: int

    @property
    def positions(self) -> int:
        """Number of positions, look-ahead included."""
        return int(self.mel.shape[1]) // FRAMES_PER_POSITION

    @property
    def final_positions(self) -> int:
        """Number of positions that are final, from the first on."""
        return self.final_frames // FRAMES_PER_POSITION


@dataclass(slots=True)
class _EncoderPosition:
    """`harken.contract.StreamingEncoderState` that encodes nothing and knows how much is final."""

    final_positions: int = 0


def hear_whole(samples: Floats, dims: Dims, options: AdaptOptions) -> list[HeardChunk]:
    """Return audio as the teacher hears it: one whole window."""
    mel = whole_log_mel(samples, dims)
    return [HeardChunk(mel, mel.shape[1])]


def max_live_s(dims: Dims) -> float:
    """Return the length of the longest utterance, in seconds."""
    return (FRAMES_PER_POSITION * dims.n_audio_ctx - MAX_LIVE_SILENCE_FRAMES) / FRAMES_PER_SECOND


def hear_live(samples: Floats, dims: Dims, options: AdaptOptions, *, has_ended: bool) -> list[HeardChunk]:
    """Return the chunks that a live session has encoded at the end of an utterance.

    Or those at an update, if it has not ended; silence fills up the last hop.
    """
    config = PRESETS[options.delay]
    samples = samples[: round(max_live_s(dims) * SAMPLE_RATE)]
    n_frames = len(samples) // HOP_SAMPLES
    if not has_ended:
        n_frames = -(-n_frames // config.hop_frames) * config.hop_frames
        missing = n_frames * HOP_SAMPLES + FFT_SAMPLES // 2 - len(samples)
        samples = np.pad(samples, (0, max(0, missing)))
    heard = _EncoderPosition()
    audio, chunks = UtteranceAudio(heard, dims.n_mels, start_frame=0), list[HeardChunk]()
    while (end := audio.next_update_sample(config)) <= len(samples):
        audio.add_samples(samples[audio.next_sample : end])
        chunk = audio.next_chunk(config)
        heard.final_positions += chunk.final_frames // FRAMES_PER_POSITION
        chunks.append(HeardChunk(chunk.mel, chunk.final_frames))
    if has_ended:
        audio.add_samples(samples[audio.next_sample :])
        chunk = audio.last_chunk(n_frames)
        chunks.append(HeardChunk(chunk.mel, chunk.final_frames))
    return chunks


Hearing = Callable[[Floats, Dims, AdaptOptions], list[HeardChunk]]

HEARINGS: dict[str, tuple[Hearing, ...]] = {
    "live": (partial(hear_live, has_ended=False), partial(hear_live, has_ended=True)),
    "whole": (hear_whole,),
}
"""By the name of what the student hears, the ways of hearing of which each step takes one."""


CONTEXT_POSITIONS = 2
"""Positions before a chunk whose frames its convolutions read, rounded up."""


def run_streaming_encoder(
    weights: NamedWeights, dims: Dims, chunks: Sequence[HeardChunk], history_frames: int
) -> Tensor:
    """Encode a stream: what `Backend.encode_chunk` computes chunk by chunk, all at once.

    The chunks are concatenated, as in the reference backend (`harken.backends.numpy.backend`): each position attends to
    its own chunk and to the final positions of earlier chunks within the history. A chunk of which nothing becomes
    final, and that is not the last one, influences nothing and is left out; so are, in the last layer, the look-ahead
    positions of all chunks but the last one. The result, shape (positions, n_audio_state), is that of
    `Backend.stream_features` after the last chunk; `history_frames` are those of `Backend.open_encoder`.
    """
    chunks = [chunk for chunk in chunks[:-1] if chunk.final_positions] + [chunks[-1]]
    layout = _lay_out(chunks, history_frames // FRAMES_PER_POSITION)
    needed = torch.cat([torch.arange(own.rows.start, own.rows.start + own.n_needed) for own in layout])
    x = _embed(weights, chunks)
    for layer in range(dims.n_audio_layer):
        is_last = layer == dims.n_audio_layer - 1
        lengths = [own.n_needed if is_last else len(own.rows) for own in layout]
        attention = partial(_attend_by_chunk, layout, lengths)
        x = encode_layer(x, weights, dims, layer, needed if is_last else ALL_ROWS, attention)
    return norm(x, weights, "encoder.ln_post")


def _attend_by_chunk(
    layout: Sequence[_ChunkRows], lengths: Sequence[int], query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Let the queries of each chunk, so many of each, attend to the rows of its layout."""
    attended = [
        F.scaled_dot_product_attention(part, key[:, :, own.attended], value[:, :, own.attended])
        for own, part in zip(layout, query.split([*lengths], dim=2), strict=True)
    ]
    return torch.cat(attended, dim=2)


class _ChunkRows(NamedTuple):
    """The rows of a chunk among those of all chunks concatenated."""

    rows: range
    n_needed: int  # from the first one on belong to the result
    attended: Tensor  # indices of the rows that they attend to: the history, then the chunk


def _lay_out(chunks: Sequence[HeardChunk], history_positions: int) -> list[_ChunkRows]:
    layout: list[_ChunkRows] = []
    final_rows: list[int] = []  # by position in the stream
    for chunk in chunks:
        start = layout[-1].rows.stop if layout else 0
        rows = range(start, start + chunk.positions)
        history = final_rows[max(0, len(final_rows) - history_positions) :]
        n_needed = chunk.positions if chunk is chunks[-1] else chunk.final_positions
        layout.append(_ChunkRows(rows, n_needed, torch.tensor([*history, *rows])))
        final_rows += rows[: chunk.final_positions]
    return layout


def _embed(weights: NamedWeights, chunks: Sequence[HeardChunk]) -> Tensor:
    """Convolve each chunk behind the final frames before it, and concatenate the results."""
    embeddings, final_mel = [], torch.empty(len(chunks[0].mel), 0)
    for chunk in chunks:
        first = final_mel.shape[1] // FRAMES_PER_POSITION
        context = final_mel[:, -CONTEXT_POSITIONS * FRAMES_PER_POSITION :]
        mel = torch.from_numpy(chunk.mel)
        x = convolve(weights, torch.cat([context, mel], dim=1))
        x = x[context.shape[1] // FRAMES_PER_POSITION :][: chunk.positions]
        embeddings.append(x + weights["encoder.positional_embedding"][first : first + chunk.positions])
        final_mel = torch.cat([final_mel, mel[:, : FRAMES_PER_POSITION * chunk.final_positions]], dim=1)
    return torch.cat(embeddings)
