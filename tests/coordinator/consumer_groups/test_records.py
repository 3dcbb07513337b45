"""Records of groups of KIP-848: what is written, and that reading it gives the group back."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.group import AWAY, LEAVING, ConsumerGroup, MemberState
from kcoord_wire.coordinator.consumer_groups.records import replay_groups
from kcoord_wire.coordinator.core.events import LogRecord
from tests.support.consumer_script import ORDERS, ConsumerScript


def content(group: ConsumerGroup) -> dict[str, Any]:
    names = ("epoch", "assignment_epoch", "assigned_at", "members", "instances", "target", "regexes", "metadata_hash")
    counted = ("named", "matching", "assignors", "offered", "classic_members", "unsettled", "offsets")
    return {name: getattr(group, name) for name in (*names, *counted)} | {"state": group.state}


def busy() -> ConsumerScript:
    """A group with members in every state, static ones and patterns."""
    script = ConsumerScript()
    script.enter("a", instance_id="i", rack_id="r")
    script.enter("b", server_assignor="range")
    script.enter("c", topics=[], subscribed_topic_regex="pay.*")
    script.beat("a", 2, owned={ORDERS: range(12)}, instance_id="i")
    script.commit(5, member_id="b", generation=script.group.members["b"].epoch)
    states = {member.state for member in script.group.members.values()}
    assert states == {MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS, MemberState.UNRELEASED_PARTITIONS}
    return script


def test_reading_gives_back_what_was_written() -> None:
    script = busy()
    again = script.restarted()
    assert content(again.group) == content(script.group)
    again.follow("a", "b", "c")
    assert sum(again.counts().values()) == 20


def test_timers_go_on_after_a_restart() -> None:
    again = busy().restarted()
    again.wait(45_000)
    assert again.group.members == {}


@pytest.mark.parametrize("way", ["left", "away", "deleted"])
def test_tombstones_remove_what_is_gone(way: str) -> None:
    script = ConsumerScript()
    script.enter("a", instance_id="i")
    script.beat("a", AWAY if way == "away" else LEAVING, instance_id="i")
    if way == "away":
        assert script.restarted().group.members["a"].epoch == AWAY
        return
    assert script.restarted().group.members == {}
    if way == "deleted":
        assert script.ask(m.DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == 0
        assert "g" not in script.restarted().machine.groups


def test_records_come_in_the_order_that_readers_need() -> None:
    script = ConsumerScript()
    script.enter("a")
    kinds = [type(key).__name__.removeprefix("ConsumerGroup").removesuffix("Key") for key, _ in script.records]
    assert kinds == [
        "MemberMetadata",
        "Metadata",
        "TargetAssignmentMember",
        "TargetAssignmentMetadata",
        "CurrentMemberAssignment",
    ]
    assert script.records[-1].value.assigned_partitions[0].assignment_epochs == [2] * 12


def test_older_and_newer_releases_are_read() -> None:
    key = m.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="a")
    held = [m.ConsumerGroupCurrentMemberAssignmentValueTopicPartitions(topic_id=ORDERS, partitions=[3, 1])]
    value = m.ConsumerGroupCurrentMemberAssignmentValue(member_epoch=7, state=9, assigned_partitions=held)
    old = m.ConsumerGroupPartitionMetadataKey(group_id="g")
    member = replay_groups([LogRecord(old, None), LogRecord(key, value)], 0)["g"].members["a"]
    assert member.state is MemberState.UNKNOWN
    assert member.assigned == {ORDERS: {3: 7, 1: 7}}  # before KIP-1251: since the member's epoch
