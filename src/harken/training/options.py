"""Options of a training. The command line derives its flags from these fields; nothing here needs PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from harken.errors import OptionError
from harken.option_types import check, option, option_like
from harken.streaming.config import DELAYS

MAX_DECODER_LAYERS = 4
"""Most decoder layers of an assistant."""

HEARS = ("live", "whole")
"""Windows that an adapter can be trained for: those of a live stream, and whole ones."""

MAX_RANK = 256

MAX_SEED = 2**32 - 1
"""Largest seed; PyTorch takes 64 bits, of which the number of the step needs some."""

_data_option = partial(option, section="Data")
_share = partial(_data_option, low=0, high=1)
_training_option = partial(option, section="Training")
_state_loss_weight = partial(_training_option, 2.0, low=0, high=100)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Options of how recordings become training windows, and which are held out.

    Raises
    ------
    OptionError
        If a value is outside what is allowed.
    """

    held_out_fraction: float = _share(0.1, "Share of the speakers, or recordings, held out for evaluation.")
    shuffles: int = _data_option(
        2, "Number of times that recordings are joined, each in another order.", low=1, high=100
    )
    unpacked_fraction: float = _share(0.3, "Share of the windows that are not filled up with further speech.")
    speed_perturbation: float = _data_option(
        0.08, "From the second shuffle on, speech is up to this much faster or slower.", low=0, high=0.2
    )
    without_timestamps_fraction: float = _share(
        0.25, "Share of the windows that are also learnt without timestamps."
    )
    with_previous_text_fraction: float = _share(
        0.25, "Share of the windows that are also learnt with the text before them."
    )
    no_speech_fraction: float = _share(0.1, "Share of the windows without speech that are kept.")
    seed: int = _data_option(0, "Random seed; equal seeds give equal windows.", low=0, high=MAX_SEED)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptDataOptions(DataOptions):
    """Options of the windows of an adapter, which mostly are as short as utterances."""

    unpacked_fraction: float = option_like(DataOptions, "unpacked_fraction", 0.6)
    without_timestamps_fraction: float = option_like(DataOptions, "without_timestamps_fraction", 1.0)
    cut_fraction: float = _share(
        0.4, "Share of the windows that are cut off somewhere, as a stream is at an update."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """Options of the optimisation.

    Raises
    ------
    OptionError
        If a value is outside what is allowed.
    """

    epochs: int = _training_option(16, "How many times every piece is learnt from.", low=1, high=100_000)
    batch_size: int = _training_option(4, "Pieces of one step.", low=1, high=4096)
    learning_rate: float = _training_option(
        1e-3, "Highest learning rate, reached behind the warm-up and left in half a cosine.", low=1e-9, high=1
    )
    warmup_ratio: float = _training_option(
        0.05, "Share of the steps in which the learning rate rises.", low=0, high=1
    )
    weight_decay: float = _training_option(0.01, "Weight decay of AdamW, on matrices.", low=0, high=1)
    max_grad_norm: float = _training_option(
        1.0, "Largest norm of the gradient; a larger one is scaled down.", low=1e-6, high=1e6
    )
    dropout: float = _training_option(0.0, "Dropout in each residual branch.", low=0, high=0.9)
    mask_time_fraction: float = _training_option(
        0.0, "Share of the encoder output that is masked, in spans of up to half a second.", low=0, high=0.9
    )
    eval_steps: int = _training_option(
        100, "Steps between two measurements and checkpoints.", low=1, high=1_000_000
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillOptions(TrainOptions):
    """Options of the training of an assistant."""

    state_loss_weight: float = _state_loss_weight(
        "Weight at the start, 0 at the end, of the loss between its hidden states and the model's, or those of the "
        "model it is initialized from."
    )
    rank: int | None = _training_option(
        None,
        "Train changes of this rank to the decoder of --init-from, and write only these: some MB, used with that "
        "model; none trains and writes all of it.",
        low=1,
        high=MAX_RANK,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuneOptions(TrainOptions):
    """Options of fine-tuning; a low learning rate preserves what the model knows beyond the recordings."""

    epochs: int = option_like(TrainOptions, "epochs", 3)
    batch_size: int = option_like(TrainOptions, "batch_size", 16)
    learning_rate: float = option_like(TrainOptions, "learning_rate", 1e-5)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptOptions(TrainOptions):
    """Options of the training of an adapter."""

    epochs: int = option_like(TrainOptions, "epochs", 8)
    learning_rate: float = option_like(TrainOptions, "learning_rate", 5e-4)
    state_loss_weight: float = _state_loss_weight(
        "Weight of the loss between the decoder's hidden states and those that it has behind the whole window."
    )
    hears: tuple[str, ...] = _training_option(
        HEARS, f"Windows that the model hears, of which each step takes one: {', '.join(HEARS)}.", choices=HEARS
    )
    delay: str = _training_option("low", f"Delay of the live windows: {', '.join(DELAYS)}.", choices=DELAYS)
    rank: int = _training_option(16, "Rank of the change to each matrix.", low=1, high=MAX_RANK)

    def __post_init__(self) -> None:
        check(self)
        if not self.hears:
            raise OptionError("hears", self.hears, f"one or more of {', '.join(HEARS)}")
