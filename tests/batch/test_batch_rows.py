"""The rows of a batch: every key of the manifest is carried, each row is JSON, and Parquet has columns that last."""

import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.batch.inputs import checked_recording
from harken.batch.rows import RESULT_KEYS, error_row, parquet_bytes, row_line, shift_times, transcript_row
from harken.results import Segment, Transcript, UnwrittenSpeech, Word

WORD = Word(text=" one", start_s=0.5, end_s=1.0, probability=0.9)
SEGMENT = Segment(
    **{"index": 0, "seek_s": 0.0, "start_s": 0.5, "end_s": 1.0, "text": " one", "tokens": (1,)},
    **{"temperature": 0.0, "avg_logprob": float("nan"), "compression_ratio": 1.0, "no_speech_prob": 0.0},
    words=(WORD,),
)
TRANSCRIPT = Transcript(
    language="en",
    duration_s=2.0,
    model="tiny.en",
    segments=(SEGMENT,),
    unwritten=(UnwrittenSpeech(start_s=1.0, end_s=1.5, reason="no words"),),
)

texts = st.text(st.characters(exclude_categories=[]), max_size=8)
names = st.one_of(
    texts, st.sampled_from(sorted(RESULT_KEYS)), st.sampled_from(sorted(f"input_{key}" for key in RESULT_KEYS))
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)
NOT_FREE = {"id", "language", "offset", "duration", "seconds"}


def recording_of(keys):
    return checked_recording({"audio_filepath": "a.wav", **keys}, "/talks/a.wav", "a.wav", "m.jsonl:1")


def is_valid(text):
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


@given(st.dictionaries(names.filter(lambda name: name not in NOT_FREE), values, max_size=4))
def test_every_key_of_a_line_is_in_its_row_which_is_json_for_everybody(keys):
    recording = recording_of(keys)
    done = transcript_row(recording, TRANSCRIPT, "tiny.en", {"srt": "transcripts/a.srt"})
    for row in (done, error_row(recording, "AudioError", "a\udce9b")):
        line = row_line(row)
        assert line.endswith("\n")
        assert "\n" not in line[:-1]
        read = json.loads(line.encode(), parse_constant=pytest.fail)
        own = {name for name in row if name in RESULT_KEYS}
        assert len(read) == len(own) + len({"audio_filepath", *recording.keys})
        for key, value in recording.keys.items():
            if is_valid(json.dumps([key, value], ensure_ascii=False)):
                assert next(read[name] for name in (f"input_{key}", key) if name in read) == value


def test_keys_that_rows_have_themselves_are_carried_under_names_of_their_own_and_the_id_may_be_a_digest():
    row = error_row(recording_of({"text": 1, "input_text": 2, "id": "x", "input_id": 3, "note": 4}), "E", "m")
    carried = {name: value for name, value in row.items() if name not in ("audio_filepath", "error")}
    assert carried == {"id": "x", "input_text": 1, "input_input_text": 2, "input_id": 3, "note": 4}
    for given_id in (0, 7, "x", "", None):
        recording = recording_of({"id": given_id})
        expected = recording.digest if given_id in ("", None) else given_id
        assert error_row(recording, "E", "m")["id"] == expected


def test_names_that_are_not_utf_8_are_written_with_escapes():
    recording = recording_of({"audio_filepath": "caf\udce9.wav", "\ud800": ["\udfff", {"x": "é"}]})
    row = json.loads(row_line(error_row(recording, "AudioNotFound", "caf\udce9.wav: no such file")).encode())
    assert row["audio_filepath"] == "caf\\udce9.wav"
    assert row["\\ud800"] == ["\\udfff", {"x": "é"}]
    assert row["error"]["message"] == "caf\\udce9.wav: no such file"


def test_times_of_a_piece_count_from_the_start_of_the_recording_in_whole_milliseconds():
    shifted = shift_times(TRANSCRIPT, 0.519)
    (segment,) = shifted.segments
    assert (segment.start_s, segment.end_s, segment.words[0].start_s) == (1.019, 1.519, 1.019)
    assert (shifted.unwritten[0].start_s, shifted.duration_s) == (1.519, 2.0)
    assert shift_times(TRANSCRIPT, 0.0) is TRANSCRIPT


def test_shards_in_parquet_are_one_dataset_whatever_their_keys_are(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.dataset
    import pyarrow.parquet

    keys = {"note": 1.5, "offset": 2, "text": "\udce9"}
    silent = replace(TRANSCRIPT, segments=(), unwritten=())
    shards = {
        "0": [error_row(recording_of({"note": None, "id": 5}), "AudioError", "a\udce9")],
        "1": [transcript_row(recording_of(keys), TRANSCRIPT, "m", {"srt": "transcripts/a.srt"})],
        "2": [
            transcript_row(recording_of(keys), silent, "m", {})
            for keys in (
                {"note": "x", "x": {"y": [1]}},
                {"note": 10**30, "audio_filepath": None, "file_name": "b"},
            )
        ],
    }
    schemas = []
    for name, rows in shards.items():
        content = parquet_bytes(rows)
        schemas.append(pyarrow.parquet.read_schema(io.BytesIO(content)))
        (tmp_path / f"{name}.parquet").write_bytes(content)
    assert schemas[0] == schemas[1] == schemas[2]
    read = pyarrow.dataset.dataset(tmp_path).to_table().to_pylist()
    assert next(row["id"] for row in read) == "5"
    assert [row["text"] for row in read] == [None, "one", "", ""]
    assert [row["offset"] for row in read] == [None, 2.0, None, None]
    assert [row["audio_filepath"] for row in read] == ["a.wav", "a.wav", "a.wav", "b"]
    assert read[0]["error"] == {"type": "AudioError", "message": "a\\udce9", "tries": 1}
    assert read[1]["files"] == [("srt", "transcripts/a.srt")]
    assert read[1]["segments"][0]["words"][0]["word"] == " one"
    carried = {"audio_filepath": "a.wav", "note": 1.5, "offset": 2, "input_text": "\\udce9"}
    assert json.loads(read[1]["input"]) == carried
    assert json.loads(read[3]["input"])["note"] == 10**30
