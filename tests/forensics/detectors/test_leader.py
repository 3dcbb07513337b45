"""The detector leader_does_not_assign: a leader that joins again instead of sending the assignment."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.model import Exchange
from tests.support.detector_groups import given, group, leader_join, life, of

HISTORY = group(members=[life("a"), life("b")])
MEMBERS = {"a": ({}, -1), "b": ({}, -1)}


def lists(count: int) -> list[Exchange]:
    return [leader_join("a", 10 * n, n, MEMBERS, "sticky") for n in range(1, count + 1)]


@pytest.mark.parametrize(("count", "severity"), [(3, None), (4, "warning"), (11, "critical")])
def test_lists_without_an_assignment_are_counted(count: int, severity: str | None) -> None:
    found = of("leader_does_not_assign", HISTORY, lists(count))
    assert [finding.severity for finding in found] == ([severity] if severity else [])
    if found:
        assert found[0].subject == "a"
        assert found[0].value == count - 1, "nothing follows the last one"
        assert "sticky" in found[0].text


def test_an_assignment_ends_the_stretch() -> None:
    rows = [*lists(5), given("a", 31, 3, {"a": {"orders": [0]}})]
    assert of("leader_does_not_assign", HISTORY, rows) == []


def test_a_leader_that_is_gone_did_not_give_up() -> None:
    rows = [leader_join(name, 10 * n, n, MEMBERS) for n, name in enumerate(("a", "b", "c", "d", "e"), start=1)]
    assert of("leader_does_not_assign", HISTORY, rows) == []
