"""Groups in every state, and codes of answers; shared by tests of the group machine and of offsets."""

from __future__ import annotations

from typing import Any

import kcoord_wire as kw
from kcoord_wire import messages as m
from tests.support.scripted import Script

PARKED = None


STATES = ("missing", "Empty", "PreparingRebalance", "CompletingRebalance", "Stable")


def versions(name: str) -> list[int]:
    return list(kw.registry[name].valid_versions)


def group_in(state: str) -> tuple[Script, str, int]:
    """A script whose group is in `state`, a member id of it (or one that was), and its generation."""
    script = Script()
    if state == "missing":
        return script, "gone-1", 1
    if state == "CompletingRebalance":
        leader, follower = script.completing("a", "b")
        return script, follower, 1
    if state == "PreparingRebalance":
        leader, follower, _third = script.stable("a", "b", "c")
        script.join(leader)
        return script, follower, 1
    leader, follower = script.stable("a", "b")
    if state == "Empty":
        script.leave(leader, follower)
        return script, follower, 2
    return script, follower, 1


GROUP_REQUESTS: dict[type, Any] = {
    m.JoinGroupRequest: m.JoinGroupRequest(group_id="g", session_timeout_ms=10_000),
    m.SyncGroupRequest: m.SyncGroupRequest(group_id="g"),
    m.HeartbeatRequest: m.HeartbeatRequest(group_id="g"),
    m.LeaveGroupRequest: m.LeaveGroupRequest(group_id="g"),
    m.OffsetCommitRequest: m.OffsetCommitRequest(
        group_id="g",
        topics=[m.OffsetCommitRequestTopic(name="orders", partitions=[m.OffsetCommitRequestPartition()])],
    ),
    m.OffsetFetchRequest: m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="g")]),
    m.OffsetDeleteRequest: m.OffsetDeleteRequest(group_id="g"),
    m.DescribeGroupsRequest: m.DescribeGroupsRequest(groups=["g"]),
    m.ListGroupsRequest: m.ListGroupsRequest(),
    m.DeleteGroupsRequest: m.DeleteGroupsRequest(groups_names=["g"]),
    m.ConsumerGroupHeartbeatRequest: m.ConsumerGroupHeartbeatRequest(group_id="g"),
    m.ConsumerGroupDescribeRequest: m.ConsumerGroupDescribeRequest(group_ids=["g"]),
}


def codes(answer: Any) -> set[int]:
    """Every error code in an answer."""
    found = set()
    if hasattr(answer, "error_code"):
        found.add(int(answer.error_code))
    for name in ("topics", "partitions", "groups", "results", "coordinators"):
        for item in getattr(answer, name, None) or ():
            if hasattr(item, "__slots__"):
                found |= codes(item)
    return found


def static_group(script: Script, *instances: str, **options: Any) -> list[str]:
    tokens = [script.join(instance=instance, client_id=instance, **options) for instance in instances]
    script.wait(3_000)
    ids = [script.answers[token].member_id for token in tokens]
    for member_id in ids:
        script.sync(member_id, 1, {name: name.encode() for name in ids})
    return ids
