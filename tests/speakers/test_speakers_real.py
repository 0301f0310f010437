"""Who said what, with the published models and real speech."""

import json

import numpy as np
import pytest

import harken
from harken.audio import load_audio
from harken.streaming import FinalSegment, SpeakersChanged
from real_models import CACHE, EXAMPLE, SHARED, model_path, recognizer

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def diarizer():
    pytest.importorskip("scipy", reason="the extra speakers is not installed")
    return harken.load_diarizer(model_path("speakers"), cache=CACHE / "graphs")


def utterances(name):
    """Return texts and samples of a set by speaker."""
    folder = SHARED / "audio" / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    by_speaker = {}
    for line in (folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        by_speaker.setdefault(entry["speaker"], []).append((entry["text"], load_audio(folder / entry["audio"])))
    return by_speaker


@pytest.fixture(scope="module")
def talk():
    """Return who of two people speaks, what they say and their samples; half a second between utterances."""
    first, _, third = list(utterances("librispeech-test-other").values())[:3]
    said = [first[3], third[3], first[4], third[1]]
    pause = np.zeros(8000, np.float32)
    samples = np.concatenate([piece for _, utterance in said for piece in (utterance, pause)])
    return ["A", "B"] * 2, [text for text, _ in said], samples


def test_one_voice_is_one_speaker_at_two_volumes_too_and_silence_and_noise_are_none(diarizer):
    speech = load_audio(EXAMPLE)
    for samples in (speech, np.concatenate([speech, speech / 10])):
        assert [speaker.name for speaker in diarizer.diarize(samples).speakers] == ["A"]
    noise = np.random.default_rng(0).normal(0, 0.02, 20 * 16_000).astype(np.float32)
    assert diarizer.diarize(np.zeros(20 * 16_000, np.float32)).speakers == ()
    assert diarizer.diarize(noise).speakers == ()


def test_every_utterance_is_said_by_its_speaker_in_the_words_without_diarization(diarizer, talk):
    names, texts, samples = talk
    transcription = recognizer("int8").transcribe(samples, diarizer=diarizer)
    steps = []
    while not transcription.finished:
        steps.append(transcription.step())
    assert all(not segments for segments in steps[:-1]), "speakers are known at the end"
    transcript = transcription.so_far()
    assert tuple(steps[-1]) == transcript.segments
    assert [segment.index for segment in transcript.segments] == [*range(len(transcript.segments))]
    assert transcript.speakers is not None
    assert [speaker.name for speaker in transcript.speakers] == ["A", "B"]
    turns = [transcript.segments[0].speakers[0]]
    for segment in transcript.segments:
        assert {word.speakers[0] for word in segment.words} == {segment.speakers[0]}
        turns += [segment.speakers[0]] * (segment.speakers[0] != turns[-1])
    assert turns == names
    assert abs(len(transcript.text.split()) - sum(len(text.split()) for text in texts)) < 10

    plain = recognizer("int8").transcribe(samples, word_timestamps=True).result()
    said, words = (
        [(word.text, word.start_s) for segment in each.segments for word in segment.words]
        for each in (transcript, plain)
    )
    assert said == words


def test_a_recording_that_breaks_off_keeps_its_speakers(diarizer, tmp_path):
    path = tmp_path / "cut.flac"
    path.write_bytes(EXAMPLE.read_bytes()[: EXAMPLE.stat().st_size * 2 // 3])
    transcription = recognizer("int8").transcribe(path, diarizer=diarizer)
    segments = []
    with pytest.raises(harken.HarkenError):
        segments.extend(transcription)
    assert [segment.speakers for segment in segments] == [("A",)] * len(segments) != []


def test_live_session_says_who_speaks_and_corrects_it_within_the_delay(diarizer, talk):
    names, _, samples = talk
    sessions = recognizer("int8").stream_many(
        2, clock=None, finals="streamed", diarizer=diarizer, speaker_delay=5.0
    )
    for name in ("talk", "silence"):
        sessions.open(name)
    told = sessions.feed({"silence": np.zeros(1600, np.float32), "talk": samples})
    assert told["silence"] == sessions.close("silence") == []
    segments = {}
    for event in [*told["talk"], *sessions.close("talk")]:
        if isinstance(event, SpeakersChanged):
            before = segments[event.segment.index].words
            changed = [word for word, old in zip(event.segment.words, before, strict=True) if word != old]
            assert changed
            assert all(event.emitted_samples / 16_000 < word.end_s + 5.1 for word in changed)
        if isinstance(event, FinalSegment | SpeakersChanged):
            segments[event.segment.index] = event.segment
    assert [*segments] == [*range(len(segments))]
    words = [word.speakers[0] for segment in segments.values() for word in segment.words]
    turns = [name for name, before in zip(words, ["", *words], strict=False) if name != before]
    assert turns == names
