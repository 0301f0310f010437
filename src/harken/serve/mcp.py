"""The Model Context Protocol: what agents, such as Claude and Cursor, may do with the recordings of some folders.

Tools are methods of `Tools`: their signatures are the schemas that clients read, and their docstrings tell the model
what they do. All work is done in one thread, a window of a recording at a time, so calls take turns.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from stat import S_ISREG
from typing import Annotated, Any, Literal, TypeVar

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import ToolAnnotations
from pydantic import Field
from starlette.types import Receive, Scope, Send

from harken.api import Recognizer
from harken.audio import audio_duration
from harken.errors import HarkenError
from harken.files import write_atomic
from harken.formats import FORMATS, WORD_FORMATS, RecordingLink, as_json, dump_json, render
from harken.manifests import RECORDING_SUFFIXES
from harken.results import Transcript
from harken.serve.guard import Guard, Tickets
from harken.serve.options import ServeOptions
from harken.serve.server import listening
from harken.speakers.diarizer import Diarizer
from harken.text import LANGUAGES, from_language_tag
from harken.transcribe import TranscribeOptions
from harken.transcribe.journal import recording_identity
from harken.version import __version__

PART_CHARS = 20_000
"""Most characters of an answer, about 6000 tokens; clients refuse answers that are much longer."""
KEPT = 8
"""Transcripts that are kept for further parts and formats."""
MOST_LISTED = 100
MOST_LANGUAGES = 5
SEGMENT_KEYS = ("start", "end", "speaker", "text", "words")
"""What json has of a segment: a model has no use for tokens and log-probabilities."""

T = TypeVar("T")

# What tools take and return; pydantic makes schemas of it, and takes slots for defaults.
FilePath = Annotated[
    str, Field(description="Path of an audio or video file; a relative one is in a folder listed.")
]
Model = Annotated[str | None, Field(description="One of list_models; by default the first.")]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A transcript, or a part of it."""

    text: Annotated[str, Field(description="The transcript in the format asked for; empty if it was saved.")]
    language: str
    duration: Annotated[float, Field(description="Seconds of the recording.")]
    characters: Annotated[int, Field(description="Length of the whole transcript.")]
    next_offset: Annotated[int | None, Field(description="Offset of the next part; null if this is the last.")]
    saved_to: str | None


@dataclass(frozen=True, kw_only=True)
class Language:
    """The language of a recording."""

    code: Annotated[str | None, Field(description="Null if nobody speaks.")]
    name: str | None
    probabilities: Annotated[dict[str, float], Field(description="The most probable codes.")]


@dataclass(frozen=True, kw_only=True)
class OfferedModel:
    """A model that may be used."""

    name: str
    is_default: bool
    is_loaded: bool


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A recording that may be read."""

    path: str
    bytes: int
    modified: Annotated[float, Field(description="Seconds since 1970.")]


def make_server(tools: Tools) -> MCPServer:
    """Make a server of the tools."""
    server = MCPServer(
        "harken",
        title="harken speech recognition",
        version=__version__,
        instructions=f"Transcribes speech on this machine. Recordings are in {', '.join(map(str, tools.roots))}.",
        log_level="WARNING",
    )
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    adds = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
    server.add_tool(tools.transcribe, annotations=adds)
    for tool in (tools.detect_language, tools.list_models, tools.list_recordings):
        server.add_tool(tool, annotations=reads)
    return server


async def serve_http(
    server: MCPServer,
    options: ServeOptions,
    announce: Callable[[str], None],
    on_signals: Callable[[Callable[[int], object]], AbstractContextManager[None]],
) -> None:
    """Serve by streamable HTTP, at the path ``/mcp``, until a signal comes; the arguments are as for `server.run`."""
    # The guard knows more names and pages than the package does, and keys.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    inner = server.streamable_http_app(transport_security=unchecked)
    ready, stopping = asyncio.Event(), asyncio.Event()

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        await ready.wait()
        await inner(scope, receive, send)

    app = Guard(serve, options, Tickets())
    loop = asyncio.get_running_loop()
    with on_signals(lambda number: loop.call_soon_threadsafe(stopping.set)):
        # Sessions end before the connections, of which each client keeps one open.
        async with listening(app, options, announce), server.session_manager.run():
            ready.set()
            await stopping.wait()


class Tools:
    """The tools of a server.

    Parameters
    ----------
    load : callable
        Loads the model of a name.
    models : sequence of str
        Models that are offered; the first is the default.
    roots : sequence of str
        Folders that may be read, and get the files that are saved; nothing outside them.
    load_diarizer : callable
        Loads what tells speakers apart.
    """

    def __init__(
        self,
        load: Callable[[str], Recognizer],
        models: Sequence[str],
        roots: Sequence[str],
        load_diarizer: Callable[[], Diarizer],
    ) -> None:
        self.roots = [Path(os.path.realpath(root)) for root in roots]
        self._models, self._recognizers = models, dict[str, Recognizer]()
        self._load, self._load_diarizer = load, cache(load_diarizer)
        self._transcripts: OrderedDict[object, Transcript] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, "harken model")

    async def transcribe(
        self,
        ctx: Context,
        file_path: FilePath,
        format: Annotated[Literal["text", "srt", "vtt", "json"], Field(description="json has times.")] = "text",
        language: Annotated[
            str | None, Field(description="Code or English name; detected if not given.")
        ] = None,
        task: Annotated[
            Literal["transcribe", "translate"], Field(description="translate: into English.")
        ] = "transcribe",
        speakers: Annotated[bool, Field(description="Tell speakers apart.")] = False,
        words: Annotated[bool, Field(description="Times of words, in json.")] = False,
        prompt: Annotated[str | None, Field(description="Names, spelling and style to expect.")] = None,
        start: Annotated[float, Field(description="Second to begin at.")] = 0.0,
        end: Annotated[float | None, Field(description="Second to end at.")] = None,
        offset: Annotated[
            int, Field(description="next_offset of the part before, with all else unchanged.")
        ] = 0,
        save_to: Annotated[
            str | None,
            Field(
                description="New file for the whole transcript; its ending decides the format: .txt, .srt, .json ..."
            ),
        ] = None,
        model: Model = None,
    ) -> Answer:
        """Transcribe an audio or video file. A long transcript comes in parts: go on with offset=next_offset."""
        with _told():
            path = self._recording(file_path)
            target = self._new_file(save_to) if save_to else None
            target_format = _format_of(target) if target else ""
            if target_format == "rttm" and not speakers:
                raise ToolError(f"{save_to}: has turns of speakers; allowed is .rttm with speakers=true")
            options = TranscribeOptions(
                language=from_language_tag(language),
                task=task,
                word_timestamps=words or speakers or target_format in WORD_FORMATS,
                initial_prompt=prompt,
                clip_timestamps=() if (start, end) == (0, None) else (start, *([] if end is None else [end])),
            )
            transcript = await self._transcript(ctx, path, options, speakers, model)
            if save_to and target:
                self._new_file(save_to)  # transcribing took long: somebody may have written it meanwhile
                link = RecordingLink(path=path, transcript_folder=target.parent)
                write_atomic(target, render(transcript, target_format, recording=link), durable=True)
            whole = "" if target else _in_format(transcript, format)
            if not 0 <= offset <= len(whole):
                raise ToolError(f"offset={offset}: allowed is 0 to {len(whole)}, the length of the transcript")
            part = _part(whole, offset)
            following = offset + len(part)
            return Answer(
                text=part,
                language=transcript.language,
                duration=round(transcript.duration_s, 3),
                characters=len(whole),
                next_offset=following if following < len(whole) else None,
                saved_to=str(target) if target else None,
            )

    async def detect_language(self, file_path: FilePath, model: Model = None) -> Language:
        """Detect the language that is spoken in an audio or video file."""
        with _told():
            path = self._recording(file_path)
            recognizer = await self._in_thread(self._recognizer, model)
            found = await self._in_thread(recognizer.detect_language, path)
        code = next(iter(found), None)
        likely = {each: round(probability, 3) for each, probability in [*found.items()][:MOST_LANGUAGES]}
        return Language(code=code, name=LANGUAGES[code] if code else None, probabilities=likely)

    async def list_models(self) -> list[OfferedModel]:
        """List the models that may be used; one that ends in .en knows English only."""
        return [
            OfferedModel(name=name, is_default=name == self._models[0], is_loaded=name in self._recognizers)
            for name in self._models
        ]

    async def list_recordings(self) -> list[Recording]:
        """List the audio and video files that may be transcribed, the newest first, at most 100."""
        found = await asyncio.to_thread(lambda: sorted(self._recordings(), key=lambda each: -each.modified))
        return found[:MOST_LISTED]

    def _recordings(self) -> Iterator[Recording]:
        for root in self.roots:
            for folder, _, names in os.walk(root):
                for name in names:
                    path = Path(folder, name)
                    if path.suffix.lower() not in RECORDING_SUFFIXES or not self._is_inside(path):
                        continue
                    # A name that is not UTF-8 could not be sent; a file may have gone since.
                    with suppress(UnicodeEncodeError, OSError):
                        str(path).encode()
                        status = path.stat()
                        if S_ISREG(status.st_mode):
                            yield Recording(path=str(path), bytes=status.st_size, modified=status.st_mtime)

    async def _transcript(
        self, ctx: Context, path: Path, options: TranscribeOptions, speakers: bool, model: str | None
    ) -> Transcript:
        """Return the transcript of a recording, which is kept for a while; report progress meanwhile."""
        total_s = await self._in_thread(audio_duration, path)
        if total_s is not None and total_s <= (options.clip_timestamps or (0.0,))[0]:
            raise ToolError(
                f"start={options.clip_timestamps[0]:g}: allowed is a time before the end, {total_s:g} s"
            )
        key = (path, *recording_identity(path), options, speakers, model)
        if key not in self._transcripts:
            recognizer = await self._in_thread(self._recognizer, model)
            diarizer = await self._in_thread(self._load_diarizer) if speakers else None
            work = recognizer.transcribe(path, options, diarizer=diarizer)
            reported_s = 0.0
            while not work.finished:
                await self._in_thread(work.step)
                if work.done_s > reported_s:
                    reported_s = work.done_s
                    await ctx.report_progress(reported_s, total_s, "seconds of the recording are done")
            self._transcripts[key] = work.so_far()
            if len(self._transcripts) > KEPT:
                self._transcripts.popitem(last=False)
        return self._transcripts[key]

    def _recognizer(self, model: str | None) -> Recognizer:
        """Return a model, which is loaded once."""
        name = model or self._models[0]
        if name not in self._models:
            raise ToolError(f"model={name!r}: allowed is {', '.join(self._models)}")
        if name not in self._recognizers:
            self._recognizers[name] = self._load(name)
        return self._recognizers[name]

    async def _in_thread(self, function: Callable[..., T], *given: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *given)

    def _recording(self, given: str) -> Path:
        """Return the resolved path of a recording.

        Raises
        ------
        ToolError
            If it is not in a folder that may be read, links followed, or not a file.
        """
        for path in self._resolved(given):
            if path.is_file():
                return path
        raise ToolError(f"{given}: no such file")

    def _new_file(self, given: str) -> Path:
        """Return the resolved path of a file to write, which does not exist, in an existing folder of the roots."""
        candidates = self._resolved(given)
        path = next((path for path in candidates if path.parent.is_dir()), None)
        if path is None:
            raise ToolError(f"{given}: there is no folder {candidates[0].parent}")
        if os.path.lexists(path):
            raise ToolError(f"{given}: exists already, and is not overwritten")
        _format_of(path)
        return path

    def _resolved(self, given: str) -> list[Path]:
        """Return the paths inside the roots that a path may mean, with no links in them; it must mean one."""
        paths = []
        for root in self.roots:
            try:
                path = Path(os.path.realpath(root / os.path.expanduser(given)))
            except ValueError:  # no path can hold this text
                continue
            if self._is_inside(path):
                paths.append(path)
        if not paths:
            folders = ", ".join(map(str, self.roots))
            raise ToolError(f"{given}: is not in a folder that may be read; allowed are files in {folders}")
        return paths

    def _is_inside(self, path: Path) -> bool:
        return any(Path(os.path.realpath(path)).is_relative_to(root) for root in self.roots)


@contextmanager
def _told() -> Iterator[None]:
    """Tell the client why harken refuses something; the package would hide it."""
    try:
        yield
    except HarkenError as error:
        raise ToolError(str(error).replace("clip_timestamps", "start, end")) from error
    except OSError as error:
        raise ToolError(f"{error.filename}: {error.strerror or error}") from error


def _format_of(path: Path) -> str:
    """Return the format that the ending of a file names."""
    for name in sorted(FORMATS, key=len, reverse=True):
        if path.name.lower().endswith(f".{name}"):
            return name
    raise ToolError(f"{path.name}: allowed endings are {', '.join(f'.{name}' for name in FORMATS)}")


def _in_format(transcript: Transcript, format: str) -> str:
    """Return a transcript as text in a format of the tool."""
    if format != "json":
        return "".join(render(transcript, {"text": "txt"}.get(format, format)))
    segments = (
        {key: segment[key] for key in SEGMENT_KEYS if segment.get(key) not in (None, [])}
        for segment in as_json(transcript.segments)
    )
    lines = ",\n".join(map(dump_json, segments))
    return f"[{lines}]\n"


def _part(text: str, offset: int) -> str:
    """Return the part of a text from an offset on, up to the end of a line if there is one."""
    part = text[offset : offset + PART_CHARS]
    whole_lines = part.rfind("\n") + 1
    return part if offset + len(part) == len(text) else part[: whole_lines or len(part)]
