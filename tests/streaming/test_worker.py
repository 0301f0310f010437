"""The worker: batches of requests from several streams, and responses that each stream gets back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from fakes.backends import ScriptedBackend, ScriptedBackendSession
from harken.contract import Backend, Floats
from harken.decoding import make_prompt
from harken.streaming.utterance import EncoderChunk
from harken.streaming.worker import (
    ModelRequest,
    ModelResponse,
    ModelWorker,
    PartialRequest,
    RequestGenerator,
)
from harken.text import Tokenizer
from harken.transcribe import TranscribeOptions, WindowDecoder
from tiny_models import DIMS, TOKENIZER

EOT = TOKENIZER.eot
OPTIONS = TranscribeOptions(
    language="en", vad=False, hallucination_threshold=None, temperatures=(0.0,), suppress_tokens=()
)


# --- a backend with a script for each stream ----------------------------------------------------------------


@dataclass(eq=False)
class StreamEncoder:
    """`harken.contract.StreamingEncoderState` of a numbered stream."""

    number: int
    chunks: list[tuple[tuple[int, ...], int]] = field(default_factory=list)


@dataclass
class StreamFeatures:
    """`harken.contract.Features`: the number of the stream of each window."""

    numbers: list[int]

    @property
    def n_windows(self) -> int:
        return len(self.numbers)


class StreamBackend(ScriptedBackend):
    """`harken.contract.Backend` that decodes the text of each stream, in its language, and records its batches."""

    def __init__(self, *texts: str, languages: Sequence[str] = ()) -> None:
        super().__init__(self._logits, 64)
        self.texts, self.languages = texts, languages
        self.encoded: list[list[int]] = []
        self.decoded: list[list[int]] = []

    def encode_chunk(self, states: Sequence[StreamEncoder], mel: Floats, final_frames: int) -> None:
        assert len(states) == len(mel)
        self.encoded.append([encoder.number for encoder in states])
        for encoder, window in zip(states, mel, strict=True):
            assert (window == encoder.number).all(), "each encoder gets the audio of its stream"
            encoder.chunks.append((window.shape, final_frames))

    def stream_features(self, states: Sequence[StreamEncoder]) -> StreamFeatures:
        return StreamFeatures([encoder.number for encoder in states])

    def open_session(
        self, features: Any, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> ScriptedBackendSession:
        row_numbers = [features.numbers[row] for row in row_windows]
        if capacity > 1:
            self.decoded.append(row_numbers)
        return super().open_session(features, row_numbers, capacity, attention=attention)

    def _logits(self, number: int, seen: tuple[int, ...]) -> Floats:
        logits = np.zeros(DIMS.n_vocab, np.float32)
        if TOKENIZER.sot not in seen:
            return logits
        if seen == (TOKENIZER.sot,):
            language = self.languages[number] if self.languages else "en"
            logits[TOKENIZER.language_tokens[language]] = 5
            return logits
        n_prompt = seen.index(TOKENIZER.sot) + (4 if TOKENIZER.no_timestamps in seen else 3)
        text: list[int] = [*self.texts[number].encode(), EOT]
        logits[[*text, EOT][min(len(seen) - n_prompt, len(text))]] = 12
        return logits


class ScriptedStream:
    """A stream that makes given requests and records the responses."""

    def __init__(self, *requests: ModelRequest) -> None:
        self.requests, self.responses = requests, list[ModelResponse]()

    def steps(self) -> RequestGenerator:
        for request in self.requests:
            self.responses.append((yield request))

    @property
    def texts(self) -> list[str]:
        """Text of each response."""
        return [TOKENIZER.decode(response.hypothesis.tokens) for response in self.responses]


def partial_request(
    encoder: StreamEncoder,
    *,
    frames: int = 21,
    final_frames: int = 4,
    history_frames: int = 8,
    language: str | None = "en",
    **tokens: tuple[int, ...],
) -> PartialRequest:
    mel = np.full((DIMS.n_mels, frames), encoder.number, np.float32)
    no_tokens: dict[str, tuple[int, ...]] = {"committed": (), "draft_tokens": (), "context_tokens": ()}
    return PartialRequest(
        encoder=encoder,
        history_frames=history_frames,
        chunk=EncoderChunk(mel=mel, final_frames=final_frames, positions=100, frame_threshold=0),
        language=language,
        **no_tokens | tokens,
    )


def worker(backend: Backend, **options: object) -> ModelWorker:
    return ModelWorker(WindowDecoder(backend, TOKENIZER, replace(OPTIONS, **options)))


def run_streams(model_worker: ModelWorker, *streams: ScriptedStream) -> None:
    model_worker.run([stream.steps() for stream in streams])


# --- batches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("different", "encoded"),
    [
        ({}, [[0, 1, 2]]),
        ({"frames": 31}, [[0, 2], [1]]),
        ({"final_frames": 6}, [[0, 2], [1]]),
        ({"history_frames": 12}, [[0, 2], [1]]),
        ({"committed": (*b"tw",), "context_tokens": (*b"Ah.",)}, [[0, 1, 2]]),
    ],
)
def test_windows_of_one_shape_are_encoded_together_and_all_decoded_together(
    different: dict[str, Any], encoded: list[list[int]]
):
    backend = StreamBackend("one", "two", "three")
    encoders = [StreamEncoder(number) for number in range(3)]
    streams = [
        ScriptedStream(partial_request(encoders[0])),
        ScriptedStream(partial_request(encoders[1], **different)),
        ScriptedStream(partial_request(encoders[2])),
    ]
    run_streams(worker(backend), *streams)
    assert backend.encoded == encoded
    assert backend.decoded == [[0, 1, 2]]
    assert [stream.texts for stream in streams] == [
        ["one"],
        ["two"[len(different.get("committed", ())) :]],
        ["three"],
    ]
    shape = (DIMS.n_mels, different.get("frames", 21))
    assert encoders[1].chunks == [(shape, different.get("final_frames", 4))]


# --- languages and prompts ----------------------------------------------------------------------------------


def read_prompts(backend: StreamBackend) -> list[tuple[int, ...]]:
    """Return the tokens that each row of the last decode reads first."""
    return backend.sessions[-1].read[0]


def prompt(language: str, previous: bytes = b"", carried: bytes = b"") -> tuple[int, ...]:
    return make_prompt(
        TOKENIZER,
        64,
        language=language,
        task="transcribe",
        timestamps=False,
        previous_tokens=previous,
        initial_prompt_tokens=carried,
    )


def languages(streams: Sequence[ScriptedStream]) -> Iterator[str]:
    for stream in streams:
        (response,) = stream.responses
        yield response.language


@pytest.mark.parametrize(
    ("option", "allowed", "known", "expected", "detects"),
    [
        (None, (), [None, None, None], ["de", "fr", "en"], True),
        (None, (), [None, "nl", None], ["de", "nl", "en"], True),
        (None, (), ["es", "nl", "it"], ["es", "nl", "it"], False),
        ("German", (), [None, None, None], ["de", "de", "de"], False),
        ("de", (), [None, "nl", None], ["de", "nl", "de"], False),
        (None, ("fr",), [None, None, "es"], ["fr", "fr", "es"], True),
    ],
)
def test_language_is_detected_only_where_it_is_unknown(
    option: str | None, allowed: tuple[str, ...], known: list[str | None], expected: list[str], detects: bool
):
    backend = StreamBackend("one", "two", "three", languages=("de", "fr", "en"))
    streams = [
        ScriptedStream(partial_request(StreamEncoder(number), language=code))
        for number, code in enumerate(known)
    ]
    run_streams(worker(backend, language=option, languages=allowed), *streams)
    assert [*languages(streams)] == expected
    assert read_prompts(backend) == [prompt(language) for language in expected]
    assert len(backend.sessions) == 1 + detects


def test_prompt_has_the_text_before_the_utterance():
    backend = StreamBackend("one", "two")
    streams = [
        ScriptedStream(partial_request(StreamEncoder(0), context_tokens=(*b"Well.",))),
        ScriptedStream(partial_request(StreamEncoder(1), draft_tokens=(*b"tw",))),
    ]
    run_streams(worker(backend), *streams)
    assert read_prompts(backend) == [prompt("en", b"Well."), (*prompt("en"), *b"tw")]


@pytest.mark.parametrize("carried", [True, False])
def test_prompt_of_every_utterance_has_the_initial_prompt(carried: bool):
    """As in each final pass, which takes the utterance for a recording."""
    backend = StreamBackend("one")
    run_streams(
        worker(backend, initial_prompt="Ann", carry_initial_prompt=carried),
        ScriptedStream(partial_request(StreamEncoder(0), context_tokens=(*b" So.",))),
    )
    assert read_prompts(backend) == [prompt("en", b" So.", b" Ann")]


def test_translate_task_is_in_the_prompt():
    backend = StreamBackend("one")
    run_streams(
        worker(backend, task="translate"), ScriptedStream(partial_request(StreamEncoder(0), language="de"))
    )
    assert TOKENIZER.translate in read_prompts(backend)[0]


def test_english_only_model_detects_no_language():
    english = Tokenizer.bytes_only(multilingual=False)
    backend = StreamBackend("one")
    model_worker = ModelWorker(WindowDecoder(backend, english, replace(OPTIONS, language=None)))
    backend.next_logits = lambda number, seen: np.eye(DIMS.n_vocab, dtype=np.float32)[
        EOT if len(seen) > 5 else ord("a")
    ]
    stream = ScriptedStream(partial_request(StreamEncoder(0), language=None))
    run_streams(model_worker, stream)
    assert stream.responses[0].language == "en"
    assert read_prompts(backend) == [english.sot_sequence("en", timestamps=False)]


@pytest.mark.parametrize(
    ("options", "text"), [({"suppress_regex": "[0-9]"}, "ab"), ({"suppress_tokens": (98,)}, "a1")]
)
def test_suppressed_tokens_are_not_decoded(options: dict[str, Any], text: str):
    stream = ScriptedStream(partial_request(StreamEncoder(0)))
    run_streams(worker(StreamBackend("a1b"), **options), stream)
    (found,) = stream.texts
    assert {*found} & {*"a1b"} <= {*text}
    assert found.startswith("a")
