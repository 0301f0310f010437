"""Reading ahead: bounded tries and copies, names for errors, and pieces that are the samples of their recording."""

import threading
from collections import Counter
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from unittest.mock import Mock

import numpy as np
import pytest
from batch_files import RATE, noise, web_server, write_tar, write_wav

from audio_files import AUDIO_FORMATS, wav_bytes
from cli_runner import eventually
from harken.audio import load_audio
from harken.batch import read_ahead
from harken.batch.inputs import BatchRecording, ByteRange, read_recordings
from harken.batch.locations import open_binary
from harken.batch.read_ahead import AHEAD, FETCH_TRIES, ReadAhead
from harken.errors import AudioError, AudioNotFound


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(read_ahead, "FIRST_WAIT_S", 0.0)


def recording_at(location, **place):
    return BatchRecording(location=str(location), name=str(location), keys={}, **place)


def piece(location, offset_s, duration_s=None):
    return recording_at(location, offset_s=offset_s, duration_s=duration_s)


def read_all(*recordings):
    """Decode recordings in turn; an error stands for what could not be."""
    results = []
    with closing(ReadAhead(recordings)) as ahead:
        for file in ahead.files:
            try:
                results.append((load_audio(file) * 32768).astype(np.int16))
            except AudioError as error:
                results.append(error)
            file.close()
    return results


@pytest.fixture
def opened(monkeypatch):
    """Locations that have been opened."""
    locations = []
    original = read_ahead._open

    def open_and_note(recording):
        locations.append(recording.location)
        return original(recording)

    monkeypatch.setattr(read_ahead, "_open", open_and_note)
    return locations


def test_whole_recordings_are_read_as_they_are_and_pieces_of_those_in_archives_are_theirs(tmp_path):
    samples = noise(1.5), -noise(1.5)
    path = write_wav(tmp_path / "a.wav", samples[0])
    archive = write_tar(tmp_path / "a.tar", {"x/a.wav": path.read_bytes(), "x/b.wav": wav_bytes(samples[1])})
    packed = read_recordings(str(archive))
    whole = read_all(recording_at(path), *packed, recording_at(path))
    for result, expected in zip(whole, (samples[0], *samples, samples[0]), strict=True):
        np.testing.assert_array_equal(result, expected)
    pieces = read_all(*(replace(each, offset_s=0.25, duration_s=1.0) for each in packed))
    for result, expected in zip(pieces, samples, strict=True):
        np.testing.assert_array_equal(result, expected[RATE // 4 :][:RATE])


@pytest.mark.parametrize("kind", ["wav s16", "flac", "mp3", "ogg opus"])
def test_pieces_are_exactly_the_samples_of_the_recording(tmp_path, opened, kind):
    path = AUDIO_FORMATS[kind].write(tmp_path / "a", 5.0)
    whole = (load_audio(path) * 32768).astype(np.int16)
    places = [(0, 1), (1, 0.5), (1.25, 2), (1.0001, 0.03), (3.3, 1.2), (3.0, None), (4.5, 100)]
    results = read_all(*(piece(path, *place) for place in places))
    for (offset_s, duration_s), result in zip(places, results, strict=True):
        start = round(offset_s * RATE)
        end = None if duration_s is None else start + round(duration_s * RATE)
        np.testing.assert_array_equal(result, whole[start:end])
    assert opened == [str(path)]


def test_many_pieces_of_a_long_recording_are_one_read_of_it_even_if_they_overlap(tmp_path, opened, monkeypatch):
    monkeypatch.setattr(read_ahead, "_KEPT_SAMPLES", 2 * RATE)
    samples = noise(20)
    path = write_wav(tmp_path / "long.wav", samples)
    places = [(offset_s, 1.5) for offset_s in np.arange(0, 17, 0.7)]
    for (offset_s, _), result in zip(places, read_all(*(piece(path, *place) for place in places)), strict=True):
        np.testing.assert_array_equal(result, samples[round(offset_s * RATE) :][: 3 * RATE // 2])
    assert len(opened) == 1
    early, late, again = read_all(piece(path, 1, 1), piece(path, 15, 1), piece(path, 1, 1))
    np.testing.assert_array_equal(early, again)
    np.testing.assert_array_equal(late, samples[15 * RATE : 16 * RATE])
    assert len(opened) == 3, "what was read long before is not kept"


def test_pieces_in_any_order_are_sorted_so_that_each_recording_is_read_once(tmp_path, opened, monkeypatch):
    paths = [write_wav(tmp_path / name, noise(5)) for name in ("a.wav", "b.wav")]
    whole = recording_at(paths[0])
    shuffled = [piece(path, offset_s, 1) for offset_s in (3, 0, 4, 1) for path in paths]
    in_order = sorted([*shuffled, whole], key=lambda each: each.reading_order)
    assert in_order[0] is whole
    monkeypatch.setattr(read_ahead, "_KEPT_SAMPLES", 0)
    read_all(*in_order[1:])
    assert opened == [str(path) for path in paths]


def test_pieces_that_are_not_there_are_errors_that_name_the_recording_and_read_it_once(tmp_path, opened):
    path, cut_short = (write_wav(tmp_path / name, noise(4)) for name in ("a.wav", "b.wav"))
    cut_short.write_bytes(cut_short.read_bytes()[: 4 * RATE])
    before, *errors = read_all(piece(path, 0, 1), piece(path, 1, 0), piece(path, 4, 1), piece(path, 1e300, 1))
    assert len(before) == RATE
    reasons = ["its piece at 1 s is empty"]
    reasons += [f"ends before its piece at {offset} s begins" for offset in ("4", "1e+300")]
    assert [*map(str, errors)] == [f"{path}: {reason}" for reason in reasons]
    before, *errors = read_all(*(piece(cut_short, offset_s, 1) for offset_s in (0.5, 1.75, 2.5, 3)))
    assert len(before) == RATE
    assert all(str(error).startswith(f"{cut_short}: ") and "cut short" in str(error) for error in errors)
    assert opened == [str(path), str(cut_short)]


@pytest.mark.parametrize("offset_s", [None, 0.0])
def test_what_is_no_recording_is_an_error_that_names_it(tmp_path, offset_s):
    (tmp_path / "a.wav").write_bytes(b"no recording")
    (tmp_path / "folder").mkdir()
    place = {} if offset_s is None else {"offset_s": offset_s}
    bad, missing, folder, short = read_all(
        recording_at(tmp_path / "a.wav", **place),
        recording_at(tmp_path / "b.wav", **place),
        recording_at(tmp_path / "folder", **place),
        recording_at(tmp_path / "a.wav", bytes=ByteRange(0, 100), **place),
    )
    assert str(bad).startswith(f"{tmp_path / 'a.wav'}: ")
    assert isinstance(missing, AudioNotFound)
    assert str(missing) == f"{tmp_path / 'b.wav'}: no such file"
    assert str(folder).startswith(f"{tmp_path / 'folder'}: ")
    assert "the archive ends 88 bytes before the recording does" in str(short)


@pytest.mark.parametrize("name", ["a\nb.wav", "caf\udce9.wav"])
def test_names_that_cannot_be_shown_are_escaped_in_errors(tmp_path, name):
    (error,) = read_all(recording_at(tmp_path / name))
    assert isinstance(error, AudioError)
    assert str(error).isprintable()


class Flaky:
    """Opens files of a store; what is read of them fails a few times."""

    def __init__(self, monkeypatch, failures, error):
        self.tries = Counter()
        self.tried = threading.Event()
        self._failures, self._error = failures, error
        monkeypatch.setattr(read_ahead, "open_binary", self._open)

    @contextmanager
    def _open(self, location):
        self.tries[location] += 1
        self.tried.set()
        with open_binary(location) as file:
            fails = self.tries[location] <= self._failures
            yield Mock(read=Mock(side_effect=self._error)) if fails else file


@pytest.fixture
def store(memory):
    memory.pipe_file("/talks/a.wav", wav_bytes(noise(1)))
    return "memory://talks/a.wav"


@pytest.mark.parametrize("offset_s", [None, 0.0])
def test_a_file_that_fails_is_fetched_again_a_few_times_unless_that_helps_nothing(store, monkeypatch, offset_s):
    reset, denied = RuntimeError("reset\nby peer"), PermissionError(13, "Permission denied")
    flaky = Flaky(monkeypatch, FETCH_TRIES - 1, reset)
    (result,) = read_all(recording_at(store, offset_s=offset_s))
    np.testing.assert_array_equal(result, noise(1))
    assert flaky.tries == {store: FETCH_TRIES}
    for error, reason, tries in (
        *((reset, "RuntimeError: reset by peer", FETCH_TRIES), (denied, "Permission denied", 1)),
    ):
        flaky = Flaky(monkeypatch, 100, error)
        (result,) = read_all(recording_at(store, offset_s=offset_s))
        assert str(result) == f"{store}: cannot be read: {reason}"
        assert flaky.tries == {store: tries}


def test_no_more_than_a_few_are_fetched_ahead_and_all_copies_are_closed(store, monkeypatch):
    copies, originals = [], read_ahead._temporary

    def temporary():
        copies.append(originals())
        return copies[-1]

    monkeypatch.setattr(read_ahead, "_temporary", temporary)
    with closing(ReadAhead([recording_at(store)] * 20)) as ahead:
        assert not copies, "nothing is fetched before it is asked for"
        assert ahead.files[0].tell() == 0
        assert not copies
        for index in range(10):
            ahead.files[index].read(1)
            assert len(copies) <= index + 1 + AHEAD
            ahead.files[index].close()
            assert copies[index].closed
    assert len(copies) <= 10 + AHEAD
    assert eventually(lambda: all(copy.closed for copy in copies))


def test_a_fetch_that_waits_for_its_next_try_ends_with_the_block(store, tmp_path, monkeypatch):
    monkeypatch.setattr(read_ahead, "FIRST_WAIT_S", 3600.0)
    flaky = Flaky(monkeypatch, 100, RuntimeError("reset"))
    first = write_wav(tmp_path / "a.wav", noise(1))
    with closing(ReadAhead([recording_at(first), recording_at(store)])) as ahead:
        ahead.files[0].read(1)
        assert flaky.tried.wait(60)
    assert flaky.tries[store] <= 2


def test_the_block_does_not_wait_for_a_recording_that_comes_slowly(store, tmp_path, monkeypatch):
    asked, goes_on, fetched = threading.Event(), threading.Event(), threading.Event()

    @contextmanager
    def slow(location):
        asked.set()
        goes_on.wait(60)
        fetched.set()
        with open_binary(location) as file:
            yield file

    monkeypatch.setattr(read_ahead, "open_binary", slow)
    first = write_wav(tmp_path / "a.wav", noise(1))
    with closing(ReadAhead([recording_at(first), recording_at(store)])) as ahead:
        ahead.files[0].read(1)
        assert asked.wait(60)
    assert not fetched.is_set()
    goes_on.set()


class _Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, files, asked, *arguments):
        self._files, self._asked = files, asked
        super().__init__(*arguments)

    def do_GET(self):
        name = self.path.lstrip("/")
        self._asked[name] += self.command == "GET"
        is_first = name == "busy.wav" and self._asked[name] < 2
        status = 503 if is_first else 200 if name in self._files else int(name.partition(".")[0])
        self.send_response(status)
        content = self._files[name] if status == 200 else b""
        self.send_header("Content-Length", str(len(content) + 1000 * (name == "short.wav")))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *arguments):
        pass


def test_recordings_of_a_web_server_are_read_and_its_failures_are_errors_of_theirs():
    pytest.importorskip("aiohttp")
    samples = noise(1)
    files = dict.fromkeys(("a%20b.wav", "short.wav", "busy.wav"), wav_bytes(samples))
    asked = Counter()
    with web_server(_Server, files, asked) as web:
        names = ("busy", "404", "403", "500", "short")
        good, part, busy, missing, forbidden, broken, short = read_all(
            recording_at(f"{web}/a b.wav"),
            piece(f"{web}/a b.wav", 0.25, 0.5),
            *(recording_at(f"{web}/{name}.wav") for name in names),
        )
    np.testing.assert_array_equal(good, samples)
    np.testing.assert_array_equal(part, samples[RATE // 4 : 3 * RATE // 4])
    np.testing.assert_array_equal(busy, samples)
    assert str(missing) == f"{web}/404.wav: no such file"
    assert str(forbidden).startswith(f"{web}/403.wav: cannot be read: ClientResponseError: 403")
    assert str(broken).startswith(f"{web}/500.wav: cannot be read: ClientResponseError: 500")
    assert str(short).startswith(f"{web}/short.wav: cannot be read: ")
    assert (asked["404.wav"], asked["403.wav"], asked["500.wav"]) == (1, 1, FETCH_TRIES)
