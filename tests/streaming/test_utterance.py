"""An utterance in progress: its windows, its commits and splits, and the stable prefix of a hypothesis."""

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
from harken.streaming.utterance import (
    ALIGNATT_THRESHOLD_FRAMES,
    FINAL_SILENCE_FRAMES,
    TRAILING_SILENCE_FRAMES,
    WINDOW_BUCKET_FRAMES,
    ActiveUtterance,
    EncoderChunk,
    TimedToken,
    stable_prefix_length,
)
from tiny_models import TOKENIZER

N_MELS = 8
CONFIG = StreamingConfig(window_frames=100, hop_frames=30, history_frames=0, commit_delay_frames=40)


# --- windows ------------------------------------------------------------------------------------------------


@dataclass
class FakeEncoder:
    """`harken.contract.StreamingEncoderState` that only counts its positions."""

    final_positions: int = 0
    positions: int = 0

    def encode(self, chunk: EncoderChunk) -> None:
        frames = chunk.mel.shape[1]
        assert chunk.mel.dtype == np.float32
        assert chunk.final_frames % 2 == 0
        assert 0 <= chunk.final_frames <= frames // 2 * 2
        self.positions = self.final_positions + frames // 2
        self.final_positions += chunk.final_frames // 2


class UtteranceFeeder:
    """Feeds an utterance as a stream does, and checks every window against the mel frames of all its samples.

    Parameters
    ----------
    samples : ndarray of shape (samples,), float32
        The stream.
    start_frame : int
        First frame of the utterance.

    Attributes
    ----------
    final_spans : list of (int, int)
        Frames of the utterance that each window made final.
    windows : list of (int, int)
        Frames of the utterance that each window encoded as audio.
    """

    def __init__(self, samples: Floats, start_frame: int = 0) -> None:
        self.encoder = FakeEncoder()
        self.utterance = ActiveUtterance(encoder=self.encoder, n_mels=N_MELS, start_frame=start_frame)
        self.final_spans: list[tuple[int, int]] = []
        self.windows: list[tuple[int, int]] = []
        self._samples = samples

    def update(self, config: StreamingConfig, more: int = 0) -> EncoderChunk:
        """Encode the next window when it is due, or some samples later."""
        self._receive_until(self.utterance.next_update_sample(config) + more)
        chunk = self.utterance.next_chunk(config)
        self._check(
            chunk,
            LogMel(N_MELS).feed(self._received)[:, : self.utterance.encoded_frames + 1],
            TRAILING_SILENCE_FRAMES,
        )
        return chunk

    def end(self, frame: int) -> EncoderChunk:
        """Encode the rest up to a frame of the stream."""
        self._receive_until(160 * frame)
        chunk = self.utterance.last_chunk(frame)
        mel = LogMel(N_MELS)
        whole = np.concatenate([mel.feed(self._received), mel.flush()], axis=1)[
            :, : self.utterance.encoded_frames + 1
        ]
        silence = chunk.mel.shape[1] - (self.utterance.encoded_frames - 2 * self.encoder.final_positions)
        self._check(chunk, whole, silence)
        return chunk

    def _receive_until(self, sample: int) -> None:
        assert sample <= len(self._samples), "the test asks for more than there is"
        if sample > self.utterance.next_sample:
            self.utterance.add_samples(self._samples[self.utterance.next_sample : sample])

    @property
    def _received(self) -> Floats:
        return self._samples[self.utterance.start_sample : self.utterance.next_sample]

    def _check(self, chunk: EncoderChunk, whole: Floats, silence_frames: int) -> None:
        """Check that a chunk has the frames after the final ones, normalized by all frames so far, then silence."""
        ceiling = float(whole.max(initial=LOG_MEL_FLOOR))
        first = 2 * self.encoder.final_positions
        expected = normalize(whole[:, first : first + chunk.mel.shape[1] - silence_frames], ceiling)
        frames = expected.shape[1]
        assert chunk.mel.shape == (N_MELS, frames + silence_frames)
        np.testing.assert_array_equal(chunk.mel[:, :frames], expected)
        np.testing.assert_array_equal(
            chunk.mel[:, frames:], normalize(np.float32([[LOG_MEL_FLOOR]]), ceiling).item()
        )
        self.encoder.encode(chunk)
        self.windows.append((first, self.utterance.encoded_frames))
        self.final_spans.append((first, first + chunk.final_frames))


def test_first_update_is_due_one_frame_after_the_first_hop():
    feeder = UtteranceFeeder(noise_and_silence(3.0))
    due = feeder.utterance.next_update_sample(CONFIG)
    assert due == 30 * 160 + 200
    feeder.utterance.add_samples(noise_and_silence(3.0)[: due - 1])
    assert feeder.utterance.next_chunk(replace(CONFIG, hop_frames=30)).positions == 0
    feeder.utterance.add_samples(noise_and_silence(3.0)[due - 1 : due])
    assert feeder.utterance.next_chunk(CONFIG).positions == 15


@pytest.mark.parametrize("start_frame", [0, 1, 77, 1234])
def test_positions_count_from_the_start_of_the_utterance(start_frame: int):
    feeder = UtteranceFeeder(noise_and_silence(15.0), start_frame)
    assert feeder.utterance.start_sample == feeder.utterance.next_sample == 160 * start_frame
    for update in range(1, 6):
        due = feeder.utterance.next_update_sample(CONFIG)
        assert due == 160 * (start_frame + 30 * update) + 200
        assert feeder.update(CONFIG).positions == 15 * update
        assert feeder.utterance.next_sample == due
        assert feeder.utterance.encoded_frames == 30 * update
    feeder.end(start_frame + 180)
    assert feeder.utterance.encoded_frames == 180


def test_windows_overlap_by_the_look_ahead():
    feeder = UtteranceFeeder(noise_and_silence(5.0))
    for _ in range(8):
        feeder.update(CONFIG)
    assert feeder.windows == [
        (0, 30),
        (0, 60),
        (0, 90),
        (20, 120),
        (50, 150),
        (80, 180),
        (110, 210),
        (140, 240),
    ]
    assert feeder.final_spans[-2:] == [(110, 140), (140, 170)]


def test_windows_grow_until_there_is_a_history():
    feeder = UtteranceFeeder(noise_and_silence(5.0))
    for _ in range(7):
        feeder.update(replace(CONFIG, history_frames=60))
    assert feeder.windows == [(0, 30), (0, 60), (0, 90), (0, 120), (0, 150), (80, 180), (110, 210)]
    assert feeder.final_spans[-3:] == [(0, 80), (80, 110), (110, 140)]


def test_only_the_last_chunk_has_no_alignatt_threshold():
    feeder = UtteranceFeeder(noise_and_silence(1.0))
    assert feeder.update(CONFIG).frame_threshold == ALIGNATT_THRESHOLD_FRAMES // 2
    assert feeder.end(100).frame_threshold == 0


frames = st.integers(5, 60).map(lambda half: 2 * half)
update_lists = st.lists(
    st.tuples(frames, frames, st.integers(0, 12_000), st.sampled_from([0, 60, 200])).map(
        lambda drawn: (
            StreamingConfig(window_frames=max(drawn[:2]), hop_frames=min(drawn[:2]), history_frames=drawn[3]),
            drawn[2] if drawn[2] > 6000 else 0,
        )
    ),
    max_size=8,
)


@settings(max_examples=40)
@given(updates=update_lists, start_frame=st.integers(0, 40), end=st.floats(0, 1))
def test_every_frame_becomes_final_exactly_once(
    updates: list[tuple[StreamingConfig, int]], start_frame: int, end: float
):
    """For any changes of the configuration, late updates, and any end."""
    feeder = UtteranceFeeder(noise_and_silence(20.0, seed=3), start_frame)
    for config, late in updates:
        feeder.update(config, late)
    last = round(end * (feeder.utterance.encoded_frames + 130))
    chunk = feeder.end(start_frame + last)
    assert feeder.final_spans[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(feeder.final_spans))
    assert all(
        first <= last <= encoded
        for (first, last), (_, encoded) in zip(feeder.final_spans[:-1], feeder.windows, strict=False)
    )
    assert feeder.final_spans[-1][1] == feeder.final_spans[-1][0] + chunk.mel.shape[1] >= last
    assert feeder.utterance.encoded_frames == max(last, feeder.final_spans[-1][0])
    assert chunk.positions == -(-feeder.utterance.encoded_frames // 2)
    # Few shapes, so that the backend compiles few graphs.
    assert chunk.mel.shape[1] % WINDOW_BUCKET_FRAMES == 0
    assert (
        chunk.mel.shape[1] - (feeder.utterance.encoded_frames - feeder.final_spans[-1][0])
        >= FINAL_SILENCE_FRAMES
    )


def test_late_update_encodes_whole_hops():
    feeder = UtteranceFeeder(noise_and_silence(5.0))
    assert feeder.update(CONFIG, more=160 * 95).positions == 4 * 15
    assert feeder.utterance.next_update_sample(CONFIG) == 150 * 160 + 200


@pytest.mark.parametrize(("end", "positions"), [(120, 60), (121, 61), (149, 75), (151, 76), (160, 80)])
def test_utterance_may_end_after_the_last_update(end: int, positions: int):
    feeder = UtteranceFeeder(noise_and_silence(5.0), 50)
    for _ in range(4):
        feeder.update(CONFIG)
    chunk = feeder.end(50 + end)
    assert chunk.positions == positions
    assert feeder.windows[-1] == (50, end)


def test_utterance_may_end_before_the_last_update():
    feeder = UtteranceFeeder(noise_and_silence(5.0), 50)
    for _ in range(5):
        feeder.update(CONFIG)
    assert feeder.end(50 + 131).positions == 66
    assert feeder.windows[-1] == (80, 131)


def test_utterance_that_ends_before_the_final_frames_leaves_silence():
    feeder = UtteranceFeeder(noise_and_silence(5.0), 50)
    for _ in range(6):
        feeder.update(CONFIG)
    chunk = feeder.end(50 + 20)
    assert feeder.windows[-1] == (110, 110)
    assert chunk.positions == 55
    assert chunk.mel.shape[1] == FINAL_SILENCE_FRAMES


@pytest.mark.parametrize("length", [1, 2, 3, 19])
def test_utterance_that_ends_before_its_first_update_is_encoded(length: int):
    feeder = UtteranceFeeder(noise_and_silence(2.0), 10)
    chunk = feeder.end(10 + length)
    assert chunk.positions == (length + 1) // 2
    assert feeder.windows == [(0, length)]


def test_added_silence_is_relative_to_the_loudest_audio_so_far():
    """8 decades below it, as in a transcription."""
    samples = noise_and_silence(2.0)
    samples[:12_000] *= 1e-2
    feeder = UtteranceFeeder(samples)
    floors = [feeder.update(CONFIG).mel.min() for _ in range(4)]
    assert floors[0] <= floors[1] < floors[2] - 0.3
    assert floors[2] <= floors[3] < floors[2] + 0.2


# --- commits ------------------------------------------------------------------------------------------------


def hypothesis(text: str, positions: Sequence[int], no_speech_prob: float | None = None) -> PartialHypothesis:
    """Return a hypothesis whose words attend to given positions; the last position is that of the next token."""
    words = [" " + word for word in text.split()]
    starts = [position for position, word in zip(positions, words, strict=False) for _ in word.encode()]
    tokens = TOKENIZER.encode("".join(words))
    return PartialHypothesis(
        tokens=tuple(tokens),
        logprobs=tuple(-0.01 * i for i in range(len(tokens))),
        attended_positions=np.array([*starts, positions[len(words)]], np.int64),
        attention=np.zeros((1, len(tokens) + 1, 100), np.float32),
        reached_eot=False,
        no_speech_prob=no_speech_prob,
    )


def new_utterance(encoded_frames: int = 200) -> ActiveUtterance:
    utterance = ActiveUtterance(encoder=FakeEncoder(), n_mels=N_MELS, start_frame=1000, language="en")
    utterance.encoded_frames = encoded_frames
    return utterance


def text(tokens: Sequence[TimedToken]) -> str:
    return TOKENIZER.decode([token.token for token in tokens])


def texts_of(utterance: ActiveUtterance) -> tuple[str, str]:
    """Return the committed and the tentative text."""
    return text(utterance.committed), TOKENIZER.decode(utterance.tentative)


def test_words_before_the_commit_delay_are_committed():
    utterance = new_utterance()
    utterance.update(hypothesis("to be or not", [10, 30, 60, 81, 90]), CONFIG, TOKENIZER)
    assert texts_of(utterance) == (" to be", " or not")
    assert utterance.tokens == (*b" to be or not",)
    utterance.encoded_frames = 230
    utterance.update(hypothesis("or not to be", [60, 81, 92, 99, 110]), CONFIG, TOKENIZER)
    assert texts_of(utterance) == (" to be or not", " to be")
    assert utterance.tokens == (*b" to be or not to be",)


def test_committed_tokens_have_times_and_log_probabilities():
    utterance = new_utterance()
    utterance.update(hypothesis("to be", [10, 30, 60]), CONFIG, TOKENIZER)
    assert [(token.start_position, token.end_position) for token in utterance.committed] == [
        (10, 10), (10, 10), (10, 30), (30, 30), (30, 30), (30, 55)
    ]  # fmt: skip
    assert [token.logprob for token in utterance.committed] == [-0.01 * i for i in range(6)]


def test_agreeing_hypotheses_are_committed_after_the_committed_tokens():
    config = replace(CONFIG, local_agreement=2, hop_frames=10)
    utterance = new_utterance()
    utterance.update(hypothesis("to be or", [10, 30, 60, 75]), config, TOKENIZER)
    assert texts_of(utterance) == ("", " to be or")
    utterance.update(hypothesis("to be and", [10, 30, 60, 75]), config, TOKENIZER)
    assert texts_of(utterance) == (" to be", " and")
    utterance.update(hypothesis("and so", [60, 70, 75]), config, TOKENIZER)
    assert texts_of(utterance) == (" to be and", " so")
    utterance.update(hypothesis("on", [70, 75]), config, TOKENIZER)
    assert texts_of(utterance) == (" to be and", " on")


def test_local_agreement_of_three():
    config = replace(CONFIG, local_agreement=3)
    utterance = new_utterance()
    for last, expected in [("a b c", ""), ("a b d", ""), ("a b e", " a b"), ("e f", " a b"), ("e f", " a b e")]:
        positions = [10] * (1 + len(last.split()))
        utterance.update(hypothesis(last, positions), config, TOKENIZER)
        assert texts_of(utterance)[0] == expected


def test_agreement_continues_after_a_commit():
    config = replace(CONFIG, local_agreement=3)
    utterance = new_utterance()
    for _ in range(3):
        utterance.update(hypothesis("a b c", [10, 70, 81, 90]), config, TOKENIZER)
    assert texts_of(utterance) == (" a", " b c")
    utterance.update(hypothesis("b c", [30, 40, 50]), config, TOKENIZER)
    assert texts_of(utterance) == (" a b c", "")


def test_hypothesis_that_differs_in_committed_tokens_does_not_count_as_agreement():
    utterance = new_utterance()
    utterance.update(hypothesis("a y c", [10, 30, 40, 50]), replace(CONFIG, local_agreement=3), TOKENIZER)
    utterance.update(hypothesis("x y c", [10, 70, 81, 90]), CONFIG, TOKENIZER)
    assert texts_of(utterance) == (" x", " y c")
    utterance.update(hypothesis("y c", [30, 40, 50]), replace(CONFIG, local_agreement=3), TOKENIZER)
    assert texts_of(utterance) == (" x", " y c")


def test_rejected_hypothesis_is_only_a_draft():
    utterance = new_utterance()
    utterance.reject(hypothesis("thank you", [10, 30, 60], no_speech_prob=0.9))
    assert utterance.rejected
    assert texts_of(utterance) == ("", " thank you")
    assert utterance.no_speech_prob == 0.9
    utterance.update(hypothesis("to be", [10, 30, 60], no_speech_prob=0.1), CONFIG, TOKENIZER)
    assert not utterance.rejected
    assert texts_of(utterance) == (" to be", "")
    utterance.update(hypothesis("or", [70, 90]), CONFIG, TOKENIZER)
    assert utterance.no_speech_prob == 0.1, "kept where a hypothesis has none"


def test_finalize_commits_all_tokens():
    utterance = new_utterance()
    utterance.reject(hypothesis("thank", [10, 30]))
    utterance.finalize(hypothesis("to be or not", [10, 30, 60, 99, 100]))
    assert texts_of(utterance) == (" to be or not", "")
    assert not utterance.rejected


# --- splits -------------------------------------------------------------------------------------------------


def partly_committed() -> ActiveUtterance:
    """Return an utterance with "to be" committed and "or not" tentative: words at 10, 30, 60, 81, the last to 90."""
    utterance = new_utterance()
    utterance.update(hypothesis("to be or not", [10, 30, 60, 81, 90]), CONFIG, TOKENIZER)
    return utterance


@pytest.mark.parametrize(
    ("frame", "finished", "committed", "tentative"),
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
def test_split_assigns_words_by_their_middle(frame: int, finished: str, committed: str, tentative: str):
    split = partly_committed().split(frame, TOKENIZER)
    assert (text(split.finished_tokens), text(split.next_committed)) == (finished, committed)
    assert TOKENIZER.decode(split.next_tentative) == tentative


def test_tokens_after_a_split_have_times_from_the_split():
    split = partly_committed().split(1051, TOKENIZER)
    assert [(token.start_position, token.end_position) for token in split.next_committed] == [
        (5, 5),
        (5, 5),
        (5, 30),
    ]
    assert [(token.start_position, token.end_position) for token in split.finished_tokens] == [
        (10, 10),
        (10, 10),
        (10, 25),
    ]
    after = ActiveUtterance(
        encoder=FakeEncoder(),
        n_mels=N_MELS,
        start_frame=1051,
        committed=split.next_committed,
        tentative=split.next_tentative,
    )
    assert texts_of(after) == (" be", " or not")


def test_split_includes_times_of_tentative_tokens():
    split = partly_committed().split(1200, TOKENIZER)
    assert [token.start_position for token in split.finished_tokens] == [10] * 3 + [30] * 3 + [60] * 3 + [
        81
    ] * 4
    assert split.finished_tokens[-1].end_position == 90


def test_split_drops_a_rejected_hypothesis():
    utterance = new_utterance()
    utterance.reject(hypothesis("thank you very much", [10, 30, 60, 81, 90]))
    split = utterance.split(1100, TOKENIZER)
    assert split.finished_tokens == split.next_committed == []
    assert TOKENIZER.decode(split.next_tentative) == " very much"


def test_split_without_tokens_is_empty():
    split = new_utterance().split(1060, TOKENIZER)
    assert (split.finished_tokens, split.next_committed, split.next_tentative) == ([], [], ())


@given(
    words=st.lists(st.text("abé€", min_size=1, max_size=4), max_size=6),
    steps=st.lists(st.integers(0, 30), min_size=7, max_size=7),
    frame=st.integers(0, 400),
    encoded_frames=st.integers(0, 400),
)
def test_split_loses_no_token_and_divides_no_word(
    words: list[str], steps: list[int], frame: int, encoded_frames: int
):
    positions = np.cumsum(steps).tolist()
    utterance = new_utterance(encoded_frames)
    utterance.update(hypothesis(" ".join(words), positions), CONFIG, TOKENIZER)
    split = utterance.split(1000 + frame, TOKENIZER)
    tokens = [
        *(token.token for token in (*split.finished_tokens, *split.next_committed)),
        *split.next_tentative,
    ]
    assert tuple(tokens) == utterance.tokens
    assert text(split.finished_tokens).split() == words[: len(text(split.finished_tokens).split())]
    assert len(split.finished_tokens) + len(split.next_committed) >= len(utterance.committed)
    assert not split.next_committed or len(split.finished_tokens) + len(split.next_committed) == len(
        utterance.committed
    )


@pytest.mark.parametrize(("frame", "decoded"), [(1000, True), (1184, True), (1185, False), (1300, False)])
def test_frames_before_the_alignatt_threshold_count_as_decoded(frame: int, decoded: bool):
    assert new_utterance(200).has_decoded(frame) == decoded


# --- stable prefix ------------------------------------------------------------------------------------------


def stable_tokens(
    tokens: str,
    positions: list[int],
    word_lengths: list[int],
    *previous: str,
    encoded_positions: int = 100,
    commit_delay_frames: int = 40,
    local_agreement: int = 1,
) -> int:
    """Return the length of the stable prefix; each letter is a token."""
    config = StreamingConfig(
        hop_frames=10, commit_delay_frames=commit_delay_frames, local_agreement=local_agreement
    )
    return stable_prefix_length(
        [*map(ord, tokens)],
        np.array(positions, np.int64),
        word_lengths,
        [[*map(ord, hypothesis)] for hypothesis in previous],
        encoded_positions,
        config,
    )


@pytest.mark.parametrize(
    ("tokens", "positions", "word_lengths", "expected"),
    [
        # commit delay: the next word begins at least 20 positions before the end
        ("abc", [10, 30, 60, 80], [1, 1, 1], 3),
        ("abc", [10, 30, 60, 81], [1, 1, 1], 2),
        ("abc", [10, 70, 81, 90], [1, 1, 1], 1),
        ("abc", [60, 81, 90, 95], [1, 1, 1], 0),
        # a pause after a word is not part of it
        ("abc", [10, 55, 90, 95], [1, 1, 1], 2),
        ("abc", [10, 56, 90, 95], [1, 1, 1], 1),
        ("abc", [80, 80, 80, 80], [1, 1, 1], 3),
        ("abc", [81, 81, 81, 81], [1, 1, 1], 0),
        # whole words: the first token of the next word does not count
        ("abcd", [10, 20, 30, 81, 90], [2, 2], 2),
        ("abcd", [10, 20, 30, 70, 81], [2, 2], 2),
        ("abcd", [10, 20, 30, 40, 80], [2, 2], 4),
        ("abcd", [10, 20, 30, 70, 81], [4], 0),
        ("abcd", [10, 20, 30, 40, 80], [4], 4),
        ("abcd", [10, 20, 30, 90, 91], [1, 3], 1),
        # no tokens
        ("", [0], [], 0),
        ("", [100], [], 0),
    ],
)
def test_stable_prefix_is_whole_words_that_end_before_the_commit_delay(
    tokens: str, positions: list[int], word_lengths: list[int], expected: int
):
    assert stable_tokens(tokens, positions, word_lengths) == expected


@pytest.mark.parametrize(
    ("commit_delay_frames", "encoded_positions", "expected"),
    [
        (0, 100, 4),
        (0, 94, 3),
        (12, 100, 3),
        (13, 100, 3),
        (20, 100, 3),
        (22, 100, 3),
        (32, 100, 2),
        (200, 100, 0),
        (40, 50, 1),
    ],
)
def test_commit_delay_counts_from_the_end_of_the_audio(
    commit_delay_frames: int, encoded_positions: int, expected: int
):
    positions = [10, 30, 60, 90, 95]
    found = stable_tokens(
        "abcd",
        positions,
        [1] * 4,
        encoded_positions=encoded_positions,
        commit_delay_frames=commit_delay_frames,
    )
    assert found == expected


@pytest.mark.parametrize(
    ("local_agreement", "previous", "expected"),
    [
        (1, [], 4),
        (1, ["xyzw"], 4),
        (2, [], 0),
        (2, ["abcd"], 4),
        (2, ["abcdef"], 4),
        (2, ["abc"], 2),
        (2, ["abxd"], 2),
        (2, ["axcd"], 0),
        (2, ["xbcd"], 0),
        (2, [""], 0),
        (2, ["abcd", "xyzw"], 4),
        (3, ["abcd"], 0),
        (3, ["abcd", "abcd"], 4),
        (3, ["abcd", "abxd"], 2),
        (3, ["abxd", "abcd"], 2),
        (3, ["abcd", "abcd", "xyzw"], 4),
    ],
)
def test_local_agreement_needs_that_many_consecutive_hypotheses(
    local_agreement: int, previous: list[str], expected: int
):
    """With words of two tokens each, of which only whole ones count."""
    assert (
        stable_tokens("abcd", [0, 10, 20, 30, 40], [2, 2], *previous, local_agreement=local_agreement)
        == expected
    )


# --- pauses -------------------------------------------------------------------------------------------------


def utterance_in_pause(n_final_frames: int = 180) -> ActiveUtterance:
    """Return an utterance of 2 s whose text has ended."""
    utterance = new_utterance()
    utterance.encoder = FakeEncoder(final_positions=n_final_frames // 2)
    ended = replace(hypothesis("to be or", [10, 30, 82, 90]), reached_eot=True)
    utterance.update(ended, CONFIG, TOKENIZER)
    return utterance


def test_update_is_skipped_once_all_speech_is_heard_and_the_text_has_ended():
    utterance = utterance_in_pause()
    assert utterance.can_skip(CONFIG, 1000 + 200 - ALIGNATT_THRESHOLD_FRAMES)
    assert not utterance.can_skip(CONFIG, 1000 + 200 - ALIGNATT_THRESHOLD_FRAMES + 1)
    assert not utterance.can_skip(CONFIG, None), "there is speech"
    assert not new_utterance().can_skip(CONFIG, 1000)
    utterance.update(hypothesis("or not", [60, 81, 90]), CONFIG, TOKENIZER)
    assert not utterance.can_skip(CONFIG, 1000), "the text was cut off"


def test_words_are_committed_while_updates_are_skipped():
    utterance = utterance_in_pause()
    assert texts_of(utterance) == (" to be", " or")
    utterance.skip_update(CONFIG, TOKENIZER)
    assert texts_of(utterance) == (" to be or", "")
    assert (utterance.encoded_frames, utterance.heard_frames) == (200, 230)
    assert utterance.next_update_sample(CONFIG) == (1000 + 260) * 160 + 200


def test_no_update_is_skipped_that_would_make_a_later_window_too_long():
    utterance = utterance_in_pause()
    utterance.skip_update(CONFIG, TOKENIZER)
    assert not utterance.can_skip(CONFIG, 1000)
    assert not utterance_in_pause(n_final_frames=150).can_skip(CONFIG, 1000)


def test_last_hypothesis_ends_an_utterance_in_a_pause():
    utterance = utterance_in_pause()
    utterance.finalize_last()
    assert texts_of(utterance) == (" to be or", "")


def test_window_after_a_pause_covers_what_was_skipped():
    feeder = UtteranceFeeder(noise_and_silence(5.0))
    for _ in range(4):
        feeder.update(CONFIG)
    feeder.utterance.skipped_frames = 30
    feeder.update(CONFIG)
    assert feeder.windows[-1] == (50, 180)
    assert feeder.utterance.skipped_frames == 0


def test_all_hypotheses_that_agree_need_the_commit_delay():
    """The one before had heard a hop less, which is 5 positions."""
    assert stable_tokens("a", [60, 76], [1], "a", local_agreement=2) == 0
    assert stable_tokens("a", [60, 75], [1], "a", local_agreement=2) == 1
    assert stable_tokens("a", [60, 71], [1], "a", "a", local_agreement=3) == 0
    assert stable_tokens("a", [60, 70], [1], "a", "a", local_agreement=3) == 1


def test_stable_prefix_needs_commit_delay_and_local_agreement():
    positions = [0, 60, 81, 85, 90]
    assert stable_tokens("abcd", positions, [1] * 4, "abxd", local_agreement=2) == 1
    assert stable_tokens("abcd", positions, [1] * 4, "xbcd", local_agreement=2) == 0
    assert stable_tokens("abcd", [0, 10, 20, 30, 40], [1] * 4, "abcx", local_agreement=2) == 3
