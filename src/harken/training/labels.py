"""What is to be said about a piece: by the main model, or by who wrote the manifest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np
import torch
from torch import Tensor

from harken.api import Recognizer
from harken.audio import SILENCE, LogMel, normalize
from harken.checkpoints import Checkpoint
from harken.contract import Features, Floats
from harken.decoding import Greedy, Window, decode, language_probabilities, make_prompt, make_rules
from harken.text import Tokenizer
from harken.training.examples import Example, Row
from harken.training.network import read
from harken.training.pieces import Piece
from harken.training.precision import fastest
from harken.transcribe.longform import MOST_OF_A_WINDOW, QUIET_FRAMES, ROUND_FRAMES
from harken.types import TIMESTAMP_STEP_S, Dims

WORST_COMPRESSION = 2.4
WORST_LOGPROB = -1.0
"""What a transcription would not believe, nobody is to learn (`harken.transcribe.TranscribeOptions`)."""

Text = tuple[tuple[int, ...], Sequence[int]]
"""A prompt, and what follows it."""


class Heard(Protocol):
    """Features that keep the encoder's output, as those of the CPU engine do."""

    @property
    def heard(self) -> Floats:
        """Shape (audios, positions, n_audio_state), float32."""
        ...


def output(features: Features) -> Floats:
    """What the encoder of the CPU engine says of a single window, shape (positions, n_audio_state)."""
    (heard,) = cast(Heard, features).heard
    return heard  # type: ignore[no-any-return]


class Teacher:
    """The main model, asked about pieces.

    Parameters
    ----------
    recognizer : Recognizer
        Of the CPU engine: it hears and transcribes as it will when it has an assistant.
    checkpoint : Checkpoint
        The same model.
    """

    def __init__(self, recognizer: Recognizer, checkpoint: Checkpoint) -> None:
        self._backend, self._tokenizer, self._dims = recognizer.backend, recognizer.tokenizer, checkpoint.dims
        self._rules = make_rules(self._tokenizer, timestamps=True)
        self._dtype = fastest()
        self._weights = {
            name: torch.tensor(checkpoint.weights[name]).to(self._dtype)
            for name in checkpoint.weights
            if name.startswith("decoder.")
        }

    def __call__(self, piece: Piece, previous: Sequence[int]) -> Example:
        """What the model says about a piece, and how sure it is of each token.

        Parameters
        ----------
        piece : Piece
        previous : sequence of int
            Text tokens before it, for the row that is prompted.
        """
        features = self._backend.encode(window(piece.samples(), self._dims)[None])
        heard = output(features)
        language = piece.language or self._language(features)
        texts = self._texts(piece, features, language, previous)
        with torch.inference_mode():
            source = torch.from_numpy(heard).to(self._dtype)
            rows = tuple(self._row(source, prompt, text) for prompt, text in texts)
        return Example(heard=heard.astype(np.float16), rows=rows)

    def _language(self, features: Features) -> str:
        return next(iter(language_probabilities(self._backend, features, self._tokenizer)[0]))

    def _texts(self, piece: Piece, features: Features, language: str, previous: Sequence[int]) -> list[Text]:
        """Texts of the rows; none if the model repeats itself or is not sure at all."""
        tokenizer, n_ctx = self._tokenizer, self._dims.n_text_ctx
        prompt = make_prompt(tokenizer, n_ctx, language=language, task="transcribe", timestamps=True)
        (decoded,), _ = decode(
            self._backend,
            features,
            [Window(audio=0, prompt=prompt)],
            tokenizer=tokenizer,
            rules=self._rules,
            strategy=Greedy(),
        )
        said = decoded.hypothesis
        if decoded.compression_ratio > WORST_COMPRESSION or said.avg_logprob < WORST_LOGPROB:
            return []
        return ways_to_ask(tokenizer, n_ctx, piece, language, (*said.tokens, tokenizer.eot), previous)

    def _row(self, heard: Tensor, prompt: Sequence[int], text: Sequence[int]) -> Row:
        tokens = torch.tensor([*prompt, *text])
        states = read(self._weights, self._dims, tokens[None, :-1], heard)[0, len(prompt) - 1 :]
        return Row(tokens=tokens.numpy(), first=len(prompt), states=states.half().numpy())


def ways_to_ask(
    tokenizer: Tokenizer, n_ctx: int, piece: Piece, language: str, said: Sequence[int], previous: Sequence[int]
) -> list[Text]:
    """Prompts for what is said in a piece: with timestamps, and where the piece says so without them, or with text."""

    def prompt(timestamps: bool = True, previous: Sequence[int] = ()) -> tuple[int, ...]:
        return make_prompt(
            tokenizer, n_ctx, language=language, task="transcribe", timestamps=timestamps, previous=previous
        )

    ways: list[Text] = [(prompt(), said)]
    if piece.untimed:
        ways.append((prompt(timestamps=False), [token for token in said if token < tokenizer.timestamp_begin]))
    if piece.prompted and previous:
        ways.append((prompt(previous=previous), said))
    # The decoder has no position for more.
    return [(start, text[: n_ctx + 1 - len(start)]) for start, text in ways]


def written(tokenizer: Tokenizer, piece: Piece) -> list[int]:
    """What a manifest says about a piece, as a model would: each text between its timestamps, and the end."""

    def stamp(time_s: float) -> int:
        return tokenizer.timestamp_begin + round(time_s / TIMESTAMP_STEP_S)

    said = [
        token
        for start_s, end_s, text in piece.spans_s()
        for token in (stamp(start_s), *tokenizer.encode(f" {(text or '').strip()}"), stamp(end_s))
    ]
    return [*(() if piece.silent else said), tokenizer.eot]


def window(samples: Floats, dims: Dims) -> Floats:
    """Log-mel of a piece as a transcription encodes it, shape (n_mels, frames): silence behind what is short."""
    log_mel, whole = LogMel(dims.n_mels), 2 * dims.n_audio_ctx
    frames = np.concatenate([log_mel.feed(samples), log_mel.flush()], axis=1)[:, :whole]
    wanted = -(-(frames.shape[1] + QUIET_FRAMES) // ROUND_FRAMES) * ROUND_FRAMES
    wanted = wanted if wanted <= whole * MOST_OF_A_WINDOW else whole
    padded = np.pad(frames, ((0, 0), (0, wanted - frames.shape[1])), constant_values=SILENCE)
    return normalize(padded, log_mel.ceiling)
