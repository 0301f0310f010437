"""Checks that all backends make of their callers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from harken.contract import StreamingEncoderState

NO_ENCODER = "this backend has no encoder: use reuse_encoder_output"

OwnState = TypeVar("OwnState")


def own_states(states: Sequence[StreamingEncoderState], state_type: type[OwnState]) -> list[OwnState]:
    """Return the states; none may have been opened by a backend of another kind."""
    own: list[OwnState] = []
    for state in states:
        assert isinstance(state, state_type), "encoder states come from this backend's own open_encoder"
        own.append(state)
    return own
