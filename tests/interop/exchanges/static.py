"""Static members (KIP-345): replaced in each state, fenced, and gone only by timeout or by an operator's hand."""

from __future__ import annotations

from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.leaving import leave
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Member, Stage, subscription

FENCED = ErrorCode.FENCED_INSTANCE_ID
RANGE, ROUND = ("range", subscription("orders")), ("roundrobin", subscription("orders"))


def is_fenced(member: Member) -> None:
    """Whatever the member does with its old id is refused."""
    member.beats(3, FENCED)
    member.beats(4, FENCED)
    member.syncs(3, error=FENCED)
    member.syncs(5, error=FENCED)
    member.joins(5, error=FENCED)
    member.joins(9, error=FENCED)
    member.commits(1, 7, FENCED)
    member.commits(1, 9, FENCED)
    leave(member.connection, 3, (member.id, member.instance), error=FENCED)
    leave(member.connection, 5, (member.id, member.instance), error=FENCED)


@script(versions=(5, 6, 7, 8, 9))
def static_follower_returns(stage: Stage, version: int) -> None:
    """It gets a new id and its old assignment; no other member notices."""
    a, b = stage.member("a", instance="a-1"), stage.member("b", instance="b-1")
    stage.stable(a, b)
    again = stage.member("b2", instance="b-1")
    again.joins(version)
    again.syncs()
    again.beats()
    a.beats()
    is_fenced(b)
    again.commits(5)
    a.connection.describe()


@script(versions=(5, 6, 7, 8, 9))
def static_leader_returns(stage: Stage, version: int) -> None:
    """v9 gets the order to skip the assignment, older versions get the name of another leader."""
    a, b = stage.member("a", instance="a-1"), stage.member("b")
    stage.stable(a, b)
    again = stage.member("a2", instance="a-1")
    again.joins(version)
    again.syncs(assignments={b.id: b"not looked at"})
    b.beats()
    b.syncs()
    is_fenced(a)
    again_joining = again.joining(version)
    b.joins()
    again_joining.answer()


@script(versions=(5, 9))
def static_member_returns_with_another_subscription(stage: Stage, version: int) -> None:
    """While the chosen protocol is the same there is no rebalance, whatever the member says."""
    a, b = stage.member("a", instance="a-1"), stage.member("b", instance="b-1")
    stage.stable(a, b)
    again = stage.member("b2", instance="b-1", protocols=[("range", subscription("payments"))])
    again.joins(version)
    a.beats()
    again.syncs()
    a.connection.describe()


@script(versions=(5, 9))
def static_member_returns_with_another_protocol(stage: Stage, version: int) -> None:
    """A protocol that would win the vote makes the group rebalance."""
    a = stage.member("a", instance="a-1", protocols=[RANGE, ROUND])
    stage.stable(a)
    again = stage.member("a2", instance="a-1", protocols=[ROUND, RANGE])
    again.joins(version)
    again.syncs(protocol_name="roundrobin")
    is_fenced(a)
    again.connection.describe()


@script(versions=(5, 7, 9))
def static_member_returns_with_a_protocol_that_does_not_fit(stage: Stage, version: int) -> None:
    """It is refused, and the old member stays what it is."""
    a, b = stage.member("a", instance="a-1"), stage.member("b", instance="b-1")
    stage.stable(a, b)
    again = stage.member("b2", instance="b-1", protocols=[ROUND])
    again.joins(version, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    b.beats()
    a.beats()


@script(versions=(5, 9))
def static_member_returns_while_joining(stage: Stage, version: int) -> None:
    """The old id's parked join is answered, and the new one takes its place in the rebalance."""
    a, b = stage.member("a", instance="a-1"), stage.member("b", instance="b-1")
    stage.stable(a)
    b_joining = b.joining(version)
    again = stage.member("b2", instance="b-1")
    again_joining = again.joining(version)
    b_joining.answer(FENCED)
    a.joins(version)
    again_joining.answer()


@script(versions=(5, 9))
def static_leader_returns_while_joining(stage: Stage, version: int) -> None:
    """Its return counts as its rejoin; it leads on under the new id."""
    a, b = stage.member("a", instance="a-1"), stage.member("b")
    stage.stable(a)
    b_joining = b.joining(version)
    again = stage.member("a2", instance="a-1")
    again.joins(version)
    b_joining.answer()


@script(versions=(5, 9))
def static_member_returns_while_syncing(stage: Stage, version: int) -> None:
    """The old id's parked sync is answered, and all rebalance."""
    a, b = stage.member("a", instance="a-1"), stage.member("b", instance="b-1")
    stage.stable(a)
    stage.rejoin(b, a)
    b_syncing = b.syncing()
    again = stage.member("b2", instance="b-1")
    again_joining = again.joining(version)
    b_syncing.answer(FENCED)
    a.beats(error=ErrorCode.REBALANCE_IN_PROGRESS)
    a.joins(version)
    again_joining.answer()


@script(versions=(5, 9))
def static_leader_returns_before_its_sync(stage: Stage, version: int) -> None:
    """The leader comes back between its join and its sync."""
    a, b = stage.member("a", instance="a-1"), stage.member("b", instance="b-1")
    stage.stable(a)
    stage.rejoin(b, a)
    b_syncing = b.syncing()
    again = stage.member("a2", instance="a-1")
    again_joining = again.joining(version)
    b_syncing.answer(ErrorCode.REBALANCE_IN_PROGRESS)
    b.joins(version)
    again_joining.answer()


@script()
def instances_and_ids_must_belong_together(stage: Stage) -> None:
    """Instances that no member has, and those of another member."""
    a, b = stage.member("a", instance="a-1"), stage.member("b")
    stage.stable(a, b)
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    for error, instance in ((unknown, "x-1"), (FENCED, "a-1")):
        b.beats(error=error, group_instance_id=instance)
        b.syncs(error=error, group_instance_id=instance)
        b.joins(error=error, group_instance_id=instance)
        b.commits(1, error=error, group_instance_id=instance)
    a.beats(group_instance_id=None)
    a.syncs(group_instance_id=None)
    a.commits(1, group_instance_id=None)
    a.beats(error=FENCED, member_id="nobody")
    a.beats(error=FENCED, member_id="")
    a.commits(1, error=FENCED, member_id="")
    a.commits(1, error=FENCED, member_id="", generation_id_or_member_epoch=-1)
    a.joins(error=FENCED, member_id="nobody")
    a.connection.describe()


@script()
def static_member_rejoins(stage: Stage) -> None:
    """With its id a static member rejoins as any other does."""
    a, b = stage.member("a", instance="a-1"), stage.member("b", instance="b-1")
    stage.stable(a, b)
    b.joins()
    b.protocols = [("range", subscription("payments"))]
    stage.rejoin(b, a)
    stage.share_out(a, b)
    stage.rejoin(a, b)


@script(versions=(5, 9))
def static_member_of_an_emptied_group(stage: Stage, version: int) -> None:
    """An operator removes the member by its instance; its id is worth nothing then, its instance is free."""
    a = stage.member("a", instance="a-1")
    stage.stable(a)
    leave(a.connection, version if version < 5 else 5, ("", "a-1"))
    a.joins(version, ErrorCode.UNKNOWN_MEMBER_ID)
    a.connection.describe()
    a.id = ""
    a.joins(version)
    a.syncs()


@script()
def instances_of_odd_names(stage: Stage) -> None:
    """The coordinator takes any instance id; its text comes before the UUID of the member id."""
    a = stage.member("a", instance="x y/\u00fc")
    b = stage.member("b", instance="-")
    stage.stable(a, b)
    a.connection.describe()


@script()
def the_empty_instance(stage: Stage) -> None:
    """An instance id that is empty is one all the same."""
    a = stage.member("a", instance="")
    a.joins()
    a.syncs()
    a.beats()
    again = stage.member("a2", instance="")
    again.joins()
    a.beats(error=FENCED)
