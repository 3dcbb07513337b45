"""Whole frames by each codec in one process: the native core, the pure codec, and construct."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from kcoord_wire.codec.frames import Frames
from kcoord_wire.codec.python import Program
from kcoord_wire.codec.registry import MessageCodec, Registry, registry
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.protocol.api_keys import ApiKey
from kcoord_wire.schema.construct_model import construct_model
from kcoord_wire.schema.constructs import Leaf


@cache
def pure_frames() -> Any:
    """The frames of the package's messages, by the pure codec whatever runs in this process."""
    pure = Registry(
        MessageCodec(
            c.name, c.type, c.api_key, c.family, c.header, c.valid_versions, c.flexible_versions,
            lambda c=c: c.schema, lambda c=c: c.classes, Program,
        )
        for c in registry.values()
    )  # fmt: skip
    return Frames(pure, pure)


@cache
def native_frames() -> Any:
    return import_module("kcoord_wire._native").Frames(Frames(registry, registry))


def outcome(call: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, ...]:
    """What a call comes to: a value, or what every codec has to say of an error."""
    try:
        return "value", call(*arguments, **options)
    except DecodeError as error:
        return "DecodeError", error.kind, error.offset, error.path
    except EncodeError as error:
        return "EncodeError", error.kind, error.path
    except TypeError as error:
        return "TypeError", str(error)


class _End:
    """A trace that keeps where the message ended."""

    end = 0

    def leaf(self, leaf: Leaf) -> None: ...

    def enter(self, start: int, path: str, type_: str) -> None: ...

    def leave(self, end: int) -> None:
        self.end = end


@cache
def _model(name: str, version: int) -> Any:
    return construct_model(registry[name].schema, version, registry[name].classes)


def request_by_construct(body: bytes, strict: bool) -> tuple[Any, Any]:
    """Header and request of a frame of Kafka's."""
    key, version = (int.from_bytes(body[at : at + 2], "big", signed=True) for at in (0, 2))
    peeked = 0 if (key, version) == (ApiKey.CONTROLLED_SHUTDOWN, 0) else 1
    _first(_model("RequestHeader", peeked), body, strict)
    try:
        codec = registry.request(key)
    except KeyError:
        raise DecodeError("api", 0, "RequestHeader.request_api_key", "") from None
    if version not in codec.valid_versions:
        raise DecodeError("version", 2, codec.name, "")
    return _both(_model("RequestHeader", codec.header_version(version)), codec, body, version, strict)


def response_by_construct(body: bytes, codec: MessageCodec, version: int, strict: bool) -> tuple[Any, Any]:
    """Header and response of a frame of Kafka's, the fallback of ApiVersions (KIP-511) left out."""
    return _both(_model("ResponseHeader", codec.header_version(version)), codec, body, version, strict)


def _both(header: Any, codec: MessageCodec, body: bytes, version: int, strict: bool) -> tuple[Any, Any]:
    first, end = _first(header, body, strict)
    try:
        return first, _model(codec.name, version).parse(body[end:], strict=strict)
    except DecodeError as error:
        raise DecodeError(error.kind, end + error.offset, error.path, error.detail) from None


def _first(model: Any, body: bytes, strict: bool) -> tuple[Any, int]:
    """What stands at the start of `body`, and where it ends."""
    trace = _End()
    try:
        return model.parse(body, strict=strict, trace=trace), trace.end
    except DecodeError as error:
        if error.kind != "trailing":
            raise
        return model.parse(body[: error.offset], strict=strict), error.offset
