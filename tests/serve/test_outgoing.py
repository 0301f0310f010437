"""The messages that are kept for a lost connection."""

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from leaping import leaping

from fakes.live_sessions import final_segment, interim_text, speech_ended, speech_started
from harken.results import Word
from harken.serve.live.outgoing import MAX_REPLAY_BYTES, ReplayLog


async def next_of(messages):
    message = json.loads(await anext(messages))
    return message


async def all_of(log, seq):
    log.close()
    return [json.loads(text) async for text in log.after(seq)]


@leaping
async def test_of_interims_only_the_last_is_sent_again_with_the_words_since():
    log = ReplayLog()
    log.add(speech_started(0.1))
    for text in (" And", " so", " my"):
        word = Word(start_s=0.0, end_s=0.1, text=text, probability=1.0)
        log.add(replace(interim_text(0.1, text), words=(word,)))
    (again,) = await all_of(log, 2)
    assert again["seq"] == 4
    assert [word["word"] for word in again["words"]] == [" so", " my"]


@pytest.mark.parametrize(("sent", "expected"), [(False, [1, 2, 3]), (True, [2, 3])])
@leaping
async def test_an_interim_comes_before_the_final_segment_unless_it_was_sent(sent, expected):
    log = ReplayLog()
    log.add(interim_text(0.2, " And so"))
    if sent:
        assert (await next_of(log.after(0)))["seq"] == 1
    log.add(final_segment(0.3, " And so."))
    log.add(speech_ended(0.3))
    assert [message["seq"] for message in await all_of(log, 0)] == expected


@leaping
async def test_what_was_not_sent_is_never_given_up_and_what_was_sent_makes_room():
    log = ReplayLog(max_bytes=1500)
    for number in range(4):
        log.add(final_segment(number, " word" * 40))
    waiting = asyncio.create_task(log.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    messages = log.after(0)
    for seq in (1, 2, 3):
        assert (await next_of(messages))["seq"] == seq
    await asyncio.sleep(0)
    await waiting
    assert 0 < log.forgotten <= 3
    assert [message["seq"] for message in await all_of(log, log.forgotten)] == [*range(log.forgotten + 1, 5)]


@leaping
async def test_an_hour_of_segments_with_the_times_of_all_words_would_be_kept():
    log = ReplayLog(max_bytes=MAX_REPLAY_BYTES // 30)
    words = tuple(Word(start_s=1.25, end_s=1.5, text=" something", probability=0.987) for _ in range(12))
    for second in range(0, 3600 // 30, 4):
        event = final_segment(second, " something" * 12)
        log.add(replace(event, segment=replace(event.segment, words=words, tokens=(50257,) * 20)))
    await log.room()
    assert log.forgotten == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["interim", "final", "ended", "read", "read", "lose", "acknowledge"]), max_size=40)
)
@leaping
async def test_a_client_that_comes_back_gets_every_committed_message_once(steps):
    log = ReplayLog(max_bytes=2000)
    added, seen, last = [], [], 0
    connection = log.after(0)
    for step in steps:
        match step:
            case "interim":
                log.add(interim_text(0.1, " And"))
            case "final" | "ended":
                log.add(final_segment(0.1, " And") if step == "final" else speech_ended(0.1))
                added.append(log.last)
            case "read" if log.last > last:
                message = await next_of(connection)
                assert message["seq"] > last
                last = message["seq"]
                if message["event"] != "interim":
                    seen.append(last)
            case "lose":
                connection = log.after(last)
            case "acknowledge":
                log.acknowledge(last)
    seen += [message["seq"] for message in await all_of(log, last) if message["event"] != "interim"]
    assert seen == added
