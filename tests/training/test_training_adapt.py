"""Tests of the training of adapters: what the student hears, its encoder, and the change that it learns."""

from dataclasses import replace

import numpy as np
import pytest
from small_training import SmallTraining, all_equal, snapshot, torch

from checkpoint_files import random_weights
from harken.api import Recognizer
from harken.audio import load_audio
from harken.backends.numpy.backend import NumpyBackend, NumpyEncoderState, NumpyFeatures
from harken.checkpoints.adapter import adapted_names
from harken.streaming import SpeechEnded, SpeechStarted
from harken.streaming.config import PRESETS
from harken.streaming.utterance_audio import TRAILING_SILENCE_FRAMES
from harken.training.adapt import (
    Adaptation,
    HeardChunk,
    cut_windows,
    hear_live,
    hear_whole,
    run_streaming_encoder,
)
from harken.training.examples import Example, TrainingSequence
from harken.training.network import (
    TOKEN_EMBEDDING,
    as_tensors,
    initial_factors,
    run_decoder,
    run_encoder,
    with_changes,
)
from harken.training.options import AdaptDataOptions, AdaptOptions
from harken.training.windows import SpeechSpan, TrainingWindow
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE
from tiny_models import DIMS, TOKENIZER, make_weights

LONG_DIMS = replace(DIMS, n_audio_ctx=1500, n_audio_state=16, n_text_state=16, n_audio_layer=1, n_text_layer=1)
"""A window of 30 s, as live windows need it."""
SHORT_DIMS = replace(DIMS, n_audio_ctx=450, n_audio_state=16, n_text_state=16, n_audio_layer=1, n_text_layer=1)
"""A window of 9 s: utterances of up to 4 s."""
OPTIONS = AdaptOptions(
    epochs=4, batch_size=2, learning_rate=1e-2, eval_steps=3, rank=4, state_loss_weight=100.0
)


STREAMS = [
    *([(10, 10)], [(12, 12)] * 3, [(8, 0), (9, 0), (10, 0)]),
    *([(9, 0), (13, 8), (11, 2), (10, 2), (12, 12)], [(20, 16), (9, 0), (9, 4), (9, 0), (6, 2)]),
]
"""Chunks: their frames, and how many of them become final."""


@pytest.mark.parametrize("chunks", STREAMS)
@pytest.mark.parametrize("history_frames", [0, 8])
def test_encoder_of_a_stream_computes_what_the_reference_backend_does(chunks, history_frames):
    weights, rng = make_weights(), np.random.default_rng(0)
    reference = NumpyEncoderState(weights, DIMS, history_frames)
    heard = []
    for frames, final_frames in chunks:
        mel = rng.standard_normal((DIMS.n_mels, frames), np.float32)
        heard.append(HeardChunk(mel, final_frames))
        reference.append_chunk(mel, final_frames)
        with torch.inference_mode():
            encoded = run_streaming_encoder(as_tensors(weights), DIMS, heard, history_frames)
        np.testing.assert_allclose(encoded.numpy(), reference.encode(), atol=1e-5)


class RecordingBackend(NumpyBackend):
    """The reference backend, which encodes streams to zeros and remembers the chunks of the last utterance."""

    calls: list[tuple[np.ndarray, int]]

    def open_encoder(self, history_frames):
        self.calls = []
        return super().open_encoder(history_frames)

    def encode_chunk(self, states, mel, final_frames):
        self.calls.append((mel[0].copy(), final_frames))
        super().encode_chunk(states, mel, final_frames)

    def stream_features(self, states):
        mel, final_frames = self.calls[-1]
        n_ahead = (mel.shape[1] - final_frames) // 2
        return NumpyFeatures(
            [
                np.zeros((state.final_positions + n_ahead, self.dims.n_audio_state), np.float32)
                for state in states
            ]
        )


def test_student_hears_the_chunks_of_a_live_session():
    backend = RecordingBackend(LONG_DIMS, random_weights(LONG_DIMS))
    samples = np.pad(load_audio(EXAMPLE)[: 3 * SAMPLE_RATE], (0, 2 * SAMPLE_RATE))
    session = Recognizer(backend, TOKENIZER, "tiny").stream(
        clock=None, delay="low", finals="streamed", adaptive=False
    )
    events = [*session.feed(samples), *session.close()]
    (start,), (end,) = (
        [round(event.audio_s * SAMPLE_RATE) for event in events if isinstance(event, kind)]
        for kind in (SpeechStarted, SpeechEnded)
    )
    *updates, last = backend.calls
    assert len(updates) > 4
    heard = hear_live(samples[start:end], LONG_DIMS, OPTIONS, has_ended=False)
    for (mel, final_frames), chunk in zip(updates[: len(heard) - 1], heard, strict=False):
        np.testing.assert_array_equal(mel, chunk.mel)
        assert final_frames == chunk.final_frames
    *before, at_end = hear_live(samples[start:end], LONG_DIMS, OPTIONS, has_ended=True)
    audio_frames = (end - start) // 160 - sum(chunk.final_frames for chunk in before)
    before_end = slice(0, audio_frames - 2)  # the session has heard what follows, which the last frames touch
    np.testing.assert_allclose(last[0][:, before_end], at_end.mel[:, before_end], atol=1e-6)
    assert last[1] == at_end.final_frames


def test_an_update_hears_all_of_the_audio_and_silence_up_to_the_next_hop():
    config = PRESETS["low"]
    for n_samples in (SAMPLE_RATE - 1, 2 * SAMPLE_RATE, 2 * SAMPLE_RATE + 1):
        *before, last = hear_live(np.ones(n_samples, np.float32), SHORT_DIMS, OPTIONS, has_ended=False)
        positions = sum(chunk.final_positions for chunk in before) + last.positions
        audio_positions = positions - TRAILING_SILENCE_FRAMES // 2
        assert -160 < 320 * audio_positions - n_samples < 160 * config.hop_frames


def make_window(length_s, parts=1, speed=1.0):
    spans = [
        SpeechSpan(path=f"{i}.wav", start_s=1.0, end_s=1.0 + length_s / parts, pause_s=0.25 * bool(i))
        for i in range(parts)
    ]
    return TrainingWindow(spans=tuple(spans), group="tiny", language="en", held_out=False, speed=speed)


def test_windows_are_cut_to_a_length_and_some_anywhere():
    windows = [make_window(20.0, parts, speed) for parts in (1, 4) for speed in (0.95, 1.0, 1.05)] * 20
    cut = cut_windows(windows, AdaptDataOptions(cut_fraction=0.5), 19.0)
    lengths = np.array([window.duration_s for window in cut])
    assert lengths.min() > 1.4
    assert lengths.max() < 19.02
    assert 0.3 < (lengths < 18.5).mean() < 0.7
    assert cut == cut_windows(windows, AdaptDataOptions(cut_fraction=0.5), 19.0)
    assert {window.spans[0].start_s for window in cut} == {1.0}
    assert cut_windows(windows[:2], AdaptDataOptions(cut_fraction=0.0), 30.0) == windows[:2]


class AdapterTraining(SmallTraining):
    """A training of an adapter: the student hears the first half of a second of a window of 9 s."""

    def __init__(self, folder, hears=("live",)):
        super().__init__(folder, replace(OPTIONS, hears=hears))
        self.weights = as_tensors(random_weights(SHORT_DIMS))
        for name in ("value", "out"):  # so that the states depend on what is heard
            self.weights[f"decoder.blocks.0.cross_attn.{name}.weight"] *= 10
        *self.windows, last = self.all_windows = [make_window(1.0 + i) for i in range(6)]
        self.held_out, rng = [last], np.random.default_rng(0)
        for window in self.all_windows:
            self.store.put(window, self._example(rng))

    def _example(self, rng):
        """Return an example with the states that the model itself has behind the whole window."""
        samples = 0.1 * rng.standard_normal(SAMPLE_RATE // 2).astype(np.float32)
        (whole,) = hear_whole(samples, SHORT_DIMS, OPTIONS)
        tokens = [int(rng.integers(0, 256))]
        with torch.inference_mode():
            encoded = run_encoder(self.weights, SHORT_DIMS, torch.from_numpy(whole.mel))
            for _ in range(6):
                states = run_decoder(self.weights, SHORT_DIMS, torch.tensor([tokens]), encoded)[0]
                tokens.append(int((states[-1] @ self.weights[TOKEN_EMBEDDING].T).argmax()))
        sequence = TrainingSequence(tokens=np.array(tokens), text_start=1, teacher_states=states.half().numpy())
        return Example(audio_features=samples, sequences=(sequence,))

    def loss(self, objective):
        """Return the loss over all examples."""
        torch.manual_seed(0)  # chooses what is heard
        with torch.inference_mode():
            return sum(float(objective.loss(self.store.get(window))[0]) for window in self.all_windows)

    def objective(self):
        return Adaptation(
            dims=SHORT_DIMS,
            weights=self.weights,
            trainable=initial_factors(self.weights, adapted_names(self.weights), self.options.rank, 0),
            scored_ids=np.arange(SHORT_DIMS.n_vocab),
            teacher_embedding=self.weights[TOKEN_EMBEDDING],
            dtype=torch.float32,
            options=self.options,
        )


def test_training_an_adapter_lowers_the_loss_and_changes_only_the_factors(tmp_path):
    training = AdapterTraining(tmp_path)
    before = snapshot(training.weights)
    completed, factors = training.run()
    assert completed
    learnt = training.objective()
    learnt.trainable.update(factors)
    least = training.loss(replace(training.objective(), options=replace(OPTIONS, hears=("whole",))))
    assert training.loss(learnt) - least < 0.8 * (training.loss(training.objective()) - least)
    assert all_equal(before, training.weights)
    names = adapted_names(before)
    assert {*factors} == {f"{name}.{factor}" for name in names for factor in "AB"}
    assert all(float(factors[f"{name}.B"].abs().max()) > 0 for name in names)


def test_an_adapter_that_has_learnt_nothing_changes_nothing(tmp_path):
    training = AdapterTraining(tmp_path, hears=("whole",))
    objective, example = training.objective(), training.store.get(training.windows[0])
    (whole,) = hear_whole(example.audio_features, SHORT_DIMS, OPTIONS)
    with torch.inference_mode():
        changed = with_changes(objective.weights, objective.trainable)
        expected = run_encoder(training.weights, SHORT_DIMS, torch.from_numpy(whole.mel))
        torch.testing.assert_close(objective.encode(changed, example, training=True), expected)
