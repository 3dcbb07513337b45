"""A group as its clients log it: each says when it joined and what it saw; none says what the others did.

A rebalance is what led to a generation: from the first line that says that a join is coming to the last line of a
client that has its assignment. The first line in it that states a trigger decides the cause; where all only say that
the group is rebalancing, a member set it off whose log is not here, and the cause is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.lines.broker import cause_of_client
from kcoord_wire.forensics.lines.extraction import client_of
from kcoord_wire.forensics.lines.tables import GroupTables, evidence_of
from kcoord_wire.forensics.model import NS_PER_MS, Identity, LogLine

ENDS: Final = frozenset({"leaving", "unknown_member", "lost", "poll_timeout"})
"""Kinds of lines after which their client is no member any more."""

_SAME_ROUND_NS: Final = 2_000 * NS_PER_MS  # two joins without a generation so close together are of one
_STATED: Final = 0.95
_SEEN: Final = 0.8
_NOT_SEEN: Final = 0.2
_MOST_EVIDENCE: Final = 5
_BEGINS: Final = frozenset(
    {"rejoin_requested", "joining", "heartbeat_rebalancing", "poll_timeout", "leaving"}
    | {"session_lost", "unknown_member", "stale_generation", "lost", "missed_rebalance", "session_ended", "revoked"}
)
READ: Final = _BEGINS | {"joined", "synced", "assigned"}
"""Kinds of lines that make the history of a group in logs of clients."""

_NO_TRIGGERS: Final = ("joining", "heartbeat_rebalancing", "lost", "missed_rebalance", "session_ended", "revoked")
_CAUSES: Final = {
    "poll_timeout": (Cause.POLL_TIMEOUT, _STATED, "did not poll for longer than max.poll.interval.ms and left"),
    "leaving": (Cause.MEMBER_LEFT, _STATED, "left"),
    "session_lost": (Cause.SESSION_EXPIRED, _SEEN, "had no answer to its heartbeats for a session timeout"),
    "unknown_member": (Cause.NEW_MEMBER, _SEEN, "was not known to the coordinator any more, and joins again"),
}


class ClientLines:
    """Reads the lines of clients about one group, in order of time."""

    def __init__(self, tables: GroupTables) -> None:
        self._tables = tables
        self._begun: list[LogLine] = []
        self._joined: set[str] = set()  # clients that have joined the current generation
        self._known: set[str] = set()  # clients that have joined any
        self._ids: dict[str, str] = {}  # member id of each client
        self._generation: int | None = None
        self._joined_ns = 0

    def read(self, row: LogLine) -> None:
        """Read one line."""
        name = _name(row)
        if row.kind in _BEGINS:
            self._begun.append(row)
            if row.kind == "leaving" and name not in self._known:
                self._begun.pop()  # it repeats what an earlier line says
            if row.kind in ENDS:
                self._gone(row, name)
        elif row.kind == "joined":
            self._join(row, name)
        elif row.kind in ("synced", "assigned"):
            self._sync(row, name)

    def _gone(self, row: LogLine, name: str) -> None:
        self._known.discard(name)
        member_id = row.member_id or self._ids.get(name)
        if member_id in self._tables.members:
            why = {"poll_timeout": "poll timeout", "leaving": "left"}.get(row.kind, "removal")
            self._tables.part(member_id or "", row, why)

    def _join(self, row: LogLine, name: str) -> None:
        if row.member_id is not None:
            self._ids[name] = row.member_id
            self._tables.meet(row.member_id, row).assignors = [row.assignor] if row.assignor else []
        if self._is_of_current(row, name):
            self._joined.add(name)
        else:
            self._begin(row)
            self._joined = {name}
            self._generation, self._joined_ns = row.generation_id, row.time_ns
        self._known.add(name)
        self._tables.size = len(self._joined)
        rebalance = self._tables.rebalances[-1]
        rebalance.members_after = len(self._joined)
        rebalance.leader_id = rebalance.leader_id or row.other_id
        if row.program in ("kafkajs", "kafka-python", "sarama", "franz-go"):
            self._sync(row, name)

    def _is_of_current(self, row: LogLine, name: str) -> bool:
        if not self._joined:
            return False
        if row.generation_id is not None:
            return row.generation_id == self._generation
        is_near = row.time_ns - self._joined_ns < _SAME_ROUND_NS
        began_since = any(_name(line) == name and line.time_ns > self._joined_ns for line in self._begun)
        return is_near and name not in self._joined and not began_since

    def _begin(self, row: LogLine) -> None:
        tables = self._tables
        rows, self._begun = self._begun or [row], []
        cause, confidence, line, detail = trigger_of(rows, self._known)
        trigger = Identity() if line is None else _identity(line, self._ids)
        first = rows[0]
        reason = line.reason if line is not None and line.kind in ("rejoin_requested", "leaving") else None
        evidence = [evidence_of(each) for each in (line or first, row)]
        rebalance = tables.begin(first, cause, confidence, trigger, reason, detail, evidence[:_MOST_EVIDENCE])
        rebalance.generation_id, rebalance.joined_ns, rebalance.assignor = row.generation_id, row.time_ns, row.assignor
        rebalance.joining_ms = (row.time_ns - first.time_ns) / NS_PER_MS
        tables.enter(first.time_ns, "PreparingRebalance", self._generation)
        tables.enter(row.time_ns, "CompletingRebalance", row.generation_id)
        if row.generation_id is not None:
            tables.begin_generation(
                row.generation_id, row.time_ns, assignor=row.assignor, leader_id=row.other_id, members=1
            )

    def _sync(self, row: LogLine, name: str) -> None:
        tables = self._tables
        if not tables.rebalances or name not in self._joined:
            return
        if row.generation_id is not None and row.generation_id != self._generation:
            return
        rebalance = tables.rebalances[-1]
        if rebalance.outcome in ("open", "stable"):
            tables.close(row.time_ns, "stable", rebalance)
            tables.enter(row.time_ns, "Stable", self._generation)
            if tables.generations and tables.generations[-1].generation_id == self._generation:
                tables.generations[-1].stable_ns, tables.generations[-1].members = row.time_ns, len(self._joined)

    def finish(self) -> None:
        """The lines are over: what began without a join has an unknown end."""
        rows = [row for row in self._begun if row.kind not in _NO_TRIGGERS]
        for row in rows:
            cause, confidence, line, detail = trigger_of([row], self._known)
            if line is None:
                continue
            last = self._tables.rebalances[-1] if self._tables.rebalances else None
            if last is not None and last.outcome == "unseen" and row.time_ns - last.started_ns < _SAME_ROUND_NS:
                continue
            begun = self._tables.begin(
                row, cause, confidence, _identity(row, self._ids), row.reason, detail, [evidence_of(row)]
            )
            begun.outcome = "unseen"


def trigger_of(rows: Sequence[LogLine], known: set[str]) -> tuple[Cause, float, LogLine | None, str]:
    """Return the cause that the lines before a join state, its confidence, the line that states it, and a sentence.

    :param rows: in order of time
    :param known: clients that had joined before
    """
    for row in rows:
        stated = cause_of_client(row.reason) if row.reason else None
        who = row.client_id or row.member_id or "a client"
        if row.kind in _CAUSES:
            cause, confidence, did = _CAUSES[row.kind]
            return stated or cause, confidence, row, f"{who} {did}"
        if row.kind == "rejoin_requested" and stated is not None:
            return stated, _STATED, row, f"{who} joins again: {row.reason}"
        if row.kind == "joining" and _name(row) not in known:
            return Cause.NEW_MEMBER, _SEEN, row, f"{who} joins for the first time in these lines"
    return Cause.UNKNOWN, _NOT_SEEN, None, "Another member set it off, and its log is not among the sources"


def _name(row: LogLine) -> str:
    return row.client_id or client_of(row.member_id) or row.source


def _identity(row: LogLine, ids: dict[str, str]) -> Identity:
    return Identity(row.member_id or ids.get(_name(row)), row.client_id, row.client_host, row.instance_id)
