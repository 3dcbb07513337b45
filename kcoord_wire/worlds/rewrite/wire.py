"""The rewrite's frames between members and brokers, on the network that the draft's simulation has.

Laws: those of `worlds.central.wire`.
"""

from __future__ import annotations

from typing import Any

from kcoord_wire.central.frames import decode_to_rewrite_broker, version_of
from kcoord_wire.codec.registry import decode_response, encode_request, encode_response
from kcoord_wire.kernel.machines import Received
from kcoord_wire.worlds.central.wire import Link, Wire


class RewriteWire(Wire):
    """Carries the rewrite's messages, whose size is left out."""

    def request(self, link: Link, message: Any) -> None:
        """Send a member's request; the one before it has been answered."""
        frame = encode_request(message, version_of(type(message)), client_id=link.process.name)
        self.send_to_server(link, frame)

    def arrived(self, connection: Link, *message: Any) -> None:
        """A request has reached a broker, or a connection."""
        [frame] = message
        if not frame:
            super().arrived(connection, frame)
            return
        _, request = decode_to_rewrite_broker(frame)
        assert connection.broker.process is not None
        connection.broker.process.deliver(Received(connection.number, request))

    def answer(self, number: int, message: Any) -> Link | None:
        """Send a broker's response; return its link, None if that has ended."""
        link = self._links[number]
        if not link.is_open:
            return None
        self.send_to_process(link, encode_response(message, version_of(type(message))), type(message))
        return link

    def returned(self, connection: Link, *message: Any) -> None:
        """A response has reached the member, or its connection has been accepted."""
        [frame, cls] = message
        response = None if cls is None else decode_response(frame, cls, version_of(cls))[1]
        connection.events(connection, response)
