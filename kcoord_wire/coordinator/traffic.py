"""The last requests and answers of a coordinator's clients, kept in memory for a report: what `kcoord record` would
have written before the coordinator.

Laws:

* What is kept is bounded in bytes; the oldest frames go first. Openings are kept as long as their connections are open.
* Frames of the apis of groups alone (`GROUP_APIS`): no records, and nothing of an authentication.
* Answers are those that leave: one that a fault drops is missing, and one that it duplicates is there twice.
* A connection that was opened before is not kept; without a `Traffic` connections cost nothing for it.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import count
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kcoord_wire.codec.framing import SIZE_BYTES
from kcoord_wire.coordinator.connection import CachedHeartbeat, Connection
from kcoord_wire.kernel.net import address_text
from kcoord_wire.protocol.api_keys import ApiKey

if TYPE_CHECKING:
    from kcoord_wire.recorder.recording import Direction

MOST_KEPT: Final = 64 << 20  # bytes
_OVERHEAD: Final = 200  # bytes of an event besides its frame
_NO_API: Final = -1


class TrafficEvent(NamedTuple):
    """What has happened on a connection, or a frame of it, as in a recording."""

    time_ns: int
    connection: int
    direction: Direction
    body: bytes


class Traffic:
    """The frames. Used in the coordinator's thread; `events` may be written in another.

    :param most: bytes to keep
    :ivar apis: whose frames are kept
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        from kcoord_wire.recorder.counters import GROUP_APIS  # few coordinators keep anything

        self.apis = frozenset(map(int, GROUP_APIS))
        self._most = most
        self._size = 0
        self._events: deque[TrafficEvent] = deque()
        self._open: dict[int, TrafficEvent] = {}  # openings
        self._numbers = count(1)

    def opened(self, name: str) -> int:
        """Note that a client has connected, and return the connection's number."""
        number = next(self._numbers)
        self._open[number] = TrafficEvent(time.time_ns(), number, "opened", f"{name}#{number}".encode())
        self._add(self._open[number])
        return number

    def closed(self, connection: int) -> None:
        """Note that a connection has ended."""
        self._open.pop(connection, None)
        self._add(TrafficEvent(time.time_ns(), connection, "closed", b""))

    def frame(self, connection: int, direction: Direction, body: bytes) -> None:
        """Keep a frame."""
        self._add(TrafficEvent(time.time_ns(), connection, direction, body))

    def events(self) -> list[TrafficEvent]:
        """Return what is kept, oldest first; connections whose opening is no longer among it are opened first."""
        kept = list(self._events)
        opened = {event.connection for event in kept if event.direction == "opened"}
        return [event for number, event in self._open.items() if number not in opened] + kept

    def _add(self, event: TrafficEvent) -> None:
        self._events.append(event)
        self._size += len(event.body) + _OVERHEAD
        while self._size > self._most:
            self._size -= len(self._events.popleft().body) + _OVERHEAD


def write_recording(events: list[TrafficEvent], folder: str | PathLike[str]) -> None:
    """Write `Traffic.events` as a recording, which `kcoord analyze` reads.

    :raises OSError: the folder cannot be written
    """
    from kcoord_wire.recorder.recording import RecordingWriter

    writer = RecordingWriter(folder)
    try:
        known: set[int] = set()
        for time_ns, connection, direction, body in events:
            if direction == "opened":
                known.add(connection)
                writer.opened(connection, body.decode(), time_ns)
            elif connection not in known:
                continue  # it has ended, and its opening is not kept
            elif direction == "closed":
                writer.closed(connection, time_ns)
            else:
                writer.frame(connection, direction, body, time_ns)
    finally:
        writer.close()


class TappedConnection(Connection):
    """A connection whose frames are kept."""

    __slots__ = ("_answer_again", "_api_key", "_number", "_traffic")

    def __init__(self, traffic: Traffic, *of_connection: Any) -> None:
        super().__init__(*of_connection)
        self._traffic = traffic
        self._number = 0
        self._api_key = _NO_API
        self._receive = self._keep_request
        self._repeat, self._answer_again = self._keep_repeated, self._repeat

    def connection_made(self, transport: Any) -> None:
        peer, own = (transport.get_extra_info(name) or ("", 0) for name in ("peername", "sockname"))
        self._number = self._traffic.opened(f"{address_text(*peer[:2])}-{address_text(*own[:2])}")
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._traffic.closed(self._number)
        super().connection_lost(exc)

    def _keep_request(self, _: object, data: bytes, start: int) -> None:
        self._api_key = _NO_API if self.is_unauthenticated else int.from_bytes(data[start : start + 2], "big")
        if self._api_key in self._traffic.apis:
            self._traffic.frame(self._number, "request", data[start:])
        self.owner.receive(self, data, start)

    def _keep_repeated(self, _: object, beat: CachedHeartbeat, data: bytes) -> bytes | None:
        answer = self._answer_again(self, beat, data)
        if answer is not None and ApiKey.HEARTBEAT in self._traffic.apis:
            self._traffic.frame(self._number, "request", data[SIZE_BYTES:])
            self._traffic.frame(self._number, "response", answer[SIZE_BYTES:])
        return answer

    def write(self, data: bytes) -> None:
        if self._api_key in self._traffic.apis:
            at = 0
            while at < len(data):  # several where a fault has duplicated the answer
                end = at + SIZE_BYTES + int.from_bytes(data[at : at + SIZE_BYTES], "big")
                self._traffic.frame(self._number, "response", data[at + SIZE_BYTES : end])
                at = end
        super().write(data)
