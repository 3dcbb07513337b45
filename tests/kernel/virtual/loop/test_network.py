"""Names, ports, attempts to connect, and faults."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kcoord_wire.kernel.virtual.loop import NotSimulatedError, VirtualWorld


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    await reader.read()
    writer.close()


async def serve(port: int = 80) -> None:
    await (await asyncio.start_server(greet, port=port)).serve_forever()


def world_of_two() -> VirtualWorld:
    world = VirtualWorld(seed=5)
    world.host("main"), world.host("server")
    return world


async def attempt(world: VirtualWorld, name: str = "server", port: int = 80) -> tuple[str, float]:
    """Return what became of an attempt to connect, and how long that took."""
    began = world.now
    try:
        reader, writer = await asyncio.open_connection(name, port)
        what = (await reader.readexactly(5)).decode()
        writer.close()
    except OSError as error:
        what = type(error).__name__
    return what, world.now - began


def test_names_and_ports() -> None:
    world = world_of_two()

    async def main() -> list[str]:
        world.host("server").start(serve())
        await asyncio.sleep(1)
        places = [
            ("server", 80),
            (world.host("server").address, 80),
            ("server", 81),
            ("nowhere", 80),
            ("localhost", 80),
        ]
        return [(await attempt(world, *place))[0] for place in places]

    assert world.run(main()) == ["hello", "hello", "ConnectionRefusedError", "gaierror", "ConnectionRefusedError"]


def test_ports_are_taken_once_and_chosen_if_0() -> None:
    world = world_of_two()

    async def main() -> None:
        first = await asyncio.start_server(greet, port=0)
        second = await asyncio.start_server(greet, "localhost", 0)
        ports = [server.sockets[0].getsockname()[1] for server in (first, second)]
        assert len(set(ports)) == 2
        with pytest.raises(OSError, match="in use"):
            await asyncio.start_server(greet, port=ports[0])
        with pytest.raises(OSError, match="not an address"):
            await asyncio.start_server(greet, "server", 80)
        assert (await attempt(world, "localhost", ports[0]))[0] == "hello"
        first.close()
        await first.wait_closed()
        assert not first.is_serving()
        assert (await attempt(world, "localhost", ports[0]))[0] == "ConnectionRefusedError"
        with pytest.raises(NotSimulatedError, match="no file descriptor"):
            second.sockets[0].fileno()
        with socket.socket() as real, pytest.raises(NotSimulatedError, match="socket of the operating system"):
            await asyncio.open_connection(sock=real)

    world.run(main())


def test_an_attempt_during_a_cut_is_repeated_until_it_times_out() -> None:
    world = world_of_two()
    world.at(10, world.network.cut, "main", "server", 5)
    world.at(100, world.network.cut, "server", "main", 1_000, one_way=True)

    async def main() -> list[tuple[str, float]]:
        world.host("server").start(serve())
        found = []
        for at in (1, 11, 200):
            await asyncio.sleep(at - world.now)
            found.append(await attempt(world))
        return found

    (first, quick), (second, repeated), (third, timeout) = world.run(main())
    assert (first, second, third) == ("hello", "hello", "TimeoutError")
    assert quick < 0.01
    assert repeated == pytest.approx(7, abs=0.01), "after 1, 3 and 7 s; the cut ends after 4"
    assert timeout == pytest.approx(127, abs=0.01)


def test_a_host_refuses_connections_for_a_while() -> None:
    world = world_of_two()
    world.at(10, world.network.refuse, "server", 30)

    async def main() -> list[str]:
        world.host("server").start(serve())
        found = []
        for at in (1, 11, 39, 41):
            await asyncio.sleep(at - world.now)
            found.append((await attempt(world))[0])
        return found

    assert world.run(main()) == ["hello", "ConnectionRefusedError", "ConnectionRefusedError", "hello"]


def test_delays_and_loss_slow_a_connection_down() -> None:
    world = world_of_two()
    world.at(10, world.network.delay, "main", "server", 10, 0.5)
    world.at(30, world.network.lose, "*", "server", 1_000, 0.2)

    async def main() -> list[float]:
        world.host("server").start(serve())
        found = []
        for at in (1, 11, *range(40, 400, 20)):
            await asyncio.sleep(at - world.now)
            what, took = await attempt(world)
            assert what == "hello"
            found.append(took)
        return found

    quick, delayed, *lossy = world.run(main())
    assert quick < 0.01
    assert delayed == pytest.approx(1.5, abs=0.1), "three packets, 0.5 s each"
    assert max(lossy) > 0.5
    assert min(lossy) < 0.01


def test_connections_between_two_hosts_are_reset() -> None:
    world = world_of_two()

    async def main() -> None:
        world.host("server").start(serve())
        await asyncio.sleep(1)
        reader, _ = await asyncio.open_connection("server", 80)
        await reader.readexactly(5)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert world.now == pytest.approx(60, abs=0.01)

    world.at(60, world.network.reset, "main", "server")
    world.run(main())
    assert sorted(line.who for line in world.trace if line.what == "loses") == ["main", "server"]


def test_a_fault_of_an_unknown_host_is_an_error() -> None:
    with pytest.raises(ValueError, match="no host 'sever'"):
        world_of_two().network.cut("main", "sever", 1)


def test_taps_see_what_a_capture_at_the_server_would() -> None:
    world = world_of_two()
    seen: list[tuple[bool, bytes]] = []
    world.network.taps.append(lambda time_ms, connection, from_client, data: seen.append((from_client, data)))

    async def main() -> None:
        world.host("server").start(serve())
        await asyncio.sleep(1)
        reader, writer = await asyncio.open_connection("server", 80)
        await reader.readexactly(5)
        writer.write(b"bye")
        writer.close()
        await asyncio.sleep(1)

    world.run(main())
    assert seen == [(False, b"hello"), (True, b"bye"), (False, b"")]
