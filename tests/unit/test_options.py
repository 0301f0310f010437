"""The options of a transcription: their ranges, and the decisions that follow from them."""

from __future__ import annotations

from dataclasses import fields
from math import inf, nan
from typing import Any

import pytest

from harken.decoding import Beam, DecodingResult, Greedy, Hypothesis, Sample
from harken.errors import OptionError
from harken.transcribe import TranscribeOptions

REFUSED = [
    ("task", "summarise"),
    ("task", ""),
    ("fidelity", "noise"),
    ("beam_size", 0),
    ("beam_size", -1),
    ("beam_size", 65),
    ("patience", 0.0),
    ("patience", nan),
    ("length_penalty", -0.1),
    ("length_penalty", 1.5),
    ("best_of", 0),
    ("best_of", 65),
    ("temperatures", ()),
    ("temperatures", (0.0, -0.2)),
    ("temperatures", (11.0,)),
    ("temperatures", (nan,)),
    ("prompt_reset_temperature", -1.0),
    ("prompt_reset_temperature", nan),
    ("max_initial_timestamp_s", -0.5),
    ("max_initial_timestamp_s", 30.5),
    ("max_initial_timestamp_s", nan),
    ("clip_timestamps", (-1.0,)),
    ("clip_timestamps", (5.0, 1.0)),
    ("clip_timestamps", (nan,)),
    ("clip_timestamps", (1.0, inf)),
    ("suppress_tokens", (-2,)),
    ("seed", -1),
    ("vad_threshold", 1.0),
    ("vad_min_speech_s", -0.1),
    ("vad_speech_pad_s", -0.1),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_error_names_the_option_with_a_refused_value(name: str, value: Any) -> None:
    with pytest.raises(OptionError) as caught:
        TranscribeOptions(**{name: value})
    assert caught.value.field == name
    assert str(caught.value).startswith(f"{name}=")
    assert "\n" not in str(caught.value)


ALLOWED = [
    {"task": "translate"},
    {"fidelity": "fast"},
    {"beam_size": 64, "patience": 100.0, "length_penalty": 0.0},
    {"best_of": 1, "temperatures": (10.0,)},
    {"prompt_reset_temperature": 0.0},
    {"max_initial_timestamp_s": None},
    {"max_initial_timestamp_s": 0.0},
    {"max_initial_timestamp_s": 30.0},
    {"clip_timestamps": (0.0, 0.01, 3.0, 4.5, 4.5)},
    {"compression_ratio_threshold": None, "logprob_threshold": None, "no_speech_threshold": None},
    {"suppress_tokens": ()},
    {"seed": 2**70},
]


@pytest.mark.parametrize("options", ALLOWED)
def test_values_at_the_limits_are_accepted(options: dict[str, Any]) -> None:
    accepted = TranscribeOptions(**options)
    assert {name: getattr(accepted, name) for name in options} == options


def test_every_option_has_a_help_sentence() -> None:
    for field in fields(TranscribeOptions):
        assert field.metadata["help"].endswith("."), field.name


@pytest.mark.parametrize(
    ("options", "strategies"),
    [
        ({"temperatures": (0.0,)}, [Greedy()]),
        ({"temperatures": (0.0,), "beam_size": 3, "patience": 2.0}, [Beam(width=3, patience=2.0)]),
        (
            {"temperatures": (0.0, 0.5), "best_of": 2, "length_penalty": 0.6},
            [Greedy(), Sample(temperature=0.5, best_of=2, length_penalty=0.6)],
        ),
        ({"temperatures": (0.3,), "beam_size": 5}, [Sample(temperature=0.3)]),
    ],
)
def test_temperatures_make_the_fallback_schedule(options: dict[str, Any], strategies: list[Any]) -> None:
    assert list(TranscribeOptions(**options).strategies()) == strategies


@pytest.mark.parametrize(
    ("clips", "frames"),
    [
        ((), [(0, None)]),
        ((2.5,), [(250, None)]),
        ((1.0, 2.0), [(100, 200)]),
        ((1.0, 2.0, 3.0), [(100, 200), (300, None)]),
        ((0.0, 1.004, 1.004, 1.006), [(0, 100), (100, 101)]),
    ],
)
def test_clip_times_are_converted_to_frames(
    clips: tuple[float, ...], frames: list[tuple[int, int | None]]
) -> None:
    assert list(TranscribeOptions(clip_timestamps=clips).clips(100)) == frames


def decoded(ratio: float, logprob: float, no_speech: float) -> DecodingResult:
    return DecodingResult(
        hypothesis=Hypothesis(tokens=(), logprobs=(logprob,)),
        text="",
        compression_ratio=ratio,
        no_speech_prob=no_speech,
        temperature=0.0,
    )


GOOD, REPETITIVE, IMPROBABLE = (1.5, -0.3), (2.5, -0.3), (1.5, -1.2)
BOTH = (2.5, -1.2)
SPEECH, SILENCE = 0.1, 0.9
TOO_REPETITIVE, TOO_IMPROBABLE = "compression ratio 2.50 above 2.4", "average log-probability -1.20 below -1.0"

# (compression ratio, logprob), no-speech probability, options, reason for rejection, skipped as silence
JUDGED = [
    (GOOD, SPEECH, {}, None, False),
    (REPETITIVE, SPEECH, {}, TOO_REPETITIVE, False),
    (IMPROBABLE, SPEECH, {}, TOO_IMPROBABLE, False),
    (BOTH, SPEECH, {}, TOO_REPETITIVE, False),
    (GOOD, SILENCE, {}, None, False),
    (REPETITIVE, SILENCE, {}, TOO_REPETITIVE, False),
    (IMPROBABLE, SILENCE, {}, None, True),
    (BOTH, SILENCE, {}, None, True),
    # A value at its threshold is accepted, but does not prove speech.
    ((2.4, -1.0), SPEECH, {}, None, False),
    ((2.4, -1.0), SILENCE, {}, None, True),
    ((2.4, -1.0), 0.6, {}, None, False),
    # Without a threshold.
    (BOTH, SPEECH, {"compression_ratio_threshold": None}, TOO_IMPROBABLE, False),
    (BOTH, SPEECH, {"logprob_threshold": None}, TOO_REPETITIVE, False),
    (BOTH, SPEECH, {"compression_ratio_threshold": None, "logprob_threshold": None}, None, False),
    (IMPROBABLE, SILENCE, {"no_speech_threshold": None}, TOO_IMPROBABLE, False),
    (GOOD, SILENCE, {"logprob_threshold": None}, None, True),
    (REPETITIVE, SILENCE, {"logprob_threshold": None}, TOO_REPETITIVE, True),
]


@pytest.mark.parametrize(("quality", "no_speech", "options", "reason", "silent"), JUDGED)
def test_result_is_rejected_or_skipped_by_the_thresholds(
    quality: tuple[float, float], no_speech: float, options: dict[str, Any], reason: str | None, silent: bool
) -> None:
    checked, result = TranscribeOptions(**options), decoded(*quality, no_speech)
    assert checked.rejection_reason(result) == reason
    assert checked.is_silence(result) is silent
