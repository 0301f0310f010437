"""Training examples of a tiny model, and folders of recordings, for tests of training."""

from __future__ import annotations

import json
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harken.checkpoints import Checkpoint, open_checkpoint
from harken.text.byte_level import bytes_to_unicode
from harken.training.example_store import ExampleStore
from harken.training.examples import Example, TrainingSequence
from harken.training.export import export
from harken.training.windows import SpeechSpan, TrainingWindow
from models import DIMS, TOKENIZER, make_weights
from real import EXAMPLE

RATE = 16_000


def write_model(folder: Path) -> Checkpoint:
    """Write the tiny model of `models` as a Hugging Face directory, with its vocabulary of bytes."""
    folder.mkdir()
    ids = {bytes_to_unicode(bytes([byte])): byte for byte in range(256)} | {"<|endoftext|>": 256}
    (folder / "vocab.json").write_text(json.dumps(ids))
    export(folder, DIMS, make_weights(), TOKENIZER)
    return open_checkpoint(folder)


def write_speech(folder: Path, recordings: int = 8, seconds: int = 3) -> Path:
    """Write different excerpts of the example recording."""
    from harken.audio import load_audio

    folder.mkdir()
    samples = (load_audio(EXAMPLE) * 32767).astype("<i2")
    for i in range(recordings):
        write_wave(folder / f"{i}.wav", samples[i * RATE : (i + seconds) * RATE])
    return folder


def write_wave(path: Path, samples: np.ndarray) -> None:
    """Write a 16 kHz mono WAV file."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.astype("<i2").tobytes())


def make_examples(
    store: ExampleStore, count: int, *, held_out: bool = False, seed: int = 0
) -> list[TrainingWindow]:
    """Fill a store with random examples that a tiny decoder can memorise, and return their windows."""
    rng = np.random.default_rng([seed, held_out])
    windows = []
    for i in range(count):
        span = SpeechSpan(path=f"{i}.wav", start_s=0.0, end_s=1.0)
        window = TrainingWindow(spans=(span,), group="tiny", language="en", held_out=held_out)
        store.put(window, make_example(rng, n_sequences=1 + i % 2))
        windows.append(window)
    return windows


def make_example(
    rng: np.random.Generator, n_sequences: int = 1, text: Sequence[int] = (7, 9, 7, 9, 3)
) -> Example:
    """Return an example with random encoder output, and sequences of one text with prompts of different lengths."""
    encoder_output = rng.standard_normal((DIMS.n_audio_ctx, DIMS.n_audio_state)).astype(np.float16)
    sequences = tuple(_make_sequence(rng, (1,) * (2 + i), text) for i in range(n_sequences))
    return Example(audio_features=encoder_output, sequences=sequences)


def _make_sequence(rng: np.random.Generator, prompt: Sequence[int], text: Sequence[int]) -> TrainingSequence:
    states = rng.standard_normal((len(text), DIMS.n_text_state)).astype(np.float16)
    return TrainingSequence(tokens=np.array([*prompt, *text]), text_start=len(prompt), teacher_states=states)
