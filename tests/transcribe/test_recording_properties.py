"""Properties of every transcription, shown on a tiny random model."""

from itertools import count

import numpy as np
import pytest
from hypothesis import Phase, assume, example, given, settings
from hypothesis import strategies as st

from audio_files import AUDIO_FORMATS
from comparable import comparable
from fakes.backends import WINDOW_S
from fakes.speech_detector import LoudIsSpeech, noise_and_silence, split_at
from harken.api import Recognizer
from harken.errors import Cancelled
from harken.transcribe import RecordingTranscriber, Scheduler, TranscribeOptions, WindowDecoder, gap_filling
from harken.types import SAMPLE_RATE
from random_transcriptions import clip_timestamps, options, recordings
from single_recording import SHORT_LENGTH
from tiny_models import DIMS, TOKENIZER

WINDOW_SAMPLES = 2 * DIMS.n_audio_ctx * 160
NOISE = np.random.default_rng(0).standard_normal(3 * WINDOW_SAMPLES, np.float32)
any_options = st.tuples(options, clip_timestamps).map(lambda drawn: drawn[0] | {"clip_timestamps": drawn[1]})
EVERYTHING = {
    "vad_min_silence_s": 0.3, "vad_speech_pad_s": 0.05, "word_timestamps": True, "temperatures": (0.0,)
}  # fmt: skip
CONDITIONED = {"vad": False, "condition_on_previous_text": True}


@pytest.fixture(scope="module", autouse=True)
def small_gaps():
    """Take a fifth of a second without words for a gap: a window of the tiny model is half a second long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gap_filling, "MIN_SPEECH_FRAMES", 20)
        patch.setattr(gap_filling, "WORD_REACH_FRAMES", 5)
        patch.setattr(gap_filling, "NEIGHBOUR_FRAMES", 2)
        yield


@pytest.fixture(scope="module")
def recognizer(open_backend):
    return Recognizer(open_backend("native-int8"), TOKENIZER, "tiny", speech_detector=LoudIsSpeech)


@settings(max_examples=25)
@given(samples=recordings(), options=any_options)
@example(samples=np.zeros(3 * WINDOW_SAMPLES, np.float32), options={})
@example(samples=np.zeros(160, np.float32), options={})
@example(samples=np.full(1, 0.5, np.float32), options={})
def test_segments_follow_one_another_inside_the_recording(recognizer, samples, options):
    """Where the windows are: the text of a gap in one may have any times, of a random model."""
    options = options | {"vad": False, "word_timestamps": False}
    told = []
    transcript = recognizer.transcribe(
        samples, **options, on_progress=lambda done_s, finished: told.append((done_s, finished))
    ).result()
    times = [time for segment in transcript.segments for time in (segment.start_s, segment.end_s)]
    assert times == sorted(times)
    assert all(0 <= time <= transcript.duration_s for time in times)
    assert transcript.duration_s <= len(samples) / SAMPLE_RATE
    assert [segment.index for segment in transcript.segments] == list(range(len(transcript.segments)))
    clips = TranscribeOptions(**options).clips
    for segment in transcript.segments:
        seek, segment_end = (round(100 * time_s, 6) for time_s in (segment.seek_s, segment.end_s))
        ends = [np.inf if end is None else end for start, end in clips if start <= seek]
        assert segment.seek_s <= segment.start_s
        assert segment_end <= max(ends)
        assert segment.text.strip()
        assert [attempt.reason is None for attempt in segment.attempts][-1]

    done = [done_s for done_s, _ in told]
    assert done == sorted(done)
    assert [finished for _, finished in told] == [False] * (len(told) - 1) + [True]
    assert done[-1] == transcript.duration_s


@settings(max_examples=6)
@given(
    many=st.lists(recordings(), min_size=2, max_size=3),
    options=any_options,
    batch_size=st.integers(2, 6),
    points=st.lists(st.floats(0, 1), max_size=6),
)
@example(
    many=[noise_and_silence(0, 0.4, 0.2, 2.0, 1.3, 0.2), noise_and_silence(0.4)],
    options=EVERYTHING,
    batch_size=3,
    points=[i / 40 for i in range(40)],
)
def test_transcripts_depend_neither_on_the_batch_nor_on_the_blocks_of_samples(
    recognizer, many, options, batch_size, points
):
    def transcribe(recordings, batch_size, order=1):
        fields = {"speech_detector": LoudIsSpeech, "encoded_length": SHORT_LENGTH}
        decoder = WindowDecoder(recognizer.backend, TOKENIZER, TranscribeOptions(**options), **fields)
        forms = [RecordingTranscriber(decoder, iter(blocks)) for blocks in recordings]
        scheduler = Scheduler(decoder, forms, batch_size)
        segments = [list(scheduler.segments(form)) for form in forms[::order]][::order]
        for segment in (segment for found in segments for segment in found):
            times = [time_s for word in segment.words for time_s in (word.start_s, word.end_s)]
            assert times == sorted(times)
            if times:
                assert "".join(word.text for word in segment.words) == segment.text
                assert (segment.start_s, segment.end_s) == (times[0], times[-1])
        return [
            (
                comparable(found),
                comparable(dropped.segment for dropped in form.dropped),
                [(speech.start_s, speech.end_s) for speech in form.unwritten],
                (form.language, form.language_probability),
            )
            for form, found in zip(forms, segments, strict=True)
        ]

    alone = [result for samples in many for result in transcribe([[samples]], 1)]
    blocks = [split_at(samples, [round(p * len(samples)) for p in points]) for samples in many]
    assert transcribe(blocks, batch_size) == transcribe(blocks, batch_size, -1) == alone


@settings(max_examples=8, phases=(Phase.explicit, Phase.generate))
@given(samples=recordings(), options=any_options, share=st.floats(0, 1))
@example(samples=noise_and_silence(0, 0.4, 0.2, 2.0, 1.3, 0.2), options=EVERYTHING, share=0.7)
@example(samples=noise_and_silence(3), options=EVERYTHING | CONDITIONED, share=0.4)
def test_a_transcription_cut_short_anywhere_goes_on_to_the_same_transcript(
    recognizer, samples, options, share, tmp_path_factory
):
    """And decodes nothing that is in its journal, not even the gaps of its windows."""
    folder = tmp_path_factory.mktemp("talk")
    audio = AUDIO_FORMATS["wav s16"].write(folder / "talk", samples=samples.astype(float))
    journal = folder / "talk.resume.jsonl"

    def transcribe():
        (work,) = recognizer.transcribe_many([audio], TranscribeOptions(**options), journals={0: journal})
        return work.result(), work.stats.windows

    whole, windows = transcribe()
    assume(windows)
    lines = journal.read_bytes().splitlines(keepends=True)
    kept = round(share * (len(lines) - 1))
    journal.write_bytes(b"".join([*lines[: 1 + kept], b'{"chain": 0, "off']))
    again, windows_again = transcribe()
    assert again == whole
    assert windows_again < windows or kept == 0
    assert transcribe() == (whole, 0)


def test_gaps_of_these_recordings_are_decoded_again_and_some_stay(recognizer):
    samples = noise_and_silence(*(WINDOW_S * length for length in (0.9, 0.8, 2.4, 0.2)))
    given = {"language": "en", "logprob_threshold": None, "hallucination_threshold": None}
    given |= {"vad_min_silence_s": 0.3, "vad_speech_pad_s": 0.05, "beam_size": 1}
    filled = recognizer.transcribe(samples, **given)
    plain = recognizer.transcribe(samples, **given, fill_gaps=False)
    assert len(filled.result().segments) > len(plain.result().segments)
    assert filled.stats.windows > plain.stats.windows
    assert filled.result().unwritten


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"temperatures": (0.9,), "best_of": 3}])
def test_cancelling_takes_one_decoder_step(recognizer, options):
    options = {"language": "en", "vad": False, **options}
    whole = recognizer.transcribe(NOISE, **options)
    whole.result()
    for most in (1, 7, whole.stats.sampled_tokens - 1):
        seen = count(1)
        stops = (False for _ in range(most))
        work = recognizer.transcribe(
            NOISE,
            on_token=lambda step, seen=seen: next(seen),
            is_cancelled=lambda stops=stops: next(stops, True),
            **options,
        )
        with pytest.raises(Cancelled):
            work.result()
        assert next(seen) == most + 1
        segments = work.so_far().segments
        assert segments == whole.so_far().segments[: len(segments)]
