"""The three codecs, at one version of a message, behind one interface, and whether they agree.

Laws of each of them, checked on the way: what is written is read back equal; what strict mode reads is written again
byte for byte, but for a tagged field that held its default on the wire.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from kcoord_wire.codec.python import Program
from kcoord_wire.codec.registry import MessageCodec
from kcoord_wire.codec.text import TextProgram
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.schema.construct_model import construct_model
from kcoord_wire.schema.constructs import Leaf

REPLACEMENTS = (0x00, 0x01, 0x02, 0x7F, 0x80, 0xFE, 0xFF)  # of a byte: what lengths, markers and varints turn on
JUNK = b"\x00\xff\x80"


class Codec(NamedTuple):
    """One of the three, at one version."""

    name: str
    decode: Callable[[bytes, bool], Any]
    encode: Callable[[Any], bytes]
    decode_prefix: Callable[[bytes, int, bool], tuple[Any, int]] | None = None  # text and construct have none


@cache
def codecs(codec: MessageCodec, version: int) -> list[Codec]:
    """The three codecs of a message: native, pure Python, construct."""
    plan, classes = codec.plan(version), codec.classes
    native = import_module("kcoord_wire._native").Program(plan, classes)
    model = construct_model(codec.schema, version, classes)
    construct = Codec("construct", lambda data, strict: model.parse(data, strict=strict), model.build)
    if codec.schema.encoding == "text":
        plain = TextProgram(codec.schema, plan, classes, native.decode_plain_text)
        text = TextProgram(codec.schema, plan, classes)
        return [Codec("native", plain.decode, plain.encode), Codec("python", text.decode, text.encode), construct]
    pure = Program(plan, classes)
    return [
        Codec("native", native.decode, native.encode, native.decode_prefix),
        Codec("python", pure.decode, pure.encode, pure.decode_prefix),
        construct,
    ]


def outcome(call: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
    """What a call comes to: a value, or what all codecs have to say of an error."""
    try:
        return "value", call(*arguments)
    except DecodeError as error:
        return "DecodeError", error.kind, error.offset, error.path
    except EncodeError as error:
        return "EncodeError", error.kind, error.path


def same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    # NaN is not equal to itself, but is written the same.
    return a == b or repr(a) == repr(b)


def read_alike(codec: MessageCodec, version: int, data: bytes, strict: bool, slow: bool = True) -> tuple[Any, ...]:
    """The outcome of decoding `data`, the same of all codecs; without construct, the slow one, where not `slow`."""
    trio = codecs(codec, version) if slow else codecs(codec, version)[:2]
    first = outcome(trio[0].decode, data, strict)
    for other in trio[1:]:
        second = outcome(other.decode, data, strict)
        assert same(first, second), (
            f"{codec.name} v{version} strict={strict} {data.hex()}\n{trio[0].name}: {first}\n{other.name}: {second}"
        )
    if strict and first[0] == "value" and codec.schema.encoding != "text":
        written_back(codec, version, data, first[1])
    return first


def write_alike(codec: MessageCodec, version: int, message: Any, what: str = "") -> tuple[Any, ...]:
    """The outcome of encoding `message`, the same of all codecs."""
    trio = codecs(codec, version)
    first = outcome(trio[0].encode, message)
    for other in trio[1:]:
        second = outcome(other.encode, message)
        assert first == second, f"{codec.name} v{version} {what}\n{trio[0].name}: {first}\n{other.name}: {second}"
    return first


class TagCount:
    """A trace that counts the tagged fields on the wire that the schema knows."""

    def __init__(self) -> None:
        self.known = 0

    def leaf(self, leaf: Leaf) -> None:
        self.known += leaf.type == "uvarint tag" and leaf.note != "unknown"

    def enter(self, start: int, path: str, type_: str) -> None: ...

    def leave(self, end: int) -> None: ...


def known_tags(codec: MessageCodec, version: int, data: bytes) -> int:
    count = TagCount()
    construct_model(codec.schema, version, codec.classes).parse(data, trace=count)
    return count.known


def written_back(codec: MessageCodec, version: int, data: bytes, message: Any) -> None:
    again = codecs(codec, version)[0].encode(message)
    if again != data:
        assert known_tags(codec, version, data) > known_tags(codec, version, again), (
            f"{codec.name} v{version}: {data.hex()} is written back as {again.hex()}"
        )
        assert len(again) < len(data)
        assert repr(codecs(codec, version)[0].decode(again, True)) == repr(message)
