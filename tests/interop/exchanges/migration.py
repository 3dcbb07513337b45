"""Groups that change their protocol online, member by member, and members of both kinds in one group."""

from __future__ import annotations

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.heartbeats import Heartbeater, settle, shown
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Stage, subscription

REBALANCING = ErrorCode.REBALANCE_IN_PROGRESS


def look_at_consumers(stage: Stage) -> None:
    """The group as a consumer group, in the list and described."""
    stage.connect("admin").call(kw.ListGroupsRequest(), 5)
    shown(stage)


@script(settings="consumer")
def classic_group_becomes_a_consumer_group(stage: Stage) -> None:
    """A consumer joins a classic group; the classic members rejoin when they are asked to, and leave one by one."""
    a, b = stage.member("a"), stage.member("b")
    stage.stable(a, b)
    a.commits(1)
    new = Heartbeater(stage, "new")
    new.joins()
    look_at_consumers(stage)
    a.beats(error=REBALANCING)
    b.beats(error=REBALANCING)
    a.joins()
    a.syncs()
    b.joins()
    b.syncs()
    new.reports()
    a.beats()
    b.beats()
    look_at_consumers(stage)
    a.commits(2, partition=0)
    a.leaves()
    b.leaves()
    new.reports()
    new.reports()
    look_at_consumers(stage)


@script(settings="consumer")
def consumer_group_becomes_a_classic_group(stage: Stage) -> None:
    """A classic member joins a consumer group, and stays alone. Its id is fixed, since Kafka's assignor goes by ids."""
    new = Heartbeater(stage, "new")
    settle(new)
    a = stage.member("a", id="a-id")
    a.joins()
    a.syncs()
    look_at_consumers(stage)
    new.reports()
    new.reports()
    a.beats(error=REBALANCING)
    a.joins()
    a.syncs()
    a.beats()
    look_at_consumers(stage)
    new.leaves()
    stage.connect("admin").call(kw.ListGroupsRequest(), 5)
    shown(stage, error=ErrorCode.GROUP_ID_NOT_FOUND)
    a.beats(error=REBALANCING)
    a.joins()
    a.syncs(assignments={})
    a.beats()
    stage.connect("admin").describe()


@script(settings="consumer")
def empty_groups_take_either_kind(stage: Stage) -> None:
    """An empty group becomes what its next member is."""
    a = stage.member("a")
    stage.stable(a)
    a.commits(5)
    a.leaves()
    new = Heartbeater(stage, "new")
    new.joins()
    new.fetches()
    look_at_consumers(stage)
    new.leaves()
    again = stage.member("again")
    again.joins()
    again.syncs()
    stage.connect("admin").describe()
    stage.connect("admin").call(kw.ListGroupsRequest(), 5)


@script(settings="consumer")
def groups_that_cannot_change(stage: Stage) -> None:
    """Classic groups of another protocol type, with custom embedded data, or being rebalanced."""
    odd = stage.member("odd", kind="connect", protocols=[("range", b"opaque")])
    odd.joins()
    odd.syncs()
    new = Heartbeater(stage, "new")
    new.joins(ErrorCode.GROUP_ID_NOT_FOUND)
    odd.leaves()
    new.joins()
    opaque = stage.member("opaque", kind="connect", protocols=[("x", b"opaque")])
    opaque.connection.call(opaque.join_request(), 9, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    look_at_consumers(stage)


@script(settings="consumer")
def classic_requests_of_consumer_members(stage: Stage) -> None:
    """JoinGroup to LeaveGroup with the id of a member of the other kind, and heartbeats with a classic member's."""
    new = Heartbeater(stage, "new")
    settle(new)
    a = stage.member("a", id=new.id, generation=new.epoch)
    a.beats(error=ErrorCode.UNKNOWN_MEMBER_ID)
    a.syncs(error=ErrorCode.UNKNOWN_MEMBER_ID)
    nobody = stage.member("nobody", id="nobody", generation=1)
    nobody.beats(error=ErrorCode.UNKNOWN_MEMBER_ID)
    nobody.syncs(error=ErrorCode.UNKNOWN_MEMBER_ID)
    nobody.leaves(error=ErrorCode.UNKNOWN_MEMBER_ID)
    nobody.joins()
    nobody.syncs()
    look_at_consumers(stage)
    a.leaves()
    shown(stage, error=ErrorCode.GROUP_ID_NOT_FOUND)


@script(settings="consumer")
def static_members_of_both_kinds(stage: Stage) -> None:
    """A static member restarts with the other protocol, and keeps what it owned."""
    a, b = stage.member("a", instance="i-a"), stage.member("b", instance="i-b")
    stage.stable(a, b)
    restarted = Heartbeater(stage, "restarted", instance="i-a")
    restarted.joins()
    look_at_consumers(stage)
    a.beats(error=ErrorCode.FENCED_INSTANCE_ID)
    b.beats()
    restarted.reports()
    look_at_consumers(stage)
    back = stage.member("back", instance="i-a")
    back.joins()
    back.syncs()
    restarted.beats(ErrorCode.GROUP_ID_NOT_FOUND)
    stage.connect("admin").describe()


@script(settings="consumer")
def classic_member_of_a_consumer_group(stage: Stage) -> None:
    """Its generation is the member epoch; what it may send in each phase."""
    new = Heartbeater(stage, "new")
    settle(new)
    stage.member("late").is_introduced()
    both = [("cooperative-sticky", subscription("orders")), ("range", subscription("orders"))]
    a = stage.member("a", id="a-id", protocols=both)
    look_at_consumers(stage)
    a.joins()
    a.beats()
    a.syncs(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, protocol_name="sticky")
    a.syncs(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, protocol_type="connect")
    a.syncs(error=ErrorCode.ILLEGAL_GENERATION, generation_id=a.generation + 1)
    a.syncs()
    a.syncs()
    a.beats(error=ErrorCode.ILLEGAL_GENERATION, generation_id=a.generation + 1)
    a.commits(1, error=ErrorCode.ILLEGAL_GENERATION, generation_id_or_member_epoch=a.generation + 1)
    a.commits(1)
    look_at_consumers(stage)
    a.joins()
    a.leaves()
    new.reports()
    look_at_consumers(stage)
