"""The members' side of the group protocol: the member machine, and a consumer on asyncio that is a host of it.

Names are imported when they are first used: the machine needs Python alone, the consumer the extra ``consumer``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kcoord_wire.consumer.client import Consumer
    from kcoord_wire.consumer.fetched import ConsumerRecord
    from kcoord_wire.consumer.listener import RebalanceListener
    from kcoord_wire.consumer.settings import ConsumerSettings

__all__ = ["Consumer", "ConsumerRecord", "ConsumerSettings", "RebalanceListener"]

_HOME = {
    "Consumer": "client",
    "ConsumerRecord": "fetched",
    "ConsumerSettings": "settings",
    "RebalanceListener": "listener",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
