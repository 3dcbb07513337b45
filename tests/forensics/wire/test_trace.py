"""The records of a replay."""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.wire.signs import BEGIN
from kcoord_wire.forensics.wire.trace import MemberTrace, is_cooperative
from kcoord_wire.forensics.wire.traffic import OfferedAssignor
from tests.support.exchange_script import Script


def test_a_static_member_keeps_its_identity() -> None:
    old, new = (MemberTrace(name, "i", None, "", BEGIN, is_new=True) for name in ("a", "b"))
    assert old.identity == new.identity != MemberTrace("i", None, None, "", BEGIN, is_new=True).identity


def test_timeouts_are_those_of_the_last_join_that_has_them() -> None:
    script = Script()
    script.join("c1", 0, 10, 1)
    script.join("c1", 20, 30, 2, session_timeout_ms=None, rebalance_timeout_ms=-1)
    life = MemberTrace("c1-id", None, None, "", BEGIN, is_new=True, joins=script.traffic().requests)
    assert (life.session_ms, life.rebalance_ms) == (6_000, 10_000)
    life.joins = life.joins[1:]
    assert (life.session_ms, life.rebalance_ms) == (None, None)


@pytest.mark.parametrize(
    ("assignors", "owned", "cooperative"),
    [
        (["cooperative-sticky"], None, True),
        (["cooperative-sticky", "range"], None, False),
        (["custom"], frozenset({("orders", 0)}), True),
        ([], None, False),
    ],
)
def test_a_client_is_cooperative_if_all_its_assignors_are(
    assignors: list[str], owned: frozenset[tuple[str, int]] | None, cooperative: bool
) -> None:
    assert is_cooperative([OfferedAssignor(name, None, owned, b"") for name in assignors]) is cooperative
