"""The group's counts and epochs, and who may commit which partition (KIP-1251)."""

from __future__ import annotations

import uuid

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.consumer_groups.group import NOBODY, ConsumerGroup, Member, MemberState, Refused
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
        assert refused.value.code is code


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


def test_offsets_of_an_empty_group_belong_to_tools() -> None:
    script = ConsumerScript()
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
