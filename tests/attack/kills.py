"""Kills harken at random points, again and again, and checks that nothing is lost or broken.

Run it as a program::

    python tests/attack/kills.py --count 1000 --seed 1 --jobs 2
    python tests/attack/kills.py --count 1000 --what transcribe --model tiny.en
    python tests/attack/kills.py --count 20 --what finetune

After every kill: no file under a final name differs from that of a run without a kill, the recordings are untouched,
and what was recorded live up to a second before is on the disk. After the next whole run: everything is there, byte
for byte the same, nothing is left over, and the cache is whole. A kill hits wherever the process is at that time, so
a line is reproduced by its seed only in the statistical sense; the folder of a fault is kept.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import program_path  # noqa: F401
from processes import HARKEN, Ended, damaged_cache_entries, environment, files_of, run, speech

from audio_files import AUDIO_FORMATS

POSIX = sys.platform != "win32"
GENTLE = [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if POSIX else [])] if POSIX else []
HARD = signal.SIGKILL if POSIX else signal.SIGTERM  # Windows: TerminateProcess
HARD_SHARE = 0.6
FRESH_CACHE_SHARE = 0.15
KILLS_A_BATCH = 4
FORMATS = "srt,json,txt"
RECORDINGS = {
    "one": ("wav s16", 0.0, 3.0),
    "two": ("flac", 3.0, 3.0),
    "three": ("mp3", 5.0, 4.0),
    "four": ("m4a", 1.0, 5.0),
    "five": ("ogg opus", 7.0, 4.0),
    "six": ("wav u8", 0.0, 11.0),
    "seven": ("mkv video", 4.0, 2.5),
    "eight": ("wav s24 stereo", 8.0, 3.0),
}
STAGES = (
    "starting or loading",
    "building graphs",
    "decoding",
    "writing",
    "finished before",
)


@dataclass
class Report:
    """The counts of all jobs."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    kills: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    whole_runs: int = 0
    faults: list[str] = field(default_factory=list)

    def add(self, kind: str, stage: str) -> None:
        with self.lock:
            self.kills[kind] += 1
            self.stages[stage] += 1

    def fault(self, text: str) -> None:
        with self.lock:
            self.faults.append(text)
            print(f"FAULT {text}", flush=True)


def kill_after(process: subprocess.Popen[bytes], delay_s: float, number: signal.Signals) -> bool:
    """Send a signal to a process after a delay; return False if it ended before."""
    try:
        process.wait(delay_s)
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        return True


def choose_signal(rng: random.Random) -> signal.Signals:
    return HARD if not GENTLE or rng.random() < HARD_SHARE else rng.choice(GENTLE)


def end_faults(code: int, number: signal.Signals, err: str) -> Iterator[str]:
    """Yield what is wrong with how a killed process ended."""
    if number == HARD:
        return
    # Before harken has run a line, the signal ends the interpreter by itself.
    if code not in (0, -number, 128 + number):
        yield f"exit code {code} after {number.name}"
    if "Traceback" in err and "/harken/" in err.replace("\\", "/"):
        yield f"traceback after {number.name}: {err.strip().splitlines()[-1]}"


class Batch:
    """A batch of recordings that is transcribed to files, killed, and continued.

    Parameters
    ----------
    folder : Path
        Where to work; it is made.
    model : str
    rng : random.Random
    report : Report
    resume : bool
        False for a batch that starts anew after each kill.
    recordings : int
        How many of `RECORDINGS`.
    """

    def __init__(
        self,
        folder: Path,
        model: str,
        rng: random.Random,
        report: Report,
        *,
        resume: bool = True,
        recordings: int = len(RECORDINGS),
    ) -> None:
        self.folder, self.rng, self.report = folder, rng, report
        self.cache, self.work = folder / "cache", folder / "work"
        self.work.mkdir(parents=True)
        for name, (form, start_s, duration_s) in islice(RECORDINGS.items(), recordings):
            rate = AUDIO_FORMATS[form].rate
            AUDIO_FORMATS[form].write(self.work / name, samples=speech(start_s, duration_s, rate))
        self.inputs = files_of(self.work)
        self.arguments = ["transcribe", "-v", "-f", FORMATS, "-m", model, "--temperatures", "0", *self.inputs]
        if resume:
            self.arguments.insert(1, "--resume")
        cold_began = time.monotonic()
        self._run_whole()
        self.cold_s = time.monotonic() - cold_began
        self.reference = files_of(self.work)
        self._remove_outputs()
        warm_began = time.monotonic()
        self._run_whole()
        self.warm_s = time.monotonic() - warm_began
        if files_of(self.work) != self.reference:
            raise SystemExit("two runs without a kill differ")
        self._remove_outputs()

    def kill(self) -> None:
        """Kill a batch some times, then let it end, and compare."""
        fresh = self.rng.random() < FRESH_CACHE_SHARE
        if fresh:
            shutil.rmtree(self.cache)
        for _ in range(self.rng.randint(1, KILLS_A_BATCH)):
            self._kill_once(self.cold_s if fresh else self.warm_s)
        ended = self._run_whole()
        self.report.whole_runs += 1
        if files_of(self.work) != self.reference:
            self._differences(files_of(self.work), "after the next run")
        for fault in damaged_cache_entries(self.cache):
            self._fault(f"after the next run: {fault}")
        if "Traceback" in ended.err:
            self._fault(f"the next run: {ended.err[-300:]}")
        self._remove_outputs()

    def _kill_once(self, longest_s: float) -> None:
        number = choose_signal(self.rng)
        log, before = self.folder / "stderr", files_of(self.work)
        with log.open("wb") as err:
            process = subprocess.Popen(
                [*HARKEN, *self.arguments],
                cwd=self.work,
                env=environment(self.cache),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=err,
            )
            # What is done is skipped, so that less time is left to hit.
            undone = 1 - len(before.keys() & self.reference.keys()) / len(self.reference)
            killed = kill_after(process, self.rng.uniform(0, longest_s * (0.4 + 0.6 * undone)), number)
            code = process.wait(60)
        text = log.read_text(errors="replace")
        files = files_of(self.work)
        if not killed:
            if code:
                self._fault(f"exit code {code} without a kill: {text[-300:]}")
            self.report.stages[STAGES[-1]] += 1
            return
        self.report.add(number.name, self._stage(files, text))
        for fault in end_faults(code, number, text):
            self._fault(fault)
        # What a gentle signal leaves is for people to see: partial transcripts and journals.
        allowed = (".resume.jsonl", *(f".{name}.partial" for name in FORMATS.split(",")))
        for name, content in files.items():
            if name in self.reference:
                if content != self.reference[name]:
                    self._fault(f"{name} is broken after {number.name} ({len(content)} bytes)")
            elif not name.endswith(allowed) and not (_is_hidden(name) and (number == HARD or name in before)):
                self._fault(f"{name} is there after {number.name}")
        for name, content in self.inputs.items():
            if files.get(name) != content:
                self._fault(f"the recording {name} was changed by {number.name}")
        for fault in damaged_cache_entries(self.cache, leftovers=False):
            self._fault(f"after {number.name}: {fault}")

    def _stage(self, files: dict[str, bytes], err: str) -> str:
        """Say where the kill hit, by what was on the disk."""
        if any(_is_hidden(name) and content for name, content in files.items()):
            return "writing"
        if " loaded in " in err:
            return "decoding"
        hidden = any(path.name.startswith(".") for path in (self.cache / "graphs").glob("*"))
        return "building graphs" if hidden else "starting or loading"

    def _run_whole(self) -> Ended:
        ended = run(self.arguments, self.work, self.cache)
        if ended.code:
            self._fault(f"a run without a kill: exit code {ended.code}: {ended.err.strip()[-300:]}")
            if not hasattr(self, "reference"):
                raise SystemExit(ended.err.strip().splitlines()[-1])
        return ended

    def _remove_outputs(self) -> None:
        for path in self.work.iterdir():
            if path.name not in self.inputs:
                path.unlink()

    def _differences(self, files: dict[str, bytes], when: str) -> None:
        for name in sorted(files.keys() | self.reference.keys()):
            if files.get(name) != self.reference.get(name):
                state = (
                    "missing" if name not in files else "left over" if name not in self.reference else "broken"
                )
                self._fault(f"{name} is {state} {when}")

    def _fault(self, text: str) -> None:
        self.report.fault(f"{self.folder}: {text}")


def _is_hidden(name: str) -> bool:
    return Path(name).name.startswith(".harken-")


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="number of kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--model", default="tiny.en", help="name or path; 'random' is a tiny one of random weights"
    )
    parser.add_argument(
        "--what", default="transcribe,listen", help="transcribe, listen, finetune; separated by commas"
    )
    parser.add_argument("--recordings", type=int, default=len(RECORDINGS), help="number of files of the batch")
    parser.add_argument("--plain", action="store_true", help="transcribe without --resume")
    return parser.parse_args(arguments)


def kill_all(given: argparse.Namespace, folder: Path) -> Report:
    """Kill as often as asked for; return the counts."""
    from live_kills import Listening
    from training_kills import Training

    report = Report()
    makers = {
        "transcribe": lambda *of: Batch(*of, resume=not given.plain, recordings=given.recordings),
        "listen": Listening,
        "finetune": Training,
    }
    model = given.model
    if model == "random":
        from training_data import write_model

        model = str(write_model(folder / "model").path)

    def job(index: int) -> None:
        rng = random.Random(f"{given.seed} {index}")
        scenes = {
            name: makers[name](folder / f"{name}-{index}", model, rng, report) for name in given.what.split(",")
        }
        # Live audio takes as long as it lasts, so it gets a smaller share.
        weights = [8 if name == "transcribe" else 1 for name in scenes]
        while report.kills.total() < given.count:
            rng.choices([*scenes.values()], weights)[0].kill()

    with ThreadPoolExecutor(given.jobs) as pool:
        for done in [pool.submit(job, index) for index in range(given.jobs)]:
            done.result()
    return report


def main(arguments: list[str] | None = None) -> int:
    """Kill, print what happened, and return 1 if anything was lost or broken."""
    given = parse_arguments(arguments)
    folder = Path(tempfile.mkdtemp(prefix="harken-kills-"))
    began = time.monotonic()
    report = kill_all(given, folder)
    elapsed_s = time.monotonic() - began
    count = report.kills.total()
    print(f"{count} kills in {elapsed_s:.0f} s ({elapsed_s / max(count, 1):.2f} s each)")
    print("  " + ", ".join(f"{kind} {number}" for kind, number in report.kills.most_common()))
    for stage in (*STAGES, *sorted(report.stages.keys() - set(STAGES))):
        number = report.stages[stage]
        print(f"  {stage:<22} {number:>5} {'#' * round(50 * number / max(report.stages.total(), 1))}")
    print(f"whole runs afterwards: {report.whole_runs}; faults: {len(report.faults)}")
    if report.faults:
        print(f"kept: {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
