"""Processes killed at random points: nothing is lost or broken, and the same command goes on.

``HARKEN_KILLS=1000 pytest -m 'attack or nightly' tests/attack/test_kills.py`` kills as often as it is told. A kill hits
wherever the process is at that time, so a seed repeats it only in the statistical sense.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from zlib import crc32

import numpy as np
import pytest

from audio_files import AUDIO_FORMATS
from processes import files_of, run, speech, started
from real_models import CACHE, model_path
from training_data import write_model, write_speech

pytestmark = pytest.mark.timeout(600)  # several processes in turn, on a machine that may do other work
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process in one way only")
KILLS = int(os.environ.get("HARKEN_KILLS", "1"))
GENTLE = (signal.SIGTERM, signal.SIGINT) if sys.platform != "win32" else ()
HARD = signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM  # Windows: TerminateProcess
BYTES_A_SECOND = 32_000
BLOCK_S = 0.05
GRACE_S = 1.0
KEPT = (".resume.jsonl", ".srt.partial", ".json.partial", ".txt.partial")
"""What a signal leaves for people to see, or to go on with."""


class Killer:
    """Runs a command, kills it at a random time, and checks how it ended."""

    def __init__(self, arguments, folder, cache):
        self.arguments, self.folder, self.cache = arguments, folder, cache
        self.rng = random.Random(7)
        began = time.monotonic()
        self.run_whole()
        self.longest_s = time.monotonic() - began

    def run_whole(self):
        ended = run(self.arguments, self.folder, self.cache)
        assert ended.code == 0, ended.err
        assert "Traceback" not in ended.err

    def kill(self, feed=None):
        """Return the signal, or None if the process ended before."""
        number = self.rng.choice([HARD, *GENTLE])
        stdin = subprocess.PIPE if feed else subprocess.DEVNULL
        streams = {"stdin": stdin, "stdout": subprocess.DEVNULL}
        with started(self.arguments, self.folder, self.cache, **streams) as process:
            feeder = threading.Thread(target=feed, args=(process,)) if feed else None
            if feeder:
                feeder.start()
            try:
                process.wait(self.rng.uniform(0, self.longest_s))
                return None
            except subprocess.TimeoutExpired:
                process.send_signal(number)
            err = process.stderr.read().decode(errors="replace")
            code = process.wait(60)
            if feeder:
                feeder.join()
                with suppress(OSError):  # what it has not taken
                    process.stdin.close()
        if number != HARD:  # before harken has run a line, the signal ends the interpreter by itself
            assert code in (0, -number, 128 + number)
            assert "Traceback" not in err or "/harken/" not in err
        return number


def cache_faults(cache, *, leftovers):
    """Return the entries of a cache that are not whole, and with `leftovers` those of processes that were killed."""
    faults = []
    for entry in sorted((cache / "graphs").glob("*")):
        if entry.name.startswith("."):
            faults += [f"left: {entry.name}"] if leftovers else []
            continue
        faults += [f"empty: {file}" for file in sorted(entry.glob("*")) if not file.stat().st_size]
        checksums = json.loads((entry / "checksums.json").read_text())
        for name, checksum in checksums.items():
            if isinstance(checksum, int) and crc32((entry / name).read_bytes()) != checksum:
                faults.append(f"damaged: {entry.name}/{name}")
    return faults


def remove(folder, names):
    for name in names:
        (folder / name).unlink()


def test_killed_transcription_goes_on_and_loses_nothing(tmp_path):
    work, cache = tmp_path / "work", tmp_path / "cache"
    work.mkdir()
    for name, kind, start_s in (("one", "wav s16", 0.0), ("two", "flac", 3.0)):
        AUDIO_FORMATS[kind].write(work / name, samples=speech(start_s, 3.0, AUDIO_FORMATS[kind].rate))
    inputs = files_of(work)
    model = write_model(tmp_path / "model").path
    options = ["--resume", "-f", "srt,json,txt", "-m", model, "--temperatures", "0"]
    killer = Killer(["transcribe", *options, *inputs], work, cache)
    reference = files_of(work)
    for _ in range(KILLS):
        remove(work, reference.keys() - inputs.keys())
        for _ in range(killer.rng.randint(1, 3)):
            before = files_of(work)
            number = killer.kill()
            files = files_of(work)
            assert {name: files.get(name) for name in inputs} == inputs
            for name in files.keys() - inputs.keys():
                hidden = name.startswith(".harken-") and (number == HARD or name in before)
                assert hidden or name.endswith(KEPT) or files[name] == reference.get(name), (name, number)
            assert not cache_faults(cache, leftovers=False)
        killer.run_whole()
        assert files_of(work) == reference
        assert not cache_faults(cache, leftovers=True)


@posix
@pytest.mark.real
@pytest.mark.attack
def test_sound_of_a_killed_live_session_is_on_the_disk(tmp_path):
    model_path("tiny.en")
    sound = np.rint(np.clip(speech(0, 11), -1, 0.999) * 32768).astype("<i2").tobytes()
    times = []

    def feed(process):
        """Write the sound in real time, as a microphone would, until nobody reads it."""
        size, began = round(BLOCK_S * BYTES_A_SECOND), time.monotonic()
        with suppress(OSError, ValueError):  # nobody reads it, or it is closed
            for start in range(0, len(sound), size):
                time.sleep(max(0.0, began + start / BYTES_A_SECOND - time.monotonic()))
                process.stdin.write(sound[start : start + size])
                process.stdin.flush()
                times.append(time.monotonic())

    AUDIO_FORMATS["wav s16"].write(tmp_path / "talk", samples=speech(0, 1))
    killer = Killer(["listen", "talk.wav", "-q"], tmp_path, CACHE)
    killer.arguments = ["listen", "-", "--pcm", "-q", "--record", "x.wav", "-o", "x.srt"]
    killer.longest_s += 2.0
    for _ in range(KILLS):
        times.clear()
        number = killer.kill(feed)
        killed_at = time.monotonic()
        recorded = next((path for path in (tmp_path / "x.wav", tmp_path / "x.wav.part") if path.exists()), None)
        content = recorded.read_bytes()[44:] if recorded else b""
        in_pipe = 1 << 16  # bytes that may have waited there unread
        fed = round(BLOCK_S * BYTES_A_SECOND) * sum(at < killed_at - GRACE_S for at in times)
        assert len(content) >= fed - in_pipe, number
        assert content == sound[: len(content)]
        left = {path.name for path in tmp_path.iterdir()} - {"talk.wav"}
        assert left <= {"x.wav", "x.srt", "x.wav.part", "x.srt.part"}
        remove(tmp_path, left)


@pytest.mark.nightly
def test_killed_training_goes_on_to_the_same_weights(tmp_path):
    pytest.importorskip("torch")
    write_model(tmp_path / "model")
    write_speech(tmp_path / "speech")
    lines = [f'{{"audio": "{i}.wav", "text": "ask not {i}", "language": "en"}}\n' for i in range(6)]
    (tmp_path / "speech" / "manifest.jsonl").write_text("".join(lines))
    inputs = files_of(tmp_path)
    line = (
        "finetune model --data speech/manifest.jsonl --out out --epochs 2 --threads 1 "
        "--batch-size 4 --eval-steps 2 --held-out-fraction 0.3 --shuffles 1"
    )
    killer = Killer(line.split(), tmp_path, tmp_path / "cache")
    reference = weights(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    for _ in range(KILLS):
        killer.kill()
    killer.run_whole()
    assert weights(tmp_path / "out") == reference
    files = files_of(tmp_path)
    assert {name: files[name] for name in inputs} == inputs
    assert not [*(tmp_path / "out").rglob(".harken-*")]


def weights(folder):
    return {name: content for name, content in files_of(folder).items() if name.endswith(".safetensors")}
