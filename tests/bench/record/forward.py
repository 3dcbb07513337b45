"""A proxy that only moves bytes, to compare with: what the hop itself costs.

`python -m tests.bench.record.forward UPSTREAM` prints its address. The event loop and the kind of protocol are those of
`kcoord record`; it knows of no frames, and records nothing.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop


class End(asyncio.Protocol):
    """One of two connections, what comes in here goes out at the other one."""

    def __init__(self) -> None:
        self.other: End
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        if self.other.transport is not None:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        if self.other.transport is not None:
            self.other.transport.close()


class Client(End):
    """The client's end: its broker is sought while it waits."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        self.broker = host, port
        self.early: list[bytes] = []
        self.other = End()
        self.other.other = self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.pause_reading()
        self.connecting = asyncio.ensure_future(self.connect())

    def data_received(self, data: bytes) -> None:
        if self.other.transport is None:
            self.early.append(data)
        else:
            super().data_received(data)

    async def connect(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self.other, *self.broker)
        assert self.other.transport is not None
        self.other.transport.write(b"".join(self.early))
        if self.transport is not None:
            self.transport.resume_reading()


async def main() -> None:
    host, _, port = sys.argv[1].rpartition(":")
    server = await asyncio.get_running_loop().create_server(lambda: Client(host, int(port)), "127.0.0.1", 0)
    print(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
