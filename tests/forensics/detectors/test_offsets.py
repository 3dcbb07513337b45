"""The detector commit_after_revoke on a group with the problem, and on groups that only look like it.

Positions that were set: who, from where to where, how many records, and that reading on is none.

A record that is read again and again, and responses that are cut off each time.

Partitions that their owner leaves behind while it reads others; not those of which no reader is seen.

The detector assigned_not_read: partitions of an assignment whose offsets are never fetched.
"""

from __future__ import annotations

from typing import Any

import pytest

from kcoord_wire.forensics.detectors import detect
from kcoord_wire.forensics.model import (
    Clock,
    Exchange,
    Hole,
    Lag,
    OffsetReset,
    OffsetsCommitted,
    Reread,
    ResetKind,
    table_of,
)
from kcoord_wire.protocol.error_codes import ErrorCode
from tests.support.detector_groups import SECOND, exchange, given, group, held, leader_join, life, of, rebalance


def commit(at_s: float, partition: int, error: int = 0, **more: Any) -> Exchange:
    offsets = [OffsetsCommitted("orders", partition, 7, error)]
    return exchange("OffsetCommit", at_s, offsets=offsets, error_code=error, **more)


def test_commit_after_revoke_refused_and_accepted() -> None:
    history = group(
        rebalances=[rebalance(1, 100), rebalance(2, 200)],
        members=[life("c1"), life("c2")],
        ownership=[held("c1", 0, 0, 100), held("c1", 1, 0, None), held("c2", 0, 102)],
    )
    rejoins = [exchange("JoinGroup", at) for at in (1, 100)]
    rows = [
        *rejoins,
        commit(50, 0),
        commit(100, 0),
        commit(101, 0),
        commit(101.5, 1),
        commit(150, 0, 22),
        commit(160, 0, 22, member_id=""),
    ]
    found = of("commit_after_revoke", history, rows)
    assert [(f.subject, f.severity, f.value) for f in found] == [("c1", "warning", 1), ("c1", "critical", 1)]
    assert found[1].evidence[0].text == "c1 commits orders-0, which it has lost"
    assert found[1].rebalances == [1]
    assert of("commit_after_revoke", history, [*rejoins, commit(99, 0), commit(150, 1)]) == []
    giving_up = [
        exchange("JoinGroup", at) for at in (1, 101.2)
    ]  # cooperative: the assignment took it, then it rejoined
    assert of("commit_after_revoke", history, [*giving_up, commit(100.5, 0)]) == []
    assert len(of("commit_after_revoke", history, [*giving_up, commit(101.5, 0)])) == 1
    assert of("commit_after_revoke", history, []) == []
    for hole_s, count in ((95, 0), (100.5, 0), (50, 1), (130, 1)):
        history.holes = [Hole("billing", int(hole_s * SECOND), int(hole_s * SECOND), "", None, [], "")]
        accepted = of("commit_after_revoke", history, [*rejoins, commit(101, 0)])
        assert len(accepted) == count, "an assignment that the source lacks may have given it back"


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (25, "had removed it"), (22, "gone on without it"), (27, "onPartitionsRevoked"), (110, "had fenced it"),
        (113, "epoch"),
    ],
)  # fmt: skip
def test_a_refused_commit_follows_from_the_removal(code: int, word: str) -> None:
    removed = life("c1", 0, 100, why_left="session timeout")
    (found,) = of("commit_after_revoke", group(members=[removed]), [commit(150, 0, code)])
    assert found.severity == "info"
    assert found.text == (
        "1 commit of c1 (1 offset) was refused; this follows from its removal at 00:01:40 UTC (session timeout) "
        f"({ErrorCode(code).name})"
    )
    assert word in found.advice
    (found,) = of("commit_after_revoke", group(members=[life("c1")]), [commit(150, 0, code)])
    assert found.severity == ("info" if code == ErrorCode.REBALANCE_IN_PROGRESS else "warning")


def test_commit_of_a_partition_that_another_member_holds() -> None:
    """A worker goes on with a partition that its member has lost; a cooperative member commits what it gives up."""
    history = group(
        members=[life("c1"), life("c2")],
        ownership=[held("c1", 0, 0, 100), held("c1", 1, 0), held("c2", 2, 0), held("c2", 0, 105, 200)],
    )
    gives_up, own, late, freed = commit(101, 0), commit(150, 1), commit(151, 0), commit(201, 0)
    nothing = exchange("OffsetCommit", 152, offsets=[])
    (found,) = of("commit_after_revoke", history, [gives_up, own, late, freed, nothing])
    assert (found.subject, found.severity, found.value) == ("c1", "critical", 1)
    assert [item.time_ns for item in found.evidence] == [151 * SECOND]
    never_held = commit(160, 2)
    assert of("commit_after_revoke", history, [gives_up, own, freed, never_held]) == []


@pytest.mark.parametrize(("at_s", "is_corrected", "count"), [(2.4, True, 0), (2.5, True, 1), (2.4, False, 1)])
def test_corrected_clocks_may_still_differ(at_s: float, is_corrected: bool, count: int) -> None:
    """The next owner has the partition from second 2 on, by the clock of another source."""
    history = group(members=[life("c1"), life("c2")], ownership=[held("c1", 0, 0, 1), held("c2", 0, 2)])
    clocks = [Clock("b.pcap", "a.pcap", SECOND, "", is_exact=False)] if is_corrected else []
    found = detect(history, table_of(Exchange, [commit(at_s, 0)]), clocks=clocks)
    assert [each.detector for each in found].count("commit_after_revoke") == count


def reset(partition: int, at_s: float, kind: ResetKind, before: int, after: int | None, who: str = "c9") -> OffsetReset:
    return OffsetReset("billing", "orders", partition, int(at_s * SECOND), kind, before, after, who, "10.0.0.9", None)


def test_an_operators_reset_is_one_finding_with_from_and_to() -> None:
    resets = [reset(n, 7, ResetKind.ADMIN, 500, 0) for n in range(4)]
    [found] = of("offset_reset", group(resets=resets))
    assert found.text == (
        "c9 (10.0.0.9), no member of the group, set the committed offset of 4 partitions: orders-0 from 500 to 0, "
        "orders-1 from 500 to 0, orders-2 from 500 to 0 and 1 more; 2,000 records are read again."
    )
    assert (found.severity, found.subject, found.value, found.from_ns) == ("warning", "c9", 4.0, 7 * SECOND)
    assert "--reset-offsets" in found.advice
    assert len(found.evidence) == 4


def test_resets_of_other_clients_kinds_and_times_stay_apart() -> None:
    resets = [
        reset(0, 1, ResetKind.ADMIN, 500, 0),
        reset(1, 1, ResetKind.ADMIN, 500, 0, who="c8"),
        reset(2, 1, ResetKind.COMMIT, 500, 0),
        reset(3, 30, ResetKind.ADMIN, 500, 0),
        reset(3, 31, ResetKind.ADMIN, 600, 0),
    ]
    assert len(of("offset_reset", group(resets=resets))) == 5


def test_skipped_records_are_counted_and_gone_offsets_named() -> None:
    found = of(
        "offset_reset",
        group(
            resets=[
                reset(0, 1, ResetKind.OUT_OF_RANGE, 100, 350),
                reset(1, 2, ResetKind.UNSEEN, 500, None),
                reset(1, 90, ResetKind.SEEK, 500, 400),
            ]
        ),
    )
    by_kind = {each.from_ns: each for each in found}
    assert "250 records are skipped" in by_kind[SECOND].text
    assert "from 500 to none" in by_kind[2 * SECOND].text
    assert by_kind[90 * SECOND].severity == "info"


def test_a_group_without_resets_has_no_finding() -> None:
    assert of("offset_reset", group()) == []


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


HISTORY = group(100, members=[life("c1"), life("c2")])
ROUND = [leader_join("c1", 10, 5, {"c1": ({"orders": [0]}, 4)}), given("c1", 11, 5, {"c1": {"orders": [0, 1, 2]}})]


def fetch(at_s: float, *numbers: int, api: str = "OffsetFetch", **more: object) -> Exchange:
    return exchange(api, at_s, member_id="", offsets=[OffsetsCommitted("orders", n, 7, 0) for n in numbers], **more)


@pytest.mark.parametrize(
    ("rows", "missing"),
    [
        ([fetch(12, 1, 2)], []),
        ([fetch(12, 1), fetch(13, 2)], []),
        ([fetch(12, 1), fetch(13, 2, api="OffsetCommit")], []),
        ([fetch(12, 2)], ["orders-1"]),
        ([fetch(12, 0, api="OffsetCommit")], ["orders-1", "orders-2"]),
        ([], []),  # the capture may not have its fetches, or it keeps offsets elsewhere
        ([fetch(12, 1, 2, client_id="c2")], []),
    ],
)
def test_partitions_that_are_left_out_are_found(rows: list[Exchange], missing: list[str]) -> None:
    findings = of("assigned_not_read", HISTORY, [*ROUND, *rows])
    assert [finding.text for finding in findings] == (
        [
            f"{len(missing)} partition{'s are' if len(missing) > 1 else ' is'} assigned to c1 and not read: "
            f"{', '.join(missing)}"
        ]
        if missing
        else []
    )


def test_a_generation_that_is_over_soon_proves_nothing() -> None:
    following = leader_join("c1", 19, 6, {"c1": ({"orders": [0]}, 5)})
    assert of("assigned_not_read", HISTORY, [*ROUND, fetch(12, 2), following]) == []


@pytest.mark.parametrize(("assignor", "missing"), [("range", []), ("cooperative-sticky", ["orders-1"])])
def test_positions_are_kept_in_eager_groups_alone(assignor: str, missing: list[str]) -> None:
    """A member that claims nothing is given again what it had, and fetches the offset of the new partition only."""
    rows = [
        leader_join("c1", 10, 5, {"c1": ({}, -1)}, assignor), given("c1", 11, 5, {"c1": {"orders": [1]}}), fetch(12, 1),
        leader_join("c1", 40, 6, {"c1": ({}, -1)}, assignor), given("c1", 41, 6, {"c1": {"orders": [1, 2]}}),
        fetch(42, 2),
    ]  # fmt: skip
    findings = of("assigned_not_read", HISTORY, rows)
    assert [finding.text.rpartition(": ")[2] for finding in findings] == missing


def reread(partition: int, offset: int, times: int, to_s: float, cut_off: int = 0, owner: str = "c1") -> Reread:
    span = (int(10 * SECOND), int(to_s * SECOND))
    return Reread("billing", "orders", partition, offset, *span, times, 7_333, cut_off, f"{owner}-id", owner)


def test_a_record_that_cannot_be_processed() -> None:
    rows = ordered(reading(0, 90), [row(1, s, 50 * s, 60, 60) for s in range(1, 90)])
    history = group(
        90,
        lag=rows,
        members=[life("c1")],
        rereads=[reread(1, 60, 42, 60)],
        resets=[reset(1, s, ResetKind.SEEK, 61, 60, "c1") for s in range(10, 60)],
    )
    [found] = of("same_offset", history)
    assert (found.severity, found.subject, found.to_ns) == ("warning", "orders-1", 60 * SECOND)
    assert found.text == (
        "c1 reads offset 60 of orders-1 again and again (42 times in 50.0 s): it takes its position back to a record "
        "that it cannot process, 2,990 records from the end"
    )
    assert "--partition 1 --offset 60 --max-messages 1" in found.advice
    assert found.cost_ms == 50_000
    assert of("stuck_partition", history) == []
    assert of("offset_reset", history) == []


def test_retries_that_end_within_seconds_are_mentioned() -> None:
    [found] = of("same_offset", group(90, members=[life("c1")], rereads=[reread(1, 60, 9, 16)]))
    assert found.severity == "info"
    assert of("same_offset", group(90, rereads=[reread(1, 60, 3, 60), reread(1, 60, 9, 12)])) == []


def test_responses_larger_than_the_client_takes() -> None:
    rows = ordered(*([row(n, s, 50 * s, 0, None) for s in range(1, 90)] for n in range(3)))
    history = group(
        90,
        lag=rows,
        members=[life("c1")],
        ownership=[held("c1", n) for n in range(3)],
        rereads=[reread(0, 0, 60, 80, 60), reread(1, 0, 20, 80, 19)],
    )
    [found] = of("same_offset", history)
    assert found.text == (
        "c1 fetches offset 0 of orders-0 again and again and never gets on (60 times in 70.0 s): it ends its "
        "connection after each response, which carries 7,333 bytes of records, more than it takes; the same of orders-1"
    )
    assert of("stuck_partition", history) == []
