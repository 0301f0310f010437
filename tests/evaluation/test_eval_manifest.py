"""Tests of manifests and files of hypotheses: their content, and the errors for malformed lines."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from audio_files import AUDIO_FORMATS
from harken.errors import ManifestError
from harken.evaluation.evaluate import open_hypotheses
from harken.evaluation.scoring import EvalHypothesis
from harken.formats.cue_check import read_cues
from harken.manifests import read_manifests, subsample_evenly

GOOD = {"audio": "a.wav", "text": "Hello."}
BY = {"model": "tiny.en", "precision": "int8"}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "german"
    folder.mkdir()
    for name in ("a.wav", "b.wav", "c.wav"):
        (folder / name).touch()
    return folder


def write(folder, *lines, name="manifest.jsonl"):
    path = folder / name
    texts = (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def test_manifest_is_read_by_path_and_by_folder(folder):
    known = {"language": "German", "seconds": 2, "speaker": 7, "license": "CC0"}
    path = write(folder, GOOD | known, {"audio": "b.wav", "text": "", "language": "none"})
    for given in (folder, path):
        first, second = read_manifests([given])
        assert (first.name, first.path, first.text) == ("german/a.wav", folder / "a.wav", "Hello.")
        assert (first.language, first.seconds, first.speaker) == ("de", 2, "7")
        assert (second.text, second.language, second.seconds, second.speaker) == ("", None, None, None)


def test_recording_given_by_an_absolute_path_is_named_by_its_place(folder):
    other = folder.parent / "b.wav"
    other.touch()
    write(folder, GOOD | {"audio": str(folder / "a.wav")}, GOOD | {"audio": str(other)})
    first, second = read_manifests([folder])
    assert (first.name, first.path) == ("german/a.wav", folder / "a.wav")
    assert (second.name, second.path) == (f"german/{other.relative_to(other.anchor).as_posix()}", other)


def test_byte_order_mark_blank_lines_and_line_separators_are_read(folder):
    line = json.dumps(GOOD | {"text": "one\u2028two\u0085three"}, ensure_ascii=False)
    (folder / "manifest.jsonl").write_bytes(f"\ufeff{line}\r\n   \r\n\r\n".encode())
    (entry,) = read_manifests([folder])
    assert entry.text == "one\u2028two\u0085three"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "is not JSON: Expecting property name"),
        ("[]", "is not a JSON object in braces"),
        ("[" * 100_000, "is nested too deeply"),
        ({"text": "a"}, "audio is missing: allowed is the path of a recording"),
        ({"audio": "a.wav"}, "text is missing: allowed is the reference text"),
        (GOOD | {"audio": "d.wav"}, "audio='d.wav': there is no file"),
        (GOOD | {"audio": "y" * 5000}, "there is no file"),
        (GOOD | {"text": 7}, "text=7: allowed is the reference text"),
        (GOOD | {"seconds": True}, "seconds=True: allowed is a length"),
        (GOOD | {"seconds": -1}, "seconds=-1: allowed is a length in seconds, from 0 to 1e"),
        ('{"audio": "a.wav", "text": "", "seconds": NaN}', "seconds=nan: allowed is"),
        (GOOD | {"language": "klingon"}, "language='klingon': allowed is one of en, "),
        (GOOD | {"language": "zh-Latn"}, "language='zh-Latn': allowed is zh-Hans or zh-Hant"),
        (GOOD | {"speaker": []}, r"speaker=\[\]: allowed is a name or number"),
        (GOOD | {"rttm": "none.rttm"}, "rttm='none.rttm': there is no file"),
        (GOOD | {"rttm": 3}, "rttm=3: allowed is the path of a file of turns"),
        (GOOD | {"said": "hello"}, "said='hello': allowed is a list of turns in order"),
        (GOOD | {"said": ["hello"]}, "said: allowed is a list of turns in order"),
        (GOOD | {"said": [{"speaker": "ann"}]}, "said: text is missing"),
    ],
)
def test_malformed_manifest_line_is_named(folder, line, complaint):
    write(folder, {"audio": "b.wav", "text": "b"}, line)
    with pytest.raises(ManifestError, match=f"manifest.jsonl:2: .*{complaint}") as caught:
        read_manifests([folder])
    assert "\n" not in str(caught.value)


def test_missing_empty_and_binary_manifests_and_recordings_are_refused(folder):
    for content, complaint in (
        (None, "no such file; allowed is a manifest, or a folder"),
        (b"", "holds no recordings"),
        (b"{\xff", "is not UTF-8 text, at byte 1"),
    ):
        if content is not None:
            (folder / "manifest.jsonl").write_bytes(content)
        with pytest.raises(ManifestError, match=rf"manifest\.jsonl: {complaint}"):
            read_manifests([folder])
    with pytest.raises(ManifestError, match=r"talk\.mp3: is a recording; allowed is a manifest, or a folder"):
        read_manifests([folder / "talk.mp3"])


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no endless device")
def test_endless_device_is_refused():
    for read in (lambda path: read_manifests([path]), read_cues, lambda path: open_hypotheses(path, BY)):
        with pytest.raises(ManifestError, match="/dev/zero: is a device"), ExitStack() as stack:
            stack.enter_context(read("/dev/zero"))


def test_limit_holds_for_each_manifest(folder):
    write(folder, *({"audio": f"{name}.wav", "text": ""} for name in "abc"))
    write(folder, GOOD, name="other.jsonl")
    assert [entry.path.name for entry in read_manifests([folder], limit=2)] == ["a.wav", "b.wav"]
    with pytest.raises(ManifestError, match=r"other.jsonl: there is another german/a.wav"):
        read_manifests([folder, folder / "other.jsonl"])


def test_subsample_is_evenly_spaced():
    assert subsample_evenly(range(10), 4) == [0, 2, 5, 7]
    assert subsample_evenly(range(3), 7) == subsample_evenly(range(3), None) == range(3)


def test_manifest_of_csv_is_read_as_one_of_json(folder):
    (folder / "talks.csv").write_text("audio,text,seconds,language\na.wav,Hello.,2.5,German\n")
    (entry,) = read_manifests([folder / "talks.csv"])
    assert (entry.name, entry.text, entry.seconds, entry.language) == ("german/a.wav", "Hello.", 2.5, "de")
    (folder / "talks.csv").write_text("audio,text,seconds\na.wav,,\n")
    (entry,) = read_manifests([folder / "talks.csv"])
    assert (entry.text, entry.seconds) == ("", None)
    (folder / "talks.csv").write_text("audio,text\na.wav,Hello, you\n")
    with pytest.raises(
        ManifestError, match=r"talks.csv:2: has 3 fields, and the heading 2; a text with commas"
    ):
        read_manifests([folder / "talks.csv"])
    (folder / "talks.csv").write_text("audio,text,seconds\na.wav,Hello.,long\n")
    with pytest.raises(ManifestError, match=r"talks.csv:2: seconds='long': allowed is a length in seconds"):
        read_manifests([folder / "talks.csv"])


def test_of_lines_of_one_recording_the_first_or_that_of_its_length_is_kept_or_they_are_refused(folder):
    notes = []
    manifest = write(folder, GOOD, GOOD | {"source": "elsewhere"})
    assert len(read_manifests([folder], note=notes.append)) == 1
    AUDIO_FORMATS["wav s16"].write(folder / "a", 1.5)
    write(folder, GOOD | {"seconds": 1.52}, GOOD | {"text": "Hallo.", "seconds": 1.501})
    (entry,) = read_manifests([folder], note=notes.append)
    assert entry.text == "Hallo."
    assert notes == [
        f"{manifest}:2: left out: {manifest}:1 is the same",
        f"{manifest}:1: left out: a.wav is 1.500 s long, as in {manifest}:2",
    ]
    write(folder, GOOD | {"seconds": 1.5}, GOOD | {"text": "Hallo."})
    with pytest.raises(ManifestError, match=r":2: a.wav is named in .*:1 too, with other values"):
        read_manifests([folder])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "hypotheses.jsonl"


def test_lines_without_provenance_or_final_newline_or_of_another_batch_size_are_read(path):
    path.write_text('{"audio": "a", "text": "x"}\n{"audio": "b", "text": "y"}')
    with open_hypotheses(path, BY) as store:
        assert store.by_name == {"a": EvalHypothesis(text="x"), "b": EvalHypothesis(text="y")}
        store.add("c", EvalHypothesis(text="z"))
    with open_hypotheses(path, {**BY, "batch_size": 8}) as store:
        assert [*store.by_name] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{}\n", "1: text is missing"),
        (b'{"text": ""}\n', "1: audio is missing: allowed is the name of a recording"),
        (b'{"audio": "a", "text": "", "wall_s": "1"}\n', "1: wall_s='1': allowed is a time"),
        (
            b'{"audio": "a", "text": "", "by": {"model": "x"}}',
            '1: was made with model "x", not "tiny.en"; name',
        ),
        (
            b'{"audio": "a", "text": "", "by": {"model": "tiny.en"}}',
            '1: was made with precision null, not "int8"',
        ),
        (b'{"audio": "a.wav", "text": "Hello."}\nDear diary,', "2: is not JSON"),
        (b"Dear diary,\nwithout a line break at the end", "1: is not JSON"),
        (b"hello", "1: is not JSON"),
        (b"\xff\xfe", "1: is not UTF-8 text"),
    ],
)
def test_file_that_holds_something_else_is_named_and_left_as_it_is(path, content, complaint):
    path.write_bytes(content)
    with pytest.raises(ManifestError, match=f"hypotheses.jsonl:{complaint}"), open_hypotheses(path, BY):
        pass
    assert path.read_bytes() == content


def test_line_cut_anywhere_is_written_again(path):
    hypothesis = EvalHypothesis(text="我很好", language="zh", seconds=2.5, wall_s=0.25, unwritten_s=1.5)
    with open_hypotheses(path, BY) as store:
        store.add("german/a.wav", hypothesis)
        assert path.read_text("utf-8").endswith("}\n"), "each is written as soon as it is known"
    whole = path.read_bytes()
    for cut in range(1, len(whole) - 1):
        path.write_bytes(whole + whole[:cut])
        with open_hypotheses(path, BY) as store:
            assert store.by_name == {"german/a.wav": hypothesis}
            store.add("german/b.wav", EvalHypothesis(text="b"))
        with open_hypotheses(path, BY) as store:
            assert [*store.by_name] == ["german/a.wav", "german/b.wav"]
