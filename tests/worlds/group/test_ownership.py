"""Who holds a partition, and how long it had no holder."""

from __future__ import annotations

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.worlds.group.members import Idle, MemberProcess, Ownership
from kcoord_wire.worlds.group.world import Cluster

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_idle_time_is_counted_by_its_reason() -> None:
    with Cluster(members=2) as sim:
        one, two = sim.processes.values()
    clock = VirtualClock()
    ownership: Ownership[MemberProcess] = Ownership(clock)
    clock.run(50)
    ownership.take(one, P0)
    ownership.take(one, P1)
    assert ownership.idle_ms() == Idle(0, 0), "nothing counts before the first holder"
    ownership.drop(two, [P0])
    assert ownership.held_by(one) == [P0, P1], "only a holder can drop"
    ownership.drop(one, [P0], revoked=True)
    ownership.drop(one, [P1])
    clock.run(10)
    ownership.take(two, P0)
    clock.run(5)
    assert ownership.idle_ms() == Idle(revoked=10, abandoned=15)
    assert (ownership.holder(P0), ownership.holder(P1)) == (two, None)
