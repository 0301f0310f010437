"""Fixtures of all tests: reproducible hypothesis, and every backend for the tiny model, built once."""

import os
import re
import signal
from functools import cache
from pathlib import Path

# Matrices this small gain nothing from threads, and the workers share the processors.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
# The processes that tests start compile the modules once, and not each time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest
from hypothesis import HealthCheck, settings

import real_models  # noqa: F401  the workers inherit the cache that it makes
from cli_runner import CliRunner
from harken.errors import BackendUnavailable, OptionError
from tiny_models import make_backend

# A shell ignores them for what it runs in the background, and harken keeps ignored signals so; the tests send them.
for name, action in {"SIGINT": signal.default_int_handler, "SIGHUP": signal.SIG_DFL}.items():
    number = getattr(signal, name, None)
    if number and signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, action)

# The same examples everywhere, however busy the machine is; HYPOTHESIS_PROFILE=explore draws new ones, and more.
settings.register_profile(
    "repeat",
    derandomize=True,
    max_examples=40,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "explore", settings.get_profile("repeat"), derandomize=False, max_examples=200, print_blob=True
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


CHOSEN_MARKERS = {"attack": "takes minutes", "nightly": "takes long, and has its like among the others"}


def pytest_collection_modifyitems(config, items):
    """Skip tests that run only when they are asked for, as with ``pytest -m attack``."""
    chosen = config.getoption("-m")
    for item in items:
        for marker, reason in CHOSEN_MARKERS.items():
            if marker not in chosen and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=f"{reason}; pytest -m {marker} runs it"))


def pytest_sessionfinish(session):
    """Fail on skips whose reason is on no line of the file HARKEN_EXPECTED_SKIPS, where that is set."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    expected = os.environ.get("HARKEN_EXPECTED_SKIPS")
    if not expected or reporter is None:  # a worker, which reports to the session that decides
        return
    patterns = [line for line in Path(expected).read_text().splitlines() if line and not line.startswith("#")]
    reasons = {
        report.longrepr[2] for report in reporter.stats.get("skipped", ()) if type(report.longrepr) is tuple
    }
    for reason in sorted(reasons):
        if not any(re.search(pattern, reason) for pattern in patterns):
            reporter.write_line(f"not expected: {reason}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def open_backend(tmp_path_factory):
    """Return a function from a name in `tiny_models.BACKENDS` to that backend; it skips where this machine lacks it."""
    graphs = tmp_path_factory.mktemp("graphs")

    @cache
    def build(name):
        try:
            return make_backend(name, graphs)
        except (OptionError, BackendUnavailable) as error:
            return error

    def open_or_skip(name):
        backend = build(name)
        if isinstance(backend, OptionError | BackendUnavailable):
            pytest.skip(str(backend))
        return backend

    return open_or_skip


@pytest.fixture(scope="session")
def reference_backend(open_backend):
    """The numpy backend for the tiny model."""
    return open_backend("numpy")


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    """The command line in an empty folder, offline."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # a command sets it where no bar is shown
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return CliRunner(capsys, monkeypatch)
