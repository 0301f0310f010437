"""Random programs of the three methods of a session, on every backend, in step with the reference."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from pairs import BackendPair

from tiny_models import DIMS, N_WINDOWS

MAX_ROWS = 5
PER_ROW = st.lists(st.sampled_from([0, 1, 2, 3, 5, 8, 13, 20]), min_size=MAX_ROWS, max_size=MAX_ROWS)


class Program(RuleBasedStateMachine):
    """A random program of extend, rewind and reorder; `SessionPair` compares all logits and all attention."""

    def __init__(self, backends: BackendPair) -> None:
        super().__init__()
        self._backends = backends

    @initialize(
        rows=st.lists(st.integers(0, N_WINDOWS - 1), min_size=1, max_size=MAX_ROWS), attention=st.booleans()
    )
    def open_session(self, rows: list[int], attention: bool) -> None:
        self.attention = attention
        self.pair = self._backends.open_session(rows, attention=attention)

    @rule(counts=PER_ROW, first=st.integers(0, 255), last_n=st.integers(1, 8))
    def extend(self, counts: list[int], first: int, last_n: int) -> None:
        """Append tokens to each row, as far as there is room; they differ between rows."""
        free_positions = [DIMS.n_text_ctx - length for length in self.pair.lengths]
        tokens = [
            [(first + 41 * row + 7 * i * i) % DIMS.n_vocab for i in range(min(count, free))]
            for row, (count, free) in enumerate(zip(counts, free_positions, strict=False))
        ]
        self.pair.extend(tokens, last_n)

    @rule(first=st.integers(0, 255))
    def step(self, first: int) -> None:
        self.extend([1] * len(self.pair.lengths), first, 1)

    @rule(forget=PER_ROW)
    def rewind(self, forget: list[int]) -> None:
        self.pair.rewind([max(0, length - n) for length, n in zip(self.pair.lengths, forget, strict=False)])

    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        row = st.integers(0, len(self.pair.lengths) - 1)
        self.pair.reorder(data.draw(st.lists(row, min_size=1, max_size=MAX_ROWS)))

    @precondition(lambda self: self.attention)
    @rule()
    def compare_attention(self) -> None:
        for row, length in enumerate(self.pair.lengths):
            if length:
                self.pair.attention(row)


def test_random_programs_stay_in_step_with_the_reference(backends: BackendPair) -> None:
    # In float32 the tolerance is smallest, so it gets the most examples.
    examples = 8 if backends.tolerance > 0.01 or backends.name == "numpy" else 30
    run_state_machine_as_test(
        lambda: Program(backends), settings=settings(max_examples=examples, stateful_step_count=20)
    )
