"""Speculative decoding gives the text of plain decoding, for any draft and any logit rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.backends import FakeFeatures, ScriptedBackend, random_logits
from fakes.drafts import FakeDraftContext, measured_controller
from fakes.speech_detector import LoudIsSpeech
from harken.api import Recognizer
from harken.contract import Backend, Features, Ints
from harken.decoding import (
    Assistant,
    DecodeStats,
    DecodingResult,
    DraftContext,
    Greedy,
    LogitRules,
    Sample,
    SpeculativeDecoder,
    Step,
    Strategy,
    Window,
    decode,
    make_logit_rules,
    make_prompt,
)
from harken.decoding.speculation import NEAR_TIE
from harken.results import Transcript
from tiny_models import DIMS, N_WINDOWS, TOKENIZER, make_assistant_weights, make_backend, make_mel, make_weights

EOT, BEGIN = TOKENIZER.eot, TOKENIZER.timestamp_begin
TEXT = [*b" aeinorst,.", 0xC3, 0xA9]
TIMES = [BEGIN + step for step in (0, 10, 25, 50, 100, 200, 400, 800, 1200, 1500)]
PART = np.array(sorted({*b" aeinot", *TIMES[::2], EOT}), np.int64)
"""Vocabulary of an assistant that covers only some tokens."""
LONG, SHORT = 48, 20
"""Context lengths; the short one leaves only a few tokens after a prompt."""
WINDOW_SAMPLES = 2 * DIMS.n_audio_ctx * 160
few = settings(max_examples=8)
Decoded = tuple[list[DecodingResult], DecodeStats, dict[int, list[int]]]


# --- models ------------------------------------------------------------------------------------------------


def assistants(n_text_ctx: int) -> dict[str, Assistant]:
    """Make assistants, from one that is always right to one that is unrelated."""

    def drafting(share: float, vocabulary: Ints | None = None) -> Assistant:
        backend = ScriptedBackend(random_logits(share), n_text_ctx, vocabulary=vocabulary)
        return Assistant(backend=backend, shares_encoder=share == 0)

    return {
        "itself": drafting(0.0),
        "related": drafting(0.2),
        "unrelated": drafting(1.0),
        "related, with a part of the vocabulary": drafting(0.1, PART),
    }


@dataclass(frozen=True)
class Bench:
    """A model with encoded windows, and its assistants."""

    backend: Backend
    features: Features
    assistants: dict[str, Assistant]

    def decode_all(
        self,
        windows: Sequence[Window],
        rules: LogitRules,
        strategy: Strategy,
        draft_context: DraftContext | FakeDraftContext | None = None,
        *,
        attention: bool = False,
    ) -> Decoded:
        rows: dict[int, list[int]] = {}

        def observe(step: Step) -> None:
            assert step.index == len(rows.setdefault(step.row, []))
            rows[step.row].append(step.token)

        decoded, stats = decode(
            self.backend, self.features, windows, tokenizer=TOKENIZER, logit_rules=rules, strategy=strategy,
            observe=observe, attention=attention, draft_context=draft_context,
        )  # fmt: skip
        return decoded, stats, rows


@pytest.fixture(scope="module")
def benches() -> dict[int, Bench]:
    return {
        n_text_ctx: Bench(
            ScriptedBackend(random_logits(), n_text_ctx), FakeFeatures(N_WINDOWS), assistants(n_text_ctx)
        )
        for n_text_ctx in (LONG, SHORT)
    }


def make_decoder(**options: Any) -> SpeculativeDecoder:
    """Make a decoder that drafts whenever it can, since its clock stands still."""
    decoder = SpeculativeDecoder(float, **options)
    decoder.greedy.controller, decoder.sampling.controller = measured_controller(), measured_controller()
    return decoder


# --- windows and logit rules -------------------------------------------------------------------------------


@st.composite
def logit_rules(draw: st.DrawFn) -> LogitRules:
    timestamps = draw(st.booleans())
    kept = {*TEXT, *(TIMES if timestamps else ()), *([EOT] if draw(st.integers(0, 3)) else ())}
    return make_logit_rules(
        TOKENIZER,
        timestamps=timestamps,
        suppress_tokens=sorted(set(range(DIMS.n_vocab)) - kept),
        suppress_blank=draw(st.booleans()),
        suppress_regex=draw(st.sampled_from([None, None, "[ae]"])),
        forced_prefix=draw(st.sampled_from([(), (), tuple(b" to"), tuple(b"Zz")])),
        hotwords=draw(st.sampled_from([(), (), ("Ron", "sienna tae")])),
    )


@st.composite
def batches(draw: st.DrawFn, most: int = 4) -> tuple[list[Window], LogitRules, int]:
    rules, n_text_ctx = draw(logit_rules()), draw(st.sampled_from([LONG, LONG, SHORT]))
    token = st.sampled_from(TEXT)

    def window() -> Window:
        prompt = make_prompt(
            TOKENIZER,
            n_text_ctx,
            language=draw(st.sampled_from(["en", "jw"])),
            task=draw(st.sampled_from(["transcribe", "translate"])),
            timestamps=rules.timestamps,
            initial_prompt_tokens=draw(st.lists(token, max_size=3)),
            previous_tokens=draw(st.lists(token, max_size=12)),
        )
        window_index, seed = draw(st.integers(0, N_WINDOWS - 1)), draw(st.integers(0, 9))
        return Window(window_index=window_index, prompt=prompt, seed=(seed, 7))

    return [window() for _ in range(draw(st.integers(1, most)))], rules, n_text_ctx


STRATEGIES = [Greedy(), Sample(temperature=0.7, best_of=1), Sample(temperature=1.0, best_of=3)]
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=["greedy", "sample", "best of 3"])


def assert_same(ours: Decoded, plain: Decoded, tolerance: float = 1e-4) -> None:
    """Compare all rows token for token; in models this small not even a near tie differs."""
    assert ours[2] == plain[2]
    for one, other in zip(ours[0], plain[0], strict=True):
        assert one.hypothesis.tokens == other.hypothesis.tokens
        assert one.text == other.text
        assert one.hypothesis.logprobs == pytest.approx(other.hypothesis.logprobs, rel=0, abs=tolerance)
        assert one.no_speech_prob == other.no_speech_prob
    assert ours[1].sampled_tokens == plain[1].sampled_tokens
    assert ours[1].forwards <= plain[1].forwards
    assert ours[1].accepted <= ours[1].drafted
    assert all(0 <= margin < NEAR_TIE for margin in ours[1].near_ties)


# --- sources of drafts -------------------------------------------------------------------------------------

ASSISTANTS = ["itself", "related", "unrelated", "related, with a part of the vocabulary"]


@each_strategy
@pytest.mark.parametrize("assistant_name", ASSISTANTS)
@few
@given(batch=batches(most=3))
def test_assistant_does_not_change_the_text(
    benches: dict[int, Bench],
    assistant_name: str,
    strategy: Strategy,
    batch: tuple[list[Window], LogitRules, int],
) -> None:
    windows, rules, n_text_ctx = batch
    bench = benches[n_text_ctx]
    draft_context = make_decoder(assistant=bench.assistants[assistant_name]).prepare(make_mel(), bench.features)
    ours = bench.decode_all(windows, rules, strategy, draft_context)
    assert_same(ours, bench.decode_all(windows, rules, strategy))
    if assistant_name == "itself" and strategy == Greedy():
        assert ours[1].accepted == ours[1].drafted


@each_strategy
@few
@given(
    batch=batches(),
    accuracies=st.lists(st.sampled_from(["right", "half", "wrong", "none"]), min_size=4),
    seed=st.integers(0, 9),
)
def test_earlier_hypothesis_does_not_change_the_text(
    benches: dict[int, Bench],
    strategy: Strategy,
    batch: tuple[list[Window], LogitRules, int],
    accuracies: list[str],
    seed: int,
) -> None:
    windows, rules, n_text_ctx = batch
    bench = benches[n_text_ctx]
    plain = bench.decode_all(windows, rules, strategy)
    rng = np.random.default_rng(seed)

    def distort(accuracy: str, tokens: tuple[int, ...]) -> tuple[int, ...]:
        wrong = rng.choice(TEXT, len(tokens)).tolist()
        keep = {"right": 1.0, "half": 0.7, "wrong": 0.0, "none": 0.0}[accuracy]
        mixed = [token if rng.random() < keep else other for token, other in zip(tokens, wrong, strict=True)]
        return tuple(mixed) if accuracy != "none" else ()

    attempts = [
        replace(window, draft_tokens=distort(accuracy, decoded.hypothesis.tokens))
        for window, accuracy, decoded in zip(windows, accuracies, plain[0], strict=False)
    ]
    draft_context = make_decoder(ngram=bool(seed % 2)).prepare(make_mel(), bench.features)
    ours = bench.decode_all(attempts, rules, strategy, draft_context)
    assert_same(ours, plain)
    if strategy == Greedy() and set(accuracies[: len(windows)]) == {"right"}:
        assert ours[1].accepted == ours[1].drafted


# --- real decoders, and recordings -------------------------------------------------------------------------


TOLERANCES = {"numpy": 1e-5, "onnx-fp32": 1e-4, "onnx-int8": 0.0}
"""int8 adds integers, so that the number of tokens read at once changes no bit."""


@pytest.fixture(scope="module", params=[*TOLERANCES])
def named_backend(
    request: pytest.FixtureRequest, open_backend: Callable[[str], Backend]
) -> tuple[str, Backend]:
    return request.param, open_backend(request.param)


@pytest.fixture(scope="module")
def transformers(
    named_backend: tuple[str, Backend], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Assistant]:
    """Make assistants for the tiny model: one on its encoder, and one with its own."""
    name, _ = named_backend
    graphs = tmp_path_factory.mktemp("drafting")
    # Mostly the main model, so that it is right now and then.
    related = {
        key: np.float32(0.9) * weights + np.float32(0.1) * make_assistant_weights()[key]
        for key, weights in make_weights().items()
    }
    part = make_backend(name, graphs, related, shares_encoder=True, vocab_subset=PART)
    whole = make_backend("numpy", graphs, related)
    return {
        "sharing the encoder": Assistant(backend=part, shares_encoder=True),
        "with its own": Assistant(backend=whole, shares_encoder=False),
    }


@pytest.mark.parametrize("assistant_name", ["sharing the encoder", "with its own"])
@settings(max_examples=4)
@given(batch=batches(most=2), strategy=st.sampled_from(STRATEGIES))
def test_real_assistant_does_not_change_the_text(
    named_backend: tuple[str, Backend],
    transformers: dict[str, Assistant],
    assistant_name: str,
    batch: tuple[list[Window], LogitRules, int],
    strategy: Strategy,
) -> None:
    windows, rules, _ = batch
    bench = Bench(named_backend[1], named_backend[1].encode(make_mel()), {})
    plain = bench.decode_all(windows, rules, strategy, attention=True)
    draft_context = make_decoder(assistant=transformers[assistant_name], ngram=True).prepare(
        make_mel(), bench.features
    )
    ours = bench.decode_all(windows, rules, strategy, draft_context, attention=True)
    assert_same(ours, plain, TOLERANCES[named_backend[0]])
    if assistant_name == "with its own" and max(map(len, plain[2].values())) > 2:
        assert ours[1].drafted
    for one, other in zip(ours[0], plain[0], strict=True):
        np.testing.assert_allclose(
            one.hypothesis.attention, other.hypothesis.attention, atol=TOLERANCES[named_backend[0]]
        )


lengths = st.tuples(st.sampled_from([0.3, 0.9, 2.5]), st.sampled_from([0.2, 1.0]))


@settings(max_examples=6)
@given(
    windows=st.lists(lengths, min_size=1, max_size=3),
    options=st.fixed_dictionaries(
        {
            "temperatures": st.sampled_from([(0.0,), (0.0, 0.7, 1.0)]),
            "logprob_threshold": st.sampled_from([-1.0, 0.0]),
            "best_of": st.just(2),
            "word_timestamps": st.booleans(),
            "condition_on_previous_text": st.booleans(),
            "fidelity": st.sampled_from(["exact", "fast"]),
            "language": st.sampled_from([None, "en"]),
            "vad": st.booleans(),
        }
    ),
    batch_size=st.sampled_from([1, 4]),
    seed=st.integers(0, 9),
)
def test_drafts_do_not_change_whole_transcripts(
    open_backend: Callable[[str], Backend],
    windows: list[tuple[float, float]],
    options: dict[str, Any],
    batch_size: int,
    seed: int,
) -> None:
    backend = open_backend("onnx-fp32")
    rng = np.random.default_rng(seed)
    parts = [0.2 * rng.standard_normal(round(loud * WINDOW_SAMPLES)) for loud, _ in windows]
    gaps = [np.zeros(round(quiet * WINDOW_SAMPLES)) for _, quiet in windows]
    samples = np.concatenate([both for pair in zip(parts, gaps, strict=True) for both in pair]).astype(
        np.float32
    )
    itself = Assistant(backend=backend, shares_encoder=True)
    decoder = SpeculativeDecoder(
        lambda: float(rng.exponential()), assistant=itself if seed % 2 else None, ngram=True
    )
    for experience in (decoder.greedy, decoder.sampling):
        experience.controller = measured_controller(experience.controller.clock if seed % 3 else float)
    drafted = Recognizer(backend, TOKENIZER, "tiny", decoder, speech_detector=LoudIsSpeech).transcribe(
        samples, **options, batch_size=batch_size
    )
    plain = Recognizer(backend, TOKENIZER, "tiny", speech_detector=LoudIsSpeech).transcribe(
        samples, **options, batch_size=batch_size
    )
    assert comparable(drafted.result()) == comparable(plain.result())
    assert drafted.stats.sampled_tokens == plain.stats.sampled_tokens
    assert drafted.stats.forwards <= plain.stats.forwards


def comparable(transcript: Transcript) -> list[tuple[Any, ...]]:
    """Return what must be equal, numbers rounded."""
    return [
        (
            segment.start_s,
            segment.end_s,
            segment.tokens,
            segment.language,
            round(segment.avg_logprob, 3),
            [(attempt.temperature, attempt.reason is None) for attempt in segment.attempts],
            [(word.text, word.start_s, word.end_s) for word in segment.words or ()],
        )
        for segment in transcript.segments
    ]
