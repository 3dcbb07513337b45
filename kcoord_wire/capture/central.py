"""Frames of the 0.8 draft (family ``central``) and of the consumer rewrite: how they are told from Kafka's.

A frame of the draft has a type id and neither version nor correlation id, and the responses to a consumer's own
requests have not even that. When a consumer has registered, the roles are reversed: the coordinator asks and the
consumer answers. ``request`` and ``response`` as a `Side` are still the consumer's and the coordinator's bytes.

Laws:

* The first whole frame of a connection decides, and no Kafka frame is ever taken for the draft's. ClusterMetadata has
  a body of two or four bytes, where Kafka's requests have ten or more, unless it names a group. Each other frame that
  decides has to decode to its last byte, begins with a name (a group, consumer or topic) that is not empty and has
  printable characters alone, and is not a frame of a Kafka api that the registry has. Where those names are, Kafka
  has a correlation id, an error code, a throttle time or the length of an array, whose first byte is no printable
  character.
* A response answers the oldest request with its type id and consumer id that has none yet; one without a type id the
  oldest request of the consumer. After a request without an answer the answers are one behind, until one to
  StartFetcher, or to StopFetcher, shows which requests before it have had none.
* JoinGroup of the rewrite (clients 0.8.2) has the api key and version of Kafka's JoinGroup 0. A frame is the rewrite's
  only if it decodes to its last byte as the rewrite's, and not as Kafka's. Where Kafka's has the member id, the
  rewrite's has the length of an array, so only a request without topics, consumer id and strategy is both; it counts
  as Kafka's. All other requests of the rewrite have the bytes of Kafka's.
* Nothing raises over the content of a frame but `DecodeError`; `MAX_PENDING` requests of a connection are remembered.

Source: "the 0.8 consumer-coordinator draft", sections 7 and 11.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from kcoord_wire.capture.splitter import Plausibility
from kcoord_wire.codec.framing import SIZE_BYTES
from kcoord_wire.codec.registry import MessageCodec, decode_request, registry
from kcoord_wire.errors import DecodeError

FAMILY: Final = "central"
MAX_PENDING: Final = 1024
"""Requests of one connection without a response; the oldest are given up."""

Side = Literal["request", "response"]
T = TypeVar("T")

_FETCH, _CLUSTER_METADATA, _REGISTER, _PING, _STOP_FETCHER, _START_FETCHER = 1, 5, 6, 7, 8, 9
_OF_CONSUMER: Final = frozenset((_FETCH, _CLUSTER_METADATA, _REGISTER))
_OF_COORDINATOR: Final = frozenset((_PING, _STOP_FETCHER, _START_FETCHER))
_TYPE_ID: Final = 2  # bytes
_NO_GROUP: Final = b"\0\0"  # an empty list of groups
_NAMES: Final[Mapping[int, Callable[[Any], list[str]]]] = {
    _FETCH: lambda message: [message.topic],
    _CLUSTER_METADATA: lambda message: [group.group_id for group in message.groups or ()],
    _REGISTER: lambda message: [message.group_id, message.consumer_id],
}
"""The names that a consumer's request begins with."""
LIKELY_CENTRAL: Final = re.compile(rb"\x00(?=[\x00-\x10]..\x00[\x01\x05-\x09])", re.DOTALL)
"""A size of `_LARGEST_ASSESSED` at most, and a type id: a cheap filter of the places to assess."""
_LARGEST_ASSESSED: Final = 1 << 20  # bytes of a frame that may decide; a larger one is not the draft's first


def is_central(side: Side, body: bytes) -> bool:
    """Whether a whole frame, the first one seen of its connection, is the draft's.

    :param side: ``request`` where the client sent it
    """
    type_id = int.from_bytes(body[:_TYPE_ID], "big")
    if side == "request" and type_id == _CLUSTER_METADATA and body[_TYPE_ID:] in (b"", _NO_GROUP):
        return True
    if side == "request" and type_id in _OF_CONSUMER:
        return _decides(registry.request(type_id, FAMILY), body, _NAMES[type_id]) and not _is_kafka(body)
    if type_id in _OF_COORDINATOR and side == "request":
        return _decides(registry.response(type_id, FAMILY), body, _consumer) and not _is_kafka(body)
    return type_id in _OF_COORDINATOR and _decides(registry.request(type_id, FAMILY), body, _consumer)


def _consumer(message: Any) -> list[str]:
    return [message.consumer_id]


def _decides(codec: MessageCodec, body: bytes, names_in: Callable[[Any], list[str]]) -> bool:
    try:
        message = codec.decode(body[_TYPE_ID:], 0)
    except DecodeError:
        return False
    names = names_in(message)
    return bool(names) and all(name and name.isprintable() for name in names)


def _is_kafka(body: bytes) -> bool:
    try:
        decode_request(body)
        return True
    except DecodeError:
        return False


def assess_central(side: Side, buffer: bytes | bytearray, start: int, max_frame_size: int) -> Plausibility:
    """Whether a frame that decides starts at `start`, where its size would be; MORE if the buffer ends within it."""
    type_at = start + SIZE_BYTES
    if len(buffer) < type_at + _TYPE_ID:
        return Plausibility.MORE
    size = int.from_bytes(buffer[start:type_at], "big")
    if not _TYPE_ID <= size <= min(max_frame_size, _LARGEST_ASSESSED) or buffer[type_at]:
        return Plausibility.NO
    if buffer[type_at + 1] not in _OF_COORDINATOR and (side == "response" or buffer[type_at + 1] not in _OF_CONSUMER):
        return Plausibility.NO
    if len(buffer) < type_at + size:
        return Plausibility.MORE
    return Plausibility.YES if is_central(side, bytes(buffer[type_at : type_at + size])) else Plausibility.NO


class Identified(NamedTuple):
    """Which message a frame is.

    :ivar name: ``StopFetcher``
    :ivar direction: ``request`` or ``response``, by the message and not by the side that sent it
    :ivar start: where the message begins in the body
    """

    name: str
    type_id: int
    direction: Side
    codec: MessageCodec
    start: int

    def decode(self, body: bytes, *, strict: bool = True) -> Any:
        """The message.

        :raises DecodeError: the bytes are not that message
        """
        return self.codec.decode(body[self.start :], 0, strict=strict)


def _identified(type_id: int, direction: Side) -> Identified:
    codec = (registry.request if direction == "request" else registry.response)(type_id, FAMILY)
    name = codec.name.removesuffix(direction.capitalize())
    return Identified(name, type_id, direction, codec, 0 if codec.header == "none" else _TYPE_ID)


class CentralPending(Generic[T]):
    """The requests of one connection that have no response yet, each with whatever the caller keeps of it."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[tuple[int, str], T]] = deque()

    def ask(self, type_id: int, message: Any, kept: T) -> list[T]:
        """Add a request, and return those that are given up because too many are pending."""
        self._waiting.append((_key(type_id, message), kept))
        return [self._waiting.popleft()[1]] if len(self._waiting) > MAX_PENDING else []

    def answer(self, type_id: int, message: Any) -> tuple[T, list[T]] | None:
        """Remove and return the request that a response answers, and those that stay unanswered because of it: an
        answer to StartFetcher ends every StopFetcher before it, and the other way round. None: it answers nothing."""
        key = _key(type_id, message)
        at = next((index for index, entry in enumerate(self._waiting) if entry[0] == key), None)
        if at is None:
            return None
        entries = list(self._waiting)
        other = (_STOP_FETCHER + _START_FETCHER - type_id, key[1])
        ended = [entry for entry in entries[:at] if entry[0] == other]
        self._waiting = deque(entry for entry in entries if entry is not entries[at] and entry not in ended)
        return entries[at][1], [entry[1] for entry in ended]

    def clear(self) -> list[T]:
        """Remove and return all requests, oldest first."""
        kept = [entry[1] for entry in self._waiting]
        self._waiting.clear()
        return kept


def _key(type_id: int, message: Any) -> tuple[int, str]:
    return type_id, getattr(message, "consumer_id", "") if type_id in _OF_COORDINATOR else ""


class CentralReader:
    """Says which message each frame of one connection is. The frames come in order.

    :ivar asked: type ids of the consumer's requests without a response
    """

    def __init__(self, asked: Iterable[int] = ()) -> None:
        self.asked: deque[int] = deque(asked, maxlen=MAX_PENDING)

    def identify(self, side: Side, body: bytes) -> Identified:
        """Return which message a frame is, by its type id, else by the consumer's request that it answers.

        :raises DecodeError: it has no type id of the draft, and answers nothing
        """
        type_id = int.from_bytes(body[:_TYPE_ID], "big") if len(body) >= _TYPE_ID else -1
        if side == "request" and type_id in _OF_CONSUMER:
            self.asked.append(type_id)
            return _identified(type_id, "request")
        if side == "request" and type_id in _OF_COORDINATOR:
            return _identified(type_id, "response")
        if side == "response" and type_id in _OF_COORDINATOR and (not self.asked or is_central(side, body)):
            return _identified(type_id, "request")
        if side == "response" and self.asked:
            return _identified(self.asked.popleft(), "response")
        why = f"type id {type_id} is none of the draft's" if side == "request" else "its request was not captured"
        raise DecodeError("api", 0, "TypeIdHeader.request_type_id", why)


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
