"""What the whole source tells of a moment: who was heard of before it and after, and in which round a request ended.

Law: nothing here changes; it answers out of columns and sorted lists, so that a question costs a search, not a walk.
"""

from __future__ import annotations

from bisect import bisect_right

from kcoord_wire.forensics.wire.joins import Failover, Round
from kcoord_wire.forensics.wire.rows import Key, Row, Rows

__all__ = ["CALM_NS", "Clues"]

CALM_NS = 50_000_000
"""A heartbeat may have been answered this long after the coordinator changed its mind."""

_REBALANCING = 27


class Clues:
    """See the head of the module.

    :ivar home_of: the round that a JoinGroup request was answered by, by id() of the row; `synced_in` of a SyncGroup
    :ivar asked_by: JoinGroup and SyncGroup requests by the member id in them
    """

    def __init__(self, rows: Rows, rounds: list[Round], failovers: list[Failover]) -> None:
        self.rows = rows
        self.rounds = rounds
        self.failovers = failovers
        self.home_of = {id(row): home for home in rounds for row in (*home.joins, *home.late)}
        self.synced_in = {id(row): home for home in rounds for asked in home.asked.values() for row in asked}
        self.asked_by: dict[str, list[Row]] = {}
        for row in rows.rows:
            if row.api in ("JoinGroup", "SyncGroup"):
                self.asked_by.setdefault(row.member_id, []).append(row)
        self._keys = [home.key for home in rounds]
        self.alive = self._read_alive()
        self._signs = sorted(row.due[0] for row in rows.rows if row.error == _REBALANCING or id(row) in self.home_of)

    def last_joins(self) -> dict[str, Row]:
        """The last JoinGroup of each member that was answered in a round."""
        return {
            row.who: row for row in self.rows.rows if row.api == "JoinGroup" and row.who and id(row) in self.home_of
        }

    def _read_alive(self) -> dict[str, list[int]]:
        """When each member was heard of and answered as a member, heartbeats and commits that went well aside."""
        found: dict[str, list[int]] = {}
        for row in self.rows.rows:
            if row.answer_key is None:
                continue
            if row.api == "JoinGroup" and row.error == 0:
                found.setdefault(row.who, []).extend((row.due[0], row.answer_key[0]))
            elif (
                row.api in ("Heartbeat", "SyncGroup") and row.error in (0, _REBALANCING) and row.answer_key is not None
            ):
                found.setdefault(row.member_id, []).append(max(row.due[0], row.answer_key[0]))
        for times in found.values():
            times.sort()
        return found

    def last_alive(self, member_id: str) -> int:
        """When a member was last answered as one."""
        times = self.alive.get(member_id)
        sign = self.rows.signs.last_answered(member_id)
        return max(times[-1] if times else 0, sign or 0)

    def next_alive(self, member_id: str, after_ns: int) -> int | None:
        """When it was answered as one after that moment."""
        times = self.alive.get(member_id, [])
        at = bisect_right(times, after_ns)
        own = times[at] if at < len(times) else None
        sign = self.rows.signs.next(member_id, after_ns)
        return min((time for time in (own, sign) if time is not None), default=None)

    def alive_before(self, member_id: str, until_ns: int) -> int:
        """When it was last answered as one up to that moment; 0 for never."""
        times = self.alive.get(member_id, [])
        at = bisect_right(times, until_ns)
        sign = self.rows.signs.last_answered_before(member_id, until_ns)
        return max(times[at - 1] if at else 0, sign or 0)

    def next_round(self, key: Key) -> Round | None:
        """The next join that is completed."""
        at = bisect_right(self._keys, key)
        return self.rounds[at] if at < len(self.rounds) else None

    def is_listed_later(self, member_id: str, key: Key) -> bool:
        """Whether the next leader that is told who is in hears of it."""
        home = self.next_round(key)
        return home is not None and member_id in home.members

    def calm_until_next_sign(self, now_ns: int) -> int | None:
        """The last heartbeat that says that nobody joins, before a sign that somebody does; None: there is none."""
        at = bisect_right(self._signs, now_ns)
        until = self._signs[at] if at < len(self._signs) else self.rows.horizon_ns + 1
        return self.rows.signs.last_calm(now_ns + CALM_NS, until)

    def is_cut_off(self, row: Row) -> bool:
        """Whether it was waiting when the coordinator was lost."""
        end = self.rows.closed.get(row.connection)
        return end is not None and any(
            row.due <= failover.begin and failover.begin[0] <= end <= failover.end[0] for failover in self.failovers
        )

    def is_closed_after(self, row: Row) -> bool:
        """Whether its connection was closed later."""
        return self.rows.closed.get(row.connection, -1) >= row.key[0]

    def ends_waiting(self, row: Row) -> bool:
        """Whether the source ends while it waits."""
        return not any(failover.begin > row.due for failover in self.failovers)

    def name_in(self, row: Row, home: Round | None) -> str:
        """The member id that a join is about, as far as it is known."""
        who = row.given_id if row.error == 0 and row.given_id else row.member_id or row.given_id
        if who or home is None or row.instance_id is None:
            return who
        return next((name for name, told in home.members.items() if told.instance_id == row.instance_id), "")
