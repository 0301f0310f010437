"""What can be chosen about a training. Faces derive their flags from these fields; nothing here needs PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from harken.errors import OptionError
from harken.transcribe.options import option

EPOCHS = "How many times every piece is learnt from."
BATCH = "Pieces of one step."
RATE = "Highest learning rate, reached behind the warm-up and left in half a cosine."

_data = partial(option, "Data")
_training = partial(option, "Training")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """How recordings become pieces, and what is kept out of the training.

    Raises
    ------
    OptionError
        If a value is outside what is allowed.
    """

    held_out: float = _data(0.1, "Share of the speakers, or recordings, that are only measured with.")
    draws: int = _data(2, "How many times recordings are joined anew, in another order.")
    alone: float = _data(0.3, "Share of the pieces that are not filled up with further speech.")
    vary: float = _data(0.08, "From the second draw on speech is up to this much faster or slower.")
    untimed: float = _data(0.25, "Share of the pieces that are learnt without timestamps too.")
    prompted: float = _data(0.25, "Share of the pieces that are learnt with the text before them too.")
    silence: float = _data(0.1, "Share of the pieces without speech that are kept.")
    seed: int = _data(0, "Where the random numbers start; equal seeds give equal pieces.")

    def __post_init__(self) -> None:
        for name in ("held_out", "alone", "untimed", "prompted", "silence"):
            _between(name, getattr(self, name), 0, 1)
        _between("vary", self.vary, 0, 0.2)
        _between("draws", self.draws, 1, 100)
        if self.seed < 0:
            raise OptionError("seed", self.seed, "an integer from 0 on")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How weights are trained.

    Raises
    ------
    OptionError
        If a value is outside what is allowed.
    """

    epochs: int = _training(16, EPOCHS)
    batch: int = _training(4, BATCH)
    rate: float = _training(1e-3, RATE)
    warmup: float = _training(0.05, "Share of the steps in which the learning rate rises.")
    weight_decay: float = _training(0.01, "Weight decay of AdamW, on matrices.")
    clip: float = _training(1.0, "Longest gradient; a longer one is shortened.")
    dropout: float = _training(0.0, "Share of what each part of a layer adds that is left out.")
    masked: float = _training(
        0.0, "Share of the encoder's output that is hidden, in spans of up to half a second."
    )
    measure: int = _training(100, "Steps between two measurements and checkpoints.")

    def __post_init__(self) -> None:
        _between("epochs", self.epochs, 1, 100_000)
        _between("batch", self.batch, 1, 4096)
        _between("rate", self.rate, 1e-9, 1)
        for name in ("warmup", "weight_decay"):
            _between(name, getattr(self, name), 0, 1)
        _between("clip", self.clip, 1e-6, 1e6)
        for name in ("dropout", "masked"):
            _between(name, getattr(self, name), 0, 0.9)
        _between("measure", self.measure, 1, 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillOptions(TrainOptions):
    """How an assistant is trained."""

    likeness: float = _training(
        2.0,
        "Weight of how far its states are from the model's, or from those of the smaller model it starts from.",
    )

    def __post_init__(self) -> None:
        TrainOptions.__post_init__(self)
        _between("likeness", self.likeness, 0, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuneOptions(TrainOptions):
    """How a model is fine-tuned: with care, as it knows much that the recordings do not say."""

    epochs: int = _training(3, EPOCHS)
    batch: int = _training(16, BATCH)
    rate: float = _training(1e-5, RATE)


def chosen(kind: type[Any], given: dict[str, Any]) -> Any:
    """Options of a kind, out of all that was given."""
    return kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given})


def _between(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise OptionError(name, value, f"{least:g} to {most:g}")
