"""Tests of decoding partial windows, with table models whose logits and attention are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fakes.backends import FakeFeatures, ScriptedBackend, ScriptedBackendSession, logits_of_texts
from harken.contract import Floats
from harken.decoding import (
    LogitRules,
    PartialHypothesis,
    PartialWindow,
    decode_partial,
    make_logit_rules,
    make_prompt,
)
from tiny_models import DIMS, TOKENIZER

EOT = TOKENIZER.eot
PROMPT = make_prompt(
    TOKENIZER, 64, language="en", task="transcribe", timestamps=False, previous_tokens=b"Well,"
)
POSITIONS, THRESHOLD = 300, 8
BACK = 50
"""Positions by which a token may go back behind the latest attended one: a second."""
SPOKEN = tuple(b"to be or not")
LOGPROB = 12 - math.log(DIMS.n_vocab - 1 + math.exp(12))
"""Log-probability of each token of a table model, before any is suppressed."""
AttendedPosition = Callable[[int, int], int]
"""The position attended to when a token is picked, by window and index of the token, committed ones counted."""


def in_steps(window: int, index: int) -> int:
    """Return positions for a token every 0.2 s."""
    return 10 * index


class AttentiveTable(ScriptedBackend):
    """A table model with given attended positions."""

    def __init__(
        self, *texts: Sequence[int], attended: AttendedPosition = in_steps, n_text_ctx: int = 64
    ) -> None:
        super().__init__(
            logits_of_texts([[*text, EOT] for text in texts], len(PROMPT), DIMS.n_vocab), n_text_ctx
        )
        self.attended = attended

    def open_session(
        self, features: FakeFeatures, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> ScriptedBackendSession:
        assert attention, "partial windows need the attention"
        self.sessions.append(AttentiveSession(self, row_windows, capacity))
        return self.sessions[-1]


class AttentiveSession(ScriptedBackendSession):
    """A session in which the prompt attends to all positions alike, and each token behind it to 7 of them."""

    def attention(self, row: int) -> Floats:
        window, seen = self.rows[row]
        weights = np.full((1, len(seen), POSITIONS), 1 / POSITIONS, np.float32)
        for index in range(len(seen) - len(PROMPT) + 1):
            position = self._backend.attended(window, index)
            weights[0, len(PROMPT) - 1 + index] = 0
            weights[0, len(PROMPT) - 1 + index, position : position + 7] = 1 / 7
        return weights


def rules(*, blank: bool = False) -> LogitRules:
    return make_logit_rules(TOKENIZER, timestamps=False, suppress_tokens=(), suppress_blank=blank)


def partial(
    committed: Sequence[int] = (),
    draft: Sequence[int] = (),
    *,
    window_index: int = 0,
    frame_threshold: int = 0,
    n_positions: int = POSITIONS,
    speech: int = 0,
) -> PartialWindow:
    return PartialWindow(
        window_index=window_index,
        prompt=PROMPT,
        committed=tuple(committed),
        draft_tokens=tuple(draft),
        n_positions=n_positions,
        frame_threshold=frame_threshold,
        committed_end=10 * len(committed),
        speech=np.arange(n_positions) < speech,
    )


def decode_all(
    backend: AttentiveTable, *windows: PartialWindow, blank: bool = False
) -> list[PartialHypothesis]:
    hypotheses, _ = decode_partial(backend, FakeFeatures(len(windows)), windows, rules(blank=blank), TOKENIZER)
    return hypotheses


# --- one window --------------------------------------------------------------------------------------------


REST = tuple(b" not to be that is")
BROKEN_OFF = (*SPOKEN[:5], EOT, *REST)
"""A text whose most probable end is before its sixth token."""
FORCED = 0
"""The token of a table model where the most probable one may not be picked."""


@pytest.mark.parametrize(("speech", "goes_on"), [(0, False), (40 + 25 + 49, False), (40 + 25 + 50, True)])
def test_text_that_ends_a_second_before_the_speech_goes_on(speech: int, goes_on: bool):
    (hypothesis,) = decode_all(AttentiveTable(BROKEN_OFF), partial(speech=speech))
    whole = (*SPOKEN[:5], FORCED, *REST)
    assert hypothesis.tokens == (whole if goes_on else SPOKEN[:5])
    assert hypothesis.reached_eot
    n_tokens = len(hypothesis.tokens)
    assert hypothesis.attended_positions.tolist() == [10 * index for index in range(n_tokens + 1)]
    assert hypothesis.attention.shape == (1, n_tokens + 1, POSITIONS)
    assert len(hypothesis.logprobs) == n_tokens


def test_speech_without_any_text_stays_without():
    """The model hears no words in it."""
    (hypothesis,) = decode_all(AttentiveTable((EOT, *SPOKEN)), partial(speech=POSITIONS))
    assert hypothesis.tokens == ()


def test_improbable_text_does_not_go_on():
    (hypothesis,) = decode_all(AttentiveTable((*SPOKEN[:5], EOT, EOT)), partial(speech=POSITIONS))
    assert hypothesis.tokens == SPOKEN[:5]


@pytest.mark.parametrize(
    ("frame_threshold", "n_accepted"), [(0, 12), (199, 11), (200, 10), (201, 10), (210, 9), (300, 0)]
)
def test_token_within_frame_threshold_is_not_accepted(frame_threshold: int, n_accepted: int):
    (hypothesis,) = decode_all(AttentiveTable(SPOKEN), partial(frame_threshold=frame_threshold))
    assert hypothesis.tokens == SPOKEN[:n_accepted]
    assert hypothesis.reached_eot == (n_accepted == len(SPOKEN))
    assert hypothesis.attended_positions.tolist() == [10 * index for index in range(n_accepted + 1)]


def test_attention_to_padding_does_not_count():
    """Half of a token's attention lies in the padding; the rest lies in the last positions with audio."""
    (hypothesis,) = decode_all(AttentiveTable(SPOKEN), partial(n_positions=54, frame_threshold=THRESHOLD))
    assert hypothesis.tokens == SPOKEN[:5]


STEPS = [10 * index for index in range(8)]


@pytest.mark.parametrize(
    ("attended", "n_accepted"),
    [
        ([*STEPS, 70, 70 - BACK], 12),
        ([*STEPS, 70, 70 - BACK - 1], 9),
        ([100, 100, 60, 49], 3),  # from the latest attended position
        ([10, 20, 120, 30, 40], 12),  # a single token that attends far ahead does not count
    ],
)
def test_token_beyond_rewind_threshold_is_not_accepted(attended: list[int], n_accepted: int):
    backend = AttentiveTable(SPOKEN, attended=lambda window, index: attended[min(index, len(attended) - 1)])
    (hypothesis,) = decode_all(backend, partial())
    assert hypothesis.tokens == SPOKEN[:n_accepted]
    assert hypothesis.reached_eot == (n_accepted == len(SPOKEN))


# --- loops -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_positions", "n_committed", "n_text_ctx", "n_accepted"),
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
@pytest.mark.parametrize("n_draft", [0, 3, 99])
def test_tokens_are_limited_by_audio_and_context(
    n_positions: int, n_committed: int, n_text_ctx: int, n_accepted: int, n_draft: int
):
    """Even if all tokens attend to one position; a draft does not exceed the context either."""
    text = tuple(np.random.default_rng(0).integers(97, 123, 999).tolist())
    rest = text[n_committed:]
    backend = AttentiveTable(text, attended=lambda window, index: 20, n_text_ctx=n_text_ctx)
    (hypothesis,) = decode_all(
        backend, partial(text[:n_committed], rest[:n_draft], n_positions=n_positions, frame_threshold=THRESHOLD)
    )
    assert hypothesis.tokens == rest[:n_accepted]
    assert len(hypothesis.logprobs) == len(hypothesis.attended_positions) - 1 == n_accepted
    assert not hypothesis.reached_eot


@pytest.mark.parametrize(
    ("text", "expected"),
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
@pytest.mark.parametrize("n_draft", [0, 5, 8, 9, 20])
def test_loop_is_cut_to_one_repetition(text: bytes, expected: bytes, n_draft: int):
    (hypothesis,) = decode_all(
        AttentiveTable(text, attended=lambda window, index: index), partial(draft=text[:n_draft])
    )
    assert bytes(hypothesis.tokens) == expected
    assert hypothesis.reached_eot == (bytes(hypothesis.tokens) == text or text.startswith((b"01", b"sing")))
    assert (
        len(hypothesis.logprobs)
        == len(hypothesis.attended_positions) - 1
        == hypothesis.attention.shape[1] - 1
        == len(expected)
    )


@pytest.mark.parametrize(
    ("committed", "expected"), [(b"ah ", b""), (b"ah a", b""), (b"a", b"h "), (b"ah ah ah ", b"")]
)
def test_committed_tokens_count_for_loops_and_stay(committed: bytes, expected: bytes):
    (hypothesis,) = decode_all(
        AttentiveTable(b"ah " * 6, attended=lambda window, index: index), partial(committed)
    )
    assert bytes(hypothesis.tokens) == expected


# --- drafts ------------------------------------------------------------------------------------------------


def passes(backend: AttentiveTable) -> list[tuple[int, ...]]:
    """Return the tokens read in each forward pass of a single window."""
    (session,) = backend.sessions
    return [row for (row,) in session.read]


def test_draft_is_dropped_from_the_first_difference_on():
    backend = AttentiveTable(SPOKEN)
    (hypothesis,) = decode_all(backend, partial(draft=[*SPOKEN[:5], ord("X"), *SPOKEN[6:]]))
    assert hypothesis.tokens == SPOKEN
    assert hypothesis.logprobs == pytest.approx([LOGPROB] * len(SPOKEN), abs=1e-3)
    assert [len(read) for read in passes(backend)] == [len(PROMPT) + len(SPOKEN), *[1] * (len(SPOKEN) - 5)]
    assert [read[0] for read in passes(backend)[1:]] == [*SPOKEN[5:]]


def test_logit_rules_see_committed_tokens():
    """A text may begin with neither a blank nor eot; behind committed text it may."""
    (first,) = decode_all(AttentiveTable(()), partial(), blank=True)
    assert len(first.tokens) > 0
    (second,) = decode_all(AttentiveTable(b"x"), partial(b"x"), blank=True)
    assert second.tokens == ()
    assert second.reached_eot
    (third,) = decode_all(AttentiveTable(b"x"), partial(draft=b" "), blank=True)
    assert third.tokens == (ord("x"),)


# --- batches -----------------------------------------------------------------------------------------------


def test_stats_of_decode_partial():
    windows = [partial(SPOKEN[:2], SPOKEN[2:5]), partial(draft=b"toX")]
    _, stats = decode_partial(AttentiveTable(SPOKEN), FakeFeatures(2), windows, rules(), TOKENIZER)
    assert (stats.windows, stats.prompt_tokens) == (2, 2 * len(PROMPT) + 2)
    assert (stats.drafted, stats.accepted) == (6, 5)
    assert stats.sampled_tokens == 2 * len(SPOKEN) - 2
    assert stats.forwards == 1 + len(SPOKEN) - 2
