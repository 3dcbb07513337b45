"""The frames of a registry: header and message together, without the four bytes of size.

`MessageCodec.header_version` says which version a header has; api key and version, with which every request starts,
determine it.

A schema's key ``header`` says what precedes the message: ``kafka`` the above, ``typeId`` an int16 type id and
nothing else (the draft's frames), ``none`` nothing at all.

Laws:

* `Frames` alone decides what a frame means and what is wrong with it. The native core reads and writes good frames by
  the forms that it gets from here, and passes every other call on.
* A registry's frames are read and written alike, whether it is the package's own or one compiled at run time.
* What a header held survives: encoding a decoded message with its decoded header gives the frame's bytes again, where
  these are canonical.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from kcoord_wire.codec import backend
from kcoord_wire.codec.into import encode_into
from kcoord_wire.codec.view import parts_of, wants_parts
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.messages.request_header import RequestHeader
from kcoord_wire.messages.response_header import ResponseHeader
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from kcoord_wire.codec.backend import Buffer, BytesAs, Program
    from kcoord_wire.codec.registry import MessageCodec, Registry

M = TypeVar("M")

_TYPE_ID: Final = "TypeIdHeader.request_type_id"


@dataclass(slots=True)
class TypeIdHeader:
    """The header of the draft's frames: the type id alone ("the 0.8 consumer-coordinator draft", section 7)."""

    request_type_id: int


Header = RequestHeader | ResponseHeader | TypeIdHeader | None


class Form(NamedTuple):
    """What a message's frames consist of at one version, where Kafka's header precedes it."""

    header: Program
    body: Program
    api_key: int
    falls_back: bool
    """Whether a broker that does not know the version answers in version 0 (KIP-511)."""


class Frames:
    """Implements `codec.backend.Frames` by the codecs of a registry.

    :param registry: whose messages these are
    :param headers: the registry that has RequestHeader and ResponseHeader: the package's own
    """

    def __init__(self, registry: Registry, headers: Registry) -> None:
        self._registry = registry
        self._request_header = headers["RequestHeader"]
        self._response_header = headers["ResponseHeader"]

    def form(self, kind: str, api: int | type, version: int, family: str = "kafka") -> Form | None:
        """How a request's or response's frames are read and written: always the same answer, to be kept.

        None where there is no such message or version, or where its frames have another header than Kafka's: what the
        methods below do with those is theirs.
        """
        try:
            codec = self._codec(kind, api, family)
        except (DecodeError, TypeError):
            return None
        if codec.header != "kafka" or codec.api_key is None or version not in codec.valid_versions:
            return None
        header = self._request_header if kind == "request" else self._response_header
        falls_back = kind == "response" and version != 0 and _is_api_versions(codec)
        return Form(header.program(codec.header_version(version)), codec.program(version), codec.api_key, falls_back)

    def has_kafka_header(self, family: str) -> bool:
        """Whether Kafka's header precedes the requests of a family."""
        return self._registry.request_header(family) == "kafka"

    def peek_request(self, body: Buffer, strict: bool) -> RequestHeader:
        """The header of a request without its tagged fields."""
        version = 0 if int16(body, 0) == ApiKey.CONTROLLED_SHUTDOWN and int16(body, 2) == 0 else 1
        header: RequestHeader = self._request_header.decode_prefix(body, version, strict=strict)[0]
        return header

    def decode_request(
        self,
        body: Buffer,
        *,
        family: str = "kafka",
        strict: bool = True,
        bytes: BytesAs = "copy",
        lazy: bool = False,
        registry: Registry | None = None,
    ) -> tuple[Any, Any]:
        if registry is not None:
            return registry.frames.decode_request(body, family=family, strict=strict, bytes=bytes, lazy=lazy)
        body = parts_of(body) if wants_parts(bytes) else as_bytes(body)
        header_kind = self._registry.request_header(family)
        if header_kind == "none":
            raise DecodeError("api", 0, family, "its requests have no header that identifies them: use `decode`")
        if header_kind == "typeId":
            type_id = _type_id(body)
            codec = self._find("request", type_id, family, _TYPE_ID)
            return TypeIdHeader(type_id), whole(codec, body, 2, 0, strict, bytes, lazy)
        peeked = self.peek_request(body, strict)
        codec = self._find("request", peeked.request_api_key, family, "RequestHeader.request_api_key")
        version = peeked.request_api_version
        check_version(codec, version, 2)
        header, offset = self._request_header.decode_prefix(body, codec.header_version(version), strict=strict)
        return header, whole(codec, body, offset, version, strict, bytes, lazy)

    def decode_response(
        self,
        body: Buffer,
        api: type | int,
        version: int,
        *,
        strict: bool = True,
        bytes: BytesAs = "copy",
        lazy: bool = False,
        registry: Registry | None = None,
    ) -> tuple[Any, Any]:
        if registry is not None:
            return registry.frames.decode_response(body, api, version, strict=strict, bytes=bytes, lazy=lazy)
        body = parts_of(body) if wants_parts(bytes) else as_bytes(body)
        codec = self._codec("response", api, "kafka")
        if version and _is_api_versions(codec) and int16(body, 4) == ErrorCode.UNSUPPORTED_VERSION:
            with suppress(DecodeError):
                return self.decode_response(body, api, 0, strict=strict, bytes=bytes, lazy=lazy)
        check_version(codec, version, 0)
        if codec.header == "none":
            return None, whole(codec, body, 0, version, strict, bytes, lazy)
        if codec.header == "typeId":
            type_id = _type_id(body)
            if type_id != codec.api_key:
                raise DecodeError("api", 0, _TYPE_ID, f"type id {type_id} is not that of {codec.name}, {codec.api_key}")
            return TypeIdHeader(type_id), whole(codec, body, 2, version, strict, bytes, lazy)
        header, offset = self._response_header.decode_prefix(body, codec.header_version(version), strict=strict)
        return header, whole(codec, body, offset, version, strict, bytes, lazy)

    def prefixed(self, cls: type, version: int) -> Program | None:
        """What reads a message after the version that it starts with: always the same answer, to be kept.

        None where the message has no such version, or is none of the registry.
        """
        try:
            codec = self._registry.by_class(cls)
        except TypeError:
            return None
        return codec.program(version) if version in codec.valid_versions else None

    def decode_prefixed(
        self, cls: type[M], blob: Buffer, *, strict: bool = True, registry: Registry | None = None
    ) -> tuple[int, M]:
        codec = (self._registry if registry is None else registry).by_class(cls)
        blob = as_bytes(blob)
        version = int16(blob, 0)
        if len(blob) < 2:
            raise DecodeError("truncated", 0, codec.name, "2 bytes of version are needed")
        known = min(version, codec.valid_versions.stop - 1)
        check_version(codec, known, 0)
        if known == version:
            return version, whole(codec, blob, 2, version, strict)
        return version, codec.decode_prefix(blob, known, offset=2, strict=strict)[0]

    def encode_request(
        self,
        request: DataclassInstance,
        version: int,
        *,
        correlation_id: int = 0,
        client_id: str | None = None,
        header: Header = None,
        drop: bool = False,
        registry: Registry | None = None,
    ) -> bytes:
        if registry is not None:
            return registry.frames.encode_request(
                request, version, correlation_id=correlation_id, client_id=client_id, header=header, drop=drop
            )
        codec = self._codec("request", type(request), "")
        if header is not None:
            if correlation_id != 0 or client_id is not None:
                raise TypeError("a header has its own correlation id and client id: give these or the header")
            _check_header(codec, version, header)
        body = codec.encode(request, version, drop=drop)
        if codec.header != "kafka":
            return _framed(codec, body)
        if header is None:
            header = RequestHeader(
                request_api_key=_api_key(codec),
                request_api_version=version,
                correlation_id=correlation_id,
                client_id=client_id,
            )
        return self._request_header.encode(header, codec.header_version(version)) + body

    def encode_response(
        self,
        response: DataclassInstance,
        version: int,
        *,
        correlation_id: int = 0,
        header: Header = None,
        drop: bool = False,
        registry: Registry | None = None,
    ) -> bytes:
        if registry is not None:
            return registry.frames.encode_response(
                response, version, correlation_id=correlation_id, header=header, drop=drop
            )
        codec = self._codec("response", type(response), "")
        if header is not None:
            if correlation_id != 0:
                raise TypeError("a header has its own correlation id: give that or the header")
            _check_header(codec, version, header)
        body = codec.encode(response, version, drop=drop)
        if codec.header != "kafka":
            return _framed(codec, body)
        if header is None:
            header = ResponseHeader(correlation_id=correlation_id)
        return self._response_header.encode(header, codec.header_version(version)) + body

    def encode_request_into(
        self,
        request: DataclassInstance,
        version: int,
        buffer: bytearray,
        *,
        offset: int = 0,
        correlation_id: int = 0,
        client_id: str | None = None,
        header: Header = None,
        drop: bool = False,
        registry: Registry | None = None,
    ) -> int:
        write = partial(self.encode_request, request, version, correlation_id=correlation_id, client_id=client_id)
        return encode_into(buffer, offset, partial(write, header=header, drop=drop, registry=registry))

    def encode_response_into(
        self,
        response: DataclassInstance,
        version: int,
        buffer: bytearray,
        *,
        offset: int = 0,
        correlation_id: int = 0,
        header: Header = None,
        drop: bool = False,
        registry: Registry | None = None,
    ) -> int:
        write = partial(self.encode_response, response, version, correlation_id=correlation_id)
        return encode_into(buffer, offset, partial(write, header=header, drop=drop, registry=registry))

    decode_prefixed.__doc__ = backend.Frames.decode_prefixed.__doc__
    decode_request.__doc__ = backend.Frames.decode_request.__doc__
    decode_response.__doc__ = backend.Frames.decode_response.__doc__
    encode_request.__doc__ = backend.Frames.encode_request.__doc__
    encode_response.__doc__ = backend.Frames.encode_response.__doc__
    encode_request_into.__doc__ = backend.Frames.encode_request_into.__doc__
    encode_response_into.__doc__ = backend.Frames.encode_response_into.__doc__

    def _codec(self, kind: str, api: int | type, family: str) -> MessageCodec:
        """The codec of an api key (DecodeError where there is none) or class (TypeError)."""
        if isinstance(api, int):
            return self._find(kind, api, family, "ResponseHeader")
        codec = self._registry.by_class(api)
        if codec.type != kind:
            raise TypeError(f"{codec.name} is not a {kind}")
        return codec

    def _find(self, kind: str, key: int, family: str, path: str) -> MessageCodec:
        try:
            return self._registry.request(key, family) if kind == "request" else self._registry.response(key, family)
        except KeyError:
            raise DecodeError("api", 0, path, f"no {kind} of family {family} has api key {key}") from None


def as_bytes(data: Buffer) -> Buffer:
    """The same bytes, one element a byte: a view may be of wider elements."""
    return data if isinstance(data, bytes | bytearray) else memoryview(data).cast("B")


def whole(
    codec: MessageCodec[M],
    body: Buffer,
    offset: int,
    version: int,
    strict: bool,
    bytes: BytesAs = "copy",
    lazy: bool = False,
) -> M:
    """The message that starts at `offset` and goes to the end."""
    message, end = codec.decode_prefix(body, version, offset=offset, strict=strict, bytes=bytes, lazy=lazy)
    if strict and end != len(body):
        raise DecodeError("trailing", end, codec.name, f"{len(body) - end} bytes are left after the message")
    return message


def check_version(codec: MessageCodec, version: int, offset: int) -> None:
    """DecodeError where the message has no such version; `offset` is where its number is."""
    if version not in codec.valid_versions:
        raise DecodeError("version", offset, codec.name, codec.no_version(version))


def int16(data: Buffer, offset: int) -> int:
    """The int16 at `offset`; of fewer bytes where they end there."""
    return int.from_bytes(data[offset : offset + 2], "big", signed=True)


def int16_bytes(value: int) -> bytes:
    """The two bytes of an int16."""
    return value.to_bytes(2, "big", signed=True)


def _is_api_versions(codec: MessageCodec) -> bool:
    return codec.family == "kafka" and codec.api_key == ApiKey.API_VERSIONS


def _check_header(codec: MessageCodec, version: int, header: Header) -> None:
    """Whether the header that a caller gave is that of the message at `version`; TypeError where it is not."""
    if codec.header == "kafka":
        fits = isinstance(header, RequestHeader if codec.type == "request" else ResponseHeader)
    else:
        fits = codec.header == "typeId" and header == TypeIdHeader(_api_key(codec))
    if not fits:
        raise TypeError(f"{header!r} is not the header of {codec.name}")
    if isinstance(header, RequestHeader):
        says = header.request_api_key, header.request_api_version
        if says != (codec.api_key, version):
            raise TypeError(
                f"the header is of api key {says[0]!r} at version {says[1]!r}, "
                f"the request of api key {codec.api_key} at version {version!r}"
            )


def _framed(codec: MessageCodec, body: bytes) -> bytes:
    """Header and body of a message whose header is not Kafka's."""
    return int16_bytes(_api_key(codec)) + body if codec.header == "typeId" else body


def _api_key(codec: MessageCodec) -> int:
    if codec.api_key is None:
        raise EncodeError("type", codec.name, "its schema has no apiKey: it cannot be framed")
    return codec.api_key


def _type_id(body: Buffer) -> int:
    if len(body) < 2:
        raise DecodeError("truncated", 0, _TYPE_ID, "2 bytes of type id are needed")
    return int16(body, 0)
