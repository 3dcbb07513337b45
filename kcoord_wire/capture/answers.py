"""What a response answers, which it does not say itself.

A response names neither its api nor its version: both are those of the request with its correlation id on the same
connection. A broker answers the requests of a connection in the order they came (Kafka protocol guide, "Network"), so a
request that was passed over will not be answered any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcoord_wire.codec.registry import registry

__all__ = ["Asked", "Waiting", "is_known"]

_MAX_WAITING: Final = 65536


@dataclass(slots=True)
class Asked:
    """The header of a request that waits for its response."""

    api_key: int
    api_version: int
    client_id: str | None


class Waiting:
    """The requests of one connection that wait, by correlation id, in the order they came."""

    def __init__(self) -> None:
        self._asked: dict[int, Asked] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def __contains__(self, correlation_id: int) -> bool:
        return correlation_id in self._asked

    def __getitem__(self, correlation_id: int) -> Asked:
        return self._asked[correlation_id]

    def add(self, correlation_id: int, asked: Asked) -> int:
        """Note a request; give how many others are given up for it: one of the same id, the oldest of too many."""
        replaced = self._asked.pop(correlation_id, None) is not None
        self._asked[correlation_id] = asked
        if len(self._asked) <= _MAX_WAITING:
            return int(replaced)
        del self._asked[next(iter(self._asked))]
        return 1

    def answer(self, correlation_id: int) -> tuple[Asked, int] | None:
        """The request that is answered and how many before it were passed over; None if none has this id."""
        if correlation_id not in self._asked:
            return None
        passed_over = 0
        while (oldest := next(iter(self._asked))) != correlation_id:
            del self._asked[oldest]
            passed_over += 1
        return self._asked.pop(correlation_id), passed_over


def is_known(api_key: int) -> bool:
    """Whether the registry can decode this api."""
    try:
        registry.request(api_key)
    except KeyError:
        return False
    return True
