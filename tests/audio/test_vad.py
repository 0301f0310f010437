"""Tests of speech regions from tables of probabilities, and of the ends of the speech detector."""

from __future__ import annotations

import numpy as np
import pytest

from harken.audio.vad import CHUNK_SAMPLES, RegionTracker, SpeechDetector, VadOptions
from harken.errors import OptionError

# Chunks of 3.2 frames, ten of them 32 frames; thresholds 0.5 and 0.35.
PLAIN = VadOptions(min_speech_s=0.1, min_silence_s=0.32, speech_pad_s=0.0)
SPEECH, QUIET, BETWEEN = 0.9, 0.1, 0.4


def regions(options, *runs):
    """Return the regions of a recording made of runs of (chunks, probability)."""
    probabilities = [probability for chunks, probability in runs for _ in range(chunks)]
    tracker = RegionTracker(options)
    return tracker.feed(probabilities) + tracker.flush(len(probabilities) * CHUNK_SAMPLES // 160)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([(20, QUIET)], []),
        ([(10, QUIET), (20, SPEECH), (20, QUIET)], [(32, 96)]),
        ([(20, SPEECH)], [(0, 64)]),
        ([(10, QUIET), (2, SPEECH), (20, QUIET)], []),  # too short
        ([(10, QUIET), (4, SPEECH), (20, QUIET)], [(32, 44)]),
        ([(10, QUIET), (20, BETWEEN), (20, QUIET)], []),  # never reaches the threshold
        ([(10, SPEECH), (20, BETWEEN), (20, QUIET)], [(0, 96)]),  # never falls below neg_threshold
        ([(10, SPEECH), (9, QUIET), (10, SPEECH), (20, QUIET)], [(0, 92)]),  # too short a silence
        ([(10, SPEECH), (10, QUIET), (10, SPEECH), (20, QUIET)], [(0, 32), (64, 96)]),
        (
            [(10, SPEECH), (5, QUIET), (5, BETWEEN), (10, SPEECH)],
            [(0, 32), (64, 96)],
        ),  # between does not resume
        ([(10, SPEECH), (5, QUIET)], [(0, 48)]),  # ends in silence that is still short
    ],
)
def test_regions_follow_two_thresholds(runs, expected):
    assert regions(PLAIN, *runs) == expected


def test_padding_stays_inside_the_recording():
    options = VadOptions(min_silence_s=1.0, speech_pad_s=0.4)
    assert regions(options, (10, QUIET), (50, SPEECH), (10, QUIET)) == [(0, 224)]
    assert regions(options, (50, QUIET), (50, SPEECH), (50, QUIET)) == [(120, 360)]


def test_long_speech_is_split_at_its_longest_silence():
    options = VadOptions(min_silence_s=0.5, speech_pad_s=0.1, max_speech_s=10.0)
    runs = [(100, SPEECH), (5, QUIET), (100, SPEECH), (9, QUIET), (60, SPEECH), (3, QUIET), (90, SPEECH)]
    assert regions(options, *runs) == [(0, 666), (674, 1174)]  # 10 frames behind 656 and before 684


def test_short_silence_at_the_ends_does_not_exceed_max_speech():
    options = VadOptions(min_silence_s=1.0, speech_pad_s=0.4, max_speech_s=10.0)
    assert regions(options, (30, QUIET), (250, SPEECH), (30, QUIET)) == [(0, 992)]
    assert regions(options, (30, QUIET), (260, SPEECH), (30, QUIET)) == [(0, 968)]  # not 1024
    cut = regions(options, (30, QUIET), (290, SPEECH), (30, QUIET))
    assert [end - start <= 1000 for start, end in cut] == [True, True]


def test_rest_of_long_speech_is_kept_below_min_speech():
    options = VadOptions(min_speech_s=1.0, min_silence_s=0.5, speech_pad_s=0.0, max_speech_s=10.0)
    *_, last = regions(options, (295, SPEECH), (5, QUIET), (15, SPEECH), (50, QUIET))
    assert last == (960, 1008)


def test_speaking_since_and_stable_until_follow_the_speech():
    tracker = RegionTracker(VadOptions(min_speech_s=0.1, min_silence_s=0.32, speech_pad_s=0.1))
    assert tracker.feed([QUIET] * 20) == []
    assert (tracker.speaking_since, tracker.stable_until_frames) == (None, 54)
    tracker.feed([SPEECH] * 3)
    assert tracker.speaking_since is None  # might be a click
    tracker.feed([SPEECH])
    assert (tracker.speaking_since, tracker.stable_until_frames) == (54, 54)
    assert tracker.feed([QUIET] * 9) == []
    assert tracker.feed([QUIET]) == [(54, 86)]
    assert (tracker.speaking_since, tracker.stable_until_frames) == (None, 98)


def test_silence_before_the_first_speech_counts_without_its_padding():
    options = VadOptions(min_silence_s=1.0, speech_pad_s=0.4)
    assert (
        regions(options, (43, QUIET), (50, SPEECH), (5, QUIET))[0][0] == 0
    )  # 1.376 s, 0.976 s without padding
    assert regions(options, (44, QUIET), (50, SPEECH), (5, QUIET))[0][0] == 100  # 1.408 s


def test_option_that_another_one_forbids_is_refused():
    for option, value in (("neg_threshold", 0.6), ("speech_pad_s", 0.6), ("max_speech_s", 1.5)):
        with pytest.raises(OptionError, match=f"{option}="):
            VadOptions(**{option: value})


def test_neg_threshold_defaults_to_below_threshold():
    assert VadOptions(threshold=0.5).effective_neg_threshold == pytest.approx(0.35)
    assert VadOptions(threshold=0.1).effective_neg_threshold == 0.01
    assert VadOptions(threshold=0.5, neg_threshold=0.2).effective_neg_threshold == 0.2


def test_incomplete_chunk_is_returned_by_flush():
    detector = SpeechDetector()
    assert detector.feed(np.zeros(511, np.float32)).shape == (0,)
    assert detector.feed(np.zeros(2, np.float32)).shape == (1,)
    assert detector.flush().shape == (1,)
    assert SpeechDetector().flush().shape == (0,)
