"""The selection of frequent tokens, which an assistant scores when it drafts, and its coverage of further text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.text import Tokenizer

pytest.importorskip("torch")
from harken.training.distill import frequent_token_ids
from tiny_models import TOKENIZER

EOT = TOKENIZER.eot
SPECIALS = range(EOT, TOKENIZER.n_vocab)
TEXT = [7] * 96 + [40, 100, 150, 200]


@given(st.lists(st.lists(st.integers(0, TOKENIZER.n_vocab - 1))), st.floats(0, 1))
def test_ids_ascend_and_include_specials_and_all_tokens_of_the_texts(texts, coverage):
    ids = frequent_token_ids(TOKENIZER, texts, coverage)
    assert ids.dtype == np.int64
    assert (np.diff(ids) > 0).all()
    assert {*SPECIALS, *(token for text in texts for token in text)} <= {*ids.tolist()}


@pytest.mark.parametrize(
    ("texts", "coverage", "selected"),
    [
        *((nothing, 0.995, range(EOT)) for nothing in ([], [[]], [[EOT, EOT + 7]])),
        ([[7, 200, 7], [200, EOT]], 0.995, [7, 200]),
        ([[7, 7, 200, 200, 30]], 0.995, [*range(31), 200]),  # one that occurs once adds all lower ids
        *(
            ([TEXT], coverage, [*range(first), *TEXT])
            for coverage, first in ((1.0, 201), (0.989, 151), (0.979, 101), (0.969, 41), (0.95, 0))
        ),
    ],
)
def test_repeated_tokens_are_selected_and_as_many_low_ids_as_the_coverage_needs(texts, coverage, selected):
    assert frequent_token_ids(TOKENIZER, texts, coverage).tolist() == sorted({*selected, *SPECIALS})


@pytest.mark.parametrize("coverage", [0.9, 0.97, 0.995])
def test_further_text_is_covered_as_requested(coverage):
    tokenizer, rng = Tokenizer.builtin(51864), np.random.default_rng(0)
    # Token frequencies follow Zipf's law, independent of the order of the ids.
    shuffled = rng.permutation(tokenizer.eot)
    drawn = shuffled[np.minimum(rng.zipf(1.2, (2, 20_000)), tokenizer.eot) - 1]
    ids = frequent_token_ids(tokenizer, drawn[:1], coverage)
    assert np.isin(drawn[1], ids).mean() == pytest.approx(coverage, abs=0.01)
    assert len(ids) < tokenizer.n_vocab
