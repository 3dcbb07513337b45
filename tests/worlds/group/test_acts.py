"""Actions of scripts: what each does, and that it does nothing where it makes no sense."""

from __future__ import annotations

import pytest

from kcoord_wire import messages as m
from kcoord_wire.consumer.events import MemberState
from kcoord_wire.worlds.group import acts
from kcoord_wire.worlds.group.cluster import Cluster
from kcoord_wire.worlds.group.members import MemberOptions

STRAYS = {
    "heartbeat": m.HeartbeatRequest,
    "sync": m.SyncGroupRequest,
    "leave": m.LeaveGroupRequest,
    "commit": m.OffsetCommitRequest,
    "simple commit": m.OffsetCommitRequest,
    "delete group": m.DeleteGroupsRequest,
    "delete offsets": m.OffsetDeleteRequest,
    "describe": m.DescribeGroupsRequest,
    "list": m.ListGroupsRequest,
}


@pytest.mark.parametrize("kind", STRAYS)
def test_a_stray_request_is_sent(three: Cluster, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    monkeypatch.setattr(three, "send", lambda message, version: sent.append(message))
    acts.Stray(at=0, kind=kind, name="m1", ahead=1).play(three)
    member = three.processes["m1"].member
    (message,) = sent
    assert type(message) is STRAYS[kind]
    if kind in ("heartbeat", "sync"):
        assert (message.member_id, message.generation_id) == (member.member_id, member.generation_id + 1)
    elif kind == "commit":
        assert message.generation_id_or_member_epoch == member.generation_id + 1
    elif kind == "simple commit":
        assert message.generation_id_or_member_epoch == -1


def test_an_unknown_stray_request_is_refused(three: Cluster) -> None:
    with pytest.raises(ValueError, match="no stray request is called 'nonsense'"):
        acts.Stray(at=0, kind="nonsense", name="m1").play(three)


def test_actions_on_absent_members_do_nothing(three: Cluster) -> None:
    three.crash("m3")
    lines = len(three.trace)
    for name in ("m3", "nobody"):
        acts.LeaveGroup(at=0, name=name).play(three)
        acts.Crash(at=0, name=name).play(three)
        acts.Pause(at=0, name=name, ms=1_000).play(three)
        acts.CutOff(at=0, name=name, ms=1_000).play(three)
        acts.Resubscribe(at=0, name=name, topics=("orders",)).play(three)
    acts.Stray(at=0, kind="leave", name="nobody").play(three)
    three.crash_coordinator()
    acts.Stray(at=0, kind="leave", name="m1").play(three)
    assert [line.what for line in three.trace[lines:]] == ["crashes"]


def test_a_second_join_kills_the_first_process(three: Cluster) -> None:
    first = three.processes["m1"]
    options = MemberOptions(client="kafkajs")
    acts.Join(at=0, name="m1", options=options).play(three)
    second = three.processes["m1"]
    assert (first.is_alive, second.is_alive) == (False, True)
    assert second.host == first.host
    assert second.options == options
    assert second.options is not options, "a script can be played again"


def test_a_closed_consumer_leaves(three: Cluster) -> None:
    acts.LeaveGroup(at=0, name="m1").play(three)
    assert three.processes["m1"].member.state is MemberState.LEFT
