"""Requests of the classic protocol to a group of KIP-848: which error, when, and what keeps a member alive."""

from __future__ import annotations

from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.assignors.embedded import ConsumerProtocol
from kcoord_wire.assignors.subscriptions import MemberAssignment, MemberSubscription
from kcoord_wire.coordinator.consumer_groups.group import AWAY, LEAVING
from kcoord_wire.coordinator.core.config import GroupConfig, MigrationPolicy
from kcoord_wire.coordinator.core.events import Trigger
from kcoord_wire.coordinator.core.groups import Group
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.consumer_script import ORDERS, ConsumerScript, partitions


def group(**config: Any) -> ConsumerScript:
    """A group with the consumer c."""
    script = ConsumerScript(GroupConfig(consumer_assignment_interval_ms=0, **config))
    script.enter("c")
    return script


@pytest.fixture
def script() -> ConsumerScript:
    return group()


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


def test_a_static_member_comes_back_to_a_full_group() -> None:
    script = group(consumer_max_size=2)
    member_id, _ = joined(script, instance="i")
    again = script.answers[script.join(instance="i")]
    assert (again.error_code, len(script.group.members)) == (E.NONE, 2)
    assert again.member_id != member_id
    assert script.answers[script.join("x", instance="j")].error_code == E.GROUP_MAX_SIZE_REACHED


def test_members_need_a_protocol_in_common(script: ConsumerScript) -> None:
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
def test_who_may_sync(fields: dict[str, Any], code: E, script: ConsumerScript) -> None:
    member_id, generation = joined(script)
    fields = {"member_id": member_id, "generation": generation, "protocol_name": "range", **fields}
    assert script.answers[script.sync(**fields)].error_code == code


@pytest.mark.parametrize(
    ("member_id", "generation", "code"),
    [("", 0, E.NONE), ("", 9, E.ILLEGAL_GENERATION), ("x", 0, E.UNKNOWN_MEMBER_ID), ("c", 3, E.UNKNOWN_MEMBER_ID)],
)
def test_who_is_alive(member_id: str, generation: int, code: E, script: ConsumerScript) -> None:
    joined_id, epoch = joined(script)
    assert script.heartbeat(member_id or joined_id, generation or epoch) == code


def test_a_member_is_told_to_join_when_there_is_something_to_do(script: ConsumerScript) -> None:
    member_id, generation = joined(script)
    assert script.heartbeat(member_id, generation) == E.NONE  # c still holds what it waits for
    script.follow("c")
    assert script.heartbeat(member_id, generation) == E.REBALANCE_IN_PROGRESS
    assert script.answers[script.sync(member_id, generation)].error_code == E.NONE
    script.enter("d")
    assert script.heartbeat(member_id, generation) == E.REBALANCE_IN_PROGRESS
    assert script.answers[script.sync(member_id, generation)].error_code == E.REBALANCE_IN_PROGRESS


def test_a_member_that_does_not_join_or_sync_is_removed(script: ConsumerScript) -> None:
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


def test_a_classic_member_has_its_own_session_timeout(script: ConsumerScript) -> None:
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
def test_members_leave(version: int, script: ConsumerScript) -> None:
    member_id, _ = joined(script)
    answer = script.leave("x", version=version)
    assert (answer.error_code if version < 3 else answer.members[0].error_code) == E.UNKNOWN_MEMBER_ID
    answer = script.leave(member_id, version=version)
    assert (answer.error_code if version < 3 else answer.members[0].error_code) == E.NONE
    assert list(script.group.members) == ["c"]


def test_an_operator_removes_a_static_member(script: ConsumerScript) -> None:
    member_id, _ = joined(script, instance="i")
    leavers = [
        m.LeaveGroupRequestMemberIdentity(member_id=leaver, group_instance_id=instance)
        for leaver, instance in (("x", "i"), ("", "j"), ("", "i"), (member_id, "i"))
    ]
    answer = script.ask(m.LeaveGroupRequest(group_id="g", members=leavers))
    codes = [E.FENCED_INSTANCE_ID, E.UNKNOWN_MEMBER_ID, E.NONE, E.NONE]
    assert [member.error_code for member in answer.members] == codes
    assert script.group.instances == {}


def test_a_classic_member_is_shown_and_fenced_as_one(script: ConsumerScript) -> None:
    member_id, generation = joined(script)
    members = script.ask(m.ConsumerGroupDescribeRequest(group_ids=["g"])).groups[0].members
    assert {member.member_id: member.member_type for member in members} == {"c": 1, member_id: 0}
    assert script.commit(member_id=member_id, generation=generation, version=5) == E.NONE  # any version will do
    assert script.commit(member_id=member_id, generation=9) == E.ILLEGAL_GENERATION
    assert script.commit(member_id=member_id, generation=1) == E.ILLEGAL_GENERATION
    asked = m.OffsetFetchRequestGroup(group_id="g", member_id=member_id, member_epoch=9)
    assert script.ask(m.OffsetFetchRequest(groups=[asked])).groups[0].error_code == E.ILLEGAL_GENERATION
    assert script.holds("c")[ORDERS] == [*range(12)]


# ---- Groups that change their protocol, both ways, with and without members

EMBEDDED = ConsumerProtocol()
FAST = {"initial_rebalance_delay_ms": 0, "consumer_assignment_interval_ms": 0}


def script_with(**config: object) -> ConsumerScript:
    return ConsumerScript(GroupConfig(**{**FAST, **config}))  # type: ignore[arg-type]


def assigned(*numbers: int) -> bytes:
    return EMBEDDED.encode_assignment(MemberAssignment({"orders": numbers}))


def classic_pair(script: ConsumerScript) -> tuple[str, str]:
    """A Stable classic group of two members with six partitions each, in generation 2; their ids."""
    a, _ = script.admit()
    script.sync(a, 1, {a: assigned(*range(12))})
    b, _ = script.admit()
    script.join(a)
    script.sync(a, 2, {a: assigned(*range(6)), b: assigned(*range(6, 12))})
    script.sync(b, 2)
    assert script.machine.groups["g"].state == "Stable"
    return a, b


def subscription(*owned: int) -> bytes:
    return EMBEDDED.encode_subscription(MemberSubscription(["orders"], {"orders": owned} if owned else {}))


def synced(script: ConsumerScript, member_id: str, generation: int) -> list[int]:
    """What a SyncGroup gives a classic member."""
    answer = script.answers[script.sync(member_id, generation)]
    assert answer.error_code == 0
    return [*EMBEDDED.decode_assignment(answer.assignment).partitions.get("orders", ())]


def rejoin(script: ConsumerScript, member_id: str, *owned: int) -> int:
    """The generation that a JoinGroup which reports these partitions is answered with."""
    answer = script.answers[script.join(member_id, metadata=subscription(*owned))]
    assert (answer.error_code, answer.member_id, answer.protocol_name, answer.members) == (0, member_id, "range", [])
    return int(answer.generation_id)


# ---- without members


def test_a_group_without_members_changes_its_protocol() -> None:
    script = script_with(consumer_migration_policy=MigrationPolicy.DISABLED)
    script.commit(5)
    assert script.machine.groups["g"].kind == "classic"
    assert script.enter("a").error_code == E.NONE
    assert script.committed() == 5
    assert script.restarted().group.offsets["orders"][0].offset == 5
    script.beat("a", LEAVING)
    first = script.answers[script.join()]
    assert first.error_code == E.MEMBER_ID_REQUIRED
    script.join(first.member_id)
    script.sync(first.member_id, 1, {first.member_id: assigned(0)})
    for side in (script, script.restarted()):
        assert (side.machine.groups["g"].kind, side.machine.groups["g"].state) == ("classic", "Stable")
        assert side.machine.groups["g"].offsets["orders"][0].offset == 5


# ---- upgrades


def test_a_classic_group_goes_on_as_one_of_848() -> None:
    script = script_with()
    a, b = classic_pair(script)
    script.commit(7, member_id=a, generation=2)
    joined = script.enter("new")
    assert (joined.error_code, joined.member_epoch, joined.assignment.topic_partitions) == (0, 3, [])
    assert script.holds(a) == {ORDERS: [*range(6)]}  # members keep what they had
    assert script.heartbeat(a, 2) == script.heartbeat(b, 2) == E.REBALANCE_IN_PROGRESS
    assert script.committed() == 7
    assert rejoin(script, a, *range(6)) == 2  # it has to give two up first
    assert synced(script, a, 2) == [0, 1, 2, 3]
    assert script.heartbeat(a, 2) == E.REBALANCE_IN_PROGRESS
    assert rejoin(script, a, 0, 1, 2, 3) == 3
    assert synced(script, a, 3) == [0, 1, 2, 3]
    assert script.heartbeat(a, 3) == E.NONE
    rejoin(script, b, *range(6, 12))
    kept = synced(script, b, 2)
    assert rejoin(script, b, *kept) == 3
    script.follow("new")
    assert script.counts() == {a: 4, b: 4, "new": 4}
    assert script.group.state == "Stable"
    again = script.restarted()
    assert again.counts() == script.counts()
    assert again.heartbeat(a, 3) == E.NONE


def test_parked_requests_are_answered_when_a_group_is_upgraded() -> None:
    script = script_with()
    a, b = classic_pair(script)
    parked = script.join(a, names=("range", "other"))
    script.enter("new")
    assert script.answers[parked].error_code == E.REBALANCE_IN_PROGRESS
    assert {a, b, "new"} == set(script.group.members)


@pytest.mark.parametrize(
    ("config", "kind", "metadata", "data"),
    [
        ({"consumer_migration_policy": MigrationPolicy.DOWNGRADE}, "consumer", None, b""),
        ({"consumer_migration_policy": MigrationPolicy.DISABLED}, "consumer", None, b""),
        ({"consumer_max_size": 1}, "consumer", None, b""),
        ({}, "connect", b"opaque", b""),
        ({}, "consumer", b"\0", b""),
        ({}, "consumer", None, b"\0\1nonsense"),
        ({}, "consumer", None, EMBEDDED.encode_assignment(MemberAssignment({"orders": [0]}, b"mine"))),
    ],
)
def test_groups_that_cannot_be_upgraded(
    config: dict[str, object], kind: str, metadata: bytes | None, data: bytes
) -> None:
    script = script_with(**config)
    first = script.answers[script.join(protocol_type=kind, metadata=metadata)].member_id
    script.join(first, protocol_type=kind, metadata=metadata)
    script.sync(first, 1, {first: data})
    if config.get("consumer_max_size"):
        second, _ = script.admit()
        script.join(first)
        script.sync(first, 2, {first: b"", second: b""})
    before = len(script.log)
    answer = script.enter("new")
    assert answer.error_code == E.GROUP_ID_NOT_FOUND
    assert answer.error_message
    assert len(script.log) == before
    assert script.machine.groups["g"].state == "Stable"


# ---- downgrades


def mixed(**config: object) -> tuple[ConsumerScript, str]:
    """A Stable group of the consumer c and a classic member, whose id is given."""
    script = script_with(**config)
    script.enter("c")
    first = script.answers[script.join(metadata=subscription())]
    assert first.error_code == E.MEMBER_ID_REQUIRED
    generation = rejoin(script, first.member_id)
    assert synced(script, first.member_id, generation) == []
    script.follow("c")
    assert script.heartbeat(first.member_id, generation) == E.REBALANCE_IN_PROGRESS  # there is something to take
    assert rejoin(script, first.member_id) == generation
    assert len(synced(script, first.member_id, generation)) == 6
    assert (script.group.state, script.group.classic_members) == ("Stable", 1)
    return script, first.member_id


@pytest.mark.parametrize("way", ["leaves", "is silent", "is removed"])
def test_the_group_becomes_classic_with_its_last_consumer(way: str) -> None:
    script, member_id = mixed()
    had = script.holds(member_id)[ORDERS]
    if way == "leaves":
        script.beat("c", LEAVING)
    elif way == "is removed":
        assert script.leave("c").members[0].error_code == E.NONE
    else:
        for _ in range(9):
            script.wait(5_000)
            script.heartbeat(member_id, 3)
    group = script.machine.groups["g"]
    assert isinstance(group, Group)
    assert (group.state, group.generation_id, list(group.members)) == ("PreparingRebalance", 3, [member_id])
    assert EMBEDDED.decode_assignment(group.members[member_id].assignment).partitions == {"orders": had}
    assert script.accounts[-1][1].trigger is Trigger.DOWNGRADED
    assert script.heartbeat(member_id, 3) == E.REBALANCE_IN_PROGRESS
    token = script.join(member_id)
    assert script.answers[token].generation_id == 4
    again = script.restarted().machine.groups["g"]
    assert (again.kind, again.state) == ("classic", "Stable")


@pytest.mark.parametrize("policy", [MigrationPolicy.UPGRADE, MigrationPolicy.DISABLED])
def test_a_group_stays_where_downgrades_are_not_allowed(policy: MigrationPolicy) -> None:
    script, member_id = mixed()
    script.machine.config = script.machine._progress.config = GroupConfig(**FAST, consumer_migration_policy=policy)
    script.beat("c", LEAVING)
    assert script.group.state == "Assigning"
    answer = script.answers[script.join(member_id, metadata=subscription())]
    expected = E.INCONSISTENT_GROUP_PROTOCOL if policy is MigrationPolicy.DISABLED else E.NONE
    assert answer.error_code == expected


def test_a_static_member_changes_its_protocol_and_back() -> None:
    script = script_with()
    token = script.join(instance="i", metadata=subscription())
    old = script.answers[token].member_id
    script.sync(old, 1, {old: assigned(*range(12))})
    up = script.enter("c", instance_id="i")
    assert up.error_code == E.NONE
    assert partitions(up.assignment.topic_partitions) == {"orders": [*range(12)]}
    assert script.heartbeat(old, 1, instance="i") == E.FENCED_INSTANCE_ID
    back = script.answers[script.join(instance="i", metadata=subscription(*range(12)))]
    assert back.error_code == E.NONE
    group = script.machine.groups["g"]
    assert isinstance(group, Group)
    assert (group.state, group.generation_id) == ("Stable", back.generation_id)  # nothing to rebalance for
    answer = script.answers[script.sync(back.member_id, back.generation_id)]
    assert EMBEDDED.decode_assignment(answer.assignment).partitions == {"orders": [*range(12)]}
    assert script.beat("c", 2).error_code == E.GROUP_ID_NOT_FOUND


def test_assignments_have_the_version_of_the_subscription() -> None:
    script = script_with()
    script.enter("c")
    for version in (0, 1, 3):
        metadata = kw.encode_prefixed(m.ConsumerProtocolSubscription(topics=["orders"]), version)
        first = script.answers[script.join(metadata=metadata)].member_id
        generation = script.answers[script.join(first, metadata=metadata)].generation_id
        answer = script.answers[script.sync(first, generation)]
        assert int.from_bytes(answer.assignment[:2], "big") == version


def test_a_static_consumer_that_is_away_does_not_count_as_gone() -> None:
    script, member_id = mixed()
    script.beat("c", LEAVING)
    assert script.machine.groups["g"].kind == "classic"
    script, member_id = mixed()
    script.enter("d", instance_id="i")
    script.beat("d", AWAY, instance_id="i")
    script.beat("c", LEAVING)
    assert script.machine.groups["g"].kind == "consumer"
    assert member_id in script.group.members
