"""Tests of the html format: the page contains the json format, and no text becomes markup."""

import json
import os
import random
import re
import sys
from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path

import pytest

import transcripts
from harken.errors import AudioError
from harken.files import write_atomic
from harken.formats import Layout, RecordingLink, from_json, render
from harken.results import Attempt, DroppedSegment
from html_pages import Parsed
from transcripts import segment, spoken

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "<img src=x onerror=alert(1)>",
    "]]> &lt;b&gt; \u2028 \\u003c",
    "$script $data ${title}",
]


def transcript(*texts):
    usual = {"temperature": 0.0, "avg_logprob": -2.0, "compression_ratio": 1.0, "no_speech_prob": 0.5}
    return transcripts.transcript(
        *(spoken((0.0, 1.0, text), language="de", attempts=(Attempt(**usual, reason=text),)) for text in texts),
        model=texts[0],
        dropped=tuple(DroppedSegment(segment=segment(0.0, 1.5, text), reason=text) for text in texts),
    )


def page(transcript, recording=None):
    return Parsed("".join(render(transcript, "html", recording=recording)))


def beside(name):
    return RecordingLink(path=Path(name), transcript_folder=Path())


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_data_and_adds_no_elements(text):
    given = transcript(text, "and on")
    harmless, hostile = page(transcript("hello")), page(given, beside("talk.mp3"))
    assert len(hostile.named("script")) == len(harmless.named("script")) == 2
    assert hostile.texts["script"][1] == harmless.texts["script"][1]
    assert hostile.texts["style"] == harmless.texts["style"]
    assert hostile.comments == []
    assert {name for name, _ in hostile.elements} - {"audio"} == {name for name, _ in harmless.elements}
    handlers = [key for _, attributes in hostile.elements for key in attributes if key.startswith("on")]
    assert handlers == []
    data = json.loads(hostile.texts["script"][0])
    assert data == json.loads("".join(render(given, "json")))
    assert from_json(data) == given


NAMES = [
    (beside('"><script>alert(1)&.mp3'), "%22%3E%3Cscript%3Ealert%281%29%26.mp3", '"><script>alert(1)&.mp3'),
    (
        RecordingLink(path=Path("talks/12:30 50 % off#1.mp3"), transcript_folder=Path("out/html")),
        "../../talks/12%3A30%2050%20%25%20off%231.mp3",
        "12:30 50 % off#1.mp3",
    ),
    pytest.param(
        *(beside(os.fsdecode(b"bad\xff \xc3\xa4.wav")), "bad%FF%20%C3%A4.wav", "bad\\udcff ä.wav"),
        marks=pytest.mark.skipif(sys.platform == "win32", reason="names on Windows are not bytes"),
    ),
]


@pytest.mark.parametrize(("recording", "source", "title"), NAMES, ids=["hostile", "elsewhere", "no UTF-8"])
def test_file_name_is_escaped_in_the_title_and_in_a_link_that_is_relative(recording, source, title):
    content = "".join(render(transcript("hello"), "html", recording=recording))
    parsed = Parsed(content.encode().decode())
    assert len(parsed.named("script")) == 2
    assert parsed.texts["title"] == [title]
    assert parsed.named("audio")[0]["src"] == source


def test_security_policy_allows_only_the_script_of_the_page():
    parsed = page(transcript("hello"))
    policy = next(meta["content"] for meta in parsed.named("meta") if "http-equiv" in meta)
    assert policy is not None
    rules = dict(rule.split(maxsplit=1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for rule, content in (("script-src", parsed.texts["script"][1]), ("style-src", parsed.texts["style"][0])):
        digest = b64encode(sha256(content.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"


def test_page_links_only_to_the_recording():
    content = "".join(render(transcript("hello"), "html", recording=beside("talk.mp3")))
    assert re.findall(r'(?:src|href)="([^"]*)"', content) == ["talk.mp3"]
    assert not [word for word in ("http:", "https:", "innerHTML") if word in content]


def embedded(recording):
    link = RecordingLink(path=recording, transcript_folder=recording.parent)
    return render(transcript("hello"), "html", Layout(embed_audio=True), link)


@pytest.mark.parametrize(
    ("name", "size"),
    [("talk.mp3", 256), ("talk.of-no-kind", 0), *(("talk.mp3", 2_000_000 + extra) for extra in range(4))],
)
def test_recording_is_embedded_in_pieces(tmp_path, name, size):
    content = random.Random(0).randbytes(size)
    (tmp_path / name).write_bytes(content)
    chunks = [*embedded(tmp_path / name)]
    assert max(map(len, chunks)) < 1_100_000
    source = Parsed("".join(chunks)).named("audio")[0]["src"]
    assert source is not None
    head, _, data = source.partition(",")
    assert head == "data:audio/mpeg;base64"
    assert b64decode(data, validate=True) == content


@pytest.mark.parametrize("change", [lambda file: file.truncate(10), lambda file: file.write(b"more")])
def test_recording_that_changes_while_it_is_embedded_leaves_no_page(tmp_path, change):
    talk, target = tmp_path / "talk.wav", tmp_path / "talk.html"
    talk.write_bytes(bytes(2_000_000))

    def chunks():
        for number, chunk in enumerate(embedded(talk)):
            if number == 3:
                with talk.open("r+b") as file:
                    file.seek(0, os.SEEK_END)
                    change(file)
            yield chunk

    with pytest.raises(AudioError, match=r"talk\.wav: changed while it was put into the page"):
        write_atomic(target, chunks())
    assert [*tmp_path.iterdir()] == [talk]
    talk.unlink()
    with pytest.raises(AudioError, match=r"talk\.wav: cannot be read: No such file"):
        write_atomic(target, chunks())


def test_controls_have_accessible_names():
    parsed = page(transcript("hello"))
    (search,) = (field for field in parsed.named("input") if field["type"] == "search")
    assert search["aria-label"]
    assert len(parsed.texts["label"]) == len(parsed.named("input")) - 1
    assert parsed.named("html") == [{"lang": "en"}]


def test_every_element_that_the_script_uses_exists():
    parsed = page(transcript("hello"), beside("talk.mp3"))
    existing = {attributes["id"] for _, attributes in parsed.elements if "id" in attributes}
    used = set(re.findall(r'\$\("([\w-]+)"\)', parsed.texts["script"][1]))
    assert used - {"search"} <= existing
    assert len(used) > 8
