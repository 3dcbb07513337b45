"""The inbox: what it hands over, which positions move, and what it holds."""

from __future__ import annotations

import asyncio
from typing import Any

from kcoord_wire.central.draft.events import CentralError, Partition, StartFetchers
from kcoord_wire.central.fetcher import LARGEST_INBOX, Inbox, Record

P0, P1 = Partition("orders", "1-0"), Partition("orders", "1-1")


class Watched(Inbox):
    """An inbox that keeps its calls of the host."""

    def __init__(self, **offsets: int) -> None:
        named = {"p0": P0, "p1": P1}
        self.moved: list[tuple[Partition, int]] = []
        self.failed: list[tuple[Partition, CentralError]] = []
        self.arrivals = 0
        threads = {"t": {named[name]: offset for name, offset in offsets.items()}}
        super().__init__(
            StartFetchers(threads, ()),
            lambda partition, offset: self.moved.append((partition, offset)),
            lambda partition, error: self.failed.append((partition, error)),
            self.arrive,
        )

    def arrive(self) -> None:
        self.arrivals += 1

    def hand_over(self) -> Record:
        record = self.next_record()
        assert record is not None
        return record


def values(*offsets: int) -> list[tuple[int, bytes]]:
    return [(offset, b"v") for offset in offsets]


def test_records_are_handed_over_in_the_order_of_their_arrival() -> None:
    inbox = Watched(p0=5, p1=8)
    inbox.put(P0, values(5, 6), 9)
    inbox.put(P1, values(8), 9)
    taken = [inbox.hand_over() for _ in range(3)]
    assert [(record.partition, record.offset, record.thread) for record in taken] == [
        (P0, 5, "t"), (P0, 6, "t"), (P1, 8, "t"),
    ]  # fmt: skip
    assert inbox.next_record() is None
    assert inbox.arrivals == 2


def test_a_position_moves_past_what_was_processed() -> None:
    inbox = Watched(p0=5)
    inbox.put(P0, values(5, 9), 12)
    first, second = inbox.hand_over(), inbox.hand_over()
    assert inbox.moved == []
    inbox.processed(first)
    assert (inbox.partitions[P0].position, inbox.partitions[P0].lag) == (6, 6)
    inbox.processed(second)  # offsets may have gaps
    assert inbox.moved == [(P0, 6), (P0, 10)]
    assert inbox.partitions[P0].processed == 2


def test_a_closed_inbox_moves_and_hands_over_nothing() -> None:
    inbox = Watched(p0=5, p1=-1)
    inbox.put(P0, values(5, 6), 7)
    record = inbox.hand_over()
    assert inbox.close() == {P0: 5}
    inbox.processed(record)
    inbox.put(P0, values(7), 8)
    inbox.resolve(P1, 3)
    inbox.fail(P0, CentralError.STALE_EPOCH)
    assert (inbox.next_record(), inbox.moved, inbox.failed, inbox.arrivals) == (None, [], [], 1)


def test_a_partition_with_waiting_records_is_not_fetched() -> None:
    inbox = Watched(p0=5, p1=5)
    inbox.put(P0, values(5), 6)
    assert (inbox.wants(P0), inbox.wants(P1)) == (False, True)
    inbox.hand_over()
    assert inbox.wants(P0)
    assert inbox.partitions[P0].next_fetch == 6


def test_a_full_inbox_wants_nothing() -> None:
    inbox = Watched(p0=5, p1=5)
    inbox.put(P0, [(5, bytes(LARGEST_INBOX))], 6)
    assert not inbox.wants(P1)
    inbox.hand_over()
    assert inbox.wants(P1)


def test_a_partition_that_failed_is_not_fetched() -> None:
    inbox = Watched(p0=5)
    inbox.fail(P0, CentralError.OFFSET_OUT_OF_RANGE)
    assert inbox.failed == [(P0, CentralError.OFFSET_OUT_OF_RANGE)]
    assert not inbox.wants(P0)


def test_a_resolved_offset_is_a_position() -> None:
    """Without one a consumer that saw no record would begin at the end again after the next rebalance."""
    inbox = Watched(p0=-1)
    assert inbox.partitions[P0].lag is None
    inbox.resolve(P0, 40)
    assert inbox.moved == [(P0, 40)]
    assert inbox.close() == {P0: 40}


def test_room_comes_with_each_record_that_is_taken() -> None:
    async def scenario() -> Any:
        inbox = Watched(p0=5)
        inbox.put(P0, values(5), 6)
        waits = [asyncio.create_task(inbox.wait_for_room()) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(wait.done() for wait in waits)
        inbox.hand_over()
        await asyncio.wait_for(asyncio.gather(*waits), 60)

    asyncio.run(scenario())
