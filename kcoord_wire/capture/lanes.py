"""Which part of a capture a connection is in: shares of a capture are read apart, each by a reader of its own.

Laws:

* The lane of a connection follows from its two endpoints alone, whichever of them is named first. So all connections
  between two endpoints, and both directions, are in one lane.
* `mixed` and `joined_lane` are arithmetic modulo 2**64, for numbers and for arrays of unsigned 64-bit numbers alike.
"""

from __future__ import annotations

from functools import lru_cache
from socket import AF_INET, AF_INET6, inet_pton
from typing import Any, Final

from kcoord_wire.capture.packets import Endpoint

LANES: Final = 64
"""Into how many lanes connections are spread, hence the most shares of a capture."""

EVERY_LANE: Final = range(LANES)

Pair = tuple[Endpoint, Endpoint]
"""Two endpoints, the lesser one first."""

_MASK: Final = (1 << 64) - 1
_FACTORS: Final = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # SplitMix64
_SHIFT: Final = 64 - (LANES - 1).bit_length()


def mixed(high: Any, low: Any, port: Any) -> Any:
    """Return a number for an endpoint.

    :param high: the first 8 bytes of an IPv6 address; 0 of an IPv4 one
    :param low: the others
    """
    number = ((high * _FACTORS[0] & _MASK) ^ low) * _FACTORS[1] + port * _FACTORS[2] & _MASK
    return (number ^ (number >> 31)) * _FACTORS[1] & _MASK


def joined_lane(one: Any, other: Any) -> Any:
    """Return the lane of a connection whose endpoints have these numbers."""
    return ((one + other & _MASK) * _FACTORS[2] & _MASK) >> _SHIFT


@lru_cache(maxsize=1 << 16)
def halves(address: str) -> tuple[int, int]:
    """Return the first 8 bytes of an IPv6 address, 0 for an IPv4 one, and the others."""
    packed = inet_pton(AF_INET6 if ":" in address else AF_INET, address)
    return divmod(int.from_bytes(packed, "big"), 1 << 64)


@lru_cache(maxsize=1 << 16)
def number_of(endpoint: Endpoint) -> int:
    """Return what `mixed` returns for an endpoint."""
    return int(mixed(*halves(endpoint[0]), endpoint[1]))


def lane_of(pair: Pair) -> int:
    """Return the lane of the connections between two endpoints."""
    return int(joined_lane(number_of(pair[0]), number_of(pair[1])))
