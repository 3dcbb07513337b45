"""A group's course, played again: what the coordinator must have gone through to have answered as it did.

    replay = Replay(rows, rounds, failovers)
    replay.run()
    replay.group.courses

Theory. The requests are given to a model of the coordinator in the order in which it saw them. Unlike the coordinator,
the model knows every answer beforehand: which JoinGroup requests waited for which round, who was refused, who was in
the leader's list. It computes no outcomes: it tells what moved the group out of its state, a join, a leave, or time
that ran out. Where the answers show a rebalance that nothing in the source began, wire_suspects.py looks for what fits.

Laws:

* It never contradicts an answer: a member that is answered well under its id has not been removed before.
* One course per completed join, as the coordinator counts them: a trigger while members join adds to the course that
  goes on; one while the leader's SyncGroup is awaited ends it as ``interrupted`` and begins the next.
* Nothing raises: rows may be missing, members unknown, times in disorder.
"""

from __future__ import annotations

import heapq
from typing import Any

from kcoord_wire.forensics.wire.group import GroupModel, is_follower
from kcoord_wire.forensics.wire.hindsight import CALM_NS, Clues
from kcoord_wire.forensics.wire.joins import NOT_COORDINATOR, Failover, Round
from kcoord_wire.forensics.wire.rows import Key, Leaver, Row, Rows, last_key
from kcoord_wire.forensics.wire.suspects import Suspects
from kcoord_wire.forensics.wire.trace import (
    COMPLETING,
    EMPTY,
    PREPARING,
    STABLE,
    UNKNOWN_STATE,
    Course,
    Peer,
    Trigger,
)

__all__ = ["Replay"]

_MS = 1_000_000
_PARKED_NS = 20 * _MS  # an answer that took longer had to wait for others
_SHORTLY_NS = 5 * _MS  # a refusal that took longer was none at first
_TOLERANCE_NS = 1_000 * _MS  # timers of brokers run late, captures are taken at the other end
REBALANCING, ILLEGAL_GENERATION, UNKNOWN_MEMBER, MEMBER_ID_REQUIRED, FENCED, TOO_LARGE = 27, 22, 25, 79, 82, 81


class Replay:
    """See the head of the module.

    :ivar group: what comes of it
    """

    def __init__(self, rows: Rows, rounds: list[Round], failovers: list[Failover]) -> None:
        self._clues = Clues(rows, rounds, failovers)
        self.group = GroupModel(self._clues)
        self._suspects = Suspects(self._clues, self.group)
        self._kept: tuple[Round, dict[str, Peer]] | None = None
        self._loaded_ns = 0
        self._events: list[tuple[Key, int, int, Any, tuple[Any, ...]]] = []
        self._count = 0

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
        for row in self._clues.rows.rows:
            ask = asks.get(row.api)
            if ask is not None:
                self._at(row.due, 2, ask, row)
            if row.answer_key is not None and row.api != "FindCoordinator":
                self._at(row.answer_key, 3, self._told, row)
            if row.error == REBALANCING and row.answer_key is not None:
                if row.api == "SyncGroup":  # it may have waited until then
                    self._at(row.answer_key, 4, self._seen_rebalancing, row)
                elif row.api == "Heartbeat":
                    self._at(row.due, 4, self._seen_rebalancing, row)
        for home in self._clues.rounds:
            self._at(home.key, 1, self._joined, home)
        for failover in self._clues.failovers:
            self._at(failover.begin, 0, self._fail_over, failover)
        modern = {row.who for row in self._clues.rows.rows if row.api == "ConsumerGroupHeartbeat"}
        modern |= self._clues.rows.signs.modern
        for member_id, sign in self._clues.rows.signs.first.items():
            if member_id in modern:
                continue
            self._at((sign.time_ns, sign.source, sign.seq), 0, self._heard, member_id)
        session_ns = {
            member_id: row.session_ms * _MS for member_id, row in self._clues.last_joins().items() if row.session_ms
        }
        signs, horizon_ns = self._clues.rows.signs, self._clues.rows.horizon_ns
        for member_id, start, _ in signs.silences(self._clues.alive, session_ns, horizon_ns):
            self._at(last_key(start + session_ns[member_id]), 5, self._silent, member_id, start)

    # ---- what is known of a member beforehand

    def _revive(self, peer: Peer, now_ns: int) -> None:
        """The coordinator begins its session anew without a sign of its own."""
        peer.alive_ns = max(peer.alive_ns, now_ns)
        session = peer.session_ms
        if session:
            after = self._clues.next_alive(peer.member_id, now_ns)
            end = now_ns + session * _MS
            if (after is None or after > end) and end <= self._clues.rows.horizon_ns:
                self._at(last_key(end), 5, self._silent, peer.member_id, now_ns)

    # ---- moves

    def _start(self, trigger: Trigger, sign: Row | None = None) -> None:
        for peer in self.group.members.values():
            if peer.waits_sync is not None:
                peer.waits_sync = None
                self._revive(peer, trigger.at[0])
        course = self.group.start(trigger, sign)
        timeouts = [peer.rebalance_ms for peer in self.group.members.values()]
        known = [timeout for timeout in timeouts if timeout is not None]
        if not course.from_empty and known and len(known) == len(timeouts):
            self._at(last_key(trigger.at[0] + max(known) * _MS), 5, self._nobody_joins, course)

    def _nobody_joins(self, key: Key, course: Course) -> None:
        """The time to join is over, and nobody has."""
        if self.group.course is not course or self.group.state != PREPARING or key[0] > self._clues.rows.horizon_ns:
            return
        if any(peer.parked is not None or peer.instance_id is not None for peer in self.group.members.values()):
            return
        home = self._clues.next_round(key)
        if home is not None and (home.generation == (self.group.generation or 0) + 1 or key > home.key):
            return
        for peer in list(self.group.members.values()):
            self.group.remove(peer, key, "rebalance timeout")
        self._lose(Trigger("sync", key, inferred=True))
        course.others.pop()

    def _lose(self, trigger: Trigger) -> None:
        """After members are gone: a rebalance, or the end of one."""
        if self.group.state != PREPARING:
            self._start(trigger)
        elif self.group.course is not None:
            self.group.course.others.append(trigger)
        course = self.group.course
        if self.group.members or course is None or self.group.state != PREPARING:
            return
        home = self._clues.next_round(trigger.at)
        expected = None if self.group.generation is None else self.group.generation + 1
        if course.from_empty and home is not None and home.generation == expected:
            return  # others have come before the initial delay was over
        self.group.generation = expected
        course.generation = expected
        self.group.end("empty", trigger.at)
        self.group.leader = self.group.round = None
        self.group.move(EMPTY, trigger.at)

    # ---- JoinGroup

    def _ask_join(self, key: Key, row: Row) -> None:
        home = self._clues.home_of.get(id(row))
        if row.error == TOO_LARGE:
            refused = self.group.members.get(row.member_id)
            if refused is not None and not self._clues.is_listed_later(row.member_id, key):
                self.group.remove(refused, key, "group.max.size")
            return
        if home is None and not self._was_taken(row):
            if row.error is None:
                self._suspects.maybe.append(row)
            return
        who = self._clues.name_in(row, home)
        if not who and self._clues.is_cut_off(row):
            who = f"?{row.connection}"  # nobody was told the id
        if not who:
            self._suspects.maybe.append(row)
            return
        peer = self.group.members.get(who)
        holder = self.group.instances.get(row.instance_id or "") if row.instance_id is not None else None
        is_return = holder is not None and (holder != who or not row.member_id)
        if home is not None and home.joined is not None and row.due > home.joined:
            self._join_late(key, row, who, peer, holder if is_return else None)
            return
        trigger = self.group.join_trigger(key, row, who, peer, is_return)
        if self.group.state != PREPARING:
            if trigger is None or (trigger.kind == "rejoined" and is_follower(row)):
                trigger = self._suspects.find(key, trigger)
            self._start(trigger, row if trigger.kind == "hidden" else None)
            if trigger.kind != "hidden" and trigger.row is not row and self.group.course is not None:
                own = self.group.join_trigger(key, row, who, self.group.members.get(who), is_return)
                self.group.course.others += [] if own is None else [own]
        elif trigger is not None and self.group.course is not None:
            self.group.course.others.append(trigger)
        if is_return:
            old = self.group.members.get(holder or "")
            if old is not None:
                self.group.remove(old, key, "replaced")
            peer = None
        if peer is None:
            peer = self.group.new_peer(row, who, key)
            self.group.admit(peer)
            if is_return and old is not None:
                peer.former, peer.held = old, old.held
            for about in (trigger, *(self.group.course.others if self.group.course is not None else ())):
                if about is not None and about.row is row:
                    about.peer = peer
        self.group.take_join(peer, row)
        peer.parked = row
        if self.group.course is not None:
            self.group.course.joins.append((key, peer, row))

    def _was_taken(self, row: Row) -> bool:
        """Whether a JoinGroup that was not answered well waited at the coordinator all the same."""
        if row.error is None:
            if row.answer_key is not None:
                return False
            if self._clues.is_cut_off(row):
                return bool(row.member_id) or row.version < 4 or row.instance_id is not None
            home = self._clues.next_round(row.due)
            if home is not None:
                known = row.member_id in self.group.members
                told = home.members.get(row.member_id)
                return home.is_listed and told is not None and not known
            return not self._clues.is_closed_after(row) and bool(row.member_id) and self._clues.ends_waiting(row)
        if row.error == NOT_COORDINATOR and row.given_id and not row.member_id:
            return True  # it had an id by then
        wait_ns = 0 if row.answer_key is None else row.answer_key[0] - row.due[0]
        waited = wait_ns > (_SHORTLY_NS if row.error == NOT_COORDINATOR else _PARKED_NS)
        taken = row.error in (UNKNOWN_MEMBER, FENCED, NOT_COORDINATOR, REBALANCING)
        if row.error == UNKNOWN_MEMBER and self.group.state != UNKNOWN_STATE:  # without waiting, if nobody knows the id
            taken = row.member_id in self.group.members or row.member_id in self._suspects.pending
        return waited and taken and bool(row.who)

    def _join_late(self, key: Key, row: Row, who: str, peer: Peer | None, holder: str | None) -> None:
        """A join that was answered at once: nothing has changed, but for who a static member is."""
        if holder is not None:
            old = self.group.members.get(holder)
            peer = self.group.new_peer(row, who, key)
            if old is not None:
                self.group.remove(old, key, "replaced")
                peer.former, peer.held = old, frozenset()
                peer.first_generation = peer.last_generation = self.group.generation
            self.group.admit(peer)
            if self.group.leader == holder:
                self.group.leader = who
        elif peer is None:
            peer = self.group.new_peer(row, who, key)
            peer.is_new = False
            self.group.admit(peer)
        self.group.take_join(peer, row)

    def _joined(self, key: Key, home: Round) -> None:
        """A round is complete."""
        if self.group.state != PREPARING:
            sign = min(home.joins, key=lambda row: row.due, default=None)
            at = key if home.joined is not None else min(row.due for rows in home.asked.values() for row in rows)
            self._start(self._suspects.find(at, None), sign)
        course = self.group.course
        assert course is not None, "there is one since _start"
        for member_id, told in home.members.items():
            if member_id not in self.group.members:
                asked = next((row for row in home.joins if row.who == member_id), None)
                unheard = next((row for row in self._suspects.maybe if row.member_id == member_id), None)
                if asked is None and unheard is not None and unheard.api == "JoinGroup":
                    peer = self.group.new_peer(unheard, member_id, unheard.due)
                    self.group.admit(peer)
                    self.group.take_join(peer, unheard)
                    continue
                self.group.admit(
                    Peer(
                        member_id,
                        told.instance_id,
                        None if asked is None else asked.client_id,
                        "" if asked is None else asked.host,
                        key,
                        is_new=False,
                    )
                )
        for peer in list(self.group.members.values()):
            if self._is_absent(peer, home, key):
                self.group.remove(peer, key, self._why_absent(peer, key))
        course.round = home
        course.generation = self.group.generation = home.generation
        course.after = dict(self.group.members)
        self.group.leader = home.leader_id
        self.group.round = home
        self._suspects.maybe.clear()
        timeouts = []
        for peer in self.group.members.values():
            peer.parked = None
            peer.last_generation = home.generation
            if peer.first_generation is None:
                peer.first_generation = home.generation
            timeouts.append(peer.rebalance_ms)
            self._revive(peer, key[0])
        self.group.move(COMPLETING, key)
        known = [timeout for timeout in timeouts if timeout is not None]
        if home.joined is not None and known and len(known) == len(timeouts):
            end = key[0] + max(known) * _MS
            self._suspects.sync_due = (end, home)
            self._at(last_key(end), 5, self._sync_late, home)

    def _is_absent(self, peer: Peer, home: Round, key: Key) -> bool:
        if home.joined is None:
            return False
        if home.is_listed:
            return peer.member_id not in home.members
        return peer.parked is None and peer.instance_id is None and self._clues.last_alive(peer.member_id) <= key[0]

    def _why_absent(self, peer: Peer, key: Key) -> str:
        if any(row.api == "LeaveGroup" and _names(row, peer) for row in self._suspects.maybe):
            return "left"
        if peer.instance_id is not None or (peer.parked is not None and peer.first_generation is None):
            return "session timeout"  # static members outlive a join, and so does who waits, unless it is new
        heard = max(self._clues.alive_before(peer.member_id, key[0]), peer.alive_ns)
        is_over = bool(peer.session_ms) and heard + (peer.session_ms or 0) * _MS <= key[0]
        return "session timeout" if is_over and peer.parked is None else "rebalance timeout"

    # ---- SyncGroup

    def _ask_sync(self, key: Key, row: Row) -> None:
        home = self._clues.synced_in.get(id(row))
        peer = self.group.members.get(row.member_id)
        if home is None or home is not self.group.round or peer is None:
            return
        self.group.connect(peer, row)
        if row.error != 0 and row.answer_key is not None:
            return
        if self.group.state == COMPLETING:
            if row is home.leader_sync:
                self._settle(key)
            else:
                peer.waits_sync = row

    def _settle(self, key: Key) -> None:
        """The leader's assignment is there."""
        self.group.move(STABLE, key)
        if self.group.course is not None:
            self.group.course.stable = key
        self.group.end("stable", key)
        if self.group.round is not None:
            self._kept = (self.group.round, dict(self.group.members))
        for peer in self.group.members.values():
            if peer.waits_sync is not None:
                peer.waits_sync = None
                self._revive(peer, key[0])

    def _sync_late(self, key: Key, home: Round) -> None:
        """The time to send SyncGroup is over."""
        if self.group.round is not home or self.group.state not in (COMPLETING, STABLE):
            return
        late = self._suspects.late(home, key)
        late = [peer for peer in late if self._clues.last_alive(peer.member_id) <= key[0] + CALM_NS]
        if not late or key[0] > self._clues.rows.horizon_ns:
            return
        for peer in late:
            self.group.remove(peer, key, "sync timeout")
        self._lose(Trigger("sync", key, late[0], inferred=True))

    # ---- LeaveGroup

    def _ask_leave(self, key: Key, row: Row) -> None:
        gone: list[tuple[Peer, Leaver]] = []
        for leaver in row.leavers:
            who = leaver.member_id or self.group.instances.get(leaver.instance_id or "", "")
            if who in self._suspects.pending:
                self._suspects.pending.discard(who)
                continue
            if leaver.error_code or row.error or not who:
                continue
            peer = self.group.members.get(who)
            if peer is None:
                if row.answer_key is None or self.group.was_member(who):
                    continue
                peer = Peer(who, leaver.instance_id, row.client_id, row.host, key, is_new=False)
                self.group.admit(peer)
            if row.answer_key is None and self._clues.last_alive(who) > key[0] + _TOLERANCE_NS:
                self._suspects.maybe.append(row)
                continue
            gone.append((peer, leaver))
        for peer, _ in gone:
            peer.leave = row
            self.group.connect(peer, row)
            self.group.remove(peer, key, "left")
        if gone:
            peer, leaver = gone[0]
            leads = peer.member_id == self.group.leader
            self._lose(Trigger("left", key, peer, row, leaver, leads=leads))

    # ---- time, and what the answers tell

    def _silent(self, key: Key, member_id: str, start_ns: int) -> None:
        """A member was not heard of for its session timeout."""
        peer = self.group.members.get(member_id)
        if peer is None or key[0] > self._clues.rows.horizon_ns:
            return
        if peer.parked is not None or peer.waits_sync is not None:
            return
        if start_ns < peer.alive_ns or self._clues.last_alive(member_id) > key[0] + CALM_NS:
            return
        if self._clues.is_listed_later(member_id, key) and self.group.state != UNKNOWN_STATE:
            return
        session = (peer.session_ms or 0) * _MS
        if start_ns < self._loaded_ns:
            self._revive(peer, self._loaded_ns)
            return
        calm = self._clues.calm_until_next_sign(key[0])
        if calm is not None:
            faint = self._clues.rows.signs.faint_before(member_id, start_ns, key[0])
            if faint is not None and faint + session > key[0]:
                self._at(last_key(faint + session), 5, self._silent, member_id, start_ns)
                return
            self._at(last_key(calm), 5, self._silent, member_id, start_ns)  # nobody was joining until then
            return
        leads = peer.member_id == self.group.leader
        self.group.remove(peer, key, "session timeout")
        self._lose(Trigger("session", key, peer, leads=leads, inferred=True))

    def _heard(self, key: Key, member_id: str) -> None:
        """A member of which the source shows no join."""
        if member_id in self.group.members or member_id in self._suspects.pending or self.group.was_member(member_id):
            return
        sign = self._clues.rows.signs.first[member_id]
        peer = Peer(member_id, sign.instance_id, sign.client_id, sign.host, key, is_new=False)
        peer.first_generation = peer.last_generation = sign.generation
        self.group.admit(peer)
        if self.group.state == UNKNOWN_STATE:
            self.group.generation = sign.generation
            self.group.move(STABLE, key)

    def _told(self, key: Key, row: Row) -> None:
        """An answer has gone out."""
        if row.api == "JoinGroup" and row.error == MEMBER_ID_REQUIRED and row.given_id:
            self._suspects.pending.add(row.given_id)
        elif row.api == "JoinGroup" and row.error == 0:
            self._suspects.pending.discard(row.who)
        elif row.api == "SyncGroup" and row.error == 0:
            self._told_assignment(key, row)
        elif row.error in (ILLEGAL_GENERATION, UNKNOWN_MEMBER, FENCED):
            for peer in self.group.lives.get(row.member_id, ()):
                peer.refused = row

    def _told_assignment(self, key: Key, row: Row) -> None:
        peer = self.group.members.get(row.member_id)
        home = self._clues.synced_in.get(id(row))
        if peer is None or home is None:
            return
        peer.waits_sync = None
        given = row.assignment if row.assignment is not None else home.assignments.get(row.member_id)
        if given is not None:
            peer.gave_up, peer.gave_up_by = peer.held - given, row
            peer.held = given
        if home is self.group.round and self.group.state == COMPLETING:
            self._settle(key)

    def _seen_rebalancing(self, key: Key, row: Row) -> None:
        """A member is told that the group rebalances."""
        member_id = row.member_id
        is_known = self.group.was_member(member_id)
        if self.group.state == UNKNOWN_STATE or not is_known:
            if not is_known:
                peer = Peer(member_id, row.instance_id, row.client_id, row.host, key, is_new=False)
                peer.last_generation = peer.first_generation = row.generation
                self.group.admit(peer)
            if self.group.state == UNKNOWN_STATE:
                self.group.generation = row.generation
        sync = None if self.group.round is None else self.group.round.leader_sync
        if self.group.state == COMPLETING and sync is not None and sync.due > key:
            return  # the leader's SyncGroup is taken after this: nobody was joining, the request was sent twice
        if self.group.state in (PREPARING, EMPTY) or row.generation not in (None, self.group.generation):
            return
        trigger = self._suspects.find(key, None)
        if trigger.kind == "hidden" and row.answer_key is not None and key < row.answer_key:
            self._at(row.answer_key, 4, self._seen_rebalancing, row)  # what began it may have come with this heartbeat
            return
        self._start(trigger, row)

    # ---- the coordinator is lost

    def _fail_over(self, key: Key, failover: Failover) -> None:
        home = self._clues.next_round(key)
        last = self.group.round
        waits = self.group.state == COMPLETING and last is not None and bool(last.asked)
        if waits and last is not None and home is not None and home.generation == last.generation + 1:
            self._settle(key)  # it had been written down before
        if self.group.state in (PREPARING, COMPLETING):
            self.group.end("interrupted", key)
        self.group.failover = failover
        self.group.is_fresh = True
        self._suspects.pending.clear()
        self._suspects.maybe.clear()
        self.group.lost = []
        rows = self._clues.rows.rows
        after = [row.answer_key[0] for row in rows if row.error == 0 and row.answer_key and row.due > key]
        calm = self._clues.rows.signs.next_calm(failover.end[0])
        self._loaded_ns = min([*after, *([] if calm is None else [calm])], default=failover.end[0])
        if self.group.state == STABLE or self.group.state == UNKNOWN_STATE:
            return
        if self._kept is None and home is None:
            return
        kept, members = self._kept if self._kept is not None else (None, {})
        for peer in self.group.members.values():
            peer.parked = peer.waits_sync = None
            if peer.member_id not in members:
                peer.left, peer.why = key, "coordinator failover"
        self.group.members = {name: peer for name, peer in members.items() if peer.why != "replaced"}
        for peer in self.group.members.values():
            peer.left = peer.why = None
            peer.parked = peer.waits_sync = None
        statics = [peer for peer in self.group.members.values() if peer.instance_id is not None]
        self.group.instances = {peer.instance_id or "": peer.member_id for peer in statics}
        self.group.round = kept
        self.group.leader = None if kept is None else kept.leader_id
        self.group.generation = 0 if kept is None else kept.generation
        self.group.move(STABLE if self.group.members else EMPTY, key)
        for peer in self.group.members.values():
            self._revive(peer, self._loaded_ns)

    def _finish(self) -> None:
        for course in self.group.courses:
            if course.outcome == "open" and course is not self.group.course:
                course.outcome = "interrupted"
        for peer in self.group.peers:
            peer.connections |= self._clues.rows.signs.connections.get(peer.member_id, set())
        self.group.peers.sort(key=lambda peer: peer.since)


def _names(row: Row, peer: Peer) -> bool:
    return any(leaver.member_id == peer.member_id for leaver in row.leavers)
