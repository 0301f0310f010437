"""The telemetry of the runtimes, which is turned off before they are imported: harken sends nothing.

OpenVINO reports its import to a statistics service and keeps a client id in the home folder, and ONNX Runtime keeps a
device id there and reports to its maker. Both do so while they are imported, so that what turns them off afterwards is
too late. `tests/cli/test_privacy.py` watches every command.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import cast

OPENVINO_TELEMETRY = "openvino_telemetry"
"""The package that reports; without it OpenVINO takes a stub that does nothing, for the rest of the process."""


def turn_off_telemetry() -> None:
    """Keep the runtimes from reporting to anybody; what the user has imported or set before is left alone."""
    # `None` makes an import fail (docs.python.org, "The import system"), which the type of `sys.modules` does not know.
    cast(dict[str, ModuleType | None], sys.modules).setdefault(OPENVINO_TELEMETRY, None)
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def release_openvino_telemetry() -> None:
    """Let the user's own code import OpenVINO's package of telemetry again, after OpenVINO has taken its stub."""
    if sys.modules.get(OPENVINO_TELEMETRY, ...) is None:
        sys.modules.pop(OPENVINO_TELEMETRY, None)  # another thread may be as far
