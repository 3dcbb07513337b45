"""Rebalances as the coordinator reports them: remembered, and as lines or JSON objects of its log.

Laws:

* Text that came from a client is bounded and free of control characters in the log's line, and bounded in its JSON: a
  member cannot write lines of the log, nor fill it.
* The accounts in memory are bounded by `REMEMBERED_JOINS`.
* Each line says what was known at its phase: phases that a rebalance reaches in one step of the coordinator are one
  line, that of the last of them.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, Final

from kcoord_wire.coordinator.core.events import Phase, RebalanceAccount, RebalanceReport
from kcoord_wire.coordinator.metrics import Metrics, durations

REMEMBERED_JOINS: Final = 100_000
"""Joins in the accounts that are remembered: the account of a rebalance of 5,000 members takes half a megabyte."""

_MOST_REMOVED: Final = 100  # named in one JSON object; a group can lose thousands at once
_MOST_REMOVED_IN_LINE: Final = 5
_MAX_TEXT: Final = 255  # as Kafka's clients cut the reason of a JoinGroup

_log = logging.getLogger("kcoord_wire.coordinator")


class RebalanceLog:
    """Counts, remembers and logs rebalances.

    :ivar accounts: the last rebalances that have ended, oldest first
    """

    def __init__(self, metrics: Metrics) -> None:
        self.accounts: deque[RebalanceAccount] = deque()
        self._metrics = metrics
        self._joins = 0  # in `accounts`, and one for each of them

    def report(self, report: RebalanceReport) -> None:
        """Take in that a rebalance has reached a phase."""
        rebalance = report.rebalance
        if report.phase is Phase.ENDED:
            self._metrics.count_rebalance(rebalance)
            self._remember(rebalance)
        if not _is_outdated(report) and _log.isEnabledFor(logging.INFO):
            _log.info("%s", describe_rebalance(rebalance), extra={"rebalance_report": report})

    def _remember(self, rebalance: RebalanceAccount) -> None:
        self.accounts.append(rebalance)
        self._joins += 1 + len(rebalance.joins)
        while self._joins > REMEMBERED_JOINS and len(self.accounts) > 1:
            self._joins -= 1 + len(self.accounts.popleft().joins)


def _is_outdated(report: RebalanceReport) -> bool:
    """Return whether the rebalance has come further since; its account shows only how far it has come."""
    rebalance = report.rebalance
    if report.phase is Phase.STARTED:
        return rebalance.joined_at is not None or rebalance.ended_at is not None
    return report.phase is Phase.JOINED and rebalance.ended_at is not None


def _last_to_join(rebalance: RebalanceAccount) -> tuple[str, int] | None:
    """Return the member that joined last, and how many ms after the one before, or after the start if it is alone."""
    if rebalance.joined_at is None or not rebalance.joins:
        return None
    member_id, at = rebalance.joins[-1]
    return member_id, at - (rebalance.joins[-2][1] if len(rebalance.joins) > 1 else 0)


def rebalance_to_json(rebalance: RebalanceAccount, phase: Phase) -> dict[str, Any]:
    """Return a rebalance at one of its phases, for a log of JSON objects. Durations are in ms, or null.

    ::

        {"event": "rebalance", "phase": "ended", "group": "billing", "generation": 7, "outcome": "stable",
         "trigger": "new member", "member": "c2-6f...", "client": "c2", "host": "/10.0.0.7", "instance": null,
         "reason": null, "protocol": "range", "leader": "c1-0a...", "members": 2, "started_at": 1760000000000,
         "join_ms": 812, "sync_ms": 9, "whole_ms": 821, "last": {"member": "c1-0a...", "ms_after_the_one_before": 640},
         "lost": 1, "removed": [{"member": "c3-77...", "client": "c3", "host": "/10.0.0.8", "why": "session timeout"}]}

    ``lost`` counts all that were removed; ``removed`` names the first hundred.
    """
    join_ms, sync_ms, whole_ms = durations(rebalance)
    last = _last_to_join(rebalance)
    return {
        "event": "rebalance",
        "phase": str(phase),
        "group": _cut(rebalance.group_id),
        "generation": rebalance.generation_id,
        "outcome": rebalance.outcome,
        "trigger": str(rebalance.trigger),
        "member": _cut(rebalance.member_id),
        "client": _cut(rebalance.client_id),
        "host": rebalance.client_host,
        "instance": None if rebalance.group_instance_id is None else _cut(rebalance.group_instance_id),
        "reason": None if rebalance.reason is None else _cut(rebalance.reason),
        "protocol": None if rebalance.protocol is None else _cut(rebalance.protocol),
        "leader": None if rebalance.leader_id is None else _cut(rebalance.leader_id),
        "members": len({member_id for member_id, _ in rebalance.joins}),
        "started_at": rebalance.started_at,
        "join_ms": join_ms,
        "sync_ms": sync_ms,
        "whole_ms": whole_ms,
        "last": None if last is None else {"member": _cut(last[0]), "ms_after_the_one_before": last[1]},
        "lost": len(rebalance.removed),
        "removed": [
            {"member": _cut(gone.member_id), "client": _cut(gone.client_id), "host": gone.client_host, "why": gone.why}
            for gone in rebalance.removed[:_MOST_REMOVED]
        ],
    }


def describe_rebalance(rebalance: RebalanceAccount) -> str:
    """Return a rebalance in one line for people, as far as it has come."""
    join_ms, sync_ms, whole_ms = durations(rebalance)
    if whole_ms is not None:
        phases = "" if join_ms is None else f" (join {join_ms}, sync {sync_ms})"
        head = f"{rebalance.outcome} at generation {rebalance.generation_id} after {whole_ms} ms{phases}"
    elif join_ms is not None:
        head = f"joined to generation {rebalance.generation_id} after {join_ms} ms"
    else:
        head = f"rebalance of generation {rebalance.generation_id} has begun"
    who = f": {_member(rebalance.member_id, rebalance.client_id, rebalance.client_host)}" if rebalance.member_id else ""
    instance = "" if rebalance.group_instance_id is None else f", instance {shown(rebalance.group_instance_id)}"
    reason = f", stated reason: {shown(rebalance.reason)}" if rebalance.reason else ""
    parts = [f"group {shown(rebalance.group_id)}: {head}", f"{rebalance.trigger}{who}{instance}{reason}"]
    last = _last_to_join(rebalance)
    if last is not None:
        count = len({member_id for member_id, _ in rebalance.joins})
        before = "the one before" if count > 1 else "the start"
        parts.append(f"{count} joined, the last {shown(last[0])}, {last[1]} ms after {before}")
    if rebalance.protocol is not None and rebalance.leader_id is not None:
        parts.append(f"{shown(rebalance.protocol)}, led by {shown(rebalance.leader_id)}")
    for gone in rebalance.removed[:_MOST_REMOVED_IN_LINE]:
        parts.append(f"lost {_member(gone.member_id, gone.client_id, gone.client_host)}: {gone.why}")
    if len(rebalance.removed) > _MOST_REMOVED_IN_LINE:
        parts.append(f"and {len(rebalance.removed) - _MOST_REMOVED_IN_LINE} more")
    return "; ".join(parts)


def _member(member_id: str, client_id: str, host: str) -> str:
    return f"{shown(member_id)} (client {shown(client_id)}, {shown(host)})"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def shown(text: str) -> str:
    """Return a client's text for a log line: bounded, and with control characters escaped."""
    text = _cut(text)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text or '""'
