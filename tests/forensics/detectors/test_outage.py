"""Outages and moves of the coordinator, as findings."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.detectors.outage import LASTING_MS
from kcoord_wire.forensics.model import Evidence, Outage
from tests.support.detector_groups import SECOND, group, of

BROKER = "10.0.9.9:9092"


def outage(kind: str, from_s: float, to_s: float | None, tried_s: float, rebalance: int | None = None) -> Outage:
    seen = [Evidence(int(second * SECOND), "", -1, "it was tried") for second in (from_s, tried_s)]
    end = None if to_s is None else int(to_s * SECOND)
    return Outage("billing", kind, int(from_s * SECOND), end, BROKER, ["c1-id"], "it was away", rebalance, seen)


@pytest.mark.parametrize("kind", ["broker down", "loading", "silence"])
def test_an_outage_that_was_survived_is_a_warning(kind: str) -> None:
    (found,) = of("outage", group(outages=[outage(kind, 10, 40, 39, rebalance=2)]))
    assert (found.severity, found.subject, found.value, found.rebalances) == ("warning", BROKER, 30_000, [2])
    assert found.text == "it was away; rebalance #2 followed"


def test_an_outage_without_end_is_critical() -> None:
    tried = LASTING_MS / 1000 + 10
    (found,) = of("outage", group(outages=[outage("broker down", 10, None, tried)]))
    assert (found.severity, found.to_ns) == ("critical", None)


def test_members_that_have_given_up_are_not_critical() -> None:
    (found,) = of("outage", group(outages=[outage("broker down", 10, None, 12)]))
    assert found.severity == "warning"


def test_a_move_is_a_finding_of_its_own() -> None:
    history = group(outages=[outage("coordinator moved", 10, 11, 10)])
    assert of("outage", history) == []
    (found,) = of("coordinator_move", history)
    assert found.text == "it was away; it cost no rebalance"
