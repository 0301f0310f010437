"""Turns of a Realtime session: what the stream says and the client commits, as events about items."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from realtime_script import (
    Script,
    final,
    interim,
    speech_ended,
    speech_started,
    types_of,
    without_audio,
)

from harken.errors import HarkenError
from harken.serve.live.realtime_config import INTERIM, LOGPROBS, SEGMENTS, SessionConfig, TurnDetection
from harken.serve.live.translator import HangUp, OpenStream, StreamClosed
from harken.serve.work.live_job import Failed
from harken.streaming import LoadChanged

TRANSCRIPTION = "conversation.item.input_audio_transcription"
UTTERANCE = (
    speech_started(0.2),
    interim(" Ask", tentative=" not"),
    interim(" not"),
    final(" Ask", " not", " what."),
    speech_ended(2.5),
)


def detecting(**options: Any) -> Script:
    script = Script(**options)
    script.append(3)
    return script


def manual() -> Script:
    script = Script(SessionConfig(turn_detection=None))
    script.append(3)
    return script


def item(id: str, transcript: str | None) -> dict[str, Any]:
    content = [{"type": "input_audio", "transcript": transcript}]
    fields = {"id": id, "object": "realtime.item", "type": "message", "role": "user", "status": "completed"}
    return fields | {"content": content}


def about(kind: str, id: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"{TRANSCRIPTION}.{kind}", "item_id": id, "content_index": 0} | fields


def delta(id: str, text: str) -> dict[str, Any]:
    return about("delta", id, delta=text)


def completed(id: str, text: str, seconds: float, **fields: Any) -> dict[str, Any]:
    usage = {"type": "duration", "seconds": seconds}
    return about("completed", id, transcript=text, usage=usage, **fields)


def joined_deltas(events: list[Any], id: str) -> str:
    return "".join(
        event["delta"] for event in events if event["type"].endswith("delta") and event["item_id"] == id
    )


def test_an_utterance_is_a_turn_with_server_vad() -> None:
    english = {"languages": [{"code": "en"}]}
    assert detecting().say(*UTTERANCE) == [
        {"type": "input_audio_buffer.speech_started", "item_id": "item_1", "audio_start_ms": 200},
        delta("item_1", "Ask"),
        delta("item_1", " not"),
        delta("item_1", " what."),
        {"type": "input_audio_buffer.speech_stopped", "item_id": "item_1", "audio_end_ms": 2500},
        {"type": "input_audio_buffer.committed", "item_id": "item_1", "previous_item_id": None},
        {
            "type": "conversation.item.added",
            "previous_item_id": None,
            "item": item("item_1", None),
        },
        completed("item_1", "Ask not what.", 2.3, **english),
        {
            "type": "conversation.item.done",
            "previous_item_id": None,
            "item": item("item_1", "Ask not what."),
        },
    ]


def test_the_beta_dialect_has_one_event_for_an_item() -> None:
    events = detecting(beta=True).say(*UTTERANCE)
    assert types_of(events)[-3:-1] == ["input_audio_buffer.committed", "conversation.item.created"]
    assert events[-1] == completed("item_1", "Ask not what.", 2.3)


def test_an_utterance_that_the_stream_splits_is_one_turn() -> None:
    script = detecting()
    events = script.say(
        speech_started(0.0),
        interim(" one", " two", " three"),
        final(" one", " two"),
        speech_ended(29.0, "limit"),
        speech_started(29.0),
        interim(" four"),
        final(" three", " four", " five"),
        speech_ended(31.0),
    )
    assert types_of(events).count("input_audio_buffer.speech_started") == 1
    assert joined_deltas(events, "item_1") == "one two three four five"
    assert events[-1]["item"] == item("item_1", "one two three four five")


def test_words_that_the_finals_spell_with_other_spaces_are_not_repeated() -> None:
    events = detecting().say(
        speech_started(0.0), interim(" New", "  York"), final(" New York", " is"), speech_ended(1.0)
    )
    assert events[-1]["item"] == item("item_1", "New  York is")


def test_words_that_a_final_leaves_out_stay_committed() -> None:
    events = detecting().say(
        speech_started(0.0),
        interim(" one", " two"),
        final(" one"),
        speech_ended(1.0),
        speech_started(1.5),
        final(" three"),
        speech_ended(2.0),
    )
    assert joined_deltas(events, "item_1") == "one two"
    assert joined_deltas(events, "item_2") == "three"


def test_a_commit_ends_the_turn_without_turn_detection() -> None:
    script = manual()
    events = script.say(*UTTERANCE)
    assert types_of(events) == [f"{TRANSCRIPTION}.delta"] * 3
    committing = script.send("input_audio_buffer.commit")
    assert types_of(committing) == ["input_audio_buffer.committed", "conversation.item.added", "Flush"]
    events += script.say(
        speech_started(2.6), interim(" you"), final(" you", " can."), speech_ended(3.0, "flush")
    )
    events += script.answer_flush()
    assert joined_deltas(events, "item_1") == "Ask not what. you can."
    assert events[-2:] == [
        completed("item_1", "Ask not what. you can.", 3.0, languages=[{"code": "en"}]),
        {
            "type": "conversation.item.done",
            "previous_item_id": None,
            "item": item("item_1", "Ask not what. you can."),
        },
    ]


def test_what_is_said_behind_a_commit_belongs_to_the_next_item() -> None:
    script = manual()
    script.send("input_audio_buffer.commit")
    script.append(1)
    script.send("input_audio_buffer.commit")
    events = script.say(final(" one")) + script.answer_flush() + script.say(final(" two"))
    events += script.answer_flush()
    assert [event["item"] for event in events if event["type"].endswith("item.done")] == [
        item("item_1", "one"),
        item("item_2", "two"),
    ]
    assert events[-1]["previous_item_id"] == "item_1"


def test_a_commit_of_silence_has_an_empty_transcript() -> None:
    script = manual()
    script.send("input_audio_buffer.commit")
    assert script.answer_flush()[0] == completed("item_1", "", 3.0)


@pytest.mark.parametrize("make", [detecting, manual])
def test_a_commit_of_less_than_a_tenth_of_a_second_is_refused(make: Any) -> None:
    script = make()
    script.send("input_audio_buffer.commit")
    script.append(0.09)
    (error,) = script.send("input_audio_buffer.commit", event_id="mine")
    assert error["error"]["code"] == "input_audio_buffer_commit_empty"
    assert error["error"]["event_id"] == "mine"
    script.append(0.02)
    assert "Flush" in types_of(script.send("input_audio_buffer.commit"))


def test_audio_of_turns_that_were_detected_is_not_committed_again() -> None:
    script = Script()
    script.append(2.55)
    script.say(*UTTERANCE)
    assert script.send("input_audio_buffer.commit")[0]["error"]["code"] == "input_audio_buffer_commit_empty"


def test_a_commit_ends_a_detected_turn_early() -> None:
    script = detecting()
    script.say(*UTTERANCE[:3])
    events = script.send("input_audio_buffer.commit")
    events += script.say(final(" Ask", " not"), speech_ended(3.0, "flush")) + script.answer_flush()
    assert types_of(events) == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        "Flush",
        f"{TRANSCRIPTION}.completed",
        "conversation.item.done",
    ]
    assert types_of(script.say(*UTTERANCE))[0] == "input_audio_buffer.speech_started"


@pytest.mark.parametrize("make", [detecting, manual])
def test_a_clear_drops_what_is_not_committed(make: Any) -> None:
    script = make()
    script.say(*UTTERANCE[:2])
    assert types_of(script.send("input_audio_buffer.clear")) == ["Flush", "input_audio_buffer.cleared"]
    assert script.say(interim(" dropped"), final(" Ask dropped"), speech_ended(3.0, "flush")) == []
    assert script.answer_flush() == []
    (error,) = script.send("input_audio_buffer.commit")
    assert error["error"]["code"] == "input_audio_buffer_commit_empty"
    script.append(1)
    events = script.say(speech_started(3.0), final(" kept"), speech_ended(3.5))
    assert joined_deltas(events, "item_2") == "kept"


def test_a_clear_leaves_what_was_committed_before() -> None:
    script = manual()
    script.send("input_audio_buffer.commit")
    script.append(1)
    script.send("input_audio_buffer.clear")
    events = script.say(final(" kept")) + script.answer_flush() + script.say(final(" dropped"))
    assert joined_deltas(events, "item_1") == "kept"


def test_silence_for_as_long_as_allowed_is_reported_in_its_place() -> None:
    script = Script(SessionConfig(turn_detection=TurnDetection(idle_timeout_ms=5000)))
    assert types_of(without_audio(script.append(4.9))) == ["OpenStream"]
    assert types_of(without_audio(script.append(0.2))) == ["Flush"]
    events = script.answer_flush()
    assert events[0] == {
        "type": "input_audio_buffer.timeout_triggered",
        "item_id": "item_1",
        "audio_start_ms": 0,
        "audio_end_ms": 5100,
    }
    assert types_of(events)[1:] == [
        "input_audio_buffer.committed",
        "conversation.item.added",
        f"{TRANSCRIPTION}.completed",
        "conversation.item.done",
    ]
    assert without_audio(script.append(4.9)) == []


def test_speech_in_the_last_moment_is_no_silence() -> None:
    script = Script(SessionConfig(turn_detection=TurnDetection(idle_timeout_ms=5000)))
    script.append(6)
    events = script.say(speech_started(5.5), final(" now"), speech_ended(6.0, "flush")) + script.answer_flush()
    assert "input_audio_buffer.timeout_triggered" not in types_of(events)
    assert joined_deltas(events, "item_1") == "now"


def test_tentative_words_segments_and_probabilities_are_sent_to_who_asks_for_them() -> None:
    script = Script(SessionConfig(include=(INTERIM, SEGMENTS, LOGPROBS)))
    script.append(3)
    events = script.say(
        speech_started(0.2),
        interim(" Ask", tentative=" not", at_s=1.0),
        final(" Ask", " so."),
        speech_ended(2.0),
    )
    by_type = {event["type"]: event for event in events}
    assert by_type["harken.interim"] == {
        "type": "harken.interim",
        "item_id": "item_1",
        "committed": "Ask",
        "tentative": " not",
        "audio_end_ms": 1000,
    }
    segment = by_type[f"{TRANSCRIPTION}.segment"]
    assert (segment["text"], segment["start"], segment["end"]) == ("Ask so.", 0.0, 1.0)
    assert [given["word"] for given in segment["words"]] == [" Ask", " so."]
    deltas = [event for event in events if event["type"].endswith("delta")]
    assert [[given["token"] for given in event["logprobs"]] for event in deltas] == [[" Ask"], [" so."]]
    logprobs = by_type[f"{TRANSCRIPTION}.completed"]["logprobs"]
    assert logprobs[0]["bytes"] == [*b" Ask"]
    assert logprobs[0]["logprob"] == pytest.approx(-0.693, abs=0.001)


def test_segments_name_their_main_speaker() -> None:
    for speakers, main in (((), ""), (("A", "B"), "A")):
        said = final(" Ask")
        said = replace(said, segment=replace(said.segment, speakers=speakers))
        script = Script(SessionConfig(include=(SEGMENTS,)))
        script.append(3)
        events = script.say(speech_started(0.2), said, speech_ended(2.0))
        assert [event["speaker"] for event in events if event["type"].endswith(".segment")] == [main]


def test_a_change_of_load_is_not_the_client_s_business() -> None:
    change = LoadChanged(audio_s=1.0, emitted_samples=0, compute_s=0.0, level=1, lag_s=1.0, detail="less")
    assert detecting().say(change) == []


def test_other_options_open_another_stream_whose_times_go_on() -> None:
    script = manual()
    script.say(final(" one"), speech_ended(1.0))
    script.send("session.update", session={"audio": {"input": {"turn_detection": {"type": "server_vad"}}}})
    outputs = script.append(1)
    assert types_of(outputs) == ["OpenStream", "Audio"]
    assert script.say(final(" two"), speech_ended(3.0, "close"), StreamClosed())[-1] == delta("item_1", " two")
    events = script.say(speech_started(0.5), final(" three"), speech_ended(0.75))
    assert events[0]["audio_start_ms"] == 3500
    assert events[-1]["item"] == item("item_1", "one two three")


def test_options_that_do_not_change_keep_the_stream() -> None:
    script = detecting()
    script.send("session.update", session={"include": [INTERIM], "audio": {"input": {"transcription": {}}}})
    assert types_of(script.append(1)) == ["Audio"]


def test_a_stream_that_fails_is_told_for_every_item_and_ends_the_session() -> None:
    script = manual()
    script.send("input_audio_buffer.commit")
    script.append(1)
    script.say(interim(" text"))
    *failed, error, hang_up = script.say(Failed(failure=ValueError("said in private")))
    assert [event["item_id"] for event in failed] == ["item_1"]
    assert types_of(failed) == [f"{TRANSCRIPTION}.failed"]
    assert "private" not in str(failed) + str(error)
    assert isinstance(hang_up, HangUp)
    assert hang_up.code == 1011


def test_a_stream_that_is_refused_once_is_not_asked_for_until_something_changes() -> None:
    script = Script()
    outputs = []
    for output in script.session.received('{"type":"input_audio_buffer.append","event_id":"e","audio":"AAAA"}'):
        outputs.append(output)
        if isinstance(output, OpenStream):
            (error,) = script.done(script.session.failed(HarkenError("no")))
            assert error["error"]["event_id"] == "e"
    assert types_of(outputs) == ["OpenStream"]
    assert script.append(1) == []
    script.send("session.update", session={})
    assert types_of(script.append(1)) == ["OpenStream", "Audio"]
