"""A consumer as a whole, on a log and topics in memory: threads, clocks, and what the application may do."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from kcoord_wire.errors import EncodeError
from kcoord_wire.marshal import client as client_module
from kcoord_wire.marshal.client import MarshalConsumer
from kcoord_wire.marshal.inbox import DataRecord
from kcoord_wire.marshal.log import Appended, AppendFailed, LogError
from kcoord_wire.marshal.member_events import Balance, Delivery, LossReason, Tenure
from kcoord_wire.marshal.memory import MemoryBroker, MemoryLog, MemoryTopics
from tests.support.waiting import eventually

SECONDS = 30.0
INTERVAL_MS = 1_000


class World:
    """A broker in memory, and the consumers of one group."""

    def __init__(self) -> None:
        self.broker = MemoryBroker()
        self.broker.create("__marshal", 4)
        self.consumers: list[MarshalConsumer] = []

    def fill(self, partitions: int, records: int) -> None:
        self.broker.create("orders", partitions)
        self.append(partitions, records)

    def append(self, partitions: int, records: int) -> None:
        for partition in range(partitions):
            for number in range(records):
                self.broker.append("orders", partition, f"{partition}@{number}".encode())

    def consumer(self, client_id: str, log: MemoryLog | None = None, **settings: Any) -> MarshalConsumer:
        settings = {"heartbeat_interval_ms": INTERVAL_MS, "pass_ms": 100, "greedy": True} | settings
        log = log or MemoryLog(self.broker)
        data = MemoryTopics(self.broker, "g", ["orders"])
        made = MarshalConsumer(log, data, group_id="g", client_id=client_id, topics=["orders"], **settings)
        self.consumers.append(made)
        return made


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    for consumer in made.consumers:
        consumer.close()


def take(consumer: MarshalConsumer, count: int) -> list[DataRecord]:
    """Return so many records, each of which is processed when the next is asked for."""
    return [eventually(lambda: consumer.poll(0.1), f"of {count} records") for _ in range(count)]


def committed(world: World, partition: int = 0) -> int | None:
    return world.broker.committed("g", "orders", partition)


def test_two_consumers_process_every_record_once(world: World) -> None:
    world.fill(4, 50)
    seen: Counter[tuple[int, int]] = Counter()

    def work(consumer: MarshalConsumer) -> None:
        for record in consumer:
            seen[record.partition, record.offset] += 1

    consumers = [world.consumer(name, max_claims=2) for name in ("a", "b")]
    threads = [threading.Thread(target=work, args=(consumer,)) for consumer in consumers]
    for thread in threads:
        thread.start()
    eventually(lambda: len(seen) == 200)
    for consumer, thread in zip(consumers, threads, strict=True):
        consumer.stop()
        thread.join(SECONDS)
        consumer.close()
    assert set(seen.values()) == {1}
    assert [committed(world, partition) for partition in range(4)] == [50] * 4


def test_records_have_what_the_application_needs(world: World) -> None:
    world.broker.create("orders", 1)
    world.broker.append("orders", 0, b"v", b"k")
    [record] = take(world.consumer("a"), 1)
    assert (record.topic, record.partition, record.offset, record.key, record.value) == ("orders", 0, 0, b"k", b"v")
    assert abs(record.time_ms - time.time() * 1000) < 60_000
    [claim] = [
        offset
        for partition in range(4)
        for offset, _, _, value in world.broker.read("__marshal", partition, 0, 100)[0]
        if value is not None and value.startswith(b"ClaimingPartition/")
    ]
    assert record.token == claim


def test_the_record_in_hand_at_the_end_comes_again(world: World) -> None:
    world.fill(1, 10)
    first = world.consumer("a")
    with first:
        assert take(first, 4)[-1].offset == 3
        began = time.monotonic()
    assert time.monotonic() - began < 4.5, "nothing waits for a record that is never processed (drain_ms)"
    assert take(world.consumer("b"), 1)[0].offset == 3


def test_records_may_be_processed_in_any_order_by_any_thread(world: World) -> None:
    world.fill(1, 6)
    first = world.consumer("a", acknowledges=False, drain_ms=100)
    records = take(first, 6)
    for offset in (4, 0, 1, 3):
        thread = threading.Thread(target=first.processed, args=(records[offset],))
        thread.start()
        thread.join()
    with pytest.raises(ValueError, match="offset 0 of orders-0 was processed before"):
        first.processed(records[0])
    first.close()
    assert committed(world) == 2
    assert take(world.consumer("b"), 1)[0].offset == 2


def test_a_released_partition_goes_to_another_consumer(world: World) -> None:
    world.fill(1, 5)
    lost: list[tuple[Tenure, LossReason]] = []
    first = world.consumer("a", on_lost=lambda tenure, why: lost.append((tenure, why)))
    *_, last = take(first, 5)
    second = world.consumer("b")
    second.start()
    assert first.processed(last)
    first.release("orders", 0)
    eventually(lambda: first.poll(0.01) is None and bool(lost))
    assert lost == [(last.tenure, LossReason.RELEASED)]
    world.broker.append("orders", 0, b"next")
    [record] = take(second, 1)
    assert (record.offset, record.token > last.token) == (5, True)
    assert not first.holds(last.tenure)
    assert second.holds(record.tenure)
    assert second.tenures == {record.tenure}


def test_claims_are_kept_for_a_restart(world: World) -> None:
    world.fill(2, 3)
    first = world.consumer("a", heartbeat_interval_ms=20_000)
    take(first, 6)
    first.close(keep_claims=True)
    other = world.consumer("b", heartbeat_interval_ms=20_000)
    other.start()
    again = world.consumer("a", heartbeat_interval_ms=20_000)
    began = time.monotonic()
    take(again, 1)  # of what was in hand
    assert time.monotonic() - began < 10, "it does not wait for claims to get stale"
    assert {(tenure.topic, tenure.partition) for tenure in again.tenures} == {("orders", 0), ("orders", 1)}
    assert other.tenures == frozenset()


def test_callbacks_come_around_the_records_of_their_tenure(world: World) -> None:
    world.fill(1, 2)
    seen: list[Any] = []
    consumer = world.consumer(
        "a",
        on_gained=lambda tenure: seen.append(("gained", tenure, threading.current_thread())),
        on_lost=lambda tenure, why: seen.append(("lost", tenure, why)),
    )
    seen += [record.offset for record in take(consumer, 2)]
    consumer.close()
    [(_, tenure, thread), *offsets, lost] = seen
    assert (offsets, lost) == ([0, 1], ("lost", tenure, LossReason.RELEASED))
    assert thread is threading.current_thread()


def test_nothing_is_handed_out_behind_the_fence(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after SIGSTOP and SIGCONT: records wait in the inbox, and the tenure is over by the clock."""
    world.fill(1, 500)
    consumer = world.consumer("a")
    old = take(consumer, 10)[-1].tenure
    assert consumer.holds(old)
    stopped_ns = (2 * INTERVAL_MS + 500) * 1_000_000
    for name in ("clock_gettime_ns", "time_ns"):
        real = getattr(time, name)
        monkeypatch.setattr(time, name, lambda *clock, real=real: real(*clock) + stopped_ns)
    assert not consumer.holds(old)
    record = consumer.poll(5)
    assert record is not None
    assert record.tenure.token > old.token


def test_an_application_that_hangs_loses_its_partitions(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.fill(1, 3)
    lost: list[LossReason] = []
    consumer = world.consumer("a", max_poll_interval_ms=300, drain_ms=100, on_lost=lambda _, why: lost.append(why))
    with caplog.at_level(logging.WARNING, "kcoord_wire.marshal"):
        [first] = take(consumer, 1)
        eventually(lambda: not consumer.tenures)
    assert "application hangs" in caplog.text
    time.sleep(0.3)
    assert not consumer.holds(first.tenure)
    assert not consumer.processed(first)
    [again] = take(consumer, 1)
    assert (again.offset, again.token > first.token, lost) == (0, True, [LossReason.RELEASED])


def test_a_long_wait_for_records_is_no_hanging(world: World) -> None:
    world.fill(1, 0)
    consumer = world.consumer("a", max_poll_interval_ms=200)
    assert consumer.poll(1.0) is None
    [tenure] = consumer.tenures
    assert consumer.poll(1.0) is None
    assert consumer.tenures == {tenure}


def test_a_lost_log_is_raised_to_the_application(world: World) -> None:
    world.fill(1, 1)
    consumer = world.consumer("a")
    take(consumer, 1)
    world.broker.delete("__marshal")
    with pytest.raises(LogError):
        take(consumer, 5)
    with pytest.raises(LogError):
        consumer.poll()
    consumer.close()
    assert consumer.tenures == frozenset()


class SilentLog(MemoryLog):
    """Appends are never answered."""

    def append(
        self, request: int, partition: int, value: bytes, done: Callable[[Appended | AppendFailed], None]
    ) -> None:
        pass


def test_close_does_not_wait_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CLOSE_SECONDS", 0.5)
    world.fill(1, 1)
    consumer = world.consumer("a", SilentLog(world.broker))
    assert consumer.poll(0.5) is None
    began = time.monotonic()
    consumer.close()
    assert time.monotonic() - began < 10
    assert "marshal-consumer" not in [thread.name for thread in threading.enumerate()]
    consumer.close()
    assert consumer.poll(0.1) is None


def test_stop_ends_the_iteration_and_counts_the_last_record(world: World) -> None:
    world.fill(1, 5)
    consumer = world.consumer("a")
    offsets = []
    for record in consumer:
        offsets.append(record.offset)
        if record.offset == 2:
            consumer.stop()
    consumer.close()
    assert offsets == [0, 1, 2]
    assert committed(world) == 3


def test_records_of_new_partitions_are_consumed(world: World) -> None:
    world.fill(1, 1)
    consumer = world.consumer("a")
    take(consumer, 1)
    world.fill(3, 1)
    assert {record.partition for record in take(consumer, 3)} == {0, 1, 2}


@pytest.mark.parametrize("delivery", Delivery)
def test_a_topic_created_again_is_consumed_from_its_beginning(
    world: World, delivery: Delivery, caplog: pytest.LogCaptureFixture
) -> None:
    """It has more records than the former one had, so its end does not show that the position is none of its own."""
    world.fill(1, 10)
    consumer = world.consumer("a", delivery=delivery)
    take(consumer, 10)
    eventually(lambda: (consumer.poll(0.05), committed(world))[1] == 10)
    world.broker.delete("orders")
    world.fill(1, 12)
    again = take(consumer, 12)
    assert [record.offset for record in again] == list(range(12))
    assert any("topic created again" in line for line in caplog.messages)


def test_garbage_in_the_log_is_skipped(world: World) -> None:
    world.fill(1, 1)
    for partition in range(4):
        for value in (None, b"", b"\xff\0/", b"Heartbeat/1/x", b"Heartbeat/1/1/i/c/g/orders/-1/0", b"y" * 100_000):
            world.broker.append("__marshal", partition, value)
    assert take(world.consumer("a"), 1)[0].offset == 0


@pytest.mark.parametrize("ids", [{"group_id": "a/b"}, {"client_id": "a/b"}, {"client_id": ""}, {"group_id": "\ud800"}])
def test_ids_that_nobody_could_read_are_refused(world: World, ids: dict[str, str]) -> None:
    settings: dict[str, Any] = {"group_id": "g", "client_id": "c", "topics": ["orders"]} | ids
    with pytest.raises(EncodeError):
        MarshalConsumer(MemoryLog(world.broker), MemoryTopics(world.broker, "g", ["orders"]), **settings)


@pytest.mark.parametrize("wrong", [{"topics": []}, {"heartbeat_interval_ms": 1_500}])
def test_settings_that_cannot_be_used_are_refused(world: World, wrong: dict[str, Sequence[str]]) -> None:
    settings: dict[str, Any] = {"group_id": "g", "client_id": "c", "topics": ["orders"]} | wrong
    with pytest.raises(ValueError, match=r"no topic|whole seconds"):
        MarshalConsumer(MemoryLog(world.broker), MemoryTopics(world.broker, "g", ["orders"]), **settings)


@pytest.mark.parametrize("delivery", Delivery)
def test_newcomer_is_handed_partitions_and_nothing_repeats(world: World, delivery: Delivery) -> None:
    world.fill(4, 30)
    seen: Counter[tuple[int, int]] = Counter()
    counting = threading.Lock()

    def work(consumer: MarshalConsumer) -> None:
        for record in consumer:
            with counting:
                seen[record.partition, record.offset] += 1

    settings: dict[str, Any] = {"presence": True, "balance": Balance(0, 1, 200, 10_000), "delivery": delivery}
    settings["heartbeat_interval_ms"] = 5_000
    consumers = [world.consumer("a", **settings), world.consumer("b", **settings)]
    threads = [threading.Thread(target=work, args=(consumer,)) for consumer in consumers]
    threads[0].start()
    eventually(lambda: len(consumers[0].tenures) == 4 and len(seen) == 120)
    threads[1].start()
    eventually(lambda: [len(consumer.tenures) for consumer in consumers] == [2, 2])
    world.append(4, 10)
    eventually(lambda: len(seen) == 160)
    for consumer, thread in zip(consumers, threads, strict=True):
        consumer.stop()
        thread.join(SECONDS)
        consumer.close()
    assert set(seen.values()) == {1}
