"""Histories of groups from Marshal's coordination topic: who held what, since when, and why not any more.

    histories, losses = marshal_histories(records, ClaimRules())          # a table of `LogRow`

The log shows each claim with its heartbeats, and what clients say about themselves. It does not show clients that hold
nothing and send no Presence, nor why a client stopped to send.

Laws:

* Order and chunking of the rows do not matter; a record that was read twice (same partition, same offset) counts once.
* Each coordination partition is judged by itself (`reader`), in the order of its offsets; `marshal_history` needs only
  the parts, and its result does not depend on their order. A segment whose folder does not name its partition counts as
  a partition of its own: offsets of two would be taken for those of one.
* A claim of the present is ``open``; one that was not renewed for two intervals of the log's time is stale, even if no
  entry says so.
* Claims in another order have the same result; a moment at which several entries have an effect is one change.

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
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from statistics import median
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kcoord_wire.forensics.causes import Cause
from kcoord_wire.forensics.history import HistoryBuilder, Place, add_pauses, paused_ms
from kcoord_wire.forensics.marshal.reader import (
    COLUMNS,
    MS_PER_S,
    ClaimRules,
    GroupPause,
    Part,
    PartitionReader,
    Sighting,
)
from kcoord_wire.forensics.model import (
    NS_PER_MS,
    ClaimRow,
    CommitRow,
    Evidence,
    GroupHistory,
    Identity,
    Loss,
    MemberLife,
    Ownership,
    Pause,
    Rebalance,
    RemovedMember,
    StateInterval,
    end_rebalance,
    record_time_ns,
)

WHY_LEFT: Final = {"stale": "session timeout", "taken over": "replaced"}
"""Why an instance that lost a claim this way is gone, as `MemberLife.why_left` has it; otherwise it has left."""

_EVIDENCE: Final = 10


class _Change(NamedTuple):
    """A claim that begins or ends."""

    at_ns: int
    is_start: bool
    claim: ClaimRow


class Holders:
    """Replays the beginnings and ends of a group's claims.

    :param claims: all of them
    :ivar tables: rebalances, generations and states
    :ivar generation: number of the present one
    """

    def __init__(self, group_id: str, claims: Sequence[ClaimRow]) -> None:
        self.group_id = group_id
        self.tables = HistoryBuilder(group_id)
        self.ownership: list[Ownership] = []
        self.pauses: list[Pause] = []
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
        if self.tables.generations and after:
            last = self.tables.generations[-1]
            last.stable_ns, last.partitions = at_ns, self._held.total()

    def _begin_generation(self, at_ns: int, has_members: bool) -> None:
        if has_members:
            self.generation += 1
            self.tables.begin_generation(self.generation, at_ns, stable_ns=at_ns, members=len(self._held))
        else:
            self.tables.end_generation(at_ns)
        state = "Stable" if has_members else "Empty"
        if self.tables.state != state:
            self.tables.enter(at_ns, state, self.generation)

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
        add_pauses(self.tables.rebalances, self.pauses)

    # ---- rebalances

    def _rebalance(self, at_ns: int, before: set[str], starts: list[ClaimRow], ends: list[ClaimRow]) -> None:
        """Record that the set of clients has changed."""
        after = set(self._held)
        gone = {row.client_id: row for row in ends if row.client_id in before - after}
        come = {row.client_id: row for row in starts if row.client_id in after - before}
        first = min(gone.values(), key=_worst) if gone else next(iter(come.values()))
        cause, confidence, detail = _why_gone(first) if gone else _why_come(first)
        others = len(gone or come) - 1
        rebalance = self._new(at_ns, cause, first, f"{detail}; and {others} more" if others else detail, len(before))
        rebalance.confidence = confidence
        rebalance.removed = [
            RemovedMember(row.instance_id, row.client_id, None, WHY_LEFT.get(row.ended, "left"))
            for row in gone.values()
        ]
        rebalance.evidence += [_evidence(at_ns, row) for row in [*gone.values(), *come.values()][:_EVIDENCE]]
        places = self._freed(gone, rebalance.number)
        if places and after:
            self._waiting[rebalance.number] = places
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
        return self.tables.add(
            at_ns,
            generation_id=self.generation,
            cause=cause,
            confidence=1.0,
            detail=detail,
            evidence=[],
            trigger=Identity(row.instance_id, row.client_id),
            protocol_type="marshal",
            members_before=members_before,
            members_after=len(self._held),
        )

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
                rebalance = self.tables.rebalances[number - 1]
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


ORDER: Final = ("partition", "home", "offset", "time_ns", "source")
"""Columns by which `read_parts` wants the rows in order; ``home`` is the source where the partition is not known."""

_ORDER: Final = [(name, "ascending") for name in ORDER]
_ROWS: Final = 65_536  # that are Python objects at a time
_HIDDEN: Final = "A client that holds nothing and sends no Presence is visible only by claims that were refused."
_COUNTED: Final = {
    "refused": "messages without effect: a claim, heartbeat or release of a client that did not hold the partition",
    "unread": "messages about offset ranges, which are in no table",
    "misplaced": "messages on another coordination partition than their topic's, which do not count",
}
_NO_APPEND_TIME: Final = (
    "The topic has no append times (message.timestamp.type is CreateTime): times are those of the clients' clocks."
)
_TRIMMED: Final = (
    "The beginning of the log is gone: during its first two intervals each heartbeat is taken for its holder's."
)


def marshal_histories(records: pa.Table, judge: ClaimRules) -> tuple[list[GroupHistory], list[Loss]]:
    """Return the histories of all groups, in order of their ids, and what was no message.

    :param records: `LogRow`, in any order
    """
    losses: list[Loss] = []
    groups: dict[str, list[Part]] = defaultdict(list)
    home = pc.if_else(pc.less(records["partition"], 0), records["source"], "")
    rows = records.select(["partition", *COLUMNS]).append_column("home", home).sort_by(_ORDER)
    for part in read_parts(rows.to_batches(max_chunksize=_ROWS), judge):
        if part.group_id is not None:
            groups[part.group_id].append(part)
        elif part.loss is not None:
            losses.append(part.loss)
    return [marshal_history(groups[group_id], judge) for group_id in sorted(groups)], losses


def read_parts(batches: Iterable[pa.RecordBatch], judge: ClaimRules, *, has_commits: bool = True) -> Iterator[Part]:
    """Yield what coordination partitions show.

    :param batches: ``partition``, ``home`` and `COLUMNS` of `LogRow`, in the order of `ORDER`
    :param has_commits: as in `PartitionReader`
    """
    reader: PartitionReader | None = None
    place = None
    names = ("partition", "home", *COLUMNS)
    for batch in batches:
        for number, home, *row in zip(*(batch[name].to_pylist() for name in names), strict=True):
            if reader is None or (number, home) != place:
                if reader is not None:
                    yield from reader.end()
                place, reader = (number, home), PartitionReader(number, judge, has_commits=has_commits)
            reader.read(*row)
        if reader is not None:
            yield from reader.closed()
    if reader is not None:
        yield from reader.end()


def marshal_history(parts: Iterable[Part], judge: ClaimRules) -> GroupHistory:
    """Return the history of the one group whose parts these are, in any order."""
    rows = list(parts)
    group_id = rows[0].group_id or ""
    claims: list[ClaimRow] = _each(rows, "claim", "from_ns", "topic", "partition", "token")
    commits: list[CommitRow] = _each(rows, "commit", "from_ns", "topic", "partition")
    seen: list[Sighting] = _each(rows, "sighting", "first_ns", "coordination_partition", "instance_id")
    halts: list[GroupPause] = _each(rows, "pause", "from_ns", "until_ns")
    holders = Holders(group_id, claims)
    holders.close()
    lives = _lives(group_id, seen, claims, holders, judge)
    times = [(row.first_ns, row.last_ns) for row in seen] + [(row.from_ns, row.from_ns) for row in halts]
    tables = holders.tables
    tables.lives, tables.protocol_type = lives, f"marshal {judge.rules}"
    summary = tables.summary(
        min(first_ns for first_ns, _ in times),
        max(last_ns for _, last_ns in times),
        _blind(seen, judge),
        origin="marshal",
        commits=sum(row.commits for row in commits),
        paused_ms=paused_ms(holders.pauses),
    )
    states = sorted([*tables.states, *_paused(group_id, halts)], key=lambda row: (row.from_ns, row.state))
    return GroupHistory(
        group=summary,
        rebalances=tables.rebalances,
        generations=tables.generations,
        states=states,
        members=lives,
        ownership=holders.ownership,
        claims=claims,
        pauses=holders.pauses,
        commits=commits,
    )


def _each(parts: Iterable[Part], name: str, *order: str) -> list[Any]:
    """Return the values of one column of the parts, where they are set, in order of these fields."""
    return sorted((row for part in parts if (row := getattr(part, name)) is not None), key=attrgetter(*order))


# ---- members


def _lives(
    group_id: str, seen: Sequence[Sighting], claims: Sequence[ClaimRow], holders: Holders, judge: ClaimRules
) -> list[MemberLife]:
    """Return the instances that were heard of, each with all that the coordination partitions show of it."""
    of_instance: dict[str, list[Sighting]] = defaultdict(list)
    for sighting in seen:
        of_instance[sighting.instance_id].append(sighting)
    held: dict[str, list[ClaimRow]] = defaultdict(list)
    for claim in claims:
        held[claim.instance_id].append(claim)
    generations: dict[str, list[int]] = defaultdict(list)
    for row in holders.ownership:
        generations[row.member_id].append(row.generation_id or 0)
    ahead = _ahead_ms(of_instance)
    limit_ns = 2 * judge.heartbeat_interval_s * MS_PER_S * NS_PER_MS
    lives = []
    for instance_id, sightings in of_instance.items():
        life = member_life(group_id, sightings, judge)
        life.left_ns, life.why_left = _left(sightings, held[instance_id], limit_ns)
        life.first_generation_id = min(generations[instance_id], default=None)
        life.last_generation_id = max(generations[instance_id], default=None)
        life.clock_ahead_ms = ahead[instance_id]
        lives.append(life)
    return lives


def member_life(group_id: str, sightings: Sequence[Sighting], judge: ClaimRules) -> MemberLife:
    """Return the life of one instance, as far as its sightings alone show it."""
    return MemberLife(
        group_id=group_id,
        member_id=sightings[0].instance_id,
        instance_id=None,
        client_id=sightings[0].client_id,
        client_host=None,
        joined_ns=min(row.first_ns for row in sightings),
        last_seen_ns=max(row.last_ns for row in sightings),
        session_timeout_ms=2 * judge.heartbeat_interval_s * MS_PER_S,
        topics=sorted({topic for row in sightings for topic in row.topics if topic}),
        protocol="marshal",
        clock_ahead_ms=max((row.ahead_ms for row in sightings if row.ahead_ms is not None), default=None),
    )


def _left(sightings: Sequence[Sighting], claims: Sequence[ClaimRow], limit_ns: int) -> tuple[int | None, str | None]:
    """Return when an instance was gone and why; None where it is there to the end.

    One that was heard of after its last claim, and within two intervals of the end, is there.
    """
    if any(claim.to_ns is None for claim in claims):
        return None, None
    seen_ns = max(row.last_ns for row in sightings)
    last = max(claims, key=lambda row: row.to_ns or 0, default=None)
    if last is not None and last.to_ns is not None and last.to_ns >= seen_ns:
        return last.to_ns, WHY_LEFT.get(last.ended, "left")
    if max(row.end_ns for row in sightings) - seen_ns <= limit_ns:
        return None, None
    return record_time_ns((seen_ns + limit_ns) // NS_PER_MS), "left or timed out"


def _ahead_ms(of_instance: dict[str, list[Sighting]]) -> dict[str, int]:
    """Return how far the clock of each instance is ahead, see `MemberLife.clock_ahead_ms`.

    Where there are no append times, an instance's clock is as far behind as its messages are behind the newest time in
    the log, on average; one that is ahead sets that newest time, and all the others are behind.
    """
    by_broker = {
        instance_id: [row.ahead_ms for row in rows if row.ahead_ms is not None]
        for instance_id, rows in of_instance.items()
    }
    if all(by_broker.values()):
        return {instance_id: max(found) for instance_id, found in by_broker.items()}
    behind = {
        instance_id: sum(row.behind_ms for row in rows) / sum(row.messages for row in rows)
        for instance_id, rows in of_instance.items()
    }
    right = median(behind.values())
    return {instance_id: round(right - mean) for instance_id, mean in behind.items()}


# ---- the group


def _paused(group_id: str, halts: Sequence[GroupPause]) -> list[StateInterval]:
    """Return when the group was paused: by the last ReleaseGroup, of which each coordination partition has one."""
    result: list[StateInterval] = []
    for halt in halts:
        last = result[-1] if result else None
        if last is not None and last.to_ns is not None and halt.from_ns <= last.to_ns:
            last.to_ns = max(halt.from_ns, halt.until_ns)
        elif halt.until_ns > halt.from_ns:
            result.append(StateInterval(group_id, "Paused", halt.from_ns, halt.until_ns, None))
    return result


def _blind(seen: Sequence[Sighting], judge: ClaimRules) -> list[str]:
    """Return what the log does not show, and by which rules it was read."""
    other = "document" if judge.rules == "library" else "library"
    notes = [
        f"Judged by the rules of the {judge.rules}, with a heartbeat interval of {judge.heartbeat_interval_s} s; by "
        f"those of the {other} claims may begin and end elsewhere.",
        _HIDDEN,
    ]
    if not all(row.has_append_time for row in seen):
        notes.append(_NO_APPEND_TIME)
    if any(row.is_trimmed for row in seen):
        notes.append(_TRIMMED)
    strayed = _strayed(seen)
    if strayed:
        notes.append(
            f"Messages about {', '.join(strayed[:3])} lie in several coordination partitions, which have no common "
            "order: each was judged by itself."
        )
    counts = {what: sum(getattr(row, name) for row in seen) for name, what in _COUNTED.items()}
    return notes + [f"{count:,} {what}." for what, count in counts.items() if count]


def _strayed(seen: Sequence[Sighting]) -> list[str]:
    """Return the topics that messages in several coordination partitions are about."""
    places: dict[str, set[int]] = defaultdict(set)
    for row in seen:
        for topic in row.topics:
            places[topic].add(row.coordination_partition)
    return sorted(topic for topic, where in places.items() if topic and len(where) > 1)
