"""What waits for the disk, what does not, and what happens to it when the disk fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.brokers import Brokers
from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
from kcoord_wire.coordinator.core.events import RebalanceReport, Request
from kcoord_wire.coordinator.core.machine import GroupMachine
from kcoord_wire.coordinator.host import DurableLog, HostIO, Runtime
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.kernel.disk import MemoryDisk
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.scripted import Topics, protocols, subscribed

NOW = 1_700_000_000_000


class Host:
    """A runtime on a disk in memory, with scripted time."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        config = GroupConfig(initial_rebalance_delay_ms=0)
        machine = GroupMachine(Brokers([Endpoint(1, "localhost", 9092)]), Topics(), subscribed, config)
        self.disk = disk or MemoryDisk()
        self.answers: dict[int, Any] = {}
        self.accounts: list[RebalanceReport] = []
        self.runtime = Runtime(machine, Store(self.disk), self._send, self.accounts.append)
        self.token = 0

    def _send(self, token: int, message: Any) -> None:
        assert token not in self.answers, "a request is answered twice"
        self.answers[token] = message

    def send(self, message: Any, version: int) -> int:
        self.token += 1
        self.runtime.submit(Request(self.token, message, version, "c", "/127.0.0.1", f"u{self.token}"), NOW)
        return self.token

    def commit(self, offset: int, group: str = "g", partition: int = 0) -> int:
        item = m.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        topic = m.OffsetCommitRequestTopic(name="orders", partitions=[item])
        return self.send(m.OffsetCommitRequest(group_id=group, topics=[topic]), 8)

    def fetch(self, group: str = "g", partition: int = 0) -> int:
        topic = m.OffsetFetchRequestTopic(name="orders", partition_indexes=[partition])
        return self.send(m.OffsetFetchRequest(group_id=group, topics=[topic]), 5)

    def sync(self) -> bool:
        sync = self.runtime.begin_sync()
        if sync is None:
            return False
        sync.run()
        self.runtime.end_sync(sync)
        return True

    def offset(self, token: int) -> int:
        return int(self.answers[token].topics[0].partitions[0].committed_offset)


@pytest.fixture
def host() -> Host:
    host = Host()
    host.runtime.recover(NOW)
    return host


def test_a_commit_is_answered_when_it_is_on_disk(host: Host) -> None:
    token = host.commit(5)
    assert (host.runtime.held, token in host.answers) == (1, False)
    assert host.sync()
    assert host.answers[token].topics[0].partitions[0].error_code == 0
    assert not host.sync()


def test_reads_wait_for_what_is_not_on_disk(host: Host) -> None:
    first = host.commit(5)
    host.sync()
    host.commit(6)
    read = host.fetch()
    other = host.fetch("other")
    assert read not in host.answers
    assert host.offset(other) == -1  # nothing of that group is on its way to the disk
    host.sync()
    assert (host.offset(read), first in host.answers) == (6, True)


def test_what_comes_during_a_write_goes_into_the_next(host: Host) -> None:
    first = host.commit(5)
    sync = host.runtime.begin_sync()
    assert sync is not None
    later = [host.commit(offset, partition=1) for offset in range(20)]
    sync.run()
    host.runtime.end_sync(sync)
    assert first in host.answers
    assert not any(token in host.answers for token in later)
    host.sync()
    assert all(token in host.answers for token in later)
    assert not host.sync()


def test_heartbeats_do_not_wait_for_the_disk(host: Host) -> None:
    join = m.JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, protocol_type="consumer", protocols=protocols("range")
    )
    join_token = host.send(join, 3)
    member_id = host.answers[join_token].member_id
    sync = host.send(m.SyncGroupRequest(group_id="g", generation_id=1, member_id=member_id), 3)
    beat = host.send(m.HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id), 3)
    assert host.answers[beat].error_code == 0
    assert sync not in host.answers
    host.sync()
    assert host.answers[sync].error_code == 0


def test_a_disk_that_fails_takes_nothing_along(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.commit(5)
    host.sync()
    lost = host.commit(6)
    sync = host.runtime.begin_sync()
    assert sync is not None
    late = host.commit(7, partition=1)
    monkeypatch.setattr(type(sync), "run", lambda self: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        sync.run()
    monkeypatch.undo()
    host.runtime.sync_failed(NOW)
    for token in (lost, late):
        assert host.answers[token].topics[0].partitions[0].error_code == E.NOT_COORDINATOR
    refused = host.fetch()
    assert host.answers[refused].error_code == E.NOT_COORDINATOR
    host.runtime.recover(NOW)
    assert (host.offset(host.fetch()), host.offset(host.fetch(partition=1))) == (5, -1)
    again = host.commit(8)
    assert again not in host.answers  # the numbers of appends are in step with the log again
    host.sync()
    assert host.offset(host.fetch()) == 8


def test_a_new_start_knows_what_was_acknowledged(host: Host) -> None:
    for offset in range(10):
        host.commit(offset)
        host.sync()
    host.commit(99)  # not synced: its client was never told
    host.runtime.store.close()
    other = Host(host.disk)
    other.runtime.recover(NOW)
    assert other.offset(other.fetch()) == 9


def test_appends_reach_the_log_though_a_reply_fails(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    join = m.JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, protocol_type="consumer", protocols=protocols("range")
    )
    member_id = host.answers[host.send(join, 3)].member_id
    host.send(m.SyncGroupRequest(group_id="g", generation_id=1, member_id=member_id), 3)

    def fail(account: RebalanceReport) -> None:
        raise RuntimeError("nobody listens")

    monkeypatch.setattr(host.runtime, "_perform", fail)
    with pytest.raises(RuntimeError, match="nobody listens"):
        host.send(m.LeaveGroupRequest(group_id="g", member_id=member_id), 2)
    monkeypatch.undo()
    token = host.commit(5, "other")
    host.sync()
    assert token in host.answers  # the machine and the log count alike


class Surroundings(HostIO):
    """Surroundings in which everything ends when the test says."""

    def __init__(self) -> None:
        self.now: Callable[[], int] = lambda: NOW
        self.running: list[tuple[str, Callable[[], None]]] = []

    def run(self, what: str, work: Callable[[], Any], done: Callable[[Any], None], failed: Any) -> None:
        def end() -> None:
            try:
                result = work()
            except OSError as error:
                failed(error)
            else:
                done(result)

        self.running.append((what, end))

    def end_all(self) -> list[str]:
        running, self.running = self.running, []
        for _, end in running:
            end()
        return [what for what, _ in running]


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_log_that_stops_writes_and_loads_nothing(
    host: Host, monkeypatch: pytest.MonkeyPatch, is_readable: bool
) -> None:
    io, moved = Surroundings(), list[int]()
    log = DurableLog("groups", host.runtime, io, lambda group: 0 if group == "moved" else 1)
    log.move(frozenset({0}), lambda: moved.append(1))
    first = host.commit(5)
    log.commit()
    second = host.commit(6)
    if not is_readable:
        monkeypatch.setattr(host.runtime.store, "read", lambda wanted: (_ for _ in ()).throw(OSError(5, "no disk")))
    log.stop()
    log.move(frozenset({0}), lambda: moved.append(2))
    assert moved == [1, 2], "nobody waits for what is not loaded"
    assert io.end_all() == ["load", "write"]
    log.commit()
    assert io.end_all() == ["write"], "it does not load again and again"
    errors = [host.answers[token].topics[0].partitions[0].error_code for token in (first, second)]
    assert errors == [E.NONE, E.NONE]
