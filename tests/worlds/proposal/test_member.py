"""The member's machine alone: what it sends, when, and what it does with each answer."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.consumer.member_events import Arrived, Leave, SendRequest, TopicsKnown
from kcoord_wire.kernel.machines import Close, Disconnected, Tick
from kcoord_wire.messages import HeartbeatRequest, HeartbeatResponse, LeaveGroupRequest
from kcoord_wire.messages.proposal import AllMembersJoinGroupResponse, AllMembersJoinGroupResponseMember
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.proposal import proposal_coordinator as events
from kcoord_wire.worlds.proposal.all_members import AllMembersMember
from kcoord_wire.worlds.proposal.proposal_coordinator import MemberState, Subscription
from kcoord_wire.worlds.proposal.proposal_world import MemberCodec
from kcoord_wire.worlds.proposal.single_assignor import ROUND_ROBIN


def _member() -> tuple[AllMembersMember, SendRequest]:
    """A member whose JoinGroup is in flight, at 0 ms."""
    member = AllMembersMember(events.MemberSettings(), MemberCodec(), [ROUND_ROBIN])
    assert member.handle(events.Subscribe(Subscription(("orders",))), 0) == []
    [join] = member.handle(TopicsKnown({"orders": 3}), 0)
    return member, join


def _admit(member: AllMembersMember, join: SendRequest, now: int) -> list[Any]:
    [protocol] = join.message.group_protocols
    everyone = [AllMembersJoinGroupResponseMember(member_id="m-1", protocol_metadata=protocol.protocol_metadata)]
    response = AllMembersJoinGroupResponse(
        group_generation_id=7, group_protocol="round-robin", member_id="m-1", members=everyone
    )
    return member.handle(Arrived(join.request_id, response), now)


def _beat(member: AllMembersMember, now: int) -> SendRequest:
    [beat] = member.handle(Tick(), now)
    assert isinstance(beat.message, HeartbeatRequest)
    return beat


def _hear(member: AllMembersMember, beat: SendRequest, now: int, error: int = 0) -> list[Any]:
    return member.handle(Arrived(beat.request_id, HeartbeatResponse(error_code=error)), now)


def test_it_joins_and_sends_heartbeats() -> None:
    member, join = _member()
    assert (member.state, join.message.member_id, member.owned) == (MemberState.JOINING, "", frozenset())
    assert _admit(member, join, 50) == []
    assert (member.state, member.generation, len(member.owned)) == (MemberState.STABLE, 7, 3)
    assert member.deadline == 1_050
    beat = _beat(member, 1_050)
    assert (beat.message.generation_id, beat.message.member_id) == (7, "m-1")
    assert _hear(member, beat, 1_060) == []
    assert member.is_at_rest


def test_a_session_without_an_answer_ends_ownership() -> None:
    member, join = _member()
    _admit(member, join, 0)
    _hear(member, _beat(member, 1_000), 1_900)
    _beat(member, 2_000)
    assert member.handle(Tick(), 6_999) == []
    assert len(member.owned) == 3
    member.handle(Tick(), 7_000)  # a session after the last heartbeat that was answered was sent
    assert (member.owned, member.member_id) == (frozenset(), "m-1")


def test_a_late_answer_does_not_prolong_a_session_that_is_over() -> None:
    member, join = _member()
    _admit(member, join, 0)
    beat = _beat(member, 5_000)
    effects = _hear(member, beat, 6_001)
    assert member.owned == frozenset()
    assert [type(effect.message).__name__ for effect in effects] == ["AllMembersJoinGroupRequest"]


@pytest.mark.parametrize(
    ("error", "member_id"),
    [
        (ErrorCode.REBALANCE_IN_PROGRESS, "m-1"),
        (ErrorCode.ILLEGAL_GENERATION, "m-1"),
        (ErrorCode.UNKNOWN_MEMBER_ID, ""),
    ],
)
def test_a_refused_heartbeat_makes_it_rejoin_without_partitions(error: ErrorCode, member_id: str) -> None:
    member, join = _member()
    _admit(member, join, 0)
    [again] = _hear(member, _beat(member, 1_000), 1_010, error)
    assert (again.message.member_id, member.owned, member.state) == (member_id, frozenset(), MemberState.JOINING)


@pytest.mark.parametrize("error", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT])
def test_a_join_that_may_be_tried_again_is(error: ErrorCode) -> None:
    member, join = _member()
    assert member.handle(Arrived(join.request_id, AllMembersJoinGroupResponse(error_code=error)), 10) == []
    [again] = member.handle(Tick(), 110)
    assert again.message == join.message


def test_another_error_is_the_applications() -> None:
    member, join = _member()
    response = AllMembersJoinGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    [failed] = member.handle(Arrived(join.request_id, response), 10)
    assert (member.state, member.error, failed.error) == (MemberState.FAILED, 23, 23)
    assert member.deadline is None
    assert member.handle(Tick(), 20) == []


def test_a_rebalance_is_wanted_only_after_a_heartbeat() -> None:
    """So that the coordinator does not take the JoinGroup for a repetition of the last one."""
    member, join = _member()
    _admit(member, join, 0)
    [beat] = member.handle(events.Subscribe(Subscription(("orders", "bills"))), 10)
    assert isinstance(beat.message, HeartbeatRequest)
    [again] = _hear(member, beat, 20)
    assert again.message.member_id == "m-1"


def test_a_request_without_an_answer_closes_the_connection() -> None:
    member, join = _member()
    assert member.deadline == 30_000
    effects = member.handle(Tick(), 30_000)
    assert effects == [Close()]
    [again] = member.handle(Tick(), 30_100)
    assert again.request_id == join.request_id + 1
    assert _admit(member, join, 30_200) == [], "the answer to the first one counts no more"
    assert member.state is MemberState.JOINING


def test_a_lost_connection_leaves_a_stable_member_its_partitions() -> None:
    member, join = _member()
    _admit(member, join, 0)
    assert member.handle(Disconnected(), 500) == []
    assert (member.deadline, len(member.owned)) == (600, 3)
    _beat(member, 600)


def test_leaving_sends_leave_group_and_ends() -> None:
    member, join = _member()
    _admit(member, join, 0)
    [leave] = member.handle(Leave(), 10)
    assert leave.message == LeaveGroupRequest(group_id="group", member_id="m-1")
    assert (member.state, member.owned, member.deadline) == (MemberState.LEFT, frozenset(), None)
