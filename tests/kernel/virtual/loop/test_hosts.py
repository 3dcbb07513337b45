"""Processes: paused, blocked by ``time.sleep``, killed and started again."""

from __future__ import annotations

import asyncio
import time

import pytest

from kcoord_wire.kernel.virtual.loop import VirtualWorld


async def beat(world: VirtualWorld, name: str, times: list[tuple[str, int]], every: float = 1.0) -> None:
    while True:
        await asyncio.sleep(every)
        times.append((name, round(world.now)))


def test_a_paused_process_runs_nothing_until_it_goes_on() -> None:
    world = VirtualWorld()
    times: list[tuple[str, int]] = []

    async def main() -> None:
        for name in ("a", "b"):
            world.host(name).start(beat(world, name, times))
        await asyncio.sleep(10.5)

    world.at(3.5, world.host("a").pause, 4)
    world.run(main())
    assert [at for name, at in times if name == "b"] == list(range(1, 11))
    assert [at for name, at in times if name == "a"] == [1, 2, 3, 8, 9, 10], "the one due at 4 s comes at 7.5 s"
    assert [(line.at, line.who, line.what) for line in world.trace] == [(3500, "a", "pauses")]


def test_time_sleep_stops_its_own_process_only() -> None:
    world = VirtualWorld()
    times: list[tuple[str, int]] = []

    async def block() -> float:
        await asyncio.sleep(2.5)
        began = time.monotonic()
        time.sleep(5)
        return time.monotonic() - began

    async def main() -> float:
        for name in ("a", "b"):
            world.host(name).start(beat(world, name, times))
        took = await world.host("a").start(block())
        await asyncio.sleep(2)
        return took

    assert world.run(main()) == pytest.approx(5, abs=0.001)
    assert [at for name, at in times if name == "b"] == list(range(1, 10))
    assert not [at for name, at in times if name == "a" and 3 <= at < 7]


def test_a_killed_process_ends_without_its_finally() -> None:
    world = VirtualWorld()
    order: list[str] = []

    async def work(life: str) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                order.append(life)
        finally:
            order.append(f"{life} cleans up at {world.now:.0f}")

    async def main() -> None:
        host = world.host("a")
        host.start(work("first"))
        await asyncio.sleep(2.5)
        host.kill()
        await asyncio.sleep(2)
        host.start(work("second"))
        await asyncio.sleep(1.5)
        order.append("the run ends")

    world.run(main())
    assert order[:4] == ["first", "first", "second", "the run ends"]
    assert sorted(order[4:]) == ["first cleans up at 6", "second cleans up at 6"]


def test_a_process_that_is_killed_while_it_blocks_does_not_go_on() -> None:
    world = VirtualWorld()
    order: list[str] = []

    async def block() -> None:
        time.sleep(10)
        order.append("went on")

    async def main() -> None:
        world.host("a").start(block())
        await asyncio.sleep(20)

    world.at(5, world.host("a").kill)
    world.run(main())
    assert order == []


def test_a_failure_of_a_program_ends_the_run() -> None:
    world = VirtualWorld()

    async def fail() -> None:
        await asyncio.sleep(3)
        raise KeyError("orders")

    async def main() -> None:
        world.host("a").start(fail())
        await asyncio.sleep(100)

    with pytest.raises(KeyError, match="orders"):
        world.run(main())
    assert world.now < 10
    assert world.trace[-1].what == "fails"


def test_the_host_of_the_main_coroutine_cannot_be_killed() -> None:
    world = VirtualWorld()
    world.at(5, lambda: world.host("main").kill())
    with pytest.raises(ValueError, match="main coroutine"):
        world.run(asyncio.sleep(10))


def test_hosts_have_addresses_of_their_own() -> None:
    world = VirtualWorld()
    assert [world.host(name).address for name in ("a", "b", "a")] == ["10.0.1.2", "10.0.1.3", "10.0.1.2"]


def test_a_call_belongs_to_its_host() -> None:
    world = VirtualWorld()

    async def main() -> str:
        server = await world.host("b").call(lambda: asyncio.ensure_future(asyncio.start_server(print, port=80)))
        return str(server.sockets[0].getsockname()[0])

    assert world.run(main()) == world.host("b").address
