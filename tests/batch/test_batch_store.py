"""The output folder of a batch: files are whole or absent, and one driver at a time writes them, local or by URL."""

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from unittest.mock import Mock

import pytest

from harken.batch import store as store_module
from harken.batch.store import LEASE_FILE, LEASE_S, ROWS, ShardFiles, Store
from harken.errors import OutputError, PlanError

pytest.importorskip("fsspec")


@pytest.fixture
def remote(memory):
    return "memory://out/here"


@pytest.fixture(params=["folder", "file URL", "store"])
def place(request, tmp_path, remote):
    folder = tmp_path / "a b" / "ü"
    return {"folder": str(folder), "file URL": folder.as_uri(), "store": remote}[request.param]


ASKS_THE_SYSTEM = pytest.mark.skipif(os.name != "posix", reason="asks the system whether a process lives")


def lease_of(process, *, age_s=0.0, machine=None):
    machine = store_module._machine() if machine is None else machine
    return json.dumps({"machine": machine, "process": process, "token": "other", "time": time.time() - age_s})


def ended_process():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def take(place):
    with Store(str(place)).locked():
        pass


def test_files_are_written_read_listed_and_removed(place):
    store = Store(place)
    assert store.read("shards/a.jsonl") is None
    assert store.shards(ROWS) == set()
    store.publish("shards/a.jsonl", ["é\n", b"x"])
    store.publish("shards/.b.jsonl", [])
    store.publish("shards/b.json", [])
    assert store.read("shards/a.jsonl") == "é\nx".encode()
    assert store.shards(ROWS) == {"a"}
    assert Store(place + "/").shards(ShardFiles("shards", ".json")) == {"b"}
    store.remove("shards/a.jsonl")
    store.remove("shards/a.jsonl")
    assert store.shards(ROWS) == set()


def test_a_file_whose_content_fails_is_not_there_and_the_one_before_it_stays(place):
    store = Store(place)

    def failing():
        yield "half"
        raise RuntimeError("lost")

    store.publish("old", ["whole"])
    for name in ("old", "new"):
        with pytest.raises(RuntimeError, match="lost"):
            store.publish(name, failing())
    assert store.read("old") == b"whole"
    assert store.read("new") is None


def test_a_folder_that_cannot_be_made_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(OutputError, match="file: cannot be made a folder"):
        take(tmp_path / "file")


def test_a_second_driver_is_refused_until_the_first_has_ended(place):
    with Store(place).locked():
        for _ in range(2):  # one that is refused leaves the lock
            with pytest.raises(PlanError, match="another 'harken batch'"):
                take(place)
    take(place)


def test_a_file_system_without_locks_gets_a_lease(tmp_path, monkeypatch):
    import filelock

    monkeypatch.setattr(filelock.FileLock, "acquire", Mock(side_effect=NotImplementedError("no locks here")))
    with Store(str(tmp_path)).locked():
        assert (tmp_path / LEASE_FILE).exists()
        with pytest.raises(PlanError, match="another 'harken batch'"):
            take(tmp_path)
    assert not (tmp_path / LEASE_FILE).exists()


@pytest.mark.parametrize(
    ("lease", "is_taken"),
    [
        (lambda: lease_of(os.getpid()), False),
        (lambda: lease_of(os.getpid(), age_s=LEASE_S + 1), True),
        (lambda: lease_of(ended_process(), machine="elsewhere"), False),
        (lambda: lease_of(ended_process(), machine="elsewhere", age_s=LEASE_S + 1), True),
        pytest.param(lambda: lease_of(ended_process()), True, marks=ASKS_THE_SYSTEM),
        *((lambda text=text: text, True) for text in ("", "[1]", '{"token": "x"}', "not JSON")),
    ],
)
def test_a_lease_is_taken_over_when_it_is_over_and_else_refused(remote, lease, is_taken):
    store = Store(remote)
    store.publish(LEASE_FILE, [lease()])
    with nullcontext() if is_taken else pytest.raises(PlanError, match="another 'harken batch', process"):
        take(remote)
    assert (store.read(LEASE_FILE) is None) is is_taken


def test_a_lease_is_renewed_also_after_a_while_without_the_store_and_another_driver_that_took_it_keeps_it(
    remote, monkeypatch
):
    store, began_s, passed_s = Store(remote), time.monotonic(), 0.0
    monkeypatch.setattr(store_module.time, "monotonic", lambda: began_s + passed_s)

    def is_renewed():
        before = store.read(LEASE_FILE)
        store.renew()
        return store.read(LEASE_FILE) != before

    with store.locked():
        assert not is_renewed(), "it is not time yet"
        passed_s = LEASE_S / 2
        with monkeypatch.context() as patch:
            patch.setattr(store_module, "read_bytes", Mock(side_effect=RuntimeError("unreachable")))
            store.renew()
        assert not is_renewed(), "a moment later"
        passed_s += 10
        assert is_renewed()
        store.publish(LEASE_FILE, [lease_of(1)])
        passed_s += LEASE_S / 2
        with pytest.raises(PlanError, match="has taken it over"):
            store.renew()
    assert json.loads(store.read(LEASE_FILE))["token"] == "other"


def test_what_a_store_raises_is_one_line_that_names_the_file(remote, memory, monkeypatch):
    store = Store(remote)
    monkeypatch.setattr(store_module, "_PUT_AGAIN_S", (0.0,))
    for method in ("_open", "ls", "pipe_file", "rm_file"):
        monkeypatch.setattr(type(memory), method, Mock(side_effect=RuntimeError("no\nway")))
    for call, error in (
        (lambda: store.read("a"), PlanError),
        (lambda: store.shards(ROWS), PlanError),
        (lambda: store.publish("a", ["x"]), OutputError),
        (lambda: store.remove("a"), OutputError),
    ):
        with pytest.raises(error, match=r"^memory://out/here/\w+: cannot be \w+: RuntimeError: no way$"):
            call()


def test_a_web_server_is_no_output_folder(monkeypatch):
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(store_module, "_PUT_AGAIN_S", ())
    with pytest.raises(OutputError, match=r"^http://127.0.0.1:9/out/_driver.json: cannot be written: "):
        Store("http://127.0.0.1:9/out").publish(LEASE_FILE, ["x"])
