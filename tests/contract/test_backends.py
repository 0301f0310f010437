"""The contract: one suite over every backend, each against the reference backend within its own tolerance."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from pairs import PROMPT, decode, log_probabilities

from harken.backends.native.decoder import MOST_BEHIND_TEXT
from harken.text import Tokenizer
from tiny_models import DIMS, N_WINDOWS, TOKENIZER, TORCH_DEVICE, make_backend, make_mel, make_weights

HEADS = (DIMS.n_text_layer - DIMS.n_text_layer // 2) * DIMS.n_text_head
MIN_DIFFERENCE = 5.0
"""Smallest difference of logits that must differ, in tolerances."""


def differ(one, other, tolerance):
    """Return whether logits differ by more than rounding explains."""
    return bool(np.abs(one - other).max() > min(MIN_DIFFERENCE * tolerance, 0.5) * one.std())


def test_dims_and_capabilities_are_reported(backends):
    assert backends.tested.dims == DIMS
    assert backends.tested.capabilities.device == (TORCH_DEVICE if "torch" in backends.name else "cpu")
    assert backends.tested.capabilities.detail


# --- encoding ----------------------------------------------------------------------------------------------


def test_batch_size_does_not_change_the_encoding(backends):
    mel = make_mel()
    together = decode(backends.tested, backends.features, range(N_WINDOWS))
    assert backends.features.n_windows == N_WINDOWS
    for window in range(N_WINDOWS):
        alone = backends.tested.encode(mel[window : window + 1])
        assert alone.n_windows == 1
        logits = decode(backends.tested, alone)[0]
        np.testing.assert_allclose(logits, together[window], atol=1e-4 * together.std(), rtol=0)
        assert all(differ(together[window], other, backends.tolerance) for other in together[:window])
    np.testing.assert_array_equal(mel, make_mel())


@pytest.mark.parametrize("frames", [2, 10, 2 * DIMS.n_audio_ctx])
def test_windows_are_encoded_at_their_own_length(backends, frames):
    pair = backends.encode(make_mel()[:, :, :frames])
    pair.compare_output()
    session = pair.open_session(range(N_WINDOWS), attention=True)
    logits = session.extend([PROMPT] * N_WINDOWS)
    whole = decode(backends.tested, backends.features)
    assert differ(logits[0], whole[0], backends.tolerance) == (frames < 2 * DIMS.n_audio_ctx)
    assert session.attention(0).shape == (HEADS, len(PROMPT), frames // 2)


# --- sessions ----------------------------------------------------------------------------------------------


MAX_ROWS = 5
PER_ROW = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 13, 20]), min_size=MAX_ROWS, max_size=MAX_ROWS)


class Program(RuleBasedStateMachine):
    """A random program of extend, rewind and reorder; `SessionPair` compares all logits and all attention."""

    def __init__(self, backends):
        super().__init__()
        self._backends = backends

    @initialize(
        rows=st.lists(st.integers(0, N_WINDOWS - 1), min_size=1, max_size=MAX_ROWS), attention=st.booleans()
    )
    def open_session(self, rows, attention):
        self.attention = attention
        self.pair = self._backends.open_session(rows, attention=attention)

    @rule(counts=PER_ROW, first=st.integers(0, 255), last_n=st.integers(1, 8))
    def extend(self, counts, first, last_n):
        """Append tokens to each row, as far as there is room; they differ between rows."""
        free_positions = [DIMS.n_text_ctx - length for length in self.pair.lengths]
        tokens = [
            [(first + 41 * row + 7 * i * i) % DIMS.n_vocab for i in range(min(count, free))]
            for row, (count, free) in enumerate(zip(counts, free_positions, strict=False))
        ]
        self.pair.extend(tokens, last_n)

    @rule(first=st.integers(0, 255))
    def step(self, first):
        self.extend([1] * len(self.pair.lengths), first, 1)

    @rule(forget=PER_ROW)
    def rewind(self, forget):
        self.pair.rewind([max(0, length - n) for length, n in zip(self.pair.lengths, forget, strict=False)])

    @rule(data=st.data())
    def reorder(self, data):
        row = st.integers(0, len(self.pair.lengths) - 1)
        self.pair.reorder(data.draw(st.lists(row, min_size=1, max_size=MAX_ROWS)))

    @precondition(lambda self: self.attention)
    @rule()
    def compare_attention(self):
        for row, length in enumerate(self.pair.lengths):
            if length:
                self.pair.attention(row)


def test_sessions_used_in_any_order_stay_in_step_with_the_reference(backends):
    # In float32 the tolerance is smallest, so it gets the most examples.
    examples = 4 if backends.tolerance > 0.01 else 8
    run_state_machine_as_test(
        lambda: Program(backends), settings=settings(max_examples=examples, stateful_step_count=20)
    )


def test_threads_can_share_a_backend(backends):
    mel = make_mel()

    def decode_window(window):
        features = backends.tested.encode(mel[window : window + 1])
        session = backends.tested.open_session(features, [0], DIMS.n_text_ctx)
        session.extend([PROMPT])
        return np.concatenate([log_probabilities(session.extend([[65 + i]])) for i in range(4)])

    alone = [decode_window(window) for window in range(N_WINDOWS)]
    with ThreadPoolExecutor(N_WINDOWS) as pool:
        for _ in range(3):
            np.testing.assert_array_equal(list(pool.map(decode_window, range(N_WINDOWS))), alone)


def test_suppressed_logits_do_not_change_the_session(backends):
    session, expected = backends.open_session([0]).tested, backends.open_session([0])
    session.extend([PROMPT]).suppress_ranges([[(0, DIMS.n_vocab - 1)]])
    expected.extend([PROMPT])
    np.testing.assert_array_equal(log_probabilities(session.extend([[65]])), expected.extend([[65]]))


def test_use_against_the_contract_is_refused(backends):
    with pytest.raises(AssertionError, match="outgrown"):
        backends.tested.open_session(backends.features, [0], 4).extend([[65, 66, 67, 68, 69]])
    session = backends.open_session([0]).tested
    session.extend([PROMPT])
    with pytest.raises(AssertionError, match="opened with attention=True"):
        session.attention(0)


def test_part_of_the_vocabulary_is_the_whole_with_all_other_tokens_suppressed(backends, tmp_path):
    """Prompts may hold tokens outside of the part."""
    part = np.sort(np.random.default_rng(0).choice(DIMS.n_vocab, 300, replace=False))
    others = np.setdiff1d(np.arange(DIMS.n_vocab), part)
    backend = make_backend(backends.name, tmp_path, shares_encoder=True, vocab_subset=part)
    features = backend.reuse_encoder_output(backends.features)
    sessions = backend.open_session(features, [0, 2], 48), backends.open_session([0, 2], 48).tested
    for prompt in (PROMPT, others[:7].tolist(), [*part[:2].tolist(), int(others[90])]):
        own, whole = (session.extend([prompt] * 2, last_n=3) for session in sessions)
        whole.suppress_tokens(others)
        (ids, logprobs), (expected_ids, expected) = own.top(len(part) + 9), whole.top(len(part))
        np.testing.assert_array_equal(ids, expected_ids)
        np.testing.assert_allclose(logprobs, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)
    assert len(sessions[0].extend([[], []])) == 0


# --- in short, for the backends that do not take the whole suite --------------------------------------------


def test_session_that_is_used_in_every_way_is_that_of_the_reference(other_backends):
    session = other_backends.open_session([0, 2, 2], attention=True)
    session.extend([[256, 72, 101], [256], [256, 72]], 2)
    session.reorder([0, 1, 1, 2])
    session.extend([[1], [2, 3, 4], [], [5]], 3)
    session.rewind([3, 2, 1, 2])
    session.extend([[6], [7], [8], [9, 10]])
    assert [session.attention(row).shape[1] for row in range(4)] == [4, 3, 2, 4]


def test_likely_and_special_tokens_have_whole_logits_and_the_others_nearly(tmp_path):
    def decode_with_gain(gain):
        weights = make_weights()
        weights |= {name: gain * weights[name] for name in ("decoder.ln.weight", "decoder.ln.bias")}
        backend = make_backend("native-int8", tmp_path, weights, digest=f"gain {gain}")
        (found,) = decode(backend, backend.encode(make_mel()[:1]))
        return (found - found[: TOKENIZER.eot].max()) / np.float32(gain)

    gain = 8
    whole, found = decode_with_gain(1 / gain), decode_with_gain(gain)
    likely = whole > -10 / gain
    assert 0 < likely[: TOKENIZER.eot].mean() < 0.5
    likely[TOKENIZER.eot :] = True
    np.testing.assert_allclose(found[likely], whole[likely], atol=1e-5)
    np.testing.assert_allclose(found, whole, atol=0.5 * whole.std())


@pytest.mark.parametrize("n_vocab", [51864, 51865, 51866])
def test_no_special_token_of_a_published_vocabulary_counts_as_text(n_vocab):
    assert n_vocab - Tokenizer.builtin(n_vocab).eot <= MOST_BEHIND_TEXT
