"""Decoders over another model's encoder output: every backend, against the reference and an encoder of its own."""

from dataclasses import replace

import numpy as np
import pytest
from pairs import PROMPT, decode

from checkpoint_files import decoder_of
from tiny_models import DIMS, N_WINDOWS, make_assistant_weights, make_backend, make_mel

ALL = range(N_WINDOWS)
WITHOUT_ENCODER = decoder_of(make_assistant_weights())


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    return tmp_path_factory.mktemp("assistants")


def make_assistant(backends, graphs, layers=DIMS.n_text_layer):
    """Make a decoder without an encoder in both backends, over the features of `backends`."""
    weights = {
        name: values for name, values in WITHOUT_ENCODER.items() if layers > 1 or ".blocks.1." not in name
    }
    dims = replace(DIMS, n_text_layer=layers).without_encoder()
    tested, reference = (make_backend(name, graphs, weights, dims=dims) for name in (backends.name, "numpy"))
    return replace(
        backends,
        tested=tested,
        reference=reference,
        features=tested.reuse_encoder_output(backends.features),
        reference_features=reference.reuse_encoder_output(backends.reference_features),
    )


@pytest.fixture(scope="module")
def assistant(backends, graphs):
    return make_assistant(backends, graphs)


def test_encode_without_an_encoder_is_refused(assistant):
    assert assistant.tested.dims == DIMS.without_encoder()
    assert assistant.features.n_windows == N_WINDOWS
    for use in (lambda: assistant.tested.encode(make_mel()), lambda: assistant.tested.open_encoder(8)):
        with pytest.raises(AssertionError, match="no encoder: use reuse_encoder_output"):
            use()


def test_reused_output_gives_the_logits_of_the_same_encoder(assistant, graphs):
    whole = make_backend(assistant.name, graphs, make_assistant_weights())
    own = decode(whole, whole.encode(make_mel()), ALL)
    shared = assistant.open_session(ALL).extend([PROMPT] * N_WINDOWS)
    np.testing.assert_allclose(shared, own, atol=assistant.tolerance * own.std(), rtol=0)


def test_decoder_alone_reads_no_encoder_of_a_whole_model(backends, assistant, tmp_path):
    """Its features may be those of a decoder, and a model may reuse its own."""
    backend = make_backend(backends.name, tmp_path, WITHOUT_ENCODER, shares_encoder=True)
    assert backend.dims == DIMS.without_encoder()
    expected = decode(assistant.tested, assistant.features, [2])
    for features in (backends.features, assistant.features):
        actual = decode(backend, backend.reuse_encoder_output(features), [2])
        np.testing.assert_array_equal(actual, expected)
    again = backends.tested.reuse_encoder_output(assistant.features)
    own = decode(backends.tested, backends.features, ALL)
    np.testing.assert_array_equal(decode(backends.tested, again, ALL), own)


@pytest.mark.parametrize(("layers", "frames"), [(1, 2 * DIMS.n_audio_ctx), (2, 2), (2, 10)])
def test_fewer_layers_and_short_windows_reuse_the_encoder_output(backends, graphs, layers, frames):
    short = backends.encode(make_mel()[:, :, :frames])
    pair = make_assistant(short, graphs, layers).open_session([0, 2], attention=True)
    pair.extend([PROMPT] * 2)
    assert pair.attention(0).shape == (DIMS.n_text_head, len(PROMPT), frames // 2)


def test_two_decoders_share_the_encoder_output_at_once(backends, assistant):
    main, draft = backends.open_session([0, 1]), assistant.open_session([0, 2], attention=True)
    for step in range(3):
        main.extend([PROMPT[step : step + 1]] * 2)
        draft.extend([PROMPT[step : step + 2]] * 2, last_n=2)
        draft.rewind([step + 1] * 2)
    draft.reorder([1, 1])
    draft.extend([[65], [66, 67]])
    assert draft.attention(1).shape[1] == 5
