"""Rows of a growing coordination partition, as they become final."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest

from kcoord_wire.forensics.marshal.claims import marshal_histories
from kcoord_wire.forensics.marshal.live import LiveReader
from kcoord_wire.forensics.marshal.reader import ClaimRules, Part
from kcoord_wire.forensics.model import Finding, LogRow
from tests.support.marshal_rows import NOW, generated_log, log_rows, table

S = 1_000_000_000


def events_of(rows: list[LogRow], size: int, judge: ClaimRules) -> list[Part]:
    """The rows of one partition, in batches of that size, the state pickled between them."""
    reader, found = LiveReader(rows[0].partition, judge), []
    for start in range(0, len(rows), size):
        for row in rows[start : start + size]:
            reader.read(row.offset, row.time_ns, row.is_append_time, row.value, row.source, row.position)
        found += reader.events()
        reader = pickle.loads(pickle.dumps(reader))
    return found


def claimed(partition: int, who: str, since: int, until: int, *, released: bool = True) -> list[tuple[float, str]]:
    ids = f"i-{who}/{who}/g/t/{partition}"
    beats = [(second + 0.1, f"Heartbeat/1/{{}}/{ids}/7") for second in range(since, until, 20)]
    return [
        (since, f"ClaimingPartition/1/{{}}/{ids}"),
        *beats,
        *([(until, f"ReleasingPartition/1/{{}}/{ids}/8")] * released),
    ]


def findings(*lines: list[tuple[float, str]]) -> list[Finding]:
    rows = log_rows(sorted(line for each in lines for line in each))
    return [part.finding for part in events_of(rows, 10, ClaimRules()) if part.finding is not None]


@pytest.mark.parametrize("rules", ["document", "library"])
def test_batches_of_any_size_have_the_same_rows(rules: str) -> None:
    for seed in range(4):
        rows = [row for row in generated_log(seed, members=4) if row.partition == 2]
        whole, *others = (sorted(map(repr, events_of(rows, size, ClaimRules(rules)))) for size in (len(rows), 1, 7, 50))
        assert all(other == whole for other in others)


@pytest.mark.parametrize("rules", ["document", "library"])
def test_claims_and_pauses_are_those_of_the_history(rules: str) -> None:
    judge = ClaimRules(rules)
    for seed in range(4):
        rows = [row for row in generated_log(seed) if row.partition == 1]
        histories, losses = marshal_histories(table(rows), judge)
        found = events_of(rows, 40, judge)
        ended = [repr(claim) for item in histories for claim in item.claims if claim.to_ns is not None]
        assert sorted(ended) == sorted(repr(part.claim) for part in found if part.claim)
        fields = ("group_id", "topic", "partition", "from_ns", "to_ns", "former_member_id", "next_member_id")
        over = [row for item in histories for row in item.pauses if row.to_ns is not None]
        streamed = [part.unowned for part in found if part.unowned]
        assert Counter(tuple(getattr(row, name) for name in fields) for row in over) == Counter(
            tuple(getattr(row, name) for name in fields) for row in streamed
        )
        assert [loss.what for loss in losses] == [part.loss.what for part in found if part.loss]


def test_a_released_partition_is_reported_after_an_interval() -> None:
    [finding] = findings(claimed(0, "a", 0, 100), claimed(1, "b", 0, 300, released=False))
    assert (finding.detector, finding.value, finding.from_ns) == ("released_not_reclaimed", 60.0, (NOW + 100) * S)


def test_a_stale_partition_is_reported_after_an_interval() -> None:
    [finding] = findings(claimed(0, "a", 0, 100, released=False), claimed(1, "b", 0, 500, released=False))
    assert (finding.detector, finding.value) == ("unclaimed_partition", 60.0)


def test_a_partition_is_reported_again_when_it_is_free_again() -> None:
    found = findings(claimed(0, "a", 0, 100), claimed(0, "c", 200, 250), claimed(1, "b", 0, 500, released=False))
    assert [finding.from_ns // S - NOW for finding in found if finding.detector == "released_not_reclaimed"] == [
        100,
        250,
    ]


def test_gaps_of_a_moment_and_stopped_groups_are_no_findings() -> None:
    assert findings(claimed(0, "a", 0, 100), claimed(0, "b", 130, 300), claimed(1, "c", 0, 300)) == []
    late = [(900.0, "Presence/1/{}/i-z/z/g/t/0/5")]
    assert findings(claimed(0, "a", 0, 100), claimed(1, "b", 0, 100), late) == []


def test_instances_with_one_client_id_are_reported_at_their_end() -> None:
    twins = [
        (second + n / 10, f"Heartbeat/1/{{}}/i{n}/twin/g/t/{n}/0") for second in range(0, 100, 5) for n in range(2)
    ]
    late = [(900.0, "Presence/1/{}/i-z/z/g/t/0/5")]
    [finding] = [each for each in findings(twins, late) if each.detector == "client_id_reuse"]
    assert (finding.subject, finding.value) == ("twin", 94.9)


def test_a_clock_that_is_ahead_is_reported_at_its_end() -> None:
    ahead = [(float(second), "Heartbeat/1/{+9}/i/c/g/t/0/0") for second in range(5)]
    late = [(900.0, "Presence/1/{}/i-z/z/g/t/0/5")]
    assert [each.detector for each in findings(ahead, late)] == ["clock_skew"]
