"""Speculative decoding: the text of plain decoding, for any draft and any logit rules, in fewer passes; its sources."""

from dataclasses import replace
from functools import cache, partial
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_windows import END, TEXT, TIMES, rules_over, windows

from fakes.backends import (
    EOT,
    N_VOCAB,
    FakeFeatures,
    FakeSession,
    ScriptedBackend,
    logits_of_texts,
    random_logits,
)
from fakes.clock import FakeClock
from fakes.drafts import (
    FakeCandidateGenerator,
    correct_with_probability,
    eager_decoder,
    open_drafts,
    unrestricted_rules,
)
from harken.decoding import (
    Assistant,
    Beam,
    DraftContext,
    Greedy,
    Sample,
    SpeculativeDecoder,
    Window,
    decode,
    make_logit_rules,
    speculation,
)
from harken.decoding.candidate_generator import (
    AssistedCandidateGenerator,
    Draft,
    HypothesisLookup,
    PromptLookup,
)
from harken.decoding.draft_controller import AcceptanceCounter
from harken.decoding.generate import Row, WindowEnd, generate, pick_best
from harken.decoding.speculation import MAX_DRAFT_TOKENS, NEAR_TIE
from harken.transcribe import TranscribeOptions, WindowDecoder
from single_recording import SHORT_LENGTH, audio_window, decode_windows
from tiny_models import DIMS, N_WINDOWS, TOKENIZER, make_mel

# --- passes ------------------------------------------------------------------------------------------------


def decode_rows(script, *generators, limits=(300,), most=MAX_DRAFT_TOKENS, observe=lambda step: None):
    """Decode rows behind a prompt of one token; return hypotheses, forward passes after the prompt, and stats."""
    session = FakeSession(script, range(len(limits)))
    logits = session.extend([[0]] * len(limits))
    drafts = open_drafts(*generators)
    rows = [Row((0,), limit, WindowEnd(EOT)) for limit in limits]
    with patch.object(speculation, "MAX_DRAFT_TOKENS", most):
        forwards = generate(
            session, rows, logits, unrestricted_rules(), pick_best, observe=observe, draft_session=drafts
        )
    assert forwards == len(session.read) - 1
    return [row.hypothesis(EOT) for row in rows], forwards, drafts.stats


def random_texts(*lengths):
    rng = np.random.default_rng(0)
    return [[*rng.integers(0, EOT, length).tolist(), EOT] for length in lengths]


@pytest.mark.parametrize(
    ("length", "most", "wrong", "passes", "accepted"),
    [
        *((12, 12, (), 1, 12), (13, 12, (), 1, 12), (14, 12, (), 2, 13)),
        *((9, 1, (), 5, 5), (1, 5, (), 1, 1), (0, 5, (), 0, 0)),
        (12, MAX_DRAFT_TOKENS, (4, 5, 9), 4, 9),  # tokens 1 to 4, then 5 alone, then 6 to 9, then 10 to 12
    ],
)
def test_drafts_give_their_length_up_to_the_first_wrong_token_and_one_token_a_pass(
    length, most, wrong, passes, accepted
):
    """The first token comes with the prompt; eot counts as a token."""
    texts, steps = random_texts(length), []
    draft = FakeCandidateGenerator(texts, lambda row, index: index not in wrong)
    _, forwards, stats = decode_rows(logits_of_texts(texts), draft, most=most, observe=steps.append)
    assert (forwards, stats.accepted) == (passes, accepted)
    assert wrong or stats.drafted == accepted
    assert [(step.index, step.token) for step in steps] == [*enumerate(texts[0])]


def test_rows_accept_independently():
    """Four rows take as many passes together as the slowest one alone."""
    texts = random_texts(30, 25, 30, 3)
    rights = [correct_with_probability(share) for share in (1.0, 0.8, 0.3, 0.0)]

    def passes(rows):
        row_texts = [texts[row] for row in rows]
        draft = FakeCandidateGenerator(row_texts, lambda row, index: rights[rows[row]](rows[row], index))
        found, forwards, stats = decode_rows(logits_of_texts(row_texts), draft, limits=[300] * len(rows))
        assert [[*each.tokens, EOT] for each in found] == row_texts
        return forwards, stats.drafted, stats.accepted

    forwards, drafted, accepted = zip(*(passes([row]) for row in range(4)), strict=True)
    assert passes([0, 1, 2, 3]) == (max(forwards), sum(drafted), sum(accepted))


def test_drafts_do_not_exceed_the_limit_and_a_second_generator_drafts_for_the_remaining_rows():
    texts = random_texts(40, 40, 6)
    first, second = FakeCandidateGenerator([*texts[:2], []]), FakeCandidateGenerator(texts)
    found, forwards, stats = decode_rows(logits_of_texts(texts), first, second, limits=[9, 1, 300])
    assert [len(hypothesis.tokens) for hypothesis in found] == [9, 1, 6]
    assert (forwards, stats.drafted, stats.accepted) == (1, 7 + 6, 7 + 6)
    assert first.asked[0] == [7, MAX_DRAFT_TOKENS]
    assert second.asked[0] == [0, MAX_DRAFT_TOKENS]


# --- near ties ---------------------------------------------------------------------------------------------

SIX = [[1] * 6 + [EOT]]


def contested(margin):
    """Make a script of `SIX`, in which 2 is second best by a margin in log-probability."""

    def script(window, seen):
        logits = np.full(N_VOCAB, -20, np.float32)
        logits[[1 if len(seen) < 7 else EOT, 2]] = 0, -margin
        return logits

    return script


def test_near_ties_are_counted_only_in_wide_passes():
    """A pass over one token is a plain step, and rounds like one."""
    for texts, margin, counted in ((SIX, NEAR_TIE / 4, 6), (SIX, NEAR_TIE * 2, 0), ([[]], NEAR_TIE / 4, 0)):
        _, _, stats = decode_rows(contested(margin), FakeCandidateGenerator(texts))
        assert stats.near_ties == pytest.approx([margin] * counted, rel=1e-2)


# --- when an assistant encodes -----------------------------------------------------------------------------


class NoEncoder(ScriptedBackend):
    def encode(self, mel, *, padded=False):
        raise AssertionError("no draft was requested")


def test_assistant_does_not_encode_where_it_does_not_draft():
    """Not for beam search, and not where encoding takes longer than decoding."""
    windows = [Window(window_index=audio, prompt=TOKENIZER.sot_sequence("en")) for audio in (0, 1)]
    rules = make_logit_rules(TOKENIZER, timestamps=False)

    def stats(strategy, **costs):
        assistant = Assistant(backend=NoEncoder(random_logits()), shares_encoder=False, setup_ratio=0.5)
        decoder = SpeculativeDecoder(float, assistant=assistant)
        context = draft_context(decoder, FakeFeatures(2), **costs)
        backend = ScriptedBackend(random_logits())
        return decode_all(backend, FakeFeatures(2), windows, rules, strategy, context)[1]

    assert stats(Beam(width=2)).undrafted_windows == 2
    costly = stats(Greedy(), encode_s=10.0)
    assert costly.draft_forwards == costly.drafted == 0
    assert costly.skipped_steps > 0
    with pytest.raises(AssertionError, match="no draft was requested"):
        stats(Greedy())


# --- any draft ---------------------------------------------------------------------------------------------

PART = np.array(sorted({*b" aeinot", *TIMES[::2], END}), np.int64)
"""Vocabulary of an assistant that covers only some tokens."""
LONG, SHORT = 48, 20
"""Context lengths; the short one leaves only a few tokens after a prompt."""
STRATEGIES = [Greedy(), Sample(temperature=0.7, best_of=1), Sample(temperature=1.0, best_of=3)]
ASSISTANTS = {
    "itself": (0.0, None),
    "related": (0.2, None),
    "unrelated": (1.0, None),
    "related, with a part of the vocabulary": (0.1, PART),
}


@cache
def scripted(n_text_ctx, name="itself"):
    share, vocabulary = ASSISTANTS[name]
    return ScriptedBackend(random_logits(share), n_text_ctx, vocabulary=vocabulary)


def draft_context(decoder, features, **costs):
    return DraftContext(decoder, partial(Assistant.encode, mel=make_mel(), features=features), 30.0, **costs)


def decode_all(backend, features, windows, rules, strategy, draft_context=None):
    rows = {}

    def observe(step):
        if not isinstance(strategy, Beam):
            assert step.index == len(rows.setdefault(step.row, []))
            rows[step.row].append(step.token)

    decoded, stats = decode(
        backend, features, windows, tokenizer=TOKENIZER, logit_rules=rules, strategy=strategy,
        observe=observe, draft_context=draft_context,
    )  # fmt: skip
    return decoded, stats, rows


@st.composite
def batches(draw, most=4):
    timestamps, n_text_ctx = draw(st.booleans()), draw(st.sampled_from([LONG, LONG, SHORT]))
    rules = rules_over(
        [*TEXT, *(TIMES if timestamps else ()), *([END] if draw(st.integers(0, 3)) else ())],
        timestamps=timestamps,
        suppress_blank=draw(st.booleans()),
        suppress_regex=draw(st.sampled_from([None, None, "[ae]"])),
        forced_prefix=draw(st.sampled_from([(), (), tuple(b" to"), tuple(b"Zz")])),
        hotwords=draw(st.sampled_from([(), (), ("Ron", "sienna tae")])),
    )
    return draw(st.lists(windows(timestamps, n_text_ctx), min_size=1, max_size=most)), rules, n_text_ctx


def assert_same(ours, plain):
    """Compare all rows token for token; in models this small not even a near tie differs."""
    assert ours[2] == plain[2]
    for one, other in zip(ours[0], plain[0], strict=True):
        assert one.hypothesis.tokens == other.hypothesis.tokens
        assert one.text == other.text
        assert one.hypothesis.logprobs == pytest.approx(other.hypothesis.logprobs, rel=0, abs=1e-4)
        assert one.no_speech_prob == other.no_speech_prob
    assert ours[1].sampled_tokens == plain[1].sampled_tokens
    assert ours[1].forwards <= plain[1].forwards
    assert ours[1].accepted <= ours[1].drafted
    assert all(0 <= margin < NEAR_TIE for margin in ours[1].near_ties)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=["greedy", "sample", "best of 3"])
@settings(max_examples=20)
@given(
    batch=batches(),
    assistant=st.sampled_from([None, *ASSISTANTS]),
    ngram=st.booleans(),
    shares=st.lists(st.sampled_from([None, 0.0, 0.7, 1.0]), min_size=4, max_size=4),
    seed=st.integers(0, 9),
)
def test_no_draft_changes_the_text(strategy, batch, assistant, ngram, shares, seed):
    """Neither of an assistant, nor of earlier text, nor of an earlier hypothesis of which a share is right."""
    windows, rules, n_text_ctx = batch
    backend, features = scripted(n_text_ctx), FakeFeatures(N_WINDOWS)
    plain = decode_all(backend, features, windows, rules, strategy)
    rng = np.random.default_rng(seed)

    def distort(share, tokens):
        if share is None:
            return ()
        return tuple(token if rng.random() < share else int(rng.choice(TEXT)) for token in tokens)

    attempts = [
        replace(window, draft_tokens=distort(share, decoded.hypothesis.tokens))
        for window, share, decoded in zip(windows, shares, plain[0], strict=False)
    ]
    drafting = assistant and Assistant(
        backend=scripted(n_text_ctx, assistant), shares_encoder=assistant == "itself"
    )
    decoder = eager_decoder(assistant=drafting or None, ngram=ngram)
    context = draft_context(decoder, features)
    ours = decode_all(backend, features, attempts, rules, strategy, context)
    assert_same(ours, plain)


@settings(max_examples=10)
@given(batch=batches(most=2))
def test_drafts_of_the_model_itself_are_all_accepted(batch):
    """As an assistant, and as an earlier hypothesis."""
    windows, rules, n_text_ctx = batch
    backend, features = scripted(n_text_ctx), FakeFeatures(N_WINDOWS)
    results, _, _ = decode_all(backend, features, windows, rules, Greedy())
    known = [
        replace(window, draft_tokens=result.hypothesis.tokens)
        for window, result in zip(windows, results, strict=True)
    ]
    itself = eager_decoder(assistant=Assistant(backend=backend, shares_encoder=True))
    for decoder, drafted in ((itself, windows), (eager_decoder(), known)):
        context = draft_context(decoder, features)
        _, stats, rows = decode_all(backend, features, drafted, rules, Greedy(), context)
        assert stats.accepted == stats.drafted
        assert stats.drafted or max(map(len, rows.values())) < 3


# --- the fallback schedule, and windows of several lengths -------------------------------------------------


def decode_two(backend, content_frames, speculator, **options):
    made = TranscribeOptions(
        language="en",
        best_of=2,
        beam_size=1,
        compression_ratio_threshold=0.01,
        no_speech_threshold=None,
        **options,
    )
    decoder = WindowDecoder(
        backend, TOKENIZER, made, speculator, FakeClock(tick_s=1.0), encoded_length=SHORT_LENGTH
    )
    windows = [audio_window(mel, content_frames=content_frames) for mel in make_mel(2)]
    return decode_windows(decoder, windows)[0], decoder.stats


@pytest.mark.parametrize(("temperatures", "drafts"), [((0.0,), False), ((0.0, 0.1, 0.2), True)])
def test_fallback_attempts_draft_from_the_one_before(open_backend, temperatures, drafts):
    """There is no other source of drafts."""
    (plain, _), (ours, stats) = (
        decode_two(open_backend("onnx-fp32"), 2 * DIMS.n_audio_ctx, decoder, temperatures=temperatures)
        for decoder in (None, eager_decoder())
    )
    for result, expected in zip(ours, plain, strict=True):
        assert sorted(attempt.temperature for attempt in result.attempts) == [*temperatures]
        assert result.decoded.hypothesis.tokens == expected.decoded.hypothesis.tokens
    assert (0 < stats.accepted <= stats.drafted) == drafts
    assert stats.draft_forwards == 0


def test_windows_that_were_encoded_apart_are_drafted_for_together(open_backend):
    """By an assistant, in the attempts at higher temperatures too, with the text of each alone and without drafts."""
    backend = open_backend("native-int8")
    options = TranscribeOptions(
        language="en", fidelity="fast", temperatures=(0.0, 0.4), best_of=2, beam_size=1, logprob_threshold=0.0
    )
    windows = [
        audio_window(mel, content_frames=frames) for mel, frames in zip(make_mel(3), (8, 16, 48), strict=True)
    ]

    def decode_together(windows, speculator):
        decoder = WindowDecoder(backend, TOKENIZER, options, speculator, encoded_length=SHORT_LENGTH)
        results, _ = decode_windows(decoder, windows)
        assert all(len(result.attempts) > 1 for result in results)
        return [result.decoded.hypothesis.tokens for result in results], decoder.stats

    for shares_encoder in (True, False):
        assistant = Assistant(backend=backend, shares_encoder=shares_encoder)
        texts, stats = decode_together(windows, eager_decoder(assistant=assistant))
        assert texts == [decode_together([window], None)[0][0] for window in windows]
        assert stats.undrafted_windows == 0
        assert stats.accepted > 0
        assert stats.forwards < decode_together(windows, None)[1].forwards


# --- lookup in earlier text --------------------------------------------------------------------------------


def drafted(generator, *prefixes, limit=4, **thresholds):
    """Return the tokens that a generator drafts behind the prefix of each row."""
    drafts = [
        Draft(row=row, prefix=prefix, max_tokens=limit, **thresholds) for row, prefix in enumerate(prefixes)
    ]
    generator.propose(drafts)
    return [tuple(draft.tokens) for draft in drafts]


EARLIER, HYPOTHESIS = PromptLookup, HypothesisLookup


@pytest.mark.parametrize(
    ("lookup", "source", "prefix", "expected"),
    [
        # In earlier text, and in the tokens so far.
        (EARLIER, "the cat sat", "a ca", "t sa"),
        (EARLIER, "", "one two one t", "wo o"),
        (EARLIER, "the cat. the cot. ", "the c", "ot. "),  # the last match
        (EARLIER, "the cat. the cot. ", "see the ca", "t. t"),  # the longest match
        (EARLIER, "the cat sat", "ca", ""),  # too short a match
        (EARLIER, "abcabc", "abc", "abc"),  # the last match with tokens behind it; not the prefix itself
        (EARLIER, "aaaa", "aaaa", "a"),
        # In an earlier hypothesis of the same audio.
        (HYPOTHESIS, "hello there", "", "\0hel"),  # most windows begin with speech: the first timestamp
        (HYPOTHESIS, "hello there", "hello there", ""),
        (HYPOTHESIS, "hello there", "Hallo", " the"),
        (HYPOTHESIS, "an ant and an ape", "an ant and an", " ape"),  # as far as it agrees, not elsewhere
        (HYPOTHESIS, "an ant and an ape", "An ant and an", " ape"),  # of several matches the nearest
        (HYPOTHESIS, "an ant and an ape", "An", " ant"),
        (HYPOTHESIS, "hello", "xyz", ""),
        # With digits for timestamps, where the hypothesis has none.
        (HYPOTHESIS, "hello there", "0hel", "lo t"),
        (HYPOTHESIS, "hello there", "0hello5", "5 th"),  # the next segment begins where this one ends
        (HYPOTHESIS, "hello there", "0Hallo56", " the"),
        (HYPOTHESIS, "hello there", "0hello there9", ""),
        (HYPOTHESIS, "0hello55 there9", "0hello5", "5 th"),  # it has timestamps
        (HYPOTHESIS, "0hello55 there9", "0hello6", ""),
    ],
)
def test_lookup_continues_as_the_source_does(lookup, source, prefix, expected):
    """Each row searches its own."""

    def tokens(text):
        return [ord(char) + 1000 * char.isdigit() for char in text]

    generator = lookup(
        [tokens(source), ()], replace(unrestricted_rules(), timestamp_begin=1000), AcceptanceCounter()
    )
    proposal, none = drafted(generator, tokens(prefix), tokens(prefix)[:3])
    assert "".join(chr(token % 1000) for token in proposal) == expected
    assert none in ((), (1000,))


def test_lookup_stops_at_a_banned_token_and_at_one_that_is_not_worth_verifying():
    rules = make_logit_rules(TOKENIZER, timestamps=True, suppress_tokens=[7])
    stamp = TOKENIZER.timestamp_begin
    source = (stamp, 5, 6, 7, 8)
    sources = [source, (stamp, 5, TOKENIZER.sot, 6)]
    lookup = HypothesisLookup(sources, rules, AcceptanceCounter())
    assert drafted(lookup, (), [stamp], limit=9) == [(stamp, 5, 6), (5,)]
    assert drafted(lookup, (), limit=9, verify_threshold=0.75) == [(stamp, 5)]


# --- an assistant model ------------------------------------------------------------------------------------


def test_assistant_reads_each_token_once_and_rewinds_only_rejected_ones():
    """It encodes once, when a first token is asked for."""
    backend, encoded = ScriptedBackend(logits_of_texts([(1, 2, 3, 4, 5, 6, EOT)], 3), 40), []

    def encode():
        encoded.append(FakeFeatures())
        return encoded[-1]

    assistant = AssistedCandidateGenerator(
        backend, encode, [0], [(0, 0, 0)], unrestricted_rules(), AcceptanceCounter()
    )

    def propose(prefix, limit):
        (tokens,) = drafted(assistant, prefix, limit=limit)
        return tokens

    assert propose([1], 0) == ()
    assert (encoded, backend.sessions) == ([], [])
    assert propose([1], 2) == (2, 3)
    (session,) = backend.sessions
    assert session.read == [[(0, 0, 0, 1)], [(2,)]]
    # All were accepted, and one more came from verification; the last token of the draft was never read.
    assert propose([1, 2, 3, 4], 2) == (5, 6)
    assert session.read[2:] == [[(3, 4)], [(5,)]]
    # The 5, which was read, was wrong.
    propose([1, 2, 3, 4, 6], 1)
    assert session.read[4:] == [[(6,)]]
    assert (assistant.forwards, len(encoded)) == (5, 1)
