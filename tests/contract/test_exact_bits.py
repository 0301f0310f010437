"""The logits of a row do not depend on what is computed beside it, to the last bit: in int8, and in native float32.

Therefore verifying drafts and decoding windows together are exact: sums of integers are exact, and floating-point sums
are computed in the same order. The native decoder gives the same bits on any threads and in any instruction set, too.
"""

import gc
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harken.backends.native import decoder as native_decoder
from harken.backends.native.library import INSTRUCTION_SET_VARIABLE, instruction_sets, unavailable_reason
from harken.decoding.candidate_generator import AssistedCandidateGenerator, Draft
from harken.decoding.draft_controller import AcceptanceCounter
from harken.decoding.generate import STEPS_AT_ONCE, Row, WindowEnd, generate, pick_best
from harken.decoding.logit_rules import LogitRules
from real_models import recognizer
from tiny_models import DIMS, make_backend, make_mel

PROMPT = (256, 72, 101, 108, 111)
TEXT, CAPACITY = 34, 48
MAX_ROWS, MOST_AT_ONCE = 5, 16
EXACT = ("onnx-int8", "native-int8", "native-fp32")


@pytest.fixture(scope="module", params=EXACT)
def backend(request, open_backend):
    return recognizer("int8").backend if request.param == "tiny.en" else open_backend(request.param)


@pytest.fixture(scope="module")
def features(backend):
    mel = np.resize(make_mel(4), (4, backend.dims.n_mels, 2 * backend.dims.n_audio_ctx))
    return backend.encode(mel + np.arange(4, dtype=np.float32)[:, None, None] / 4)


def draw_tokens(row, n=TEXT):
    return np.random.default_rng(row).integers(0, 256, n).tolist()


def read(session, tokens, last_n=1):
    """Extend a session and return the logits of its last tokens."""
    logits = session.extend(tokens, last_n)
    return np.array(logits.values)


def step_by_step(session, copies, text):
    """Return the logits after the prompt and after each token, one step each; rows begin as copies of the session's."""
    row, *tokens = text
    steps = [read(session, [PROMPT if source == copies[row] else () for source in range(max(copies) + 1)])]
    session.reorder(copies)
    steps += [
        read(session, [[token] if other == row else [] for other in range(len(copies))]) for token in tokens
    ]
    return np.concatenate(steps)


def read_in_any_way(session, copies, random, n_steps, *, beam):
    """Return the logits after each text that was read on the way.

    Rows are dropped, forget some tokens as if they were rejected drafts, and read none, one or several at once. Those
    of a beam go on from copies of one another.
    """
    first = read(session, [PROMPT] * (max(copies) + 1))
    session.reorder(copies)
    texts = [(row,) for row in range(len(copies))]
    seen = defaultdict(list, {text: [first[source]] for text, source in zip(texts, copies, strict=True)})
    for _ in range(n_steps):
        rows = random.choices(range(len(texts)), k=random.randint(1, MAX_ROWS))
        session.reorder(rows := rows if beam else sorted({*rows, 0}))
        texts = [texts[row][: max(1, len(texts[row]) - random.choice((0, 0, 1, 5)))] for row in rows]
        session.rewind([len(PROMPT) + len(text) - 1 for text in texts])
        counts = [random.choice((0, 1, 1, 3, MOST_AT_ONCE)) for _ in texts]
        new = [
            random.choices(range(256), k=min(count, CAPACITY - len(PROMPT) - len(text) + 1))
            for count, text in zip(counts, texts, strict=True)
        ]
        logits = iter(read(session, new, CAPACITY))
        for row, tokens in enumerate(new):
            for token in tokens:
                texts[row] = (*texts[row], token)
                seen[texts[row]].append(next(logits))
    return seen


@pytest.mark.parametrize(
    ("backend", "seed", "n_steps"),
    [
        *((name, seed, 10) for name in EXACT for seed in range(6)),
        pytest.param("tiny.en", 0, 3, marks=[pytest.mark.real, pytest.mark.slow]),
    ],
    indirect=["backend"],
)
def test_rows_used_in_any_way_have_the_bits_of_single_steps(backend, features, seed, n_steps):
    """Rows of several windows, or candidates of one."""
    random = Random(seed)
    windows = random.sample(range(4), k=random.choice((1, 1, 3, 4)))
    copies = [0] * random.randint(1, MAX_ROWS) if len(windows) == 1 else [*range(len(windows))]

    def open_session():
        return backend.open_session(features, windows, CAPACITY)

    beam = backend.capabilities.name == "native"
    seen = read_in_any_way(open_session(), copies, random, n_steps, beam=beam)
    for text in sorted(seen, key=len, reverse=True):
        for n, expected in enumerate(step_by_step(open_session(), copies, text) if text in seen else (), 1):
            for logits in seen.pop(text[:n], ()):
                np.testing.assert_array_equal(logits, expected)


# --- greedy steps in one call ------------------------------------------------------------------------------


def make_rules(timestamp_begin, suppressed, **options):
    options = {"first_banned": (), "timestamps": True, "max_initial_timestamp": None} | options
    return LogitRules(
        eot=timestamp_begin - 1, timestamp_begin=timestamp_begin, suppressed=suppressed, **options
    )


@pytest.mark.parametrize("backend", ["native-int8", "native-fp32", "torch-graphs"], indirect=True)
@given(
    timestamp_begin=st.sampled_from([DIMS.n_vocab - n for n in (5, 20, 100)]),
    timestamps=st.booleans(),
    kept=st.sets(st.integers(10, 255), min_size=1, max_size=8),
    speech_ends=st.lists(st.none() | st.integers(DIMS.n_vocab - 20, DIMS.n_vocab), min_size=3, max_size=3),
    limits=st.lists(st.integers(1, CAPACITY - len(PROMPT)), min_size=3, max_size=3),
)
@settings(max_examples=12)
def test_steps_in_one_call_pick_what_single_steps_pick(
    backend, features, timestamp_begin, timestamps, kept, speech_ends, limits
):
    """With few words and many timestamps, so that a random model picks all kinds, and often the end of text."""
    rules = make_rules(
        timestamp_begin,
        np.setdiff1d(np.arange(timestamp_begin - 1), sorted(kept)),
        first_banned=((0, 10),),
        timestamps=timestamps,
        max_initial_timestamp=timestamp_begin + 2,
    )
    assert rules.greedy

    def decode(at_once):
        session, steps = backend.open_session(features, range(3), CAPACITY), []
        rows = [
            Row(PROMPT, limit, WindowEnd(rules.eot), speech_end=end)
            for limit, end in zip(limits, speech_ends, strict=True)
        ]
        logits = session.extend([PROMPT] * 3)

        def observe(step):
            steps.append((step.row, step.index, step.token, step.logprob))

        greedy = rules.greedy if at_once else None
        passes = generate(session, rows, logits, rules, pick_best, greedy=greedy, observe=observe)
        return rows, steps, passes

    rows, steps, passes = decode(at_once=True)
    expected_rows, expected_steps, fewest = decode(at_once=False)
    assert [row.tokens for row in rows] == [row.tokens for row in expected_rows]
    if backend.capabilities.name == "native":
        assert (rows, steps, passes) == (expected_rows, expected_steps, fewest)
    else:  # which rounds otherwise with fewer rows, and goes on for some steps behind the last end
        np.testing.assert_allclose(steps, expected_steps, atol=1e-4)
        assert fewest <= passes < fewest + STEPS_AT_ONCE


class StepByStep:
    """A backend whose sessions pick one token at a time."""

    def __init__(self, backend):
        self._backend = backend
        self.capabilities = replace(backend.capabilities, picks_best=False)

    def __getattr__(self, name):
        return getattr(self._backend, name)


@pytest.mark.parametrize("backend", ["native-int8", "torch-graphs"], indirect=True)
@given(
    most=st.integers(1, 12),
    threshold=st.sampled_from([0.0, 1e-4, 0.01, 0.3]),
    accepted=st.lists(st.integers(0, 6), min_size=1, max_size=4),
)
@settings(max_examples=12)
def test_drafts_in_one_call_are_those_of_single_steps(backend, features, most, threshold, accepted):
    """Whatever part of each draft is right."""
    rules = make_rules(DIMS.n_vocab - 20, np.arange(0, DIMS.n_vocab - 20, 3))
    whole, single = (
        AssistedCandidateGenerator(each, lambda: features, [1], [PROMPT], rules, AcceptanceCounter())
        for each in (backend, StepByStep(backend))
    )
    prefix = [DIMS.n_vocab - 20]
    for n_right in accepted:
        drafted, expected = (
            Draft(
                row=0, prefix=tuple(prefix), max_tokens=min(most, CAPACITY - len(PROMPT) - len(prefix)),
                calibration=0.9, draft_threshold=threshold, verify_threshold=threshold / 2,
            )
            for _ in range(2)
        )  # fmt: skip
        whole.propose([drafted])
        single.propose([expected])
        assert drafted.tokens == expected.tokens
        np.testing.assert_allclose(drafted.confidences, expected.confidences, rtol=1e-3)
        prefix += [*drafted.tokens[:n_right], 70 + n_right]
        if len(prefix) > CAPACITY - len(PROMPT) - 2:
            return


# --- the native decoder ------------------------------------------------------------------------------------

SETS = () if unavailable_reason() else instruction_sets()


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return tmp_path_factory.mktemp("graphs")


def compute(precision, packed, features, threads):
    """Compute logits, choices and attention in a session that is used in every way."""
    backend = make_backend(f"native-{precision}", packed, shares_encoder=True, threads=threads)
    session = backend.open_session(
        backend.reuse_encoder_output(features), [0, 1, 2, 1], CAPACITY, attention=True
    )
    results = []

    def extend(tokens, last_n=1):
        logits = session.extend(tokens, last_n)
        results.append(np.array(logits.values))
        logits.suppress_tokens(np.arange(0, DIMS.n_vocab, 3))
        logits.prefer_timestamps(DIMS.n_vocab - 40)
        results.extend(logits.top(3))
        results.extend(logits.sample(0.7, np.linspace(0, 0.99, len(logits)).tolist()))
        results.append(logits.probability(7))

    extend([PROMPT, draw_tokens(1, 20), draw_tokens(2, 3), PROMPT], 2)
    session.reorder([0, 1, 1, 2, 3])
    extend([draw_tokens(row, row) for row in range(5)], 4)
    session.rewind([length + row - 1 for row, length in enumerate((len(PROMPT), 20, 20, 3, len(PROMPT)))])
    extend([[row + 1] for row in range(5)])
    results += [session.attention(row) for row in range(5)]
    return results


@pytest.mark.parametrize("backend", ["native-int8"], indirect=True)
@pytest.mark.parametrize("precision", ["int8", "int4", "fp32"])
def test_threads_and_instruction_sets_change_no_bit(features, packed, monkeypatch, precision):
    assert SETS[-1] == "portable"
    expected = compute(precision, packed, features, threads=1)
    assert sum(len(result) for result in expected) > 50
    for instruction_set, threads in [(SETS[0], 2), (SETS[0], 3), *((name, 1) for name in SETS[1:])]:
        monkeypatch.setenv(INSTRUCTION_SET_VARIABLE, instruction_set)
        actual = compute(precision, packed, features, threads)
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"{instruction_set}, {threads} threads")


@pytest.mark.parametrize("backend", ["native-int8"], indirect=True)
def test_session_is_collected_without_waiting_for_a_call_of_another_thread(backend, features, monkeypatch):
    """A thread in the middle of a call could wait for this one, in the same way."""
    decoder, closed = backend._decoder, []
    close = decoder.library.harken_session_close
    monkeypatch.setattr(decoder.library, "harken_session_close", lambda handle: closed.append(close(handle)))
    sessions = [backend.open_session(features, [0], CAPACITY)]

    def collect_elsewhere():
        with ThreadPoolExecutor(1) as thread:
            thread.submit(sessions.clear).result(timeout=60)
        assert not closed

    with decoder._lock:
        collect_elsewhere()
    session = backend.open_session(features, [0], CAPACITY)
    assert len(closed) == 1
    del session
    assert len(closed) == 2


@pytest.mark.parametrize("backend", ["native-int8"], indirect=True)
def test_session_outlives_the_references_to_its_backend_and_features(packed, features):
    backend = make_backend("native-int8", packed, shares_encoder=True)
    session = backend.open_session(backend.reuse_encoder_output(features), [0], CAPACITY)
    expected = read(session, [PROMPT])
    session.rewind([0])
    del backend
    gc.collect()
    np.testing.assert_array_equal(read(session, [PROMPT]), expected)


def test_stream_packed_chunk_by_chunk_is_the_stream_packed_at_once(packed, monkeypatch):
    """Positions of the look-ahead are packed again; those before the part that changes are not."""
    backend = make_backend("native-int8", packed)
    monkeypatch.setattr(native_decoder, "PART_OF_STREAM", 16)
    noise = np.random.default_rng(0)
    often, once = backend.open_encoder(20), backend.open_encoder(20)
    for n_frames, final_frames in ((9, 0), (17, 10), (17, 4), (23, 16), (17, 0), (17, 16)):
        mel = noise.standard_normal((1, DIMS.n_mels, n_frames)).astype(np.float32)
        for state in (often, once):
            backend.encode_chunk([state], mel, final_frames)
        backend.stream_features([often])
    sessions = [backend.open_session(backend.stream_features([state]), [0], 8) for state in (often, once)]
    one, other = (session.extend([[65, 66, 67]]).top(3) for session in sessions)
    np.testing.assert_array_equal(one, other)
