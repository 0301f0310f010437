"""Record what openai-whisper transcribes, in float32 at temperature 0, with tiny.en.

Run from the root of the repository, with openai-whisper installed and its tiny.en at hand::

    python tests/golden/record_transcripts.py path/to/tiny.en.pt

It writes tests/golden/transcripts.json. Recordings and options come from `transcript_inputs.py`, as in the
test.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import whisper
import whisper.version
from transcript_inputs import CASES, EXAMPLE, Case, samples

GOLDEN = Path(__file__).with_name("transcripts.json")


def main(weights: Path) -> None:
    model = whisper.load_model(str(weights), device="cpu")
    recorded = {
        "reference": f"openai-whisper {whisper.version.__version__}, transcribe",
        "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
        "command": "python tests/golden/record_transcripts.py path/to/tiny.en.pt",
        "date": datetime.now(UTC).date().isoformat(),
        "sha256": {
            "tiny.en.pt": digest(weights.read_bytes()),
            "examples/jfk.flac": digest(EXAMPLE.read_bytes()),
        },
        "sha256_of_samples": {name: digest(samples(name).tobytes()) for name in ("jfk", "long")},
        "transcripts": {name: transcribe(model, case) for name, case in CASES.items()},
    }
    text = json.dumps(recorded, indent=1).replace("\n     ", " ")
    GOLDEN.write_text(text + "\n", encoding="utf-8")


def transcribe(model: whisper.Whisper, case: Case) -> list[dict[str, Any]]:
    """Segments that say something; the reference also lists those that it has emptied."""
    options = dict(case.options)
    options["without_timestamps"] = not options.pop("timestamps", True)
    options["clip_timestamps"] = list(options.get("clip_timestamps", []))
    result = model.transcribe(samples(case.recording), language="en", temperature=0.0, fp16=False, **options)
    return [
        {
            "start": round(segment["start"], 2),
            "end": round(segment["end"], 2),
            "seek": segment["seek"],
            "text": segment["text"],
            "avg_logprob": round(segment["avg_logprob"], 5),
            "no_speech_prob": round(segment["no_speech_prob"], 5),
            "tokens": segment["tokens"],
        }
        for segment in result["segments"]
        if segment["tokens"]
    ]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
