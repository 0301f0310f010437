"""An utterance while it is spoken: which frames are heard when, and what becomes of hypotheses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.speech_detector import noise_and_silence
from harken.audio.mel import LOG_MEL_FLOOR, LogMel, normalize
from harken.contract import Floats
from harken.decoding import PartialHypothesis
from harken.streaming.config import StreamingConfig
from harken.streaming.stream import SampleBuffer
from harken.streaming.utterance import (
    ALIGNATT_THRESHOLD_FRAMES,
    FINAL_SILENCE_FRAMES,
    TRAILING_SILENCE_FRAMES,
    WINDOW_BUCKET_FRAMES,
    ActiveUtterance,
    EncoderChunk,
    TimedToken,
)
from tiny_models import TOKENIZER

N_MELS = 8
SETTING = StreamingConfig(window_frames=100, hop_frames=30, history_frames=0, commit_delay_frames=40)


# --- what is heard -----------------------------------------------------------------------------------------


@dataclass
class Ear:
    """`harken.contract.Encoder` that knows what it was given, and nothing of sound."""

    final_positions: int = 0
    positions: int = 0

    def hear(self, sound: EncoderChunk) -> None:
        frames = sound.mel.shape[1]
        assert sound.mel.dtype == np.float32
        assert sound.final_frames % 2 == 0
        assert 0 <= sound.final_frames <= frames // 2 * 2
        self.positions = self.final_positions + frames // 2
        self.final_positions += sound.final_frames // 2


class Listener:
    """Hears an utterance of a stream as a stream does, and checks every window against the whole of it.

    Parameters
    ----------
    samples : ndarray of shape (samples,), float32
        The stream.
    start_frame : int
        Where the utterance begins.

    Attributes
    ----------
    kept : list of (int, int)
        Frames of the utterance that each window made final.
    windows : list of (int, int)
        Frames of it that each window heard as sound.
    """

    def __init__(self, samples: Floats, start_frame: int = 0) -> None:
        self.ear = Ear()
        self.running = ActiveUtterance(encoder=self.ear, n_mels=N_MELS, start_frame=start_frame)
        self.kept: list[tuple[int, int]] = []
        self.windows: list[tuple[int, int]] = []
        self._samples = samples

    def update(self, setting: StreamingConfig, more: int = 0) -> EncoderChunk:
        """Hear the next window when it is due, or some samples later."""
        self._take_until(self.running.next_update_sample(setting) + more)
        sound = self.running.next_chunk(setting)
        self._check(
            sound,
            LogMel(N_MELS).feed(self._taken)[:, : self.running.encoded_frames + 1],
            TRAILING_SILENCE_FRAMES,
        )
        return sound

    def end(self, frame: int) -> EncoderChunk:
        """Hear the rest up to a frame of the stream."""
        self._take_until(160 * frame)
        sound = self.running.last_chunk(frame)
        mel = LogMel(N_MELS)
        whole = np.concatenate([mel.feed(self._taken), mel.flush()], axis=1)[
            :, : self.running.encoded_frames + 1
        ]
        silence = sound.mel.shape[1] - (self.running.encoded_frames - 2 * self.ear.final_positions)
        self._check(sound, whole, silence)
        return sound

    def _take_until(self, sample: int) -> None:
        assert sample <= len(self._samples), "the test asks for more than there is"
        if sample > self.running.next_sample:
            self.running.add_samples(self._samples[self.running.next_sample : sample])

    @property
    def _taken(self) -> Floats:
        return self._samples[self.running.start_sample : self.running.next_sample]

    def _check(self, sound: EncoderChunk, whole: Floats, quiet: int) -> None:
        """The frames behind those that were kept, as loud as they are in all that was heard, then silence."""
        ceiling = float(whole.max(initial=LOG_MEL_FLOOR))
        first = 2 * self.ear.final_positions
        expected = normalize(whole[:, first : first + sound.mel.shape[1] - quiet], ceiling)
        frames = expected.shape[1]
        assert sound.mel.shape == (N_MELS, frames + quiet)
        np.testing.assert_array_equal(sound.mel[:, :frames], expected)
        np.testing.assert_array_equal(
            sound.mel[:, frames:], normalize(np.float32([[LOG_MEL_FLOOR]]), ceiling).item()
        )
        self.ear.hear(sound)
        self.windows.append((first, self.running.encoded_frames))
        self.kept.append((first, first + sound.final_frames))


def test_the_first_update_is_due_once_the_convolutions_see_one_frame_more():
    its = Listener(noise_and_silence(3.0))
    due = its.running.next_update_sample(SETTING)
    assert due == 30 * 160 + 200
    its.running.add_samples(noise_and_silence(3.0)[: due - 1])
    assert its.running.next_chunk(replace(SETTING, hop_frames=30)).positions == 0
    its.running.add_samples(noise_and_silence(3.0)[due - 1 : due])
    assert its.running.next_chunk(SETTING).positions == 15


@pytest.mark.parametrize("start_frame", [0, 1, 77, 1234])
def test_places_are_counted_from_the_start_of_the_utterance(start_frame: int):
    its = Listener(noise_and_silence(15.0), start_frame)
    assert its.running.start_sample == its.running.next_sample == 160 * start_frame
    for update in range(1, 6):
        due = its.running.next_update_sample(SETTING)
        assert due == 160 * (start_frame + 30 * update) + 200
        assert its.update(SETTING).positions == 15 * update
        assert its.running.next_sample == due
        assert its.running.encoded_frames == 30 * update
    its.end(start_frame + 180)
    assert its.running.encoded_frames == 180


def test_windows_are_as_long_as_they_should_be_and_overlap_by_the_look_ahead():
    its = Listener(noise_and_silence(5.0))
    for _ in range(8):
        its.update(SETTING)
    assert its.windows == [(0, 30), (0, 60), (0, 90), (20, 120), (50, 150), (80, 180), (110, 210), (140, 240)]
    assert its.kept[-2:] == [(110, 140), (140, 170)]


def test_what_would_be_history_is_heard_again_until_there_is_so_much_of_it():
    its = Listener(noise_and_silence(5.0))
    for _ in range(7):
        its.update(replace(SETTING, history_frames=60))
    assert its.windows == [(0, 30), (0, 60), (0, 90), (0, 120), (0, 150), (80, 180), (110, 210)]
    assert its.kept[-3:] == [(0, 80), (80, 110), (110, 140)]


def test_an_update_stops_before_the_last_of_the_sound_and_the_last_one_does_not():
    its = Listener(noise_and_silence(1.0))
    assert its.update(SETTING).frame_threshold == ALIGNATT_THRESHOLD_FRAMES // 2
    assert its.end(100).frame_threshold == 0


frames = st.integers(5, 60).map(lambda half: 2 * half)
hearings = st.lists(
    st.tuples(frames, frames, st.integers(0, 12_000), st.sampled_from([0, 60, 200])).map(
        lambda its: (
            StreamingConfig(window_frames=max(its[:2]), hop_frames=min(its[:2]), history_frames=its[3]),
            its[2] if its[2] > 6000 else 0,
        )
    ),
    max_size=8,
)


@settings(max_examples=40)
@given(updates=hearings, start_frame=st.integers(0, 40), end=st.floats(0, 1))
def test_every_frame_is_kept_once(updates: list[tuple[StreamingConfig, int]], start_frame: int, end: float):
    """Whatever the settings are meanwhile, however late it is heard, and wherever it ends."""
    its = Listener(noise_and_silence(20.0, seed=3), start_frame)
    for setting, late in updates:
        its.update(setting, late)
    seen = its.running.encoded_frames
    last = round(end * (seen + 130))
    sound = its.end(start_frame + last)
    assert its.kept[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(its.kept))
    assert all(
        first <= until <= heard for (first, until), (_, heard) in zip(its.kept[:-1], its.windows, strict=False)
    )
    assert its.kept[-1][1] == its.kept[-1][0] + sound.mel.shape[1] >= last
    assert its.running.encoded_frames == max(last, its.kept[-1][0])
    assert sound.positions == -(-its.running.encoded_frames // 2)
    # As many frames as the backend has compiled for.
    assert sound.mel.shape[1] % WINDOW_BUCKET_FRAMES == 0
    assert sound.mel.shape[1] - (its.running.encoded_frames - its.kept[-1][0]) >= FINAL_SILENCE_FRAMES


def test_what_is_late_is_heard_in_whole_hops():
    its = Listener(noise_and_silence(5.0))
    assert its.update(SETTING, more=160 * 95).positions == 4 * 15
    assert its.running.next_update_sample(SETTING) == 150 * 160 + 200


@pytest.mark.parametrize(("end", "positions"), [(120, 60), (121, 61), (149, 75), (151, 76), (160, 80)])
def test_it_may_end_anywhere_behind_what_was_heard(end: int, positions: int):
    its = Listener(noise_and_silence(5.0), 50)
    for _ in range(4):
        its.update(SETTING)
    sound = its.end(50 + end)
    assert sound.positions == positions
    assert its.windows[-1] == (50, end)


def test_it_may_end_before_what_was_heard():
    its = Listener(noise_and_silence(5.0), 50)
    for _ in range(5):
        its.update(SETTING)
    assert its.end(50 + 131).positions == 66
    assert its.windows[-1] == (80, 131)


def test_an_end_before_what_was_kept_leaves_silence():
    its = Listener(noise_and_silence(5.0), 50)
    for _ in range(6):
        its.update(SETTING)
    sound = its.end(50 + 20)
    assert its.windows[-1] == (110, 110)
    assert sound.positions == 55
    assert sound.mel.shape[1] == FINAL_SILENCE_FRAMES


@pytest.mark.parametrize("length", [1, 2, 3, 19])
def test_an_utterance_that_ends_before_its_first_update(length: int):
    its = Listener(noise_and_silence(2.0), 10)
    sound = its.end(10 + length)
    assert sound.positions == (length + 1) // 2
    assert its.windows == [(0, length)]


def test_silence_is_as_silent_as_the_loudest_that_was_heard_makes_it():
    """8 decades below it, as in a transcription."""
    samples = noise_and_silence(2.0)
    samples[:12_000] *= 1e-2
    its = Listener(samples)
    floors = [its.update(SETTING).mel.min() for _ in range(4)]
    assert floors[0] <= floors[1] < floors[2] - 0.3
    assert floors[2] <= floors[3] < floors[2] + 0.2


# --- what is said ------------------------------------------------------------------------------------------


def hypothesis(text: str, places: Sequence[int], no_speech_prob: float | None = None) -> PartialHypothesis:
    """That says a text of which each word begins at a place; the last place is where the next would begin."""
    words = [" " + word for word in text.split()]
    starts = [place for place, word in zip(places, words, strict=False) for _ in word.encode()]
    tokens = TOKENIZER.encode("".join(words))
    return PartialHypothesis(
        tokens=tuple(tokens),
        logprobs=tuple(-0.01 * i for i in range(len(tokens))),
        attended_positions=np.array([*starts, places[len(words)]], np.int64),
        attention=np.zeros((1, len(tokens) + 1, 100), np.float32),
        reached_eot=False,
        no_speech_prob=no_speech_prob,
    )


def running(seen_frames: int = 200, **what: object) -> ActiveUtterance:
    its = ActiveUtterance(encoder=Ear(), n_mels=N_MELS, start_frame=1000, language="en", **what)
    its.encoded_frames = seen_frames
    return its


def text(spoken: Sequence[TimedToken]) -> str:
    return TOKENIZER.decode([its.token for its in spoken])


def said(its: ActiveUtterance) -> tuple[str, str]:
    """What is committed, and what is not."""
    return text(its.committed), TOKENIZER.decode(its.tentative)


def test_words_with_sound_behind_them_are_committed():
    its = running()
    its.update(hypothesis("to be or not", [10, 30, 60, 81, 90]), SETTING, TOKENIZER)
    assert said(its) == (" to be", " or not")
    assert its.tokens == (*b" to be or not",)
    its.encoded_frames = 230
    its.update(hypothesis("or not to be", [60, 81, 92, 99, 110]), SETTING, TOKENIZER)
    assert said(its) == (" to be or not", " to be")
    assert its.tokens == (*b" to be or not to be",)


def test_what_is_known_of_a_token_goes_with_it():
    its = running()
    its.update(hypothesis("to be", [10, 30, 60]), SETTING, TOKENIZER)
    assert [(spoken.start_position, spoken.end_position) for spoken in its.committed] == [
        (10, 10), (10, 10), (10, 30), (30, 30), (30, 30), (30, 55)
    ]  # fmt: skip
    assert [spoken.logprob for spoken in its.committed] == [-0.01 * i for i in range(6)]


def test_as_many_hypotheses_as_are_asked_for_agree_behind_what_stands():
    setting = replace(SETTING, local_agreement=2)
    its = running()
    its.update(hypothesis("to be or", [10, 30, 60, 75]), setting, TOKENIZER)
    assert said(its) == ("", " to be or")
    its.update(hypothesis("to be and", [10, 30, 60, 75]), setting, TOKENIZER)
    assert said(its) == (" to be", " and")
    its.update(hypothesis("and so", [60, 70, 75]), setting, TOKENIZER)
    assert said(its) == (" to be and", " so")
    its.update(hypothesis("on", [70, 75]), setting, TOKENIZER)
    assert said(its) == (" to be and", " on")


def test_three_in_a_row():
    setting = replace(SETTING, local_agreement=3)
    its = running()
    for last, expected in [("a b c", ""), ("a b d", ""), ("a b e", " a b"), ("e f", " a b"), ("e f", " a b e")]:
        places = [10] * (1 + len(last.split()))
        its.update(hypothesis(last, places), setting, TOKENIZER)
        assert said(its)[0] == expected


def test_what_was_agreed_on_behind_what_stands_is_still_agreed_on():
    setting = replace(SETTING, local_agreement=3)
    its = running()
    for _ in range(3):
        its.update(hypothesis("a b c", [10, 70, 81, 90]), setting, TOKENIZER)
    assert said(its) == (" a", " b c")
    its.update(hypothesis("b c", [30, 40, 50]), setting, TOKENIZER)
    assert said(its) == (" a b c", "")


def test_a_hypothesis_that_said_otherwise_before_what_stands_agrees_on_nothing():
    its = running()
    its.update(hypothesis("a y c", [10, 30, 40, 50]), replace(SETTING, local_agreement=3), TOKENIZER)
    its.update(hypothesis("x y c", [10, 70, 81, 90]), SETTING, TOKENIZER)
    assert said(its) == (" x", " y c")
    its.update(hypothesis("y c", [30, 40, 50]), replace(SETTING, local_agreement=3), TOKENIZER)
    assert said(its) == (" x", " y c")


def test_of_what_is_doubted_nothing_is_committed():
    its = running()
    its.reject(hypothesis("thank you", [10, 30, 60], no_speech_prob=0.9))
    assert its.rejected
    assert said(its) == ("", " thank you")
    assert its.no_speech_prob == 0.9
    its.update(hypothesis("to be", [10, 30, 60], no_speech_prob=0.1), SETTING, TOKENIZER)
    assert not its.rejected
    assert said(its) == (" to be", "")
    its.update(hypothesis("or", [70, 90]), SETTING, TOKENIZER)
    assert its.no_speech_prob == 0.1, "behind committed text nobody asks"


def test_at_the_end_all_is_committed():
    its = running()
    its.reject(hypothesis("thank", [10, 30]))
    its.finalize(hypothesis("to be or not", [10, 30, 60, 99, 100]))
    assert said(its) == (" to be or not", "")
    assert not its.rejected


# --- cuts --------------------------------------------------------------------------------------------------


def spoken_for_a_while() -> ActiveUtterance:
    """To be committed, or tentative: words at 10, 30, 60, 81, the last one up to 90."""
    its = running()
    its.update(hypothesis("to be or not", [10, 30, 60, 81, 90]), SETTING, TOKENIZER)
    return its


@pytest.mark.parametrize(
    ("frame", "before", "committed", "tentative"),
    [
        (1000, "", " to be", " or not"),
        (1020, "", " to be", " or not"),
        (1040, "", " to be", " or not"),
        (1042, " to", " be", " or not"),
        (1084, " to", " be", " or not"),
        (1086, " to be", "", " or not"),
        (1140, " to be", "", " or not"),
        (1142, " to be or", "", " not"),
        (1170, " to be or", "", " not"),
        (1172, " to be or not", "", ""),
        (1200, " to be or not", "", ""),
    ],
)
def test_it_is_cut_between_words_by_their_middle(frame: int, before: str, committed: str, tentative: str):
    cut = spoken_for_a_while().split(frame, TOKENIZER)
    assert (text(cut.finished_tokens), text(cut.next_committed)) == (before, committed)
    assert TOKENIZER.decode(cut.next_tentative) == tentative


def test_what_is_behind_a_cut_is_counted_from_there():
    cut = spoken_for_a_while().split(1051, TOKENIZER)
    assert [(its.start_position, its.end_position) for its in cut.next_committed] == [(5, 5), (5, 5), (5, 30)]
    assert [(its.start_position, its.end_position) for its in cut.finished_tokens] == [
        (10, 10),
        (10, 10),
        (10, 25),
    ]
    after = ActiveUtterance(
        encoder=Ear(),
        n_mels=N_MELS,
        start_frame=1051,
        committed=cut.next_committed,
        tentative=cut.next_tentative,
    )
    assert said(after) == (" be", " or not")


def test_tentative_text_has_its_places_too():
    cut = spoken_for_a_while().split(1200, TOKENIZER)
    assert [its.start_position for its in cut.finished_tokens] == [10] * 3 + [30] * 3 + [60] * 3 + [81] * 4
    assert cut.finished_tokens[-1].end_position == 90


def test_of_what_is_doubted_nothing_is_said_before_a_cut():
    its = running()
    its.reject(hypothesis("thank you very much", [10, 30, 60, 81, 90]))
    cut = its.split(1100, TOKENIZER)
    assert cut.finished_tokens == cut.next_committed == []
    assert TOKENIZER.decode(cut.next_tentative) == " very much"


def test_nothing_said_is_nothing_cut():
    cut = running().split(1060, TOKENIZER)
    assert (cut.finished_tokens, cut.next_committed, cut.next_tentative) == ([], [], ())


@given(
    words=st.lists(st.text("abé€", min_size=1, max_size=4), max_size=6),
    steps=st.lists(st.integers(0, 30), min_size=7, max_size=7),
    frame=st.integers(0, 400),
    seen=st.integers(0, 400),
)
def test_a_cut_loses_nothing_and_splits_no_word(words: list[str], steps: list[int], frame: int, seen: int):
    places = np.cumsum(steps).tolist()
    its = running(seen)
    its.update(hypothesis(" ".join(words), places), SETTING, TOKENIZER)
    cut = its.split(1000 + frame, TOKENIZER)
    tokens = [*(one.token for one in (*cut.finished_tokens, *cut.next_committed)), *cut.next_tentative]
    assert tuple(tokens) == its.tokens
    assert text(cut.finished_tokens).split() == words[: len(text(cut.finished_tokens).split())]
    assert len(cut.finished_tokens) + len(cut.next_committed) >= len(its.committed)
    assert not cut.next_committed or len(cut.finished_tokens) + len(cut.next_committed) == len(its.committed)


@pytest.mark.parametrize(("frame", "decoded"), [(1000, True), (1184, True), (1185, False), (1300, False)])
def test_what_is_before_the_margin_has_been_decoded(frame: int, decoded: bool):
    assert running(200).has_decoded(frame) == decoded


# --- the samples themselves --------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.integers(0, 50), max_size=12),
    asked=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), min_size=12, max_size=12),
)
def test_a_tape_knows_its_samples_by_their_number(lengths: list[int], asked: list[tuple[int, int]]):
    whole = np.arange(sum(lengths), dtype=np.float32)
    tape, forgotten = SampleBuffer(), 0
    for (first, length), block in zip(asked, np.split(whole, np.cumsum(lengths)), strict=False):
        tape.add(block)
        assert tape.end == (block[-1] + 1 if len(block) else tape.end)
        start = forgotten + first % (tape.end - forgotten + 1)
        np.testing.assert_array_equal(
            tape.between(start, start + length), whole[: tape.end][start : start + length]
        )
        tape.discard_before(start)
        tape.discard_before(forgotten)
        forgotten = start
        np.testing.assert_array_equal(tape.between(start, tape.end), whole[start : tape.end])


def test_a_tape_keeps_no_more_than_is_needed():
    tape = SampleBuffer()
    for _ in range(100):
        tape.add(np.zeros(1000, np.float32))
        tape.discard_before(tape.end - 10)
    assert tape.end == 100_000
    assert tape._samples.base is None, "what is forgotten is not held by a view"
    assert len(tape._samples) == 10
    with pytest.raises(AssertionError, match="forgotten"):
        tape.between(tape.end - 11, tape.end)
