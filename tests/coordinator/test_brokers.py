"""Who leads what: placement, elections, and the coordinators of groups."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.brokers import NO_LEADER, Brokers, route
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
    assert brokers.coordinator_of(brokers.groups, "g") is None


def test_a_moved_partition_stays_until_its_broker_stops() -> None:
    brokers = make()
    partition = brokers.groups.partition_of("g")
    to = (brokers.groups.of[partition] + 1) % 3
    brokers.groups.move(partition, to)
    assert brokers.groups.elect() == [partition]
    assert brokers.coordinator_of(brokers.groups, "g") == brokers.endpoints[to]
    brokers.set_running(to, False)
    brokers.groups.elect()
    assert brokers.coordinator_of(brokers.groups, "g") not in (None, brokers.endpoints[to])


def test_one_broker_coordinates_a_group_and_may_be_loading_it() -> None:
    brokers = make()
    at = brokers.groups.of[brokers.groups.partition_of("g")]
    errors = {broker: brokers.refuses(brokers.groups, "g", broker) for broker in range(3)}
    assert errors == {broker: ErrorCode.NOT_COORDINATOR if broker != at else ErrorCode.NONE for broker in range(3)}
    brokers.set_loading([brokers.groups.partition_of("g")])
    assert brokers.refuses(brokers.groups, "g", at) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert brokers.refuses(brokers.groups, "g", (at + 1) % 3) is ErrorCode.NOT_COORDINATOR


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


# ---- Requests at a broker that does not coordinate their group

BROKERS = Brokers([Endpoint(node_id, "localhost", 9092 + node_id) for node_id in range(2)])
GROUPS = [f"group-{number}" for number in range(6)]
HERE = [group for group in GROUPS if not BROKERS.refuses(BROKERS.groups, group, 0)]
ELSEWHERE = [group for group in GROUPS if group not in HERE]


def ask(request: Any, version: int) -> tuple[Any, Any]:
    """What is asked of the machine, and what finishes its answer."""
    return route(BROKERS, request, version, 0)


def test_both_brokers_have_groups() -> None:
    assert HERE
    assert ELSEWHERE


def test_a_member_is_served_by_its_coordinator_only() -> None:
    request = m.HeartbeatRequest(group_id=HERE[0])
    assert ask(request, 4) == (request, None)
    asked, finish = ask(m.HeartbeatRequest(group_id=ELSEWHERE[0]), 4)
    assert asked is None
    assert finish(None).error_code == ErrorCode.NOT_COORDINATOR


def test_while_its_group_is_loaded_only_a_heartbeat_succeeds() -> None:
    brokers = Brokers([Endpoint(0, "localhost", 9092)])
    brokers.set_loading(range(50))
    asked, finish = route(brokers, m.HeartbeatRequest(group_id="g"), 4, 0)
    assert asked is None
    assert finish is not None
    assert finish(None) == m.HeartbeatResponse()
    asked, finish = route(brokers, m.JoinGroupRequest(group_id="g"), 9, 0)
    assert asked is None
    assert finish is not None
    assert finish(None).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_of_many_groups_those_elsewhere_are_refused_in_order() -> None:
    asked, finish = ask(m.DescribeGroupsRequest(groups=GROUPS), 5)
    assert asked.groups == HERE
    described = [m.DescribeGroupsResponseDescribedGroup(group_id=group) for group in asked.groups]
    answer = finish(m.DescribeGroupsResponse(groups=described))
    assert [group.group_id for group in answer.groups] == GROUPS
    assert {g.group_id for g in answer.groups if g.error_code == ErrorCode.NOT_COORDINATOR} == set(ELSEWHERE)


@pytest.mark.parametrize(
    ("request_", "version", "answered"),
    [
        (m.DescribeGroupsRequest(groups=ELSEWHERE), 5, "groups"),
        (m.DeleteGroupsRequest(groups_names=ELSEWHERE), 2, "results"),
        (m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id=g) for g in ELSEWHERE]), 9, "groups"),
    ],
)
def test_groups_that_are_all_elsewhere_are_all_refused(request_: Any, version: int, answered: str) -> None:
    asked, finish = ask(request_, version)
    assert asked is None
    answers = getattr(finish(None), answered)
    assert [answer.group_id for answer in answers] == ELSEWHERE
    assert {answer.error_code for answer in answers} == {ErrorCode.NOT_COORDINATOR}


def test_old_fetches_of_offsets_name_one_group() -> None:
    asked, finish = ask(m.OffsetFetchRequest(group_id=ELSEWHERE[0]), 5)
    assert asked is None
    assert finish(None).error_code == ErrorCode.NOT_COORDINATOR


def test_a_broker_lists_the_groups_that_it_coordinates() -> None:
    listed = [m.ListGroupsResponseListedGroup(group_id=group) for group in GROUPS]
    asked, finish = ask(m.ListGroupsRequest(), 4)
    assert asked == m.ListGroupsRequest()
    assert [group.group_id for group in finish(m.ListGroupsResponse(groups=listed)).groups] == HERE


def test_any_broker_finds_a_coordinator() -> None:
    request = m.FindCoordinatorRequest(coordinator_keys=GROUPS)
    assert ask(request, 4) == (request, None)


def test_transactions_are_served_by_their_coordinator_only() -> None:
    ids = [f"tx-{number}" for number in range(6)]
    here = [name for name in ids if not BROKERS.refuses(BROKERS.transactions, name, 0)]
    elsewhere = [name for name in ids if name not in here]
    assert here
    request = m.EndTxnRequest(transactional_id=here[0])
    assert ask(request, 3) == (request, None)
    asked, finish = ask(m.EndTxnRequest(transactional_id=elsewhere[0]), 3)
    assert asked is None
    assert finish(None).error_code == ErrorCode.NOT_COORDINATOR
    listed = [m.ListTransactionsResponseTransactionState(transactional_id=name) for name in ids]
    _, finish = ask(m.ListTransactionsRequest(), 1)
    answer = finish(m.ListTransactionsResponse(transaction_states=listed))
    assert [state.transactional_id for state in answer.transaction_states] == here


def test_an_idempotent_producer_gets_its_id_from_any_broker() -> None:
    request = m.InitProducerIdRequest(transactional_id=None)
    assert ask(request, 4) == (request, None)
