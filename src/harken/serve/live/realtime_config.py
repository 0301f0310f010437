"""The configuration of a session, and the options of the engine that it stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from harken.serve.live.audio import AudioFormat
from harken.streaming import StreamOptions
from harken.text import from_language_tag, from_language_tags
from harken.transcribe import TranscribeOptions

PCM, MU_LAW, A_LAW = "audio/pcm", "audio/pcmu", "audio/pcma"
ENCODINGS: Mapping[str, str] = MappingProxyType({PCM: "s16le", MU_LAW: "mulaw", A_LAW: "alaw"})
"""The formats of `harken.serve.live.audio`, by those of the protocol."""
PCM_RATE_HZ, TELEPHONE_RATE_HZ = 24_000, 8_000

LOGPROBS, INTERIM, SEGMENTS = (
    "item.input_audio_transcription.logprobs",
    "harken.interim",
    "harken.segments",
)
INCLUDES = (LOGPROBS, INTERIM, SEGMENTS)
OF_WORDS = frozenset({LOGPROBS, SEGMENTS})
"""Includes for which the stream finds the words of its segments."""
DELAYS: Mapping[str, str] = MappingProxyType(
    {"minimal": "minimal", "low": "low", "medium": "medium", "high": "high", "xhigh": "high"}
)
"""The presets of a live session, by the delays of the protocol."""
MODELS_WITHOUT_TURNS = ("gpt-realtime-whisper", "gpt-live-transcribe")
"""Models that end no turns at OpenAI: their clients commit, unless they ask for the detection of turns."""
PAUSES_S: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"low": (1.6, 8.0), "medium": (0.8, 4.0), "high": (0.5, 2.0), "auto": (0.8, 4.0)}
)
"""Pauses that end a turn behind a sentence and anywhere, by eagerness; the second is the protocol's longest wait."""
MIN_THRESHOLD, MAX_THRESHOLD = 0.01, 0.99
"""What the protocol's thresholds of 0 and 1 mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDetection:
    """The detection of the end of a turn by the server; without it, only the client's commits end turns."""

    type: str = "server_vad"
    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    eagerness: str = "auto"

    @property
    def pauses_s(self) -> tuple[float, float]:
        """Pauses that end a turn, behind a sentence and anywhere."""
        if self.type == "semantic_vad":
            return PAUSES_S[self.eagerness]
        pause_s = self.silence_duration_ms / 1000
        return pause_s, pause_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """The configuration of a session."""

    format: str = PCM
    rate_hz: int = PCM_RATE_HZ
    model: str = "whisper-1"
    language: str | None = None
    languages: tuple[str, ...] = ()
    prompt: str | None = None
    keywords: tuple[str, ...] = ()
    delay: str = "low"
    turn_detection: TurnDetection | Literal["by model"] | None = "by model"
    include: tuple[str, ...] = ()

    @property
    def turns(self) -> TurnDetection | None:
        """The detection of turns; that of the model, unless the client has said which one."""
        if isinstance(self.turn_detection, str):
            return None if self.model in MODELS_WITHOUT_TURNS else TurnDetection()
        return self.turn_detection

    @property
    def audio_format(self) -> AudioFormat:
        """Format and rate of the audio."""
        return AudioFormat(format=ENCODINGS[self.format], rate=self.rate_hz)

    def transcribe_options(self) -> TranscribeOptions:
        """Return the options of the transcription.

        Raises
        ------
        OptionError
            If one is not allowed.
        """
        speech = {}
        if self.turns and self.turns.type == "server_vad":
            pad_s = self.turns.prefix_padding_ms / 1000
            threshold = min(max(self.turns.threshold, MIN_THRESHOLD), MAX_THRESHOLD)
            speech = {
                "vad_threshold": threshold,
                "vad_speech_pad_s": pad_s,
                "vad_min_silence_s": max(1.0, 2 * pad_s),
            }
        return TranscribeOptions(
            language=from_language_tag(self.language),
            languages=from_language_tags(self.languages),
            initial_prompt=self.prompt,
            hotwords=self.keywords,
            word_timestamps=not OF_WORDS.isdisjoint(self.include),
            **speech,  # type: ignore[arg-type]
        )

    def stream_options(self) -> StreamOptions:
        """Return the options of the stream. Its finals are exact: a turn has the text of a file with these samples."""
        if self.turns is None:
            return StreamOptions(delay=DELAYS[self.delay])
        sentence_pause_s, pause_s = self.turns.pauses_s
        return StreamOptions(delay=DELAYS[self.delay], sentence_pause_s=sentence_pause_s, pause_s=pause_s)
