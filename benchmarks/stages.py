"""Time of each stage of a transcription: every moment belongs to one stage, so the stages add up to the whole.

python benchmarks/stages.py --limit 12 --save stages
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from program import DEFAULT_SET, Args, Program, Row, add, main, note
from recordings import read_sets

AUDIO, MEL, ENCODER = "file to samples", "log-mel and voice activity", "encoder"
PROMPT, STEP = "decoder, prompts", "decoder, steps"
CHOICE, TEXT = "logit rules and choice", "segments and text"


class Account:
    """Seconds and calls of the stages: the time since the last call belongs to the stage named."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._last = perf_counter()

    def __call__(self, stage: str, calls: int = 1) -> None:
        """End a call of a stage; a part of a call counts as none."""
        now = perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self.calls[stage] = self.calls.get(stage, 0) + calls
        self._last = now


class TimedSession:
    """A session that books the time of its decoder passes."""

    def __init__(self, session: Any, account: Account) -> None:
        self._session, self._account = session, account

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def extend(self, tokens: Sequence[Sequence[int]], last_n: int = 1) -> Any:
        """Append tokens."""
        stage = STEP if max(self._session.lengths) else PROMPT
        self._account(CHOICE)
        logits = self._session.extend(tokens, last_n)
        self._account(stage)
        return logits

    def pick_best(self, rules: Any, picked: Sequence[Any], most: int) -> Any:
        """Pick tokens in some steps, rules and choice included."""
        self._account(CHOICE, 0)
        ids, logprobs = self._session.pick_best(rules, picked, most)
        self._account(STEP, len(ids))
        return ids, logprobs


class TimedBackend:
    """A backend that books the time of its calls."""

    def __init__(self, backend: Any, account: Account) -> None:
        self._backend, self._account = backend, account

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode(self, *arguments: Any) -> Any:
        """Encode windows."""
        self._account(MEL)
        features = self._backend.encode(*arguments)
        self._account(ENCODER)
        return features

    def open_session(self, *arguments: Any, **options: Any) -> TimedSession:
        """Open a session that books the time of its calls."""
        return TimedSession(self._backend.open_session(*arguments, **options), self._account)


def options(parser: argparse.ArgumentParser) -> None:
    add(parser, "--precision", "auto", "of the model")
    add(parser, "--repeats", 3, "runs, of which the fastest counts")


def rows(args: Args) -> Iterator[Row]:
    """Yield a row for each stage of the fastest run, and one for all."""
    import harken

    recognizer = harken.load(args.model, precision=args.precision, threads=args.threads)
    entries = [entry for _, entry in read_sets(args)]
    runs = []
    for repeat in range(args.repeats):
        runs.append(profile(recognizer, entries))
        note(f"{repeat + 1} of {args.repeats}: {sum(runs[-1].seconds.values()):.2f} s")
    best = min(runs, key=lambda run: sum(run.seconds.values()))
    total_s = sum(best.seconds.values())
    for stage, seconds in best.seconds.items():
        calls = best.calls[stage]
        yield {
            "stage": stage,
            "calls": calls,
            "call_ms": round(1000 * seconds / calls, 4) if calls else None,
            "seconds": round(seconds, 4),
            "share_percent": round(100 * seconds / total_s, 2),
        }


def profile(recognizer: Any, entries: Sequence[Any]) -> Account:
    """Transcribe all recordings once."""
    import harken
    from harken.audio import load_audio

    account = Account()
    timed: Any = TimedBackend(recognizer.backend, account)
    timed_recognizer = harken.Recognizer(timed, recognizer.tokenizer, recognizer.model)
    for entry in entries:
        samples = load_audio(entry.path)
        account(AUDIO)
        timed_recognizer.transcribe(
            samples,
            on_window_end=lambda start_s, decoded, attempts: account(CHOICE, calls=0),
            on_progress=lambda done_s, finished: account(TEXT, calls=int(not finished)),
        ).result()
        account(TEXT, calls=0)
    return account


if __name__ == "__main__":
    main(
        Program(
            doc=__doc__, name="stages", rows=rows, options=options, model="tiny.en", sets=(DEFAULT_SET,),
            settings=("precision", "set", "repeats"),
        )
    )  # fmt: skip
