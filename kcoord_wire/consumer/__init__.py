"""The members' side of the group protocol: the member machine, and a consumer on asyncio that is a host of it.

To change how a member joins, syncs, beats or leaves: `classic_member`, and of KIP-848 `kip848_member`, which the
simulation runs, too; how one finds its coordinator, commits and asks for offsets: `group_client`, on which both
stand, the latter by `kip848_client`. To change its API, fetching or connections: `client` (with `membership`, the
machine's host), `fetching` and `positions`, `brokers` and `connection`. A setting is a field of
`settings.ConsumerSettings`.

Names are imported when they are first used: the machine needs Python alone, the consumer the extra ``consumer``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kcoord_wire.lazy_names import lazy_names

if TYPE_CHECKING:
    from kcoord_wire.consumer.client import Consumer, ConsumerGroupMetadata, RebalanceListener
    from kcoord_wire.consumer.fetching import OffsetAndTimestamp
    from kcoord_wire.consumer.member_events import OffsetAndMetadata
    from kcoord_wire.consumer.positions import ConsumerRecord
    from kcoord_wire.consumer.settings import ConsumerSettings

__all__ = [
    "Consumer",
    "ConsumerGroupMetadata",
    "ConsumerRecord",
    "ConsumerSettings",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "RebalanceListener",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "client": ("Consumer", "ConsumerGroupMetadata", "RebalanceListener"),
        "fetching": ("OffsetAndTimestamp",),
        "member_events": ("OffsetAndMetadata",),
        "positions": ("ConsumerRecord",),
        "settings": ("ConsumerSettings",),
    },
)
