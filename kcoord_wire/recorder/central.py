"""What the recorder does with a connection of the 0.8 draft: which frames it records, and in which brokers are named.

Laws:

* The first frame of the client decides, by its first bytes: ClusterMetadata, or RegisterConsumer, whose group begins
  with a printable character where a Kafka request has the highest byte of a correlation id.
* All frames of consumers and coordinator are recorded, as no record is in them. A connection that begins with a fetch
  is not recognised, so its records are not recorded.
* Brokers are named in the response to ClusterMetadata and in the request StartFetcher.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from kcoord_wire.codec.registry import MessageCodec, registry

_CLUSTER_METADATA, _REGISTER, _START_FETCHER = 5, 6, 9
_OF_CONSUMER: Final = (_CLUSTER_METADATA, _REGISTER)
_OF_COORDINATOR: Final = range(7, 10)
_TYPE_ID: Final = 2  # bytes
_NAME: Final = 4  # where the first name of a frame begins
_MAX_ASKED: Final = 1024
_FIRST_PRINTABLE: Final = 0x20


class CentralTraffic:
    """One connection."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: deque[int] = deque(maxlen=_MAX_ASKED)  # type ids of the consumer's requests without a response

    @staticmethod
    def opens(body: bytes, size: int) -> bool:
        """Whether the first frame of a client is the draft's.

        :param body: its first bytes, ten or all
        :param size: of the whole body
        """
        type_id = int.from_bytes(body[:_TYPE_ID], "big")
        if type_id == _CLUSTER_METADATA:
            return size == _TYPE_ID
        length = int.from_bytes(body[_TYPE_ID:_NAME], "big")
        return type_id == _REGISTER and 0 < length < size and len(body) > _NAME and body[_NAME] >= _FIRST_PRINTABLE

    def from_consumer(self, body: bytes) -> None:
        """Take the beginning of a consumer's frame."""
        type_id = int.from_bytes(body[:_TYPE_ID], "big")
        if type_id in _OF_CONSUMER:
            self._asked.append(type_id)

    def from_coordinator(self, body: bytes) -> tuple[MessageCodec, int] | None:
        """Take the beginning of a coordinator's frame. If that names brokers, return its message and its place."""
        type_id = int.from_bytes(body[:_TYPE_ID], "big")
        if type_id in _OF_COORDINATOR:
            return (registry.request(type_id, "central"), _TYPE_ID) if type_id == _START_FETCHER else None
        asked = self._asked.popleft() if self._asked else None
        return (registry.response(asked, "central"), 0) if asked == _CLUSTER_METADATA else None
