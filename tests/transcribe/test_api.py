"""harken as a program uses it: load, transcribe, iterate."""

import io
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier, Event
from time import sleep
from typing import get_type_hints

import numpy as np
import pytest

import harken
from audio_files import Pipe, wav_bytes
from fakes.backends import WINDOW_POSITIONS, WINDOW_S, TranscriptBackend, window_text
from fakes.speakers import FIRST, level_diarizer
from fakes.speech_detector import LoudIsSpeech
from fakes.tone_backend import LETTER_OPTIONS, ToneBackend, silence, speak_words
from harken.api import Recognizer
from harken.audio import load_audio
from harken.errors import AudioError, AudioNotFound, Cancelled, CheckpointNotFound, HarkenError, OptionError
from harken.formats import render
from harken.keywords import RecordingsKeywords, StreamKeywords
from harken.streaming import StreamOptions
from harken.transcribe import Callbacks
from processes import PATIENCE_S, environment
from real_models import CACHE, EXAMPLE, model_path, recognizer
from tiny_models import DIMS, ENGLISH_TOKENIZER, TOKENIZER

NOISE = np.random.default_rng(2).standard_normal(round(3 * WINDOW_S * 16_000)).astype(np.float32)
VOICE = np.full_like(NOISE, FIRST)
ONE, TWO, THREE = (window_text(0, text, WINDOW_POSITIONS) for text in ("one", "two", "three"))


def use_texts(*lines):
    return Recognizer(TranscriptBackend(*lines), TOKENIZER, "recital")


# A model that use_texts does so over noise, which is not speech.
AS_IT_IS = harken.TranscribeOptions(vad=False)


class TestTranscription:
    def test_is_lazy_and_iterates_again_and_decodes_nothing_twice(self):
        model = use_texts(ONE, TWO, THREE)
        model.transcribe("there-is-no-such-file.mp3")
        work = model.transcribe(NOISE, AS_IT_IS, language="en")
        first, second = iter(work), iter(work)
        assert model.backend.mels == []
        texts = [next(first).text, next(second).text, next(second).text, next(first).text, next(first).text]
        assert texts == ["one", "one", "two", "two", "three"]
        assert list(first) == []
        assert [segment.text for segment in work] == ["one", "two", "three"]
        assert len(model.backend.mels) == 3

    def test_so_far_is_what_has_been_decoded_and_the_result_the_whole(self):
        work = use_texts(ONE, TWO, THREE).transcribe(NOISE, AS_IT_IS, language="fr", task="translate")
        assert (work.so_far().segments, work.stats.windows) == ((), 0)
        next(iter(work))
        assert work.so_far().text == "one"
        assert (work.language, work.stats.windows) == ("fr", 1)
        result = work.result()
        assert result.segments == tuple(work)
        assert result == work.so_far() == work.result()
        assert (result.language, result.task, result.model) == ("fr", "translate", "recital")
        assert result.duration_s == pytest.approx(3 * WINDOW_S)
        assert work.text == result.text == "onetwothree"

    def test_in_progress_is_no_transcript_to_render(self):
        work = use_texts(ONE).transcribe(NOISE, AS_IT_IS)
        with pytest.raises(OptionError, match=r"transcript=.*: allowed is a Transcript, as result\(\) of a"):
            "".join(render(work, "srt"))
        assert work.stats.windows == 0

    def test_options_come_in_one_piece_or_by_name_and_so_do_hooks(self):
        model, options = use_texts(ONE), harken.TranscribeOptions(language="de", task="translate")
        assert model.transcribe(NOISE, options).result().language == "de"
        told = []
        work = model.transcribe(NOISE, options, language="fr", on_progress=lambda *done: told.append(done))
        assert (work.result().language, work.result().task) == ("fr", "translate")
        assert options.language == "de"
        assert told[-1] == (pytest.approx(3 * WINDOW_S), True)

    def test_what_ended_it_is_raised_each_time(self):
        stop = []
        work = use_texts(ONE, TWO).transcribe(NOISE, AS_IT_IS, is_cancelled=lambda: bool(stop), language="en")
        next(iter(work))
        stop.append(True)
        for attempt in (work.result, lambda: list(work), lambda: work.text):
            with pytest.raises(Cancelled):
                attempt()
        assert work.so_far().text == "one"

    def test_threads_that_iterate_at_once_get_the_same_segments(self):
        model, started = use_texts(ONE, TWO, THREE), Barrier(8)
        works = model.transcribe_many(
            [NOISE, NOISE], AS_IT_IS, language="en", on_window_start=lambda start_s, prompt: sleep(0.005)
        )

        def texts(work):
            started.wait()
            return [segment.text for segment in work]

        with ThreadPoolExecutor(8) as pool:
            lists = [pool.submit(texts, work) for work in works * 4]
            while not lists[0].done():  # what is decoded so far may be asked for meanwhile
                assert "onetwothree".startswith(works[0].so_far().text)
        assert [each.result() for each in lists] == [[each.text for each in work] for work in works * 4]
        assert [len(work.result().segments) for work in works] == [3, 3]
        assert len(model.backend.mels) == 6

    @pytest.mark.parametrize("asked", [0, 1])
    def test_a_callback_that_asks_for_segments_is_told_so(self, asked):
        works = []
        works += use_texts(ONE, TWO).transcribe_many(
            [NOISE, NOISE], AS_IT_IS, language="en", on_progress=lambda done_s, finished: list(works[asked])
        )
        with pytest.raises(HarkenError, match="a callback asked for segments"):
            works[0].result()

    def test_the_end_is_told_once_however_often_it_is_asked_for(self):
        ends = []
        work = use_texts(ONE).transcribe(
            NOISE,
            AS_IT_IS,
            language="en",
            on_progress=lambda done_s, finished: ends.extend([done_s] * finished),
        )
        while not work.finished:
            work.step()
        assert work.step() == []
        assert len(work.result().segments) == 3
        assert ends == [work.read_s]

    @pytest.mark.parametrize("channels", ["mixed", "apart"])
    def test_progress_is_told_once_the_segments_up_to_there_are_taken(self, channels):
        told = []
        work = use_texts(ONE, TWO).transcribe(
            NOISE[: round(2 * WINDOW_S * 16_000)],
            AS_IT_IS,
            language="en",
            channels=channels,
            on_progress=lambda done_s, finished: told.append("end" if finished else "progress"),
        )
        for segment in work:
            told.append(segment.text)
        assert [*dict.fromkeys(told)] == ["one", "progress", "two", "end"]

    @pytest.mark.parametrize("decode", [list, lambda work: list(iter(work.step, None))], ids=["all", "steps"])
    @pytest.mark.parametrize("channels", ["mixed", "apart"])
    def test_what_there_is_so_far_is_as_far_as_progress_even_if_its_callback_fails(self, channels, decode):
        def report(done_s, finished):
            segments = work.so_far().segments
            assert segments[-1].end_s == pytest.approx(done_s)
            if len(segments) == 2:
                raise ArithmeticError

        work = use_texts(ONE, TWO, THREE).transcribe(
            NOISE, AS_IT_IS, language="en", channels=channels, on_progress=report
        )
        for _ in range(2):
            with pytest.raises(ArithmeticError):
                decode(work)
        assert work.so_far().text == "onetwo"

    @pytest.mark.parametrize("callback", ["on_progress", "on_window_end"])
    @pytest.mark.parametrize(
        "given",
        [{}, {"channels": "apart"}, {"diarizer": level_diarizer()}],
        ids=["mixed", "apart", "speakers"],
    )
    def test_a_callback_that_fails_does_so_behind_the_segments_before(self, callback, given):
        def fail_at_second(*_):
            calls.append(callback)
            if len(calls) == 2:
                raise HarkenError("enough")

        calls = []
        whole = "onetwo" if callback == "on_progress" else "one"
        work = use_texts(ONE, TWO, THREE).transcribe(
            VOICE, AS_IT_IS, language="en", **given, **{callback: fail_at_second}
        )
        for _ in range(2):
            texts = []
            with pytest.raises(HarkenError, match="enough"):
                texts.extend(segment.text for segment in work)
            assert "".join(texts) == work.so_far().text == whole

    def test_every_kind_of_source_gives_the_same(self):
        def first_mel(source):
            model = use_texts(ONE)
            next(iter(model.transcribe(source, AS_IT_IS, language="en")))
            return model.backend.mels[0].tobytes()

        samples = load_audio(EXAMPLE)
        pcm = (samples * 32768).astype(np.int16)
        sources = (str(EXAMPLE), EXAMPLE, io.BytesIO(EXAMPLE.read_bytes()), samples, pcm)
        assert len({first_mel(source) for source in sources}) == 1


class TestAlign:
    def test_words_are_those_of_the_text(self):
        samples = NOISE[: round(WINDOW_S * 16_000)]
        words = use_texts(ONE).align(samples, "你好", language="zh", vad=False)
        assert [word.text for word in words] == ["你", "好"]
        assert 0 <= words[0].start_s <= words[0].end_s == words[1].start_s <= words[1].end_s <= WINDOW_S
        assert use_texts(ONE).align(samples, " ") == use_texts(ONE).align(NOISE, " ") == ()

    @pytest.mark.parametrize("language", ["en", "zh"])
    def test_words_are_the_same_however_the_lines_of_the_text_are_broken(self, language):
        def align(text):
            return use_texts(ONE).align(NOISE[: round(WINDOW_S * 16_000)], text, language=language, vad=False)

        words = align("one two three")
        assert words == align("\ufeffone two three") == align("\none\r\n\r\n two\n\tthree \n")
        assert all(word.text.strip() for word in words)

    def test_the_language_is_looked_for_where_it_is_not_given(self):
        model = use_texts(ONE)
        model.align(NOISE[: round(WINDOW_S * 16_000)], "eins", languages=("de", "fr"))
        detection, reading = model.backend.prompts
        assert detection == (TOKENIZER.sot,)
        assert {*reading} & {TOKENIZER.language_tokens["de"], TOKENIZER.language_tokens["fr"]}

    def test_a_long_recording_is_aligned_piece_by_piece(self):
        model = use_texts(window_text(0, "一二", 18), window_text(0, "三四", 18), window_text(0, "五六", 18))
        words = model.align(NOISE, "一二三四五六", AS_IT_IS, language="zh", hallucination_threshold=None)
        assert [word.text for word in words] == [*"一二三四五六"]
        assert all(before.end_s <= word.start_s for before, word in pairwise(words))
        assert words[0].start_s < WINDOW_S < words[-1].end_s <= 3 * WINDOW_S

    def test_a_passage_that_is_not_spoken_may_be_longer_than_a_window_has_room_for(self):
        model = use_texts(window_text(0, "一二", 18), window_text(0, "三四", 18), window_text(0, "五六", 18))
        text = "一二" + "七" * 99 + "三四五六"
        words = model.align(NOISE, text, AS_IT_IS, language="zh", hallucination_threshold=None)
        assert "".join(word.text for word in words) == text
        assert all(before.end_s <= word.start_s for before, word in pairwise(words))
        assert min(word.probability for word in words) == 0

    def test_a_text_that_is_not_of_the_recording_or_too_long_is_refused(self):
        with pytest.raises(AudioError, match=r"does not match the text: 0 of \d words"):
            use_texts(ONE).align(NOISE, "seven", AS_IT_IS, language="en")
        with pytest.raises(OptionError, match=r"text='100 tokens': allowed is at most \d+ tokens"):
            use_texts(ONE).align(NOISE[:1600], "x" * 99, language="en")


class TestRefusals:
    @pytest.mark.parametrize(
        ("call", "kind", "name", "meant"),
        [
            (lambda model, given: model.transcribe(NOISE, **given), RecordingsKeywords, "diarise", "diarizer"),
            (lambda model, given: model.stream(clock=None, **given), StreamKeywords, "hotword", "hotwords"),
        ],
    )
    def test_an_unknown_option_lists_what_there_is_beginning_with_what_may_be_meant(
        self, call, kind, name, meant
    ):
        with pytest.raises(OptionError, match=rf"^{name}=5: allowed is one of {meant}, ") as caught:
            call(use_texts(ONE), {name: 5})
        assert caught.value.field == name
        assert all(f" {known}" in caught.value.allowed for known in get_type_hints(kind))
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1000

    @pytest.mark.parametrize(("field", "value"), [("language", "de"), ("task", "translate")])
    def test_an_english_model_knows_neither_other_languages_nor_translation(self, field, value):
        with pytest.raises(OptionError, match="English-only") as caught:
            Recognizer(TranscriptBackend(ONE), ENGLISH_TOKENIZER, "recital.en").transcribe(
                NOISE, **{field: value}
            )
        assert caught.value.field == field

    @pytest.mark.parametrize(
        ("field", "call"),
        [
            ("options", lambda model: model.transcribe(NOISE, {"beam_size": 5})),
            ("options", lambda model: model.transcribe(NOISE, StreamOptions())),
            ("options", lambda model: model.detect_language(NOISE, 5)),
            ("options", lambda model: model.stream(5)),
            ("stream_options", lambda model: model.stream(stream_options=harken.TranscribeOptions())),
            ("clock", lambda model: model.stream(clock=5)),
            ("pause_s", lambda model: model.stream(pause_s="1")),
            ("beam_size", lambda model: model.stream(beam_size=2.5)),
            ("speaker_delay", lambda model: model.stream(speaker_delay=0)),
            ("speaker_delay", lambda model: model.stream(speaker_delay=3.0)),
            ("count", lambda model: model.stream_many(True)),
            ("count", lambda model: model.stream_many(0)),
            ("count", lambda model: model.stream_many(257)),
            ("text", lambda model: model.align(NOISE, None)),
            ("vad", lambda model: model.align(NOISE, "one", vad="no")),
            ("channels", lambda model: model.align(NOISE, "one", channels="apart")),
            ("clip_timestamps", lambda model: model.align(NOISE, "one", clip_timestamps=(0, 1))),
            ("on_token", lambda model: model.transcribe(NOISE, on_token=5)),
            ("on_progress", lambda model: model.transcribe(NOISE, on_progress=None)),
            ("callbacks", lambda model: model.transcribe_many([NOISE], callbacks={0: print})),
            ("callbacks", lambda model: model.transcribe_many([NOISE], callbacks={1: Callbacks()})),
            ("audios", lambda model: model.transcribe_many("talk.mp3")),
            ("audios", lambda model: model.transcribe_many(None)),
            ("audios", lambda model: model.transcribe_many(NOISE)),
            ("audios", lambda model: model.transcribe_many(io.BytesIO(b"RIFF"))),
            ("prefix", lambda model: model.transcribe(NOISE, prefix="x" * 12)),
            ("language", lambda model: model.transcribe(NOISE, language="klingon")),
            ("language", lambda model: model.align(NOISE, "one", language="klingon")),
            ("suppress_tokens", lambda model: model.transcribe(NOISE, suppress_tokens=(DIMS.n_vocab,))),
        ],
    )
    def test_an_argument_that_is_not_allowed_is_refused_before_any_work(self, field, call):
        model = use_texts(ONE)
        with pytest.raises(OptionError) as caught:
            call(model)
        assert caught.value.field == field
        assert model.backend.mels == []

    @pytest.mark.parametrize("audio", [None, 5, 2.5, b"talk.mp3", ["talk.mp3"], object(), io.StringIO("x"), {}])
    def test_audio_of_another_kind_is_no_recording(self, audio):
        model = use_texts(ONE)
        for call in (
            lambda: model.transcribe(audio).result(),
            lambda: model.detect_language(audio),
            lambda: model.align(audio, "one"),
        ):
            with pytest.raises(AudioError, match="allowed is a path"):
                call()

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("model", 5), ("model", None), ("model", b"tiny.en"), ("model", "tiny\0en"), ("assistant", 5),
            ("backend", None), ("backend", 5), ("device", 0), ("precision", 8), ("threads", "2"), ("threads", True),
            ("threads", 2.0), ("cache", 5), ("cache", "a\0b"), ("revision", 5), ("download", "no"), ("download", 1),
        ],
    )  # fmt: skip
    def test_an_argument_of_load_of_another_kind(self, field, value):
        with pytest.raises(OptionError, match=f"^{field}=") as caught:
            harken.load(**{field: value})
        assert caught.value.field == field

    def test_a_value_of_load_that_is_not_allowed(self):
        for options, message in (
            *(({"threads": n}, f"threads={n}: allowed is an integer from 1 to 1024") for n in (0, -1, 5000)),
            ({"backend": "tpu"}, "backend='tpu': allowed is auto or native or onnx or torch or numpy"),
        ):
            with pytest.raises(OptionError, match=message):
                harken.load("tiny.en", **options)
        with pytest.raises(CheckpointNotFound, match="no-such-model"):
            harken.load("no-such-model", download=False)

    def test_what_holds_a_model_says_that_it_does_not_go_to_another_process(self):
        model = Recognizer(ToneBackend(), TOKENIZER, "tones")
        work = (model.transcribe(NOISE), model.transcribe(NOISE, channels="apart"), model.stream(clock=None))
        for held in (model, model.transcribe, *work, model.stream_many(2, clock=None), level_diarizer()):
            with pytest.raises(TypeError, match=r"stays in its process: load the model in each"):
                pickle.dumps(held)

    def test_audio_fails_when_it_is_asked_for(self, tmp_path):
        for audio, kind, message in (
            (tmp_path / "none.mp3", AudioNotFound, r"none\.mp3"),
            (NOISE.reshape(-1, 2), AudioError, "allowed is one channel"),
        ):
            work = use_texts(ONE).transcribe(audio)
            with pytest.raises(kind, match=message):
                work.result()


@pytest.mark.real
class TestTinyEnglish:
    def test_words_of_a_known_text(self):
        tiny, shift_s = recognizer("int8"), 4
        quiet = np.zeros(shift_s * 16_000, np.float32)
        said = "And so, my fellow Americans: ask not what your country can do for you."
        words = tiny.align(np.concatenate([quiet, load_audio(EXAMPLE)[: 8 * 16_000]]), said)
        assert "".join(word.text for word in words).split() == said.split()
        starts_s = {word.text.strip(" ,:."): word.start_s - shift_s for word in words}
        heard_s = {"And": 0.3, "fellow": 1.26, "Americans": 1.68, "not": 3.9, "country": 5.86, "you": 7.2}
        assert {word: starts_s[word] for word in heard_s} == pytest.approx(heard_s, abs=0.1)
        assert all(before.end_s <= word.start_s for before, word in pairwise(words))
        *_, said_word, other = tiny.align(EXAMPLE, "And so my fellow walruses")
        assert other.probability < 0.01 < said_word.probability

    def test_speech_that_the_text_lacks_and_a_passage_that_is_not_spoken_move_no_other_word(self):
        tiny, speech, part_s = recognizer("int8"), load_audio(EXAMPLE), 8
        first, second = speech[: part_s * 16_000], speech[part_s * 16_000 :]
        foreign = np.tile(speech[::-1], 3)  # backwards
        texts = (
            "And so, my fellow Americans, ask not what your country can do for you,",
            "ask what you can do for your country.",
        )
        unspoken = " ".join(f"Chapter {number}." for number in range(250))
        samples = np.concatenate([first, foreign, second])
        words = tiny.align(samples, " ".join([texts[0], unspoken, texts[1]]))
        behind_s = (len(first) + len(foreign)) / 16_000
        expected = [
            (word.text, pytest.approx(word.start_s + shift_s, abs=0.2))
            for text, part, shift_s in zip(texts, (first, second), (0, behind_s), strict=True)
            for word in tiny.align(part, text)
        ]
        n_first, n_second = (len(text.split()) for text in texts)
        assert [(word.text, word.start_s) for word in (*words[:n_first], *words[-n_second:])] == expected

    def test_one_recognizer_serves_several_threads(self):
        tiny, speech = recognizer("int8"), load_audio(EXAMPLE)
        recordings = [speech[second * 16_000 :][: 3 * 16_000] for second in (0, 3, 5, 8)]

        def transcribe(samples):
            return tiny.transcribe(samples, temperatures=(0.0,)).result()

        alone = [transcribe(samples) for samples in recordings]
        assert len({result.text for result in alone}) == 4
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(transcribe, recordings)) == alone


# --- channels -----------------------------------------------------------------------------------------------

ANN = speak_words(0, 1, 2) + silence(7) + speak_words(3, 4)
BOB = silence(4) + speak_words(5, 6) + silence(8) + speak_words(7)
OPTIONS = {**LETTER_OPTIONS, "vad": False, "word_timestamps": True}


def tones():
    return Recognizer(ToneBackend(positions=150), TOKENIZER, "tones")


def stereo(*channels):
    length = max(len(channel.samples) for channel in channels)
    return np.stack([np.pad(each.samples, (0, length - len(each.samples))) for each in channels], axis=1)


def wav(samples, kind=io.BytesIO, *, cut=0):
    return kind(wav_bytes((samples * 32767).astype("<i2"))[: -cut or None])


@pytest.mark.parametrize(
    ("source", "batch_size"),
    [(np.asarray, 1), (wav, 4), (lambda samples: wav(samples, Pipe), 1)],
    ids=["array", "file", "pipe"],
)
def test_channels_are_transcribed_as_recordings_of_their_own_and_merged_by_time(source, batch_size):
    progress = []
    options = {**OPTIONS, "channels": "apart", "batch_size": batch_size}
    work = tones().transcribe(source(stereo(ANN, BOB)), **options, on_progress=lambda *at: progress.append(at))
    assert (work.finished, work.so_far().segments) == (False, ())
    stepped = []
    while not work.finished:
        stepped += work.step()
    result = work.result()
    assert tuple(stepped) == tuple(work) == result.segments
    starts = [segment.start_s for segment in result.segments]
    assert starts == sorted(starts)
    assert [segment.index for segment in result.segments] == [*range(len(starts))]
    for name, samples in zip(("channel 1", "channel 2"), stereo(ANN, BOB).T, strict=True):
        alone = tones().transcribe(samples, **OPTIONS).result()
        own = [segment for segment in result.segments if segment.speakers == (name,)]
        assert [segment.text for segment in own] == [segment.text for segment in alone.segments]
        assert all(word.speakers == (name,) for segment in own for word in segment.words)
    assert [speaker.name for speaker in result.speakers or ()] == ["channel 1", "channel 2"]
    assert {turn.speaker for turn in result.turns} == {"channel 1", "channel 2"}
    assert "channel 2: " in "".join(render(result, "srt", None))
    assert progress[-1] == (result.duration_s, True)
    assert progress == sorted(progress)


def test_threads_that_iterate_over_channels_get_the_same_segments_also_while_they_are_opened():
    class Waiting(io.BytesIO):
        def read(self, size=-1):
            opening.set()
            assert go_on.wait(PATIENCE_S)
            return super().read(size)

    opening, go_on = Event(), Event()
    work = tones().transcribe(wav(stereo(ANN, BOB), Waiting), channels="apart", **OPTIONS)
    with ThreadPoolExecutor(4) as pool:
        lists = [pool.submit(list, work)]
        assert opening.wait(PATIENCE_S)
        was_finished = work.finished
        lists += [pool.submit(list, work) for _ in range(3)]
        go_on.set()
    assert not was_finished
    assert [each.result() for each in lists] == [[*work.result().segments]] * 4
    assert work.finished


@pytest.mark.parametrize("word_timestamps", [True, False])
def test_turns_of_channels_leave_out_their_pauses(word_timestamps):
    ann = speak_words(0, 1) + silence(4) + speak_words(2, 3, 4) + silence(2)
    samples = stereo(ann, silence(2) + speak_words(5, 6, 7))
    recognizer = Recognizer(ToneBackend(), TOKENIZER, "tones", speech_detector=LoudIsSpeech)
    options = {**OPTIONS, "vad": True, "word_timestamps": word_timestamps}
    result = recognizer.transcribe(samples, channels="apart", **options).result()
    assert [segment.text.strip() for segment in result.segments] == ["ba co du fe gi", "ha jo ku"]
    assert [turn.speaker for turn in result.turns] == ["channel 1", "channel 2", "channel 1"]
    assert all(turn.end_s - turn.start_s < 2 for turn in result.turns)


def test_a_recording_that_breaks_off_fails_after_its_segments_and_tells_its_end_once():
    progress = []
    work = tones().transcribe(
        wav(stereo(ANN, BOB), cut=80_000),
        channels="apart",
        **OPTIONS,
        on_progress=lambda *at: progress.append(at),
    )
    for _ in range(2):
        with pytest.raises(AudioError, match="cut short"):
            for _ in work:
                pass
        assert {segment.speakers for segment in work.so_far().segments} == {("channel 1",), ("channel 2",)}
        with pytest.raises(AudioError, match="cut short"):
            work.step()
    assert [at for at in progress if at[1]] == progress[-1:] == [(work.read_s, True)]


@pytest.mark.parametrize("channels", ["mixed", "apart"])
def test_what_was_interrupted_before_the_first_segment_is_not_empty(channels):
    class Interrupted(io.BytesIO):
        def read(self, size=-1):
            raise KeyboardInterrupt

    work = tones().transcribe(wav(stereo(ANN, BOB), Interrupted), channels=channels, **OPTIONS)
    for attempt in (work.step, work.result, lambda: list(work), work.step):
        with pytest.raises(KeyboardInterrupt):
            attempt()


def test_an_english_only_model_hears_speech_in_one_piece_where_others_detect_languages():
    model = recognizer("int8")
    asked, unasked = (model.transcribe(EXAMPLE, multilingual=multilingual) for multilingual in (True, False))
    assert asked.result() == unasked.result()


def test_a_script_may_end_before_its_transcription():
    """After an odd number of blocks, in which the last chunk of voice activity detection is not whole."""
    script = """if True:
        import sys
        import numpy as np
        import harken
        from harken.audio import load_audio

        speech = np.tile(load_audio(sys.argv[1]), 30)
        transcription = harken.load("tiny.en").transcribe(np.concatenate([np.zeros(40 * 16_000, np.float32), speech]))
        next(iter(transcription))
        assert transcription.read_s < 240
    """
    model_path("tiny.en")
    command = [sys.executable, "-c", script, str(EXAMPLE)]
    done = subprocess.run(command, env=environment(CACHE), capture_output=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, b"")
