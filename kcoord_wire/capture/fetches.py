"""The numbers in Fetch: where a client reads a partition, and where the partition begins and ends; never the records.

Laws:

* Records are passed over by their length, and no byte of them is kept: `FetchWalk` takes a response in pieces of any
  size, and memory holds the head of one partition (`MAX_HEAD`).
* A response that lacks its end (``tcpdump -s``, a recorder's limit) shows the partitions before the cut.
* Bytes that are no Fetch raise nothing: the walk ends (`FetchWalk.is_lost`) with what it had.
* A session (KIP-227) knows the fetch offset of each partition of its last full request and of those that later requests
  named; a response leaves out the partitions of which nothing has changed. At most `MAX_PARTITIONS` are remembered.
* Of a partition, `FetchSession.due` lets one row pass per second, and of a session `ROWS_PER_SECOND` about; one with
  another error, or with a fetch offset below the last one, passes at once.

Layouts: Kafka's FetchRequest.json and FetchResponse.json, versions 0 to 18; topics by id from version 13 on (KIP-516).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from kcoord_wire.codec.registry import decode_request
from kcoord_wire.errors import WireError
from kcoord_wire.messages.fetch import FetchRequest, FetchRequestFetchTopic, FetchRequestForgottenTopic

NEWEST: Final = 18
"""Newest version whose layout is known."""

MAX_HEAD: Final = 1 << 20
"""Bytes of a partition before its records; aborted transactions take 16 each."""

MAX_PARTITIONS: Final = 10_000
"""Partitions that are remembered of a session."""

ROWS_PER_SECOND: Final = 100

NO_RECORDS: Final = 0
"""`max_bytes` of a request that stands for one whose response was recorded without its records; no client asks for so
few. Its `partition_max_bytes` are the bytes of records that the response announced."""

Bytes = bytes | memoryview
"""A view has unsigned bytes."""

Place = tuple[str | bytes, int]
"""A topic, by name or by the 16 bytes of its id, and a partition."""

_SECOND_NS: Final = 1_000_000_000
_MOST: Final = 1_000_000  # topics, partitions or tagged fields in one message
_FLEXIBLE, _BY_ID, _WITH_SESSION = 12, 13, 7
_ID: Final = 16
_ABORTED: Final = 16  # producer id and first offset
_INT: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_PARTITION: Final = struct.Struct(">ihq")  # number, error code, high watermark
_LONG: Final = struct.Struct(">q")
_INCOMPLETE: Final = (struct.error, IndexError)


class FetchedPartition(NamedTuple):
    """A partition in a response.

    :ivar end_offset: the high watermark; -1 where the broker does not say
    :ivar start_offset: the first offset that is left; None before version 5, and where the broker does not say
    :ivar size: bytes of records that the response announces; they need not all have come
    """

    place: Place
    error_code: int
    end_offset: int
    start_offset: int | None
    size: int


class FetchAsked(NamedTuple):
    """A request of a consumer.

    :ivar is_full: it names all partitions of its session; else those that have changed
    :ivar offsets: where it reads
    :ivar forgotten: partitions that it takes out of the session
    :ivar sizes: bytes of records that the response had, of a request that a recorder has made (`NO_RECORDS`)
    """

    is_full: bool
    offsets: dict[Place, int]
    forgotten: list[Place]
    sizes: Mapping[Place, int] = MappingProxyType({})


# ---- requests


def read_fetch_request(frame: Bytes) -> FetchAsked | None:
    """Return what a request asks for; None for a follower's, and for bytes that are none.

    :param frame: header and message, without the four bytes of size
    """
    try:
        header, request = decode_request(frame, strict=False)
    except WireError:
        return None
    if not isinstance(request, FetchRequest) or request.replica_id >= 0 or request.replica_state.replica_id >= 0:
        return None
    by_id = header.request_api_version >= _BY_ID
    offsets = {
        (_key(topic, by_id), each.partition): each.fetch_offset for topic in request.topics for each in topic.partitions
    }
    forgotten = [(_key(topic, by_id), each) for topic in request.forgotten_topics_data for each in topic.partitions]
    sizes = {}
    if request.max_bytes == NO_RECORDS:
        sizes = {
            (_key(topic, by_id), each.partition): each.partition_max_bytes
            for topic in request.topics
            for each in topic.partitions
        }
    return FetchAsked(request.session_epoch <= 0, offsets, forgotten, sizes)


def _key(topic: FetchRequestFetchTopic | FetchRequestForgottenTopic, by_id: bool) -> str | bytes:
    return topic.topic_id.bytes if by_id else topic.topic


# ---- responses


class FetchWalk:
    """Walks a response, in pieces.

    :param version: of the request
    :param skip: bytes before its header's tagged fields, or before its message: those of the correlation id
    :ivar partitions: those whose head was seen
    :ivar error_code: of the response as a whole; 0 before version 7
    :ivar is_lost: the bytes are no response of that version
    """

    def __init__(self, version: int, skip: int = 4) -> None:
        self.partitions: list[FetchedPartition] = []
        self.error_code = 0
        self.is_lost = not 0 <= version <= NEWEST
        self._version = version
        self._flexible = version >= _FLEXIBLE
        self._held = b""
        self._skip = skip  # bytes that are still to come and not wanted, mostly records
        self._topics = self._partitions = 0  # still to come
        self._topic: str | bytes = ""
        self._next: Callable[[Bytes, int], int] | None = self._head
        self._head_size = 4 * (version >= 1)  # the throttle time
        self._tail_size = 8 * (version >= 4) + 8 * (version >= 5)

    def feed(self, data: Bytes) -> None:
        """Take the next bytes of the response."""
        if self.is_lost or self._next is None:
            return
        if self._skip >= len(data):
            self._skip -= len(data)
            return
        if self._held:
            data = self._held + bytes(data)
            self._held = b""
        at, self._skip = self._skip, 0
        try:
            while self._next is not None:
                done = self._next(data, at)
                if done > len(data):
                    self._skip = done - len(data)
                    return
                at = done
        except _INCOMPLETE:
            self._held = bytes(data[at:])
            self.is_lost = len(self._held) > MAX_HEAD
        except ValueError:
            self.is_lost = True

    # Each step reads one part that begins at `at`, sets the next step, and returns where its part ends, which may be
    # behind the data. It changes nothing before it has all bytes that it needs.

    def _head(self, data: Bytes, at: int) -> int:
        if self._flexible:
            at = _behind_tags(data, at)
        at += self._head_size
        error = 0
        if self._version >= _WITH_SESSION:
            (error,) = _SHORT.unpack_from(data, at)
            at += 6  # the session id follows
        self._topics, at = _count(data, at, self._flexible)
        self.error_code = error
        self._next = self._topic_head if self._topics else None
        return at

    def _topic_head(self, data: Bytes, at: int) -> int:
        topic, at = _topic(data, at, self._version)
        self._partitions, at = _count(data, at, self._flexible)
        self._topic = topic
        self._next = self._partition if self._partitions else self._behind_topic
        return at

    def _partition(self, data: Bytes, at: int) -> int:
        number, error, end = _PARTITION.unpack_from(data, at)
        at += _PARTITION.size
        start = None
        if self._version >= 5:
            (start,) = _LONG.unpack_from(data, at + 8)
        at += self._tail_size
        if self._version >= 4:  # aborted transactions; null is -1, or 0 in the compact form
            aborted, at = _count(data, at, self._flexible, nullable=True)
            if self._flexible:
                for _ in range(aborted):
                    at = _behind_tags(data, at + _ABORTED)
            else:
                at += aborted * _ABORTED
        at += 4 * (self._version >= 11)  # the preferred read replica
        size, at = _size(data, at, self._flexible)
        known = start if start is not None and start >= 0 else None
        self.partitions.append(FetchedPartition((self._topic, number), error, end, known, size))
        self._partitions -= 1
        self._next = self._behind_partition
        return at + size

    def _behind_partition(self, data: Bytes, at: int) -> int:
        if self._flexible:
            at = _behind_tags(data, at)
        self._next = self._partition if self._partitions else self._behind_topic
        return at

    def _behind_topic(self, data: Bytes, at: int) -> int:
        if self._flexible:
            at = _behind_tags(data, at)
        self._topics -= 1
        self._next = self._topic_head if self._topics else None
        return at


# ---- sessions


@dataclass(slots=True)
class FetchSession:
    """What is known of the fetches on one connection.

    :ivar offsets: where the client reads, by partition
    :ivar passed: the last row of each partition: its time, error code and fetch offset
    """

    offsets: dict[Place, int] = field(default_factory=dict)
    passed: dict[Place, tuple[int, int, int]] = field(default_factory=dict)

    def ask(self, asked: FetchAsked) -> None:
        """Take in a request."""
        if asked.is_full:
            self.offsets = dict(list(asked.offsets.items())[:MAX_PARTITIONS])
            return
        for place in asked.forgotten:
            self.offsets.pop(place, None)
        for place, offset in asked.offsets.items():
            if place in self.offsets or len(self.offsets) < MAX_PARTITIONS:
                self.offsets[place] = offset

    def due(self, partitions: Iterable[FetchedPartition], time_ns: int) -> list[FetchedPartition]:
        """Return those partitions of a response of which a row passes; see the laws."""
        interval_ns = max(1, len(self.offsets) / ROWS_PER_SECOND) * _SECOND_NS
        found = []
        for each in partitions:
            offset = self.offsets.get(each.place, -1)
            last = self.passed.get(each.place)
            if last is None:
                if len(self.passed) >= MAX_PARTITIONS:
                    continue
            elif time_ns - last[0] < interval_ns and last[1] == each.error_code and offset >= last[2]:
                continue
            self.passed[each.place] = time_ns, each.error_code, offset
            found.append(each)
        return found


# ---- primitives


def _varint(data: Bytes, at: int) -> tuple[int, int]:
    """Return an unsigned varint of 32 bits and where it ends.

    :raises IndexError: the data ends within it
    :raises ValueError: it is longer than five bytes
    """
    found = shift = 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return found, at
        shift += 7
        if shift > 28:
            raise ValueError("a varint of more than five bytes")


def _size(data: Bytes, at: int, flexible: bool) -> tuple[int, int]:
    """Return the length of bytes, 0 for null, and where they begin."""
    if flexible:
        found, at = _varint(data, at)
        return max(found - 1, 0), at
    (found,) = _INT.unpack_from(data, at)
    if found < -1:
        raise ValueError(f"a length of {found}")
    return max(found, 0), at + 4


def _count(data: Bytes, at: int, flexible: bool, *, nullable: bool = False) -> tuple[int, int]:
    """Return the number of elements of an array, and where they begin."""
    if flexible:
        found, at = _varint(data, at)
        found -= 1
    else:
        (found,) = _INT.unpack_from(data, at)
        at += 4
    if not (0 if not nullable else -1) <= found <= _MOST:
        raise ValueError(f"{found} elements")
    return max(found, 0), at


def _topic(data: Bytes, at: int, version: int) -> tuple[str | bytes, int]:
    """Return the topic, by name or by id, and where it ends."""
    if version >= _BY_ID:
        end = at + _ID
    elif version >= _FLEXIBLE:
        size, at = _varint(data, at)
        end = at + size - 1
    else:
        (size,) = _SHORT.unpack_from(data, at)
        at += 2
        end = at + size
    if end < at:
        raise ValueError("a topic without a name")
    if end > len(data):
        raise IndexError
    name = bytes(data[at:end])
    return (name if version >= _BY_ID else name.decode()), end


def _behind_tags(data: Bytes, at: int) -> int:
    """Return where tagged fields end."""
    count, at = _varint(data, at)
    if count > _MOST:
        raise ValueError(f"{count} tagged fields")
    for _ in range(count):
        _, at = _varint(data, at)
        size, at = _varint(data, at)
        at += size
    if at > len(data):
        raise IndexError
    return at
