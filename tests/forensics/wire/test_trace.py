"""The records of a replay.

What the whole source shows about one moment.
"""

from __future__ import annotations

import pytest

from kcoord_wire.forensics.wire.joins import find_failovers, find_joins
from kcoord_wire.forensics.wire.signs import BEGIN, end_of
from kcoord_wire.forensics.wire.trace import MemberTrace, ResponseIndex, is_cooperative
from kcoord_wire.forensics.wire.traffic import OfferedAssignor
from tests.support.exchange_script import Script, at, two_members


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


def hindsight_of(script: Script) -> ResponseIndex:
    traffic = script.traffic()
    failovers = find_failovers(traffic)
    return ResponseIndex(traffic, find_joins(traffic.requests, failovers), failovers)


def test_signs_of_life_before_and_after_a_moment() -> None:
    script = two_members()
    script.beats("c2", 1_000, 4_000, 1)
    responses = hindsight_of(script)
    assert responses.last_alive("c2-id") == at(3_000)
    assert responses.next_alive("c2-id", at(1_500)) == at(2_000)
    assert responses.alive_before("c2-id", at(1_500)) == at(1_000)
    assert (responses.next_alive("c2-id", at(3_000)), responses.last_alive("c9-id")) == (None, 0)


def test_the_next_join_and_its_members() -> None:
    script = two_members()
    script.join("c1", 5_000, 5_100, 2, members=["c1"])
    responses = hindsight_of(script)
    following = responses.next_join(end_of(at(1_000)))
    assert following is not None
    assert following.generation == 2
    assert responses.is_listed_later("c1-id", end_of(at(1_000)))
    assert not responses.is_listed_later("c2-id", end_of(at(1_000)))
    assert responses.next_join(end_of(at(6_000))) is None


def test_calm_lasts_until_a_member_learns_of_a_rebalance() -> None:
    script = two_members()
    script.beats("c1", 1_000, 6_000, 1)
    script.beat("c2", 3_500, 1, error=27)
    assert hindsight_of(script).calm_until_next_sign(at(500)) == at(3_000)
    assert hindsight_of(script).calm_until_next_sign(at(4_990)) is None


def test_a_join_that_the_failover_cut_off() -> None:
    script = two_members()
    cut = script.join("c3", 1_000, None)
    for client in ("c1", "c2", "c3"):
        script.closed(client, 2_000)
    for client in ("c1", "c2"):
        script.beat(client, 3_000, 1, connection=f"10.0.0.{client[1]}:9-b#9")
    responses = hindsight_of(script)
    (request,) = [each for each in responses.traffic.requests if each.asked.time_ns == cut.asked_ns]
    assert responses.is_closed_after(request)
    assert len(responses.failovers) == 1
    assert responses.is_cut_off(request)
