"""Every cause in its smallest case: what sets a rebalance off, in one word, with the frames that say so."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.model import Cause, Rebalance
from kcoord_wire.forensics.wire.members import library_of
from tests.forensics.test_wire_scripts import Script, at


def two(rebalance_ms: int | None = None) -> Script:
    """c1, which leads, and c2, stable in generation 1 with a partition each."""
    script = Script()
    script.rebalance_ms = rebalance_ms or script.rebalance_ms
    script.form("c1", "c2", owners={"c1": {"orders": [0]}, "c2": {"orders": [1]}})
    return script


def both_join(script: Script, first: str, ms: int = 5_000, generation: int = 2, **fields: object) -> None:
    """The rebalance that the join of `first` brings about."""
    other = "c2" if first == "c1" else "c1"
    members = ["c1", "c2"]
    script.join(first, ms, ms + 500, generation, members=members if first == "c1" else (), **fields)  # type: ignore[arg-type]
    script.beat(other, ms + 300, generation - 1, error=27)
    script.join(other, ms + 400, ms + 500, generation, members=members if other == "c1" else ())


def cause_of(script: Script) -> Cause:
    return Cause(script.last().cause)


# ---- who leaves


@pytest.mark.parametrize("reason", [None, "the consumer is being closed", "the consumer unsubscribed from all topics"])
def test_member_left(reason: str | None) -> None:
    script = two()
    script.leave("c2", 5_000, 5_001, reason)
    last = script.last()
    assert (last.cause, last.client_id, last.reason, last.confidence) == (Cause.MEMBER_LEFT, "c2", reason, 1.0)
    assert last.evidence[0].time_ns == at(5_000)
    assert (reason or "left") in last.detail


def test_an_unanswered_leave_is_nearly_as_good() -> None:
    script = two()
    script.leave("c2", 5_000, None)
    assert (script.last().cause, script.last().confidence) == (Cause.MEMBER_LEFT, 0.9)


def test_a_refused_leave_is_none() -> None:
    script = two()
    script.leave("c2", 5_000, 5_001, error=25)
    assert script.causes() == [Cause.NEW_MEMBER]


def test_an_operator_removes_a_member() -> None:
    script = two()
    script.leave("c9", 5_000, 5_001, "member was removed by the operator", left="c2")
    last = script.last()
    assert (last.cause, last.client_id) == (Cause.MEMBER_LEFT, "c2")
    assert "removed by c9" in last.detail


def test_poll_timeout_by_its_reason() -> None:
    script = two()
    script.leave("c2", 5_000, 5_001, "consumer poll timeout has expired.")
    last = script.last()
    assert (last.cause, last.confidence) == (Cause.POLL_TIMEOUT, 1.0)
    assert [each.why for each in last.removed] == ["poll timeout"]
    assert [life.why_left for life in script.history().members] == [None, "poll timeout"]


def test_poll_timeout_by_a_connection_that_goes_on() -> None:
    script = two(rebalance_ms=4_000)
    script.leave("c2", 5_000, 5_001)
    script.join("c1", 5_500, 5_500, 2, members=["c1"])
    script.sync("c1", 5_501, 5_502, 2, {}, {"c1": {}})
    script.join("c2", 60_000, 60_001, member_id="", error_code=79, given_member_id="c2-b")
    history = script.history()
    assert history.rebalances[1].cause == Cause.POLL_TIMEOUT
    assert history.rebalances[1].confidence <= 0.6
    assert len(history.rebalances[1].evidence) == 2


def test_poll_timeout_by_a_connection_that_stays_open() -> None:
    script = two(rebalance_ms=4_000)
    script.leave("c2", 5_000, 5_001)
    script.closed("c1", 60_000)
    assert (script.last().cause, script.last().confidence) == (Cause.POLL_TIMEOUT, 0.5)
    script.closed("c2", 5_002)
    assert script.last().cause == Cause.MEMBER_LEFT


def test_who_leaves_sooner_than_its_max_poll_interval_has_unsubscribed() -> None:
    script = two(rebalance_ms=6_000)
    script.leave("c2", 5_000, 5_001)
    script.closed("c1", 60_000)
    assert (script.last().cause, script.last().removed[0].why) == (Cause.MEMBER_LEFT, "left")


# ---- who comes


def test_new_member_that_was_there_before_says_so() -> None:
    script = two()
    script.leave("c2", 5_000, 5_001, "the consumer is being closed")
    script.join("c1", 5_500, 5_500, 2, members=["c1"])
    script.sync("c1", 5_501, 5_502, 2, {}, {"c1": {}})
    script.join("c2", 9_000, 9_500, 3, member_id="", given_member_id="c2-b", connection="10.0.0.2:9-b#9")
    last = script.last()
    assert (last.cause, last.member_id, last.confidence) == (Cause.NEW_MEMBER, "c2-b", 1.0)
    assert "it had been c2-id" in last.detail


def test_an_unanswered_join_is_the_trigger_if_the_group_rebalances_after_it() -> None:
    script = two()
    script.join("c3", 5_000, None, member_id="")
    script.rows[-1].api_version = 3
    script.closed("c3", 5_050)
    script.beat("c2", 5_300, 1, error=27)
    script.join("c2", 5_400, 9_000, 2)
    script.join("c1", 5_500, 9_000, 2, members=["c1", "c2"])
    last = script.last()
    assert (last.cause, last.client_id, last.started_ns) == (Cause.NEW_MEMBER, "c3", at(5_000))
    assert last.confidence <= 0.6


def test_static_member_with_other_assignors() -> None:
    script = Script()
    for client in ("c1", "c2"):
        script.join(
            client, 0, 10, 1, member_id="", instance_id=f"i-{client}", assignors=("range", "roundrobin"),
            members=["c1", "c2"] if client == "c1" else (),
        )  # fmt: skip
    script.sync("c1", 11, 12, 1, {}, {"c1": {}, "c2": {}})
    script.sync("c2", 11, 12, 1, {}, instance_id="i-c2")
    script.join(
        "c2", 3_000, 4_000, 2, member_id="", given_member_id="c2-b-id", instance_id="i-c2", assignors=("roundrobin",)
    )
    script.join("c1", 3_900, 4_000, 2, members=["c1", "c2-b"], instance_id="i-c1")
    last = script.last()
    assert (last.cause, last.instance_id, last.confidence) == (Cause.STATIC_REPLACED, "i-c2", 1.0)
    assert "other assignors (roundrobin)" in last.detail
    assert last.removed == []


# ---- who joins again


def rejoin(**fields: object) -> Rebalance:
    script = two()
    both_join(script, "c1", **fields)
    return script.last()


def test_the_leader_joins_again() -> None:
    last = rejoin(reason="rebalance enforced by user")
    assert (last.cause, last.client_id, last.confidence) == (Cause.LEADER_REJOINED, "c1", 1.0)
    assert last.reason == "rebalance enforced by user"
    assert rejoin().confidence < 1


def test_another_subscription() -> None:
    last = rejoin(topics=("orders", "payments"))
    assert (last.cause, last.confidence) == (Cause.SUBSCRIPTION_CHANGED, 1.0)
    assert "subscribed to payments" in last.detail
    assert len(last.evidence) == 2


def test_other_assignors() -> None:
    script = two()
    both_join(script, "c2", assignors=("range", "roundrobin"))
    last = script.last()
    assert (last.cause, last.client_id) == (Cause.ASSIGNORS_CHANGED, "c2")
    assert "range, roundrobin in place of range" in last.detail


def test_a_follower_with_other_bytes_and_the_same_topics() -> None:
    script = two()
    both_join(script, "c2", more=b"rack")
    assert (script.last().cause, script.last().confidence) == (Cause.SUBSCRIPTION_CHANGED, 0.7)


def test_a_follower_that_has_not_changed_cannot_have_begun_it() -> None:
    script = two()
    both_join(script, "c2")
    assert script.last().cause == Cause.UNKNOWN


def test_who_says_that_the_group_was_rebalancing_already_did_not_begin_it() -> None:
    script = two()
    script.beats("c2", 1_000, 2_000, 1)
    script.beats("c1", 1_000, 8_000, 1)
    script.join("c1", 8_100, 8_100, 2, members=["c1"], reason="group is already rebalancing", more=b"x")
    assert (script.last().cause, script.last().client_id) == (Cause.SESSION_EXPIRED, "c2")


@pytest.mark.parametrize(
    "reason",
    [
        "cached metadata has changed from {orders=1} at the beginning of the rebalance to {orders=2}",
        "the topics have changed",
    ],
)
def test_topics_changed_by_what_the_leader_says(reason: str) -> None:
    assert (rejoin(reason=reason).cause, rejoin(reason=reason).confidence) == (Cause.TOPICS_CHANGED, 1.0)


def test_topics_changed_by_what_the_leader_saw() -> None:
    script = two()
    script.saw("c1", -5, "orders", 2)
    script.saw("c1", 4_000, "orders", 6)
    both_join(script, "c1")
    last = script.last()
    assert (last.cause, last.confidence) == (Cause.TOPICS_CHANGED, 0.9)
    assert "topic orders has 6 partitions and had 2 partitions before" in last.detail
    assert at(4_000) in {fact.time_ns for fact in last.evidence}


def test_topics_that_nobody_subscribes_to_do_not_count() -> None:
    script = two()
    script.saw("c1", -5, "other", 2)
    script.saw("c1", 4_000, "other", 6)
    both_join(script, "c1")
    assert cause_of(script) == Cause.LEADER_REJOINED


def test_topics_changed_by_partitions_that_nobody_had() -> None:
    script = two()
    both_join(script, "c1")
    gives = {"c1": {"orders": [0, 2]}, "c2": {"orders": [1, 3]}}
    script.sync("c1", 5_501, 5_502, 2, {"orders": [0, 2]}, gives)
    last = script.last()
    assert (last.cause, last.confidence) == (Cause.TOPICS_CHANGED, 0.8)


def test_the_second_round_of_a_cooperative_rebalance() -> None:
    script = Script()
    both = {"orders": [0, 1]}
    script.join("c1", 0, 10, 1, members=["c1"], assignors=("cooperative-sticky",), owned={})
    script.sync("c1", 11, 12, 1, both, {"c1": both})
    script.join("c2", 1_000, 2_000, 2, assignors=("cooperative-sticky",), owned={}, member_id="")
    script.join("c1", 1_900, 2_000, 2, members=["c1", "c2"], assignors=("cooperative-sticky",), owned=both)
    script.sync("c1", 2_001, 2_002, 2, {"orders": [0]}, {"c1": {"orders": [0]}, "c2": {}})
    script.sync("c2", 2_001, 2_002, 2, {})
    script.join("c1", 2_010, 3_000, 3, members=["c1", "c2"], assignors=("cooperative-sticky",), owned={"orders": [0]})
    script.join("c2", 2_900, 3_000, 3, assignors=("cooperative-sticky",), owned={})
    last = script.last()
    assert (last.cause, last.client_id, last.cooperative) == (Cause.COOPERATIVE_FOLLOW_UP, "c1", True)
    assert "gave up 1 partition " in last.detail
    assert any("took partitions away" in fact.text for fact in last.evidence)


@pytest.mark.parametrize("has_assigned", [False, True])
def test_a_join_that_repeats_one_that_came_to_nothing_has_its_cause(has_assigned: bool) -> None:
    """Unless its topics have found their way into an assignment, which nobody has got."""
    script = two()
    both_join(script, "c1", reason="the topics have changed")
    if has_assigned:
        script.sync("c1", 5_501, None, 2, gives={"c1": {}, "c2": {}})
    script.sync("c2", 5_502, 5_503, 2, {})
    script.closed("c1", 5_504)
    both_join(script, "c1", ms=6_000, generation=3, reason="the connection was lost while joining", connection="n")
    assert cause_of(script) == (Cause.LEADER_REJOINED if has_assigned else Cause.TOPICS_CHANGED)


# ---- the coordinator


def test_a_group_that_is_larger_than_allowed() -> None:
    script = two()
    script.beat("c1", 1_000, 1, error=16)
    script.beat("c1", 3_000, 1, error=27)
    script.beat("c2", 3_100, 1, error=27)
    script.join("c1", 3_200, 3_400, 2, members=["c1"])
    script.join("c2", 3_300, 3_301, error_code=81)
    last = script.last()
    assert last.cause == Cause.GROUP_TOO_LARGE
    assert [(each.client_id, each.why) for each in last.removed] == [("c2", "group.max.size")]
    assert "group.max.size" in last.detail


def test_errors_of_a_coordinator_that_answers_on_are_no_failover() -> None:
    script = two()
    script.join("c3", 1_000, 2_000, 2, member_id="")
    script.beat("c2", 1_500, 1, error=16)
    script.join("c2", 1_600, 2_000, 2)
    script.join("c1", 1_900, 2_000, 2, members=["c1", "c2", "c3"])
    assert script.causes() == [Cause.NEW_MEMBER, Cause.NEW_MEMBER]
    assert len(script.history().rebalances) == 2


def test_connections_that_end_together_while_another_goes_on_are_no_failover() -> None:
    script = Script()
    script.form("c1", "c2", "c3")
    for client in ("c1", "c2"):
        script.closed(client, 2_000)
    script.beats("c3", 1_000, 10_000, 1)
    both_join(script, "c1", ms=3_000)
    assert cause_of(script) != Cause.COORDINATOR_FAILOVER


# ---- libraries


@pytest.mark.parametrize(
    ("versions", "reasons", "library"),
    [
        ({"JoinGroup": 9, "SyncGroup": 5, "Heartbeat": 4, "OffsetCommit": 9}, ["rebalance failed due to x"], "Java"),
        ({"JoinGroup": 9, "SyncGroup": 5, "Heartbeat": 4, "OffsetCommit": 9}, [], None),
        ({"JoinGroup": 9, "OffsetCommit": 10}, [], "franz-go"),
        ({"JoinGroup": 7, "SyncGroup": 5, "Heartbeat": 4, "LeaveGroup": 5}, [], "kafka-python"),
        ({"JoinGroup": 7, "SyncGroup": 5, "Heartbeat": 4, "LeaveGroup": 4}, [], None),
        ({"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 1}, [], "aiokafka"),
        ({"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 3, "OffsetCommit": 9}, [], "librdkafka"),
        ({"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 3, "OffsetCommit": 5}, [], "kafkajs"),
        ({"JoinGroup": 5, "SyncGroup": 3, "Heartbeat": 3, "OffsetCommit": 7}, [], None),
        ({}, [], None),
    ],
)
def test_library_only_where_certain(versions: dict[str, int], reasons: list[str], library: str | None) -> None:
    assert library_of(versions, reasons) == library
