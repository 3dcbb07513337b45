"""Ids of producers: counted, never given away twice."""

from __future__ import annotations

from random import Random

import pytest

from kcoord_wire.coordinator.partitions.journal import Journal
from kcoord_wire.coordinator.partitions.producers import ProducerIds
from kcoord_wire.kernel.disk import MemoryDisk
from kcoord_wire.kernel.virtual.disk import VirtualDisk


def begun(disk: MemoryDisk | VirtualDisk) -> ProducerIds:
    journal = Journal(disk)
    known = journal.load()
    journal.begin(known)
    return ProducerIds(journal, known.producer_ids)


def test_ids_go_on_after_a_power_failure() -> None:
    disk = MemoryDisk()
    given: list[int] = []
    for seed in range(5):
        ids = begun(disk)
        given += [ids.take(now=500) for _ in range(seed * 700 + 1)]
        disk.crash(Random(seed))
    assert given[0] == 500
    assert len(set(given)) == len(given)
    assert given == sorted(given)


def test_ids_that_cannot_be_reserved_are_counted_from_the_time(caplog: pytest.LogCaptureFixture) -> None:
    disk = VirtualDisk(Random(1))
    ids = begun(disk)
    disk.fails_in = 0
    assert [ids.take(now=500), ids.take(now=500)] == [500, 501]
    assert [record.message for record in caplog.records] == [
        "ids of producers from 500 on cannot be reserved: [Errno 5] the disk has failed"
    ]
    assert begun(disk).take(now=600) == 1_501  # reserved with the second
