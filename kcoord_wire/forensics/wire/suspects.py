"""What may have set off a rebalance that shows itself, but whose beginning no frame shows.

Law: a suspect must fit all that was answered: a member that is heard of later has not been removed, and nobody was
joining while heartbeats were answered without error. What fits is removed here, so that the replay goes on without it.
"""

from __future__ import annotations

from kcoord_wire.forensics.wire.group import GroupModel
from kcoord_wire.forensics.wire.hindsight import CALM_NS, Clues
from kcoord_wire.forensics.wire.joins import Round
from kcoord_wire.forensics.wire.rows import Key, Row
from kcoord_wire.forensics.wire.trace import Peer, Trigger

__all__ = ["Suspects"]

_MS = 1_000_000
_TOLERANCE_NS = 1_000 * _MS  # timers of brokers run late, captures are taken at the other end


class Suspects:
    """See the head of the module.

    :ivar maybe: requests since the last round that nobody answered
    :ivar pending: member ids that were given out, and not joined with yet
    :ivar sync_due: when the time to send SyncGroup is over, and for which round
    """

    def __init__(self, clues: Clues, group: GroupModel) -> None:
        self._clues = clues
        self._group = group
        self.maybe: list[Row] = []
        self.pending: set[str] = set()
        self.sync_due: tuple[int, Round] | None = None

    def find(self, key: Key, fallback: Trigger | None) -> Trigger:
        """What may have set off a rebalance that has shown itself by `key`."""
        soon = key[0] + _TOLERANCE_NS
        for peer in self._group.members.values():
            session = peer.session_ms
            if session and peer.parked is None:
                last = max(peer.alive_ns, self._clues.alive_before(peer.member_id, key[0]))
                gone = self._clues.last_alive(peer.member_id) <= key[0]
                gone = gone and not self._clues.is_listed_later(peer.member_id, key)
                if last and gone and last + session * _MS <= soon:
                    self._group.remove(peer, key, "session timeout")
                    return Trigger("session", key, peer, leads=peer.member_id == self._group.leader, inferred=True)
        due = self.sync_due
        if due is not None and due[1] is self._group.round and due[0] <= soon:
            late = self.late(due[1], key)
            if late:
                leads = late[0].member_id == self._group.leader
                for peer in late:
                    self._group.remove(peer, key, "sync timeout")
                return Trigger("sync", key, late[0], leads=leads, inferred=True)
        for row in self.maybe:
            found = self._request(row, key)
            if found is not None:
                return found
        if fallback is not None:
            return fallback
        home = self._clues.next_round(key)
        if home is not None and home.is_listed:
            for peer in self._group.members.values():
                silent = self._clues.last_alive(peer.member_id) <= key[0]
                if peer.member_id not in home.members and peer.session_ms is None and silent:
                    return Trigger("vanished", key, peer, inferred=True)
        trigger = Trigger("hidden", key, inferred=True)
        failover, last_round = self._group.failover, self._group.round
        if failover is not None and (last_round is None or last_round.key < failover.begin):
            trigger.failover = failover
        return trigger

    def _request(self, row: Row, key: Key) -> Trigger | None:
        """Whether a request without an answer was taken, and has begun this."""
        if row.due > key or self._clues.rows.signs.is_calm(row.due[0] + CALM_NS, key[0]):
            return None
        if row.api == "LeaveGroup":
            leaver = next((item for item in row.leavers if item.member_id in self._group.members), None)
            if leaver is None or self._clues.is_listed_later(leaver.member_id, key):
                return None
            peer = self._group.members[leaver.member_id]
            peer.leave = row
            self._group.remove(peer, row.due, "left")
            return Trigger("left", row.due, peer, row, leaver, inferred=True)
        if row.api != "JoinGroup":
            return None
        found = self._group.members.get(row.member_id)
        if found is None:
            if row.member_id not in self.pending and (row.member_id or (row.version >= 4 and row.instance_id is None)):
                return None
            return Trigger("joined", row.due, None, row, inferred=True)
        trigger = self._group.join_trigger(row.due, row, row.member_id, found, is_return=False)
        if trigger is not None:
            trigger.inferred = True
        return trigger

    def late(self, home: Round, key: Key) -> list[Peer]:
        """Who has not sent SyncGroup by then, and does not come again."""
        return [
            peer for peer in self._group.unsynced(home, key) if not self._clues.is_listed_later(peer.member_id, key)
        ]
