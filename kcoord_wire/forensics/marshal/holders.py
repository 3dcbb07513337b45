"""From the claims of a group to its generations, rebalances, ownership and pauses.

A generation is an interval in which the same clients hold something; a client is the same after a restart, if it keeps
its client id. Each change of that set is a rebalance, and a restart is one, too:

| change                                    | cause                  | it ends                                  |
|-------------------------------------------|------------------------|------------------------------------------|
| a client without a claim claims           | new member             | at once                                  |
| a client has released its last claim      | member left            | when each of its partitions has a holder |
| its last claim became stale               | session timeout        | the same                                 |
| its last claim was taken by another (1)   | member left, 50%       | the same                                 |
| an instance takes over those of another   | static member replaced | with the last of them                    |
| instance of the same client               |                        |                                          |

(1) Only by the rules of the library.

Laws: claims in another order have the same result; a moment at which several entries have an effect is one change.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from kcoord_wire.forensics.model import (
    NS_PER_MS,
    Cause,
    ClaimRow,
    Evidence,
    Generation,
    Identity,
    Ownership,
    Pause,
    Rebalance,
    RemovedMember,
    StateInterval,
    end_rebalance,
    new_rebalance,
)

WHY_LEFT: Final = {"stale": "session timeout", "taken over": "replaced"}
"""Why an instance that lost a claim this way is gone, as `MemberLife.why_left` has it; otherwise it has left."""

_EVIDENCE: Final = 10

Place = tuple[str, int]


class _Change(NamedTuple):
    """A claim that begins or ends."""

    at_ns: int
    is_start: bool
    claim: ClaimRow


class Holders:
    """Replays the beginnings and ends of a group's claims.

    :param claims: all of them
    :ivar generation: number of the present one
    """

    def __init__(self, group_id: str, claims: Sequence[ClaimRow]) -> None:
        self.group_id = group_id
        self.generations: list[Generation] = []
        self.rebalances: list[Rebalance] = []
        self.ownership: list[Ownership] = []
        self.pauses: list[Pause] = []
        self.states: list[StateInterval] = []
        self.generation = 0
        self._held: Counter[str] = Counter()
        self._free: dict[str, dict[Place, Pause]] = defaultdict(dict)
        self._paused: dict[Place, tuple[str, Pause]] = {}
        self._waiting: dict[int, set[Place]] = {}
        self._restarts: dict[str, Rebalance] = {}
        changes = [_Change(row.from_ns, True, row) for row in claims]
        changes += [_Change(row.to_ns, False, row) for row in claims if row.to_ns is not None]
        changes.sort(key=_order)
        for at_ns, same in groupby(changes, key=lambda item: item.at_ns):
            self._change(at_ns, list(same))

    # ---- one moment

    def _change(self, at_ns: int, changes: list[_Change]) -> None:
        before = set(self._held)
        starts = [item.claim for item in changes if item.is_start]
        ends = [item.claim for item in changes if not item.is_start]
        self._held.update(row.client_id for row in starts)
        self._held.subtract(row.client_id for row in ends)
        self._held = +self._held
        after = set(self._held)
        if before != after:
            self._begin_generation(at_ns, bool(after))
        filled: list[Place] = []
        for _, is_start, row in changes:
            if is_start:
                filled += self._own(at_ns, row)
            else:
                self._pause(at_ns, row)
        if before != after:
            self._rebalance(at_ns, before, starts, ends)
        self._restart(at_ns, starts)
        self._fill(at_ns, filled)
        if self.generations and after:
            self.generations[-1].stable_ns = at_ns
            self.generations[-1].partitions = self._held.total()

    def _begin_generation(self, at_ns: int, has_members: bool) -> None:
        if self.generations and self.generations[-1].ended_ns is None:
            self.generations[-1].ended_ns = at_ns
        state = "Stable" if has_members else "Empty"
        if has_members:
            self.generation += 1
            members = len(self._held)
            new = Generation(self.group_id, self.generation, at_ns, at_ns, None, None, None, members, 0)
            self.generations.append(new)
        if not self.states or self.states[-1].state != state:
            if self.states:
                self.states[-1].to_ns = at_ns
            self.states.append(StateInterval(self.group_id, state, at_ns, None, self.generation))

    def _own(self, at_ns: int, row: ClaimRow) -> list[Place]:
        """Record an owner; return the partition if it had been without one, else nothing."""
        place = (row.topic, row.partition)
        number = self.generation
        self.ownership.append(
            Ownership(self.group_id, *place, row.instance_id, row.client_id, number, row.from_ns, row.to_ns)
        )
        paused = self._paused.pop(place, None)
        if paused is None:
            return []
        client_id, pause = paused
        self._free[client_id].pop(place, None)
        pause.to_ns, pause.next_member_id = at_ns, row.instance_id
        if pause.from_ns != at_ns:
            self.pauses.append(pause)
        return [place]

    def _pause(self, at_ns: int, row: ClaimRow) -> None:
        """Record that a partition has no owner, until one claims it at the same moment or later."""
        place = (row.topic, row.partition)
        pause = Pause(self.group_id, *place, at_ns, None, row.instance_id, None, None)
        self._paused[place] = (row.client_id, pause)
        self._free[row.client_id][place] = pause

    def close(self) -> None:
        """Add the pauses that have no end. Call it once, before the tables are used."""
        self.pauses += [pause for _, pause in self._paused.values()]
        self.pauses.sort(key=lambda row: (row.from_ns, row.topic, row.partition))
        for rebalance in self.rebalances:
            rebalance.paused_ms = 0.0
        for pause in self.pauses:
            if pause.rebalance is not None and pause.to_ns is not None:
                rebalance = self.rebalances[pause.rebalance - 1]
                rebalance.paused_ms = (rebalance.paused_ms or 0.0) + (pause.to_ns - pause.from_ns) / NS_PER_MS

    # ---- rebalances

    def _rebalance(self, at_ns: int, before: set[str], starts: list[ClaimRow], ends: list[ClaimRow]) -> None:
        """Record that the set of clients has changed."""
        after = set(self._held)
        gone = {row.client_id: row for row in ends if row.client_id in before - after}
        come = {row.client_id: row for row in starts if row.client_id in after - before}
        first = min(gone.values(), key=_worst) if gone else next(iter(come.values()))
        cause, confidence, detail = _why_gone(first) if gone else _why_come(first)
        others = len(gone or come) - 1
        number = len(self.rebalances) + 1
        rebalance = self._new(at_ns, cause, first, f"{detail}; and {others} more" if others else detail, len(before))
        rebalance.confidence = confidence
        rebalance.removed = [
            RemovedMember(row.instance_id, row.client_id, None, WHY_LEFT.get(row.ended, "left"))
            for row in gone.values()
        ]
        rebalance.evidence += [_evidence(at_ns, row) for row in [*gone.values(), *come.values()][:_EVIDENCE]]
        places = self._freed(gone, number)
        if places and after:
            self._waiting[number] = places
        else:
            end_rebalance(rebalance, at_ns, "stable" if after else "empty")

    def _freed(self, clients: Iterable[str], number: int) -> set[Place]:
        """Return the free partitions that these clients were the last to hold, now those of a rebalance."""
        freed = set()
        for client_id in clients:
            for place, pause in self._free.get(client_id, {}).items():
                pause.rebalance = number
                freed.add(place)
        return freed

    def _new(self, at_ns: int, cause: Cause, row: ClaimRow, detail: str, members_before: int) -> Rebalance:
        rebalance = new_rebalance(
            group_id=self.group_id,
            number=len(self.rebalances) + 1,
            generation_id=self.generation,
            started_ns=at_ns,
            cause=cause,
            confidence=1.0,
            detail=detail,
            evidence=[],
            trigger=Identity(row.instance_id, row.client_id),
            protocol_type="marshal",
            members_before=members_before,
            members_after=len(self._held),
        )
        self.rebalances.append(rebalance)
        return rebalance

    def _restart(self, at_ns: int, starts: list[ClaimRow]) -> None:
        for row in starts:
            if row.began != "restarted":
                continue
            rebalance = self._restarts.get(row.instance_id)
            if rebalance is None:
                detail = f"{row.client_id} was restarted: instance {row.instance_id} goes on with its claims"
                rebalance = self._new(at_ns, Cause.STATIC_REPLACED, row, detail, len(self._held))
                rebalance.evidence.append(_evidence(at_ns, row))
                self._restarts[row.instance_id] = rebalance
            end_rebalance(rebalance, at_ns, "stable")

    def _fill(self, at_ns: int, places: list[Place]) -> None:
        """End the rebalances whose last partition has a holder now."""
        for place in places:
            for number, waiting in list(self._waiting.items()):
                if place not in waiting:
                    continue
                rebalance = self.rebalances[number - 1]
                rebalance.moved += 1
                waiting.discard(place)
                if not waiting:
                    del self._waiting[number]
                    end_rebalance(rebalance, at_ns, "stable")


def _order(change: _Change) -> tuple[int, str, int, int, int, bool]:
    """Order by time, then the changes of a partition as they happened."""
    row = change.claim
    return change.at_ns, row.topic, row.partition, row.from_ns, row.token, not change.is_start


def _worst(row: ClaimRow) -> tuple[int, str]:
    """Order by how much an end says: staleness first."""
    return ("stale", "taken over").index(row.ended) if row.ended in WHY_LEFT else 2, row.client_id


def _why_gone(row: ClaimRow) -> tuple[Cause, float, str]:
    if row.ended == "stale":
        why = "two intervals after its last heartbeat" if row.heartbeats else "it has never sent a heartbeat"
        return Cause.SESSION_EXPIRED, 1.0, f"the last claim of {row.client_id} became stale: {why}"
    if row.ended == "taken over":
        return Cause.MEMBER_LEFT, 0.5, f"another client took over the last claim of {row.client_id}"
    reason = {"paused": ", because the group is paused", "handed over": ", to hand it over"}.get(row.ended, "")
    return Cause.MEMBER_LEFT, 1.0, f"{row.client_id} has released its last claim{reason}"


def _why_come(row: ClaimRow) -> tuple[Cause, float, str]:
    if row.began == "before the log":
        return Cause.NEW_MEMBER, 0.5, f"{row.client_id} holds its first claim in this log; it may be older"
    return Cause.NEW_MEMBER, 1.0, f"{row.client_id} holds its first claim"


def _evidence(at_ns: int, row: ClaimRow) -> Evidence:
    what = row.began if at_ns == row.from_ns else row.ended
    return Evidence(at_ns, "", row.token, f"{row.topic}-{row.partition}: {what} ({row.client_id})")
