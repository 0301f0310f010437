"""The work of several streams: done together, and each gets back what is its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from fakes.backends import WINDOW_S, ScriptedBackend, ScriptedBackendSession
from fakes.clock import FakeClock
from fakes.speech_detector import noise_and_silence
from harken.contract import Backend, Floats
from harken.decoding import PartialHypothesis, make_prompt
from harken.streaming.utterance import EncoderChunk
from harken.streaming.worker import (
    FinalRequest,
    ModelRequest,
    ModelResponse,
    ModelWorker,
    PartialRequest,
    RequestGenerator,
)
from harken.text import Tokenizer
from harken.transcribe import TranscribeOptions, WindowDecoder
from tiny_models import DIMS, TOKENIZER, make_mel

EOT = TOKENIZER.eot
OPTIONS = TranscribeOptions(
    language="en", vad=False, hallucination_threshold=None, temperatures=(0.0,), suppress_tokens=()
)


# --- a model that knows who speaks -------------------------------------------------------------------------


@dataclass(eq=False)
class Seat:
    """`harken.contract.Encoder` of a stream with a number."""

    number: int
    heard: list[tuple[tuple[int, ...], int]] = field(default_factory=list)


@dataclass
class Seats:
    """`harken.contract.Features`: whose sound it is."""

    numbers: list[int]

    @property
    def n_windows(self) -> int:
        return len(self.numbers)


class Hall(ScriptedBackend):
    """`harken.contract.Backend` that says of each stream what is written for it.

    Parameters
    ----------
    texts : sequence of str
        Of each stream, as far as it is written: all of it at every update. Of a whole utterance, the last.
    languages : sequence of str
        Of each stream; English otherwise.
    clock, seconds
        What each pass of the decoder takes.

    Attributes
    ----------
    together : list of list of int
        Streams whose windows were encoded at once.
    """

    def __init__(
        self, *texts: str, languages: Sequence[str] = (), clock: FakeClock | None = None, seconds: float = 1.0
    ) -> None:
        super().__init__(self._say, 64, clock=clock, cost=lambda rows, width: seconds)
        self.texts, self.languages = texts, languages
        self.together: list[list[int]] = []
        self.opened: list[list[int]] = []

    def encode_chunk(self, states: Sequence[Seat], mel: Floats, final_frames: int) -> None:
        assert len(states) == len(mel)
        self.together.append([seat.number for seat in states])
        for seat, window in zip(states, mel, strict=True):
            assert (window == seat.number).all(), "a stream hears its own sound"
            seat.heard.append((window.shape, final_frames))

    def stream_features(self, states: Sequence[Seat]) -> Seats:
        return Seats([seat.number for seat in states])

    def open_session(
        self, features: Any, row_windows: Sequence[int], capacity: int, *, attention: bool = False
    ) -> ScriptedBackendSession:
        numbers = features.numbers if isinstance(features, Seats) else [-1] * features.n_windows
        its = [numbers[row] for row in row_windows]
        if capacity > 1:
            self.opened.append(its)
        return super().open_session(features, its, capacity, attention=attention)

    def _say(self, number: int, seen: tuple[int, ...]) -> Floats:
        logits = np.zeros(DIMS.n_vocab, np.float32)
        if TOKENIZER.sot not in seen:
            return logits
        if seen == (TOKENIZER.sot,):
            spoken = self.languages[number] if self.languages else "en"
            logits[TOKENIZER.language_tokens[spoken]] = 5
            return logits
        behind = seen.index(TOKENIZER.sot) + (4 if TOKENIZER.no_timestamps in seen else 3)
        text: list[int] = [*self.texts[number].encode(), EOT]
        if number < 0:
            text = [TOKENIZER.timestamp_begin, *text[:-1], TOKENIZER.timestamp_begin + 20, EOT]
        logits[[*text, EOT][min(len(seen) - behind, len(text))]] = 12
        return logits


class Asking:
    """A stream that asks for some pieces of work, and notes what comes of each."""

    def __init__(self, *works: ModelRequest) -> None:
        self.works, self.done = works, list[ModelResponse]()

    def steps(self) -> RequestGenerator:
        for work in self.works:
            self.done.append((yield work))

    @property
    def said(self) -> list[str]:
        """Text of each update, or of the segments of each utterance."""
        return [
            TOKENIZER.decode(its.partial.hypothesis.tokens)
            if its.partial
            else "".join(segment.text for segment in its.segments)
            for its in self.done
        ]


def update(
    seat: Seat,
    *,
    frames: int = 21,
    keep: int = 4,
    history_frames: int = 8,
    language: str | None = "en",
    **what: tuple[int, ...],
) -> PartialRequest:
    mel = np.full((DIMS.n_mels, frames), seat.number, np.float32)
    texts: dict[str, tuple[int, ...]] = {"committed": (), "draft_tokens": (), "context_tokens": ()}
    return PartialRequest(
        encoder=seat,
        history_frames=history_frames,
        chunk=EncoderChunk(mel=mel, final_frames=keep, positions=100, frame_threshold=0),
        language=language,
        **texts | what,
    )


def utterance(start_s: float) -> FinalRequest:
    return FinalRequest(samples=noise_and_silence(WINDOW_S), start_s=start_s)


def worker(hall: Backend, clock: FakeClock | None = None, **options: object) -> ModelWorker:
    return ModelWorker(WindowDecoder(hall, TOKENIZER, replace(OPTIONS, **options)), clock or float)


def drive(its: ModelWorker, *streams: Asking) -> None:
    its.run([stream.steps() for stream in streams])


# --- who gets what -----------------------------------------------------------------------------------------


def test_each_stream_gets_what_is_its_own_however_much_it_asks_for():
    hall = Hall("one", "two", "three", "four")
    seats = [Seat(number) for number in range(4)]
    streams = [Asking(*[update(seat)] * times) for seat, times in zip(seats, (2, 0, 3, 1), strict=True)]
    drive(worker(hall), *streams)
    assert [stream.said for stream in streams] == [["one", "one"], [], ["three"] * 3, ["four"]]
    assert hall.together == [[0, 2, 3], [0, 2], [2]]
    assert hall.opened == [[0, 2, 3], [0, 2], [2]]
    assert [len(seat.heard) for seat in seats] == [2, 0, 3, 1]


def test_updates_and_utterances_in_one_round():
    hall = Hall("one", "two", "the whole")
    first = Asking(update(Seat(0)), utterance(50.0), update(Seat(0)))
    second = Asking(utterance(100.0), update(Seat(1)))
    third = Asking(utterance(7.0))
    drive(worker(hall), first, second, third)
    assert first.said == ["one", "the whole", "one"]
    assert second.said == ["the whole", "two"]
    assert third.said == ["the whole"]
    starts = [
        [segment.start_s for segment in its.done[place].segments] for its, place in [(first, 1), (second, 0)]
    ]
    assert starts == [[50.0], [100.0]]
    assert [its.start_s for its in third.done[0].segments] == [7.0]
    assert all((its.partial is None) == bool(its.segments) for its in (*first.done, *second.done, *third.done))


def test_a_stream_goes_on_by_what_it_was_told():
    """What it asks for next follows from what came of the last."""
    hall, its = Hall("to be or not"), Seat(0)
    found: list[PartialHypothesis] = []

    def growing() -> RequestGenerator:
        committed: tuple[int, ...] = ()
        while len(committed) < 9:
            done = yield update(its, committed=committed, draft_tokens=found[-1].tokens[3:] if found else ())
            found.append(done.partial.hypothesis)
            committed += done.partial.hypothesis.tokens[:3]

    worker(hall).run([growing()])
    assert [TOKENIZER.decode(grown.tokens) for grown in found] == ["to be or not", "be or not", "or not"]
    # The prompt and a token a pass; then all in one.
    assert [len(session.read) for session in hall.sessions] == [13, 1, 1]
    (last,) = hall.sessions[-1].read[0]
    assert last[4:] == tuple(b"to be or not")


def test_no_streams_and_streams_that_ask_for_nothing():
    hall = Hall("one")
    its = worker(hall)
    its.run([])
    drive(its, Asking(), Asking())
    assert hall.together == []
    assert its.stats.windows == 0
    assert its.compute_s == 0


# --- what is done together ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("different", "together"),
    [
        ({}, [[0, 1, 2]]),
        ({"frames": 31}, [[0, 2], [1]]),
        ({"keep": 6}, [[0, 2], [1]]),
        ({"history_frames": 12}, [[0, 2], [1]]),
        ({"committed": (*b"tw",), "context_tokens": (*b"Ah.",)}, [[0, 1, 2]]),
    ],
)
def test_windows_of_one_size_are_encoded_together_and_all_are_decoded_together(
    different: dict[str, Any], together: list[list[int]]
):
    hall = Hall("one", "two", "three")
    seats = [Seat(number) for number in range(3)]
    streams = [Asking(update(seats[0])), Asking(update(seats[1], **different)), Asking(update(seats[2]))]
    drive(worker(hall), *streams)
    assert hall.together == together
    assert hall.opened == [[0, 1, 2]]
    assert [stream.said for stream in streams] == [
        ["one"],
        ["two"[len(different.get("committed", ())) :]],
        ["three"],
    ]
    shape = (DIMS.n_mels, different.get("frames", 21))
    assert seats[1].heard == [(shape, different.get("keep", 4))]


def test_utterances_are_decoded_together_as_many_as_may_be():
    hall = Hall("the whole")
    its = ModelWorker(WindowDecoder(hall, TOKENIZER, OPTIONS), batch_size=2)
    drive(its, *(Asking(utterance(start)) for start in (0.0, 10.0, 20.0)))
    assert sorted(map(len, hall.opened)) == [1, 2]


# --- languages and prompts ---------------------------------------------------------------------------------


def prompts(hall: Hall) -> list[tuple[int, ...]]:
    """What the rows of the last decode read first."""
    return hall.sessions[-1].read[0]


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


def languages(streams: Sequence[Asking]) -> Iterator[str]:
    for stream in streams:
        (done,) = stream.done
        yield done.partial.language


@pytest.mark.parametrize(
    ("option", "allowed", "known", "expected", "looks"),
    [
        (None, (), [None, None, None], ["de", "fr", "en"], True),
        (None, (), [None, "nl", None], ["de", "nl", "en"], True),
        (None, (), ["es", "nl", "it"], ["es", "nl", "it"], False),
        ("German", (), [None, None, None], ["de", "de", "de"], False),
        ("de", (), [None, "nl", None], ["de", "nl", "de"], False),
        (None, ("fr",), [None, None, "es"], ["fr", "fr", "es"], True),
    ],
)
def test_languages_are_looked_for_where_somebody_does_not_know(
    option: str | None, allowed: tuple[str, ...], known: list[str | None], expected: list[str], looks: bool
):
    hall = Hall("one", "two", "three", languages=("de", "fr", "en"))
    streams = [Asking(update(Seat(number), language=its)) for number, its in enumerate(known)]
    drive(worker(hall, language=option, languages=allowed), *streams)
    assert [*languages(streams)] == expected
    assert prompts(hall) == [prompt(language) for language in expected]
    assert len(hall.sessions) == 1 + looks


def test_the_text_before_an_utterance_stands_in_its_prompt():
    hall = Hall("one", "two")
    streams = [
        Asking(update(Seat(0), context_tokens=(*b"Well.",))),
        Asking(update(Seat(1), draft_tokens=(*b"tw",))),
    ]
    drive(worker(hall), *streams)
    assert prompts(hall) == [prompt("en", b"Well."), (*prompt("en"), *b"tw")]


@pytest.mark.parametrize("carried", [True, False])
def test_the_initial_prompt_stands_before_every_utterance(carried: bool):
    """As each final has it, which is a recording to itself."""
    hall = Hall("one")
    drive(
        worker(hall, initial_prompt="Ann", carry_initial_prompt=carried),
        Asking(update(Seat(0), context_tokens=(*b" So.",))),
    )
    assert prompts(hall) == [prompt("en", b" So.", b" Ann")]


def test_a_translation_is_asked_for():
    hall = Hall("one")
    drive(worker(hall, task="translate"), Asking(update(Seat(0), language="de")))
    assert TOKENIZER.translate in prompts(hall)[0]


def test_english_models_have_no_language_to_look_for():
    english = Tokenizer.bytes_only(multilingual=False)
    hall = Hall("one")
    its = ModelWorker(WindowDecoder(hall, english, replace(OPTIONS, language=None)))
    hall.next_logits = lambda number, seen: np.eye(DIMS.n_vocab, dtype=np.float32)[
        EOT if len(seen) > 5 else ord("a")
    ]
    stream = Asking(update(Seat(0), language=None))
    drive(its, stream)
    assert stream.done[0].partial.language == "en"
    assert prompts(hall) == [english.sot_sequence("en", timestamps=False)]


def test_what_may_not_be_said_is_not():
    stream = Asking(update(Seat(0)))
    drive(worker(Hall("a1b"), suppress_regex="[0-9]"), stream)
    assert "1" not in stream.said[0]
    stream = Asking(update(Seat(0)))
    drive(worker(Hall("a1b"), suppress_tokens=(ord("b"),)), stream)
    assert stream.said[0][:2] == "a1"
    assert "b" not in stream.said[0]


# --- what it costs -----------------------------------------------------------------------------------------


def test_what_was_computed_is_booked_on_all_that_waited_for_it():
    clock = FakeClock()
    hall = Hall("one", "three", "ab", clock=clock)
    first, second, third = (
        Asking(update(Seat(0))),
        Asking(update(Seat(1)), update(Seat(1))),
        Asking(utterance(0.0)),
    )
    its = worker(hall, clock)
    drive(its, first, second, third)
    updates_s, final_s = 1.0 + len("three"), 1.0 + len("ab") + 2
    assert [done.compute_s for done in first.done] == [updates_s]
    assert [done.compute_s for done in second.done] == [updates_s, updates_s]
    assert [done.compute_s for done in third.done] == [updates_s + final_s]
    assert its.compute_s == 2 * updates_s + final_s == clock.now_s


def test_the_account_of_all_updates():
    its = worker(Hall("one", "two"))
    known = (*b"one",)
    drive(
        its,
        Asking(update(Seat(0)), update(Seat(0), draft_tokens=known)),
        Asking(update(Seat(1), committed=(*b"t",))),
    )
    assert its.stats.windows == 3
    assert its.stats.forwards == 4 + 1
    assert (its.stats.drafted, its.stats.accepted) == (3, 3)
    assert its.stats.sampled_tokens == 3 + 3 + 2


# --- a real model ------------------------------------------------------------------------------------------


def heard(backend: Backend, streams: Sequence[int]) -> dict[int, list[ModelResponse]]:
    """Hear some streams to their ends, of two, three and one windows; the last is longer or shorter."""
    mel, options = make_mel(3, seed=4), replace(OPTIONS, language=None, suppress_tokens=tuple(range(128, 256)))
    done: dict[int, list[ModelResponse]] = {number: [] for number in streams}

    def steps(number: int) -> RequestGenerator:
        encoder = backend.open_encoder(8)
        language, previous = None, ()
        for _ in range((1, 2, 0)[number]):
            first = 2 * encoder.final_positions
            sound = EncoderChunk(
                mel=mel[number, :, first : first + 13],
                final_frames=8,
                positions=first // 2 + 6,
                frame_threshold=2,
            )
            its = yield asked(encoder, sound, language, previous)
            done[number].append(its)
            language, previous = its.partial.language, its.partial.hypothesis.tokens
        first = 2 * encoder.final_positions
        rest = mel[number, :, first : first + 20 + 2 * number]
        sound = EncoderChunk(mel=rest, final_frames=rest.shape[1], positions=first // 2 + 8, frame_threshold=0)
        done[number].append((yield asked(encoder, sound, language, previous)))

    def asked(
        encoder: Any, sound: EncoderChunk, language: str | None, previous: tuple[int, ...]
    ) -> PartialRequest:
        return PartialRequest(
            encoder=encoder, history_frames=8, chunk=sound, committed=(), draft_tokens=previous, context_tokens=(),
            language=language,
        )  # fmt: skip

    ModelWorker(WindowDecoder(backend, TOKENIZER, options)).run([steps(number) for number in streams])
    return done


def test_streams_together_as_each_alone(reference_backend: Backend):
    together = heard(reference_backend, [0, 1, 2])
    assert [len(its) for its in together.values()] == [2, 3, 1]
    for number, found in together.items():
        for one, other in zip(found, heard(reference_backend, [number])[number], strict=True):
            assert one.partial.language == other.partial.language
            ours, plain = one.partial.hypothesis, other.partial.hypothesis
            assert (ours.tokens, ours.reached_eot) == (plain.tokens, plain.reached_eot)
            assert ours.logprobs == pytest.approx(plain.logprobs, abs=1e-5)
            assert ours.no_speech_prob == pytest.approx(plain.no_speech_prob, rel=1e-4)
            np.testing.assert_array_equal(ours.attended_positions, plain.attended_positions)
    assert any(its.partial.hypothesis.tokens for found in together.values() for its in found)
