"""The inputs of a batch: manifests, folders, patterns, audiofolders, archives and URLs, and what is wrong with each."""

import os
import sys
import tarfile
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from batch_files import tar_bytes, web_server, write, write_files, write_lines, write_tar

from harken.batch.inputs import read_recordings
from harken.errors import PlanError

pytest.importorskip("fsspec")


def names(source):
    return [recording.name for recording in read_recordings(os.fspath(source))]


def refusal(source):
    with pytest.raises(PlanError) as caught:
        read_recordings(os.fspath(source))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_manifest_of_nemo_gives_pieces_languages_and_ids(tmp_path):
    elsewhere = tmp_path / "elsewhere" / "c.wav"
    manifest = write_lines(
        tmp_path / "m.json",
        {"audio_filepath": "a.wav", "offset": 1.5, "duration": 2, "text": "x", "speaker": {"name": "Zoë"}},
        {"audio_filepath": "./b/../b.wav", "id": 0, "lang": "de", "language": "de"},
        {"audio_filepath": str(elsewhere), "id": "c", "duration": None, "offset": None},
    )
    first, second, third = read_recordings(str(manifest))
    assert (first.offset_s, first.duration_s, first.keys["speaker"]) == (1.5, 2.0, {"name": "Zoë"})
    assert (second.id, second.language, second.is_piece) == ("0", "de", False)
    assert Path(first.location) == tmp_path / "a.wav"
    assert (Path(third.location), third.duration_s, third.is_piece) == (elsewhere, None, False)


def test_a_manifest_of_harken_is_read_by_its_file_and_by_its_folder(tmp_path):
    write_lines(tmp_path / "manifest.jsonl", {"audio": "a.flac", "text": "x", "seconds": 2.5})
    for source in (tmp_path, tmp_path / "manifest.jsonl"):
        (recording,) = read_recordings(str(source))
        assert (recording.name, recording.duration_s) == ("a.flac", 2.5)


def test_a_csv_manifest_has_texts_and_seconds(tmp_path):
    text = '\ufefffile_name,duration,note\r\na.wav,1.5,"two\r\nlines"\r\nb.wav,,\r\n'
    first, second = read_recordings(str(write(tmp_path / "talks.csv", text)))
    assert (first.duration_s, first.keys["note"]) == (1.5, "two\r\nlines")
    assert (second.duration_s, second.keys) == (None, {"file_name": "b.wav"})


BAD_LINES = {
    '{"audio_filepath": "a.wav", "x": NaN}': "finite",
    '{"audio_filepath": "a.wav", "x": {"y": [-Infinity]}}': "finite",
    '{"audio_filepath": "a.wav", "x": 1e999}': "beyond the range",
    '{"audio_filepath": "a.wav", "duration": 1' + "0" * 400 + "}": "duration=1000",
    '{"audio_filepath": "a.wav", "x": ' + "9" * 5000 + "}": "limit",
    '{"audio_filepath": "a.wav", "duration": "2.5"}': "duration='2.5'",
    '{"audio_filepath": "a.wav", "duration": true}': "duration=True",
    '{"audio_filepath": "a.wav", "offset": -1}': "offset=-1",
    '{"audio_filepath": "a.wav", "id": true}': "id=True",
    '{"audio_filepath": "a.wav", "id": 1.5}': "id=1.5",
    '{"audio_filepath": "a.wav", "language": 5}': "language=5",
    '{"audio_filepath": "a.wav", "language": "zh-Latn"}': "zh-Hans or zh-Hant",
    '{"audio_filepath": "a\\u0000.wav"}': "null characters",
    '{"audio_filepath": ["a.wav"]}': "names no recording",
    '{"text": "a"}': "names no recording",
    '{"audio_filepath": "a.wav"': "is not JSON",
}


def test_a_line_that_is_not_allowed_is_refused_by_file_and_number(tmp_path):
    for line, reason in BAD_LINES.items():
        manifest = write_lines(tmp_path / "m.jsonl", {"audio_filepath": "ok.wav"}, "", line)
        text = refusal(manifest)
        assert text.startswith(f"{manifest}:3: ")
        assert reason in text
        assert len(text) < 500


def test_two_lines_of_one_id_are_refused_by_both_their_numbers_and_equal_ones_are_done_once(tmp_path):
    line = {"audio_filepath": "a.wav", "id": 7}
    manifest = write_lines(tmp_path / "m.jsonl", line, line)
    notes = []
    assert len(read_recordings(str(manifest), notes.append)) == 1
    assert notes == [f"{manifest}: 1 repeated lines are done once"]
    write_lines(manifest, line, {"audio_filepath": "b.wav", "id": "7"})
    text = refusal(manifest)
    assert f"{manifest}:2: id '7'" in text
    assert f"{manifest}:1," in text


CUT_SHORT = tar_bytes({"a.wav": b"x" * 5000, "b.wav": b"x" * 5000})[:7000]
UNREADABLE = (
    ("m.jsonl", b"", "holds no recordings"),
    ("m.jsonl", b'{"audio_filepath": "\xff.wav"}', "is not UTF-8 text, at byte 20"),
    ("m.csv", b"file_name\n" + b"a" * 200_000, "is not CSV"),
    *(("a.tar", content, "is not a whole tar archive") for content in (b"", b"x" * 2000, CUT_SHORT)),
    *(
        ("a.tar", tar_bytes({"a.wav": b"", "a.json": keys}), "a.json: ")
        for keys in (b"{", b"[]", b'{"x": NaN}', b"\xff")
    ),
    ("a.tar.gz", b"x", "is compressed"),
    ("m.jsonl.zst", b"x", "is compressed"),
    ("notes.docx", b"x", "is neither"),
    ("empty", None, "holds no recordings"),
    ("missing.jsonl", None, "no such file"),
    ("*.jsonl", None, "no file is of this pattern"),
)


def test_an_input_that_cannot_be_read_is_refused_in_one_line_that_names_it(tmp_path):
    for index, (name, content, reason) in enumerate(UNREADABLE):
        folder = tmp_path / str(index)
        (folder / "empty").mkdir(parents=True)
        if content is not None:
            (folder / name).write_bytes(content)
        text = refusal(folder / name)
        assert text.startswith(f"{folder / name}:")
        assert reason in text


def test_a_folder_gives_recordings_and_archives_in_order_but_nothing_hidden(tmp_path):
    write_files(tmp_path, "b.WAV", "a/ü ü.mp3", "._b.wav", "a/._b.wav", ".trash/c.wav", "notes.txt")
    write_tar(tmp_path / "z.tar", {"x.wav": b""})
    assert names(tmp_path) == ["b.WAV", "z.tar/x.wav", "a/ü ü.mp3"]


def test_an_audiofolder_may_have_metadata_in_each_of_its_splits(tmp_path):
    write_lines(tmp_path / "train" / "metadata.jsonl", {"file_name": "a.wav", "text": "x"})
    write(tmp_path / "test" / "metadata.csv", "file_name,text\na.wav,x\n")
    write_files(tmp_path, "train/a.wav", "train/not_listed.wav", "test/a.wav", "more/b.wav")
    recordings = read_recordings(str(tmp_path))
    assert [each.name for each in recordings] == ["test/a.wav", "train/a.wav", "more/b.wav"]
    assert Path(recordings[1].location) == tmp_path / "train" / "a.wav"
    assert len({each.id for each in recordings}) == 3


def test_an_archive_gives_its_recordings_with_the_keys_beside_them(tmp_path):
    path = write_tar(
        tmp_path / "s.tar",
        {
            "./a/1.flac": b"one",
            "a/1.json": b'\xef\xbb\xbf{"id": 5, "offset": 3.5, "duration": 2}',
            "a/2.v1.wav": b"three",
            "a/2.txt": "  Grüße\n".encode(),
            "._a.wav": b"",
            "readme.md": b"",
        },
    )
    first, second = read_recordings(str(path))
    assert (first.name, first.id, first.is_piece) == ("s.tar/a/1.flac", "5", False)
    assert first.keys["offset"] == 3.5
    assert second.keys == {"audio_filepath": "s.tar/a/2.v1.wav", "text": "Grüße"}
    assert path.read_bytes()[second.bytes.start :][: second.bytes.size] == b"three"


def test_a_recording_that_is_a_link_in_an_archive_is_left_out_with_a_line_that_says_so(tmp_path):
    path = tmp_path / "s.tar"
    with tarfile.open(path, "w") as archive:
        for name, kind in (("a.wav", tarfile.REGTYPE), ("b.wav", tarfile.LNKTYPE), ("c.wav", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "a.wav"
            archive.addfile(member)
    notes = []
    assert [each.name for each in read_recordings(str(path), notes.append)] == ["s.tar/a.wav"]
    (note,) = notes
    assert note.startswith(f"{path}: links to recordings are left out: 2, such as b.wav; ")


def test_recordings_of_the_same_name_in_several_archives_or_manifests_are_not_one(tmp_path):
    for folder in ("x", "y"):
        write_tar(tmp_path / folder / "000.tar", {"a.wav": b""})
        write_lines(tmp_path / folder / "m.jsonl", {"audio_filepath": "a.wav"})
    assert names(tmp_path / "{x,y}" / "000.tar") == ["x/000.tar/a.wav", "y/000.tar/a.wav"]
    assert names(tmp_path) == ["x/000.tar/a.wav", "y/000.tar/a.wav"]
    locations = [each.location for each in read_recordings(str(tmp_path / "*" / "m.jsonl"))]
    assert [*map(Path, locations)] == [tmp_path / "x" / "a.wav", tmp_path / "y" / "a.wav"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.wav", ["a.wav"]),
        ("**/*.wav", ["a.wav", "d/b.wav", "d/e/c.wav"]),
        ("**", ["a.wav", "d/b.wav", "d/e/c.wav", "d/talk[1]{a,b}.mp3"]),
        ("d/*.dat", ["x.dat"]),
        ("d/talk[1]{a,b}.mp3", ["talk[1]{a,b}.mp3"]),  # a file that is called so
        ("{a,d/{b,e/c}}.wav", ["a.wav", "d/b.wav", "d/e/c.wav"]),
        ("part{08..10}.mp3", ["part08.mp3", "part09.mp3", "part10.mp3"]),
    ],
)
def test_a_pattern_gives_its_files_named_from_its_first_folder(tmp_path, pattern, expected):
    write_files(tmp_path, "a.wav", "d/b.wav", "d/e/c.wav", "d/x.dat", "d/notes.txt", "d/talk[1]{a,b}.mp3")
    assert names(tmp_path / pattern) == expected


def test_an_output_folder_inside_of_the_input_is_no_input(tmp_path):
    write_files(tmp_path, "a.wav")
    for out in (tmp_path, tmp_path / "out"):
        write_lines(out / "_plan.jsonl", {"recipe": {}})
        write_lines(out / "shards" / "0123.jsonl", {"audio_filepath": "a.wav", "text": "done"})
        write_files(out, "reports/0123.json", "transcripts/a.wav.srt", "_summary.json", "_lock")
    assert names(tmp_path) == ["a.wav"]
    assert names(tmp_path / "**") == ["a.wav"]
    assert names(tmp_path / "**" / "*.wav") == ["a.wav"]
    write_lines(tmp_path / "lists" / "m.jsonl", {"audio_filepath": "b.wav"})
    assert names(tmp_path / "**" / "[!_]*.jsonl") == ["lists/b.wav"]


@pytest.mark.skipif(sys.platform != "linux", reason="names that are not UTF-8 are those of Linux")
def test_names_that_are_not_utf_8_are_read(tmp_path):
    (tmp_path / os.fsdecode(b"caf\xe9.wav")).write_bytes(b"")
    (recording,) = read_recordings(str(tmp_path))
    assert Path(recording.location).exists()
    assert recording.side_name == "caf_.wav"
    assert recording.shown_name.isprintable()


def test_side_files_have_names_of_their_own_inside_the_folder(tmp_path):
    lines = [
        *("a.wav", "../../a.wav", "/a.wav", "A.WAV", {"audio_filepath": "a.wav", "speaker": 1}),
        "s3://bucket/a:b?.wav",
        *({"audio_filepath": "b.wav", "offset": 3600 + ms / 1000, "duration": 2} for ms in (1, 2)),
        {"audio_filepath": "b.wav", "offset": 3600.002},
        *("x" * 300 + ".wav", ".."),
    ]
    lines = [{"audio_filepath": line} if isinstance(line, str) else line for line in lines]
    manifest = write_lines(tmp_path / "m.jsonl", *lines)
    side_names = [each.side_name for each in read_recordings(str(manifest))]
    assert len({name.casefold() for name in side_names}) == len(side_names)
    pieces = ["b.wav@3600.001-3602.001", "b.wav@3600.002-3602.002", "b.wav@3600.002-"]
    assert side_names[5:9] == ["bucket/a_b_.wav", *pieces]
    for name in side_names:
        assert not name.startswith("/")
        assert ".." not in name.split("/")
        assert max(map(len, name.split("/"))) < 200


def test_urls_are_read_as_paths_are(memory, tmp_path):
    write_files(tmp_path, "a b.wav")
    (recording,) = read_recordings(tmp_path.as_uri())
    assert Path(recording.location) == tmp_path / "a b.wav"
    memory.pipe(
        {
            "/in/m.jsonl": b'{"audio_filepath": "./a.wav"}\n{"audio_filepath": "x/../b.wav"}\n',
            **dict.fromkeys(("/in/talks/a.wav", "/in/talks/d/b.wav", "/in/talks/notes.txt"), b""),
        }
    )
    locations = [each.location for each in read_recordings("memory://in/m.jsonl")]
    assert locations == ["memory://in/a.wav", "memory://in/b.wav"]
    for source in ("memory://in/talks", "memory://in/talks/", "memory://in/talks/**/*.wav"):
        assert names(source) == ["a.wav", "d/b.wav"]
    assert "no such file" in refusal("memory://in/missing.jsonl")
    assert "holds no recordings" in refusal("memory://in/missing")


def test_manifests_of_a_web_server_are_read_and_its_folders_are_refused(tmp_path, monkeypatch):
    pytest.importorskip("aiohttp")
    write_lines(tmp_path / "m.jsonl", {"audio_filepath": "a b.wav"})
    write_files(tmp_path, "talks/a.wav")
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *arguments: None)
    with web_server(SimpleHTTPRequestHandler, directory=str(tmp_path)) as web:
        (recording,) = read_recordings(f"{web}/m.jsonl?signature=a/b")
        assert recording.location == f"{web}/a b.wav"
        assert names(f"{web}/talks/a.wav?signature=x") == ["a.wav"]
        assert names(f"{web}/talks/{{a,b}}.wav") == ["a.wav", "b.wav"]
        for source in (f"{web}/talks/", f"{web}/talks", f"{web}/talks/*.wav"):
            assert refusal(source).startswith(f"{source}: a web server does not list")
        assert refusal(f"{web}/missing.jsonl").startswith(f"{web}/missing.jsonl: no such file")
    assert refusal("http://127.0.0.1:9/m.jsonl").startswith("http://127.0.0.1:9/m.jsonl: ")
