"""The consumer, on a real coordinator: joining, reading, committing, rebalancing, and the way out.

The listener's calls: their order, what is left out, and what happens when one fails.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import Consumer
from kcoord_wire.consumer.client import Callbacks, RebalanceListener
from kcoord_wire.consumer.errors import (
    ConcurrentPollError,
    ConsumerClosedError,
    ConsumerError,
    ListenerError,
    NoOffsetError,
    NotAssignedError,
)
from kcoord_wire.consumer.member_events import Assigned, Lost, Revoking
from kcoord_wire.consumer.positions import Positions
from tests.support.consumers import NotingListener, drive, partitions, produce, settings, take
from tests.support.fixtures import StartCoordinator

ORDERS = [TopicPartition("orders", index) for index in range(4)]
ALL = frozenset(ORDERS)


def values_of(records: list) -> list[str]:
    return sorted(record.value.decode() for record in records)


def test_it_joins_reads_and_commits(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 4}).address
        await produce(address, {p: [f"{p.partition}.{n}" for n in range(3)] for p in ORDERS})
        listener = NotingListener()
        async with Consumer(settings(address)) as first:
            first.subscribe(["orders"], listener)
            records = await take(first, 12)
            assert values_of(records) == sorted(f"{p.partition}.{n}" for p in ORDERS for n in range(3))
            assert [r.offset for r in records if r.partition == 1] == [0, 1, 2]
            assert (first.assignment, first.generation_id) == (ALL, 1)
            await first.commit()
            assert {p: await first.position(p) for p in ORDERS} == dict.fromkeys(ORDERS, 3)
        assert listener.calls == [("assigned", (0, 1, 2, 3)), ("revoked", (0, 1, 2, 3))]
        await produce(address, {ORDERS[2]: ["next"]})
        async with Consumer(settings(address)) as second:
            second.subscribe(["orders"])
            assert values_of(await take(second, 1)) == ["next"], "it goes on where the first has committed"

    asyncio.run(run())


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_two_members_share_the_partitions(coordinator: StartCoordinator, assignor: str) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 4}).address
        options = settings(address, partition_assignment_strategy=[assignor])
        one, other = NotingListener(), NotingListener()
        async with Consumer(options) as first:
            first.subscribe(["orders"], one)
            await drive(lambda: first.assignment == ALL, first)
            async with Consumer(options) as second:
                second.subscribe(["orders"], other)
                await drive(lambda: len(first.assignment) == len(second.assignment) == 2, first, second)
                assert first.assignment | second.assignment == ALL
            await drive(lambda: first.assignment == ALL, first)
        revoked = [numbers for method, numbers in one.calls if method == "revoked"]
        if assignor == "cooperative-sticky":
            assert [len(numbers) for numbers in revoked] == [2, 4], "only what the other one gets, and all at the end"
        else:
            assert revoked[0] == (0, 1, 2, 3)

    asyncio.run(run())


def test_closing_commits_and_leaves_nothing_behind(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 1})
        await produce(server.address, {ORDERS[0]: ["a", "b"]})
        consumer = Consumer(settings(server.address))
        consumer.subscribe(["orders"])
        assert len(await take(consumer, 2)) == 2
        await consumer.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await consumer.close()
        with pytest.raises(ConsumerClosedError):
            await consumer.poll()
        assert server.rebalances[-1].trigger.value == "member left"
        async with Consumer(settings(server.address, auto_offset_reset="none")) as again:
            again.subscribe(["orders"])
            await drive(lambda: again.assignment == partitions(0), again)
            assert await again.position(ORDERS[0]) == 2, "what it had read was committed"

    asyncio.run(run())


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
def test_an_exception_leaves_the_records_in_hand(coordinator: StartCoordinator, error: type[BaseException]) -> None:
    async def consume(address: str) -> None:
        async with Consumer(settings(address)) as consumer:
            consumer.subscribe(["orders"])
            async for record in consumer:
                if record.value == b"fails":
                    raise error

    async def run() -> None:
        address = coordinator(topics={"orders": 1}).address
        await produce(address, {ORDERS[0]: ["done", "fails", "unread"]})
        with pytest.raises(error):
            await consume(address)
        async with Consumer(settings(address)) as again:
            again.subscribe(["orders"])
            assert [record.value for record in await take(again, 2)] == [b"fails", b"unread"]

    asyncio.run(run())


def test_the_listener_sees_what_is_assigned(coordinator: StartCoordinator) -> None:
    class Restoring(RebalanceListener):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            assert consumer.assignment == partitions
            consumer.seek_to_beginning()
            positions.update({each: await consumer.position(each) for each in partitions})
            consumer.pause([ORDERS[1]])

    positions: dict[TopicPartition, int] = {}

    async def run() -> None:
        nonlocal consumer
        address = coordinator(topics={"orders": 2}).address
        await produce(address, {each: ["a"] for each in ORDERS[:2]})
        async with Consumer(settings(address, auto_offset_reset="latest")) as consumer:
            consumer.subscribe(["orders"], Restoring())
            assert [record.partition for record in await take(consumer, 1)] == [0]
            assert consumer.paused == {ORDERS[1]}
        assert positions == dict.fromkeys(ORDERS[:2], 0)

    consumer: Consumer
    asyncio.run(run())


def test_what_is_given_up_comes_before_what_is_new(coordinator: StartCoordinator) -> None:
    """Java's order: ConsumerCoordinator.onJoinComplete revokes, then assigns."""

    async def run() -> None:
        address = coordinator(topics={"orders": 4}).address
        options = settings(address, partition_assignment_strategy=["cooperative-sticky"])
        listener = NotingListener()
        async with Consumer(options) as first:
            first.subscribe(["orders"], listener)
            await drive(lambda: first.assignment == ALL, first)
            async with Consumer(options) as second:
                second.subscribe(["orders"])
                await drive(lambda: len(first.assignment) == len(second.assignment) == 2, first, second)
            assert [method for method, _ in listener.calls[:4]] == ["assigned", "revoked", "assigned", "assigned"]

    asyncio.run(run())


def test_a_missing_offset_is_an_error_if_it_shall_be(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 4}).address
        async with Consumer(settings(address, auto_offset_reset="none")) as consumer:
            consumer.subscribe(["orders"])
            with pytest.raises(NoOffsetError) as missing:
                await take(consumer, 1)
            assert missing.value.partitions == ALL
            consumer.seek(ORDERS[0], 0)
            with pytest.raises(NoOffsetError) as missing:
                await consumer.poll()
            assert missing.value.partitions == ALL - {ORDERS[0]}
            consumer.seek_to_beginning()
            await produce(address, {ORDERS[0]: ["a"]})
            assert values_of(await take(consumer, 1)) == ["a"]

    asyncio.run(run())


def test_a_pattern_finds_topics_that_appear(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders-eu": 1, "payments": 1})
        async with Consumer(settings(server.address, metadata_max_age_ms=100)) as consumer:
            consumer.subscribe(re.compile("orders-.*"))
            await drive(lambda: consumer.assignment == {TopicPartition("orders-eu", 0)}, consumer)
            server.create_topic("orders-us", 2)
            await drive(lambda: len(consumer.assignment) == 3, consumer)
            assert consumer.subscription == {"orders-eu", "orders-us"}

    asyncio.run(run())


def test_partitions_that_are_added_are_assigned(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 1})
        async with Consumer(settings(server.address, metadata_max_age_ms=100)) as consumer:
            consumer.subscribe(["orders"])
            await drive(lambda: len(consumer.assignment) == 1, consumer)
            server.add_partitions("orders", 2)
            await drive(lambda: len(consumer.assignment) == 3, consumer)

    asyncio.run(run())


def test_seek_pause_and_resume(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 2}).address
        await produce(address, {ORDERS[0]: ["a", "b", "c"], ORDERS[1]: ["x"]})
        async with Consumer(settings(address)) as consumer:
            consumer.subscribe(["orders"])
            await take(consumer, 4)
            consumer.seek(ORDERS[0], 1)
            consumer.pause([ORDERS[0]])
            consumer.seek_to_beginning([ORDERS[1]])
            assert values_of(await take(consumer, 1)) == ["x"]
            assert consumer.paused == {ORDERS[0]}
            assert await consumer.poll(200) == []
            consumer.resume([ORDERS[0]])
            assert values_of(await take(consumer, 2)) == ["b", "c"]
            consumer.seek_to_end()
            assert await consumer.position(ORDERS[0]) == 3
            with pytest.raises(NotAssignedError):
                consumer.seek(TopicPartition("orders", 9), 0)

    asyncio.run(run())


def test_iteration_has_one_record_at_a_time(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 1}).address
        await produce(address, {ORDERS[0]: ["a", "b", "c"]})
        async with Consumer(settings(address, enable_auto_commit=False)) as consumer:
            consumer.subscribe(["orders"])
            seen = []
            async for record in consumer:
                seen.append(record.value)
                if len(seen) == 2:
                    await consumer.commit()
                    break
            assert await consumer.position(ORDERS[0]) == 2, "what is buffered is not read yet"

    asyncio.run(run())


def test_the_group_goes_on_when_a_listener_raises(coordinator: StartCoordinator) -> None:
    class Raising(NotingListener):
        def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            super().on_revoked(partitions)
            raise OSError("the disk is full")

    async def run() -> None:
        address = coordinator(topics={"orders": 4}).address
        listener = Raising()
        async with Consumer(settings(address)) as first, Consumer(settings(address)) as second:
            first.subscribe(["orders"], listener)
            await drive(lambda: first.assignment == ALL, first)
            second.subscribe(["orders"])
            with pytest.raises(ListenerError, match="on_revoked") as raised:
                await drive(lambda: False, first, second)
            assert isinstance(raised.value.__cause__, OSError)
            assert raised.value.partitions == ALL
            await drive(lambda: len(first.assignment) == len(second.assignment) == 2, first, second)
            assert not first.assignment & second.assignment
            with pytest.raises(ListenerError):
                await first.close()
            await drive(lambda: second.assignment == ALL, second)

    asyncio.run(run())


def test_it_is_used_by_one_task_at_a_time(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 1}).address
        consumer = Consumer(settings(address))
        with pytest.raises(ConsumerError, match="no subscription"):
            await consumer.poll()
        with pytest.raises(TypeError, match="list of names"):
            consumer.subscribe("orders")
        consumer.subscribe(["orders"])
        polling = asyncio.create_task(consumer.poll(None))
        await asyncio.sleep(0)
        with pytest.raises(ConcurrentPollError):
            await consumer.poll()
        await consumer.close()
        with pytest.raises(ConsumerClosedError):
            await polling

    asyncio.run(run())


def test_a_poll_that_is_cancelled_can_be_repeated(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 1}).address
        async with Consumer(settings(address)) as consumer:
            consumer.subscribe(["orders"])
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await consumer.poll(None)
            await drive(lambda: consumer.assignment == partitions(0), consumer)

    asyncio.run(run())


def test_unsubscribing_leaves_and_subscribing_joins_again(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 1, "payments": 1})
        listener = NotingListener()
        async with Consumer(settings(server.address)) as consumer:
            consumer.subscribe(["orders"], listener)
            await drive(lambda: consumer.assignment == partitions(0), consumer)
            before = consumer.member_id
            await consumer.unsubscribe()
            assert (consumer.assignment, consumer.member_id) == (frozenset(), "")
            consumer.subscribe(["payments"])
            await drive(lambda: consumer.assignment == partitions(0, topic="payments"), consumer)
            assert consumer.member_id != before
        assert listener.calls == [("assigned", (0,)), ("revoked", (0,)), ("assigned", (0,)), ("revoked", (0,))]

    asyncio.run(run())


def test_a_cancelled_application_leaves_nothing_behind(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 1})

        async def work() -> None:
            async with Consumer(settings(server.address)) as consumer:
                consumer.subscribe(["orders"])
                await drive(lambda: consumer.assignment == partitions(0), consumer)
                ready.set()
                await consumer.poll(None)

        ready = asyncio.Event()
        working = asyncio.create_task(work())
        await ready.wait()
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert server.rebalances[-1].trigger.value == "member left"

    asyncio.run(run())


def test_closing_that_is_cancelled_leaves_nothing_behind(coordinator: StartCoordinator) -> None:
    class Hanging(NotingListener):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:  # type: ignore[override]  # may be async
            called.set()
            await asyncio.Event().wait()

    async def run() -> None:
        server = coordinator(topics={"orders": 1})
        consumer = Consumer(settings(server.address))
        consumer.subscribe(["orders"], Hanging())
        polling = asyncio.create_task(consumer.poll(None))
        await called.wait()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await consumer.close()
        assert asyncio.all_tasks() == {asyncio.current_task(), polling}
        assert consumer.member_id == ""
        polling.cancel()
        await asyncio.wait([polling])

    called = asyncio.Event()
    asyncio.run(run())


def test_a_member_leaves_while_its_join_is_parked(coordinator: StartCoordinator) -> None:
    """Brokers read nothing behind a parked JoinGroup, so LeaveGroup has to overtake it."""

    async def run() -> None:
        server = coordinator(topics={"orders": 4})
        async with Consumer(settings(server.address)) as first:
            first.subscribe(["orders"])
            await drive(lambda: first.assignment == ALL, first)
            async with Consumer(settings(server.address)) as second:
                second.subscribe(["orders"])
                async with asyncio.timeout(60):
                    while second.member_id == "" or not second._membership._parked:
                        await second.poll(20)
            await drive(lambda: first.assignment == ALL and first.generation_id == 2, first)
        assert not any("session" in str(account) for account in server.rebalances)

    asyncio.run(run())


def test_a_subscription_can_be_changed(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 1, "payments": 1})
        async with Consumer(settings(server.address)) as consumer:
            consumer.subscribe(["orders"])
            await drive(lambda: consumer.assignment == partitions(0), consumer)
            before = consumer.member_id
            consumer.subscribe(["payments"])
            await drive(lambda: consumer.assignment == partitions(0, topic="payments"), consumer)
            assert (consumer.member_id, consumer.generation_id) == (before, 2)

    asyncio.run(run())


def test_a_rebalance_can_be_enforced(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 1})
        async with Consumer(settings(server.address)) as consumer:
            consumer.subscribe(["orders"])
            await drive(lambda: consumer.assignment == partitions(0), consumer)
            consumer.enforce_rebalance("because")
            await drive(lambda: consumer.generation_id == 2 and consumer.assignment == partitions(0), consumer)
        assert any(account.reason == "because" for account in server.rebalances)

    asyncio.run(run())


def test_a_listener_cannot_close_its_consumer(coordinator: StartCoordinator) -> None:
    class Closing(NotingListener):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            await consumer.close()

    async def run() -> None:
        async with consumer:
            consumer.subscribe(["orders"], Closing())
            with pytest.raises(ListenerError) as raised:
                await drive(lambda: False, consumer)
            assert isinstance(raised.value.__cause__, ConcurrentPollError)

    consumer = Consumer(settings(coordinator(topics={"orders": 1}).address))
    asyncio.run(run())


@pytest.mark.parametrize("topics", ["orders", [3], [None], [b"orders"], re.compile(b"orders")])
def test_topics_of_another_type_are_rejected(topics: Any) -> None:
    async def run() -> None:
        async with Consumer(settings("127.0.0.1:1")) as consumer:
            with pytest.raises(TypeError, match="a list of names or a compiled pattern"):
                consumer.subscribe(topics)
            assert consumer.subscription == frozenset()

    asyncio.run(run())


def test_arguments_that_cannot_be_sent_are_rejected(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        async with Consumer(settings(coordinator(topics={"orders": 4}).address)) as consumer:
            consumer.subscribe(["orders"])
            await drive(lambda: consumer.assignment == ALL, consumer)
            with pytest.raises(TypeError, match="an offset is an int"):
                await consumer.commit({ORDERS[0]: 3.5})  # type: ignore[dict-item]  # what a caller without mypy does
            with pytest.raises(ValueError, match="max_records must be 1 or more"):
                await consumer.poll(0, 0)
            await consumer.commit({ORDERS[0]: 3})
            assert consumer.generation_id == 1, "it is a member still"

    asyncio.run(run())


class Host:
    """Callbacks with what they report; `during` is called within `on_revoked` and `on_assigned`."""

    def __init__(self, listener: RebalanceListener | None = None) -> None:
        self.positions = Positions("earliest")
        self.released: list[int] = []
        self.revoking: list[frozenset[TopicPartition]] = []
        self.callbacks = Callbacks(self.positions, self.revoking.append, self.released.append)
        self.callbacks.listener = listener or NotingListener()

    def run(self, *events: Assigned | Revoking | Lost) -> None:
        for event in events:
            self.callbacks.add(event)
        asyncio.run(self.callbacks.run())

    @property
    def calls(self) -> list[tuple[str, tuple[int, ...]]]:
        assert isinstance(self.callbacks.listener, NotingListener)
        return self.callbacks.listener.calls


def test_the_listener_follows_the_member() -> None:
    host = Host()
    host.run(Assigned(1, partitions(0, 1)))
    assert host.positions.announced == partitions(0, 1)
    host.run(Revoking(1, partitions(1)), Assigned(2, frozenset()))
    assert (host.revoking, host.released) == ([partitions(1)], [1])
    assert host.positions.announced == partitions(0)
    host.run(Lost(partitions(0)))
    assert host.calls == [("assigned", (0, 1)), ("revoked", (1,)), ("assigned", ()), ("lost", (0,))]


def test_what_is_lost_before_it_is_announced_is_not_mentioned() -> None:
    host = Host()
    host.run(Assigned(1, partitions(0, 1)), Revoking(1, partitions(1)), Lost(partitions(0, 1)))
    assert host.calls == []
    assert list(host.positions) == []
    assert not host.callbacks.are_waiting


def test_partitions_lost_during_revocation_are_revoked_and_lost() -> None:
    class Slow(NotingListener):
        async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            host.callbacks.add(Lost(partitions))
            self._note("revoked", partitions)

    host = Host(Slow())
    host.run(Assigned(1, partitions(0)), Revoking(1, partitions(0)))
    assert host.calls == [("assigned", (0,)), ("revoked", (0,)), ("lost", (0,))]


def test_partitions_lost_while_they_are_announced_are_lost() -> None:
    class Slow(NotingListener):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            self._note("assigned", partitions)
            host.callbacks.add(Lost(partitions))

    host = Host(Slow())
    host.run(Assigned(1, partitions(0)))
    assert host.calls == [("assigned", (0,)), ("lost", (0,))]
    assert host.positions.announced == frozenset()


def test_a_listener_that_is_cancelled_is_called_again() -> None:
    class Slow(NotingListener):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            self._note("assigned", partitions)
            assert host.callbacks.held == partitions
            if len(self.calls) < 3:
                await asyncio.Event().wait()

    async def cancelled() -> None:
        async with asyncio.timeout(0.01):
            await host.callbacks.run()

    host = Host(Slow())
    host.callbacks.add(Assigned(1, partitions(0, 1)))
    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    assert (host.positions.announced, host.callbacks.held) == (frozenset(), partitions(0, 1))
    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    host.run()
    assert host.calls == [("assigned", (0, 1))] * 3
    assert host.positions.announced == partitions(0, 1)


def test_what_a_cancelled_listener_has_begun_is_lost_or_revoked() -> None:
    class Endless(NotingListener):
        async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
            self._note("assigned", partitions)
            await asyncio.Event().wait()

    async def cancelled() -> None:
        async with asyncio.timeout(0.01):
            await host.callbacks.run()

    host = Host(Endless())
    for number, end in ((0, Lost(partitions(0))), (1, Revoking(1, partitions(1)))):
        host.callbacks.listener = Endless()
        host.callbacks.add(Assigned(1, partitions(number)))
        with pytest.raises(TimeoutError):
            asyncio.run(cancelled())
        if isinstance(end, Lost):
            host.run(end)
            assert host.calls == [("assigned", (0,)), ("lost", (0,))]
        else:
            asyncio.run(host.callbacks.revoke_all())
            assert host.calls == [("assigned", (1,)), ("revoked", (1,))]
        assert host.callbacks.held == frozenset()


class Raising(RebalanceListener):
    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        raise KeyError("assigned")

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        raise KeyError("revoked")


def test_a_listener_that_raises_keeps_nothing_back() -> None:
    host = Host(Raising())
    with pytest.raises(ListenerError) as raised:
        host.run(Assigned(1, partitions(0)), Revoking(7, partitions(0)))
    assert (raised.value.method, raised.value.partitions) == ("on_assigned", partitions(0))
    assert host.positions.announced == partitions(0), "it is assigned all the same"
    with pytest.raises(ListenerError, match="on_revoked"):
        host.run()
    assert host.released == [7]
    host.run(Lost(partitions(0)))
    assert not host.callbacks.are_waiting


def test_a_listener_that_is_cancelled_gives_up_its_partitions() -> None:
    class Endless(RebalanceListener):
        async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            await asyncio.Event().wait()

    async def run() -> None:
        host.callbacks.add(Assigned(1, partitions(0)))
        host.callbacks.add(Revoking(7, partitions(0)))
        async with asyncio.timeout(0.01):
            await host.callbacks.run()

    host = Host(Endless())
    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert host.released == [7]
    assert list(host.positions) == []


def test_losing_is_revoking_unless_the_listener_says_otherwise() -> None:
    class Revoked(RebalanceListener):
        def __init__(self) -> None:
            self.revoked: list[frozenset[TopicPartition]] = []

        def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            self.revoked.append(partitions)

    listener = Revoked()
    host = Host(listener)
    host.run(Assigned(1, partitions(0)))
    host.run(Lost(partitions(0)))
    assert listener.revoked == [partitions(0)]


def test_giving_up_all_at_the_end() -> None:
    host = Host()
    host.run(Assigned(1, partitions(0)))
    host.callbacks.add(Assigned(2, partitions(1)))
    asyncio.run(host.callbacks.revoke_all())
    assert host.calls == [("assigned", (0,)), ("revoked", (0,))]
    assert list(host.positions) == []
    assert not host.callbacks.are_waiting
