"""Partial windows: where their text ends, on tables of known attention, and the same text whatever the draft."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_windows import TEXT, TOKEN, rules_over, windows

from fakes.backends import FakeFeatures, ScriptedBackend, ScriptedBackendSession, logits_of_texts
from harken.decoding import PartialWindow, decode_partial, make_logit_rules, make_prompt, partial_window
from harken.decoding.alignment_attention import RunningAlignment, alignment_matrix
from tiny_models import DIMS, TOKENIZER, make_mel

EOT = TOKENIZER.eot
PROMPT = make_prompt(
    TOKENIZER, 64, language="en", task="transcribe", timestamps=False, previous_tokens=b"Well,"
)
POSITIONS, THRESHOLD = 300, 8
BACK = 50
"""Positions by which a token may go back behind the latest attended one: a second."""
SPOKEN = tuple(b"to be or not")


class AttentiveTable(ScriptedBackend):
    """A model of one text, with the position attended to by index of the token, committed ones counted.

    By default it is that of a token every 0.2 s.
    """

    def __init__(self, text, attended=(10).__mul__, n_text_ctx=64):
        super().__init__(logits_of_texts([[*text, EOT]] * 2, len(PROMPT), DIMS.n_vocab), n_text_ctx)
        self.attended = attended

    def open_session(self, features, row_windows, capacity, *, attention=False):
        assert attention, "partial windows need the attention"
        self.sessions.append(AttentiveSession(self, row_windows, capacity))
        return self.sessions[-1]


class AttentiveSession(ScriptedBackendSession):
    """A session in which the prompt attends to all positions alike, and each token behind it to 7 of them."""

    def attention(self, row):
        _, seen = self.rows[row]
        weights = np.full((1, len(seen), POSITIONS), 1 / POSITIONS, np.float32)
        for index in range(len(seen) - len(PROMPT) + 1):
            position = self._backend.attended(index)
            weights[0, len(PROMPT) - 1 + index] = 0
            weights[0, len(PROMPT) - 1 + index, position : position + 7] = 1 / 7
        return weights


def plain_rules(*, blank=False):
    return make_logit_rules(TOKENIZER, timestamps=False, suppress_tokens=(), suppress_blank=blank)


NO_SPEECH = np.zeros(0, bool)


def partial(committed=(), draft=(), **options):
    given = {"window_index": 0, "prompt": PROMPT, "n_positions": POSITIONS, "frame_threshold": 0}
    given |= {"speech": NO_SPEECH, **options}
    tokens = {"committed": tuple(committed), "draft_tokens": tuple(draft), "committed_end": 10 * len(committed)}
    return PartialWindow(**tokens, **given)


def decode_table(backend, window, rules=None):
    (hypothesis,) = decode_all(backend, FakeFeatures(1), [window], rules or plain_rules())
    assert len(hypothesis.logprobs) == len(hypothesis.tokens)
    assert len(hypothesis.attended_positions) == hypothesis.attention.shape[1] == len(hypothesis.tokens) + 1
    return hypothesis


def decode_all(backend, features, windows, rules):
    return decode_partial(backend, features, windows, rules, TOKENIZER)[0]


# --- where a text ends -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "speech", "expected"),
    [
        # Its most probable end is before the sixth token, a second before the speech ends or less.
        (b"to be\xff not to be that is", 0, b"to be"),
        (b"to be\xff not to be that is", 40 + 25 + 49, b"to be"),
        (b"to be\xff not to be that is", 40 + 25 + 50, b"to be\0 not to be that is"),
        (b"\xffto be or not", POSITIONS, b""),  # the model hears no words in it
        (b"to be\xff\xff", POSITIONS, b"to be"),  # what would follow is improbable
    ],
)
def test_text_that_ends_a_second_before_the_speech_goes_on(text, speech, expected):
    """Here, 255 is the end of text; where it may not be picked, the token of a table is 0."""
    tokens = [EOT if byte == 255 else byte for byte in text]
    hypothesis = decode_table(AttentiveTable(tokens), partial(speech=np.arange(POSITIONS) < speech))
    assert bytes(hypothesis.tokens) == expected
    assert hypothesis.reached_eot


STEPS = [10 * index for index in range(13)]


@pytest.mark.parametrize(
    ("attended", "options", "n_accepted"),
    [
        # Not a token that attends to the last positions,
        *(
            (STEPS, {"frame_threshold": n}, left)
            for n, left in {0: 12, 199: 11, 200: 10, 201: 10, 210: 9, 300: 0}.items()
        ),
        # not even with half of its attention, if the other half lies in the padding;
        (STEPS, {"n_positions": 54, "frame_threshold": THRESHOLD}, 5),
        # nor one that goes back far from the latest attended position,
        ([*STEPS[:8], 70, 70 - BACK], {}, 12),
        ([*STEPS[:8], 70, 70 - BACK - 1], {}, 9),
        ([100, 100, 60, 49], {}, 3),
        ([10, 20, 120, 30, 40], {}, 12),  # for which a single token that attends far ahead does not count
    ],
)
def test_token_that_attends_too_far_ahead_or_back_is_not_accepted(attended, options, n_accepted):
    backend = AttentiveTable(SPOKEN, lambda index: attended[min(index, len(attended) - 1)])
    hypothesis = decode_table(backend, partial(**options))
    assert hypothesis.tokens == SPOKEN[:n_accepted]
    assert hypothesis.reached_eot == (n_accepted == len(SPOKEN))
    for n_committed in range(n_accepted + 1):  # committed tokens count like others
        rest = decode_table(backend, partial(SPOKEN[:n_committed], **options))
        assert (rest.tokens, rest.reached_eot) == (SPOKEN[n_committed:n_accepted], hypothesis.reached_eot)
    if attended is STEPS and "n_positions" not in options:
        assert hypothesis.attended_positions.tolist() == STEPS[: n_accepted + 1]


@pytest.mark.parametrize(
    ("n_positions", "n_committed", "n_text_ctx", "n_accepted"),
    [
        (100, 0, 200, 16 + 20),
        (130, 0, 200, 16 + 26),
        (100, 30, 200, 6),
        (100, 40, 200, 0),
        (100, 0, len(PROMPT) + 9, 9),
        (100, 5, len(PROMPT) + 9, 4),
        (100, 9, len(PROMPT) + 9, 0),
    ],
)
def test_tokens_are_limited_by_audio_and_context(n_positions, n_committed, n_text_ctx, n_accepted):
    """Even if all tokens attend to one position; a draft does not exceed the context either."""
    text = tuple(np.random.default_rng(0).integers(97, 123, 999).tolist())
    rest = text[n_committed:]
    for n_draft in (0, 99):
        backend = AttentiveTable(text, lambda index: 20, n_text_ctx)
        window = partial(text[:n_committed], rest[:n_draft], n_positions=n_positions, frame_threshold=THRESHOLD)
        hypothesis = decode_table(backend, window)
        assert hypothesis.tokens == rest[:n_accepted]
        assert not hypothesis.reached_eot


@pytest.mark.parametrize(
    ("committed", "text", "expected"),
    [
        (b"", b"ah " * 6, b"ah "),
        (b"", b"well, " + b"ah " * 5, b"well, ah"),
        (b"", b"a" * 7, b"a"),
        (b"", b"ha " * 4 + b"!", b"ha ha ha ha !"),
        (b"", b"sing " * 3, b"sing "),
        (b"", b"0123456789" * 3, b"0123456789"),
        (b"", b"abc" * 2 + b"x", b"abcabcx"),
        (b"", b"0123456789+" * 3, b"0123456789+" * 3),
        # Committed tokens count, and stay.
        (b"ah ", b"ah " * 6, b""),
        (b"ah a", b"ah " * 6, b""),
        (b"a", b"ah " * 6, b"h "),
        (b"ah ah ah ", b"ah " * 6, b""),
    ],
)
def test_loop_is_cut_to_one_repetition(committed, text, expected):
    for draft in (b"", text[len(committed) :][:9]):
        hypothesis = decode_table(AttentiveTable(text, int), partial(committed, draft))
        assert bytes(hypothesis.tokens) == expected
        ends = expected == text or text.startswith((b"01", b"sing"))
        assert hypothesis.reached_eot == (ends and not committed)


@pytest.mark.parametrize(("said_again_after", "expected"), [(30, b" no no"), (0, b" no")])
@pytest.mark.parametrize("committed", [b"", b" n"])
def test_words_written_twice_and_said_once_are_kept_once(said_again_after, expected, committed):
    def attended(index):
        return 10 * (index % 3) + said_again_after * (index // 3)

    hypothesis = decode_table(AttentiveTable(b" no no", attended), partial(committed))
    assert committed + bytes(hypothesis.tokens) == expected


def test_logit_rules_see_committed_tokens():
    """A text may begin with neither a blank nor eot; behind committed text it may."""
    rules = plain_rules(blank=True)
    assert len(decode_table(AttentiveTable(()), partial(), rules).tokens) > 0
    behind = decode_table(AttentiveTable(b"x"), partial(b"x"), rules)
    assert (behind.tokens, behind.reached_eot) == ((), True)
    assert decode_table(AttentiveTable(b"x"), partial(draft=b" "), rules).tokens == (ord("x"),)


# --- drafts ------------------------------------------------------------------------------------------------


def test_draft_is_dropped_from_the_first_difference_on():
    backend = AttentiveTable(SPOKEN)
    drafted = [partial(draft=[*SPOKEN[:5], ord("X"), *SPOKEN[6:]]), partial(SPOKEN[:2], SPOKEN[2:5])]
    (one, other), stats = decode_partial(backend, FakeFeatures(2), drafted, plain_rules(), TOKENIZER)
    assert (one.tokens, other.tokens) == (SPOKEN, SPOKEN[2:])
    (session,) = backend.sessions
    assert [len(read) for read in session.read[0]] == [len(PROMPT) + len(SPOKEN), len(PROMPT) + 5]
    assert [read[0] for read in session.read[1:]] == [(token,) for token in SPOKEN[5:]]
    assert stats.forwards == 1 + len(SPOKEN) - 5
    assert (stats.windows, stats.prompt_tokens) == (2, 2 * len(PROMPT) + 2)
    assert (stats.drafted, stats.accepted) == (len(SPOKEN) + 3, 5 + 3)
    assert stats.sampled_tokens == 2 * len(SPOKEN) - 2


# --- any draft in any batch --------------------------------------------------------------------------------

LENGTHS = (DIMS.n_audio_ctx, 9, 17, 12)
"""Number of positions of each stream."""
RULES = [
    rules_over(kept, timestamps=False, hotwords=("Ron", "sienna tae"))
    for kept in ([*TEXT, EOT], TEXT, [*TEXT[::2], EOT])
]
anything = st.one_of(TOKEN, TOKEN, TOKEN, st.integers(0, DIMS.n_vocab - 1))


@st.composite
def partial_windows(draw):
    window = draw(windows(timestamps=False))
    return PartialWindow(
        window_index=window.window_index,
        prompt=window.prompt,
        committed=tuple(draw(st.lists(TOKEN, max_size=6))),
        draft_tokens=tuple(draw(st.lists(anything, max_size=30))),
        n_positions=draw(st.integers(8, LENGTHS[window.window_index])),
        frame_threshold=draw(st.integers(0, 4)),
        committed_end=0,
        speech=NO_SPEECH,
    )


@pytest.fixture(scope="module", params=["numpy", "onnx-fp32", "native-int8"])
def engine(request, open_backend):
    """A backend, its features of streams of different length, and the tolerance between batches."""
    backend = open_backend(request.param)
    encoders = [backend.open_encoder(8) for _ in LENGTHS]
    for encoder, length, mel in zip(encoders, LENGTHS, make_mel(len(LENGTHS)), strict=True):
        backend.encode_chunk([encoder], mel[None, :, :13], 8)
        backend.encode_chunk([encoder], mel[None, :, 8 : 2 * length], 2 * length - 8)
    return backend, backend.stream_features(encoders), 0.0 if request.param == "native-int8" else 1e-4


@settings(max_examples=15)
@given(
    drawn=st.lists(partial_windows(), min_size=1, max_size=4),
    rules=st.sampled_from(RULES),
    back=st.integers(2, DIMS.n_audio_ctx),
    known=st.lists(st.integers(0, 40), min_size=4, max_size=4),
)
def test_any_draft_in_any_batch_gives_the_text_without_one(engine, drawn, rules, back, known):
    # The windows of a tiny model are shorter than a second.
    backend, features, tolerance = engine
    with patch.object(partial_window, "REWIND_THRESHOLD", back):
        plain = [
            decode_all(backend, features, [replace(window, draft_tokens=())], rules)[0] for window in drawn
        ]
        drafted = [
            replace(window, draft_tokens=(*hypothesis.tokens[:n], *window.draft_tokens))
            for window, hypothesis, n in zip(drawn, plain, known, strict=False)
        ]
        together = decode_all(backend, features, drafted, rules)
    for window, ours, alone in zip(drawn, together, plain, strict=True):
        assert (ours.tokens, ours.reached_eot) == (alone.tokens, alone.reached_eot)
        np.testing.assert_array_equal(ours.attended_positions, alone.attended_positions)
        np.testing.assert_allclose(ours.logprobs, alone.logprobs, rtol=0, atol=tolerance)
        np.testing.assert_allclose(ours.attention, alone.attention, rtol=0, atol=max(tolerance, 1e-6))
        assert (ours.no_speech_prob or 0) == pytest.approx(alone.no_speech_prob or 0, rel=tolerance, abs=0)
        assert_follows(backend, features, window, alone, rules)


def assert_follows(backend, features, window, hypothesis, rules):
    """Check that each token is the best one behind those before it, with the attention of one pass over all."""
    session = backend.open_session(features, [window.window_index], DIMS.n_text_ctx, attention=True)
    start = [*window.prompt, *window.committed]
    logits = session.extend([[*start, *hypothesis.tokens]], len(hypothesis.tokens) + 1)
    attention = session.attention(0)
    ends = range(len(hypothesis.tokens) + 1)
    rules.apply(logits, [(*window.committed, *hypothesis.tokens[:end]) for end in ends])
    ids, logprobs = logits.top(1)
    assert tuple(ids[:-1, 0]) == hypothesis.tokens
    np.testing.assert_allclose(logprobs[:-1, 0], hypothesis.logprobs, atol=1e-4)
    np.testing.assert_allclose(attention[:, len(start) - 1 :], hypothesis.attention, atol=1e-5)
    attended = alignment_matrix(attention, window.n_positions)[len(start) - 1 :].argmax(axis=1)
    np.testing.assert_array_equal(np.maximum.accumulate(attended), hypothesis.attended_positions)
    session.rewind([0])
    logits = session.extend([window.prompt[: window.prompt.index(TOKENIZER.sot) + 1]])
    no_speech = float(logits.probability(TOKENIZER.no_speech)[0])
    assert hypothesis.no_speech_prob == (None if window.committed else pytest.approx(no_speech, rel=1e-4))


# --- the positions that tokens attend to --------------------------------------------------------------------


@pytest.mark.parametrize("n_positions", [1, 3, 4, 10, 60])
def test_matrix_is_standardized_and_median_filtered(n_positions):
    weights = np.random.default_rng(n_positions).dirichlet(np.ones(64), (3, 5)).astype(np.float32)
    normalized = weights[:, :, :n_positions] / weights[:, :, :n_positions].sum(axis=-1, keepdims=True)
    deviation = np.maximum(normalized.std(axis=1, keepdims=True), 1e-12)
    standardized = (normalized - normalized.mean(axis=1, keepdims=True)) / deviation
    if n_positions > 3:
        padded = np.pad(standardized, ((0, 0), (0, 0), (3, 3)), mode="reflect")
        standardized = np.median(np.lib.stride_tricks.sliding_window_view(padded, 7, axis=-1), axis=-1)
    expected = standardized.mean(axis=0) if n_positions > 1 else np.zeros((5, 1))
    np.testing.assert_allclose(alignment_matrix(weights, n_positions), expected, atol=2e-5)


def test_matrix_is_zero_where_all_tokens_attend_alike_and_for_one_token():
    weights = np.zeros((2, 3, 20), np.float32)
    weights[1] = 1 / 20
    single = np.random.default_rng(0).dirichlet(np.ones(20), (2, 1)).astype(np.float32)
    for alike in (weights, single):
        np.testing.assert_array_equal(alignment_matrix(alike, 20), np.zeros((alike.shape[1], 20)))
        np.testing.assert_array_equal(RunningAlignment(20).last_row(alike), np.zeros(20))


def test_rows_of_one_token_after_another_are_those_of_the_matrix():
    weights = np.random.default_rng(1).dirichlet(np.ones(40), (3, 12)).astype(np.float32)
    alignment = RunningAlignment(30)
    for n_tokens in range(4, 13):
        expected = alignment_matrix(weights[:, :n_tokens], 30, 1)[0]
        np.testing.assert_allclose(alignment.last_row(weights[:, :n_tokens]), expected, atol=2e-5)
