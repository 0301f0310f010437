"""The result of every reader: dimensions, lazily read weights, and the source of the vocabulary."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from harken.checkpoints.alignment_heads import (
    AlignmentHeads,
    KeptHeads,
    declared_heads,
    published_heads,
    word_heads,
)
from harken.checkpoints.model_files import (
    Array,
    DerivedWeights,
    LazyTensor,
    WatchedFile,
    check_text_size,
    read_object,
    watch,
)
from harken.checkpoints.weight_names import EMBEDDING
from harken.checkpoints.weight_shapes import Declared, check_shapes, infer_dims
from harken.errors import CheckpointError
from harken.store import stored_text
from harken.text import Tokenizer
from harken.text.vocabulary import NO_CONFIG, Arrangement, GenerationConfig, all_ids, arrange
from harken.types import Dims

Format = Literal["ctranslate2", "huggingface", "openai", "ggml", "gguf", "mlx", "onnx", "openvino"]


class Weights(DerivedWeights):
    """The weights under the names of OpenAI's state dict (``encoder.blocks.0.attn.query.weight``).

    Each access reads the file and returns a read-only C-contiguous array: float16 or float32 as stored, float32 if the
    file stores bfloat16 or quantised values. Values that are not finite are refused with a `CheckpointError`: a model
    with them writes wrong text. The weights and the dimensions come from `files`, watched since before they were read;
    `path` is for messages.
    """

    def __init__(self, path: Path, tensors: Mapping[str, LazyTensor], files: Sequence[WatchedFile]) -> None:
        super().__init__(tensors, lambda name: _checked(path, name, tensors[name].read()))
        self._path, self._tensors, self.files = path, tensors, files

    def __getitem__(self, name: str) -> Array:
        try:
            array = super().__getitem__(name)
        except CheckpointError:
            self.check_unchanged()  # the better reason
            raise
        array.flags.writeable = False
        return array

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of one weight without reading it."""
        return self._tensors[name].shape

    def tensors(self, prefix: str) -> dict[str, LazyTensor]:
        """Return the weights whose names begin so, not read yet."""
        return {name: tensor for name, tensor in self._tensors.items() if name.startswith(prefix)}

    @property
    def factors(self) -> Weights:
        """The factors of the weights that are stored as products B A, under the names ``NAME.A`` and ``NAME.B``."""
        factors = {
            f"{name}.{factor}": part
            for name, tensor in self._tensors.items()
            for factor, part in zip("AB", tensor.factors, strict=False)
        }
        return Weights(self._path, factors, self.files)

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of every file that the weights and the dimensions come from.

        All bytes are hashed, because a cache key that misses a changed weight would silently transcribe with the old
        model; that of a large file again only where its inode, size or times have changed. A `CheckpointError` says
        that a file cannot be read any more, or changed since the checkpoint was opened.
        """
        return hashlib.sha256("\n".join(file.sha256() for file in self.files).encode()).hexdigest()

    def changed(
        self, changes: Iterable[tuple[str, Callable[[Array], Array]]], files: Sequence[WatchedFile]
    ) -> Weights:
        """Return these weights with changes from other files, on which their digest then depends too.

        Functions of one weight are applied one after the other.
        """
        tensors = dict(self._tensors)
        for name, change in changes:
            tensors[name] = tensors[name].combined(change)
        return Weights(self._path, tensors, [*self.files, *files])

    def check_unchanged(self) -> None:
        """Raise a `CheckpointError` if a file has changed since the checkpoint was opened.

        Call this after weights have been read: what was read may be a mixture of two models.
        """
        for file in self.files:
            file.check_unchanged()


def _checked(path: Path, name: str, array: Array) -> Array:
    if array.dtype.kind != "f":
        raise CheckpointError(f"{path}: {name} is of type {array.dtype}, allowed are floating-point numbers")
    if not np.isfinite(array).all():
        raise CheckpointError(f"{path}: {name} holds values that are not finite; download the file again")
    return array


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The source of a checkpoint's vocabulary; nothing is read or built yet.

    With neither a path nor tokens it is the standard vocabulary for the model's `n_vocab`.
    """

    path: Path | None = None  # a tokenizer.json, vocab.json, vocabulary.json or vocabulary.txt
    tokens: tuple[bytes, ...] = field(default=(), repr=False)  # in order of id, if the weights file lists them
    # Of the file, if it says where the special tokens are: the rows of the token embedding are read in this order.
    arrangement: Arrangement | None = None
    config: GenerationConfig = field(default=NO_CONFIG, repr=False, hash=False)  # of transformers
    model: Path = Path()  # for messages

    def tokenizer(self, n_vocab: int) -> Tokenizer:
        """Build the tokenizer from the tokens or the file, or from the built-in vocabulary if there is neither.

        What `Tokenizer.from_file` refuses is refused, and files that name other ids of special tokens.
        """
        file, own = self.path or self.model, self.arrangement
        try:
            if own:
                tokenizer = Tokenizer(
                    own.tokens,
                    n_vocab,
                    multilingual=own.multilingual,
                    languages=own.languages,
                    has_timestamps=own.has_timestamps,
                )
                tokenizer.model_ids = own.ids
            elif self.tokens:
                tokenizer = Tokenizer.from_tokens(self.tokens, n_vocab)
            elif self.path:
                tokenizer = Tokenizer.from_file(self.path, n_vocab)
            else:
                tokenizer = Tokenizer.builtin(n_vocab)
        except CheckpointError as error:
            raise CheckpointError(f"{file}: {error}") from error
        _check_special_ids(tokenizer, self.config.path, self.config.special_ids)
        if self.path and not own:
            _check_special_ids(tokenizer, self.path, all_ids(self.path)[0])
        return tokenizer

    def arranged(self, tensor: LazyTensor, axis: int = 0) -> LazyTensor:
        """Return a tensor with an axis of the model's ids in the order of the tokenizer's."""
        own, shape = self.arrangement, tensor.shape
        if own is None or own.is_standard or max(own.ids) >= shape[axis]:
            return tensor
        take = partial(np.take, indices=np.array(own.ids), axis=axis)
        return tensor.combined(take, shape=(*shape[:axis], len(own.ids), *shape[axis + 1 :]))


def _check_special_ids(tokenizer: Tokenizer, file: Path, ids: Mapping[str, int]) -> None:
    """Refuse a file that says other ids of special tokens than the vocabulary has: it is another model's."""
    own = {"<|notimestamps|>": tokenizer.no_timestamps}
    if tokenizer.multilingual:
        own |= {"<|transcribe|>": tokenizer.transcribe, "<|translate|>": tokenizer.translate}
    for name, token in own.items():
        allowed = tokenizer.model_ids[token]
        if ids.get(name, allowed) != allowed:
            raise CheckpointError(
                f"{file}: the id of {name} is {ids[name]}, allowed is {allowed}, which the model's vocabulary has: add "
                "the tokenizer.json that belongs to this model, or remove what is another's"
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Checkpoint:
    """A Whisper model on disk, opened but not loaded."""

    dims: Dims  # checked against the shape of every weight
    weights: Weights  # read on access
    vocabulary: Vocabulary
    alignment_heads: AlignmentHeads | None  # None if neither the file nor the published tables name them
    path: Path  # the file, or the directory, that was opened
    format: Format
    stored_dtypes: tuple[str, ...]  # of its weights, that of most values first: "float16", "int8", "q5_0" ...
    # Where they are stored: `encoder_digest` of the model that a decoder without an encoder was made from, and the
    # ascending ids of the tokens that this model scores when it drafts.
    encoder_sha256: str | None = None
    draft_vocabulary: npt.NDArray[np.int64] | None = field(default=None, repr=False)

    @property
    def stored_dtype(self) -> str:
        """Data type of most values in the file."""
        return self.stored_dtypes[0]

    @property
    def kept_heads(self) -> KeptHeads:
        """Cross-attention heads for word timestamps, with those that attend to the bounds of words if there are any."""
        return KeptHeads.of(
            self.dims, self.alignment_heads, word_heads(_published_dims(self.dims, self.vocabulary))
        )


def assemble(
    path: Path,
    format: Format,
    tensors: Mapping[str, LazyTensor],
    declared: Mapping[str, Declared],
    vocabulary: Vocabulary,
    *,
    files: Sequence[WatchedFile],
    alignment_heads: object = None,
) -> Checkpoint:
    """Check the findings of a reader and make a `Checkpoint` of them.

    The tensors are all weights of the file under OpenAI's names; the declared dimensions include the numbers of heads;
    the files are those of both, watched since before they were read. Alignment heads are those that the model's own
    files name, unchecked, by default those of generation_config.json.

    Raises
    ------
    CheckpointError
        If a weight is missing, unknown or of a wrong shape, or the file contradicts itself.
    """
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    dims = infer_dims(path, shapes, declared)
    check_shapes(path, shapes, dims)
    path_of_tokens, config = vocabulary.path, vocabulary.config
    vocabulary = replace(vocabulary, model=path)
    if path_of_tokens and (own := arrange(path_of_tokens, dims.n_vocab, config)):
        vocabulary = replace(vocabulary, arrangement=own)
        if not own.is_standard:
            files = [*files, watch(path_of_tokens), *([watch(config.path)] if config.entries else [])]
            tensors = {**tensors, EMBEDDING: vocabulary.arranged(tensors[EMBEDDING])}
            dims = replace(dims, n_vocab=len(own.ids))
    heads = config.entries.get("alignment_heads") if alignment_heads is None else alignment_heads
    return Checkpoint(
        dims=dims,
        weights=Weights(path, tensors, files),
        vocabulary=vocabulary,
        alignment_heads=declared_heads(heads, dims) or published_heads(_published_dims(dims, vocabulary)),
        path=path,
        format=format,
        stored_dtypes=_stored_dtypes(tensors),
    )


def _published_dims(dims: Dims, vocabulary: Vocabulary) -> Dims:
    """Return the dimensions that the model had before tokens were added, which changes none of its heads."""
    own = vocabulary.arrangement
    return replace(dims, n_vocab=own.published_size) if own else dims


def _stored_dtypes(tensors: Mapping[str, LazyTensor]) -> tuple[str, ...]:
    values = Counter[str]()
    for tensor in tensors.values():
        values[tensor.stored_dtype] += math.prod(tensor.shape)
    return tuple(name for name, _ in values.most_common())


def find_vocabulary(directory: Path) -> Vocabulary:
    """Find the vocabulary file in the directory of a model, and generation_config.json."""
    files = (directory / name for name in ("tokenizer.json", "vocab.json", "vocabulary.json", "vocabulary.txt"))
    path = next(filter(Path.is_file, files), None)
    for file in (path, directory / "added_tokens.json"):  # which is read with a vocab.json
        if file and file.is_file():
            check_text_size(file)
    config = directory / "generation_config.json"
    return Vocabulary(path=path, config=GenerationConfig(config, read_object(config, optional=True)))


@lru_cache(maxsize=1)
def encoder_digest(checkpoint: Checkpoint) -> str:
    """Return the SHA-256, in hex, of an encoder's weights, independent of the file format.

    The hash covers, in order of name, each weight's name and shape, as ``name (1, 2, 3)`` and a newline, and its values
    as little-endian float32. This reads the whole encoder, 0.6 s for small; the digest is kept in the store. Without an
    encoder there is a `CheckpointError`.
    """
    if not checkpoint.dims.has_encoder:
        raise CheckpointError(f"{checkpoint.path}: has no encoder")

    def hash_encoder() -> str:
        digest = hashlib.sha256()
        for name in sorted(name for name in checkpoint.weights if name.startswith("encoder.")):
            values = np.ascontiguousarray(checkpoint.weights[name], "<f4")
            digest.update(f"{name} {values.shape}\n".encode())
            digest.update(values.data)
        return digest.hexdigest()

    key = f"{checkpoint.weights.digest[:32]}-encoder"
    return stored_text(key, hash_encoder)


def shares_encoder(assistant: Checkpoint, model: Checkpoint) -> bool:
    """Return True if an assistant can use the output of a model's encoder.

    A whole model can if both encoders have the same weights. A decoder without an encoder must, or a `CheckpointError`
    says what differs: the digest of the encoder that it was made for if it is stored, otherwise the dimensions.
    """
    if not assistant.dims.has_encoder:
        _check_encoder_matches(assistant, model)
        return True
    have_one_size = _encoder_dims(assistant) == _encoder_dims(model)
    return have_one_size and encoder_digest(assistant) == encoder_digest(model)


def _check_encoder_matches(decoder: Checkpoint, model: Checkpoint) -> None:
    for name in ("n_audio_state", "n_audio_ctx"):
        has, needs = getattr(model.dims, name), getattr(decoder.dims, name)
        if has != needs:
            raise CheckpointError(f"{decoder.path}: made for {name}={needs}, {model.path} has {name}={has}")
    if decoder.encoder_sha256 and (digest := encoder_digest(model)) != decoder.encoder_sha256:
        raise CheckpointError(
            f"{decoder.path}: made for the encoder {decoder.encoder_sha256[:8]}, {model.path} has {digest[:8]}"
        )


def _encoder_dims(checkpoint: Checkpoint) -> tuple[int, ...]:
    dims = checkpoint.dims
    return dims.n_mels, dims.n_audio_ctx, dims.n_audio_state, dims.n_audio_head, dims.n_audio_layer
