"""An utterance in progress: its windows, its commits and splits, its text, words and sentences, hallucinations."""

from dataclasses import dataclass, replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fakes.speech_detector import noise_and_silence
from harken.audio.mel import LOG_MEL_FLOOR, LogMel, normalize
from harken.decoding import PartialHypothesis
from harken.streaming.config import StreamingConfig
from harken.streaming.utterance import ActiveUtterance, TimedToken, stable_prefix_length
from harken.streaming.utterance_audio import (
    ALIGNATT_THRESHOLD_FRAMES,
    FINAL_SILENCE_FRAMES,
    TRAILING_SILENCE_FRAMES,
    WINDOW_BUCKET_FRAMES,
    UtteranceAudio,
)
from tiny_models import TOKENIZER

N_MELS = 8
START_FRAME = 1000
CONFIG = StreamingConfig(window_frames=100, hop_frames=30, history_frames=0, commit_delay_frames=40)


# --- windows ------------------------------------------------------------------------------------------------


@dataclass
class FakeEncoder:
    """`harken.contract.StreamingEncoderState` that only counts its positions."""

    final_positions: int = 0


class AudioFeeder:
    """Feeds an utterance as a stream does, and checks every window against the mel frames of all its samples."""

    def __init__(self, samples, start_frame):
        self.encoder = FakeEncoder()
        self.audio = UtteranceAudio(self.encoder, N_MELS, start_frame)
        self.final_spans = []
        self._samples = samples

    def update(self, config, late_samples):
        """Encode the next window when it is due, or some samples later."""
        self._receive_until(self.audio.next_update_sample(config) + late_samples)
        chunk = self.audio.next_chunk(config)
        assert chunk.final_frames % 2 == 0
        self._check(chunk, LogMel(N_MELS).feed(self._received), TRAILING_SILENCE_FRAMES)
        assert self.final_spans[-1][1] <= self.audio.encoded_frames

    def end(self, frame):
        """Encode the rest up to a frame of the stream."""
        self._receive_until(160 * frame)
        chunk = self.audio.last_chunk(frame)
        mel = LogMel(N_MELS)
        whole = np.concatenate([mel.feed(self._received), mel.flush()], axis=1)
        silence = chunk.mel.shape[1] - (self.audio.encoded_frames - 2 * self.encoder.final_positions)
        self._check(chunk, whole, silence)
        return chunk

    def _receive_until(self, sample):
        assert sample <= len(self._samples), "the test asks for more than there is"
        if sample > self.audio.next_sample:
            self.audio.add_samples(self._samples[self.audio.next_sample : sample])

    @property
    def _received(self):
        return self._samples[self.audio.start_sample : self.audio.next_sample]

    def _check(self, chunk, whole, silence_frames):
        """Check that a chunk has the frames after the final ones, normalized by all frames so far, then silence."""
        whole = whole[:, : self.audio.encoded_frames + 1]
        ceiling = float(whole.max(initial=LOG_MEL_FLOOR))
        first, size = 2 * self.encoder.final_positions, chunk.mel.shape[1]
        heard = whole[:, first : first + size - silence_frames]
        silence = np.full((N_MELS, silence_frames), LOG_MEL_FLOOR, np.float32)
        np.testing.assert_array_equal(chunk.mel, normalize(np.concatenate([heard, silence], axis=1), ceiling))
        assert 0 <= chunk.final_frames <= size // 2 * 2
        self.encoder.final_positions += chunk.final_frames // 2
        self.final_spans.append((first, first + chunk.final_frames))


frames = st.integers(5, 60).map(lambda half: 2 * half)
late_samples = st.just(0) | st.integers(6000, 12_000)


@settings(max_examples=40)
@given(
    updates=st.lists(st.tuples(frames, frames, st.sampled_from([0, 60, 200]), late_samples), max_size=8),
    start_frame=st.integers(0, 40),
    end=st.floats(0, 1),
)
def test_every_frame_becomes_final_exactly_once(updates, start_frame, end):
    """For any changes of the configuration, late updates, and any end."""
    feeder = AudioFeeder(noise_and_silence(20.0, seed=3), start_frame)
    for one, other, history, late in updates:
        hop, window = sorted((one, other))
        feeder.update(StreamingConfig(window_frames=window, hop_frames=hop, history_frames=history), late)
    last = round(end * (feeder.audio.encoded_frames + 130))
    chunk = feeder.end(start_frame + last)
    assert feeder.final_spans[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(feeder.final_spans))
    assert feeder.final_spans[-1][1] == feeder.final_spans[-1][0] + chunk.mel.shape[1] >= last
    assert feeder.audio.encoded_frames == max(last, feeder.final_spans[-1][0])
    assert chunk.positions == -(-feeder.audio.encoded_frames // 2)
    # Few shapes, so that the backend compiles few graphs.
    assert chunk.mel.shape[1] % WINDOW_BUCKET_FRAMES == 0
    audio_frames = feeder.audio.encoded_frames - feeder.final_spans[-1][0]
    assert chunk.mel.shape[1] - audio_frames >= FINAL_SILENCE_FRAMES


# --- commits ------------------------------------------------------------------------------------------------


def new_utterance(encoded_frames=200, start_frame=START_FRAME, n_final=0, **fields):
    audio = UtteranceAudio(FakeEncoder(final_positions=n_final), N_MELS, start_frame)
    audio.encoded_frames = encoded_frames
    given = {"language": "en", "no_speech_prob": 0.25, **fields}
    return ActiveUtterance(audio=audio, tokenizer=TOKENIZER, **given)


def hypothesis(tokens, positions, **fields):
    """Return a hypothesis whose tokens attend to given positions; the last position is that of the next token."""
    given = {
        "logprobs": (-0.1,) * len(tokens),
        "attention": np.zeros((1, len(tokens) + 1, 100), np.float32),
        "reached_eot": False,
        "no_speech_prob": None,
    }
    return PartialHypothesis(
        tokens=tuple(tokens), attended_positions=np.array(positions, np.int64), **given | fields
    )


def spoken(text, positions, **fields):
    """Return a hypothesis in which all tokens of a word attend to one position."""
    words = [" " + word for word in text.split()]
    starts = [position for position, word in zip(positions, words, strict=False) for _ in word.encode()]
    return hypothesis(TOKENIZER.encode("".join(words)), [*starts, positions[len(words)]], **fields)


def text(tokens):
    return TOKENIZER.decode([token.token for token in tokens])


def texts_of(utterance):
    """Return the committed and the tentative text."""
    return text(utterance.committed), TOKENIZER.decode(utterance.tentative)


def partly_committed():
    """Return an utterance of "to be or not", of which "to be" is old enough; the words begin at 10, 30, 60, 81."""
    utterance = new_utterance()
    utterance.update(spoken("to be or not", [10, 30, 60, 81, 90]), CONFIG)
    return utterance


def test_words_before_the_commit_delay_are_committed_and_other_committed_tokens_are_no_agreement():
    utterance = partly_committed()
    assert texts_of(utterance) == (" to be", " or not")
    utterance.audio.encoded_frames = 230
    utterance.update(spoken("or not to be", [60, 81, 92, 99, 110]), CONFIG)
    assert texts_of(utterance) == (" to be or not", " to be")
    assert utterance.tokens == (*b" to be or not to be",)
    utterance, agreement = new_utterance(), replace(CONFIG, local_agreement=3)
    utterance.update(spoken("a y c", [10, 30, 40, 50]), agreement)
    utterance.update(spoken("x y c", [10, 70, 81, 90]), CONFIG)
    assert texts_of(utterance) == (" x", " y c")
    utterance.update(spoken("y c", [30, 40, 50]), agreement)
    assert texts_of(utterance) == (" x", " y c")


def test_rejected_hypothesis_is_only_a_draft():
    utterance = new_utterance()
    utterance.reject(spoken("thank you", [10, 30, 60], no_speech_prob=0.9))
    assert (utterance.rejected, utterance.no_speech_prob) == (True, 0.9)
    assert texts_of(utterance) == ("", " thank you")
    utterance.update(spoken("to be", [10, 30, 60], no_speech_prob=0.1), CONFIG)
    assert not utterance.rejected
    assert texts_of(utterance) == (" to be", "")
    utterance.update(spoken("or", [70, 90]), CONFIG)
    assert utterance.no_speech_prob == 0.1, "kept where a hypothesis has none"


@given(
    hypotheses=st.lists(st.lists(st.sampled_from("ab"), max_size=8), min_size=1, max_size=4),
    steps=st.lists(st.integers(0, 20), min_size=9, max_size=9),
    words=st.lists(st.integers(1, 3), max_size=8),
    agreement=st.integers(1, 3),
    delay_frames=st.integers(0, 100),
)
def test_committed_tokens_are_agreed_whole_words_with_the_delay_behind_them(
    hypotheses, steps, words, agreement, delay_frames
):
    """And no further word could be committed."""
    latest, *earlier = ([ord(letter) for letter in letters] for letters in hypotheses)
    config = StreamingConfig(hop_frames=10, commit_delay_frames=delay_frames, local_agreement=agreement)
    positions = np.cumsum(steps)[: len(latest) + 1]
    word_ends = [end for end in np.cumsum(words).tolist() if end <= len(latest)]
    found = stable_prefix_length(latest, positions, np.diff([0, *word_ends]).tolist(), earlier, 100, config)
    # Each earlier hypothesis had heard a hop less.
    heard_until = 100 - (delay_frames + 10 * (agreement - 1)) // 2

    def may_be_committed(end):
        agreed = all(other[:end] == latest[:end] for other in earlier[: agreement - 1])
        word_end = min(positions[end], positions[end - 1] + 25)  # half a second's pause is not part of a word
        return len(earlier) >= agreement - 1 and agreed and word_end <= heard_until

    assert found == max(filter(may_be_committed, word_ends), default=0)


def test_updates_are_skipped_once_all_speech_is_heard_and_the_text_has_ended():
    """Words are committed meanwhile."""
    utterance = new_utterance(n_final=90)
    utterance.update(spoken("to be or", [10, 30, 82, 90], reached_eot=True), CONFIG)
    heard_until = START_FRAME + 200 - ALIGNATT_THRESHOLD_FRAMES
    assert utterance.audio.can_skip(CONFIG)
    assert not new_utterance().audio.can_skip(CONFIG), "it would not fit into the next window"
    assert utterance.is_complete(heard_until)
    assert not utterance.is_complete(heard_until + 1)
    assert not utterance.is_complete(None), "there is speech"
    assert not new_utterance().is_complete(START_FRAME)
    assert texts_of(utterance) == (" to be", " or")
    utterance.skip_update(CONFIG)
    assert texts_of(utterance) == (" to be or", "")
    assert (utterance.audio.encoded_frames, utterance.audio.heard_frames) == (200, 230)
    assert utterance.audio.next_update_sample(CONFIG) == (START_FRAME + 260) * 160 + 200
    utterance.update(spoken("or not", [60, 81, 90]), CONFIG)
    assert not utterance.is_complete(START_FRAME), "the text was cut off"


# --- splits -------------------------------------------------------------------------------------------------


def test_split_assigns_words_by_their_middle_and_counts_times_from_the_next_utterance():
    splits = ((40, "", " to be", " or not"), (42, " to", " be", " or not"), (142, " to be or", "", " not"))
    for (frame, *parts), pause in product(splits, (0, 10)):
        utterance = partly_committed()
        following = new_utterance(0, start_frame=START_FRAME + frame + pause)
        finished = utterance.split(START_FRAME + frame, following)
        assert [text(finished), *texts_of(following)] == parts
        origin = (frame + pause) // 2
        for index, (before, after) in enumerate(
            zip(utterance.committed, [*finished, *following.committed], strict=False)
        ):
            for name in ("start_position", "end_position"):
                time, moved = getattr(before, name), getattr(after, name)
                assert moved == (min(time, frame // 2) if index < len(finished) else max(0, time - origin))


# --- text ---------------------------------------------------------------------------------------------------

STEP = 10
"""Positions from the start of one token to that of the next."""


def byte_tokens(data):
    """Return timed tokens, a byte each, that begin one after another."""
    return [
        TimedToken(token=byte, logprob=-0.1 * (i % 3), start_position=STEP * i, end_position=STEP * (i + 1))
        for i, byte in enumerate(data)
    ]


def saying(committed, tentative=b""):
    return new_utterance(400, committed=byte_tokens(committed), tentative=tuple(tentative))


@given(text=st.text("ab €é😀.", max_size=12), cuts=st.lists(st.integers(0, 48), min_size=4, max_size=4))
@example(text="€", cuts=[1, 2, 2, 3])
def test_committed_text_only_grows_and_never_ends_inside_a_character(text, cuts):
    """For any split of a text into committed, tentative and future tokens; invalid bytes are shown."""
    assert saying(b" a\xe2", b" b").text == ("a", "\ufffd b")
    data = text.encode()
    steps = sorted(min(cut, len(data)) for cut in cuts)
    shown = [saying(data[:a], data[a:b]).text for a, b in pairwise(steps)]
    for (committed, tentative), (a, b) in zip(shown, pairwise(steps), strict=True):
        assert text.lstrip().startswith(committed + tentative)
        assert not committed or committed.encode() in data[:a]
        assert len(data[:b].decode(errors="ignore").lstrip()) == len(committed + tentative)
    for (before, _), (after, _) in pairwise(shown):
        assert after.startswith(before)


def test_sentence_end_is_found_in_the_last_characters():
    ended = ((" To be.", ""), (" To be", "."), (" To be", "! "), ("好", "。"), (" τώρα", ";"), (" है।", ""))
    going_on = (("", ""), (" To be.", " Or"), (" To be", ","), (" No. 5", ""))
    for committed, tentative in ended + going_on:
        utterance = saying(committed.encode(), tentative.encode())
        assert utterance.ends_sentence == ((committed, tentative) in ended)
    assert not saying("好".encode(), "。".encode()[:2]).ends_sentence


def segments_of(data):
    return saying(data).segments(byte_tokens(data), with_words=True)


def test_half_a_character_is_no_text_of_a_final_segment():
    utterance = new_utterance()
    utterance.finalize(hypothesis(" Да".encode() + "н".encode()[:1], range(7)))
    (segment,) = utterance.segments(utterance.committed, with_words=True)
    assert segment.text == "".join(word.text for word in segment.words) == " Да"


def test_each_sentence_is_a_segment_and_words_have_times_in_the_stream():
    """A token attends to every 0.2 s, and is spoken 0.2 s before; the utterance begins after 10 s."""
    segments = segments_of(b" To be, sir. Or not? To")
    one, other, _ = segments[0].words
    found = [(each.text, round(each.start_s, 6), round(each.end_s, 6)) for each in (*segments, one, other)]
    sentences = [(" To be, sir.", 10.0, 12.2), (" Or not?", 12.2, 13.8), (" To", 13.8, 14.4)]
    assert found == [*sentences, (" To", 10.0, 10.4), (" be,", 10.4, 11.2)]
    assert one.probability == pytest.approx(np.mean(np.exp([0.0, -0.1, -0.2])))
    found = saying(b"").words(byte_tokens(b" He said: go!) Then... so"))
    assert [word.text for word in found] == [" He", " said:", " go!)", " Then...", " so"]


@given(data=st.text("ab .?€,\"'", max_size=25).map(str.encode) | st.binary(max_size=20))
def test_segments_and_words_contain_all_text_in_order(data):
    found = segments_of(data)
    assert tuple(token for segment in found for token in segment.tokens) == tuple(data)
    if "�" not in (whole := data.decode(errors="replace")):
        assert "".join(segment.text for segment in found) == whole
        assert all(segment.text == "".join(word.text for word in segment.words) for segment in found)
    for timed in (found, *(segment.words for segment in found)):
        assert all(one.end_s <= other.start_s for one, other in pairwise(timed))


def test_word_times_are_monotonic_with_attention_to_earlier_audio():
    """The last word attends to audio before the committed words; the full stop belongs to the word before it."""
    utterance = new_utterance(0)
    for said, positions in ((" ba", [40, 45, 50, 60]), (".", [10, 12]), (" co", [5, 6, 7, 70])):
        utterance.finalize(hypothesis(TOKENIZER.encode(said), positions))
    ba, co = utterance.words(utterance.committed)
    assert (ba.text, ba.start_s, ba.end_s) == (" ba.", 10.6, 11.0)
    assert (co.text, co.start_s, co.end_s) == (" co", 11.0, 11.2)


@given(
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=30), end=st.integers(0, 60), sent=st.integers(0, 15)
)
def test_every_word_has_a_time_of_its_own(steps, end, sent):
    """Even if all of them attend to one place, or to the silence behind the speech."""
    utterance = new_utterance(0)
    utterance.finalize(hypothesis(TOKENIZER.encode(" a" * 15)[: len(steps)], [0, *np.cumsum(steps)]))
    tokens = utterance.committed_until(START_FRAME + end)
    (segment,) = utterance.segments(tokens, with_words=True)
    first = utterance.words(tokens[:sent])
    others = utterance.words(tokens[sent:], first[-1].end_s if first else 0.0)
    for words in (segment.words, utterance.words(tokens), [*first, *others]):
        assert all(word.start_s < word.end_s for word in words)
        assert all(one.end_s <= other.start_s for one, other in pairwise(words))


# --- hallucinations -----------------------------------------------------------------------------------------


def candidate(said=" To be or not to be", logprob=-0.1, no_speech=0.05, diffuse=False):
    positions = 5 * np.arange(len(said) + 1)
    sharp = np.tile((np.arange(300) == positions[:, None]).astype(np.float32), (2, 1, 1))
    return hypothesis(
        said.encode(),
        positions,
        logprobs=(logprob,) * len(said),
        attention=np.full_like(sharp, 1 / 300) if diffuse else sharp,
        reached_eot=True,
        no_speech_prob=no_speech,
    )


@pytest.mark.parametrize(
    ("candidate", "speech_prob", "rejected"),
    [
        *((candidate(), 0.9, False), (candidate(" Thank you."), 0.9, False)),
        *((candidate(logprob=-1.2), 0.9, False), (candidate(" Thank you.", diffuse=True), 0.02, True)),
        (candidate(diffuse=True, logprob=-1.3, no_speech=0.9), 0.02, True),
        (candidate(" a a a a a a a a a a a a a", logprob=-1.2, diffuse=True), 0.45, True),
        (candidate(" a b c d e f g h i j k l m", logprob=-1.0, diffuse=True), 0.45, False),
    ],
)
def test_hallucinations_are_rejected_and_speech_is_not(candidate, speech_prob, rejected):
    probabilities = np.full(100, speech_prob, np.float32)
    assert new_utterance(400).is_hallucination(candidate, probabilities, 0.5) is rejected
