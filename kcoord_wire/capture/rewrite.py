"""JoinGroup of the consumer rewrite (clients 0.8.2), which has the api key and version of Kafka's JoinGroup 0.

Law: a frame is the rewrite's only if it decodes to its last byte as the rewrite's JoinGroup, and not as Kafka's. Where
Kafka's has the member id, the rewrite's has the length of an array, so only a request without topics, consumer id and
strategy is both; it counts as Kafka's. All other requests of the rewrite have the bytes of Kafka's.
"""

from __future__ import annotations

from typing import Final

from kcoord_wire.codec.registry import decode_request
from kcoord_wire.errors import DecodeError

REWRITE: Final = "rewrite"
"""The family of the rewrite's own messages."""

_JOIN_GROUP_0: Final = b"\x00\x0b\x00\x00"


def is_rewrite_join(body: bytes) -> bool:
    """Whether a request is the rewrite's JoinGroup."""
    return body[:4] == _JOIN_GROUP_0 and not _decodes(body, "kafka") and _decodes(body, REWRITE)


def _decodes(body: bytes, family: str) -> bool:
    try:
        decode_request(body, family=family)
        return True
    except DecodeError:
        return False
