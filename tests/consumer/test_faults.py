"""The consumer where something goes wrong at the coordinator, on a virtual clock, with the coordinator's own server.

A producer appends a record to each partition every second. Whatever happens, each record is processed, in the order of
its partition, and no partition has two owners; how the group comes through is what each test says.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer import Consumer, ConsumerSettings, RebalanceListener
from kcoord_wire.consumer.connection import BrokerConnection
from kcoord_wire.consumer.errors import BrokerError, CommitFailedError, GroupError
from kcoord_wire.coordinator import Fault, Faults
from kcoord_wire.kernel.net import parse_address
from kcoord_wire.kernel.virtual.loop import VirtualWorld
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.group.broker import VirtualBroker
from tests.support.clients.producing import append

PARTITIONS = 4
SECONDS = 80  # in which records are produced
BEGIN, END = 30, 50  # of what goes wrong


class Application(RebalanceListener):
    """An application that commits what it has processed.

    :ivar calls: of the listener: second, method, partition numbers
    :ivar seen: second, partition and offset of each record
    """

    def __init__(self, group: Group, name: str, settings: ConsumerSettings) -> None:
        self.group = group
        self.name = name
        self.settings = settings
        self.calls: list[tuple[float, str, tuple[int, ...]]] = []
        self.seen: list[tuple[float, int, int]] = []
        self.failed_commits: list[ErrorCode] = []
        self.error: Exception | None = None
        self.owners = group.owners
        self.starts_at = 0
        self.waits_for_commits = True

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.note("assigned", partitions)
        for partition in partitions:
            owner = self.owners.setdefault(partition, self.name)
            assert owner == self.name, f"{partition} is given to {self.name} while {owner} holds it"

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.give_up("revoked", partitions)

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.give_up("lost", partitions)

    def give_up(self, method: str, partitions: frozenset[TopicPartition]) -> None:
        self.note(method, partitions)
        for partition in partitions:
            assert self.owners.pop(partition) == self.name

    def note(self, method: str, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append((self.group.world.now, method, tuple(sorted(p.partition for p in partitions))))

    @property
    def methods(self) -> list[str]:
        return [method for _, method, _ in self.calls]

    async def run(self) -> None:
        await asyncio.sleep(self.starts_at)
        async with Consumer(self.settings) as consumer:
            consumer.subscribe(["orders"], self)
            try:
                while not self.group.is_over:
                    records = await consumer.poll(1_000)
                    for record in records:
                        self.seen.append((self.group.world.now, record.partition, record.offset))
                    if records:
                        await self.commit(consumer)
            except GroupError as error:
                self.error = error

    async def commit(self, consumer: Consumer) -> None:
        try:
            committing = consumer.commit_async()
            if self.waits_for_commits:
                await committing
        except CommitFailedError as error:
            self.failed_commits.append(error.error)

    def longest_pause(self) -> float:
        """Between two records, in seconds."""
        return max(later - at for (at, _, _), (later, _, _) in pairwise(self.seen))


class Group:
    """A world with one broker and applications of one group."""

    def __init__(self, *faults: Fault, seed: int = 1) -> None:
        self.world = VirtualWorld(seed=seed, max_seconds=3_600)
        self.faults = Faults(faults)
        self.broker = VirtualBroker(self.world, {"orders": PARTITIONS}, faults=self.faults)
        self.applications: list[Application] = []
        self.owners: dict[TopicPartition, str] = {}
        self.acknowledged = 0  # records of each partition
        self.is_over = False

    def add(self, name: str = "app", **settings: Any) -> Application:
        options = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
        application = Application(
            self, name, ConsumerSettings(bootstrap_servers=self.broker.address, group_id="g", client_id=name, **options)
        )
        self.applications.append(application)
        return application

    def play(self) -> None:
        """Run everything to the end, and check what always holds."""

        async def shop() -> None:
            while self.world.now < SECONDS:
                with suppress(BrokerError):
                    connection = await BrokerConnection.open(*parse_address(self.broker.address))
                    while self.world.now < SECONDS:
                        await append(connection, "orders", [(partition, b"x") for partition in range(PARTITIONS)])
                        self.acknowledged += 1
                        await asyncio.sleep(1)
                    await connection.close()
                await asyncio.sleep(1)

        async def main() -> None:
            tasks = [self.world.host(each.name).start(each.run()) for each in self.applications]
            await self.world.host("shop").start(shop())
            await asyncio.sleep(40)  # for what is left
            self.is_over = True
            for task in tasks:
                await task

        self.world.run(main())
        self.check()

    def check(self) -> None:
        offsets: dict[int, set[int]] = defaultdict(set)
        for application in self.applications:
            last: dict[int, int] = {}
            changes = iter([*application.calls, (float("inf"), "", ())])
            change = next(changes)
            for at, partition, offset in application.seen:
                while change[0] <= at:
                    last = {p: o for p, o in last.items() if p not in change[2]}
                    change = next(changes)
                assert offset == last.get(partition, offset - 1) + 1, "in order, none left out, none twice"
                last[partition] = offset
                offsets[partition].add(offset)
        for seen in offsets.values():
            assert seen == set(range(len(seen))), "none is left out"
            assert len(seen) >= self.acknowledged > SECONDS / 2
        assert len(offsets) == PARTITIONS
        assert not self.owners, "all is given up at the end"


def window(action: Any, api: str, **more: Any) -> Fault:
    return Fault(action, api=api, from_ms=BEGIN * 1000, until_ms=END * 1000, **more)


# ---- the coordinator is not there for a while


@pytest.mark.parametrize("beats", ["NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "COORDINATOR_LOAD_IN_PROGRESS", ""])
def test_it_goes_on_fetching_without_a_coordinator(beats: str) -> None:
    """As the 0.9 design says: a consumer that looks for its coordinator keeps its partitions and goes on."""
    group = Group(
        window("error", "FindCoordinator", error="COORDINATOR_NOT_AVAILABLE"),
        window("error", "Heartbeat", error=beats) if beats else window("disconnect", "Heartbeat"),
        window("error", "OffsetCommit", error="NOT_COORDINATOR"),
    )
    app = group.add()
    app.waits_for_commits = False
    group.play()
    assert app.methods == ["assigned", "revoked"]
    assert app.longest_pause() < 2.5


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_members_outlive_their_coordinator(assignor: str) -> None:
    group = Group()
    apps = [group.add(name, partition_assignment_strategy=[assignor]) for name in ("one", "two")]
    group.world.at(BEGIN, group.broker.down, END - BEGIN)
    before: list[list[str]] = []
    group.world.at(BEGIN, lambda: before.extend(app.methods for app in apps))
    group.play()
    assert [app.methods[: len(methods)] for app, methods in zip(apps, before, strict=True)] == before
    after = [app.methods[len(methods) :] for app, methods in zip(apps, before, strict=True)]
    assert "lost" not in [method for methods in after for method in methods], "their sessions have not ended"
    assert len(group.broker.rebalances) <= 4, "two came, two went"


# ---- the coordinator rejects the member


@pytest.mark.parametrize("error", ["ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"])
@pytest.mark.parametrize("api", ["Heartbeat", "OffsetCommit"])
def test_a_rejected_member_loses_all_and_joins_again(api: str, error: str) -> None:
    group = Group(window("error", api, error=error, count=1))
    app = group.add()
    group.play()
    assert app.methods == ["assigned", "lost", "assigned", "revoked"]
    assert app.failed_commits == ([ErrorCode[error]] if api == "OffsetCommit" else [])


@pytest.mark.parametrize("api", ["Heartbeat", "OffsetCommit", "SyncGroup"])
def test_a_fenced_member_ends(api: str) -> None:
    """Another one has its instance id: it must not join again (KIP-345). Its partitions wait for its session's end."""
    faults = [Fault("error", api=api, client_id="fenced", error="FENCED_INSTANCE_ID", from_ms=BEGIN * 1000)]
    if api == "SyncGroup":
        faults.append(window("error", "Heartbeat", client_id="fenced", error="REBALANCE_IN_PROGRESS", count=1))
    group = Group(*faults)
    fenced = group.add("fenced", group_instance_id="a")
    other = group.add("other")
    group.play()
    assert isinstance(fenced.error, GroupError)
    assert fenced.error.error is ErrorCode.FENCED_INSTANCE_ID
    assert fenced.methods[-1] == ("revoked" if api == "SyncGroup" else "lost")  # it had given them up to join
    assert other.calls[-2][2] == tuple(range(PARTITIONS))


def test_a_second_process_of_an_instance_fences_the_first() -> None:
    """Nothing is injected. Both own the partitions until the first one's next request: Kafka's static membership."""
    group = Group()
    first, second = (group.add(name, group_instance_id="a") for name in ("first", "second"))
    second.starts_at = BEGIN
    second.owners = {}
    group.play()
    assert isinstance(first.error, GroupError)
    assert first.error.error is ErrorCode.FENCED_INSTANCE_ID
    assert (first.methods, second.methods) == (["assigned", "lost"], ["assigned", "revoked"])
    assert 0 < first.calls[1][0] - second.calls[0][0] < 3.1, "a heartbeat later at most"


# ---- everything, one after the other

GROUP_ERRORS = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR")
LEADER_ERRORS = ("NOT_LEADER_OR_FOLLOWER", "UNKNOWN_TOPIC_OR_PARTITION", "LEADER_NOT_AVAILABLE", "KAFKA_STORAGE_ERROR")
EPOCH_ERRORS = ("FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH")
ERRORS = {
    "ApiVersions": (),
    "Metadata": ("LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PARTITION"),
    "FindCoordinator": GROUP_ERRORS,
    "JoinGroup": (*GROUP_ERRORS, "REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID"),
    "SyncGroup": (*GROUP_ERRORS, "REBALANCE_IN_PROGRESS", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"),
    "OffsetFetch": (*GROUP_ERRORS, "UNSTABLE_OFFSET_COMMIT"),
    "ListOffsets": (*LEADER_ERRORS, *EPOCH_ERRORS),
    "Fetch": (*LEADER_ERRORS, *EPOCH_ERRORS),
}


@pytest.mark.parametrize("on", ["request", "response"])
@pytest.mark.parametrize("api", ERRORS)
def test_it_joins_and_reads_past_every_fault(api: str, on: Any) -> None:
    """The n-th request of the api meets the n-th fault, and the first is late besides."""
    actions: list[dict[str, Any]] = [{"action": "error", "error": error} for error in ERRORS[api]]
    actions += [{"action": "disconnect"}, {"action": "drop"}, {"action": "duplicate"}]
    faults = [Fault("delay", on=on, api=api, client_id="app", count=1, delay_ms=2_000)]
    faults += [
        Fault(on=on, api=api, client_id="app", after=after, count=1, **action) for after, action in enumerate(actions)
    ]
    group = Group(*faults)
    app = group.add(request_timeout_ms=5_000, max_poll_interval_ms=10_000)
    group.play()
    assert app.error is None
    assert app.methods[-1] == "revoked"
    assert [tally.fault for tally in group.faults.tallies() if not tally.hits] == []


# ---- at random

APIS = (*ERRORS, "Heartbeat", "OffsetCommit", "LeaveGroup")


@pytest.mark.parametrize("seed", range(6))
def test_random_faults_cost_no_record_and_make_no_second_owner(seed: int) -> None:
    """Three members, and a coordinator that loses power besides."""
    random = Random(seed)
    faults = []
    for _ in range(12):
        action: Any = random.choice(["disconnect", "drop", "duplicate", "delay"])
        faults.append(
            Fault(
                action,
                api=random.choice([*ERRORS, "Heartbeat", "OffsetCommit", "LeaveGroup"]),
                on=random.choice(["request", "response"]),
                client_id=random.choice(["one", "two", "three"]),
                after=random.randrange(5),
                every=random.randrange(1, 4),
                count=random.randrange(1, 4),
                delay_ms=random.randrange(100, 3_000) if action == "delay" else 0,
            )
        )
    group = Group(*faults, seed=seed)
    assignor = random.choice(["range", "sticky", "cooperative-sticky"])
    for name in ("one", "two", "three"):
        group.add(name, partition_assignment_strategy=[assignor], request_timeout_ms=5_000, max_poll_interval_ms=10_000)
    group.world.at(random.randrange(40, 60), group.broker.down, random.randrange(1, 10))
    group.play()
