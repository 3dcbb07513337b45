"""The addresses of brokers in a broker's responses, and how they are replaced.

Laws:

* Only host and port change: header, version, correlation id, unknown tagged fields and the order of everything stay.
* A response that does not decode, or whose new form cannot be encoded, is refused as a whole, never half changed.

Clients learn addresses from Metadata (the brokers), FindCoordinator (a group's coordinator) and DescribeCluster, and
those of the 0.8 draft from ClusterMetadata and StartFetcher.
Produce and Fetch name a partition's new leader from versions 10 and 16 on (KIP-951); these are left alone, because
they would have to be decoded with all their records, for a client that will ask for the metadata anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kcoord_wire.codec.registry import MessageCodec, registry
from kcoord_wire.errors import DecodeError, EncodeError

_RESPONSE_HEADER = registry["ResponseHeader"]


class AddressError(ValueError):
    """The addresses in a response cannot be read or replaced."""


def rewrite_addresses(
    body: bytes, api_key: int, version: int, replace: Callable[[str, int], tuple[str, int] | None]
) -> bytes | None:
    """Return a response with other addresses; None if nothing changes.

    :param body: of the frame, header included
    :param api_key: of the request that it answers
    :param version: of the request that it answers
    :param replace: takes host and port, and returns those in their place; None leaves them
    :raises AddressError: it does not decode, or cannot be written with the new ones
    """
    codec = registry.response(api_key)
    if version not in codec.valid_versions:
        raise AddressError(f"version {version} is not known")
    try:
        _, at = _RESPONSE_HEADER.decode_prefix(body, codec.header_version(version), strict=False)
    except DecodeError as error:
        raise AddressError(str(error)) from None
    return rewrite_message(body, codec, version, at, replace)


def rewrite_message(
    body: bytes, codec: MessageCodec, version: int, at: int, replace: Callable[[str, int], tuple[str, int] | None]
) -> bytes | None:
    """The same for a message that is known.

    :param at: where it begins in the body
    """
    try:
        message, _ = codec.decode_prefix(body, version, offset=at, strict=False)
    except DecodeError as error:
        raise AddressError(str(error)) from None
    changed = False
    for place in _places(message):
        if place.host and place.port >= 0 and (new := replace(place.host, place.port)) is not None:
            changed |= new != (place.host, place.port)
            place.host, place.port = new
    if not changed:
        return None
    try:
        return body[:at] + codec.encode(message, version)
    except EncodeError as error:
        raise AddressError(str(error)) from None


def _places(message: Any) -> Iterator[Any]:
    """Everything in the message with a host and a port."""
    if hasattr(message, "host"):
        yield message
    for name in ("brokers", "coordinators", "brokers_info"):
        yield from getattr(message, name, None) or ()
