"""Whole frame bodies: header and message together, without the four bytes of size.

`MessageCodec.header_version` says which version a header has; api key and version, with which every request starts,
determine it.

A schema's key ``header`` says what precedes the message: ``kafka`` the above, ``typeId`` an int16 type id and
nothing else (the draft's frames), ``none`` nothing at all.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from kcoord_wire.api_keys import ApiKey
from kcoord_wire.codec.registry import Buffer, MessageCodec, Registry, registry
from kcoord_wire.error_codes import ErrorCode
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.messages.request_header import RequestHeader
from kcoord_wire.messages.response_header import ResponseHeader

__all__ = [
    "Header",
    "TypeIdHeader",
    "decode_prefixed",
    "decode_request",
    "decode_response",
    "encode_prefixed",
    "encode_request",
    "encode_response",
    "peek_request",
    "peek_response",
]

_REQUEST_HEADER: Final = registry["RequestHeader"]
_RESPONSE_HEADER: Final = registry["ResponseHeader"]
_TYPE_ID: Final = "TypeIdHeader.request_type_id"


@dataclass(slots=True)
class TypeIdHeader:
    """The header of the draft's frames: the type id alone ("the 0.8 consumer-coordinator draft", section 7)."""

    request_type_id: int


Header = RequestHeader | ResponseHeader | TypeIdHeader | None


def peek_request(body: Buffer, *, strict: bool = True) -> RequestHeader:
    """The header of a Kafka request, without its tagged fields: the same for every api and version, known to us or not.

    :raises DecodeError: the bytes end inside it, or the client id is not a string
    """
    body = _as_bytes(body)
    version = 0 if _int16(body, 0) == ApiKey.CONTROLLED_SHUTDOWN and _int16(body, 2) == 0 else 1
    header: RequestHeader = _REQUEST_HEADER.decode_prefix(body, version, strict=strict)[0]
    return header


def peek_response(body: Buffer) -> ResponseHeader:
    """The header of a Kafka response, without its tagged fields: which request it answers.

    :raises DecodeError: the bytes end inside it
    """
    header: ResponseHeader = _RESPONSE_HEADER.decode_prefix(_as_bytes(body), 0)[0]
    return header


def decode_request(
    body: Buffer, *, family: str = "kafka", strict: bool = True, registry: Registry = registry
) -> tuple[Any, Any]:
    """Header and request of a frame body.

    :param family: whose frames these are: ``kafka``, or ``central`` for the draft's. All requests of a family have the
        same kind of header
    :param strict: see `MessageCodec.decode`
    :param registry: where to look the api key up; the package's own by default
    :raises DecodeError: kind ``api`` for an api key and ``version`` for a version that the registry does not have;
        else as `MessageCodec.decode`, with offsets from the start of `body`
    """
    body = _as_bytes(body)
    header_kind = registry.request_header(family)
    if header_kind == "none":
        raise DecodeError("api", 0, family, "its requests have no header that identifies them: use `decode`")
    if header_kind == "typeId":
        type_id = _type_id(body)
        codec = _find(registry, "request", type_id, family, _TYPE_ID)
        return TypeIdHeader(type_id), _whole(codec, body, 2, 0, strict)
    peeked = peek_request(body, strict=strict)
    codec = _find(registry, "request", peeked.request_api_key, family, "RequestHeader.request_api_key")
    version = peeked.request_api_version
    _check_version(codec, version, 2)
    header, offset = _REQUEST_HEADER.decode_prefix(body, codec.header_version(version), strict=strict)
    return header, _whole(codec, body, offset, version, strict)


def encode_request(
    request: object,
    version: int,
    *,
    correlation_id: int = 0,
    client_id: str | None = None,
    registry: Registry = registry,
) -> bytes:
    """The frame body of a request: header and message; `frame` puts the size before it.

    :param correlation_id: int32, comes back in the response; the draft's frames have none
    :param client_id: at most 32767 bytes of UTF-8, None for null
    :raises EncodeError: the value cannot be written in that version
    :raises TypeError: `request` is not a request of the registry
    """
    codec = _codec_of(registry, type(request), "request")
    body = codec.encode(request, version)
    if codec.header != "kafka":
        return _framed(codec, body)
    header = RequestHeader(
        request_api_key=_api_key(codec),
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    return _REQUEST_HEADER.encode(header, codec.header_version(version)) + body


def decode_response(
    body: Buffer, api: type | int, version: int, *, strict: bool = True, registry: Registry = registry
) -> tuple[Any, Any]:
    """Header and response of a frame body. What it answers, the caller knows by its correlation id.

    :param api: the response's class, or its api key (family ``kafka``)
    :param version: the version of the request that it answers. A broker that does not know that version of ApiVersions
        answers in version 0 with error 35; such an answer is read as that (KIP-511), or, where
        that fails, in the version asked for: some brokers write error 35 in that version
    :raises DecodeError: as `decode_request`
    :raises TypeError: `api` is not the class of a response
    """
    body = _as_bytes(body)
    if isinstance(api, int):
        codec = _find(registry, "response", api, "kafka", "ResponseHeader")
    else:
        codec = _codec_of(registry, api, "response")
    is_api_versions = codec.family == "kafka" and codec.api_key == ApiKey.API_VERSIONS
    if version and is_api_versions and _int16(body, 4) == ErrorCode.UNSUPPORTED_VERSION:
        with suppress(DecodeError):
            return decode_response(body, api, 0, strict=strict, registry=registry)
    _check_version(codec, version, 0)
    if codec.header == "none":
        return None, _whole(codec, body, 0, version, strict)
    if codec.header == "typeId":
        type_id = _type_id(body)
        if type_id != codec.api_key:
            raise DecodeError("api", 0, _TYPE_ID, f"type id {type_id} is not that of {codec.name}, {codec.api_key}")
        return TypeIdHeader(type_id), _whole(codec, body, 2, version, strict)
    header, offset = _RESPONSE_HEADER.decode_prefix(body, codec.header_version(version), strict=strict)
    return header, _whole(codec, body, offset, version, strict)


def encode_response(response: object, version: int, *, correlation_id: int = 0, registry: Registry = registry) -> bytes:
    """The frame body of a response: header and message; `frame` puts the size before it.

    :raises EncodeError: the value cannot be written in that version
    :raises TypeError: `response` is not a response of the registry
    """
    codec = _codec_of(registry, type(response), "response")
    body = codec.encode(response, version)
    if codec.header != "kafka":
        return _framed(codec, body)
    header = ResponseHeader(correlation_id=correlation_id)
    return _RESPONSE_HEADER.encode(header, codec.header_version(version)) + body


def decode_prefixed(cls: type, blob: Buffer, *, strict: bool = True, registry: Registry = registry) -> tuple[int, Any]:
    """Version and message of a blob that starts with its version as int16, as subscriptions and assignments do.

    A version above our newest is read as our newest, and what follows it is left unread: newer versions may only append
    (Kafka's ConsumerProtocol.java).

    :raises DecodeError: the bytes are not such a blob; offsets count from its start
    """
    codec = registry.by_class(cls)
    blob = _as_bytes(blob)
    version = _int16(blob, 0)
    if len(blob) < 2:
        raise DecodeError("truncated", 0, codec.name, "2 bytes of version are needed")
    known = min(version, codec.valid_versions.stop - 1)
    _check_version(codec, known, 0)
    if known == version:
        return version, _whole(codec, blob, 2, version, strict)
    return version, codec.decode_prefix(blob, known, offset=2, strict=strict)[0]


def encode_prefixed(message: object, version: int, *, registry: Registry = registry) -> bytes:
    """The blob of `message`: its version as int16, then its bytes. Errors as `encode`."""
    body = registry.by_class(type(message)).encode(message, version)
    return _int16_bytes(version) + body


def _whole(codec: MessageCodec, body: Buffer, offset: int, version: int, strict: bool) -> Any:
    message, end = codec.decode_prefix(body, version, offset=offset, strict=strict)
    if strict and end != len(body):
        raise DecodeError("trailing", end, codec.name, f"{len(body) - end} bytes are left after the message")
    return message


def _as_bytes(data: Buffer) -> Buffer:
    """The same bytes, one element a byte: a view may be of wider elements."""
    return data if isinstance(data, bytes | bytearray) else memoryview(data).cast("B")


def _check_version(codec: MessageCodec, version: int, offset: int) -> None:
    if version not in codec.valid_versions:
        raise DecodeError("version", offset, codec.name, codec.no_version(version))


def _find(registry: Registry, kind: str, key: int, family: str, path: str) -> MessageCodec:
    try:
        return registry.request(key, family) if kind == "request" else registry.response(key, family)
    except KeyError:
        raise DecodeError("api", 0, path, f"no {kind} of family {family} has api key {key}") from None


def _codec_of(registry: Registry, cls: type, kind: str) -> MessageCodec:
    codec = registry.by_class(cls)
    if codec.type != kind:
        raise TypeError(f"{codec.name} is not a {kind}")
    return codec


def _framed(codec: MessageCodec, body: bytes) -> bytes:
    """Header and body of a message whose header is not Kafka's."""
    return _int16_bytes(_api_key(codec)) + body if codec.header == "typeId" else body


def _api_key(codec: MessageCodec) -> int:
    if codec.api_key is None:
        raise EncodeError("type", codec.name, "its schema has no apiKey: it cannot be framed")
    return codec.api_key


def _type_id(body: Buffer) -> int:
    if len(body) < 2:
        raise DecodeError("truncated", 0, _TYPE_ID, "2 bytes of type id are needed")
    return _int16(body, 0)


def _int16_bytes(value: int) -> bytes:
    return value.to_bytes(2, "big", signed=True)


def _int16(data: Buffer, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 2], "big", signed=True)
