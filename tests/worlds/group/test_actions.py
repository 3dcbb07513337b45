"""Actions of scripts: stale requests, second starts, and that an action does nothing where it makes no sense."""

from __future__ import annotations

import pytest

from kcoord_wire import messages as m
from kcoord_wire.consumer.member_events import MemberState
from kcoord_wire.kernel.virtual.clock import BREAKS
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.protocol.error_codes import ErrorCode
from kcoord_wire.worlds.group.laws import Invariants
from kcoord_wire.worlds.group.members import MemberOptions
from kcoord_wire.worlds.group.world import Cluster

STALE = {
    "heartbeat": m.HeartbeatRequest,
    "join": m.JoinGroupRequest,
    "sync": m.SyncGroupRequest,
    "leave": m.LeaveGroupRequest,
    "commit": m.OffsetCommitRequest,
    "simple commit": m.OffsetCommitRequest,
    "brief commit": m.OffsetCommitRequest,
    "fetch": m.OffsetFetchRequest,
    "delete group": m.DeleteGroupsRequest,
    "delete offsets": m.OffsetDeleteRequest,
    "describe": m.DescribeGroupsRequest,
    "list": m.ListGroupsRequest,
}


@pytest.mark.parametrize("kind", STALE)
def test_a_stale_request_is_sent(three: Cluster, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    monkeypatch.setattr(three, "send", lambda message, version: sent.append(message))
    three.send_stale(kind, "m1", 1)
    member = three.processes["m1"].member
    (message,) = sent
    assert type(message) is STALE[kind]
    if kind in ("heartbeat", "sync"):
        assert (message.member_id, message.generation_id) == (member.member_id, member.generation_id + 1)
    elif kind == "commit":
        assert message.generation_id_or_member_epoch == member.generation_id + 1
    elif kind == "simple commit":
        assert message.generation_id_or_member_epoch == -1


def test_a_stale_request_and_its_answer_are_in_the_trace(three: Cluster) -> None:
    three.send_stale("heartbeat", "m1", 1)
    sent, got = (line for line in three.trace if line.who == "probe")
    assert (sent.what, type(sent.detail)) == ("sends", m.HeartbeatRequest)
    assert (got.what, got.detail) == ("gets", m.HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION))


def test_a_trace_ends_with_the_request_that_broke_a_law(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ViolationError("fenced", "planted")

    monkeypatch.setattr(Invariants, "sent", refuse)
    with pytest.raises(ViolationError, match="planted"):
        three.send_stale("list", "m1")
    *_, last = three.trace
    assert (last.who, last.what, type(last.detail.message)) == ("coordinator", BREAKS, m.ListGroupsRequest)


def test_an_unknown_stale_request_is_refused(three: Cluster) -> None:
    with pytest.raises(ValueError, match="no stale request is called 'nonsense'"):
        three.send_stale("nonsense", "m1")


def test_actions_on_absent_members_do_nothing(three: Cluster) -> None:
    three.crash("m3")
    lines = len(three.trace)
    for name in ("m3", "nobody"):
        three.leave(name)
        three.crash(name)
        three.pause(name, 1_000)
        three.partition(name, 1_000)
        three.subscribe(name, ["orders"])
        three.offer(name, ["range"])
        three.rejoin(name)
        three.stall(name, 1_000)
        assert three.shut_down(name) == 0
    three.send_stale("leave", "nobody")
    three.crash_coordinator()
    three.send_stale("leave", "m1")
    assert [line.what for line in three.trace[lines:]] == ["crashes"]


def test_a_second_join_kills_the_first_process(three: Cluster) -> None:
    first = three.processes["m1"]
    options = MemberOptions(client="kafkajs")
    three.member("m1", options)
    second = three.processes["m1"]
    assert (first.is_alive, second.is_alive) == (False, True)
    assert second.host == first.host
    assert second.options == options
    assert second.options is not options, "a script can be played again"


def test_a_closed_consumer_leaves(three: Cluster) -> None:
    three.leave("m1")
    assert three.processes["m1"].member.state is MemberState.LEFT
