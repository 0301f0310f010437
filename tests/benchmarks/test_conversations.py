"""The recipe of conversations: where recordings hold speech, how they are cut, and who speaks when."""

from itertools import pairwise

import numpy as np
import pytest

from conversations import Kind, converse, overlapped, reverberate
from voices import SAMPLE_RATE, Voice, cut_in_quiet, excerpt, find_speech


def talk(*spans, seconds):
    """Return loud noise between some times, and faint noise elsewhere."""
    samples = 0.0005 * np.random.default_rng(0).standard_normal(round(seconds * SAMPLE_RATE))
    for start, end in spans:
        samples[round(start * SAMPLE_RATE) : round(end * SAMPLE_RATE)] *= 400
    return samples.astype(np.float32)


def voice(name, count):
    """Return a speaker with some recordings of one to four seconds."""
    lengths = np.random.default_rng(len(name)).uniform(1, 4, count)
    samples = [talk((0.2, length - 0.2), seconds=length) for length in lengths]
    pieces = [excerpt(own, find_speech(own), f"{name} {i}") for i, own in enumerate(samples)]
    return Voice(name=name, language="en", half=0, known={(): pieces})


def test_speech_is_found_where_the_level_is_high_and_cut_where_it_is_quietest():
    samples = talk((0.5, 1.5), (2.0, 3.0), seconds=4.0)
    assert np.array(find_speech(samples)) == pytest.approx(np.array([(0.5, 1.5), (2.0, 3.0)]), abs=0.06)
    parts = list(cut_in_quiet(samples, ((0.5, 2.0),)))
    assert [len(part.samples) / SAMPLE_RATE for part in parts] == pytest.approx([1.0, 1.0], abs=0.12)
    assert [part.text for part in parts] == [None, None]


def test_speakers_do_not_overlap_with_themselves_and_as_much_as_wanted_with_others():
    voices = [voice("ann", 18), voice("robert", 18)]
    for overlap in (0.0, 0.15):
        kind = Kind(voices=(), seconds=(50.0, 60.0), overlap=(overlap, overlap))
        conversation = converse(kind, voices, np.random.default_rng(1))
        for name in ("ann", "robert"):
            own = [(start, end) for start, end, speaker in conversation.turns if speaker == name]
            assert all(after[0] - before[1] >= 0.3 - 1e-9 for before, after in pairwise(own))
        both, anybody = overlapped(conversation.turns)
        assert both / anybody == pytest.approx(overlap, abs=0.05)
        assert max(end for _, end, _ in conversation.turns) <= len(conversation.samples) / SAMPLE_RATE


def test_the_same_seed_gives_the_same_conversation():
    kind = Kind(voices=(), seconds=(20.0, 30.0), overlap=(0.1, 0.1), room=True)
    voices = [voice("ann", 9), voice("robert", 9)]
    first, second = (converse(kind, voices, np.random.default_rng(5)) for _ in range(2))
    assert np.array_equal(first.samples, second.samples)
    assert first.turns == second.turns
    assert first.said == second.said
    assert np.abs(first.samples).max() <= 0.81


def test_a_room_keeps_the_time_of_the_direct_sound_and_adds_a_tail():
    click = np.zeros(SAMPLE_RATE, np.float32)
    click[100] = 1.0
    heard = reverberate(click, 2.0, 0.3, 60.0, np.random.default_rng(0))
    assert heard[:100] == pytest.approx(0.0, abs=1e-6)
    assert heard[100] == pytest.approx(0.5, abs=1e-5)
    energy = np.add.reduceat(heard[141:4500] ** 2, [0, 2000])
    assert energy[0] > energy[1] > 0
