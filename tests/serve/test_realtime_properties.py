"""Whatever a client sends and a stream says: the events of a session are valid, its transcripts those of files."""

import json
from collections import defaultdict
from dataclasses import replace

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from realtime_script import Script, final, interim, pcm, transcribed

from fakes.live_sessions import speech_ended, speech_started
from fakes.speech_detector import LoudIsSpeech
from fakes.tone_backend import LETTER_OPTIONS, ToneBackend, silence, speak_random_words
from harken.api import Recognizer
from harken.serve.live.realtime_config import INTERIM, LOGPROBS, SessionConfig, TurnDetection
from tiny_models import TOKENIZER

NAMES = """
type session audio input format rate transcription model language keywords delay turn_detection threshold prompt
silence_duration_ms idle_timeout_ms eagerness event_id input_audio_format input_audio_transcription noise_reduction
include
"""
KEYS = st.sampled_from(NAMES.split())
VALUES = st.sampled_from(
    [
        *(None, True, 0, 1, -1, 500, 10**30, 0.5, 24_000, float("inf"), "", "x", "\ud800", "AAAA", "?"),
        *("transcription", "tiny.en", "en", "server_vad", "semantic_vad", "audio/pcm", "audio/pcmu", "high"),
        *("session.update", "transcription_session.update", "input_audio_buffer.append", "harken.interim"),
        *("input_audio_buffer.commit", "input_audio_buffer.clear", "pcm16", "g711_ulaw"),
    ]
)
JSON = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3)
)
INPUT = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("format", "transcription", "turn_detection", "noise_reduction"), JSON)
)
SESSIONS = st.one_of(JSON, INPUT, INPUT.map(lambda given: {"audio": {"input": given}}))
UPDATES = st.sampled_from(["session.update", "transcription_session.update"])
BUFFER = ({"type": "append", "audio": pcm(0.02)}, {"type": "commit"}, {"type": "clear"})
CLIENT_EVENTS = st.one_of(
    st.fixed_dictionaries({"type": UPDATES, "session": SESSIONS}),
    st.fixed_dictionaries({"type": VALUES}, optional={"audio": JSON, "event_id": JSON}),
    st.sampled_from([event | {"type": f"input_audio_buffer.{event['type']}"} for event in BUFFER]),
)
MESSAGES = st.one_of(
    CLIENT_EVENTS.map(json.dumps), JSON.map(json.dumps), st.text(max_size=9), st.binary(max_size=9)
)


@settings(max_examples=100)
@given(messages=st.lists(MESSAGES, max_size=6))
def test_whatever_a_client_sends_is_answered_with_valid_events(messages):
    script = Script(strict=False)
    script.open()
    for message in messages:
        script.send_text(message)


# What may happen in a session, as one letter each: words are committed or become final, utterances begin and end.
HAPPENINGS = st.text("wwwffsekcxau", max_size=25)
WORDS = (" one", " two", ",", " drei", "四", " café", " ")


@settings(max_examples=100)
@given(happenings=HAPPENINGS, detects=st.booleans(), words=st.lists(st.sampled_from(WORDS), min_size=1))
def test_items_are_announced_and_completed_once_in_every_order_of_events(happenings, detects, words):
    turns = TurnDetection(idle_timeout_ms=1000) if detects else None
    script = Script(SessionConfig(turn_detection=turns, include=(LOGPROBS, INTERIM)))
    events = script.append(0.5)
    for i, happening in enumerate(happenings):
        word = words[i % len(words)]
        # As at the flush; here at once, of its own words.
        whole = [] if detects else [transcribed(word, *words[:2])]
        session = {"audio": {"input": {"transcription": {"delay": "high" if i % 2 else "low"}}}}
        events += {
            "w": lambda word=word: script.say(interim(word, tentative=" so")),
            "f": lambda word=word, whole=whole: script.say(final(word, *words[:2]), *whole),
            "s": lambda i=i: script.say(speech_started(i / 10)),
            "e": lambda i=i: script.say(speech_ended(i / 10)),
            "k": lambda i=i: script.say(speech_ended(i / 10, "limit")),
            "c": lambda: script.send("input_audio_buffer.commit"),
            "x": lambda: script.send("input_audio_buffer.clear"),
            "a": lambda: script.append(0.3),
            "u": lambda session=session: script.send("session.update", session=session),
        }[happening]()
        if script.flushes and i % 3 == 0:
            events += script.answer_flush()
    while script.flushes:
        events += script.answer_flush()
    check_turns(events, revised="w" in happenings)


def check_turns(events, *, revised):
    deltas = defaultdict(str)
    committed, previous = [], None
    for event in filter(lambda event: isinstance(event, dict), events):
        if event["type"].endswith(".delta"):
            assert event["delta"]
            deltas[event["item_id"]] += event["delta"]
        if event["type"] == "input_audio_buffer.committed":
            assert event["previous_item_id"] == previous
            assert event["item_id"] not in committed
            previous = event["item_id"]
            committed.append(previous)
        if event["type"].endswith(".completed"):
            assert event["item_id"] in committed
            assert revised or event["transcript"] == deltas[event["item_id"]].rstrip()
            assert event["transcript"] == event["transcript"].strip()


@settings(max_examples=6, phases=(Phase.explicit, Phase.generate))
@given(
    lengths=st.lists(st.sampled_from([1, 3, 9]), min_size=1, max_size=3),
    pause_s=st.sampled_from([0.2, 0.6, 1.2]),
    silence_duration_ms=st.sampled_from([350, 500]),
)
def test_a_turn_has_the_text_of_a_file_with_its_samples(lengths, pause_s, silence_duration_ms):
    speech = silence(0.3)
    for i, n_words in enumerate(lengths):
        speech = speech + speak_random_words(n_words, seed=i) + silence(pause_s)
    turns = TurnDetection(silence_duration_ms=silence_duration_ms)
    script = Script(SessionConfig(turn_detection=turns, language="en"))
    opened, _ = script.append(0.1)
    recognizer = Recognizer(ToneBackend(unstable=True), TOKENIZER, "tones", speech_detector=LoudIsSpeech)
    options = replace(opened.options, **LETTER_OPTIONS)
    session = recognizer.stream(options, stream_options=opened.stream_options, clock=None)
    said = script.say(*session.feed(speech.samples), *session.close())
    starts, ends, texts = (
        [event[name] for event in said if name in event]
        for name in ("audio_start_ms", "audio_end_ms", "transcript")
    )
    assert texts
    for start_ms, end_ms, text in zip(starts, ends, texts, strict=True):
        samples = speech.samples[16 * start_ms : 16 * end_ms]
        assert text == recognizer.transcribe(samples, **LETTER_OPTIONS).text
