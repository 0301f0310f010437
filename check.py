"""Runs every check of a change: style, types and all tests. Arguments go to pytest."""

from __future__ import annotations

import os
import subprocess
import sys

STATIC_CHECKS = {
    "style": ["ruff", "check", "."],
    "layout": ["ruff", "format", "--check", "."],
    "types": ["mypy"],
}
MAX_WORKERS = 4  # each loads its own models
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def main() -> int:
    """Run the tests, with the other checks beside them; return 1 if anything fails."""
    workers = min(os.cpu_count() or 1, MAX_WORKERS)
    tests = ["pytest", "-n", str(workers), "--dist", "worksteal", "--durations", "20", *sys.argv[1:]]
    running = []
    for name, command in STATIC_CHECKS.items():
        process = subprocess.Popen(
            module(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        running.append((name, command, process))
    print(f"== tests: {' '.join(tests)}", flush=True)
    failed = ["tests"] if subprocess.run(module(tests), env=os.environ | ONE_THREAD).returncode else []
    for name, command, process in running:
        output, _ = process.communicate()
        print(f"== {name}: {' '.join(command)}\n{output}", end="", flush=True)
        if process.returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


def module(command: list[str]) -> list[str]:
    return [sys.executable, "-m", *command]


if __name__ == "__main__":
    sys.exit(main())
