"""Topics in memory."""

from __future__ import annotations

import threading

import pytest

from kcoord_wire.marshal.memory import MemoryBroker, StoredRecord


def test_records_have_the_time_of_the_brokers_clock() -> None:
    times = iter([1_000, 999])
    broker = MemoryBroker(clock=lambda: next(times))
    broker.create("t", 1)
    broker.append("t", 0, b"a", b"k")
    broker.append("t", 0, None)
    assert broker.read("t", 0, 0, 10).records == [StoredRecord(0, 1_000, b"k", b"a"), StoredRecord(1, 999, None, None)]


def test_a_read_returns_as_many_records_as_it_may() -> None:
    broker = MemoryBroker()
    broker.create("t", 1)
    for number in range(5):
        broker.append("t", 0, b"%d" % number)
    broker.skip("t", 0, 2)
    broker.trim("t", 0, 1)
    part, rest = broker.read("t", 0, 0, 3), broker.read("t", 0, 4, 3)
    assert ([record.offset for record in part.records], part.next_offset) == ([1, 2, 3], 4)
    assert ([record.offset for record in rest.records], rest.next_offset, rest.low, rest.end) == ([4], 7, 1, 7)


def test_a_partition_that_is_not_there_is_a_key_error() -> None:
    broker = MemoryBroker()
    broker.create("t", 1)
    for partition in (-1, 1):
        with pytest.raises(KeyError, match="t-"):
            broker.append("t", partition, b"")
    broker.delete("t")
    assert broker.partitions("t") == 0


def test_a_waiting_reader_is_woken_by_an_append() -> None:
    broker = MemoryBroker()
    broker.create("t", 1)
    woken = threading.Event()

    def wait() -> None:
        broker.wait_for_records({("t", 0): 0}, 60)
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not woken.wait(0.02)
    broker.append("t", 0, b"x")
    assert woken.wait(30)
    thread.join(30)


def test_appends_of_several_threads_have_offsets_of_their_own() -> None:
    broker = MemoryBroker()
    broker.create("t", 1)
    offsets: list[int] = []
    threads = [
        threading.Thread(target=lambda: offsets.extend(broker.append("t", 0, b"x") for _ in range(200)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(offsets) == list(range(800))
