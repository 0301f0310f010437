"""One recording: where its windows begin, their prompts, attempts and segments, and what is told on the way."""

from dataclasses import replace

import numpy as np
import pytest

from fakes.backends import (
    WINDOW_POSITIONS,
    WINDOW_S,
    TranscriptBackend,
    WindowText,
    timestamp_token,
    window_text,
)
from fakes.speech_detector import LoudIsSpeech, noise_and_silence
from harken.decoding import Beam, Greedy
from harken.errors import AudioError
from harken.results import Attempt
from harken.transcribe import Callbacks, TranscribeOptions, fallback, window_chain, window_segments
from harken.transcribe.window_decoder import EncodedLength
from harken.types import SAMPLE_RATE
from single_recording import SHORT_LENGTH, SingleRecordingTranscriber
from tiny_models import DIMS, TOKENIZER

WINDOW_FRAMES = 2 * WINDOW_POSITIONS
WINDOW_SAMPLES = round(WINDOW_S * SAMPLE_RATE)
START = TOKENIZER.sot_sequence("en", "transcribe", timestamps=True)
MOST_PREVIOUS = DIMS.n_text_ctx // 2 - 1
NOISE = np.random.default_rng(5).standard_normal(20 * WINDOW_SAMPLES).astype(np.float32)
FAR_APART = noise_and_silence(0, 0.5, 0.4, 31, 0.4, 31, 0.4, 1)
"""Three words, of which each is packed into a window of its own."""

HELLO, WORLD, AGAIN = (window_text(0, text, WINDOW_POSITIONS) for text in ("hello", "world", "again"))
SILENCE = window_text(0, "psst", WINDOW_POSITIONS, gap=1.0, no_speech=0.9)
UNSURE = window_text(0, "hm", WINDOW_POSITIONS, gap=1.0)
BLANK = window_text(0, "\n", WINDOW_POSITIONS)


def work(backend, audio=3, callbacks=None, **options):
    """Return a recording to be transcribed in English: so many windows of noise, taken as they are and conditioned on
    one another, as blocks are, or samples whose speech is found."""  # fmt: skip
    found, blocks = isinstance(audio, np.ndarray), [audio] if isinstance(audio, np.ndarray) else audio
    if isinstance(audio, int | float):
        blocks = np.array_split(NOISE[: round(audio * WINDOW_SAMPLES)], max(1, round(audio)))
    defaults = {
        "language": "en", "best_of": 1, "hallucination_threshold": None, "vad": found,
        "condition_on_previous_text": not found, "vad_min_silence_s": 0.1, "vad_speech_pad_s": 0.0,
        "vad_min_speech_s": 0.0, "batch_size": 1,
    }  # fmt: skip
    encoded_length = options.pop("encoded_length", EncodedLength())
    made = TranscribeOptions(**{**defaults, **options})
    return SingleRecordingTranscriber(
        backend, iter(blocks), made, callbacks, speech_detector=LoudIsSpeech, encoded_length=encoded_length
    )


def texts(form):
    return [segment.text for segment in form.segments()]


def progress():
    """Return a list, and the callbacks that note progress in it."""
    told = []
    return told, Callbacks(on_progress=lambda done_s, finished: told.append((done_s, finished)))


def starts(*lines, audio=3, **options):
    """Return where the windows of a recording begin, in seconds."""
    seeks = []

    def note(start_s, _):
        assert len(seeks) < 300, "it does not get on"
        seeks.append(start_s)

    list(work(TranscriptBackend(*lines), audio, Callbacks(on_window_start=note), **options).segments())
    return seeks


# --- segments -----------------------------------------------------------------------------------------------

UNASKED = WindowText(tokens=(*b"no", *map(timestamp_token, (9, 4, 2)), *b"times"))
ENDLESS = window_text(0, "one", 6, 7, "x" * DIMS.n_text_ctx)
QUARTERS = window_text(5, "over", 14, 14, "and", 16, 16, "out", 24)
ONE_TW, TWO = window_text(0, "one", 10, 12, "tw"), window_text(0, "two", WINDOW_POSITIONS)
PACKED, APART = noise_and_silence(0.4, 1), noise_and_silence(0, 1.024, 0.128, 5.12, 0.256, 1)  # in whole chunks
CLIPS = {"clip_timestamps": (0.1, 0.2, 0.2, 0.4)}
HALF_PAST_THREE = "0.58-0.60 over, 0.60-0.60 and, 0.60-0.60 out"


@pytest.mark.parametrize(
    ("lines", "audio", "options", "found", "windows"),
    [
        # An unfinished segment is decoded again in the next window; blank ones are left out.
        ([ONE_TW, TWO], 1, {}, "0.00-0.20 one, 0.20-0.48 two", 2),
        ([BLANK, window_text(3, "\n", 5, 5, "y", 9), HELLO], 3, {}, "0.58-0.66 y, 0.96-1.44 hello", 3),
        # Times end with the recording, or its clip.
        ([HELLO, QUARTERS], 1.25, {}, f"0.00-0.48 hello, {HALF_PAST_THREE}", 2),
        (
            [window_text(0, "a", 3, 3, "b", 20)],
            3,
            CLIPS,
            "0.10-0.16 a, 0.16-0.20 b, 0.20-0.26 a, 0.26-0.40 b",
            2,
        ),
        # Without timestamps each window is one segment.
        ([UNASKED, HELLO], 2, {"timestamps": False}, "0.00-0.48 notimes, 0.48-0.96 hello", 2),
        # In packed speech they are mapped back over the silence left out.
        ([window_text(0, "one", 6, 6, "two", 12)], APART, {}, "1.02-1.14 one, 1.14-6.38 two", 1),
        # Its text reaches to its end, also in a segment that is unfinished, or opens before the end;
        ([window_text(0, "one", 6, 7, "two")], PACKED, {}, "0.00-0.12 one, 0.14-0.41 two", 1),
        ([window_text(0, "one", 6, 7)], PACKED, {}, "0.00-0.12 one, 0.14-0.41 \0", 1),
        # a last bit without enough speech needs neither. Text that ran out of tokens continues in another window.
        ([window_text(0, "one", 9, 9)], PACKED, {"vad_min_speech_s": 0.25}, "0.00-0.18 one", 1),
        ([window_text(0, "one", 15, 15)], PACKED, {}, "0.00-0.30 one", 1),
        (
            [window_text(0, "one", 9, 11)],
            noise_and_silence(0.2, 1, 0.1, 1),
            {},
            "0.00-0.18 one, 1.18-1.31 \0",
            1,
        ),
        ([ENDLESS, window_text(0, "two", 14)], PACKED, {}, "0.00-0.12 one, 0.12-0.40 two", 2),
    ],
)
def test_segments_have_times_and_texts_of_the_tokens(lines, audio, options, found, windows):
    backend = TranscriptBackend(*lines)
    segments = list(work(backend, audio, **options).segments())
    assert ", ".join(f"{each.start_s:.2f}-{each.end_s:.2f} {each.text}" for each in segments) == found
    assert [segment.index for segment in segments] == [*range(len(segments))]
    assert len(backend.mels) == windows


def test_segments_have_their_tokens_and_the_start_and_attempts_of_their_window():
    backend = TranscriptBackend(
        window_text(2, "one", 10, 12, "two", WINDOW_POSITIONS), window_text(0, "three", 7)
    )
    first, second, third = work(backend, 2).segments()
    assert (first.seek_s, second.seek_s, third.seek_s) == (0, 0, 0.48)
    assert first.tokens == (timestamp_token(2), *b"one", timestamp_token(10))
    assert first.attempts == second.attempts
    assert third.attempts[-1].reason is None


@pytest.mark.parametrize("clips", [(1.5, 99.0), (1.5,), (1.5, 2.0, 50.0, 60.0), (1.5, 2.0, 7.0)])
def test_clips_past_the_recording_are_cut_or_skipped(clips):
    backend = TranscriptBackend(HELLO)
    (segment,) = work(backend, 4, clip_timestamps=clips, fidelity="exact").segments()
    assert segment.seek_s == 1.5
    assert [int(np.any(mel, axis=(0, 1)).sum()) for mel in backend.mels] == [42]


def test_speech_is_told_of_the_clips_only():
    form = work(TranscriptBackend(HELLO), APART, clip_timestamps=(0.1, 0.3, 1.1, 6.3, 7))
    list(form.segments())
    assert form.speech == ((pytest.approx(1.1, abs=0.03), pytest.approx(1.15, abs=0.03)), (6.27, 6.3))


def test_segments_before_a_read_error_are_delivered():
    def blocks():
        yield NOISE[:WINDOW_SAMPLES]
        raise AudioError("talk.mp3: at 0.48 s: cut short")

    told, callbacks = progress()
    segments = work(TranscriptBackend(HELLO), blocks(), callbacks).segments()
    assert next(segments).text == "hello"
    with pytest.raises(AudioError, match="cut short"):
        next(segments)
    assert told == [(0.48, False), (0.48, True)]


def test_windows_of_a_chain_have_one_language_when_chains_are_decoded_together():
    backend = TranscriptBackend(window_text(0, " one", 6, 6), window_text(0, " two", 9), HELLO)
    form = work(backend, noise_and_silence(0.4, 31, 0.4, 1), multilingual=True)
    first, second, _ = (segment.language for segment in form.segments())
    assert first == second


# --- previous text ------------------------------------------------------------------------------------------


def told_before(backend):
    """Return the previous text of each prompt, and check the rest of the prompt."""
    for prompt in backend.prompts:
        assert prompt[-len(START) :] == START
        assert len(prompt) == len(START) or prompt[0] == TOKENIZER.sot_prev
    return [prompt[1 : -len(START)] for prompt in backend.prompts]


ANN = tuple(TOKENIZER.encode(" Ann"))
HELLO_WORLD = HELLO.tokens + WORLD.tokens
PROMPT, CARRIED, ALONE = (
    {"initial_prompt": "Ann"},
    {"carry_initial_prompt": True},
    {"condition_on_previous_text": False},
)


@pytest.mark.parametrize(
    ("lines", "options", "told"),
    [
        ([HELLO, WORLD], {"initial_prompt": " Ann "}, [ANN, ANN + HELLO.tokens, ANN + HELLO_WORLD]),
        ([SILENCE, BLANK, HELLO, WORLD], {}, [(), (), (), HELLO.tokens]),
        # Its latest part is kept where it outgrows half the context.
        ([HELLO, WORLD] * 3, {}, [(HELLO_WORLD * 3)[: len(HELLO.tokens) * n] for n in range(6)]),
        # Without conditioning the initial prompt is for the first window with text, or for all.
        ([SILENCE, HELLO, WORLD, AGAIN], PROMPT | ALONE, [ANN, ANN, (), ()]),
        ([HELLO, WORLD, AGAIN], PROMPT | ALONE | CARRIED, [ANN, ANN, ANN]),
        ([HELLO, WORLD], PROMPT | CARRIED, [ANN, ANN + HELLO.tokens]),
    ],
)
def test_prompt_has_the_initial_prompt_and_the_text_before(lines, options, told):
    backend = TranscriptBackend(*lines)
    list(work(backend, len(told), **options).segments())
    assert told_before(backend) == [text[-MOST_PREVIOUS:] for text in told]


@pytest.mark.parametrize(
    ("temperature", "reset", "forgotten"),
    [(0.5, 0.5, False), (0.6, 0.5, True), (0.6, 0.6, False), (0.2, 0.1, True)],
)
def test_previous_text_is_cleared_after_a_high_temperature(temperature, reset, forgotten):
    # UNSURE fails at temperature 0; the line after it, being certain, is drawn at any other.
    backend = TranscriptBackend(HELLO, [UNSURE, WORLD], AGAIN, HELLO)
    options = {"temperatures": (0.0, temperature), "prompt_reset_temperature": reset, "beam_size": 1}
    list(work(backend, 4, **options).segments())
    kept = () if forgotten else HELLO_WORLD
    assert told_before(backend) == [
        (), HELLO.tokens, HELLO.tokens, kept, (kept + AGAIN.tokens)[-MOST_PREVIOUS:]
    ]  # fmt: skip


def test_prefix_is_forced_in_the_first_window_only():
    form = work(TranscriptBackend(HELLO, WORLD, AGAIN), FAR_APART, prefix="So", logprob_threshold=None)
    first, *others = texts(form)
    assert first.startswith(" So")
    assert others == ["world", "again"]


def test_text_with_times_behind_the_audio_was_never_spoken():
    backend = TranscriptBackend(window_text(0, "one", 18, 22, "two", 24, gap=4.0))
    form = work(backend, PACKED, hallucination_threshold=0.5)
    assert texts(form) == ["one"]
    assert [dropped.segment.text for dropped in form.dropped] == ["two"]


def test_hallucinated_segments_are_dropped_and_not_passed_on(monkeypatch):
    def score_hallucination(facts):
        return 0.9 if facts.text == "world" else 0.1, None

    monkeypatch.setattr(window_segments, "score_hallucination", score_hallucination)
    backend = TranscriptBackend(HELLO, WORLD, AGAIN)
    form = work(backend, FAR_APART, hallucination_threshold=0.9, condition_on_previous_text=True)
    kept = [(each.index, each.text, each.hallucination_score) for each in form.segments()]
    assert kept == [(0, "hello", 0.1), (1, "again", 0.1)]
    (dropped,) = form.dropped
    assert (dropped.segment.index, dropped.segment.text, dropped.reason) == (1, "world", "score 0.90")
    assert told_before(backend) == [(), HELLO.tokens, HELLO.tokens]


def test_language_is_detected_in_the_first_window():
    heard = WindowText(tokens=(TOKENIZER.language_tokens["fr"],))
    backend = TranscriptBackend([heard, HELLO], HELLO)
    form = work(backend, 2, language=None)
    assert form.language is None
    list(form.segments())
    assert (form.language, form.language_probability) == ("fr", pytest.approx(1))
    french = TOKENIZER.sot_sequence("fr")
    assert backend.prompts == [(TOKENIZER.sot,), french, (TOKENIZER.sot_prev, *HELLO.tokens, *french)]
    assert len(backend.mels) == 2


@pytest.mark.parametrize("audio", [4, NOISE[: 4 * WINDOW_SAMPLES]], ids=["as it is", "speech"])
def test_an_unsure_clip_has_the_language_of_its_own_windows_only(audio):
    unsure = WindowText(tokens=(TOKENIZER.language_tokens["fr"],), gap=-29.0)
    backend = TranscriptBackend([unsure, HELLO], unsure, HELLO)
    list(work(backend, audio, language=None, clip_timestamps=(0.1, 0.8, 1.2, 1.9)).segments())
    assert backend.prompts.count((TOKENIZER.sot,)) == 2
    assert [int(np.any(mel, axis=(0, 1)).sum()) for mel in backend.mels[:2]] == [48, 22]


# --- words --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last_s", "advance_s"), [(0.3, 0.3), (0.304, 0.3), (0.1, 0.1), (0.09, WINDOW_S), (0.0, WINDOW_S)]
)
@pytest.mark.parametrize("timestamps", [True, False])
def test_next_window_starts_after_the_last_word_and_never_about_where_this_one_did(
    monkeypatch, last_s, advance_s, timestamps
):
    def refine_word_boundaries(segments, **_):
        segment = segments[0]
        (word,) = segment.words
        end_s = segment.seek_s + last_s
        return [replace(segment, words=(replace(word, start_s=segment.seek_s, end_s=end_s),))], end_s

    monkeypatch.setattr(window_chain, "refine_word_boundaries", refine_word_boundaries)
    text = window_text(0, " one") if timestamps else WindowText(tokens=(*b" one",))
    seeks = starts(text, audio=2, word_timestamps=True, timestamps=timestamps)
    assert seeks[1] == pytest.approx(advance_s)
    # One that ends with a single timestamp is finished.
    assert starts(window_text(0, " one", 9), audio=2, word_timestamps=True) == [0, WINDOW_S]


@pytest.mark.parametrize(("task", "words"), [("translate", ["once"]), ("transcribe", [*"once"])])
def test_words_of_a_translation_are_those_of_english(task, words):
    backend = TranscriptBackend(window_text(0, "once", WINDOW_POSITIONS))
    form = work(backend, 1, language="ja", task=task, word_timestamps=True)
    assert [word.text for segment in form.segments() for word in segment.words] == words


# --- attempts -----------------------------------------------------------------------------------------------

# No spaces: a vocabulary of bytes has them among its symbols that are not spoken.
FLUENT = "andsomyfellowamericans"
GOOD = window_text(0, FLUENT, 20)
REPETITIVE, MORE_REPETITIVE = window_text(0, "so" * 40, 20), window_text(0, "so" * 60, 20)
IMPROBABLE, MORE_IMPROBABLE = window_text(0, FLUENT, 20, gap=4.5), window_text(0, FLUENT, 20, gap=4.0)


def attempt(*lines, **options):
    """Decode one window, to one line at each attempt."""
    told = []
    callbacks = Callbacks(on_window_end=lambda start_s, decoded, attempts: told.append((decoded, attempts)))
    # At these temperatures nothing but the line is drawn from the good ones.
    options = {"temperatures": (0.0, 0.01, 0.02, 0.03), "beam_size": 1, **options}
    form = work(TranscriptBackend(lines, n_text_ctx=448), 1, callbacks, **options)
    list(form.segments())
    ((decoded, attempts),) = told
    return decoded, attempts, form.stats


@pytest.mark.parametrize("n", [1, 3])
def test_all_attempts_are_reported_the_accepted_one_last(n):
    decoded, (first, second, kept), stats = attempt(REPETITIVE, IMPROBABLE, GOOD, MORE_REPETITIVE, beam_size=n)
    assert (first.temperature, first.reason) == (0, "repeats itself")
    assert (second.temperature, (second.reason or "")[:25]) == (0.01, "average log-probability -")
    numbers = {name: getattr(decoded, name) for name in ("compression_ratio", "no_speech_prob")}
    assert kept == Attempt(temperature=0.02, avg_logprob=decoded.hypothesis.avg_logprob, **numbers)
    assert decoded.text == FLUENT
    assert (stats.windows, stats.prompt_tokens) == (3, 3 * len(START))
    assert stats.forwards == stats.sampled_tokens < 100  # the first has 84, was it not stopped


DOUBT, LESS_DOUBT, MORE_DOUBT = (window_text(0, FLUENT, 20, gap=gap) for gap in (5.1, 5.2, 5.0))
"""Probable enough for the threshold, but not sure."""


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        *(((GOOD,), 0), ((DOUBT, LESS_DOUBT), 1), ((DOUBT, MORE_DOUBT), 0)),
        *(((DOUBT, REPETITIVE), 0), ((IMPROBABLE, DOUBT), 1), ((REPETITIVE, GOOD), 1)),
    ],
)
def test_text_in_doubt_is_decoded_again_with_beams_and_the_more_probable_kept(lines, kept):
    decoded, tried, stats = attempt(*lines, beam_size=None)
    assert stats.windows == len(lines)
    assert [each.reason is None for each in tried] == [*[False] * (len(lines) - 1), True]
    assert decoded.temperature == 0
    expected, *_ = attempt(lines[kept], beam_size=1, temperatures=(0.0,))
    assert decoded.hypothesis.avg_logprob == pytest.approx(expected.hypothesis.avg_logprob)
    assert -1 < attempt(DOUBT, beam_size=1)[0].hypothesis.avg_logprob < -0.6


def test_beams_less_probable_than_greedy_text_do_not_end_the_attempts():
    decoded, tried, _ = attempt(IMPROBABLE, MORE_IMPROBABLE, GOOD, beam_size=None)
    assert [each.temperature for each in tried] == [0, 0, 0.01]
    assert decoded.text == FLUENT


def test_larger_models_have_no_doubt(monkeypatch):
    monkeypatch.setattr(fallback, "MOST_LAYERS_IN_DOUBT", DIMS.n_audio_layer - 1)
    assert attempt(DOUBT, LESS_DOUBT, beam_size=None)[2].windows == 1


@pytest.mark.parametrize(
    ("language", "beam_size", "strategy"),
    [
        *(("en", None, Greedy()), ("de", None, Beam(width=5))),
        *(("de", 1, Greedy()), ("en", 3, Beam(width=3))),
    ],
)
def test_beams_search_in_all_languages_but_english_unless_a_width_is_chosen(language, beam_size, strategy):
    used = set()
    callbacks = Callbacks(on_token=lambda step: used.add(step.strategy))
    form = work(TranscriptBackend(HELLO), 1, callbacks, language=language, beam_size=beam_size)
    assert texts(form) == ["hello"]
    assert used == {strategy}


def test_blanks_without_end_are_a_loop():
    decoded, (first, _), _ = attempt(window_text(0, FLUENT + "\n" * 60, 20), GOOD)
    assert (first.reason, decoded.text) == ("repeats itself", FLUENT)


@pytest.mark.parametrize(
    ("lines", "best"),
    [
        ((IMPROBABLE, MORE_IMPROBABLE), 0),  # no higher temperature is tried once texts get less probable
        ((MORE_IMPROBABLE, IMPROBABLE, MORE_IMPROBABLE), 1),
        ((REPETITIVE, REPETITIVE, MORE_IMPROBABLE, REPETITIVE), 2),
        ((REPETITIVE, MORE_IMPROBABLE, REPETITIVE, IMPROBABLE), 3),
    ],
)
def test_best_attempt_is_accepted_if_all_fail(lines, best):
    decoded, tried, stats = attempt(*lines)
    temperatures = [0, 0.01, 0.02, 0.03][: len(lines)]
    kept = temperatures.pop(best)
    assert decoded.temperature == kept
    assert [each.temperature for each in tried] == [*temperatures, kept]
    assert [each.reason is None for each in tried] == [*[False] * len(temperatures), True]
    assert stats.windows == len(lines)


def test_samples_depend_on_the_seed_the_attempt_and_the_position_of_the_window_only():
    options = {"temperatures": (1.0, 1.0, 1.0), "logprob_threshold": 0.0, "best_of": 2}
    once, again = ([each.avg_logprob for each in attempt(MORE_IMPROBABLE, **options)[1]] for _ in range(2))
    assert len(set(once)) == 3
    assert once == again
    drawn = {"temperatures": (1.0,), "logprob_threshold": None, "condition_on_previous_text": False}

    def tokens(**options):
        backend = TranscriptBackend(window_text(0, "mumbling", gap=1.0))
        return [segment.tokens for segment in work(backend, 2, timestamps=False, **drawn, **options).segments()]

    first, second = tokens()
    assert first != second
    assert tokens(clip_timestamps=(WINDOW_S,)) == [second]
    assert tokens(seed=1)[0] not in (first, second)


@pytest.mark.parametrize(
    ("lines", "text", "rejections"),
    [([HELLO], "hello", None), ([SILENCE, HELLO], "hello", ["no speech"]), ([SILENCE], "", [])],
)
def test_silence_in_a_part_of_a_window_is_confirmed_with_the_whole(lines, text, rejections):
    """A window that ends in silence is encoded in part first: 6 positions of sound, and 2 of padding."""
    backend = TranscriptBackend(*lines)
    segments = list(work(backend, 0.25, encoded_length=SHORT_LENGTH).segments())
    assert "".join(segment.text for segment in segments) == text
    assert [mel.shape[-1] for mel in backend.mels] == [16, *([] if rejections is None else [WINDOW_FRAMES])]
    for segment in segments:
        *failed, accepted = segment.attempts
        assert (accepted.temperature, accepted.reason) == (0, None)
        for each, reason in zip(failed, rejections or [], strict=True):
            assert (each.reason or "").endswith(f"{reason}, in the encoded part of the window")


def test_text_that_fails_in_a_part_of_a_window_is_decoded_again_from_that_part():
    backend = TranscriptBackend([UNSURE, HELLO])
    options = {"beam_size": 1, "temperatures": (0.0, 0.01)}
    (segment,) = work(backend, 0.25, encoded_length=SHORT_LENGTH, **options).segments()
    assert (segment.text, [each.temperature for each in segment.attempts]) == ("hello", [0, 0.01])
    assert [mel.shape[-1] for mel in backend.mels] == [16]


# --- callbacks ----------------------------------------------------------------------------------------------


def test_progress_rises_to_the_end_of_the_recording_and_of_each_clip():
    told, callbacks = progress()
    list(work(TranscriptBackend(HELLO), 2.5, callbacks).segments())
    assert told == [(0.48, False), (0.96, False), (1.2, False), (1.2, True)]
    told.clear()
    backend = TranscriptBackend(window_text(0, "a", 20, 20, "b"))
    form = work(backend, callbacks=callbacks, clip_timestamps=(0.1, 0.2, 0.3, 0.4))
    list(form.segments())
    assert [done_s for done_s, _ in told] == [0.2, 0.4, form.duration_s]


def test_windows_and_tokens_are_told_before_the_segments_and_silent_windows_too():
    told = []
    steps = []
    callbacks = Callbacks(
        on_window_end=lambda start_s, decoded, attempts: told.append(f"decided {decoded.text}"),
        on_token=steps.append,
    )
    form = work(TranscriptBackend(HELLO, SILENCE, WORLD), callbacks=callbacks)
    for segment in form.segments():
        told.append(segment.text)
    assert told == ["decided hello", "hello", "decided psst", "decided world", "world"]
    assert form.stats.sampled_tokens == len(steps)
    said = [(*each.tokens, TOKENIZER.eot) for each in (HELLO, SILENCE, WORLD)]
    assert tuple(step.token for step in steps) == sum(said, ())
