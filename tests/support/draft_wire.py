"""Peers of a broker of the draft, for tests that want to say each byte themselves: blocking, or on a loop."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import kcoord_wire as kw
from kcoord_wire.central.dialects import draft_frame
from kcoord_wire.kernel.machines import BrokerAddress
from kcoord_wire.messages import central as m

ASKED = {7: m.PingRequest, 8: m.StopFetcherRequest, 9: m.StartFetcherRequest}


def request_of(body: bytes) -> Any:
    """Return the coordinator's request in a frame."""
    return kw.decode(ASKED[int.from_bytes(body[:2], "big")], body[2:], 0)


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
        return request_of(self.body())

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


async def read_body(reader: asyncio.StreamReader) -> bytes:
    """Return the next frame of a stream, without its size.

    :raises EOFError: the other side has closed the connection
    """
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


@asynccontextmanager
async def listening(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]],
) -> AsyncIterator[BrokerAddress]:
    """A broker 1 on the loop that runs, whose connections a coroutine serves until its peer has closed."""
    tasks: set[Any] = set()

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            await serve(reader, writer)
        except (OSError, EOFError):
            pass
        finally:
            writer.transport.abort()
            tasks.discard(asyncio.current_task())

    server = await asyncio.start_server(run, "127.0.0.1", 0)
    try:
        yield BrokerAddress(1, "127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        while tasks:  # until their peers have closed
            await asyncio.sleep(0.01)


class DraftPeer:
    """One connection to a broker, on the loop that runs. To be entered."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.reset()

    def reset(self) -> None:
        """Close it: nothing that was sent is read."""
        self._writer.transport.abort()

    def send(self, message: Any) -> None:
        """Send a request or an answer."""
        self.send_raw(draft_frame(message))

    def send_raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def ask(self, request: Any, answer: type) -> Any:
        """Send a request and return its answer, which has to come next."""
        self.send(request)
        return await self.answer(answer)

    async def answer(self, cls: type) -> Any:
        """The next frame, which is an answer without a type id."""
        return kw.decode(cls, await self.body(), 0)

    async def request(self) -> Any:
        """The next frame, which is a request of the coordinator."""
        return request_of(await self.body())

    async def body(self) -> bytes:
        """The next frame without its size.

        :raises EOFError: the broker has closed the connection
        """
        try:
            return await read_body(self._reader)
        except ConnectionResetError:
            raise EOFError("the broker has closed the connection") from None

    async def is_closed(self) -> bool:
        """Read whatever still comes, until the broker closes the connection."""
        while True:
            try:
                await self.body()
            except EOFError:
                return True
