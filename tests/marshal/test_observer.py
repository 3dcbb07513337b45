"""What a world state does not keep: since when, clocks, reused client ids, garbage."""

from __future__ import annotations

from kcoord_wire.marshal.log import RawEntry, coordination_partition
from kcoord_wire.marshal.machine import WorldState
from kcoord_wire.marshal.observer import Observer
from kcoord_wire.marshal.state import Entry, Outcome, Place, Rules
from kcoord_wire.marshal.values import read_entry
from tests.support.marshal_log import T0, entries_of

NOW = T0 * 1000


def observed(*lines: str, lag_ms: int = 200) -> Observer:
    observer = Observer(WorldState(Rules.DOCUMENT, partitions=1))
    for entry in entries_of(lines, lag_ms=lag_ms):
        observer.observe(entry, NOW)
    return observer


def test_a_heartbeat_of_the_holder_is_no_change() -> None:
    observer = observed("0 ClaimingPartition i1/c1/g/t/0", "1 Heartbeat i1/c1/g/t/0/5", "30 Heartbeat i1/c1/g/t/0/9")
    change = observer.changes[Place("g", "t", 0)]
    assert (change.outcome, change.at_ms) == (Outcome.CLAIMED, NOW + 200)
    observer.observe(entries_of(["40 ReleasingPartition i1/c1/g/t/0/12"], first=3)[0], NOW)
    assert observer.changes[Place("g", "t", 0)].outcome is Outcome.RELEASED


def test_a_clock_is_off_only_by_what_rounding_cannot_explain() -> None:
    for lag_ms, off_ms in ((900, 0), (-3_000, 3_000), (8_000, -7_000)):
        assert observed("0 Heartbeat i1/c1/g/t/0/5", lag_ms=lag_ms).clocks.senders["i1"].off_ms == off_ms


def test_times_that_the_broker_has_not_set_judge_no_clock() -> None:
    observer = Observer(WorldState(Rules.DOCUMENT, partitions=1))
    [entry] = entries_of(["0 Heartbeat i1/c1/g/t/0/5"])
    observer.observe(entry._replace(is_append_time=False), NOW)
    assert observer.clocks.senders == {}


def test_a_restart_is_no_reuse_of_the_client_id() -> None:
    restart = ["0 Heartbeat i1/c1/g/t/0/5", "9 Heartbeat i2/c1/g/t/0/5", "12 Heartbeat i2/c1/g/t/0/5"]
    assert observed(*restart).reuses == {}
    reuse = observed(*restart, "13 Heartbeat i1/c1/g/t/0/5").reuses["g", "c1"]
    assert (reuse.instance_id, reuse.other) == ("i1", "i2")


def test_garbage_is_counted_with_its_last_reason() -> None:
    partitions = 8
    wrong = (coordination_partition("t", partitions) + 1) % partitions
    observer = Observer(WorldState(Rules.DOCUMENT, partitions=partitions))
    values = [b"", None, b"Nonsense/1/2", b"Heartbeat/1/0/i/c/g/t/-1/5", b"x" * 1_000_000]
    for offset, value in enumerate(values):
        observer.observe(read_entry(RawEntry(wrong, offset, NOW, True, value)), NOW)
    assert (observer.garbage[wrong].unreadable, observer.garbage[wrong].offset) == (5, 4)
    [entry] = entries_of(["0 ClaimingPartition i1/c1/g/t/0"], first=9, partition=wrong)
    assert observer.observe(entry, NOW) is Outcome.SKIPPED
    garbage = observer.garbage[wrong]
    assert (garbage.misplaced, garbage.offset) == (1, 9)
    assert "another coordination partition" in garbage.reason
    assert observer.world.claims == {}


def test_the_world_state_is_that_of_the_same_entries() -> None:
    entries = entries_of(["0 ClaimingPartition i1/c1/g/t/0", "1 Heartbeat i1/c1/g/t/0/5", "5 Heartbeat i2/c2/g/t/0/6"])
    for rules in Rules:
        observer, world = Observer(WorldState(rules, partitions=1)), WorldState(rules, partitions=1)
        for entry in entries:
            assert isinstance(entry, Entry)
            assert observer.observe(entry, NOW + 6_000) is world.apply(entry, T0 + 6)
        assert observer.world.claims == world.claims
