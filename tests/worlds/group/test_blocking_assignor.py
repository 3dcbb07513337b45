"""aiokafka#1176 with aiokafka's own members: an outage that the event loop of each process spreads to the next.

12 processes of 7 consumers, each of the 7 with a topic of its own: 84 members with unequal subscriptions. Their sticky
assignor states generation -1 for ever; once a member has come back its computation does not end, which is set here, as
the report does not say why. aiokafka computes an assignment in its event loop. So the process of the leader falls
silent with all its seven members; after the session timeout they are removed, the leader of the next generation
computes the same, and 12 minutes later all 12 processes compute. Nothing is consumed until they are restarted
with another assignor.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.codec.registry import decode_request
from kcoord_wire.coordinator.core.events import Trigger
from kcoord_wire.forensics.detectors import detect
from kcoord_wire.kernel.virtual.loop import VirtualWorld
from kcoord_wire.messages import JoinGroupRequest
from kcoord_wire.worlds.group.broker import VirtualBroker
from tests.truth.pipeline import exchanges_of, histories_of
from tests.truth.world import Recorder

MINUTE = 60.0
SESSION_MS = 30_000
TOPICS = ("orders", "payments", "refunds", "shipments", "invoices", "returns", "audit")
PROCESSES = [f"app-{number:02}" for number in range(12)]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)  # 84 consumers have much to say
    yield
    logging.disable(logging.NOTSET)


def sticky_without_end(world: VirtualWorld, since: float) -> type[StickyPartitionAssignor]:
    """A sticky assignor with state of its own (aiokafka#1175), whose computation does not end from a time on."""

    class Sticky(StickyPartitionAssignor):
        @classmethod
        def assign(cls, cluster: Any, members: Any) -> Any:
            world.record("leader", "assigns", len(members))
            if world.now > since:
                time.sleep(120 * MINUTE)
            return super().assign(cluster, members)

    return Sticky


async def consume(broker: VirtualBroker, topic: str, client_id: str, assignor: type) -> None:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=broker.address,
        group_id="billing",
        client_id=client_id,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=9_000,
        max_poll_interval_ms=900_000,
        auto_commit_interval_ms=30_000,
        fetch_max_wait_ms=30_000,
        partition_assignment_strategy=[assignor],
    )
    await consumer.start()
    try:
        async for _ in consumer:
            pass
    finally:
        await consumer.stop()


def outage() -> tuple[VirtualWorld, VirtualBroker, Recorder]:
    """A group at work, 45 minutes of outage, and the restart."""
    recorder = Recorder()
    world = VirtualWorld(seed=1176)
    broker = VirtualBroker(world, dict.fromkeys(TOPICS, 24), tap=recorder)

    def start(name: str, *, sticky: bool) -> None:
        for topic in TOPICS:
            assignor = sticky_without_end(world, since=15) if sticky else RoundRobinPartitionAssignor
            world.host(name).start(consume(broker, topic, name, assignor))

    async def main() -> None:
        for name in PROCESSES:
            start(name, sticky=True)
        await asyncio.sleep(20)
        world.host("app-05").kill()
        start("app-05", sticky=True)
        await asyncio.sleep(45 * MINUTE)
        for name in PROCESSES:
            world.host(name).kill()
            start(name, sticky=False)
        await asyncio.sleep(10)

    world.run(main())
    return world, broker, recorder


def generations_of_claims(recorder: Recorder) -> list[int]:
    """The generations that members of the sticky assignor state in their user data, where they claim partitions."""
    stated = []
    for _, _, direction, frame in recorder.rows():
        request = decode_request(frame)[1] if direction == "request" and frame[:2] == b"\x00\x0b" else None
        if isinstance(request, JoinGroupRequest) and request.protocols[0].name == "sticky":
            user_data = ConsumerProtocol().decode_subscription(request.protocols[0].metadata, None).user_data
            stated += [int.from_bytes(user_data[-4:], "big", signed=True)] if user_data else []
    return stated


@pytest.mark.slow
def test_each_leader_takes_its_process_with_it() -> None:
    world, broker, recorder = outage()
    computed = [line for line in world.trace if line.what == "assigns"]
    assert [line.detail for line in computed] == [84, *range(84, 0, -7)], "the first assignment, then 12 without an end"
    assert len(generations_of_claims(recorder)) > 77
    assert set(generations_of_claims(recorder)) == {-1}

    first, *during, empty, last = broker.rebalances
    assert (first.outcome, len(first.joins)) == ("stable", 84)
    assert [len(rebalance.removed) for rebalance in during] == [7] * 12
    assert {rebalance.outcome for rebalance in during} == {"interrupted"}
    assert (empty.trigger, empty.outcome) == (Trigger.SESSION_EXPIRED, "empty")
    assert 11 * MINUTE < (empty.started_at - during[0].started_at) / 1000 < 13 * MINUTE
    assert (last.protocol, last.outcome, len(last.joins)) == ("roundrobin", "stable", 84)
    assert (last.ended_at - during[0].started_at) / 1000 > 45 * MINUTE

    exchanges, topics, losses = exchanges_of(recorder.frames("outage"))
    assert losses == []
    (history,) = histories_of(exchanges, topics).values()
    assert [rebalance.outcome for rebalance in history.rebalances].count("stable") == 2
    findings = {finding.detector: finding for finding in detect(history, exchanges)}
    stuck = findings["stuck_completing"]
    assert stuck.severity == "critical"
    assert stuck.value == pytest.approx(SESSION_MS, rel=0.05)
    assert stuck.text.startswith("12 x longer than 10 s waiting for the leader's assignment")
    assert "with sticky" in stuck.text


class FewTopics:
    """What an assignor asks of aiokafka's cluster metadata."""

    def __init__(self, partitions: int) -> None:
        self._partitions = set(range(partitions))

    def topics(self) -> list[str]:
        return list(TOPICS)

    def partitions_for_topic(self, topic: str) -> set[int]:
        return self._partitions


def assigned(partitions: int, members: dict[str, str], claims: dict[str, list[TopicPartition]]) -> Any:
    """Let aiokafka's sticky assignor compute, and return the partitions of each member."""
    metadata = {
        member: StickyPartitionAssignor._metadata([topic], claims.get(member)) for member, topic in members.items()
    }
    result = StickyPartitionAssignor.assign(FewTopics(partitions), metadata)
    return {
        member: [TopicPartition(topic, number) for topic, numbers in each.assignment for number in numbers]
        for member, each in result.items()
    }


@pytest.mark.parametrize("partitions", [12, 24, 48, 100])
def test_the_assignor_itself_comes_to_an_end(partitions: int) -> None:
    """So what made it run on in the report is something else than these claims."""
    random = Random(partitions)
    members = {f"{name}-{topic}": topic for name in PROCESSES for topic in TOPICS}
    names = list(members)
    claims = assigned(partitions, members, {})
    half = {name if number % 2 else f"{name}-new": topic for number, (name, topic) in enumerate(members.items())}
    same_topic = {name: random.choice([each for each in names if members[each] == members[name]]) for name in names}
    same_process = {name: random.choice([each for each in names if each[:6] == name[:6]]) for name in names}
    for present, stated in (
        (members, claims),
        (half, claims),
        (members, {name: claims[other] for name, other in same_topic.items()}),
        (members, {name: claims[other] for name, other in same_process.items()}),
    ):
        result = assigned(partitions, present, stated)
        assert sum(map(len, result.values())) == partitions * len(TOPICS)
