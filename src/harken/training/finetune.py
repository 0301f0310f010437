"""A model that learns what a manifest says: names, spelling, a way of speaking, a language it knows little of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import torch

from harken.api import Recognizer
from harken.errors import ManifestError
from harken.evaluation import Entry
from harken.results import Word
from harken.training.examples import Example, Row
from harken.training.export import export
from harken.training.labels import ways_to_ask, window, written
from harken.training.library import Library
from harken.training.network import listen
from harken.training.objective import FineTuning
from harken.training.options import FineTuneOptions
from harken.training.pieces import Piece
from harken.training.precision import fastest
from harken.training.recordings import LONGEST_S, Speech, find_speech
from harken.training.run import Audience, Task, collect, learn

PADDING_S = 0.1
"""Sound kept around what is said: timestamps are to be where it begins and ends."""


def finetune(
    task: Task[FineTuneOptions], freeze_encoder: bool, load: Callable[[], Recognizer], audience: Audience
) -> bool:
    """Fine-tune a model; goes on where the same task was interrupted.

    Parameters
    ----------
    task : Task
        Its recordings have texts.
    freeze_encoder : bool
        Whether only the decoder learns, which is several times faster.
    load : callable
        Loads the main model; called only if a recording longer than a window has to be cut.
    audience : Audience

    Returns
    -------
    bool
        Whether it came to its end; False if it was stopped. The best model so far is in ``task.out`` either way.

    Raises
    ------
    ManifestError
        If no recording has a text, or there is nothing to learn from or to measure with.
    OutputError
        If ``task.out`` holds something else.
    """
    _check(task)
    task.begin(task="finetune", freeze_encoder=freeze_encoder)
    weights = {name: torch.tensor(task.checkpoint.weights[name]).float() for name in task.checkpoint.weights}
    reader = _Reader(task, weights if freeze_encoder else None)
    pieces, held_out = collect(task, _Aligner(load), lambda: reader, audience)
    learning = {
        name: values.requires_grad_()
        for name, values in weights.items()
        if name.startswith("decoder.") or not freeze_encoder
    }
    objective = FineTuning(
        dims=task.checkpoint.dims,
        weights=weights,
        learning=learning,
        dtype=fastest(),
        options=task.options,
    )

    def write() -> None:
        arrays = {name: values.detach().half().numpy() for name, values in weights.items()}
        export(task.out, task.checkpoint.dims, arrays, task.tokenizer, beside=task.beside)

    return learn(task, objective, pieces, held_out, Library(task.journal.pieces), write, audience)


class _Reader:
    """Answers with what the manifest says about a piece."""

    def __init__(self, task: Task[FineTuneOptions], encoder: dict[str, torch.Tensor] | None) -> None:
        self._tokenizer, self._dims, self._encoder = task.tokenizer, task.checkpoint.dims, encoder

    def __call__(self, piece: Piece, previous: Sequence[int]) -> Example:
        said = written(self._tokenizer, piece)
        rows = []
        for prompt, text in ways_to_ask(
            self._tokenizer, self._dims.n_text_ctx, piece, piece.language or "en", said, previous
        ):
            states = np.empty((0, self._dims.n_text_state), np.float16)
            rows.append(Row(tokens=np.array([*prompt, *text]), first=len(prompt), states=states))
        heard = torch.from_numpy(window(piece.samples(), self._dims))
        if self._encoder is not None:
            with torch.inference_mode(), torch.autocast("cpu", fastest(), enabled=fastest() != torch.float32):
                heard = listen(self._encoder, self._dims, heard)
        return Example(heard=heard.half().numpy(), rows=tuple(rows))


class _Aligner:
    """Says what is spoken where; a recording that is longer than a window is aligned by the model, and cut."""

    def __init__(self, load: Callable[[], Recognizer]) -> None:
        self._recognizer = cache(load)

    def __call__(self, entry: Entry) -> tuple[tuple[Speech, ...], float]:
        regions, duration_s = find_speech(entry, PADDING_S)
        if not entry.text.strip() or not regions:
            return (), duration_s
        start_s, end_s = regions[0].start_s, regions[-1].end_s
        if end_s - start_s <= LONGEST_S:
            return (Speech(start_s=start_s, end_s=end_s, text=entry.text),), duration_s
        words = self._recognizer().align(entry.path, entry.text, language=entry.language)
        return tuple(cut(words, duration_s)), duration_s


def cut(words: Sequence[Word], duration_s: float) -> Iterator[Speech]:
    """Cut aligned words into stretches that fit into a window, each at its longest pause, the last of several.

    A pause in the second half of what fits, if there is one, so that no stretch is short.
    """
    left = list(words)
    while left:
        end_s = left[0].start_s + LONGEST_S - 2 * PADDING_S
        fitting = max(1, sum(word.end_s <= end_s for word in left))
        if fitting < len(left):
            late = range(-(-fitting // 2), fitting + 1)
            fitting = max(late, key=lambda i: (left[i].start_s - left[i - 1].end_s, i))
        taken, left = left[:fitting], left[fitting:]
        yield Speech(
            start_s=max(0.0, taken[0].start_s - PADDING_S),
            end_s=min(duration_s, taken[-1].end_s + PADDING_S),
            text="".join(word.text for word in taken).strip(),
        )


def _check(task: Task[FineTuneOptions]) -> None:
    if not any(entry.text.strip() for entry in (*task.entries, *task.measured)):
        raise ManifestError(
            f"{task.entries[0].path}: nothing tells what is said in it, nor in the others; "
            "allowed are manifests with text"
        )
