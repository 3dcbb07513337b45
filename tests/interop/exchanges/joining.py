"""JoinGroup: who may join, when the answer comes and what it says."""

from __future__ import annotations

import time

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges.script import script
from tests.interop.exchanges.stage import Stage, subscription

ORDERS = subscription("orders")
RANGE, ROUND, STICKY = ("range", ORDERS), ("roundrobin", ORDERS), ("sticky", ORDERS)


@script(versions=range(10))
def join_is_refused(stage: Stage, version: int) -> None:
    """Requests that fail before any group is looked for, and member ids of groups that are not there."""
    a = stage.member("a")
    for error, changes in (
        (ErrorCode.INVALID_GROUP_ID, {"group_id": ""}),
        (ErrorCode.INVALID_SESSION_TIMEOUT, {"session_timeout_ms": 199}),
        (ErrorCode.INVALID_SESSION_TIMEOUT, {"session_timeout_ms": 1_800_001}),
        (ErrorCode.INVALID_SESSION_TIMEOUT, {"session_timeout_ms": -1}),
        (ErrorCode.INVALID_GROUP_ID, {"group_id": "", "session_timeout_ms": 1}),
        (ErrorCode.UNKNOWN_MEMBER_ID, {"member_id": "nobody"}),
        (ErrorCode.INVALID_SESSION_TIMEOUT, {"member_id": "nobody", "session_timeout_ms": 1}),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, {"protocol_type": ""}),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, {"protocols": []}),
    ):
        a.connection.call(a.join_request(**changes), version, error)
    a.connection.call(kw.ListGroupsRequest(), 4)
    a.connection.call(a.join_request(session_timeout_ms=200), 0)
    a.connection.call(a.join_request(member_id="nobody"), version, ErrorCode.UNKNOWN_MEMBER_ID)


@script(versions=(3, 4, 9))
def join_without_member_id(stage: Stage, version: int) -> None:
    """From v4 on a dynamic member is given an id first, and joins with it; before, it joins at once."""
    a = stage.member("a")
    if version >= 4:
        refused = a.connection.call(a.join_request(), version, ErrorCode.MEMBER_ID_REQUIRED)
        a.connection.describe()
        a.id = refused.member_id
        a.beats(error=ErrorCode.UNKNOWN_MEMBER_ID, generation_id=0)
        a.beats(error=ErrorCode.UNKNOWN_MEMBER_ID, generation_id=-1)
        a.syncs(error=ErrorCode.UNKNOWN_MEMBER_ID)
        a.commits(1, error=ErrorCode.UNKNOWN_MEMBER_ID, generation_id_or_member_epoch=0)
        a.commits(1)  # without generation it is a commit from outside, whatever the id
    a.joins(version)
    a.connection.describe()


@script(versions=(4, 6, 9))
def pending_members_hold_up_the_join(stage: Stage, version: int) -> None:
    """Who has been given an id is waited for in a rebalance, until it joins or leaves."""
    a, b, c = stage.member("a"), stage.member("b"), stage.member("c")
    stage.stable(a)
    b.is_introduced(version)
    c.is_introduced(version)
    a.beats()
    a.connection.describe()
    stage.rejoin(b, a, c, version=version)
    stage.share_out(a, b, c)
    d = stage.member("d")
    d.is_introduced(version)
    a_joining = a.joining(version)
    b_joining = b.joining(version)
    c_joining = c.joining(version)
    d.leaves()
    a_joining.answer()
    b_joining.answer()
    c_joining.answer()


@script()
def pending_member_turns_static(stage: Stage) -> None:
    """An id given to a dynamic member is not one for a static member."""
    a = stage.member("a")
    a.is_introduced()
    a.joins(error=ErrorCode.UNKNOWN_SERVER_ERROR, group_instance_id="a-1")
    a.connection.describe()


@script(versions=(0, 5, 7, 9))
def join_with_protocols_that_do_not_fit(stage: Stage, version: int) -> None:
    """Another type, no protocol that all can follow, none at all; the empty group takes any."""
    a, b = stage.member("a", protocols=[RANGE, STICKY]), stage.member("b")
    stage.stable(a)
    wrong = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    protocol = kw.JoinGroupRequestProtocol
    b.connection.call(b.join_request(protocol_type="connect"), version, wrong)
    b.connection.call(b.join_request(protocol_type=""), version, wrong)
    b.connection.call(b.join_request(protocols=[]), version, wrong)
    b.connection.call(b.join_request(protocols=[protocol(name="roundrobin", metadata=ORDERS)]), version, wrong)
    a.connection.call(a.join_request(protocols=[protocol(name="roundrobin", metadata=ORDERS)]), version, wrong)
    a.connection.call(a.join_request(protocol_type="connect"), version, wrong)
    a.connection.describe()
    a.leaves()
    c = stage.member("c", kind="connect", protocols=[("default", b"")])
    c.joins(version)
    c.connection.describe()


@script()
def protocols_are_voted_for(stage: Stage) -> None:
    """Each member votes for the first of its protocols that all can follow; most votes win."""
    a = stage.member("a", protocols=[RANGE, STICKY, ROUND])
    b = stage.member("b", protocols=[STICKY, ROUND, RANGE])
    c = stage.member("c", protocols=[STICKY, RANGE, ROUND])
    a.joins()
    b_joining = b.joining()
    c_joining = c.joining()
    assert a.joins().protocol_name == "sticky"
    b_joining.answer()
    c_joining.answer()
    d = stage.member("d", protocols=[("mine", ORDERS), ROUND])
    joining = [d.joining(), a.joining(), b.joining()]
    assert c.joins().protocol_name == "roundrobin"
    for pending in joining:
        pending.answer()


@script(versions=(0, 4, 5, 6, 7, 8, 9))
def rejoin_while_stable(stage: Stage, version: int) -> None:
    """A follower that says the same is answered at once; one that says something else, and the leader, rebalance."""
    a, b = stage.member("a"), stage.member("b")
    stage.stable(a, b)
    b.joins(version)
    b.beats()
    b.joins(version, session_timeout_ms=20_000, rebalance_timeout_ms=20_000)
    b.protocols = [("range", subscription("orders", "payments"))]
    b_joining = b.joining(version)
    a.beats(error=ErrorCode.REBALANCE_IN_PROGRESS)
    a.joins(version)
    b_joining.answer()
    stage.share_out(a, b)
    a_joining = a.joining(version)
    b.beats(error=ErrorCode.REBALANCE_IN_PROGRESS)
    b.joins(version)
    a_joining.answer()


@script(versions=(0, 5, 7, 9))
def rejoin_before_the_sync(stage: Stage, version: int) -> None:
    """While the leader has not synced, who says the same is answered at once; who says something else rebalances."""
    a, b = stage.member("a"), stage.member("b")
    stage.stable(a)
    stage.rejoin(b, a)
    a.joins(version)
    b.joins(version)
    b_syncing = b.syncing()
    a.protocols = [("range", subscription("payments"))]
    a_joining = a.joining(version)
    b_syncing.answer(ErrorCode.REBALANCE_IN_PROGRESS)
    b.joins(version)
    a_joining.answer()


@script()
def rejoin_with_other_protocol_order(stage: Stage) -> None:
    """The order of the protocols is part of what a member says."""
    a, b = stage.member("a", protocols=[RANGE, ROUND]), stage.member("b", protocols=[RANGE, ROUND])
    stage.stable(a, b)
    b.protocols = [ROUND, RANGE]
    stage.rejoin(b, a)


@script()
def join_during_a_rebalance(stage: Stage) -> None:
    """Newcomers while members are waited for are part of the same generation."""
    a, b, c = stage.member("a"), stage.member("b"), stage.member("c")
    stage.stable(a)
    stage.rejoin(b, c, a)
    b_syncing = b.syncing()
    d = stage.member("d")
    d_joining = d.joining()
    b_syncing.answer(ErrorCode.REBALANCE_IN_PROGRESS)
    a.syncs(error=ErrorCode.REBALANCE_IN_PROGRESS)
    joining = [a.joining(), b.joining()]
    c.joins()
    for pending in [d_joining, *joining]:
        pending.answer()


@script()
def join_of_an_emptied_group(stage: Stage) -> None:
    """Old ids are worth nothing when a group has become empty; its generations go on."""
    a = stage.member("a")
    stage.stable(a)
    a.leaves()
    a.joins(error=ErrorCode.UNKNOWN_MEMBER_ID)
    a.joins(error=ErrorCode.UNKNOWN_MEMBER_ID, group_instance_id="a-1")
    a.id = ""
    a.joins()
    assert a.generation > 2


@script()
def join_of_strangers(stage: Stage) -> None:
    """Ids that are not the group's, in each of its states."""
    a, b, x = stage.member("a"), stage.member("b"), stage.connect("x")
    request = a.join_request(member_id="nobody")
    a.joins()
    x.call(request, 9, ErrorCode.UNKNOWN_MEMBER_ID)
    stage.share_out(a)
    x.call(request, 9, ErrorCode.UNKNOWN_MEMBER_ID)
    b_joining = b.joining()
    x.call(request, 9, ErrorCode.UNKNOWN_MEMBER_ID)
    a.joins()
    b_joining.answer()


@script(versions=(1, 4, 9))
def join_twice_on_two_connections(stage: Stage, version: int) -> None:
    """The same member joins again while its first request is parked."""
    a, b = stage.member("a"), stage.member("b")
    stage.stable(a, b)
    first = a.joining()
    again = stage.connect("a")
    second = again.park(a.join_request(), version)
    b.joins()
    answer = second.answer()
    first.answer_if_any()
    beat = kw.HeartbeatRequest(group_id=stage.group, generation_id=answer.generation_id, member_id=a.id)
    again.call(beat, 4)


@script()
def any_bytes_are_metadata(stage: Stage) -> None:
    """What members say is opaque to the coordinator: empty, not decodable, large."""
    a = stage.member("a", protocols=[("range", b"")])
    b = stage.member("b", protocols=[("range", subscription("orders", user_data=bytes(range(256)) * 40))])
    stage.stable(a)
    stage.rejoin(b, a)
    b_syncing = b.syncing()
    a.syncs(assignments={a.id: b"\xff" * 9000, b.id: b""})
    b_syncing.answer()
    a.connection.describe()


@script(versions=(8, 9))
def join_with_a_reason(stage: Stage, version: int) -> None:
    """Reasons are for the coordinator's log and change nothing."""
    a = stage.member("a")
    a.joins(version, reason="because I can")
    a.joins(version, reason="")
    stage.share_out(a)


@script()
def odd_names(stage: Stage) -> None:
    """Client ids and protocol names with spaces, dashes and letters of any script; the client id may be empty."""
    a = stage.member("caf\u00e9 - \u6771\u4eac")
    b = stage.member("", protocols=[("range", ORDERS), ("my \u00fc assignor", b"")])
    stage.stable(a, b)
    a.connection.describe()


@script(versions=(0, 5, 9))
def nameless_client(stage: Stage, version: int) -> None:
    """A client id that is null is an empty one."""
    a = stage.member("a")
    a.connection = stage.connect("a", nameless=True)
    a.joins(version)
    a.connection.describe()


@script()
def fields_that_nobody_knows(stage: Stage) -> None:
    """Tagged fields of some later version are passed over, in the message and within it."""
    a = stage.member("a")
    tags = ((5, b"five"), (1000, b""))
    a.is_introduced()
    protocols = [kw.JoinGroupRequestProtocol(name="range", metadata=ORDERS, unknown_tags=tags)]
    a.joins(9, protocols=protocols, unknown_tags=tags)
    a.syncs(5, unknown_tags=tags)
    a.beats(4, unknown_tags=tags)


@script()
def protocol_listed_twice(stage: Stage) -> None:
    """The same name twice in one list."""
    a = stage.member("a", protocols=[STICKY, STICKY])
    a.is_introduced()
    a.connection.send(a.join_request(), 9).answer_if_any()


@script(versions=(1, 9))
def no_rebalance_timeout(stage: Stage, version: int) -> None:
    """With a rebalance timeout of nothing, who does not sync at once is removed."""
    a = stage.member("a", rebalance_ms=0)
    a.joins(version)
    stage.wait_for_state("Empty")


@script(versions=(1, 9))
def negative_rebalance_timeout(stage: Stage, version: int) -> None:
    """A rebalance timeout of -1, which is what the field is when it is not there."""
    a = stage.member("a", rebalance_ms=-1)
    a.joins(version)
    with stage.off_the_record():
        end = time.monotonic() + 0.5
        while time.monotonic() < end and a.connection.describe().groups[0].group_state != "Empty":
            time.sleep(0.02)
    a.connection.describe()
