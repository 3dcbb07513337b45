"""Consumer processes: their options, leaders that compute slowly, applications that give up partitions slowly."""

from __future__ import annotations

import pytest

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.messages import HeartbeatRequest
from kcoord_wire.worlds.group.members import Idle, MemberOptions, MemberProcess, Opening, Ownership
from kcoord_wire.worlds.group.world import Cluster
from tests.support.clusters import QUICK, SHORT


def test_options_are_checked_when_they_are_made() -> None:
    with pytest.raises(TypeError, match="topics must be a list of strings, not 'o'"):
        MemberOptions(topics="o")
    with pytest.raises(TypeError, match="assignors must be a list of strings, not 'range'"):
        MemberOptions(assignors="range")
    with pytest.raises(ValueError, match="no assignor is called 'rnage'; there are range, roundrobin"):
        MemberOptions(assignors=["rnage"])
    with pytest.raises(ValueError, match="no client is called 'perl'; there are java"):
        MemberOptions(client="perl")


def test_options_print_what_differs_from_the_defaults() -> None:
    assert repr(MemberOptions()) == "MemberOptions()"
    assert repr(MemberOptions(client="kafkajs", release_ms=5)) == "MemberOptions(client='kafkajs', release_ms=5)"


def test_the_client_id_is_the_name_unless_it_is_given() -> None:
    assert MemberOptions().settings("m1").client_id == "m1"
    assert MemberOptions(client_id="billing").settings("m1").client_id == "billing"


@pytest.mark.parametrize("blocks", [False, True])
def test_a_leader_that_computes_may_stop_its_heartbeats(blocks: bool) -> None:
    with Cluster(1, config=QUICK) as sim:
        sim.member("m1", assign_ms=4_000, assign_blocks=blocks, **SHORT)
        sim.run_until(sim.is_settled)
        lines = [line.what for line in sim.trace if line.who == "m1"]
        (assigns,) = (line.at for line in sim.trace if line.what == "assigns")
        (assigned,) = (line.at for line in sim.trace if line.what == "assigned")
    assert assigned >= assigns + 4_000
    assert ("pauses" in lines) is blocks


def test_partitions_are_released_one_after_the_other() -> None:
    with Cluster(1, topics={"orders": 4}, config=QUICK) as sim:
        sim.member("m1", release_ms=100, **SHORT)
        sim.run_until(sim.is_settled)
        sim.member("m2", **SHORT)
        sim.run_until(lambda: any(line.what == "revoking" for line in sim.trace))
        start = sim.now
        joins = sum(line.what == "joins" for line in sim.trace if line.who == "m1")
        took = sim.run_until(lambda: sum(line.what == "joins" for line in sim.trace if line.who == "m1") > joins)
    assert took == 4 * 100, f"from {start}"


def moment(sim: Cluster, who: str, what: str) -> int:
    return [line.at for line in sim.trace if (line.who, line.what) == (who, what)][-1]


def test_partitions_are_opened_before_the_member_rejoins() -> None:
    """A rebalance that begins while a listener runs waits for it, as the Java consumer's does; heartbeats go on."""
    with Cluster(1, topics={"orders": 8}, config=QUICK) as sim:
        sim.member("m1", restore_ms=1_000, **SHORT)
        sim.run_until(lambda: any(line.what == "opens" for line in sim.trace))
        begun = sim.now
        assert sim.is_busy("m1")
        sim.member("m2", **SHORT)
        sim.run_until(lambda: sim.owners().keys() == set() or sim.now > begun + 20_000)
        assert moment(sim, "m1", "opened") == begun + 8_000
        assert moment(sim, "m1", "closes") >= begun + 8_000
        assert not any(line.what == "lost" for line in sim.trace)


def test_a_listener_past_the_poll_interval_ends_membership() -> None:
    with Cluster(1, topics={"orders": 4}, config=QUICK) as sim:
        sim.member("m1", restore_ms=5_000, **SHORT | {"rebalance_timeout_ms": 10_000})
        sim.run_until(lambda: any(line.what == "lost" for line in sim.trace))
        assert moment(sim, "m1", "lost") == moment(sim, "m1", "opens") + 10_000


def test_partitions_opened_aside_do_not_delay_the_group() -> None:
    with Cluster(1, topics={"orders": 4}, config=QUICK) as sim:
        sim.member("m1", restore_ms=5_000, restores_aside=True, assignors=["cooperative-sticky"], **SHORT)
        sim.run_until(sim.is_settled)
        sim.member("m2", assignors=["cooperative-sticky"], **SHORT)
        sim.run_until(lambda: "m2" in sim.owners().values())
        assert sim.now < 20_000
        sim.run_until(lambda: not sim.is_busy("m1"), 60_000)
        opened = [each for line in sim.trace if line.what == "opened" for each in line.detail]
        assert set(opened) == {each for each, name in sim.owners().items() if name == "m1"}


def test_shutting_down_gives_up_partitions_before_it_leaves() -> None:
    with Cluster(1, topics={"orders": 4}, config=QUICK) as sim:
        sim.member("m1", release_ms=300, **SHORT)
        sim.run_until(sim.is_settled)
        stops = sim.now
        assert sim.shut_down("m1") == 4 * 300
        sim.run(10_000)
        assert moment(sim, "m1", "leaves") == stops + 4 * 300
        assert moment(sim, "m1", "left") == stops + 4 * 300
        assert sim.shut_down("m1") == 0, "it has left already"


def test_cooperative_members_rejoin_at_their_next_poll() -> None:
    with Cluster(1, topics={"orders": 4}, config=QUICK) as sim:
        sim.member("m1", poll_ms=2_000, assignors=["cooperative-sticky"], **SHORT)
        sim.run_until(sim.is_settled)
        sim.member("m2", assignors=["cooperative-sticky"], **SHORT)
        sim.run_until(lambda: "m2" in sim.owners().values())
        at = moment(sim, "m1", "revoking")
        waits = [line for line in sim.trace if line.who == "m1" and line.at < at]
        joins, sends = (max(each.at for each in waits if each.what == what) for what in ("joins", "sends"))
        assert sends - joins > 0


@pytest.mark.parametrize("restarts", [True, False])
def test_heartbeats_may_go_on_in_their_rhythm(restarts: bool) -> None:
    """As librdkafka's do: a rebalance does not bring those of all members into step."""
    with Cluster(1, topics={"orders": 4}, config=QUICK, latency_ms=(1, 1)) as sim:
        sim.member("m1", heartbeat_restarts=restarts, commit_ms=None, **SHORT)
        sim.run(10_000)
        sim.run_until(lambda: sim.trace[-1].what == "sends" and sim.trace[-1].who == "m1")
        beat = sim.now
        sim.rejoin("m1")
        sim.run(1)
        sim.run_until(sim.is_settled)
        assigned = moment(sim, "m1", "assigned")
        sim.run(SHORT["heartbeat_interval_ms"])
        beats = [line.at for line in sim.trace if line.what == "sends" and isinstance(line.detail, HeartbeatRequest)]
        assert beats[-1] - (assigned if restarts else beat) == SHORT["heartbeat_interval_ms"]


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


def partitions(*numbers: int) -> list[TopicPartition]:
    return [TopicPartition("orders", number) for number in numbers]


def opening(ms: int = 100) -> tuple[VirtualClock, Opening, list[tuple[int, int]]]:
    clock = VirtualClock()
    opened: list[tuple[int, int]] = []
    return clock, Opening(clock, lambda _: ms, lambda each: opened.append((clock.now, each.partition))), opened


def test_partitions_are_opened_one_after_the_other_in_order() -> None:
    clock, stores, opened = opening()
    stores.add(partitions(2, 0))
    clock.run(150)
    stores.add(partitions(1))
    assert stores
    clock.run(1_000)
    assert opened == [(100, 0), (200, 2), (300, 1)]
    assert not stores


def test_a_dropped_partition_takes_no_time_from_then_on() -> None:
    clock, stores, opened = opening()
    stores.add(partitions(0, 1, 2))
    clock.run(50)
    stores.drop(partitions(0, 2))
    clock.run(1_000)
    assert opened == [(150, 1)]


def test_a_partition_that_comes_back_is_opened_afresh() -> None:
    clock, stores, opened = opening()
    stores.add(partitions(0))
    clock.run(50)
    stores.drop(partitions(0))
    assert not stores
    stores.add(partitions(0))
    clock.run(1_000)
    assert opened == [(150, 0)]
