"""The records of a member between its topics and its application.

Where a tenure starts.
"""

from __future__ import annotations

import pytest

from kcoord_wire.marshal.inbox import MOST_WAITING, DataRecord, Gained, Inbox, Lost, choose_start
from kcoord_wire.marshal.member_events import (
    Abandoned,
    Delivered,
    Delivery,
    Fetched,
    LossReason,
    Processed,
    Reset,
    Tenure,
)

ORDERS = Tenure("orders", 0, 7)


def record(offset: int, covers_from: int = -1, tenure: Tenure = ORDERS) -> DataRecord:
    return DataRecord(tenure, offset, offset if covers_from < 0 else covers_from, -1, None, b"v")


def inbox_of(delivery: Delivery, *offsets: int) -> Inbox:
    inbox = Inbox(delivery, batch_records=2)
    inbox.open(ORDERS, 5)
    for offset in offsets:
        inbox.put(record(offset))
    return inbox


def taken(inbox: Inbox) -> list[object]:
    found = []
    while (item := inbox.next_item()) is not None:
        found.append(item.offset if isinstance(item, DataRecord) else item)
    return found


def test_records_come_between_the_notices_of_their_tenure() -> None:
    inbox = inbox_of(Delivery.AT_LEAST_ONCE, 5, 6)
    assert taken(inbox) == [Gained(ORDERS, 5), 5, 6]
    inbox.close(ORDERS, LossReason.TAKEN, 0)
    assert taken(inbox) == [Lost(ORDERS, LossReason.TAKEN, 0)]


def test_what_waits_is_dropped_with_its_tenure() -> None:
    inbox = inbox_of(Delivery.AT_LEAST_ONCE, 5, 6)
    inbox.next_item()
    assert inbox.next_item() == record(5)
    inbox.close(ORDERS, LossReason.EXPIRED, 0)
    inbox.put(record(7))
    assert taken(inbox) == [Lost(ORDERS, LossReason.EXPIRED, 0)]
    assert inbox.has_room
    again = ORDERS._replace(token=8)
    inbox.open(again, 6)
    inbox.put(record(6, tenure=again))
    assert taken(inbox) == [Gained(again, 6), 6]


def test_only_what_was_handed_out_is_delivered_for_the_machine() -> None:
    inbox = inbox_of(Delivery.AT_LEAST_ONCE, 5, 8, 9)
    assert list(inbox.news(0)) == []
    inbox.next_item()
    first, second = inbox.next_item(), inbox.next_item()
    assert isinstance(first, DataRecord)
    assert isinstance(second, DataRecord)
    assert inbox.processed(second)
    assert list(inbox.news(0)) == [Delivered(ORDERS, [5, 8], 9), Processed(ORDERS, [8])]
    assert list(inbox.news(0)) == []
    inbox.processed(first)
    assert list(inbox.news(0)) == [Processed(ORDERS, [5])]


def test_a_record_is_processed_once_and_only_if_handed_out() -> None:
    inbox = inbox_of(Delivery.AT_LEAST_ONCE, 5, 6)
    inbox.next_item()
    inbox.next_item()
    assert inbox.processed(record(5))
    for offset in (5, 6):
        with pytest.raises(ValueError, match=f"offset {offset} of orders-0 was processed before, or not handed out"):
            inbox.processed(record(offset))


def test_what_is_in_hand_may_be_processed_until_the_drain_ends() -> None:
    inbox = inbox_of(Delivery.AT_LEAST_ONCE, 5, 6)
    taken(inbox)
    inbox.close(ORDERS, LossReason.HANDED_OVER, 1_000)
    assert inbox.processed(record(5))
    assert list(inbox.news(999)) == [Delivered(ORDERS, [5, 6], 7), Processed(ORDERS, [5])]
    assert list(inbox.news(1_000)) == []
    assert not inbox.processed(record(6))


def test_abandoned_records_are_not_waited_for() -> None:
    inbox = inbox_of(Delivery.AT_LEAST_ONCE, 5)
    taken(inbox)
    inbox.abandon()
    assert list(inbox.news(0)) == [Delivered(ORDERS, [5], 6), Abandoned(ORDERS)]


def test_at_most_once_hands_out_a_batch_when_it_is_committed() -> None:
    inbox = inbox_of(Delivery.AT_MOST_ONCE)
    inbox.put(record(7, covers_from=5))
    inbox.put(record(8))
    inbox.put(record(9))
    assert list(inbox.news(0)) == [Fetched(ORDERS, 5, 9)]
    assert list(inbox.news(0)) == []
    assert taken(inbox) == [Gained(ORDERS, 5)]
    inbox.committed(ORDERS)
    assert list(inbox.news(0)) == []  # the application has not taken the batch
    assert taken(inbox) == [7, 8]
    assert list(inbox.news(0)) == [Fetched(ORDERS, 9, 10)]
    assert inbox.processed(record(8))


def test_at_most_once_drops_a_batch_whose_tenure_ends() -> None:
    inbox = inbox_of(Delivery.AT_MOST_ONCE, 5, 6, 7)
    list(inbox.news(0))
    inbox.committed(ORDERS)
    inbox.close(ORDERS, LossReason.EXPIRED, 0)
    inbox.committed(ORDERS)
    assert taken(inbox) == [Gained(ORDERS, 5), Lost(ORDERS, LossReason.EXPIRED, 0)]
    assert not inbox.processed(record(5))


@pytest.mark.parametrize("delivery", Delivery)
def test_there_is_no_room_while_many_records_wait(delivery: Delivery) -> None:
    inbox = inbox_of(delivery, *range(5, 5 + MOST_WAITING))
    assert not inbox.has_room
    inbox.close(ORDERS, LossReason.RELEASED, 0)
    assert inbox.has_room


@pytest.mark.parametrize(
    ("from_log", "committed", "start"),
    [(7, 5, 7), (0, 5, 5), (0, 0, 3), (0, None, 3), (0, -1, 3), (10, None, 10), (3, 9, 3)],
)
def test_the_log_comes_first_then_the_commit_then_the_oldest(from_log: int, committed: int | None, start: int) -> None:
    assert choose_start(from_log, committed, 3, 10).offset == start


@pytest.mark.parametrize(("reset", "start"), [(Reset.EARLIEST, 3), (Reset.LATEST, 10)])
def test_a_position_of_another_topic_is_reset_with_a_note(reset: Reset, start: int) -> None:
    assert choose_start(11, 5, 3, 10, reset) == (start, "the log's offset 11 is above the end, 10", True)
    assert choose_start(0, 12, 3, 10, reset) == (start, "the group's committed offset 12 is above the end, 10", True)
    replaced = "the log's offset 5 is of a topic that was deleted, and created again"
    assert choose_start(5, None, 3, 10, reset, is_replaced=True) == (start, replaced, True)
    assert choose_start(0, None, 3, 10, reset, is_replaced=True) == (3, "", False)


def test_an_offset_below_the_oldest_becomes_it_with_a_note() -> None:
    assert choose_start(1, None, 3, 10) == (
        3,
        "the log's offset 1 is below the first record, 3: 2 offsets were removed",
        False,
    )
