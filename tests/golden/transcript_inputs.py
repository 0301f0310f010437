"""Inputs of `record_whisper.py` for openai-whisper, and of `test_transcripts.py` for harken."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens import sha256

from harken.audio import load_audio
from harken.contract import Floats
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE, SHARED

PAUSE = np.zeros(SAMPLE_RATE * 3 // 10, np.float32)

AS_REFERENCE: dict[str, Any] = {
    "temperatures": (0.0,),
    "vad": False,
    "hallucination_threshold": None,
    "language_windows": 1,
    "condition_on_previous_text": True,
    "beam_size": 1,
    "compression_ratio_threshold": None,
}
"""Options that make harken equal to openai-whisper with its defaults at temperature 0."""


@dataclass(frozen=True, slots=True)
class Case:
    """One transcription by harken's options, at temperature 0."""

    recording: str
    model: str = "tiny.en"
    options: dict[str, Any] = field(default_factory=dict)


BEAM = {"beam_size": 5}
ALONE = {"condition_on_previous_text": False}
TRANSLATE = {"task": "translate"}
WORDS = {"word_timestamps": True}
PROMPT = {"initial_prompt": "moby dick, or: the whale, by herman melville; all in lower case"}
CASES = {
    "jfk": Case("jfk"),
    "jfk, beam": Case("jfk", options=BEAM),
    "jfk, initial prompt": Case("jfk", options={"initial_prompt": "a speech in lower case no commas"}),
    "long": Case("long"),
    "long, beam": Case("long", options=BEAM),
    "long, each window alone": Case("long", options=ALONE),
    "long, each window alone, beam": Case("long", options=BEAM | ALONE),
    "long, no timestamps": Case("long", options={"timestamps": False}),
    "long, clips": Case("long", options={"clip_timestamps": (3.0, 9.5, 14.0, 20.0, 33.0)}),
    **{language: Case(language, "tiny") for language in ("german", "french", "dutch", "chinese", "russian")},
    "german into English": Case("german", "tiny", TRANSLATE),
    "german taken for English": Case("german", "tiny", {"language": "en"}),
    "chinese, no timestamps": Case("chinese", "tiny", {"timestamps": False}),
    "french, patient beam": Case("french", "tiny", BEAM | {"patience": 2.0, "length_penalty": 0.6}),
    "book, prompted": Case("book", "tiny", PROMPT),
    "book, prompted, each window alone": Case("book", "tiny", PROMPT | ALONE),
    "book, clips, beam": Case("book", "tiny", BEAM | {"clip_timestamps": (2.5, 11.0, 20.02, 57.5, 60.0, 70.0)}),
    **{f"{recording}, words": Case(recording, "tiny", WORDS) for recording in ("german", "chinese", "book")},
    "chinese, base, beam": Case("chinese", "base", BEAM),
    "french, base, words": Case("french", "base", WORDS),
    "russian, small": Case("russian", "small"),
    "chinese into English, small, beam": Case("chinese", "small", BEAM | TRANSLATE),
}

ALIGNED = {
    ("tiny.en", "en"): [
        "jfk",
        *(
            f"librispeech-test-other/{name}.flac"
            for name in ("1688-142285-0000", "2033-164914-0003", "2609-156975-0007", "367-130732-0001")
        ),
        *(f"librispeech-train-clean/{name}.flac" for name in ("1098-133695-0000", "426-122819-0000")),
        *("ljspeech/LJ001-0003.wav", "arctic/arctic_b0504_1592526099.flac"),
        *("noisy/p287_003.wav", "noisy/p287_004.wav", "telephone/limit-simul-calls.wav"),
        *("long-form/kennedy_moon_21s.mp3", "long-form/two_cities_44s.wav"),
    ],
    ("tiny", "de"): ["german/de_rhasspy-0802.flac"],
    ("tiny", "zh"): ["chinese/BAC009S0150W0174.wav", "chinese/BAC009S0150W0140.wav"],
    ("tiny", "ja"): ["many-languages/leopard_test_ja.wav", "many-languages/common_voice_ja_24511055.mp3"],
}
"""Recordings whose words are recorded, by model and language."""
CASES |= {
    f"{recording}, words": Case(recording, model, WORDS | ALONE | {"language": language})
    for (model, language), recordings in ALIGNED.items()
    for recording in recordings
}

SHARED_FILES = {
    "german": [f"german/de_rhasspy-{n}.flac" for n in ("0201", "0802", "1041", "0494", "0922", "1388", "1789")],
    "french": ["french/fleursdumal_070_baudelaire_64kb.mp3"],
    "dutch": [f"dutch/nl_rhasspy_{n}.flac" for n in (823, 933, 75, 903, 193, 961, 233, 947, 920, 1033)],
    "chinese": [f"chinese/BAC009S0150W{n}.wav" for n in ("0174", "0216", "0183", "0164", "0048", "0370")],
    "russian": ["many-languages/ru.wav"],
    "book": ["long-form/mobydick_ch1_77s.flac"],
}
"""Recordings beside the repository; several files are joined with a pause of 0.3 s."""


def files(recording: str) -> list[Path]:
    """Return the files of a recording, which may be the name of one."""
    names = SHARED_FILES.get(recording, [recording] if "/" in recording else [])
    return [SHARED / "audio" / name for name in names] or [EXAMPLE]


def need(recording: str) -> None:
    """Skip the test if a recording is missing."""
    if missing := [path for path in files(recording) if not path.is_file()]:
        pytest.skip(f"no {missing[0].name} in shared/audio beside the repository")


def digest(recording: str) -> str:
    """Return the SHA-256 of the concatenated files of a recording."""
    return sha256(files(recording))


def samples(recording: str) -> Floats:
    """Return a recording: "jfk" is the example, "long" is made of it, the others are `SHARED_FILES`."""
    pieces = [load_audio(path) for path in files(recording)]
    if recording == "long":
        return longer(pieces[0])
    return np.concatenate([part for piece in pieces for part in (piece, PAUSE)][:-1])


def longer(speech: Floats) -> Floats:
    """Repeat speech at several volumes with gaps to make 50 s."""
    # Computed from integers, so that it is equal on every machine.
    hum = (np.arange(8 * SAMPLE_RATE) * 7919 % 65 - 32).astype(np.float32) / 32768
    quiet, short = hum[: 2 * SAMPLE_RATE], hum[:8000]
    return np.concatenate([speech, quiet, speech / 4, hum, speech[: 7 * SAMPLE_RATE], short, speech / 16])
