"""Record word timestamps of openai-whisper, in float32 at temperature 0.

Run from the root of the repository, with openai-whisper installed, the shared recordings (see `real.SHARED`), and a
directory of models in HARKEN_MODELS::

    PYTHONPATH=tests HARKEN_MODELS=path/to/models python tests/golden/record_words.py

It writes tests/golden/words.json. The weights are those that harken reads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import whisper.version
from provenance import provenance, sha256
from reference_model import published_model
from words_inputs import CASES, Case

from harken.audio import load_audio

GOLDEN = Path(__file__).with_name("words.json")


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
