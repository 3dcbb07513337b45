"""The time of one group as its page counts it."""

from __future__ import annotations

from kcoord_wire.forensics.model import GroupHistory

__all__ = ["Clock"]


class Clock:
    """Times of one group, in milliseconds after its first.

    :ivar first: its first moment, `last` its last, in nanoseconds
    """

    def __init__(self, history: GroupHistory) -> None:
        self.first, self.last = history.group.first_ns, history.group.last_ns

    def ms(self, ns: int) -> float:
        """A moment, to the microsecond."""
        value = (ns - self.first) / 1e6
        return int(value) if value == int(value) else round(value, 3)

    def end(self, ns: int | None) -> float:
        """The end of an interval; the last moment of the group where the source ended first."""
        return self.ms(self.last if ns is None else ns)
