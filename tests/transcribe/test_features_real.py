"""What people rely on, shown on recordings: batches, silence, words, languages, levels, live sessions."""

from itertools import groupby, pairwise

import numpy as np
import pytest

from comparable import comparable
from harken.audio import load_audio, stream_audio
from harken.audio.vad import VadOptions
from harken.streaming import Interim
from harken.transcribe.chunking import SpeechSegmenter
from harken.types import HOP_SAMPLES, SAMPLE_RATE
from real_models import EXAMPLE, EXAMPLE_WORDS, larger_recognizer, recognizer, recordings, words
from session_events import check_committed_text, check_events, final_text, run_session

pytestmark = [pytest.mark.real, pytest.mark.slow]


def nightly(value):
    return pytest.param(value, marks=pytest.mark.nightly)


def joined(paths):
    """Recordings one behind the other, with silence between them."""
    silence = np.zeros(round(0.3 * SAMPLE_RATE), np.float32)
    return np.concatenate([part for path in paths for part in (load_audio(path), silence)])


@pytest.mark.parametrize("precision", [nightly("fp32"), "int8"])
def test_windows_decoded_together_say_what_each_says_alone(precision):
    paths = recordings("librispeech-train-clean")[7:10]
    alone, together = (recognizer(precision).transcribe_many(paths, batch_size=size) for size in (1, 3))
    assert [comparable(work) for work in together] == [comparable(work) for work in alone]


@pytest.mark.parametrize(("factor", "every"), [(1, 2), (0.003, 3)])
def test_nothing_is_said_where_nobody_speaks(factor, every):
    said = {
        path.name: recognizer("int8").transcribe(load_audio(path) * np.float32(factor)).text
        for path in recordings("non-speech")[::every]
    }
    assert {name: text for name, text in said.items() if text} == {}


@pytest.mark.parametrize(
    "name",
    [nightly("long-form/kennedy_moon_21s.mp3"), "long-form/two_cities_44s.wav", "ljspeech/LJ001-0003.wav"],
)
@pytest.mark.parametrize("precision", [nightly("fp32"), "int8"])
def test_no_word_is_longer_than_the_speech_it_covers(name, precision):
    folder, file = name.split("/")
    path = next(path for path in recordings(folder) if path.name == file)
    segmenter = SpeechSegmenter(stream_audio(path), VadOptions(min_speech_s=0.1))
    n_samples = sum(map(len, segmenter.blocks()))
    spoken = segmenter.word_regions(0, n_samples // HOP_SAMPLES)
    found = recognizer(precision).transcribe(path, word_timestamps=True).result()
    timed = [word for segment in found.segments for word in segment.words]
    assert "".join(word.text for word in timed).split() == found.text.split()
    assert all(a.end_s <= b.start_s for a, b in pairwise(timed))
    for word in timed:
        within = [start - 0.1 <= 100 * word.start_s <= 100 * word.end_s <= end + 0.1 for start, end in spoken]
        assert any(within), f"{word} is outside of all speech"


@pytest.mark.parametrize("folder", [nightly("long-form"), "noisy", nightly("telephone")])
def test_voice_activity_detection_and_guard_lose_no_words(folder):
    jiwer = pytest.importorskip("jiwer")
    model = recognizer("int8")
    spoken = missing = 0
    for path in recordings(folder)[:3]:
        plain = words(model.transcribe(path, vad=False, hallucination_threshold=None).text)
        kept = words(model.transcribe(path).text)
        lost = jiwer.process_words(" ".join(plain), " ".join(kept) or "-")
        for chunk in lost.alignments[0]:
            # Runs of words that are not there: a word that is recognised differently is no loss.
            run = chunk.ref_end_idx - chunk.ref_start_idx if chunk.type == "delete" else 0
            assert run < 4, f"{path.name}: {plain[chunk.ref_start_idx : chunk.ref_end_idx]}"
        spoken, missing = spoken + len(plain), missing + lost.deletions
    assert missing <= 0.02 * spoken


SPOKEN = [("german", "de"), ("librispeech-train-clean", "en"), ("french", "fr")]


@pytest.mark.nightly
def test_a_mixed_recording_keeps_the_language_of_each_part():
    pause = np.zeros(35 * SAMPLE_RATE, np.float32)
    weak = load_audio(next(path for path in recordings("non-speech") if "laugh1" in path.name))
    parts = []
    bounds = []
    laughs_s = []
    for folder, code in SPOKEN:
        part = joined(recordings(folder)[:8])[: 25 * SAMPLE_RATE]
        bounds.append((sum(map(len, parts)) / SAMPLE_RATE, code))
        # A laugh far from everything is a window of its own, and says little of any language.
        laughs_s.append(sum(map(len, [*parts, part, pause])) / SAMPLE_RATE)
        parts += [part, pause, weak, pause]
    model = larger_recognizer("base")
    starts_s = []
    options = {"multilingual": True, "hallucination_threshold": None, "temperatures": (0.0,)}
    options["on_window_start"] = lambda start_s, prompt: starts_s.append(start_s)
    found = model.transcribe(np.concatenate(parts), **options).result()
    for laugh_s in laughs_s:
        assert any(laugh_s - 1 < start_s < laugh_s + len(weak) / SAMPLE_RATE for start_s in starts_s)
    for segment in found.segments:
        middle_s = (segment.start_s + segment.end_s) / 2
        assert segment.language == [code for start_s, code in bounds if start_s <= middle_s][-1], segment
    assert [code for code, _ in groupby(segment.language for segment in found.segments)] == ["de", "en", "fr"]


def test_no_segment_reaches_over_the_silence_before_or_behind_it():
    speech, silence = load_audio(EXAMPLE), np.zeros(20 * SAMPLE_RATE, np.float32)
    found = recognizer("int8").transcribe(np.concatenate([speech, silence, speech])).result()
    assert words(found.text) == EXAMPLE_WORDS * 2
    assert all(segment.end_s < 12 or segment.start_s > 30 for segment in found.segments)


# --- other levels, offline and live -------------------------------------------------------------------------


def in_16_bits(factor):
    """Return the example times a factor, in the steps of 16 bits, of which there are 24 at a thousandth."""
    return np.rint(load_audio(EXAMPLE) * factor * 32768).astype(np.float32) / np.float32(32768)


@pytest.mark.parametrize("factor", [nightly(0.01), 0.001])
def test_quiet_speech_is_transcribed_as_a_recording_and_live(factor):
    samples = in_16_bits(factor)
    assert words(recognizer("int8").transcribe(samples).text) == EXAMPLE_WORDS
    utterances = check_events(listen(samples, "exact"), len(samples))
    assert sum(utterance.ended - utterance.began for utterance in utterances) > 10
    # Of few steps, "my" is understood as "am I" in an utterance of its own, in float32 as well.
    known = 17 if factor < 0.01 else len(EXAMPLE_WORDS)
    found = words(" ".join(utterance.text for utterance in utterances))
    assert found[-known:] == EXAMPLE_WORDS[-known:]
    assert factor < 0.01 or len(found) == known


def test_samples_of_variance_one_or_with_a_wild_one_have_the_same_words():
    """Preprocessors of other models make them; log-mel moves with the level, so punctuation may differ."""
    samples = load_audio(EXAMPLE)
    standardised = (samples - samples.mean()) / samples.std()
    with_wild_sample = samples.copy()
    with_wild_sample[5 * SAMPLE_RATE] = 1e20
    for changed in (standardised, with_wild_sample):
        assert words(recognizer("int8").transcribe(changed).text) == EXAMPLE_WORDS


# --- live ---------------------------------------------------------------------------------------------------


def listen(samples, finals, precision="int8"):
    session = recognizer(precision).stream(clock=None, finals=finals)
    return run_session(session, samples, range(SAMPLE_RATE // 10, len(samples), SAMPLE_RATE // 10))


@pytest.mark.parametrize("precision", ["int8", nightly("fp32")])
def test_exact_finals_equal_offline_transcription_and_words_are_shown_while_they_are_spoken(precision):
    """Almost all words of the recording appear before it ends."""
    samples = load_audio(EXAMPLE)
    events = listen(samples, "exact", precision)
    found = check_events(events, len(samples))
    assert found
    for utterance in found:
        offline = recognizer(precision).transcribe(utterance.of(samples)).result().segments
        assert comparable(utterance.segments, utterance.began) == comparable(offline)
    assert words(final_text(events)) == EXAMPLE_WORDS
    shown = [event for event in events if isinstance(event, Interim)]
    early = {word for event in shown for word in words(event.committed + event.tentative)}
    assert len(early & {*EXAMPLE_WORDS}) >= 0.8 * len({*EXAMPLE_WORDS})
    assert shown[0].emitted_samples < len(samples) / 2


@pytest.mark.parametrize("finals", ["exact", "streamed"])
def test_non_speech_gives_no_text(finals):
    for path in recordings("non-speech")[::6]:
        assert final_text(listen(load_audio(path)[: 20 * SAMPLE_RATE], finals)) == "", path.name


@pytest.mark.nightly
def test_speech_without_pauses_is_split_and_keeps_most_words():
    """45 s of utterances without their soft chunks."""
    paths = recordings("librispeech-test-other")[:10]
    samples = np.concatenate([load_audio(path) for path in paths])[: 45 * SAMPLE_RATE]
    chunks = samples[: len(samples) // 512 * 512].reshape(-1, 512)
    samples = chunks[np.abs(chunks).max(axis=1) > 0.02].ravel()
    offline = words(recognizer("int8").transcribe(samples).text)
    for finals in ("exact", "streamed"):
        emitted = listen(samples, finals)
        found = check_events(emitted, len(samples))
        if finals == "streamed":
            check_committed_text(found)
        streamed = words(final_text(emitted))
        assert len({*streamed} & {*offline}) >= 0.7 * len({*offline})
        assert 0.8 * len(offline) <= len(streamed) <= 1.2 * len(offline)
