"""The plan of a batch: what is there stays there, whatever changes, and is never mixed with rows of other options."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from batch_files import RECIPE, recordings_of, write

from audio_files import AUDIO_FORMATS
from harken.batch.inputs import BatchRecording, ByteRange
from harken.batch.plan import cut_shards, differences, estimate_durations, make_plan
from harken.batch.store import PARQUET, PLAN_FILE, ROWS, Store
from harken.errors import PlanError
from harken.formats import Layout
from harken.transcribe import TranscribeOptions


def plan_of(store, recordings, recipe=RECIPE, source="/t", **options):
    return make_plan(recordings, recipe, store, source, **{"shard_s": 10.0, "workers": 1, **options})


def finish(store, shard):
    store.publish(ROWS.of(shard.name), ["{}\n"])


def planned(plan):
    return {shard.name: [each.name for each in shard.recordings] for shard in plan.unfinished}


def unfinished_names(plan):
    return {name for names in planned(plan).values() for name in names}


@pytest.fixture
def store(tmp_path):
    return Store(str(tmp_path / "out"))


def test_every_recording_is_in_one_shard_and_the_names_are_always_the_same(store, tmp_path):
    recordings = recordings_of(*np.random.default_rng(0).uniform(0.1, 30.0, 200))
    plan = plan_of(store, recordings)
    names = [each.name for shard in plan.unfinished for each in shard.recordings]
    assert sorted(names) == sorted(each.name for each in recordings)
    assert planned(plan_of(Store(str(tmp_path / "other")), recordings)) == planned(plan)
    again = plan_of(store, recordings, workers=50, shard_s=5.0)
    assert planned(again) == planned(plan), "it is planned already"
    lengths = [shard.seconds for shard in plan.unfinished]
    assert lengths == sorted(lengths, reverse=True)


def test_a_plan_that_is_only_shown_writes_nothing(store, tmp_path):
    plan_of(store, recordings_of(1, 2), write=False)
    assert not [*tmp_path.iterdir()]


def cut(*seconds, shard_s):
    """Return the lengths of the recordings of each shard for four workers."""
    shards = cut_shards(recordings_of(*seconds), "r", shard_s=shard_s, workers=4)
    return [[each.estimate_s for each in shard.recordings] for shard in shards]


def test_long_recordings_are_alone_shards_are_nearly_full_until_the_last_ones_and_short_ones_are_cut_last():
    first, *others = map(sum, cut(*[7.0] * 300, 500.0, *[7.0] * 300, shard_s=60.0))
    assert (first, {*others[:40]}) == (500.0, {56.0})
    assert others[-1] <= 60 * 0.25
    assert others == sorted(others, reverse=True)
    shards = cut(10.0, 4000.0, 20.0, 600.0, 30.0, 2000.0, 700.0, shard_s=1800.0)
    assert shards == [[4000.0], [2000.0], [600.0], [700.0], [10.0, 20.0, 30.0]]


def test_lines_that_are_added_get_shards_and_those_that_are_removed_are_stale_where_done_and_gone_where_not(
    store,
):
    recordings = recordings_of(4, 4, 4, 4, 4, 4)
    first = plan_of(store, recordings[:4])
    done, *others = first.unfinished
    finish(store, done)
    second = plan_of(store, [*recordings[4:], *recordings[:4]])
    assert [*second.finished] == [done.name]
    assert all(planned(second)[each.name] == planned(first)[each.name] for each in others)
    assert unfinished_names(second) - unfinished_names(first) == {"4.wav", "5.wav"}
    removed = {done.recordings[0].name, others[0].recordings[0].name}
    fewer = plan_of(store, [each for each in recordings if each.name not in removed])
    assert ([*fewer.finished], fewer.n_stale) == ([done.name], 1)
    assert unfinished_names(fewer) == unfinished_names(second) - removed
    again = plan_of(store, recordings)
    assert (unfinished_names(again), again.n_stale) == (unfinished_names(second), 0)


def test_halves_of_a_shard_that_was_split_are_found_again(store):
    (whole,) = plan_of(store, recordings_of(*[1] * 7), shard_s=1000).unfinished
    first, second = whole.halves()
    third, fourth = second.halves()
    for done, unfinished in (([fourth], [first, third]), ([first, third, fourth], [])):
        for shard in done:
            finish(store, shard)
        plan = plan_of(store, recordings_of(*[1] * 7))
        assert {*plan.finished} == {shard.name for shard in done}
        assert {*planned(plan)} == {shard.name for shard in unfinished}


def test_rows_that_are_in_no_shard_of_the_plan_are_removed_as_others_have_them(store):
    recordings = recordings_of(*[1] * 6)
    (whole,) = plan_of(store, recordings, shard_s=1000).unfinished
    half, _ = whole.halves()
    finish(store, half)
    finish(store, whole)  # by a worker that the driver had given up
    store.publish(PARQUET.of(half.name), [b""])
    for write_plan, left in ((False, {whole.name, half.name}), (True, {whole.name})):
        plan = plan_of(store, recordings, write=write_plan)
        assert ([*plan.finished], plan.unfinished) == ([whole.name], ())
        assert store.shards(ROWS) == left
    assert not store.shards(PARQUET)


def test_a_plan_that_is_lost_is_made_again_if_that_gives_the_same_shards_and_else_refused(store):
    recordings = recordings_of(4, 4, 4, 4)
    first = plan_of(store, recordings)
    finish(store, first.unfinished[0])
    store.remove(PLAN_FILE)
    assert [*plan_of(store, recordings).finished] == [first.unfinished[0].name]
    store.remove(PLAN_FILE)
    with pytest.raises(PlanError, match=f"holds rows of 1 shards, and no {PLAN_FILE}"):
        plan_of(store, recordings[2:])


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"recipe": 5}', b'{"recipe": {}}\n{"shard": "x"}', b"\xff\n"]
)
def test_something_else_in_the_place_of_a_plan_is_refused(store, content):
    store.publish(PLAN_FILE, [content])
    with pytest.raises(PlanError, match=f"{PLAN_FILE} is not a plan of 'harken batch'"):
        plan_of(store, recordings_of(1))


ALL_OPTIONS = TranscribeOptions(
    language="German",
    languages=("de", "en"),
    temperatures=(0, 0.1 + 0.2, 1e-3),
    length_penalty=None,
    patience=1 / 3,
    clip_timestamps=(0.1, 7.3),
    suppress_tokens=(-1, 5),
    suppress_regex="[♪\"']",
    hotwords=("Ärzte", "naïve"),
    initial_prompt="a\u2028b",
    hallucination_threshold=None,
    seed=2**40,
    max_initial_timestamp_s=None,
)


@pytest.mark.parametrize("options", [TranscribeOptions(), ALL_OPTIONS])
def test_the_same_options_are_never_refused(store, options):
    recipe = replace(
        RECIPE, options=options, formats=("srt", "vtt"), layout=Layout(max_line_width=42, speakers=True)
    )
    recordings = recordings_of(1, 2)
    plan_of(store, recordings, recipe)
    again = replace(
        recipe,
        options=replace(options, batch_size=8),
        formats=("vtt", "srt", "vtt"),
        load={**recipe.load, "threads": 3, "precision": None, "device": None},
    )
    assert differences(json.loads(json.dumps(recipe.as_json())), again.as_json()) == []
    plan_of(store, recordings, again)
    assert recipe.digest == again.digest


def test_each_option_counts_except_the_batch_size():
    before = json.loads(json.dumps(RECIPE.as_json()))
    assert {field.name for field in fields(TranscribeOptions)} <= before.keys()
    for name in before:
        assert [text.split()[0] for text in differences(before, {**before, name: "other"})] == [name]
    assert replace(RECIPE, options=TranscribeOptions(batch_size=8)).digest == RECIPE.digest


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (replace(RECIPE, options=TranscribeOptions(beam_size=5)), ["beam_size was None, now is 5"]),
        (replace(RECIPE, options=TranscribeOptions(length_penalty=1)), ["length_penalty was None, now is 1.0"]),
        (replace(RECIPE, weights="adapted"), ["weights was 'w', now is 'adapted'"]),
        (replace(RECIPE, load={"precision": "fp32"}), ["precision was 'auto', now is 'fp32'"]),
        (
            replace(RECIPE, load={"attention": "lsh", "lsh_rounds": 3, "lsh_bucket_size": 64}),
            ["attention was None"],
        ),
        (replace(RECIPE, speakers={"num_speakers": 2}), ["speakers was None, now is {'num_speakers': 2}"]),
        (replace(RECIPE, formats=("srt",), parquet=True), ["formats was []", "parquet was False, now is True"]),
    ],
)
def test_other_options_are_refused_by_name_and_never_mixed(store, recipe, said):
    (shard,) = plan_of(store, recordings_of(1)).unfinished
    finish(store, shard)
    before = store.read(PLAN_FILE)
    with pytest.raises(PlanError) as caught:
        plan_of(store, recordings_of(1), recipe)
    text = str(caught.value)
    assert "\n" not in text
    assert all(part in text for part in said)
    unchanged = {"speakers", *(field.name for field in fields(TranscribeOptions))} - {
        part.split()[0] for part in said
    }
    assert not [name for name in unchanged if f"{name} was" in text]
    assert store.read(PLAN_FILE) == before


def test_a_plan_of_other_options_without_rows_is_made_again(store):
    plan_of(store, recordings_of(1))
    other = replace(RECIPE, weights="other")
    (shard,) = plan_of(store, recordings_of(1), other).unfinished
    assert shard.recipe == other.digest


def test_recordings_of_another_input_are_not_taken_for_those_of_the_same_names(store):
    (shard,) = plan_of(store, recordings_of(1)).unfinished
    finish(store, shard)
    more = [*recordings_of(1), *recordings_of(2, 3)[1:]]
    reason = "1 of the recordings of /monday are called like those of /t, whose rows"
    with pytest.raises(PlanError, match=reason):
        plan_of(store, more, source="/monday")
    for moved in (True, False):
        plan = plan_of(store, more, source="/monday", moved=moved)
        assert unfinished_names(plan) == {"1.wav"}


def test_the_length_of_a_whole_recording_does_not_count_for_its_digest():
    for offset_s, keys in ((None, {}), (0.0, {"offset": 0})):
        one, other = (
            BatchRecording(
                location="/a.wav", name="a.wav", keys=keys | {"duration": seconds}, offset_s=offset_s
            )
            for seconds in (1.0, 2.0)
        )
        assert (one.digest == other.digest) is (offset_s is None)


def test_lengths_are_those_of_the_manifest_else_of_headers_else_by_size(tmp_path):
    path = AUDIO_FORMATS["flac"].write(tmp_path / "a", 2.0)
    write(tmp_path / "b.mp3", b"x" * 160_000)
    make = {"name": "a", "keys": {}}
    expected = (
        (path, {}, 2.0),
        (path, {"offset_s": 1.5}, 0.5),
        (path, {"offset_s": 1.5, "duration_s": 0.25}, 0.25),
        (tmp_path / "b.mp3", {}, 10.0),
        (tmp_path / "d.tar", {"bytes": ByteRange(5, 32_000), "size": 32_000}, 2.0),
        (tmp_path / "missing.mp3", {}, 60.0),
        ("a\0b", {}, 60.0),
    )
    recordings = [BatchRecording(location=str(location), **make, **known) for location, known, _ in expected]
    estimate_durations(recordings)
    assert [each.estimate_s for each in recordings] == pytest.approx([seconds for *_, seconds in expected])
