"""Servers: they take connections until they are closed, and only as long."""

from __future__ import annotations

import asyncio

import pytest

from kcoord_wire.kernel.virtual.loop import NotSimulatedError, VirtualWorld


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    await reader.read()
    writer.close()


def test_a_closed_server_keeps_its_connections() -> None:
    async def main() -> None:
        server = await asyncio.start_server(greet, port=80)
        assert server.is_serving()
        reader, writer = await asyncio.open_connection("localhost", 80)
        server.close()
        await server.wait_closed()
        assert not server.is_serving()
        assert server.sockets == ()
        assert await reader.readexactly(5) == b"hello"
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("localhost", 80)
        writer.close()
        again = await asyncio.start_server(greet, port=80)
        assert again.is_serving(), "the port is free again"

    VirtualWorld().run(main())


def test_a_server_listens_when_it_is_asked_to() -> None:
    async def main() -> None:
        server = await asyncio.start_server(greet, port=80, start_serving=False)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("localhost", 80)
        await server.start_serving()
        _, writer = await asyncio.open_connection("localhost", 80)
        writer.close()
        with pytest.raises(NotSimulatedError, match="no file descriptor"):
            server.sockets[0].fileno()

    VirtualWorld().run(main())


def test_serving_for_ever_ends_with_the_server() -> None:
    async def main() -> bool:
        server = await asyncio.start_server(greet, port=80)
        async with server:
            serving = asyncio.create_task(server.serve_forever())
            await asyncio.sleep(1)
            serving.cancel()
            await asyncio.wait([serving])
        return server.is_serving()

    assert not VirtualWorld().run(main())
