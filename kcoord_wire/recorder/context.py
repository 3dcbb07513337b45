"""What all relays of a proxy share: its settings, counters and log, and the numbers and memory of connections.

A relay knows this and nothing else of the proxy; the proxy makes it, and looks into it for what its relays did.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kcoord_wire.kernel.net import LogLimiter
from kcoord_wire.recorder.policy import plan_of
from kcoord_wire.recorder.recording_thread import RecordingThread

if TYPE_CHECKING:
    from kcoord_wire.recorder.relay import Relay

_MAX_REASONS: Final = 100

log = logging.getLogger("kcoord_wire.capture")
log.addHandler(logging.NullHandler())  # silent unless the application configures logging


@dataclass(slots=True)
class Counters:
    """The traffic since the proxy began.

    :ivar connections: of clients
    :ivar open: of these, those that are open now
    :ivar unreachable: connections whose broker could not be reached
    :ivar foreign: connections on which another protocol than Kafka's was seen
    :ivar requests: frames seen
    :ivar responses: frames seen
    :ivar request_bytes: sent by clients
    :ivar response_bytes: sent by brokers
    :ivar rewritten: responses with replaced addresses
    :ivar not_rewritten: responses whose addresses should have been replaced, but could not
    :ivar recorded: records written, openings and closings included
    :ivar recorded_bytes: size of these together
    :ivar not_recorded: frames to be recorded that were not, because the disk was too slow or had failed
    :ivar cut: frames of which only the beginning was recorded
    """

    connections: int = 0
    open: int = 0
    unreachable: int = 0
    foreign: int = 0
    requests: int = 0
    responses: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    rewritten: int = 0
    not_rewritten: int = 0
    recorded: int = 0
    recorded_bytes: int = 0
    not_recorded: int = 0
    cut: int = 0


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """The memory that connections may take.

    :ivar max_frame: bytes of a frame that are recorded; the rest of a larger one only passes
    :ivar max_held: bytes of frames in progress, over all connections
    :ivar connect_seconds: after which an attempt to connect to a broker fails
    """

    max_frame: int = 16 << 20
    max_held: int = 256 << 20
    connect_seconds: float = 10.0


class RelayContext:
    """See the head of this module: one object between a proxy and its relays.

    :param replacement: takes host and port of a broker, and the host that the client has connected to; returns the
        address to put in their place, or None to leave them
    :ivar loop: set by the proxy before the first relay, as is `recording`
    :ivar recording: None records nothing
    :ivar plan: as `policy.plan_of` returns it
    :ivar held: bytes of frames in progress
    :ivar relays: those of open connections
    :ivar reached: the address at which each broker was reached last, by host and port
    """

    loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        *,
        apis: str,
        rewrites: bool,
        tls: ssl.SSLContext | None,
        limits: RelayLimits,
        replacement: Callable[[str, int, str], tuple[str, int] | None],
    ) -> None:
        self.records_all = apis == "all"
        self.rewrites = rewrites
        self.plan = plan_of(apis, rewrite=rewrites)
        self.tls = tls
        self.limits = limits
        self.replacement = replacement
        self.counters = Counters()
        self.recording: RecordingThread | None = None
        self.held = 0
        self.relays: set[Relay] = set()
        self.reached: dict[tuple[str, int], str] = {}
        self._number = 0
        self._reasons: set[tuple[str, str]] = set()
        self._limiter = LogLimiter()

    def next_number(self) -> int:
        """Return the number of a new connection."""
        self._number += 1
        return self._number

    def joined(self, relay: Relay) -> None:
        """Note that a client has connected."""
        self.relays.add(relay)
        self.counters.connections += 1
        self.counters.open += 1

    def left(self, relay: Relay) -> None:
        """Note that both connections of a relay have ended."""
        if relay in self.relays:
            self.relays.discard(relay)
            self.counters.open -= 1

    def cannot_rewrite(self, what: str, why: str) -> None:
        """Count a message that keeps the brokers' own addresses; log each kind and reason once."""
        self.counters.not_rewritten += 1
        if (what, why) not in self._reasons and len(self._reasons) < _MAX_REASONS:
            self._reasons.add((what, why))
            self.warn(f"addresses in a {what} are left as they are: {why}")

    def warn(self, text: str) -> None:
        """Log a warning, unless there were too many."""
        if self._limiter.allows_line():
            log.warning("%s", text)
