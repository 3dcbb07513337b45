"""What the recorder reads in the bodies of frames: addresses to replace, frames of the 0.8 draft, numbers of Fetch.

Laws:

* Of a response with addresses only host and port change: header, version, correlation id, unknown tagged fields and the
  order of everything stay. One that does not decode, or whose new form cannot be encoded, is refused as a whole.
* Addresses stand in Metadata, FindCoordinator and DescribeCluster, and in the draft's response to ClusterMetadata and
  request StartFetcher. Produce and Fetch name a partition's new leader from versions 10 and 16 on (KIP-951); these are
  left alone, because they would have to be decoded with all their records, for a client that will ask for the metadata.
* The first frame of a client decides whether it speaks the draft: ClusterMetadata, or RegisterConsumer, whose group
  begins with a printable character where a Kafka request has the highest byte of a correlation id. All frames between
  consumers and coordinator are recorded, as no record is in them. A connection that begins with a fetch is taken for
  another protocol's.
* Of Fetch, where records are not recorded, the numbers are, in a request and a response of their own: each is made anew
  from what `capture.fetches` finds, so that no record is in it, and complete (session epoch -1): the request names the
  partitions of its response, where the client reads them, whatever session they were in, and how many bytes of records
  the response had (`NO_RECORDS`).
* A response that says nothing new, by the rule of `FetchSession.due`, is not recorded, so that a busy client costs some
  hundred bytes per second and partition, and ten kilobytes per second in all.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, Final
from uuid import UUID

from kcoord_wire.capture.fetches import (
    NO_RECORDS,
    FetchAsked,
    FetchedPartition,
    FetchSession,
    FetchWalk,
    read_fetch_request,
)
from kcoord_wire.codec.registry import MessageCodec, encode_request, encode_response, peek_request, registry
from kcoord_wire.errors import DecodeError, EncodeError, WireError
from kcoord_wire.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchResponse,
    FetchResponseFetchableTopicResponse,
    FetchResponsePartitionData,
)

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
    for place in _addresses(message):
        if place.host and place.port >= 0 and (new := replace(place.host, place.port)) is not None:
            changed |= new != (place.host, place.port)
            place.host, place.port = new
    if not changed:
        return None
    try:
        return body[:at] + codec.encode(message, version)
    except EncodeError as error:
        raise AddressError(str(error)) from None


def _addresses(message: Any) -> Iterator[Any]:
    """Everything in the message with a host and a port."""
    if hasattr(message, "host"):
        yield message
    for name in ("brokers", "coordinators", "brokers_info"):
        yield from getattr(message, name, None) or ()


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
        if type_id == _CLUSTER_METADATA and size <= _NAME:
            return body[_TYPE_ID:] in (b"", b"\0\0")  # of no group, too
        if type_id == _CLUSTER_METADATA:  # it may name one group, and ends with the name
            length = int.from_bytes(body[_NAME : _NAME + 2], "big")
            is_one = body[_TYPE_ID:_NAME] == b"\0\1" and size == _NAME + 2 + length > _NAME + 2
            return is_one and body[_NAME + 2] >= _FIRST_PRINTABLE
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


MAX_PENDING: Final = 64
"""Requests of a connection without a response; clients have one."""


class FetchNumbers:
    """The fetches of one connection."""

    __slots__ = ("_pending", "_session")

    def __init__(self) -> None:
        self._session = FetchSession()
        self._pending: dict[int, tuple[FetchAsked, int, str | None]] = {}  # with version and client id

    def ask(self, body: bytes) -> None:
        """Take the body of a request."""
        asked = read_fetch_request(body)
        if asked is None:
            return
        try:
            header = peek_request(body, strict=False)
        except WireError:
            return
        self._pending[header.correlation_id] = asked, header.request_api_version, header.client_id
        if len(self._pending) > MAX_PENDING:
            del self._pending[next(iter(self._pending))]

    def answer(self, correlation_id: int, walk: FetchWalk, time_ns: int) -> tuple[bytes, bytes] | None:
        """Take a response that was walked; return the request and the response to record, None for nothing."""
        found = self._pending.pop(correlation_id, None)
        if found is None:
            return None
        asked, version, client_id = found
        self._session.ask(asked)
        due = self._session.due(walk.partitions, time_ns)
        if not due:
            return None
        request = encode_request(self._request(due), version, correlation_id=correlation_id, client_id=client_id)
        return request, encode_response(_response(due), version, correlation_id=correlation_id)

    def _request(self, due: list[FetchedPartition]) -> FetchRequest:
        topics: dict[str | bytes, list[FetchRequestFetchPartition]] = defaultdict(list)
        for each in due:
            topic, partition = each.place
            offset = self._session.offsets.get(each.place)
            if offset is not None:
                topics[topic].append(
                    FetchRequestFetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=each.size)
                )
        made = [FetchRequestFetchTopic(**_named(topic), partitions=parts) for topic, parts in topics.items()]
        return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=NO_RECORDS, topics=made)


def _response(due: list[FetchedPartition]) -> FetchResponse:
    topics: dict[str | bytes, list[FetchResponsePartitionData]] = defaultdict(list)
    for each in due:
        topic, partition = each.place
        topics[topic].append(
            FetchResponsePartitionData(
                partition_index=partition,
                error_code=each.error_code,
                high_watermark=each.end_offset,
                log_start_offset=-1 if each.start_offset is None else each.start_offset,
                aborted_transactions=None,
                records=None,
            )
        )
    made = [FetchResponseFetchableTopicResponse(**_named(topic), partitions=parts) for topic, parts in topics.items()]
    return FetchResponse(responses=made)


def _named(topic: str | bytes) -> dict[str, Any]:
    return {"topic": topic} if isinstance(topic, str) else {"topic_id": UUID(bytes=topic)}
