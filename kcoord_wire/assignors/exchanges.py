"""Which moves make up for a partition that goes back to the member that held it.

Balancing takes partitions from their holders that need not have moved. One can go back without making the loads less
equal if its former holder passes on another, or a member with more does, and that makes others pass on, until the
present holder gets one, or a member with fewer. Only partitions are passed on that their holder did not hold before,
so each chain of such moves saves one move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence


class Exchanges:
    """Finds such chains. Members and topics are numbers.

    :param load: by member: number of its partitions; changed by the moves
    :param subscribers: by topic: its members
    :param gained_by: by member: the topics of which it has gained partitions; changed by the moves
    """

    def __init__(
        self, load: Sequence[int], subscribers: Sequence[Sequence[int]], gained_by: Sequence[set[int]]
    ) -> None:
        self._load, self._subscribers, self._gained_by = load, subscribers, gained_by
        # What was reached in vain, and the lowest load there, since the last moves; by the first member if it has
        # gained anything, and its load.
        self._in_vain: dict[tuple[int | None, int], tuple[Collection[int], int]] = {}

    def chain(self, former: int, present: int) -> tuple[int, list[tuple[int, int, int]], int] | None:
        """Return a chain of moves of gained partitions, None if there is none. It begins at the former holder, or at a
        member with more; it ends at the present holder, or at a member with fewer than that.

        :returns: the first member; the moves (topic, giver, taker), the last one first; the last member
        """
        load = self._load
        key = (former if self._gained_by[former] else None, load[former])
        reached, lowest = self._in_vain.get(key, ((present,), 0))
        if present not in reached and min(lowest, load[former]) >= load[present]:
            return None
        came: dict[int, tuple[int, int] | None] = {former: None}
        last = self._search([former], came, present)
        if last is None:
            more = [member for member, topics in enumerate(self._gained_by) if topics and load[member] > load[former]]
            more = [member for member in more if member not in came]
            came.update(dict.fromkeys(more))
            last = self._search(more, came, present)
        if last is None:
            self._in_vain[key] = came.keys(), min(map(load.__getitem__, came))
            return None
        self._in_vain.clear()
        member, moves = last, []
        while (step := came[member]) is not None:
            moves.append((*step, member))
            member = step[1]
        return member, moves, last

    def _search(self, starts: Iterable[int], came: dict[int, tuple[int, int] | None], present: int) -> int | None:
        """Search breadth first; return the member at which a chain may end."""
        seen: set[int] = set()
        queue = deque(starts)
        while queue:
            member = queue.popleft()
            if member == present or self._load[member] < self._load[present]:
                return member
            for topic in self._gained_by[member] - seen:
                seen.add(topic)
                for taker in self._subscribers[topic]:
                    if taker not in came:
                        came[taker] = (topic, member)
                        queue.append(taker)
        return None
