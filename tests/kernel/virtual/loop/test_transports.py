"""Connections: streams, the end of input, back-pressure, resets, retransmission, TLS."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import pytest
import trustme

from kcoord_wire.kernel.virtual.loop import VirtualWorld

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def connected(
    client: Callable[[VirtualWorld, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]],
    server: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]],
    script: Callable[[VirtualWorld], object] = lambda _: None,
) -> VirtualWorld:
    """Run a client on one host and a server on another."""
    world = VirtualWorld(seed=3)
    world.host("client"), world.host("server")
    script(world)

    async def serve() -> None:
        await (await asyncio.start_server(server, port=80)).serve_forever()

    async def connect() -> None:
        reader, writer = await asyncio.open_connection("server", 80)
        await client(world, reader, writer)
        writer.close()

    async def main() -> None:
        world.host("server").start(serve())
        await asyncio.sleep(1)
        await world.host("client").start(connect())

    world.run(main())
    return world


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


def test_streams_carry_bytes_and_their_end() -> None:
    async def client(world: VirtualWorld, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.writelines([b"one", b" ", b"two"])
        writer.write_eof()
        assert await reader.read() == b"one two"
        assert writer.get_extra_info("peername") == (world.host("server").address, 80)
        writer.close()
        await writer.wait_closed()

    world = connected(client, echo)
    assert [line.who for line in world.trace if line.what == "closes"] == ["server", "client"]


def test_what_is_written_after_the_end_is_dropped_or_refused() -> None:
    async def client(world: VirtualWorld, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()
        with pytest.raises(RuntimeError, match="after write_eof"):
            writer.write(b"more")
        writer.close()
        writer.write(b"more")  # asyncio drops it without an error

    connected(client, echo)


def test_a_reader_that_does_not_read_stops_the_writer() -> None:
    written = 0

    async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(50)
        assert len(await reader.readexactly(written)) == written
        writer.write(b"thanks")
        writer.close()

    async def client(world: VirtualWorld, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        while world.now < 40:
            writer.write(bytes(10_000))
            written += 10_000
            await asyncio.wait({asyncio.ensure_future(writer.drain())}, timeout=10)
        assert 300_000 < written < 600_000, "the socket's buffer, the writer's and the reader's"
        assert await reader.readexactly(6) == b"thanks"

    connected(client, never_reads)


@pytest.mark.parametrize(("cut_s", "arrives_s"), [(1, 3.3), (20, 27.3), (300, 326.5)])
def test_bytes_dropped_by_a_cut_arrive_with_a_retransmission(cut_s: float, arrives_s: float) -> None:
    async def client(world: VirtualWorld, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.9)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"

    # Sent at 1.9 s, and again 0.2, 0.6, 1.4, 3, 6.2, 12.6, 25.4 ... 204.6 and 324.6 s later; the cut begins at 1.8 s.
    world = connected(client, echo, lambda world: world.at(1.8, world.network.cut, "client", "server", cut_s))
    (got,) = [line.at for line in world.trace if line.what == "gets" and line.who == "server"]
    assert got / 1000 == pytest.approx(arrives_s, abs=0.01)


def test_a_connection_ends_after_924_s_without_an_answer() -> None:
    async def client(world: VirtualWorld, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(1)
        began = world.now
        writer.write(b"x")
        with pytest.raises(TimeoutError, match="no acknowledgement"):
            await reader.read(1)
        assert world.now - began == pytest.approx(924.6, abs=0.1)

    connected(client, echo, lambda world: world.at(1.5, world.network.cut, "client", "server", 3_600, one_way=True))


def test_bytes_to_a_killed_process_are_answered_by_a_reset() -> None:
    """The reset of the kill itself is swallowed by the cut: the client learns when it next sends."""

    async def client(world: VirtualWorld, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(10)
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        assert world.now == pytest.approx(11, abs=0.1)

    def script(world: VirtualWorld) -> None:
        world.at(2, world.network.cut, "client", "server", 3)
        world.at(3, world.host("server").kill)

    connected(client, echo, script)


def test_abort_resets_the_other_side() -> None:
    ends: list[BaseException] = []

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionResetError as error:
            ends.append(error)

    async def client(world: VirtualWorld, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()
        await asyncio.sleep(1)

    world = connected(client, server)
    assert len(ends) == 1
    assert [line.who for line in world.trace if line.what == "aborts"] == ["client"]


def test_tls_works_over_memory() -> None:
    authority = trustme.CA()
    here, there = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.configure_trust(here)
    authority.issue_cert("server").configure_cert(there)
    # The certificates are valid for the real time, which OpenSSL takes from the system.
    world = VirtualWorld(seed=3)

    async def serve() -> None:
        await (await asyncio.start_server(echo, port=443, ssl=there)).serve_forever()

    async def main() -> bytes:
        world.host("server").start(serve())
        await asyncio.sleep(1)
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("server", 443, ssl=ssl.create_default_context())
        reader, writer = await asyncio.open_connection("server", 443, ssl=here)
        writer.write(bytes(100_000))
        got = await reader.readexactly(100_000)
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        writer.close()
        await writer.wait_closed()
        return got

    assert world.run(main()) == bytes(100_000)
