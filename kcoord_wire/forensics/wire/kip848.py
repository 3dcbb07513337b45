"""Groups of KIP-848: what ConsumerGroupHeartbeat tells of epochs, members and owners.

The coordinator assigns here, and says so to each member in the answer to its next heartbeat. A rebalance is the way
from one group epoch to the next: from what raised it to the moment when every member has the new epoch and has said
that it owns what it was given. Epochs that no member was ever told are not seen, and not counted.

Laws:

* A member joins with epoch 0 and leaves with -1, or -2 if it is static and will be back (then nothing is given away).
* It owns a partition from the answer that assigns it to the first heartbeat that no longer names it.
* The session timeout is the broker's (``group.consumer.session.timeout.ms``) and not on the wire: a member that is
  heard of no more is said to have run out of it, with less confidence.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from math import ceil

from kcoord_wire.forensics.model import (
    Cause,
    Evidence,
    Generation,
    MemberLife,
    Rebalance,
    RemovedMember,
    StateInterval,
)
from kcoord_wire.forensics.wire.causes import describe_peer, evidence_of
from kcoord_wire.forensics.wire.kip848_members import FENCED_EPOCH, LEAVES_FOR_NOW, EpochLife, EpochReader, Spark, hear
from kcoord_wire.forensics.wire.ownership import Holding
from kcoord_wire.forensics.wire.rows import Key, Partition, Row, Rows
from kcoord_wire.forensics.wire.trace import Peer

__all__ = ["Epochs", "read_epochs"]

_MS = 1e6
_SOON_NS = 1_000_000_000
_MISSED = 3  # heartbeats, after which a member is silent; its session lasts for nine by default
_WITNESSES = 16  # members that are asked whether they were heard of since


@dataclass(slots=True)
class Epochs:
    """What comes of it; each list in order of time."""

    rebalances: list[Rebalance] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    states: list[StateInterval] = field(default_factory=list)
    members: list[MemberLife] = field(default_factory=list)
    holdings: list[Holding] = field(default_factory=list)
    unknown: int = 0


def read_epochs(rows: Rows) -> Epochs:
    """The history of a group as its ConsumerGroupHeartbeat exchanges tell it; empty where there are none."""
    return _Teller(hear(rows)).tell()


class _Teller:
    def __init__(self, said: EpochReader) -> None:
        self._said = said
        self._silenced: list[Key] = []  # when members had gone that said nothing of it
        self._assigned: dict[int, set[Partition]] = defaultdict(set)
        for life in said.lives:
            for epoch, _, part in life.told:
                self._assigned[epoch] |= part or frozenset()

    def tell(self) -> Epochs:
        """All that follows."""
        result = Epochs()
        sparks = sorted([*self._said.sparks, *self._silent()], key=lambda spark: spark.key)
        starts: list[tuple[Key, list[Spark]]] = []
        used = 0
        keys = [spark.key for spark in sparks]
        for _, key, _ in self._said.bumps:
            end = bisect_right(keys, key)
            fresh = sparks[used:end]
            used = max(used, end)
            starts.append((fresh[0].key if fresh else key, fresh))
        owners: dict[Partition, Peer] = {}
        result.holdings = sorted(
            (holding for life in self._said.lives for holding in self._holdings(life)),
            key=lambda holding: (holding.partition, *holding.order),
        )
        by_time = sorted(result.holdings, key=_held_from)
        for index, ((epoch, key, row), (start, fresh)) in enumerate(zip(self._said.bumps, starts, strict=True)):
            following = starts[index + 1][0] if index + 1 < len(starts) else None
            rebalance = self._rebalance(index + 1, epoch, key, row, start, fresh, following)
            self._count_moves(rebalance, by_time, owners, following)
            result.rebalances.append(rebalance)
            result.unknown += rebalance.cause == Cause.UNKNOWN
            result.generations.append(self._generation(rebalance, epoch, key, following))
        last = self._last_empty(len(result.rebalances) + 1, sparks, used)
        if last is not None:
            if result.rebalances and result.rebalances[-1].outcome == "open":
                result.rebalances[-1].outcome = "interrupted"
            result.rebalances.append(last)
        result.states = self._states(result.rebalances)
        result.members = [self._member(life) for life in self._said.lives]
        return result

    def _silent(self) -> list[Spark]:
        """Members that are heard of no more although the source goes on, or are refused when they come back."""
        sparks = []
        latest = sorted(self._said.lives, key=lambda life: -self._last_seen(life, None))[:_WITNESSES]
        for life in self._said.lives:
            if life.left is not None and life.refused is not None:
                last = self._last_seen(life, life.left[0] - 1)
                fenced = life.refused.error == FENCED_EPOCH
                cause = Cause.REBALANCE_TIMEOUT if fenced else Cause.SESSION_EXPIRED
                text = f"{describe_peer(life)} was removed: it is refused when it is heard of again"
                gone = next((key for _, key, _ in self._said.bumps if last < key[0] <= life.left[0]), life.left)
                sparks.append(Spark(min(gone, life.left), cause, life, life.refused, text, 0.7))
            elif life.left is None:
                last = self._last_seen(life, None)
                heard = [self._third_sign(other, last) for other in latest if other is not life]
                missed = min((time for time in heard if time is not None), default=None)
                bumps = self._said.bumps
                bump = next((key for _, key, _ in bumps if missed is not None and key[0] >= missed), None)
                if bump is not None:
                    life.left, life.why = bump, "session timeout"
                    self._silenced.append(bump)
                    text = f"{describe_peer(life)} was not heard of any more"
                    sparks.append(Spark(bump, Cause.SESSION_EXPIRED, life, None, text, 0.6))
        return sparks

    def _third_sign(self, life: EpochLife, after_ns: int) -> int | None:
        """The third heartbeat of a member after that moment: all members have the same interval, whatever it is."""
        at: int | None = after_ns
        for _ in range(_MISSED):
            at = None if at is None else self._said.rows.signs.next(life.member_id, at)
        return at

    def _last_seen(self, life: EpochLife, until_ns: int | None) -> int:
        sign = self._said.rows.signs.last(life.member_id) if until_ns is None else None
        if until_ns is not None:
            sign = self._said.rows.signs.last_answered_before(life.member_id, until_ns)
        seen = [key[0] for _, key, _ in life.told] + [key[0] for key, _ in life.stated] + [life.since[0]]
        return max([sign or 0, *(time for time in seen if until_ns is None or time <= until_ns)])

    def _rebalance(
        self, number: int, epoch: int, key: Key, row: Row, start: Key, fresh: list[Spark], following: Key | None
    ) -> Rebalance:
        spark = fresh[0] if fresh else None
        acks = self._acks(epoch, start, following)
        waiting = [life for life, at in acks if at is None]
        done = max((at for _, at in acks if at is not None), default=key)
        is_over = not waiting and (following is None or done <= following)
        outcome = "stable" if is_over else "interrupted" if following is not None else "open"
        end = done[0] if is_over else None if following is None else following[0]
        facts: list[Evidence] = [
            evidence_of(item.row, item.text, answer=item.row.error is not None and item.row.error != 0)
            for item in fresh
            if item.row is not None
        ]
        facts.append(evidence_of(row, f"epoch {epoch} is told first to {describe_peer(None, row)}", answer=True))
        life = None if spark is None else spark.life
        cause, detail, confidence = Cause.UNKNOWN, "nothing in the source set it off", 0.2
        if spark is not None:
            cause, detail, confidence = spark.cause, spark.text, spark.confidence
            if len(fresh) > 1:
                detail += "; with it: " + ", ".join(item.text for item in fresh[1:9])
        else:
            changed = self._changed_topics(start, number)
            if changed is not None:
                cause, detail, confidence = Cause.TOPICS_CHANGED, changed.text, 0.8
                facts.insert(0, changed)
        joined = max(key[0], start[0])
        ordered = sorted(((at, who) for who, at in acks if at is not None), key=lambda item: item[0])
        rebalance = Rebalance(
            group_id=self._said.rows.group_id,
            number=number,
            generation_id=epoch,
            started_ns=start[0],
            joined_ns=joined,
            ended_ns=end,
            outcome=outcome,
            cause=str(cause),
            member_id=None if life is None else life.member_id,
            client_id=None if life is None else life.client_id,
            client_host=None if life is None else life.host or None,
            instance_id=None if life is None else life.instance_id,
            reason=None,
            detail=detail,
            confidence=confidence,
            evidence=facts,
            protocol_type="consumer",
            assignor=next((life.assignor for life in self._said.lives if life.assignor is not None), None),
            cooperative=True,
            duration_ms=None if end is None else (end - start[0]) / _MS,
            joining_ms=(joined - start[0]) / _MS,
            syncing_ms=(end - joined) / _MS if end is not None and is_over else None,
            members_before=self._members_at(start, before=True),
            members_after=len(acks),
            removed=[
                RemovedMember(item.life.member_id, item.life.client_id, item.life.host or None, item.life.why or "left")
                for item in fresh
                if item.cause in (Cause.MEMBER_LEFT, Cause.SESSION_EXPIRED, Cause.POLL_TIMEOUT)
            ],
        )
        if ordered:
            at, who = ordered[-1]
            rebalance.last_member_id, rebalance.last_client_id = who.member_id, who.client_id
            rebalance.last_client_host = who.host or None
            rebalance.late_ms = (at[0] - ordered[-2][0][0]) / _MS if len(ordered) > 1 else None
        return rebalance

    def _acks(self, epoch: int, start: Key, following: Key | None) -> list[tuple[EpochLife, Key | None]]:
        """When each member that there was had the epoch, and had said that it owns what came with it."""
        found: list[tuple[EpochLife, Key | None]] = []
        for life in self._said.lives:
            if life.since > (following or (1 << 62, "", 0)) or (life.left is not None and life.left <= start):
                continue
            until = following or (1 << 62, "", 0)
            first = bisect_left(life.told, epoch, key=_epoch)
            last = bisect_left(life.told, until, lo=first, key=_told_at) - 1  # it may be given more when others let go
            if first == len(life.told):
                gone = life.left is not None and (following is None or life.left <= following)
                if not gone and (life.since <= start or life.told):
                    found.append((life, None))
                continue
            _, key, assignment = life.told[max(first, last)]
            if following is not None and key > following and life.since > start:
                continue
            if assignment is not None:
                later = life.stated[bisect_left(life.stated, key, key=_stated_at) :]
                said = next((at for at, owned in later if owned == assignment), None)
                key = key if said is None else said
            found.append((life, key))
        return found

    def _members_at(self, key: Key, *, before: bool) -> int:
        ends = self._said.ends
        at = bisect_left(ends, key, key=_count_at) if before else bisect_right(ends, key, key=_count_at)
        silenced = sum(gone < key if before else gone <= key for gone in self._silenced)
        return ends[at - 1][1] - silenced if at else 0

    def _changed_topics(self, start: Key, number: int) -> Evidence | None:
        """A topic of which a client learnt, since the epoch before, that its size is another."""
        since = self._said.bumps[number - 2][1][0] if number > 1 else 0
        topics = {topic for life in self._said.lives for topic in life.topics}
        topics |= {topic for assigned in self._assigned.values() for topic, _ in assigned}  # by a pattern
        sizes: dict[str, int] = {}
        for sighting in self._said.rows.sightings:
            if sighting.topic not in topics:
                continue
            before = sizes.get(sighting.topic)
            if since < sighting.key[0] <= start[0] + 300 * _SOON_NS and before not in (None, sighting.partitions):
                text = f"topic {sighting.topic} has {sighting.partitions} partitions and had {before} before"
                return Evidence(sighting.key[0], sighting.key[1], -1, text)
            sizes[sighting.topic] = sighting.partitions
        return None

    def _last_empty(self, number: int, sparks: list[Spark], used: int) -> Rebalance | None:
        """The last members have left: nobody is told the epoch that follows."""
        rest = [
            spark
            for spark in sparks[used:]
            if spark.cause in (Cause.MEMBER_LEFT, Cause.SESSION_EXPIRED, Cause.POLL_TIMEOUT)
        ]
        if not rest or any(life.left is None for life in self._said.lives):
            return None
        spark, end = rest[0], rest[-1].key
        return Rebalance(
            self._said.rows.group_id, number, None, spark.key[0], None, end[0], "empty", str(spark.cause),
            spark.life.member_id,
            spark.life.client_id, spark.life.host or None, spark.life.instance_id, None, spark.text, spark.confidence,
            [evidence_of(item.row, item.text) for item in rest if item.row is not None],
            protocol_type="consumer", cooperative=True, duration_ms=(end[0] - spark.key[0]) / _MS,
            members_before=self._members_at(spark.key, before=True),
            removed=[RemovedMember(item.life.member_id, item.life.client_id, item.life.host or None,
                                   item.life.why or "left") for item in rest],
        )  # fmt: skip

    # ---- rows

    def _holdings(self, life: EpochLife) -> list[Holding]:
        held: dict[Partition, Holding] = {}
        done: list[Holding] = []
        moments = [(key, 1, part, epoch) for epoch, key, part in life.told if part is not None]
        moments += [(key, 0, owned, 0) for key, owned in life.stated]
        for key, kind, partitions, epoch in sorted(moments, key=lambda moment: moment[:2]):
            if kind == 0:
                for partition in [name for name in held if name not in partitions and held[name].from_ns < key[0]]:
                    held[partition].to_ns = key[0]
                    done.append(held.pop(partition))
            for partition in sorted(partitions):
                if partition not in held and (kind == 1 or not life.is_new):
                    held[partition] = Holding(partition, life, epoch or life.first_generation, key[0])
        if life.left is not None and not (life.leave is not None and life.leave.generation == LEAVES_FOR_NOW):
            for holding in held.values():
                holding.to_ns = max(life.left[0], holding.from_ns)
        elif life.left is not None:
            back = next((other.since[0] for other in self._said.lives if other.instance_id == life.instance_id
                         and other.instance_id is not None and other.since > life.since), None)  # fmt: skip
            for holding in held.values():
                holding.to_ns = max(back if back is not None else life.left[0], holding.from_ns)
        return done + list(held.values())

    def _count_moves(
        self, rebalance: Rebalance, holdings: list[Holding], owners: dict[Partition, Peer], following: Key | None
    ) -> None:
        """Partitions whose owner is another than before, from this epoch's beginning to the next."""
        until = 1 << 62 if following is None else following[0]
        first = bisect_left(holdings, rebalance.started_ns, key=_held_from)
        fresh = holdings[first : bisect_left(holdings, until, lo=first, key=_held_from)]
        had: dict[str, int] = defaultdict(int)
        for life in owners.values():
            had[life.identity] += 1
        staying = {
            life.identity for life in self._said.lives if life.left is None or life.left[0] > rebalance.started_ns
        }
        share = ceil(len(owners) / max(len(staying), 1))
        for holding in fresh:
            former = owners.get(holding.partition)
            if former is not None and former.identity != holding.peer.identity:
                rebalance.moved += 1
                rebalance.moved_needlessly += former.identity in staying and had[former.identity] <= share
            owners[holding.partition] = holding.peer

    def _generation(self, rebalance: Rebalance, epoch: int, key: Key, following: Key | None) -> Generation:
        assigned = self._assigned.get(epoch, set())
        stable = rebalance.ended_ns if rebalance.outcome == "stable" else None
        end = None if following is None else following[0]
        return Generation(
            self._said.rows.group_id,
            epoch,
            key[0],
            stable,
            end,
            rebalance.assignor,
            None,
            rebalance.members_after,
            len(assigned),
        )

    def _states(self, rebalances: list[Rebalance]) -> list[StateInterval]:
        moves: list[tuple[str, int, int | None]] = []
        if self._said.began is not None:
            moves.append(("Stable", self._said.began[0], self._said.base))
        for rebalance in rebalances:
            if rebalance.outcome == "empty":
                moves.append(("Empty", rebalance.ended_ns or rebalance.started_ns, None))
                continue
            if rebalance.joined_ns is not None and rebalance.joined_ns > rebalance.started_ns:
                moves.append(("Assigning", rebalance.started_ns, rebalance.generation_id))
            moves.append(("Reconciling", rebalance.joined_ns or rebalance.started_ns, rebalance.generation_id))
            if rebalance.outcome == "stable" and rebalance.ended_ns is not None:
                moves.append(("Stable", rebalance.ended_ns, rebalance.generation_id))
        return [
            StateInterval(self._said.rows.group_id, state, at, end, epoch)
            for index, (state, at, epoch) in enumerate(moves)
            if (end := moves[index + 1][1] if index + 1 < len(moves) else None) != at
        ]

    def _member(self, life: EpochLife) -> MemberLife:
        return MemberLife(
            group_id=self._said.rows.group_id,
            member_id=life.member_id,
            instance_id=life.instance_id,
            client_id=life.client_id,
            client_host=life.host or None,
            joined_ns=life.since[0],
            left_ns=None if life.left is None else life.left[0],
            why_left=life.why,
            last_seen_ns=self._last_seen(life, None),
            first_generation_id=life.first_generation,
            last_generation_id=life.last_generation,
            session_timeout_ms=None,
            rebalance_timeout_ms=life.timeout_ms,
            assignors=[] if life.assignor is None else [life.assignor],
            topics=list(life.topics) if life.topics else [life.regex] if life.regex else [],
            protocol="consumer",
        )


def _epoch(told: tuple[int, Key, frozenset[Partition] | None]) -> int:
    return told[0]


def _told_at(told: tuple[int, Key, frozenset[Partition] | None]) -> Key:
    return told[1]


def _stated_at(stated: tuple[Key, frozenset[Partition]]) -> Key:
    return stated[0]


def _count_at(count: tuple[Key, int]) -> Key:
    return count[0]


def _held_from(holding: Holding) -> int:
    return holding.from_ns
