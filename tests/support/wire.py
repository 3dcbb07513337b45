"""A blocking client of one connection, for tests that want to say each byte themselves.

Requests and responses go through the package's own codec; nothing is retried, and nothing sent that was not asked for.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import kcoord_wire as kw
from kcoord_wire.protocol.error_codes import ErrorCode


def errors_in(value: Any) -> Iterable[ErrorCode]:
    """All error codes in a response, at any depth."""
    if isinstance(value, list):
        for item in value:
            yield from errors_in(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            inner = getattr(value, name)
            if name.endswith("error_code"):
                yield ErrorCode(inner)
            else:
                yield from errors_in(inner)


class Wire:
    """One connection to a broker.

    :param host: where the broker listens, or ``host:port`` in one string with `port` left out
    :param timeout: seconds that any one read or write may take; `TimeoutError` after that
    :param ssl_context: speak TLS; the server's name is `host`
    """

    def __init__(
        self,
        host: str,
        port: int | None = None,
        *,
        client_id: str | None = "wire",
        timeout: float = 30,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if port is None:
            host, _, digits = host.rpartition(":")
            port = int(digits)
        self.client_id = client_id
        self._socket: socket.socket = socket.create_connection((host, port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ssl_context is not None:
            try:
                self._socket = ssl_context.wrap_socket(self._socket, server_hostname=host)
            except BaseException:
                self._socket.close()
                raise
        self._framer = kw.Framer()
        self._bodies: deque[bytes] = deque()
        self._asked: dict[int, tuple[int, int]] = {}  # correlation id -> api key, version
        self._next = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def call(self, request: Any, version: int) -> Any:
        """Send a request and give its response."""
        return self.receive(self.send(request, version))

    def send(self, request: Any, version: int) -> int:
        """Send a request and give its correlation id."""
        correlation_id = self._next
        body = kw.encode_request(request, version, correlation_id=correlation_id, client_id=self.client_id)
        self._next += 1
        self._asked[correlation_id] = int.from_bytes(body[:2], "big"), version
        self.send_raw(kw.frame(body))
        return correlation_id

    def receive(self, correlation_id: int) -> Any:
        """The response to that request, which must be the next one to come.

        :raises EOFError: the broker has closed the connection
        """
        body = self.receive_body()
        (found,) = struct.unpack_from(">i", body)
        assert found == correlation_id, f"the answer to {found} came, that to {correlation_id} was due"
        return kw.decode_response(body, *self._asked.pop(correlation_id))[1]

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def receive_body(self) -> bytes:
        """The next frame without its size. Errors as `receive`."""
        while not self._bodies:
            chunk = self._socket.recv(1 << 16)
            if not chunk:
                raise EOFError("the broker has closed the connection")
            self._bodies += self._framer.feed(chunk)
        return self._bodies.popleft()

    def send_within(self, seconds: float, data: bytes) -> None:
        """Send bytes as they are; `TimeoutError` where the broker does not take them in time."""
        before = self._socket.gettimeout()
        self._socket.settimeout(seconds)
        try:
            self._socket.sendall(data)
        finally:
            self._socket.settimeout(before)

    def end_sending(self) -> None:
        """Let the broker see the end of the stream; it may have closed it before."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Hang up without a farewell."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def arrived(self) -> tuple[list[bytes], bool]:
        """The frames that have come, without waiting, and whether the end has, too."""
        chunk: bytes | None = None
        before = self._socket.gettimeout()
        self._socket.settimeout(0)
        with suppress(BlockingIOError):
            chunk = self._socket.recv(1 << 16)
        self._socket.settimeout(before)
        self._bodies += self._framer.feed(chunk or b"")
        bodies = list(self._bodies)
        self._bodies.clear()
        return bodies, chunk == b""

    def is_closed_by_peer(self) -> bool:
        """Wait for bytes or the end: whether it was the end, a reset included."""
        try:
            chunk = self._socket.recv(1 << 16)
        except ConnectionError:
            return True
        self._bodies += self._framer.feed(chunk)
        return not chunk
