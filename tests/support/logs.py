"""Logs of a coordinator for tests: records, whole logs as bytes, and what is read back of them."""

from __future__ import annotations

import kcoord_wire as kw
from kcoord_wire.coordinator.core.events import LogRecord
from kcoord_wire.coordinator.log.store import Store, Sync
from kcoord_wire.kernel.disk import Disk, MemoryDisk
from kcoord_wire.records import (
    RecordBatch,
    read_records,
)

State = dict[tuple[str, int], int]  # group and partition -> offset
FIRST = "00000000000000000000.log"


NOW = 1_700_000_000_000


def commit(group: str, partition: int, offset: int, metadata: str = "") -> LogRecord:
    return LogRecord(
        kw.OffsetCommitKey(group=group, topic="orders", partition=partition),
        kw.OffsetCommitValue(offset=offset, metadata=metadata, commit_timestamp=NOW),
    )


def removal(group: str, partition: int) -> LogRecord:
    return LogRecord(kw.OffsetCommitKey(group=group, topic="orders", partition=partition), None)


def state(records: list[LogRecord]) -> State:
    """What a coordinator makes of records."""
    found: State = {}
    for key, value in records:
        if value is None:
            found.pop((key.group, key.partition), None)
        else:
            found[key.group, key.partition] = value.offset
    return found


def begun(store: Store, *appends: list[LogRecord]) -> Sync:
    """A write with `appends` that has not run."""
    for records in appends:
        store.append(records, NOW)
    sync = store.begin_sync()
    assert sync is not None
    return sync


def write(store: Store, *appends: list[LogRecord]) -> Sync:
    """One write with `appends`."""
    sync = begun(store, *appends)
    sync.run()
    store.end_sync(sync)
    return sync


def recovered(disk: Disk) -> tuple[Store, State]:
    store = Store(disk)
    return store, state(store.recover())


def content(disk: Disk) -> dict[str, bytes]:
    found = {}
    for name in disk.sizes():
        with disk.read(name) as file:
            found[name] = file.read()
    return found


def disk_of(files: dict[str, bytes]) -> MemoryDisk:
    disk = MemoryDisk()
    for name, data in files.items():
        file = disk.open(name)
        file.append(data)
        file.sync()
    disk.sync_names()
    return disk


def batches(data: bytes) -> list[RecordBatch]:
    found = list(read_records(data))
    assert all(isinstance(batch, RecordBatch) for batch in found)
    return [batch for batch in found if isinstance(batch, RecordBatch)]


def log_of(*writes: list[LogRecord]) -> tuple[bytes, list[int]]:
    """A segment with a batch for each of `writes`, and where these begin and end."""
    disk = MemoryDisk()
    store, _ = recovered(disk)
    bounds = [0]
    for records in writes:
        write(store, records)
        bounds.append(disk.sizes()[FIRST])
    return content(disk)[FIRST], bounds


WRITES = [
    [commit("a", 0, 1)],
    [commit("a", 0, 2), commit("b", 1, 3, "note")],
    [removal("a", 0), commit("b", 1, 4)],
    [commit("c", 7, 5)],
    [commit("a", 0, 6), removal("c", 7)],
]


STATES = [state([record for records in WRITES[:n] for record in records]) for n in range(len(WRITES) + 1)]
