"""`harken serve --wyoming stdio://` as a process, as Home Assistant's add-ons are tested."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from harken.audio import load_audio
from harken.types import SAMPLE_RATE
from real_models import EXAMPLE, model_path
from serve.served_audio import pcm

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of audioop, which it imports up to Python 3.12
    from wyoming.asr import Transcribe
    from wyoming.audio import AudioChunk, AudioStart, AudioStop
    from wyoming.event import read_event, write_event
    from wyoming.info import Describe, Info

pytestmark = [pytest.mark.real, pytest.mark.slow]

FORMAT = {"rate": SAMPLE_RATE, "width": 2, "channels": 1}


def test_standard_input_and_output_are_served_to_their_end() -> None:
    model_path("tiny.en")  # skips where it is missing
    data = pcm(load_audio(EXAMPLE)[: 4 * SAMPLE_RATE])
    command = [sys.executable, "-m", "harken", "serve", "--wyoming", "stdio://"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        try:
            write_event(Describe().event(), process.stdin)
            event = read_event(process.stdout)
            assert event
            assert Info.from_event(event).asr[0].models[0].languages == ["en"]
            for _ in range(2):
                write_event(Transcribe(language="en").event(), process.stdin)
                write_event(AudioStart(**FORMAT).event(), process.stdin)
                for start in range(0, len(data), 2048):
                    write_event(AudioChunk(**FORMAT, audio=data[start : start + 2048]).event(), process.stdin)
                write_event(AudioStop().event(), process.stdin)
                texts = {}
                while event := read_event(process.stdout):
                    texts[event.type] = texts.get(event.type, "") + event.data.get("text", "")
                    if event.type == "transcript-stop":
                        break
                assert "my fellow Americans" in texts["transcript"]
                assert texts["transcript-chunk"] == texts["transcript"]
            process.stdin.close()
            assert process.stdout.read() == b""
            assert process.wait(30) == 0, process.stderr.read().decode()
        finally:
            process.kill()
