"""Hallucination scores of true and of hallucinated segments, and the features behind them."""

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


def make_features(text=" What was said.", **changes):
    defaults = {
        "n_tokens": 5,
        "duration_s": 2.0,
        "avg_logprob": -0.3,
        "no_speech_prob": 0.1,
        "compression_ratio": 1.2,
    }
    return HallucinationFeatures(text=text, **{**defaults, **changes})


# Segments that models decoded, with their features (docs/decisions/guard.md).
HALLUCINATED = [
    make_features(" You", n_tokens=1, avg_logprob=-1.24, no_speech_prob=0.52, speech_prob=0.05),
    make_features(" you", n_tokens=1, avg_logprob=-0.78, no_speech_prob=0.99, speech_prob=0.0, duration_s=0.8),
    make_features(
        " Thanks for watching!", avg_logprob=-1.28, no_speech_prob=0.42, speech_prob=0.01, duration_s=25.0
    ),
    make_features(
        " Moo.", n_tokens=3, avg_logprob=-0.38, no_speech_prob=0.15, compression_ratio=2.12, speech_prob=0.01
    ),
    make_features(
        " So, I'm going to go to the next one.",
        n_tokens=12,
        avg_logprob=-0.24,
        no_speech_prob=0.83,
        speech_prob=0.0,
    ),
    make_features(
        " I'm sorry, I got it.", n_tokens=8, avg_logprob=-1.23, no_speech_prob=0.25, speech_prob=0.14
    ),
    make_features(
        " [♪ OUTRO MUSIC PLAYING [♪", n_tokens=8, avg_logprob=-1.3, no_speech_prob=0.26, speech_prob=0.01
    ),
    # Laughter and an owl, which voice activity detection classifies as speech.
    make_features(
        " Thank you.", n_tokens=3, avg_logprob=-0.94, no_speech_prob=0.34, speech_prob=0.26, duration_s=1.08
    ),
    make_features(
        " Thank you.", n_tokens=3, avg_logprob=-1.11, no_speech_prob=0.46, speech_prob=0.26, duration_s=1.0
    ),
    make_features(
        " You", n_tokens=1, avg_logprob=-0.91, no_speech_prob=0.88, speech_prob=0.27, duration_s=0.59
    ),
    # Without voice activity detection.
    make_features(" Thank you.", n_tokens=3, avg_logprob=-0.9, no_speech_prob=0.7),
    make_features(" Untertitel der Amara.org-Community", n_tokens=9, avg_logprob=-0.3, no_speech_prob=0.3),
]
TRUE = [
    make_features(speech_prob=0.9),
    make_features(
        " of this country.",
        n_tokens=4,
        avg_logprob=-0.18,
        no_speech_prob=0.32,
        speech_prob=0.35,
        duration_s=2.6,
    ),
    make_features(
        " Yes.", n_tokens=2, avg_logprob=-0.4, no_speech_prob=0.2, speech_prob=0.1, duration_s=5.0
    ),  # a short word stretched over silence
    make_features(
        " Thank you.", n_tokens=3, avg_logprob=-0.4, no_speech_prob=0.1, speech_prob=0.8, duration_s=0.8
    ),
    make_features(" Thank you.", n_tokens=3, avg_logprob=-0.5, no_speech_prob=0.1),
    make_features(" Peas sprickle.", avg_logprob=-1.3, no_speech_prob=0.4, speech_prob=0.7),  # in loud noise
    make_features(" Peas sprickle.", avg_logprob=-1.3, no_speech_prob=0.4),
    make_features(" No, no, no, no, no!", n_tokens=11, compression_ratio=1.6, speech_prob=0.7),
    make_features(" routine.", avg_logprob=-0.2, no_speech_prob=0.61, speech_prob=0.9),
]


@pytest.mark.parametrize("features", HALLUCINATED, ids=lambda features: features.text)
def test_hallucinated_segments_are_dropped(features):
    verdict = score_hallucination(features)
    assert verdict.score >= 0.5
    assert verdict.reason


@pytest.mark.parametrize("features", TRUE, ids=lambda features: features.text)
def test_true_segments_are_not_dropped(features):
    assert score_hallucination(features).score < 0.5


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
def test_every_feature_changes_the_score(better, worse):
    assert (
        score_hallucination(make_features(**better)).score < score_hallucination(make_features(**worse)).score
    )


def test_reason_names_the_strongest_evidence_first():
    features = make_features(" Thank you.", n_tokens=3, avg_logprob=-1.2, speech_prob=0.02)
    assert score_hallucination(features).reason == (
        "speech probability 0.02, what is often written for silence, average log-probability -1.20"
    )
    assert score_hallucination(make_features(speech_prob=0.9)).reason is None


@pytest.mark.parametrize(
    ("text", "n_repetitions"),
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
def test_repetitions_are_counted(text, n_repetitions):
    assert count_repetitions(text) == n_repetitions


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
def test_silence_phrase_is_recognized(text):
    assert is_silence_phrase(text)


@pytest.mark.parametrize("text", ["", " Thank you for the bread.", " You know.", " Vielen Dank für das Brot."])
def test_longer_text_is_no_silence_phrase(text):
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
def test_subtitle_credit_is_recognized(text):
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
def test_text_about_subtitles_is_no_subtitle_credit(text):
    assert not is_subtitle_credit(text)


def test_no_silence_phrase_is_also_a_subtitle_credit():
    assert not [
        phrase for phrases in SILENCE_PHRASES.values() for phrase in phrases if is_subtitle_credit(phrase)
    ]


def test_speech_probability_is_the_mean_over_the_spans():
    probabilities = np.array([0, 1, 1, 0, 0, 0.5], np.float32)
    assert mean_speech_probability(probabilities, ((0, 19),)) == pytest.approx(2.5 / 6)
    assert mean_speech_probability(probabilities, ((4, 9),)) == 1.0
    assert mean_speech_probability(probabilities, ((4, 6), (16, 30))) == pytest.approx(0.75)
    assert mean_speech_probability(probabilities, ()) == 0.0
    assert mean_speech_probability(probabilities, ((100, 200),)) == 0.0


def test_attention_concentration_of_peaked_and_of_uniform_attention():
    sharp = np.zeros((2, 3, 100), np.float32)
    sharp[:, [0, 1, 2], [10, 40, 70]] = 1
    assert attention_concentration(sharp, 100) == 1.0
    assert attention_concentration(np.full((2, 3, 100), 0.01, np.float32), 100) == pytest.approx(0.11)
    assert attention_concentration(sharp[:, :0], 100) == 0.0


def test_attention_peak_behind_the_audio_is_ignored():
    behind = np.zeros((1, 1, 100), np.float32)
    behind[0, 0, 80] = 1
    assert attention_concentration(behind, 50) == 0.0
