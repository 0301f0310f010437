"""The one form that every reader delivers: dimensions, weights, and where the vocabulary is."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from harken.checkpoints.alignment_heads import AlignmentHeads, declared_heads, published_heads
from harken.checkpoints.storage import Array, LazyTensor, file_sha256
from harken.checkpoints.weight_shapes import check_shapes, infer_dims
from harken.types import Dims

Format = Literal["ctranslate2", "huggingface", "openai", "ggml"]


class Weights(Mapping[str, Array]):
    """Weights under the names of OpenAI's state dict (``encoder.blocks.0.attn.query.weight``).

    Each access reads the file anew and returns a read-only array, C-contiguous, float16 or float32: what the
    file stores where it is one of these, float32 where it stores bfloat16 or quantised values.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        The weights, not read yet.
    digest : callable
        Computes `digest`; called at most once.
    """

    def __init__(self, tensors: Mapping[str, LazyTensor], digest: Callable[[], str]) -> None:
        self._tensors, self._digest = tensors, digest

    def __getitem__(self, name: str) -> Array:
        array = self._tensors[name].read()
        array.flags.writeable = False
        return array

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one weight, without reading it."""
        return self._tensors[name].shape

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of every file that the weights and the dimensions come from.

        All bytes are hashed, because a key that misses a changed weight would silently transcribe with the
        old model. At about 1 GB/s this is small beside reading the weights; sampling would save little.
        """
        return self._digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Where the tokenizer of a checkpoint comes from; nothing is read or built yet.

    With neither of the two, the standard vocabulary for the model's `n_vocab` is meant.

    Attributes
    ----------
    path : Path, optional
        A tokenizer.json, vocab.json, vocabulary.json or vocabulary.txt.
    tokens : tuple of bytes
        What the weights file itself lists: the bytes of each text token, in order of id.
    """

    path: Path | None = None
    tokens: tuple[bytes, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """A Whisper model on disk, opened but not loaded.

    Attributes
    ----------
    dims : Dims
        Dimensions of the model, checked against the shape of every weight.
    weights : Weights
        The weights, read when asked for.
    vocabulary : Vocabulary
        Where the tokenizer comes from.
    alignment_heads : tuple of (layer, head), or None
        Cross-attention heads that time words; None where neither the file nor the published tables know.
    path : Path
        The file, or the directory, that was opened.
    format : str
        ``"ctranslate2"``, ``"huggingface"``, ``"openai"`` or ``"ggml"``.
    precision : str
        How the file stores its matrices: ``"float16"``, ``"int8"``, ``"q5_0"`` ...
    encoder_sha256 : str, optional
        `encoder_digest` of the model that a decoder alone was made from, where its file says it.
    frequent : ndarray of int64, optional
        Ascending ids of the tokens that a draft of this model needs to score, where its file names them.
    """

    dims: Dims
    weights: Weights
    vocabulary: Vocabulary
    alignment_heads: AlignmentHeads | None
    path: Path
    format: Format
    stored_dtype: str
    encoder_sha256: str | None = None
    draft_vocabulary: npt.NDArray[np.int64] | None = field(default=None, repr=False)

    @property
    def has_encoder(self) -> bool:
        """Whether this is a whole model, not the decoder of one alone."""
        return self.dims.has_encoder


def assemble(
    path: Path,
    format: Format,
    tensors: Mapping[str, LazyTensor],
    declared: Mapping[str, object],
    vocabulary: Vocabulary,
    *,
    alignment_heads: object = None,
    files: tuple[Path, ...] = (),
) -> Checkpoint:
    """Check what a reader found and put it together.

    Parameters
    ----------
    path : Path
        What was opened.
    format : str
        Name of the reader.
    tensors : mapping of str to Tensor
        Every weight of the file under OpenAI's names.
    declared : mapping of str to object
        Dimensions that the file states, the numbers of heads among them.
    vocabulary : Vocabulary
        Where the tokenizer comes from.
    alignment_heads : object
        `alignment_heads` of a configuration file, as it stands there.
    files : tuple of Path
        The files that weights and dimensions come from; `path` itself if empty.

    Raises
    ------
    CheckpointError
        A weight is missing, unknown or of a wrong shape, or the file contradicts itself.
    """
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    dims = infer_dims(path, shapes, declared)
    check_shapes(path, shapes, dims)

    def digest() -> str:
        return hashlib.sha256("\n".join(map(file_sha256, files or (path,))).encode()).hexdigest()

    return Checkpoint(
        dims=dims,
        weights=Weights(tensors, digest),
        vocabulary=vocabulary,
        alignment_heads=declared_heads(alignment_heads, dims) or published_heads(dims),
        path=path,
        format=format,
        stored_dtype=tensors["decoder.token_embedding.weight"].stored_dtype,
    )


def find_vocabulary(directory: Path) -> Vocabulary:
    """Find the tokenizer's file in the directory of a model."""
    files = (directory / name for name in ("tokenizer.json", "vocab.json", "vocabulary.json", "vocabulary.txt"))
    return Vocabulary(path=next(filter(Path.is_file, files), None))
