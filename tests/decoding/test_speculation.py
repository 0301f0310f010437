"""Tests of speculative decoding: forward passes, acceptance, near ties, samples and statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from fakes.backends import (
    EOT,
    N_VOCAB,
    FakeFeatures,
    LogitsFunction,
    ScriptedBackend,
    logits_of_texts,
    random_logits,
)
from fakes.clock import FakeClock
from fakes.drafts import (
    FakeCandidateGenerator,
    FakeDraftContext,
    always_wrong,
    correct_with_probability,
    measured_controller,
    unrestricted_rules,
)
from harken.contract import Backend, Floats, SparsePositions
from harken.decoding import (
    Assistant,
    Beam,
    DecodeStats,
    Greedy,
    Hypothesis,
    SpeculativeDecoder,
    Step,
    Window,
    decode,
    make_logit_rules,
)
from harken.decoding.generate import EotOrLimit, Pick, Row, generate, pick_best, pick_sample
from harken.decoding.speculation import NEAR_TIE
from harken.transcribe import Callbacks, TranscribeOptions, WindowDecoder
from harken.transcribe.window_decoder import AudioWindow, DecodeRequest, PaddingSample, WindowResult
from tiny_models import DIMS, TOKENIZER, make_mel


def decode_rows(
    script: LogitsFunction,
    drafts: FakeDraftContext | None,
    *,
    rows: int = 1,
    limits: Sequence[int] | None = None,
    pick: Pick = pick_best,
    observe: Callable[[Step], None] = lambda step: None,
) -> tuple[list[Hypothesis], int, DecodeStats]:
    """Decode rows behind a prompt of one token; return hypotheses, forward passes after the prompt, and stats."""
    session = ScriptedBackend(script, 400).open_session(FakeFeatures(rows), range(rows), 400)
    logits = session.extend([[0]] * rows)
    draft_session = (
        drafts.open_draft_session(range(rows), [[0]] * rows, [[]] * rows, unrestricted_rules())
        if drafts
        else None
    )
    active = [Row(1, limit, EotOrLimit(EOT)) for limit in limits or [300] * rows]
    forwards = generate(
        session, active, logits, unrestricted_rules(), pick, observe=observe, draft_session=draft_session
    )
    assert forwards == len(session.read) - 1
    found = [row.hypothesis(EOT) for row in active]
    return found, forwards, draft_session.stats if draft_session else DecodeStats()


def random_texts(*lengths: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[*rng.integers(0, EOT, length).tolist(), EOT] for length in lengths]


# --- passes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "most", "passes"),
    [(12, 12, 1), (13, 12, 1), (14, 12, 2), (40, 12, 4), (9, 1, 5), (10, 4, 2), (1, 5, 1), (0, 5, 0)],
)
def test_correct_drafts_give_their_length_and_one_token_a_pass(length: int, most: int, passes: int) -> None:
    """The first token comes with the prompt; eot counts as a token."""
    texts = random_texts(length)
    found, forwards, stats = decode_rows(
        logits_of_texts(texts), FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts)], most=most)
    )
    assert found[0].tokens == tuple(texts[0][:-1])
    assert forwards == passes == -(-length // (most + 1))
    assert stats.drafted == stats.accepted


def test_draft_is_accepted_up_to_the_first_wrong_token() -> None:
    texts = random_texts(12)
    wrong = {4, 5, 9}
    steps: list[Step] = []
    _, forwards, stats = decode_rows(
        logits_of_texts(texts),
        FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts, lambda row, index: index not in wrong)]),
        observe=steps.append,
    )
    # Tokens 1 to 4, then 5 alone, then 6 to 9, then 10 to 12.
    assert forwards == 4
    assert stats.accepted == 3 + 0 + 3 + 3
    assert [step.token for step in steps] == texts[0]
    assert [step.index for step in steps] == list(range(13))


def test_rows_accept_independently() -> None:
    """Four rows take as many passes together as the slowest one alone."""
    texts = random_texts(30, 25, 30, 3)
    rights = [
        correct_with_probability(1.0),
        correct_with_probability(0.8),
        correct_with_probability(0.3),
        always_wrong,
    ]

    def passes(rows: Sequence[int]) -> tuple[int, DecodeStats]:
        row_texts = [texts[row] for row in rows]
        draft = FakeCandidateGenerator(row_texts, lambda row, index: rights[rows[row]](rows[row], index))
        found, forwards, stats = decode_rows(
            logits_of_texts(row_texts), FakeDraftContext(lambda _: [draft]), rows=len(rows)
        )
        assert [[*each.tokens, EOT] for each in found] == row_texts
        return forwards, stats

    alone = [passes([row]) for row in range(4)]
    together, stats = passes([0, 1, 2, 3])
    assert together == max(forwards for forwards, _ in alone)
    assert stats.accepted == sum(row_stats.accepted for _, row_stats in alone)
    assert stats.drafted == sum(row_stats.drafted for _, row_stats in alone)


def test_drafts_do_not_exceed_the_limit() -> None:
    texts = random_texts(40, 40)
    draft = FakeCandidateGenerator(texts)
    found, forwards, _ = decode_rows(
        logits_of_texts(texts), FakeDraftContext(lambda rows: [draft]), rows=2, limits=[9, 1]
    )
    assert [len(hypothesis.tokens) for hypothesis in found] == [9, 1]
    assert forwards == 1
    assert [[request.max_tokens for request in requests] for requests in draft.asked] == [[7]]


# --- several generators ------------------------------------------------------------------------------------


def test_second_generator_drafts_for_the_remaining_rows() -> None:
    texts = random_texts(6, 6)
    first, second = FakeCandidateGenerator([texts[0], []]), FakeCandidateGenerator(texts)
    _, forwards, stats = decode_rows(
        logits_of_texts(texts), FakeDraftContext(lambda rows: [first, second]), rows=2
    )
    assert forwards == 1
    assert stats.drafted == stats.accepted == 12
    assert [[request.max_tokens > 0 for request in requests] for requests in first.asked] == [[True, True]]
    assert [[request.max_tokens > 0 for request in requests] for requests in second.asked] == [[False, True]]


# --- near ties ---------------------------------------------------------------------------------------------


def contested(margin: float) -> LogitsFunction:
    """Make a script of six 1s and eot, in which 2 is second best by a margin in log-probability."""

    def script(window: int, seen: tuple[int, ...]) -> Floats:
        logits = np.full(N_VOCAB, -20, np.float32)
        best = 1 if len(seen) < 7 else EOT
        logits[[best, 2]] = 0, -margin
        return logits

    return script


def test_near_ties_are_counted_only_in_wide_passes() -> None:
    texts = [[1] * 6 + [EOT]]
    _, _, near = decode_rows(
        contested(NEAR_TIE / 4), FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts)])
    )
    assert near.near_ties == pytest.approx([NEAR_TIE / 4] * 6, rel=1e-2)
    _, _, clear = decode_rows(
        contested(NEAR_TIE * 2), FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts)])
    )
    assert clear.near_ties == ()
    _, _, alone = decode_rows(
        contested(NEAR_TIE / 4), FakeDraftContext(lambda rows: [FakeCandidateGenerator([[]])])
    )
    assert alone.near_ties == (), "a pass over one token is a plain step"


def test_tie_flipped_by_rounding_is_counted() -> None:
    """The model rounds differently when it reads more than one token at once."""
    texts = [[1] * 6 + [EOT]]
    drafts = FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts)])
    session = ScriptedBackend(contested(NEAR_TIE / 4), 400).open_session(FakeFeatures(1), [0], 400)
    logits, extend = session.extend([[0]]), session.extend

    def rounding(tokens: Sequence[Sequence[int]], tail: int = 1) -> Any:
        logits = extend(tokens, tail)
        if len(tokens[0]) > 1:
            logits.values[:, 2] += NEAR_TIE / 2
        return logits

    session.extend = rounding
    draft_session = drafts.open_draft_session([0], [[0]], [[]], unrestricted_rules())
    row = Row(1, 20, EotOrLimit(EOT))
    generate(session, [row], logits, unrestricted_rules(), pick_best, draft_session=draft_session)
    assert row.hypothesis(EOT).tokens != (1,) * 6
    assert draft_session.stats.near_ties


# --- samples -----------------------------------------------------------------------------------------------

TEMPERATURE = 0.8
SEEDS = 3000


def random_words(window: int, seen: tuple[int, ...]) -> Floats:
    """Return logits of three words and eot that depend on the last word; eot grows with the length."""
    odds = {0: (3, 2, 1, 0.5), 1: (1, 1, 2, 1), 2: (2, 4, 0.2, 1), 3: (1, 1, 1, 1)}[seen[-1] % 4]
    logits = np.full(N_VOCAB, -np.inf, np.float32)
    logits[[0, 1, 2]] = np.log(odds[:3])
    logits[EOT] = np.log(odds[3] * len(seen))
    return logits


def exact(limit: int) -> dict[tuple[int, ...], float]:
    """Return the probability of every text of at most so many tokens."""
    found: dict[tuple[int, ...], float] = {}
    for n in range(limit + 1):
        for words in product((0, 1, 2), repeat=n):
            text = (*words, EOT) if n < limit else words
            probability = 1.0
            for i, token in enumerate(text):
                weights = np.exp(random_words(0, (0, *text[:i])).astype(float) / TEMPERATURE)
                probability *= weights[token] / weights.sum()
            found[text] = probability
    return found


def row_text(hypothesis: Hypothesis) -> tuple[int, ...]:
    """Return the tokens of a hypothesis, with eot if it was reached."""
    return (*hypothesis.tokens, *([EOT] if len(hypothesis.logprobs) > len(hypothesis.tokens) else []))


def sampled(
    make: Callable[[int], Sequence[FakeCandidateGenerator]] | None, limit: int
) -> tuple[list[tuple[int, ...]], DecodeStats]:
    generators = [np.random.default_rng(seed) for seed in range(SEEDS)]
    pick = pick_sample(TEMPERATURE, generators)
    drafts = FakeDraftContext(make) if make else None
    found, _, stats = decode_rows(random_words, drafts, rows=SEEDS, limits=[limit] * SEEDS, pick=pick)
    return [row_text(hypothesis) for hypothesis in found], stats


@pytest.mark.parametrize("right", [lambda row, index: (row + index) % 2 == 0, always_wrong])
def test_samples_have_the_distribution_of_the_model_whatever_the_draft(
    right: Callable[[int, int], bool],
) -> None:
    """Chi-square test over all texts; those expected less than five times count as one."""
    limit = 4
    plain, _ = sampled(None, limit)
    found, _ = sampled(lambda rows: [FakeCandidateGenerator(plain, right)], limit)
    assert found == plain, "the same random numbers give the same samples"
    counts = Counter(found)
    expected = {text: SEEDS * probability for text, probability in exact(limit).items()}
    assert sum(expected.values()) == pytest.approx(SEEDS)
    assert set(counts) <= set(expected)
    frequent = [text for text, number in expected.items() if number >= 5]
    observed, wanted = (
        np.array([*(number[text] for text in frequent), SEEDS - sum(number[text] for text in frequent)])
        for number in (counts, expected)
    )
    chi_square, freedom = ((observed - wanted) ** 2 / wanted).sum(), len(frequent)
    # The 0.1 % quantiles on either side (Wilson and Hilferty 1931); the seeds are fixed.
    assert chi_square < freedom * (1 - 2 / (9 * freedom) + 3.09 * np.sqrt(2 / (9 * freedom))) ** 3
    assert chi_square > freedom * (1 - 2 / (9 * freedom) - 3.09 * np.sqrt(2 / (9 * freedom))) ** 3


# --- statistics --------------------------------------------------------------------------------------------


def decoded(strategy: Any, decoder: SpeculativeDecoder, encode_s: float = 0.0) -> DecodeStats:
    backend = ScriptedBackend(random_logits())
    windows = [Window(window_index=audio, prompt=TOKENIZER.sot_sequence("en")) for audio in (0, 1)]
    rules = make_logit_rules(TOKENIZER, timestamps=False)
    draft_context = decoder.prepare(make_mel(2), FakeFeatures(2), encode_s)
    return decode(
        backend,
        FakeFeatures(2),
        windows,
        tokenizer=TOKENIZER,
        logit_rules=rules,
        strategy=strategy,
        draft_context=draft_context,
    )[1]


class NoEncoder(ScriptedBackend):
    def encode(self, mel: Floats, positions: SparsePositions | None = None) -> FakeFeatures:
        raise AssertionError("no draft was requested")


def test_assistant_does_not_encode_for_beam_search() -> None:
    decoder = SpeculativeDecoder(
        float, assistant=Assistant(backend=NoEncoder(random_logits()), shares_encoder=False)
    )
    assert decoded(Beam(width=2), decoder).undrafted_windows == 2
    with pytest.raises(AssertionError, match="no draft was requested"):
        decoded(Greedy(), decoder)


def test_assistant_does_not_encode_where_that_takes_longer_than_decoding() -> None:
    assistant = Assistant(backend=NoEncoder(random_logits()), shares_encoder=False, encoder_ratio=0.5)
    stats = decoded(Greedy(), SpeculativeDecoder(float, assistant=assistant), encode_s=10.0)
    assert stats.draft_forwards == stats.drafted == 0
    assert stats.skipped_steps > 0


# --- the fallback schedule, and partly encoded windows -----------------------------------------------------


def decode_windows(
    backend: Backend, content_frames: int, speculator: SpeculativeDecoder | None, **options: Any
) -> tuple[list[WindowResult], DecodeStats]:
    made = TranscribeOptions(
        language="en", best_of=2, logprob_threshold=0.0, no_speech_threshold=None, **options
    )
    padding = PaddingSample(block=1, period=4, min_dense=0, dense_step=4)
    decoder = WindowDecoder(backend, TOKENIZER, made, speculator, FakeClock(tick_s=1.0), padding=padding)
    encoded = decoder.encode(
        [
            AudioWindow(mel=mel[None], content_frames=content_frames, seek=0, is_first=False)
            for mel in make_mel(2)
        ]
    )
    requests = [
        DecodeRequest(encoded=window, language="en", prompt=TOKENIZER.sot_sequence("en")) for window in encoded
    ]
    results, passes = decoder.decode(requests, [Callbacks()] * len(requests))
    return results, sum((decoded.stats for decoded in passes), DecodeStats())


def eager_decoder(**what: Any) -> SpeculativeDecoder:
    made = SpeculativeDecoder(float, **what)
    made.greedy.controller, made.sampling.controller = measured_controller(), measured_controller()
    return made


def test_fallback_attempts_draft_from_the_one_before(open_backend: Callable[[str], Backend]) -> None:
    """There is no other source of drafts."""
    backend, whole = open_backend("onnx-fp32"), 2 * DIMS.n_audio_ctx
    for temperatures, drafts in (((0.0,), False), ((0.0, 0.1, 0.2), True)):
        plain, _ = decode_windows(backend, whole, None, temperatures=temperatures)
        ours, stats = decode_windows(backend, whole, eager_decoder(), temperatures=temperatures)
        assert [sorted(attempt.temperature for attempt in result.attempts) for result in ours] == [
            [*temperatures]
        ] * 2
        assert [result.decoded.hypothesis.tokens for result in ours] == [
            result.decoded.hypothesis.tokens for result in plain
        ]
        assert (0 < stats.accepted <= stats.drafted) == drafts
        assert stats.draft_forwards == 0


def test_text_of_a_partly_encoded_window_is_the_draft_of_the_whole(
    open_backend: Callable[[str], Backend],
) -> None:
    """The text of a part whose result was rejected is most of the text of the whole window."""
    outcomes, stats = decode_windows(
        open_backend("onnx-fp32"), 24, eager_decoder(), temperatures=(0.0,), fidelity="fast"
    )
    assert all("part of the window" in (outcome.attempts[0].reason or "") for outcome in outcomes)
    assert stats.drafted > 0
    assert stats.encode_s == 2
    assert stats.decode_s >= 2
