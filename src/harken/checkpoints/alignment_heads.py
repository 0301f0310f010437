"""The cross-attention heads that are kept: alignment heads, whose attention is that of the published models' timing,
and word heads, each of which attends to one place: just behind the start of a token, or at the end of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from harken.types import Dims, WordHead

AlignmentHeads = tuple[tuple[int, int], ...]
"""Pairs of (layer, head)."""

# whisper/__init__.py, `_ALIGNMENT_HEADS`: (n_vocab, n_text_state, n_audio_layer, n_text_layer) -> layer:heads.
_PUBLISHED_HEADS = {
    (51864, 384, 4, 4): "1:0 2:0,5 3:0,1,2,3,4",  # tiny.en
    (51865, 384, 4, 4): "2:2 3:0,2,3,4,5",  # tiny
    (51864, 512, 6, 6): "3:3 4:7 5:1,5,7",  # base.en
    (51865, 512, 6, 6): "3:1 4:2,3,7 5:1,2,4,6",  # base
    (51864, 768, 12, 12): "6:6 7:0,3,8 8:2,5,7 9:0,4,8,10 10:0,1,2,3,6,11 11:2,4",  # small.en
    (51865, 768, 12, 12): "5:3,9 8:0,4,7,8 9:0,7,9 10:5",  # small
    (51864, 1024, 24, 24): "11:4 14:1,12,14 15:4 16:0,4,9 17:12,14 18:7,10,15 20:0,3,9,14 21:12",  # medium.en
    (51865, 1024, 24, 24): "13:15 15:4,15 16:1 20:0 23:4",  # medium
    (51866, 1280, 32, 32): "7:0 10:17 12:18 13:12 16:1 17:14 19:11 21:4 24:1 25:6",  # large-v3
    (51866, 1280, 32, 4): "2:4,11 3:3,6,11,14",  # large-v3-turbo
}

# fmt: off
_WORD_HEADS: dict[tuple[int, int, int, int], tuple[WordHead, ...]] = {
    (51864, 384, 4, 4): (WordHead(2, 1, 3), WordHead(2, 4, -1, tells_end=True)),  # tiny.en
    (51865, 384, 4, 4): (WordHead(3, 1, 3), WordHead(2, 5, 4), WordHead(2, 0, -2, tells_end=True)),  # tiny
    (51864, 512, 6, 6): (  # base.en
        WordHead(4, 7, 1), WordHead(5, 7, 4), WordHead(3, 1, -4, tells_end=True), WordHead(3, 3, 2, tells_end=True),
    ),
    (51865, 512, 6, 6): (WordHead(3, 1, 3), WordHead(4, 2, 0, tells_end=True)),  # base
    (51865, 768, 12, 12): (  # small
        WordHead(8, 8, 2), WordHead(8, 4, 5), WordHead(7, 4, -2, tells_end=True), WordHead(5, 3, -1, tells_end=True),
    ),
}
# fmt: on
"""By the same dimensions, found as docs/decisions/words.md says; other models are timed by their alignment heads."""


def published_heads(dims: Dims) -> AlignmentHeads | None:
    """Look up the heads of a published model by its dimensions.

    None if these do not identify one: large-v1 and large-v2 have the same.
    """
    text = _PUBLISHED_HEADS.get(_key(dims), "")
    layers = (layer.split(":") for layer in text.split())
    return tuple((int(layer), int(head)) for layer, heads in layers for head in heads.split(",")) or None


def word_heads(dims: Dims) -> tuple[WordHead, ...]:
    """Look up the word heads of a published model by its dimensions; none if they were not measured."""
    return _WORD_HEADS.get(_key(dims), ())


def _key(dims: Dims) -> tuple[int, int, int, int]:
    return dims.n_vocab, dims.n_text_state, dims.n_audio_layer, dims.n_text_layer


def declared_heads(value: object, dims: Dims) -> AlignmentHeads | None:
    """Check the `alignment_heads` of a configuration file.

    None if the value is not a list of pairs, or names a layer or head that the decoder does not have: distilled models
    are published with the heads of their teacher.
    """
    heads = [*product(range(dims.n_text_layer), range(dims.n_text_head))]
    if not isinstance(value, list) or not 0 < len(value) <= len(heads):
        return None
    chosen = tuple(head for head in heads if list(head) in value)
    return chosen if len(chosen) == len(value) else None


@dataclass(frozen=True, slots=True)
class KeptHeads:
    """The heads of a backend's `Session.attention`."""

    alignment: AlignmentHeads
    words: tuple[WordHead, ...]

    @classmethod
    def of(
        cls, dims: Dims, alignment: AlignmentHeads | None = None, words: tuple[WordHead, ...] = ()
    ) -> KeptHeads:
        """Return the heads of a model of these dimensions; by default the alignment heads are those of the upper half.

        Source: openai/whisper, model.py, Whisper.__init__.
        """
        upper_half = range(dims.n_text_layer // 2, dims.n_text_layer)
        return cls(tuple(sorted(alignment or product(upper_half, range(dims.n_text_head)))), words)

    @property
    def all(self) -> AlignmentHeads:
        """Each head once: the alignment heads, then the word heads that are not among them."""
        return tuple(dict.fromkeys((*self.alignment, *((word.layer, word.head) for word in self.words))))

    def select(self, attention: NDArray[np.float32], *, words: bool) -> NDArray[np.float32]:
        """Return the attention of the alignment heads, and of the word heads behind them, given that of all heads."""
        n_alignment = len(self.alignment)
        if not words:
            return attention[:n_alignment]
        rows = [self.all.index((word.layer, word.head)) for word in self.words]
        selected: NDArray[np.float32] = attention[[*range(n_alignment), *rows]]
        return selected
