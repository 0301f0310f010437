"""The configuration of a session: the options of the engine that it stands for, and how two dialects write it.

An update is read with every key and value checked, and may have the shape of either dialect, whatever the event:
clients mix them. The shapes are tables of readers by key. A reader takes a value, its dotted path for errors, and the
configuration so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from harken.errors import OptionError
from harken.serve.errors import RequestError, request_error
from harken.serve.live.audio import RATES_HZ, AudioFormat
from harken.serve.work.jobs import OpenStream
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
DIARIZING_MODEL = "gpt-4o-transcribe-diarize"
"""Name of a model by which clients ask for segments with their speakers; like OpenAI's other names it means any."""
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
    def speakers(self) -> bool:
        """True to tell speakers apart."""
        return self.model == DIARIZING_MODEL

    @property
    def audio_format(self) -> AudioFormat:
        """Format and rate of the audio."""
        return AudioFormat(format=ENCODINGS[self.format], rate=self.rate_hz)

    def stream(self) -> OpenStream:
        """Return the stream of this configuration.

        A turn has the text of a file with its samples. One that the server detects is an utterance, whose final is
        exact for that. One that a client commits has several, which do not stand alone in a file: it is transcribed
        behind the stream. Speakers are known of the stream alone, so their segments are those of its utterances.

        Raises
        ------
        OptionError
            If an option is not allowed.
        """
        turns = self.turns
        whole_turns = turns is None and not self.speakers
        pauses: dict[str, float] = {}
        speech: dict[str, float] = {}
        if turns and turns.type == "semantic_vad":
            pauses = dict(zip(("sentence_pause_s", "pause_s"), PAUSES_S[turns.eagerness], strict=True))
        elif turns:
            silence_s, pad_s = turns.silence_duration_ms / 1000, turns.prefix_padding_ms / 1000
            pauses = {"sentence_pause_s": silence_s, "pause_s": silence_s}
            speech = {
                "vad_threshold": min(max(turns.threshold, MIN_THRESHOLD), MAX_THRESHOLD),
                "vad_speech_pad_s": pad_s,
                "vad_min_silence_s": max(1.0, 2 * pad_s),
            }
        options = TranscribeOptions(
            language=from_language_tag(self.language),
            languages=from_language_tags(self.languages),
            initial_prompt=self.prompt,
            hotwords=self.keywords,
            word_timestamps=LOGPROBS in self.include or SEGMENTS in self.include,
            **speech,  # type: ignore[arg-type]
        )
        finals = "turns" if turns else "streamed" if whole_turns else "exact"
        stream_options = StreamOptions(delay=DELAYS[self.delay], finals=finals, **pauses)  # type: ignore[arg-type]
        return OpenStream(
            self.model,
            options,
            stream_options,
            is_bounded=False,
            speakers=self.speakers,
            whole_turns=whole_turns,
        )


TRANSCRIPTION_OPTIONS = {name: name for name in ("model", "language", "languages")} | {
    "speakers": "model",
    "initial_prompt": "prompt",
    "hotwords": "keywords",
}
TURN_OPTIONS = {
    "vad_threshold": "threshold",
    "vad_speech_pad_s": "prefix_padding_ms",
    "pause_s": "silence_duration_ms",
}
"""Keys of a transcription and of turn detection, by the options that they set."""
BETA_FORMATS = {"pcm16": PCM, "g711_ulaw": MU_LAW, "g711_alaw": A_LAW}
MAX_NAME_CHARS, MAX_PROMPT_CHARS = 200, 10_000
MAX_ITEMS = 500
MAX_SHOWN_CHARS = 60

Reader = Callable[[Any, str, SessionConfig], SessionConfig]


def updated_config(config: SessionConfig, session: Any) -> SessionConfig:
    """Return a configuration with the changes of an update; what it does not name stays.

    Raises
    ------
    RequestError
        If a key is unknown or a value not allowed; it names the dotted path. Nothing is changed then.
    """
    changed = _read_group(_SESSION, session, "session", config)
    try:
        changed.stream()
    except OptionError as error:
        raise request_error(error, option_paths(session)) from None
    return changed


def option_paths(session: Any) -> Mapping[str, str]:
    """Return a client's names of a recording, a format, a model and options: dotted paths in the shape of an update."""
    is_beta = isinstance(session, dict) and any(key.startswith("input_audio") for key in session)
    inputs, turns = ("session.input_audio_", "session.") if is_beta else ("session.audio.input.",) * 2
    return (
        {"format": f"{inputs}format", "file": "audio"}
        | {option: f"{inputs}transcription.{name}" for option, name in TRANSCRIPTION_OPTIONS.items()}
        | {option: f"{turns}turn_detection.{name}" for option, name in TURN_OPTIONS.items()}
    )


def shown_config(
    config: SessionConfig, session_id: str, expires_at: int | None = None, *, beta: bool
) -> dict[str, Any]:
    """Return the whole effective configuration in one of the dialects."""
    transcription = {"model": config.model, "language": config.language, "prompt": config.prompt}
    turns = _shown_turns(config.turns)
    shown: dict[str, Any]
    if beta:
        formats = {format: name for name, format in BETA_FORMATS.items()}
        shown = {
            "input_audio_format": formats[config.format],
            "input_audio_transcription": transcription,
            "input_audio_noise_reduction": None,
            "turn_detection": turns,
        }
    else:
        rate = {"rate": config.rate_hz} if config.format == PCM else {}
        names = {"languages": [*config.languages], "keywords": [*config.keywords], "delay": config.delay}
        audio_input = {
            "format": {"type": config.format} | rate,
            "noise_reduction": None,
            "transcription": transcription | names,
            "turn_detection": turns,
        }
        shown = {"type": "transcription", "audio": {"input": audio_input}}
    about = {"id": session_id, "object": "realtime.transcription_session"}
    return about | shown | {"include": [*config.include] or None, "expires_at": expires_at}


def invalid_value(path: str, value: Any, allowed: str, code: str = "invalid_value") -> RequestError:
    """Return the error for a value of an event that is not allowed; it holds little of a long one."""
    shown = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    if len(shown) > MAX_SHOWN_CHARS:
        shown = f"{shown[:MAX_SHOWN_CHARS]}..."
    return RequestError(f"{path}={shown}: allowed is {allowed}", code=code, param=path)


def checked_object(value: Any, path: str, known: Iterable[str]) -> dict[str, Any]:
    """Return an object at a path, ``""`` for that of the whole message, once all its keys are known."""
    if not isinstance(value, dict):
        raise invalid_value(path or "body", value, "an object", "invalid_type")
    for key in value:
        if key not in known:
            unknown = f"{path}.{key[:MAX_SHOWN_CHARS]}".removeprefix(".")
            message = f"unknown parameter: {unknown}; allowed is {', '.join(known)}"
            raise RequestError(message, code="unknown_parameter", param=unknown)
    return value


def _shown_turns(turns: TurnDetection | None) -> dict[str, Any] | None:
    if turns is None:
        return None
    if turns.type == "semantic_vad":
        return {"type": turns.type, "eagerness": turns.eagerness}
    return {name: value for name, value in asdict(turns).items() if value is not None and name != "eagerness"}


def _read_group(readers: Mapping[str, Reader], value: Any, path: str, config: SessionConfig) -> SessionConfig:
    """Read an object key by key."""
    for key, item in checked_object(value, path, readers).items():
        config = readers[key](item, f"{path}.{key}", config)
    return config


def _one_of(value: Any, path: str, allowed: Mapping[str, Any] | tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise invalid_value(path, value, ", ".join(map(repr, allowed)))
    return value


def _text(value: Any, path: str, max_chars: int = MAX_NAME_CHARS) -> str | None:
    """Return a text, or None for an empty one."""
    if value is not None and not (isinstance(value, str) and len(value) <= max_chars):
        raise invalid_value(path, value, f"a text of up to {max_chars} characters, or null", "invalid_type")
    return value or None


def _texts(value: Any, path: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_ITEMS:
        raise invalid_value(path, value, f"an array of up to {MAX_ITEMS} texts, or null", "invalid_type")
    return tuple(_text(item, f"{path}[{i}]") or "" for i, item in enumerate(value))


def _number(value: Any, path: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise invalid_value(path, value, f"a number from {low:g} to {high:g}")
    return value


def _integer(value: Any, path: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise invalid_value(path, value, f"an integer from {low} to {high}")
    return value


def _flag(value: Any, path: str) -> None:
    if not isinstance(value, bool | None):
        raise invalid_value(path, value, "true or false", "invalid_type")


def _checked(read: Callable[[Any, str], Any]) -> Reader:
    """Return the reader of what is checked, and has no effect here."""

    def check(value: Any, path: str, config: SessionConfig) -> SessionConfig:
        read(value, path)
        return config

    return check


def _include(value: Any, path: str, config: SessionConfig) -> SessionConfig:
    texts = _texts(value, path)
    for i, text in enumerate(texts):
        _one_of(text, f"{path}[{i}]", INCLUDES)
    return replace(config, include=tuple(dict.fromkeys(texts)))


def _format(value: Any, path: str, config: SessionConfig) -> SessionConfig:
    given = checked_object(value, path, ("type", "rate"))
    format = _one_of(given.get("type", PCM), f"{path}.type", tuple(ENCODINGS))
    usual, low, high = (PCM_RATE_HZ, RATES_HZ[0], RATES_HZ[-1]) if format == PCM else (TELEPHONE_RATE_HZ,) * 3
    rate_hz = _integer(given.get("rate", usual), f"{path}.rate", low, high)
    return replace(config, format=format, rate_hz=rate_hz)


def _beta_format(value: Any, path: str, config: SessionConfig) -> SessionConfig:
    format = BETA_FORMATS[_one_of(value, path, BETA_FORMATS)]
    if format == config.format:
        return config  # at the rate that it has
    return replace(config, format=format, rate_hz=PCM_RATE_HZ if format == PCM else TELEPHONE_RATE_HZ)


def _noise_reduction(value: Any, path: str) -> None:
    """Check what is not done: the models are trained on noisy speech, and the effective configuration says null."""
    if value is not None:
        given = checked_object(value, path, ("type", "strength"))
        _one_of(given.get("type", "near_field"), f"{path}.type", ("near_field", "far_field"))


def _set(field: str, read: Callable[[Any, str], Any]) -> Reader:
    """Return the reader of a field that is set as it is."""

    def read_field(value: Any, path: str, config: SessionConfig) -> SessionConfig:
        return replace(config, **{field: read(value, path)})

    return read_field


def _transcription(value: Any, path: str, config: SessionConfig) -> SessionConfig:
    if value is None:
        names = ("model", "language", "languages", "prompt", "keywords", "delay")
        return replace(config, **{name: getattr(SessionConfig(), name) for name in names})
    return _read_group(_TRANSCRIPTION, value, path, config)


def _turn_detection(value: Any, path: str, config: SessionConfig) -> SessionConfig:
    if value is None:
        return replace(config, turn_detection=None)
    given = checked_object(value, path, _TURN_DETECTION)
    checked = {key: _TURN_DETECTION[key](item, f"{path}.{key}") for key, item in given.items()}
    turns = config.turns or TurnDetection()
    if checked.get("type", turns.type) != turns.type:
        turns = TurnDetection()
    names = {field.name for field in fields(TurnDetection)} & checked.keys()
    return replace(config, turn_detection=replace(turns, **{name: checked[name] for name in names}))


_TURN_DETECTION: dict[str, Callable[[Any, str], Any]] = {
    "type": partial(_one_of, allowed=("server_vad", "semantic_vad")),
    "threshold": partial(_number, low=0, high=1),
    "prefix_padding_ms": partial(_integer, low=0, high=5_000),
    "silence_duration_ms": partial(_integer, low=100, high=10_000),
    "idle_timeout_ms": lambda value, path: None if value is None else _integer(value, path, 1_000, 300_000),
    "eagerness": partial(_one_of, allowed=tuple(PAUSES_S)),
    "create_response": _flag,
    "interrupt_response": _flag,
}
_TRANSCRIPTION: dict[str, Reader] = {
    "model": _set("model", lambda value, path: _text(value, path) or SessionConfig().model),
    "language": _set("language", _text),
    "languages": _set("languages", _texts),
    "prompt": _set("prompt", partial(_text, max_chars=MAX_PROMPT_CHARS)),
    "keywords": _set("keywords", _texts),
    "delay": _set("delay", lambda value, path: _one_of("low" if value is None else value, path, DELAYS)),
}
_INPUT: dict[str, Reader] = {
    "format": _format,
    "noise_reduction": _checked(_noise_reduction),
    "transcription": _transcription,
    "turn_detection": _turn_detection,
}
_PARAMS: dict[str, Reader] = {
    "sample_rate_hz": _set("rate_hz", partial(_integer, low=RATES_HZ[0], high=RATES_HZ[-1])),
    "num_channels": _checked(partial(_integer, low=1, high=1)),
}
_SESSION: dict[str, Reader] = {
    "type": _checked(partial(_one_of, allowed=("transcription",))),
    "audio": partial(_read_group, {"input": partial(_read_group, _INPUT)}),
    "include": _include,
    "input_audio_format": _beta_format,
    "input_audio_params": partial(_read_group, _PARAMS),
    "input_audio_noise_reduction": _checked(_noise_reduction),
    "input_audio_transcription": _transcription,
    "turn_detection": _turn_detection,
    # What a transcription session has no use for, or what the server itself has set.
    **dict.fromkeys(
        ("modalities", "client_secret", "id", "object", "expires_at"), _checked(lambda value, path: None)
    ),
}
