"""Decoding of windows that grow, with models of which every logit is known, and all that they listen to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from fakes.backends import FakeFeatures, ScriptedBackend, ScriptedBackendSession, logits_of_texts
from harken.contract import Floats
from harken.decoding import (
    Greedy,
    LogitRules,
    PartialHypothesis,
    PartialWindow,
    Window,
    decode,
    decode_partial,
    make_logit_rules,
    make_prompt,
)
from tiny_models import DIMS, TOKENIZER

EOT = TOKENIZER.eot
PROMPT = make_prompt(
    TOKENIZER, 64, language="en", task="transcribe", timestamps=False, previous_tokens=b"Well,"
)
POSITIONS, MARGIN = 300, 8
BACK = 50
"""How far a token may go back to what another has listened to: a second."""
SPOKEN = tuple(b"to be or not")
LOGPROB = 12 - math.log(DIMS.n_vocab - 1 + math.exp(12))
"""Of each token that a table says, before any is suppressed."""
Places = Callable[[int, int], int]
"""Where whatever chooses a token of a window listens: which window, which token, committed ones counted."""


def in_steps(window: int, index: int) -> int:
    """A token every 0.2 s."""
    return 10 * index


class Ears(ScriptedBackend):
    """A table that listens where it is told to."""

    def __init__(self, *texts: Sequence[int], places: Places = in_steps, n_text_ctx: int = 64) -> None:
        super().__init__(
            logits_of_texts([[*text, EOT] for text in texts], len(PROMPT), DIMS.n_vocab), n_text_ctx
        )
        self.places = places

    def open_session(
        self, features: FakeFeatures, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> ScriptedBackendSession:
        assert attention, "growing windows are listened to"
        self.sessions.append(EarsSession(self, row_windows, capacity))
        return self.sessions[-1]


class EarsSession(ScriptedBackendSession):
    """Whose prompt listens to everything alike, and each token behind it to 7 positions."""

    def attention(self, row: int) -> Floats:
        window, seen = self.rows[row]
        weights = np.full((1, len(seen), POSITIONS), 1 / POSITIONS, np.float32)
        for index in range(len(seen) - len(PROMPT) + 1):
            place = self._backend.places(window, index)
            weights[0, len(PROMPT) - 1 + index] = 0
            weights[0, len(PROMPT) - 1 + index, place : place + 7] = 1 / 7
        return weights


def rules(*, blank: bool = False) -> LogitRules:
    return make_logit_rules(TOKENIZER, timestamps=False, suppress_tokens=(), suppress_blank=blank)


def growing(
    committed: Sequence[int] = (),
    previous: Sequence[int] = (),
    *,
    audio: int = 0,
    margin: int = 0,
    positions: int = POSITIONS,
) -> PartialWindow:
    return PartialWindow(
        window_index=audio,
        prompt=PROMPT,
        committed=tuple(committed),
        draft_tokens=tuple(previous),
        n_positions=positions,
        frame_threshold=margin,
    )


def heard(ears: Ears, *windows: PartialWindow, blank: bool = False) -> list[PartialHypothesis]:
    grown, _ = decode_partial(ears, FakeFeatures(len(windows)), windows, rules(blank=blank), TOKENIZER)
    return grown


# --- one window --------------------------------------------------------------------------------------------


def test_a_text_that_comes_to_its_end():
    (its,) = heard(Ears(SPOKEN), growing())
    assert its.tokens == SPOKEN
    assert its.reached_eot
    assert its.logprobs == pytest.approx([LOGPROB] * len(SPOKEN), abs=1e-3)
    assert its.attended_positions.tolist() == [10 * index for index in range(len(SPOKEN) + 1)]


def test_all_that_was_listened_to_is_told():
    """From what chose the first token to what would have chosen the next."""
    (its,) = heard(Ears(SPOKEN), growing(SPOKEN[:2]))
    assert its.attention.shape == (1, len(SPOKEN) - 2 + 1, POSITIONS)
    assert its.attention[0].argmax(axis=1).tolist() == its.attended_positions.tolist() == [*range(20, 130, 10)]


@pytest.mark.parametrize(("margin", "taken"), [(0, 12), (199, 11), (200, 10), (201, 10), (210, 9), (300, 0)])
def test_what_listens_to_the_last_of_the_sound_is_not_chosen_yet(margin: int, taken: int):
    (its,) = heard(Ears(SPOKEN), growing(margin=margin))
    assert its.tokens == SPOKEN[:taken]
    assert its.reached_eot == (taken == len(SPOKEN))
    assert its.attended_positions.tolist() == [10 * index for index in range(taken + 1)]


def test_silence_behind_the_sound_is_not_listened_to():
    """Half of it lies there: what is left of the last token's place is the last of the sound."""
    (its,) = heard(Ears(SPOKEN), growing(positions=54, margin=MARGIN))
    assert its.tokens == SPOKEN[:5]


@pytest.mark.parametrize(("back", "taken"), [(BACK, 12), (BACK + 1, 8)])
def test_what_goes_back_to_what_was_heard_is_not_chosen(back: int, taken: int):
    def repeats(window: int, index: int) -> int:
        return 10 * index if index < 8 else 70 - back

    (its,) = heard(Ears(SPOKEN, places=repeats), growing())
    assert its.tokens == SPOKEN[:taken]
    assert its.reached_eot == (taken == len(SPOKEN))
    assert its.attended_positions.tolist() == [10 * min(index, 7) for index in range(taken + 1)]


def test_it_may_go_back_a_little_again_and_again():
    (its,) = heard(Ears(SPOKEN, places=lambda window, index: 100 + 40 * (index % 2)), growing())
    assert its.tokens == SPOKEN
    assert its.attended_positions.tolist() == [100, *[140] * len(SPOKEN)]


def test_whatever_comes_back_from_where_it_went_is_measured_by_the_furthest():
    places = [100, 60, 49, 49, 49]
    (its,) = heard(Ears(SPOKEN, places=lambda window, index: places[min(index, 4)]), growing())
    assert its.tokens == SPOKEN[:2]


# --- loops -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("positions", "committed", "n_text_ctx", "taken"),
    [
        (100, 0, 200, 16 + 20),
        (130, 0, 200, 16 + 26),
        (100, 30, 200, 6),
        (100, 36, 200, 0),
        (100, 40, 200, 0),
        (100, 0, len(PROMPT) + 9, 9),
        (100, 5, len(PROMPT) + 9, 4),
        (100, 9, len(PROMPT) + 9, 0),
    ],
)
@pytest.mark.parametrize("drafted", [0, 3, 99])
def test_nobody_says_more_than_there_is_time_for(
    positions: int, committed: int, n_text_ctx: int, taken: int, drafted: int
):
    """Although it listens to one place for ever; a draft of it does not outgrow the decoder either."""
    talk = tuple(np.random.default_rng(0).integers(97, 123, 999).tolist())
    stands = talk[:committed]
    ears = Ears(talk, places=lambda window, index: 20, n_text_ctx=n_text_ctx)
    (its,) = heard(
        ears, growing(stands, talk[committed : committed + drafted], positions=positions, margin=MARGIN)
    )
    assert its.tokens == talk[committed : committed + taken]
    assert len(its.logprobs) == len(its.attended_positions) - 1 == taken
    assert not its.reached_eot


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (b"ah " * 6, b"ah "),
        (b"well, " + b"ah " * 5, b"well, ah"),
        (b"a" * 7, b"a"),
        (b"ha " * 4 + b"!", b"ha ha ha ha !"),
        (b"sing " * 3, b"sing "),
        (b"0123456789" * 3, b"0123456789"),
        (b"abc" * 2 + b"x", b"abcabcx"),
        (b"0123456789+" * 3, b"0123456789+" * 3),
    ],
)
@pytest.mark.parametrize("drafted", [0, 5, 8, 9, 20])
def test_what_loops_is_said_once(said: bytes, kept: bytes, drafted: int):
    (its,) = heard(Ears(said, places=lambda window, index: index), growing(previous=said[:drafted]))
    assert bytes(its.tokens) == kept
    assert its.reached_eot == (bytes(its.tokens) == said or said.startswith((b"01", b"sing")))
    assert len(its.logprobs) == len(its.attended_positions) - 1 == its.attention.shape[1] - 1 == len(kept)


@pytest.mark.parametrize(
    ("committed", "kept"), [(b"ah ", b""), (b"ah a", b""), (b"a", b"h "), (b"ah ah ah ", b"")]
)
def test_what_is_committed_counts_and_stays(committed: bytes, kept: bytes):
    (its,) = heard(Ears(b"ah " * 6, places=lambda window, index: index), growing(committed))
    assert bytes(its.tokens) == kept


def test_a_text_may_end_where_its_last_token_may_be():
    (its,) = heard(Ears(SPOKEN, n_text_ctx=len(PROMPT) + len(SPOKEN)), growing())
    assert its.tokens == SPOKEN
    assert its.reached_eot


# --- what was said before ----------------------------------------------------------------------------------


def passes(ears: Ears) -> list[tuple[int, ...]]:
    """What was read in each pass of a window alone."""
    (session,) = ears.sessions
    return [row for (row,) in session.read]


def test_a_draft_that_is_right_takes_one_pass():
    ears = Ears(SPOKEN)
    (its,) = heard(ears, growing(SPOKEN[:3], SPOKEN[3:]))
    assert its.tokens == SPOKEN[3:]
    assert passes(ears) == [(*PROMPT, *SPOKEN)]


def test_from_the_first_difference_on_it_is_forgotten():
    ears = Ears(SPOKEN)
    (its,) = heard(ears, growing(previous=[*SPOKEN[:5], ord("X"), *SPOKEN[6:]]))
    assert its.tokens == SPOKEN
    assert its.logprobs == pytest.approx([LOGPROB] * len(SPOKEN), abs=1e-3)
    assert [len(read) for read in passes(ears)] == [len(PROMPT) + len(SPOKEN), *[1] * (len(SPOKEN) - 5)]
    assert [read[0] for read in passes(ears)[1:]] == [*SPOKEN[5:]]


def test_a_draft_that_goes_on_behind_the_end_of_the_text():
    ears = Ears(SPOKEN)
    (its,) = heard(ears, growing(previous=(*SPOKEN, *b" that")))
    assert its.tokens == SPOKEN
    assert its.reached_eot
    assert its.attended_positions.tolist() == [10 * index for index in range(len(SPOKEN) + 1)]
    assert len(passes(ears)) == 1


@pytest.mark.parametrize("known", range(len(SPOKEN) + 1))
def test_a_draft_that_listens_to_the_last_of_the_sound_is_not_taken_either(known: int):
    (its,) = heard(Ears(SPOKEN), growing(previous=SPOKEN[:known], margin=POSITIONS - 70))
    assert its.tokens == SPOKEN[:7]
    assert not its.reached_eot


@pytest.mark.parametrize("known", range(len(SPOKEN) + 1))
def test_nor_one_that_goes_back(known: int):
    ears = Ears(SPOKEN, places=lambda window, index: (0, 60, 120, 69, 130)[min(index, 4)])
    (its,) = heard(ears, growing(previous=SPOKEN[:known]))
    assert its.tokens == SPOKEN[:3]


@pytest.mark.parametrize("known", range(12))
def test_a_token_is_compared_with_those_before_it_alone(known: int):
    """However many behind it have been read with it, they change no place."""

    def wavering(window: int, index: int) -> int:
        return (0, 12, 9, 20, 26, 21, 33, 30, 44, 40, 52, 47)[min(index, 11)]

    for margin in range(POSITIONS - 60, POSITIONS, 3):
        ears = Ears(SPOKEN, places=wavering)
        one, other = heard(ears, growing(margin=margin), growing(previous=SPOKEN[:known], margin=margin))
        assert one.tokens == other.tokens
        assert one.attended_positions.tolist() == other.attended_positions.tolist()


def test_committed_text_stands_whatever_the_model_would_say():
    ears = Ears(SPOKEN)
    committed = tuple(b"XYZ")
    (its,) = heard(ears, growing(committed))
    assert its.tokens == SPOKEN[3:]
    assert passes(ears)[0] == (*PROMPT, *committed)


def test_rules_know_what_is_committed():
    """A text may neither begin with a blank nor end before it begins; behind committed text it may."""
    (first,) = heard(Ears(()), growing(), blank=True)
    assert len(first.tokens) > 0
    (second,) = heard(Ears(b"x"), growing(b"x"), blank=True)
    assert second.tokens == ()
    assert second.reached_eot
    (third,) = heard(Ears(b"x"), growing(previous=b" "), blank=True)
    assert third.tokens == (ord("x"),)


def test_hotwords_and_suppressed_tokens_are_minded_in_drafts_too():
    never = make_logit_rules(TOKENIZER, timestamps=False, suppress_tokens=b"e", suppress_blank=False)
    grown, _ = decode_partial(
        Ears(SPOKEN), FakeFeatures(2), [growing(), growing(previous=SPOKEN)], never, TOKENIZER
    )
    for its in grown:
        assert ord("e") not in its.tokens
        assert its.tokens[:4] == SPOKEN[:4]
    assert grown[0].tokens == grown[1].tokens


# --- silence -----------------------------------------------------------------------------------------------


def doubting(window: int, seen: tuple[int, ...]) -> Floats:
    """Which tells how probable <|nospeech|> is by how much it has read."""
    logits = np.zeros(DIMS.n_vocab, np.float32)
    logits[TOKENIZER.no_speech] = len(seen) + 3 * window
    logits[EOT if len(seen) > len(PROMPT) + 6 else ord("a") + len(seen) - len(PROMPT)] = 40
    return logits


def test_silence_is_asked_for_behind_the_start_as_in_a_plain_decode():
    ears = Ears()
    ears.next_logits = doubting
    plain, _ = decode(
        ScriptedBackend(doubting, 64),
        FakeFeatures(2),
        [Window(window_index=audio, prompt=PROMPT) for audio in range(2)],
        tokenizer=TOKENIZER,
        logit_rules=rules(),
        strategy=Greedy(),
    )
    windows = [growing(previous=b"abX"), growing(audio=1), growing(b"a", b"bc")]
    *found, behind = heard(ears, *windows)
    assert [len(its.tokens) for its in found] == [7, 7]
    assert [its.no_speech_prob for its in found] == [its.no_speech_prob for its in plain]
    assert found[0].no_speech_prob != found[1].no_speech_prob
    assert behind.no_speech_prob is None


# --- several -----------------------------------------------------------------------------------------------


def test_windows_together_as_each_alone():
    """They end one after another, and each has a draft, a place to stop, and a text of its own."""
    texts = (SPOKEN, b"a", b"that is the question", b"", b"whether 'tis nobler")
    windows = [
        growing(previous=SPOKEN[:4], audio=0),
        growing(audio=1),
        growing(texts[2][:2], b"at xx the question", audio=2, margin=MARGIN),
        growing(audio=3, previous=b"to"),
        growing(audio=4, margin=POSITIONS - 70, positions=POSITIONS - 10),
    ]
    ears = Ears(*texts)
    together, stats = decode_partial(ears, FakeFeatures(5), windows, rules(), TOKENIZER)
    alone = [heard(Ears(*texts), window)[0] for window in windows]
    for one, other in zip(together, alone, strict=True):
        assert replace(one, places=(), attention=()) == replace(other, places=(), attention=())
        np.testing.assert_array_equal(one.attended_positions, other.attended_positions)
        np.testing.assert_array_equal(one.attention, other.attention)
    (session,) = ears.sessions
    assert [len(rows) for rows in session.read] == sorted((len(rows) for rows in session.read), reverse=True)
    assert all(all(row) for row in session.read)
    assert stats.forwards == len(session.read) < sum(len(its.tokens) for its in alone)


def test_what_it_costs_is_told():
    windows = [growing(SPOKEN[:2], SPOKEN[2:5]), growing(previous=b"toX")]
    _, stats = decode_partial(Ears(SPOKEN), FakeFeatures(2), windows, rules(), TOKENIZER)
    assert (stats.windows, stats.prompt_tokens) == (2, 2 * len(PROMPT) + 2)
    assert (stats.drafted, stats.accepted) == (6, 5)
    assert stats.sampled_tokens == 2 * len(SPOKEN) - 2
    assert stats.forwards == 1 + len(SPOKEN) - 2


def test_no_windows_are_no_work():
    assert heard(Ears(SPOKEN)) == []
