"""Times relative to the first moment of a group."""

from __future__ import annotations

from kcoord_wire.forensics.model import GroupHistory


class GroupClock:
    """Times of one group, in milliseconds after its first moment.

    :ivar first: its first moment, in nanoseconds
    :ivar last: its last moment, in nanoseconds
    """

    def __init__(self, history: GroupHistory) -> None:
        self.first, self.last = history.group.first_ns, history.group.last_ns

    def ms(self, ns: int) -> float:
        """A moment, rounded to microseconds."""
        value = (ns - self.first) / 1e6
        return int(value) if value == int(value) else round(value, 3)

    def end(self, ns: int | None) -> float:
        """The end of an interval; for None the last moment of the group."""
        return self.ms(self.last if ns is None else ns)
