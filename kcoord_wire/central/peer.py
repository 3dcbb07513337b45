"""One peer of a broker, of which `kernel.peers` cuts the bytes into frames and bounds what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from kcoord_wire.central.draft.events import LARGEST_MESSAGE
from kcoord_wire.kernel.peers import FramedPeer, PeerLimits, PeerOwner


@dataclass(frozen=True, slots=True)
class Limits(PeerLimits):
    """The limits of a broker's peers, in bytes and milliseconds.

    :ivar max_connections_per_host: as `max_connections`, of one address
    :ivar max_frame_size: of a registered consumer, whose answers carry an offset for each of its partitions
    :ivar max_unregistered_frame_size: of any other peer
    :ivar idle_ms: of silence, of a peer that is not a registered consumer; consumers are pinged
    """

    max_connections: int = 50_000
    max_connections_per_host: int = 25_000
    max_frame_size: int = LARGEST_MESSAGE
    max_unregistered_frame_size: int = 64 << 10
    read_ahead: int = 0
    write_high_water: int = 64 << 10
    max_unread: int = 16 << 20
    frame_ms: int = 30_000
    unread_ms: int = 30_000
    idle_ms: int = 60_000


class Dialect(Protocol):
    """The frames of a protocol. What it has to remember of a connection, it keeps there."""

    def read(self, connection: CentralPeer, body: bytes, /) -> Any:
        """Return the message of a frame without its size.

        :raises DecodeError: it does not decode, or the peer may not send it now
        """

    def frame(self, connection: CentralPeer, message: Any, /) -> bytes:
        """Return the frame, with its size, of a message that is sent now.

        :raises EncodeError: a value does not fit into its field
        """


class CentralPeer(FramedPeer):
    """One peer. The frame in hand is a request, by its header or message.

    :ivar number: names it; never used twice by one owner
    :ivar is_registered: its peer is a registered consumer
    :ivar unanswered: requests of the coordinator that the peer has not answered
    :ivar awaited: of a consumer: what its dialect has to know of the answer that comes next
    """

    __slots__ = ("awaited", "is_registered", "number", "unanswered")
    limits: Limits

    def __init__(self, owner: PeerOwner, frame_limit: int, number: int) -> None:
        super().__init__(owner, frame_limit)
        self.number = number
        self.is_registered = False
        self.unanswered = 0
        self.awaited: Any = None

    def register(self) -> None:
        """Apply the limits of a registered consumer."""
        self.is_registered = True
        self.set_frame_limit(self.limits.max_frame_size)

    def answered(self) -> None:
        """Go on with the frame behind the request in hand."""
        self.in_hand = None
        if self.has_more:
            self.pump_later()

    def overdue(self, now: float) -> str | None:
        why = super().overdue(now)
        return None if self.is_registered and why == "idle" else why
