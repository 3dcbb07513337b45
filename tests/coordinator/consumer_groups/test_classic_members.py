"""Requests of the classic protocol to a group of KIP-848: which error, when, and what keeps a member alive."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.config import GroupConfig, MigrationPolicy
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.consumer_script import ORDERS, ConsumerScript


def group(**config: Any) -> ConsumerScript:
    """A group with the consumer c."""
    script = ConsumerScript(GroupConfig(consumer_assignment_interval_ms=0, **config))
    script.enter("c")
    return script


def joined(script: ConsumerScript, **options: Any) -> tuple[str, int]:
    """A classic member that has joined; its id and generation."""
    first = script.answers[script.join(**options)]
    if first.error_code == E.MEMBER_ID_REQUIRED:
        first = script.answers[script.join(first.member_id, **options)]
    assert first.error_code == 0
    return first.member_id, first.generation_id


@pytest.mark.parametrize(
    ("config", "options", "code"),
    [
        ({}, {}, E.MEMBER_ID_REQUIRED),
        ({}, {"version": 3}, E.NONE),
        ({}, {"instance": "i"}, E.NONE),
        ({}, {"member_id": "x"}, E.NONE),  # any id will do, as in Kafka
        ({}, {"member_id": "x", "instance": "i"}, E.UNKNOWN_MEMBER_ID),
        ({}, {"member_id": "x", "protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({}, {"member_id": "x", "names": ()}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({}, {"member_id": "x", "metadata": b"\0"}, E.UNKNOWN_SERVER_ERROR),
        ({}, {"member_id": "x", "session_ms": 1}, E.INVALID_SESSION_TIMEOUT),
        ({"consumer_max_size": 1}, {"member_id": "x"}, E.GROUP_MAX_SIZE_REACHED),
        (
            {"consumer_migration_policy": MigrationPolicy.DISABLED},
            {"member_id": "x"},
            E.INCONSISTENT_GROUP_PROTOCOL,
        ),
    ],
)
def test_who_may_join(config: dict[str, Any], options: dict[str, Any], code: E) -> None:
    script = group(**config)
    before = len(script.log)
    options = {"member_id": "", **options}
    answer = script.answers[script.join(options.pop("member_id"), **options)]
    assert answer.error_code == code
    assert (len(script.log) > before) == (code is E.NONE)
    assert len(script.group.members) == (2 if code is E.NONE else 1)
    if code is E.MEMBER_ID_REQUIRED:
        assert answer.member_id


def test_members_need_a_protocol_in_common() -> None:
    script = group()
    joined(script, names=("range", "sticky"))
    assert script.answers[script.join("y", names=("roundrobin",))].error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert script.answers[script.join("y", names=("sticky", "other"))].protocol_name == "sticky"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, E.NONE),
        ({"protocol_name": "sticky"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": None}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"generation": 9}, E.ILLEGAL_GENERATION),
        ({"member_id": "x"}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "c", "generation": 3}, E.UNKNOWN_MEMBER_ID),
    ],
)
def test_who_may_sync(fields: dict[str, Any], code: E) -> None:
    script = group()
    member_id, generation = joined(script)
    fields = {"member_id": member_id, "generation": generation, "protocol_name": "range", **fields}
    assert script.answers[script.sync(**fields)].error_code == code


@pytest.mark.parametrize(
    ("member_id", "generation", "code"),
    [("", 0, E.NONE), ("", 9, E.ILLEGAL_GENERATION), ("x", 0, E.UNKNOWN_MEMBER_ID), ("c", 3, E.UNKNOWN_MEMBER_ID)],
)
def test_who_is_alive(member_id: str, generation: int, code: E) -> None:
    script = group()
    joined_id, epoch = joined(script)
    assert script.heartbeat(member_id or joined_id, generation or epoch) == code


def test_a_member_is_told_to_join_when_there_is_something_to_do() -> None:
    script = group()
    member_id, generation = joined(script)
    assert script.heartbeat(member_id, generation) == E.NONE  # c still holds what it waits for
    script.follow("c")
    assert script.heartbeat(member_id, generation) == E.REBALANCE_IN_PROGRESS
    assert script.answers[script.sync(member_id, generation)].error_code == E.NONE
    script.enter("d")
    assert script.heartbeat(member_id, generation) == E.REBALANCE_IN_PROGRESS
    assert script.answers[script.sync(member_id, generation)].error_code == E.REBALANCE_IN_PROGRESS


def test_a_member_that_does_not_join_or_sync_is_removed() -> None:
    script = group()
    member_id, generation = joined(script, session_ms=30_000, rebalance_ms=8_000)
    script.wait(8_000)
    assert member_id not in script.group.members  # it has not fetched its assignment
    member_id, generation = joined(script, session_ms=30_000, rebalance_ms=8_000)
    script.sync(member_id, generation)
    script.enter("d")
    script.wait(9_000)
    assert member_id in script.group.members  # it has not been told yet
    script.heartbeat(member_id, generation)
    script.wait(4_000)
    script.heartbeat(member_id, generation)
    script.wait(4_000)
    assert member_id not in script.group.members


def test_a_classic_member_has_its_own_session_timeout() -> None:
    script = group()
    member_id, generation = joined(script, session_ms=10_000)
    script.sync(member_id, generation)
    script.wait(9_999)
    script.beat("c", script.group.members["c"].epoch)
    script.heartbeat(member_id, generation)
    script.wait(9_999)
    assert member_id in script.group.members
    script.wait(1)
    assert list(script.group.members) == ["c"]


@pytest.mark.parametrize("version", [0, 2, 3, 5])
def test_members_leave(version: int) -> None:
    script = group()
    member_id, _ = joined(script)
    answer = script.leave("x", version=version)
    assert (answer.error_code if version < 3 else answer.members[0].error_code) == E.UNKNOWN_MEMBER_ID
    answer = script.leave(member_id, version=version)
    assert (answer.error_code if version < 3 else answer.members[0].error_code) == E.NONE
    assert list(script.group.members) == ["c"]


def test_an_operator_removes_a_static_member() -> None:
    script = group()
    member_id, _ = joined(script, instance="i")
    leavers = [
        m.LeaveGroupRequestMemberIdentity(member_id=leaver, group_instance_id=instance)
        for leaver, instance in (("x", "i"), ("", "j"), ("", "i"), (member_id, "i"))
    ]
    answer = script.ask(m.LeaveGroupRequest(group_id="g", members=leavers))
    codes = [E.FENCED_INSTANCE_ID, E.UNKNOWN_MEMBER_ID, E.NONE, E.NONE]
    assert [member.error_code for member in answer.members] == codes
    assert script.group.instances == {}


def test_a_classic_member_is_shown_and_fenced_as_one() -> None:
    script = group()
    member_id, generation = joined(script)
    members = script.ask(m.ConsumerGroupDescribeRequest(group_ids=["g"])).groups[0].members
    assert {member.member_id: member.member_type for member in members} == {"c": 1, member_id: 0}
    assert script.commit(member_id=member_id, generation=generation, version=5) == E.NONE  # any version will do
    assert script.commit(member_id=member_id, generation=9) == E.ILLEGAL_GENERATION
    assert script.commit(member_id=member_id, generation=1) == E.ILLEGAL_GENERATION
    asked = m.OffsetFetchRequestGroup(group_id="g", member_id=member_id, member_epoch=9)
    assert script.ask(m.OffsetFetchRequest(groups=[asked])).groups[0].error_code == E.ILLEGAL_GENERATION
    assert script.holds("c")[ORDERS] == [*range(12)]
