"""Groups in every state, described: members, owners, who is awaited, and whether a rebalance is certain to follow."""

from __future__ import annotations

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.coordinator.description import GroupDescription, describe_group, explain_group
from tests.support.group_states import group_in
from tests.support.scripted import Script, subscription


def described(script: Script) -> GroupDescription:
    return describe_group(script.machine.groups[script.group_id], script.topics)


def assignment(*partitions: int) -> bytes:
    assigned = [m.ConsumerProtocolAssignmentTopicPartition(topic="orders", partitions=list(partitions))]
    return kw.encode_prefixed(m.ConsumerProtocolAssignment(assigned_partitions=assigned if partitions else []), 1)


def claim(*partitions: int) -> bytes:
    owned = [m.ConsumerProtocolSubscriptionTopicPartition(topic="orders", partitions=list(partitions))]
    return kw.encode_prefixed(m.ConsumerProtocolSubscription(topics=["orders"], owned_partitions=owned), 1)


def shared_out(script: Script) -> tuple[str, str]:
    """Two members of generation 1 with three partitions each."""
    first, second = script.completing("a", "b")
    script.sync(first, assign={first: assignment(0, 1, 2), second: assignment(3, 4, 5)})
    script.sync(second)
    return first, second


def test_who_owns_what() -> None:
    script = Script()
    first, second = shared_out(script)
    script.commit(7, member_id=first, generation=1, partition=2)
    group = described(script)
    assert (group.state, group.generation_id, group.protocol, group.leader_id) == ("Stable", 1, "range", first)
    assert [(member.client_id, member.topics, member.assignment) for member in group.members] == [
        ("a", ("orders",), {"orders": (0, 1, 2)}),
        ("b", ("orders",), {"orders": (3, 4, 5)}),
    ]
    assert group.owners[("orders", 2)] == [first]
    assert group.owners[("orders", 3)] == [second]
    assert len(group.owners) == 6
    assert group.offsets == {"orders": {2: 7}}
    assert group.is_settled


def test_whom_a_rebalance_waits_for() -> None:
    script = Script()
    first, second = shared_out(script)
    script.join(first)
    group = described(script)
    assert {member.member_id: member.awaited for member in group.members} == {first: None, second: "JoinGroup"}
    assert group.rebalance is not None
    assert (group.rebalance.member_id, group.is_settled) == (first, False)
    joins = list(group.rebalance.joins)
    script.join(second)
    assert group.rebalance.joins == joins, "a description does not change"
    assert {member.awaited for member in described(script).members} == {"SyncGroup"}
    script.sync(first, 2, {first: assignment(0), second: assignment(1)})
    group = described(script)
    assert (group.state, [member.awaited for member in group.members]) == ("Stable", [None, "SyncGroup"])
    assert not group.is_settled, "the second member does not know its assignment yet"
    script.sync(second, 2)
    assert described(script).is_settled


def test_a_cooperative_member_has_to_join_again() -> None:
    """KIP-429: what a member owned and was not assigned it revokes, and then it joins."""
    script = Script()
    (first,) = script.stable("a", metadata=claim(0, 1))
    second, _ = script.admit(client_id="b", metadata=claim())
    script.join(first, metadata=claim(0, 1))
    script.sync(first, 2, {first: assignment(0), second: assignment()})
    script.sync(second, 2)
    group = described(script)
    assert (group.state, group.is_settled) == ("Stable", False)
    assert "has to revoke partitions and to join again" in explain_group(group, [], script.now)
    script.join(first, metadata=claim(0))
    script.join(second, metadata=claim())
    script.sync(first, 3, {first: assignment(0), second: assignment(1)})
    script.sync(second, 3)
    assert described(script).is_settled


def test_groups_that_are_not_of_consumers() -> None:
    script = Script()
    script.stable("a", protocol_type="connect", metadata=b"\xff")
    [member] = described(script).members
    assert (member.topics, member.owned, member.assignment) == (None, {}, None)
    assert described(script).is_settled


def test_metadata_that_cannot_be_read() -> None:
    script = Script()
    script.stable("a", metadata=b"\x00\x01\xff")
    [member] = described(script).members
    assert (member.topics, member.assignment) == (None, None)


@pytest.mark.parametrize("state", ["Empty", "PreparingRebalance", "CompletingRebalance", "Stable"])
def test_every_state_has_a_text(state: str) -> None:
    script, _, generation = group_in(state)
    group = described(script)
    assert (group.state, group.is_settled) == (state, state == "Stable")
    text = explain_group(group, [account for _, account in script.accounts], group.state_since + 1_500)
    assert text.startswith(f"{state} for 1.5 s, generation {generation}"), text


def test_the_text_names_those_that_are_awaited_first() -> None:
    script = Script()
    ids = script.stable(*(f"client-{number}" for number in range(30)), metadata=subscription("orders"))
    for member_id in ids[:-1]:
        script.join(member_id)
    script.join()  # asks for a member id
    lines = explain_group(described(script), [], script.now).splitlines()
    assert lines[0] == "PreparingRebalance for 0.0 s, generation 1, range, members: 30"
    assert lines[1] == f"  {ids[-1]} (client client-29, /127.0.0.1): its JoinGroup is awaited"
    assert len(lines) == 24
    assert lines[21] == "  and 10 more"
    assert lines[22].startswith("  member ids given out and not yet used: c-u")
    assert lines[23].startswith("rebalance in progress: group g: rebalance of generation 1 has begun; leader rejoined")
