"""Garbage in the log: skipped, counted, reported once per kind, never fatal."""

from __future__ import annotations

import pytest

from kcoord_wire.marshal.log import RawEntry, coordination_partition
from kcoord_wire.marshal.machine import WorldState
from kcoord_wire.marshal.member import MISPLACED, Refusals
from kcoord_wire.marshal.state import Entry, Outcome, Rules
from kcoord_wire.marshal.values import read_entry, read_value
from kcoord_wire.messages.marshal import ClaimingPartition
from tests.support.marshal_garbage import GARBAGE
from tests.support.marshal_script import MarshalScript
from tests.support.marshal_world import TOPIC, claim


@pytest.mark.parametrize("rules", list(Rules))
def test_garbage_changes_nothing(rules: Rules) -> None:
    state = WorldState(rules, partitions=1)
    state.apply(Entry(0, 0, 1_000, True, claim("a1", time=1)), 1)
    before = repr((state.claims, state.members, state.pauses))
    for offset, (value, _) in enumerate(GARBAGE.values(), start=1):
        entry = read_entry(RawEntry(0, offset, 1_000, True, value))
        assert state.apply(entry, 1) is Outcome.SKIPPED
    assert repr((state.claims, state.members, state.pauses)) == before


def test_each_kind_is_reported_once_on_each_partition() -> None:
    refusals, noted = Refusals(), []
    for partition in (0, 1):
        for _ in range(3):
            for offset, (value, _) in enumerate(GARBAGE.values()):
                note = refusals.skipped(read_entry(RawEntry(partition, offset, -1, False, value)))
                noted += [] if note is None else [note]
    kinds = {kind for _, kind in GARBAGE.values()}
    assert sorted((note.facts["kind"], note.facts["partition"]) for note in noted) == sorted(
        (kind, partition) for kind in kinds for partition in (0, 1)
    )
    assert sum(refusals.counts.values()) == 2 * 3 * len(GARBAGE)
    assert all(len(note.facts["reason"]) < 300 for note in noted)


def test_a_misplaced_message_is_a_kind_of_its_own() -> None:
    refusals = Refusals()
    wrong = Entry(1 - coordination_partition(TOPIC, 2), 7, -1, False, claim("a1"))
    note = refusals.skipped(wrong)
    assert note is not None
    assert (note.facts["kind"], note.facts["offset"]) == (MISPLACED, 7)
    assert TOPIC in note.facts["reason"]
    assert refusals.skipped(wrong) is None


def test_a_member_holds_what_it_holds_between_garbage() -> None:
    world = MarshalScript({"orders": 2}, partitions=1)
    a = world.start("a", greedy=True)
    assert world.run_until(lambda: world.shares() == {"a": 2}, 3_000)
    for _ in range(2):
        for value, _ in GARBAGE.values():
            world.land(0, read_value(value))
    world.run(60_000)
    assert world.shares() == {"a": 2}
    assert len(world.entries(ClaimingPartition)) == 2
    assert len(a.noted("entry skipped")) == len({kind for _, kind in GARBAGE.values()})
