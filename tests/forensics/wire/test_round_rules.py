"""The rules of rounds as data: their confidence fits their cause, and their sentences can be filled in."""

from __future__ import annotations

from kcoord_wire.forensics.model import Cause
from kcoord_wire.forensics.wire.round_rules import DRAFT_RULES, REWRITE_RULES


def test_rules_of_rounds_have_a_confidence_that_fits() -> None:
    for name, rule in [*DRAFT_RULES.items(), *REWRITE_RULES.items()]:
        assert rule.name == name
        assert 0 < rule.confidence <= 1
        assert (rule.cause is Cause.UNKNOWN) == (rule.confidence <= 0.2)
        assert rule.sentence.format(who="c-1", what="x")
