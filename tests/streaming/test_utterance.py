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
    """Feeds an utterance as a stream does, and checks every window against the mel frames of all its samples."""

    def __init__(self, samples: Floats, start_frame: int = 0) -> None:
        self.encoder = FakeEncoder()
        self.utterance = ActiveUtterance(encoder=self.encoder, n_mels=N_MELS, start_frame=start_frame)
        self.final_spans: list[tuple[int, int]] = []
        self._samples = samples

    def update(self, config: StreamingConfig, more: int = 0) -> None:
        """Encode the next window when it is due, or some samples later."""
        self._receive_until(self.utterance.next_update_sample(config) + more)
        chunk = self.utterance.next_chunk(config)
        self._check(chunk, LogMel(N_MELS).feed(self._received), TRAILING_SILENCE_FRAMES)
        assert self.final_spans[-1][1] <= self.utterance.encoded_frames

    def end(self, frame: int) -> EncoderChunk:
        """Encode the rest up to a frame of the stream."""
        self._receive_until(160 * frame)
        chunk = self.utterance.last_chunk(frame)
        mel = LogMel(N_MELS)
        whole = np.concatenate([mel.feed(self._received), mel.flush()], axis=1)
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
        whole = whole[:, : self.utterance.encoded_frames + 1]
        ceiling = float(whole.max(initial=LOG_MEL_FLOOR))
        first, size = 2 * self.encoder.final_positions, chunk.mel.shape[1]
        heard = whole[:, first : first + size - silence_frames]
        silence = np.full((N_MELS, silence_frames), LOG_MEL_FLOOR, np.float32)
        np.testing.assert_array_equal(chunk.mel, normalize(np.concatenate([heard, silence], axis=1), ceiling))
        self.encoder.encode(chunk)
        self.final_spans.append((first, first + chunk.final_frames))


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
    assert feeder.final_spans[-1][1] == feeder.final_spans[-1][0] + chunk.mel.shape[1] >= last
    assert feeder.utterance.encoded_frames == max(last, feeder.final_spans[-1][0])
    assert chunk.positions == -(-feeder.utterance.encoded_frames // 2)
    # Few shapes, so that the backend compiles few graphs.
    assert chunk.mel.shape[1] % WINDOW_BUCKET_FRAMES == 0
    audio_frames = feeder.utterance.encoded_frames - feeder.final_spans[-1][0]
    assert chunk.mel.shape[1] - audio_frames >= FINAL_SILENCE_FRAMES


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


def test_hypothesis_that_differs_in_committed_tokens_does_not_count_as_agreement():
    utterance, agreement = new_utterance(), replace(CONFIG, local_agreement=3)
    utterance.update(hypothesis("a y c", [10, 30, 40, 50]), agreement, TOKENIZER)
    utterance.update(hypothesis("x y c", [10, 70, 81, 90]), CONFIG, TOKENIZER)
    assert texts_of(utterance) == (" x", " y c")
    utterance.update(hypothesis("y c", [30, 40, 50]), agreement, TOKENIZER)
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


# --- splits -------------------------------------------------------------------------------------------------


def partly_committed() -> ActiveUtterance:
    """Return an utterance with "to be" committed and "or not" tentative: words at 10, 30, 60, 81, the last to 90."""
    utterance = new_utterance()
    utterance.update(hypothesis("to be or not", [10, 30, 60, 81, 90]), CONFIG, TOKENIZER)
    return utterance


@pytest.mark.parametrize(
    ("frame", "finished", "committed", "tentative"),
    [
        (1040, "", " to be", " or not"),
        (1042, " to", " be", " or not"),
        (1086, " to be", "", " or not"),
        (1142, " to be or", "", " not"),
        (1172, " to be or not", "", ""),
    ],
)
def test_split_assigns_words_by_their_middle(frame: int, finished: str, committed: str, tentative: str):
    split = partly_committed().split(frame, TOKENIZER)
    assert (text(split.finished_tokens), text(split.next_committed)) == (finished, committed)
    assert TOKENIZER.decode(split.next_tentative) == tentative


def test_tokens_after_a_split_have_times_from_the_split():
    def times(tokens: Sequence[TimedToken]) -> list[tuple[int, int]]:
        return [(token.start_position, token.end_position) for token in tokens]

    split = partly_committed().split(1051, TOKENIZER)
    assert times(split.next_committed) == [(5, 5), (5, 5), (5, 30)]
    assert times(split.finished_tokens) == [(10, 10), (10, 10), (10, 25)]


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


@given(
    hypotheses=st.lists(st.lists(st.sampled_from("ab"), max_size=8), min_size=1, max_size=4),
    steps=st.lists(st.integers(0, 20), min_size=9, max_size=9),
    words=st.lists(st.integers(1, 3), max_size=8),
    agreement=st.integers(1, 3),
    delay_frames=st.integers(0, 100),
)
def test_committed_tokens_are_agreed_whole_words_with_the_delay_behind_them(
    hypotheses: list[list[str]], steps: list[int], words: list[int], agreement: int, delay_frames: int
):
    """And no further word could be committed."""
    latest, *earlier = ([ord(letter) for letter in letters] for letters in hypotheses)
    config = StreamingConfig(hop_frames=10, commit_delay_frames=delay_frames, local_agreement=agreement)
    positions = np.cumsum(steps)[: len(latest) + 1]
    word_ends = [end for end in np.cumsum(words).tolist() if end <= len(latest)]
    found = stable_prefix_length(latest, positions, np.diff([0, *word_ends]).tolist(), earlier, 100, config)
    # Each earlier hypothesis had heard a hop less.
    heard_until = 100 - (delay_frames + 10 * (agreement - 1)) // 2

    def may_be_committed(end: int) -> bool:
        agreed = all(other[:end] == latest[:end] for other in earlier[: agreement - 1])
        word_end = min(
            positions[end], positions[end - 1] + 25
        )  # a pause of half a second is not part of a word
        return len(earlier) >= agreement - 1 and agreed and word_end <= heard_until

    assert found == max(filter(may_be_committed, word_ends), default=0)
