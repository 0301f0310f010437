"""A compiled decoder: its weights handed to the library, and its calls, of which one runs at a time."""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from ctypes import byref, c_int32
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harken.backends.encoding import EncodedWindows, FrozenPadding
from harken.backends.native.library import (
    MOST_IN_A_PART,
    NO_MEMORY,
    Known,
    Layer,
    Matrix,
    Model,
    Window,
    chosen_instruction_set,
    load_library,
)
from harken.backends.native.matrices import GROUP, HalvedMatrix, padded_rows
from harken.backends.native.packed_file import ALIGNMENT_BYTES, PackedArrays
from harken.backends.native.weights import DecoderWeights
from harken.checkpoints.alignment_heads import AlignmentHeads, KeptHeads
from harken.contract import Arrays, Floats
from harken.errors import OutOfMemory

Packed = NDArray[np.uint8]
NO_FILE = -1
MOST_BEHIND_TEXT = 1609
"""Most tokens behind those of text: special ones, a hundred languages, and timestamps."""
OF_A_WINDOW = "for the keys and values of a window"

PART_OF_STREAM = 96
"""Positions of a stream that are packed together: two seconds, so that little is packed anew with each chunk."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedWindow:
    """The encoder's output for a window, and packed keys and values of the cross-attention (``struct harken_window``).

    Parameters
    ----------
    encoder_output : ndarray of shape (positions, n_audio_state), float32
    memory : Packed
    part : int
        Positions that are packed together.
    capacity : int
        Most positions that there is room for.
    key_bias : ndarray or None
        From `padded_key_bias`.
    """

    encoder_output: Floats
    memory: Packed
    part: int
    capacity: int
    key_bias: Floats | None = None

    @property
    def positions(self) -> int:
        """Number of positions."""
        return len(self.encoder_output)

    def structure(self) -> Window:
        """Return the structure that describes it to the library."""
        bias = None if self.key_bias is None else self.key_bias.ctypes.data
        return Window(self.memory.ctypes.data, self.positions, self.part, self.capacity, bias)


@dataclass(frozen=True, slots=True)
class NativeFeatures(EncodedWindows):
    """Windows that were encoded together, or, for sessions alone, apart."""

    windows: Sequence[PackedWindow]
    padding: FrozenPadding | None = None

    @property
    def n_windows(self) -> int:
        return len(self.windows)

    def outputs(self) -> list[Floats]:
        return [window.encoder_output for window in self.windows]


def padded_key_bias(key_bias: Floats) -> Floats:
    """Return the bias of the keys of some positions, rounded up to whole groups as the library reads it."""
    return np.pad(key_bias, (0, -len(key_bias) % GROUP))


class NativeDecoder:
    """A decoder of the library, with everything that it points to.

    Parameters
    ----------
    arrays : PackedArrays
        Packed weights, in a file that begins with the embedding.
    contents : DecoderWeights
        Names and shapes of these weights.
    heads : KeptHeads
    window_bits : {8, 16, 32}
        Bits of the keys and values of the cross-attention.
    threads : int
        Threads of one call.

    Raises
    ------
    BackendUnavailable
        If the library cannot be loaded.
    OptionError
        If the environment names an instruction set that there is not.
    OutOfMemory
        If there is no memory for it.
    """

    def __init__(
        self,
        arrays: PackedArrays,
        *,
        contents: DecoderWeights,
        heads: KeptHeads,
        window_bits: int,
        threads: int,
    ) -> None:
        self.library = load_library()
        self.instruction_set = chosen_instruction_set()
        self.dims, self.vocab_subset = contents.dims, contents.vocab_subset
        self.heads = heads
        self.n_columns, self.stride = contents.n_logits, padded_rows(contents.n_logits)
        self._lock = Lock()
        self._abandoned: deque[int] = deque()  # sessions to close
        # encoder output of frozen positions, and their keys and values
        self._frozen = np.empty((0, 0), np.float32), np.empty((0, 0, 0), np.float32)
        head_tokens = None if self.vocab_subset is None else self.vocab_subset.astype(np.int32)
        embedding_file = _open_embedding(arrays.path)
        if embedding_file != NO_FILE:
            close_when_collected(self, os.close, embedding_file)
        self._model = _make_model(arrays, contents, heads.all, head_tokens, window_bits, embedding_file)
        self._arrays = arrays, head_tokens  # the model points to them
        self.handle = self.library.harken_decoder_open(
            byref(self._model), threads, self.instruction_set.encode("ascii")
        )
        if not self.handle:
            raise OutOfMemory("not enough memory for the native decoder")
        close = partial(_close_decoder, self.library, self._abandoned)
        close_when_collected(self, close, self.handle, self._model, self._arrays)

    def call(self, name: str, *arguments: Any, purpose: str = "for computing") -> Any:
        """Call a function of the library, ``harken_NAME``, when no other thread does."""
        function = getattr(self.library, f"harken_{name}")
        with self._lock:
            _close_sessions(self.library, self._abandoned)
            result = function(*arguments)
        if result == NO_MEMORY:
            raise OutOfMemory(f"not enough memory {purpose}")
        return result

    def project_window(self, encoder_output: Floats, padding: FrozenPadding | None) -> PackedWindow:
        """Make packed keys and values of the cross-attention of one window, shape (positions, n_audio_state).

        Those of frozen positions are the same in all windows, and projected once.
        """
        window = self._allocate(encoder_output, MOST_IN_A_PART, len(encoder_output))
        if padding is None:
            return self._project(window, 0)
        keys_values = self._project_frozen(encoder_output[padding.encoded :])
        return self._project(replace(window, key_bias=padded_key_bias(padding.key_bias)), 0, keys_values)

    def _project_frozen(self, encoder_output: Floats) -> Floats:
        """Return keys and values of frozen positions, shape (n_text_layer, n, 2 n_text_state)."""
        n, dims = len(encoder_output), self.dims
        shape = dims.n_text_layer, n, 2 * dims.n_text_state
        kept, keys_values = self._frozen
        if not np.array_equal(kept[-n:], encoder_output):
            kept, keys_values = encoder_output.copy(), np.empty(shape, np.float32)
            arguments = kept.ctypes.data, n, keys_values.ctypes.data
            self.call("project_rows", self.handle, *arguments, purpose=OF_A_WINDOW)
            self._frozen = kept, keys_values
        return keys_values[:, -n:]

    def project_stream(
        self, encoder_output: Floats, unchanged: int, earlier: PackedWindow | None
    ) -> PackedWindow:
        """Make packed keys and values of a stream so far, of which some positions are unchanged since the earlier ones.

        They are in the memory of these if it suffices; so these must not be used any more.
        """
        positions = len(encoder_output)
        if earlier is None or positions > earlier.capacity:
            unchanged, earlier = 0, self._allocate(encoder_output, PART_OF_STREAM, 2 * positions)
        return self._project(replace(earlier, encoder_output=encoder_output), unchanged)

    def _allocate(self, encoder_output: Floats, part: int, capacity: int) -> PackedWindow:
        n_bytes = self.call("window_bytes", self.handle, capacity, part)
        return PackedWindow(encoder_output, aligned_empty(n_bytes), part, capacity)

    def _project(self, window: PackedWindow, unchanged: int, frozen: Floats | None = None) -> PackedWindow:
        assert window.encoder_output.flags.c_contiguous
        known = None
        if frozen is not None:
            known = byref(Known(frozen.ctypes.data, frozen.strides[0] // frozen.itemsize, frozen.shape[1]))
        arguments = window.encoder_output.ctypes.data, unchanged, known, byref(window.structure())
        self.call("project_window", self.handle, *arguments, purpose=OF_A_WINDOW)
        return window

    def open_session(
        self,
        windows: Sequence[PackedWindow],
        row_windows: Sequence[int],
        keep_attention: bool,
    ) -> int:
        """Open a session over packed windows; return its handle."""
        window_array = (Window * len(windows))(*(window.structure() for window in windows))
        rows = (c_int32 * len(row_windows))(*row_windows)
        counted = window_array, len(windows), rows, len(row_windows)
        handle: int | None = self.call("session_open", self.handle, *counted, keep_attention)
        if not handle:
            raise OutOfMemory("not enough memory for a session of the native decoder")
        return handle

    def close_session(self, handle: int) -> None:
        """Close a session, now or before the next call.

        The garbage collector calls this, in any thread and even between two lines of one that holds the lock, or that
        of another decoder. So it never waits.
        """
        self._abandoned.append(handle)
        if self._lock.acquire(blocking=False):
            try:
                _close_sessions(self.library, self._abandoned)
            finally:
                self._lock.release()


def close_when_collected(
    owner: object, close: Callable[[Any], None], handle: int, *kept_until_then: Any
) -> None:
    """Close what a handle names when its owner is collected, and keep what it needs until then.

    At the end of the process nothing is closed: threads may still be in the middle of a call.
    """

    def close_handle(*_: Any) -> None:
        close(handle)

    weakref.finalize(owner, close_handle, *kept_until_then).atexit = False


def _close_sessions(library: Any, handles: deque[int]) -> None:
    while handles:
        library.harken_session_close(handles.popleft())


def _close_decoder(library: Any, sessions: deque[int], handle: int) -> None:
    _close_sessions(library, sessions)
    library.harken_decoder_close(handle)


def _open_embedding(path: Path) -> int:
    """Open a packed file for reading rows of it, if that can be done here: they are in the mapped array too."""
    try:
        return NO_FILE if sys.platform == "win32" else os.open(path, os.O_RDONLY)
    except OSError:
        return NO_FILE


def _make_model(
    arrays: Arrays,
    contents: DecoderWeights,
    alignment_heads: AlignmentHeads,
    head_tokens: NDArray[np.int32] | None,
    window_bits: int,
    embedding_file: int,
) -> Model:
    """Return the structure that describes a model to the library; it points to the arrays."""
    dims = contents.dims
    layers = (
        Layer(*(matrix.structure(arrays) for _, matrix in contents.layer_matrices(layer)))
        for layer in range(dims.n_text_layer)
    )
    flat_heads = [*chain.from_iterable(alignment_heads)]
    return Model(
        dims.n_text_layer,
        dims.n_text_head,
        dims.n_text_state,
        dims.n_vocab,
        dims.n_text_ctx,
        embedding_file,
        arrays["embedding"].ctypes.data,
        arrays["positions"].ctypes.data,
        (Layer * dims.n_text_layer)(*layers),
        contents.head.structure(arrays),
        contents.head.rest.structure(arrays) if isinstance(contents.head, HalvedMatrix) else Matrix(),
        max(contents.n_logits - MOST_BEHIND_TEXT, 0),
        None if head_tokens is None else head_tokens.ctypes.data,
        len(alignment_heads),
        (c_int32 * len(flat_heads))(*flat_heads),
        window_bits,
    )


def aligned_empty(n_bytes: int) -> Packed:
    """Allocate memory that begins with a whole cache line, as the kernels load it."""
    buffer = np.empty(n_bytes + ALIGNMENT_BYTES, np.uint8)
    start = -buffer.ctypes.data % ALIGNMENT_BYTES
    return buffer[start : start + n_bytes]
