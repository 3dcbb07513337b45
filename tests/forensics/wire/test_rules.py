"""Each rule in its smallest case: what it needs to hold, its cause, its confidence and what it cites.

The cause finder: the first rule that holds, what else would have started it, and how certain that is.
"""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.model import Rebalance
from kcoord_wire.forensics.wire.history import explain_group
from kcoord_wire.forensics.wire.rules import EPOCH_RULES, RULES, UNKNOWN
from kcoord_wire.forensics.wire.trace import StartKind
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.exchange_script import Script, at, both_join, two_members


@pytest.mark.parametrize("reason", [None, "the consumer is being closed", "the consumer unsubscribed from all topics"])
def test_member_left(reason: str | None) -> None:
    script = two_members()
    script.leave("c2", 5_000, 5_001, reason)
    last = script.last()
    assert (last.cause, last.client_id, last.reason, last.confidence) == (Cause.MEMBER_LEFT, "c2", reason, 1.0)
    assert last.evidence[0].time_ns == at(5_000)
    assert (reason or "left") in last.detail


def test_an_unanswered_leave_is_less_certain() -> None:
    script = two_members()
    script.leave("c2", 5_000, None)
    assert (script.last().cause, script.last().confidence) == (Cause.MEMBER_LEFT, 0.9)


def test_a_refused_leave_starts_nothing() -> None:
    script = two_members()
    script.leave("c2", 5_000, 5_001, error=25)
    assert script.causes() == [Cause.NEW_MEMBER]


def test_an_operator_removes_a_member() -> None:
    script = two_members()
    script.leave("c9", 5_000, 5_001, "member was removed by the operator", left="c2")
    last = script.last()
    assert (last.cause, last.client_id) == (Cause.MEMBER_LEFT, "c2")
    assert "removed by c9" in last.detail


def test_poll_timeout_by_its_reason() -> None:
    script = two_members()
    script.leave("c2", 5_000, 5_001, "consumer poll timeout has expired.")
    last = script.last()
    assert (last.cause, last.confidence) == (Cause.POLL_TIMEOUT, 1.0)
    assert [each.why for each in last.removed] == ["poll timeout"]
    assert [life.why_left for life in script.history().members] == [None, "poll timeout"]


def test_poll_timeout_by_a_join_on_the_same_connection() -> None:
    script = two_members(rebalance_ms=4_000)
    script.leave("c2", 5_000, 5_001)
    script.join("c1", 5_500, 5_500, 2, members=["c1"])
    script.sync("c1", 5_501, 5_502, 2, {}, {"c1": {}})
    script.join("c2", 60_000, 60_001, member_id="", error_code=79, given_member_id="c2-b")
    history = script.history()
    assert history.rebalances[1].cause == Cause.POLL_TIMEOUT
    assert history.rebalances[1].confidence <= 0.6
    assert len(history.rebalances[1].evidence) == 2


def test_poll_timeout_by_a_connection_that_stays_open() -> None:
    script = two_members(rebalance_ms=4_000)
    script.leave("c2", 5_000, 5_001)
    script.closed("c1", 60_000)
    assert (script.last().cause, script.last().confidence) == (Cause.POLL_TIMEOUT, 0.5)
    script.closed("c2", 5_002)
    assert script.last().cause == Cause.MEMBER_LEFT


def test_an_early_leave_is_not_a_poll_timeout() -> None:
    script = two_members(rebalance_ms=6_000)
    script.leave("c2", 5_000, 5_001)
    script.closed("c1", 60_000)
    assert (script.last().cause, script.last().removed[0].why) == (Cause.MEMBER_LEFT, "left")


def test_new_member_that_was_in_the_group_before() -> None:
    script = two_members()
    script.leave("c2", 5_000, 5_001, "the consumer is being closed")
    script.join("c1", 5_500, 5_500, 2, members=["c1"])
    script.sync("c1", 5_501, 5_502, 2, {}, {"c1": {}})
    script.join("c2", 9_000, 9_500, 3, member_id="", given_member_id="c2-b", connection="10.0.0.2:9-b#9")
    last = script.last()
    assert (last.cause, last.member_id, last.confidence) == (Cause.NEW_MEMBER, "c2-b", 1.0)
    assert "it had been c2-id until" in last.detail


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


def rejoin(**fields: object) -> Rebalance:
    script = two_members()
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
    script = two_members()
    both_join(script, "c2", assignors=("range", "roundrobin"))
    last = script.last()
    assert (last.cause, last.client_id) == (Cause.ASSIGNORS_CHANGED, "c2")
    assert "range, roundrobin in place of range" in last.detail


def test_a_follower_with_other_bytes_and_the_same_topics() -> None:
    script = two_members()
    both_join(script, "c2", more=b"rack")
    assert (script.last().cause, script.last().confidence) == (Cause.SUBSCRIPTION_CHANGED, 0.7)


@pytest.mark.parametrize(
    "reason",
    [
        "cached metadata has changed from {orders=1} at the beginning of the rebalance to {orders=2}",
        "the topics have changed",
    ],
)
def test_topics_changed_by_what_the_leader_states(reason: str) -> None:
    assert (rejoin(reason=reason).cause, rejoin(reason=reason).confidence) == (Cause.TOPICS_CHANGED, 1.0)


def test_topics_changed_by_what_the_leader_saw() -> None:
    script = two_members()
    script.saw("c1", -5, "orders", 2)
    script.saw("c1", 4_000, "orders", 6)
    both_join(script, "c1")
    last = script.last()
    assert (last.cause, last.confidence) == (Cause.TOPICS_CHANGED, 0.9)
    assert "topic orders has 6 partitions and had 2 partitions before" in last.detail
    assert at(4_000) in {fact.time_ns for fact in last.evidence}


def test_topics_without_a_subscription_do_not_count() -> None:
    script = two_members()
    script.saw("c1", -5, "other", 2)
    script.saw("c1", 4_000, "other", 6)
    both_join(script, "c1")
    assert script.last().cause == Cause.LEADER_REJOINED


def test_topics_changed_by_partitions_that_no_member_had() -> None:
    script = two_members()
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
def test_a_repeated_join_has_the_cause_of_the_first(has_assigned: bool) -> None:
    """Except for topics that an assignment, even one that was never answered, has dealt with."""
    script = two_members()
    both_join(script, "c1", reason="the topics have changed")
    if has_assigned:
        script.sync("c1", 5_501, None, 2, gives={"c1": {}, "c2": {}})
    script.sync("c2", 5_502, 5_503, 2, {})
    script.closed("c1", 5_504)
    both_join(script, "c1", ms=6_000, generation=3, reason="the connection was lost while joining", connection="n")
    assert script.last().cause == (Cause.LEADER_REJOINED if has_assigned else Cause.TOPICS_CHANGED)


@pytest.mark.parametrize("code", [30, 29, 82])
def test_a_refused_member_did_not_fall_silent(code: int) -> None:
    script = two_members()
    script.beats("c1", 1_000, 12_000, 1)
    script.beats("c2", 1_000, 4_000, 1)
    for ms in range(4_000, 9_000, 500):
        script.beat("c2", ms, 1, code)
    script.beat("c1", 12_000, 1, 27)
    script.join("c1", 12_010, 12_020, 2, members=["c1"])
    script.sync("c1", 12_021, 12_022, 2, {}, {"c1": {"orders": [0, 1]}})
    last = script.last()
    assert (last.cause, last.client_id, last.confidence) == (Cause.REFUSED, "c2", 0.95)
    assert f"was refused with {ErrorCode(code).value} {ErrorCode(code).name}, 10 times" in last.detail
    assert "was answered with" in last.evidence[0].text


@pytest.mark.parametrize("kind", StartKind)
def test_every_kind_of_start_has_a_last_rule_that_always_holds(kind: StartKind) -> None:
    *_, last = (rule for rule in RULES if kind in rule.starts)
    assert last.holds.__name__ == "_always"


def test_rules_give_a_confidence_that_fits_their_cause() -> None:
    for rule in RULES:
        least = rule.confidence if rule.unless is None else rule.unless[1]
        assert 0 < least <= rule.confidence <= 1
        assert (rule.cause is Cause.UNKNOWN) == (rule.confidence <= 0.2) == (rule.name == UNKNOWN)
    for epoch_rule in EPOCH_RULES.values():
        assert (epoch_rule.cause is Cause.UNKNOWN) == (epoch_rule.confidence <= 0.2)


def test_rules_of_one_name_have_one_cause() -> None:
    causes: dict[str, set[Cause]] = {}
    for rule in (*RULES, *EPOCH_RULES.values()):
        causes.setdefault(rule.name, set()).add(rule.cause)
    assert {name: found for name, found in causes.items() if len(found) > 1} == {}


def test_each_rebalance_names_its_rule() -> None:
    script = two_members()
    both_join(script, "c1", topics=("orders", "payments"))
    history, rules = explain_group(*script.tables())
    assert [rules[rebalance.number] for rebalance in history.rebalances] == ["new", "subscription"]


def test_other_starts_are_listed_and_cited_up_to_eight() -> None:
    script = Script()
    script.form("c1")
    clients = [f"c{number}" for number in range(2, 14)]
    for number, client in enumerate(clients):
        script.join(client, 5_000 + number, 6_000, 2, member_id="")
    script.join("c1", 5_900, 6_000, 2, members=["c1", *clients])
    last = script.last()
    assert last.detail.count(") joined") == 1 + 8
    assert last.detail.endswith(" and 3 more")
    assert len(last.evidence) == 1 + 8


def test_a_start_without_a_response_is_less_certain() -> None:
    script = two_members()
    script.join("c3", 5_000, None, member_id="", api_version=3)
    script.beat("c2", 5_300, 1, error=27)
    script.join("c2", 5_400, 9_000, 2)
    script.join("c1", 5_500, 9_000, 2, members=["c1", "c2"])
    assert (script.last().cause, script.last().confidence) == (Cause.NEW_MEMBER, 0.6)


def test_a_hidden_start_cites_what_showed_it() -> None:
    script = two_members()
    script.beats("c2", 1_000, 6_000, 1)
    script.beat("c1", 6_000, 1, error=27)
    script.join("c2", 6_100, 6_500, 2)
    script.join("c1", 6_200, 6_500, 2, members=["c1", "c2"])
    last = script.last()
    assert (last.cause, last.confidence) == (Cause.UNKNOWN, 0.2)
    assert last.evidence[-1].text == "Heartbeat was answered with 27 REBALANCE_IN_PROGRESS"
