"""The group's counts and epochs, and who may commit which partition (KIP-1251)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.group import (
    AWAY,
    LEAVING,
    NOBODY,
    ConsumerGroup,
    Member,
    MemberState,
)
from kcoord_wire.coordinator.consumer_groups.records import replay_groups
from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.core.events import LogRecord
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.consumer_script import ORDERS, ConsumerScript

T = uuid.UUID(int=1)


def test_counts_follow_the_members() -> None:
    group = ConsumerGroup("g", 0)
    group.put(Member(member_id="a", topics=("x", "y"), assignor="range", regex="z", instance_id="i"))
    group.put(Member(member_id="b", topics=("x",)))
    assert (group.named, group.matching, group.assignors) == ({"x": 2, "y": 1}, {"z": 1}, {"range": 1})
    group.put(Member(member_id="a", topics=("y",), instance_id="i"))
    assert (group.named, group.matching, group.assignors) == ({"x": 1, "y": 1}, {}, {})
    assert group.remove("a") is not None
    assert (group.named, group.instances, group.unsettled) == ({"x": 1}, {}, {"b"})
    assert group.remove("a") is None


def test_a_partition_has_the_epoch_of_its_holder() -> None:
    group = ConsumerGroup("g", 0)
    assert group.partition_epoch(T, 0) == NOBODY
    group.put(Member(member_id="a", epoch=4, assigned={T: {0: 2}}, revoking={T: {1: 3}}))
    assert [group.partition_epoch(T, number) for number in (0, 1, 2)] == [4, 4, NOBODY]
    group.put(Member(member_id="a", epoch=5, assigned={T: {0: 2}}))
    assert [group.partition_epoch(T, number) for number in (0, 1, 2)] == [5, NOBODY, NOBODY]
    group.remove("a")
    assert group.partition_epoch(T, 0) == NOBODY


def test_members_are_found_by_instance_or_id() -> None:
    group = ConsumerGroup("g", 0)
    group.put(Member(member_id="a", instance_id="i"))
    assert group.member("a", None) is group.member("a", "i") is group.static_member("i")
    for member_id, instance_id, code in (("b", None, E.UNKNOWN_MEMBER_ID), ("b", "i", E.FENCED_INSTANCE_ID)):
        with pytest.raises(Refused) as refused:
            group.member(member_id, instance_id)
        assert refused.value.error is code


@pytest.mark.parametrize(
    ("member_id", "epoch", "partition", "version", "code"),
    [
        ("a", 3, 0, 9, E.NONE),
        ("a", 3, 11, 9, E.NONE),  # in its present epoch a member may commit anything
        ("a", 2, 0, 9, E.NONE),  # it has had this one since epoch 2
        ("a", 2, 11, 9, E.STALE_MEMBER_EPOCH),  # and has lost this one
        ("a", 1, 0, 9, E.STALE_MEMBER_EPOCH),
        ("b", 2, 11, 9, E.STALE_MEMBER_EPOCH),  # b got it in epoch 3
        ("a", 4, 0, 9, E.STALE_MEMBER_EPOCH),
        ("x", 3, 0, 9, E.UNKNOWN_MEMBER_ID),
        ("a", 3, 0, 8, E.UNSUPPORTED_VERSION),
        ("", -1, 0, 9, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_commits_are_fenced_by_assignment_epochs(
    member_id: str, epoch: int, partition: int, version: int, code: E
) -> None:
    script = ConsumerScript()
    script.enter("a")
    script.enter("b")
    script.follow("a", "b")
    assert (script.holds("a")[ORDERS][0], script.holds("b")[ORDERS][-1]) == (0, 11)
    found = script.commit(member_id=member_id, generation=epoch, partition=partition, version=version)
    assert found == code
    assert ("orders" in script.group.offsets) == (code is E.NONE)


@pytest.mark.parametrize(
    ("member_id", "epoch", "partition", "code"),
    [
        ("a", 3, 11, E.NONE),
        ("a", 2, 0, E.NONE),
        ("a", 2, 11, E.STALE_MEMBER_EPOCH),
        ("a", 4, 0, E.STALE_MEMBER_EPOCH),
        ("x", 3, 0, E.UNKNOWN_MEMBER_ID),
        ("", -1, 0, E.NONE),  # clients before KIP-447
    ],
)
@pytest.mark.parametrize("version", [5, 6])
def test_commits_in_transactions_are_fenced_alike(
    member_id: str, epoch: int, partition: int, code: E, version: int
) -> None:
    script = ConsumerScript()
    script.enter("a")
    script.enter("b")
    script.follow("a", "b")
    item = m.TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=5)
    topic = m.TxnOffsetCommitRequestTopic(name="" if version > 5 else "orders", topic_id=ORDERS, partitions=[item])
    request = m.TxnOffsetCommitRequest(
        group_id="g",
        producer_id=1,
        producer_epoch=0,
        member_id=member_id,
        generation_id_or_member_epoch=epoch,
        topics=[topic],
    )
    found = script.ask(request, version).topics[0].partitions[0].error_code
    assert found == (E.ILLEGAL_GENERATION if code is E.STALE_MEMBER_EPOCH and version < 6 else code)


@pytest.mark.parametrize(
    ("member_id", "epoch", "code"),
    [
        (None, -1, E.NONE),
        (None, 2, E.UNKNOWN_MEMBER_ID),
        ("a", 2, E.NONE),
        ("a", 1, E.STALE_MEMBER_EPOCH),
        ("a", 3, E.STALE_MEMBER_EPOCH),
        ("x", 2, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_offsets_are_read_in_the_members_epoch(member_id: str | None, epoch: int, code: E) -> None:
    script = ConsumerScript()
    script.enter("a")
    asked = m.OffsetFetchRequestGroup(group_id="g", member_id=member_id, member_epoch=epoch)
    assert script.ask(m.OffsetFetchRequest(groups=[asked])).groups[0].error_code == code


def test_offsets_of_an_empty_group_belong_to_tools(script: ConsumerScript) -> None:
    script.enter("a")
    script.beat("a", -1)
    assert script.commit(7) == E.NONE
    assert script.committed() == 7


@pytest.mark.parametrize(
    ("epoch", "state", "known"),
    [(1, MemberState.STABLE, True), (1, MemberState.UNRELEASED_PARTITIONS, False), (0, MemberState.STABLE, False)],
)
def test_the_state_follows_from_the_members(epoch: int, state: MemberState, known: bool) -> None:
    group = ConsumerGroup("g", 0)
    assert group.state == "Empty"
    group.put(Member(member_id="a", epoch=epoch, state=state))
    assert group.state == ("Stable" if known else "Reconciling")
    group.epoch = 2
    assert group.state == "Assigning"
    group.set_assignment_epoch(2, 0)
    assert group.state == "Reconciling"


# ---- Records of groups of KIP-848: what is written, and that reading it gives the group back


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
def test_tombstones_remove_what_is_gone(script: ConsumerScript, way: str) -> None:
    script.enter("a", instance_id="i")
    script.beat("a", AWAY if way == "away" else LEAVING, instance_id="i")
    if way == "away":
        assert script.restarted().group.members["a"].epoch == AWAY
        return
    assert script.restarted().group.members == {}
    if way == "deleted":
        assert script.ask(m.DeleteGroupsRequest(groups_names=["g"])).results[0].error_code == 0
        assert "g" not in script.restarted().machine.groups


def test_records_come_in_the_order_that_readers_need(script: ConsumerScript) -> None:
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
