"""Decoders that listen to another model's encoder: every backend, against the reference and an encoder of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench import Bench, log_probabilities

from harken.contract import Backend
from tiny_models import DIMS, N_WINDOWS, TOKENIZER, make_assistant_weights, make_backend, make_mel

PROMPT = (TOKENIZER.sot_prev, 72, 101, TOKENIZER.sot, *TOKENIZER.sot_sequence("en")[1:])
ONE_LAYER = replace(DIMS, n_text_layer=1)
WITHOUT_ENCODER = {
    name: values for name, values in make_assistant_weights().items() if name.startswith("decoder.")
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("assistants")


@pytest.fixture(scope="module")
def assistant(bench: Bench, graphs: Path) -> Bench:
    """An assistant with the encoder of the bench and another decoder, both of which it has adopted."""
    backend, reference_backend = (
        make_backend(name, graphs, WITHOUT_ENCODER, dims=DIMS.without_encoder())
        for name in (bench.name, "numpy")
    )
    return adopted(bench, backend, reference_backend)


def adopted(bench: Bench, backend: Backend, reference_backend: Backend) -> Bench:
    features, expected = (
        backend.reuse_encoder_output(bench.features),
        reference_backend.reuse_encoder_output(bench.expected),
    )
    return Bench(bench.name, backend, reference_backend, features, expected, bench.tolerance)


def test_says_that_it_has_no_encoder(assistant: Bench) -> None:
    assert assistant.backend.dims == DIMS.without_encoder()
    assert assistant.features.n_windows == N_WINDOWS
    with pytest.raises(AssertionError, match="no encoder of its own"):
        assistant.backend.encode(make_mel())


def test_hears_what_its_own_encoder_would_hear(assistant: Bench, graphs: Path) -> None:
    whole = make_backend(assistant.name, graphs, make_assistant_weights())
    own = log_probabilities(
        whole.open_session(whole.encode(make_mel()), range(N_WINDOWS), 48).extend([PROMPT] * N_WINDOWS)
    )
    shared = assistant.open(range(N_WINDOWS)).extend([PROMPT] * N_WINDOWS)
    np.testing.assert_allclose(shared, own, atol=assistant.tolerance * own.std(), rtol=0)


def test_of_a_whole_model_the_encoder_is_left_alone(bench: Bench, assistant: Bench, graphs: Path) -> None:
    backend = make_backend(bench.name, graphs, make_assistant_weights(), shares_encoder=True)
    assert backend.dims == DIMS.without_encoder()
    session = backend.open_session(backend.reuse_encoder_output(bench.features), [2], 48)
    np.testing.assert_array_equal(
        log_probabilities(session.extend([PROMPT])), assistant.open([2]).extend([PROMPT])
    )


def test_the_main_model_may_adopt_its_own_features(bench: Bench) -> None:
    again = bench.backend.open_session(bench.backend.reuse_encoder_output(bench.features), [3], 48)
    np.testing.assert_array_equal(log_probabilities(again.extend([PROMPT])), bench.open([3]).extend([PROMPT]))


def test_features_are_handed_on_from_one_assistant_to_the_next(bench: Bench, assistant: Bench) -> None:
    back = bench.backend.open_session(bench.backend.reuse_encoder_output(assistant.features), [1], 48)
    np.testing.assert_array_equal(log_probabilities(back.extend([PROMPT])), bench.open([1]).extend([PROMPT]))


def test_fewer_layers_than_the_main_model(bench: Bench, graphs: Path) -> None:
    weights = {name: values for name, values in WITHOUT_ENCODER.items() if ".blocks.1." not in name}
    backend, reference_backend = (
        make_backend(name, graphs, weights, dims=ONE_LAYER.without_encoder()) for name in (bench.name, "numpy")
    )
    pair = adopted(bench, backend, reference_backend).open([0, 2], attention=True)
    pair.extend([PROMPT] * 2)
    assert pair.attention(0).shape == (DIMS.n_text_head, len(PROMPT), DIMS.n_audio_ctx)


@pytest.mark.parametrize("frames", [2, 10])
def test_shorter_windows(bench: Bench, assistant: Bench, frames: int) -> None:
    mel = make_mel()[:, :, :frames]
    heard = replace(bench, features=bench.backend.encode(mel), expected=bench.reference_backend.encode(mel))
    adopted(heard, assistant.backend, assistant.reference_backend).open([0, 1]).extend([PROMPT] * 2)


def test_features_outlive_and_outnumber_the_sessions_over_them(bench: Bench, assistant: Bench) -> None:
    main, draft = bench.open([0, 1]), assistant.open([0, 1])
    for step in range(3):
        main.extend([PROMPT[step : step + 1]] * 2)
        draft.extend([PROMPT[step : step + 2]] * 2, last_n=2)
        draft.rewind([step + 1] * 2)


def test_sessions_are_changed_as_any_others(assistant: Bench) -> None:
    pair = assistant.open([2, 0, 3, 1], attention=True)
    pair.extend([PROMPT, PROMPT[1:], PROMPT[2:], PROMPT[3:]], last_n=3)
    pair.reorder([1, 2, 2])
    pair.rewind([3, len(PROMPT) - 2, 2])
    pair.extend([[65], [], [66, 67]], last_n=2)
    pair.reorder([2])
    pair.extend([[68]])
    assert pair.attention(0).shape[1] == 5
