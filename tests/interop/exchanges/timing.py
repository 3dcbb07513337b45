"""What time alone does: sessions, rebalances and syncs that run out, and the wait before a first generation."""

from __future__ import annotations

import time
from collections.abc import Callable

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Stage

SHORT = 600


@script()
def session_of_the_only_member_runs_out(stage: Stage) -> None:
    """The group becomes empty; its generation goes on."""
    a = stage.member("a", session_ms=SHORT)
    stage.stable(a)
    stage.wait_for_state("Empty")
    a.beats(error=ErrorCode.UNKNOWN_MEMBER_ID)
    a.id = ""
    assert a.joins().generation_id == 3


@script()
def session_of_one_of_two_runs_out(stage: Stage) -> None:
    """The other one rebalances."""
    a, b = stage.member("a"), stage.member("b", session_ms=SHORT)
    stage.stable(a, b)
    stage.wait_for_state("PreparingRebalance")
    a.beats(error=ErrorCode.REBALANCE_IN_PROGRESS)
    b.beats(error=ErrorCode.UNKNOWN_MEMBER_ID)
    a.joins()


@script()
def session_of_the_leader_runs_out(stage: Stage) -> None:
    """The other one leads."""
    a, b = stage.member("a", session_ms=SHORT), stage.member("b")
    stage.stable(a, b)
    stage.wait_for_state("PreparingRebalance")
    assert b.joins().leader == b.id


@script()
def heartbeats_keep_a_session(stage: Stage) -> None:
    """Heartbeats and commits keep a session for as long as they come."""
    a = stage.member("a", session_ms=1_500)
    stage.stable(a)
    keeps: list[Callable[[], object]] = [a.beats, lambda: a.commits(1)]
    for keep in keeps:
        end = time.monotonic() + 2
        with stage.off_the_record():
            while time.monotonic() < end:
                keep()
                time.sleep(0.2)
    a.beats()


@script()
def id_that_nobody_joins_with(stage: Stage) -> None:
    """An id that was given out is forgotten after a session timeout, and delays no one for longer."""
    a, b = stage.member("a"), stage.member("b", session_ms=SHORT)
    stage.stable(a)
    b.is_introduced()
    a_joining = a.joining()
    a_joining.answer()
    b.joins(error=ErrorCode.UNKNOWN_MEMBER_ID)


@script()
def static_session_runs_out(stage: Stage) -> None:
    """A static member is removed by its session timeout as any other."""
    a, b = stage.member("a"), stage.member("b", instance="b-1", session_ms=SHORT)
    stage.stable(a, b)
    stage.wait_for_state("PreparingRebalance")
    b.beats(error=ErrorCode.UNKNOWN_MEMBER_ID)
    a.joins()


@script()
def members_that_do_not_rejoin(stage: Stage) -> None:
    """Dynamic members are dropped when the rebalance timeout is over; the first that joined leads."""
    a, b = stage.member("a", rebalance_ms=SHORT), stage.member("b", rebalance_ms=SHORT)
    stage.stable(a)
    joined = b.joining().answer()
    assert joined.leader == b.id
    a.beats(error=ErrorCode.UNKNOWN_MEMBER_ID)
    b.syncs()


@script()
def rebalance_takes_the_longest_timeout(stage: Stage) -> None:
    """The time for a rebalance is the longest that any member asks for."""
    a, b = stage.member("a", rebalance_ms=2_500), stage.member("b", rebalance_ms=SHORT)
    stage.stable(a)
    joining = b.joining()
    joining.stays_silent(2 * SHORT / 1000)
    a.beats(error=ErrorCode.REBALANCE_IN_PROGRESS)
    joining.answer()


@script()
def join_v0_has_no_rebalance_timeout(stage: Stage) -> None:
    """Its session timeout is that too."""
    a, b = stage.member("a", session_ms=SHORT), stage.member("b", session_ms=SHORT)
    a.joins(0)
    stage.share_out(a)
    joined = b.joining(0).answer()
    assert len(joined.members) == 1


@script()
def static_members_that_do_not_rejoin(stage: Stage) -> None:
    """Static members stay in the group when they are late; they are part of the next generation."""
    a, b = stage.member("a", instance="a-1", rebalance_ms=SHORT), stage.member("b", rebalance_ms=SHORT)
    stage.stable(a)
    joined = b.joining().answer()
    assert joined.leader == b.id
    assert len(joined.members) == 2
    b.syncs()
    a.beats(error=ErrorCode.ILLEGAL_GENERATION)
    a.joins()  # into the generation that has begun without it
    a.syncs()
    b.beats()


@script()
def nobody_rejoins_but_all_are_static(stage: Stage) -> None:
    """The group waits on for static members, for as long as their sessions last."""
    a = stage.member("a", instance="a-1", rebalance_ms=SHORT)
    b = stage.member("b", instance="b-1", rebalance_ms=SHORT)
    c = stage.member("c", rebalance_ms=SHORT)
    stage.stable(a, b, c)
    c.leaves()
    time.sleep(3 * SHORT / 1000)  # the timeout has run out more than once, and nothing has come of it
    b.beats(error=ErrorCode.REBALANCE_IN_PROGRESS)
    assert len(a.joins().members) == 2


@script()
def members_that_do_not_sync(stage: Stage) -> None:
    """Who has not synced within the rebalance timeout is removed, and the others start again."""
    a, b = stage.member("a", rebalance_ms=SHORT), stage.member("b", rebalance_ms=SHORT)
    a.joins()
    stage.rejoin(b, a)
    a.syncs()
    stage.wait_for_state("PreparingRebalance")
    b.beats(error=ErrorCode.UNKNOWN_MEMBER_ID)
    a.joins()


@script()
def leader_that_does_not_sync(stage: Stage) -> None:
    """The same for the leader: its followers' parked syncs are answered."""
    a, b = stage.member("a", rebalance_ms=SHORT), stage.member("b", rebalance_ms=SHORT)
    a.joins()
    stage.rejoin(b, a)
    b.syncing().answer(ErrorCode.REBALANCE_IN_PROGRESS)
    a.beats(error=ErrorCode.UNKNOWN_MEMBER_ID)
    assert b.joins().leader == b.id


@script()
def nobody_syncs(stage: Stage) -> None:
    """All members are removed, and the group is empty."""
    a = stage.member("a", instance="a-1", rebalance_ms=SHORT)
    a.joins()
    stage.wait_for_state("Empty")
    a.beats(error=ErrorCode.UNKNOWN_MEMBER_ID)


@script()
def waiting_members_do_not_expire(stage: Stage) -> None:
    """Sessions do not run out while a join or a sync is parked."""
    a, b = stage.member("a", session_ms=SHORT), stage.member("b")
    stage.stable(b)
    a.is_introduced()
    a_joining = a.joining()
    a_joining.stays_silent(2 * SHORT / 1000)
    b.joins()
    a_joining.answer()
    a_syncing = a.syncing()
    a_syncing.stays_silent(2 * SHORT / 1000)
    b.syncs(assignments={a.id: b"a", b.id: b"b"})
    a_syncing.answer()


@script(settings="small")
def first_members_are_waited_for(stage: Stage) -> None:
    """The first generation of a group waits for more members."""
    a, b = stage.member("a"), stage.member("b")
    a.is_introduced()
    b.is_introduced()
    start = time.monotonic()
    a_joining = a.sends_join()
    stage.wait_for_state("PreparingRebalance")  # a leads: Kafka reads two connections in any order
    for pending in [a_joining, b.sends_join()]:
        pending.answer()
        assert time.monotonic() - start > 0.5
    stage.share_out(a, b)


@script(settings="small")
def first_wait_and_a_short_rebalance_timeout(stage: Stage) -> None:
    """A rebalance timeout below the wait does not shorten it, and leaves nothing to wait on with."""
    a = stage.member("a", rebalance_ms=400)
    start = time.monotonic()
    a.joins()
    assert 0.5 <= time.monotonic() - start < 5
    a.syncs()


@script(settings="small")
def first_wait_is_prolonged_by_newcomers(stage: Stage) -> None:
    """Each member that comes during the wait makes it begin again, until the rebalance timeout is used up."""
    a, b = stage.member("a", rebalance_ms=1_200), stage.member("b", rebalance_ms=1_200)
    start = time.monotonic()
    a_joining = a.joining()
    b_joining = b.joining()
    a_joining.answer()
    assert 0.99 <= time.monotonic() - start < 5
    b_joining.answer()


@script(settings="small")
def first_member_leaves_during_the_wait(stage: Stage) -> None:
    """A group whose first member goes before the wait is over."""
    a = stage.member("a")
    a_joining = a.joining()
    known = stage.wait_for_state("PreparingRebalance").groups[0].members
    identity = kw.LeaveGroupRequestMemberIdentity(member_id=known[0].member_id)
    request = kw.LeaveGroupRequest(group_id=stage.group, members=[identity])
    stage.connect("x").call(request, 5)
    a_joining.answer(ErrorCode.UNKNOWN_MEMBER_ID)
    stage.wait_for_state("Empty")
    b = stage.member("b")
    b.joins()


@script(settings="small", versions=(0, 3, 4, 5, 7, 9))
def the_third_is_too_many(stage: Stage, version: int) -> None:
    """A group of at most two refuses a third in each of its states, and takes it when there is room."""
    a, b, c = stage.member("a"), stage.member("b"), stage.member("c", instance="c-1" if version >= 5 else None)
    full = ErrorCode.GROUP_MAX_SIZE_REACHED
    a_joining = a.joining(version)
    b_joining = b.joining(version)
    c.connection.call(c.join_request(), version, full)
    a_joining.answer()
    b_joining.answer()
    c.connection.call(c.join_request(), version, full)
    stage.share_out(a, b)
    c.connection.call(c.join_request(), version, full)
    c.connection.call(c.join_request(member_id="nobody", group_instance_id=None), version, full)
    b.joins()
    b.leaves()
    stage.rejoin(c, a, version=version)
    a.connection.describe()


@script(settings="small")
def ids_given_out_do_not_count(stage: Stage) -> None:
    """More ids than places may be given out; who joins last finds the group full."""
    a, b, c = stage.member("a"), stage.member("b"), stage.member("c")
    a.is_introduced()
    b.is_introduced()
    c.is_introduced()
    a_joining = a.joining()
    b_joining = b.joining()
    c.joins(error=ErrorCode.GROUP_MAX_SIZE_REACHED)
    a_joining.answer()
    b_joining.answer()


@script(settings="small")
def static_member_returns_to_a_full_group(stage: Stage) -> None:
    """There is no place for the new id of a static member while the old one still has one."""
    a, b = stage.member("a", instance="a-1"), stage.member("b", instance="b-1")
    joining = a.joining()
    b_joining = b.joining()
    joining.answer()
    b_joining.answer()
    stage.share_out(a, b)
    again = stage.member("b2", instance="b-1")
    again.joins(error=ErrorCode.GROUP_MAX_SIZE_REACHED)
    b.beats()
