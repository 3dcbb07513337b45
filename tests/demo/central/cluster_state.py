"""The state of the demonstration's cluster, as ZooKeeper has it."""

from __future__ import annotations

import asyncio

from kcoord_wire.central.status import ClusterStatus, StatusReader
from kcoord_wire.zookeeper.client import ZooKeeperRegistry

__all__ = ["ClusterState"]


class ClusterState:
    """Reads what `kcoord central status` shows."""

    def __init__(self, connect: str) -> None:
        self._connect = connect

    def read(self) -> ClusterStatus:
        """Return it; by a session of its own, which ends."""
        return asyncio.run(self._read())

    async def _read(self) -> ClusterStatus:
        reader = StatusReader()
        reader.registry = registry = ZooKeeperRegistry(self._connect, reader.deliver)
        await registry.start()
        try:
            return await reader.read()
        finally:
            await registry.close()
