"""Kinds of workers, and a cluster of two nodes for those of Ray."""

import os
import sys
import warnings

import pytest

from fakes.archive_recognizer import use_in_workers
from harken.batch import BatchOptions


@pytest.fixture(scope="session")
def cluster():
    """A cluster of a node without processors, which is the driver's, and two with one each."""
    pytest.importorskip("ray")
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # its nodes import what the tests do
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "object_store_memory": 100 << 20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=100 << 20)
        yield cluster
        import ray

        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def make_options(request):
    """Make options for workers "in process", in "two processes" or in "a cluster", which is the parameter."""
    values = {} if request.param == "in process" else {"workers": 2}
    if request.param == "a cluster":
        values["ray"] = request.getfixturevalue("cluster").address
    return lambda **others: BatchOptions(**(values | others))


@pytest.fixture
def fakes(monkeypatch):
    """Have all workers transcribe as the content of a file says."""
    use_in_workers(monkeypatch)


@pytest.fixture
def memory():
    """The file system of ``memory://``, which is emptied afterwards."""
    system = pytest.importorskip("fsspec").filesystem("memory")
    yield system
    for path in system.ls("/", detail=False):
        system.rm(path, recursive=True)
