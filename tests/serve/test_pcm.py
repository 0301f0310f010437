"""Raw audio of clients becomes the same samples, however it is cut into messages."""

import io
from itertools import pairwise

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.audio import load_audio
from harken.errors import AudioError
from harken.serve.live.audio import FORMATS, AudioFormat, PcmDecoder

RNG = np.random.default_rng(7)
NOISE = RNG.integers(0, 256, 4_001, dtype=np.uint8).tobytes()
WAV_CODECS = {"s16le": "pcm_s16le", "s32le": "pcm_s32le", "mulaw": "pcm_mulaw", "alaw": "pcm_alaw"}


def decoded(decoder, *messages):
    return np.concatenate([*map(decoder.feed, messages), decoder.flush()])


def decoder(encoding, rate_hz, channels=1):
    return PcmDecoder(AudioFormat(format=encoding, rate=rate_hz, channels=channels))


def finite_bytes(encoding):
    return RNG.normal(0, 0.2, 1_000).astype("<f4").tobytes() if encoding == "f32le" else NOISE


@given(
    encoding=st.sampled_from([name for name in FORMATS if name != "container"]),
    rate_hz=st.sampled_from([8_000, 16_000, 22_050, 24_000, 44_100, 48_000]),
    channels=st.sampled_from([1, 2]),
    cuts=st.lists(st.integers(0, 4_000), max_size=12),
)
def test_samples_do_not_depend_on_how_the_bytes_are_cut(encoding, rate_hz, channels, cuts):
    data = finite_bytes(encoding)
    whole = decoded(decoder(encoding, rate_hz, channels), data)
    messages = [data[start:end] for start, end in pairwise([0, *sorted(cuts), len(data)])]
    in_parts = decoded(decoder(encoding, rate_hz, channels), *messages)
    np.testing.assert_array_equal(in_parts, whole)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 44_100])
@pytest.mark.parametrize("encoding", WAV_CODECS)
def test_samples_are_those_of_a_wav_file_with_the_same_bytes(encoding, rate_hz, channels):
    file = io.BytesIO()
    with av.open(file, "w", format="wav") as container:
        layout = {1: "mono", 2: "stereo"}[channels]
        stream = container.add_stream(WAV_CODECS[encoding], rate=rate_hz, layout=layout)
        packet = av.Packet(NOISE[:4_000])
        packet.stream, packet.pts, packet.dts = stream, 0, 0
        container.start_encoding()
        container.mux(packet)
    file.seek(0)
    samples = decoded(decoder(encoding, rate_hz, channels), NOISE[:4_000])
    np.testing.assert_array_equal(samples, load_audio(file))


def test_floats_at_16_khz_come_back_to_16_bits():
    levels = np.linspace(-0.9, 0.9, 500, dtype=np.float32)
    samples = decoded(decoder("f32le", 16_000), levels.astype("<f4").tobytes())
    np.testing.assert_allclose(samples, levels, atol=1 / 32768)


def test_a_decoder_begins_anew_behind_a_flush_and_loses_no_sample_that_is_cut_there():
    flushed = decoder("s16le", 24_000)
    for cut, data in ((1_999, NOISE[:1_998]), (4_001, NOISE[1_998:4_000])):
        given = NOISE[0 if cut == 1_999 else 1_999 : cut]
        np.testing.assert_array_equal(decoded(flushed, given), decoded(decoder("s16le", 24_000), data))


def test_floats_that_are_not_finite_or_in_another_scale_are_refused():
    with pytest.raises(AudioError, match="nan"):
        decoder("f32le", 16_000).feed(np.array([0, np.nan], "<f4").tobytes())
    wrong = decoder("f32le", 16_000, channels=2)
    wrong.feed(np.zeros(16_000, "<f4").tobytes())
    with pytest.raises(
        AudioError, match=r"^the audio: at 0\.50 s: samples as large as 500; allowed are floats in"
    ):
        wrong.feed(np.full(320, 500, "<f4").tobytes())
