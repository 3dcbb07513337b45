"""The bytes that members exchange through the coordinator, compressed or not.

Source: "Kafka Client-side Assignment Proposal", "Compression": "Without changing the protocol, members could compress
their own metadata which is opaque to the broker anyway."
"""

from __future__ import annotations

import zlib
from typing import Any, Final, TypeVar

from kcoord_wire.codec.registry import registry

_LONGEST: Final = 1 << 24  # decompressed; more than any metadata that fits a request

MessageT = TypeVar("MessageT")


class MemberCodec:
    """Encodes a member's metadata and state, which have no version in front.

    :param compresses: with zlib, level 6
    """

    def __init__(self, *, compresses: bool = False) -> None:
        self._compresses = compresses

    def encode(self, message: Any) -> bytes:
        """Return the bytes of a message."""
        data = registry.by_class(type(message)).encode(message, 0)
        return zlib.compress(data) if self._compresses else data

    def decode(self, cls: type[MessageT], data: bytes) -> MessageT:
        """Read a message.

        :raises ValueError: these are not its bytes, or they decompress to more than 16 MiB
        """
        if self._compresses:
            data = _decompress(data)
        message: MessageT = registry.by_class(cls).decode(data, 0)
        return message


def _decompress(data: bytes) -> bytes:
    reader = zlib.decompressobj()
    try:
        plain = reader.decompress(data, _LONGEST)
    except zlib.error as error:
        raise ValueError(f"the metadata does not decompress: {error}") from None
    if not reader.eof:
        raise ValueError(f"the metadata is cut off, or decompresses to more than {_LONGEST} bytes")
    return plain
