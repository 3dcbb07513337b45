"""SyncGroup and Heartbeat: the errors of each state, and what an assignment becomes."""

from __future__ import annotations

from typing import Any

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Stage, assignment


@script(versions=range(6))
def sync_is_refused(stage: Stage, version: int) -> None:
    """No group, no such group, no members, no such member, another generation, a rebalance."""
    a, b = stage.member("a"), stage.member("b")
    stranger: dict[str, Any] = {"member_id": "nobody", "generation_id": 1}
    a.syncs(version, error=ErrorCode.INVALID_GROUP_ID, group_id="", **stranger)
    a.syncs(version, error=ErrorCode.UNKNOWN_MEMBER_ID, **stranger)
    a.joins()
    for _state in ("CompletingRebalance", "Stable"):
        a.syncs(version, error=ErrorCode.UNKNOWN_MEMBER_ID, **stranger)
        a.syncs(version, error=ErrorCode.UNKNOWN_MEMBER_ID, member_id="", generation_id=1)
        for generation in (-1, 0, 2, 2**31 - 1):
            a.syncs(version, error=ErrorCode.ILLEGAL_GENERATION, generation_id=generation)
        a.syncs(version)
    b_joining = b.joining()
    a.syncs(version, error=ErrorCode.REBALANCE_IN_PROGRESS)
    a.syncs(version, error=ErrorCode.ILLEGAL_GENERATION, generation_id=7)
    a.syncs(version, error=ErrorCode.UNKNOWN_MEMBER_ID, **stranger)
    a.leaves()
    b_joining.answer()
    b.leaves()
    a.syncs(version, error=ErrorCode.UNKNOWN_MEMBER_ID)


@script()
def sync_names_the_protocol(stage: Stage) -> None:
    """From v5 on a member must say which type and protocol it means."""
    a = stage.member("a")
    a.joins()
    wrong = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    for _state in ("CompletingRebalance", "Stable"):
        a.syncs(5, error=wrong, protocol_type="connect")
        a.syncs(5, error=wrong, protocol_name="sticky")
        a.syncs(5, error=wrong, protocol_type="", protocol_name="range")
        a.syncs(5, error=wrong, protocol_type=None, protocol_name="sticky")
        a.syncs(5, error=ErrorCode.ILLEGAL_GENERATION, protocol_type="connect", generation_id=9)
        a.syncs(5, error=ErrorCode.UNKNOWN_MEMBER_ID, protocol_type="connect", member_id="nobody")
        a.syncs(5, error=wrong, protocol_type=None, protocol_name=None)
        a.syncs(5, error=wrong, protocol_type=None)
        a.syncs(5, error=wrong, protocol_name=None)
        a.syncs(5, error=wrong, protocol_type=None, member_id="nobody")
        a.syncs(5, error=wrong, protocol_type=None, group_id=f"{stage.group}/missing")
        a.syncs(5, error=wrong, protocol_name=None, group_id="")
        a.syncs(4, protocol_type=None, protocol_name=None)


@script(versions=(0, 1, 3, 4, 5))
def sync_hands_out_assignments(stage: Stage, version: int) -> None:
    """Followers wait for the leader; who was forgotten gets nothing; strangers do not matter; again is the same."""
    a, b, c = stage.member("a"), stage.member("b"), stage.member("c")
    stage.stable(a, b)
    c_joining = c.joining()
    b_joining = b.joining()
    a.joins()
    for pending in (b_joining, c_joining):
        pending.answer()
    b_syncing = b.syncing(version)
    a.syncs(version, {a.id: assignment(orders=[0]), b.id: assignment(orders=[1, 2]), "nobody": b"?"})
    b_syncing.answer()
    c.syncs(version)
    b.syncs(version)
    a.syncs(version, {a.id: b"another", b.id: b"another", c.id: b"another"})
    b.syncs(version)
    a.connection.describe()


@script()
def followers_assign_nothing(stage: Stage) -> None:
    """What a follower sends along is not looked at."""
    a, b = stage.member("a"), stage.member("b")
    stage.stable(a)
    stage.rejoin(b, a)
    b_syncing = b.connection.park(b.sync_request({a.id: b"mine", b.id: b"mine too"}), 5)
    a.syncs(5, {a.id: b"a"})
    b_syncing.answer()


@script()
def sync_twice_on_two_connections(stage: Stage) -> None:
    """The same follower syncs again while its first request is parked."""
    a, b = stage.member("a"), stage.member("b")
    stage.stable(a)
    stage.rejoin(b, a)
    first = b.syncing()
    second = stage.connect("b").park(b.sync_request(), 5)
    a.syncs(5, {a.id: b"a", b.id: b"b"})
    second.answer()
    first.answer_if_any()


@script(versions=range(5))
def heartbeat_in_each_state(stage: Stage, version: int) -> None:
    """A heartbeat is how a member learns that it must rejoin."""
    a, b = stage.member("a"), stage.member("b")
    stranger: dict[str, Any] = {"member_id": "nobody", "generation_id": 1}
    a.beats(version, ErrorCode.INVALID_GROUP_ID, group_id="", **stranger)
    a.beats(version, ErrorCode.UNKNOWN_MEMBER_ID, **stranger)
    a.joins()
    a.beats(version)
    a.beats(version, ErrorCode.UNKNOWN_MEMBER_ID, **stranger)
    a.syncs()
    a.beats(version)
    a.beats(version, ErrorCode.UNKNOWN_MEMBER_ID, **stranger)
    for generation in (-1, 0, 2, 2**31 - 1):
        a.beats(version, ErrorCode.ILLEGAL_GENERATION, generation_id=generation)
    b_joining = b.joining()
    a.beats(version, ErrorCode.REBALANCE_IN_PROGRESS)
    a.beats(version, ErrorCode.ILLEGAL_GENERATION, generation_id=7)
    a.beats(version, ErrorCode.UNKNOWN_MEMBER_ID, **stranger)
    a.leaves()
    b_joining.answer()
    b.leaves()
    b.beats(version, ErrorCode.UNKNOWN_MEMBER_ID)


@script()
def assignments_that_stand_twice(stage: Stage) -> None:
    """Of two assignments for one member the last one counts."""
    a = stage.member("a")
    a.joins()
    part = kw.SyncGroupRequestAssignment
    request = a.sync_request()
    request.assignments = [part(member_id=a.id, assignment=b"first"), part(member_id=a.id, assignment=b"second")]
    a.connection.call(request, 5)
