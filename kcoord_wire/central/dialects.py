"""What brokers and their peers send each other, as frames: the dialects of both designs.

Laws of the draft:

* A frame is an int32 size and a body. A body begins with its type id, but for what a broker answers, which the draft
  draws without one: the side that asked has one such request outstanding.
* The roles are reversed after RegisterConsumer, so one connection carries requests and answers in one direction. A type
  id says which: no type is asked by both sides.

Source: "the 0.8 consumer-coordinator draft", sections 7 and 11.

Laws of the rewrite:

* Frames, headers and api keys are Kafka's. JoinGroup 0 is that of clients 0.8.2 (family `rewrite`), all else is of the
  family `kafka`; only the versions of `VERSIONS` are read.
* A request waits until the one before it on its connection is answered (`CentralPeer.in_hand`), so answers come in the
  order of the requests, as clients of Kafka rely on.
"""

from __future__ import annotations

from typing import Any, Final

import kcoord_wire as kw
from kcoord_wire import messages as kafka
from kcoord_wire.central.draft.events import CentralError
from kcoord_wire.central.peer import CentralPeer
from kcoord_wire.central.rewrite.events import SERVED
from kcoord_wire.messages import central as m

TO_BROKER: Final[dict[int, type]] = {
    1: m.CentralFetchRequest,
    5: m.ClusterMetadataRequest,
    6: m.RegisterConsumerRequest,
    7: m.PingResponse,
    8: m.StopFetcherResponse,
    9: m.StartFetcherResponse,
    10: m.CentralStatusRequest,
}
"""What a broker receives, by type id."""

ASKED_BY_COORDINATOR: Final = (m.PingRequest, m.StopFetcherRequest, m.StartFetcherRequest)
"""The requests that a registered consumer answers."""

_ANSWERS: Final = (m.PingResponse, m.StopFetcherResponse, m.StartFetcherResponse)
_TYPE_ID_BYTES: Final = 2
_MOST_ID: Final = (1 << 31) - 1  # int32


def decode_to_broker(body: bytes) -> Any:
    """Return the request or the answer that a broker has received.

    :param body: a frame without its size
    :raises DecodeError: the type id is not one of `TO_BROKER`, or the bytes are not such a message
    """
    if len(body) < _TYPE_ID_BYTES:
        raise kw.DecodeError("truncated", 0, "TypeIdHeader.request_type_id", "2 bytes of type id are needed")
    type_id = int.from_bytes(body[:_TYPE_ID_BYTES], "big")
    cls = TO_BROKER.get(type_id)
    if cls is None:
        raise kw.DecodeError("api", 0, "TypeIdHeader.request_type_id", f"{type_id} is no type id that a broker serves")
    message, end = kw.registry.by_class(cls).decode_prefix(body, 0, offset=_TYPE_ID_BYTES)
    if end != len(body):
        raise kw.DecodeError("trailing", end, cls.__name__, f"{len(body) - end} bytes are left after the message")
    return message


def decode_to_consumer(body: bytes, awaited: type | None) -> Any:
    """Return the answer or the request that a consumer has received.

    :param body: a frame without its size
    :param awaited: the class of the answer without a type id that is outstanding; None if there is none
    :raises DecodeError: the bytes are not such an answer, or not a request that a coordinator sends
    """
    if awaited is not None:
        return kw.decode(awaited, body, 0)
    message = kw.decode_request(body, family="central")[1]
    if not isinstance(message, ASKED_BY_COORDINATOR):
        raise kw.DecodeError(
            "api", 0, "TypeIdHeader.request_type_id", f"a coordinator sends no {type(message).__name__}"
        )
    return message


def draft_frame(message: Any) -> bytes:
    """Return the frame of any message of the draft.

    :raises EncodeError: a value does not fit into its field
    """
    codec = kw.registry.by_class(type(message))
    body = codec.encode(message, 0)
    if codec.header == "typeId" and codec.api_key is not None:
        body = codec.api_key.to_bytes(_TYPE_ID_BYTES, "big") + body
    return kw.frame(body)


_ANSWERED_WITHOUT_TYPE_ID: Final[dict[type, type]] = {
    m.ClusterMetadataRequest: m.ClusterMetadataResponse,
    m.RegisterConsumerRequest: m.RegisterConsumerResponse,
}


class DraftConsumerDialect:
    """The frames of a consumer of the draft; a `kcoord_wire.central.peer.Dialect`."""

    def read(self, connection: CentralPeer, body: bytes) -> Any:
        """Return an answer, or a request of the coordinator."""
        awaited, connection.awaited = connection.awaited, None
        return decode_to_consumer(body, awaited)

    def frame(self, connection: CentralPeer, message: Any) -> bytes:
        """Return the frame of a request or an answer."""
        connection.awaited = _ANSWERED_WITHOUT_TYPE_ID.get(type(message))
        return draft_frame(message)


class DraftDialect:
    """The frames of a broker of the draft; a `kcoord_wire.central.peer.Dialect`."""

    def read(self, connection: CentralPeer, body: bytes) -> Any:
        """Return a request of the peer, or an answer that it owes."""
        message = decode_to_broker(body)
        if isinstance(message, _ANSWERS):
            if not connection.unanswered:
                detail = f"a {type(message).__name__} that was not asked for"
                raise kw.DecodeError("api", 0, "TypeIdHeader.request_type_id", detail)
            connection.unanswered -= 1
        elif isinstance(message, m.RegisterConsumerRequest):
            connection.in_hand = message  # where sockets are closed to rebalance (section 2), its answer may take long
        return message

    def frame(self, connection: CentralPeer, message: Any) -> bytes:
        """Return the frame of an answer, or of a request whose answer the peer owes from now on."""
        frame = draft_frame(message)
        if isinstance(message, ASKED_BY_COORDINATOR):
            connection.unanswered += 1
        elif isinstance(message, m.RegisterConsumerResponse):
            if message.error_code == CentralError.NONE:
                connection.register()
            connection.answered()
        return frame


VERSIONS: Final[dict[type, int]] = {kafka.FetchRequest: 0, kafka.ListOffsetsRequest: 0, **SERVED}
"""The requests that a broker reads, each with its version."""

_BY_KEY: Final = {kw.registry.by_class(cls).api_key: (cls, version) for cls, version in VERSIONS.items()}
_VERSION_BY_NAME: Final = {cls.__name__.removesuffix("Request"): version for cls, version in VERSIONS.items()}


def version_of(cls: type) -> int:
    """Return the version in which a request, or a response, goes over the wire."""
    return _VERSION_BY_NAME[cls.__name__.removesuffix("Request").removesuffix("Response")]


def decode_to_rewrite_broker(body: bytes) -> tuple[kafka.RequestHeader, Any]:
    """Return the header and the request that a broker has received.

    :param body: a frame without its size
    :raises DecodeError: the api and version are none of `VERSIONS`, or the bytes are not such a request
    """
    header = kw.peek_request(body)
    cls, version = _BY_KEY.get(header.request_api_key, (None, -1))
    if cls is None:
        raise kw.DecodeError("api", 0, "RequestHeader.request_api_key", f"{header.request_api_key} is not served")
    if header.request_api_version != version:
        detail = f"{cls.__name__} {header.request_api_version} is not served, only {version}"
        raise kw.DecodeError("version", 2, "RequestHeader.request_api_version", detail)
    decoded: tuple[kafka.RequestHeader, Any] = kw.decode_request(body, family=kw.registry.by_class(cls).family)
    return decoded


def kafka_frame(response: Any, correlation_id: int) -> bytes:
    """Return the frame of a response.

    :raises EncodeError: a value does not fit into its field
    """
    return kw.frame(kw.encode_response(response, version_of(type(response)), correlation_id=correlation_id))


def kafka_request(request: Any, correlation_id: int) -> bytes:
    """Return the frame of a request.

    :raises EncodeError: a value does not fit into its field
    """
    return kw.frame(kw.encode_request(request, version_of(type(request)), correlation_id=correlation_id))


def decode_to_member(body: bytes, request: type, correlation_id: int) -> Any:
    """Return the response that a member has received.

    :param body: a frame without its size
    :param request: the class of what it answers
    :raises DecodeError: it answers another request, or the bytes are not such a response
    """
    codec = kw.registry.by_class(request)
    assert codec.api_key is not None
    cls = kw.registry.response(codec.api_key, codec.family).cls
    header, response = kw.decode_response(body, cls, version_of(request))
    if header.correlation_id != correlation_id:
        detail = f"{header.correlation_id} where {correlation_id} is awaited"
        raise kw.DecodeError("header", 0, "ResponseHeader.correlation_id", detail)
    return response


class MemberDialect:
    """The frames of a consumer of the rewrite; a `kcoord_wire.central.peer.Dialect`."""

    def __init__(self) -> None:
        self._last = 0

    def read(self, connection: CentralPeer, body: bytes) -> Any:
        """Return the response to the request that was sent last."""
        awaited, connection.awaited = connection.awaited, None
        if awaited is None:
            raise kw.DecodeError("header", 0, "ResponseHeader.correlation_id", "no request is unanswered")
        return decode_to_member(body, *awaited)

    def frame(self, connection: CentralPeer, message: Any) -> bytes:
        """Return the frame of a request."""
        self._last = (self._last + 1) & _MOST_ID
        connection.awaited = type(message), self._last
        return kafka_request(message, self._last)


class RewriteDialect:
    """The frames of a broker of the rewrite; a `kcoord_wire.central.peer.Dialect`."""

    def read(self, connection: CentralPeer, body: bytes) -> Any:
        """Return a request, which is in hand until it is answered."""
        header, request = decode_to_rewrite_broker(body)
        connection.in_hand = header
        return request

    def frame(self, connection: CentralPeer, message: Any) -> bytes:
        """Return the frame of the answer to the request in hand."""
        frame = kafka_frame(message, connection.in_hand.correlation_id)
        connection.answered()
        return frame
