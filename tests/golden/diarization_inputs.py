"""Turns and texts that `record_diarization.py` gives to other scorers, `test_diarization_golden.py` to harken."""

from __future__ import annotations

import random

CASES = 12
COLLARS_S = {"plain": 0.0, "collar": 0.25}
"""Time on each side of an edge that is not scored, by the name of the scoring."""
WORDS = ("one", "dog", "cat", "house", "big", "and", "runs", "sleeps")

Turn = tuple[float, float, str]


def draw_case(seed: int) -> tuple[list[Turn], list[Turn]]:
    """Return turns of 1 to 5 speakers, and what a diarizer might make of them."""
    rng = random.Random(seed)
    speakers = 1 + seed % 5
    reference: list[Turn] = []
    ends = [0.0] * speakers
    now = rng.uniform(0, 2)
    for _ in range(30):
        speaker = rng.randrange(speakers)
        start = max(ends[speaker] + 0.1, now + rng.uniform(-1.5, 1.5))
        ends[speaker] = now = start + rng.uniform(0.2, 6)
        reference.append((round(start, 3), round(now, 3), f"s{speaker}"))
    hypothesis: list[Turn] = []
    for start, end, speaker in reference:
        if rng.random() < 0.1:
            continue
        name = rng.choice("abcdef") if rng.random() < 0.25 else "abcdef"[int(speaker[1:])]
        start = max(0.0, start + rng.uniform(-0.4, 0.4))
        hypothesis.append((round(start, 3), round(max(start + 0.1, end + rng.uniform(-0.4, 0.4)), 3), name))
    return reference, hypothesis


def draw_texts(seed: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return words of 1 to 5 speakers in turns, and what a recognizer might make of them."""
    rng = random.Random(1000 + seed)
    speakers = 1 + seed % 5
    reference = [
        (f"s{rng.randrange(speakers)}", " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))) for _ in range(15)
    ]
    hypothesis = []
    for speaker, text in reference:
        name = rng.choice("abcdef") if rng.random() < 0.2 else "abcdef"[int(speaker[1:])]
        words = [
            rng.choice(WORDS) if rng.random() < 0.1 else word for word in text.split() if rng.random() > 0.1
        ]
        hypothesis.append((name, " ".join(words)))
    return reference, hypothesis
