"""What cannot be read: an error of one line with the file and the problem, however a recording is damaged."""

import io
import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest

from audio_files import AUDIO_FORMATS, VIDEO_ONLY, WITH_SIZES, Pipe, tone, wav_bytes
from damage import damaged
from harken.audio import audio_duration, load_audio, stream_audio
from harken.errors import AudioError, AudioNotFound, OptionError
from harken.types import SAMPLE_RATE

NOT_FINITE = "a sample is nan or infinite; allowed are finite samples"
MP4, MP4_FRONT = AUDIO_FORMATS["mp4 video"], AUDIO_FORMATS["mp4 video, index in front"]


def error_of(source):
    with pytest.raises(AudioError) as caught:
        load_audio(source)
    message = str(caught.value)
    assert "\n" not in message
    return message


def of_video(format, change=bytes):
    return lambda folder: change(format.write(folder / "video").read_bytes())


def without_packets(mp4):
    index, packets = mp4.split(b"mdat")
    return index + b"mdat" + b"\xff" * len(packets)


PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nother.wav\n#EXT-X-ENDLIST\n"
UNREADABLE = r"is not a recording that FFmpeg can read \(.+\); allowed is an audio or video file with sound"
BAD_FILES = [
    (b"This is not a recording.\n" * 100, UNREADABLE),
    (PLAYLIST, UNREADABLE),
    (b"", r"is empty \(0 bytes\)"),
    (wav_bytes(np.zeros(0, np.int16)), r"holds no audio samples"),
    (
        wav_bytes(np.zeros(32_000, np.int16), rate_hz=2),
        r"at 0.00 s: sample rate 2 Hz; allowed is 1000 to 768000 Hz",
    ),
    (of_video(VIDEO_ONLY), r"has no sound, only video; allowed is .+"),
    (
        of_video(MP4, lambda mp4: mp4[: len(mp4) * 6 // 10]),
        r"an mp4 without its index \(moov\): the file is cut short or was never finished",
    ),
    (
        of_video(AUDIO_FORMATS["mkv video"], lambda mkv: mkv.replace(b"A_AAC", b"A_NON")),
        r"FFmpeg has no decoder for its sound; allowed is .+",
    ),
    (of_video(MP4_FRONT, without_packets), r"nothing in it can be decoded \(.+\)"),
    (
        of_video(
            AUDIO_FORMATS["m4a"],
            lambda m4a: m4a[:2000] + b"\xff" * (len(m4a) * 7 // 10 - 2000) + m4a[len(m4a) * 7 // 10 :],
        ),
        r"only .+ s of the 2\.\d\d s in its header could be decoded; the file is cut short or damaged",
    ),
]


@pytest.mark.parametrize(("content", "reason"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_unreadable_recording_is_explained(content, reason, tmp_path):
    AUDIO_FORMATS["wav s16"].write(tmp_path / "other")
    path = tmp_path / "talk.mp3"
    path.write_bytes(content(tmp_path) if callable(content) else content)
    assert re.fullmatch(re.escape(f"{path}: ") + reason, error_of(path))


class Failing(io.BytesIO):
    """A file object whose reads fail from a position on."""

    name = "talk.wav"
    error = OSError(5, "Input/output error")
    from_byte = 0

    def read(self, size=-1):
        if self.tell() >= self.from_byte:
            raise self.error
        return super().read(size)


class Generous(io.BytesIO):
    """A file object that reads all there is, however little is asked for."""

    def read(self, size=-1):
        return super().read()


class WithoutPosition(io.BytesIO):
    """A file that says that it is seekable, and then does not tell its position."""

    def tell(self):
        raise OSError(29, "Illegal seek")


def test_source_that_cannot_be_used_is_explained_in_one_line(tmp_path):
    closed = io.BytesIO(b"RIFF")
    closed.close()
    read = io.BytesIO(AUDIO_FORMATS["flac"].write(tmp_path / "talk").read_bytes())
    read.name = "talk.flac"
    read.seek(0, io.SEEK_END)
    a_directory = "is a directory; allowed is an audio or video file with sound"
    for source, message in (
        (tmp_path, rf"{re.escape(str(tmp_path))}: {a_directory}"),
        ("", "'': no such file"),
        ("two\nlines.mp3", r"'two\\nlines\.mp3': no such file"),
        ("https://a.example/b.mp3", r"https://.*b\.mp3: no such file; a URL is not read: download it first"),
        ("nul\0.mp3", r"'nul\\x00\.mp3': cannot be read: embedded null byte"),
        (closed, r"<BytesIO>: cannot be read: I/O operation on closed file\.?"),
        (read, r"talk\.flac: is at its end, byte \d+, where reading would begin; seek\(0\) goes back"),
        (WithoutPosition(), "<WithoutPosition>: cannot be read: Illegal seek"),
        (Failing(), r"talk\.wav: cannot be read: Input/output error"),
        (Generous(bytes(100_000)), r"<Generous>: cannot be read: read\(\d+\) returned 100000 bytes"),
        *(
            (other, f"<{type(other).__name__}>: allowed is a path, .+ binary mode, or a numpy array")
            for other in (None, 3, b"talk.mp3", [0.0], io.StringIO("talk"))
        ),
        (np.zeros((2, 800), np.float32), r"<array>: shape \(2, 800\) of float32; allowed is one channel at .+"),
        (np.zeros(800, np.int64), r"<array>: shape \(800,\) of int64; allowed is .+"),
        (np.zeros(0, np.float32), "<array>: holds no audio samples"),
        (np.array([0.0] * 8_000 + [np.nan]), f"<array>: at 0.50 s: {NOT_FINITE}"),
        (np.array([0.0, np.inf]), f"<array>: at 0.00 s: {NOT_FINITE}"),
    ):
        assert re.fullmatch(message, error_of(source)), source


@pytest.mark.parametrize("block_samples", [0, -1])
def test_blocks_have_a_sample_at_least(block_samples):
    with pytest.raises(
        OptionError, match=f"^block_samples={block_samples}: allowed is an integer of at least 1$"
    ):
        next(stream_audio(np.zeros(800, np.float32), block_samples=block_samples))


def test_missing_file_raises_audio_not_found_and_so_may_a_file_object_that_knows_it(tmp_path):
    with pytest.raises(AudioNotFound, match=r"nowhere\.wav: no such file$"):
        next(stream_audio(tmp_path / "nowhere.wav"))
    with pytest.raises(FileNotFoundError):
        audio_duration(tmp_path / "nowhere.wav")
    absent = Failing()
    absent.error = AudioNotFound("bucket/talk.mp3: no such file")
    with pytest.raises(AudioNotFound, match=r"^bucket/talk.mp3: no such file$"):
        load_audio(absent)


def test_file_without_permission_is_explained(tmp_path, monkeypatch):
    path = AUDIO_FORMATS["wav s16"].write(tmp_path / "talk")

    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", refuse)  # root may read everything
    assert error_of(path) == f"{path}: cannot be read: Permission denied"


@pytest.mark.parametrize("name", ["wav float", "wav double stereo"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_first_non_finite_sample_is_located(name, value, tmp_path):
    samples = tone(2.0)
    samples[round(1.25 * SAMPLE_RATE) :: 100] = value
    path = AUDIO_FORMATS[name].write(tmp_path / "talk", samples=samples)

    got, error = decode_until_error(path)
    assert error == f"{path}: at 1.25 s: {NOT_FINITE}"
    assert np.allclose(got, tone(2.0)[: len(got)], atol=2e-4)
    assert len(got) == pytest.approx(1.25 * SAMPLE_RATE, abs=1_100)


@pytest.mark.parametrize("name", ["wav float", "wav double stereo"])
def test_floats_of_a_file_in_another_scale_are_refused_where_they_begin(name, tmp_path):
    samples = tone(2.0)
    samples[[0, 9_000]] = 1e6  # a few wild ones are clipped
    samples[round(1.25 * SAMPLE_RATE) :] *= 32768
    path = AUDIO_FORMATS[name].write(tmp_path / "talk", samples=samples)

    got, error = decode_until_error(path)
    assert re.fullmatch(
        rf"{re.escape(str(path))}: at 1\.2\d s: samples as large as \d+\.?\d*; allowed are floats .*", error
    )
    assert len(got) == pytest.approx(1.25 * SAMPLE_RATE, abs=1_100)


def test_samples_of_an_array_before_one_that_is_not_finite_are_given():
    samples = tone(2.0).astype(np.float32)
    samples[round(1.25 * SAMPLE_RATE)] = np.nan
    got, error = decode_until_error(samples)
    assert error == f"<array>: at 1.25 s: {NOT_FINITE}"
    assert np.array_equal(got, samples[: len(got)])
    assert len(got) == 1.25 * SAMPLE_RATE


def test_read_error_in_the_middle_is_located():
    failing = Failing(wav_bytes((tone(10.0) * 32767).astype("<i2")))
    failing.from_byte = 100_001
    got, error = decode_until_error(failing)
    assert re.fullmatch(r"talk\.wav: at 4\.\d\d s: .+ \(Input/output error\)", error)
    assert len(got) > 4 * SAMPLE_RATE


@pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has other limits of names, and links need a privilege"
)
def test_path_that_the_system_refuses_is_explained(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    assert re.fullmatch(r"y{300}: cannot be read: .*name too long", error_of("y" * 300), re.IGNORECASE)
    assert re.search(r"loop: cannot be read: .*(symbolic|links)", error_of(tmp_path / "loop"))


def test_mp4_with_index_at_the_end_is_rejected_in_a_pipe(tmp_path):
    data = MP4.write(tmp_path / "talk", seconds=20.0).read_bytes()
    assert error_of(Pipe(data)) == (
        "<Pipe>: an mp4 whose index (moov) is not in front cannot be read from a pipe; give the file itself"
    )
    assert len(load_audio(Pipe(MP4_FRONT.write(tmp_path / "front").read_bytes()))) > 1.9 * SAMPLE_RATE


@pytest.mark.parametrize("stdin", [None, io.StringIO("talk")])
def test_a_program_may_have_no_standard_input(stdin, monkeypatch):
    monkeypatch.setattr("sys.stdin", stdin)
    assert error_of("-") == "<stdin>: there is no standard input"


def test_empty_standard_input_is_explained_and_ffmpeg_prints_nothing_to_the_terminal(tmp_path):
    """Damaged packets print nothing, not even from FFmpeg's C code."""
    damaged = bytearray(AUDIO_FORMATS["mp3"].write(tmp_path / "talk").read_bytes())
    damaged[2_000:6_000] = os.urandom(4_000)
    run = [sys.executable, "-c", "from harken.audio import load_audio; load_audio('-')"]
    empty, done = (subprocess.run(run, input=data, capture_output=True) for data in (b"", damaged))
    assert empty.stderr.splitlines()[-1] == b"harken.errors.AudioError: <stdin>: is empty (0 bytes)"
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def decode_until_error(source):
    """Return the samples that a stream yields before its error, and the error's message."""
    blocks = []
    try:
        for block in stream_audio(source, block_samples=SAMPLE_RATE):
            blocks.append(block)
    except AudioError as error:
        return np.concatenate(blocks), str(error)
    pytest.fail("the stream ended without an error")


# --- damage of any kind ------------------------------------------------------------------------------------

LONGEST_S = 1000.0  # a header may claim 1000 Hz for 44.1 kHz samples, and mu-law for 24 bits; not more
FORMATS = {
    **{name: AUDIO_FORMATS[name] for name in ("wav s24 stereo", "flac", "mp3", "ogg opus", "mkv video")},
    **{"mp4": MP4_FRONT, **WITH_SIZES},
}
SIGNATURES = (
    *(b"", b"RIFF", b"fLaC", b"OggS", b"ID3\x04", b"\xff\xfb\x90\x64"),
    *(b"\0\0\0\x20ftypisom", b"\x1a\x45\xdf\xa3"),
)


def is_decoded(data):
    """Decode all samples; return False if an `AudioError` ends it. A hang ends at the time limit of the test."""
    samples, message = 0, None
    try:
        for block in stream_audio(io.BytesIO(data)):
            samples += len(block)
            assert np.abs(block).max() <= 1.0, "louder than full scale, or not finite"
    except AudioError as error:
        message = str(error)
    assert samples < LONGEST_S * SAMPLE_RATE
    assert message or samples
    assert "\n" not in (message or "")
    return message is None


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_recording_ends_in_samples_or_audio_error(name, tmp_path):
    original = FORMATS[name].write(tmp_path / "tone", seconds=1.0).read_bytes()
    rng = random.Random(20_251_121)
    positions = [*range(200), *range(len(original) - 1500, len(original))]
    outcomes = [is_decoded(damaged(original, positions, rng, longest=2000)) for _ in range(30)]
    assert {True, False} == set(outcomes), "the damage was too light or too heavy to show anything"


@pytest.mark.slow
@pytest.mark.parametrize("signature", SIGNATURES)
def test_noise_after_a_known_signature_ends_in_samples_or_audio_error(signature):
    rng = random.Random(9)
    for _ in range(25):
        is_decoded(signature + rng.randbytes(rng.randrange(20_000)))
