"""Record transcripts of openai-whisper, in float32 at temperature 0.

Run from the root of the repository, with openai-whisper installed, the recordings in ../shared/audio, and a
directory of models in HARKEN_MODELS::

    PYTHONPATH=tests HARKEN_MODELS=path/to/models python tests/golden/record_transcripts.py [case ...]

It writes tests/golden/transcripts.json, completely or only the named cases. Recordings and options come from
`transcript_inputs.py`, as in the test. harken reads the weights, because the reference reads only its own format;
tests/checkpoints/test_checkpoints_real.py tests that it reads them unchanged.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import whisper.version
from provenance import provenance
from reference_model import published_model
from transcript_inputs import CASES, Case, digest, samples

from harken.checkpoints import open_checkpoint
from real_models import model_path

GOLDEN = Path(__file__).with_name("transcripts.json")


def main(named: Sequence[str]) -> None:
    names = {case.model for case in CASES.values()}
    recordings = {case.recording for case in CASES.values()}
    kept = json.loads(GOLDEN.read_text(encoding="utf-8"))["transcripts"] if named else {}
    recorded = {
        **provenance(reference=f"openai-whisper {whisper.version.__version__}, transcribe"),
        "digests_of_weights": {
            name: open_checkpoint(model_path(name)).weights.digest for name in sorted(names)
        },
        "sha256_of_files": {recording: digest(recording) for recording in sorted(recordings)},
        "transcripts": {
            name: transcribe(case) if name in (named or CASES) else kept[name] for name, case in CASES.items()
        },
    }
    text = json.dumps(recorded, indent=1, ensure_ascii=False).replace("\n      ", " ").replace("\n     }", " }")
    GOLDEN.write_text(text + "\n", encoding="utf-8")


def transcribe(case: Case) -> dict[str, Any]:
    """Return the language and all segments with tokens; the reference also lists segments that it emptied."""
    print(case, flush=True)
    options = dict(case.options)
    options["without_timestamps"] = not options.pop("timestamps", True)
    options["clip_timestamps"] = list(options.get("clip_timestamps", []))
    result = published_model(case.model).transcribe(
        samples(case.recording), temperature=0.0, fp16=False, **options
    )
    return {
        "language": result["language"],
        "segments": [
            {
                "start": round(segment["start"], 2),
                "end": round(segment["end"], 2),
                "seek": segment["seek"],
                "text": segment["text"],
                "avg_logprob": round(segment["avg_logprob"], 5),
                "no_speech_prob": round(segment["no_speech_prob"], 5),
                "tokens": segment["tokens"],
                **words(segment),
            }
            for segment in result["segments"]
            if segment["tokens"]
        ],
    }


def words(segment: dict[str, Any]) -> dict[str, Any]:
    """Return words as start, end, text and probability, if they were requested."""
    if "words" not in segment:
        return {}
    times = ((word["start"], word["end"]) for word in segment["words"])
    texts = ((word["word"], round(float(word["probability"]), 4)) for word in segment["words"])
    return {
        "words": [
            [round(start, 2), round(end, 2), *text] for (start, end), text in zip(times, texts, strict=True)
        ]
    }


if __name__ == "__main__":
    main(sys.argv[1:])
