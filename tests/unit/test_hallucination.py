"""What speaks for a segment that was invented, and what against it."""

from __future__ import annotations

import numpy as np
import pytest

from harken.transcribe.hallucination import (
    SILENCE_PHRASES,
    HallucinationFeatures,
    attention_concentration,
    count_repetitions,
    is_silence_phrase,
    is_subtitle_credit,
    mean_speech_probability,
    score_hallucination,
)


def facts(text=" What was said.", **changes):
    heard = {
        "n_tokens": 5,
        "duration_s": 2.0,
        "avg_logprob": -0.3,
        "no_speech_prob": 0.1,
        "compression_ratio": 1.2,
    }
    return HallucinationFeatures(text=text, **{**heard, **changes})


# Segments as models wrote them, with what was measured (docs/decisions/guard.md).
INVENTED = [
    facts(" You", n_tokens=1, avg_logprob=-1.24, no_speech_prob=0.52, speech_prob=0.05),
    facts(" you", n_tokens=1, avg_logprob=-0.78, no_speech_prob=0.99, speech_prob=0.0, duration_s=0.8),
    facts(" Thanks for watching!", avg_logprob=-1.28, no_speech_prob=0.42, speech_prob=0.01, duration_s=25.0),
    facts(
        " Moo.", n_tokens=3, avg_logprob=-0.38, no_speech_prob=0.15, compression_ratio=2.12, speech_prob=0.01
    ),
    facts(
        " So, I'm going to go to the next one.",
        n_tokens=12,
        avg_logprob=-0.24,
        no_speech_prob=0.83,
        speech_prob=0.0,
    ),
    facts(" I'm sorry, I got it.", n_tokens=8, avg_logprob=-1.23, no_speech_prob=0.25, speech_prob=0.14),
    facts(" [♪ OUTRO MUSIC PLAYING [♪", n_tokens=8, avg_logprob=-1.3, no_speech_prob=0.26, speech_prob=0.01),
    # Laughter and an owl, which voice activity detection takes for speech.
    facts(" Thank you.", n_tokens=3, avg_logprob=-0.94, no_speech_prob=0.34, speech_prob=0.26, duration_s=1.08),
    facts(" Thank you.", n_tokens=3, avg_logprob=-1.11, no_speech_prob=0.46, speech_prob=0.26, duration_s=1.0),
    facts(" You", n_tokens=1, avg_logprob=-0.91, no_speech_prob=0.88, speech_prob=0.27, duration_s=0.59),
    # Where no voice activity is looked for.
    facts(" Thank you.", n_tokens=3, avg_logprob=-0.9, no_speech_prob=0.7),
    facts(" Untertitel der Amara.org-Community", n_tokens=9, avg_logprob=-0.3, no_speech_prob=0.3),
]
TRUE = [
    facts(speech_prob=0.9),
    facts(
        " of this country.",
        n_tokens=4,
        avg_logprob=-0.18,
        no_speech_prob=0.32,
        speech_prob=0.35,
        duration_s=2.6,
    ),
    facts(
        " Yes.", n_tokens=2, avg_logprob=-0.4, no_speech_prob=0.2, speech_prob=0.1, duration_s=5.0
    ),  # drawn out
    facts(" Thank you.", n_tokens=3, avg_logprob=-0.4, no_speech_prob=0.1, speech_prob=0.8, duration_s=0.8),
    facts(" Thank you.", n_tokens=3, avg_logprob=-0.5, no_speech_prob=0.1),
    facts(" Peas sprickle.", avg_logprob=-1.3, no_speech_prob=0.4, speech_prob=0.7),  # much noise
    facts(" Peas sprickle.", avg_logprob=-1.3, no_speech_prob=0.4),
    facts(" No, no, no, no, no!", n_tokens=11, compression_ratio=1.6, speech_prob=0.7),
    facts(" routine.", avg_logprob=-0.2, no_speech_prob=0.61, speech_prob=0.9),
]


@pytest.mark.parametrize("known", INVENTED, ids=lambda known: known.text)
def test_invented_segments_are_dropped(known):
    verdict = score_hallucination(known)
    assert verdict.score >= 0.5
    assert verdict.reason


@pytest.mark.parametrize("known", TRUE, ids=lambda known: known.text)
def test_true_segments_are_kept(known):
    assert score_hallucination(known).score < 0.5


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"speech_prob": 0.3}, {"speech_prob": 0.1}),
        ({"attention_concentration": 0.5}, {"attention_concentration": 0.2}),
        ({"avg_logprob": -0.3}, {"avg_logprob": -0.9}),
        ({"no_speech_prob": 0.1}, {"no_speech_prob": 0.9}),
        ({"compression_ratio": 1.0}, {"compression_ratio": 2.5}),
        ({"text": " Go on."}, {"text": " Go on. Go on. Go on. Go on."}),
        ({"text": " Thank her."}, {"text": " Thank you."}),
        ({"text": " A text by nobody."}, {"text": " Subtitles by nobody."}),
    ],
)
def test_every_observation_counts(better, worse):
    assert score_hallucination(facts(**better)).score < score_hallucination(facts(**worse)).score


def test_the_reason_names_what_weighs_most_first():
    known = facts(" Thank you.", n_tokens=3, avg_logprob=-1.2, speech_prob=0.02)
    assert score_hallucination(known).reason == (
        "speech probability 0.02, what is often written for silence, average log-probability -1.20"
    )
    assert score_hallucination(facts(speech_prob=0.9)).reason is None


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("", 1),
        (" Once and for all.", 1),
        (" Bye. Bye.", 2),
        (" shh shh shh, Shh!", 4),
        (" I don't know. I don't know. I don't know.", 3),
        (" and then he ran and then he fell", 1),
        (" ありがとうありがとうありがとう", 3),
        (" la la la di da la la la di da", 3),
    ],
)
def test_repetitions(text, times):
    assert count_repetitions(text) == times


@pytest.mark.parametrize(
    "text",
    [
        "Thank you.",
        " THANK YOU!",
        " Thanks for watching!",
        "ご視聴ありがとうございました。",
        " Vielen Dank.",
        " Спасибо.",
    ],
)
def test_courtesies(text):
    assert is_silence_phrase(text)


@pytest.mark.parametrize("text", ["", " Thank you for the bread.", " You know.", " Vielen Dank für das Brot."])
def test_what_is_more_than_a_courtesy(text):
    assert not is_silence_phrase(text)


@pytest.mark.parametrize(
    "text",
    [
        " Subtitles by the Amara.org community",
        " Untertitel im Auftrag des ZDF, 2020",
        " Untertitelung des ZDF, 2020",
        " Sous-titrage ST' 501",
        " Sous-titres réalisés para la communauté d'Amara.org",
        " Sottotitoli e revisione a cura di QTSS",
        " Субтитры сделал DimaTorzok",
        " Редактор субтитров А.Семкин Корректор А.Егорова",
        " Altyazı M.K.",
        " 字幕由Amara.org社区提供",
        " 中文字幕志愿者 李宗盛",
        " MBC 뉴스 이덕영입니다.",
        " ترجمة نانسي قنقر",
    ],
)
def test_credits(text):
    assert is_subtitle_credit(text)


@pytest.mark.parametrize(
    "text",
    [
        " The subtitles were bad.",
        " He was the editor.",
        " Das ZDF zeigt Untertitel.",
        " 字幕很好看",
        " Captain, by the sea.",
    ],
)
def test_what_only_speaks_of_subtitles(text):
    assert not is_subtitle_credit(text)


def test_no_courtesy_is_also_a_credit():
    assert not [
        phrase for phrases in SILENCE_PHRASES.values() for phrase in phrases if is_subtitle_credit(phrase)
    ]


def test_speech_under_some_spans():
    probabilities = np.array([0, 1, 1, 0, 0, 0.5], np.float32)
    assert mean_speech_probability(probabilities, ((0, 19),)) == pytest.approx(2.5 / 6)
    assert mean_speech_probability(probabilities, ((4, 9),)) == 1.0
    assert mean_speech_probability(probabilities, ((4, 6), (16, 30))) == pytest.approx(0.75)
    assert mean_speech_probability(probabilities, ()) == 0.0
    assert mean_speech_probability(probabilities, ((100, 200),)) == 0.0


def test_attention_to_one_place_and_to_all():
    sharp = np.zeros((2, 3, 100), np.float32)
    sharp[:, [0, 1, 2], [10, 40, 70]] = 1
    assert attention_concentration(sharp, 100) == 1.0
    assert attention_concentration(np.full((2, 3, 100), 0.01, np.float32), 100) == pytest.approx(0.11)
    assert attention_concentration(sharp[:, :0], 100) == 0.0


def test_attention_behind_the_sound_does_not_count_as_a_place():
    behind = np.zeros((1, 1, 100), np.float32)
    behind[0, 0, 80] = 1
    assert attention_concentration(behind, 50) == 0.0
