"""A world as a whole: the same trace from the same seed, the script, the ends of runs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kcoord_wire.kernel.virtual.loop import VirtualWorld

ROOT = Path(__file__).resolve().parents[4]


def test_a_run_returns_its_result_or_raises_its_error() -> None:
    async def main(result: int) -> int:
        if not result:
            raise LookupError("nothing")
        return result

    assert VirtualWorld().run(main(3)) == 3
    with pytest.raises(LookupError, match="nothing"):
        VirtualWorld().run(main(0))


def test_a_world_runs_once() -> None:
    async def main() -> str:
        return "done"

    world = VirtualWorld()
    assert world.run(main()) == "done"
    with pytest.raises(RuntimeError, match="a world runs once"):
        world.run(main())


def test_the_script_acts_at_its_times() -> None:
    world = VirtualWorld()
    for at in (7, 3, 5):
        world.at(at, world.record, "script", "acts", at)

    async def main() -> None:
        await asyncio.sleep(6)
        world.record("main", "was here")

    world.run(main())
    assert [(line.at, line.detail) for line in world.trace] == [(3000, 3), (5000, 5), (6000, None)]


def test_an_error_of_the_script_ends_the_run() -> None:
    world = VirtualWorld()
    world.at(5, world.network.cut, "main", "nowhere", 3)
    with pytest.raises(ValueError, match="no host 'nowhere'"):
        world.run(asyncio.sleep(10))


PROGRAM = """
import asyncio, random, sys
from kcoord_wire.kernel.virtual.loop import VirtualWorld

async def echo(reader, writer):
    while data := await reader.read(100):
        await asyncio.sleep(random.random())
        writer.write(data)
    writer.close()

async def serve():
    await (await asyncio.start_server(echo, port=7)).serve_forever()

async def client(world, number):
    tasks = {asyncio.create_task(asyncio.sleep(random.random(), number)) for number in range(20)}
    for task in tasks:                      # a set: its order must be the same in every process
        world.record(f"client {number}", "slept", await task)
    while True:
        try:
            reader, writer = await asyncio.open_connection("server", 7)
            for _ in range(20):
                writer.write(b"x" * random.randint(1, 50))
                await asyncio.wait_for(reader.read(100), 5)
            return
        except OSError as error:
            world.record(f"client {number}", "fails", type(error).__name__)
            await asyncio.sleep(1)

async def main(world):
    world.host("server").start(serve())
    await asyncio.gather(*(world.host(f"c{number}").start(client(world, number)) for number in range(5)))

world = VirtualWorld(int(sys.argv[1]))
world.host("server")
world.at(3, world.network.lose, "*", "server", 20, 0.3)
world.at(5, world.network.reset, "*", "server")
world.at(8, world.host("server").pause, 4)
world.run(main(world))
print(*world.trace, sep="\\n")
"""


def traced(seed: int, hash_seed: int) -> list[str]:
    """The trace of `PROGRAM`, run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_the_same_seed_gives_the_same_trace_in_every_process() -> None:
    first = traced(1, 1)
    assert len(first) > 300
    assert any(" fails " in line for line in first)
    assert traced(1, 2) == first
    assert traced(2, 1) != first
