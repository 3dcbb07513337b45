"""Stuck: a rebalance does not get on, because the group waits for one member.

PreparingRebalance: the group waits for a member that does not rejoin, and an eager group does no work meanwhile. Normal
is about a heartbeat interval (3 s): members learn of the rebalance by heartbeat and rejoin at the end of their poll.
The coordinator waits for the largest rebalance timeout of all members (max.poll.interval.ms, 5 minutes by default).
Threshold: 30 s; critical when the timeout ended the wait, or when it has not ended. A wait for a member that is dead or
silent ends with its session, so that it is a warning.

CompletingRebalance: all members have joined, and the leader does not send the assignment. Normal is the time that the
leader's assignor needs, milliseconds to a second. With an assignor that takes longer than the timeouts the group never
becomes stable: its members are removed, rejoin, and it starts over (aiokafka#1176, 84 members, 45 minutes). Or the
leader is gone and the group does not know (KAFKA-12890). Threshold: 10 s; critical when two such waits or more ended in
another rebalance, when a sync timeout ended one, or when it has not ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from kcoord_wire.forensics.detectors.found import Found, client_of, first_evidence, listed, only
from kcoord_wire.forensics.model import NS_PER_MS, Cause, GroupHistory, Rebalance, StateInterval

if TYPE_CHECKING:
    import pyarrow as pa

PREPARING_MS: Final = 30_000
COMPLETING_MS: Final = 10_000
_ADVICE_ON_DEAD: Final = (
    "The coordinator learns of the end of a process only when its session is over, and all others wait until then. "
    "Look at that process first: its exit code and log, the OOM killer, a frozen host. A restart with a "
    "group.instance.id takes its place at once; closing the consumer on SIGTERM leaves the group in order."
)
_FUTILE: Final = 2  # waits that ended in another rebalance; one alone may be chance


class _Wait(NamedTuple):
    """An interval that lasted long, with the last rebalance that had begun by then."""

    interval: StateInterval
    ms: float
    rebalance: Rebalance | None


class _Waits:
    """The intervals of a state that lasted `threshold_ms` or longer, in order of time."""

    def __init__(self, history: GroupHistory, state: str, threshold_ms: float) -> None:
        self._threshold_ms = threshold_ms
        self.found: list[_Wait] = []
        for interval in history.states:
            end = history.group.last_ns if interval.to_ns is None else interval.to_ns
            ms = (end - interval.from_ns) / NS_PER_MS
            if interval.state == state and ms >= threshold_ms:
                begun = [item for item in history.rebalances if item.started_ns <= interval.from_ns]
                self.found.append(_Wait(interval, ms, begun[-1] if begun else None))
        self.rebalances = [wait.rebalance for wait in self.found if wait.rebalance is not None]
        self.worst = max(self.found, key=lambda wait: wait.ms, default=None)
        self.is_open = self.worst is not None and self.worst.interval.to_ns is None

    def finding(
        self, severity: str, subject: str | None, text: str, details: str, advice: str, silent: Sequence[str] = ()
    ) -> Found:
        """Return one finding for all of them; `text` says what the group waits for, `silent` are leaders like that."""
        assert self.worst is not None
        still = ", still waiting" if self.is_open else ""
        return Found(
            severity=severity,
            from_ns=self.found[0].interval.from_ns,
            to_ns=self.found[-1].interval.to_ns,
            subject=subject,
            text=f"{len(self.found)} x longer than {self._threshold_ms // 1000} s waiting for {text}, the longest "
            f"{self.worst.ms / 1000:.1f} s{still}{details}",
            advice=advice,
            value=self.worst.ms,
            threshold=float(self._threshold_ms),
            rebalances=[rebalance.number for rebalance in self.rebalances],
            evidence=first_evidence(self.rebalances, 2),
            suspects=tuple(silent),
            traits=frozenset({"silent leader"} if silent else ()),
        )


def find_preparing(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for all long waits in PreparingRebalance."""
    waits = _Waits(history, "PreparingRebalance", PREPARING_MS)
    if not waits.found:
        return
    if dead := _dead(waits.rebalances):
        yield waits.finding("warning", only(dead), f"{listed(dead)}, dead or silent by then", "", _ADVICE_ON_DEAD)
        return
    missed, slow = _missed(waits.rebalances), _slow(waits.rebalances)
    details = f"; {', '.join(missed)} did not rejoin" if missed else f"; {', '.join(slow)} came last" if slow else ""
    yield waits.finding(
        "critical" if missed or waits.is_open else "warning",
        next(iter(missed or slow), None),
        "members to rejoin",
        details,
        "Find out what the late member does between two polls: it learns of a rebalance only there. A shorter "
        "max.poll.interval.ms bounds the wait of all others.",
    )


def _dead(rebalances: list[Rebalance]) -> list[str]:
    """Return the clients that were waited for although they were dead or silent."""
    waits = [wait for rebalance in rebalances for wait in rebalance.waited_for]
    long = [wait for wait in waits if wait.died_ns is not None and wait.ms >= PREPARING_MS / 2]
    return sorted({wait.client_id or wait.member_id for wait in long})


def _missed(rebalances: list[Rebalance]) -> list[str]:
    """Return the clients that did not rejoin in time."""
    removed = [gone for rebalance in rebalances for gone in rebalance.removed if gone.why == "rebalance timeout"]
    return sorted({gone.client_id or gone.member_id for gone in removed})


def _slow(rebalances: list[Rebalance]) -> list[str]:
    """Return the clients that rejoined long after all others."""
    late = [rebalance for rebalance in rebalances if (rebalance.late_ms or 0) >= PREPARING_MS / 2]
    return sorted({rebalance.last_client_id or rebalance.last_member_id or "" for rebalance in late} - {""})


def find_completing(history: GroupHistory, _exchanges: pa.Table | None = None) -> Iterator[Found]:
    """Yield one finding for all long waits in CompletingRebalance."""
    waits = _Waits(history, "CompletingRebalance", COMPLETING_MS)
    if not waits.found:
        return
    futile = sum(rebalance.outcome != "stable" for rebalance in waits.rebalances)
    timeouts = any(rebalance.cause == Cause.SYNC_EXPIRED for rebalance in history.rebalances)
    names = {life.member_id: client_of(life) for life in history.members}
    leaders = {rebalance.leader_id for rebalance in waits.rebalances if rebalance.leader_id is not None}
    led = sorted(names.get(leader, leader) for leader in leaders)
    assignors = sorted({rebalance.assignor for rebalance in waits.rebalances if rebalance.assignor})
    yield waits.finding(
        "critical" if futile >= _FUTILE or timeouts or waits.is_open else "warning",
        only(led),
        "the leader's assignment",
        f"; {futile} of them led to nothing"
        + (f"; the leader was {', '.join(led[:3])}" if led else "")
        + (f" with {', '.join(assignors)}" if assignors else ""),
        "Look at the leader: an assignor that is too slow for this many members and partitions (take another one, or "
        "equal subscriptions), or a leader that is gone. Until then larger session and rebalance timeouts let it end.",
        _silent(history, waits.found),
    )


def _silent(history: GroupHistory, waits: Sequence[_Wait]) -> list[str]:
    """Return the leaders that have sent nothing, not even a heartbeat, since they received the list of members."""
    lives = {life.member_id: life for life in history.members}
    led = {(wait.rebalance.leader_id or "", wait.interval.from_ns) for wait in waits if wait.rebalance is not None}
    return sorted(who for who, since in led if who in lives and lives[who].last_seen_ns <= since)
