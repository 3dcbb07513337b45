"""A consumer whose coordinator fails, whose application stalls, whose group has another idea of the topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kcoord_wire.assignors import ASSIGNORS, Assignment, Assignor, MemberSubscription, Racks, TopicPartition
from kcoord_wire.consumer import Consumer
from kcoord_wire.consumer.errors import (
    AssignmentError,
    AssignorHookError,
    CommitFailedError,
    GroupError,
    PollIntervalExceededError,
    TopicError,
)
from kcoord_wire.coordinator import Coordinator, Fault, Faults, GroupConfig
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.consumers import NotingListener, drive, member_settings, partitions, produce, settings, take
from tests.support.fixtures import StartCoordinator

ALL = partitions(0, 1, 2, 3)
HASTY = GroupConfig(
    min_session_timeout_ms=100,
    initial_rebalance_delay_ms=0,
    consumer_heartbeat_interval_ms=100,
    consumer_assignment_interval_ms=0,
)


def error(api: str, code: ErrorCode, **fields: Any) -> Fault:
    return Fault("error", api=api, error=code, count=2, **fields)


# ---- the coordinator


TRANSIENT = [
    error("FindCoordinator", ErrorCode.COORDINATOR_NOT_AVAILABLE),
    error("JoinGroup", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    error("JoinGroup", ErrorCode.NOT_COORDINATOR),
    error("JoinGroup", ErrorCode.UNKNOWN_MEMBER_ID),
    error("SyncGroup", ErrorCode.REBALANCE_IN_PROGRESS),
    error("SyncGroup", ErrorCode.NOT_COORDINATOR),
    error("OffsetFetch", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    error("Heartbeat", ErrorCode.NOT_COORDINATOR),
    error("Heartbeat", ErrorCode.ILLEGAL_GENERATION),
    error("Heartbeat", ErrorCode.UNKNOWN_MEMBER_ID),
    error("Metadata", ErrorCode.LEADER_NOT_AVAILABLE),
    error("ListOffsets", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    error("Fetch", ErrorCode.NOT_LEADER_OR_FOLLOWER),
    *(
        Fault("disconnect", api=api, count=1)
        for api in ("ApiVersions", "Metadata", "FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "Fetch")
    ),
    Fault("disconnect", on="response", api="JoinGroup", count=1),
    Fault("disconnect", on="response", api="SyncGroup", count=1),
]


@pytest.mark.parametrize("fault", TRANSIENT, ids=lambda fault: f"{fault.api}-{fault.error or fault.action}")
def test_what_passes_is_not_noticed_by_the_application(coordinator: StartCoordinator, fault: Fault) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 4}, faults=Faults([fault]), config=HASTY)
        # A JoinGroup whose response is lost leaves a member behind, until its session ends.
        options = settings(server.address, session_timeout_ms=500, heartbeat_interval_ms=50)
        async with Consumer(options) as consumer:
            consumer.subscribe(["orders"])
            await drive(lambda: consumer.assignment == ALL, consumer)
            await produce(server.address, {p: ["a", "b"] for p in ALL})
            assert len(await take(consumer, 8)) == 8
            for _ in range(4):  # heartbeats, and what they lead to
                await consumer.poll(50)
            await drive(lambda: consumer.assignment == ALL, consumer)
            await consumer.commit()

    asyncio.run(run())


async def commit_for_ever(consumer: Consumer) -> None:
    """Commit until a commit is refused; one that is in flight when the connection ends is not."""
    while True:
        try:
            await consumer.commit_async()
        except CommitFailedError as error:
            if error.error is not ErrorCode.NETWORK_EXCEPTION:
                raise
        await consumer.poll(20)


def test_it_goes_on_fetching_while_it_looks_for_the_coordinator(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 4})
        listener = NotingListener()
        async with Consumer(settings(server.address)) as consumer:
            consumer.subscribe(["orders"], listener)
            await drive(lambda: consumer.assignment == ALL, consumer)
            server.add_fault(
                Fault("disconnect", api="Heartbeat", count=1),
                Fault("error", api="FindCoordinator", error=ErrorCode.COORDINATOR_NOT_AVAILABLE),
            )
            for turn in range(3):
                await produce(server.address, {p: [f"{turn}"] for p in ALL})
                assert len(await take(consumer, 4)) == 4
            with pytest.raises(CommitFailedError) as refused:
                await commit_for_ever(consumer)
            assert refused.value.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
            server.clear_faults()
            await consumer.commit()
            assert (listener.calls, consumer.generation_id) == ([("assigned", (0, 1, 2, 3))], 1)

    asyncio.run(run())


def test_a_coordinator_that_comes_back_finds_its_members(coordinator: StartCoordinator, tmp_path: Any) -> None:
    async def run() -> None:
        first = Coordinator(topics={"orders": 4}, data_dir=tmp_path, config=HASTY).start()
        listener = NotingListener()
        async with Consumer(settings(first.address)) as consumer:
            consumer.subscribe(["orders"], listener)
            await drive(lambda: consumer.assignment == ALL, consumer)
            await asyncio.to_thread(first.stop)
            assert await consumer.poll(100) == []
            coordinator(topics={"orders": 4}, data_dir=tmp_path, config=HASTY, port=first.port)
            await produce(first.address, {p: ["a"] for p in ALL})
            assert len(await take(consumer, 4)) == 4
            await consumer.commit()
            assert (listener.calls, consumer.generation_id) == ([("assigned", (0, 1, 2, 3))], 1)

    asyncio.run(run())


def test_a_member_that_was_removed_loses_its_partitions(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 4}, config=HASTY)
        listener = NotingListener()
        async with Consumer(settings(server.address, session_timeout_ms=2_000)) as consumer:
            consumer.subscribe(["orders"], listener)
            await drive(lambda: consumer.assignment == ALL, consumer)
            server.add_fault(Fault("error", api="Heartbeat", error=ErrorCode.UNKNOWN_MEMBER_ID, count=1))
            await drive(lambda: len(listener.calls) == 3, consumer)
            assert [method for method, _ in listener.calls] == ["assigned", "lost", "assigned"]

    asyncio.run(run())


# ---- the application


def test_a_member_that_stalls_in_revoke_learns_what_it_lost(coordinator: StartCoordinator) -> None:
    class Stalling(NotingListener):
        refused: ErrorCode | None = None

        async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            self._note("revoked", partitions)
            if len(self.calls) == 2:
                await asyncio.wait_for(taken_over.wait(), 60)
                try:
                    await first.commit(dict.fromkeys(partitions, 1))
                except CommitFailedError as error:
                    self.refused = error.error

    async def run() -> None:
        async with first, second:
            first.subscribe(["orders"], stalling)
            await drive(lambda: first.assignment == ALL, first)
            second.subscribe(["orders"])
            polling = asyncio.create_task(drive(lambda: taken_over.is_set() and len(first.assignment) == 2, first))
            await drive(lambda: second.assignment == ALL, second)
            taken_over.set()
            while not polling.done():
                await second.poll(20)
            await polling
            await drive(lambda: len(first.assignment) == len(second.assignment) == 2, first, second)
            assert not first.assignment & second.assignment
        assert [method for method, _ in stalling.calls[:4]] == ["assigned", "revoked", "lost", "assigned"]
        assert stalling.refused in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS)

    server = coordinator(topics={"orders": 4}, config=HASTY)
    options = settings(server.address, max_poll_interval_ms=500, enable_auto_commit=False)
    stalling = Stalling()
    taken_over = asyncio.Event()
    first, second = Consumer(options), Consumer(options)
    asyncio.run(run())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_is_not_polled_leaves_and_comes_back(
    coordinator: StartCoordinator, caplog: pytest.LogCaptureFixture, protocol: str
) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 4}, config=HASTY)
        listener = NotingListener()
        options = member_settings(server.address, protocol, max_poll_interval_ms=300)
        async with Consumer(options) as first, Consumer(options) as second:
            first.subscribe(["orders"], listener)
            second.subscribe(["orders"])
            await drive(lambda: len(first.assignment) == len(second.assignment) == 2, first, second)
            await drive(lambda: second.assignment == ALL, second)  # the first is not polled meanwhile
            with pytest.raises(PollIntervalExceededError):
                await first.commit(dict.fromkeys(partitions(0), 1))
            assert "no poll for max_poll_interval_ms, 300 ms" in caplog.text
            if protocol == "classic":  # the other one's farewell has no reason
                assert any("poll timeout" in str(account) for account in server.rebalances)
            await drive(lambda: len(first.assignment) == len(second.assignment) == 2, first, second)
            assert not first.assignment & second.assignment
        assert "lost" in [method for method, _ in listener.calls]

    asyncio.run(run())


def test_a_static_member_comes_back_without_a_rebalance(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 4})
        one, other = (settings(server.address, group_instance_id=name) for name in ("one", "other"))
        async with Consumer(other) as stays:
            stays.subscribe(["orders"])
            async with Consumer(one) as first:
                first.subscribe(["orders"])
                await drive(lambda: len(first.assignment) == len(stays.assignment) == 2, first, stays)
                had, generation = first.assignment, first.generation_id
            async with Consumer(one) as again:
                again.subscribe(["orders"])
                await drive(lambda: again.assignment == had, again, stays)
                assert (again.generation_id, stays.generation_id) == (generation, generation)

    asyncio.run(run())


def test_the_older_of_two_with_one_instance_id_is_fenced(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        address = coordinator(topics={"orders": 4}).address
        options = settings(address, group_instance_id="one")
        listener = NotingListener()
        async with Consumer(options) as older, Consumer(options) as newer:
            older.subscribe(["orders"], listener)
            await drive(lambda: older.assignment == ALL, older)
            newer.subscribe(["orders"])
            await drive(lambda: newer.assignment == ALL, newer)
            with pytest.raises(GroupError) as fenced:
                await drive(lambda: False, older)
            assert fenced.value.error is ErrorCode.FENCED_INSTANCE_ID
            assert listener.calls == [("assigned", (0, 1, 2, 3)), ("lost", (0, 1, 2, 3))]
            assert older.assignment == frozenset()

    asyncio.run(run())


# ---- the leader


def own(assign: Any) -> Assignor:
    """An assignor of the application, by the name ``own``."""
    return Assignor("own", ASSIGNORS["range"].protocol, assign)


def test_a_slow_assignor_does_not_stop_heartbeats(coordinator: StartCoordinator) -> None:
    def slow(counts: Mapping[str, int], members: Mapping[str, MemberSubscription], racks: Racks) -> Assignment:
        time.sleep(4)
        return ASSIGNORS["range"].assign(counts, members, racks)

    async def run() -> None:
        server = coordinator(topics={"orders": 4}, config=HASTY)
        options = settings(
            server.address,
            session_timeout_ms=2_000,
            heartbeat_interval_ms=50,
            partition_assignment_strategy=[own(slow)],
        )
        async with Consumer(options) as consumer:
            consumer.subscribe(["orders"])
            await drive(lambda: consumer.assignment == ALL, consumer)
            assert len(server.rebalances) == 1, "it was not removed while it assigned"

    asyncio.run(run())


@pytest.mark.parametrize("bad", ["raises", "two owners"])
def test_a_group_recovers_from_an_assignor_of_nonsense(coordinator: StartCoordinator, bad: str) -> None:
    def nonsense(counts: Mapping[str, int], members: Mapping[str, MemberSubscription], racks: Racks) -> Assignment:
        if bad == "raises":
            raise LookupError("no idea")
        return {member_id: {"orders": range(4)} for member_id in [*members, "nobody"]}

    async def run() -> None:
        address = coordinator(topics={"orders": 4}).address
        wrong = settings(address, partition_assignment_strategy=[own(nonsense)])
        right = settings(address, partition_assignment_strategy=[own(ASSIGNORS["range"].assign)])
        async with Consumer(wrong) as first, Consumer(right) as second:
            first.subscribe(["orders"])
            with pytest.raises(AssignmentError, match="own") as refused:
                await drive(lambda: False, first)
            assert isinstance(refused.value.__cause__, LookupError) is (bad == "raises")
            assert first.assignment == frozenset()
            second.subscribe(["orders"])
            await drive(lambda: second.assignment == ALL, second)
            await drive(lambda: len(first.assignment) == len(second.assignment) == 2, first, second)
            assert not first.assignment & second.assignment

    asyncio.run(run())


@pytest.mark.parametrize("hook", ["on_join", "on_assignment"])
def test_an_assignor_whose_hook_fails_ends_the_membership(coordinator: StartCoordinator, hook: str) -> None:
    def fail(*_: Any) -> bytes:
        raise LookupError("no idea")

    async def run() -> None:
        address = coordinator(topics={"orders": 4}).address
        failing = replace(own(ASSIGNORS["range"].assign), **{hook: fail})
        async with Consumer(settings(address, partition_assignment_strategy=[failing])) as consumer:
            consumer.subscribe(["orders"])
            for _ in range(2):
                with pytest.raises(AssignorHookError, match=f"own.*{hook}") as refused:
                    await drive(lambda: False, consumer)
                assert isinstance(refused.value.__cause__, LookupError)
            assert consumer.assignment == frozenset()

    asyncio.run(run())


def test_an_offset_that_is_refused_leaves_the_member_in(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 4}, faults=Faults([denied]))
        listener = NotingListener()
        async with Consumer(settings(server.address)) as consumer:
            consumer.subscribe(["orders"], listener)
            for _ in range(2):
                with pytest.raises(TopicError, match=r"orders.*TOPIC_AUTHORIZATION_FAILED"):
                    await drive(lambda: False, consumer)
            await produce(server.address, {p: ["a"] for p in ALL})
            assert len(await take(consumer, 4)) == 4
            assert (listener.calls, consumer.generation_id) == ([("assigned", (0, 1, 2, 3))], 1)

    denied = error("OffsetFetch", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    asyncio.run(run())


def test_a_leader_learns_the_topics_of_the_others(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 2, "payments": 2})
        async with Consumer(settings(server.address)) as leader, Consumer(settings(server.address)) as other:
            leader.subscribe(["orders"])
            await drive(lambda: leader.assignment == partitions(0, 1), leader)
            other.subscribe(["payments"])
            await drive(lambda: other.assignment == partitions(0, 1, topic="payments"), leader, other)
            assert leader.generation_id == 2, "it did not assign without them first"

    asyncio.run(run())


def test_a_member_reads_partitions_that_only_the_leader_knew(coordinator: StartCoordinator) -> None:
    async def run() -> None:
        server = coordinator(topics={"orders": 2})
        informed = settings(server.address, metadata_max_age_ms=100)
        async with Consumer(informed) as leader, Consumer(settings(server.address)) as other:
            leader.subscribe(["orders"])
            await drive(lambda: len(leader.assignment) == 2, leader)
            other.subscribe(["orders"])
            await drive(lambda: len(leader.assignment) == len(other.assignment) == 1, leader, other)
            server.add_partitions("orders", 2)
            await drive(lambda: len(leader.assignment) == len(other.assignment) == 2, leader, other)
            assert leader.assignment | other.assignment == ALL
            await produce(server.address, {p: ["a"] for p in ALL})
            read: list[TopicPartition] = []
            async with asyncio.timeout(60):
                while len(read) < 4:
                    for consumer in (leader, other):
                        read += [TopicPartition(r.topic, r.partition) for r in await consumer.poll(20)]
            assert sorted(read) == sorted(ALL)

    asyncio.run(run())
