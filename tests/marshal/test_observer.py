"""What a world state does not keep: since when, clocks, reused client ids, garbage.

Where readers of one log disagree; the recorded case of the Go library among them.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from kcoord_wire.marshal.log import RawEntry, coordination_partition
from kcoord_wire.marshal.observer import Divergence, Observer, Read, Reader, diverging
from kcoord_wire.marshal.values import read_entry
from kcoord_wire.marshal.world_state import Entry, Outcome, Place, Rules, WorldState
from tests.support.marshal_log import T0, entries_of
from tests.support.marshal_world import beat, claim, free, random_log

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


RECORDED = Path(__file__).parent.parent / "data" / "golden" / "marshal" / "replay_divergence.jsonl"
LIVE = Reader("live", Rules.LIBRARY)
DOCUMENT = Reader("document", Rules.DOCUMENT)


def recorded() -> tuple[list[Read], list[dict[str, object]]]:
    """The recorded log as the live reader read it, and the last recorded state of each reader.

    Its first entry is a heartbeat without a claim: the log was trimmed.
    """
    steps = [json.loads(line) for line in RECORDED.read_text("utf-8").splitlines()]
    live, late = steps[:4], steps[4:]
    assert [step["msg"] for step in live] == [step["msg"] for step in late]
    assert {step["now"] for step in late} == {1150}
    reads = [
        Read(read_entry(RawEntry(0, offset, -1, False, step["msg"].encode())), step["now"])
        for offset, step in enumerate(live, start=100)
    ]
    return reads, [live[-1]["state"][0], late[-1]["state"][0]]


def views(divergence: Divergence) -> list[tuple[str | None, int]]:
    return [(belief.holder, belief.position) for belief in divergence.beliefs]


def test_the_recorded_replay_is_reproduced_and_explained() -> None:
    reads, (live, late) = recorded()
    found = list(diverging(reads, [LIVE, Reader("late", Rules.LIBRARY, 1150), DOCUMENT]))
    assert [views(each) for each in found] == [
        [("i1", 5), (None, 5), ("i1", 5)],
        [("i1", 5), ("i2", 5), ("i1", 5)],
        [(None, 9), ("i2", 5), (None, 9)],
        [("i3", 9), ("i2", 5), ("i3", 9)],
    ]
    last = found[-1].beliefs
    assert (live["InstanceID"], live["CurrentOffset"]) == (last[0].holder, last[0].position)
    assert (late["InstanceID"], late["CurrentOffset"]) == (last[1].holder, last[1].position)
    refused, won = found[1].beliefs[:2]
    assert refused.why == (
        "by this reader's clock the heartbeat of i1 is 50 s old and live, so i2 is refused the claim; "
        "it is held by i1, position 5"
    )
    assert won.why == (
        "by this reader's clock the heartbeat of i1 is 150 s old and stale, so i2 wins the claim; "
        "it is held by i2, position 5"
    )
    assert str(found[1]).splitlines()[0] == "divergence on g/t-0 at 0:101"


def library_log(*steps: tuple[int, object]) -> list[Read]:
    return [Read(Entry(0, offset, at * 1000, True, message), at) for offset, (at, message) in enumerate(steps)]


def test_a_heartbeat_of_the_future_is_none_for_the_library() -> None:
    reads = library_log(
        (1_000, claim("a1", time=1_000)), (1_001, beat("a1", 5, time=1_030)), (1_002, claim("b1", time=1_002))
    )
    first, second = diverging(reads, [LIVE, DOCUMENT], partitions=1)
    assert views(first) == [(None, 5), ("a1", 5)]
    assert [belief.outcome for belief in second.beliefs] == [Outcome.CLAIMED, Outcome.CLAIM_REFUSED]
    assert "28 s in the future and stale" in second.beliefs[0].why


def test_a_late_heartbeat_takes_the_partition_by_the_library() -> None:
    reads = library_log(
        (1_000, claim("a1", time=1_000)),
        (1_000, free("a1", 3, time=1_000)),
        (1_001, claim("b1", time=1_001)),
        (1_002, beat("a1", 2, time=1_000)),
        (1_003, beat("b1", 3, time=1_003)),
    )
    first, over = diverging(reads, [LIVE, DOCUMENT], partitions=1)
    assert views(first) == [("a1", 2), ("b1", 3)]
    assert first.entry.offset == 3
    assert over.is_over
    assert str(over).startswith("agreed again")


def test_readers_with_the_documents_rules_never_disagree() -> None:
    random = Random(3)
    for _ in range(200):
        reads = [Read(entry, random.randrange(10**6)) for entry in random_log(random, 60_000)]
        assert list(diverging(reads, [DOCUMENT, DOCUMENT._replace(name="late", at=10**9)], partitions=1)) == []


def test_the_library_agrees_with_itself_at_one_moment() -> None:
    random = Random(4)
    for _ in range(100):
        reads = [Read(entry, 1_000) for entry in random_log(random, 0)]
        assert list(diverging(reads, [LIVE, Reader("late", Rules.LIBRARY, 1_000)], partitions=1)) == []
