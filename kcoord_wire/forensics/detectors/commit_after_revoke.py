"""Commit after revoke: a member commits offsets of partitions that it does not hold any more.

Either the coordinator refuses it (ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, FENCED_INSTANCE_ID,
FENCED or STALE_MEMBER_EPOCH): then the records since the last commit come twice. Or it accepts it, because the group is
still joining, or because the member is in the new generation: nobody asks what it holds there. Then it may set back
what the next owner has committed.

Normal is none: a consumer commits in onPartitionsRevoked, before it rejoins, and so a partition counts as lost from the
member's next JoinGroup on, or once another member holds it, not from the assignment that takes it away. Threshold: 1
refused commit of a member that had lost its place (told as info where it was only too early: REBALANCE_IN_PROGRESS), 1
accepted one of a lost partition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.error_codes import ErrorCode
from kcoord_wire.forensics.model import Evidence, Finding, GroupHistory, Ownership

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["REFUSALS", "THRESHOLD", "find"]

THRESHOLD: Final = 1
_LATER: Final = 1 << 62
REFUSALS: Final = frozenset({22, 25, 27, 82, 110, 113})


def find(history: GroupHistory, exchanges: pa.Table | None = None) -> Iterator[Finding]:
    """One finding a client, for refused and for accepted commits apart."""
    if exchanges is None or not exchanges.num_rows:
        return
    names = {life.member_id: life.client_id or life.member_id for life in history.members}
    refused: dict[str, list[tuple[Evidence, int]]] = {}
    accepted: dict[str, list[tuple[Evidence, int]]] = {}
    patient: set[str] = set()  # who was only told that a rebalance is under way, and kept its place
    held = _Held(history, _joins(exchanges))
    for row in _suspects(history, exchanges):
        member = row["member_id"]
        if not member:
            continue  # an offset of nobody: a tool, or a consumer that assigns itself
        name = names.get(member, row["client_id"] or member)
        code = row["error_code"] or 0
        if code in REFUSALS:
            text = f"{name} commits in generation {row['generation_id']}: {ErrorCode(code).name}"
            if code == ErrorCode.REBALANCE_IN_PROGRESS and (name in patient or name not in refused):
                patient.add(name)
            else:
                patient.discard(name)
            refused.setdefault(name, []).append((_evidence(row, text), len(row["offsets"] or ())))
        elif code == 0:
            lost = [
                o for o in row["offsets"] or () if held.was_lost(member, o["topic"], o["partition"], row["asked_ns"])
            ]
            if lost:
                text = f"{name} commits {lost[0]['topic']}-{lost[0]['partition']}, which it has lost"
                accepted.setdefault(name, []).append((_evidence(row, text), len(lost)))
    for name, commits in sorted(refused.items()):
        told = "refused: what it had read since is read again"
        yield _finding(history, name, commits, "info" if name in patient else "warning", told)
    for name, commits in sorted(accepted.items()):
        told = "of partitions that it had lost, and accepted: they may undo those of the next owner"
        yield _finding(history, name, commits, "critical", told)


def _joins(exchanges: pa.Table) -> dict[str, list[int]]:
    """When each member sent its JoinGroups."""
    import pyarrow.compute as pc

    joins: dict[str, list[int]] = {}
    rows = exchanges.filter(pc.equal(exchanges["api"], "JoinGroup")).select(["member_id", "asked_ns"])
    for row in rows.sort_by("asked_ns").to_pylist():
        joins.setdefault(row["member_id"], []).append(row["asked_ns"])
    return joins


class _Held:
    """Who held what, and until when."""

    def __init__(self, history: GroupHistory, joins: dict[str, list[int]]) -> None:
        self._joins = joins
        self._spans: dict[tuple[str, int], list[Ownership]] = {}
        for row in sorted(history.ownership, key=lambda row: row.from_ns):
            self._spans.setdefault((row.topic, row.partition), []).append(row)

    def was_lost(self, member_id: str, topic: str, partition: int, at_ns: int) -> bool:
        """Whether the member had held the partition before, and has rejoined without it, or another holds it."""
        spans = self._spans.get((topic, partition), [])
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
    """Commits that were refused, those that fell into a rebalance, and those of a partition that another holds. Between
    its assignment and its next join a cooperative member commits what it gives up, which nobody holds then."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = ["asked_ns", "source", "seq", "member_id", "client_id", "generation_id", "error_code", "offsets"]
    commits = exchanges.filter(pc.equal(exchanges["api"], "OffsetCommit")).select(columns)
    suspicious = pc.is_in(pc.fill_null(commits["error_code"], 0), pa.array(sorted(REFUSALS), pa.int16()))
    for rebalance in history.rebalances:
        end = history.group.last_ns if rebalance.ended_ns is None else rebalance.ended_ns
        inside = pc.and_(
            pc.greater_equal(commits["asked_ns"], rebalance.started_ns), pc.less_equal(commits["asked_ns"], end)
        )
        suspicious = pc.or_(suspicious, inside)
    suspicious = pc.or_(suspicious, pa.array(_held_by_others(history, commits)))
    rows: list[dict[str, Any]] = commits.filter(suspicious).to_pylist()
    return sorted(rows, key=lambda row: (row["asked_ns"], row["source"], row["seq"]))


def _held_by_others(history: GroupHistory, commits: pa.Table) -> np.ndarray[Any, Any]:
    """By commit, whether it names a partition that another member holds at that time.

    Holdings and commits are sorted into one column by partition and time: what stands last before a commit holds it.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    found = np.zeros(len(commits), dtype=bool)
    held = history.ownership
    lists = pc.fill_null(commits["offsets"].combine_chunks(), [])
    flat = pc.list_flatten(lists)
    if not held or not len(flat):
        return found
    parents = pc.list_parent_indices(lists).to_numpy()
    topics = pa.chunked_array([pa.array([row.topic for row in held]), pc.fill_null(flat.field("topic"), "")])
    members = pa.chunked_array(
        [pa.array([row.member_id for row in held]), commits["member_id"].take(parents).cast("string").combine_chunks()]
    )
    numbers = [np.array([row.partition for row in held]), pc.fill_null(flat.field("partition"), -1).to_numpy()]
    place = pc.dictionary_encode(topics).combine_chunks().indices.to_numpy().astype(np.int64) << 32 | np.concatenate(
        numbers
    )
    who = pc.dictionary_encode(members).combine_chunks().indices.to_numpy()
    at = np.concatenate([np.array([row.from_ns for row in held]), commits["asked_ns"].to_numpy()[parents]])
    ends = np.array([_LATER if row.to_ns is None else row.to_ns for row in held])
    order = np.lexsort((np.arange(len(at)), at, place))
    last = np.maximum.accumulate(np.where(order < len(held), np.arange(len(order)), -1))
    holder, commit = order[last], order
    taken = (commit >= len(held)) & (last >= 0) & (place[holder] == place[commit]) & (who[holder] != who[commit])
    taken &= ends[np.minimum(holder, len(held) - 1)] > at[commit]
    found[parents[commit[taken] - len(held)]] = True
    return found


def _evidence(row: dict[str, Any], text: str) -> Evidence:
    return Evidence(row["asked_ns"], row["source"], row["seq"], text)


def _finding(
    history: GroupHistory, name: str, commits: list[tuple[Evidence, int]], severity: str, told: str
) -> Finding:
    evidence = [item for item, _ in commits]
    times, offsets = len(commits), sum(count for _, count in commits)
    were = "were" if times > 1 else "was"
    return Finding(
        history.group.group_id,
        "commit_after_revoke",
        severity,
        evidence[0].time_ns,
        evidence[-1].time_ns,
        name,
        f"{times} commit{'s' * (times > 1)} of {name} ({offsets} offset{'s' * (offsets > 1)}) {were} {told}",
        "Commit in onPartitionsRevoked and nowhere later; stop the work on a partition before it is given up. A client "
        "that is refused was too slow: see why it lost its place.",
        float(len(commits)),
        float(THRESHOLD),
        sorted(
            {
                r.number
                for r in history.rebalances
                for e in evidence
                if r.started_ns <= e.time_ns <= (r.ended_ns or e.time_ns)
            }
        ),
        evidence[:10],
    )
