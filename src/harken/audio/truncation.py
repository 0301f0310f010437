"""Evidence that a recording was cut short, from the lengths that its own header or last page declares.

FFmpeg reads such a recording to where it ends, and says nothing. Only what proves a cut counts: a header that gives no
length, or a placeholder of a writer that could not know it, is no evidence.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from harken.audio.ffmpeg_input import FFmpegInput

# Headers that count their own bytes, or a padding that was never written, are off by less.
_SLACK_BYTES = 1024
# Far above an encoder's delay and padding: below 0.3 s, at 8 kHz.
_SLACK_S = 0.5
# Sizes that writers to pipes put in place of those they cannot know: 2 GB, the largest of 31 and of 32 bits, or nearly;
# and from 1 GB on those that are round, or a power of two, or off it by no more than a header.
_PLACEHOLDER_SIZES = (range(0x7700_0000, 0x8001_0000), range(0xFF00_0000, 0x1_0000_0000))
_MIN_ROUND_SIZE = 1_000_000_000
_ROUND_BYTES = 1_000_000
_HEADER_BYTES = 64
_MAX_CHUNKS = 10_000
_MAX_MP3_TAGS = 10
_MP3_SEARCH_BYTES = 4096
_MAX_MP3_TAG_END = 54  # behind the counts of VBRI; those of Xing end before
_OGG_HEADER_BYTES = 27
_MAX_OGG_PAGE_BYTES = _OGG_HEADER_BYTES + 255 + 255 * 255


EndReader = Callable[[FFmpegInput], int | None]
"""Returns the offset behind the last byte that a header declares; None if it declares none."""


def cut_short_reason(format_name: str, file: FFmpegInput, decoded_s: float) -> str | None:
    """Return the proof that a recording was cut short, in words; None if there is none.

    Parameters
    ----------
    format_name : str
        FFmpeg's name of the container.
    file : FFmpegInput
        Read to its end.
    decoded_s : float
    """
    size = file.size_bytes()
    if size is None:
        return None
    if format_name == "ogg":
        return "its last page is incomplete" if _ends_within_ogg_page(file, size) else None
    if format_name == "mp3":
        end, duration_s = _mp3_length(file)
        if duration_s - decoded_s <= _SLACK_S:
            return None
        if end is None:
            return f"its header says {duration_s:.2f} s"
    else:
        end = _END_READERS[format_name](file) if format_name in _END_READERS else None
    return f"{size} of {end} bytes" if end is not None and end - size > _SLACK_BYTES else None


def _wav_end(file: FFmpegInput) -> int | None:
    """Read RIFF and, for more than 4 GB, RF64 or BW64, whose lengths stand in the chunk ds64."""
    if file.read_at(0, 4) not in (b"RIFF", b"RF64", b"BW64"):
        return None
    riff_end = _known_end(8, _number(file, 4, "<I"))
    long_data_size = 0
    for name, start, size in _chunks(file, "<4sI", first=12):
        if name == b"ds64":
            riff_end = _known_end(8, _number(file, start, "<Q"))
            long_data_size = _number(file, start + 8, "<Q")
        if name == b"data":
            return _earlier(_known_end(start, long_data_size if size == 0xFFFF_FFFF else size), riff_end)
    return None


def _chunk_end(layout: str, sound: bytes, *, first: int, kind: bytes = b"") -> EndReader:
    """Return a reader of a container of chunks; `sound` is the name of the one with samples, `kind` its first bytes."""

    def read(file: FFmpegInput) -> int | None:
        form_end = _known_end(8, _number(file, 4, layout[0] + "I")) if first == 12 else None
        for name, start, size in _chunks(file, layout, first=first, alignment=2 if first == 12 else 1):
            if name == sound and file.read_at(start, len(kind)) == kind:
                return _earlier(_known_end(start, size), form_end)
        return None

    return read


def _w64_end(file: FFmpegInput) -> int | None:
    """Read Sony Wave64: chunks are named by 16 bytes, and their sizes include the 24 bytes of name and size."""
    offset = 40
    for _ in range(_MAX_CHUNKS):
        header = file.read_at(offset, 24)
        if len(header) < 24:
            break
        size = int(struct.unpack_from("<q", header, 16)[0])
        if header[:4] == b"data":
            return _known_end(offset, size) if size > 24 else None
        if size < 24:
            break
        offset += size + -size % 8
    return None


def _au_end(file: FFmpegInput) -> int | None:
    return _known_end(_number(file, 4, ">I"), _number(file, 8, ">I"))


def _asf_end(file: FFmpegInput) -> int | None:
    """Read the size of the Data Object behind the Header Object; that of a broadcast is 0 or that of its header."""
    data_start = _number(file, 16, "<Q")
    if file.read_at(data_start, 4) != b"\x36\x26\xb2\x75":
        return None
    return _known_end(data_start, _number(file, data_start + 16, "<Q"))


def _matroska_end(file: FFmpegInput) -> int | None:
    """Read the size of the first Segment; a live one has no size. The duration may be that of a longer video."""
    header_size, header_start = _ebml_number(file, 4)
    segment = header_start + (header_size or 0)
    if (file.read_at(0, 4), file.read_at(segment, 4)) != (b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"):
        return None
    size, start = _ebml_number(file, segment + 4)
    return None if not size else start + size


def _mp3_length(file: FFmpegInput) -> tuple[int | None, float]:
    """Read the frame of Xing, Info or VBRI in front of the sound: the offset behind the last byte, and the seconds.

    Tags that were changed later make one of its two lengths wrong now and then, so both have to prove a cut.
    """
    start = 0
    for _ in range(_MAX_MP3_TAGS):
        tag = file.read_at(start, 10)
        if len(tag) < 10 or tag[:3] != b"ID3":
            break
        seven_bits = [byte & 0x7F for byte in tag[6:]]
        start += 10 + sum(bits << shift for bits, shift in zip(seven_bits, (21, 14, 7, 0), strict=True))
        start += 10 * bool(tag[5] & 0x10)  # a footer
    head = file.read_at(start, _MP3_SEARCH_BYTES)
    for at in range(len(head) - 3):
        if head[at] == 0xFF and (announced := _announced(head, at)):
            n_bytes, duration_s = announced
            return start + at + n_bytes if n_bytes else None, duration_s
    return None, 0.0


def _announced(head: bytes, at: int) -> tuple[int, float] | None:
    """Return the bytes and seconds that a frame of MPEG audio, layer III, announces; None if there is no frame.

    They are 0 if it does not say.
    """
    (bits,) = struct.unpack_from(">I", head, at)
    version, layer, rate, mono = bits >> 19 & 3, bits >> 17 & 3, bits >> 10 & 3, bits >> 6 & 3 == 3
    if bits >> 21 != 0x7FF or version == 1 or layer != 1 or rate == 3:
        return None
    rate_hz = (44_100, 48_000, 32_000)[rate] >> {3: 0, 2: 1, 0: 2}[version]
    mpeg1 = version == 3
    frame = head[at : at + _MAX_MP3_TAG_END]
    tag = 4 + ((17 if mono else 32) if mpeg1 else (9 if mono else 17))
    n_frames = n_bytes = 0
    if frame[36:40] == b"VBRI" and len(frame) >= 54:
        n_bytes, n_frames = struct.unpack_from(">II", frame, 46)
    elif frame[tag : tag + 4] in (b"Xing", b"Info") and len(frame) >= tag + 16:
        flags, first, second = struct.unpack_from(">III", frame, tag + 4)
        n_frames = first if flags & 1 else 0
        n_bytes = (second if flags & 1 else first) if flags & 2 else 0
    return n_bytes, n_frames * (1152 if mpeg1 else 576) / rate_hz


def _ends_within_ogg_page(file: FFmpegInput, size: int) -> bool:
    """Tell whether the last page lacks bytes.

    A missing mark of the last page would prove nothing: some writers of voice messages leave it out.
    """
    tail = file.read_at(max(0, size - _MAX_OGG_PAGE_BYTES), _MAX_OGG_PAGE_BYTES)
    start = tail.rfind(b"OggS\0")
    page = tail[start:] if start >= 0 else b""
    if not page:
        return False
    if len(page) < _OGG_HEADER_BYTES:
        return True
    n_segments = page[_OGG_HEADER_BYTES - 1]
    body_bytes = sum(page[_OGG_HEADER_BYTES:][:n_segments])
    return len(page) < _OGG_HEADER_BYTES + n_segments + body_bytes


def _chunks(
    file: FFmpegInput, layout: str, *, first: int, alignment: int = 2
) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, start and size of each chunk until a name that is none."""
    header_bytes, offset = struct.calcsize(layout), first
    for _ in range(_MAX_CHUNKS):
        header = file.read_at(offset, header_bytes)
        if len(header) < header_bytes:
            return
        name, size = struct.unpack(layout, header)
        if not name.isascii() or not name.decode().isprintable() or size < 0:
            return
        yield name, offset + header_bytes, size
        offset += header_bytes + size + -size % alignment


def _number(file: FFmpegInput, offset: int, layout: str) -> int:
    """Return the number at an offset, 0 if it is not there."""
    size = struct.calcsize(layout)
    data = file.read_at(offset, size)
    return int(struct.unpack(layout, data)[0]) if len(data) == size else 0


def _known_end(start: int, size: int) -> int | None:
    """Return the end of a chunk; None if its size is what writers put there until they know it."""
    unknown = size == 0 or size >= 1 << 62 or any(size in sizes for sizes in _PLACEHOLDER_SIZES)
    return None if unknown or _is_round(size) else start + size


def _is_round(size: int) -> bool:
    """Return whether a writer rather chose a size than counted it."""
    if size < _MIN_ROUND_SIZE:
        return False
    powers = (1 << size.bit_length() - 1, 1 << size.bit_length())
    return size % _ROUND_BYTES == 0 or any(abs(size - power) <= _HEADER_BYTES for power in powers)


def _earlier(data_end: int | None, file_end: int | None) -> int | None:
    """Return the earlier end: if two sizes contradict each other, the larger one is wrong."""
    if data_end is None or file_end is None:
        return data_end
    return min(data_end, file_end)


def _ebml_number(file: FFmpegInput, offset: int) -> tuple[int | None, int]:
    """Return the number of variable length at an offset, None if it is unknown, and the offset behind it."""
    first = file.read_at(offset, 1)
    if not first or not first[0]:
        return None, offset + 1
    n_bytes = 9 - first[0].bit_length()
    data = file.read_at(offset, n_bytes)
    mask = (1 << 7 * n_bytes) - 1
    value = int.from_bytes(data) & mask
    return (None if len(data) < n_bytes or value == mask else value), offset + n_bytes


_END_READERS: dict[str, EndReader] = {
    "wav": _wav_end,
    "w64": _w64_end,
    "aiff": _chunk_end(">4sI", b"SSND", first=12),
    "au": _au_end,
    "caf": _chunk_end(">4sq", b"data", first=8),
    "avi": _chunk_end("<4sI", b"LIST", first=12, kind=b"movi"),
    "asf": _asf_end,
    "matroska,webm": _matroska_end,
}
