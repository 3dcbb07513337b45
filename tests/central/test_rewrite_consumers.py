"""The rewrite's numbered failure scenarios, seen from outside: brokers and consumers as processes on a real ZooKeeper,
which are killed, stopped and cut off.

Source: "Kafka 0.9 Consumer Rewrite Design", "Various failure scenarios to consider". Of each group every record has to
be processed by one of its consumers; which come twice is up to the moment at which a process was hit.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kcoord_wire import messages as m
from kcoord_wire.zookeeper.ensemble import Ensemble
from tests.support.central_account import Account, ConsumerProcess
from tests.support.central_processes import BrokerProcess
from tests.support.rewrite_wire import RewriteWire
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import eventually
from tests.support.zookeeper import chroot_of_its_own

OPTIONS = (
    "--design",
    "rewrite",
    "--shards",
    "8",
    "--rate",
    "20",
    "--session-timeout-ms",
    "4000",
    "--min-session-timeout-ms",
    "1000",
)
PATIENT_MS, SHORT_MS = 30_000, 3_000
SECONDS = 120.0
pytestmark = pytest.mark.slow


class Cluster:
    """Two brokers, and the consumers of groups. Broker 1 has come first, so it leads all partitions while it lives."""

    def __init__(self, connect: str, stack: ExitStack) -> None:
        self._connect = connect
        self._stack = stack
        self.brokers: dict[int, BrokerProcess] = {}
        self.groups: dict[str, Account] = defaultdict(Account)

    def serve(self, number: int, topics: str, *options: str) -> BrokerProcess:
        made = BrokerProcess(self._connect, number, *OPTIONS, "--topics", topics, *options)
        self.brokers[number] = self._stack.enter_context(made)
        return made

    def coordinator(self, group: str, by: int = 1) -> int:
        """Ask a broker for the coordinator of a group; 0 if it does not know."""
        with RewriteWire(self.brokers[by].address) as wire:
            answer = wire.ask(m.FindCoordinatorRequest(key=group))
        return 0 if answer.error_code else int(answer.node_id)

    def group_of(self, broker: int) -> str:
        """Return the name of a group that this broker coordinates."""
        names = (f"group-{broker}-{number}" for number in range(100))
        return next(name for name in names if self.coordinator(name) == broker)

    def consume(self, group: str, session_ms: int, *what: str, address: str = "") -> ConsumerProcess:
        address = address or ",".join(broker.address for broker in self.brokers.values())
        what = ("--design", "rewrite", *(what or ("--topics", "orders")))
        made = ConsumerProcess(address, group, session_ms, *what)
        self.groups[group].consumers.append(self._stack.enter_context(made))
        return made

    def committed(self, group: str, partitions: int, by: int = 1) -> int:
        """Return the sum of a group's committed offsets; -1 while no broker coordinates it."""
        number = self.coordinator(group, by)
        if not number:
            return -1
        with RewriteWire(self.brokers[number].address) as wire:
            wanted = m.OffsetFetchRequestTopic(name="orders", partition_indexes=list(range(partitions)))
            try:
                answer = wire.ask(m.OffsetFetchRequest(group_id=group, topics=[wanted]))
            except EOFError:  # its term has ended meanwhile: it closes the connections of the group
                return -1
        return sum(max(each.committed_offset, 0) for topic in answer.topics for each in topic.partitions)

    def is_shared(self, group: str, partitions: int, among: list[ConsumerProcess]) -> bool:
        """Whether these consumers, each with some, have all partitions of orders, each once."""
        owned = [consumer.owned for consumer in among]
        wanted = [f"orders/{number}" for number in range(partitions)]
        return all(owned) and sorted(each for part in owned for each in part) == wanted


@pytest.fixture
def cluster(zookeeper: Ensemble) -> Iterator[Cluster]:
    with ExitStack() as stack:
        made = Cluster(zookeeper.connect + chroot_of_its_own(), stack)
        made.serve(1, "orders:4")
        made.serve(2, "orders:4").wait_for("coordination started")
        eventually(lambda: made.coordinator("g") == made.coordinator("g", 2) != 0)
        yield made
        for broker in made.brokers.values():
            assert "Traceback" not in broker.log
        for group in made.groups.values():
            for consumer in group.consumers:
                assert "Traceback" not in consumer.log


def processes(consumer: ConsumerProcess, more: int) -> None:
    """Wait until it has processed so many more records."""
    goal = len(consumer.events("record")) + more
    eventually(lambda: len(consumer.events("record")) >= goal, seconds=SECONDS)


def test_failover_partition_changes_and_commits(cluster: Cluster) -> None:
    """Co-ordinator failover 1 to 3; partition changes 1 to 5; offset commits 1 to 3; heartbeats 1, 3."""
    group = cluster.group_of(2)
    one, two = (cluster.consume(group, PATIENT_MS) for _ in range(2))
    eventually(lambda: cluster.is_shared(group, 4, [one, two]), seconds=SECONDS)
    eventually(lambda: cluster.committed(group, 4) > 0, seconds=SECONDS)

    # Failover: the coordinator dies; the members fetch on, find the heir, and go on in the same generation.
    before = one.assignments, two.assignments
    port = cluster.brokers[2].address.rpartition(":")[2]
    cluster.brokers.pop(2).kill()
    processes(one, 40)
    eventually(lambda: cluster.coordinator(group) == 1, seconds=SECONDS)
    committed = cluster.committed(group, 4)
    assert committed > 0, "the heir has read the offsets"
    eventually(lambda: cluster.committed(group, 4) > committed, seconds=SECONDS)
    assert (one.assignments, two.assignments) == before, "neither has stopped fetching"

    # Partition changes: the returning broker brings two more; every member stops, commits, and joins.
    cluster.serve(2, "orders:6", "--port", port)
    eventually(lambda: cluster.is_shared(group, 6, [one, two]), seconds=SECONDS)
    assert [] in one.assignments[len(before[0]) :], "it has stopped before it joined"
    processes(two, 40)

    # Both commit as they end, so the next one goes on where they were, but for the record that each had in hand.
    assert (one.end(), two.end(signal.SIGINT)) == (0, 130)
    assert 0 <= sum(cluster.groups[group].ends().values()) - cluster.committed(group, 6) <= 2
    assert cluster.groups[group].missing() == []


def test_soft_failures_and_a_coordinator_dead_in_a_rebalance(cluster: Cluster) -> None:
    """Heartbeats during rebalance 2, before and after the JoinGroup; offset commits 4; coordinator failure during a
    rebalance."""
    group = cluster.group_of(2)
    one, two = (cluster.consume(group, SHORT_MS) for _ in range(2))
    eventually(lambda: cluster.is_shared(group, 4, [one, two]), seconds=SECONDS)

    # After its JoinGroup: a pause beyond the session ends its membership, and it joins anew.
    one.send(signal.SIGSTOP)
    eventually(lambda: cluster.is_shared(group, 4, [two]), seconds=SECONDS)
    cluster.brokers[2].wait_for("consumer failed group=" + group)
    one.send(signal.SIGCONT)
    eventually(lambda: cluster.is_shared(group, 4, [one, two]), seconds=SECONDS)

    # Before its JoinGroup: the rebalance that a third one begins goes on without it.
    one.send(signal.SIGSTOP)
    three = cluster.consume(group, SHORT_MS)
    eventually(lambda: cluster.is_shared(group, 4, [two, three]), seconds=SECONDS)

    # The coordinator dies while a rebalance waits for a member that is stopped.
    two.send(signal.SIGSTOP)
    cluster.consume(group, SHORT_MS)
    eventually(lambda: len(started_rebalances(cluster.brokers[2], group)) >= 5, seconds=SECONDS)
    cluster.brokers.pop(2).kill()
    four = cluster.groups[group].consumers[-1]
    eventually(lambda: cluster.is_shared(group, 4, [three, four]), seconds=SECONDS)
    for each in (one, two):
        each.send(signal.SIGCONT)
    eventually(lambda: cluster.is_shared(group, 4, [one, two, three, four]), seconds=SECONDS)

    # Killed, without a word: its partitions are assigned when its session has ended.
    three.kill()
    eventually(lambda: cluster.is_shared(group, 4, [one, two, four]), seconds=SECONDS)
    processes(four, 20)
    assert cluster.groups[group].missing() == []


def started_rebalances(broker: BrokerProcess, group: str) -> list[str]:
    return [line for line in broker.log.splitlines() if f"rebalance started group={group} " in line]


def test_members_that_are_cut_off_and_a_wildcard(zookeeper: Ensemble) -> None:
    """Connection loss to the co-ordinator, short, and longer than the session; wildcard subscription."""
    with ExitStack() as stack:
        proxy = stack.enter_context(TcpProxy(0))
        cluster = Cluster(zookeeper.connect + chroot_of_its_own(), stack)
        broker = cluster.serve(1, "orders:2", "--advertise", proxy.address)
        proxy.target = int(broker.address.rpartition(":")[2])
        broker.wait_for("coordination started shard=7")
        wildcard = ("--whitelist", "ord.*|pay.*", "--refresh-ms", "500")
        one, two = (cluster.consume("g", SHORT_MS, *wildcard, address=proxy.address) for _ in range(2))
        eventually(lambda: cluster.is_shared("g", 2, [one, two]), seconds=SECONDS)
        for consumer in (one, two):
            processes(consumer, 20)

        proxy.cut()
        proxy.heal()
        for consumer in (one, two):
            processes(consumer, 20)

        proxy.hold()
        eventually(lambda: broker.log.count("consumer failed group=g") >= 2, seconds=SECONDS)
        proxy.heal()
        eventually(lambda: cluster.is_shared("g", 2, [one, two]), seconds=SECONDS)
        for consumer in (one, two):
            processes(consumer, 20)

        cluster.serve(2, "payments:1").wait_for("kcoord central serves")
        eventually(lambda: "payments/0" in one.owned + two.owned, seconds=SECONDS)
        assert (one.end(), two.end()) == (0, 0)
        assert cluster.groups["g"].missing() == []
        assert "Traceback" not in broker.log + one.log + two.log
