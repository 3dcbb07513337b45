"""Share groups: joining, epochs, who gets which partitions, what is refused, and what a restart finds."""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire import messages as m
from kcoord_wire.coordinator.core.config import GroupConfig
from kcoord_wire.coordinator.core.events import Phase, Rebalance, Resign, TopicsDeleted, Trigger
from kcoord_wire.coordinator.description import describe_group
from kcoord_wire.coordinator.share_groups.share_group import ShareGroupState
from kcoord_wire.coordinator.share_groups.sharing import RETRY_MS
from kcoord_wire.protocol.error_codes import ErrorCode as E
from tests.support.consumer_script import ORDERS, partitions
from tests.support.share_script import ShareScript


@pytest.fixture
def script() -> ShareScript:
    """A machine that has loaded an empty log."""
    return ShareScript()


def test_partitions_are_assigned_once_their_state_is_there(script: ShareScript) -> None:
    first = script.beat("a", 0, "orders")
    assert (first.error_code, first.member_epoch, first.assignment.topic_partitions) == (E.NONE, 2, [])
    (wanted,) = script.wanted
    assert (wanted.group_id, wanted.epoch, wanted.partitions) == ("g", 2, {ORDERS: dict.fromkeys(range(12), -1)})
    assert wanted.after == script.machine.appended
    again = script.beat("a", 2)
    assert (again.member_epoch, again.assignment) == (2, None), "the state is not there yet"
    script.initialize()
    after = script.beat("a", 2)
    assert (after.member_epoch, partitions(after.assignment.topic_partitions)) == (3, {"orders": list(range(12))})
    assert script.beat("a", 3).assignment is None
    assert script.beat("a", 3, "orders").assignment is not None, "a heartbeat that names its topics gets its part"
    assert not script.wanted


def test_members_share_out_and_then_share_partitions(script: ShareScript) -> None:
    script.topics.set("orders", 4)
    script.enter("a")
    assert script.counts() == [4]
    script.enter("b")
    assert script.counts() == [2, 2]
    assert sorted(script.has("a")["orders"] + script.has("b")["orders"]) == [0, 1, 2, 3]
    script.enter(*"cdefgh")
    assert script.counts() == [1] * 8
    held = [number for member in "abcdefgh" for number in script.has(member)["orders"]]
    assert sorted(held) == [0, 0, 1, 1, 2, 2, 3, 3], "each partition has two members"
    script.beat("h", -1)
    script.follow()
    assert script.counts().count(1) == 6, "seven members have eight parts: one has two"
    assert {number for member in "abcdefg" for number in script.has(member)["orders"]} == {0, 1, 2, 3}


def test_members_of_different_topics_share_each_topic_alone(script: ShareScript) -> None:
    script.enter("a")
    script.enter("b", topics=("orders", "payments"))
    script.enter("c", topics=("payments",))
    assert [len(script.has(member).get("orders", ())) for member in "abc"] == [6, 6, 0]
    assert [len(script.has(member).get("payments", ())) for member in "abc"] == [0, 4, 4]


def test_a_subscription_takes_effect_with_its_heartbeat(script: ShareScript) -> None:
    script.enter("a")
    answer = script.beat("a", 3, "payments")
    assert (answer.member_epoch, answer.assignment.topic_partitions) == (4, [])
    script.initialize()
    script.follow()
    assert script.has("a") == {"payments": list(range(8))}


def test_topics_that_come_grow_and_go(script: ShareScript) -> None:
    script.topics.known = {}
    script.enter("a")
    assert (script.has("a"), script.group.epoch) == ({}, 2)
    script.topics.set("orders", 2)
    script.follow()
    assert script.has("a") == {"orders": [0, 1]}
    script.topics.set("orders", 3)
    script.beat("a", script.group.epoch)
    assert script.wanted[-1].partitions == {ORDERS: {2: 0}}, "no record of a later partition is left out"
    script.initialize()
    script.follow()
    assert script.has("a") == {"orders": [0, 1, 2]}
    del script.topics.known["orders"]
    script.topics.changes += 1
    script.do(TopicsDeleted(frozenset({"orders"})))
    assert not script.group.initialized
    script.follow()
    assert script.has("a") == {}


def test_state_that_does_not_come_is_asked_for_again(script: ShareScript) -> None:
    script.beat("a", 0, "orders")
    script.wanted.clear()
    script.wait(RETRY_MS - 1)
    script.beat("a", 2)
    assert not script.wanted
    script.wait(1)
    script.beat("a", 2)
    assert script.wanted
    script.initialize(E.COORDINATOR_NOT_AVAILABLE)
    assert not script.group.initializing
    script.beat("a", 2)
    assert script.wanted, "what has failed is asked for at once"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": ""}, E.INVALID_REQUEST),
        ({"member_id": "x" * 37}, E.INVALID_REQUEST),
        ({"group_id": " "}, E.INVALID_REQUEST),
        ({"rack_id": ""}, E.INVALID_REQUEST),
        ({"member_epoch": -2}, E.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, E.INVALID_REQUEST),
        ({"subscribed_topic_names": []}, E.INVALID_REQUEST),
        ({"group_id": "other", "member_epoch": 1}, E.GROUP_ID_NOT_FOUND),
        ({"group_id": "other", "member_epoch": -1}, E.GROUP_ID_NOT_FOUND),
        ({"member_id": "new", "member_epoch": 1}, E.UNKNOWN_MEMBER_ID),
        ({"member_id": "new", "member_epoch": -1}, E.UNKNOWN_MEMBER_ID),
        ({"member_epoch": 4}, E.FENCED_MEMBER_EPOCH),
        ({"member_epoch": 1}, E.FENCED_MEMBER_EPOCH),
        ({"member_epoch": 2}, E.NONE),
        ({"member_epoch": 3}, E.NONE),
    ],
)
def test_what_a_heartbeat_is_answered(script: ShareScript, fields: dict[str, Any], error: E) -> None:
    script.enter("a")
    records = len(script.records)
    asked = {"group_id": "g", "member_id": "a", "member_epoch": 0, "subscribed_topic_names": ["orders"], **fields}
    answer = script.ask(m.ShareGroupHeartbeatRequest(**asked), client_id="client-a")
    assert answer.error_code == error
    assert bool(answer.error_message) == bool(error)
    assert len(script.records) == records, "a refusal leaves no trace"


def test_a_group_has_a_bounded_number_of_members() -> None:
    script = ShareScript(GroupConfig(share_max_size=2, share_assignment_interval_ms=0))
    script.enter("a", "b")
    assert script.beat("c", 0, "orders").error_code == E.GROUP_MAX_SIZE_REACHED
    assert script.beat("a", 0, "orders").error_code == E.NONE


def test_a_silent_member_is_removed(script: ShareScript) -> None:
    script.enter("a", "b")
    script.wait(44_999)
    script.beat("a", script.group.epoch)
    script.wait(1)
    assert list(script.group.members) == ["a"]
    script.follow()
    assert script.counts() == [12]
    assert script.accounts[-1][1].trigger is Trigger.SESSION_EXPIRED


def test_a_group_may_have_its_own_timeouts(script: ShareScript) -> None:
    script.group_configs["g"] = {"share.session.timeout.ms": "1000", "share.heartbeat.interval.ms": "77"}
    assert script.beat("a", 0, "orders").heartbeat_interval_ms == 77
    script.wait(1_000)
    assert script.group.state is ShareGroupState.EMPTY


def test_assignments_are_apart(script: ShareScript) -> None:
    script.group_configs["g"] = {"share.assignment.interval.ms": "1000"}
    script.beat("a", 0, "orders")
    script.initialize()
    script.wait(999)
    assert script.beat("a", 2).assignment is None
    script.wait(1)
    assert script.beat("a", 2).assignment is not None


def test_a_restart_finds_the_group_as_it_was(script: ShareScript) -> None:
    script.enter("a", "b", "c")
    script.beat("c", -1)
    script.follow()
    after = script.restarted()
    before, now = script.group, after.group
    for name in ("members", "target", "epoch", "assignment_epoch", "assigned_at", "metadata_hash", "deleting"):
        assert getattr(now, name) == getattr(before, name), name
    assert {topic: known[:2] for topic, known in now.initialized.items()} == {
        topic: known[:2] for topic, known in before.initialized.items()
    }
    assert after.beat("a", before.epoch).error_code == E.NONE
    after.wait(45_000)
    assert after.group.state is ShareGroupState.EMPTY, "sessions end after a restart, too"


def test_a_deleted_group_is_gone_with_its_state(script: ShareScript) -> None:
    script.enter("a")
    delete = m.DeleteGroupsRequest(groups_names=["g"])
    assert script.ask(delete).results[0].error_code == E.NON_EMPTY_GROUP
    script.beat("a", -1)
    first, second = script.send(delete), script.send(delete)
    assert script.unwanted[-1].partitions == {ORDERS: frozenset(range(12))}
    assert first not in script.answers, "state that is left would be that of the next group of this name"
    script.delete()
    assert [script.answers[token].results[0].error_code for token in (first, second)] == [E.NONE, E.GROUP_ID_NOT_FOUND]
    assert not script.restarted().machine.groups
    assert script.ask(delete).results[0].error_code == E.GROUP_ID_NOT_FOUND


def test_a_group_stays_whose_state_is_not_deleted(script: ShareScript) -> None:
    script.enter("a")
    script.beat("a", -1)
    token = script.send(m.DeleteGroupsRequest(groups_names=["g", "h"]))
    script.delete(E.COORDINATOR_NOT_AVAILABLE)
    codes = {result.group_id: result.error_code for result in script.answers[token].results}
    assert codes == {"g": E.COORDINATOR_NOT_AVAILABLE, "h": E.GROUP_ID_NOT_FOUND}
    script.enter("a")
    assert script.counts() == [12], "its partitions are initialized again"
    script.beat("a", -1)
    token = script.send(m.DeleteGroupsRequest(groups_names=["g"]))
    script.do(Resign())
    assert script.answers[token].results[0].error_code == E.NOT_COORDINATOR


def test_other_requests_find_no_group_of_theirs(script: ShareScript) -> None:
    script.enter("a")
    topics = [m.OffsetCommitRequestTopic(name="orders", partitions=[m.OffsetCommitRequestPartition()])]
    deleted = [m.OffsetDeleteRequestTopic(name="orders", partitions=[m.OffsetDeleteRequestPartition()])]
    commit = m.OffsetCommitRequest(group_id="g", topics=topics)
    assert script.ask(commit).topics[0].partitions[0].error_code == E.GROUP_ID_NOT_FOUND
    assert script.ask(m.OffsetDeleteRequest(group_id="g", topics=deleted)).error_code == E.GROUP_ID_NOT_FOUND
    assert script.answers[script.join()].error_code == E.INCONSISTENT_GROUP_PROTOCOL
    assert script.answers[script.sync("a")].error_code == E.UNKNOWN_MEMBER_ID
    consumer = m.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id="c", rebalance_timeout_ms=1, subscribed_topic_names=["orders"], topic_partitions=[]
    )
    assert script.ask(consumer).error_code == E.GROUP_ID_NOT_FOUND
    assert list(script.group.members) == ["a"]


def test_a_group_of_another_kind_is_not_found(script: ShareScript) -> None:
    script.admit()
    assert script.beat("a", 0, "orders").error_code == E.GROUP_ID_NOT_FOUND
    described = script.ask(m.ShareGroupDescribeRequest(group_ids=["g", ""])).groups
    assert [group.error_code for group in described] == [E.GROUP_ID_NOT_FOUND, E.INVALID_GROUP_ID]


def test_what_operators_see(script: ShareScript) -> None:
    script.enter("a", "b")
    (listed,) = script.ask(m.ListGroupsRequest(types_filter=["Share"])).groups
    assert (listed.group_state, listed.group_type, listed.protocol_type) == ("Stable", "share", "share")
    (group,) = script.ask(m.ShareGroupDescribeRequest(group_ids=["g"])).groups
    assert (group.group_state, group.assignor_name, group.group_epoch) == ("Stable", "simple", script.group.epoch)
    assert [member.client_id for member in group.members] == ["client-a", "client-b"]
    assert partitions(group.members[0].assignment.topic_partitions) == script.has("a")
    described = describe_group(script.group, script.topics)
    assert (described.protocol_type, described.protocol, described.is_settled) == ("share", "simple", True)
    assert len(described.owners) == 12


def test_a_rebalance_has_an_account_until_all_have_their_part(script: ShareScript) -> None:
    script.enter("a")
    script.accounts.clear()
    script.do(Rebalance("g", "because"))
    assert not describe_group(script.group, script.topics).is_settled
    script.follow()
    assert [phase for phase, _ in script.accounts] == [Phase.STARTED, Phase.JOINED, Phase.ENDED]
    account = script.accounts[-1][1]
    assert (account.trigger, account.protocol, account.outcome) == (Trigger.REQUESTED, "simple", "stable")
