"""What `create_server` returns on the virtual loop: a port of a host that takes connections.

Laws:

* A server takes connections as the process that made it, with TLS if it has a context.
* `MemoryServer.close` ends the listening; connections that were accepted stay open.
"""

from __future__ import annotations

import asyncio
from typing import Any

from kcoord_wire.kernel.virtual.loop.hosts import Host
from kcoord_wire.kernel.virtual.loop.loop import NotSimulatedError, VirtualLoop
from kcoord_wire.kernel.virtual.loop.transports import MemoryTransport, secured


class BoundSocket:
    """What a program asks a listening socket for: its address."""

    def __init__(self, address: str, port: int) -> None:
        self._name = (address, port)

    def getsockname(self) -> tuple[str, int]:
        """Return address and port."""
        return self._name

    def fileno(self) -> int:
        """There is no file.

        :raises NotSimulatedError: always
        """
        raise NotSimulatedError("a socket of the virtual loop has no file descriptor")


class MemoryServer(asyncio.AbstractServer):
    """What `create_server` returns.

    :ivar sockets: one `BoundSocket`; empty once it is closed
    """

    def __init__(self, loop: VirtualLoop, host: Host, port: int, factory: Any, options: dict[str, Any]) -> None:
        self.sockets: tuple[BoundSocket, ...] = (BoundSocket(host.address, port),)
        self._loop = loop
        self._host = host
        self._port = port
        self._factory = factory
        self._options = options
        self._serving = False
        self._closed = loop.create_future()
        if options.get("start_serving", True):
            self._listen()

    def _listen(self) -> None:
        self._serving = True
        self._host.listeners[self._port] = self

    def accept(self, transport: MemoryTransport) -> None:
        """Take a connection; called as the server's process."""
        protocol = self._factory()
        if self._options.get("ssl") is not None:
            protocol = secured(self._loop, protocol, None, self._options, server=True)
        transport.begin(protocol)

    def get_loop(self) -> VirtualLoop:
        return self._loop

    def is_serving(self) -> bool:
        return self._serving

    def close(self) -> None:
        if self._host.listeners.get(self._port) is self:
            del self._host.listeners[self._port]
        self._serving = False
        self.sockets = ()
        if not self._closed.done():
            self._closed.set_result(None)

    async def start_serving(self) -> None:
        if not self._serving:
            self._listen()

    async def serve_forever(self) -> None:
        self._listen()
        try:
            await asyncio.shield(self._closed)
        finally:
            self.close()

    async def wait_closed(self) -> None:
        """Wait until the server listens no more; its connections may be open still, as in Python 3.11."""
        await asyncio.shield(self._closed)
