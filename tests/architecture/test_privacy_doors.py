"""The packages that report to their makers are imported in one place each, behind what turns the reports off."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_imports import MODULES, imports, inside

DOORS = {
    "onnxruntime": "harken.backends.onnx.runtimes",
    "openvino": "harken.backends.onnx.runtimes",
    "huggingface_hub": "harken.checkpoints.hub",
}


@pytest.mark.parametrize(("package", "door"), DOORS.items())
def test_packages_with_telemetry_are_imported_in_one_module(package: str, door: str) -> None:
    importing = {module for module in MODULES if any(inside(imported, package) for imported in imports(module))}
    assert importing == {door}


def test_reports_are_off_before_a_runtime_is_imported_and_what_the_user_has_set_is_left_alone() -> None:
    code = (
        "import os, sys\n"
        "from harken.backends.onnx import runtimes\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('openvino', 'onnxruntime'):\n"
        "            telemetry = sys.modules.get('openvino_telemetry', 'free')\n"
        "            print(name, os.environ.get('ORT_DISABLE_TELEMETRY'), telemetry)\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "for door in (runtimes.import_onnxruntime, runtimes.import_openvino):\n"
        "    try:\n"
        "        door()\n"
        "    except ImportError:\n"
        "        pass\n"
        "assert 'openvino_telemetry' not in sys.modules\n"
    )

    def run(**variables: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, env=environment | variables, capture_output=True, text=True, check=True, timeout=120
        ).stdout

    assert run() == "onnxruntime 1 free\nopenvino 1 None\n"
    assert run(ORT_DISABLE_TELEMETRY="0") == "onnxruntime 0 free\nopenvino 0 None\n"


def test_openvino_sends_nothing_and_the_users_own_code_still_can(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    code = (
        "import sys, types\n"
        "from harken.backends.onnx.runtimes import import_openvino\n"
        "import_openvino()\n"
        "users = sys.modules.get('openvino.tools.ovc.telemetry_utils')\n"
        "assert users is None or users.tm.__name__ == 'openvino.tools.ovc.telemetry_stub'\n"
        "assert 'openvino_telemetry' not in sys.modules\n"
        "theirs = sys.modules['openvino_telemetry'] = types.ModuleType('openvino_telemetry')\n"
        "import_openvino()\n"
        "assert sys.modules['openvino_telemetry'] is theirs\n"
    )
    home = {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path)}
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | home
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
    assert list(tmp_path.iterdir()) == []
