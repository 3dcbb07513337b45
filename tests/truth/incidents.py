"""Known outages, played on the virtual cluster.

* `never_completes`: aiokafka#1176. 12 processes of 7 consumers, each of the 7 with a topic of its own, so that 84
  members have unequal subscriptions; the sticky assignor does not come to an end, heartbeats go on, and the rebalance
  timeout is 15 minutes. Nothing was consumed for 45 minutes, until all were started anew with round-robin.
* `storm`: KAFKA-15106, in a client with one thread for everything. The sticky assignor takes longer than the session:
  the leader is removed while it computes, the next one begins, and the first comes back and breaks that off. About
  200 rebalances in ten minutes.
* `silent_leader`: KAFKA-12890. The leader never sends its SyncGroup; all send heartbeats, all look well, and the group
  stays in CompletingRebalance until the rebalance timeout is over (before Kafka 3.0: for good).
* `disagreement`: librdkafka#4783. A cooperative assignor that never takes an assignment for balanced: each round
  revokes something and asks for the next.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcoord_wire.assignors import (
    NO_RACKS,
    Assignment,
    Assignor,
    MemberSubscription,
    Racks,
    RebalanceProtocol,
    group_partitions,
    list_partitions,
    round_robin,
)
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.worlds.group.world import Cluster
from tests.truth.world import Recorder, quick

MINUTE = 60_000
TOPICS = ("orders", "payments", "refunds", "shipments", "invoices", "returns", "audit")


def never_completes() -> tuple[Cluster, Recorder]:
    """84 members for 45 minutes in a rebalance that does not end; then, with another assignor, it ends at once."""
    recorder = Recorder()
    sim = Cluster(1176, topics=dict.fromkeys(TOPICS, 24), config=GroupConfig(), tap=recorder)

    def start(assignor: str, assign_ms: int, suffix: str) -> None:
        for process in range(12):
            for topic in TOPICS:
                sim.member(
                    f"app-{process:02}-{topic}{suffix}",
                    topics=(topic,),
                    assignors=(assignor,),
                    client="aiokafka",
                    client_id=f"app-{process:02}",
                    session_timeout_ms=30_000,
                    heartbeat_interval_ms=9_000,
                    rebalance_timeout_ms=15 * MINUTE,
                    commit_ms=10_000,
                    assign_ms=assign_ms,
                )

    start("sticky", 120 * MINUTE, "")
    sim.run(45 * MINUTE + 30_000)
    for name in list(sim.processes):
        sim.leave(name)
    sim.run(1_000)
    start("roundrobin", 5, "-again")
    sim.run(10)
    sim.run_until(sim.is_settled, 5 * MINUTE)
    sim.run(MINUTE)
    return sim, recorder


def storm() -> tuple[Cluster, Recorder]:
    """40 members with a session of 3 s, whose leaders are removed one after the other while they compute."""
    recorder = Recorder()
    sim = Cluster(15106, topics=dict.fromkeys(TOPICS, 20), config=quick(min_session_timeout_ms=3_000), tap=recorder)
    for number in range(40):
        sim.member(
            f"worker-{number}",
            topics=TOPICS[: 1 + number % len(TOPICS)],
            assignors=("sticky",),
            session_timeout_ms=3_000,
            heartbeat_interval_ms=1_000,
            rebalance_timeout_ms=30_000,
            commit_ms=None,
            assign_ms=3_100,
            assign_blocks=True,
        )
    sim.run(10 * MINUTE)
    return sim, recorder


def silent_leader() -> tuple[Cluster, Recorder]:
    """A group of five at work; one more joins, and the leader does not come back from its assignor."""
    recorder = Recorder()
    sim = Cluster(12890, topics={"orders": 20}, config=quick(), tap=recorder)

    def start(number: int) -> None:
        sim.member(f"c{number}", session_timeout_ms=10_000, rebalance_timeout_ms=5 * MINUTE)

    for number in range(5):
        start(number)
    sim.run_until(sim.is_settled)
    sim.run(MINUTE)
    leader = sim.leader()
    assert leader is not None
    leader.options.assign_ms = 20 * MINUTE
    start(5)
    sim.run(6 * MINUTE)
    leader.options.assign_ms = 0
    sim.run_until(sim.is_settled, 10 * MINUTE)
    sim.run(MINUTE)
    return sim, recorder


def disagreement() -> tuple[Cluster, Recorder]:
    """Four members for two minutes, whose leader takes a partition from a member in every round."""
    recorder = Recorder()
    rounds = 0

    def restless(
        counts: Mapping[str, int], members: Mapping[str, MemberSubscription], _racks: Racks = NO_RACKS
    ) -> Assignment:
        nonlocal rounds
        rounds += 1
        given = {member: list_partitions(told.owned) for member, told in sorted(members.items())}
        taken = {partition for partitions in given.values() for partition in partitions}
        for partition in list_partitions(round_robin(counts, {"": MemberSubscription(sorted(counts))})[""]):
            if partition not in taken:
                min(given.values(), key=len).append(partition)
        owned = {member: list_partitions(told.owned) for member, told in members.items()}
        loser = max(given, key=lambda member: (len(owned[member]), member[-(rounds % 7) :]))
        if owned[loser]:
            given[loser].remove(owned[loser][0])
        return {member: group_partitions(partitions) for member, partitions in given.items()}

    faulty = Assignor("cooperative-sticky", RebalanceProtocol.COOPERATIVE, restless)
    sim = Cluster(4783, topics={"orders": 8}, config=quick(), tap=recorder)
    for number in range(4):
        sim.member(f"rd-{number}", client="librdkafka", assignors=(faulty,), session_timeout_ms=10_000)
    sim.run(1_000)
    sim.rejoin("rd-0")
    sim.run(2 * MINUTE)
    return sim, recorder
