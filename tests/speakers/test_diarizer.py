"""Who speaks when, in a recording and live, and who said each word; voices are levels of the samples."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.speakers import (
    BOTH,
    EMBEDDINGS,
    FIRST,
    SECOND,
    SILENCE,
    THIRD,
    LevelEmbedding,
    conversation,
    level_diarizer,
)
from harken.errors import CheckpointError, OptionError
from harken.results import SpeakerTurn
from harken.speakers import live
from harken.speakers.attribution import SpeakerAttribution
from harken.speakers.voices import Voice, letters, read_voices, write_voices
from harken.types import SAMPLE_RATE
from transcripts import segment, spoken

TOLERANCE_S = 0.04
"""Two frames."""
TALK = st.lists(
    st.tuples(st.sampled_from([SILENCE, FIRST, SECOND, BOTH, THIRD]), st.floats(0.1, 9)), min_size=1, max_size=9
)
in_both_ways = pytest.mark.parametrize("is_live", [False, True], ids=["recording", "live"])


def turns_of(samples, is_live=False, diarizer=None, **options):
    """Return the turns at the end of a recording or of a stream."""
    diarizer = diarizer or level_diarizer(**options)
    diarization = diarizer.begin_live() if is_live else diarizer.begin()
    diarization.feed(samples)
    diarization.flush()
    return diarization.turns


def names_of(turns):
    return [turn.speaker for turn in turns]


def assert_turns(turns, expected):
    assert names_of(turns) == [speaker for *_, speaker in expected]
    for turn, (start_s, end_s, _) in zip(turns, expected, strict=True):
        assert turn.start_s == pytest.approx(start_s, abs=TOLERANCE_S if start_s else 0)
        assert turn.end_s == pytest.approx(end_s, abs=TOLERANCE_S)


@in_both_ways
@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (
            [(SILENCE, 1), (SECOND, 6), (SILENCE, 1), (FIRST, 7), (SILENCE, 0.5), (SECOND, 25)],
            [(1, 7, "A"), (8, 15, "B"), (15.5, 40.5, "A")],
        ),
        ([(FIRST, 6), (BOTH, 1), (SECOND, 6)], [(0, 7, "A"), (6, 13, "B")]),
        (
            [(FIRST, 5), (SILENCE, 0.2), (FIRST, 5), (SILENCE, 0.5), (FIRST, 5)],
            [(0, 10.2, "A"), (10.7, 15.7, "A")],
        ),
        *(
            [[(FIRST, seconds)], [(0, seconds, "A")]]
            for seconds in (9.9, 10, 10.1, 12.4, 12.6, 14.9, 15.1, 17.6)
        ),
        *([[(SILENCE, seconds)], []] for seconds in (0, 0.01, 12, 40)),
    ],
)
def test_turns_have_their_voices_and_times(is_live, parts, expected):
    """Names are in order of appearance; two may speak at once, or go on after a short pause."""
    assert_turns(turns_of(conversation(*parts), is_live), expected)


def test_a_short_answer_is_a_turn_and_speakers_have_the_seconds_of_their_turns():
    samples = conversation((FIRST, 6), (SECOND, 0.4), (FIRST, 6), (SECOND, 6))
    diarization = level_diarizer().diarize(samples)
    assert_turns(diarization.turns, [(0, 6, "A"), (6, 6.4, "B"), (6.4, 12.4, "A"), (12.4, 18.4, "B")])
    assert {speaker.name: speaker.seconds for speaker in diarization.speakers} == pytest.approx(
        {"A": 12, "B": 6.4}, abs=3 * TOLERANCE_S
    )
    assert level_diarizer().diarize(np.zeros(16_000, np.float32)).speakers == ()


@in_both_ways
def test_bounds_of_the_number_of_speakers_are_kept(is_live):
    samples = conversation((FIRST, 10), (SECOND, 10), (THIRD, 10))
    for options, names in (({}, "ABC"), ({"max_speakers": 2}, "AB"), ({"num_speakers": 1}, "A")):
        assert {*names_of(turns_of(samples, is_live, **options))} == {*names}
    assert len({*names_of(turns_of(samples, min_speakers=3))}) == 3


def test_who_says_little_is_somebody_else_unless_the_number_is_known_and_voices_are_not_made_up():
    samples = conversation((FIRST, 10), (SILENCE, 1), (THIRD, 2), (SILENCE, 1), (SECOND, 10))
    assert {*names_of(turns_of(samples))} == {"A", "B"}
    assert {*names_of(turns_of(samples, num_speakers=3))} == {"A", "B", "C"}
    assert names_of(turns_of(conversation((FIRST, 1), (SILENCE, 1)), num_speakers=5)) == ["A"]


@settings(max_examples=20)
@given(parts=TALK, points=st.lists(st.floats(0, 1), max_size=8))
def test_blocks_do_not_matter_and_turns_are_within_the_recording(parts, points):
    samples = conversation(*parts)
    divided = level_diarizer().begin()
    for block in np.split(samples, sorted(round(point * len(samples)) for point in points)):
        divided.feed(block)
    divided.flush()
    turns = turns_of(samples)
    assert divided.turns == turns
    duration_s = len(samples) / SAMPLE_RATE
    assert all(0 <= turn.start_s < turn.end_s <= duration_s for turn in turns)
    assert [turn.start_s for turn in turns] == sorted(turn.start_s for turn in turns)
    for name in {*names_of(turns)}:
        own = [turn for turn in turns if turn.speaker == name]
        assert all(a.end_s < b.start_s for a, b in itertools.pairwise(own))


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


def test_the_turns_so_far_are_known_when_a_signal_ends_the_recording(monkeypatch):
    """Within a block of any length, of which some windows have been heard."""
    samples = conversation((FIRST, 30), (SECOND, 60))
    diarization, heard = level_diarizer().begin(), itertools.count(1)
    embed = LevelEmbedding.embed

    def interrupted(model, pieces):
        if next(heard) == 3:
            raise KeyboardInterrupt
        return embed(model, pieces)

    monkeypatch.setattr(LevelEmbedding, "embed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(diarization.listen([samples]))
    first, second = diarization.turns
    assert (first.start_s, first.speaker, second.speaker) == (0, "A", "B")
    assert first.end_s == second.start_s == pytest.approx(30, abs=TOLERANCE_S)
    assert 40 < second.end_s < 60


def test_more_pieces_than_a_block_are_clustered_block_by_block(monkeypatch):
    samples = conversation(*[(FIRST, 6), (SECOND, 6)] * 4)
    expected = turns_of(samples)
    monkeypatch.setattr("harken.speakers.clustering.MAX_BLOCK_PIECES", 5)
    assert turns_of(samples) == expected


def test_names_of_unknown_speakers():
    assert [letters(index) for index in (0, 25, 26, 51, 52, 702)] == ["A", "Z", "AA", "AZ", "BA", "AAA"]


# --- live --------------------------------------------------------------------------------------------------


def speakers_at(diarization, time_s):
    return {turn.speaker for turn in diarization.turns if turn.start_s <= time_s < turn.end_s}


def test_new_voice_has_its_name_within_the_delay_and_from_its_first_word_on():
    diarization = level_diarizer().begin_live(5.0)
    diarization.feed(conversation((FIRST, 10), (SECOND, 1.5)))
    assert speakers_at(diarization, 10.5) == {"A"}  # too little to found a voice
    diarization.feed(conversation((SECOND, 3)))
    assert speakers_at(diarization, 10.5) == {"B"}


@settings(max_examples=10, deadline=None)
@given(parts=TALK, cuts=st.lists(st.floats(0, 48), max_size=6))
def test_sizes_of_live_blocks_do_not_matter(parts, cuts):
    samples = conversation(*parts)
    whole, cut = level_diarizer().begin_live(2.0), level_diarizer().begin_live(2.0)
    for block in np.split(samples, sorted(min(len(samples), round(at_s * SAMPLE_RATE)) for at_s in cuts)):
        whole.feed(block)
        for first in range(0, len(block), 7777):
            cut.feed(block[first : first + 7777])
        assert whole.turns == cut.turns
    whole.flush()
    cut.flush()
    assert whole.turns == cut.turns


@settings(max_examples=10, deadline=None)
@given(parts=TALK, delay_s=st.sampled_from([1.0, 2.0, 5.0]))
def test_what_is_older_than_the_delay_never_changes(parts, delay_s):
    samples = conversation(*parts)
    diarization = level_diarizer().begin_live(delay_s)
    before = []
    times_s = np.arange(0, len(samples) / SAMPLE_RATE, 0.1).tolist()
    fed, settled_s = 0, 0.0
    while fed < len(samples):
        n = diarization.missing_samples
        diarization.feed(samples[fed : fed + n])
        fed = min(len(samples), fed + n)
        now = [speakers_at(diarization, time_s) for time_s in times_s]
        n_settled = sum(time_s < settled_s - 0.4 for time_s in times_s)
        assert now[:n_settled] == before[:n_settled]
        settled_s = max(settled_s, diarization.settled_s)
        assert settled_s >= fed / SAMPLE_RATE - delay_s - 2.0
        before = now


def test_memory_does_not_grow_with_the_stream(monkeypatch):
    monkeypatch.setattr(live, "HISTORY_FRAMES", 600)
    diarization, minute = level_diarizer().begin_live(), conversation((FIRST, 5), (SECOND, 4), (SILENCE, 1))
    sizes = []
    tracemalloc.start()
    for _ in range(12):
        diarization.feed(minute)
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert max(sizes[6:]) < max(sizes[:6]) + 20_000
    assert len(diarization.turns) <= 5


@pytest.mark.parametrize("delay_s", [0.0, 61.0, float("nan")])
def test_delay_out_of_range_is_refused(delay_s):
    with pytest.raises(OptionError, match="speaker_delay"):
        level_diarizer().begin_live(delay_s)


# --- known voices ------------------------------------------------------------------------------------------

SAMPLES = conversation((SILENCE, 1), (FIRST, 6), (SECOND, 6), (THIRD, 6))
ANN = {"Ann": conversation((SECOND, 3))}


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([ANN], ["A", "Ann", "B"]),
        ([{"A": conversation((THIRD, 3))}], ["B", "C", "A"]),  # letters that are names are left out
        ([{"Ann": conversation((FIRST, 3))}, ANN | {"Bob": conversation((FIRST, 3))}], ["Bob", "Ann", "A"]),
        ([{"Ann": conversation((FIRST, 4), (SECOND, 9))}], ["A", "Ann", "B"]),  # who says most in the sample
    ],
)
def test_known_people_have_their_names_by_their_last_sample_and_others_letters(given, names):
    diarizer = level_diarizer()
    for voices in given:
        diarizer = diarizer.with_voices(voices)
    assert names_of(turns_of(SAMPLES, diarizer=diarizer)) == names


@pytest.mark.parametrize(
    ("is_live", "parts", "names"),
    [
        *((is_live, [(FIRST, 6), (SECOND, 6)], ["A", "Ann"]) for is_live in (False, True)),
        *((is_live, [(FIRST, 1)], ["A"]) for is_live in (False, True)),  # nobody is Bob by chance
        (True, [(SECOND, 1), (SILENCE, 1), (FIRST, 1)], ["Ann", "A"]),  # however little they say
    ],
)
def test_known_people_have_their_names_if_they_speak(is_live, parts, names):
    known = [Voice("Ann", EMBEDDINGS[1], 5.0), Voice("Bob", EMBEDDINGS[7], 5.0)]
    diarizer = level_diarizer(max_speakers=2).with_voices(known)
    assert names_of(turns_of(conversation(*parts), is_live, diarizer)) == names


def test_sample_with_too_little_speech_and_voice_of_another_model_are_refused():
    for voices, allowed in (
        ({"Ann": conversation((SILENCE, 5))}, "a recording with at least 1 s of speech"),
        ({"Ann": conversation((FIRST, 0.5))}, "a recording with at least 1 s of speech"),
        ([Voice("Ann", np.ones(3, np.float32), 2.0)], "voices of this model, of 192 numbers"),
    ):
        with pytest.raises(OptionError, match=f"voices='Ann': allowed is {allowed}"):
            level_diarizer().with_voices(voices)


def test_voices_go_through_their_file(tmp_path):
    diarizer = level_diarizer().with_voices(ANN | {"Zoë": conversation((THIRD, 2))})
    write_voices(tmp_path / "voices.json", diarizer.voices)
    again = level_diarizer().with_voices(read_voices(tmp_path / "voices.json"))
    assert [(voice.name, round(voice.seconds)) for voice in again.voices] == [("Ann", 3), ("Zoë", 2)]
    assert turns_of(SAMPLES, diarizer=again) == turns_of(SAMPLES, diarizer=diarizer)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not JSON"),
        ("[]", "allowed is an object"),
        ('{"version": 2, "voices": []}', "voices of version 2, allowed is 1"),
        ('{"version": 1}', "has no list of voices"),
        ('{"version": 1, "voices": [{"seconds": 1}]}', "voice 1: has no name"),
        ('{"version": 1, "voices": [{"name": "Ann"}]}', r"voice 1 \('Ann'\): has no seconds or no embedding"),
        ('{"version": 1, "voices": [{"name": "", "seconds": 1, "embedding": [1]}]}', "1 to 100 printable"),
        ('{"version": 1, "voices": [{"name": "B", "seconds": 1, "embedding": [NaN]}]}', "no embedding"),
        ('{"version": 1, "voices": [{"name": "B", "seconds": 1, "embedding": [0, 0]}]}', "no embedding"),
    ],
)
def test_damaged_file_of_voices_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "voices.json"
    path.write_text(content)
    with pytest.raises(CheckpointError, match=rf"voices\.json: .*{message}"):
        read_voices(path)


# --- words and segments ------------------------------------------------------------------------------------


def turn(start_s, end_s, speaker):
    return SpeakerTurn(start_s=start_s, end_s=end_s, speaker=speaker)


def attributed(turns, *segments):
    return SpeakerAttribution(turns, encode=lambda text: [len(text)]).segments(segments)


def said(segments):
    return [(each.speakers, each.text) for each in segments]


TWO_TURNS = [turn(0, 2, "A"), turn(2, 4, "B")]
APART = [turn(0, 1, "A"), turn(5, 6, "B")]
LONG_AMONG_SHORT = [turn(0, 100, "A"), *(turn(second, second + 0.2, "B") for second in range(40))]


def test_segment_is_cut_where_the_speaker_changes_and_segments_are_numbered_anew():
    whole = spoken((0.1, 0.5, " Yes"), (0.6, 1.5, " indeed."), tokens=(1, 2, 3))
    first = spoken((1.6, 1.9, " Are you?"), (2.1, 2.5, " Yes."), (2.6, 3.0, " And you?"))
    parts = attributed(TWO_TURNS, whole, first, spoken((3.1, 3.4, " Hm."), index=1))
    expected = [("A", " Yes indeed."), ("A", " Are you?"), ("B", " Yes. And you?"), ("B", " Hm.")]
    assert said(parts) == [((speaker,), text) for speaker, text in expected]
    bounds_s = [(part.index, part.start_s, part.end_s) for part in parts]
    assert bounds_s == [(0, 0.1, 1.5), (1, 1.6, 1.9), (2, 2.1, 3.0), (3, 3.1, 3.4)]
    assert parts[0].tokens == whole.tokens  # of one that stays whole
    assert parts[1].tokens == (len(" Are you?"),)


def test_word_that_two_say_names_both_and_goes_with_its_segment():
    turns = [turn(0, 3, "A"), turn(2, 6, "B")]
    parts = attributed(turns, spoken((2.2, 2.6, " I"), (2.7, 3.0, " think"), (3.2, 4.0, " so.")))
    assert said(parts) == [(("B", "A"), " I think so.")]
    assert [word.speakers for word in parts[0].words] == [("B", "A"), ("B", "A"), ("B",)]


@pytest.mark.parametrize(
    ("turns", "words", "expected"),
    [
        (TWO_TURNS, [(1.8, 2.6, " maybe")], (("B",), " maybe")),  # who says more of it
        (APART, [(3.1, 3.4, " near")], (("B",), " near")),  # the nearest turn
        (APART, [(0.5, 0.9, " said"), (60.0, 60.5, " far")], (("A",), " said far")),  # who spoke before
        (APART, [(60.0, 60.5, " nobody")], ((), " nobody")),
        (LONG_AMONG_SHORT, [(50.0, 50.5, " here")], (("A",), " here")),
        ([], [(0.0, 1.0, " alone")], ((), " alone")),
    ],
)
def test_word_across_or_outside_of_turns(turns, words, expected):
    assert said(attributed(turns, spoken(*words))) == [expected]


def test_word_that_two_say_alike_goes_with_the_word_before_it():
    turns = [turn(0, 2, "A"), turn(2, 4, "B"), turn(6.5, 10, "A"), turn(6.5, 10, "B")]
    first, second, both = (0.5, 1.0, " one"), (2.5, 3.0, " two"), (9.0, 9.5, " three")
    assert said(attributed(turns, spoken(first, second, both))) == [
        (("A",), " one"),
        (("B", "A"), " two three"),
    ]


def test_segment_without_words_has_who_speaks_most_and_half_of_it():
    (part,) = attributed([turn(0, 4, "A"), turn(1, 4, "B"), turn(3, 4, "C")], segment(0.0, 4.0, " text"))
    assert part.speakers == ("A", "B")
