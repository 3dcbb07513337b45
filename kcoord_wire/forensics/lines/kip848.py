"""A group of KIP-848 as its coordinator logs it: who joined or left, then ``Bumped group epoch``, then the target.

A rebalance begins with the line that names the member, or with the bump, and its joins are over when the target
assignment is computed. Which member reached the epoch when, only brokers before 4.1 log at INFO; otherwise the end of a
rebalance is not known.
"""

from __future__ import annotations

from typing import Final

from kcoord_wire.forensics.lines.tables import GroupTables, evidence_of
from kcoord_wire.forensics.model import NS_PER_MS, Cause, Generation, Identity, LogLine, end_rebalance

_CAUSES: Final = {
    "epoch_joined": (Cause.NEW_MEMBER, "joined"),
    "epoch_left": (Cause.MEMBER_LEFT, "left"),
    "epoch_fenced": (Cause.SESSION_EXPIRED, "was removed"),
    "epoch_replaced": (Cause.STATIC_REPLACED, "took the place of a static member"),
    "epoch_subscribed": (Cause.SUBSCRIPTION_CHANGED, "changed its subscription"),
    "epoch_topics": (Cause.TOPICS_CHANGED, ""),
}
_TRANSITION: Final = "failed to transition"
_LIKELY: Final = 0.6


class Kip848Lines:
    """Reads the lines of brokers about one group of KIP-848, in order of time."""

    def __init__(self, tables: GroupTables) -> None:
        self._tables = tables
        self._before: LogLine | None = None  # what the next epoch follows from

    def read(self, row: LogLine) -> None:
        """Read one line; of kinds that say nothing of a group of KIP-848, nothing."""
        if row.kind in _CAUSES:
            self._before = row
            self._member(row)
        elif row.kind == "epoch_bumped":
            self._bumped(row)
        elif row.kind == "epoch_target":
            self._target(row)
        elif row.kind == "epoch_state":
            self._state(row)

    def _member(self, row: LogLine) -> None:
        tables = self._tables
        if row.member_id is None:
            return
        tables.protocol = "consumer"
        if row.kind in ("epoch_left", "epoch_fenced"):
            is_slow = _TRANSITION in (row.reason or "")
            why = "left" if row.kind == "epoch_left" else "rebalance timeout" if is_slow else "session timeout"
            tables.part(row.member_id, row, why)
        else:
            if row.other_id in tables.present:
                tables.part(row.other_id or "", row, "replaced")
            tables.meet(row.member_id, row)
        tables.size = len(tables.present)

    def _bumped(self, row: LogLine) -> None:
        tables, before = self._tables, self._before
        self._before = None
        if before is None:
            cause, confidence, detail = Cause.TOPICS_CHANGED, _LIKELY, "No member came or went before the new epoch"
        else:
            cause, did = _CAUSES[before.kind]
            cause = Cause.REBALANCE_TIMEOUT if _TRANSITION in (before.reason or "") else cause
            why = f" because {before.reason}" if before.kind == "epoch_fenced" else ""
            detail = f"{before.member_id} {did}{why}" if before.member_id else f"The topics are now {before.reason}"
            confidence = 1.0
        first = before or row
        if tables.current is not None:
            self._close(row)
        rebalance = tables.begin(
            first,
            cause,
            confidence,
            Identity(first.member_id, first.client_id, None, first.instance_id),
            None,
            detail,
            [evidence_of(line) for line in (before, row) if line is not None],
        )
        rebalance.members_after, rebalance.generation_id = tables.size, row.generation_id
        tables.next_generation(
            Generation(tables.group_id, row.generation_id or 0, row.time_ns, None, None, None, None, tables.size, 0)
        )
        tables.enter("Assigning", row.time_ns, row.generation_id)
        if not tables.present and rebalance.removed:
            end_rebalance(rebalance, row.time_ns, "empty")
            tables.enter("Empty", row.time_ns, row.generation_id)

    def _close(self, row: LogLine) -> None:
        """End a rebalance of which no line shows the end."""
        current = self._tables.current
        if current is not None and current.joined_ns is None:
            end_rebalance(current, row.time_ns, "interrupted")
        elif current is not None:
            current.outcome = "unseen"

    def _target(self, row: LogLine) -> None:
        tables, rebalance = self._tables, self._tables.current
        if tables.generations and tables.generations[-1].generation_id == row.generation_id:
            tables.generations[-1].assignor = row.assignor
        tables.enter("Reconciling", row.time_ns, row.generation_id)
        if rebalance is not None and rebalance.generation_id == row.generation_id:
            rebalance.assignor, rebalance.joined_ns = row.assignor, row.time_ns
            rebalance.joining_ms = (row.time_ns - rebalance.started_ns) / NS_PER_MS

    def _state(self, row: LogLine) -> None:
        last = self._tables.rebalances[-1] if self._tables.rebalances else None
        if last is not None and last.generation_id == row.generation_id and row.state == "STABLE":
            end_rebalance(last, row.time_ns, "stable")  # the last member that reaches it ends it

    def finish(self) -> None:
        """The lines are over: what has its target is under way for as long as nothing says."""
        current = self._tables.current
        if current is not None and current.joined_ns is not None:
            current.outcome = "unseen"
