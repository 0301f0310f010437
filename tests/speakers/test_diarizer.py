"""Tests of diarization with voices that are levels of the samples."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.speakers import BOTH, FIRST, SECOND, SILENCE, THIRD, conversation, level_diarizer
from harken.errors import CheckpointError, OptionError
from harken.speakers.voices import Voice, letters, read_voices, write_voices

TOLERANCE_S = 0.04
"""Two frames."""


def turns_of(samples, **options):
    return level_diarizer(**options).diarize(samples).turns


def assert_turns(turns, expected):
    assert [turn.speaker for turn in turns] == [speaker for *_, speaker in expected]
    for turn, (*bounds_s, _) in zip(turns, expected, strict=True):
        assert (turn.start_s, turn.end_s) == pytest.approx(bounds_s, abs=TOLERANCE_S)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (
            [(SILENCE, 1), (SECOND, 6), (SILENCE, 1), (FIRST, 7), (SILENCE, 0.5), (SECOND, 5)],
            [(1, 7, "A"), (8, 15, "B"), (15.5, 20.5, "A")],
        ),
        ([(FIRST, 6), (BOTH, 1), (SECOND, 6)], [(0, 7, "A"), (6, 13, "B")]),
        (
            [(FIRST, 5), (SILENCE, 0.2), (FIRST, 5), (SILENCE, 0.5), (FIRST, 5)],
            [(0, 10.2, "A"), (10.7, 15.7, "A")],
        ),
        (
            [(FIRST, 6), (SECOND, 0.4), (FIRST, 6), (SECOND, 6)],
            [(0, 6, "A"), (6, 6.4, "B"), (6.4, 12.4, "A"), (12.4, 18.4, "B")],
        ),
    ],
    ids=["named in order of appearance", "two at once", "over a short pause", "a short answer"],
)
def test_turns_have_their_voices_and_times(parts, expected):
    diarization = level_diarizer().diarize(conversation(*parts))
    assert_turns(diarization.turns, expected)
    for speaker in diarization.speakers:
        seconds = sum(end_s - start_s for start_s, end_s, name in expected if name == speaker.name)
        assert speaker.seconds == pytest.approx(seconds, abs=3 * TOLERANCE_S)


def test_who_says_little_in_all_is_taken_for_somebody_else_unless_the_number_is_known():
    samples = conversation((FIRST, 10), (SILENCE, 1), (THIRD, 2), (SILENCE, 1), (SECOND, 10))
    assert {turn.speaker for turn in turns_of(samples)} == {"A", "B"}
    assert {turn.speaker for turn in turns_of(samples, num_speakers=3)} == {"A", "B", "C"}


def test_bounds_of_the_number_of_speakers_are_kept():
    samples = conversation((FIRST, 10), (SECOND, 10), (THIRD, 10))
    assert {turn.speaker for turn in turns_of(samples)} == {"A", "B", "C"}
    assert {turn.speaker for turn in turns_of(samples, max_speakers=2)} == {"A", "B"}
    assert {turn.speaker for turn in turns_of(samples, num_speakers=1)} == {"A"}
    assert len({turn.speaker for turn in turns_of(samples, min_speakers=3)}) == 3


def test_more_speakers_than_voices_are_not_made_up():
    samples = conversation((FIRST, 1), (SILENCE, 1))
    assert [turn.speaker for turn in turns_of(samples, num_speakers=5)] == ["A"]


@pytest.mark.parametrize("seconds", [0.01, 12, 40])
def test_silence_has_no_speakers(seconds):
    diarization = level_diarizer().diarize(conversation((SILENCE, seconds)))
    assert (diarization.turns, diarization.speakers) == ((), ())


@settings(max_examples=20)
@given(
    parts=st.lists(
        st.tuples(st.sampled_from([SILENCE, FIRST, SECOND, BOTH, THIRD]), st.floats(0.1, 9)),
        min_size=1,
        max_size=9,
    ),
    points=st.lists(st.floats(0, 1), max_size=8),
)
def test_blocks_do_not_matter_and_turns_are_within_the_recording(parts, points):
    samples = conversation(*parts)
    whole, divided = level_diarizer().begin(), level_diarizer().begin()
    whole.feed(samples)
    for block in np.split(samples, sorted(round(point * len(samples)) for point in points)):
        divided.feed(block)
    whole.flush()
    divided.flush()
    assert divided.turns == whole.turns
    duration_s = len(samples) / 16_000
    assert all(0 <= turn.start_s < turn.end_s <= duration_s for turn in whole.turns)
    assert [turn.start_s for turn in whole.turns] == sorted(turn.start_s for turn in whole.turns)
    for name in {turn.speaker for turn in whole.turns}:
        own = [turn for turn in whole.turns if turn.speaker == name]
        assert all(a.end_s < b.start_s for a, b in itertools.pairwise(own))


def test_speech_is_found_to_the_last_second_of_any_length():
    for length in (9.9, 10.0, 10.1, 12.4, 12.6, 14.9, 15.1, 17.6, 30.0):
        assert_turns(turns_of(conversation((FIRST, length))), [(0, length, "A")])


def test_blocks_are_passed_on_and_the_end_is_heard_when_reading_fails():
    diarization = level_diarizer().begin()

    def failing():
        yield conversation((FIRST, 3))
        raise OSError("gone")

    passed = []
    with pytest.raises(OSError, match="gone"):
        passed.extend(diarization.listen(failing()))
    assert sum(map(len, passed)) == 48_000
    assert len(diarization.turns) == 1


def test_more_pieces_than_a_block_are_clustered_block_by_block(monkeypatch):
    samples = conversation(*[(FIRST, 6), (SECOND, 6)] * 4)
    expected = turns_of(samples)
    monkeypatch.setattr("harken.speakers.clustering.MAX_BLOCK_PIECES", 5)
    assert turns_of(samples) == expected


@pytest.mark.parametrize(
    ("index", "name"), [(0, "A"), (25, "Z"), (26, "AA"), (51, "AZ"), (52, "BA"), (702, "AAA")]
)
def test_names_of_unknown_speakers(index, name):
    assert letters(index) == name


class TestKnownVoices:
    SAMPLES = conversation((SILENCE, 1), (FIRST, 6), (SECOND, 6), (THIRD, 6))

    def test_known_people_have_their_names_and_others_letters(self):
        diarizer = level_diarizer().with_voices({"Ann": conversation((SECOND, 3))})
        assert [turn.speaker for turn in diarizer.diarize(self.SAMPLES).turns] == ["A", "Ann", "B"]

    def test_letters_that_are_names_are_left_out(self):
        diarizer = level_diarizer().with_voices({"A": conversation((THIRD, 3))})
        assert [turn.speaker for turn in diarizer.diarize(self.SAMPLES).turns] == ["B", "C", "A"]

    def test_a_second_sample_replaces_the_voice(self):
        diarizer = level_diarizer().with_voices({"Ann": conversation((FIRST, 3))})
        diarizer = diarizer.with_voices({"Ann": conversation((SECOND, 3)), "Bob": conversation((FIRST, 3))})
        assert [turn.speaker for turn in diarizer.diarize(self.SAMPLES).turns] == ["Bob", "Ann", "A"]

    def test_the_voice_of_a_sample_is_that_of_who_says_most(self):
        diarizer = level_diarizer().with_voices({"Ann": conversation((FIRST, 4), (SECOND, 9))})
        assert [turn.speaker for turn in diarizer.diarize(self.SAMPLES).turns] == ["A", "Ann", "B"]

    @pytest.mark.parametrize("sample", [conversation((SILENCE, 5)), conversation((FIRST, 0.5))])
    def test_sample_with_too_little_speech_is_refused(self, sample):
        with pytest.raises(
            OptionError, match=r"voices='Ann': allowed is a recording with at least 1 s of speech"
        ):
            level_diarizer().with_voices({"Ann": sample})

    def test_voices_go_through_their_file(self, tmp_path):
        diarizer = level_diarizer().with_voices(
            {"Ann": conversation((SECOND, 3)), "Zoë": conversation((THIRD, 2))}
        )
        write_voices(tmp_path / "voices.json", diarizer.voices)
        again = level_diarizer().with_voices(read_voices(tmp_path / "voices.json"))
        assert [(voice.name, round(voice.seconds)) for voice in again.voices] == [("Ann", 3), ("Zoë", 2)]
        assert again.diarize(self.SAMPLES).turns == diarizer.diarize(self.SAMPLES).turns

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "not JSON"),
            ("[]", "allowed is an object"),
            ('{"version": 2, "voices": []}', "voices of version 2, allowed is 1"),
            ('{"version": 1}', "has no list of voices"),
            ('{"version": 1, "voices": [{"seconds": 1}]}', "voice 1: has no name"),
            (
                '{"version": 1, "voices": [{"name": "Ann"}]}',
                r"voice 1 \('Ann'\): has no seconds or no embedding",
            ),
            ('{"version": 1, "voices": [{"name": "", "seconds": 1, "embedding": [1]}]}', "1 to 100 printable"),
            ('{"version": 1, "voices": [{"name": "B", "seconds": 1, "embedding": [NaN]}]}', "no embedding"),
        ],
    )
    def test_damaged_file_is_refused_by_name(self, tmp_path, content, message):
        path = tmp_path / "voices.json"
        path.write_text(content)
        with pytest.raises(CheckpointError, match=rf"voices\.json: .*{message}"):
            read_voices(path)

    def test_voice_of_another_model_is_refused(self):
        voice = Voice("Ann", np.ones(3, np.float32), 2.0)
        with pytest.raises(OptionError, match="voices of this model, of 192 numbers"):
            level_diarizer().with_voices([voice])
