"""A group's course, played again: what the coordinator must have gone through to have answered as it did.

    Replay(rows, rounds, failovers).run() -> courses, peers, states

Theory. The requests are given to a model of the coordinator in the order in which it saw them. Unlike the coordinator,
the model knows every answer beforehand: which JoinGroup requests waited for which round, who was refused, who was in
the leader's list. It computes no outcomes: it tells what moved the group out of its state, a join, a leave, or time
that ran out. Where the answers show a rebalance that nothing in the source began, it looks for what fits (`_hidden`).

Laws:

* It never contradicts an answer: a member that is answered well under its id has not been removed before.
* One course per completed join, as the coordinator counts them: a trigger while members join adds to the course that
  goes on; one while the leader's SyncGroup is awaited ends it as ``interrupted`` and begins the next.
* Nothing raises: rows may be missing, members unknown, times in disorder.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kcoord_wire.forensics.wire_rounds import NOT_COORDINATOR, Failover, Round
from kcoord_wire.forensics.wire_rows import Key, Leaver, Offer, Partition, Row, Rows, last_key

__all__ = ["Course", "Peer", "Replay", "Trigger", "is_cooperative"]

EMPTY, PREPARING, COMPLETING, STABLE = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"
UNKNOWN_STATE = ""
_MS = 1_000_000
_PARKED_NS = 20 * _MS  # an answer that took longer had to wait for others
_TOLERANCE_NS = 1_000 * _MS  # timers of brokers run late, captures are taken at the other end
_CALM_NS = 50 * _MS
_INITIAL_DELAY_NS = 3_000 * _MS
_OUTLIVED = (None, "coordinator failover")
REBALANCING, ILLEGAL_GENERATION, UNKNOWN_MEMBER, MEMBER_ID_REQUIRED, FENCED, TOO_LARGE = 27, 22, 25, 79, 82, 81


@dataclass(slots=True, eq=False)
class Peer:
    """A member id with its life, as it came to be known.

    :ivar since: its first sign; `is_new` whether that was its first join
    :ivar joins: its JoinGroup requests that were taken
    :ivar held: what it was last given and has not given back; `gave_up` what its last assignment took from it
    :ivar refused: the last answer that told it that it is not what it takes itself for
    :ivar former: the life that the same client had before
    """

    member_id: str
    instance_id: str | None
    client_id: str | None
    host: str
    since: Key
    is_new: bool
    left: Key | None = None
    why: str | None = None
    leave: Row | None = None
    joins: list[Row] = field(default_factory=list)
    parked: Row | None = None
    waits_sync: Row | None = None
    held: frozenset[Partition] = frozenset()
    gave_up: frozenset[Partition] = frozenset()
    gave_up_by: Row | None = None
    refused: Row | None = None
    former: Peer | None = None
    alive_ns: int = 0
    first_generation: int | None = None
    last_generation: int | None = None
    connections: set[str] = field(default_factory=set)

    @property
    def identity(self) -> str:
        """The same for a static member that comes back under another id."""
        return self.member_id if self.instance_id is None else f"instance {self.instance_id}"

    @property
    def session_ms(self) -> int | None:
        return next((row.session_ms for row in reversed(self.joins) if row.session_ms), None)

    @property
    def rebalance_ms(self) -> int | None:
        for row in reversed(self.joins):
            if row.rebalance_ms is not None and row.rebalance_ms >= 0:
                return row.rebalance_ms
        return self.session_ms

    @property
    def is_cooperative(self) -> bool:
        return bool(self.joins) and is_cooperative(self.joins[-1].offers)


def is_cooperative(offers: Iterable[Offer]) -> bool:
    """Whether a client that offers these keeps its partitions while it rejoins: it does if all of them allow it."""
    offered = list(offers)
    named = bool(offered) and all("cooperative" in offer.assignor for offer in offered)
    return named or any(offer.owned for offer in offered)


@dataclass(slots=True, eq=False)
class Trigger:
    """What moved the group out of its state.

    :ivar kind: ``joined`` (new), ``rejoined`` (known), ``static`` (a known instance id under a new member id),
        ``left``, ``session``, ``sync``, ``vanished`` (gone, and no timeout known that would tell why) or ``hidden``
    :ivar former: the join before this one, of the same member
    :ivar leads: the member led the generation before
    :ivar gave_up: what the member's last assignment had taken from it
    :ivar refused: what it was told before it came back
    :ivar failover: the loss of the coordinator that the member comes back after
    :ivar missed: the round before this one, where it was completed without this (static) member
    :ivar inferred: it does not stand in the source: it follows from what was seen later
    """

    kind: str
    at: Key
    peer: Peer | None = None
    row: Row | None = None
    leaver: Leaver | None = None
    former: Row | None = None
    leads: bool = False
    gave_up: frozenset[Partition] = frozenset()
    gave_up_by: Row | None = None
    refused: Row | None = None
    failover: Failover | None = None
    missed: Round | None = None
    inferred: bool = False


@dataclass(slots=True, eq=False)
class Course:
    """One rebalance, as it went.

    :ivar sign: the answer that showed it, where its trigger is not in the source
    :ivar loaded: the coordinator was lost before, and nothing else had begun since
    :ivar others: what would have set it off, had it not been going on already
    :ivar before: the members when it began
    :ivar from_empty: there were none
    :ivar leaders: the leader and the round before
    """

    trigger: Trigger
    started: Key
    before: dict[str, Peer]
    from_empty: bool
    former_round: Round | None
    sign: Row | None = None
    loaded: Failover | None = None
    others: list[Trigger] = field(default_factory=list)
    joins: list[tuple[Key, Peer, Row]] = field(default_factory=list)
    removed: list[tuple[Peer, str]] = field(default_factory=list)
    round: Round | None = None
    generation: int | None = None
    after: dict[str, Peer] = field(default_factory=dict)
    stable: Key | None = None
    over: Key | None = None
    outcome: str = "open"


class Replay:
    """See the head of the module.

    :ivar courses: the rebalances, in order
    :ivar peers: the lives of the members, in order of their first sign
    :ivar states: state, since when, generation
    :ivar returns: joins that were answered without a rebalance, of static members that came back
    """

    def __init__(self, rows: Rows, rounds: list[Round], failovers: list[Failover]) -> None:
        self.courses: list[Course] = []
        self.peers: list[Peer] = []
        self.states: list[tuple[str, Key, int | None]] = []
        self.returns: list[tuple[Peer, Row]] = []
        self._rows = rows
        self._rounds = rounds
        self._failovers = failovers
        self._keys = [home.key for home in rounds]
        self._home = {id(row): home for home in rounds for row in (*home.joins, *home.late)}
        self._syncs = {id(row): home for home in rounds for asked in home.asked.values() for row in asked}
        self._members: dict[str, Peer] = {}
        self._instances: dict[str, str] = {}
        self._pending: set[str] = set()
        self._lives: dict[str, list[Peer]] = {}  # by member id
        self._by_connection: dict[str, list[Peer]] = {}
        self._by_client: dict[tuple[str | None, str], list[Peer]] = {}
        self._asked_by: dict[str, list[Row]] = {}
        for row in rows.rows:
            if row.api in ("JoinGroup", "SyncGroup"):
                self._asked_by.setdefault(row.member_id, []).append(row)
        self._state = UNKNOWN_STATE
        self._generation: int | None = None
        self._leader: str | None = None
        self._round: Round | None = None
        self._course: Course | None = None
        self._lost: list[tuple[Peer, str]] = []
        self._maybe: list[Row] = []
        self._sync_due: tuple[int, Round] | None = None
        self._kept: tuple[Round, dict[str, Peer]] | None = None
        self._failover: Failover | None = None
        self._is_fresh = False  # nothing has begun since the coordinator was lost
        self._loaded_ns = 0
        self._events: list[tuple[Key, int, int, Any, tuple[Any, ...]]] = []
        self._count = 0
        self._alive = self._read_alive()
        self._signs = sorted(row.due[0] for row in rows.rows if row.error == REBALANCING or id(row) in self._home)

    def run(self) -> None:
        """Play it."""
        self._plan()
        while self._events:
            key, _, _, step, about = heapq.heappop(self._events)
            step(key, *about)
        self._finish()

    # ---- what there is to play

    def _at(self, key: Key, rank: int, step: Any, *about: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (key, rank, self._count, step, about))

    def _plan(self) -> None:
        asks = {"JoinGroup": self._ask_join, "SyncGroup": self._ask_sync, "LeaveGroup": self._ask_leave}
        for row in self._rows.rows:
            ask = asks.get(row.api)
            if ask is not None:
                self._at(row.due, 2, ask, row)
            if row.answer_key is not None and row.api != "FindCoordinator":
                self._at(row.answer_key, 3, self._told, row)
            if row.error == REBALANCING and row.api in ("Heartbeat", "SyncGroup"):
                parked = row.api == "SyncGroup" and row.answer_key and row.answer_key[0] - row.due[0] > _PARKED_NS
                self._at(row.answer_key if parked and row.answer_key else row.due, 4, self._seen_rebalancing, row)
        for home in self._rounds:
            self._at(home.key, 1, self._joined, home)
        for failover in self._failovers:
            self._at(failover.begin, 0, self._fail_over, failover)
        for member_id, sign in self._rows.signs.first.items():
            self._at((sign.time_ns, sign.source, sign.seq), 0, self._heard, member_id)
        session_ns = {
            member_id: row.session_ms * _MS for member_id, row in self._last_joins().items() if row.session_ms
        }
        for member_id, start, _ in self._rows.signs.silences(self._alive, session_ns, self._rows.horizon_ns):
            self._at(last_key(start + session_ns[member_id]), 5, self._silent, member_id, start)

    def _last_joins(self) -> dict[str, Row]:
        return {row.who: row for row in self._rows.rows if row.api == "JoinGroup" and row.who and id(row) in self._home}

    def _read_alive(self) -> dict[str, list[int]]:
        """When each member was heard of and answered as a member, heartbeats and commits that went well aside."""
        found: dict[str, list[int]] = {}
        for row in self._rows.rows:
            if row.api == "JoinGroup" and row.error == 0 and row.answer_key is not None:
                found.setdefault(row.who, []).extend((row.due[0], row.answer_key[0]))
            elif row.api in ("Heartbeat", "SyncGroup") and row.error in (0, REBALANCING) and row.answer_key is not None:
                found.setdefault(row.member_id, []).append(max(row.due[0], row.answer_key[0]))
        for times in found.values():
            times.sort()
        return found

    # ---- what is known of a member beforehand

    def _last_alive(self, member_id: str) -> int:
        times = self._alive.get(member_id)
        sign = self._rows.signs.last_answered(member_id)
        return max(times[-1] if times else 0, sign or 0)

    def _next_alive(self, member_id: str, after_ns: int) -> int | None:
        times = self._alive.get(member_id, [])
        at = bisect_right(times, after_ns)
        own = times[at] if at < len(times) else None
        sign = self._rows.signs.next(member_id, after_ns)
        return min((time for time in (own, sign) if time is not None), default=None)

    def _alive_before(self, member_id: str, until_ns: int) -> int:
        times = self._alive.get(member_id, [])
        at = bisect_right(times, until_ns)
        sign = self._rows.signs.last_answered_before(member_id, until_ns)
        return max(times[at - 1] if at else 0, sign or 0)

    def _next_round(self, key: Key) -> Round | None:
        at = bisect_right(self._keys, key)
        return self._rounds[at] if at < len(self._rounds) else None

    def _listed_later(self, member_id: str, key: Key) -> bool:
        """Whether the next leader that is told who is in hears of it."""
        home = self._next_round(key)
        return home is not None and member_id in home.members

    def _revive(self, peer: Peer, now_ns: int) -> None:
        """The coordinator begins its session anew without a sign of its own."""
        peer.alive_ns = max(peer.alive_ns, now_ns)
        session = peer.session_ms
        if session:
            after = self._next_alive(peer.member_id, now_ns)
            end = now_ns + session * _MS
            if (after is None or after > end) and end <= self._rows.horizon_ns:
                self._at(last_key(end), 5, self._silent, peer.member_id, now_ns)

    # ---- moves

    def _move(self, state: str, key: Key) -> None:
        self._state = state
        self.states.append((state, key, self._generation))

    def _start(self, trigger: Trigger, sign: Row | None = None) -> Course:
        for peer in self._members.values():
            if peer.waits_sync is not None:
                peer.waits_sync = None
                self._revive(peer, trigger.at[0])
        self._end("interrupted", trigger.at)
        gone = {peer.member_id: peer for peer, _ in self._lost}
        course = Course(
            trigger,
            trigger.at,
            {**gone, **self._members},
            self._state == EMPTY or (self._state == UNKNOWN_STATE and not self._members),
            self._round,
            sign,
            removed=self._lost,
            loaded=self._failover if self._is_fresh else None,
        )
        self._is_fresh = False
        self._lost = []
        self._course = course
        self.courses.append(course)
        self._move(PREPARING, trigger.at)
        timeouts = [peer.rebalance_ms for peer in self._members.values()]
        known = [timeout for timeout in timeouts if timeout is not None]
        if not course.from_empty and known and len(known) == len(timeouts):
            self._at(last_key(trigger.at[0] + max(known) * _MS), 5, self._nobody_joins, course)
        return course

    def _nobody_joins(self, key: Key, course: Course) -> None:
        """The time to join is over, and nobody has."""
        if self._course is not course or self._state != PREPARING or key[0] > self._rows.horizon_ns:
            return
        if any(peer.parked is not None or peer.instance_id is not None for peer in self._members.values()):
            return
        home = self._next_round(key)
        if home is not None and (home.generation == (self._generation or 0) + 1 or key > home.key):
            return
        for peer in list(self._members.values()):
            self._remove(peer, key, "rebalance timeout")
        self._lose(Trigger("sync", key, inferred=True))
        course.others.pop()

    def _end(self, outcome: str, key: Key) -> None:
        course = self._course
        if course is not None and course.outcome == "open":
            course.outcome = outcome
            course.over = key

    def _admit(self, peer: Peer) -> None:
        self._members[peer.member_id] = peer
        self._lives.setdefault(peer.member_id, []).append(peer)
        self.peers.append(peer)
        if peer.instance_id is not None:
            self._instances[peer.instance_id] = peer.member_id

    def _remove(self, peer: Peer, key: Key, why: str) -> None:
        peer.left, peer.why = key, why
        peer.parked = peer.waits_sync = None
        if self._members.get(peer.member_id) is peer:
            del self._members[peer.member_id]
        if peer.instance_id is not None and self._instances.get(peer.instance_id) == peer.member_id:
            del self._instances[peer.instance_id]
        if why != "replaced":
            course = self._course if self._state == PREPARING else None
            (self._lost if course is None else course.removed).append((peer, why))

    def _lose(self, trigger: Trigger) -> None:
        """After members are gone: a rebalance, or the end of one."""
        if self._state != PREPARING:
            self._start(trigger)
        elif self._course is not None:
            self._course.others.append(trigger)
        course = self._course
        if self._members or course is None or self._state != PREPARING:
            return
        home = self._next_round(trigger.at)
        expected = None if self._generation is None else self._generation + 1
        if course.from_empty and home is not None and home.generation == expected:
            return  # others have come before the initial delay was over
        self._generation = expected
        course.generation = expected
        self._end("empty", trigger.at)
        self._leader = self._round = None
        self._move(EMPTY, trigger.at)

    # ---- JoinGroup

    def _ask_join(self, key: Key, row: Row) -> None:
        home = self._home.get(id(row))
        if row.error == TOO_LARGE:
            refused = self._members.get(row.member_id)
            if refused is not None and not self._listed_later(row.member_id, key):
                self._remove(refused, key, "group.max.size")
            return
        if home is None and not self._was_taken(row):
            if row.error is None:
                self._maybe.append(row)
            return
        who = self._name(row, home)
        if not who and self._is_cut_off(row):
            who = f"?{row.connection}"  # nobody was told the id
        if not who:
            self._maybe.append(row)
            return
        peer = self._members.get(who)
        holder = self._instances.get(row.instance_id or "") if row.instance_id is not None else None
        is_return = holder is not None and (holder != who or not row.member_id)
        if home is not None and home.joined is not None and row.due > home.joined:
            self._join_late(key, row, who, peer, holder if is_return else None)
            return
        trigger = self._join_trigger(key, row, who, peer, is_return)
        if self._state != PREPARING:
            if trigger is None or (trigger.kind == "rejoined" and _is_follower(row)):
                trigger = self._hidden(key, trigger)
            self._start(trigger, row if trigger.kind == "hidden" else None)
            if trigger.kind != "hidden" and trigger.row is not row and self._course is not None:
                own = self._join_trigger(key, row, who, self._members.get(who), is_return)
                self._course.others += [] if own is None else [own]
        elif trigger is not None and self._course is not None:
            self._course.others.append(trigger)
        if is_return:
            old = self._members.get(holder or "")
            if old is not None:
                self._remove(old, key, "replaced")
            peer = None
        if peer is None:
            peer = self._new_peer(row, who, key)
            self._admit(peer)
            if is_return and old is not None:
                peer.former, peer.held = old, old.held
            for about in (trigger, *(self._course.others if self._course is not None else ())):
                if about is not None and about.row is row:
                    about.peer = peer
        self._take_join(peer, row)
        peer.parked = row
        if self._course is not None:
            self._course.joins.append((key, peer, row))

    def _was_taken(self, row: Row) -> bool:
        """Whether a JoinGroup that was not answered well waited at the coordinator all the same."""
        if row.error is None:
            if row.answer_key is not None:
                return False
            if self._is_cut_off(row):
                return bool(row.member_id) or row.version < 4 or row.instance_id is not None
            home = self._next_round(row.due)
            if home is not None:
                known = row.member_id in self._members
                told = home.members.get(row.member_id)
                return home.is_listed and told is not None and not known
            return not self._closed_after(row) and bool(row.member_id) and self._has_no_later(row)
        waited = row.answer_key is not None and row.answer_key[0] - row.due[0] > _PARKED_NS
        taken = row.error in (UNKNOWN_MEMBER, FENCED, NOT_COORDINATOR, REBALANCING)
        return waited and taken and bool(row.member_id)

    def _is_cut_off(self, row: Row) -> bool:
        """Whether it was waiting when the coordinator was lost."""
        end = self._rows.closed.get(row.connection)
        return end is not None and any(
            row.due <= failover.begin and failover.begin[0] <= end <= failover.end[0] for failover in self._failovers
        )

    def _closed_after(self, row: Row) -> bool:
        return self._rows.closed.get(row.connection, -1) >= row.key[0]

    def _has_no_later(self, row: Row) -> bool:
        """The source ends while it waits."""
        return not any(failover.begin > row.due for failover in self._failovers)

    def _name(self, row: Row, home: Round | None) -> str:
        who = row.given_id if row.error == 0 and row.given_id else row.member_id
        if who or home is None or row.instance_id is None:
            return who
        return next((name for name, told in home.members.items() if told.instance_id == row.instance_id), "")

    def _join_trigger(self, key: Key, row: Row, who: str, peer: Peer | None, is_return: bool) -> Trigger | None:
        if is_return or peer is None:
            kind = "static" if is_return else "joined"
            old = self._members.get(self._instances.get(row.instance_id or "", ""))
            trigger = Trigger(kind, key, None, row, former=old.joins[-1] if old is not None and old.joins else None)
            trigger.leads = old is not None and old.member_id == self._leader
            self._blame_failover(trigger, row, None)
            return trigger
        former = peer.joins[-1] if peer.joins else None
        leads = who == self._leader
        changed = former is None or _offered(former) != _offered(row)
        loaded = self._is_fresh and self._state == STABLE and not _is_follower(row)
        if not changed and (not leads or self._state == COMPLETING) and not loaded:
            return None
        if former is None and not leads and self._leader is not None and not peer.gave_up and not loaded:
            return None
        trigger = Trigger("rejoined", key, peer, row, None, former, leads, peer.gave_up, peer.gave_up_by, peer.refused)
        last = self._round
        if peer.instance_id is not None and last is not None and last.joined is not None:
            trigger.missed = None if any(each.who == who for each in last.joins) else last
        self._blame_failover(trigger, row, peer)
        if loaded and trigger.failover is None and not changed and not leads:
            return None
        return trigger

    def _blame_failover(self, trigger: Trigger, row: Row, peer: Peer | None) -> None:
        """Note the loss of the coordinator, if that is what this member comes back from: it has broken off the join
        that this one repeats, or forgotten the member."""
        failover = self._failover
        if failover is None:
            return
        lives = [peer] if peer is not None else self._lives_of(row)
        before = [life for life in lives if life.since <= failover.begin]
        if not before:
            return
        names = {life.member_id for life in before}
        theirs = [other for name in names for other in self._asked_by.get(name, ())]
        nameless = [other for other in self._asked_by.get("", ()) if _client(other) == _client(row)]
        asked = sorted((other for other in (*theirs, *nameless) if other.due < row.due), key=lambda other: other.key)
        since = [other for other in asked if other.due > failover.begin and other.error == 0]
        if since:
            return
        pending = [other for other in asked if other.due <= failover.begin]
        last = pending[-1] if pending else None
        broken = last is not None and (last.answer_key is None or last.answer_key >= failover.begin) and last.error != 0
        refused = [
            other
            for life in before
            if (other := life.refused) is not None and failover.begin < other.key < row.due and life.why in _OUTLIVED
        ]
        if broken or refused:
            trigger.failover = failover
            trigger.refused = refused[-1] if refused else trigger.refused

    def _lives_of(self, row: Row) -> list[Peer]:
        """The lives that the sender of a join without a known id may have had."""
        found = [*self._by_client.get(_client(row), ()), *self._by_connection.get(row.connection, ())]
        if row.instance_id is not None:
            found += [life for life in self.peers if life.instance_id == row.instance_id]
        return list(dict.fromkeys(found))

    def _new_peer(self, row: Row, who: str, key: Key) -> Peer:
        peer = Peer(who, row.instance_id, row.client_id, row.host, key, is_new=True)
        gone = [life for life in self._by_connection.get(row.connection, ()) if life.left is not None]
        if not gone:
            same = self._by_client.get(_client(row), [])
            gone = same if all(life.left is not None for life in same) else []
        peer.former = gone[-1] if gone else None
        return peer

    def _take_join(self, peer: Peer, row: Row) -> None:
        stated = next((offer.owned for offer in row.offers if offer.owned is not None), None)
        if is_cooperative(row.offers):
            peer.held = peer.held if stated is None else stated
        else:
            peer.held = frozenset()
        peer.joins.append(row)
        peer.client_id, peer.host = row.client_id or peer.client_id, row.host or peer.host
        self._connect(peer, row)
        peer.gave_up, peer.gave_up_by, peer.refused = frozenset(), None, None

    def _connect(self, peer: Peer, row: Row) -> None:
        if row.connection not in peer.connections:
            peer.connections.add(row.connection)
            self._by_connection.setdefault(row.connection, []).append(peer)
            self._by_client.setdefault(_client(row), [])
            if peer not in self._by_client[_client(row)]:
                self._by_client[_client(row)].append(peer)

    def _join_late(self, key: Key, row: Row, who: str, peer: Peer | None, holder: str | None) -> None:
        """A join that was answered at once: nothing has changed, but for who a static member is."""
        if holder is not None:
            old = self._members.get(holder)
            peer = self._new_peer(row, who, key)
            if old is not None:
                self._remove(old, key, "replaced")
                peer.former, peer.held = old, frozenset()
                peer.first_generation = peer.last_generation = self._generation
            self._admit(peer)
            if self._leader == holder:
                self._leader = who
            self.returns.append((peer, row))
        elif peer is None:
            peer = self._new_peer(row, who, key)
            peer.is_new = False
            self._admit(peer)
        self._take_join(peer, row)

    def _joined(self, key: Key, home: Round) -> None:
        """A round is complete."""
        if self._state != PREPARING:
            sign = min(home.joins, key=lambda row: row.due, default=None)
            at = key if home.joined is not None else min(row.due for rows in home.asked.values() for row in rows)
            self._start(self._hidden(at, None), sign)
        course = self._course
        assert course is not None, "there is one since _start"
        for member_id, told in home.members.items():
            if member_id not in self._members:
                asked = next((row for row in home.joins if row.who == member_id), None)
                unheard = next((row for row in self._maybe if row.member_id == member_id), None)
                if asked is None and unheard is not None and unheard.api == "JoinGroup":
                    peer = self._new_peer(unheard, member_id, unheard.due)
                    self._admit(peer)
                    self._take_join(peer, unheard)
                    continue
                self._admit(
                    Peer(
                        member_id,
                        told.instance_id,
                        None if asked is None else asked.client_id,
                        "" if asked is None else asked.host,
                        key,
                        is_new=False,
                    )
                )
        for peer in list(self._members.values()):
            if self._is_absent(peer, home, key):
                self._remove(peer, key, self._why_absent(peer, key))
        course.round = home
        course.generation = self._generation = home.generation
        course.after = dict(self._members)
        self._leader = home.leader_id
        self._round = home
        self._maybe.clear()
        timeouts = []
        for peer in self._members.values():
            peer.parked = None
            peer.last_generation = home.generation
            if peer.first_generation is None:
                peer.first_generation = home.generation
            timeouts.append(peer.rebalance_ms)
            self._revive(peer, key[0])
        self._move(COMPLETING, key)
        known = [timeout for timeout in timeouts if timeout is not None]
        if home.joined is not None and known and len(known) == len(timeouts):
            end = key[0] + max(known) * _MS
            self._sync_due = (end, home)
            self._at(last_key(end), 5, self._sync_late, home)

    def _is_absent(self, peer: Peer, home: Round, key: Key) -> bool:
        if home.joined is None:
            return False
        if home.is_listed:
            return peer.member_id not in home.members
        return peer.parked is None and peer.instance_id is None and self._last_alive(peer.member_id) <= key[0]

    def _why_absent(self, peer: Peer, key: Key) -> str:
        if any(row.api == "LeaveGroup" and _names(row, peer) for row in self._maybe):
            return "left"
        if peer.instance_id is not None or (peer.parked is not None and peer.first_generation is None):
            return "session timeout"  # static members outlive a join, and so does who waits, unless it is new
        heard = max(self._alive_before(peer.member_id, key[0]), peer.alive_ns)
        is_over = bool(peer.session_ms) and heard + (peer.session_ms or 0) * _MS <= key[0]
        return "session timeout" if is_over and peer.parked is None else "rebalance timeout"

    # ---- SyncGroup

    def _ask_sync(self, key: Key, row: Row) -> None:
        home = self._syncs.get(id(row))
        peer = self._members.get(row.member_id)
        if home is None or home is not self._round or peer is None:
            return
        self._connect(peer, row)
        if row.error != 0 and row.answer_key is not None:
            return
        if self._state == COMPLETING:
            if row is home.leader_sync:
                self._settle(key)
            else:
                peer.waits_sync = row

    def _settle(self, key: Key) -> None:
        """The leader's assignment is there."""
        self._move(STABLE, key)
        if self._course is not None:
            self._course.stable = key
        self._end("stable", key)
        if self._round is not None:
            self._kept = (self._round, dict(self._members))
        for peer in self._members.values():
            if peer.waits_sync is not None:
                peer.waits_sync = None
                self._revive(peer, key[0])

    def _sync_late(self, key: Key, home: Round) -> None:
        """The time to send SyncGroup is over."""
        if self._round is not home or self._state not in (COMPLETING, STABLE):
            return
        late = [peer for peer in self._unsynced(home, key) if self._last_alive(peer.member_id) <= key[0] + _CALM_NS]
        late = [peer for peer in late if not self._listed_later(peer.member_id, key)]
        if not late or key[0] > self._rows.horizon_ns:
            return
        for peer in late:
            self._remove(peer, key, "sync timeout")
        self._lose(Trigger("sync", key, late[0], inferred=True))

    def _unsynced(self, home: Round, key: Key) -> list[Peer]:
        asked = [row for rows in home.asked.values() for row in rows if row.due <= key]
        names = {row.member_id for row in asked}
        instances = {row.instance_id for row in asked if row.instance_id is not None}

        def synced(peer: Peer) -> bool:
            return peer.member_id in names or peer.instance_id in instances

        return [peer for peer in self._members.values() if peer.member_id in home.members and not synced(peer)]

    # ---- LeaveGroup

    def _ask_leave(self, key: Key, row: Row) -> None:
        gone: list[tuple[Peer, Leaver]] = []
        for leaver in row.leavers:
            who = leaver.member_id or self._instances.get(leaver.instance_id or "", "")
            if who in self._pending:
                self._pending.discard(who)
                continue
            if leaver.error_code or row.error or not who:
                continue
            peer = self._members.get(who)
            if peer is None:
                if row.answer_key is None or self._was_member(who):
                    continue
                peer = Peer(who, leaver.instance_id, row.client_id, row.host, key, is_new=False)
                self._admit(peer)
            if row.answer_key is None and self._last_alive(who) > key[0] + _TOLERANCE_NS:
                self._maybe.append(row)
                continue
            gone.append((peer, leaver))
        for peer, _ in gone:
            peer.leave = row
            self._connect(peer, row)
            self._remove(peer, key, "left")
        if gone:
            peer, leaver = gone[0]
            leads = peer.member_id == self._leader
            self._lose(Trigger("left", key, peer, row, leaver, leads=leads))

    def _was_member(self, member_id: str) -> bool:
        return member_id in self._lives

    # ---- time, and what the answers tell

    def _silent(self, key: Key, member_id: str, start_ns: int) -> None:
        """A member was not heard of for its session timeout."""
        peer = self._members.get(member_id)
        if peer is None or peer.parked is not None or peer.waits_sync is not None or key[0] > self._rows.horizon_ns:
            return
        if start_ns < peer.alive_ns or self._last_alive(member_id) > key[0] + _CALM_NS:
            return
        if self._listed_later(member_id, key) and self._state != UNKNOWN_STATE:
            return
        session = (peer.session_ms or 0) * _MS
        if start_ns < self._loaded_ns:
            self._revive(peer, self._loaded_ns)
            return
        if self._is_calm_until_next_sign(key[0]):
            faint = self._rows.signs.faint_before(member_id, start_ns, key[0])
            if faint is not None and faint + session > key[0]:
                self._at(last_key(faint + session), 5, self._silent, member_id, start_ns)
                return
        leads = peer.member_id == self._leader
        self._remove(peer, key, "session timeout")
        self._lose(Trigger("session", key, peer, leads=leads, inferred=True))

    def _is_calm_until_next_sign(self, now_ns: int) -> bool:
        at = bisect_right(self._signs, now_ns)
        until = self._signs[at] if at < len(self._signs) else self._rows.horizon_ns + 1
        return self._rows.signs.is_calm(now_ns + _CALM_NS, until)

    def _heard(self, key: Key, member_id: str) -> None:
        """A member of which the source shows no join."""
        if member_id in self._members or member_id in self._pending or self._was_member(member_id):
            return
        sign = self._rows.signs.first[member_id]
        peer = Peer(member_id, sign.instance_id, sign.client_id, sign.host, key, is_new=False)
        peer.first_generation = peer.last_generation = sign.generation
        self._admit(peer)
        if self._state == UNKNOWN_STATE:
            self._generation = sign.generation
            self._move(STABLE, key)

    def _told(self, key: Key, row: Row) -> None:
        """An answer has gone out."""
        if row.api == "JoinGroup" and row.error == MEMBER_ID_REQUIRED and row.given_id:
            self._pending.add(row.given_id)
        elif row.api == "JoinGroup" and row.error == 0:
            self._pending.discard(row.who)
        elif row.api == "SyncGroup" and row.error == 0:
            self._told_assignment(key, row)
        elif row.error in (ILLEGAL_GENERATION, UNKNOWN_MEMBER, FENCED):
            for peer in self._lives.get(row.member_id, ()):
                peer.refused = row

    def _told_assignment(self, key: Key, row: Row) -> None:
        peer = self._members.get(row.member_id)
        home = self._syncs.get(id(row))
        if peer is None or home is None:
            return
        peer.waits_sync = None
        given = row.assignment if row.assignment is not None else home.assignments.get(row.member_id)
        if given is not None:
            peer.gave_up, peer.gave_up_by = peer.held - given, row
            peer.held = given
        if home is self._round and self._state == COMPLETING:
            self._settle(key)

    def _seen_rebalancing(self, key: Key, row: Row) -> None:
        """A member is told that the group rebalances."""
        member_id = row.member_id
        if self._state == UNKNOWN_STATE or (member_id not in self._members and not self._was_member(member_id)):
            if not self._was_member(member_id):
                peer = Peer(member_id, row.instance_id, row.client_id, row.host, key, is_new=False)
                peer.last_generation = peer.first_generation = row.generation
                self._admit(peer)
            if self._state == UNKNOWN_STATE:
                self._generation = row.generation
        sync = None if self._round is None else self._round.leader_sync
        if self._state == COMPLETING and sync is not None and sync.due > key:
            return  # the leader's SyncGroup is taken after this: nobody was joining, the request was sent twice
        if self._state in (PREPARING, EMPTY) or (row.generation is not None and row.generation != self._generation):
            return
        self._start(self._hidden(key, None), row)

    def _hidden(self, key: Key, fallback: Trigger | None) -> Trigger:
        """What may have set off a rebalance that has shown itself by `key`."""
        soon = key[0] + _TOLERANCE_NS
        for peer in self._members.values():
            session = peer.session_ms
            if session and peer.parked is None:
                last = max(peer.alive_ns, self._alive_before(peer.member_id, key[0]))
                gone = self._last_alive(peer.member_id) <= key[0] and not self._listed_later(peer.member_id, key)
                if last and gone and last + session * _MS <= soon:
                    self._remove(peer, key, "session timeout")
                    return Trigger("session", key, peer, leads=peer.member_id == self._leader, inferred=True)
        due = self._sync_due
        if due is not None and due[1] is self._round and due[0] <= soon:
            late = [peer for peer in self._unsynced(due[1], key) if not self._listed_later(peer.member_id, key)]
            if late:
                leads = late[0].member_id == self._leader
                for peer in late:
                    self._remove(peer, key, "sync timeout")
                return Trigger("sync", key, late[0], leads=leads, inferred=True)
        for row in self._maybe:
            found = self._hidden_request(row, key)
            if found is not None:
                return found
        if fallback is not None:
            return fallback
        home = self._next_round(key)
        if home is not None and home.is_listed:
            for peer in self._members.values():
                silent = self._last_alive(peer.member_id) <= key[0]
                if peer.member_id not in home.members and peer.session_ms is None and silent:
                    return Trigger("vanished", key, peer, inferred=True)
        trigger = Trigger("hidden", key, inferred=True)
        if self._failover is not None and (self._round is None or self._round.key < self._failover.begin):
            trigger.failover = self._failover
        return trigger

    def _hidden_request(self, row: Row, key: Key) -> Trigger | None:
        """Whether a request without an answer was taken, and has begun this."""
        if row.due > key or self._rows.signs.is_calm(row.due[0] + _CALM_NS, key[0]):
            return None
        if row.api == "LeaveGroup":
            leaver = next((item for item in row.leavers if item.member_id in self._members), None)
            if leaver is None or self._listed_later(leaver.member_id, key):
                return None
            peer = self._members[leaver.member_id]
            peer.leave = row
            self._remove(peer, row.due, "left")
            return Trigger("left", row.due, peer, row, leaver, inferred=True)
        if row.api != "JoinGroup":
            return None
        found = self._members.get(row.member_id)
        if found is None:
            if row.member_id not in self._pending and (row.member_id or (row.version >= 4 and row.instance_id is None)):
                return None
            return Trigger("joined", row.due, None, row, inferred=True)
        trigger = self._join_trigger(row.due, row, row.member_id, found, is_return=False)
        if trigger is not None:
            trigger.inferred = True
        return trigger

    # ---- the coordinator is lost

    def _fail_over(self, key: Key, failover: Failover) -> None:
        home = self._next_round(key)
        last = self._round
        if self._state == COMPLETING and last is not None:
            if home is not None and last.asked and home.generation == last.generation + 1:
                self._settle(key)  # it had been written down before
            elif any(row.assignments and row.due <= key for rows in last.asked.values() for row in rows):
                self._end("stable", key)  # the coordinator had the assignment, but nobody got it
        if self._state in (PREPARING, COMPLETING):
            self._end("interrupted", key)
        self._failover = failover
        self._is_fresh = True
        self._pending.clear()
        self._maybe.clear()
        self._lost = []
        after = [row.answer_key[0] for row in self._rows.rows if row.error == 0 and row.answer_key and row.due > key]
        calm = self._rows.signs.next_calm(failover.end[0])
        self._loaded_ns = min([*after, *([] if calm is None else [calm])], default=failover.end[0])
        if self._state == STABLE or self._state == UNKNOWN_STATE:
            return
        if self._kept is None and home is None:
            return
        kept, members = self._kept if self._kept is not None else (None, {})
        for peer in self._members.values():
            peer.parked = peer.waits_sync = None
            if peer.member_id not in members:
                peer.left, peer.why = key, "coordinator failover"
        self._members = {name: peer for name, peer in members.items() if peer.why != "replaced"}
        for peer in self._members.values():
            peer.left = peer.why = None
            peer.parked = peer.waits_sync = None
        self._instances = {p.instance_id: p.member_id for p in self._members.values() if p.instance_id is not None}
        self._round = kept
        self._leader = None if kept is None else kept.leader_id
        self._generation = 0 if kept is None else kept.generation
        self._move(STABLE if self._members else EMPTY, key)
        for peer in self._members.values():
            self._revive(peer, self._loaded_ns)

    def _finish(self) -> None:
        for course in self.courses:
            if course.outcome == "open" and course is not self._course:
                course.outcome = "interrupted"
        for peer in self.peers:
            peer.connections |= self._rows.signs.connections.get(peer.member_id, set())
        self.peers.sort(key=lambda peer: peer.since)


def _offered(row: Row) -> tuple[tuple[str, bytes], ...]:
    return tuple((offer.assignor, offer.metadata) for offer in row.offers)


def _is_follower(row: Row) -> bool:
    """The client says that it joins because the group rebalances already."""
    reason = (row.reason or "").lower()
    return "already rebalancing" in reason or "group is rebalancing" in reason


def _names(row: Row, peer: Peer) -> bool:
    return any(leaver.member_id == peer.member_id for leaver in row.leavers)


def _client(row: Row) -> tuple[str | None, str]:
    return (row.client_id, row.host)
