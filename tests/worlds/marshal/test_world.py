"""Members on a virtual log: they share the partitions, survive faults, and consume."""

from __future__ import annotations

import pytest

from kcoord_wire.kernel.virtual.scripts import Do, Script, ViolationError, run_script
from kcoord_wire.marshal.log import RawEntry
from kcoord_wire.marshal.member_events import Delivery
from kcoord_wire.marshal.values import read_entry
from kcoord_wire.worlds.marshal import MarshalCluster
from kcoord_wire.worlds.marshal.marshal_world import RECREATES, random_script
from kcoord_wire.worlds.marshal.marshal_world import MarshalCluster as Cluster
from tests.support.planted_marshal_bugs import grants_claims_at_two_intervals

INTERVAL_MS = 1_000


def cluster(members: int = 3, *, delivery: Delivery = Delivery.AT_LEAST_ONCE, balance: bool = False) -> Cluster:
    return MarshalCluster(
        7, topics={"t1": 6}, members=members, interval_ms=INTERVAL_MS, delivery=delivery, balance=balance
    )


@pytest.mark.parametrize("delivery", list(Delivery))
def test_members_hold_all_partitions_and_consume(delivery: Delivery) -> None:
    with cluster(delivery=delivery) as sim:
        sim.run_until(sim.is_settled)
        sim.run(20_000)
        assert sim.is_settled()
        claims = sim.truth.world.of_group("readers")
        assert min(claim.current_offset for claim in claims) > 40, "of 5 a second"


def test_partitions_of_a_killed_member_are_held_again() -> None:
    with cluster() as sim:
        sim.run_until(sim.is_settled)
        [name] = sim.owners()["t1", 0]
        sim.crash(name)
        assert not sim.is_settled()
        took_ms = sim.run_until(sim.is_settled)
        assert took_ms > INTERVAL_MS, "its claims had to become stale"


def test_a_restarted_client_takes_its_claims_up() -> None:
    with cluster() as sim:
        sim.run_until(sim.is_settled)
        [name] = sim.owners()["t1", 0]
        held = {place for place, names in sim.owners().items() if names == [name]}
        sim.crash(name)
        sim.member(name)
        took_ms = sim.run_until(sim.is_settled)
        assert {place for place, names in sim.owners().items() if names == [name]} == held
        assert took_ms < INTERVAL_MS


def test_a_paused_member_has_lost_its_partitions_when_it_resumes() -> None:
    with cluster(members=2) as sim:
        sim.run_until(sim.is_settled)
        [name] = sim.owners()["t1", 0]
        sim.pause(name, 4 * INTERVAL_MS)
        sim.run(4 * INTERVAL_MS - 1)
        other = "m2" if name == "m1" else "m1"
        assert other in sim.owners()["t1", 0]
        sim.run(500)
        assert sim.owners()["t1", 0] == [other]


def test_partitions_that_are_added_are_claimed() -> None:
    with cluster() as sim:
        sim.run_until(sim.is_settled)
        sim.grow("t1", 3)
        assert not sim.is_settled()
        sim.run_until(sim.is_settled)
        assert len(sim.owners()) == 9


@pytest.mark.parametrize("delivery", list(Delivery))
def test_topics_that_are_created_again_lose_and_repeat_nothing(delivery: Delivery) -> None:
    for seed in range(3):
        run_script(random_script(seed, delivery=delivery, rows=RECREATES))


def test_a_member_that_shuts_down_releases() -> None:
    with cluster(members=2) as sim:
        sim.run_until(sim.is_settled)
        sim.shut_down("m1")
        assert sim.run_until(sim.is_settled) < 2 * INTERVAL_MS, "no member waited for a stale claim"
        assert {name for names in sim.owners().values() for name in names} == {"m2"}


def test_a_clock_ahead_does_not_keep_a_guessed_place_unclaimed() -> None:
    """m1 begins after m2's entries were trimmed. It claimed t1-0 before the log had been silent about it for two
    intervals, did not recognise that it had won, released it, and so on."""
    actions = [
        Do(28_775, "member", "m2", -600),
        Do(28_824, "pause", "m2", 500),
        Do(29_019, "lag", "m2", 1_100),
        Do(30_668, "suspend", "m2"),
        Do(48_312, "set_position", "t1", 2, 0),
        Do(50_912, "member", "m1", 20_000),
    ]
    options = {"topics": {"t1": 3}, "interval_ms": INTERVAL_MS, "brokers_ms": [552, 573], "balance": True}
    run_script(Script(MarshalCluster, 0, options, actions))


def test_two_that_present_one_client_id_do_not_both_yield() -> None:
    with cluster(members=0, balance=True) as sim:
        sim.member("m1")
        sim.run(600)
        sim.member("m2", 0, "m1")
        sim.run_until(sim.is_settled)
        sim.run(10 * INTERVAL_MS)
        assert sim.is_settled()


def test_actions_without_sense_do_nothing() -> None:
    with cluster(members=0) as sim:
        for call in ("crash", "shut_down", "suspend", "release", "fail_fetch"):
            getattr(sim, call)("unknown")
        sim.pause("unknown", 5)
        sim.set_clock("unknown", 5)
        sim.lag("unknown", 5)
        sim.heal()
        assert sim.is_settled(), "no member wants anything"


# ---- the laws


def claim_twice(apart_ms: int) -> str:
    """Return whose claim the log has after two claims so far apart."""
    texts = (b"ClaimingPartition/1/1/a1/a/readers/t1/0", b"ClaimingPartition/1/1/b1/b/readers/t1/0")
    with MarshalCluster(topics={"t1": 1}, interval_ms=1_000) as sim:
        for number, text in enumerate(texts):
            entry = read_entry(RawEntry(AT, number, 50_000 + number * apart_ms, True, text))
            sim.invariants.appended(entry, *sim.truth.apply(entry))
        [claim] = sim.truth.world.claims.values()
        return claim.client_id


AT = 1  # the coordination partition of t1, of three


def test_a_claim_is_stale_two_intervals_later_to_the_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [claim_twice(2_000), claim_twice(2_001)] == ["a", "b"]
    grants_claims_at_two_intervals(monkeypatch)
    with pytest.raises(ViolationError, match=r"holder: .* 2000 ms after"):
        claim_twice(2_000)


def test_a_restart_does_not_take_a_stale_claim_for_its_own() -> None:
    """The log is silent, so m1 knows the age of its former claims by its clock alone, which is 6 s back; they are a
    little more than two intervals old. To m1, whose log is trimmed, its own heartbeat would show that it holds them.
    """
    options = {"topics": {"t1": 4, "t2": 2}, "delivery": Delivery.AT_MOST_ONCE, "interval_ms": 3_000}
    script = Script(
        MarshalCluster,
        49,
        options | {"brokers_ms": [809, 2018]},
        [
            Do(0, "member", "m1", -1_800),
            Do(0, "member", "m3", -60_000),
            Do(44_130, "pause", "m3", 3_300),
            Do(44_758, "crash", "m1"),
            Do(50_552, "member", "m1", -6_000),
        ],
    )
    run_script(script, shrink=False)
