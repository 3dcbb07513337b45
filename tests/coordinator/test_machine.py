"""The group machine against the facts of the protocol: who is answered what, when, in which state and version."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.error_responses import refusal
from kcoord_wire.coordinator.core.events import Load, Phase, Trigger
from kcoord_wire.coordinator.core.groups import TRANSITIONS, Group, IllegalMoveError, Move, State
from kcoord_wire.coordinator.core.timers import Timers
from kcoord_wire.error_codes import ErrorCode as E
from tests.support.scripted import NEWEST, Script, subscription

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


# ---- the table of section "error codes by state": request by state


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("missing", E.UNKNOWN_MEMBER_ID),
        ("Empty", E.UNKNOWN_MEMBER_ID),
        ("PreparingRebalance", PARKED),
        ("CompletingRebalance", E.NONE),
        ("Stable", E.NONE),
    ],
)
@pytest.mark.parametrize("version", versions("JoinGroupRequest"))
def test_a_known_member_joins(state: str, code: E | None, version: int) -> None:
    script, member_id, generation = group_in(state)
    token = script.join(member_id, version=version)
    if code is PARKED:
        assert token not in script.answers
        return
    answer = script.answers[token]
    assert answer.error_code == code
    assert answer.member_id == member_id
    assert answer.generation_id == (-1 if code else generation)
    assert answer.members == []


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("missing", E.UNKNOWN_MEMBER_ID),
        ("Empty", E.UNKNOWN_MEMBER_ID),
        ("PreparingRebalance", E.REBALANCE_IN_PROGRESS),
        ("CompletingRebalance", PARKED),
        ("Stable", E.NONE),
    ],
)
@pytest.mark.parametrize("version", versions("SyncGroupRequest"))
def test_a_member_syncs(state: str, code: E | None, version: int) -> None:
    script, member_id, generation = group_in(state)
    token = script.sync(member_id, generation, version=version)
    if code is PARKED:
        assert token not in script.answers
        leader = next(iter(script.machine.groups["g"].members))
        script.sync(leader, generation, {member_id: b"mine"})
        assert script.answers[token].assignment == b"mine"
        return
    assert script.answers[token].error_code == code
    assert script.answers[token].assignment == (b"" if code else member_id.encode())


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("missing", E.UNKNOWN_MEMBER_ID),
        ("Empty", E.UNKNOWN_MEMBER_ID),
        ("PreparingRebalance", E.REBALANCE_IN_PROGRESS),
        ("CompletingRebalance", E.NONE),
        ("Stable", E.NONE),
    ],
)
@pytest.mark.parametrize("version", versions("HeartbeatRequest"))
def test_a_member_beats(state: str, code: E, version: int) -> None:
    script, member_id, generation = group_in(state)
    request = m.HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
    assert script.ask(request, version).error_code == code


@pytest.mark.parametrize(
    ("state", "code", "after"),
    [
        ("missing", E.UNKNOWN_MEMBER_ID, "Dead"),
        ("Empty", E.UNKNOWN_MEMBER_ID, "Empty"),
        ("PreparingRebalance", E.NONE, "PreparingRebalance"),
        ("CompletingRebalance", E.NONE, "PreparingRebalance"),
        ("Stable", E.NONE, "PreparingRebalance"),
    ],
)
@pytest.mark.parametrize("version", versions("LeaveGroupRequest"))
def test_a_member_leaves(state: str, code: E, after: str, version: int) -> None:
    script, member_id, _ = group_in(state)
    answer = script.leave(member_id, version=version)
    if version < 3:
        assert (answer.error_code, answer.members) == (code, [])
    else:
        assert (answer.error_code, [item.error_code for item in answer.members]) == (E.NONE, [code])
    assert script.state() == after


@pytest.mark.parametrize("version", [version for version in versions("OffsetCommitRequest") if version >= 1])
@pytest.mark.parametrize("state", STATES)
def test_a_member_commits(state: str, version: int) -> None:
    script, member_id, generation = group_in(state)
    code = {
        "missing": E.GROUP_ID_NOT_FOUND if version >= 9 else E.ILLEGAL_GENERATION,
        "Empty": E.UNKNOWN_MEMBER_ID,
        "PreparingRebalance": E.NONE,  # the old generation may still commit
        "CompletingRebalance": E.REBALANCE_IN_PROGRESS,
        "Stable": E.NONE,
    }[state]
    assert script.commit(41, member_id=member_id, generation=generation, version=version) == code
    assert script.committed() == (-1 if code else 41)


@pytest.mark.parametrize("version", versions("OffsetCommitRequest"))
@pytest.mark.parametrize("state", STATES)
def test_nobody_in_particular_commits(state: str, version: int) -> None:
    script, _, _ = group_in(state)
    code = E.NONE if state in ("missing", "Empty") else E.UNKNOWN_MEMBER_ID
    if version == 0:
        code = E.UNSUPPORTED_VERSION  # such offsets were in ZooKeeper
    assert script.commit(41, version=version) == code
    assert script.committed() == (-1 if code else 41)


@pytest.mark.parametrize("version", versions("OffsetFetchRequest"))
@pytest.mark.parametrize("state", STATES)
def test_offsets_are_fetched_in_every_state(state: str, version: int) -> None:
    script, _, _ = group_in(state)
    if version >= 8:
        asked = m.OffsetFetchRequestTopics(name="orders", partition_indexes=[3])
        asked.topic_id = script.topics.id_of("orders") or asked.topic_id
        groups = [m.OffsetFetchRequestGroup(group_id="g", topics=[asked])]
        group = script.ask(m.OffsetFetchRequest(groups=groups), version).groups[0]
        assert group.error_code == 0
        partition = group.topics[0].partitions[0]
    else:
        topics = [m.OffsetFetchRequestTopic(name="orders", partition_indexes=[3])]
        answer = script.ask(m.OffsetFetchRequest(group_id="g", topics=topics), version)
        assert answer.error_code == 0
        partition = answer.topics[0].partitions[0]
    assert (partition.partition_index, partition.committed_offset, partition.committed_leader_epoch) == (3, -1, -1)
    assert (partition.metadata, partition.error_code) == ("", E.UNSUPPORTED_VERSION if version == 0 else 0)


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


@pytest.mark.parametrize("request_type", GROUP_REQUESTS, ids=lambda cls: cls.__name__)
def test_while_the_log_is_read_and_after_it_failed(request_type: type) -> None:
    message = GROUP_REQUESTS[request_type]
    loading = Script(load=False)
    calm = request_type is m.HeartbeatRequest  # members are kept calm while the coordinator loads
    assert codes(loading.ask(message)) - {0} == (set() if calm else {E.COORDINATOR_LOAD_IN_PROGRESS})
    resigned = Script()
    resigned.resign()
    assert codes(resigned.ask(message)) - {0} == {E.NOT_COORDINATOR}


@pytest.mark.parametrize("state", STATES[1:])
def test_resigning_answers_whatever_waits(state: str) -> None:
    script, member_id, generation = group_in(state)
    tokens = [script.join(member_id, names=("range", "other")), script.sync(member_id, generation)]
    script.resign()
    assert all(token in script.answers for token in tokens)
    if state in ("PreparingRebalance", "CompletingRebalance"):
        assert E.NOT_COORDINATOR in {script.answers[token].error_code for token in tokens}
    assert script.machine.deadline is None
    script.do(Load([record for records in script.log for record in records]))
    known = {"CompletingRebalance": "Empty", "PreparingRebalance": "Stable"}  # what the log knows of it
    assert script.state() == known.get(state, state)


# ---- names and bounds


@pytest.mark.parametrize(
    "request_type", [m.JoinGroupRequest, m.SyncGroupRequest, m.HeartbeatRequest, m.LeaveGroupRequest]
)
def test_an_empty_group_id_is_refused(request_type: type) -> None:
    message = request_type()
    if isinstance(message, m.JoinGroupRequest):
        message.session_timeout_ms = 10_000
    if isinstance(message, m.SyncGroupRequest):
        message.protocol_type, message.protocol_name = "consumer", "range"
    assert Script().ask(message).error_code == E.INVALID_GROUP_ID


def test_an_empty_group_id_may_hold_offsets() -> None:
    script = Script(group_id="")
    assert script.commit(7) == 0
    assert script.committed() == 7
    assert script.state() == "Empty"


@pytest.mark.parametrize(("session_ms", "code"), [(5_999, 26), (6_000, 79), (1_800_000, 79), (1_800_001, 26), (-1, 26)])
def test_session_timeouts_have_bounds(session_ms: int, code: int) -> None:
    script = Script()
    assert script.answers[script.join(session_ms=session_ms)].error_code == code


@pytest.mark.parametrize("version", versions("JoinGroupRequest"))
def test_a_new_member_is_given_its_id(version: int) -> None:
    script = Script()
    token = script.join(version=version, client_id="billing")
    if version >= 4:
        answer = script.answers[token]
        assert (answer.error_code, answer.member_id, answer.generation_id) == (79, "billing-u1", -1)
        assert answer.protocol_name == (None if version >= 7 else "")
        token = script.join(answer.member_id, version=version)
    script.wait(1_000)
    answer = script.answers[token]
    assert (answer.error_code, answer.generation_id, answer.member_id) == (0, 1, "billing-u1")
    assert (answer.leader, answer.protocol_name) == ("billing-u1", "range")
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert [(item.member_id, item.metadata) for item in answer.members] == [("billing-u1", subscription("orders"))]


def test_the_group_is_in_the_log_before_an_id_is_given_out() -> None:
    script = Script()
    token = script.join()
    assert script.after[token] == 1
    (((key, value),),) = script.log
    assert (key.group, value.generation, value.members) == ("g", 0, [])


def test_an_id_that_nobody_joins_with_is_forgotten() -> None:
    script = Script()
    member_id = script.answers[script.join(session_ms=7_000)].member_id
    script.wait(7_000)
    assert script.answers[script.join(member_id)].error_code == E.UNKNOWN_MEMBER_ID


def test_a_pending_id_holds_the_join_up_until_it_expires() -> None:
    script = Script()
    (leader,) = script.stable("a")
    script.join(session_ms=8_000)  # asks for an id and is not heard of again
    token = script.join(leader)
    assert token not in script.answers
    script.wait(8_000)
    assert script.answers[token].generation_id == 2


def test_a_pending_id_may_leave() -> None:
    script = Script()
    (leader,) = script.stable("a")
    pending = script.answers[script.join()].member_id
    token = script.join(leader)
    assert [item.error_code for item in script.leave(pending).members] == [0]
    assert script.answers[token].generation_id == 2


def test_a_pending_id_is_not_for_static_members() -> None:
    script = Script()
    pending = script.answers[script.join()].member_id
    assert script.answers[script.join(pending, instance="i")].error_code == E.UNKNOWN_SERVER_ERROR


# ---- protocols


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        ([("range",), ("range",)], "range"),
        ([("range", "roundrobin"), ("roundrobin", "range")], "range"),  # one vote each: the first member's wins
        ([("range", "roundrobin"), ("roundrobin", "range"), ("roundrobin", "range")], "roundrobin"),
        ([("sticky", "range"), ("sticky", "range"), ("range",)], "range"),  # all must be able to follow it
        ([("a", "b", "c"), ("b", "c"), ("c", "b"), ("c", "b")], "b"),
    ],
)
def test_the_protocol_that_most_put_first(offers: list[tuple[str, ...]], chosen: str) -> None:
    script = Script()
    tokens = [script.admit(names=names)[1] for names in offers]
    script.wait(2_000)
    assert {script.answers[token].protocol_name for token in tokens} == {chosen}


def test_a_protocol_that_stands_twice_counts_once() -> None:
    script = Script()
    tokens = [script.admit(names=names)[1] for names in (("range", "range", "sticky"), ("sticky", "sticky", "range"))]
    script.wait(2_000)
    assert {script.answers[token].protocol_name for token in tokens} == {"range"}


@pytest.mark.parametrize("version", versions("JoinGroupRequest"))
def test_protocols_that_nobody_shares_are_refused(version: int) -> None:
    script = Script()
    script.stable("a")
    assert script.answers[script.join(version=version, names=("sticky",))].error_code == E.INCONSISTENT_GROUP_PROTOCOL
    connect = script.join(version=version, protocol_type="connect")
    assert script.answers[connect].error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert script.answers[connect].member_id == ""


@pytest.mark.parametrize("options", [{"names": ()}, {"protocol_type": ""}])
def test_the_first_member_must_offer_something(options: dict[str, Any]) -> None:
    script = Script()
    assert script.answers[script.join(**options)].error_code == E.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("missing", ["protocol_type", "protocol_name"])
def test_sync_from_version_5_on_names_the_protocol(missing: str) -> None:
    """Before anything else is looked at, the group id included (Kafka's KafkaApis)."""
    request = m.SyncGroupRequest(protocol_type="consumer", protocol_name="range")
    setattr(request, missing, None)
    assert Script().ask(request, 5).error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert Script().ask(m.SyncGroupRequest(), 4).error_code == E.INVALID_GROUP_ID


@pytest.mark.parametrize(
    "more", [{"protocol_type": "connect"}, {"protocol_name": "sticky"}, {"protocol_type": "", "protocol_name": "range"}]
)
def test_sync_with_another_protocol_is_refused(more: dict[str, str]) -> None:
    script = Script()
    (leader,) = script.completing("a")
    assert script.answers[script.sync(leader, 1, **more)].error_code == E.INCONSISTENT_GROUP_PROTOCOL
    ok = script.sync(leader, 1, protocol_type="consumer", protocol_name="range")
    assert (script.answers[ok].protocol_type, script.answers[ok].protocol_name) == ("consumer", "range")


# ---- generations: "Kafka 0.9 Consumer Rewrite Design", section "Offset commits during rebalance"


@pytest.mark.parametrize("generation", [0, 2, -5, 1 << 30])
def test_higher_and_lower_generations_are_refused(generation: int) -> None:
    script = Script()
    (member_id,) = script.stable("a")
    assert script.heartbeat(member_id, generation) == E.ILLEGAL_GENERATION
    assert script.answers[script.sync(member_id, generation)].error_code == E.ILLEGAL_GENERATION
    assert script.commit(9, member_id=member_id, generation=generation) == E.ILLEGAL_GENERATION
    assert script.committed() == -1


def test_the_old_generation_commits_until_the_join_is_complete() -> None:
    script = Script()
    leader, follower = script.stable("a", "b")
    script.join(leader)
    assert script.commit(10, member_id=follower, generation=1) == 0
    script.join(follower)
    assert script.commit(11, member_id=follower, generation=1) == E.ILLEGAL_GENERATION
    assert script.commit(11, member_id=follower, generation=2) == E.REBALANCE_IN_PROGRESS
    assert script.committed() == 10


# ---- time


def test_the_first_join_waits_for_more_members() -> None:
    script = Script(config=GroupConfig(initial_rebalance_delay_ms=3_000))
    first = script.admit(client_id="a", rebalance_ms=7_000)[1]
    script.wait(2_000)
    second = script.admit(client_id="b", rebalance_ms=7_000)[1]
    script.wait(1_000)  # the delay is over, but somebody came: another one begins
    assert first not in script.answers
    script.wait(1_000)
    third = script.admit(client_id="c", rebalance_ms=7_000)[1]
    script.wait(2_000)
    assert first not in script.answers
    script.wait(1_000)  # 7 s, the rebalance timeout, are used up
    assert [script.answers[token].generation_id for token in (first, second, third)] == [1, 1, 1]


def test_no_delay_means_none() -> None:
    script = Script(config=GroupConfig(initial_rebalance_delay_ms=0))
    token = script.admit()[1]
    assert script.answers[token].generation_id == 1


def test_who_does_not_rejoin_in_time_is_out() -> None:
    script = Script()
    leader, follower = script.stable("a", "b", rebalance_ms=20_000, session_ms=1_000_000)
    token = script.join(leader, rebalance_ms=20_000, session_ms=1_000_000)
    script.wait(19_999)
    assert token not in script.answers
    script.wait(1)
    answer = script.answers[token]
    assert (answer.generation_id, [item.member_id for item in answer.members]) == (2, [leader])
    assert script.heartbeat(follower, 2) == E.UNKNOWN_MEMBER_ID


def test_a_leader_that_does_not_rejoin_is_succeeded_by_the_next_in_order() -> None:
    script = Script()
    ids = script.stable("a", "b", "c", rebalance_ms=20_000, session_ms=1_000_000)
    third = script.join(ids[2], metadata=b"\0\1", rebalance_ms=20_000, session_ms=1_000_000)
    second = script.join(ids[1], rebalance_ms=20_000, session_ms=1_000_000)
    script.wait(20_000)
    assert {script.answers[token].leader for token in (second, third)} == {ids[1]}
    assert script.answers[third].members == []
    assert [item.member_id for item in script.answers[second].members] == ids[1:]


@pytest.mark.parametrize("version", versions("JoinGroupRequest"))
def test_version_0_has_its_session_timeout_for_the_rebalance_timeout(version: int) -> None:
    script = Script()
    (_leader,) = script.stable("a", rebalance_ms=8_000)
    script.join(version=version, client_id="b", rebalance_ms=50_000, session_ms=9_000)
    group = script.machine.groups["g"]
    if version < 4:
        assert group.rebalance_timeout_ms == (9_000 if version == 0 else 50_000)
    else:
        assert group.rebalance_timeout_ms == 8_000  # it has an id and is no member yet


def test_a_member_that_is_silent_is_out_after_its_session() -> None:
    script = Script()
    leader, follower = script.stable("a", "b", session_ms=10_000)
    script.wait(6_000)
    assert script.heartbeat(leader) == 0
    script.wait(4_000)
    assert script.state() == "PreparingRebalance"
    assert script.heartbeat(follower) == E.UNKNOWN_MEMBER_ID
    assert script.heartbeat(leader) == E.REBALANCE_IN_PROGRESS
    assert script.accounts[-1][1].trigger is Trigger.SESSION_EXPIRED
    assert script.accounts[-1][1].member_id == follower


@pytest.mark.parametrize("sign", ["heartbeat", "commit", "rejoin", "sync"])
def test_signs_of_life(sign: str) -> None:
    script = Script()
    (leader,) = script.stable("a", session_ms=10_000)
    script.wait(9_000)
    if sign == "heartbeat":
        script.heartbeat(leader)
    elif sign == "commit":
        script.commit(1, member_id=leader, generation=1)
    elif sign == "sync":
        script.sync(leader)
    else:
        script.join(leader)
    script.wait(9_000)
    assert script.heartbeat(leader, 2 if sign == "rejoin" else 1) == 0


def test_a_member_that_waits_for_its_join_is_alive() -> None:
    """Heartbeats are paused between JoinGroup and its response ("Kafka 0.9 Consumer Rewrite Design")."""
    script = Script()
    leader, follower = script.stable("a", "b", session_ms=6_000, rebalance_ms=60_000)
    token = script.join(leader, session_ms=6_000)
    for _ in range(8):
        script.wait(5_000)
        assert script.heartbeat(follower) == E.REBALANCE_IN_PROGRESS
    script.join(follower, session_ms=6_000)
    assert script.answers[token].generation_id == 2
    script.wait(5_999)  # its session begins anew with the answer
    assert script.heartbeat(leader, 2) == 0


def test_a_soft_failure_before_the_join_costs_the_membership() -> None:
    script = Script()
    leader, follower = script.stable("a", "b", session_ms=6_000)
    token = script.join(leader, session_ms=6_000)
    script.wait(6_000)
    assert [item.member_id for item in script.answers[token].members] == [leader]
    assert script.answers[script.join(follower)].error_code == E.UNKNOWN_MEMBER_ID


def test_a_soft_failure_after_the_join_costs_it_a_session_later() -> None:
    script = Script()
    leader, follower = script.completing("a", "b", session_ms=6_000)
    script.sync(leader, 1)
    script.wait(5_000)
    script.heartbeat(leader)
    script.wait(1_000)
    assert script.state() == "PreparingRebalance"
    assert script.heartbeat(follower) == E.UNKNOWN_MEMBER_ID


def test_a_new_member_is_kept_for_the_join_timeout_of_new_members() -> None:
    script = Script(config=GroupConfig(initial_rebalance_delay_ms=0, new_member_join_timeout_ms=30_000))
    (_leader,) = script.stable("a", rebalance_ms=500_000, session_ms=1_000_000)
    _, token = script.admit(client_id="b", session_ms=6_000)
    script.wait(29_999)
    assert token not in script.answers
    script.wait(1)
    assert script.answers[token].error_code == E.UNKNOWN_MEMBER_ID


def test_a_leader_that_fails_before_its_sync() -> None:
    script = Script()
    leader, follower = script.completing("a", "b", session_ms=10_000)
    token = script.sync(follower)
    script.wait(10_000)
    assert script.answers[token].error_code == E.REBALANCE_IN_PROGRESS
    token = script.join(follower)
    assert (script.answers[token].generation_id, script.answers[token].leader) == (2, follower)
    assert script.heartbeat(leader, 1) == E.UNKNOWN_MEMBER_ID


def test_a_leader_that_gives_up_before_its_sync() -> None:
    script = Script()
    leader, follower = script.completing("a", "b")
    token = script.sync(follower)
    script.leave(leader)
    assert script.answers[token].error_code == E.REBALANCE_IN_PROGRESS


def test_who_never_syncs_is_out_after_the_rebalance_timeout() -> None:
    script = Script()
    ids = script.completing("a", "b", rebalance_ms=15_000, session_ms=1_000_000)
    script.sync(ids[0])
    assert script.state() == "Stable"
    script.wait(15_000)
    assert script.state() == "PreparingRebalance"
    assert script.accounts[-1][1].trigger is Trigger.SYNC_EXPIRED
    assert [(item.member_id, item.why) for item in script.accounts[-1][1].removed] == [(ids[1], "sync timeout")]


def test_members_that_the_leader_forgets_get_nothing() -> None:
    script = Script()
    leader, follower = script.completing("a", "b")
    token = script.sync(follower)
    script.sync(leader, 1, {leader: b"all", "stranger": b"?"})
    assert (script.answers[token].error_code, script.answers[token].assignment) == (0, b"")


def test_assignments_are_in_the_log_before_they_are_told() -> None:
    script = Script()
    leader, follower = script.completing("a", "b")
    tokens = [script.sync(follower), script.sync(leader, 1, {leader: b"x", follower: b"y"})]
    number = len(script.log)
    assert [script.after[token] for token in tokens] == [number, number]
    ((_key, value),) = script.log[-1]
    assert (value.generation, value.leader, value.protocol) == (1, leader, "range")
    assert {member.member_id: member.assignment for member in value.members} == {leader: b"x", follower: b"y"}


# ---- who rejoins


def test_a_leader_that_rejoins_starts_a_rebalance() -> None:
    script = Script()
    leader, _follower = script.stable("a", "b")
    assert script.join(leader) not in script.answers
    assert script.accounts[-1][1].trigger is Trigger.LEADER_REJOINED


@pytest.mark.parametrize(
    ("options", "trigger"),
    [
        ({"metadata": subscription("payments")}, Trigger.SUBSCRIPTION_CHANGED),
        ({"names": ("range", "sticky")}, Trigger.PROTOCOLS_CHANGED),
    ],
)
@pytest.mark.parametrize("state", ["CompletingRebalance", "Stable"])
def test_a_follower_that_changes_starts_a_rebalance(state: str, options: dict[str, Any], trigger: Trigger) -> None:
    script, follower, _ = group_in(state)
    assert script.join(follower, reason="subscribed anew", **options) not in script.answers
    account = script.accounts[-1][1]
    assert (account.trigger, account.member_id, account.reason) == (trigger, follower, "subscribed anew")


def test_a_leader_whose_join_answer_got_lost_is_told_all_members_again() -> None:
    script = Script()
    leader, follower = script.completing("a", "b")
    answer = script.answers[script.join(leader)]
    assert (answer.generation_id, [item.member_id for item in answer.members]) == (1, [leader, follower])


def test_a_join_that_is_sent_again_takes_the_place_of_the_first() -> None:
    script = Script()
    leader, follower = script.stable("a", "b")
    first = script.join(leader)
    second = script.join(leader)
    assert script.answers[first].error_code == E.REBALANCE_IN_PROGRESS
    script.join(follower)
    assert script.answers[second].generation_id == 2
    assert script.machine.groups["g"].waiting == 0


# ---- group.max.size


def test_a_full_group_takes_nobody_in() -> None:
    script = Script(config=GroupConfig(initial_rebalance_delay_ms=1_000, max_size=2))
    _leader, follower = script.stable("a", "b")
    answer = script.answers[script.join(client_id="c", version=3)]
    assert (answer.error_code, answer.member_id) == (E.GROUP_MAX_SIZE_REACHED, "")
    assert script.answers[script.join(follower)].error_code == 0


def test_a_group_over_its_size_shrinks_when_it_rebalances() -> None:
    script = Script()
    leader, follower, third = script.stable("a", "b", "c")
    script.config = GroupConfig(max_size=2)
    smaller = script.reloaded()
    assert smaller.state() == "PreparingRebalance"
    tokens = [smaller.join(member_id) for member_id in (leader, follower, third)]
    assert smaller.answers[tokens[2]].error_code == E.GROUP_MAX_SIZE_REACHED
    assert [smaller.answers[token].generation_id for token in tokens[:2]] == [2, 2]


# ---- leaving


def test_leaving_together_is_one_rebalance() -> None:
    script = Script()
    ids = script.stable("a", "b", "c", "d")
    answer = script.leave(ids[1], "stranger", ids[2])
    assert [item.error_code for item in answer.members] == [0, E.UNKNOWN_MEMBER_ID, 0]
    started = [rebalance for phase, rebalance in script.accounts if phase is Phase.STARTED]
    assert len(started) == 2
    assert [item.member_id for item in started[-1].removed] == ids[1:3]


def test_who_leaves_while_its_join_waits_is_answered() -> None:
    script = Script()
    leader, _follower = script.stable("a", "b")
    token = script.join(leader)
    script.leave(leader)
    assert (script.answers[token].error_code, script.answers[token].member_id) == (E.UNKNOWN_MEMBER_ID, "")


def test_who_leaves_while_its_sync_waits_is_answered() -> None:
    script = Script()
    _leader, follower = script.completing("a", "b")
    token = script.sync(follower)
    script.leave(follower)
    assert script.answers[token].error_code == E.UNKNOWN_MEMBER_ID


def test_the_last_one_leaves_an_empty_group() -> None:
    script = Script()
    (leader,) = script.stable("a")
    script.leave(leader)
    assert script.state() == "Empty"
    ((_, value),) = script.log[-1]
    assert (value.generation, value.members, value.protocol, value.protocol_type) == (2, [], None, "consumer")
    assert script.accounts[-1][1].outcome == "empty"


# ---- static members (KIP-345, KIP-814)


def static_group(script: Script, *instances: str, **options: Any) -> list[str]:
    tokens = [script.join(instance=instance, client_id=instance, **options) for instance in instances]
    script.wait(3_000)
    ids = [script.answers[token].member_id for token in tokens]
    for member_id in ids:
        script.sync(member_id, 1, {name: name.encode() for name in ids})
    return ids


def test_static_members_join_without_a_second_request() -> None:
    script = Script()
    token = script.join(instance="i", client_id="c")
    assert token not in script.answers  # parked, not MEMBER_ID_REQUIRED
    script.wait(1_000)
    assert script.answers[token].member_id == "i-u1"


@pytest.mark.parametrize("version", [5, 6, 7, 8, 9])
@pytest.mark.parametrize("leads", [True, False])
def test_a_static_member_restarts_without_a_rebalance(version: int, leads: bool) -> None:
    script = Script()
    ids = static_group(script, "x", "y")
    old = ids[0] if leads else ids[1]
    instance = "x" if leads else "y"
    records = len(script.log)
    token = script.join(instance=instance, version=version, client_id="again")
    answer = script.answers[token]
    assert (answer.error_code, answer.generation_id) == (0, 1)
    assert answer.member_id != old
    assert script.state() == "Stable"
    assert script.after[token] == records + 1 == len(script.log)
    if not leads:
        assert (answer.leader, answer.members, answer.skip_assignment) == (ids[0], [], False)
    elif version >= 9:
        assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
        assert {item.group_instance_id for item in answer.members} == {"x", "y"}
    else:
        assert (answer.leader, answer.members) == (old, [])  # so that it does not assign
    sync = script.answers[script.sync(answer.member_id, 1, group_instance_id=instance)]
    assert sync.assignment == old.encode()
    assert script.heartbeat(old, 1, instance) == E.FENCED_INSTANCE_ID
    assert script.heartbeat(old, 1) == E.UNKNOWN_MEMBER_ID


def test_a_static_member_that_offers_other_protocols_starts_a_rebalance() -> None:
    script = Script()
    static_group(script, "x", names=("range", "sticky"))
    token = script.join(instance="x", names=("sticky", "range"))
    assert script.answers[token].generation_id == 2  # it is alone, so the rebalance is over at once
    assert script.answers[token].protocol_name == "sticky"
    assert script.accounts[-1][1].trigger is Trigger.STATIC_REPLACED


def test_two_that_claim_one_instance() -> None:
    script = Script()
    static_group(script, "x", "y")
    leader = script.machine.groups["g"].leader_id or ""
    parked = script.join(leader, instance="x")
    usurper = script.join(instance="x")
    assert (script.answers[parked].error_code, script.answers[parked].member_id) == (E.FENCED_INSTANCE_ID, leader)
    assert usurper not in script.answers
    assert script.machine.groups["g"].waiting == 1


def test_a_static_member_replaced_between_join_and_sync() -> None:
    script = Script()
    for instance in ("x", "y"):
        script.join(instance=instance)
    script.wait(3_000)
    old = script.machine.groups["g"].instances["y"]
    parked = script.sync(old, 1, group_instance_id="y")
    token = script.join(instance="y")
    assert script.answers[parked].error_code == E.FENCED_INSTANCE_ID
    assert token not in script.answers
    assert script.state() == "PreparingRebalance"


@pytest.mark.parametrize("instance", ["nobody", "x"])
def test_a_static_identity_is_checked_everywhere(instance: str) -> None:
    script = Script()
    (member_id,) = static_group(script, "x")
    code = E.UNKNOWN_MEMBER_ID if instance == "nobody" else E.FENCED_INSTANCE_ID
    other = member_id if instance == "nobody" else "other"
    assert script.answers[script.join(other, instance=instance)].error_code == code
    assert script.answers[script.sync(other, 1, group_instance_id=instance)].error_code == code
    assert script.heartbeat(other, 1, instance) == code
    assert script.commit(1, member_id=other, generation=1, group_instance_id=instance) == code
    leaver = m.LeaveGroupRequestMemberIdentity(member_id=other, group_instance_id=instance)
    answer = script.ask(m.LeaveGroupRequest(group_id="g", members=[leaver]))
    assert [item.error_code for item in answer.members] == [code]


def test_static_members_that_do_not_rejoin_stay_until_their_session_ends() -> None:
    script = Script()
    x, y = static_group(script, "x", "y", session_ms=100_000, rebalance_ms=20_000)
    token = script.join(x, instance="x", session_ms=100_000, rebalance_ms=20_000)
    script.wait(20_000)
    assert [item.member_id for item in script.answers[token].members] == [x, y]
    script.sync(x, 2, {x: b"", y: b""})
    assert script.state() == "Stable"
    script.wait(20_000)  # y has not synced either
    assert script.state() == "PreparingRebalance"


def test_a_join_of_static_members_alone_waits_on_if_none_comes() -> None:
    script = Script()
    _x, y = static_group(script, "x", "y", session_ms=1_000_000, rebalance_ms=20_000)
    pending = script.admit(client_id="new", session_ms=1_000_000, rebalance_ms=20_000)
    script.leave(pending[0])
    script.wait(20_000)
    assert script.state() == "PreparingRebalance"
    token = script.join(y, instance="y", session_ms=1_000_000, rebalance_ms=20_000)
    script.wait(20_000)
    assert script.answers[token].leader == y


def test_an_operator_removes_a_static_member() -> None:
    script = Script()
    static_group(script, "x", "y")
    leavers = [m.LeaveGroupRequestMemberIdentity(member_id="", group_instance_id=name) for name in ("x", "nobody")]
    answer = script.ask(m.LeaveGroupRequest(group_id="g", members=leavers))
    assert [item.error_code for item in answer.members] == [0, E.UNKNOWN_MEMBER_ID]
    assert list(script.machine.groups["g"].instances) == ["y"]


# ---- offsets


def test_metadata_has_a_bound_and_fails_alone() -> None:
    script = Script(config=GroupConfig(offset_metadata_max_bytes=4))
    assert script.commit(1, metadata="\u00e9\u00e9\U0001f600") == 0
    assert script.commit(1, metadata="\u00e9\u00e9\u00e9\U0001f600", partition=1) == E.OFFSET_METADATA_TOO_LARGE
    assert script.commit(1, metadata=None, partition=2) == 0
    assert [script.committed(partition=index) for index in range(3)] == [1, -1, 1]


@pytest.mark.parametrize("version", versions("OffsetCommitRequest"))
def test_unknown_topics_are_refused_alone(version: int) -> None:
    script = Script()
    code = E.UNKNOWN_TOPIC_ID if version >= 10 else E.UNKNOWN_TOPIC_OR_PARTITION
    code = code if version else E.UNSUPPORTED_VERSION
    assert script.commit(1, topic="nowhere", version=version) == code
    if version:
        for partition in (-1, 12):
            code = script.commit(1, partition=partition, version=version)
            assert code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert script.state() == "Dead"


def test_partitions_that_do_not_exist_come_first_in_the_answer() -> None:
    def topic(name: str, *partitions: int) -> m.OffsetCommitRequestTopic:
        items = [m.OffsetCommitRequestPartition(partition_index=index) for index in partitions]
        return m.OffsetCommitRequestTopic(name=name, partitions=items)

    topics = [topic("orders", 0, 99), topic("nowhere", 0), topic("payments", 1), topic("orders", 1)]

    def outcome(topics: list[m.OffsetCommitRequestTopic]) -> list[tuple[str, list[tuple[int, int]]]]:
        answer = Script().ask(m.OffsetCommitRequest(group_id="g", topics=topics), 8)
        return [(t.name, [(p.partition_index, p.error_code) for p in t.partitions]) for t in answer.topics]

    refused = [("orders", [(99, 3), (0, 0), (1, 0)]), ("nowhere", [(0, 3)]), ("payments", [(1, 0)])]
    assert outcome(topics) == refused
    assert outcome(topics[2:] + topics[2:]) == [(name, [(1, 0)]) for name in ("payments", "orders") * 2]


def test_a_commit_that_stores_nothing_leaves_no_group() -> None:
    script = Script(config=GroupConfig(offset_metadata_max_bytes=0))
    assert script.commit(1, metadata="x") == E.OFFSET_METADATA_TOO_LARGE
    assert script.ask(m.ListGroupsRequest()).groups == []


def test_all_offsets_of_a_group() -> None:
    script = Script()
    script.commit(3, partition=1)
    script.commit(4, topic="payments")
    answer = script.ask(m.OffsetFetchRequest(group_id="g", topics=None), 7)
    found = {(t.name, p.partition_index): p.committed_offset for t in answer.topics for p in t.partitions}
    assert found == {("orders", 1): 3, ("payments", 0): 4}
    asked = [m.OffsetFetchRequestGroup(group_id=name, topics=None) for name in ("g", "other")]
    groups = script.ask(m.OffsetFetchRequest(groups=asked), 9).groups
    assert [(group.group_id, len(group.topics), group.error_code) for group in groups] == [("g", 2, 0), ("other", 0, 0)]


def test_topic_ids_that_nobody_has() -> None:
    script = Script()
    asked = [m.OffsetFetchRequestGroup(group_id="g", topics=[m.OffsetFetchRequestTopics(partition_indexes=[0])])]
    answer = script.ask(m.OffsetFetchRequest(groups=asked), 10)
    assert answer.groups[0].topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_ID


def test_offsets_are_deleted_unless_subscribed_to() -> None:
    script = Script()
    (member_id,) = script.stable("a")
    for topic in ("orders", "payments"):
        assert script.commit(5, member_id=member_id, generation=1, topic=topic) == 0
    partitions = [m.OffsetDeleteRequestPartition(partition_index=index) for index in (0, 1)]
    names = ("orders", "payments", "nowhere")
    request = m.OffsetDeleteRequest(
        group_id="g", topics=[m.OffsetDeleteRequestTopic(name=name, partitions=partitions) for name in names]
    )
    answer = script.ask(request)
    assert [{p.error_code for p in topic.partitions} for topic in answer.topics] == [
        {E.UNKNOWN_TOPIC_OR_PARTITION},
        {E.GROUP_SUBSCRIBED_TO_TOPIC},
        {0},
    ]
    assert (script.committed("orders"), script.committed("payments")) == (5, -1)
    assert [(key.topic, key.partition, value) for key, value in script.log[-1]] == [("payments", 0, None)]


def test_offsets_of_other_kinds_of_groups_are_deleted_when_empty() -> None:
    script = Script()
    (member_id,) = script.stable("a", protocol_type="connect")
    request = m.OffsetDeleteRequest(group_id="g", topics=[])
    assert script.ask(request).error_code == E.NON_EMPTY_GROUP
    script.leave(member_id)
    assert script.ask(request).error_code == 0
    assert script.ask(m.OffsetDeleteRequest(group_id="other")).error_code == E.GROUP_ID_NOT_FOUND


DAY = 24 * 3_600_000


def test_offsets_of_an_empty_group_expire_after_it_became_empty() -> None:
    script = Script()
    (member_id,) = script.stable("a")
    script.commit(5, member_id=member_id, generation=1)
    script.leave(member_id)
    script.wait(6 * DAY)
    assert script.committed() == 5
    script.wait(DAY + 600_000)
    assert script.state() == "Dead"
    assert {type(key).__name__ for key, value in script.log[-1] if value is None} == {
        "OffsetCommitKey",
        "GroupMetadataKey",
    }


def test_offsets_nobody_is_subscribed_to_expire_in_a_stable_group() -> None:
    script = Script()
    (member_id,) = script.stable("a", session_ms=1_800_000)
    script.commit(5, member_id=member_id, generation=1)
    script.commit(6, member_id=member_id, generation=1, topic="payments")
    for _ in range(8 * 50 + 1):
        script.wait(DAY // 50)
        script.heartbeat(member_id)
    assert (script.committed("orders"), script.committed("payments")) == (5, -1)
    assert script.state() == "Stable"


def test_offsets_without_a_group_expire_after_their_commit() -> None:
    script = Script()
    script.commit(5)
    script.wait(4 * DAY)
    script.commit(6, partition=1)
    script.wait(4 * DAY)
    assert (script.committed(partition=0), script.committed(partition=1)) == (-1, 6)
    script.wait(4 * DAY)
    assert script.state() == "Dead"


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_commit_can_say_how_long_it_is_kept(version: int) -> None:
    script = Script()
    script.commit(5, version=version, retention_time_ms=3_600_000)
    ((_, value),) = script.log[-1]
    assert value.expire_timestamp == script.now + 3_600_000
    script.wait(3_600_000 + 600_000)
    assert script.committed() == -1


def test_a_commit_that_is_kept_for_ever_fits_into_the_log() -> None:
    script = Script()
    script.commit(5, version=4, retention_time_ms=(1 << 63) - 1)
    ((_, value),) = script.log[-1]
    assert value.expire_timestamp == (1 << 63) - 1


# ---- operators


@pytest.mark.parametrize("version", versions("DescribeGroupsRequest"))
@pytest.mark.parametrize("state", STATES)
def test_groups_are_described(state: str, version: int) -> None:
    script, member_id, _ = group_in(state)
    (described,) = script.ask(m.DescribeGroupsRequest(groups=["g"]), version).groups
    if state == "missing":
        assert described.group_state == "Dead"
        assert described.error_code == (E.GROUP_ID_NOT_FOUND if version >= 6 else 0)
        return
    stable = state == "Stable"
    assert (described.group_state, described.protocol_type) == (state, "consumer")
    assert described.protocol_data == ("range" if stable else "")
    found = {member.member_id: member for member in described.members}
    assert (member_id in found) == (state != "Empty")
    for name, member in found.items():
        assert (member.client_host, member.client_id) == ("/127.0.0.1", name[0])
        assert member.member_metadata == (subscription("orders") if stable else b"")
        assert member.member_assignment == (b"" if state == "CompletingRebalance" else name.encode())


@pytest.mark.parametrize("version", versions("ListGroupsRequest"))
def test_groups_are_listed(version: int) -> None:
    script = Script()
    script.stable("a")
    script.group_id = "simple"
    script.commit(1)
    listed = script.ask(m.ListGroupsRequest(), version).groups
    assert [(group.group_id, group.protocol_type) for group in listed] == [("g", "consumer"), ("simple", "")]
    if version >= 4:
        assert [group.group_state for group in listed] == ["Stable", "Empty"]
        some = script.ask(m.ListGroupsRequest(states_filter=["stable"]), version).groups
        assert [group.group_id for group in some] == ["g"]
    if version >= 5:
        assert {group.group_type for group in listed} == {"classic"}
        assert script.ask(m.ListGroupsRequest(types_filter=["consumer"]), version).groups == []
        assert len(script.ask(m.ListGroupsRequest(types_filter=["Classic"]), version).groups) == 2


@pytest.mark.parametrize("version", versions("DeleteGroupsRequest"))
def test_groups_are_deleted_when_empty(version: int) -> None:
    script = Script()
    (member_id,) = script.stable("a")
    script.commit(5, member_id=member_id, generation=1)
    names = ["g", "missing", "g"]

    def outcome() -> list[int]:
        results = script.ask(m.DeleteGroupsRequest(groups_names=names), version).results
        return [result.error_code for result in results]

    assert outcome() == [E.NON_EMPTY_GROUP, E.GROUP_ID_NOT_FOUND]  # each group once
    script.leave(member_id)
    assert outcome() == [0, E.GROUP_ID_NOT_FOUND]
    assert script.committed() == -1
    assert script.reloaded().machine.groups == {}


@pytest.mark.parametrize("version", versions("FindCoordinatorRequest"))
@pytest.mark.parametrize("load", [True, False])
def test_the_coordinator_is_found(version: int, load: bool) -> None:
    script = Script(load=load)
    answer = script.ask(
        m.FindCoordinatorRequest(key="g", coordinator_keys=["g", "h"])
        if version >= 4
        else m.FindCoordinatorRequest(key="g"),
        version,
    )
    found = answer.coordinators if version >= 4 else [answer]
    assert {(item.node_id, item.host, item.port, item.error_code) for item in found} == {(1, "localhost", 9092, 0)}
    assert len(found) == (2 if version >= 4 else 1)


@pytest.mark.parametrize(
    ("version", "key_type", "code"),
    [
        (1, 1, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (6, 1, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (5, 2, E.INVALID_REQUEST),
        (6, 2, E.COORDINATOR_NOT_AVAILABLE),
        (6, 3, E.INVALID_REQUEST),
    ],
)
def test_other_coordinators_are_elsewhere(version: int, key_type: int, code: E) -> None:
    request = m.FindCoordinatorRequest(key_type=key_type)
    if version >= 4:
        request.coordinator_keys = ["t"]
    else:
        request.key = "t"
    assert codes(Script().ask(request, version)) - {0} == {code}


# ---- the log


def test_a_stable_group_comes_back_stable_with_fresh_sessions() -> None:
    script = Script()
    leader, follower = script.stable("a", "b", session_ms=10_000, names=("range", "sticky"))
    script.commit(5, member_id=leader, generation=1)
    script.wait(9_000)
    other = script.reloaded()
    assert other.state() == "Stable"
    group = other.machine.groups["g"]
    assert (group.generation_id, group.leader_id, group.protocol) == (1, leader, "range")
    assert [name for name, _ in group.members[leader].protocols] == ["range"]  # all that the log knows
    other.wait(9_999)
    assert [other.heartbeat(member_id) for member_id in (leader, follower)] == [0, 0]
    assert other.answers[other.sync(follower)].assignment == follower.encode()
    assert other.committed() == 5


def test_a_rebalance_that_the_log_does_not_know_never_was() -> None:
    script = Script()
    leader, follower = script.stable("a", "b")
    script.join(leader)
    script.join(follower)
    assert script.machine.groups["g"].generation_id == 2
    other = script.reloaded()
    assert (other.state(), other.machine.groups["g"].generation_id) == ("Stable", 1)


def test_static_members_are_known_again() -> None:
    script = Script()
    x, _ = static_group(script, "x", "y")
    other = script.reloaded()
    assert other.heartbeat("other", 1, "x") == E.FENCED_INSTANCE_ID
    assert other.heartbeat(x, 1, "x") == 0


# ---- the tables


def test_the_transition_table_is_all_there_is() -> None:
    for state, move in itertools.product(State, Move):
        group = Group("g", 0)
        group.state = state
        if (state, move) in TRANSITIONS:
            group.move(move, 5)
            assert (group.state, group.state_since) == (TRANSITIONS[state, move], 5)
        else:
            with pytest.raises(IllegalMoveError, match=rf"cannot {move} in state {state}"):
                group.move(move, 5)
            assert group.state is state


@pytest.mark.parametrize("request_type", NEWEST, ids=lambda cls: cls.__name__)
def test_every_version_of_every_request_can_be_refused(request_type: type) -> None:
    codec = kw.registry.by_class(request_type)
    for version in codec.valid_versions:
        for message in (request_type(), GROUP_REQUESTS.get(request_type, request_type())):
            answer = refusal(message, version, E.NOT_COORDINATOR)
            data = kw.encode(answer, version)
            kw.decode(type(answer), data, version)


def test_a_rebalance_is_accounted_for() -> None:
    script = Script()
    leader, follower = script.stable("a", "b")
    script.accounts.clear()
    script.join(follower, metadata=subscription("payments"), reason="need that too")
    script.wait(700)
    script.heartbeat(leader)
    script.join(leader)
    script.wait(50)
    script.sync(leader, 2)
    assert [phase for phase, _ in script.accounts] == [Phase.STARTED, Phase.JOINED, Phase.ENDED]
    account = script.accounts[-1][1]
    assert (account.trigger, account.member_id, account.client_id) == (Trigger.SUBSCRIPTION_CHANGED, follower, "b")
    assert (account.client_host, account.reason, account.generation_id) == ("/127.0.0.1", "need that too", 2)
    assert account.joins == [(follower, 0), (leader, 700)]
    assert account.joined_at is not None
    assert account.ended_at is not None
    assert (account.joined_at - account.started_at, account.ended_at - account.started_at) == (700, 750)
    assert (account.outcome, account.protocol, account.leader_id) == ("stable", "range", leader)


# ---- rare interleavings


def test_static_members_without_a_rebalance_timeout_do_not_stop_the_clock() -> None:
    """Nobody is back, and they have no time to come back in: the next look is later, not at once and for ever."""
    script = Script()
    (x,) = static_group(script, "x", session_ms=20_000)
    script.join(x, instance="x", rebalance_ms=0, session_ms=20_000)
    script.sync(x, 2)  # in no time at all
    new, _ = script.admit(client_id="new", rebalance_ms=0)
    script.leave(new)
    script.wait(5_000)
    assert script.state() == "PreparingRebalance"
    token = script.join(x, instance="x", rebalance_ms=0)
    assert script.answers[token].generation_id == 3


def test_a_static_member_that_asks_again_is_not_new_any_more() -> None:
    """As in Kafka, who is replaced while it waits for its first join waits on, however short its session is."""
    script = Script()
    leader, _ = script.stable("a", "b", session_ms=1_000_000, rebalance_ms=60_000)
    first = script.join(instance="x", session_ms=6_000)
    again = script.join(instance="x", session_ms=6_000)
    assert script.answers[first].error_code == E.FENCED_INSTANCE_ID
    script.wait(30_000)
    assert again not in script.answers
    script.join(leader, session_ms=1_000_000)
    script.wait(30_000)
    assert script.answers[again].error_code == 0


def test_a_static_member_that_restarts_does_not_turn_a_tie() -> None:
    script = Script()
    script.join(instance="x", names=("range", "sticky"))
    script.join(instance="y", names=("sticky", "range"))
    script.wait(3_000)
    leader = script.machine.groups["g"].leader_id or ""
    script.sync(leader, 1)
    answer = script.answers[script.join(instance="x", names=("range", "sticky"))]
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
    assert script.state() == "Stable"


def test_an_id_of_a_group_that_is_deleted_means_nothing_to_the_next_of_that_name() -> None:
    script = Script()
    old = script.answers[script.join(session_ms=6_000)].member_id
    assert [item.error_code for item in script.ask(m.DeleteGroupsRequest(groups_names=["g"])).results] == [0]
    (leader,) = script.stable("a")
    script.wait(6_000)  # the old id runs out
    assert script.answers[script.join(old)].error_code == E.UNKNOWN_MEMBER_ID
    assert script.heartbeat(leader) == 0


def test_the_last_leave_is_answered_when_the_log_knows_that_the_group_is_empty() -> None:
    script = Script()
    leader, follower = script.stable("a", "b")
    written = len(script.log)
    leavers = [m.LeaveGroupRequestMemberIdentity(member_id=member_id) for member_id in (leader, follower)]
    token = script.send(m.LeaveGroupRequest(group_id="g", members=leavers))
    assert script.after[token] == len(script.log) == written + 1


def test_what_is_deleted_is_not_told_before_the_log_knows_it() -> None:
    script = Script()
    script.commit(5)
    deleted = script.send(m.DeleteGroupsRequest(groups_names=["g"]))
    number = script.after[deleted]
    assert number == len(script.log)
    topics = [m.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
    reads = [
        script.send(m.OffsetFetchRequest(group_id="g", topics=topics), 7),
        script.send(m.OffsetFetchRequest(groups=[m.OffsetFetchRequestGroup(group_id="g")])),
        script.send(m.DescribeGroupsRequest(groups=["g"])),
        script.send(m.ListGroupsRequest()),
        script.send(m.DeleteGroupsRequest(groups_names=["g"])),
        script.send(m.OffsetDeleteRequest(group_id="g")),
    ]
    assert [script.after[token] for token in reads] == [number] * len(reads)


def test_an_expired_group_is_not_missed_before_the_log_knows_it() -> None:
    script = Script()
    script.commit(5)
    script.wait(8 * DAY)
    token = script.send(m.DescribeGroupsRequest(groups=["g"]))
    assert script.after[token] == len(script.log) == 2


def test_an_offset_that_is_deleted_twice_is_gone_when_either_answer_says_so() -> None:
    script = Script()
    script.commit(5)
    partitions = [m.OffsetDeleteRequestPartition(partition_index=0)]
    request = m.OffsetDeleteRequest(
        group_id="g", topics=[m.OffsetDeleteRequestTopic(name="orders", partitions=partitions)]
    )
    tokens = [script.send(request), script.send(request)]
    assert [script.after[token] for token in tokens] == [2, 2]


def test_who_asks_many_times_for_the_same_is_told_once() -> None:
    """Or an answer would be as long as the group, times half the bytes of the request."""
    script = Script()
    (member_id,) = script.stable("a")
    script.commit(5, member_id=member_id, generation=1)
    described = script.ask(m.DescribeGroupsRequest(groups=["g", "missing", "g", "missing"])).groups
    assert [(group.group_id, len(group.members), group.error_code) for group in described] == [
        ("g", 1, 0),
        ("missing", 0, E.GROUP_ID_NOT_FOUND),
        ("g", 0, E.INVALID_REQUEST),
        ("missing", 0, E.GROUP_ID_NOT_FOUND),
    ]
    some = [m.OffsetFetchRequestTopics(name="orders", partition_indexes=[0])]
    asked = [m.OffsetFetchRequestGroup(group_id="g", topics=topics) for topics in (None, some, None, some)]
    fetched = script.ask(m.OffsetFetchRequest(groups=asked)).groups
    assert [(len(group.topics), group.error_code) for group in fetched] == [
        (1, 0),
        (1, 0),
        (0, E.INVALID_REQUEST),
        (1, 0),
    ]


def test_generations_that_are_used_up_begin_anew() -> None:
    """A client can get there within days; what comes after must fit into the answer and into the log."""
    script = Script()
    (leader,) = script.stable("a")
    script.machine.groups["g"].generation_id = (1 << 31) - 1
    assert script.answers[script.join(leader)].generation_id == 0
    script.sync(leader, 0)
    assert (script.heartbeat(leader, 0), script.commit(1, member_id=leader, generation=0)) == (0, 0)


# ---- timers


def test_timers_that_are_late_run_in_the_order_of_their_deadlines() -> None:
    timers = Timers()
    ran: list[str] = []
    moved = timers.start(5, partial(ran.append, "moved to 20"))
    timers.move(moved, 20)
    timers.start(10, partial(ran.append, "at 10"))
    timers.run_due(30)
    assert ran == ["at 10", "moved to 20"]
    assert timers.next is None


def test_timers_that_will_not_fire_are_not_kept() -> None:
    timers = Timers()
    kept = timers.start(1_000, lambda: None)
    for _ in range(10_000):
        timers.start(1 << 40, lambda: None).cancel()
        kept = timers.move(timers.move(kept, 2_000), 1_000)
    assert len(timers) < 1_000
    assert timers.next == 1_000
