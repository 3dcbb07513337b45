"""A blocking peer of a broker of the draft, for tests that want to say each byte themselves."""

from __future__ import annotations

import socket
import struct
from collections import deque
from types import TracebackType
from typing import Any, Self

import kcoord_wire as kw
from kcoord_wire.central.dialects import draft_frame
from kcoord_wire.messages import central as m

ASKED = {7: m.PingRequest, 8: m.StopFetcherRequest, 9: m.StartFetcherRequest}


class DraftWire:
    """One connection to a broker.

    :param port: of the broker, on the loopback interface
    :param seconds: that any one read or write may take; TimeoutError after that
    """

    def __init__(self, port: int, seconds: float = 30.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), seconds)
        self._framer = kw.Framer()
        self._bodies: deque[bytes] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        """Close it with a RST: the broker learns of it at once, and nothing that was sent is read."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def send(self, message: Any) -> None:
        """Send a request or an answer."""
        self.send_raw(draft_frame(message))

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, request: Any, answer: type) -> Any:
        """Send a request and return its answer, which has to come next."""
        self.send(request)
        return self.answer(answer)

    def answer(self, cls: type) -> Any:
        """The next frame, which is an answer without a type id."""
        return kw.decode(cls, self.body(), 0)

    def request(self) -> Any:
        """The next frame, which is a request of the coordinator."""
        body = self.body()
        return kw.decode(ASKED[int.from_bytes(body[:2], "big")], body[2:], 0)

    def body(self) -> bytes:
        """The next frame without its size.

        :raises EOFError: the broker has closed the connection
        """
        while not self._bodies:
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError("the broker has closed the connection")
            self._bodies.extend(self._framer.feed(data))
        return self._bodies.popleft()

    def is_closed(self) -> bool:
        """Read whatever still comes; whether the broker closes the connection within the time."""
        try:
            while True:
                self.body()
        except EOFError:
            return True
        except TimeoutError:
            return False
