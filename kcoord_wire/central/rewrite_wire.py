"""What a broker of the rewrite and its peers send each other, as frames.

Laws:

* Frames, headers and api keys are Kafka's. JoinGroup 0 is that of clients 0.8.2 (family `rewrite`), all else is of the
  family `kafka`; only the versions of `VERSIONS` are read.
* A request waits until the one before it on its connection is answered (`Connection.in_hand`), so answers come in the
  order of the requests, as clients of Kafka rely on.
"""

from __future__ import annotations

from typing import Any, Final

import kcoord_wire as kw
from kcoord_wire import messages as m
from kcoord_wire.central.connection import Connection
from kcoord_wire.central.rewrite.answers import SERVED

VERSIONS: Final[dict[type, int]] = {m.FetchRequest: 0, **SERVED}
"""The requests that a broker reads, each with its version."""

_BY_KEY: Final = {kw.registry.by_class(cls).api_key: (cls, version) for cls, version in VERSIONS.items()}
_VERSION_BY_NAME: Final = {cls.__name__.removesuffix("Request"): version for cls, version in VERSIONS.items()}


def version_of(cls: type) -> int:
    """Return the version in which a request, or a response, goes over the wire."""
    return _VERSION_BY_NAME[cls.__name__.removesuffix("Request").removesuffix("Response")]


def decode_to_broker(body: bytes) -> tuple[m.RequestHeader, Any]:
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
    decoded: tuple[m.RequestHeader, Any] = kw.decode_request(body, family=kw.registry.by_class(cls).family)
    return decoded


def kafka_frame(response: Any, correlation_id: int) -> bytes:
    """Return the frame of a response.

    :raises EncodeError: a value does not fit into its field
    """
    return kw.frame(kw.encode_response(response, version_of(type(response)), correlation_id=correlation_id))


class RewriteDialect:
    """The frames of a broker of the rewrite; a `kcoord_wire.central.connection.Dialect`."""

    def read(self, connection: Connection, body: bytes) -> Any:
        """Return a request, which is in hand until it is answered."""
        header, request = decode_to_broker(body)
        connection.in_hand = header
        return request

    def frame(self, connection: Connection, message: Any) -> bytes:
        """Return the frame of the answer to the request in hand."""
        frame = kafka_frame(message, connection.in_hand.correlation_id)
        connection.answered()
        return frame
