"""Kafka's consumer-group coordination protocols: every message of every version, exact to the byte.

    msg = kcoord_wire.JoinGroupRequest(group_id="billing", protocol_type="consumer")
    data = kcoord_wire.encode(msg, version=7)
    kcoord_wire.decode(kcoord_wire.JoinGroupRequest, data, version=7) == msg

Message classes are imported when they are first named. Those of Marshal and of designs that Kafka never released: see
`kcoord_wire.messages.central`, `.proposal`, `.rewrite` and `.marshal`. `backend` says which codec runs; the environment
variable ``KCOORD_WIRE_BACKEND`` chooses it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire import messages
from kcoord_wire.codec.backend import backend, trim
from kcoord_wire.codec.convert import from_dict, to_dict
from kcoord_wire.codec.frames import TypeIdHeader
from kcoord_wire.codec.framing import Framer, frame
from kcoord_wire.codec.registry import (
    MessageCodec,
    Registry,
    compile_schemas,
    decode,
    decode_prefixed,
    decode_request,
    decode_response,
    decode_text,
    encode,
    encode_into,
    encode_prefixed,
    encode_request,
    encode_request_into,
    encode_response,
    encode_response_into,
    peek_request,
    peek_response,
    registry,
)
from kcoord_wire.errors import DecodeError, EncodeError, ProtocolError, SchemaError, WireError
from kcoord_wire.protocol import api_keys, error_codes

if TYPE_CHECKING:
    from kcoord_wire.codec.check import Finding, check
    from kcoord_wire.codec.connection import Closed, Connection, Event, Opaque, Request, Response
    from kcoord_wire.codec.explain import Explanation, explain
    from kcoord_wire.messages import *  # noqa: F403

__version__ = "0.1.0"

__all__ = [
    "Closed",
    "Connection",
    "DecodeError",
    "EncodeError",
    "Event",
    "Explanation",
    "Finding",
    "Framer",
    "MessageCodec",
    "Opaque",
    "ProtocolError",
    "Registry",
    "Request",
    "Response",
    "SchemaError",
    "TypeIdHeader",
    "WireError",
    "backend",
    "check",
    "compile_schemas",
    "decode",
    "decode_prefixed",
    "decode_request",
    "decode_response",
    "decode_text",
    "encode",
    "encode_into",
    "encode_prefixed",
    "encode_request",
    "encode_request_into",
    "encode_response",
    "encode_response_into",
    "error_codes",
    "explain",
    "frame",
    "from_dict",
    "messages",
    "peek_request",
    "peek_response",
    "registry",
    "to_dict",
    "trim",
    *messages.__all__,
]


_LAZY: Final = {
    **dict.fromkeys(("check", "Finding"), "kcoord_wire.codec.check"),
    **dict.fromkeys(("explain", "Explanation"), "kcoord_wire.codec.explain"),
    **dict.fromkeys(("Closed", "Connection", "Event", "Opaque", "Request", "Response"), "kcoord_wire.codec.connection"),
}


if not TYPE_CHECKING:  # else a name that does not exist would have the type Any

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            value = getattr(import_module(_LAZY[name]), name)
        elif name in messages.__all__:
            value = getattr(messages, name)
        else:
            what = f"module {__name__!r} has no attribute {name!r}{_hint(name)}"
            raise AttributeError(what, name=name, obj=import_module(__name__))
        globals()[name] = value
        return value


def _hint(name: str) -> str:
    """Where a class is that is looked for here: Heartbeat is Marshal's, Kafka has a HeartbeatRequest."""
    names = name, f"{name}Request", f"{name}Response"
    found = [each for each in names if each in messages.__all__]
    found += [
        f"messages.{p}.{each}" for p in messages.PACKAGES for each in names if each in getattr(messages, p).__all__
    ]
    found += [
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in (error_codes, api_keys)
        if getattr(getattr(module, name, None), "__module__", None) == module.__name__
    ]
    return f" (there is {' and '.join(found)})" if found else ""


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name, value in globals().items() if name[:2] == "__" or _is_ours(value))})


def _is_ours(value: object) -> bool:
    return isinstance(value, ModuleType) and value.__name__.startswith(__name__)
