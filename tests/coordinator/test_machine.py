"""The group machine against the facts of the protocol: who is answered what, when, in which state and version."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Load, Phase, Rebalance, Resign, TopicsDeleted, Trigger
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.group_states import GROUP_REQUESTS, PARKED, STATES, codes, group_in, static_group, versions
from tests.support.scripted import Script, subscription

# ---- error codes by state, while loading and after resigning included: request by state


ANSWERED = {  # JoinGroup, SyncGroup, Heartbeat and LeaveGroup of a member, and the state after that
    "missing": (E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, "Dead"),
    "Empty": (E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID, "Empty"),
    "PreparingRebalance": (
        PARKED,
        E.REBALANCE_IN_PROGRESS,
        E.REBALANCE_IN_PROGRESS,
        E.NONE,
        "PreparingRebalance",
    ),
    "CompletingRebalance": (E.NONE, PARKED, E.NONE, E.NONE, "PreparingRebalance"),
    "Stable": (E.NONE, E.NONE, E.NONE, E.NONE, "PreparingRebalance"),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("version", versions("JoinGroupRequest"))
def test_a_known_member_joins(state: str, version: int) -> None:
    code = ANSWERED[state][0]
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


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("version", versions("SyncGroupRequest"))
def test_a_member_syncs(state: str, version: int) -> None:
    code = ANSWERED[state][1]
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


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("version", versions("HeartbeatRequest"))
def test_a_member_beats(state: str, version: int) -> None:
    script, member_id, generation = group_in(state)
    request = m.HeartbeatRequest(group_id="g", generation_id=generation, member_id=member_id)
    assert script.ask(request, version).error_code == ANSWERED[state][2]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("version", versions("LeaveGroupRequest"))
def test_a_member_leaves(state: str, version: int) -> None:
    *_, code, after = ANSWERED[state]
    script, member_id, _ = group_in(state)
    answer = script.leave(member_id, version=version)
    if version < 3:
        assert (answer.error_code, answer.members) == (code, [])
    else:
        assert (answer.error_code, [item.error_code for item in answer.members]) == (E.NONE, [code])
    assert script.state() == after


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


@pytest.mark.parametrize("state", STATES)
def test_a_rebalance_is_requested(state: str) -> None:
    script, member_id, generation = group_in(state)
    begun = len(script.accounts)
    script.do(Rebalance("g", "why not"))
    if state not in ("Stable", "CompletingRebalance"):
        assert len(script.accounts) == begun
        assert script.state() == {"missing": "Dead"}.get(state, state)
        return
    assert script.state() == "PreparingRebalance"
    phase, account = script.accounts[-1]
    assert (phase, account.trigger, account.reason) == (Phase.STARTED, Trigger.REQUESTED, "why not")
    assert (account.member_id, account.client_id) == ("", "")
    assert script.heartbeat(member_id, generation) == E.REBALANCE_IN_PROGRESS


# ---- names and bounds


@pytest.mark.parametrize("has_offsets", [False, True])
@pytest.mark.parametrize(
    "request_type", [m.JoinGroupRequest, m.SyncGroupRequest, m.HeartbeatRequest, m.LeaveGroupRequest]
)
def test_an_empty_group_id_is_refused(request_type: type, has_offsets: bool) -> None:
    """Also when a client that names no group has committed offsets."""
    message = request_type()
    if isinstance(message, m.JoinGroupRequest):
        message.session_timeout_ms = 10_000
    if isinstance(message, m.SyncGroupRequest):
        message.protocol_type, message.protocol_name = "consumer", "range"
    script = Script()
    if has_offsets:
        topic = m.OffsetCommitRequestTopic(
            name="orders", partitions=[m.OffsetCommitRequestPartition(committed_offset=1)]
        )
        script.ask(m.OffsetCommitRequest(topics=[topic]), 9)
        assert "" in script.machine.groups
    assert script.ask(message).error_code == E.INVALID_GROUP_ID


@pytest.mark.parametrize(("session_ms", "code"), [(5_999, 26), (6_000, 79), (1_800_000, 79), (1_800_001, 26), (-1, 26)])
def test_session_timeouts_have_bounds(script: Script, session_ms: int, code: int) -> None:
    assert script.answers[script.join(session_ms=session_ms)].error_code == code


@pytest.mark.parametrize("version", versions("JoinGroupRequest"))
def test_a_new_member_is_given_its_id(script: Script, version: int) -> None:
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


def test_the_group_is_in_the_log_before_an_id_is_given_out(script: Script) -> None:
    token = script.join()
    assert script.after[token] == 1
    (((key, value),),) = script.log
    assert (key.group, value.generation, value.members) == ("g", 0, [])


def test_an_unused_member_id_expires(script: Script) -> None:
    member_id = script.answers[script.join(session_ms=7_000)].member_id
    script.wait(7_000)
    assert script.answers[script.join(member_id)].error_code == E.UNKNOWN_MEMBER_ID


def test_a_pending_id_holds_the_join_up_until_it_expires(script: Script) -> None:
    (leader,) = script.stable("a")
    script.join(session_ms=8_000)  # asks for an id and is not heard of again
    token = script.join(leader)
    assert token not in script.answers
    script.wait(8_000)
    assert script.answers[token].generation_id == 2


def test_a_pending_id_may_leave(script: Script) -> None:
    (leader,) = script.stable("a")
    pending = script.answers[script.join()].member_id
    token = script.join(leader)
    assert [item.error_code for item in script.leave(pending).members] == [0]
    assert script.answers[token].generation_id == 2


def test_a_pending_id_is_not_for_static_members(script: Script) -> None:
    pending = script.answers[script.join()].member_id
    assert script.answers[script.join(pending, instance="i")].error_code == E.UNKNOWN_SERVER_ERROR


# ---- protocols


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
def test_sync_with_another_protocol_is_refused(script: Script, more: dict[str, str]) -> None:
    (leader,) = script.completing("a")
    assert script.answers[script.sync(leader, 1, **more)].error_code == E.INCONSISTENT_GROUP_PROTOCOL
    ok = script.sync(leader, 1, protocol_type="consumer", protocol_name="range")
    assert (script.answers[ok].protocol_type, script.answers[ok].protocol_name) == ("consumer", "range")


# ---- generations: "Kafka 0.9 Consumer Rewrite Design", section "Offset commits during rebalance"


@pytest.mark.parametrize("generation", [0, 2, -5, 1 << 30])
def test_higher_and_lower_generations_are_refused(script: Script, generation: int) -> None:
    (member_id,) = script.stable("a")
    assert script.heartbeat(member_id, generation) == E.ILLEGAL_GENERATION
    assert script.answers[script.sync(member_id, generation)].error_code == E.ILLEGAL_GENERATION
    assert script.commit(9, member_id=member_id, generation=generation) == E.ILLEGAL_GENERATION
    assert script.committed() == -1


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


def test_a_member_that_does_not_rejoin_in_time_is_removed(script: Script) -> None:
    leader, follower = script.stable("a", "b", rebalance_ms=20_000, session_ms=1_000_000)
    token = script.join(leader, rebalance_ms=20_000, session_ms=1_000_000)
    script.wait(19_999)
    assert token not in script.answers
    script.wait(1)
    answer = script.answers[token]
    assert (answer.generation_id, [item.member_id for item in answer.members]) == (2, [leader])
    assert script.heartbeat(follower, 2) == E.UNKNOWN_MEMBER_ID


def test_the_next_member_succeeds_an_absent_leader(script: Script) -> None:
    ids = script.stable("a", "b", "c", rebalance_ms=20_000, session_ms=1_000_000)
    third = script.join(ids[2], metadata=b"\0\1", rebalance_ms=20_000, session_ms=1_000_000)
    second = script.join(ids[1], rebalance_ms=20_000, session_ms=1_000_000)
    script.wait(20_000)
    assert {script.answers[token].leader for token in (second, third)} == {ids[1]}
    assert script.answers[third].members == []
    assert [item.member_id for item in script.answers[second].members] == ids[1:]


@pytest.mark.parametrize("version", versions("JoinGroupRequest"))
def test_version_0_rebalances_within_the_session_timeout(script: Script, version: int) -> None:
    (_leader,) = script.stable("a", rebalance_ms=8_000)
    script.join(version=version, client_id="b", rebalance_ms=50_000, session_ms=9_000)
    group = script.machine.groups["g"]
    if version < 4:
        assert group.rebalance_timeout_ms == (9_000 if version == 0 else 50_000)
    else:
        assert group.rebalance_timeout_ms == 8_000  # it has an id and is no member yet


def test_a_member_that_is_silent_is_out_after_its_session(script: Script) -> None:
    leader, follower = script.stable("a", "b", session_ms=10_000)
    script.wait(6_000)
    assert script.heartbeat(leader) == 0
    script.wait(4_000)
    assert script.state() == "PreparingRebalance"
    assert script.heartbeat(follower) == E.UNKNOWN_MEMBER_ID
    assert script.heartbeat(leader) == E.REBALANCE_IN_PROGRESS
    assert script.accounts[-1][1].trigger is Trigger.SESSION_EXPIRED
    assert script.accounts[-1][1].member_id == follower


@pytest.mark.parametrize("sign", ["heartbeat", "repeated heartbeat", "commit", "rejoin", "sync"])
def test_every_request_of_a_member_restarts_its_session(script: Script, sign: str) -> None:
    (leader,) = script.stable("a", session_ms=10_000)
    script.wait(9_000)
    if sign == "heartbeat":
        script.heartbeat(leader)
    elif sign == "repeated heartbeat":
        beat = m.HeartbeatRequest(group_id=script.group_id, generation_id=1, member_id=leader)
        pulse = script.machine.pulse(beat)
        assert pulse is not None
        assert pulse.goes_on(script.now)
    elif sign == "commit":
        script.commit(1, member_id=leader, generation=1)
    elif sign == "sync":
        script.sync(leader)
    else:
        script.join(leader)
    script.wait(9_000)
    assert script.heartbeat(leader, 2 if sign == "rejoin" else 1) == 0


@pytest.mark.parametrize(
    ("change", "code"), [("join", 27), ("leave", 25), ("replace", 82), ("resign", 16), ("rejoin", 0), ("silence", 25)]
)
def test_a_pulse_ends_with_the_answer_it_stands_for(script: Script, change: str, code: int) -> None:
    token = script.join(instance="i")
    script.wait(3_000)
    member_id = script.answers[token].member_id
    script.sync(member_id, assign={member_id: b"x"})
    beat = m.HeartbeatRequest(group_id=script.group_id, generation_id=1, member_id=member_id, group_instance_id="i")
    pulse = script.machine.pulse(beat)
    assert pulse is not None
    assert pulse.goes_on(script.now)
    if change == "join":
        script.admit(client_id="b")
    elif change == "leave":
        script.leave(member_id)
    elif change == "replace":
        script.join(instance="i")
    elif change == "resign":
        script.resign()
    elif change == "silence":
        script.wait(10_000)
    else:
        script.sync(member_id)
    assert pulse.goes_on(script.now) == (code == 0)
    assert script.ask(beat).error_code == code


def test_a_member_that_waits_for_its_join_is_alive(script: Script) -> None:
    """Heartbeats are paused between JoinGroup and its response ("Kafka 0.9 Consumer Rewrite Design")."""
    leader, follower = script.stable("a", "b", session_ms=6_000, rebalance_ms=60_000)
    token = script.join(leader, session_ms=6_000)
    for _ in range(8):
        script.wait(5_000)
        assert script.heartbeat(follower) == E.REBALANCE_IN_PROGRESS
    script.join(follower, session_ms=6_000)
    assert script.answers[token].generation_id == 2
    script.wait(5_999)  # its session begins anew with the answer
    assert script.heartbeat(leader, 2) == 0


def test_a_member_that_waits_for_its_sync_is_alive(script: Script) -> None:
    leader, follower = script.completing("a", "b", session_ms=6_000, rebalance_ms=60_000)
    token = script.sync(follower)
    for _ in range(10):
        script.wait(4_000)
        assert script.heartbeat(leader) == 0
    script.sync(leader, 1, {follower: b"mine"})
    assert script.answers[token].assignment == b"mine"
    script.wait(5_999)  # its session begins anew with the answer
    assert script.heartbeat(follower) == 0


def test_a_member_that_rejoins_may_ask_for_other_timeouts(script: Script) -> None:
    leader, follower = script.stable("a", "b", session_ms=6_000, rebalance_ms=10_000)
    script.join(leader, session_ms=20_000, rebalance_ms=30_000)
    script.join(follower, session_ms=6_000, rebalance_ms=10_000)
    assert script.machine.groups["g"].rebalance_timeout_ms == 30_000
    script.wait(5_000)
    assert script.heartbeat(follower, 2) == 0
    script.wait(14_999)
    assert script.heartbeat(leader, 2) == E.REBALANCE_IN_PROGRESS, "the follower has been silent"
    script.wait(20_000)
    assert script.heartbeat(leader, 3) == E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(("before_ms", "after_ms"), [(6_000, 20_000), (20_000, 6_000)])
def test_a_new_session_timeout_counts_from_a_heartbeat_on(script: Script, before_ms: int, after_ms: int) -> None:
    static_group(script, "i", session_ms=before_ms)
    back = script.answers[script.join(instance="i", session_ms=after_ms)].member_id
    script.wait(before_ms - 1)
    assert script.heartbeat(back) == 0
    script.wait(after_ms - 1)
    assert back in script.machine.groups["g"].members
    script.wait(1)
    assert script.machine.groups["g"].members == {}


def test_a_static_member_comes_back_to_the_session_there_was(script: Script) -> None:
    static_group(script, "i", session_ms=6_000)
    script.join(instance="i", session_ms=20_000)
    script.wait(6_000)
    assert script.machine.groups["g"].members == {}


def test_a_silent_member_is_removed_before_the_join_completes(script: Script) -> None:
    leader, follower = script.stable("a", "b", session_ms=6_000)
    token = script.join(leader, session_ms=6_000)
    script.wait(6_000)
    assert [item.member_id for item in script.answers[token].members] == [leader]
    assert script.answers[script.join(follower)].error_code == E.UNKNOWN_MEMBER_ID


def test_a_soft_failure_after_the_join_costs_it_a_session_later(script: Script) -> None:
    leader, follower = script.completing("a", "b", session_ms=6_000)
    script.sync(leader, 1)
    script.wait(5_000)
    script.heartbeat(leader)
    script.wait(1_000)
    assert script.state() == "PreparingRebalance"
    assert script.heartbeat(follower) == E.UNKNOWN_MEMBER_ID


def test_a_new_member_has_the_timeout_of_new_members() -> None:
    script = Script(config=GroupConfig(initial_rebalance_delay_ms=0, new_member_join_timeout_ms=30_000))
    (_leader,) = script.stable("a", rebalance_ms=500_000, session_ms=1_000_000)
    _, token = script.admit(client_id="b", session_ms=6_000)
    script.wait(29_999)
    assert token not in script.answers
    script.wait(1)
    assert script.answers[token].error_code == E.UNKNOWN_MEMBER_ID


def test_a_leader_that_fails_before_its_sync(script: Script) -> None:
    leader, follower = script.completing("a", "b", session_ms=10_000)
    token = script.sync(follower)
    script.wait(10_000)
    assert script.answers[token].error_code == E.REBALANCE_IN_PROGRESS
    token = script.join(follower)
    assert (script.answers[token].generation_id, script.answers[token].leader) == (2, follower)
    assert script.heartbeat(leader, 1) == E.UNKNOWN_MEMBER_ID


def test_a_leader_that_gives_up_before_its_sync(script: Script) -> None:
    leader, follower = script.completing("a", "b")
    token = script.sync(follower)
    script.leave(leader)
    assert script.answers[token].error_code == E.REBALANCE_IN_PROGRESS


def test_a_member_that_never_syncs_is_removed(script: Script) -> None:
    ids = script.completing("a", "b", rebalance_ms=15_000, session_ms=1_000_000)
    script.sync(ids[0])
    assert script.state() == "Stable"
    script.wait(15_000)
    assert script.state() == "PreparingRebalance"
    assert script.accounts[-1][1].trigger is Trigger.SYNC_EXPIRED
    assert [(item.member_id, item.why) for item in script.accounts[-1][1].removed] == [(ids[1], "sync timeout")]


def test_members_that_the_leader_forgets_get_nothing(script: Script) -> None:
    leader, follower = script.completing("a", "b")
    token = script.sync(follower)
    script.sync(leader, 1, {leader: b"all", "stranger": b"?"})
    assert (script.answers[token].error_code, script.answers[token].assignment) == (0, b"")


def test_assignments_are_answered_once_they_are_in_the_log(script: Script) -> None:
    leader, follower = script.completing("a", "b")
    tokens = [script.sync(follower), script.sync(leader, 1, {leader: b"x", follower: b"y"})]
    number = len(script.log)
    assert [script.after[token] for token in tokens] == [number, number]
    ((_key, value),) = script.log[-1]
    assert (value.generation, value.leader, value.protocol) == (1, leader, "range")
    assert {member.member_id: member.assignment for member in value.members} == {leader: b"x", follower: b"y"}


# ---- who rejoins


def test_a_leader_that_rejoins_starts_a_rebalance(script: Script) -> None:
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


def test_a_leader_without_its_answer_gets_all_members_again(script: Script) -> None:
    leader, follower = script.completing("a", "b")
    answer = script.answers[script.join(leader)]
    assert (answer.generation_id, [item.member_id for item in answer.members]) == (1, [leader, follower])


def test_a_join_that_is_sent_again_takes_the_place_of_the_first(script: Script) -> None:
    leader, follower = script.stable("a", "b")
    first = script.join(leader)
    second = script.join(leader)
    assert script.answers[first].error_code == E.REBALANCE_IN_PROGRESS
    script.join(follower)
    assert script.answers[second].generation_id == 2
    assert script.machine.groups["g"].waiting == 0


# ---- group.max.size


def test_a_full_group_rejects_new_members() -> None:
    script = Script(config=GroupConfig(initial_rebalance_delay_ms=1_000, max_size=2))
    _leader, follower = script.stable("a", "b")
    answer = script.answers[script.join(client_id="c", version=3)]
    assert (answer.error_code, answer.member_id) == (E.GROUP_MAX_SIZE_REACHED, "")
    assert script.answers[script.join(follower)].error_code == 0


def test_a_group_over_its_size_shrinks_when_it_rebalances(script: Script) -> None:
    leader, follower, third = script.stable("a", "b", "c")
    script.config = GroupConfig(max_size=2)
    smaller = script.reloaded()
    assert smaller.state() == "PreparingRebalance"
    tokens = [smaller.join(member_id) for member_id in (leader, follower, third)]
    assert smaller.answers[tokens[2]].error_code == E.GROUP_MAX_SIZE_REACHED
    assert [smaller.answers[token].generation_id for token in tokens[:2]] == [2, 2]


# ---- leaving


def test_leaving_together_is_one_rebalance(script: Script) -> None:
    ids = script.stable("a", "b", "c", "d")
    answer = script.leave(ids[1], "stranger", ids[2])
    assert [item.error_code for item in answer.members] == [0, E.UNKNOWN_MEMBER_ID, 0]
    started = [rebalance for phase, rebalance in script.accounts if phase is Phase.STARTED]
    assert len(started) == 2
    assert [item.member_id for item in started[-1].removed] == ids[1:3]


def test_a_parked_join_is_answered_when_its_member_leaves(script: Script) -> None:
    leader, _follower = script.stable("a", "b")
    token = script.join(leader)
    script.leave(leader)
    assert (script.answers[token].error_code, script.answers[token].member_id) == (E.UNKNOWN_MEMBER_ID, "")


def test_a_parked_sync_is_answered_when_its_member_leaves(script: Script) -> None:
    _leader, follower = script.completing("a", "b")
    token = script.sync(follower)
    script.leave(follower)
    assert script.answers[token].error_code == E.UNKNOWN_MEMBER_ID


def test_the_last_one_leaves_an_empty_group(script: Script) -> None:
    (leader,) = script.stable("a")
    script.leave(leader)
    assert script.state() == "Empty"
    ((_, value),) = script.log[-1]
    assert (value.generation, value.members, value.protocol, value.protocol_type) == (2, [], None, "consumer")
    assert script.accounts[-1][1].outcome == "empty"


# ---- static members (KIP-345, KIP-814)


def test_static_members_join_without_a_second_request(script: Script) -> None:
    token = script.join(instance="i", client_id="c")
    assert token not in script.answers  # parked, not MEMBER_ID_REQUIRED
    script.wait(1_000)
    assert script.answers[token].member_id == "i-u1"


@pytest.mark.parametrize("version", [5, 6, 7, 8, 9])
@pytest.mark.parametrize("leads", [True, False])
def test_a_static_member_restarts_without_a_rebalance(script: Script, version: int, leads: bool) -> None:
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


def test_other_protocols_of_a_static_member_rebalance(script: Script) -> None:
    static_group(script, "x", names=("range", "sticky"))
    token = script.join(instance="x", names=("sticky", "range"))
    assert script.answers[token].generation_id == 2  # it is alone, so the rebalance is over at once
    assert script.answers[token].protocol_name == "sticky"
    assert script.accounts[-1][1].trigger is Trigger.STATIC_REPLACED


def test_the_second_owner_of_an_instance_id_fences_the_first(script: Script) -> None:
    static_group(script, "x", "y")
    leader = script.machine.groups["g"].leader_id or ""
    parked = script.join(leader, instance="x")
    usurper = script.join(instance="x")
    assert (script.answers[parked].error_code, script.answers[parked].member_id) == (E.FENCED_INSTANCE_ID, leader)
    assert usurper not in script.answers
    assert script.machine.groups["g"].waiting == 1


def test_a_static_member_replaced_between_join_and_sync(script: Script) -> None:
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
def test_a_static_identity_is_checked_everywhere(script: Script, instance: str) -> None:
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


def test_absent_static_members_stay_until_their_session_ends(script: Script) -> None:
    x, y = static_group(script, "x", "y", session_ms=100_000, rebalance_ms=20_000)
    token = script.join(x, instance="x", session_ms=100_000, rebalance_ms=20_000)
    script.wait(20_000)
    assert [item.member_id for item in script.answers[token].members] == [x, y]
    script.sync(x, 2, {x: b"", y: b""})
    assert script.state() == "Stable"
    script.wait(20_000)  # y has not synced either
    assert script.state() == "PreparingRebalance"


def test_a_join_of_static_members_alone_waits_on_if_none_comes(script: Script) -> None:
    _x, y = static_group(script, "x", "y", session_ms=1_000_000, rebalance_ms=20_000)
    pending = script.admit(client_id="new", session_ms=1_000_000, rebalance_ms=20_000)
    script.leave(pending[0])
    script.wait(20_000)
    assert script.state() == "PreparingRebalance"
    token = script.join(y, instance="y", session_ms=1_000_000, rebalance_ms=20_000)
    script.wait(20_000)
    assert script.answers[token].leader == y


def test_an_operator_removes_a_static_member(script: Script) -> None:
    static_group(script, "x", "y")
    leavers = [m.LeaveGroupRequestMemberIdentity(member_id="", group_instance_id=name) for name in ("x", "nobody")]
    answer = script.ask(m.LeaveGroupRequest(group_id="g", members=leavers))
    assert [item.error_code for item in answer.members] == [0, E.UNKNOWN_MEMBER_ID]
    assert list(script.machine.groups["g"].instances) == ["y"]


# ---- the tables


def test_a_rebalance_is_accounted_for(script: Script) -> None:
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


def test_who_is_lost_during_a_join_is_in_its_account(script: Script) -> None:
    leader, follower, third = script.stable("a", "b", "c")
    script.leave(third)  # which begins a rebalance: it was lost before that
    script.join(leader)
    script.leave(follower)
    script.sync(leader, 2)
    account = script.accounts[-1][1]
    assert [(each.member_id, each.why) for each in account.removed] == [(third, "left"), (follower, "left")]


# ---- rare interleavings


def test_static_members_without_rebalance_timeout_do_not_block(script: Script) -> None:
    """Nobody is back, and they have no time to come back in: the next look is later, not at once and for ever."""
    (x,) = static_group(script, "x", session_ms=20_000)
    script.join(x, instance="x", rebalance_ms=0, session_ms=20_000)
    script.sync(x, 2)  # in no time at all
    new, _ = script.admit(client_id="new", rebalance_ms=0)
    script.leave(new)
    script.wait(5_000)
    assert script.state() == "PreparingRebalance"
    token = script.join(x, instance="x", rebalance_ms=0)
    assert script.answers[token].generation_id == 3


def test_a_static_member_that_asks_again_is_not_new_any_more(script: Script) -> None:
    """As in Kafka, who is replaced while it waits for its first join waits on, however short its session is."""
    leader, _ = script.stable("a", "b", session_ms=1_000_000, rebalance_ms=60_000)
    first = script.join(instance="x", session_ms=6_000)
    again = script.join(instance="x", session_ms=6_000)
    assert script.answers[first].error_code == E.FENCED_INSTANCE_ID
    script.wait(30_000)
    assert again not in script.answers
    script.join(leader, session_ms=1_000_000)
    script.wait(30_000)
    assert script.answers[again].error_code == 0


def test_a_static_member_that_restarts_does_not_turn_a_tie(script: Script) -> None:
    script.join(instance="x", names=("range", "sticky"))
    script.join(instance="y", names=("sticky", "range"))
    script.wait(3_000)
    leader = script.machine.groups["g"].leader_id or ""
    script.sync(leader, 1)
    answer = script.answers[script.join(instance="x", names=("range", "sticky"))]
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 1, "range")
    assert script.state() == "Stable"


def test_a_recreated_group_does_not_know_the_old_ids(script: Script) -> None:
    old = script.answers[script.join(session_ms=6_000)].member_id
    assert [item.error_code for item in script.ask(m.DeleteGroupsRequest(groups_names=["g"])).results] == [0]
    (leader,) = script.stable("a")
    script.wait(6_000)  # the old id runs out
    assert script.answers[script.join(old)].error_code == E.UNKNOWN_MEMBER_ID
    assert script.heartbeat(leader) == 0


def test_the_last_leave_is_answered_after_the_log_has_it(script: Script) -> None:
    leader, follower = script.stable("a", "b")
    written = len(script.log)
    leavers = [m.LeaveGroupRequestMemberIdentity(member_id=member_id) for member_id in (leader, follower)]
    token = script.send(m.LeaveGroupRequest(group_id="g", members=leavers))
    assert script.after[token] == len(script.log) == written + 1


def test_one_partition_resigns_and_is_loaded_again() -> None:
    script = Script(config=GroupConfig(initial_rebalance_delay_ms=0))
    generations = {}
    for group in ("g", "other"):
        script.group_id = group
        member, joined = script.admit()
        generations[group] = (member, script.answers[joined].generation_id)
        script.sync(member, 1, {member: b"all"})
    script.group_id = "g"
    _, token = script.admit()  # a rebalance begins, and this one's JoinGroup is parked
    partition = frozenset({script.machine.brokers.groups.partition_of("g")})
    script.do(Resign(partition))
    assert script.answers[token].error_code == E.NOT_COORDINATOR
    assert list(script.machine.groups) == ["other"]
    script.wait(9_000)
    script.group_id = "other"
    assert script.heartbeat(generations["other"][0]) == 0
    script.wait(5_000)  # longer than the session of the member of g: no timer of it is left
    script.do(Load([record for batch in script.log for record in batch if record.key.group == "g"], partition))
    script.group_id = "g"
    member, generation = generations["g"]
    assert script.heartbeat(member, generation) == 0
    script.wait(9_000)
    assert list(script.machine.groups["g"].members) == [member]
    script.wait(2_000)
    assert not script.machine.groups["g"].members


def test_a_topic_deleted_while_groups_are_read_takes_its_offsets(script: Script) -> None:
    for group in ("g", "other"):
        script.group_id = group
        for topic in ("orders", "payments"):
            assert script.commit(topic=topic) == E.NONE
    written = [record for records in script.log for record in records]
    partition = frozenset({script.machine.brokers.groups.partition_of("g")})
    script.do(Resign(partition))
    script.machine.brokers.set_loading(partition)
    try:
        script.do(TopicsDeleted(frozenset({"orders"})))
        assert list(script.machine.groups["other"].offsets) == ["payments"]
        script.group_id = "other"
        assert script.commit(6) == E.NONE  # to the topic made anew
        script.do(Load([record for record in written if record.key.group == "g"], partition))
    finally:
        script.machine.brokers.set_loading(())
    assert {group: sorted(each.offsets) for group, each in script.machine.groups.items()} == {
        "g": ["payments"],
        "other": ["orders", "payments"],
    }
    assert [(record.key.group, record.key.topic, record.value) for record in script.log[-1]] == [("g", "orders", None)]


def test_a_topic_deleted_while_the_whole_log_is_read() -> None:
    known = Script()
    for topic in ("orders", "payments"):
        known.commit(topic=topic)
    script = Script(load=False)
    script.do(TopicsDeleted(frozenset({"orders", "never"})))
    script.do(Load([record for records in known.log for record in records]))
    assert list(script.machine.groups["g"].offsets) == ["payments"]
    script.do(Load([record for records in known.log for record in records]))
    assert list(script.machine.groups["g"].offsets) == ["orders", "payments"]  # a deletion is applied once
