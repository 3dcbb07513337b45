"""Brokers and consumers of the draft as processes on a real ensemble of three, while parts of them fail.

After each fault, from the consumers' own accounts: no partition had two owners, no committed offset went back or was
skipped. `KCOORD_WIRE_FAULT_ROUNDS` is the number of random rounds, `KCOORD_WIRE_FAULT_SEED` repeats some.
"""

from __future__ import annotations

import os
import signal
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from kcoord_wire.kernel.driver import monotonic_ms
from tests.support.central_cluster import SESSION_MS, Broker, Cluster, Fetch, two_owners
from tests.support.tcp_proxy import TcpProxy

ROUNDS = int(os.environ.get("KCOORD_WIRE_FAULT_ROUNDS", "5"))
SEED = int(os.environ.get("KCOORD_WIRE_FAULT_SEED", "1"))
TIMES = Path(__file__).parents[2] / "build" / "fault-rounds.txt"
ANY_TOPIC = "*1*.*"
CONSUMERS = 3
DOUBLE = 0.3  # of the random rounds have a second fault, which lasts longer

pytestmark = pytest.mark.xdist_group("central-ensemble")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("central")) as cluster:
        for number in (1, 2, 3):
            cluster.add_broker(number, "orders:2,payments:1")
        cluster.until(lambda: len(cluster.partitions) == 9, "topics of three brokers")
        yield cluster


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """The cluster, in order before and after a test."""
    settle(shared)
    yield shared
    settle(shared)
    shared.check()


def settle(cluster: Cluster) -> None:
    """Wait until all run, and everything is fetched."""
    while len(cluster.consumers) < CONSUMERS:
        cluster.add_consumer(ANY_TOPIC)
    cluster.until(lambda: all(node.mode for node in cluster.ensemble.nodes), "three ZooKeeper nodes")
    cluster.until_led()
    cluster.until_fetched(monotonic_ms())


def coordinator_of(cluster: Cluster) -> Broker:
    return cluster.brokers[cluster.until_led().broker_id]


# ---- faults: each begins at once, and returns what it means and how it ends


class Fault(NamedTuple):
    """A fault that has begun.

    :ivar replaces: the epoch that ends by it; None if the coordinator may stay
    :ivar unreachable: brokers whose partitions cannot be fetched meanwhile
    """

    end: Callable[[], None]
    replaces: int | None = None
    unreachable: frozenset[int] = frozenset()


Begin = Callable[[Cluster, Random], Fault]


def of_coordinator(
    begin: Callable[[Broker], object], end: Callable[[Broker], object]
) -> Callable[[Cluster, Random], Fault]:
    def fault(cluster: Cluster, choice: Random) -> Fault:
        leader = cluster.until_led()
        broker = cluster.brokers[leader.broker_id]
        begin(broker)
        return Fault(lambda: end(broker), leader.epoch, frozenset({broker.number}))

    return fault


def killed_other_broker(cluster: Cluster, choice: Random) -> Fault:
    """A broker forgets the fences that it has seen."""
    leader = cluster.until_led().broker_id
    broker = cluster.brokers[choice.choice(sorted(cluster.brokers.keys() - {leader}))]
    broker.kill()
    return Fault(broker.start, unreachable=frozenset({broker.number}))


def killed_node(cluster: Cluster, choice: Random) -> Fault:
    node = choice.choice(cluster.ensemble.nodes)
    node.kill()
    return Fault(node.start)


def killed_leading_node(cluster: Cluster, choice: Random) -> Fault:
    node = cluster.until(lambda: cluster.ensemble.leader, "a ZooKeeper node that leads")
    node.kill()
    return Fault(node.start)


def paused_node(cluster: Cluster, choice: Random) -> Fault:
    node = choice.choice(cluster.ensemble.nodes)
    node.pause()
    return Fault(node.resume)


def killed_consumer(cluster: Cluster, choice: Random) -> Fault:
    cluster.remove_consumer(choice.choice(sorted(cluster.consumers)))
    return Fault(lambda: None)


def paused_consumer(cluster: Cluster, choice: Random) -> Fault:
    consumer = cluster.consumers[choice.choice(sorted(cluster.consumers))]
    consumer.send(signal.SIGSTOP)
    return Fault(lambda: consumer.send(signal.SIGCONT))


FAULTS: dict[str, Begin] = {
    "coordinator killed": of_coordinator(Broker.kill, Broker.start),
    "coordinator stopped in order": of_coordinator(Broker.end, Broker.start),
    "coordinator paused": of_coordinator(
        lambda broker: broker.send(signal.SIGSTOP), lambda broker: broker.send(signal.SIGCONT)
    ),
    "coordinator's connections to ZooKeeper reset": of_coordinator(
        lambda broker: broker.each_proxy(TcpProxy.cut), lambda broker: broker.each_proxy(TcpProxy.heal)
    ),
    "coordinator cut off from ZooKeeper": of_coordinator(
        lambda broker: broker.each_proxy(TcpProxy.hold), lambda broker: broker.each_proxy(TcpProxy.heal)
    ),
    "ZooKeeper node killed": killed_node,
    "ZooKeeper leader killed": killed_leading_node,
    "ZooKeeper node paused": paused_node,
    "broker killed that does not coordinate": killed_other_broker,
    "consumer killed": killed_consumer,
    "consumer paused": paused_consumer,
}


def play(cluster: Cluster, name: str, choice: Random) -> int:
    """Let a fault happen until everything reachable is fetched and commits go on; return the ms from its begin."""
    began_at = monotonic_ms()
    fault = FAULTS[name](cluster, choice)
    try:
        epoch = 0 if fault.replaces is None else cluster.until_led(fault.replaces).epoch
        fetched_after = cluster.until_fetched(began_at, epoch, fault.unreachable)
        return max(fetched_after, cluster.until_committed(began_at + fetched_after) - began_at)
    finally:
        fault.end()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAULTS.keys() - {"coordinator paused", "consumer paused"}))  # they follow
def test_the_group_goes_on_after(cluster: Cluster, name: str) -> None:
    before = cluster.until_led().epoch
    play(cluster, name, Random(name))
    if name.startswith("coordinator"):
        assert cluster.until_led().epoch > before


@pytest.mark.slow
def test_a_coordinator_paused_too_long_resigns_when_it_resumes(cluster: Cluster) -> None:
    broker = coordinator_of(cluster)
    log = len(broker.log)
    play(cluster, "coordinator paused", Random(0))
    cluster.until(lambda: "resigned" in broker.log[log:], "the paused coordinator has resigned")
    assert "reason=lease expired" in broker.log[log:]


@pytest.mark.slow
def test_a_consumer_paused_too_long_owns_nothing_when_it_resumes(cluster: Cluster) -> None:
    consumer = min(cluster.consumers.values(), key=lambda consumer: consumer.name)
    consumer.send(signal.SIGSTOP)
    paused_at = monotonic_ms()
    cluster.until_fetched(paused_at)
    consumer.send(signal.SIGCONT)
    resumed_at = monotonic_ms()

    def its_fetches() -> list[Fetch]:
        return [f for f in cluster.fetches if f.consumer == consumer.name and f.sent > resumed_at]

    [first, *_] = cluster.until(its_fetches, "the consumer that was paused fetches again")
    others = [f.fence for f in cluster.fetches if f.consumer != consumer.name and paused_at < f.sent < resumed_at]
    assert first.fence > max(others), "by a later assignment, to which it has registered anew"


@pytest.mark.slow
def test_added_partitions_and_topics_are_owned(cluster: Cluster) -> None:
    cluster.add_broker(4, "orders:1")
    cluster.until(lambda: "orders/4-0" in cluster.partitions, "a partition at another broker")
    cluster.until_fetched(monotonic_ms())
    cluster.brokers[4].end()
    cluster.add_broker(4, "orders:3,refunds:1")
    cluster.until(lambda: {"orders/4-2", "refunds/4-0"} <= cluster.partitions, "more partitions, and a topic")
    cluster.until_fetched(monotonic_ms())


@pytest.mark.slow
def test_random_faults_leave_one_owner_and_all_commits(cluster: Cluster) -> None:
    """The times are written to build/fault-rounds.txt."""
    choice = Random(SEED)
    took: dict[str, list[int]] = {}
    for _ in range(ROUNDS):
        name = choice.choice(sorted(FAULTS))
        is_double = choice.random() < DOUBLE and not name.startswith("ZooKeeper")
        beside = choice.choice([killed_node, paused_consumer])(cluster, choice) if is_double else None
        took.setdefault(name, []).append(play(cluster, name, choice))
        if beside is not None:
            beside.end()
        settle(cluster)
        cluster.check()
    lines = [f"{ROUNDS} rounds of seed {SEED}, sessions of {SESSION_MS} ms: ms until everything went on"]
    lines += [
        f"{name:<46} {len(times):>3} times, median {statistics.median(times):>6.0f}, most {max(times):>6}"
        for name, times in sorted(took.items())
    ]
    TIMES.parent.mkdir(exist_ok=True)
    TIMES.write_text("\n".join([*lines, ""]))


def test_two_owners_are_seen_in_accounts() -> None:
    def fetch(consumer: str, sent: int, answered: int, generation: int) -> Fetch:
        return Fetch(consumer, "t/1-0", 0, 0, sent, answered, (1, generation))

    a, b = fetch("a", 10, 12, 1), fetch("b", 20, 25, 2)
    assert list(two_owners([a, b, fetch("a", 21, 30, 1)])) == [], "it may have been served before"
    assert len(list(two_owners([a, b, fetch("a", 26, 27, 1)]))) == 1
    assert len(list(two_owners([a, fetch("b", 13, 14, 1)]))) == 1
