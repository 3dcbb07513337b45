"""How the requests of each served api and version are read, and their responses written.

Laws:

* A client's names are bounded before a machine sees them: a name takes one byte of a request, and up to a kilobyte of
  objects in the answer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from kcoord_wire.codec.backend import Buffer
from kcoord_wire.codec.registry import registry
from kcoord_wire.coordinator.core.apis import APIS
from kcoord_wire.coordinator.description import shown
from kcoord_wire.coordinator.security.acls import has_unknown_number
from kcoord_wire.errors import DecodeError
from kcoord_wire.protocol.api_keys import ApiKey, api_name

REQUEST_HEAD: Final = struct.Struct(">hhih")
"""The start of every request: api key, version, correlation id, length of the client id."""

MAX_NAME: Final = 0x7FFF - 37
"""Bytes of a client id or instance id that JoinGroup may have: a member id is that, a dash and a UUID."""

MAX_NAMES: Final = 20_000
"""Names in one request."""

_OF_ACLS: Final = frozenset({ApiKey.CREATE_ACLS, ApiKey.DESCRIBE_ACLS, ApiKey.DELETE_ACLS})
_RESPONSE_HEAD: Final = struct.Struct(">ii")
_FLEXIBLE_REQUEST_HEADER: Final = 2  # version of RequestHeader from which it has tagged fields
_FLEXIBLE_RESPONSE_HEADER: Final = 1  # likewise of ResponseHeader


class NotServedError(DecodeError):
    """A request of Kafka's that is not served here, as a whole or in its version.

    :ivar what: api and version, and the client's name
    """

    def __init__(self, api_key: int, version: int, client_id: str, start: int) -> None:
        self.what = f"{api_name(api_key)} v{version} (client {shown(client_id)})"
        super().__init__("version", start, "RequestHeader", f"not served: {self.what}")


@dataclass(frozen=True, slots=True)
class ApiCodec:
    """One api at one version.

    :ivar api_key: the api
    :ivar version: its version
    :ivar flexible_head: whether request headers have tagged fields
    :ivar carries_blobs: whether requests have fields that may be large
    :ivar decode: reads a request: (buffer, offset, strict) to (message, end)
    :ivar check: raises DecodeError if a request names more, or longer, than can be answered; None if it cannot
    :ivar encode: writes a response
    :ivar response_tags: the tagged fields of the response's header, of which there are none, where it has that section
    """

    api_key: int
    version: int
    flexible_head: bool
    carries_blobs: bool
    decode: Callable[[Buffer, int, bool], tuple[Any, int]]
    check: Callable[[Any, str], None] | None
    encode: Callable[[Any], bytes]
    response_tags: bytes

    def frame(self, correlation_id: int, message: Any) -> bytes:
        """Return the response frame, size and header included."""
        body = self.response_tags + self.encode(message)
        return _RESPONSE_HEAD.pack(len(body) + 4, correlation_id) + body


def api_codec(api_key: int, version: int) -> ApiCodec:
    """Return the codec of an api at one of its versions."""
    request, response = registry.request(api_key), registry.response(api_key)
    return ApiCodec(
        api_key,
        version,
        flexible_head=request.header_version(version) == _FLEXIBLE_REQUEST_HEADER,
        carries_blobs=APIS[api_key].has_blobs,
        decode=request.program(version).decode_prefix,
        check=_check_of(api_key),
        encode=response.program(version, reading=False).encode,
        response_tags=b"\0" if response.header_version(version) == _FLEXIBLE_RESPONSE_HEADER else b"",
    )


def _check_of(api_key: int) -> Callable[[Any, str], None] | None:
    if api_key == ApiKey.JOIN_GROUP:
        return _check_join
    names = APIS[api_key].names.split()
    if api_key in _OF_ACLS:
        return partial(_check_acls, names)
    if not names:
        return None

    return partial(_check_names, names)


def _check_names(names: Sequence[str], message: Any, client_id: str) -> None:
    for name in names:
        if len(getattr(message, name) or ()) > MAX_NAMES:
            raise DecodeError("length", 0, name, f"more than {MAX_NAMES} in one request")


def _check_acls(names: Sequence[str], message: Any, client_id: str) -> None:
    _check_names(names, message, client_id)
    parts = [part for name in names for part in getattr(message, name)] if names else [message]
    if any(map(has_unknown_number, parts)):
        raise DecodeError("range", 0, type(message).__name__, "an element of the type UNKNOWN")


def _check_join(message: Any, client_id: str) -> None:
    if len((message.group_instance_id or client_id).encode()) > MAX_NAME:
        raise DecodeError("length", 0, "JoinGroupRequest", "the name is too long for a member id to be made of it")


def read_client_id(body: bytes, start: int, length: int, flexible: bool) -> tuple[str, int]:
    """Return the client id, empty for null, and where the message begins.

    :param body: a request, whose header begins at `start`
    :param length: of the client id, as `REQUEST_HEAD` has it
    :param flexible: whether the header has tagged fields
    :raises DecodeError: the header is malformed
    """
    at = start + REQUEST_HEAD.size + max(length, 0)
    if length >= -1 and (not flexible or body[at : at + 1] == b"\0"):
        try:
            return body[start + REQUEST_HEAD.size : at].decode(), at + flexible
        except UnicodeDecodeError:
            pass  # the slow path reports it with its place
    version = _FLEXIBLE_REQUEST_HEADER if flexible else _FLEXIBLE_REQUEST_HEADER - 1
    header, at = registry["RequestHeader"].decode_prefix(body, version, offset=start, strict=False)
    return header.client_id or "", at
