"""LeaveGroup: alone and in batches, from each state, by id and by instance."""

from __future__ import annotations

from typing import Any

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Answer, Connection, Stage

One = tuple[str, str | None]


def leave(asker: Connection, version: int, *members: One, error: ErrorCode | None = None, **changes: Any) -> Answer:
    """LeaveGroup v3 or later of (member id, instance id)."""
    identity = kw.LeaveGroupRequestMemberIdentity
    batch = [identity(member_id=m, group_instance_id=i) for m, i in members]
    request = kw.LeaveGroupRequest(**{"group_id": asker.stage.group, "members": batch, **changes})
    return asker.call(request, version, error)


@script(versions=range(6))
def leave_is_refused(stage: Stage, version: int) -> None:
    """No group, no such group, no such member; an empty group."""
    x = stage.connect("x")
    members = [kw.LeaveGroupRequestMemberIdentity(member_id="nobody")]
    who = {"member_id": "nobody"} if version < 3 else {"members": members}
    request = kw.LeaveGroupRequest(group_id=stage.group, **who)
    x.call(kw.LeaveGroupRequest(group_id="", **who), version, ErrorCode.INVALID_GROUP_ID)
    x.call(request, version, ErrorCode.UNKNOWN_MEMBER_ID)
    a = stage.member("a")
    stage.stable(a)
    x.call(request, version, ErrorCode.UNKNOWN_MEMBER_ID)
    a.leaves(version)
    a.leaves(version, ErrorCode.UNKNOWN_MEMBER_ID)
    x.call(request, version, ErrorCode.UNKNOWN_MEMBER_ID)
    x.call(kw.LeaveGroupRequest(group_id=f"{stage.group}/missing", **who), version, ErrorCode.UNKNOWN_MEMBER_ID)


@script(versions=(0, 3, 5))
def leave_in_each_state(stage: Stage, version: int) -> None:
    """Who leaves is gone at once, and the others rebalance."""
    a, b, c = stage.member("a"), stage.member("b"), stage.member("c")
    stage.stable(a, b, c)
    c.leaves(version)
    a.beats(error=ErrorCode.REBALANCE_IN_PROGRESS)
    c.beats(error=ErrorCode.UNKNOWN_MEMBER_ID)
    a_joining = a.joining()
    b.leaves(version)
    a_joining.answer()
    a.connection.describe()
    b.id = ""
    stage.rejoin(b, a)
    b_syncing = b.syncing()
    a.leaves(version)
    b_syncing.answer(ErrorCode.REBALANCE_IN_PROGRESS)
    b.joins()
    b.leaves(version)
    b.connection.describe()


@script(versions=(1, 4))
def leave_while_joining(stage: Stage, version: int) -> None:
    """A member that is removed while its join is parked has that answered."""
    a, b = stage.member("a"), stage.member("b")
    stage.stable(a)
    b_joining = b.joining()
    known = stage.wait_for_state("PreparingRebalance").groups[0].members
    b_id = next(m.member_id for m in known if m.client_id == "b")
    if version < 3:
        stage.connect("x").call(kw.LeaveGroupRequest(group_id=stage.group, member_id=b_id), version)
    else:
        leave(stage.connect("x"), version, (b_id, None))
    b_joining.answer(ErrorCode.UNKNOWN_MEMBER_ID)
    a.joins()


@script()
def leave_while_syncing(stage: Stage) -> None:
    """A member is removed while its sync is parked."""
    a, b = stage.member("a"), stage.member("b")
    stage.stable(a)
    stage.rejoin(b, a)
    b_syncing = b.syncing()
    leave(stage.connect("x"), 5, (b.id, None))
    a.joins()
    b_syncing.answer_if_any()


@script(versions=(3, 4, 5))
def leave_in_a_batch(stage: Stage, version: int) -> None:
    """Members with and without instance, strangers, wrong ids of an instance; each has its own result."""
    a, b = stage.member("a"), stage.member("b", instance="b-1")
    c, d = stage.member("c", instance="c-1"), stage.member("d", instance="d-1")
    x = stage.connect("x")
    stage.stable(a, b, c, d)
    leave(x, version)
    a.beats()
    leave(x, version, ("nobody", None), ("", "e-1"), error=ErrorCode.UNKNOWN_MEMBER_ID)
    leave(x, version, ("nobody", "b-1"), error=ErrorCode.FENCED_INSTANCE_ID)
    leave(x, version, (b.id, "e-1"), error=ErrorCode.UNKNOWN_MEMBER_ID)
    leave(x, version, ("", None), error=ErrorCode.UNKNOWN_MEMBER_ID)
    a.beats()
    leave(x, version, ("", "b-1"), ("nobody", None), (c.id, "c-1"), error=ErrorCode.UNKNOWN_MEMBER_ID)
    a.beats(error=ErrorCode.REBALANCE_IN_PROGRESS)
    b.beats(error=ErrorCode.UNKNOWN_MEMBER_ID)
    a_joining = a.joining()
    leave(x, version, (d.id, None))  # by its id, without its instance
    a_joining.answer()
    leave(x, version, (a.id, None), (a.id, None), error=ErrorCode.UNKNOWN_MEMBER_ID)
    x.describe()


@script()
def leave_before_joining(stage: Stage) -> None:
    """A member that has no more than an id may leave, once."""
    a = stage.member("a")
    a.is_introduced()
    leave(a.connection, 5, (a.id, None))
    leave(a.connection, 5, (a.id, None), error=ErrorCode.UNKNOWN_MEMBER_ID)
    a.joins(error=ErrorCode.UNKNOWN_MEMBER_ID)
    a.connection.describe()
    a.id = ""
    a.is_introduced()
    a.leaves(1)


@script()
def the_leader_leaves(stage: Stage) -> None:
    """One of those that are left leads the next generation."""
    a, b = stage.member("a"), stage.member("b")
    stage.stable(a, b)
    a.leaves(5, reason="enough")
    joined = b.joins()
    assert joined.leader == b.id
    b.syncs()
    a.id = ""
    a_joining = a.joining()
    assert b.joins().leader == b.id
    a_joining.answer()
