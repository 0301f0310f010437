"""Drafts are verified in one pass: what that gives, what it takes, and what is told of it."""

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
from harken.contract import Backend, Floats
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
from harken.decoding.draft_controller import MIN_MEASUREMENTS, PLAIN_STEP_INTERVAL, DraftController
from harken.decoding.generate import Pick, generate, pick_best, pick_sample
from harken.decoding.speculation import NEAR_TIE, DraftSession
from harken.transcribe import Callbacks, TranscribeOptions, WindowDecoder, window_decoder
from harken.transcribe.window_decoder import DecodeRequest
from tiny_models import DIMS, TOKENIZER, make_mel


def speak(
    script: LogitsFunction,
    drafts: FakeDraftContext | None,
    *,
    rows: int = 1,
    limits: Sequence[int] | None = None,
    pick: Pick = pick_best,
    observe: Callable[[Step], None] = lambda step: None,
) -> tuple[list[Hypothesis], int, DecodeStats]:
    """Follow rows behind a prompt of one token; hypotheses, passes behind the prompt, what the draft has told."""
    session = ScriptedBackend(script, 400).open_session(FakeFeatures(rows), range(rows), 400)
    logits = session.extend([[0]] * rows)
    speculation = (
        drafts.open_draft_session(range(rows), [[0]] * rows, [[]] * rows, unrestricted_rules())
        if drafts
        else None
    )
    found = generate(
        session, logits, unrestricted_rules(), pick, limits or [300] * rows, observe, draft_session=speculation
    )
    return found, len(session.read) - 1, speculation.stats if speculation else DecodeStats()


def lines(*lengths: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[*rng.integers(0, EOT, length).tolist(), EOT] for length in lengths]


# --- passes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "most", "passes"),
    [(12, 12, 1), (13, 12, 1), (14, 12, 2), (40, 12, 4), (9, 1, 5), (10, 4, 2), (1, 5, 1), (0, 5, 0)],
)
def test_all_right_is_as_many_tokens_a_pass_as_are_drafted_and_one_more(
    length: int, most: int, passes: int
) -> None:
    """Behind the first token, which comes with the prompt; the end of the text is a token too."""
    texts = lines(length)
    found, took, stats = speak(
        logits_of_texts(texts), FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts)], most=most)
    )
    assert found[0].tokens == tuple(texts[0][:-1])
    assert took == passes == -(-length // (most + 1))
    assert stats.drafted == stats.accepted


def test_all_wrong_is_a_token_a_pass() -> None:
    texts = lines(30)
    _, plain, _ = speak(logits_of_texts(texts), None)
    _, took, stats = speak(
        logits_of_texts(texts), FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts, always_wrong)])
    )
    assert took == plain == 30
    assert stats.accepted == 0
    assert stats.drafted > 30
    assert stats.acceptance_rate == 0


def test_the_first_wrong_one_ends_what_is_taken() -> None:
    texts = lines(12)
    wrong = {4, 5, 9}
    steps: list[Step] = []
    _, took, stats = speak(
        logits_of_texts(texts),
        FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts, lambda row, index: index not in wrong)]),
        observe=steps.append,
    )
    # Tokens 1 to 4, then 5 alone, then 6 to 9, then 10 to 12.
    assert took == 4
    assert stats.accepted == 3 + 0 + 3 + 3
    assert [step.token for step in steps] == texts[0]
    assert [step.index for step in steps] == list(range(13))


def test_a_row_takes_what_is_right_in_it() -> None:
    """Four rows, of which each alone takes so many passes, together take as many as the slowest."""
    texts = lines(30, 25, 30, 3)
    rights = [
        correct_with_probability(1.0),
        correct_with_probability(0.8),
        correct_with_probability(0.3),
        always_wrong,
    ]

    def passes(rows: Sequence[int]) -> tuple[int, DecodeStats]:
        its = [texts[row] for row in rows]
        draft = FakeCandidateGenerator(its, lambda row, index: rights[rows[row]](rows[row], index))
        found, took, stats = speak(logits_of_texts(its), FakeDraftContext(lambda _: [draft]), rows=len(rows))
        assert [[*each.tokens, EOT] for each in found] == its
        return took, stats

    alone = [passes([row]) for row in range(4)]
    together, stats = passes([0, 1, 2, 3])
    assert together == max(took for took, _ in alone)
    assert stats.accepted == sum(its.accepted for _, its in alone)
    assert stats.drafted == sum(its.drafted for _, its in alone)


def test_nothing_is_guessed_beyond_the_limit() -> None:
    texts = lines(40, 40)
    draft = FakeCandidateGenerator(texts)
    found, took, _ = speak(
        logits_of_texts(texts), FakeDraftContext(lambda rows: [draft]), rows=2, limits=[9, 1]
    )
    assert [len(its.tokens) for its in found] == [9, 1]
    assert took == 1
    assert [[ask.max_tokens for ask in asks] for asks in draft.asked] == [[7]]


def test_an_observer_that_raises_stops_it() -> None:
    texts = lines(20)

    def observe(step: Step) -> None:
        if step.index == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        speak(
            logits_of_texts(texts),
            FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts)], most=4),
            observe=observe,
        )


def test_one_pass_in_so_many_goes_without() -> None:
    texts = lines(3 * PLAIN_STEP_INTERVAL)
    _, _, stats = speak(
        logits_of_texts(texts), FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts)], most=1)
    )
    assert stats.skipped_steps == 1


# --- several drafts ----------------------------------------------------------------------------------------


def test_who_comes_second_is_asked_for_the_rows_that_are_left() -> None:
    texts = lines(6, 6)
    first, second = FakeCandidateGenerator([texts[0], []]), FakeCandidateGenerator(texts)
    _, took, stats = speak(logits_of_texts(texts), FakeDraftContext(lambda rows: [first, second]), rows=2)
    assert took == 1
    assert stats.drafted == stats.accepted == 12
    assert [[ask.max_tokens > 0 for ask in asks] for asks in first.asked] == [[True, True]]
    assert [[ask.max_tokens > 0 for ask in asks] for asks in second.asked] == [[False, True]]


def test_each_draft_and_each_row_is_trusted_for_itself() -> None:
    texts = lines(40, 40)
    draft = FakeCandidateGenerator(texts, lambda row, index: row == 0 or index % 2 == 0)
    drafts = FakeDraftContext(lambda rows: [draft], most=3)
    speak(logits_of_texts(texts), drafts, rows=2)
    good, bad = (next(ask.calibration for ask in reversed(draft.asked[8]) if ask.row == row) for row in (0, 1))
    assert bad < 0.8 < good
    assert drafts.counters[0].calibration() < good
    assert drafts.counters[1].calibration() == 1


def test_what_one_decode_has_learned_the_next_one_knows() -> None:
    texts = lines(60)
    drafts = FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts, always_wrong)])
    speak(logits_of_texts(texts), drafts)
    fresh = FakeCandidateGenerator(texts)
    drafts.make = lambda rows: [fresh]
    speak(logits_of_texts(texts), drafts)
    assert fresh.asked[0][0].calibration < 0.3


# --- near ties ---------------------------------------------------------------------------------------------


def contested(margin: float) -> LogitsFunction:
    """Say 1 six times and stop, with 2 behind it by a margin in log-probability."""

    def script(window: int, seen: tuple[int, ...]) -> Floats:
        logits = np.full(N_VOCAB, -20, np.float32)
        best = 1 if len(seen) < 7 else EOT
        logits[[best, 2]] = 0, -margin
        return logits

    return script


def test_near_ties_are_counted_where_tokens_are_verified_together() -> None:
    texts = [[1] * 6 + [EOT]]
    _, _, near = speak(contested(NEAR_TIE / 4), FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts)]))
    assert near.near_ties == pytest.approx([NEAR_TIE / 4] * 6, rel=1e-2)
    _, _, clear = speak(contested(NEAR_TIE * 2), FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts)]))
    assert clear.near_ties == ()
    _, _, alone = speak(contested(NEAR_TIE / 4), FakeDraftContext(lambda rows: [FakeCandidateGenerator([[]])]))
    assert alone.near_ties == (), "a pass over one token is that of plain decoding"


def test_near_ties_are_counted_in_every_row_of_a_wide_pass() -> None:
    texts = [[1] * 6 + [EOT], []]
    _, took, stats = speak(
        contested(NEAR_TIE / 4), FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts)]), rows=2
    )
    assert took == 6
    # Six tokens at once in one row, and one in the other, which then goes on alone.
    assert len(stats.near_ties) == 6 + 1


def test_where_rounding_turns_a_tie_it_has_been_counted() -> None:
    """A model that rounds otherwise when it reads more than one token at once."""
    texts = [[1] * 6 + [EOT]]
    drafts = FakeDraftContext(lambda rows: [FakeCandidateGenerator(texts)])
    session = ScriptedBackend(contested(NEAR_TIE / 4), 400).open_session(FakeFeatures(1), [0], 400)
    logits, extend = session.extend([[0]]), session.extend

    def rounding(tokens: Sequence[Sequence[int]], tail: int = 1) -> Any:
        its = extend(tokens, tail)
        if len(tokens[0]) > 1:
            its.values[:, 2] += NEAR_TIE / 2
        return its

    session.extend = rounding
    speculation = drafts.open_draft_session([0], [[0]], [[]], unrestricted_rules())
    (found,) = generate(
        session, logits, unrestricted_rules(), pick_best, [20], lambda step: None, draft_session=speculation
    )
    assert found.tokens != (1,) * 6
    assert speculation.stats.near_ties


def test_comparing_with_the_next_best_picks_the_same() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        # Few values, so that there are ties.
        session = ScriptedBackend(
            lambda window, seen, rng=rng: rng.integers(0, 3, N_VOCAB).astype(np.float32)
        ).open_session(FakeFeatures(1), [0], 48)
        logits = session.extend([[0] * 20], 20)
        places = [(0, index) for index in range(20)]
        best, compared = pick_best(logits, places, False), pick_best(logits, places, True)
        np.testing.assert_array_equal(best.ids, compared.ids)
        np.testing.assert_array_equal(best.logprobs, compared.logprobs)
        assert (compared.margins >= 0).all()


# --- samples -----------------------------------------------------------------------------------------------

TEMPERATURE = 0.8
SEEDS = 3000


def fickle(window: int, seen: tuple[int, ...]) -> Floats:
    """A model of three words and an end, whose odds hang on the last word; longer texts end sooner."""
    odds = {0: (3, 2, 1, 0.5), 1: (1, 1, 2, 1), 2: (2, 4, 0.2, 1), 3: (1, 1, 1, 1)}[seen[-1] % 4]
    logits = np.full(N_VOCAB, -np.inf, np.float32)
    logits[[0, 1, 2]] = np.log(odds[:3])
    logits[EOT] = np.log(odds[3] * len(seen))
    return logits


def exact(limit: int) -> dict[tuple[int, ...], float]:
    """Probability of every text of so many tokens at most."""
    found: dict[tuple[int, ...], float] = {}
    for n in range(limit + 1):
        for words in product((0, 1, 2), repeat=n):
            text = (*words, EOT) if n < limit else words
            chance = 1.0
            for i, token in enumerate(text):
                weights = np.exp(fickle(0, (0, *text[:i])).astype(float) / TEMPERATURE)
                chance *= weights[token] / weights.sum()
            found[text] = chance
    return found


def sampled(
    make: Callable[[int], Sequence[FakeCandidateGenerator]] | None, limit: int
) -> tuple[list[tuple[int, ...]], DecodeStats]:
    generators = [np.random.default_rng(seed) for seed in range(SEEDS)]
    pick = pick_sample(TEMPERATURE, generators)
    drafts = FakeDraftContext(make) if make else None
    found, _, stats = speak(fickle, drafts, rows=SEEDS, limits=[limit] * SEEDS, pick=pick)
    return [(*its.tokens, *([EOT] if len(its.logprobs) > len(its.tokens) else [])) for its in found], stats


@pytest.fixture(scope="module")
def plainly_sampled() -> list[tuple[int, ...]]:
    return sampled(None, 4)[0]


@pytest.mark.parametrize("kind", ["good", "half", "bad", "random"])
def test_samples_have_the_distribution_of_the_model(kind: str, plainly_sampled: list[tuple[int, ...]]) -> None:
    """Chi-square over all texts, those that are expected less than five times together."""
    limit = 4
    rng = np.random.default_rng(7)
    random = [[*rng.choice([0, 1, 2, EOT], limit)] for _ in range(SEEDS)]
    right = {
        "good": correct_with_probability(1.0),
        "half": lambda row, index: (row + index) % 2 == 0,
        "bad": always_wrong,
    }
    draft = FakeCandidateGenerator(
        random if kind == "random" else plainly_sampled, right.get(kind, correct_with_probability(1.0))
    )
    found, stats = sampled(lambda rows: [draft], limit)
    assert found == plainly_sampled, "the same numbers give the same samples"
    assert {"good": 1.0, "bad": 0.0}.get(kind, stats.acceptance_rate) == stats.acceptance_rate
    counts = Counter(found)
    expected = {text: SEEDS * chance for text, chance in exact(limit).items()}
    assert sum(expected.values()) == pytest.approx(SEEDS)
    assert set(counts) <= set(expected)
    often = [text for text, number in expected.items() if number >= 5]
    observed = np.array([*(counts[text] for text in often), SEEDS - sum(counts[text] for text in often)])
    wanted = np.array([*(expected[text] for text in often), SEEDS - sum(expected[text] for text in often)])
    chi_square = ((observed - wanted) ** 2 / wanted).sum()
    freedom = len(often)
    # One in a thousand lies beyond that (Wilson and Hilferty 1931); the seeds are fixed.
    assert chi_square < freedom * (1 - 2 / (9 * freedom) + 3.09 * np.sqrt(2 / (9 * freedom))) ** 3
    assert chi_square > freedom * (1 - 2 / (9 * freedom) - 3.09 * np.sqrt(2 / (9 * freedom))) ** 3


def test_each_place_has_its_number_however_often_it_is_drawn() -> None:
    pick = pick_sample(1.0, [np.random.default_rng(3), np.random.default_rng(4)])
    session = ScriptedBackend(random_logits()).open_session(FakeFeatures(2), [0, 0], 48)
    logits = session.extend([[1, 2, 3], [1, 2, 3]], 3)
    places = [(row, index) for row in (0, 1) for index in (0, 1, 2)]
    first, again = pick(logits, places, False), pick(logits, places, False)
    np.testing.assert_array_equal(first.ids, again.ids)
    later = pick(logits.select_positions([2, 1]), [(0, 2), (0, 1)], False)
    np.testing.assert_array_equal(later.ids, first.ids[[2, 1]])
    assert list(first.ids[:3]) != list(first.ids[3:])


# --- what is told ------------------------------------------------------------------------------------------


def test_what_drafting_took_is_told() -> None:
    texts = lines(20)
    clock = FakeClock(tick_s=1e-3)
    pace = DraftController(clock)
    for _ in range(MIN_MEASUREMENTS):
        pace.record_step(n_rows=1, width=1, n_new_tokens=1, verify_s=100.0, draft_s=0.0)
    drafts = FakeDraftContext(
        lambda rows: [FakeCandidateGenerator(texts, clock=clock, step_s=0.5, setup_s=2.0)], pace, most=4
    )
    for setup_s in (0.0, 4.0):  # the first setup, when memory is touched for the first time, does not count
        _, took, stats = speak(logits_of_texts(texts), drafts)
        assert took == 4
        assert stats.draft_forwards == 4 + 4 + 4 + 4
        assert stats.draft_s == pytest.approx(2.0 + 16 * 0.5, abs=0.1)
        assert 100 * drafts.controller.setup_cost == pytest.approx(setup_s, abs=0.01)
    assert 100 * drafts.controller.draft_cost.predict(1) == pytest.approx(0.5, abs=0.01)


def decoded(strategy: Any, speculator: SpeculativeDecoder) -> DecodeStats:
    backend = ScriptedBackend(random_logits())
    windows = [Window(window_index=audio, prompt=TOKENIZER.sot_sequence("en")) for audio in (0, 1)]
    rules = make_logit_rules(TOKENIZER, timestamps=False)
    drafter = speculator.prepare(make_mel(2), FakeFeatures(2))
    return decode(
        backend,
        FakeFeatures(2),
        windows,
        tokenizer=TOKENIZER,
        logit_rules=rules,
        strategy=strategy,
        draft_context=drafter,
    )[1]


def test_an_assistant_does_not_listen_before_it_is_asked() -> None:
    class Deaf(ScriptedBackend):
        def encode(self, mel: Floats) -> FakeFeatures:
            raise AssertionError("nobody asked")

    speculator = SpeculativeDecoder(
        float, assistant=Assistant(backend=Deaf(random_logits()), shares_encoder=False)
    )
    assert decoded(Beam(width=2), speculator).undrafted_windows == 2
    with pytest.raises(AssertionError, match="nobody asked"):
        decoded(Greedy(), speculator)


def test_sums_of_stats() -> None:
    one = DecodeStats(drafted=4, accepted=2, near_ties=(1e-4,), draft_s=0.5, forwards=2, sampled_tokens=5)
    both = one + DecodeStats(drafted=4, accepted=4, near_ties=(2e-4,), skipped_steps=1)
    assert (both.drafted, both.accepted, both.skipped_steps) == (8, 6, 1)
    assert both.near_ties == (1e-4, 2e-4)
    assert both.acceptance_rate == 0.75
    assert one.tokens_per_forward == 2.5
    assert DecodeStats().acceptance_rate is DecodeStats().tokens_per_forward is None


# --- the ladder, and parts of windows ----------------------------------------------------------------------


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Window], list[Any], DecodeStats]]:
    """Every call that the ladder makes: windows, results, stats."""
    calls: list[tuple[list[Window], list[Any], DecodeStats]] = []

    def spy(backend: Any, features: Any, windows: list[Window], **rest: Any) -> Any:
        results, stats = decode(backend, features, windows, **rest)
        calls.append((windows, results, stats))
        return results, stats

    monkeypatch.setattr(window_decoder, "decode", spy)
    return calls


def hear(
    backend: Backend, heard: int, speculator: SpeculativeDecoder | None, **options: Any
) -> tuple[Any, DecodeStats]:
    told: list[DecodeStats] = []
    clock = FakeClock(tick_s=1.0)
    made = TranscribeOptions(
        language="en", best_of=2, logprob_threshold=0.0, no_speech_threshold=None, **options
    )
    hearing = WindowDecoder(backend, TOKENIZER, made, speculator, clock)
    jobs = [
        DecodeRequest(
            mel=mel[None], frames_to_encode=heard, seek=0, is_first=False, resolve_language=lambda probabilities: "en",
            build_prompt=lambda language: TOKENIZER.sot_sequence(language), add_stats=told.append,
            callbacks=Callbacks(),
        )
        for mel in make_mel(2)
    ]  # fmt: skip
    return hearing.decode(jobs), sum(told, DecodeStats())


def eager_speculator(**what: Any) -> SpeculativeDecoder:
    made = SpeculativeDecoder(float, **what)
    made.greedy.controller, made.sampling.controller = measured_controller(), measured_controller()
    return made


def test_each_rung_drafts_from_what_was_said_on_the_one_before(
    open_backend: Callable[[str], Backend], decodes: list[Any]
) -> None:
    backend = open_backend("onnx-fp32")
    temperatures = (0.0, 0.1, 0.2)
    plain, _ = hear(backend, 2 * DIMS.n_audio_ctx, None, temperatures=temperatures)
    bare = [(windows, results) for windows, results, _ in decodes]
    decodes.clear()
    ours, stats = hear(backend, 2 * DIMS.n_audio_ctx, eager_speculator(), temperatures=temperatures)
    assert [its.decoded.hypothesis.tokens for its in ours] == [its.decoded.hypothesis.tokens for its in plain]
    assert len(decodes) == 3
    said: list[tuple[int, ...]] = [(), ()]
    for (windows, results, its), (_, expected) in zip(decodes, bare, strict=True):
        assert [window.draft_tokens for window in windows] == said
        assert bool(its.drafted) == any(said)
        said = [result.hypothesis.tokens for result in results]
        assert said == [result.hypothesis.tokens for result in expected]
    assert 0 < stats.accepted <= stats.drafted
    assert stats.draft_forwards == 0


def test_what_was_heard_of_a_part_is_the_draft_of_the_whole(
    open_backend: Callable[[str], Backend], decodes: list[Any]
) -> None:
    """Where a part of a window is doubted, what it said is most of what the whole window says."""
    backend = open_backend("onnx-fp32")
    outcomes, stats = hear(backend, 24, eager_speculator(), temperatures=(0.0,), fidelity="fast")
    (parts, first, _), (wholes, _, its) = decodes
    assert [window.draft_tokens for window in parts] == [(), ()]
    assert [window.draft_tokens for window in wholes] == [result.hypothesis.tokens for result in first]
    assert its.drafted > 0
    assert all("part of the window" in (outcome.attempts[0].reason or "") for outcome in outcomes)
    assert stats.encode_s == 2
    assert stats.decode_s >= 2


def test_speculation_is_of_one_decode() -> None:
    """Sources live as long as the rows; only trust and prices stay."""
    speculator = eager_speculator(ngram=True)
    drafter = speculator.prepare(make_mel(1), FakeFeatures(1))
    one, other = (drafter.open_draft_session([0], [[0]], [[1, 2]], unrestricted_rules()) for _ in range(2))
    assert isinstance(one, DraftSession)
    assert one.controller is other.controller is speculator.greedy.controller
    assert one.generators[0].generator is not other.generators[0].generator
    names = ("previous", "ngram")
    for source, again, name in zip(one.generators, other.generators, names, strict=True):
        assert source.counter is again.counter is getattr(speculator.greedy, name)
