"""Which tokens: rules, prompts, strategies and the decoding of windows. Knows no backend, only the contract."""

from harken.decoding.assistant import Assistant
from harken.decoding.hypothesis import DecodeStats, Hypothesis, Observer, Step
from harken.decoding.language import language_probabilities
from harken.decoding.moving import Growing, Grown, decode_growing
from harken.decoding.prompt import make_prompt
from harken.decoding.rules import Rules, make_rules
from harken.decoding.speculation import Drafter, Speculator
from harken.decoding.strategies import Beam, Greedy, Sample, Strategy, ladder
from harken.decoding.window import Decoded, Window, decode

__all__ = [
    "Assistant",
    "Beam",
    "DecodeStats",
    "Decoded",
    "Drafter",
    "Greedy",
    "Growing",
    "Grown",
    "Hypothesis",
    "Observer",
    "Rules",
    "Sample",
    "Speculator",
    "Step",
    "Strategy",
    "Window",
    "decode",
    "decode_growing",
    "ladder",
    "language_probabilities",
    "make_prompt",
    "make_rules",
]
