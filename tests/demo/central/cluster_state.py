"""The state of the demonstration's cluster, as ZooKeeper has it."""

from __future__ import annotations

import asyncio

from kcoord_wire.central.status import ClusterStatus, StatusReader
from kcoord_wire.zookeeper.registry import ZooKeeperRegistry


def read_status(connect: str) -> ClusterStatus:
    """Return what `kcoord central status` shows, by a session that ends with this call."""
    return asyncio.run(_read(connect))


async def _read(connect: str) -> ClusterStatus:
    reader = StatusReader()
    reader.registry = registry = ZooKeeperRegistry(connect, reader.deliver)
    await registry.start()
    try:
        return await reader.read()
    finally:
        await registry.close()
