"""Killing ``harken finetune``: the same command goes on, and the weights are those of a run without a kill."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from processes import HARKEN, environment, files_of, run

if TYPE_CHECKING:
    from kills import Report

KILLS_A_TRAINING = 3
SHORT = {
    "--epochs": 2,
    "--batch-size": 4,
    "--eval-steps": 2,
    "--threads": 1,
    "--held-out-fraction": 0.3,
    "--shuffles": 1,
}


class Training:
    """A short training of a tiny model on parts of the example recording."""

    def __init__(self, folder: Path, model: str, rng: random.Random, report: Report) -> None:
        from training_data import write_model, write_speech

        self.folder, self.rng, self.report = folder, rng, report
        folder.mkdir(parents=True)
        write_model(folder / "model")
        write_speech(folder / "speech", recordings=6)
        lines = [{"audio": f"{i}.wav", "text": f"ask not {i}", "language": "en"} for i in range(6)]
        (folder / "speech" / "manifest.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        self.arguments = ["finetune", "model", "--data", "speech/manifest.jsonl", "--out", "out"]
        self.arguments += [str(part) for option in SHORT.items() for part in option]
        began = time.monotonic()
        ended = run(self.arguments, folder, folder / "cache")
        if ended.code:
            raise SystemExit(ended.err)
        self.longest_s = time.monotonic() - began
        self.reference = _weights(folder / "out")
        self.inputs = self._inputs()

    def kill(self) -> None:
        """Kill a training some times, let it end, and compare the weights."""
        from kills import choose_signal, end_faults, kill_after

        shutil.rmtree(self.folder / "out")
        for _ in range(KILLS_A_TRAINING):
            number = choose_signal(self.rng)
            process = subprocess.Popen(
                [*HARKEN, *self.arguments],
                cwd=self.folder,
                env=environment(self.folder / "cache"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            killed = kill_after(process, self.rng.uniform(0, self.longest_s), number)
            err = process.communicate(timeout=60)[1].decode(errors="replace")
            if killed:
                self.report.add(f"finetune {number.name}", "training")
                for fault in end_faults(process.returncode, number, err):
                    self._fault(fault)
        ended = run(self.arguments, self.folder, self.folder / "cache")
        self.report.whole_runs += 1
        if ended.code:
            self._fault(f"the next run: exit code {ended.code}: {ended.err[-300:]}")
        elif _weights(self.folder / "out") != self.reference:
            self._fault("the weights differ from those of a run without a kill")
        if self._inputs() != self.inputs:
            self._fault("the recordings or the model were changed")
        for path in (self.folder / "out").rglob(".harken-*"):
            self._fault(f"left over: {path.name}")

    def _inputs(self) -> dict[str, bytes]:
        return files_of(self.folder / "model") | files_of(self.folder / "speech")

    def _fault(self, text: str) -> None:
        self.report.fault(f"{self.folder}: finetune: {text}")


def _weights(folder: Path) -> dict[str, bytes]:
    return {name: content for name, content in files_of(folder).items() if name.endswith(".safetensors")}
