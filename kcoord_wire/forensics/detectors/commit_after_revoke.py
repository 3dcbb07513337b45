"""Commit after revoke: a member commits offsets of partitions that it does not hold any more.

Either the coordinator refuses the commit (see `REFUSALS`): then the records since the last commit are processed twice.
Or it accepts the commit, because the group is still joining, or because the member is in the new generation: the
coordinator does not check which partitions it owns there. Then the commit may set back what the next owner committed.

Normal is none: a consumer commits in onPartitionsRevoked, before it rejoins. So a partition counts as lost from the
member's next JoinGroup on, or once another member holds it, not from the assignment that takes it away. Threshold: 1
refused commit of a member that had lost its place (info where it only came too early, REBALANCE_IN_PROGRESS), 1
accepted commit of a lost partition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from kcoord_wire.forensics.detectors.found import MAX_EVIDENCE, Found, client_of
from kcoord_wire.forensics.model import Evidence, GroupHistory, Ownership
from kcoord_wire.protocol.error_codes import ErrorCode

THRESHOLD: Final = 1
REFUSALS: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}
    | {ErrorCode.FENCED_INSTANCE_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH}
)
"""Error codes with which the coordinator refuses the commit of a member that has lost its place."""

_NO_END: Final = np.iinfo(np.int64).max
_REFUSED: Final = "refused: what it had read since is read again"
_ACCEPTED: Final = "of partitions that it had lost, and accepted: they may undo those of the next owner"
_ADVICE: Final = (
    "Commit in onPartitionsRevoked and nowhere later; stop the work on a partition before it is given up. A client "
    "that is refused was too slow: see why it lost its place."
)

_Commits = list[tuple[Evidence, int]]
"""Commits of one client, each with the number of offsets concerned."""


def find(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding per client for refused commits, and one for accepted ones."""
    if exchanges is None or not exchanges.num_rows:
        return
    names = {life.member_id: client_of(life) for life in history.members}
    held = _Held(history, _joins(exchanges))
    refused: dict[str, _Commits] = defaultdict(list)
    accepted: dict[str, _Commits] = defaultdict(list)
    displaced: set[str] = set()  # refused with more than that a rebalance is under way
    for row in _suspects(history, exchanges):
        name = names.get(row["member_id"], row["client_id"] or row["member_id"])
        if row["error_code"] in REFUSALS:
            code = ErrorCode(row["error_code"])
            refused[name].append(_commit(row, f"in generation {row['generation_id']}: {code.name}", name))
            displaced |= {name} if code != ErrorCode.REBALANCE_IN_PROGRESS else set()
        elif lost := held.lost_of(row):
            accepted[name].append(
                _commit(row, f"{lost[0]['topic']}-{lost[0]['partition']}, which it has lost", name, lost)
            )
    for name, commits in sorted(refused.items()):
        yield _found(history, name, commits, "warning" if name in displaced else "info", _REFUSED)
    for name, commits in sorted(accepted.items()):
        yield _found(history, name, commits, "critical", _ACCEPTED)


def _commit(row: dict[str, Any], what: str, name: str, offsets: list[Any] | None = None) -> tuple[Evidence, int]:
    """Return the evidence of a commit, and how many of its offsets it is about: `offsets`, or all."""
    count = len(row["offsets"] or ()) if offsets is None else len(offsets)
    return Evidence(row["asked_ns"], row["source"], row["seq"], f"{name} commits {what}"), count


def _joins(exchanges: pa.Table) -> dict[str, list[int]]:
    joins: dict[str, list[int]] = defaultdict(list)
    rows = exchanges.filter(pc.equal(exchanges["api"], "JoinGroup")).select(["member_id", "asked_ns"])
    for row in rows.sort_by("asked_ns").to_pylist():
        joins[row["member_id"]].append(row["asked_ns"])
    return joins


class _Held:
    """Who held each partition, and until when."""

    def __init__(self, history: GroupHistory, joins: dict[str, list[int]]) -> None:
        self._joins = joins
        self._spans: dict[tuple[str, int], list[Ownership]] = defaultdict(list)
        for row in sorted(history.ownership, key=lambda row: row.from_ns):
            self._spans[row.topic, row.partition].append(row)

    def lost_of(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the offsets of an accepted commit whose partitions the member had lost."""
        offsets = [] if row["error_code"] else row["offsets"] or []
        return [o for o in offsets if self._was_lost(row["member_id"], (o["topic"], o["partition"]), row["asked_ns"])]

    def _was_lost(self, member_id: str, place: tuple[str, int], at_ns: int) -> bool:
        """Whether the member had held the partition before, and has rejoined without it, or another holds it."""
        spans = self._spans.get(place, [])
        begun = spans[: bisect_right(spans, at_ns, key=lambda span: span.from_ns)]
        last = next((span for span in reversed(begun) if span.member_id == member_id), None)
        if last is None or last.to_ns is None:
            return False
        if begun[-1].member_id != member_id and (begun[-1].to_ns is None or begun[-1].to_ns > at_ns):
            return True
        joins = self._joins.get(member_id, [])
        rejoined = bisect_left(joins, last.to_ns)
        return rejoined < len(joins) and joins[rejoined] < at_ns


def _suspects(history: GroupHistory, exchanges: pa.Table) -> list[dict[str, Any]]:
    """Return commits that were refused, that fell into a rebalance, or that name a partition another member holds.

    A rebalance matters because a cooperative member commits, between its assignment and its next join, what it gives
    up; that partition has no owner then.
    """
    columns = ["asked_ns", "source", "seq", "member_id", "client_id", "generation_id", "error_code", "offsets"]
    commits = exchanges.filter(pc.equal(exchanges["api"], "OffsetCommit")).select(columns)
    suspicious = pc.is_in(pc.fill_null(commits["error_code"], 0), pa.array(sorted(map(int, REFUSALS)), pa.int16()))
    for rebalance in history.rebalances:
        end = history.group.last_ns if rebalance.ended_ns is None else rebalance.ended_ns
        is_after = pc.greater_equal(commits["asked_ns"], rebalance.started_ns)
        suspicious = pc.or_(suspicious, pc.and_(is_after, pc.less_equal(commits["asked_ns"], end)))
    suspicious = pc.or_(suspicious, pa.array(_held_by_others(history.ownership, commits)))
    # A commit without a member id is from a tool, or from a consumer that assigns partitions to itself.
    suspicious = pc.and_(suspicious, pc.not_equal(commits["member_id"], ""))
    rows: list[dict[str, Any]] = commits.filter(suspicious).to_pylist()
    return sorted(rows, key=lambda row: (row["asked_ns"], row["source"], row["seq"]))


def _held_by_others(held: list[Ownership], commits: pa.Table) -> NDArray[np.bool_]:
    """Return, per commit, whether it names a partition that another member holds at that time.

    There may be millions of offsets, so none is looked up by itself: holdings and offsets become one column, holdings
    first, sorted by partition and time; the last holding before an offset is the one that may be another's.
    """
    found = np.zeros(len(commits), np.bool_)
    lists = pc.fill_null(commits["offsets"].combine_chunks(), [])
    offsets = pc.list_flatten(lists)
    if not held or not len(offsets):
        return found
    commit_of = pc.list_parent_indices(lists).to_numpy()
    topics = _numbered([row.topic for row in held], pc.fill_null(offsets.field("topic"), ""))
    members = _numbered([row.member_id for row in held], commits["member_id"].take(commit_of).combine_chunks())
    partitions = np.concatenate([[row.partition for row in held], pc.fill_null(offsets.field("partition"), -1)])
    place = topics.astype(np.int64) << 32 | partitions.astype(np.int64)
    at = np.concatenate([[row.from_ns for row in held], commits["asked_ns"].to_numpy()[commit_of]]).astype(np.int64)
    ends = np.array([_NO_END if row.to_ns is None else row.to_ns for row in held], np.int64)
    order = np.lexsort((np.arange(len(at)), at, place))
    last = np.maximum.accumulate(np.where(order < len(held), np.arange(len(order)), -1))
    holding = order[last]
    is_anothers = (order >= len(held)) & (last >= 0)
    is_anothers &= (place[holding] == place[order]) & (members[holding] != members[order])
    is_anothers &= ends[np.minimum(holding, len(held) - 1)] > at[order]
    found[commit_of[order[is_anothers] - len(held)]] = True
    return found


def _numbered(names: list[str], more: pa.Array) -> NDArray[np.int32]:
    """Return a number for each of the names and of `more`, the same for the same name."""
    both = pa.chunked_array([pa.array(names, pa.string()), more.cast(pa.string())])
    numbers: NDArray[np.int32] = pc.dictionary_encode(both).combine_chunks().indices.to_numpy()
    return numbers


def _found(history: GroupHistory, name: str, commits: _Commits, severity: str, outcome: str) -> Found:
    evidence = [item for item, _ in commits]
    times, offsets = len(commits), sum(count for _, count in commits)
    were = "were" if times > 1 else "was"
    return Found(
        severity=severity,
        from_ns=evidence[0].time_ns,
        to_ns=evidence[-1].time_ns,
        subject=name,
        text=f"{times} commit{'s' * (times > 1)} of {name} ({offsets} offset{'s' * (offsets > 1)}) {were} {outcome}",
        advice=_ADVICE,
        value=float(times),
        threshold=float(THRESHOLD),
        rebalances=[
            rebalance.number
            for rebalance in history.rebalances
            if any(rebalance.started_ns <= e.time_ns <= (rebalance.ended_ns or e.time_ns) for e in evidence)
        ],
        evidence=evidence[:MAX_EVIDENCE],
    )
