"""What a coordinator knows of a group: who is in, who leads, which state; and all that has happened so far.

Law: a member id has one life at a time; what a life was removed for is told once, in the rebalance that it cost.
"""

from __future__ import annotations

from kcoord_wire.forensics.wire.hindsight import Clues
from kcoord_wire.forensics.wire.joins import Failover, Round
from kcoord_wire.forensics.wire.rows import Key, Row
from kcoord_wire.forensics.wire.trace import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    UNKNOWN_STATE,
    Course,
    Peer,
    Trigger,
    is_cooperative,
)

__all__ = ["GroupModel", "is_follower"]

_OUTLIVED = (None, "coordinator failover")
_IN_FLIGHT_NS = 50_000_000  # a request may be on its way while the coordinator is lost


class GroupModel:
    """See the head of the module.

    :ivar courses: the rebalances, in order
    :ivar peers: the lives of the members, in order of their first sign
    :ivar states: state, since when, generation
    :ivar members: who is in, by member id; `instances` their ids by instance id
    :ivar lives: all there were, by member id
    :ivar round: the last join that was completed; `course` the last rebalance
    :ivar lost: members removed since the last rebalance began to be told, and why
    :ivar failover: the last loss of the coordinator; `is_fresh` while nothing has begun since
    """

    def __init__(self, clues: Clues) -> None:
        self._clues = clues
        self.courses: list[Course] = []
        self.peers: list[Peer] = []
        self.states: list[tuple[str, Key, int | None]] = []
        self.members: dict[str, Peer] = {}
        self.instances: dict[str, str] = {}
        self.lives: dict[str, list[Peer]] = {}
        self.state = UNKNOWN_STATE
        self.generation: int | None = None
        self.leader: str | None = None
        self.round: Round | None = None
        self.course: Course | None = None
        self.lost: list[tuple[Peer, str]] = []
        self.failover: Failover | None = None
        self.is_fresh = False
        self._by_connection: dict[str, list[Peer]] = {}
        self._by_client: dict[tuple[str | None, str], list[Peer]] = {}

    def move(self, state: str, key: Key) -> None:
        """The group changes its state."""
        self.state = state
        self.states.append((state, key, self.generation))

    def start(self, trigger: Trigger, sign: Row | None = None) -> Course:
        """A rebalance begins; one that goes on ends as interrupted."""
        self.end("interrupted", trigger.at)
        gone = {peer.member_id: peer for peer, _ in self.lost}
        course = Course(
            trigger,
            trigger.at,
            {**gone, **self.members},
            self.state == EMPTY or (self.state == UNKNOWN_STATE and not self.members),
            self.round,
            sign,
            removed=self.lost,
            loaded=self.failover if self.is_fresh else None,
        )
        self.is_fresh = False
        self.lost = []
        self.course = course
        self.courses.append(course)
        self.move(PREPARING, trigger.at)
        return course

    def end(self, outcome: str, key: Key) -> None:
        """The rebalance that goes on ends."""
        course = self.course
        if course is not None and course.outcome == "open":
            course.outcome = outcome
            course.over = key

    def admit(self, peer: Peer) -> None:
        """A life begins."""
        self.members[peer.member_id] = peer
        self.lives.setdefault(peer.member_id, []).append(peer)
        self.peers.append(peer)
        if peer.instance_id is not None:
            self.instances[peer.instance_id] = peer.member_id

    def remove(self, peer: Peer, key: Key, why: str) -> None:
        """A life ends, as far as the coordinator goes."""
        peer.left, peer.why = key, why
        peer.parked = peer.waits_sync = None
        if self.members.get(peer.member_id) is peer:
            del self.members[peer.member_id]
        if peer.instance_id is not None and self.instances.get(peer.instance_id) == peer.member_id:
            del self.instances[peer.instance_id]
        if why != "replaced":
            course = self.course if self.state == PREPARING else None
            (self.lost if course is None else course.removed).append((peer, why))

    def join_trigger(self, key: Key, row: Row, who: str, peer: Peer | None, is_return: bool) -> Trigger | None:
        """What a join that waits sets off in the present state; None: nothing, it follows another."""
        if is_return or peer is None:
            kind = "static" if is_return else "joined"
            old = self.members.get(self.instances.get(row.instance_id or "", ""))
            trigger = Trigger(kind, key, None, row, former=old.joins[-1] if old is not None and old.joins else None)
            trigger.leads = old is not None and old.member_id == self.leader
            self._blame_failover(trigger, row, None)
            return trigger
        former = peer.joins[-1] if peer.joins else None
        leads = who == self.leader
        changed = former is None or _offered(former) != _offered(row)
        loaded = self.is_fresh and self.state == STABLE and not is_follower(row)
        if not changed and (not leads or self.state == COMPLETING) and not loaded:
            return None
        if former is None and not leads and self.leader is not None and not peer.gave_up and not loaded:
            return None
        trigger = Trigger("rejoined", key, peer, row, None, former, leads, peer.gave_up, peer.gave_up_by, peer.refused)
        last = self.round
        if peer.instance_id is not None and last is not None and last.joined is not None:
            trigger.missed = None if any(each.who == who for each in last.joins) else last
        self._blame_failover(trigger, row, peer)
        if loaded and trigger.failover is None and not changed and not leads:
            return None
        return trigger

    def _blame_failover(self, trigger: Trigger, row: Row, peer: Peer | None) -> None:
        """Note the loss of the coordinator, if that is what this member comes back from: it has broken off the join
        that this one repeats, or forgotten the member."""
        failover = self.failover
        if failover is None:
            return
        lives = [peer] if peer is not None else self.lives_of(row)
        before = [life for life in lives if life.since <= failover.begin]
        if not before:
            return
        names = {life.member_id for life in lives}
        theirs = [other for name in names for other in self._clues.asked_by.get(name, ())]
        nameless = [other for other in self._clues.asked_by.get("", ()) if _client(other) == _client(row)]
        asked = sorted((other for other in (*theirs, *nameless) if other.due < row.due), key=lambda other: other.key)
        since = [other for other in asked if other.due > failover.begin and other.error == 0]
        if since:
            return
        pending = [other for other in asked if other.due[0] <= failover.begin[0] + _IN_FLIGHT_NS]
        last = pending[-1] if pending else None
        broken = last is not None and (
            last.api == "JoinGroup" or last.error != 0 or last.answer_key is None or last.answer_key >= failover.begin
        )
        refused = [
            other
            for life in before
            if (other := life.refused) is not None and failover.begin < other.key < row.due and life.why in _OUTLIVED
        ]
        if broken or refused:
            trigger.failover = failover
            trigger.refused = refused[-1] if refused else trigger.refused

    def lives_of(self, row: Row) -> list[Peer]:
        """The lives that the sender of a join without a known id may have had."""
        found = [*self._by_client.get(_client(row), ()), *self._by_connection.get(row.connection, ())]
        if row.instance_id is not None:
            found += [life for life in self.peers if life.instance_id == row.instance_id]
        return list(dict.fromkeys(found))

    def new_peer(self, row: Row, who: str, key: Key) -> Peer:
        """The life of a member that joins; who it was before is told by its connection, or by client id and host."""
        peer = Peer(who, row.instance_id, row.client_id, row.host, key, is_new=True)
        gone = [life for life in self._by_connection.get(row.connection, ()) if life.left is not None]
        if not gone:
            same = self._by_client.get(_client(row), [])
            gone = same if all(life.left is not None for life in same) else []
        peer.former = gone[-1] if gone else None
        return peer

    def take_join(self, peer: Peer, row: Row) -> None:
        """A member has joined: an eager one holds nothing any more."""
        stated = next((offer.owned for offer in row.offers if offer.owned is not None), None)
        if is_cooperative(row.offers):
            peer.held = peer.held if stated is None else stated
        else:
            peer.held = frozenset()
        peer.joins.append(row)
        peer.client_id, peer.host = row.client_id or peer.client_id, row.host or peer.host
        self.connect(peer, row)
        peer.gave_up, peer.gave_up_by, peer.refused = frozenset(), None, None

    def connect(self, peer: Peer, row: Row) -> None:
        """A member speaks over a connection."""
        if row.connection not in peer.connections:
            peer.connections.add(row.connection)
            self._by_connection.setdefault(row.connection, []).append(peer)
            self._by_client.setdefault(_client(row), [])
            if peer not in self._by_client[_client(row)]:
                self._by_client[_client(row)].append(peer)

    def unsynced(self, home: Round, key: Key) -> list[Peer]:
        """Who is in a round and has not sent SyncGroup by then."""
        asked = [row for rows in home.asked.values() for row in rows if row.due <= key]
        names = {row.member_id for row in asked}
        instances = {row.instance_id for row in asked if row.instance_id is not None}

        def synced(peer: Peer) -> bool:
            return peer.member_id in names or peer.instance_id in instances

        return [peer for peer in self.members.values() if peer.member_id in home.members and not synced(peer)]

    def was_member(self, member_id: str) -> bool:
        """Whether this id was ever a member's."""
        return member_id in self.lives


def is_follower(row: Row) -> bool:
    """Whether the client says that it joins because the group rebalances already."""
    reason = (row.reason or "").lower()
    return "already rebalancing" in reason or "group is rebalancing" in reason


def _offered(row: Row) -> tuple[tuple[str, bytes], ...]:
    return tuple((offer.assignor, offer.metadata) for offer in row.offers)


def _client(row: Row) -> tuple[str | None, str]:
    return (row.client_id, row.host)
