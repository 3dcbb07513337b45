"""The detector commit_after_revoke on a group with the problem, and on groups that only look like it."""

from __future__ import annotations

from typing import Any

from kcoord_wire.forensics.model import (
    Exchange,
    OffsetsCommitted,
)
from tests.support.detector_groups import SECOND, exchange, group, held, life, of, rebalance


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
