"""The cause finder: the first rule that holds, what else would have started it, and how certain that is."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.model import Cause
from kcoord_wire.forensics.wire.history import explain_group
from kcoord_wire.forensics.wire.rules import EPOCH_RULES, RULES, UNKNOWN
from kcoord_wire.forensics.wire.trace import StartKind
from tests.support.exchange_script import Script, both_join, two_members


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
