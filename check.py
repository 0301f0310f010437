"""Runs every check of a change: style, types and all tests. Arguments go to pytest.

``python check.py --fast`` leaves out the tests that take longer or need real models: under a minute.
"""

from __future__ import annotations

import os
import subprocess
import sys

STATIC_CHECKS = {
    "style": ["ruff", "check", "."],
    "layout": ["ruff", "format", "--check", "."],
    "types": ["mypy"],
}
FAST = [
    "-m",
    "not slow and not real",
    *(f"tests/{name}" for name in ("architecture", "decoding", "formats", "text")),
]
MAX_WORKERS = 4  # each loads its own models
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def main() -> int:
    """Run the static checks and the tests at the same time; return 1 if anything fails."""
    running = {
        name: subprocess.Popen(
            module(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        for name, command in STATIC_CHECKS.items()
    }
    chosen = [part for given in sys.argv[1:] for part in (FAST if given == "--fast" else [given])]
    workers = min(os.cpu_count() or 1, MAX_WORKERS)
    command = ["pytest", "-n", str(workers), "--dist", "worksteal", "--durations", "20", "-rs", *chosen]
    print(f"== tests: {' '.join(command)}", flush=True)
    failed = []
    with subprocess.Popen(module(command), env=os.environ | ONE_THREAD) as tests:
        for name, process in running.items():
            output, _ = process.communicate()
            print(f"== {name}: {' '.join(STATIC_CHECKS[name])}\n{output}", end="", flush=True)
            if process.returncode:
                failed.append(name)
    if tests.returncode:
        failed.append("tests")
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


def module(command: list[str]) -> list[str]:
    return [sys.executable, "-m", *command]


if __name__ == "__main__":
    sys.exit(main())
