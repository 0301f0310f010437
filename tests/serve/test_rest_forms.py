"""Forms as other clients send them, and as nobody should."""

import json
from gzip import compress

from hypothesis import given, settings
from hypothesis import strategies as st
from served_audio import FORM_TYPE, file_form, form_body, wav
from tone_server import FIELDS, PATH, check_refused, post, speak

from harken.errors import HarkenError
from harken.formats import Layout
from harken.serve.rest.files import OPENAI
from harken.serve.rest.forms import MAX_FIELD_BYTES, Form
from harken.serve.rest.transcription_form import parse_transcription_form
from harken.transcribe import TranscribeOptions

WAVE = wav(speak(3).samples)


def parse(*fields, task="transcribe"):
    return parse_transcription_form(Form([("model", "tones"), *fields]), task)


def post_body(http, body, content_type=FORM_TYPE):
    return http.post(PATH, content=body, headers={"content-type": content_type})


def test_without_fields_the_options_are_the_defaults():
    asked = parse()
    assert asked.options == TranscribeOptions()
    assert (asked.response_format, asked.stream, asked.words, asked.segments) == ("json", False, False, True)
    assert parse(task="translate").options == TranscribeOptions(task="translate")


def test_all_spellings_of_lists_are_read():
    lists = {"languages": ("de", "fr"), "keywords": ("Ada Lovelace", "Babbage")}
    lists |= {"timestamp_granularities": ("word",), "include": ("logprobs",)}
    repeated = [(name, value) for name, values in lists.items() for value in values]
    for fields in (
        repeated,
        [(f"{name}[]", value) for name, value in repeated],
        [(f"{name}[{n}]", value) for name, values in lists.items() for n, value in enumerate(values)],
        [(name, json.dumps(values)) for name, values in lists.items()],
    ):
        asked = parse(*fields)
        assert (asked.options.languages, asked.options.hotwords) == (lists["languages"], lists["keywords"])
        assert asked.options.word_timestamps
        assert (asked.words, asked.segments, asked.logprobs, asked.events) == (True, False, True, False)


def test_a_language_is_any_tag_and_none_is_detected():
    told = TranscribeOptions(language="pt", languages=("en", "he", "zh-Hant"))
    for language, languages, expected in (
        ("pt_BR", ("en-GB", "iw", "zh-TW"), told),
        ("auto", ("de", "und"), TranscribeOptions()),
    ):
        asked = parse(("language", language), *(("languages[]", each) for each in languages))
        assert asked.options == expected


def test_a_style_replacements_and_channels_are_options_and_a_style_wants_words():
    asked = parse(("subtitle_style", "bbc"), ("max_cue_s", "5"), ("replace[]", "a = b"), ("channels", "apart"))
    assert asked.layout == Layout(subtitle_style="bbc", max_cue_s=5.0)
    assert asked.options == TranscribeOptions(replace=("a = b",), channels="apart", word_timestamps=True)


def test_a_temperature_is_the_first_of_the_schedule():
    schedule = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    for first in (0.0, 0.4, 0.5, 1.0):
        expected = (first, *(higher for higher in schedule if higher > first))
        assert parse(("temperature", f"{first:g}")).options.temperatures == expected


def test_a_chunking_strategy_sets_voice_activity_detection_and_padding_is_at_most_half_of_the_silence():
    """The defaults of OpenAI, 300 ms of padding and 200 ms of silence, are accepted."""
    assert parse(("chunking_strategy", "auto")).options == TranscribeOptions()
    for silence_ms, expected in ((900, (0.7, 0.9, 0.3)), (200, (0.7, 0.2, 0.1))):
        given = {"type": "server_vad", "threshold": 0.7, "prefix_padding_ms": 300}
        given |= {"silence_duration_ms": silence_ms}
        for fields in (
            [("chunking_strategy", json.dumps(given))],
            [(f"chunking_strategy[{key}]", str(value)) for key, value in given.items()],
        ):
            options = parse(*fields).options
            heard = (options.vad_threshold, options.vad_min_silence_s, options.vad_speech_pad_s)
            assert heard == expected


def test_a_value_that_is_not_allowed_is_named(http):
    strategy = "chunking_strategy"
    for field, value, param in (
        ("response_format", "xml", "response_format"),
        ("stream", "perhaps", "stream"),
        *(("temperature", value, "temperature") for value in ("warm", "nan", "-1")),
        ("languages[]", "klingon", "languages"),
        ("keywords[]", "x" * 200, "keywords"),
        ("subtitle_style", "cnn", "subtitle_style"),
        ("max_line_count", "1.5", "max_line_count"),
        ("channels", "left", "channels"),
        ("replace", "a", "replace"),
        ("timestamp_granularities[]", "letter", "timestamp_granularities"),
        *((strategy, value, strategy) for value in ("never", "[" * 100_000)),
        (strategy, '{"type": "semantic"}', f"{strategy}[type]"),
        (f"{strategy}[threshold]", "0.5", f"{strategy}[type]"),
        (strategy, '{"type": "server_vad", "threshold": 7}', f"{strategy}[threshold]"),
        (strategy, '{"type": "server_vad", "silence_duration_ms": -5}', f"{strategy}[silence_duration_ms]"),
    ):
        line = check_refused(post(http, WAVE, **{field: value}), 400, "invalid_value", param)
        assert line.startswith(param)
    line = check_refused(post(http, WAVE, max_line_count="0"), 400, "invalid_value", "max_line_count")
    assert line.startswith("max_line_count=0: allowed is an integer from 1")


def test_what_deepgrams_clients_say_of_samples_is_refused_by_its_name(http):
    for query, code, named in (
        ("encoding=zz", "invalid_value", "encoding='zz'"),
        ("encoding=linear16", "missing_required_parameter", "sample_rate is missing"),
        ("encoding=linear16&sample_rate=0", "invalid_value", "sample_rate=0: allowed is a rate in Hz"),
        ("encoding=linear16&sample_rate=16000&channels=0", "invalid_value", "channels=0"),
    ):
        refused = http.post(f"/v1/listen?{query}", content=WAVE[44:])
        assert (refused.status_code, refused.json()["err_code"]) == (400, code)
        assert refused.json()["err_msg"].startswith(named)
    for query in ("encoding=linear16", "encoding=opus&sample_rate=48000"):
        assert http.post(f"/v1/listen?{query}", content=WAVE).status_code == 200, "what the file says counts"
    raw, address = "/v1/listen?encoding=mulaw&sample_rate=8000", {"url": "https://example.org/a.wav"}
    assert http.post(raw, content=b"{}" * 4000).status_code == 200, (
        "samples may look like the beginning of an object"
    )
    assert "fetches no address" in http.post(raw, json=address).json()["err_msg"]


def test_a_missing_file_or_model_is_named(http):
    missing = "missing_required_parameter"
    check_refused(http.post(PATH, files={"file": WAVE}), 400, missing, "model")
    check_refused(http.post(PATH, data=FIELDS, files={"other": WAVE}), 400, missing, "file")
    text_file = form_body(('name="model"', b"tones"), ('name="file"', b"a text"))
    assert "a part with a filename" in check_refused(post_body(http, text_file), 400, missing, "file")


def test_unknown_and_empty_fields_are_ignored(http):
    empty = dict.fromkeys(("prompt", "temperature", "response_format"), "")
    answer = post(http, WAVE, **{"user": "somebody", "file[]": "x"}, **empty)
    assert answer.json()["text"] == "ba ha na"


def test_the_name_of_a_file_means_nothing(http):
    for name in ("../../etc/passwd", "speech.m3u8", "a\\b.mp3", "\u2028.wav", "x" * 3000):
        files = {"file": (name, WAVE, "text/html")}
        assert http.post(PATH, data=FIELDS, files=files).json()["text"] == "ba ha na"
        broken = http.post(PATH, data=FIELDS, files={"file": (name, b"#EXTM3U\nhttp://x/")})
        assert check_refused(broken, 400, "invalid_audio", "file").startswith("file: ")
    extended = form_body(('name="model"', b"tones"), ("name=file; filename*=UTF-8''%C3%A9.wav", WAVE))
    assert post_body(http, extended).json()["text"] == "ba ha na"


def test_a_body_that_is_no_form_or_compressed_or_in_another_charset_is_refused(http):
    a_form = form_body(('name="model"', b"tones"))
    for body, content_type in (
        (b'{"model": "tones"}', "application/json"),
        (b"model=tones", "application/x-www-form-urlencoded"),
        (b"", ""),
        (form_body(), "multipart/form-data"),
        (b"nothing of the kind", FORM_TYPE),
        (form_body(("file", b"x")), FORM_TYPE),
        *((a_form, f"{FORM_TYPE}; charset={charset}") for charset in ("punycode", "undefined", "utf-16")),
    ):
        check_refused(post_body(http, body, content_type), 400, "invalid_form", None)
    headers = {"content-type": FORM_TYPE, "content-encoding": "gzip"}
    compressed = http.post(PATH, content=compress(file_form(WAVE, **FIELDS)), headers=headers)
    assert "'gzip': allowed is none" in check_refused(compressed, 415, "unsupported_content_encoding", None)


def test_a_form_that_is_cut_short_is_refused_wherever_it_is_cut(http):
    body = file_form(WAVE, model="tones")
    for end in (0, 10, 60, 120, 200, len(body) // 2, len(body) - 30, len(body) - 7):
        check_refused(post_body(http, body[:end]), 400, "invalid_form", None)


def test_forms_with_too_many_or_too_large_parts_are_refused(http):
    fields = [(f'name="f{n}"', b"x") for n in range(1000)]
    files = [(f'name="f{n}"; filename="x"', b"x") for n in range(9)]
    large_field = ('name="prompt"', b"x" * (MAX_FIELD_BYTES + 1))
    long_header = (f'name="x"; j="{"x" * 100_000}"', b"x")
    large = [(f'name="f{n}"', b"x" * MAX_FIELD_BYTES) for n in range(5)]
    for parts in (fields, files, [large_field], large, [long_header]):
        check_refused(post_body(http, form_body(*parts)), 400, "invalid_form", None)


KNOWN_FIELDS = (
    *("model", "language", "languages[]", "prompt", "keywords[]", "temperature", "response_format", "stream"),
    *("timestamp_granularities[]", "include[]", "chunking_strategy", "chunking_strategy[type]", "file"),
    *("chunking_strategy[threshold]", "chunking_strategy[silence_duration_ms]", "known_speaker_names[]"),
    "known_speaker_references[]",
)
USUAL = (
    *("tones", "en", "word", "logprobs", "true", "auto", "server_vad", "srt", "0.5", "1e9", "-1"),
    *("diarized_json", "data:audio/wav;base64,UklGRg==", "data:;base64,"),
)
JSON = st.recursive(
    st.none() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
VALUES = st.sampled_from(USUAL) | st.text(max_size=20) | JSON.map(json.dumps)


@given(fields=st.lists(st.tuples(st.sampled_from(KNOWN_FIELDS) | st.text(max_size=10), VALUES), max_size=8))
@settings(max_examples=60)
def test_any_fields_are_options_or_one_clear_refusal(fields):
    try:
        parse(*fields)
    except HarkenError as error:
        refusal = OPENAI[0].problem(error)
    else:
        return
    assert refusal.status == 400
    assert len(str(refusal).splitlines()) == 1
    json.dumps(refusal.body())


@given(data=st.data())
@settings(max_examples=25)
def test_damaged_forms_never_break_the_server(http, data):
    body = file_form(WAVE[:2000], **FIELDS)
    damaged = bytearray(body)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, 300) | st.integers(len(body) - 60, len(body) - 1))
        damaged[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    answer = post_body(http, bytes(damaged))
    codes = (
        "invalid_form missing_required_parameter invalid_value model_not_found invalid_audio audio_too_short"
    )
    if answer.status_code == 200:
        assert answer.json()["text"] is not None
    else:
        error = answer.json()["error"]
        assert answer.status_code == 400
        assert error["code"] in codes.split()
        assert "\n" not in error["message"]
