"""Whole frame bodies, and blobs that start with their version: the functions of `kcoord_wire`.

What frames are, `codec.frames` says. These functions are the frames of the package's own registry; their argument
`registry` names another.
"""

from __future__ import annotations

from typing import TypeVar

from kcoord_wire.codec.frames import Frames, as_bytes, check_version, int16, int16_bytes, whole
from kcoord_wire.codec.registry import Buffer, Registry, registry
from kcoord_wire.errors import DecodeError
from kcoord_wire.messages.request_header import RequestHeader
from kcoord_wire.messages.response_header import ResponseHeader

M = TypeVar("M")

decode_request = registry.frames.decode_request
decode_response = registry.frames.decode_response
encode_request = registry.frames.encode_request
encode_response = registry.frames.encode_response
_peek = Frames(registry, registry).peek_request


def peek_request(body: Buffer, *, strict: bool = True) -> RequestHeader:
    """The header of a Kafka request, without its tagged fields: the same for every api and version, known to us or not.

    :raises DecodeError: the bytes end inside it, or the client id is not a string
    """
    return _peek(as_bytes(body), strict)


def peek_response(body: Buffer) -> ResponseHeader:
    """The header of a Kafka response, without its tagged fields: which request it answers.

    :raises DecodeError: the bytes end inside it
    """
    header: ResponseHeader = registry["ResponseHeader"].decode_prefix(as_bytes(body), 0)[0]
    return header


def decode_prefixed(cls: type[M], blob: Buffer, *, strict: bool = True, registry: Registry = registry) -> tuple[int, M]:
    """Version and message of a blob that starts with its version as int16, as subscriptions and assignments do.

    A version above our newest is read as our newest, and what follows it is left unread: newer versions may only append
    (Kafka's ConsumerProtocol.java).

    :raises DecodeError: the bytes are not such a blob; offsets count from its start
    """
    codec = registry.by_class(cls)
    blob = as_bytes(blob)
    version = int16(blob, 0)
    if len(blob) < 2:
        raise DecodeError("truncated", 0, codec.name, "2 bytes of version are needed")
    known = min(version, codec.valid_versions.stop - 1)
    check_version(codec, known, 0)
    if known == version:
        return version, whole(codec, blob, 2, version, strict)
    return version, codec.decode_prefix(blob, known, offset=2, strict=strict)[0]


def encode_prefixed(message: object, version: int, *, registry: Registry = registry) -> bytes:
    """The blob of `message`: its version as int16, then its bytes. Errors as `encode`."""
    body = registry.by_class(type(message)).encode(message, version)
    return int16_bytes(version) + body
