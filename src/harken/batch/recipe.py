"""Everything that decides the rows of a batch, so that rows of different options never stand beside one another."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from harken.api import NO_ADAPTER
from harken.batch.recordings import Json, digest_of
from harken.checkpoints import open_checkpoint, resolve_model, with_adapter
from harken.formats import Layout
from harken.transcribe import TranscribeOptions
from harken.version import __version__


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The model, its engine, the options and the outputs of a batch.

    Parameters
    ----------
    name : str
        Name of the model in rows; its weights decide.
    load : mapping
        Arguments of `harken.load`.
    weights : str
        Digest of the model's weights, in hex.
    options : TranscribeOptions
        The batch size does not decide the text, and does not count.
    layout : Layout
    formats : tuple of str
        Files beside the rows.
    parquet : bool
    """

    name: str
    load: Mapping[str, Any]
    weights: str
    options: TranscribeOptions
    layout: Layout
    formats: tuple[str, ...] = ()
    parquet: bool = False

    def as_json(self) -> Json:
        """Return all that counts, by names that people know."""
        return {
            "harken": __version__,
            "weights": self.weights,
            **{name: self.load.get(name) or "auto" for name in ("backend", "device", "precision")},
            **asdict(replace(self.options, batch_size=1)),
            **(asdict(self.layout) if self.formats else {}),
            "formats": sorted({*self.formats}),
            "parquet": self.parquet,
        }

    @cached_property
    def digest(self) -> str:
        """Digest of all that counts, 16 hex digits."""
        return digest_of(self.as_json())


def differences(before: Json, now: Json) -> list[str]:
    """Return what differs between two recipes as JSON, in words; what only one of them has follows from that."""
    names = [name for name in before if name in now and before[name] != _plain(now[name])]
    return [f"{name} was {before[name]!r}, now is {_plain(now[name])!r}" for name in names]


def _plain(value: Any) -> Any:
    """Return a value as JSON gives it back."""
    return [*map(_plain, value)] if isinstance(value, tuple | list) else value


def weights_digest(load: Mapping[str, Any]) -> str:
    """Return the digest of the weights that these arguments of `harken.load` choose.

    Raises
    ------
    CheckpointNotFound, CheckpointError
        As `harken.load`.
    """
    model = resolve_model(
        load.get("model", "tiny.en"), revision=load.get("revision"), download=load.get("download", True)
    )
    checkpoint = open_checkpoint(model)
    adapter: str | os.PathLike[str] | None = load.get("adapter")
    if adapter is not None and adapter != NO_ADAPTER:
        checkpoint = with_adapter(checkpoint, adapter)
    return checkpoint.weights.digest
