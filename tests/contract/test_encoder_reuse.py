"""Decoders over another model's encoder output: every backend, against the reference and an encoder of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pairs import BackendPair, log_probabilities

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
def assistant(backends: BackendPair, graphs: Path) -> BackendPair:
    """A decoder without an encoder in both backends, over the features of `backends`."""
    tested, reference = (
        make_backend(name, graphs, WITHOUT_ENCODER, dims=DIMS.without_encoder())
        for name in (backends.name, "numpy")
    )
    return reuse_features(backends, tested, reference)


def reuse_features(backends: BackendPair, tested: Backend, reference: Backend) -> BackendPair:
    """Pair two backends over the encoder output of another pair."""
    return replace(
        backends,
        tested=tested,
        reference=reference,
        features=tested.reuse_encoder_output(backends.features),
        reference_features=reference.reuse_encoder_output(backends.reference_features),
    )


def test_encode_without_an_encoder_is_refused(assistant: BackendPair) -> None:
    assert assistant.tested.dims == DIMS.without_encoder()
    assert assistant.features.n_windows == N_WINDOWS
    with pytest.raises(AssertionError, match="no encoder: use reuse_encoder_output"):
        assistant.tested.encode(make_mel())


def test_reused_output_gives_the_logits_of_the_same_encoder(assistant: BackendPair, graphs: Path) -> None:
    whole = make_backend(assistant.name, graphs, make_assistant_weights())
    own = log_probabilities(
        whole.open_session(whole.encode(make_mel()), range(N_WINDOWS), 48).extend([PROMPT] * N_WINDOWS)
    )
    shared = assistant.open_session(range(N_WINDOWS)).extend([PROMPT] * N_WINDOWS)
    np.testing.assert_allclose(shared, own, atol=assistant.tolerance * own.std(), rtol=0)


def test_shares_encoder_drops_the_encoder_of_a_whole_model(
    backends: BackendPair, assistant: BackendPair, graphs: Path
) -> None:
    backend = make_backend(backends.name, graphs, make_assistant_weights(), shares_encoder=True)
    assert backend.dims == DIMS.without_encoder()
    session = backend.open_session(backend.reuse_encoder_output(backends.features), [2], 48)
    np.testing.assert_array_equal(
        log_probabilities(session.extend([PROMPT])), assistant.open_session([2]).extend([PROMPT])
    )


def test_a_model_may_reuse_its_own_encoder_output(backends: BackendPair) -> None:
    again = backends.tested.open_session(backends.tested.reuse_encoder_output(backends.features), [3], 48)
    np.testing.assert_array_equal(
        log_probabilities(again.extend([PROMPT])), backends.open_session([3]).extend([PROMPT])
    )


def test_reused_features_can_be_reused_again(backends: BackendPair, assistant: BackendPair) -> None:
    back = backends.tested.open_session(backends.tested.reuse_encoder_output(assistant.features), [1], 48)
    np.testing.assert_array_equal(
        log_probabilities(back.extend([PROMPT])), backends.open_session([1]).extend([PROMPT])
    )


def test_decoder_with_fewer_layers_reuses_the_encoder_output(backends: BackendPair, graphs: Path) -> None:
    weights = {name: values for name, values in WITHOUT_ENCODER.items() if ".blocks.1." not in name}
    tested, reference = (
        make_backend(name, graphs, weights, dims=ONE_LAYER.without_encoder())
        for name in (backends.name, "numpy")
    )
    pair = reuse_features(backends, tested, reference).open_session([0, 2], attention=True)
    pair.extend([PROMPT] * 2)
    assert pair.attention(0).shape == (DIMS.n_text_head, len(PROMPT), DIMS.n_audio_ctx)


@pytest.mark.parametrize("frames", [2, 10])
def test_encoder_output_of_short_windows_is_reused(
    backends: BackendPair, assistant: BackendPair, frames: int
) -> None:
    mel = make_mel()[:, :, :frames]
    short_windows = replace(
        backends, features=backends.tested.encode(mel), reference_features=backends.reference.encode(mel)
    )
    reuse_features(short_windows, assistant.tested, assistant.reference).open_session([0, 1]).extend(
        [PROMPT] * 2
    )


def test_two_decoders_share_the_encoder_output_at_once(backends: BackendPair, assistant: BackendPair) -> None:
    main, draft = backends.open_session([0, 1]), assistant.open_session([0, 1])
    for step in range(3):
        main.extend([PROMPT[step : step + 1]] * 2)
        draft.extend([PROMPT[step : step + 2]] * 2, last_n=2)
        draft.rewind([step + 1] * 2)


def test_session_over_reused_features_extends_rewinds_and_reorders(assistant: BackendPair) -> None:
    pair = assistant.open_session([2, 0, 3, 1], attention=True)
    pair.extend([PROMPT, PROMPT[1:], PROMPT[2:], PROMPT[3:]], last_n=3)
    pair.reorder([1, 2, 2])
    pair.rewind([3, len(PROMPT) - 2, 2])
    pair.extend([[65], [], [66, 67]], last_n=2)
    pair.reorder([2])
    pair.extend([[68]])
    assert pair.attention(0).shape[1] == 5
