"""A text that the recording is expected to have is a draft: fewer passes, and never another text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harken.cli.inputs import read_draft
from harken.transcribe.known_text import KnownText
from real_models import EXAMPLE, recognizer


@given(
    sizes=st.lists(st.integers(20, 80), min_size=1, max_size=8),
    wrong=st.integers(0, 7),
    unspoken=st.integers(0, 60),
)
def test_the_place_in_the_text_is_found_behind_every_window(
    sizes: list[int], wrong: int, unspoken: int
) -> None:
    """Also where the last tokens differ, and where the text has more than was spoken."""
    text = list(range(unspoken + sum(sizes) + 20))
    known, start = KnownText(text, 448), unspoken
    for size in sizes:
        spoken = [*text[start : start + size - wrong], *[-1] * wrong]
        known.advance(spoken)
        start += size
        assert known.ahead()[:20] == tuple(text[start : start + 20])


@pytest.mark.real
@pytest.mark.slow
def test_a_known_text_costs_passes_or_saves_them_and_changes_nothing() -> None:
    model = recognizer("int8")
    plain = model.transcribe(EXAMPLE)
    wrong = " ".join(reversed(plain.text.split()))
    by_right, by_wrong = (model.transcribe(EXAMPLE, draft=text) for text in (plain.text, wrong))
    assert by_right.text == by_wrong.text == plain.text
    assert by_right.stats.forwards < plain.stats.forwards / 2


TEXT = "And so my fellow Americans ask not"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("talk.txt", TEXT),
        ("talk.json", json.dumps({"text": TEXT})),
        ("talk.srt", f"1\n00:00:00,000 --> 00:00:02,000\n<i>{TEXT[:16]}</i>\n{TEXT[17:]}\n\n"),
        ("talk.vtt", f"WEBVTT\nNOTE x\n\n00:00.000 --> 00:02.000\n{TEXT}\n"),
    ],
)
def test_drafts_are_read_from_texts_and_subtitles(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert read_draft(str(tmp_path / name)).split() == TEXT.split()
