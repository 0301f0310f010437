"""The backends and the speculative decoders of checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from logging import getLogger
from pathlib import Path
from typing import Any

from harken.checkpoints import Checkpoint, find_assistant, open_checkpoint, resolve_model, shares_encoder
from harken.compiled_library import library_path
from harken.contract import Backend, Ints
from harken.decoding import Assistant, SpeculativeDecoder
from harken.errors import BackendUnavailable, CheckpointError, OptionError, install_hint
from harken.option_types import check, option
from harken.text import Tokenizer
from harken.types import Dims

AUTO, NGRAM, NO_ASSISTANT = "auto", "ngram", "none"
BACKENDS = (AUTO, "native", "onnx", "torch", "numpy")
CPU_ENGINES = (AUTO, "native", "onnx")
PRECISIONS = {
    AUTO: ("auto", "fp32", "bf16", "int16", "int8"),
    "native": ("auto", "fp32", "int16", "int8"),
    "onnx": ("auto", "fp32", "bf16", "int8"),
    "numpy": ("auto", "fp32"),
}
"""Precisions of each backend; those of torch depend on the device."""
ONNX_PACKAGES = ("onnx", "onnxruntime")
DEFAULT_ASSISTANTS = ("tiny.en", "tiny")
"""Models that ``assistant="auto"`` considers, in this order."""
LEAST_WEIGHTS = 5 * 4 * 384**2
"""Weights of a decoder, as `_weights_per_step` counts them, from which "auto" looks for one: five times those of tiny.

Below, drafts do not pay (docs/decisions/speculation.md).
"""
LEAST_RATIO = 20
"""How many times as many the decoder has if the assistant was not trained for it, and has to encode too."""
ATTENTIONS = ("full", "lsh")
LSH_ROUNDS, LSH_BUCKET_SIZE = 3, 64


def gpu_in_turn(number: int) -> str:
    """Return the GPU of that number, from the first one again behind the last; "cuda" where there is none."""
    from harken.backends.torch.device import count_gpus

    n_gpus = count_gpus()
    return f"cuda:{number % n_gpus}" if n_gpus else "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendFactory:
    """A maker of backends of one kind, with arguments of `harken.load`.

    The backend "auto" is torch for a GPU or hashed attention; else native where its library can be loaded and fits the
    model and the precision, else onnx, an extra.

    Raises
    ------
    OptionError
        If a value is not allowed.
    """

    backend: str = option(AUTO, choices=BACKENDS, allowed=" or ".join(BACKENDS))
    device: str = "auto"
    precision: str = "auto"
    threads: int | None = option(None, low=1, high=1024, allowed="an integer from 1 to 1024")
    cache: Path | None = None
    attention: str = option("full", choices=ATTENTIONS, allowed=" or ".join(ATTENTIONS))
    lsh_rounds: int = option(LSH_ROUNDS, low=0, high=64)
    lsh_bucket_size: int = option(LSH_BUCKET_SIZE, low=1, high=1500)

    def __post_init__(self) -> None:
        check(self)
        if self.backend == AUTO and (self.device not in ("auto", "cpu") or self.attention == "lsh"):
            object.__setattr__(self, "backend", "torch")
        if self.backend != "torch" and self.device not in ("auto", "cpu"):
            raise OptionError("device", self.device, f"auto or cpu with backend={self.backend!r}")
        precisions = PRECISIONS.get(self.backend, (self.precision,))
        if self.precision not in precisions:
            raise OptionError(
                "precision", self.precision, f"{' or '.join(precisions)} with backend={self.backend!r}"
            )
        if self.threads is not None and self.backend == "numpy":
            raise OptionError(
                "threads", self.threads, "no number with backend='numpy', whose threads numpy chooses"
            )
        if self.attention == "lsh" and self.backend != "torch":
            raise OptionError("attention", self.attention, f"full with backend={self.backend!r}; torch has lsh")
        for name, default in (("lsh_rounds", LSH_ROUNDS), ("lsh_bucket_size", LSH_BUCKET_SIZE)):
            if self.attention != "lsh" and getattr(self, name) != default:
                raise OptionError(name, getattr(self, name), f"{default} without attention='lsh'")

    def make_backend(
        self,
        checkpoint: Checkpoint,
        *,
        precision: str | None = None,
        shares_encoder: bool = False,
        vocab_subset: Ints | None = None,
    ) -> Backend:
        """Make the backend of a checkpoint, or of its decoder alone where that shares an encoder.

        The precision is that of the factory unless another is given; logits cover the ids of a subset, or all.

        Raises
        ------
        OptionError
            If this machine cannot compute there or in that precision.
        CheckpointError
            If the checkpoint is damaged, or its files change while they are read.
        OutOfMemory
            If the model does not fit into memory.
        BackendUnavailable
            If the runtime is not installed.
        """
        from harken.backends.loading import reporting_memory

        dims, weights = checkpoint.dims, checkpoint.weights
        if shares_encoder:
            dims = dims.without_encoder()
        precision = precision or self.precision
        parts: dict[str, Any] = {"heads": checkpoint.kept_heads, "vocab_subset": vocab_subset}
        engine = self._choose_backend(checkpoint.dims)
        with reporting_memory(f"loading {checkpoint.path}"):
            if engine in CPU_ENGINES:
                from harken.backends.native import NativeBackend
                from harken.backends.onnx import OnnxBackend

                kind = NativeBackend if engine == "native" else OnnxBackend
                return kind(dims, weights, precision=precision, threads=self.threads, cache=self.cache, **parts)
            backend: Backend
            if engine == "torch":
                from harken.backends.torch import LSHAttention, TorchBackend

                if self.attention == "lsh":
                    parts["attention"] = LSHAttention(rounds=self.lsh_rounds, bucket_size=self.lsh_bucket_size)
                backend = TorchBackend(
                    dims, weights, device=self.device, precision=precision, threads=self.threads, **parts
                )
            else:
                from harken.backends.numpy import NumpyBackend

                backend = NumpyBackend(dims, weights, **parts)
        weights.check_unchanged()
        return backend

    def _choose_backend(self, dims: Dims) -> str:
        """Return the backend of a model: an assistant gets that of its model if its dimensions fit."""
        with_onnx = all(map(find_spec, ONNX_PACKAGES))
        if self.backend == "onnx" and not with_onnx:
            raise BackendUnavailable(f"backend onnx needs ONNX Runtime: {install_hint('onnx')}")
        if self.backend != AUTO:
            return self.backend
        from harken.backends.native.backend import fits
        from harken.backends.native.library import unavailable_reason

        reason = unavailable_reason()
        if self.precision in PRECISIONS["native"] and reason is None and fits(dims):
            return "native"
        if with_onnx:
            if reason is not None and library_path().exists():
                _say_once(f"{reason}; backend onnx takes its place")
            return "onnx"
        if reason is not None:
            raise BackendUnavailable(
                f"{reason}; {install_hint('onnx')} installs an engine that does without it"
            )
        if self.precision not in PRECISIONS["native"]:
            raise BackendUnavailable(f"precision {self.precision} needs ONNX Runtime: {install_hint('onnx')}")
        return "native"  # which says what does not fit

    def open_assistant(
        self,
        assistant: str | os.PathLike[str] | None,
        model: Checkpoint,
        tokenizer: Tokenizer,
        *,
        model_name: str,
        download: bool = True,
    ) -> Checkpoint | None:
        """Open the assistant of a model; return None if no other model drafts for it.

        Parameters
        ----------
        assistant : str or path, or None
            A model; ``"ngram"``, or ``"none"``, as None; or ``"auto"``: with the compiled engine what pays, of
            `DEFAULT_ASSISTANTS` on this machine. By their names these have the changes that come with harken for
            `model`, if there are any (`find_assistant`).
        model, tokenizer, model_name : Checkpoint, Tokenizer, str
            The model, and its name in errors.
        download : bool

        Raises
        ------
        CheckpointNotFound
            If there is no such assistant.
        CheckpointError
            If it is damaged, not Whisper, or a decoder made for another model.
        OptionError
            If it has another vocabulary than the model, or takes another log-mel or context.
        """
        if assistant is None or assistant in (NGRAM, NO_ASSISTANT):
            return None
        if assistant == AUTO:
            # Of the other backends none gives the same bits with drafts and without.
            is_native = self._choose_backend(model.dims) == "native"
            return _find_assistant_that_pays(model_name, model, tokenizer) if is_native else None
        checkpoint = open_checkpoint(resolve_model(assistant, download=download), assistant=True)
        _check_assistant_matches(str(assistant), checkpoint, model_name, model, tokenizer)
        if assistant not in DEFAULT_ASSISTANTS:
            return checkpoint
        return (
            find_assistant(model, lambda name: checkpoint if name == assistant else _open_local(name))
            or checkpoint
        )

    def make_speculative_decoder(
        self, assistant: Checkpoint, model: Checkpoint, *, clock: Callable[[], float]
    ) -> SpeculativeDecoder:
        """Make the speculative decoder of a model and its assistant, as `open_assistant` returns it."""
        shared = shares_encoder(assistant, model)
        # On the CPU reading the weights takes most of a step, and drafts are verified anyway.
        precision = "int4" if self.backend in CPU_ENGINES else None
        backend = self.make_backend(
            assistant, precision=precision, shares_encoder=shared, vocab_subset=assistant.draft_vocabulary
        )
        setup = _cross_weights(assistant.dims) if shared else _encoder_weights(assistant.dims)
        ratio = setup / _encoder_weights(model.dims)
        return SpeculativeDecoder(
            clock, assistant=Assistant(backend=backend, shares_encoder=shared, setup_ratio=ratio)
        )


@cache
def _say_once(reason: str) -> None:
    """Log why the engine that was built is not used: what is slower or has other bits should not come unnoticed."""
    getLogger("harken").warning("harken: %s", reason)


def _find_assistant_that_pays(model_name: str, model: Checkpoint, tokenizer: Tokenizer) -> Checkpoint | None:
    """Return what pays as assistant of a model, of the models on this machine, or None."""
    weights = _weights_per_step(model.dims)
    if weights < LEAST_WEIGHTS:
        return None
    open_once = cache(_open_local)
    if assistant := find_assistant(model, open_once):
        return assistant
    for candidate in DEFAULT_ASSISTANTS:
        try:
            checkpoint = open_once(candidate)
            _check_assistant_matches(candidate, checkpoint, model_name, model, tokenizer)
        except (CheckpointError, OptionError):
            continue
        if weights >= LEAST_RATIO * _weights_per_step(checkpoint.dims):
            return checkpoint
    return None


def _open_local(name: str) -> Checkpoint:
    return open_checkpoint(resolve_model(name, download=False))


def _weights_per_step(dims: Dims) -> int:
    """Return the number of weights that a decoder reads in a step, up to a constant factor."""
    return dims.n_text_layer * dims.n_text_state**2


def _encoder_weights(dims: Dims) -> int:
    """Return the number of weights of an encoder's layers."""
    return 12 * dims.n_audio_layer * dims.n_audio_state**2


def _cross_weights(dims: Dims) -> int:
    """Return the number of weights that make the keys and values of cross-attention."""
    return 2 * dims.n_text_layer * dims.n_text_state * dims.n_audio_state


def _check_assistant_matches(
    assistant: str, checkpoint: Checkpoint, model_name: str, model: Checkpoint, tokenizer: Tokenizer
) -> None:
    """Refuse an assistant that cannot draft for a model: of another vocabulary, log-mel or context."""
    actual, expected = checkpoint.dims.n_vocab, model.dims.n_vocab
    if not tokenizer.has_same_vocabulary(checkpoint.vocabulary.tokenizer(actual)):
        note = ", but not the same" if actual == expected else ""
        allowed = f"a model with the {expected} tokens of {model_name}; {assistant} has {actual}{note}"
        raise OptionError("assistant", assistant, allowed)
    encoder_fields = ("n_mels", "n_audio_ctx") if checkpoint.dims.has_encoder else ("n_audio_ctx",)
    for field in (*encoder_fields, "n_text_ctx"):
        actual, expected = getattr(checkpoint.dims, field), getattr(model.dims, field)
        if actual != expected:
            allowed = f"a model with {field}={expected}, as {model_name}; {assistant} has {actual}"
            raise OptionError("assistant", assistant, allowed)
