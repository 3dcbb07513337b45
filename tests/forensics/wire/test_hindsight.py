"""What the whole source shows about one moment."""

from __future__ import annotations

from kcoord_wire.forensics.wire.joins import find_failovers, find_joins
from kcoord_wire.forensics.wire.signs import end_of
from kcoord_wire.forensics.wire.trace import ResponseIndex
from tests.support.exchange_script import Script, at, two_members


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
