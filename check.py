"""Everything that must hold before a change lands: style, types, tests. Arguments go to pytest."""

from __future__ import annotations

import subprocess
import sys

CHECKS = {
    "style": ["ruff", "check", "."],
    "layout": ["ruff", "format", "--check", "."],
    "types": ["mypy"],
    "tests": ["pytest", *sys.argv[1:]],
}


def main() -> int:
    """Run every check, the later ones too where one fails, and say which failed."""
    failed = []
    for name, command in CHECKS.items():
        print(f"== {name}: {' '.join(command)}", flush=True)
        if subprocess.run([sys.executable, "-m", *command]).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
