"""Turns of a Realtime session: what the stream says and the client commits, as events about items."""

from dataclasses import replace

import pytest
from realtime_script import Script, brief, final, interim, transcribed, without_audio

from fakes.live_sessions import speech_ended, speech_started
from harken.errors import HarkenError
from harken.serve.live.realtime_config import INTERIM, LOGPROBS, SEGMENTS, SessionConfig, TurnDetection
from harken.serve.live.translator import CloseStream, HangUp
from harken.serve.work.engine import Failed
from harken.serve.work.jobs import OpenStream
from harken.streaming import LoadChanged

TRANSCRIPTION = "conversation.item.input_audio_transcription"
COMMIT, CLEAR = "input_audio_buffer.commit", "input_audio_buffer.clear"
EMPTY = "input_audio_buffer_commit_empty"
UTTERANCE = (
    speech_started(0.2),
    interim(" Ask", tentative=" not"),
    interim(" not"),
    final(" Ask", " not", " what."),
    speech_ended(2.5),
)


def detecting(config=None, **options):
    """Return a session that detects turns, with three seconds of audio."""
    script = Script(config, **options)
    script.append(3)
    return script


def manual():
    """Return one in which only commits end turns."""
    return detecting(SessionConfig(turn_detection=None))


@pytest.fixture(params=[detecting, manual])
def script(request):
    return request.param()


def ended(id, text):
    """Return how an item ends."""
    return [f"completed {id} {text}", f"done {id} {text}"]


def announced(id):
    """Return how a turn becomes an item."""
    return [f"committed {id}", f"added {id}"]


def test_an_utterance_is_a_turn_with_server_vad():
    def item(transcript):
        fields = {"id": "item_1", "object": "realtime.item", "type": "message", "role": "user"}
        content = [{"type": "input_audio", "transcript": transcript}]
        return {"previous_item_id": None, "item": fields | {"status": "completed", "content": content}}

    about = {"item_id": "item_1", "content_index": 0}
    usage = {"type": "duration", "seconds": 2.3}
    said = {"transcript": "Ask not what.", "usage": usage, "languages": [{"code": "en"}]}
    assert detecting().say(*UTTERANCE) == [
        {"type": "input_audio_buffer.speech_started", "item_id": "item_1", "audio_start_ms": 200},
        *({"type": f"{TRANSCRIPTION}.delta", "delta": text} | about for text in ("Ask", " not", " what.")),
        {"type": "input_audio_buffer.speech_stopped", "item_id": "item_1", "audio_end_ms": 2500},
        {"type": "input_audio_buffer.committed", "item_id": "item_1", "previous_item_id": None},
        {"type": "conversation.item.added"} | item(None),
        {"type": f"{TRANSCRIPTION}.completed"} | about | said,
        {"type": "conversation.item.done"} | item("Ask not what."),
    ]


def test_the_beta_dialect_has_one_event_for_an_item():
    events = detecting(beta=True).say(*UTTERANCE)
    assert brief(events)[-3:] == ["committed item_1", "created item_1", "completed item_1 Ask not what."]
    assert "languages" not in events[-1]


def test_an_utterance_that_the_stream_splits_is_one_turn():
    words = interim(" one", " two", " three")
    events = detecting().say(
        *(speech_started(0.0), words, final(" one", " two"), speech_ended(29.0, "limit")),
        *(speech_started(29.0), interim(" four"), final(" three", " four", " five"), speech_ended(31.0)),
    )
    assert brief(events) == [
        "speech_started item_1 0",
        *("delta item_1 one two three", "delta item_1  four", "delta item_1  five"),
        *("speech_stopped item_1 31000", *announced("item_1"), *ended("item_1", "one two three four five")),
    ]


def test_the_transcript_is_that_of_the_finals_which_repeat_no_delta_and_may_revise_them():
    events = detecting().say(
        *(speech_started(0.0), interim(" New", "  York"), final(" New York", " is"), speech_ended(1.0)),
        *(speech_started(0.0), interim(" one", " two"), final(" one"), speech_ended(1.0)),
        *(speech_started(1.5), interim(" tree"), final(" three", " four"), final(" five"), speech_ended(2.0)),
        *(speech_started(2.5), final(" six"), speech_ended(3.0)),
    )
    texts = [line for line in brief(events) if line.startswith(("done", "delta"))]
    assert texts == [
        *("delta item_1 New  York", "delta item_1  is", "done item_1 New York is"),
        *("delta item_2 one two", "done item_2 one", "delta item_3 tree", "done item_3 three four five"),
        *("delta item_4 six", "done item_4 six"),
    ]


def test_a_commit_ends_the_turn_without_turn_detection_which_is_then_transcribed_as_a_whole():
    script = manual()
    deltas = [f"delta item_1 {text}" for text in ("Ask", " not", " what.", " you", " can.")]
    assert brief(script.say(*UTTERANCE)) == deltas[:3]
    assert brief(script.send(COMMIT)) == [*announced("item_1"), "Flush"]
    late = (speech_started(2.6), interim(" you"), final(" you", " can."), speech_ended(3.0, "flush"))
    assert brief(script.say(*late)) == deltas[3:]
    assert script.say(transcribed(" Ask", " not"), transcribed(" what", " you.")) == []
    events = script.answer_flush()
    assert brief(events) == ended("item_1", "Ask not what you.")
    assert events[0]["usage"]["seconds"] == 3.0


def test_what_is_said_behind_a_commit_belongs_to_the_next_item_and_silence_has_an_empty_transcript():
    script = manual()
    for _ in range(3):
        script.send(COMMIT)
        script.append(1)
    events = []
    for words in ((" one",), (" two",), ()):
        events += script.say(*map(final, words), *map(transcribed, words)) + script.answer_flush()
    assert brief(events) == [
        *("delta item_1 one", *ended("item_1", "one"), "delta item_2 two", *ended("item_2", "two")),
        *ended("item_3", ""),
    ]
    assert events[-1]["previous_item_id"] == "item_2"


def test_a_commit_of_less_than_a_tenth_of_a_second_is_refused(script):
    script.send(COMMIT)
    script.append(0.09)
    (refused,) = script.send(COMMIT, event_id="mine")
    assert (refused["error"]["code"], refused["error"]["event_id"]) == (EMPTY, "mine")
    script.append(0.02)
    assert "Flush" in brief(script.send(COMMIT))
    for _ in range(30):  # sums of floats are a little off
        script.append(0.1)
        assert "Flush" in brief(script.send(COMMIT))


def test_audio_of_turns_that_were_detected_is_not_committed_again():
    script = Script()
    script.append(2.55)
    script.say(*UTTERANCE)
    assert script.send(COMMIT)[0]["error"]["code"] == EMPTY


def test_a_commit_ends_a_detected_turn_early():
    script = detecting()
    script.say(*UTTERANCE[:3])
    events = script.send(COMMIT)
    events += script.say(final(" Ask", " not"), speech_ended(3.0, "flush")) + script.answer_flush()
    assert brief(events) == [*announced("item_1"), "Flush", *ended("item_1", "Ask not")]
    assert brief(script.say(*UTTERANCE))[0] == "speech_started item_2 200"


def test_a_clear_drops_what_is_not_committed(script):
    script.say(*UTTERANCE[:2])
    assert brief(script.send(CLEAR)) == ["Flush", "cleared"]
    assert script.say(interim(" dropped"), final(" Ask dropped"), speech_ended(3.0, "flush")) == []
    assert script.answer_flush() == []
    assert script.send(COMMIT)[0]["error"]["code"] == EMPTY
    script.append(1)
    assert "delta item_2 kept" in brief(script.say(speech_started(3.0), final(" kept"), speech_ended(3.5)))


def test_a_clear_leaves_what_was_committed_before():
    script = manual()
    script.send(COMMIT)
    script.append(1)
    script.send(CLEAR)
    events = script.say(final(" kept"), transcribed(" kept")) + script.answer_flush()
    events += script.say(final(" dropped"))
    assert brief(events) == ["delta item_1 kept", *ended("item_1", "kept")]


SILENCE = SessionConfig(turn_detection=TurnDetection(idle_timeout_ms=5000))


def test_silence_for_as_long_as_allowed_is_reported_in_its_place():
    script = Script(SILENCE)
    assert brief(without_audio(script.append(4.9))) == ["OpenStream"]
    assert brief(without_audio(script.append(0.2))) == ["Flush"]
    assert brief(script.answer_flush()) == [
        *("timeout_triggered item_1 0 5100", *announced("item_1"), *ended("item_1", ""))
    ]
    assert without_audio(script.append(4.9)) == []


def test_speech_in_the_last_moment_is_no_silence():
    script = Script(SILENCE)
    script.append(6)
    events = script.say(speech_started(5.5), final(" now"), speech_ended(6.0, "flush")) + script.answer_flush()
    assert brief(events)[:2] == ["speech_started item_1 5500", "delta item_1 now"]
    assert not any(line.startswith("timeout_triggered") for line in brief(events))


def test_tentative_words_segments_and_probabilities_are_sent_to_who_asks_for_them():
    script = detecting(SessionConfig(include=(INTERIM, SEGMENTS, LOGPROBS)))
    words = interim(" Ask", tentative=" not", at_s=1.0)
    events = script.say(speech_started(0.2), words, final(" Ask", " so."), speech_ended(2.0))
    by_type = {event["type"]: event for event in events}
    shown = {"committed": "Ask", "tentative": " not", "audio_end_ms": 1000}
    assert by_type["harken.interim"] == {"type": "harken.interim", "item_id": "item_1"} | shown
    segment = by_type[f"{TRANSCRIPTION}.segment"]
    assert (segment["text"], segment["start"], segment["end"], segment["speaker"]) == ("Ask so.", 0.0, 1.0, "")
    assert [given["word"] for given in segment["words"]] == [" Ask", " so."]
    deltas = [event for event in events if event["type"].endswith("delta")]
    assert [[given["token"] for given in event["logprobs"]] for event in deltas] == [[" Ask"], [" so."]]
    logprobs = by_type[f"{TRANSCRIPTION}.completed"]["logprobs"]
    assert logprobs[0]["bytes"] == [*b" Ask"]
    assert logprobs[0]["logprob"] == pytest.approx(-0.693, abs=0.001)
    *_, later = script.say(speech_started(2.0), final(" one"), interim(" two", at_s=2.5))
    assert later["committed"] == "one two"


def test_segments_of_a_turn_that_is_transcribed_as_a_whole_are_those_of_its_transcript():
    script = Script(SessionConfig(turn_detection=None, include=(SEGMENTS,)))
    script.append(3)
    script.send(COMMIT)
    script.say(final(" won"), transcribed(" one"))
    script.answer_flush()
    script.append(1)
    script.send(COMMIT)
    events = script.say(final(" too"), transcribed(" two"))
    (segment,) = (event for event in events if event["type"].endswith(".segment"))
    assert (segment["item_id"], segment["text"], segment["start"]) == ("item_2", "two", 3.0)


def test_the_model_that_tells_speakers_apart_sends_the_segments_of_its_protocol():
    script = Script(SessionConfig(model="gpt-4o-transcribe-diarize"))
    opened, _ = script.append(1)
    assert opened.speakers
    said = final(" Ask")
    said = replace(said, segment=replace(said.segment, speakers=("B", "A")))
    (segment,) = (event for event in script.say(said) if event["type"].endswith(".segment"))
    about = {"item_id": "item_1", "content_index": 0, "id": "seg_1", "speaker": "B"}
    assert segment == {"type": f"{TRANSCRIPTION}.segment", "text": "Ask", "start": 0.0, "end": 1.0} | about


def test_a_change_of_load_is_not_the_client_s_business():
    change = LoadChanged(audio_s=1.0, emitted_samples=0, compute_s=0.0, level=1, lag_s=1.0, detail="less")
    assert detecting().say(change) == []


def test_other_options_open_another_stream_whose_times_go_on():
    script = manual()
    script.say(interim(" won"), final(" won"), speech_ended(1.0))
    script.send("session.update", session={"audio": {"input": {"turn_detection": {"type": "server_vad"}}}})
    script.closing = (final(" two"), speech_ended(3.0, "close"), transcribed(" one", " two"))
    assert brief(script.append(1)) == ["CloseStream", "delta item_1  two", "OpenStream", "Audio"]
    events = script.say(speech_started(0.5), final(" three"), speech_ended(0.75))
    assert brief(events)[0] == "speech_started item_1 3500"
    assert brief(events)[-1] == "done item_1 one two three"


def test_options_that_do_not_change_keep_the_stream():
    script = detecting()
    script.send("session.update", session={"include": [INTERIM], "audio": {"input": {"transcription": {}}}})
    assert brief(script.append(1)) == ["Audio"]


def test_a_stream_that_fails_is_told_for_every_item_and_ends_the_session():
    script = manual()
    script.send(COMMIT)
    script.append(1)
    script.say(interim(" text"))
    *failed, error, hang_up = script.say(Failed(failure=ValueError("said in private")))
    assert brief(failed) == ["failed item_1"]
    assert "private" not in str(failed) + str(error)
    assert isinstance(hang_up, HangUp)
    assert hang_up.code == 1011


def test_a_stream_that_is_refused_once_is_not_asked_for_until_something_changes():
    script = Script()
    script.refusal = HarkenError("no")
    opened, closed, error = script.send("input_audio_buffer.append", event_id="e", audio="AAAA")
    assert [type(opened), type(closed)] == [OpenStream, CloseStream]
    assert error["error"]["event_id"] == "e"
    script.refusal = None
    assert script.append(1) == []
    script.send("session.update", session={})
    assert brief(script.append(1)) == ["OpenStream", "Audio"]
