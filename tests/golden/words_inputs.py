"""The recordings that `record_words.py` aligns with openai-whisper, and the golden tests of words with harken."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from real_models import EXAMPLE, SHARED


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
