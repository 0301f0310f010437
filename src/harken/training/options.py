"""Options of a training. The command line derives its flags from these fields; nothing here needs PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from harken.errors import OptionError
from harken.option_types import check_types
from harken.streaming.config import PRESETS
from harken.transcribe.options import option

EPOCHS_HELP = "How many times every piece is learnt from."
BATCH_SIZE_HELP = "Pieces of one step."
LEARNING_RATE_HELP = "Highest learning rate, reached behind the warm-up and left in half a cosine."

MAX_DECODER_LAYERS = 4
"""Most decoder layers of an assistant."""

HEARS = ("live", "whole")
"""Windows that an adapter can be trained for: those of a live stream, and whole ones."""

MAX_RANK = 256

MAX_SEED = 2**32 - 1
"""Largest seed; PyTorch takes 64 bits, of which the number of the step needs some."""

_data_option = partial(option, "Data")
_training_option = partial(option, "Training")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Options of how recordings become training windows, and which are held out.

    Raises
    ------
    OptionError
        If a value is outside what is allowed.
    """

    held_out_fraction: float = _data_option(
        0.1, "Share of the speakers, or recordings, held out for evaluation."
    )
    shuffles: int = _data_option(2, "Number of times that recordings are joined, each in another order.")
    unpacked_fraction: float = _data_option(
        0.3, "Share of the windows that are not filled up with further speech."
    )
    speed_perturbation: float = _data_option(
        0.08, "From the second shuffle on, speech is up to this much faster or slower."
    )
    without_timestamps_fraction: float = _data_option(
        0.25, "Share of the windows that are also learnt without timestamps."
    )
    with_previous_text_fraction: float = _data_option(
        0.25, "Share of the windows that are also learnt with the text before them."
    )
    no_speech_fraction: float = _data_option(0.1, "Share of the windows without speech that are kept.")
    seed: int = _data_option(0, "Random seed; equal seeds give equal windows.")

    def __post_init__(self) -> None:
        check_types(self)
        for name in (
            "held_out_fraction",
            "unpacked_fraction",
            "without_timestamps_fraction",
            "with_previous_text_fraction",
            "no_speech_fraction",
        ):
            _check_range(name, getattr(self, name), 0, 1)
        _check_range("speed_perturbation", self.speed_perturbation, 0, 0.2)
        _check_range("shuffles", self.shuffles, 1, 100)
        if not 0 <= self.seed <= MAX_SEED:
            raise OptionError("seed", self.seed, f"an integer from 0 to {MAX_SEED}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptDataOptions(DataOptions):
    """Options of the windows of an adapter, which mostly are as short as utterances."""

    unpacked_fraction: float = _data_option(
        0.6, "Share of the windows that are not filled up with further speech."
    )
    without_timestamps_fraction: float = _data_option(
        1.0, "Share of the windows that are also learnt without timestamps."
    )
    cut_fraction: float = _data_option(
        0.4, "Share of the windows that are cut off somewhere, as a stream is at an update."
    )

    def __post_init__(self) -> None:
        DataOptions.__post_init__(self)
        _check_range("cut_fraction", self.cut_fraction, 0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Options of the optimisation.

    Raises
    ------
    OptionError
        If a value is outside what is allowed.
    """

    epochs: int = _training_option(16, EPOCHS_HELP)
    batch_size: int = _training_option(4, BATCH_SIZE_HELP)
    learning_rate: float = _training_option(1e-3, LEARNING_RATE_HELP)
    warmup_ratio: float = _training_option(0.05, "Share of the steps in which the learning rate rises.")
    weight_decay: float = _training_option(0.01, "Weight decay of AdamW, on matrices.")
    max_grad_norm: float = _training_option(1.0, "Largest norm of the gradient; a larger one is scaled down.")
    dropout: float = _training_option(0.0, "Dropout in each residual branch.")
    mask_time_fraction: float = _training_option(
        0.0, "Share of the encoder output that is masked, in spans of up to half a second."
    )
    eval_steps: int = _training_option(100, "Steps between two measurements and checkpoints.")

    def __post_init__(self) -> None:
        check_types(self)
        _check_range("epochs", self.epochs, 1, 100_000)
        _check_range("batch_size", self.batch_size, 1, 4096)
        _check_range("learning_rate", self.learning_rate, 1e-9, 1)
        for name in ("warmup_ratio", "weight_decay"):
            _check_range(name, getattr(self, name), 0, 1)
        _check_range("max_grad_norm", self.max_grad_norm, 1e-6, 1e6)
        for name in ("dropout", "mask_time_fraction"):
            _check_range(name, getattr(self, name), 0, 0.9)
        _check_range("eval_steps", self.eval_steps, 1, 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillOptions(TrainOptions):
    """Options of the training of an assistant."""

    state_loss_weight: float = _training_option(
        2.0,
        "Weight of the loss between its hidden states and the model's, or those of the model it is initialized from.",
    )

    def __post_init__(self) -> None:
        TrainOptions.__post_init__(self)
        _check_range("state_loss_weight", self.state_loss_weight, 0, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuneOptions(TrainOptions):
    """Options of fine-tuning; a low learning rate preserves what the model knows beyond the recordings."""

    epochs: int = _training_option(3, EPOCHS_HELP)
    batch_size: int = _training_option(16, BATCH_SIZE_HELP)
    learning_rate: float = _training_option(1e-5, LEARNING_RATE_HELP)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptOptions(TrainOptions):
    """Options of the training of an adapter."""

    epochs: int = _training_option(8, EPOCHS_HELP)
    learning_rate: float = _training_option(5e-4, LEARNING_RATE_HELP)
    state_loss_weight: float = _training_option(
        2.0,
        "Weight of the loss between the decoder's hidden states and those that it has behind the whole window.",
    )
    hears: tuple[str, ...] = _training_option(
        ("live", "whole"),
        f"Windows that the model hears, of which each step takes one: {', '.join(HEARS)}.",
    )
    delay: str = _training_option("low", f"Delay of the live windows: {', '.join(PRESETS)}.")
    rank: int = _training_option(16, "Rank of the change to each matrix.")

    def __post_init__(self) -> None:
        TrainOptions.__post_init__(self)
        _check_range("state_loss_weight", self.state_loss_weight, 0, 100)
        _check_range("rank", self.rank, 1, MAX_RANK)
        if not self.hears or not {*self.hears} <= {*HEARS}:
            raise OptionError("hears", ",".join(self.hears), f"one or more of {', '.join(HEARS)}")
        if self.delay not in PRESETS:
            raise OptionError("delay", self.delay, ", ".join(PRESETS))


def options_from(options_class: type[Any], values: dict[str, Any]) -> Any:
    """Return options of a class, from a mapping that may hold further values."""
    return options_class(
        **{field.name: values[field.name] for field in fields(options_class) if field.name in values}
    )


def _check_range(name: str, value: float, minimum: float, maximum: float) -> None:
    if not minimum <= value <= maximum:
        raise OptionError(name, value, f"{minimum:g} to {maximum:g}")
