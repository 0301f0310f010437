"""The KV caches of sessions at fixed addresses, with the CUDA graphs captured over them; later sessions reuse both.

A step is captured once and then replayed, so that the host launches one graph, not a thousand kernels. A graph is bound
to addresses. Its input is copied into a static tensor before each replay, its output stays at the address that it had
during capture, and all else that it reads and writes (weights, `KVCache`) never moves while the graph lives. Whatever
Python decides during capture is fixed; the key of a graph has to cover all of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import perf_counter

import torch
from torch import Tensor

from harken.backends.loading import reporting_memory
from harken.backends.torch.logits import STATE_COLUMNS, GreedyChoice
from harken.backends.torch.model import KVCache, WhisperModel

CAPTURED_STEP_TOKENS = (1, 2, 3, 5, 9, 17)
"""Numbers of new tokens of a captured step: one, and a draft of 0, 1, 2, 4, 8 or 16 tokens behind it.

Other numbers are padded to the next of these, so that drafts of any length need no more graphs; longer steps are not
captured.
"""
MIN_STEP_TOKENS = {("cpu", torch.bfloat16): 2}
"""Fewest new tokens of a step: on a CPU in bfloat16, PyTorch's attention takes three times as long for one query as for
two, and the other layers take hardly less time."""
MIN_PAST_POSITIONS = 64
"""Smallest number of past positions that a step attends to; the others are its doublings."""
MAX_CUDA_GRAPHS = 32
WARMUP_RUNS = 2

StepFunction = Callable[[Tensor], Tensor]
GraphCapture = Callable[[StepFunction, Tensor], tuple[Callable[[], None], Tensor]]
"""Capture a step over a static input without computing it.

Return what computes it over the current content of the input, and the tensor that then holds the result.
"""


class CudaGraphCapture:
    """Capture of CUDA graphs, with one stream and one memory pool for all of them.

    Graphs that share the pool must not be replayed at the same time; a session computes one step at a time.
    """

    _capture_lock = Lock()  # PyTorch allows one capture at a time in a process

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._memory_pool = torch.cuda.graph_pool_handle()

    def __call__(self, step: StepFunction, static_input: Tensor) -> tuple[Callable[[], None], Tensor]:
        graph = torch.cuda.CUDAGraph()
        with self._capture_lock, torch.cuda.device(static_input.device):
            # Libraries initialise themselves at the first call, which cannot be captured.
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARMUP_RUNS):
                    step(static_input)
            torch.cuda.current_stream().wait_stream(self._stream)
            # Other threads may use CUDA meanwhile: the restrictions of capture apply to this thread only.
            with torch.cuda.graph(graph, self._memory_pool, self._stream, capture_error_mode="thread_local"):
                output = step(static_input)
        return graph.replay, output


class CudaGraphCache:
    """A cache of captured steps: captured at the first call, replayed from then on.

    Parameters
    ----------
    capture : GraphCapture
    """

    capture_s = 0.0
    """Seconds that all captures of this process took."""

    def __init__(self, capture: GraphCapture) -> None:
        self._capture = capture
        self._graphs: dict[Hashable, tuple[Tensor, Callable[[], None], Tensor]] = {}

    def __call__(self, key: Hashable, step: StepFunction, inputs: Tensor) -> Tensor:
        """Compute a step over inputs, which are copied; the result is overwritten by the next call with this key.

        Equal keys mean equal steps, whatever the inputs hold: the step is captured if the key is new.
        """
        captured = self._graphs.pop(key, None)
        if captured is None:
            began_s, static_input = perf_counter(), inputs.clone()
            captured = static_input, *self._capture(step, static_input)
            CudaGraphCache.capture_s += perf_counter() - began_s
        self._graphs[key] = captured
        if len(self._graphs) > MAX_CUDA_GRAPHS:
            # After capture, which waits for the device, the evicted graph cannot be in the middle of a replay.
            del self._graphs[next(iter(self._graphs))]
        static_input, replay, output = captured
        static_input.copy_(inputs)
        replay()
        return output


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The shape of a static cache: windows, rows of each, and whether it keeps queries for alignment."""

    windows: int
    rows_per_window: int
    attention: bool


class StaticCache:
    """The KV cache of one session at a time, at a fixed address.

    Parameters
    ----------
    model : WhisperModel
    shape : CacheShape
    capture : GraphCapture or None
        None if steps are not captured.
    """

    def __init__(self, model: WhisperModel, shape: CacheShape, capture: GraphCapture | None) -> None:
        self.model, self.shape = model, shape
        self.kv_cache: KVCache = model.allocate_cache(shape.windows, shape.rows_per_window, shape.attention)
        self._cuda_graphs = CudaGraphCache(capture) if capture is not None else None
        self._min_step_tokens = MIN_STEP_TOKENS.get((model.device.type, model.dtype), 1)

    @property
    def cache_rows(self) -> int:
        """Number of rows."""
        return self.shape.windows * self.shape.rows_per_window

    @property
    def n_bytes(self) -> int:
        """Bytes of its keys and values."""
        return int(self.kv_cache.kv.nbytes + self.kv_cache.cross_kv.nbytes)

    def padded_step_tokens(self, needed: int) -> int:
        """Return the number of new tokens that a step is padded to."""
        sizes = CAPTURED_STEP_TOKENS if self._cuda_graphs is not None else (self._min_step_tokens,)
        return next((size for size in sizes if size >= needed), needed)

    def decode_step(
        self, lengths_and_tokens: Tensor, longest_row: int, audio_positions: int, ragged: bool
    ) -> Tensor:
        """Read new tokens in every cache row (see `WhisperModel.decode`); the longest uses so many positions then."""
        key, decode = self._decode(longest_row, audio_positions, ragged)
        return self._compute(key, decode, lengths_and_tokens, lengths_and_tokens.shape[1] - 1)

    def greedy_steps(
        self,
        inputs: Tensor,
        choice: GreedyChoice,
        n_steps: int,
        longest_row: int,
        audio_positions: int,
        ragged: bool,
    ) -> Iterator[Tensor]:
        """Read new tokens in every cache row and pick the next, and read that, some times (see `GreedyChoice.step`).

        Yields
        ------
        Tensor of shape (cache rows, 2), int64
            The tokens picked, and the bits of their log-probabilities.
        """
        key, decode = self._decode(longest_row + n_steps - 1, audio_positions, ragged)
        step = partial(choice.step, decode=decode, project=self.model.logits)
        for _ in range(n_steps):
            output = self._compute((choice, *key), step, inputs, inputs.shape[1] - STATE_COLUMNS)
            inputs = output[:, :-1]
            yield output[:, -2:].clone()

    def _decode(
        self, longest_row: int, audio_positions: int, ragged: bool
    ) -> tuple[tuple[Hashable, ...], StepFunction]:
        """Return the decoder over this cache, with all but the tokens given, and a key that equals for equal ones."""
        past_positions = _round_up_positions(longest_row, self.model.dims.n_text_ctx)
        decode = partial(
            self.model.decode,
            kv_cache=self.kv_cache,
            past_positions=past_positions,
            audio_positions=audio_positions,
            ragged=ragged,
        )
        return (past_positions, audio_positions, ragged), decode

    def _compute(self, key: tuple[Hashable, ...], step: StepFunction, inputs: Tensor, n: int) -> Tensor:
        """Compute a step over n new tokens; captured, if steps are."""
        with reporting_memory("a step of the decoder"):
            if self._cuda_graphs is None or n > CAPTURED_STEP_TOKENS[-1]:
                return step(inputs)
            return self._cuda_graphs((n, *key), step, inputs)


class StaticCachePool:
    """A pool of idle static caches, reused by sessions of the same shape; the longest idle are dropped first.

    Parameters
    ----------
    model : WhisperModel
    graph_capture : callable or None
        Makes a `GraphCapture` for each cache.
    max_idle : int
        Most idle caches.
    max_idle_bytes : int
        Most memory of all but the one that was released last.
    """

    def __init__(
        self,
        model: WhisperModel,
        graph_capture: Callable[[], GraphCapture] | None,
        max_idle: int,
        max_idle_bytes: int,
    ) -> None:
        self.model, self._graph_capture, self._max_idle_bytes = model, graph_capture, max_idle_bytes
        self._idle: deque[StaticCache] = deque(maxlen=max_idle)

    def acquire(self, shape: CacheShape) -> StaticCache:
        """Return a cache with zeroed keys and values: a NaN of an earlier session would pass even a mask."""
        for cache in tuple(self._idle):
            if cache.shape == shape and self._try_remove(cache):
                cache.kv_cache.kv.zero_()
                return cache
        with reporting_memory(f"keys and values of {shape.windows * shape.rows_per_window} rows"):
            return StaticCache(self.model, shape, self._graph_capture and self._graph_capture())

    def release(self, cache: StaticCache) -> None:
        """Return a cache to the pool; any thread may call it, as the garbage collector does."""
        self._idle.append(cache)
        idle = tuple(self._idle)
        excess = sum(other.n_bytes for other in idle[:-1]) - self._max_idle_bytes
        for oldest in idle[:-1]:
            if excess > 0 and self._try_remove(oldest):
                excess -= oldest.n_bytes

    def _try_remove(self, cache: StaticCache) -> bool:
        try:
            self._idle.remove(cache)
        except ValueError:
            return False  # another thread took it
        return True


def _round_up_positions(needed: int, maximum: int) -> int:
    """Round up to a doubling of `MIN_PAST_POSITIONS`, so that few different steps are captured."""
    positions = MIN_PAST_POSITIONS
    while positions < needed:
        positions *= 2
    return min(positions, maximum)
