"""Recordings into pieces: what is joined, what is cut, what is kept out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from harken.errors import ManifestError, OptionError
from harken.evaluation import Entry
from harken.results import Word
from harken.training.options import DataOptions, TrainOptions
from harken.training.recordings import (
    MAX_SPEECH_S,
    SpeechSegment,
    TrainingRecording,
    choose_held_out,
    read_entries,
)
from harken.training.windows import MAX_PAUSE_S, SpeechSpan, TrainingWindow, make_windows
from training_data import write_wave

OPTIONS = DataOptions(shuffles=1, unpacked_fraction=0.0)


def recording(
    name: str, *spans: tuple[float, float], group: str = "g", held_out: bool = False
) -> TrainingRecording:
    return TrainingRecording(
        path=Path(name),
        group=group,
        language="en",
        held_out=held_out,
        segments=tuple(SpeechSegment(start_s=a, end_s=b) for a, b in spans),
        duration_s=spans[-1][1] if spans else 40.0,
    )


SHORT = [recording(f"{i}.wav", (0.0, 4.0 + i % 3)) for i in range(30)]


def test_short_recordings_fill_windows_and_none_is_lost() -> None:
    pieces = [*make_windows(SHORT, OPTIONS)]
    assert Counter(part.path for piece in pieces for part in piece.spans) == Counter(str(r.path) for r in SHORT)
    assert all(piece.duration_s <= MAX_SPEECH_S for piece in pieces)
    longest_add_s = 6.0 + MAX_PAUSE_S
    assert all(piece.duration_s > MAX_SPEECH_S - longest_add_s for piece in pieces[:-1])


def test_stretches_of_one_recording_keep_their_order_and_get_no_pause() -> None:
    pieces = [*make_windows([recording("a.wav", (0, 20), (21, 40), (41, 45), (45, 50))], OPTIONS)]
    spans = [(part.start_s, part.end_s, part.pause_s) for piece in pieces for part in piece.spans]
    assert spans == [(0, 20, 0), (21, 40, 0), (41, 45, 0), (45, 50, 0)]
    assert [len(piece.spans) for piece in pieces] == [1, 3]


def test_groups_and_what_is_held_out_are_not_mixed() -> None:
    others = [replace(r, group="h", path=Path(f"h{r.path}")) for r in SHORT[:9]]
    measured = [replace(r, held_out=True, path=Path(f"m{r.path}")) for r in SHORT[:9]]
    for piece in make_windows([*SHORT, *others, *measured], OPTIONS):
        assert {part.path[0] in "hm" and part.path[0] for part in piece.spans} == {
            "m" if piece.held_out else piece.group == "h" and "h"
        }


def test_each_draw_joins_anew_and_equal_options_draw_alike() -> None:
    measured = [replace(r, held_out=True) for r in SHORT[:5]]
    options = DataOptions(shuffles=3, unpacked_fraction=0.3)
    pieces = [*make_windows([*SHORT, *measured], options)]
    assert [piece.key for piece in pieces] == [
        piece.key for piece in make_windows([*SHORT, *measured], options)
    ]
    assert len({piece.key for piece in pieces}) == len(pieces)
    heard = Counter(part.path for piece in pieces for part in piece.spans if not piece.held_out)
    assert set(heard.values()) == {3}
    kept = Counter(part.path for piece in pieces for part in piece.spans if piece.held_out)
    assert set(kept.values()) == {1}
    assert all(piece.speed == 1 for piece in pieces if piece.held_out)
    assert any(piece.speed != 1 for piece in pieces)
    assert all(piece.duration_s <= MAX_SPEECH_S + 0.02 for piece in pieces)


def test_a_share_stays_alone() -> None:
    pieces = [*make_windows(SHORT, DataOptions(shuffles=1, unpacked_fraction=1.0))]
    assert [len(piece.spans) for piece in pieces] == [1] * len(SHORT)


@pytest.mark.parametrize(("share", "least", "most"), [(0.0, 0, 0), (0.2, 25, 55), (1.0, 200, 200)])
def test_silence_is_sub_sampled(share: float, least: int, most: int) -> None:
    silent = [recording(f"{i}.wav") for i in range(200)]
    pieces = [*make_windows(silent, DataOptions(shuffles=1, no_speech_fraction=share))]
    assert least <= len(pieces) <= most
    assert all(piece.no_speech and piece.duration_s == MAX_SPEECH_S for piece in pieces)


def test_samples_and_spans_agree(tmp_path: Path) -> None:
    write_wave(tmp_path / "a.wav", np.full(16_000, 1000))
    write_wave(tmp_path / "b.wav", np.full(16_000, 2000))
    parts = (
        SpeechSpan(path=str(tmp_path / "a.wav"), start_s=0.25, end_s=0.75, text="one"),
        SpeechSpan(path=str(tmp_path / "b.wav"), start_s=0.0, end_s=1.0, pause_s=0.5, text="two"),
    )
    piece = TrainingWindow(spans=parts, group="g", language="en", held_out_fraction=False)
    samples = piece.samples()
    assert len(samples) == 32_000
    assert [*piece.span_times_s()] == [(0.0, 0.5, "one"), (1.0, 2.0, "two")]
    for (start_s, end_s, _), level in zip(piece.span_times_s(), (1000, 2000), strict=True):
        np.testing.assert_allclose(samples[int(start_s * 16_000) : int(end_s * 16_000)], level / 32768)
    assert not samples[8_000:16_000].any()
    faster = replace(piece, speed=1.25)
    assert len(faster.samples()) == pytest.approx(16_000 * faster.duration_s, abs=1)
    assert [*faster.span_times_s()][1][:2] == (0.8, 1.6)


def test_a_piece_survives_its_line() -> None:
    piece = next(make_windows(SHORT, OPTIONS))
    assert TrainingWindow.from_json(piece.json_line) == piece


def entries(speakers: dict[str, int], group: str = "g") -> list[Entry]:
    names = [(f"{group}/{who}{i}.wav", who) for who, n in speakers.items() for i in range(n)]
    return [Entry(name=name, path=Path(name), text="", speaker=who or None) for name, who in names]


def test_speakers_are_held_out_as_a_whole_where_there_are_enough() -> None:
    given = entries({f"s{i}": 3 for i in range(20)})
    chosen = choose_held_out(given, 0.1)
    assert len(chosen) == 6
    apart = {entry.speaker for entry in given if entry.name in chosen}
    assert apart.isdisjoint(entry.speaker for entry in given if entry.name not in chosen)


def test_of_one_speaker_single_recordings_are_held_out_in_every_group() -> None:
    given = [*entries({"x": 20}), *entries({"": 10}, "h")]
    chosen = choose_held_out(given, 0.1)
    assert sorted(name[0] for name in chosen) == ["g", "g", "h"]


def test_a_folder_needs_no_manifest(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("b.wav", "deep/a.WAV", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    found = read_entries([tmp_path], print)
    assert [entry.name.partition("/")[2] for entry in found] == ["b.wav", "deep/a.WAV"]
    assert {entry.text for entry in found} == {""}


def test_a_folder_without_sound_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"holds neither manifest\.jsonl nor sound"):
        read_entries([tmp_path], print)


def test_long_texts_are_cut_at_pauses() -> None:
    pytest.importorskip("torch", reason="fine-tuning takes PyTorch")
    from harken.training.finetune import SPEECH_PAD_S, split_at_pauses

    starts = np.cumsum([1.0 if i % 7 else 2.5 for i in range(60)])
    words = [Word(start_s=s, end_s=s + 0.8, text=f" w{i}", probability=1.0) for i, s in enumerate(starts)]
    pieces = [*split_at_pauses(words, 200.0)]
    assert " ".join(piece.text or "" for piece in pieces) == " ".join(f"w{i}" for i in range(60))
    assert all(piece.end_s - piece.start_s <= MAX_SPEECH_S for piece in pieces)
    assert all(b.start_s - a.end_s == pytest.approx(1.7 - 2 * SPEECH_PAD_S) for a, b in pairwise(pieces))


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        *((DataOptions, "held_out_fraction", 1.5), (DataOptions, "shuffles", 0), (DataOptions, "seed", -1)),
        *((TrainOptions, "learning_rate", 0.0), (TrainOptions, "epochs", 0), (TrainOptions, "dropout", 1.0)),
    ],
)
def test_options_say_what_is_allowed(kind: type, field: str, value: float) -> None:
    with pytest.raises(OptionError, match=f"{field}=.*allowed is"):
        kind(**{field: value})
