"""What members of KIP-848 say and are told: their lives, what may have raised the group's epoch, the epochs they saw.

Laws:

* A member joins with epoch 0 and leaves with -1, or -2 if it is static and will be back.
* An epoch counts from the moment when the first member is told of it; the one that the source begins with is no news.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kcoord_wire.forensics.model import Cause
from kcoord_wire.forensics.wire.causes import describe_peer
from kcoord_wire.forensics.wire.rows import Key, Partition, Row, Rows
from kcoord_wire.forensics.wire.trace import Peer

__all__ = ["FENCED_EPOCH", "LEAVES_FOR_NOW", "EpochLife", "EpochReader", "Spark", "hear"]

API = "ConsumerGroupHeartbeat"
JOINS, LEAVES, LEAVES_FOR_NOW = 0, -1, -2
UNKNOWN_MEMBER, FENCED_EPOCH = 25, 110


@dataclass(slots=True, eq=False)
class EpochLife(Peer):
    """A member id of the new protocol.

    :ivar told: when it was told an epoch first: epoch, key, what it was then assigned
    :ivar stated: what it said that it owns, and when
    """

    topics: tuple[str, ...] = ()
    regex: str | None = None
    assignor: str | None = None
    told: list[tuple[int, Key, frozenset[Partition] | None]] = field(default_factory=list)
    stated: list[tuple[Key, frozenset[Partition]]] = field(default_factory=list)
    timeout_ms: int | None = None


@dataclass(slots=True)
class Spark:
    """What may raise the epoch of a group."""

    key: Key
    cause: Cause
    life: EpochLife
    row: Row | None
    text: str
    confidence: float


def _moments(rows: list[Row]) -> list[tuple[Key, Row, bool]]:
    moments = []
    for row in rows:
        if row.api == API:
            moments.append((row.due, row, False))
            if row.answer_key is not None:
                moments.append((row.answer_key, row, True))
    return sorted(moments, key=lambda moment: (moment[0], moment[2]))


def hear(rows: Rows) -> EpochReader:
    """Take in all of a group's ConsumerGroupHeartbeat exchanges."""
    reader = EpochReader(rows)
    signs = rows.signs.first
    heard = [((signs[name].time_ns, signs[name].source, signs[name].seq), name) for name in rows.signs.modern]
    unheard = sorted(heard, reverse=True)
    for key, row, answered in _moments(rows.rows):
        while unheard and unheard[-1][0] < key:
            reader.take_sign(*unheard.pop())
        if answered:
            reader.take_answer(key, row)
        else:
            reader.take_request(key, row)
    while unheard:
        reader.take_sign(*unheard.pop())
    return reader


class EpochReader:
    """See the head of the module.

    :ivar members: who is in, by member id; `lives` all there were
    :ivar sparks: what may have raised the epoch, in order of time
    :ivar bumps: an epoch, when a member was told of it first, and by which exchange
    :ivar ends: how many members there are, whenever that changes
    :ivar base: the epoch that the source begins with, 0 for none; `began` when that was seen
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.members: dict[str, EpochLife] = {}
        self.lives: list[EpochLife] = []
        self.sparks: list[Spark] = []
        self.bumps: list[tuple[int, Key, Row]] = []
        self.ends: list[tuple[Key, int]] = []
        self._asked: dict[int, EpochLife] = {}
        self.base = 0
        self.began: Key | None = None

    # ---- what is said

    def take_sign(self, key: Key, member_id: str) -> None:
        """A heartbeat of a member that said nothing before it."""
        if member_id in self.members or any(life.member_id == member_id for life in self.lives):
            return
        sign = self.rows.signs.first[member_id]
        life = EpochLife(member_id, sign.instance_id, sign.client_id, sign.host, key, is_new=False)
        life.first_generation = life.last_generation = sign.generation
        self.members[member_id] = life
        self.lives.append(life)
        self._count(key)
        self._begin_at(key, sign.generation or 0)

    def _begin_at(self, key: Key, epoch: int) -> None:
        """The source begins with a group that has an epoch."""
        if not self.bumps and epoch > self.base:
            self.base = epoch
            self.began = self.began or key

    def take_request(self, key: Key, row: Row) -> None:
        """A heartbeat goes to the coordinator."""
        if row.generation is None:
            return
        life = self.members.get(row.member_id) if row.member_id else None
        if row.generation in (LEAVES, LEAVES_FOR_NOW):
            if life is not None and not row.error:
                self._leave(key, row, life)
            return
        if row.generation == JOINS:
            if not row.error:
                self._join(key, row, life)
            return
        if row.error in (UNKNOWN_MEMBER, FENCED_EPOCH):
            return
        if life is None and row.member_id:
            life = self._begin(key, row, row.member_id, is_new=False)
        if life is None:
            return
        self._asked[id(row)] = life
        if not life.is_new:
            self._begin_at(key, row.generation)
        if row.owned is not None:
            life.stated.append((key, row.owned))
        if not row.error:
            self._compare(key, row, life)

    def take_answer(self, key: Key, row: Row) -> None:
        """It is answered."""
        life = self._asked.get(id(row)) or self.members.get(row.who)
        if life is None:
            return
        if row.error in (UNKNOWN_MEMBER, FENCED_EPOCH):
            life.refused = row
            self._end(life, key, "session timeout" if row.error == UNKNOWN_MEMBER else "rebalance timeout")
            return
        epoch = row.new_generation
        if row.error or epoch is None or epoch <= 0:
            return
        if epoch > (self.bumps[-1][0] if self.bumps else self.base):
            self.bumps.append((epoch, key, row))
        if not life.told or life.told[-1][0] != epoch or row.assignment is not None:
            life.told.append((epoch, key, row.assignment))
        life.first_generation = epoch if life.first_generation is None else life.first_generation
        life.last_generation = epoch

    # ---- members

    def _begin(self, key: Key, row: Row, member_id: str, *, is_new: bool) -> EpochLife:
        life = EpochLife(member_id, row.instance_id, row.client_id, row.host, key, is_new)
        life.topics, life.regex, life.assignor = row.topics or (), row.topic_regex, row.assignor
        life.timeout_ms = row.rebalance_ms if row.rebalance_ms is not None and row.rebalance_ms >= 0 else None
        life.connections.add(row.connection)
        life.joins.append(row)
        self.members[member_id] = life
        self.lives.append(life)
        self._count(key)
        return life

    def _count(self, key: Key) -> None:
        self.ends.append((key, len(self.members)))

    def _end(self, life: EpochLife, key: Key, why: str) -> None:
        if life.left is None:
            life.left, life.why = key, why
        if self.members.get(life.member_id) is life:
            del self.members[life.member_id]
            self._count(key)

    def _join(self, key: Key, row: Row, life: EpochLife | None) -> None:
        member_id = row.member_id or row.given_id
        if not member_id:
            return
        former = life or next((old for old in reversed(self.lives) if old.member_id == member_id), None)
        holder = None
        if row.instance_id is not None:
            holder = next((old for old in reversed(self.lives) if old.instance_id == row.instance_id), None)
        if life is not None:
            self._end(life, key, "session timeout" if life.refused is None else "rebalance timeout")
        fresh = self._begin(key, row, member_id, is_new=True)
        fresh.former = former
        self._asked[id(row)] = fresh
        who = describe_peer(fresh, row)
        if former is not None and former.why == "left" and former.leave is not None:
            former.why = "poll timeout"
            for spark in self.sparks:
                if spark.row is former.leave:
                    spark.cause, spark.confidence = Cause.POLL_TIMEOUT, 0.7
                    spark.text = f"{who} left, and came back as the same process: it had not polled in time"
            self._spark(key, Cause.NEW_MEMBER, fresh, row, f"{who} is back after it had left", 1.0)
        elif former is not None and former.refused is not None:
            cause = Cause.REBALANCE_TIMEOUT if former.refused.error == FENCED_EPOCH else Cause.NEW_MEMBER
            self._spark(key, cause, fresh, row, f"{who} had been removed and joined again", 0.8)
        elif holder is not None and holder is not former:
            if holder.left is None:
                self._end(holder, key, "replaced")
            else:
                holder.why = "replaced"
            text = f"{who} took the place of its former self"
            self._spark(key, Cause.STATIC_REPLACED, fresh, row, text, 0.9)
        else:
            self._spark(key, Cause.NEW_MEMBER, fresh, row, f"{who} joined as a new member", 1.0)

    def _leave(self, key: Key, row: Row, life: EpochLife) -> None:
        life.leave = row
        who = describe_peer(life)
        if row.generation == LEAVES_FOR_NOW:
            self._end(life, key, "left")
            return  # a static member that will be back: its partitions stay its own
        self._end(life, key, "left")
        self._spark(key, Cause.MEMBER_LEFT, life, row, f"{who} left", 1.0 if row.answer_key is not None else 0.9)

    def _compare(self, key: Key, row: Row, life: EpochLife) -> None:
        who = describe_peer(life)
        if row.topics is not None or row.topic_regex is not None:
            now = (row.topics if row.topics is not None else life.topics, row.topic_regex or life.regex)
            if now != (life.topics, life.regex):
                if life.topics or life.regex or life.is_new:
                    names = ", ".join(now[0]) or now[1] or "nothing"
                    self._spark(key, Cause.SUBSCRIPTION_CHANGED, life, row, f"{who} subscribes to {names} now", 1.0)
                life.topics, life.regex = now
        if row.assignor is not None and row.assignor != life.assignor:
            if life.assignor is not None:
                self._spark(key, Cause.ASSIGNORS_CHANGED, life, row, f"{who} asks for {row.assignor} now", 0.9)
            life.assignor = row.assignor

    def _spark(self, key: Key, cause: Cause, life: EpochLife, row: Row, text: str, confidence: float) -> None:
        self.sparks.append(Spark(key, cause, life, row, text, confidence))
