"""The group coordinator: JoinGroup, SyncGroup and all around them, on a socket and on a virtual clock.

    async with Coordinator(topics={"orders": 12}) as c:  # a real socket, for any client
        consumer = KafkaConsumer("orders", bootstrap_servers=c.address, group_id="billing")

    with Cluster(seed=7) as sim: ...  # the same machine on a virtual clock: a life that its seed can repeat

Names are imported when they are first used: the machine needs Python alone, the server the extra ``serve``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcoord_wire.group.cluster import Cluster
    from kcoord_wire.group.config import Endpoint, GroupConfig
    from kcoord_wire.group.coordinator import Coordinator
    from kcoord_wire.group.events import Rebalance, Trigger
    from kcoord_wire.group.faults import Fault, Faults
    from kcoord_wire.group.machine import GroupMachine
    from kcoord_wire.group.permissions import Permissions
    from kcoord_wire.group.security import Users
    from kcoord_wire.group.server import Limits
    from kcoord_wire.group.store import CorruptLogError

__all__ = [
    "Cluster",
    "Coordinator",
    "CorruptLogError",
    "Endpoint",
    "Fault",
    "Faults",
    "GroupConfig",
    "GroupMachine",
    "Limits",
    "Permissions",
    "Rebalance",
    "Trigger",
    "Users",
]

_MODULES = {
    "cluster": ("Cluster",),
    "config": ("Endpoint", "GroupConfig"),
    "coordinator": ("Coordinator",),
    "events": ("Rebalance", "Trigger"),
    "faults": ("Fault", "Faults"),
    "machine": ("GroupMachine",),
    "permissions": ("Permissions",),
    "security": ("Users",),
    "server": ("Limits",),
    "store": ("CorruptLogError",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
