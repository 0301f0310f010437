"""Several recordings in one batch: how one that ends early affects the others; windows decoded together."""

import gc
import tracemalloc
import weakref
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, TranscriptSession, window_text
from fakes.silent_mel import SilentMel
from fakes.speech_detector import LoudIsSpeech, noise_and_silence
from harken.api import Recognizer
from harken.backends.host_logits import HostLogits
from harken.decoding import DecodeStats
from harken.errors import AudioError, Cancelled
from harken.transcribe import (
    Callbacks,
    RecordingTranscriber,
    Scheduler,
    TranscribeOptions,
    WindowDecoder,
    mel_windows,
)
from harken.transcribe.window_decoder import AudioWindow
from single_recording import SHORT_LENGTH, SingleRecordingTranscriber, audio_window, decode_windows
from tiny_models import TOKENIZER, make_mel

WINDOWS = 5
WINDOW_FRAMES = 2 * WINDOW_POSITIONS
NOISE = noise_and_silence(WINDOWS * WINDOW_S)
PLAIN = {"language": "en", "vad": False, "hallucination_threshold": None}
HELLO = window_text(0, "hello", WINDOW_POSITIONS)


class Choir(TranscriptBackend):
    """A `TranscriptBackend` that says hello in every window, of several at a time, and keeps only the last."""

    def encode(self, mel, *, padded=False):
        self.mels.clear()
        self.prompts.clear()
        return super().encode(mel, padded=padded)

    def open_session(self, features, row_windows, capacity, *, attention=False):
        return ChoirSession(self, HELLO, len(row_windows))


class ChoirSession(TranscriptSession):
    def extend(self, tokens, last_n=1):
        prompts = len(tokens) if not any(seen for _, seen in self.rows) else 1
        return HostLogits(np.concatenate([super().extend(tokens, last_n).values] * prompts))


def together(many, audios=(), **changes):
    """Have the choir transcribe recordings, or several times the same noise."""
    options = {**PLAIN, "batch_size": many, **changes}
    recognizer = Recognizer(Choir(HELLO), TOKENIZER, "choir", speech_detector=LoudIsSpeech)
    return recognizer.transcribe_many(audios or [NOISE] * many, **options)


def texts(work):
    return [segment.text for segment in work]


# --- recordings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [3, 10, 20])
def test_exception_of_a_callback_ends_one_iteration_and_loses_no_window(step):
    """Also a cancellation that no callback asked for."""
    left, error = [step], ArithmeticError() if step < 20 else Cancelled("by a hook of its own")

    def observe(_):
        left[0] -= 1
        if not left[0]:
            raise error

    first, second, third = together(3, on_token=observe)
    for _ in range(2):
        with pytest.raises(type(error)):
            first.result()
        assert texts(second) == texts(third) == ["hello"] * WINDOWS


@pytest.mark.parametrize("delivered", [0, 1, 2])
def test_cancelled_recording_does_not_end_the_others(delivered):
    stop = []
    cancelled, other = together(2, callbacks={0: Callbacks(is_cancelled=lambda: bool(stop))})
    assert len([*islice(cancelled, delivered)]) == delivered
    stop.append(True)
    assert texts(other) == ["hello"] * WINDOWS
    with pytest.raises(Cancelled):
        cancelled.result()
    assert len(cancelled.so_far().segments) == delivered


@pytest.mark.parametrize("name", ["on_token", "on_window_start", "on_window_end", "is_cancelled"])
@pytest.mark.parametrize("asked", [0, 1])
def test_callback_of_a_recording_that_fails_does_not_end_the_others(name, asked):
    cause = KeyError("mine")
    calls = []

    def fail_later(*_):
        calls.append(name)
        if len(calls) == 2:
            raise ArithmeticError from cause

    failing, other = together(2, callbacks={0: Callbacks(**{name: fail_later})})
    if asked:
        assert texts(other) == ["hello"] * WINDOWS
    with pytest.raises(ArithmeticError) as caught:
        failing.result()
    assert caught.value.__cause__ is cause
    assert texts(other) == ["hello"] * WINDOWS


@pytest.mark.parametrize("vad", [False, True])
def test_recording_stopped_before_its_turn_is_never_opened(vad):
    opened = []

    def blocks(which):
        opened.append(which)
        yield NOISE

    options = TranscribeOptions(**{**PLAIN, "vad": vad})
    decoder = WindowDecoder(Choir(HELLO), TOKENIZER, options, speech_detector=LoudIsSpeech)
    forms = [RecordingTranscriber(decoder, blocks(which)) for which in range(3)]
    batch = Scheduler(decoder, forms, 3)
    forms[1].stop()
    assert list(batch.segments(forms[1])) == []
    assert list(batch.segments(forms[2])) != []
    assert opened == [0, 2]


def test_end_of_a_recording_is_known_without_decoding_others():
    seen = []
    callbacks = {1: Callbacks(on_window_start=lambda start_s, prompt: seen.append(start_s))}
    options = {"vad": True, "vad_min_silence_s": 0.1, "vad_speech_pad_s": 0.05, "callbacks": callbacks}
    short, long = noise_and_silence(*[0.3, 31] * 2), noise_and_silence(*[0.3, 31] * 5)
    work, other = together(3, [short, long], **options)
    assert len(work.result().segments) == 2
    assert len(seen) == 2  # beside the last of the short one
    assert len(other.result().segments) == len(seen) == 5


def test_by_default_recordings_wait_for_one_another_and_a_step_decodes_one_window():
    seen = []
    callbacks = {i: Callbacks(on_window_start=lambda *_, i=i: seen.append(i)) for i in range(2)}
    options = {"vad": True, "vad_min_silence_s": 0.1, "vad_speech_pad_s": 0.05, "callbacks": callbacks}
    five_windows = noise_and_silence(*[0.3, 31] * 5)
    first, second = together(2, [five_windows] * 2, batch_size=None, **options)
    assert len(first.result().segments) == len(seen) == seen.count(0) == 5
    while not second.finished:
        before = len(seen)
        second.step()
        assert len(seen) <= before + 1
    assert seen == [0] * 5 + [1] * 5


@pytest.mark.parametrize("vad", [False, True])
def test_failing_recordings_do_not_end_the_others(vad):
    damaged = np.concatenate([NOISE, np.zeros(30 * 16_000, np.float32), np.array([np.nan], np.float32)])
    audios = ["none.wav", NOISE, np.empty(0, np.float32), damaged, NOISE]
    works = together(5, audios=audios, vad=vad, batch_size=2)
    for failing, match in ((3, "finite"), (0, "none.wav"), (2, "no audio samples")):
        with pytest.raises(AudioError, match=match):
            works[failing].result()
    whole = texts(*together(1, vad=vad))
    assert whole
    assert texts(works[1]) == texts(works[4]) == whole
    assert [segment.text for segment in works[3].so_far().segments][: len(whole)] == whole


def windows_in_memory():
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is AudioWindow]


@pytest.mark.parametrize("channels", ["mixed", "apart"])
@pytest.mark.parametrize("vad", [False, True])
def test_finished_and_stopped_recordings_release_their_audio(vad, channels):
    audios = [noise_and_silence(0.4, 0.4, 0.4, 160) for _ in range(3)]  # further than is read ahead
    of_others = {id(window) for window in windows_in_memory()}
    sources = [weakref.ref(audio) for audio in audios]
    works = together(1, audios, vad=vad, channels=channels, clip_timestamps=(0, 2))
    audios.clear()
    tracemalloc.start()
    try:
        works[0].result()
        works[1].result()
        next(iter(works[2]))
        works[2].stop()
        assert all(source() is None for source in sources)
        assert {id(window) for window in windows_in_memory()} <= of_others
        sound = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, mel_windows.__file__)])
        assert sum(trace.size for trace in sound.traces) < 10_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_of_ten_minutes_equals_that_of_four(monkeypatch):
    monkeypatch.setattr(mel_windows, "LogMel", SilentMel)
    minute = noise_and_silence(0.4, 1.6, 0.4, 27.6, 0.4, 29.6)

    def peak_bytes(minutes):
        blocks = (minute for _ in range(minutes))
        options = TranscribeOptions(language="en", condition_on_previous_text=True)
        form = SingleRecordingTranscriber(Choir(HELLO), blocks, options, speech_detector=LoudIsSpeech)
        tracemalloc.start()
        try:
            assert sum(1 for _ in form.segments()) >= 3 * minutes
            assert form.duration_s == 60 * minutes
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # Only speech regions and dropped segments may grow.
    assert peak_bytes(10) < 1.1 * peak_bytes(4)


# --- windows ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def backend(open_backend):
    return open_backend("onnx-fp32")


def test_language_probabilities_belong_to_their_window_whatever_batch_it_is_encoded_in(backend):
    decoder = WindowDecoder(backend, TOKENIZER, TranscribeOptions(fidelity="fast"), encoded_length=SHORT_LENGTH)
    mels = make_mel()
    encoded = decoder.encode([audio_window(mel, i, (WINDOW_FRAMES, 24)[i % 2]) for i, mel in enumerate(mels)])
    for window in encoded:
        (alone,) = decoder.encode([window.window])
        expected = decoder.language_probabilities(alone)
        assert decoder.language_probabilities(window) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("fidelity", "precision", "frozen"),
    [
        *(("auto", "fp32", False), ("auto", "int8", True), ("auto", "bf16", True)),
        *(("fast", "fp32", True), ("exact", "int8", False)),
    ],
)
def test_padding_is_frozen_by_default_but_not_in_float32(fidelity, precision, frozen):
    backend = TranscriptBackend(HELLO)
    backend.capabilities = replace(backend.capabilities, precision=precision)
    decoder = WindowDecoder(
        backend, TOKENIZER, TranscribeOptions(fidelity=fidelity), encoded_length=SHORT_LENGTH
    )
    assert bool(decoder.positions_to_encode(4)) == frozen


def test_windows_are_told_in_order_and_the_cost_of_a_pass_names_those_decoded_in_it(backend):
    # Only the first window of a recording begins with the prefix.
    options = TranscribeOptions(language="en", temperatures=(0.0,), beam_size=1, prefix="a")
    decoder, ended_s = WindowDecoder(backend, TOKENIZER, options), []
    windows = [audio_window(mel, 100 * i, is_first=i == 1) for i, mel in enumerate(make_mel(3))]
    callbacks = Callbacks(on_window_end=lambda start_s, *_: ended_s.append(start_s))
    results, passes = decode_windows(decoder, windows, callbacks)
    assert ended_s == [result.encoded.window.start_s for result in results] == [0, 1, 2]
    assert [decoded.requests for decoded in passes] == [(0, 2), (1,)]
    assert [decoded.stats.windows for decoded in passes] == [2, 1]
    assert sum((decoded.stats for decoded in passes), DecodeStats()) == decoder.stats
