"""Examples of a tiny model, and folders of speech, for tests of training."""

from __future__ import annotations

import json
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harken.checkpoints import Checkpoint, open_checkpoint
from harken.checkpoints.huggingface import export
from harken.text.bpe import bytes_to_unicode
from harken.training.examples import Example, ExampleStore, TrainingSequence
from harken.training.windows import SpeechSpan, TrainingWindow
from real_models import EXAMPLE
from tiny_models import DIMS, TOKENIZER, make_weights

RATE = 16_000


def write_model(folder: Path) -> Checkpoint:
    """Write the tiny model as a Hugging Face directory, with a vocabulary of bytes."""
    folder.mkdir()
    ids = {bytes_to_unicode(bytes([byte])): byte for byte in range(256)} | {"<|endoftext|>": 256}
    (folder / "vocab.json").write_text(json.dumps(ids))
    export(folder, DIMS, make_weights(), TOKENIZER)
    return open_checkpoint(folder)


def write_speech(folder: Path, recordings: int = 8, seconds: int = 3) -> Path:
    """Write recordings cut from the example recording, all different."""
    from harken.audio import load_audio

    folder.mkdir()
    samples = (load_audio(EXAMPLE) * 32767).astype("<i2")
    for i in range(recordings):
        write_wave(folder / f"{i}.wav", samples[i * RATE : (i + seconds) * RATE])
    return folder


def write_wave(path: Path, samples: np.ndarray) -> None:
    """Write samples as a 16 kHz mono WAV file."""
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
        store.put(window, make_example(rng, rows=1 + i % 2))
        windows.append(window)
    return windows


def make_example(rng: np.random.Generator, rows: int = 1, text: Sequence[int] = (7, 9, 7, 9, 3)) -> Example:
    """Draw encoder output, and some rows of the same text behind prompts of different lengths."""
    audio_features = rng.standard_normal((DIMS.n_audio_ctx, DIMS.n_audio_state)).astype(np.float16)
    return Example(
        audio_features=audio_features, sequences=tuple(_row(rng, (1,) * (2 + i), text) for i in range(rows))
    )


def _row(rng: np.random.Generator, prompt: Sequence[int], text: Sequence[int]) -> TrainingSequence:
    states = rng.standard_normal((len(text), DIMS.n_text_state)).astype(np.float16)
    return TrainingSequence(tokens=np.array([*prompt, *text]), text_start=len(prompt), teacher_states=states)
