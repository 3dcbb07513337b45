"""What operators see of a group of KIP-848."""

from __future__ import annotations

import pytest

from kcoord_wire import messages as m
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.consumer_script import ORDERS, ConsumerScript, partitions


def test_a_group_is_described_with_what_members_hold() -> None:
    script = ConsumerScript()
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
def test_groups_that_are_not_there(include: bool) -> None:
    script = ConsumerScript()
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
def test_describe_groups_does_not_know_it(version: int, code: E) -> None:
    script = ConsumerScript()
    script.enter("a")
    [group] = script.ask(m.DescribeGroupsRequest(groups=["g"]), version).groups
    assert (group.error_code, group.group_state) == (code, "Dead")


def test_a_group_is_deleted_when_it_has_no_members() -> None:
    script = ConsumerScript()
    script.enter("a")
    delete = m.DeleteGroupsRequest(groups_names=["g"])
    assert script.ask(delete).results[0].error_code == E.NON_EMPTY_GROUP
    script.beat("a", -1)
    script.commit(5)
    assert script.ask(delete).results[0].error_code == E.NONE
    assert script.machine.groups == {}
    assert script.restarted().machine.groups == {}


@pytest.mark.parametrize(("topic", "code"), [("orders", E.GROUP_SUBSCRIBED_TO_TOPIC), ("payments", E.NONE)])
def test_offsets_of_other_topics_are_deleted(topic: str, code: E) -> None:
    script = ConsumerScript()
    script.enter("a")
    for name in ("orders", "payments"):
        script.commit(5, member_id="a", generation=2, topic=name)
    wanted = m.OffsetDeleteRequestTopic(name=topic, partitions=[m.OffsetDeleteRequestPartition(partition_index=0)])
    answer = script.ask(m.OffsetDeleteRequest(group_id="g", topics=[wanted]))
    assert answer.topics[0].partitions[0].error_code == code
    assert (topic in script.group.offsets) == bool(code)
