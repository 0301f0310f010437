"""Record word timestamps of openai-whisper, in float32 at temperature 0.

Run from the root of the repository, with openai-whisper installed, the shared recordings (see `real_models.SHARED`),
and a directory of models in HARKEN_MODELS::

    PYTHONPATH=tests HARKEN_MODELS=path/to/models python tests/golden/record_words.py

It writes tests/golden/words.json. The weights are those that harken reads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import whisper.version
from provenance import provenance, sha256
from reference_model import published_model

from harken.audio import load_audio
from real_models import EXAMPLE, SHARED

GOLDEN = Path(__file__).with_name("words.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One recording, the model that decodes it and its language."""

    recording: str
    model: str = "tiny.en"
    language: str = "en"

    @property
    def path(self) -> Path:
        """Path of the example or of a shared recording."""
        return EXAMPLE if self.recording == "jfk" else SHARED / "audio" / self.recording


CASES = [
    Case(recording="jfk"),
    Case(recording="librispeech-test-other/1688-142285-0000.flac"),
    Case(recording="librispeech-test-other/2033-164914-0003.flac"),
    Case(recording="librispeech-test-other/2609-156975-0007.flac"),
    Case(recording="librispeech-test-other/367-130732-0001.flac"),
    Case(recording="librispeech-train-clean/1098-133695-0000.flac"),
    Case(recording="librispeech-train-clean/426-122819-0000.flac"),
    Case(recording="ljspeech/LJ001-0003.wav"),
    Case(recording="arctic/arctic_b0504_1592526099.flac"),
    Case(recording="noisy/p287_003.wav"),
    Case(recording="noisy/p287_004.wav"),
    Case(recording="telephone/limit-simul-calls.wav"),
    Case(recording="long-form/kennedy_moon_21s.mp3"),
    Case(recording="long-form/two_cities_44s.wav"),
    Case(recording="german/de_rhasspy-0802.flac", model="tiny", language="de"),
    Case(recording="chinese/BAC009S0150W0174.wav", model="tiny", language="zh"),
    Case(recording="chinese/BAC009S0150W0140.wav", model="tiny", language="zh"),
    Case(recording="many-languages/leopard_test_ja.wav", model="tiny", language="ja"),
    Case(recording="many-languages/common_voice_ja_24511055.mp3", model="tiny", language="ja"),
]


def main() -> None:
    reference = f"openai-whisper {whisper.version.__version__}, transcribe with word_timestamps"
    recorded = provenance(reference=reference)
    recordings = [
        {
            "recording": case.recording,
            "model": case.model,
            "language": case.language,
            "sha256": sha256([case.path]),
            "segments": transcribe(case),
        }
        for case in CASES
    ]
    lines = ",\n  ".join(json.dumps(recording, ensure_ascii=False) for recording in recordings)
    text = json.dumps({**recorded, "recordings": []}, indent=1).replace("[]", f"[\n  {lines}\n ]")
    GOLDEN.write_text(text + "\n", encoding="utf-8")


def transcribe(case: Case) -> list[dict[str, Any]]:
    """Return all segments with tokens; the reference also lists segments that it emptied."""
    result = published_model(case.model).transcribe(
        load_audio(case.path),
        language=case.language,
        temperature=0.0,
        fp16=False,
        condition_on_previous_text=False,
        word_timestamps=True,
    )
    return [
        {
            "seek": segment["seek"],
            "start": round(segment["start"], 3),
            "end": round(segment["end"], 3),
            "tokens": segment["tokens"],
            "words": [
                [
                    word["word"],
                    round(word["start"], 3),
                    round(word["end"], 3),
                    round(float(word["probability"]), 4),
                ]
                for word in segment["words"]
            ],
        }
        for segment in result["segments"]
        if segment["tokens"]
    ]


if __name__ == "__main__":
    main()
