"""Reader of GGUF files with the weights of Whisper, under OpenAI's names or those of transformers.

The layout is that of docs/gguf.md of ggml. No programme decides what such a file of Whisper says of itself beside its
weights; what it says of heads, and a ``config.json`` beside it, are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from struct import calcsize
from typing import Any

from harken.checkpoints.checkpoint import Checkpoint, assemble, find_vocabulary
from harken.checkpoints.ggml_types import shape_and_type, weight_at
from harken.checkpoints.huggingface import dims_beside, openai_name_of
from harken.checkpoints.model_files import Cursor, LazyTensor, open_cursor, watch
from harken.checkpoints.weight_shapes import usual_heads

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_TEXT, _LIST = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The `struct` layout of each type of a number, by its number in ``enum gguf_type``."""
_ALIGNMENT, _MAX_ALIGNMENT = 32, 1 << 16
_HEADS = {
    "n_audio_head": ("n_audio_head", "encoder.attention.head_count", "audio.attention.head_count"),
    "n_text_head": ("n_text_head", "decoder.attention.head_count", "attention.head_count"),
}
"""How the keys end that say how many heads there are."""
_OTHER_MODELS = ("general.architecture", "whisper")


def read(path: Path) -> Checkpoint:
    """Open a GGUF file with the files beside it.

    Raises
    ------
    CheckpointError
        If the file is damaged, not a Whisper model, or of an unsupported quantisation.
    """
    config, config_files = dims_beside(path.parent)
    files = [watch(path), *config_files]
    with open_cursor(path) as cursor:
        cursor.skip(len(MAGIC))
        if (version := cursor.read_number("I")) not in _VERSIONS:
            raise cursor.error(f"GGUF version {version}, allowed is 2 or 3")
        n_tensors, n_entries = cursor.read_numbers("2Q")
        metadata = dict(_read_entry(cursor) for _ in range(n_entries))
        key, allowed = _OTHER_MODELS
        if (kind := metadata.get(key, allowed)) != allowed:
            raise cursor.error(f"not a Whisper model: {key} is {str(kind)[:80]!r}, allowed is {allowed!r}")
        infos = [_read_info(cursor) for _ in range(n_tensors)]
        start = cursor.position + -cursor.position % _alignment(cursor, metadata)
        tensors: dict[str, LazyTensor] = {}
        for name, axes, code, offset in infos:
            shape, dtype = shape_and_type(cursor, name, axes, code)
            cursor.at(start + offset).skip(dtype.nbytes_of(shape))
            ours = openai_name_of(name)
            tensors[ours] = weight_at(path, ours, start + offset, shape, dtype)
    tensors.pop("proj_out.weight", None)
    declared = {
        heads: value
        for heads, endings in _HEADS.items()
        for name, value in metadata.items()
        if name.endswith(endings) and type(value) is int
    }
    dims = usual_heads(tensors) | config | declared
    return assemble(path, "gguf", tensors, dims, find_vocabulary(path.parent), files=files)


def _read_entry(cursor: Cursor) -> tuple[str, Any]:
    return _read_text(cursor), _read_value(cursor, cursor.read_number("I"))


def _read_value(cursor: Cursor, kind: int) -> Any:
    """Return a value; None for a list, which is skipped."""
    if kind in _NUMBERS:
        return cursor.read_number(_NUMBERS[kind])
    if kind == _TEXT:
        return _read_text(cursor)
    if kind == _LIST:
        item, n_items = cursor.read_numbers("IQ")
        if item in _NUMBERS:
            cursor.skip(n_items * calcsize("<" + _NUMBERS[item]))
            return None
        if item == _TEXT:
            for _ in range(n_items):
                cursor.skip(cursor.read_number("Q"))
            return None
    raise cursor.error(f"a value of type {kind}, allowed are numbers, text, and lists of them")


def _read_text(cursor: Cursor) -> str:
    return cursor.read(cursor.read_number("Q")).decode(errors="replace")


def _read_info(cursor: Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Return name, axes, type and offset of a weight."""
    name = cursor.read_name(cursor.read_number("Q"))
    if not 1 <= (n_axes := cursor.read_number("I")) <= 4:
        raise cursor.error(f"weight {name!r} has {n_axes} axes, allowed is 1 to 4")
    axes = cursor.read_numbers(f"{n_axes}Q")
    code, offset = cursor.read_numbers("IQ")
    return name, axes, code, offset


def _alignment(cursor: Cursor, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= _MAX_ALIGNMENT:
        raise cursor.error(f"general.alignment is {alignment!r}, allowed is 1 to {_MAX_ALIGNMENT}")
    return alignment
