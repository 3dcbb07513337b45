"""How far a group is behind, poll after poll.

Laws:

* A row is kept where something of the partition has changed since its last row, and once a minute otherwise.
* `LagBook.thin` bounds the rows: it drops every other poll of the older three quarters, so that the oldest are the
  thinnest and the last ones stay exact.
* A partition grows behind if its least lag of the last half minute is above its greatest of the half minute before:
  a lag that only goes up and down does not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from kcoord_wire.forensics.model import Lag
from kcoord_wire.watch.seen import Place

_SECOND_NS: Final = 1_000_000_000
_HALF_NS: Final = 30 * _SECOND_NS
_IDLE_NS: Final = 60 * _SECOND_NS
_RECENT: Final = 64  # polls of a partition that are kept to see whether it grows


class SetBack(NamedTuple):
    """A committed offset that is smaller than before."""

    place: Place
    before: int
    after: int


class LagBook:
    """The lag of one group.

    :ivar now: the last row of each partition
    """

    def __init__(self, group_id: str) -> None:
        self.now: dict[Place, Lag] = {}
        self._group_id = group_id
        self._polls: list[list[Lag]] = []
        self._count = 0
        self._kept: dict[Place, Lag] = {}
        self._recent: dict[Place, deque[tuple[int, int]]] = {}

    def take(
        self, now: int, committed: Mapping[Place, int], ends: Mapping[Place, int], owners: Mapping[Place, str]
    ) -> list[SetBack]:
        """Take in the offsets of a poll; return what was set back.

        :param owners: member ids
        """
        back = []
        rows = []
        places = sorted(place for place in committed.keys() | owners.keys() if place in ends)
        for place in places:
            offset, end = committed.get(place), ends[place]
            lag = None if offset is None else max(end - offset, 0)
            row = Lag(self._group_id, *place, now, offset, None, end, lag, owners.get(place))
            last = self.now.get(place)
            if last is not None and offset is not None and offset < (last.committed_offset or 0):
                back.append(SetBack(place, last.committed_offset or 0, offset))
            self.now[place] = row
            if lag is not None:
                self._recent.setdefault(place, deque(maxlen=_RECENT)).append((now, lag))
            if self._is_new(place, row):
                rows.append(row)
                self._kept[place] = row
        for place in self.now.keys() - set(places):  # of a deleted topic, or its offset has expired
            del self.now[place]
            self._recent.pop(place, None)
            self._kept.pop(place, None)
        if rows:
            self._polls.append(rows)
            self._count += len(rows)
        return back

    def thin(self, most: int) -> bool:
        """Drop rows if there are more than `most`; return whether any was dropped."""
        if self._count <= most or len(self._polls) < 2:
            return False
        older = max(3 * len(self._polls) // 4, 1)
        self._polls[:older] = self._polls[1:older:2]
        self._count = sum(map(len, self._polls))
        return True

    def rows(self) -> list[Lag]:
        """Return the rows that are kept, in order of time."""
        return [row for rows in self._polls for row in rows]

    def growth(self) -> Iterator[tuple[Place, float]]:
        """Yield the partitions that grow behind, with records a second, the fastest first."""
        found = []
        for place, recent in self._recent.items():
            middle = recent[-1][0] - _HALF_NS
            older = [lag for at, lag in recent if middle - _HALF_NS <= at <= middle]
            younger = [lag for at, lag in recent if at > middle]
            if older and min(younger) > max(older):
                first = next((at, lag) for at, lag in recent if at >= middle - _HALF_NS)
                seconds = (recent[-1][0] - first[0]) / _SECOND_NS
                found.append((place, (recent[-1][1] - first[1]) / seconds))
        yield from sorted(found, key=lambda each: (-each[1], each[0]))

    def _is_new(self, place: Place, row: Lag) -> bool:
        kept = self._kept.get(place)
        if kept is None or row.time_ns - kept.time_ns >= _IDLE_NS:
            return True
        return (row.committed_offset, row.end_offset, row.member_id) != (
            kept.committed_offset,
            kept.end_offset,
            kept.member_id,
        )
