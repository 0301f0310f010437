"""A tiny model in a folder, and folders of speech, for tests of training."""

from __future__ import annotations

import json
from pathlib import Path

from audio_files import wav_bytes
from harken.checkpoints import Checkpoint, open_checkpoint
from harken.checkpoints.huggingface import export
from harken.text.vocabulary import bytes_to_unicode
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


def write_speech(folder: Path) -> Path:
    """Write six recordings of three seconds cut from the example recording, all different."""
    from harken.audio import load_audio

    folder.mkdir()
    samples = (load_audio(EXAMPLE) * 32767).astype("<i2")
    for i in range(6):
        (folder / f"{i}.wav").write_bytes(wav_bytes(samples[i * RATE : (i + 3) * RATE]))
    return folder
