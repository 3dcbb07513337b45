"""ConsumerGroupHeartbeat against the rules of KIP-848: who is answered what, and what a refusal leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.group import AWAY, LEAVING, MemberState
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Trigger
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.consumer_script import ORDERS, ConsumerScript, partitions

ALL = {"orders": list(range(12))}


def given(answer: m.ConsumerGroupHeartbeatResponse) -> dict[str, list[int]] | None:
    return None if answer.assignment is None else partitions(answer.assignment.topic_partitions)


@pytest.fixture
def pair(script: ConsumerScript) -> ConsumerScript:
    """A Stable group of members a and b, in epoch 3."""
    script.enter("a")
    script.enter("b")
    script.follow("a", "b")
    assert (script.group.state, script.group.epoch) == ("Stable", 3)
    return script


# ---- requests that are wrong whatever the group


@pytest.mark.parametrize(
    ("fields", "version", "code"),
    [
        ({"group_id": ""}, 1, E.INVALID_REQUEST),
        ({"member_id": ""}, 1, E.INVALID_REQUEST),
        ({"member_id": "", "member_epoch": 1}, 0, E.INVALID_REQUEST),
        ({"member_id": "", "member_epoch": -1}, 0, E.INVALID_REQUEST),
        ({"instance_id": " "}, 1, E.INVALID_REQUEST),
        ({"rack_id": ""}, 1, E.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, 1, E.INVALID_REQUEST),
        ({"topic_partitions": None}, 1, E.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, 1, E.INVALID_REQUEST),
        ({"member_epoch": -2}, 1, E.INVALID_REQUEST),
        ({"member_epoch": -3}, 1, E.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, 1, E.UNSUPPORTED_ASSIGNOR),
        ({"member_epoch": 1}, 1, E.GROUP_ID_NOT_FOUND),
        ({"member_epoch": -1}, 1, E.GROUP_ID_NOT_FOUND),
        ({}, 1, E.NONE),
        ({"member_id": ""}, 0, E.NONE),
        ({"server_assignor": "range"}, 0, E.NONE),
        ({"subscribed_topic_names": []}, 0, E.NONE),
    ],
)
def test_a_first_heartbeat_is_checked(fields: dict[str, Any], version: int, code: E) -> None:
    complete = {"group_id": "g", "member_id": "a", "rebalance_timeout_ms": 5_000, "subscribed_topic_names": ["orders"]}
    message = m.ConsumerGroupHeartbeatRequest(**{**complete, "topic_partitions": [], **fields})
    script = ConsumerScript()
    answer = script.ask(message, version)
    assert answer.error_code == code
    assert bool(answer.error_message) == bool(code)
    assert ("g" in script.machine.groups) == (code is E.NONE)
    assert bool(script.log) == (code is E.NONE)


def test_the_coordinator_makes_ids_for_version_0(script: ConsumerScript) -> None:
    first, second = script.enter("", version=0), script.enter("", version=0)
    assert first.member_id != second.member_id
    assert set(script.group.members) == {first.member_id, second.member_id}


# ---- joining


def test_the_first_member_gets_everything_at_once(script: ConsumerScript) -> None:
    answer = script.enter("a")
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "a", 2)
    assert answer.heartbeat_interval_ms == 5_000
    assert given(answer) == ALL
    assert given(script.beat("a", 2)) is None  # nothing has changed
    full = script.beat("a", 2, owned={ORDERS: range(12)}, topics=["orders"], rebalance_timeout_ms=60_000)
    assert given(full) == ALL  # who sends everything wants everything


def test_a_second_member_waits_for_what_the_first_gives_up(script: ConsumerScript) -> None:
    script.enter("a")
    joined = script.enter("b")
    assert (joined.member_epoch, given(joined)) == (3, {})
    assert script.group.members["b"].state is MemberState.UNRELEASED_PARTITIONS
    kept = script.beat("a", 2, owned={ORDERS: range(12)})
    assert (kept.member_epoch, len(given(kept)["orders"])) == (2, 6)  # it stays in its epoch until it has given up
    assert script.beat("a", 2).member_epoch == 2
    assert given(script.beat("b", 3)) is None
    moved = script.beat("a", 2, owned=script.holds("a"))
    assert (moved.member_epoch, given(moved)) == (3, None)
    assert len(given(script.beat("b", 3))["orders"]) == 6
    assert script.group.state == "Stable"


def test_a_member_may_join_again(pair: ConsumerScript) -> None:
    answer = pair.enter("a")
    assert (answer.member_epoch, len(given(answer)["orders"])) == (3, 6)
    assert pair.group.epoch == 3


def test_a_group_has_no_more_members_than_it_may() -> None:
    script = ConsumerScript(GroupConfig(consumer_max_size=1))
    script.enter("a", instance_id="i")
    assert script.enter("b").error_code == E.GROUP_MAX_SIZE_REACHED
    script.beat("a", AWAY, instance_id="i")
    assert script.enter("b", instance_id="i").error_code == 0  # it takes the place of a


# ---- epochs


@pytest.mark.parametrize(
    ("epoch", "owned", "code"),
    [
        (3, None, E.NONE),
        (4, None, E.FENCED_MEMBER_EPOCH),
        (2, None, E.FENCED_MEMBER_EPOCH),
        (2, {}, E.NONE),
        (2, {ORDERS: [0]}, E.NONE),
        (2, {ORDERS: range(12)}, E.FENCED_MEMBER_EPOCH),
        (1, {}, E.FENCED_MEMBER_EPOCH),
    ],
)
def test_epochs_are_fenced(script: ConsumerScript, epoch: int, owned: Any, code: E) -> None:
    script.enter("a")
    script.enter("b")
    script.beat("a", 2, owned={ORDERS: range(12)})
    script.beat("a", 2, owned=script.holds("a"))
    assert 0 in script.holds("a")[ORDERS]
    assert script.beat("a", epoch, owned=owned).error_code == code


@pytest.mark.parametrize(
    ("member_id", "instance_id", "code"),
    [
        ("x", None, E.UNKNOWN_MEMBER_ID),
        ("a", None, E.NONE),
        ("a", "i", E.NONE),
        ("x", "i", E.FENCED_INSTANCE_ID),
        ("a", "j", E.UNKNOWN_MEMBER_ID),
    ],
)
@pytest.mark.parametrize("epoch", [2, LEAVING, AWAY])
def test_members_are_known_by_id_and_instance(member_id: str, instance_id: str | None, code: E, epoch: int) -> None:
    script = ConsumerScript()
    script.enter("a", instance_id="i")
    if epoch == AWAY and instance_id is None:
        code = E.INVALID_REQUEST
    assert script.beat(member_id, epoch, instance_id=instance_id).error_code == code


# ---- static members


def test_a_static_member_comes_back_to_its_partitions(script: ConsumerScript) -> None:
    script.enter("a", instance_id="i")
    script.enter("b")
    script.follow("a", "b")
    had = script.holds("a")
    assert script.enter("c", instance_id="i").error_code == E.UNRELEASED_INSTANCE_ID
    left = script.beat("a", AWAY, instance_id="i")
    assert (left.error_code, left.member_epoch) == (0, AWAY)
    assert script.beat("b", 3).error_code == 0
    back = script.enter("c", instance_id="i")
    assert (back.member_epoch, given(back)) == (3, {"orders": had[ORDERS]})
    assert script.group.epoch == 3  # nobody else has noticed
    assert script.beat("a", 3, instance_id="i").error_code == E.FENCED_INSTANCE_ID
    assert list(script.group.instances.items()) == [("i", "c")]


def test_a_static_member_that_stays_away_is_removed(script: ConsumerScript) -> None:
    script.enter("a", instance_id="i")
    script.beat("a", AWAY, instance_id="i")
    script.wait(44_999)
    assert "a" in script.group.members
    script.wait(1)
    assert script.group.members == {}


def test_who_leaves_for_a_while_has_nothing_to_give_up(script: ConsumerScript) -> None:
    script.enter("a", instance_id="i")
    script.enter("b")
    script.beat("a", 2, instance_id="i")
    assert script.group.members["a"].state is MemberState.UNREVOKED_PARTITIONS
    taken = script.group.members["a"].revoking[ORDERS]
    script.beat("a", AWAY, instance_id="i")
    assert script.group.members["a"].revoking == {}
    assert partitions(script.beat("b", 3).assignment.topic_partitions) == {"orders": sorted(taken)}


# ---- leaving, silence


def test_a_member_leaves(pair: ConsumerScript) -> None:
    answer = pair.beat("b", LEAVING)
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "b", LEAVING)
    assert (pair.group.state, pair.group.epoch) == ("Assigning", 4)
    pair.follow("a")
    assert pair.counts() == {"a": 12}
    pair.beat("a", LEAVING)
    assert (pair.group.state, pair.group.epoch, pair.group.assignment_epoch) == ("Empty", 5, 5)


def test_a_silent_member_is_removed(pair: ConsumerScript) -> None:
    pair.wait(30_000)
    pair.beat("a", 3)
    pair.wait(15_000)
    assert list(pair.group.members) == ["a"]
    assert pair.beat("b", 3).error_code == E.UNKNOWN_MEMBER_ID


def test_a_member_that_gives_nothing_up_is_removed(script: ConsumerScript) -> None:
    script.enter("a", rebalance_timeout_ms=10_000)
    script.enter("b")
    script.beat("a", 2, owned={ORDERS: range(12)})
    script.wait(9_999)
    assert "a" in script.group.members
    script.wait(1)
    assert list(script.group.members) == ["b"]
    script.follow("b")
    assert script.counts() == {"b": 12}
    assert [removal.why for _, account in script.accounts for removal in account.removed][-1] == "rebalance timeout"


# ---- subscriptions


def test_a_new_subscription_takes_topics_away_at_once(pair: ConsumerScript) -> None:
    answer = pair.beat("a", 3, topics=["payments"], owned=pair.holds("a"))
    assert (answer.member_epoch, given(answer)) == (3, {})
    assert pair.accounts[-1][1].trigger is Trigger.SUBSCRIPTION_CHANGED
    pair.follow("a", "b")
    assert pair.counts() == {"a": 8, "b": 12}


def test_the_assignor_that_most_ask_for_is_taken(pair: ConsumerScript) -> None:
    assert pair.ask(m.ConsumerGroupDescribeRequest(group_ids=["g"])).groups[0].assignor_name == "uniform"
    pair.beat("a", 3, server_assignor="range")
    assert pair.group.epoch == 4
    assert pair.accounts[-1][1].protocol == "range"
    pair.follow("a", "b")
    assert [pair.holds("a")[ORDERS], pair.holds("b")[ORDERS]] == [[*range(6)], [*range(6, 12)]]


# ---- What operators see of a group of KIP-848


def test_a_group_is_described_with_what_members_hold(script: ConsumerScript) -> None:
    script.enter("a", instance_id="i", rack_id="r")
    script.enter("b")
    script.beat("a", 2, owned={ORDERS: range(12)}, instance_id="i")
    [group] = script.ask(m.ConsumerGroupDescribeRequest(group_ids=["g"])).groups
    assert (group.error_code, group.group_state, group.group_epoch, group.assignment_epoch) == (0, "Reconciling", 3, 3)
    first, second = group.members
    assert (first.member_id, first.instance_id, first.rack_id, first.member_epoch, first.member_type) == (
        "a",
        "i",
        "r",
        2,
        1,
    )
    assert (first.client_id, first.client_host, first.subscribed_topic_names) == ("client-a", "/127.0.0.1", ["orders"])
    assert partitions(first.assignment.topic_partitions) == {"orders": [*range(12)]}  # until it has given them up
    assert len(partitions(first.target_assignment.topic_partitions)["orders"]) == 6
    assert second.assignment.topic_partitions == []
    assert [entry.topic_name for entry in second.target_assignment.topic_partitions] == ["orders"]


@pytest.mark.parametrize("include", [False, True])
def test_groups_that_are_not_there(script: ConsumerScript, include: bool) -> None:
    script.enter("a")
    script.group_id = "classic"
    script.stable("x")
    request = m.ConsumerGroupDescribeRequest(
        group_ids=["g", "classic", "missing", "", "g"], include_authorized_operations=include
    )
    groups = script.ask(request).groups
    codes = [E.NONE, E.GROUP_ID_NOT_FOUND, E.GROUP_ID_NOT_FOUND, E.INVALID_GROUP_ID, E.INVALID_REQUEST]
    assert [group.error_code for group in groups] == codes
    assert (groups[0].authorized_operations >= 0) == include


@pytest.mark.parametrize(
    ("states", "types", "listed"),
    [
        ([], [], {"g": "consumer", "classic": "classic"}),
        ([], ["Consumer"], {"g": "consumer"}),
        ([], ["classic"], {"classic": "classic"}),
        (["stable"], [], {"g": "consumer", "classic": "classic"}),
        (["assigning", "reconciling", "empty"], [], {}),
    ],
)
def test_groups_are_listed_with_their_type(states: list[str], types: list[str], listed: dict[str, str]) -> None:
    script = ConsumerScript()
    script.enter("a")
    script.group_id = "classic"
    script.stable("x")
    groups = script.ask(m.ListGroupsRequest(states_filter=states, types_filter=types)).groups
    assert {group.group_id: group.group_type for group in groups} == listed
    assert {group.protocol_type for group in groups} <= {"consumer"}


@pytest.mark.parametrize(("version", "code"), [(5, E.NONE), (6, E.GROUP_ID_NOT_FOUND)])
def test_describe_groups_does_not_know_it(script: ConsumerScript, version: int, code: E) -> None:
    script.enter("a")
    [group] = script.ask(m.DescribeGroupsRequest(groups=["g"]), version).groups
    assert (group.error_code, group.group_state) == (code, "Dead")


def test_a_group_is_deleted_when_it_has_no_members(script: ConsumerScript) -> None:
    script.enter("a")
    delete = m.DeleteGroupsRequest(groups_names=["g"])
    assert script.ask(delete).results[0].error_code == E.NON_EMPTY_GROUP
    script.beat("a", -1)
    script.commit(5)
    assert script.ask(delete).results[0].error_code == E.NONE
    assert script.machine.groups == {}
    assert script.restarted().machine.groups == {}


@pytest.mark.parametrize(("topic", "code"), [("orders", E.GROUP_SUBSCRIBED_TO_TOPIC), ("payments", E.NONE)])
def test_offsets_of_other_topics_are_deleted(script: ConsumerScript, topic: str, code: E) -> None:
    script.enter("a")
    for name in ("orders", "payments"):
        script.commit(5, member_id="a", generation=2, topic=name)
    wanted = m.OffsetDeleteRequestTopic(name=topic, partitions=[m.OffsetDeleteRequestPartition(partition_index=0)])
    answer = script.ask(m.OffsetDeleteRequest(group_id="g", topics=[wanted]))
    assert answer.topics[0].partitions[0].error_code == code
    assert (topic in script.group.offsets) == bool(code)
