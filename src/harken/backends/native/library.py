"""The functions of the compiled library for encoding and decoding, declared as in ``kernel/harken.h``."""

from __future__ import annotations

import os
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p, create_string_buffer
from functools import cache
from typing import Any

from harken import compiled_library
from harken.errors import BackendUnavailable, OptionError

NO_MEMORY = -1
MOST_IN_A_PART = 512
"""``HARKEN_MOST_IN_A_PART``: positions of a window that are packed together."""
NAMES_BYTES = 128
INSTRUCTION_SET_VARIABLE = "HARKEN_INSTRUCTION_SET"
"""Environment variable that chooses the kernels, to chase a fault; all of them give the same bits."""


def _all(kind: Any, names: str) -> tuple[tuple[str, Any], ...]:
    """Return fields of one type."""
    return tuple((name, kind) for name in names.split())


class Matrix(Structure):
    """``struct harken_matrix``: a linear layer."""

    _fields_ = (*_all(c_void_p, "weights scales bias"), *_all(c_int32, "rows columns bits"))


class Layer(Structure):
    """``struct harken_layer``: the linear layers of a block of the decoder."""

    _fields_ = _all(Matrix, "query key value out cross_query cross_out mlp_in mlp_out cross_key cross_value")


class Model(Structure):
    """``struct harken_model``."""

    _fields_ = (
        *_all(c_int32, "n_layers n_heads n_state n_embeddings n_context embedding_file"),
        *_all(c_void_p, "embedding positions"),
        ("layers", POINTER(Layer)),
        ("head", Matrix),
        ("head_rest", Matrix),
        ("n_partial", c_int32),
        ("head_tokens", c_void_p),
        ("n_alignment_heads", c_int32),
        ("alignment_heads", POINTER(c_int32)),
        ("window_bits", c_int32),
    )


class Linear(Structure):
    """``struct harken_linear``: a linear layer of the encoder."""

    _fields_ = _all(Matrix, "matrix first")


class EncoderLayer(Structure):
    """``struct harken_encoder_layer``: the linear layers of a block of the encoder."""

    _fields_ = _all(Linear, "query key value out mlp_in mlp_out")


class Encoder(Structure):
    """``struct harken_encoder``."""

    _fields_ = (
        *_all(c_int32, "n_layers n_heads n_state n_mels attention_bits"),
        *_all(Matrix, "conv1 conv2"),
        ("positions", c_void_p),
        ("layers", POINTER(EncoderLayer)),
        *_all(c_void_p, "last_gain last_bias"),
        *_all(Matrix, "rotation restoration"),
    )


class Chunk(Structure):
    """``struct harken_chunk``: positions that are encoded together."""

    _fields_ = (
        *_all(c_int32, "positions first_position"),
        *_all(c_void_p, "mel encoder_output key_bias keys_values history"),
        ("layer_stride", c_int64),
        ("n_history", c_int32),
    )


class Window(Structure):
    """``struct harken_window``: the keys and values of the cross-attention of one window."""

    _fields_ = (("packed", c_void_p), *_all(c_int32, "positions part capacity"), ("key_bias", c_void_p))


class Known(Structure):
    """``struct harken_known``: keys and values of the last positions of a window."""

    _fields_ = (("keys_values", c_void_p), ("layer_stride", c_int64), ("n", c_int32))


class Rules(Structure):
    """``struct harken_rules``: rules of greedy decoding."""

    _fields_ = (("suppressed", c_void_p), *_all(c_int32, "n_suppressed eot timestamp_begin"))


class Picked(Structure):
    """``struct harken_picked``: what a row has picked."""

    _fields_ = (
        ("unread", c_void_p),
        *_all(c_int32, "n_unread before_last last_timestamp speech_end left"),
        *_all(c_float, "calibration least"),
    )


_LOGITS = (c_void_p, c_void_p, c_int32, c_int32, c_int64)  # decoder, logits, n, columns, stride
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "harken_instruction_sets": (None, (c_char_p,)),
    "harken_decoder_open": (c_void_p, (POINTER(Model), c_int32, c_char_p)),
    "harken_decoder_close": (None, (c_void_p,)),
    "harken_window_bytes": (c_int64, (c_void_p, c_int32, c_int32)),
    "harken_encode": (c_int32, (c_void_p, POINTER(Encoder), POINTER(Chunk))),
    "harken_project_rows": (c_int32, (c_void_p, c_void_p, c_int32, c_void_p)),
    "harken_project_window": (c_int32, (c_void_p, c_void_p, c_int32, POINTER(Known), POINTER(Window))),
    "harken_session_open": (c_void_p, (c_void_p, POINTER(Window), c_int32, c_void_p, c_int32, c_int32)),
    "harken_session_close": (None, (c_void_p,)),
    "harken_session_extend": (c_int32, (c_void_p, c_void_p, c_void_p, c_int32, c_void_p, c_int64)),
    "harken_session_rewind": (None, (c_void_p, c_void_p)),
    "harken_session_reorder": (c_int32, (c_void_p, c_void_p, c_int32)),
    "harken_session_attention": (None, (c_void_p, c_int32, c_void_p, c_int32)),
    "harken_session_pick_best": (
        c_int32,
        (c_void_p, POINTER(Rules), POINTER(Picked), c_int32, c_void_p, c_int64, c_void_p, c_void_p),
    ),
    "harken_logits_prefer_timestamps": (None, (*_LOGITS, c_int32)),
    "harken_logits_normalizer": (None, (*_LOGITS, c_void_p)),
    "harken_logits_top": (None, (*_LOGITS, c_int32, c_void_p, c_void_p)),
    "harken_logits_sample": (None, (*_LOGITS, c_float, c_void_p, c_void_p, c_void_p)),
}
"""Result and arguments of each function."""


@cache
def load_library() -> Any:
    """Load the library and declare its functions; their calls release the interpreter's lock.

    Raises
    ------
    BackendUnavailable
        If it was not built, or cannot be loaded.
    """
    library = compiled_library.load_library()
    try:
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise BackendUnavailable(
            f"the compiled library cannot be loaded: {error}; {compiled_library.REBUILD}"
        ) from error
    return library


def unavailable_reason() -> str | None:
    """Return the reason for which the library cannot be used, in one line, or None if it can."""
    try:
        load_library()
    except BackendUnavailable as error:
        return str(error)
    return None


def instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets that the library has kernels for and this processor can run, best first."""
    names = create_string_buffer(NAMES_BYTES)
    load_library().harken_instruction_sets(names)
    return tuple(names.value.decode("ascii").split())


def chosen_instruction_set() -> str:
    """Return the best instruction set, or that of the environment variable, which must be one of `instruction_sets`."""
    available = instruction_sets()
    chosen = os.environ.get(INSTRUCTION_SET_VARIABLE) or available[0]
    if chosen not in available:
        raise OptionError(INSTRUCTION_SET_VARIABLE, chosen, " or ".join(available))
    return chosen
