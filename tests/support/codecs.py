"""The three codecs, at one version of a message, behind one interface."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from kcoord_wire.codec.python import Program
from kcoord_wire.codec.registry import MessageCodec
from kcoord_wire.codec.text import TextProgram
from kcoord_wire.schema.construct_model import construct_model


class Codec(NamedTuple):
    """One of the three, at one version."""

    name: str
    decode: Callable[[bytes, bool], Any]
    encode: Callable[[Any], bytes]


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
    return [Codec("native", native.decode, native.encode), Codec("python", pure.decode, pure.encode), construct]
