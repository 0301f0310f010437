"""Hallucination scores of true and of hallucinated segments, and the features behind them."""

from dataclasses import replace

import numpy as np
import pytest

from harken.transcribe.hallucination import (
    HallucinationFeatures,
    attended_stretch,
    attention_concentration,
    count_repetitions,
    is_silence_phrase,
    is_subtitle_credit,
    mean_speech_probability,
    score_hallucination,
    silence_phrases,
)


def segment(text, n_tokens, avg_logprob, no_speech, speech=None, duration_s=2.0, compression=1.2):
    return HallucinationFeatures(
        text=text,
        n_tokens=n_tokens,
        duration_s=duration_s,
        avg_logprob=avg_logprob,
        no_speech_prob=no_speech,
        compression_ratio=compression,
        speech_prob=speech,
    )


SAID = segment(" What was said.", 5, -0.3, 0.1)
# Segments that models decoded, with their features (docs/decisions/guard.md).
HALLUCINATED = [
    segment(" You", 1, -1.24, 0.52, 0.05),
    segment(" you", 1, -0.78, 0.99, 0.0, duration_s=0.8),
    segment(" Thanks for watching!", 5, -1.28, 0.42, 0.01, duration_s=25.0),
    segment(" Moo.", 3, -0.38, 0.15, 0.01, compression=2.12),
    segment(" So, I'm going to go to the next one.", 12, -0.24, 0.83, 0.0),
    segment(" I'm sorry, I got it.", 8, -1.23, 0.25, 0.14),
    segment(" [♪ OUTRO MUSIC PLAYING [♪", 8, -1.3, 0.26, 0.01),
    # Laughter and an owl, which voice activity detection classifies as speech.
    segment(" Thank you.", 3, -0.94, 0.34, 0.26, duration_s=1.08),
    segment(" Thank you.", 3, -1.11, 0.46, 0.26, duration_s=1.0),
    segment(" You", 1, -0.91, 0.88, 0.27, duration_s=0.59),
    # Without voice activity detection.
    segment(" Thank you.", 3, -0.9, 0.7),
    segment(" Untertitel der Amara.org-Community", 9, -0.3, 0.3),
]
TRUE = [
    replace(SAID, speech_prob=0.9),
    segment(" of this country.", 4, -0.18, 0.32, 0.35, duration_s=2.6),
    segment(" Yes.", 2, -0.4, 0.2, 0.1, duration_s=5.0),  # a short word stretched over silence
    segment(" Thank you.", 3, -0.4, 0.1, 0.8, duration_s=0.8),
    segment(" Thank you.", 3, -0.5, 0.1),
    segment(" Peas sprickle.", 5, -1.3, 0.4, 0.7),  # in loud noise
    segment(" Peas sprickle.", 5, -1.3, 0.4),
    segment(" No, no, no, no, no!", 11, -0.3, 0.1, 0.7, compression=1.6),
    segment(" routine.", 5, -0.2, 0.61, 0.9),
]


@pytest.mark.parametrize("features", [*HALLUCINATED, *TRUE], ids=lambda features: features.text)
def test_hallucinated_segments_are_dropped_and_true_ones_are_not(features):
    score, reason = score_hallucination(features)
    assert (score >= 0.5) == (features in HALLUCINATED)
    assert reason or features in TRUE


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
    (low, _), (high, _) = (score_hallucination(replace(SAID, **features)) for features in (better, worse))
    assert low < high


def test_reason_names_the_strongest_evidence_first():
    features = segment(" Thank you.", 3, -1.2, 0.1, 0.02)
    _, reason = score_hallucination(features)
    assert reason == (
        "speech probability 0.02, what is often written for silence, average log-probability -1.20"
    )
    assert score_hallucination(TRUE[0])[1] is None


def test_repetitions_are_counted():
    counts = {
        "": 1,
        " Once and for all.": 1,
        " Bye. Bye.": 2,
        " shh shh shh, Shh!": 4,
        " I don't know. I don't know. I don't know.": 3,
        " and then he ran and then he fell": 1,
        " ありがとうありがとうありがとう": 3,
        " la la la di da la la la di da": 3,
    }
    assert {text: count_repetitions(text) for text in counts} == counts


PHRASES = (
    """Thank you.| THANK YOU!| Thanks for watching!|ご視聴ありがとうございました。| Vielen Dank.| Спасибо."""
)
LONGER = """| Thank you for the bread.| You know.| Vielen Dank für das Brot."""
CREDITS = """ Subtitles by the Amara.org community
 Untertitel im Auftrag des ZDF, 2020
 Untertitelung des ZDF, 2020
 Sous-titrage ST' 501
 Sous-titres réalisés para la communauté d'Amara.org
 Sottotitoli e revisione a cura di QTSS
 Субтитры сделал DimaTorzok
 Редактор субтитров А.Семкин Корректор А.Егорова
 Altyazı M.K.
 字幕由Amara.org社区提供
 中文字幕志愿者 李宗盛
 MBC 뉴스 이덕영입니다.
 ترجمة نانسي قنقر"""
OTHERS = """ The subtitles were bad.| He was the editor.| Das ZDF zeigt Untertitel.| 字幕很好看| Captain, by the sea."""


def test_silence_phrases_and_subtitle_credits_are_recognized_but_no_text_about_either():
    """And no phrase is also a credit."""
    assert [text for text in PHRASES.split("|") if not is_silence_phrase(text)] == []
    assert [text for text in LONGER.split("|") if is_silence_phrase(text)] == []
    assert [text for text in CREDITS.splitlines() if not is_subtitle_credit(text)] == []
    assert [text for text in (*OTHERS.split("|"), *silence_phrases()) if is_subtitle_credit(text)] == []


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
    behind = np.zeros((1, 1, 100), np.float32)
    behind[0, 0, 80] = 1
    assert attention_concentration(behind, 50) == 0.0, "a peak behind the audio is ignored"


@pytest.mark.parametrize(
    ("peaks", "rest", "stretch"),
    [
        ((10, 40, 70), 0.0, (0, 81)),
        ((0, 40, 1), 0.0, (30, 51)),  # at the first positions attention only rests
        ((0, 0, 1), 0.0, None),
        ((10, 40, 70), 0.1, None),  # spread out
    ],
)
def test_attention_says_where_a_text_is_or_nothing(peaks, rest, stretch):
    attention = np.full((2, 3, 300), rest, np.float32)
    attention[:, range(3), peaks] += 1
    assert attended_stretch(attention / attention.sum(axis=2, keepdims=True), 300) == stretch
