"""What each extra brings, in an environment that has nothing else: `python extras_smoke.py EXTRA CAPTURE`.

A script, not a module of the tests: its folder is the first on the path, so that it sees the installed package alone.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
from collections.abc import Callable

import kcoord_wire as kw
from kcoord_wire.cli.main import main as kcoord

HEARTBEAT = "000762696c6c696e67ffffffff0000"


def records(capture: str) -> None:
    """Compress and read back a batch."""
    from kcoord_wire.records.compression import Compression, compress, decompress

    for codec in Compression:
        assert decompress(codec, compress(codec, b"order 1" * 9), limit=1_000) == b"order 1" * 9


def explain(capture: str) -> None:
    """Name the fields of bytes."""
    assert "group_id" in str(kw.explain(bytes.fromhex(HEARTBEAT), kw.HeartbeatRequest, version=0))


def cli(capture: str) -> None:
    """Print a table."""
    importlib.import_module("rich")
    run("schemas", "Heartbeat")


def frames(capture: str) -> None:
    """Read a capture."""
    run("capture", capture, "--format", "json")


def analyze(capture: str) -> None:
    """Write the report of a capture."""
    with tempfile.TemporaryDirectory() as folder:
        run("analyze", capture, "--out", folder)


def serve(capture: str) -> None:
    """Start a coordinator, with all that the extra brings."""
    from kcoord_wire.coordinator import Coordinator

    for library in "prometheus_client", "re2", "scramp", "uvloop", "xxhash":
        importlib.import_module(library)
    with Coordinator(topics={"orders": 1}) as coordinator:
        assert coordinator.address


def consumer(capture: str) -> None:
    """Join the group of a coordinator in this process."""
    from kcoord_wire.consumer import Consumer, ConsumerSettings
    from kcoord_wire.coordinator import Coordinator

    async def join(settings: ConsumerSettings) -> None:
        async with Consumer(settings) as member, asyncio.timeout(60):
            member.subscribe(["orders"])
            while not member.assignment:
                await member.poll(timeout_ms=100)

    with Coordinator(topics={"orders": 1}) as coordinator:
        asyncio.run(join(ConsumerSettings(bootstrap_servers=coordinator.address, group_id="billing")))


def kafka(capture: str) -> None:
    """Make a client of librdkafka."""
    from kcoord_wire.clients.librdkafka import Cluster

    importlib.import_module("confluent_kafka")
    assert Cluster


def spark(capture: str) -> None:
    """Start Spark, and have it read a capture."""
    from kcoord_wire.spark import register, session

    running = session("local[1]")
    register(running)
    assert running.read.format("kcoord").load(capture).count() > 0
    running.stop()


def zookeeper(capture: str) -> None:
    """Import the registry that keeps sessions."""
    importlib.import_module("kazoo")
    importlib.import_module("kcoord_wire.zookeeper.registry")


def native(capture: str) -> None:
    """Import what builds the native modules."""
    importlib.import_module("Cython")
    importlib.import_module("setuptools")


SMOKES: dict[str, Callable[[str], None]] = {
    "analyze": analyze,
    "capture": frames,
    "cli": cli,
    "consumer": consumer,
    "explain": explain,
    "kafka": kafka,
    "native": native,
    "records": records,
    "serve": serve,
    "spark": spark,
    "zookeeper": zookeeper,
}


def run(*arguments: str) -> None:
    """A command of `kcoord`, which has to succeed."""
    status = kcoord(list(arguments))
    assert status == 0, f"kcoord {' '.join(arguments)}: {status}"


if __name__ == "__main__":
    SMOKES[sys.argv[1]](sys.argv[2])
    print(f"the extra {sys.argv[1]} works")
