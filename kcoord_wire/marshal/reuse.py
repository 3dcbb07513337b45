"""Whether another process uses our client id, and which of the two yields.

Two processes with one client id and group take each other's partitions: a heartbeat of the one takes over a fresh claim
of the other, as after a restart. One has to stop, and both must decide alike.

The one that was heard of first yields, by the log's order: it is the former process after a restart, and a process that
was paused while it was replaced. The later one also yields if the other goes on for more than a heartbeat interval,
because it does not know this rule (the Go library). Who yields claims again when the other was silent for two
heartbeat intervals.

Sources: Marshal PROTOCOL.md: a client id "should be unique within a group_id"; issue #8 of the Go library, open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kcoord_wire.messages.marshal import Presence, ReleaseGroup, ReleasingPartition

_NO_SIGN: Final = (ReleasingPartition, Presence)
"""Who yields still releases what it has, and presents itself: else two would yield to each other for ever."""


@dataclass(slots=True)
class _Other:
    """Another instance.

    :ivar first: log time and instance id of its first message: the order of the instances
    :ivar alive_at: when it was last heard after our start, ms; None for never
    :ivar alive_ms: log time of that
    """

    first: tuple[int, str]
    alive_at: int | None = None
    alive_ms: int = 0


class ClientIdReuse:
    """The other instances of one client.

    :ivar own_first: log time and instance id of our own first message; None before it was read
    """

    def __init__(self, group_id: str, client_id: str, instance_id: str, interval_ms: int) -> None:
        self._client = group_id, client_id
        self._instance_id = instance_id
        self._interval_ms = interval_ms
        self._others: dict[str, _Other] = {}
        self.own_first: tuple[int, str] | None = None

    def see(self, message: Any, time_ms: int, now: int, *, is_after_start: bool) -> None:
        """Take in a message.

        :param time_ms: the log's time
        :param is_after_start: it has landed after we began
        """
        if (message.group_id, message.client_id) != self._client or isinstance(message, ReleaseGroup):
            return  # an admin may use any client id
        order = time_ms, message.instance_id
        if message.instance_id == self._instance_id:
            self.own_first = self.own_first or order
            return
        other = self._others.setdefault(message.instance_id, _Other(order))
        if is_after_start and not isinstance(message, _NO_SIGN):
            other.alive_at, other.alive_ms = now, time_ms

    def rival(self, now: int) -> str:
        """Return the instance that we yield to; empty if there is none."""
        return next((name for name, other in self._others.items() if self._yields_to(other, now)), "")

    def _yields_to(self, other: _Other, now: int) -> bool:
        if self.own_first is None or other.alive_at is None or now - other.alive_at > 2 * self._interval_ms:
            return False
        return other.first > self.own_first or other.alive_ms - self.own_first[0] > self._interval_ms
