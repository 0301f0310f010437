"""The windows that `record_windows.py` gives to openai-whisper, and the golden test to harken.

Two models have random weights and the shape of published ones, but narrow: large-v3, with 128 bands and a vocabulary
of 51866, and a distilled model, with fewer layers in the decoder than in the encoder. Their input is the example
recording. Of the published multilingual tiny only languages are here; `transcript_inputs.py` has its texts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from transcript_inputs import files

from checkpoint_files import random_weights
from harken.audio import load_audio, log_mel
from harken.contract import Floats
from harken.decoding import Beam
from harken.text import Tokenizer
from harken.types import WINDOW_SAMPLES, Dims

LARGE_V3 = Dims(
    n_mels=128,
    n_audio_ctx=1500,
    n_audio_state=32,
    n_audio_head=2,
    n_audio_layer=2,
    n_vocab=51866,
    n_text_ctx=448,
    n_text_state=32,
    n_text_head=2,
    n_text_layer=2,
)
RANDOM = {"large-v3": LARGE_V3, "distilled": replace(LARGE_V3, n_mels=80, n_vocab=51865, n_audio_layer=4)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A window, the example recording, and the options of its decoding: greedy, or by a beam.

    There may be text before the window, and forced text at its beginning.
    """

    model: str
    language: str
    task: str = "transcribe"
    timestamps: bool = True
    previous: str = ""
    prefix: str = ""
    beam: Beam | None = None

    def __str__(self) -> str:
        """Name of the case."""
        texts = [f"{name}={getattr(self, name)!r}" for name in ("previous", "prefix") if getattr(self, name)]
        beam = [f"beam {self.beam.width} {self.beam.patience} {self.beam.length_penalty}"] if self.beam else []
        stamps = [] if self.timestamps else ["no timestamps"]
        return ", ".join([self.model, "jfk", self.language, self.task, *stamps, *texts, *beam])


def _on_random(model: str) -> list[Case]:
    case = Case(model=model, language="fr")
    return [
        case,
        replace(case, language="de", task="translate"),
        replace(case, timestamps=False),
        replace(case, previous="what came before"),
        replace(case, timestamps=False, prefix="and so it begins"),
        replace(case, beam=Beam(width=5)),
        replace(case, beam=Beam(width=3, patience=2.0, length_penalty=0.6)),
    ]


CASES = {
    str(case): case
    for case in [
        *(case for model in RANDOM for case in _on_random(model)),
        Case(model="large-v3", language="yue"),
    ]
}
SPOKEN = ("german", "french", "dutch", "chinese", "russian", "book")
LANGUAGE_CASES = [*((model, "jfk") for model in RANDOM), *(("tiny", recording) for recording in SPOKEN)]
"""Models and recordings whose language is detected."""


def make_weights(model: str) -> dict[str, Floats]:
    """Draw weights with peaked distributions, whose end of text becomes likelier with every position."""
    dims = RANDOM[model]
    weights = {name: values.astype(np.float32) for name, values in random_weights(dims, 3).items()}
    sharp = {name: 4 for name in weights if name.endswith("query.weight") or name == "decoder.ln.weight"}
    weights |= {name: factor * weights[name] for name, factor in sharp.items()}
    end = Tokenizer.builtin(dims.n_vocab).eot
    direction = np.sign(weights["decoder.token_embedding.weight"][end]) / 4
    weights["decoder.token_embedding.weight"][end] = direction
    urge = (np.arange(dims.n_text_ctx, dtype=np.float32) - 16) / 4
    weights["decoder.positional_embedding"] *= 8
    weights["decoder.positional_embedding"] += np.outer(urge, direction)
    return weights


def first_window(recording: str) -> Floats:
    """Load the first 30 s, with digital silence behind the end."""
    samples = load_audio(files(recording)[0])[:WINDOW_SAMPLES]
    return np.pad(samples, (0, WINDOW_SAMPLES - len(samples)))


def window(recording: str, n_mels: int) -> Floats:
    """Compute log-mel of the first 30 s, shape (1, n_mels, 3000)."""
    return log_mel(first_window(recording), n_mels)[None]
