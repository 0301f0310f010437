"""Sources of drafts: the tokens that they propose, and what an assistant model reads for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.backends import EOT, FakeFeatures, ScriptedBackend, logits_of_texts
from fakes.drafts import unrestricted_rules
from harken.decoding.candidate_generator import AssistedCandidateGenerator, DraftRequest, PromptLookup
from harken.decoding.logit_rules import make_logit_rules
from tiny_models import TOKENIZER

# --- lookup in earlier text --------------------------------------------------------------------------------


def request(prefix: Sequence[int], limit: int = 4, row: int = 0) -> DraftRequest:
    return DraftRequest(row=row, prefix=prefix, max_tokens=limit)


EARLIER, HYPOTHESIS = {"min_ngram_size": 3}, {"same_audio": True, "min_ngram_size": 1, "timestamp_begin": 1000}


@pytest.mark.parametrize(
    ("options", "source", "prefix", "expected"),
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
def test_lookup_continues_as_the_source_does(
    options: dict[str, Any], source: str, prefix: str, expected: str
) -> None:
    """Each row searches its own."""

    def tokens(text: str) -> list[int]:
        return [ord(char) + 1000 * char.isdigit() for char in text]

    lookup = PromptLookup([tokens(source), ()], **options)
    proposal, none = lookup.propose([request(tokens(prefix)), request(tokens(prefix)[:3], row=1)])
    assert "".join(chr(token % 1000) for token in proposal.tokens) == expected
    assert none.tokens in ((), (1000,))


@given(st.text("ab ", max_size=30), st.text("ab ", max_size=20), st.booleans(), st.integers(0, 6))
def test_drafted_tokens_follow_the_match_in_the_source(
    text: str, prefix: str, same_audio: bool, limit: int
) -> None:
    lookup = PromptLookup([text.encode()], same_audio=same_audio, min_ngram_size=2)
    (draft,) = lookup.propose([request(prefix.encode(), limit)])
    proposed = bytes(draft.tokens).decode()
    assert len(proposed) <= limit
    whole = text if same_audio else text + prefix
    if proposed and not (same_audio and text.startswith(prefix)):
        assert prefix[-2:] + proposed in whole


def test_lookup_stops_at_a_banned_token() -> None:
    rules = make_logit_rules(TOKENIZER, timestamps=True, suppress_tokens=[7])
    stamp = TOKENIZER.timestamp_begin
    source = (stamp, 5, 6, 7, 8)
    lookup = PromptLookup([source, (stamp, 5, TOKENIZER.sot, 6)], same_audio=True, allows=rules.allows)
    first, second = lookup.propose([request((), 9), request([stamp], 9, row=1)])
    assert first.tokens == (stamp, 5, 6)
    assert second.tokens == (5,)


# --- an assistant model ------------------------------------------------------------------------------------

ASSISTED = [(1, 2, 3, 4, 5, 6, EOT), (6, 5, EOT), (2, 2, 2, 2, 2, 2, EOT)]


class Assisted:
    """An assistant of some texts, which counts how often it encodes."""

    def __init__(self, texts: Sequence[Sequence[int]] = ASSISTED, prompt: Sequence[int] = (0,)) -> None:
        self.backend, self.encoded = ScriptedBackend(logits_of_texts(texts, len(prompt)), 40), 0
        rows = range(len(texts))
        self.generator = AssistedCandidateGenerator(
            self.backend, self.encode, rows, [prompt] * len(texts), unrestricted_rules()
        )

    def encode(self) -> FakeFeatures:
        self.encoded += 1
        return FakeFeatures(3)

    def propose(self, *requests: DraftRequest) -> list[tuple[int, ...]]:
        return [proposal.tokens for proposal in self.generator.propose(requests)]

    @property
    def read(self) -> list[list[tuple[int, ...]]]:
        (session,) = self.backend.sessions
        return session.read


def test_assistant_reads_each_token_once_and_rewinds_only_rejected_ones() -> None:
    """It encodes once, when a first token is asked for."""
    assistant = Assisted(ASSISTED[:1], (0, 0, 0))
    assert assistant.propose(request([1], 0)) == [()]
    assert (assistant.encoded, assistant.backend.sessions) == (0, [])
    assert assistant.propose(request([1], 2)) == [(2, 3)]
    assert assistant.read == [[(0, 0, 0, 1)], [(2,)]]
    # All were accepted, and one more came from verification; the last token of the draft was never read.
    assert assistant.propose(request([1, 2, 3, 4], 2)) == [(5, 6)]
    assert assistant.read[2:] == [[(3, 4)], [(5,)]]
    # The 5, which was read, was wrong.
    assistant.propose(request([1, 2, 3, 4, 6], 1))
    assert assistant.read[4:] == [[(6,)]]
    assert (assistant.generator.forwards, assistant.encoded) == (5, 1)


def test_draft_ends_at_end_of_text_and_at_limit_and_a_finished_row_is_dropped() -> None:
    assistant = Assisted()
    requests = request([1], 99), request([6], 99, row=1), request([2], 2, row=2)
    assert assistant.propose(*requests) == [(2, 3, 4, 5, 6, EOT), (5, EOT), (2, 2)]
    read = len(assistant.read)
    assert assistant.propose(request([2, 2], 2, row=2)) == [(2, 2)]
    assert assistant.read[read:] == [[(2,)], [(2,)]]
