"""Events of Realtime clients: what is understood, in both dialects, and what each error says."""

import pytest
from realtime_script import MANUAL, Script, brief, pcm

from harken.serve.live.audio import AudioFormat

APPEND, TOO_LONG = "input_audio_buffer.append", "A" * ((15 << 20) + 4)


def config_after(*sessions, beta=False):
    """Return the effective configuration after some updates."""
    script = Script(beta=beta)
    for session in sessions:
        kind = "transcription_session.update" if beta else "session.update"
        (updated,) = script.send(kind, session=session)
        assert updated["type"] == f"{kind}d"
    return updated["session"]


def audio_input(**fields):
    return {"type": "transcription", "audio": {"input": fields}}


def opened_with(session):
    script = Script()
    script.send("session.update", session=session)
    (opened, _) = script.append(0.1)
    return opened


def error_of(outputs):
    (event,) = outputs
    assert event["type"] == "error"
    return event["error"]


SERVER_VAD = {"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500}


def test_the_first_event_is_the_whole_configuration():
    (created,) = Script(expires_at=1_800_000_000).open()
    transcription = {"model": "whisper-1", "language": None, "prompt": None}
    common = {"id": "sess_1", "object": "realtime.transcription_session", "include": None}
    audio = {
        "format": {"type": "audio/pcm", "rate": 24000},
        "noise_reduction": None,
        "transcription": transcription | {"languages": [], "keywords": [], "delay": "low"},
        "turn_detection": SERVER_VAD,
    }
    assert created["type"] == "session.created"
    assert created["session"] == common | audio_input(**audio) | {"expires_at": 1_800_000_000}
    (created,) = Script(beta=True).open()
    assert created["type"] == "transcription_session.created"
    assert created["session"] == common | {
        "input_audio_format": "pcm16",
        "input_audio_transcription": transcription,
        "input_audio_noise_reduction": None,
        "turn_detection": SERVER_VAD,
        "expires_at": None,
    }


def test_an_update_is_answered_with_what_is_in_effect():
    semantic, idle = {"type": "semantic_vad", "eagerness": "low"}, {"threshold": 0.9, "idle_timeout_ms": 6000}
    for field, given, shown in (
        ("format", {"type": "audio/pcmu"}, {"type": "audio/pcmu"}),
        ("noise_reduction", {"type": "near_field", "strength": 1}, None),
        ("turn_detection", None, None),
        ("turn_detection", semantic | {"create_response": False}, semantic),
        ("turn_detection", idle | {"interrupt_response": True}, SERVER_VAD | idle),
    ):
        assert config_after(audio_input(**{field: given}))["audio"]["input"][field] == shown


def test_only_what_an_update_names_changes():
    given = {"model": "base", "language": "de", "keywords": ["Harken"]}
    first = audio_input(transcription=given)
    shown = config_after(first, audio_input(transcription={"prompt": "Hallo.", "language": None}))
    expected = given | {"language": None, "prompt": "Hallo.", "languages": [], "delay": "low"}
    assert shown["audio"]["input"]["transcription"] == expected
    assert config_after(first, audio_input(transcription=None)) == config_after({})
    kinds = ({"silence_duration_ms": 700}, {"type": "semantic_vad"}, {"type": "server_vad"})
    of_another_kind = config_after(*(audio_input(turn_detection=kind) for kind in kinds))
    assert of_another_kind == config_after({})


def test_the_beta_dialect_names_formats_in_its_own_way():
    vad = {"type": "server_vad", "silence_duration_ms": 700}
    for format in ("pcm16", "g711_ulaw", "g711_alaw"):
        given = {
            "input_audio_format": format,
            "input_audio_transcription": {"model": "gpt-4o-transcribe", "language": "en", "prompt": "Names."},
            "turn_detection": SERVER_VAD | vad,
            "include": ["item.input_audio_transcription.logprobs"],
        }
        shown = config_after(given | {"input_audio_noise_reduction": {"type": "near_field"}}, beta=True)
        assert given.items() <= shown.items()
        assert shown["input_audio_noise_reduction"] is None


def test_audio_has_the_format_and_pcm_any_rate():
    beta = {"input_audio_params": {"sample_rate_hz": 8000, "num_channels": 1}, "input_audio_format": "pcm16"}
    for session, heard in (  # an event of the beta dialect switches to it
        (beta, AudioFormat(rate=8_000)),
        ({"input_audio_format": "g711_ulaw"}, AudioFormat(format="mulaw", rate=8_000)),
        (audio_input(format={"type": "audio/pcmu"}), AudioFormat(format="mulaw", rate=8_000)),
        (audio_input(format={"type": "audio/pcma"}), AudioFormat(format="alaw", rate=8_000)),
        (audio_input(format={"type": "audio/pcm"}), AudioFormat(rate=24_000)),
        (audio_input(format={"type": "audio/pcm", "rate": 16_000}), AudioFormat(rate=16_000)),
    ):
        kind = "session.update" if "audio" in session else "transcription_session.update"
        script = Script(strict=False)
        assert script.send(kind, session=session)[0]["type"] == f"{kind}d"
        assert script.send(APPEND, audio=pcm(1, heard.rate))[-1].format == heard


def test_models_that_end_no_turns_at_openai_end_none_unless_they_are_told_to():
    for model in ("gpt-realtime-whisper", "gpt-live-transcribe"):
        unset = audio_input(transcription={"model": model})
        assert config_after(unset)["audio"]["input"]["turn_detection"] is None
        told = audio_input(turn_detection={"type": "server_vad"})
        assert config_after(unset, told)["audio"]["input"]["turn_detection"] == SERVER_VAD
        changed = audio_input(transcription={"model": "whisper-1"})
        assert config_after(unset, changed)["audio"]["input"]["turn_detection"] == SERVER_VAD


def test_options_of_the_protocol_reach_the_engine():
    transcription = {"model": "base", "language": "en-US", "prompt": "Names.", "keywords": ["Harken"]}
    turns = {"threshold": 0.7, "prefix_padding_ms": 200, "silence_duration_ms": 600}
    opened = opened_with(audio_input(transcription=transcription | {"delay": "xhigh"}, turn_detection=turns))
    assert opened.model == "base"
    options, stream_options = opened.options, opened.stream_options
    assert (options.language, options.initial_prompt, options.hotwords) == ("en", "Names.", ("Harken",))
    assert (options.vad_threshold, options.vad_speech_pad_s) == (0.7, 0.2)
    assert (stream_options.delay, stream_options.pause_s, stream_options.sentence_pause_s) == ("high", 0.6, 0.6)
    assert stream_options.finals == "turns"


def test_eagerness_is_the_longest_wait():
    for eagerness, longest_s in (("low", 8), ("medium", 4), ("high", 2), ("auto", 4)):
        opened = opened_with(audio_input(turn_detection={"type": "semantic_vad", "eagerness": eagerness}))
        assert opened.stream_options.pause_s == longest_s
        assert opened.stream_options.sentence_pause_s < 2


@pytest.mark.parametrize(
    ("place", "value", "code"),
    [
        ("audio.input.transcription.modle", "base", "unknown_parameter"),
        ("audio.output", {}, "unknown_parameter"),
        ("voice", "ash", "unknown_parameter"),
        ("type", "realtime", "invalid_value"),
        ("audio.input.format.type", "audio/mp3", "invalid_value"),
        ("audio.input.format.rate", 7999, "invalid_value"),
        ("audio.input.format", "pcm16", "invalid_type"),
        ("audio.input.transcription.model", "big", "model_not_found"),
        ("audio.input.transcription.language", "xx", "invalid_value"),
        ("audio.input.transcription.languages", "en", "invalid_type"),
        ("audio.input.transcription.delay", "none", "invalid_value"),
        ("audio.input.transcription.keywords", ["x" * 101], "invalid_value"),
        ("audio.input.turn_detection.threshold", 2, "invalid_value"),
        ("audio.input.turn_detection.silence_duration_ms", 99, "invalid_value"),
        ("input_audio_format", "mp3", "invalid_value"),
        ("input_audio_transcription.language", "xx", "invalid_value"),
        ("include[0]", "everything", "invalid_value"),
        ("", 7, "invalid_type"),
    ],
)
def test_an_update_that_is_refused_names_the_place_and_changes_nothing(place, value, code):
    script, session = Script(), value
    for key in reversed(place.split(".") if place else []):
        session = {"include": [session]} if key == "include[0]" else {key: session}
    if place.endswith("format.rate"):
        session["audio"]["input"]["format"]["type"] = "audio/pcm"
    error = error_of(script.send("session.update", session=session, event_id="event of mine"))
    assert error["param"] == ".".join(filter(None, ["session", place]))
    assert (error["code"], error["event_id"]) == (code, "event of mine")
    assert error["param"].rsplit(".")[-1].split("[")[0] in error["message"]
    assert config_after({}) == script.send("session.update", session={})[0]["session"]


def test_the_format_cannot_change_once_audio_has_come_nor_the_rate_of_telephones():
    script = Script()
    script.append(0.1)
    for changed in ({"type": "audio/pcmu"}, {"type": "audio/pcm", "rate": 8000}):
        error = error_of(script.send("session.update", session=audio_input(format=changed)))
        assert error["param"] == "session.audio.input.format"
        line = f"='{changed['type']} at 8000 Hz': allowed is audio/pcm at 24000 Hz, as audio has come in it"
        assert error["message"].endswith(line)
    assert script.send("session.update", session=MANUAL)[0]["type"] == "session.updated"
    telephone = audio_input(format={"type": "audio/pcmu", "rate": 16000})
    assert error_of(Script().send("session.update", session=telephone))["param"].endswith("format.rate")


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("[1]", "invalid_json", None),
        ("[" * 100_000, "invalid_json", None),
        ('{"type": NaN}', "invalid_json", None),
        (b"\x00\xff\x00\xff", "invalid_json", None),
        ("{}", "missing_required_parameter", "type"),
        ('{"type": 7}', "invalid_value", "type"),
        ('{"type": "response.create"}', "invalid_value", "type"),
        ('{"type": "session.update"}', "missing_required_parameter", "session"),
        ('{"type": "input_audio_buffer.append"}', "missing_required_parameter", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": 1}', "invalid_type", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "?"}', "invalid_value", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "é"}', "invalid_value", "audio"),
        (f'{{"type": "input_audio_buffer.append", "audio": "{TOO_LONG}"}}', "string_above_max_length", "audio"),
        ('{"type": "input_audio_buffer.clear", "all": true}', "unknown_parameter", "all"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_an_event_that_is_not_understood_is_an_error_and_the_session_goes_on(message, code, param):
    script = Script()
    error = error_of(script.send_text(message))
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert brief(script.append(0.1)) == ["OpenStream", "Audio"]
    assert error_of(script.send_text('{"type": "x", "event_id": [1]}'))["event_id"] is None


def test_the_address_may_name_a_model():
    for asked, model in (("tiny.en", "tiny.en"), ("gpt-realtime", "whisper-1")):  # the latter of a conversation
        (created,) = Script(query={"intent": "transcription", "model": asked}).open()
        assert created["session"]["audio"]["input"]["transcription"]["model"] == model
    for query in ({"model": "big"}, {"intent": "conversation"}):
        created, error = Script(query=query).open()
        assert created["type"] == "session.created"
        assert [error["error"]["param"]] == [*query]
