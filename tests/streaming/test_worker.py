"""The worker: batches of requests from several streams, and the response to each; final passes over utterances."""

from dataclasses import replace

import numpy as np
import pytest

from fakes.backends import (
    WINDOW_POSITIONS,
    WINDOW_S,
    ScriptedBackend,
    TranscriptBackend,
    logits_of_texts,
    window_text,
)
from fakes.drafts import eager_decoder
from fakes.speech_detector import noise_and_silence
from harken.decoding import make_prompt
from harken.errors import AudioError
from harken.streaming.utterance_audio import EncoderChunk
from harken.streaming.worker import FinalRequest, ModelWorker, PartialRequest, final_pass
from harken.transcribe import TranscribeOptions, WindowDecoder
from tiny_models import DIMS, ENGLISH_TOKENIZER, TOKENIZER

OPTIONS = TranscribeOptions(
    language="en", vad=False, hallucination_threshold=None, temperatures=(0.0,), suppress_tokens=()
)


class StreamFeatures(list[int]):
    """`harken.contract.Features`: the number of the stream of each window."""

    @property
    def n_windows(self):
        return len(self)


class StreamBackend(ScriptedBackend):
    """`harken.contract.Backend` that decodes the text of each stream, in its language, and records what is encoded.

    The state of an encoder is the number of its stream.
    """

    def __init__(self, *texts, languages=("en",) * 3, tokenizer=TOKENIZER):
        super().__init__(self._logits, 64)
        self.texts, self.languages, self.tokenizer = texts, languages, tokenizer
        self.encoded = []

    def encode_chunk(self, states, mel, final_frames):
        self.encoded.append([*states])
        for encoder, window in zip(states, mel, strict=True):
            assert (window == encoder).all(), "each encoder gets the audio of its stream"

    def stream_features(self, states):
        return StreamFeatures(states)

    def open_session(self, features, row_windows, capacity, *, attention=False):
        numbers = [features[row] for row in row_windows]
        return super().open_session(features, numbers, capacity, attention=attention)

    def _logits(self, number, seen):
        """Return logits of the language behind the start alone, and of the text behind the rest of the prompt."""
        tokenizer, logits = self.tokenizer, np.zeros(DIMS.n_vocab, np.float32)
        if tokenizer.sot not in seen:
            return logits
        said = seen[seen.index(tokenizer.sot) :]
        prompt = tokenizer.sot_sequence(self.languages[number], timestamps=False)
        following = [*prompt, *self.texts[number].encode(), tokenizer.eot]
        logits[following[min(len(said), len(following) - 1)]] = 12
        return logits


def partial_request(encoder, *, frames=21, final_frames=4, **fields):
    mel = np.full((DIMS.n_mels, frames), encoder, np.float32)
    chunk = EncoderChunk(mel=mel, final_frames=final_frames, positions=100, frame_threshold=0)
    given = {
        "committed": (),
        "draft_tokens": (),
        "context_tokens": (),
        "language": "en",
        "previous_language": None,
    }
    silent = {"committed_end": 0, "speech": np.zeros(0, bool)}
    return PartialRequest(encoder=encoder, chunk=chunk, **given | silent | fields)


def worker(backend, **options):
    return ModelWorker(WindowDecoder(backend, TOKENIZER, replace(OPTIONS, **options)))


def run(model_worker, *requests):
    """Return the responses to streams that each make a request, all at the same time."""
    responses = {}

    def stream(number, request):
        responses[number] = yield request

    model_worker.run([stream(*numbered) for numbered in enumerate(requests)])
    return [responses[number] for number in range(len(requests))]


def texts(responses):
    return [TOKENIZER.decode(response.hypothesis.tokens) for response in responses]


# --- batches ------------------------------------------------------------------------------------------------


def test_windows_of_one_shape_are_encoded_together_and_all_decoded_together():
    for different, encoded in (
        ({}, [[0, 1, 2]]),
        ({"frames": 31}, [[0, 2], [1]]),
        ({"final_frames": 6}, [[0, 2], [1]]),
        ({"committed": (*b"tw",), "context_tokens": (*b"Ah.",)}, [[0, 1, 2]]),
    ):
        backend = StreamBackend("one", "two", "three")
        requests = [partial_request(number, **(different if number == 1 else {})) for number in range(3)]
        responses = run(worker(backend), *requests)
        assert backend.encoded == encoded
        assert len(backend.sessions) == 1
        rest = "two"[len(different.get("committed", ())) :]
        assert texts(responses) == ["one", rest, "three"]


# --- languages and prompts ----------------------------------------------------------------------------------


def read_prompts(backend):
    """Return the tokens that each row of the last decode reads first."""
    return backend.sessions[-1].read[0]


def prompt(language, previous=b"", carried=b""):
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
def test_language_is_detected_only_where_it_is_unknown(option, allowed, known, expected, detects):
    backend = StreamBackend("one", "two", "three", languages=("de", "fr", "en"))
    requests = [partial_request(number, language=code) for number, code in enumerate(known)]
    responses = run(worker(backend, language=option, languages=allowed), *requests)
    assert [response.language for response in responses] == expected
    assert read_prompts(backend) == [prompt(language) for language in expected]
    assert len(backend.sessions) == 1 + detects


def test_prompt_has_the_text_before_the_utterance():
    backend = StreamBackend("one", "two")
    requests = [
        partial_request(0, context_tokens=(*b"Well.",)),
        partial_request(1, draft_tokens=(*b"tw",)),
    ]
    run(worker(backend), *requests)
    assert read_prompts(backend) == [prompt("en", b"Well."), (*prompt("en"), *b"tw")]
    # The initial prompt is in each, as in each final pass, which takes the utterance for a recording.
    for carried in (True, False):
        run(worker(backend, initial_prompt="Ann", carry_initial_prompt=carried), requests[0])
        assert read_prompts(backend) == [prompt("en", b"Well.", b" Ann")]
    run(worker(backend, task="translate"), partial_request(0, language="de"))
    assert TOKENIZER.translate in read_prompts(backend)[0]


def test_english_only_model_detects_no_language():
    backend = StreamBackend("one", tokenizer=ENGLISH_TOKENIZER)
    decoder = WindowDecoder(backend, ENGLISH_TOKENIZER, replace(OPTIONS, language=None))
    (response,) = run(ModelWorker(decoder), partial_request(0, language=None))
    assert response.language == "en"
    assert read_prompts(backend) == [ENGLISH_TOKENIZER.sot_sequence("en", timestamps=False)]


@pytest.mark.parametrize(
    ("options", "text"), [({"suppress_regex": "[0-9]"}, "ab"), ({"suppress_tokens": (98,)}, "a1")]
)
def test_suppressed_tokens_are_not_decoded(options, text):
    (found,) = texts(run(worker(StreamBackend("a1b"), **options), partial_request(0)))
    assert {*found} & {*"a1b"} <= {*text}
    assert found.startswith("a")


# --- the final pass, which test_live_sessions.py compares with offline transcription -------------------------

NOISE = noise_and_silence(WINDOW_S)


def test_weak_evidence_changes_no_language_of_a_stream():
    for languages, expected in (({}, "en"), ({"fr": 0.9, "en": 0.1}, "fr"), ({"fr": 0.1, "en": 0.9}, "en")):
        options = replace(OPTIONS, language=None)
        decoder = WindowDecoder(
            TranscriptBackend(window_text(0, "hello", WINDOW_POSITIONS)), TOKENIZER, options
        )
        (response,) = final_pass(decoder, [FinalRequest(samples=NOISE, start_s=0.0, languages=languages)])
        assert [segment.language for segment in response.segments] == [expected]
        assert response.languages[expected] == max(response.languages.values())


TOKENS = window_text(0, "hello there.", 9, 9, "good day", DIMS.n_audio_ctx - 1).tokens


def test_streamed_text_without_timestamps_saves_decoder_passes():
    """Passes: the prompt with the first segment up to its end, the next up to its end, the last timestamp."""
    text, prompt_tokens = (*TOKENS, TOKENIZER.eot), len(TOKENIZER.sot_sequence("en"))
    backend = ScriptedBackend(logits_of_texts([text], prompt_tokens, DIMS.n_vocab), 64)
    window_decoder = WindowDecoder(backend, TOKENIZER, OPTIONS, eager_decoder())
    draft = tuple(token for token in TOKENS if token < TOKENIZER.eot)
    (response,) = final_pass(window_decoder, [FinalRequest(samples=NOISE, start_s=0.0, draft_tokens=draft)])
    assert [segment.text for segment in response.segments] == ["hello there.", "good day"]
    assert window_decoder.stats.forwards == 3
    assert window_decoder.stats.sampled_tokens == len(TOKENS) + 1


def test_each_utterance_has_its_own_segments_with_times_in_the_stream():
    for language in ("fr", None):  # detected, it is English
        options = TranscribeOptions(vad=False, hallucination_threshold=None, language=language)
        backend = TranscriptBackend(window_text(0, "hello", WINDOW_POSITIONS))
        decoder = WindowDecoder(backend, TOKENIZER, options)
        requests = [FinalRequest(samples=NOISE, start_s=at_s) for at_s in (0.0, 7.0)]
        responses = [response for request in requests for response in final_pass(decoder, [request])]
        segments = [segment for response in responses for segment in response.segments]
        assert [(each.language, each.start_s) for each in segments] == [(language or "en", at) for at in (0, 7)]
        with pytest.raises(AudioError, match="no audio"):
            final_pass(decoder, [FinalRequest(samples=np.empty(0, np.float32), start_s=0.0)])
