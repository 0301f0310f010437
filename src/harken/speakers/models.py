"""Temporary."""
from __future__ import annotations
import os
from pathlib import Path
from typing import NamedTuple
class SpeakerModelFiles(NamedTuple):
    segmentation: Path
    embedding: Path
def resolve_speaker_models(model: str | os.PathLike[str] | None, *, download: bool = True) -> SpeakerModelFiles:
    d = Path(model or os.environ["HARKEN_SPEAKER_MODEL"])
    return SpeakerModelFiles(d / "segmentation-3.0.onnx", d / "campplus_cn_en_common.pt")
