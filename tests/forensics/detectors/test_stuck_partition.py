"""Partitions that their owner leaves behind while it reads others; not those of which no reader is seen."""

from __future__ import annotations

from kcoord_wire.forensics.model import Lag
from tests.support.detector_groups import SECOND, group, life, of


def row(partition: int, at_s: float, end: int, fetch: int | None, committed: int | None = 10, owner: str = "c1") -> Lag:
    member = f"{owner}-id" if owner else None
    return Lag("billing", "orders", partition, int(at_s * SECOND), committed, fetch, end, None, member)


def reading(partition: int, seconds: int, owner: str = "c1") -> list[Lag]:
    return [row(partition, s, 100 * s, 100 * s, 100 * s, owner) for s in range(seconds)]


def ordered(*rows: list[Lag]) -> list[Lag]:
    return sorted((each for some in rows for each in some), key=lambda each: each.time_ns)


def test_a_partition_that_its_owner_never_reads_is_stuck() -> None:
    rows = ordered(reading(0, 90), [row(1, s, 50 * s, None) for s in range(1, 90)])
    [found] = of("stuck_partition", group(90, lag=rows, members=[life("c1")]))
    assert (found.severity, found.subject, found.to_ns) == ("critical", "orders-1", None)
    assert "c1 has partition orders-1 and does not read it" in found.text
    assert "4,400 records came" in found.text
    assert found.value == 88.0


def test_one_that_it_has_read_before_is_a_warning() -> None:
    rows = ordered(reading(0, 40), [row(1, s, 50 * s, 20) for s in range(1, 20)])
    [found] = of("stuck_partition", group(90, lag=rows, members=[life("c1")]))
    assert (found.severity, found.to_ns) == ("warning", 19 * SECOND)


def test_a_member_that_reads_nothing_any_more_is_a_warning() -> None:
    rows = [row(1, s, 50 * s, 20) for s in range(1, 90)]
    [found] = of("stuck_partition", group(90, lag=rows, members=[life("c1")]))
    assert (found.severity, found.subject) == ("warning", "orders-1")
    assert found.text.endswith("while it read nothing else and stayed a member.")
    assert "thread dump" in found.advice


def test_what_is_no_stuck_partition() -> None:
    members = [life("c1"), life("c2")]
    still = [row(1, s, 50 * s, None) for s in range(1, 40)]
    assert of("stuck_partition", group(lag=still, members=members)) == [], "the owner is not seen to read anything"
    batch = [row(1, s, 50 * s, 20) for s in range(1, 30)]
    assert of("stuck_partition", group(lag=batch, members=members)) == [], "28 seconds between two fetches"
    other = ordered(reading(0, 40, "c2"), still)
    assert of("stuck_partition", group(lag=other, members=members)) == [], "another member reads"
    idle = ordered(reading(0, 40), [row(1, s, 20, 20) for s in range(40)])
    assert of("stuck_partition", group(lag=idle, members=members)) == [], "it has read everything"
    short = ordered(reading(0, 40), [row(1, s, 50 * s, 20) for s in range(1, 10)])
    assert of("stuck_partition", group(lag=short, members=members)) == [], "nine seconds"
    free = ordered(reading(0, 40), [row(1, s, 50 * s, None, owner="") for s in range(1, 40)])
    assert of("stuck_partition", group(lag=free, members=members)) == [], "it has no owner"
