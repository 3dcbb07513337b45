"""Readers of one log agree by the document's rules, and the laws that say so are broken by what they are for."""

from __future__ import annotations

import pytest

from kcoord_wire.kernel.virtual.scripts import SimulationFailure, ViolationError, run_script
from kcoord_wire.marshal.world_state import Entry, Outcome, Place, Rules, WorldState
from kcoord_wire.messages import marshal as messages
from kcoord_wire.worlds.marshal.marshal_laws import place_of
from kcoord_wire.worlds.marshal.marshal_world import JUNK, WRITERS, MarshalCluster, random_script

SEEDS = 150


def run_writers() -> int:
    return sum(run_script(random_script(seed, rows=WRITERS), shrink=False).steps for seed in range(SEEDS))


def test_readers_of_writers_that_keep_to_nothing_agree() -> None:
    assert run_writers() > 20 * SEEDS, "too few entries were read to prove anything"


def test_a_rule_that_reads_the_readers_clock_breaks_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = WorldState.apply
    clock = 0

    def planted(self: WorldState, entry: Entry, now: int) -> Outcome:
        nonlocal clock
        clock = now * 1000
        return apply(self, entry, now)

    is_claimed = WorldState.is_claimed
    monkeypatch.setattr(WorldState, "apply", planted)
    monkeypatch.setattr(WorldState, "is_claimed", lambda self, claim, now: is_claimed(self, claim, clock))
    with pytest.raises(SimulationFailure) as caught:
        run_writers()
    assert caught.value.law == "agreement"


@pytest.mark.parametrize("kind", range(len(JUNK)))
def test_junk_changes_nothing(kind: int) -> None:
    with MarshalCluster(topics={"t1": 1}) as sim:
        sim.observe()
        sim.say("ClaimingPartition", "a1", "a", "t1", 0)
        for partition in range(3):
            sim.junk(partition, kind)
        sim.say("ReleasingPartition", "a1", "a", "t1", 0, 9, is_misplaced=True)
        sim.run(1_000)
        [claim] = sim.truth.world.claims.values()
        assert (claim.instance_id, claim.current_offset) == ("a1", 0)
        assert sim.observers[0].read == 5


def test_a_reader_of_a_trimmed_log_agrees_on_what_it_knows() -> None:
    with MarshalCluster(topics={"t1": 2}, interval_ms=1_000) as sim:
        for second in range(40):
            sim.say("ClaimingPartition", "a1", "a", "t1", second % 2)
            sim.say("Heartbeat", "a1", "a", "t1", 0, second)
            sim.run(1_000)
        sim.observe()
        sim.say("ClaimingPartition", "b1", "b", "t1", 0)
        sim.run(4_000)
        sim.say("ClaimingPartition", "b1", "b", "t1", 0)
        sim.run(1_000)
        reader = sim.observers[0]
        assert reader.read < 50, "the log was trimmed"
        place = Place("readers", "t1", 0)
        assert reader.world.claims[place].token == sim.truth.world.claims[place].token


def test_a_late_reader_that_disagrees_is_found() -> None:
    with MarshalCluster(topics={"t1": 1}) as sim:
        sim.say("ClaimingPartition", "a1", "a", "t1", 0)
        sim.run(100)
        sim.observe()
        sim.truth.world.claims[Place("readers", "t1", 0)].current_offset = 99
        sim.say("ClaimingMessages", "a1", "a", "t1", 0, 3)
        with pytest.raises(ViolationError, match="agreement"):
            sim.run(1_000)


@pytest.mark.parametrize("kind", ["Heartbeat", "ReleaseGroup"])
def test_places_of_messages(kind: str) -> None:
    message = getattr(messages, kind)(group_id="g", topic="" if kind == "ReleaseGroup" else "t")
    assert place_of(message) == (Place("g", "t", 0) if kind == "Heartbeat" else None)
    assert place_of("not a message") is None


def test_rules_of_readers_are_those_of_the_cluster() -> None:
    with MarshalCluster(topics={"t1": 1}, rules=Rules.LIBRARY) as sim:
        sim.observe()
        assert sim.observers[0].world.rules is Rules.LIBRARY
