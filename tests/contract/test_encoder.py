"""Streams heard window by window: each backend against the reference, and both against the encoder of whole windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench import Bench, log_probabilities
from streams import PROMPT, Streams, heard_alone, make_sounds

from harken.backends.numpy import model
from harken.backends.numpy.backend import NumpyFeatures
from tiny_models import BACKENDS, DIMS, make_backend, make_weights

WHOLE = 2 * DIMS.n_audio_ctx


def close(actual: np.ndarray, expected: np.ndarray, bench: Bench) -> None:
    """Compare what was computed in two ways, so that even the reference adds in another order."""
    tolerance = max(bench.tolerance, BACKENDS["onnx-fp32"].tolerance)
    np.testing.assert_allclose(actual, expected, atol=tolerance * expected.std(), rtol=0)


def test_one_window_of_everything_is_the_offline_encoder(bench: Bench) -> None:
    streams = Streams(bench, 2, history=0)
    streams.hear([0, 1], WHOLE, WHOLE, end=True)
    offline = bench.reference_backend.encode(streams.sounds[:, :, :WHOLE])
    whole = bench.reference_backend.open_session(offline, [0, 1], DIMS.n_text_ctx).extend(
        [PROMPT] * 2, last_n=len(PROMPT)
    )
    close(streams.compare([0, 1]), log_probabilities(whole), bench)


@pytest.mark.parametrize("history", [0, 4, 10, WHOLE])
def test_without_look_ahead_it_is_the_offline_encoder_under_a_mask_of_blocks(
    bench: Bench, history: int
) -> None:
    blocks = (6, 2, 10, 6, 16, 8)
    streams = Streams(bench, 1, history)
    for block in blocks:
        streams.hear([0], block, block, end=streams.room(0) == block // 2)
    streams.compare([0])

    block = np.repeat(np.arange(len(blocks)), blocks)[::2]
    begins = np.repeat(np.cumsum((0, *blocks[:-1])), blocks)[::2] // 2
    keys = np.arange(DIMS.n_audio_ctx)
    visible = (block <= block[:, None]) & (keys >= begins[:, None] - history // 2)
    x = model.stem(streams.sounds[0, :, :WHOLE], make_weights())
    offline = NumpyFeatures.from_windows([model.encoder_blocks(x, make_weights(), DIMS, visible)])
    expected = bench.reference_backend.open_session(offline, [0], DIMS.n_text_ctx).extend(
        [PROMPT], last_n=len(PROMPT)
    )
    close(heard_alone(bench, streams.encoders[0]), log_probabilities(expected), bench)


def test_look_ahead_is_heard_until_it_is_heard_again(bench: Bench) -> None:
    streams = Streams(bench, 1, history=8)
    heard = []
    for _ in range(4):
        streams.hear([0], 16, 8)
        heard.append(streams.compare([0]))
    assert streams.encoders[0].final_positions == 16
    assert streams.encoders[0].positions == 20
    streams.hear([0], 8, 8, end=True)
    streams.compare([0])
    assert streams.encoders[0].positions == 20


def test_a_window_may_be_nothing_but_look_ahead(bench: Bench) -> None:
    streams = Streams(bench, 1, history=8)
    streams.hear([0], 10, 4)
    streams.hear([0], 10, 4)
    before = heard_alone(bench, streams.encoders[0])
    streams.hear([0], 16, 0)
    streams.compare([0])
    streams.hear([0], 6, 0, end=True)
    streams.compare([0])
    streams.hear([0], 4, 4)
    streams.compare([0])
    assert streams.encoders[0].final_positions == 6
    assert not np.allclose(heard_alone(bench, streams.encoders[0]), before, atol=1e-3)


def test_it_matters_not_when_the_mel_was_made(bench: Bench) -> None:
    """Frames that are heard again as look-ahead, or twice at once, leave no trace of it."""
    plain, restless = Streams(bench, 1, history=10), Streams(bench, 1, history=10)
    for _ in range(3):
        plain.hear([0], 12, 8)
        restless.hear([0], 6, 0)
        restless.hear([0], 20, 0)
        restless.hear([0], 12, 8)
    close(restless.compare([0]), plain.compare([0]), bench)


def test_streams_together_are_as_each_alone(bench: Bench) -> None:
    """With pasts of different length, before and beyond the history."""
    sounds = make_sounds(3)
    together = Streams(bench, 3, history=12, sounds=sounds)
    alone = [Streams(bench, 1, history=12, sounds=sounds[i : i + 1]) for i in range(3)]
    for stream, hops in enumerate((0, 1, 4)):
        for _ in range(hops):
            together.hear([stream], 10, 6)
            alone[stream].hear([0], 10, 6)
    for _ in range(2):
        together.hear([2, 0, 1], 12, 8)
        for stream in range(3):
            alone[stream].hear([0], 12, 8)
    heard = together.compare([0, 1, 2])
    for stream, logits in enumerate(np.split(heard, 3)):
        close(heard_alone(bench, alone[stream].encoders[0]), logits, bench)


def test_windows_of_different_length_are_decoded_as_each_alone(bench: Bench) -> None:
    streams = Streams(bench, 3, history=8)
    for stream, hops in enumerate((1, 5, 3)):
        for _ in range(hops):
            streams.hear([stream], 12, 6)
    heard = streams.compare([1, 0, 2])
    for stream, logits in zip((1, 0, 2), np.split(heard, 3), strict=True):
        close(logits, heard_alone(bench, streams.encoders[stream]), bench)


def test_nobody_attends_to_what_a_shorter_window_lacks(bench: Bench) -> None:
    streams = Streams(bench, 2, history=8)
    streams.hear([0, 1], 10, 6)
    streams.hear([1], 20, 6)
    pair = streams.gather([0, 1], attention=True)
    pair.extend([PROMPT] * 2)
    short, long = pair.attention(0), pair.attention(1)
    assert short.shape[2] == long.shape[2] == 13
    assert not short[:, :, 5:].any()
    np.testing.assert_allclose(short.sum(axis=2), 1, atol=1e-5)
    assert (long[:, :, 5:] > 0).any(axis=2).all()


def test_rows_over_windows_of_different_length(bench: Bench) -> None:
    """Everything that is done to rows, with their windows' ends in tow."""
    streams = Streams(bench, 3, history=8)
    for stream, hops in enumerate((1, 5, 3)):
        for _ in range(hops):
            streams.hear([stream], 12, 6)
    pair = streams.gather([2, 1, 0], attention=True)
    pair.extend([PROMPT, PROMPT[:2], PROMPT[:5]], last_n=2)
    pair.extend([[65, 66], [67], []], last_n=2)
    for rows in ([0, 1, 2, 2], [3, 1, 0, 0], [0, 0, 1], [2, 0], [1]):
        pair.reorder(rows)
        pair.extend([[70 + row] for row in range(len(rows))])
        pair.rewind([length - 1 + row % 2 for row, length in enumerate(pair.lengths)])
        pair.extend([[80 + row, 90] for row in range(len(rows))], last_n=2)
        for row in range(len(rows)):
            pair.attention(row)


def test_features_stay_as_they_were_gathered(bench: Bench) -> None:
    streams = Streams(bench, 1, history=8)
    streams.hear([0], 12, 6)
    early = streams.gather([0])
    streams.hear([0], 12, 6)
    streams.hear([0], 12, 6)
    early.extend([PROMPT])
    assert early.lengths == (len(PROMPT),)


def test_whole_windows_are_decoded_beside_streams(bench: Bench) -> None:
    streams = Streams(bench, 2, history=8)
    streams.hear([0, 1], 12, 6)
    streams.hear([1], 14, 6)
    bench.open([0, 1]).extend([PROMPT] * 2)
    ragged = streams.gather([0, 1])
    ragged.extend([PROMPT] * 2)
    whole = bench.open([0, 1])
    whole.extend([PROMPT] * 2)
    ragged.extend([[65], [66]])
    whole.extend([[65], [66]])


def test_a_decoder_alone_hears_no_stream(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no encoder of its own"):
        make_backend(bench.name, tmp_path, shares_encoder=True).open_encoder(8)


def test_a_decoder_alone_adopts_what_a_stream_has_heard(bench: Bench, tmp_path: Path) -> None:
    streams = Streams(bench, 2, history=8)
    streams.hear([0, 1], 12, 6)
    streams.hear([1], 12, 6)
    alone = make_backend(bench.name, tmp_path, shares_encoder=True)
    features = alone.reuse_encoder_output(bench.backend.stream_features(streams.encoders))
    heard = log_probabilities(
        alone.open_session(features, [0, 1], DIMS.n_text_ctx).extend([PROMPT] * 2, len(PROMPT))
    )
    close(heard, streams.compare([0, 1]), bench)
