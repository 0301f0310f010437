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


EACH_FROM_THE_START = """
import os, sys
from importlib import import_module

bare = {*sys.modules}
for module in sys.argv[1:]:
    for name in {*sys.modules} - bare:  # numpy cannot be imported twice
        if name.partition(".")[0] in ("harken", "openvino_telemetry"):
            del sys.modules[name]
    os.environ.pop("ORT_DISABLE_TELEMETRY", None)
    import_module(module)
    assert sys.modules["openvino_telemetry"] is None, module
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1", module
    assert {"openvino", "onnxruntime"}.isdisjoint(sys.modules), module
"""


def test_every_module_of_the_cpu_engine_turns_telemetry_off() -> None:
    modules = [module for module in MODULES if inside(module, "harken.backends.onnx")]
    assert len(modules) > 5
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [sys.executable, "-c", EACH_FROM_THE_START, *modules],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_what_the_user_has_set_is_left_alone() -> None:
    code = (
        "import os, sys, types\n"
        "theirs = sys.modules['openvino_telemetry'] = types.ModuleType('openvino_telemetry')\n"
        "import harken.backends.onnx\n"
        "assert sys.modules['openvino_telemetry'] is theirs\n"
        "assert os.environ['ORT_DISABLE_TELEMETRY'] == '0'\n"
    )
    environment = os.environ | {"ORT_DISABLE_TELEMETRY": "0"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)


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
