"""The worker: batches of requests from several streams, and responses that each stream gets back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
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

OPTIONS = TranscribeOptions(
    language="en", vad=False, hallucination_threshold=None, temperatures=(0.0,), suppress_tokens=()
)


@dataclass(eq=False)
class StreamEncoder:
    """`harken.contract.StreamingEncoderState` of a numbered stream."""

    number: int


@dataclass
class StreamFeatures:
    """`harken.contract.Features`: the number of the stream of each window."""

    numbers: list[int]

    @property
    def n_windows(self) -> int:
        return len(self.numbers)


class StreamBackend(ScriptedBackend):
    """`harken.contract.Backend` that decodes the text of each stream, in its language, and records what is encoded."""

    def __init__(
        self, *texts: str, languages: Sequence[str] = ("en",) * 3, tokenizer: Tokenizer = TOKENIZER
    ) -> None:
        super().__init__(self._logits, 64)
        self.texts, self.languages, self.tokenizer = texts, languages, tokenizer
        self.encoded: list[list[int]] = []

    def encode_chunk(self, states: Sequence[StreamEncoder], mel: Floats, final_frames: int) -> None:
        self.encoded.append([encoder.number for encoder in states])
        for encoder, window in zip(states, mel, strict=True):
            assert (window == encoder.number).all(), "each encoder gets the audio of its stream"

    def stream_features(self, states: Sequence[StreamEncoder]) -> StreamFeatures:
        return StreamFeatures([encoder.number for encoder in states])

    def open_session(
        self, features: Any, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> ScriptedBackendSession:
        numbers = [features.numbers[row] for row in row_windows]
        return super().open_session(features, numbers, capacity, attention=attention)

    def _logits(self, number: int, seen: tuple[int, ...]) -> Floats:
        """Return logits of the language behind the start alone, and of the text behind the rest of the prompt."""
        tokenizer, logits = self.tokenizer, np.zeros(DIMS.n_vocab, np.float32)
        if tokenizer.sot not in seen:
            return logits
        said = seen[seen.index(tokenizer.sot) :]
        prompt = tokenizer.sot_sequence(self.languages[number], timestamps=False)
        following = [*prompt, *self.texts[number].encode(), tokenizer.eot]
        logits[following[min(len(said), len(following) - 1)]] = 12
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


def run(model_worker: ModelWorker, *requests: ModelRequest) -> list[ScriptedStream]:
    """Return streams that have each made a request, all at the same time."""
    streams = [ScriptedStream(request) for request in requests]
    model_worker.run([stream.steps() for stream in streams])
    return streams


# --- batches ------------------------------------------------------------------------------------------------


def test_windows_of_one_shape_are_encoded_together_and_all_decoded_together():
    for different, encoded in (
        ({}, [[0, 1, 2]]),
        ({"frames": 31}, [[0, 2], [1]]),
        ({"final_frames": 6}, [[0, 2], [1]]),
        ({"history_frames": 12}, [[0, 2], [1]]),
        ({"committed": (*b"tw",), "context_tokens": (*b"Ah.",)}, [[0, 1, 2]]),
    ):
        backend = StreamBackend("one", "two", "three")
        requests = [partial_request(StreamEncoder(0)), None, partial_request(StreamEncoder(2))]
        requests[1] = partial_request(StreamEncoder(1), **different)
        streams = run(worker(backend), *requests)
        assert backend.encoded == encoded
        assert len(backend.sessions) == 1
        rest = "two"[len(different.get("committed", ())) :]
        assert [stream.texts for stream in streams] == [["one"], [rest], ["three"]]


# --- languages and prompts ----------------------------------------------------------------------------------


def read_prompts(backend: StreamBackend) -> list[tuple[int, ...]]:
    """Return the tokens that each row of the last decode reads first."""
    return backend.sessions[-1].read[0]


def prompt(language: str, previous: bytes = b"", carried: bytes = b"") -> tuple[int, ...]:
    options = {"language": language, "task": "transcribe", "timestamps": False}
    return make_prompt(TOKENIZER, 64, **options, previous_tokens=previous, initial_prompt_tokens=carried)


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
    requests = [partial_request(StreamEncoder(number), language=code) for number, code in enumerate(known)]
    streams = run(worker(backend, language=option, languages=allowed), *requests)
    assert [response.language for stream in streams for response in stream.responses] == expected
    assert read_prompts(backend) == [prompt(language) for language in expected]
    assert len(backend.sessions) == 1 + detects


def test_prompt_has_the_text_before_the_utterance():
    backend = StreamBackend("one", "two")
    requests = [
        partial_request(StreamEncoder(0), context_tokens=(*b"Well.",)),
        partial_request(StreamEncoder(1), draft_tokens=(*b"tw",)),
    ]
    run(worker(backend), *requests)
    assert read_prompts(backend) == [prompt("en", b"Well."), (*prompt("en"), *b"tw")]
    # The initial prompt is in each, as in each final pass, which takes the utterance for a recording.
    for carried in (True, False):
        run(worker(backend, initial_prompt="Ann", carry_initial_prompt=carried), requests[0])
        assert read_prompts(backend) == [prompt("en", b"Well.", b" Ann")]
    run(worker(backend, task="translate"), partial_request(StreamEncoder(0), language="de"))
    assert TOKENIZER.translate in read_prompts(backend)[0]


def test_english_only_model_detects_no_language():
    english = Tokenizer.bytes_only(multilingual=False)
    backend = StreamBackend("one", tokenizer=english)
    decoder = WindowDecoder(backend, english, replace(OPTIONS, language=None))
    (stream,) = run(ModelWorker(decoder), partial_request(StreamEncoder(0), language=None))
    assert stream.responses[0].language == "en"
    assert read_prompts(backend) == [english.sot_sequence("en", timestamps=False)]


@pytest.mark.parametrize(
    ("options", "text"), [({"suppress_regex": "[0-9]"}, "ab"), ({"suppress_tokens": (98,)}, "a1")]
)
def test_suppressed_tokens_are_not_decoded(options: dict[str, Any], text: str):
    (stream,) = run(worker(StreamBackend("a1b"), **options), partial_request(StreamEncoder(0)))
    (found,) = stream.texts
    assert {*found} & {*"a1b"} <= {*text}
    assert found.startswith("a")
