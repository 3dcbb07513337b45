"""A proxy between a client and a server, in which a test cuts and delays their connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kcoord_wire.kernel.background import Background

CHUNK = 1 << 16


class TcpProxy:
    """Listens on a free port of the loopback and carries connections to another, while the block is entered.

    :param target: port of the server, on 127.0.0.1
    :ivar port: its own
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._swallows = False
        self._refuses = False
        self._flows: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._background = Background("proxy", self._serve, thread="test-proxy")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> TcpProxy:
        self._background.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._background.stop()

    def cut(self) -> None:
        """Reset the connections, and each new one."""
        self._background.call(self._cut)

    def hold(self) -> None:
        """Carry nothing; what is sent meanwhile arrives after `heal`."""
        self._background.call(self._flow().clear)

    def swallow_answers(self) -> None:
        """Carry requests and drop what the server sends, until `heal`."""
        self._background.call(lambda: setattr(self, "_swallows", True))

    def heal(self) -> None:
        """Carry everything again; after `swallow_answers`, over new connections."""
        self._background.call(self._heal)

    def _flow(self) -> asyncio.Event:
        assert self._flows is not None
        return self._flows

    def _cut(self) -> None:
        self._refuses = True
        self._end()

    def _heal(self) -> None:
        if self._swallows:
            self._end()
        self._refuses = self._swallows = False
        self._flow().set()

    def _end(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _serve(self, ready: Callable[[], None], stopping: asyncio.Event) -> None:
        self._flows = asyncio.Event()
        self._flows.set()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready()
        await stopping.wait()
        server.close()
        self._end()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            if self._refuses:
                return
            answers, requests = await asyncio.open_connection("127.0.0.1", self.target)
            writers.append(requests)
            pumps = [self._pump(reader, requests, False), self._pump(answers, writer, True)]
            for done in asyncio.as_completed(pumps):
                await done
                return
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in writers:
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool) -> None:
        with suppress(OSError, RuntimeError):  # the latter is uvloop's, of a connection that was aborted meanwhile
            while data := await reader.read(CHUNK):
                await self._flow().wait()
                if not (is_answer and self._swallows):
                    writer.write(data)
                    await writer.drain()
