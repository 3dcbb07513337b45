"""Who leads what: placement, elections, and the coordinators of groups."""

from __future__ import annotations

from collections import Counter

from kcoord_wire.coordinator.core.brokers import NO_LEADER, Brokers
from kcoord_wire.coordinator.core.config import Endpoint
from kcoord_wire.protocol.error_codes import ErrorCode


def make(count: int = 3) -> Brokers:
    return Brokers([Endpoint(node_id, "localhost", 9092 + node_id) for node_id in range(count)])


def test_partitions_spread_over_all_brokers() -> None:
    leaders = make().place("orders", 9)
    assert Counter(leaders.of) == {0: 3, 1: 3, 2: 3}
    assert all(sorted(leaders.replicas(partition)) == [0, 1, 2] for partition in range(9))
    assert leaders.of == [leaders.replicas(partition)[0] for partition in range(9)]


def test_what_a_broker_led_spreads_over_the_others_and_returns() -> None:
    brokers = make()
    leaders = brokers.place("orders", 12)
    before = list(leaders.of)
    brokers.set_running(1, False)
    moved = leaders.elect()
    assert moved == [partition for partition, leader in enumerate(before) if leader == 1]
    assert Counter(leaders.of[partition] for partition in moved) == {0: 2, 2: 2}
    assert leaders.elect() == []
    brokers.set_running(1, True)
    assert leaders.elect() == moved
    assert leaders.of == before


def test_without_a_running_broker_there_is_no_leader() -> None:
    brokers = make(1)
    brokers.set_running(0, False)
    assert brokers.groups.elect() == list(range(50))
    assert set(brokers.groups.of) == {NO_LEADER}
    assert brokers.coordinator_of_group("g") is None


def test_a_moved_partition_stays_until_its_broker_stops() -> None:
    brokers = make()
    partition = brokers.partition_of_group("g")
    to = (brokers.groups.of[partition] + 1) % 3
    brokers.groups.move(partition, to)
    assert brokers.groups.elect() == [partition]
    assert brokers.coordinator_of_group("g") == brokers.endpoints[to]
    brokers.set_running(to, False)
    brokers.groups.elect()
    assert brokers.coordinator_of_group("g") not in (None, brokers.endpoints[to])


def test_one_broker_coordinates_a_group_and_may_be_loading_it() -> None:
    brokers = make()
    at = brokers.groups.of[brokers.partition_of_group("g")]
    errors = {broker: brokers.refuses_group("g", broker) for broker in range(3)}
    assert errors == {broker: ErrorCode.NOT_COORDINATOR if broker != at else ErrorCode.NONE for broker in range(3)}
    brokers.set_loading([brokers.partition_of_group("g")])
    assert brokers.refuses_group("g", at) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert brokers.refuses_group("g", (at + 1) % 3) is ErrorCode.NOT_COORDINATOR


def test_only_a_single_broker_that_loads_nothing_is_plain() -> None:
    assert not make(2).is_plain
    brokers = make(1)
    assert brokers.is_plain
    brokers.set_loading([3])
    assert not brokers.is_plain
    brokers.set_loading([])
    assert brokers.is_plain


def test_new_partitions_of_a_topic_go_on_with_the_next_broker() -> None:
    brokers = make()
    leaders = brokers.place("orders", 2)
    leaders.grow(4)
    assert leaders.of == brokers.place("orders", 6).of
