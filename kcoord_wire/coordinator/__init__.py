"""The group coordinator: JoinGroup, SyncGroup and all around them, on a socket and on a virtual clock.

    async with Coordinator(topics={"orders": 12}) as c:  # a real socket, for any client
        consumer = KafkaConsumer("orders", bootstrap_servers=c.address, group_id="billing")

`kcoord_wire.worlds` runs the same `host` on a virtual clock. Requests pass `listener` and `connection` (bytes),
`requests` (SASL, faults, permissions, routing) and `host` (machines and logs); `scheduler` says who goes on.

* To change what a broker's stop, pause or return does: `server`; who leads what: `core.brokers`.
* To change writes, compaction, reading again or moves, or when readers see an internal topic: `host`.
* To change what clients may cost: `connection.PeerLimits`; a Produce beyond the limit of a frame: `oversized`.
* To change what tests ask: `testing`; what a group or a rebalance looks like: `description`; what a screen follows:
  `overview`; what a report is made of: `traffic`.
* To change which settings make a client fast in tests: `client_settings`.
* To add a sample for Prometheus: `metrics`. To add a fault: `fault_injection`.

Names are imported when they are first used: the machine needs Python alone, the server the extra ``serve``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcoord_wire.lazy_names import lazy_names

if TYPE_CHECKING:
    from kcoord_wire.coordinator.connection import PeerLimits
    from kcoord_wire.coordinator.consumer_groups.machine import CoordinatorMachine
    from kcoord_wire.coordinator.coordinator import Coordinator
    from kcoord_wire.coordinator.core.config import Endpoint, GroupConfig
    from kcoord_wire.coordinator.core.events import RebalanceAccount, Trigger
    from kcoord_wire.coordinator.core.machine import GroupMachine
    from kcoord_wire.coordinator.description import GroupDescription, MemberDescription
    from kcoord_wire.coordinator.fault_injection import Fault, Faults
    from kcoord_wire.coordinator.security.authentication import Users
    from kcoord_wire.coordinator.security.permissions import Permissions
    from kcoord_wire.coordinator.topics.catalog import TopicLimits
    from kcoord_wire.kernel.settings import SettingsError
    from kcoord_wire.log.tail import CorruptLogError

__all__ = [
    "Coordinator",
    "CoordinatorMachine",
    "CorruptLogError",
    "Endpoint",
    "Fault",
    "Faults",
    "GroupConfig",
    "GroupDescription",
    "GroupMachine",
    "MemberDescription",
    "PeerLimits",
    "Permissions",
    "RebalanceAccount",
    "SettingsError",
    "TopicLimits",
    "Trigger",
    "Users",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "core.config": ("Endpoint", "GroupConfig"),
        "coordinator": ("Coordinator",),
        "core.events": ("RebalanceAccount", "Trigger"),
        "description": ("GroupDescription", "MemberDescription"),
        "fault_injection": ("Fault", "Faults", "SettingsError"),
        "core.machine": ("GroupMachine",),
        "consumer_groups.machine": ("CoordinatorMachine",),
        "security.permissions": ("Permissions",),
        "security.authentication": ("Users",),
        "connection": ("PeerLimits",),
        "topics.catalog": ("TopicLimits",),
        "log.store": ("CorruptLogError",),
    },
)
