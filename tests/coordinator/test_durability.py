"""The log behind a real socket: what a restart keeps, how writes are shared, and a disk that fails."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.coordinator.coordinator import Coordinator
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.host import Runtime
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.kernel.disk import LogInUseError
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.fixtures import StartCoordinator
from tests.support.group_client import (
    SOON,
    VERSIONS,
    become_stable,
    commit,
    commit_request,
    committed,
    join_request,
)
from tests.support.waiting import eventually
from tests.support.wire import Wire


def test_acknowledged_data_survives_a_restart(coordinator: StartCoordinator, tmp_path: Path) -> None:
    before = coordinator(data_dir=tmp_path)
    with Wire(before.address) as wire:
        heartbeat = become_stable(wire, "g")
        assert commit(wire, "simple", 42) == 0
    before.stop()
    with Wire(coordinator(data_dir=tmp_path).address) as wire:
        assert wire.call(heartbeat, 4).error_code == 0
        assert committed(wire, "simple") == 42


def test_a_folder_has_one_coordinator(coordinator: StartCoordinator, tmp_path: Path) -> None:
    coordinator(data_dir=tmp_path)
    with pytest.raises(LogInUseError):
        Coordinator(data_dir=tmp_path).start()


def test_commits_share_a_sync(coordinator: StartCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = 0
    write = Store._write

    def slow_write(store: Store, batches: Any) -> None:
        nonlocal syncs
        syncs += 1
        time.sleep(0.1)
        write(store, batches)

    monkeypatch.setattr(Store, "_write", slow_write)
    c = coordinator(data_dir=tmp_path)
    wires = [Wire(c.address) for _ in range(40)]
    try:
        sent = [wire.send(commit_request(f"g{n}", n), 8) for n, wire in enumerate(wires)]
        for wire, correlation_id in zip(wires, sent, strict=True):
            assert wire.receive(correlation_id).topics[0].partitions[0].error_code == 0
    finally:
        for wire in wires:
            wire.close()
    assert syncs < 20


def test_a_log_that_fails_is_read_again(
    coordinator: StartCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Store._write
    broken = threading.Event()

    def failing_write(store: Store, batches: Any) -> None:
        if broken.is_set():
            store._usable = False
            raise OSError(28, "no space left on device")
        write(store, batches)

    monkeypatch.setattr(Store, "_write", failing_write)
    with Wire(coordinator(data_dir=tmp_path).address) as wire:
        assert commit(wire, "g", 1) == 0
        broken.set()
        assert commit(wire, "g", 2) == ErrorCode.NOT_COORDINATOR
        broken.clear()
        eventually(lambda: commit(wire, "h", 3) == 0)
        assert committed(wire, "g") == 1


@pytest.mark.parametrize(("of", "name"), [(Store, "recover"), (Runtime, "load")])
def test_a_fault_while_the_log_is_read_is_told(
    coordinator: StartCoordinator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    of: type,
    name: str,
) -> None:
    genuine, write = getattr(of, name), Store._write
    faults, failures = [RuntimeError("planted")], list[OSError]()

    def planted(*args: Any) -> Any:
        if faults:
            raise faults.pop()
        return genuine(*args)

    def failing_write(store: Store, batches: Any) -> None:
        if failures:
            store._usable = False
            raise failures.pop()
        write(store, batches)

    monkeypatch.setattr(of, name, planted)
    monkeypatch.setattr(Store, "_write", failing_write)
    with pytest.raises(RuntimeError, match="planted"):
        coordinator(data_dir=tmp_path)
    with Wire(coordinator(data_dir=tmp_path).address) as wire:
        assert commit(wire, "g", 1) == 0
        faults.append(RuntimeError("planted"))
        failures.append(OSError(28, "no space left on device"))
        assert commit(wire, "g", 2) == ErrorCode.NOT_COORDINATOR
        eventually(lambda: commit(wire, "h", 3) == 0)
        assert committed(wire, "g") == 1
    assert not faults
    [told] = [record for record in caplog.records if "RuntimeError('planted')" in record.message]
    assert told.exc_info is not None, "with its traceback"


def test_groups_that_move_while_the_disk_fails_are_read_later(
    coordinator: StartCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = []

    def failing_read(store: Store, wanted: Any) -> Any:
        failures.append(wanted)
        raise OSError(5, "input/output error")

    c = coordinator(data_dir=tmp_path, brokers=2)
    old = c.coordinator_of("g")
    with Wire(c.addresses[old]) as at_old, Wire(c.addresses[1 - old]) as at_new:
        assert commit(at_old, "g", 1) == 0
        monkeypatch.setattr(Store, "read", failing_read)
        c.move_coordinator("g", 1 - old)
        eventually(lambda: commit(at_new, "g", 2) == 0)
        assert len(failures) == 1
        assert committed(at_new, "g") == 2


def test_groups_are_refused_while_the_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recover = Store.recover
    may_go_on = threading.Event()

    def slow_recover(store: Store) -> Any:
        assert may_go_on.wait(SOON)
        return recover(store)

    monkeypatch.setattr(Store, "recover", slow_recover)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    c = Coordinator({"orders": 12}, port=port, config=GroupConfig(initial_rebalance_delay_ms=0))
    starting = threading.Thread(target=c.start)
    starting.start()
    try:
        eventually(lambda: accepts(port))
        with Wire("127.0.0.1", port) as wire:
            loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert wire.call(join_request("g"), 9).error_code == loading
            assert commit(wire, "g", 1) == loading
            assert wire.call(kw.HeartbeatRequest(group_id="g", member_id="m"), 4).error_code == 0
            assert wire.call(VERSIONS, 3).error_code == 0
            may_go_on.set()
            starting.join(SOON)
            assert become_stable(wire, "g")
    finally:
        may_go_on.set()
        starting.join(SOON)
        c.stop()


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
