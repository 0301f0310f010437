"""The plan of a batch: shards of recordings, longest first, each named by the digest of everything in it.

Its recipe is everything that decides the rows, so that rows of different options never stand beside one another.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from harken.audio import audio_duration
from harken.batch.inputs import BatchRecording, digest_of
from harken.batch.locations import is_url, size_bytes
from harken.batch.store import PLAN_FILE, ROWS, SHARD_FILES, Store
from harken.checkpoints import open_checkpoint, resolve_model, with_adapters
from harken.checkpoints.model_files import watch
from harken.errors import AudioError, PlanError
from harken.formats import Layout
from harken.manifests import Json
from harken.transcribe import TranscribeOptions
from harken.version import __version__

LSH_ARGUMENTS = ("attention", "lsh_rounds", "lsh_bucket_size")
"""Arguments of `harken.load` that decide the rows where attention is not full."""
_ONLY_IF_CHOSEN = ("attention", "speakers")
"""Parts of a recipe that it has only if they are chosen."""
_PROBING_THREADS = 16
_BYTES_PER_SECOND = 16_000  # of mp3 with 128 kbit/s, where nothing but a size is known
_UNKNOWN_S = 60.0
# The shards at the end are smaller, so that all workers end at about the same time (guided self-scheduling): a shard
# has a quarter of what falls to each worker of the rest, and at least a tenth of a whole shard.
_SHARE_OF_REST = 0.25
_SMALLEST_SHARE = 0.1
_BATCH_SIZE = 8  # by default

Entries = dict[str, list[str]]
"""Digests of the recordings of each shard, by its name."""
SequenceT = TypeVar("SequenceT", bound=Sequence[Any])


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The model, its engine, the options and the outputs of a batch."""

    name: str  # of the model in rows; its weights decide
    load: Mapping[str, Any]  # arguments of `harken.load`
    weights: str  # digest of the model's, in hex
    options: TranscribeOptions
    layout: Layout
    formats: tuple[str, ...] = ()  # of files beside the rows
    parquet: bool = False
    speakers: Mapping[str, Any] | None = None
    """Arguments of `harken.load_diarizer`, and ``voices``, a file of known ones; None tells no speakers apart."""

    @property
    def batch_size(self) -> int:
        """Most windows of the recordings of a shard to decode together."""
        return self.options.batch_size or _BATCH_SIZE

    def as_json(self) -> Json:
        """Return all that counts, by names that people know; the batch size does not decide the text."""
        # A layout's `speakers` is on for a transcript that has them.
        layout = {
            name: value for name, value in asdict(self.layout).items() if self.formats and name != "speakers"
        }
        return {
            "harken": __version__,
            "weights": self.weights,
            **{name: self.load.get(name) or "auto" for name in ("backend", "device", "precision")},
            **{name: self.load[name] for name in LSH_ARGUMENTS if self.load.get("attention") == "lsh"},
            **asdict(replace(self.options, batch_size=1)),
            **layout,
            "formats": sorted({*self.formats}),
            "parquet": self.parquet,
            **({"speakers": self._speakers_that_count()} if self.speakers is not None else {}),
        }

    def _speakers_that_count(self) -> Json:
        """Return the arguments that decide who is told apart, the voices by their content."""
        counted = {name: value for name, value in (self.speakers or {}).items() if name != "download"}
        voices = counted.get("voices")
        return counted | ({"voices": watch(Path(voices)).sha256()} if voices else {})

    @cached_property
    def digest(self) -> str:
        """Digest of all that counts, 16 hex digits."""
        return digest_of(self.as_json())


def differences(before: Json, now: Json) -> list[str]:
    """Return what differs between two recipes as JSON, in words; most that only one of them has follows from that."""
    now = json.loads(json.dumps(now))  # as a file gives it back
    names = [name for name in before | now if (name in before and name in now) or name in _ONLY_IF_CHOSEN]
    pairs = {name: (before.get(name), now.get(name)) for name in names}
    return [f"{name} was {old!r}, now is {new!r}" for name, (old, new) in pairs.items() if old != new]


def weights_digest(load: Mapping[str, Any]) -> str:
    """Return the digest of the weights that these arguments of `harken.load` choose, or raise its errors."""
    model = resolve_model(
        load.get("model", "tiny.en"), revision=load.get("revision"), download=load.get("download", True)
    )
    return with_adapters(open_checkpoint(model), load.get("adapter")).weights.digest


@dataclass(frozen=True)
class Shard:
    """Recordings that are transcribed by one worker, and whose rows are published together."""

    recordings: tuple[BatchRecording, ...]
    recipe: str  # its digest
    retry: str = ""  # the name of the shard that is there, with failed rows of these recordings

    @cached_property
    def name(self) -> str:
        """Digest of the recipe and of all recordings, or the name of the shard in which they have failed."""
        return self.retry or shard_name(self.recipe, [recording.digest for recording in self.recordings])

    @cached_property
    def seconds(self) -> float:
        """Estimated length of the audio."""
        return sum(recording.estimate_s for recording in self.recordings)

    def halves(self) -> tuple[Shard, Shard]:
        """Return two shards with half of the recordings each; always the same ones."""
        first, second = split(self.recordings)
        return Shard(first, self.recipe), Shard(second, self.recipe)


@dataclass(frozen=True)
class Plan:
    """The shards of a batch."""

    unfinished: tuple[Shard, ...]  # those that are not there yet, longest first
    finished: Entries  # those that are there
    n_stale: int = 0  # rows that are there of recordings that the manifest does not list any more


def shard_name(recipe: str, digests: Sequence[str]) -> str:
    """Return the name of a shard, given the digests of its recordings."""
    return digest_of([recipe, *digests])


def split(items: SequenceT) -> tuple[SequenceT, SequenceT]:
    """Return the two halves of a shard, always the same ones."""
    middle = len(items) // 2
    return items[:middle], items[middle:]  # type: ignore[return-value]


def make_plan(
    recordings: Sequence[BatchRecording],
    recipe: Recipe,
    store: Store,
    source: str,
    *,
    shard_s: float,
    workers: int,
    moved: bool = False,
    write: bool = True,
) -> Plan:
    """Plan what is not there yet, and write the plan of all shards to the output folder.

    Shards of an earlier plan stay as they are. Recordings that are new in the manifest get shards of their own, and so
    do those left of shards of which others are gone. Files of shards that are in no plan are removed. Unless it is to
    `write`, it changes nothing in the folder.

    The recordings are listed at `source`, an absolute path or a URL; they are `moved` if those of an earlier input are
    the same at another place. A shard has `shard_s` seconds of audio, the last ones fewer the more workers there are.

    Raises
    ------
    PlanError
        If the folder has results of another recipe, and the message names the differences; or rows without a plan; or
        if recordings are called like those of another input, whose rows would be taken for theirs.
    OutputError
        If the plan cannot be written.
    """
    published = store.shards(ROWS)
    earlier, sources_before = _read_plan(store, recipe, published)
    planned = _with_halves(earlier, recipe.digest, published)
    by_digest = {recording.digest: recording for recording in recordings}
    sources = [*dict.fromkeys((*sources_before, source))]
    same = {digest for digests in planned.values() for digest in digests} & by_digest.keys()
    if sources_before and source not in sources_before and same and not moved:
        raise PlanError(
            f"{store.folder}: {len(same)} of the recordings of {source} are called like those of "
            f"{', '.join(sources_before)}, whose rows are there; choose another folder, or --moved if they are the "
            "same recordings"
        )
    kept = {
        name: digests
        for name, digests in planned.items()
        if name in published or by_digest.keys() >= set(digests)
    }
    known = {digest for digests in kept.values() for digest in digests}
    done = {digest for name, digests in kept.items() if name in published for digest in digests}
    estimate_durations(recording for recording in recordings if recording.digest not in done)
    new = [recording for recording in recordings if recording.digest not in known]
    added = cut_shards(new, recipe.digest, shard_s=shard_s, workers=workers)
    entries = kept | {shard.name: [recording.digest for recording in shard.recordings] for shard in added}
    unplanned = published - entries.keys()
    if unplanned and not earlier:
        raise PlanError(
            f"{store.folder}: holds rows of {len(unplanned)} shards, and no {PLAN_FILE} that tells of what; "
            "choose another folder"
        )
    unfinished = [
        Shard(tuple(by_digest[digest] for digest in digests), recipe.digest)
        for name, digests in entries.items()
        if name not in published
    ]
    if write:
        store.renew()  # all until here may have taken long
        if entries != planned or sources != sources_before:
            store.publish(PLAN_FILE, _plan_lines(recipe, sources, entries))
        remove_unplanned(store, entries)
    return Plan(
        unfinished=tuple(sorted(unfinished, key=lambda shard: -shard.seconds)),
        finished={name: digests for name, digests in entries.items() if name in published},
        n_stale=len(known - by_digest.keys()),
    )


def remove_unplanned(store: Store, names: Collection[str]) -> None:
    """Remove the files of shards that are not among these: other shards have all of their recordings.

    Workers that lost their driver, or were taken for lost, may publish such shards.
    """
    for files in SHARD_FILES:
        for name in store.shards(files) - set(names):
            store.remove(files.of(name))


def cut_shards(
    recordings: Sequence[BatchRecording], recipe: str, *, shard_s: float, workers: int
) -> Iterator[Shard]:
    """Yield shards of recordings, in the order of the manifest, with smaller ones at the end.

    A recording that is longer than a shard has one of its own. Short recordings, of which small shards can be made,
    come behind the others.
    """
    smallest_s = _SMALLEST_SHARE * shard_s
    shared = [recording for recording in recordings if recording.estimate_s < shard_s]
    yield from (Shard((recording,), recipe) for recording in recordings if recording.estimate_s >= shard_s)
    rest_s = sum(recording.estimate_s for recording in shared)
    shard: list[BatchRecording] = []
    length_s = 0.0
    for recording in sorted(shared, key=lambda recording: recording.estimate_s < smallest_s):
        wanted_s = min(shard_s, max(_SHARE_OF_REST * rest_s / max(workers, 1), smallest_s))
        if shard and length_s + recording.estimate_s > wanted_s:
            yield Shard(tuple(shard), recipe)
            rest_s -= length_s
            shard, length_s = [], 0.0
        shard.append(recording)
        length_s += recording.estimate_s
    if shard:
        yield Shard(tuple(shard), recipe)


def estimate_durations(recordings: Iterable[BatchRecording]) -> None:
    """Estimate lengths that the manifest does not give: from the headers of recordings, or by their sizes."""
    unknown = [each for each in recordings if each.duration_s is None and not each.estimate_s]
    if unknown:
        with ThreadPoolExecutor(_PROBING_THREADS) as threads:
            for each, length_s in zip(unknown, threads.map(_whole_length_s, unknown), strict=True):
                each.estimate_s = max(length_s - (each.offset_s or 0.0), 0.0)


def _whole_length_s(recording: BatchRecording) -> float:
    """Return the estimated length of a recording, of which the batch may have a piece."""
    if not recording.bytes and not is_url(recording.location):
        with suppress(AudioError):
            if duration_s := audio_duration(recording.location):
                return duration_s
    size = size_bytes(recording.location) if recording.size is None else recording.size
    return _UNKNOWN_S if size is None else size / _BYTES_PER_SECOND


def _read_plan(store: Store, recipe: Recipe, published: Collection[str]) -> tuple[Entries, list[str]]:
    """Return the shards and the inputs of an earlier plan; nothing if it is of other options and has no rows."""
    content = store.read(PLAN_FILE)
    if content is None:
        return {}, []
    try:
        head, *lines = map(json.loads, content.splitlines())
        planned = {line["shard"]: line["recordings"] for line in lines}
        before: Json = {**head["recipe"]}
        sources = [str(source) for source in head.get("sources", ())]
    except (ValueError, TypeError, KeyError) as error:
        raise PlanError(f"{store.folder}: {PLAN_FILE} is not a plan of 'harken batch': {error}") from error
    if changes := differences(before, recipe.as_json()):
        if not published:
            return {}, []
        raise PlanError(
            f"{store.folder}: holds rows of other options, which are never mixed: {'; '.join(changes)}; "
            "choose another folder, or the options of before"
        )
    return planned, sources


def _with_halves(planned: Entries, recipe: str, published: Collection[str]) -> Entries:
    """Return the shards of a plan, with their halves in place of those that were split."""
    halves = set(published) - planned.keys()
    return {
        part: digests_of_part
        for name, digests in planned.items()
        for part, digests_of_part in _parts(name, digests, recipe, published, halves)
    }


def _parts(
    name: str, digests: list[str], recipe: str, published: Collection[str], halves: Collection[str]
) -> list[tuple[str, list[str]]]:
    """Return a shard, or the parts of it if some are published."""
    whole = [(name, digests)]
    if name in published or not halves or len(digests) == 1:
        return whole
    parts = [
        part
        for half in split(digests)
        for part in _parts(shard_name(recipe, half), half, recipe, published, halves)
    ]
    return parts if any(part in published for part, _ in parts) else whole


def _plan_lines(recipe: Recipe, sources: Sequence[str], entries: Entries) -> Iterator[str]:
    yield json.dumps({"recipe": recipe.as_json(), "sources": [*sources]}) + "\n"
    for name, digests in entries.items():
        yield json.dumps({"shard": name, "recordings": digests}) + "\n"
