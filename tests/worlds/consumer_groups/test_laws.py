"""The laws of KIP-848 on states made by hand: each is broken by what its name says."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from kcoord_wire.consumer.kip848_member import ConsumerGroupMember, MemberSettings, Partition, State
from kcoord_wire.coordinator.consumer_groups.group import ConsumerGroup, Member, MemberState
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.worlds.consumer_groups.consumer_group_laws import (
    Epochs,
    check_clients,
    check_group,
    check_step,
    has_converged,
    snapshot,
    wanted,
)
from kcoord_wire.worlds.group.wire import VirtualTopics

TOPICS = VirtualTopics({"orders": 2})
ID = TOPICS.id_of("orders") or uuid.UUID(int=0)


def stable_group() -> ConsumerGroup:
    """Two members in epoch 5, each with a partition."""
    group = ConsumerGroup("g", 0)
    group.epoch = 5
    group.target = {"a": {ID: frozenset({0})}, "b": {ID: frozenset({1})}}
    group.set_assignment_epoch(5, 0)
    for number, name in enumerate("ab"):
        group.put(Member(member_id=name, topics=("orders",), epoch=5, previous_epoch=4, assigned={ID: {number: 5}}))
    return group


def client(name: str, *owned: int, epoch: int = 5) -> ConsumerGroupMember:
    member = ConsumerGroupMember(MemberSettings(group_id="g", client_id=name, member_id=name))
    member.state, member.epoch = State.STABLE, epoch
    member.owned = member.target = member._reported = frozenset(Partition(ID, number) for number in owned)
    return member


def broken(law: str) -> pytest.RaisesContext[ViolationError]:
    return pytest.raises(ViolationError, match=f"^{law}")


def test_a_stable_group_breaks_nothing() -> None:
    group, clients = stable_group(), [client("a", 0), client("b", 1)]
    check_group(group)
    check_step(Epochs.of(group), group)
    check_clients(group, clients)
    assert wanted(group, TOPICS) == {Partition(ID, 0), Partition(ID, 1)}
    assert has_converged(group, clients, TOPICS)
    assert snapshot(group) == snapshot(stable_group())


def test_two_clients_own_a_partition() -> None:
    group = stable_group()
    with broken("NoDoubleClientAssignment"):
        check_clients(group, [client("a", 0), client("b", 0, epoch=4)])
    check_clients(group, [client("a", 0), client("stranger", 0)])


def test_a_client_owns_what_the_target_gives_to_another() -> None:
    with broken("ValidMemberEpoch"):
        check_clients(stable_group(), [client("a", 0, 1)])
    check_clients(stable_group(), [client("a", 0, 1, epoch=4)])


def test_a_client_is_ahead_of_the_coordinator() -> None:
    with broken("ClientSideMemberEpochIsMonotonic"):
        check_clients(stable_group(), [client("a", 0, epoch=6)])


def test_a_partition_of_two_members_or_of_none() -> None:
    group = stable_group()
    group.members["b"] = replace(group.members["b"], assigned={ID: {0: 5}})
    with broken("ValidPartitionEpoch"):
        check_group(group)
    group = stable_group()
    group._epochs[ID].pop(1)
    with broken("ValidPartitionEpoch"):
        check_group(group)


def test_a_target_that_gives_twice_or_to_nobody() -> None:
    group = stable_group()
    group.target["b"] = {ID: frozenset({0, 1})}
    with broken("LegalTargetAssignment"):
        check_group(group)
    group = stable_group()
    group.target["c"] = {}
    with broken("LegalTargetAssignment"):
        check_group(group)


def test_a_stable_group_with_a_member_that_is_not() -> None:
    group = stable_group()
    group.members["b"] = replace(group.members["b"], assigned={})
    with broken("ValidStableGroupState"):
        check_group(group)


@pytest.mark.parametrize("field", ["epoch", "assignment_epoch"])
def test_epochs_of_the_group_go_back(field: str) -> None:
    group = stable_group()
    before = Epochs.of(group)
    setattr(group, field, 4)
    with broken("GroupEpochIsMonotonic"):
        check_step(before, group)


def test_an_assignment_is_ahead_of_its_group() -> None:
    group = stable_group()
    group.put(replace(group.members["a"], epoch=4))
    group.assignment_epoch = 6
    with broken("GroupEpochIsMonotonic"):
        check_group(group)


def test_a_members_epoch_goes_back() -> None:
    group = stable_group()
    before = Epochs.of(group)
    group.put(replace(group.members["a"], epoch=4))
    with broken("GcSideMemberEpochIsMonotonic"):
        check_step(before, group)
    check_step(before, group, rejoined=["a"])


def test_a_member_waits_for_what_nobody_holds() -> None:
    group = stable_group()
    before = Epochs.of(group)
    group.put(replace(group.members["a"], state=MemberState.UNRELEASED_PARTITIONS, assigned={}))
    with broken("WaitsForOthersOnly"):
        check_step(before, group)


@pytest.mark.parametrize(
    "clients",
    [[client("a", 0)], [client("a", 0), client("b")], [client("a", 0), client("b", 1, epoch=4)]],
    ids=["one is missing", "one owns nothing", "one is behind"],
)
def test_a_group_that_has_not_converged(clients: list[ConsumerGroupMember]) -> None:
    assert not has_converged(stable_group(), clients, TOPICS)
