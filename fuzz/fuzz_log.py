"""Whatever a segment holds, recovery takes it or refuses it whole; what it took is there again, and can be added to."""

from __future__ import annotations

from fuzz.checksums import mended_segment
from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.events import LogRecord
from kcoord_wire.coordinator.core.groups import replay
from kcoord_wire.coordinator.log.store import Store
from kcoord_wire.kernel.disk import MemoryDisk
from kcoord_wire.log.tail import CorruptLogError

SEGMENT = f"{0:020}.log"
NOW = 1_700_000_000_000
ADDED = LogRecord(m.OffsetCommitKey(group="fuzz", topic="added", partition=0), m.OffsetCommitValue(offset=1))


def check(data: bytes) -> None:
    """`data`: the bytes of a log's only segment; tried as they are, and with checksums that are right."""
    recover_and_go_on(data)
    recover_and_go_on(mended_segment(data))


def recover_and_go_on(data: bytes) -> None:
    disk = MemoryDisk()
    file = disk.open(SEGMENT)
    file.append(data)
    file.sync()
    disk.sync_names()
    store = Store(disk)
    try:
        records = store.recover()
    except CorruptLogError:
        assert disk.read(SEGMENT).read() == data, "what is refused is left alone"
        return
    assert data.startswith(disk.read(SEGMENT).read()), "only the end is cut off"
    replay(records, NOW)
    store.append([ADDED], NOW)
    sync = store.begin_sync()
    assert sync is not None
    sync.run()
    store.end_sync(sync)
    expected = [*(record for record in records if record.key != ADDED.key), ADDED]
    assert Store(disk).recover() == expected
    store.compact()
    assert sorted(map(repr, Store(disk).recover())) == sorted(map(repr, expected))
