"""Native equals pure Python equals construct: the same value or the same error, for every message at every version.

The three are written apart from each other: two walk the plan, the third reads the schema model. An error is the same
if its class, kind and path are, and the offset where it has one.
The golden vectors, their prefixes and their changed bytes are in test_golden.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kcoord_wire as kw
from kcoord_wire.codec.registry import MessageCodec, compile_schemas, registry
from kcoord_wire.schema.plan import Op, Presence, Step
from tests.support.apis import drawn_versions, spoken
from tests.support.codecs import JUNK, REPLACEMENTS, codecs, read_alike, write_alike
from tests.support.each import each
from tests.support.golden import DATA
from tests.support.strategies import filled, messages

CODECS = [*registry.values(), *compile_schemas(DATA / "parity").values()]
EXAMPLES = 8  # of each version
DAMAGES = 80  # of a filled message, at each version


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_drawn_messages(codec: MessageCodec) -> None:
    for version in drawn_versions(codec):
        draw_messages(codec, version)


def draw_messages(codec: MessageCodec, version: int) -> None:
    @settings(max_examples=EXAMPLES if spoken(codec) else 2)
    @given(messages(codec, version), st.data())
    def check(message: Any, data: st.DataObject) -> None:
        kind, written = write_alike(codec, version, message)
        assert kind == "value", (written, message)
        for strict in (True, False):
            for reader in codecs(codec, version):
                read = reader.decode(written, strict)
                assert read == message
                assert repr(read) == repr(message)
            if written:
                at = data.draw(st.integers(0, len(written) - 1))
                byte = data.draw(st.sampled_from(REPLACEMENTS) | st.integers(0, 255))
                read_alike(codec, version, written[:at] + bytes([byte]) + written[at + 1 :], strict)
                read_alike(codec, version, written[:at], strict)
                read_alike(codec, version, written[:at] + data.draw(st.binary(max_size=8)), strict)
            read_alike(codec, version, written + JUNK, strict)

    check()


class Text(str):
    """A str that is not exactly one."""


class Number(int):
    """An int that is not exactly one."""


class Index:
    """What `operator.index` takes although it is not an int."""

    def __index__(self) -> int:
        return 5


class Deleted:
    """Stands for an attribute that was deleted."""


BAD_VALUES: list[Any] = [
    None, True, 0, 1, -1, 7, 127, 128, -129, 32768, 65535, 65536, 2**31, -(2**31) - 1, 2**32, 2**63, 2**64, 10**400,
    0.0, 1.5, Decimal("1.5"), Number(3), Index(), object(), Deleted,
    "", "x", "a/b", "ü" * 7, "\ud800", Text("sub"), "x" * 13, "x" * 0x7FFF, "x" * 0x8000, "ü" * 0x4000,
    b"", b"x", bytearray(b"y"), memoryview(b"zz"), memoryview(b"abcd")[::2], memoryview(b"abcdefgh").cast("i"),
    [], (), [None], [0], ["x"], [b"x"], [[]], (1, 2), [1.5], {}, {1}, range(3), [2**70], [0] * 0x8000,
]  # fmt: skip
BAD_TAGS: list[Any] = [
    None, [], 0, "", b"", {}, ((0, b""),), ((1, b""),), ((2, b"x"),), ((3, b"x"),), ((4, b"x"),), ((99, b"x"),),
    [(99, b"x")], [[99, b"x"]], ((99, bytearray(b"x")),), ((99, memoryview(b"xy")),),
    ((99, memoryview(b"abcd")[::2]),), ((99, "x"),), ((99, None),), (("99", b""),), ((99.0, b""),), ((Index(), b""),),
    ((True, b""),), ((Number(99), b""),), ((-1, b""),), ((2**32, b""),), ((2**32 - 1, b""),), ((2**70, b""),),
    ((99, b""), (99, b"")), ((100, b""), (99, b"")), ((99, b""), (100, b"")), ((99,),), ((99, b"", b""),), (99, b""),
    (None,), ((99, b""), None), Deleted,
]  # fmt: skip


def attributes(message: Any) -> Iterator[tuple[Any, str]]:
    """Every (instance, attribute) of the message and of all within it."""
    for field in fields(message):
        yield message, field.name
        held = getattr(message, field.name)
        for value in held if isinstance(held, list) else [held]:
            if is_dataclass(value):
                yield from attributes(value)


def damages(codec: MessageCodec, version: int) -> Iterator[tuple[Any, str]]:
    """Filled messages of which one value is not as it should be, and what it is."""
    rng = random.Random(f"{codec.name} {version}")
    message = filled(codec, version)
    places = list(attributes(message))
    choices = [
        (place, bad)
        for place in range(len(places))
        for bad in (BAD_TAGS if places[place][1] == "unknown_tags" else BAD_VALUES)
    ]
    for place, bad in rng.sample(choices, min(DAMAGES, len(choices))):
        owner, attr = places[place]
        held = getattr(owner, attr)
        if bad is Deleted:
            delattr(owner, attr)
        else:
            setattr(owner, attr, bad)
        yield message, f"{type(owner).__name__}.{attr} = {bad!r:.60}"
        setattr(owner, attr, held)
        if isinstance(held, list) and held:
            element = held[-1]
            held[-1] = bad
            yield message, f"{type(owner).__name__}.{attr}[-1] = {bad!r:.60}"
            held[-1] = element


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_damaged_values(codec: MessageCodec) -> None:
    refused = 0
    for version in drawn_versions(codec):
        assert write_alike(codec, version, filled(codec, version))[0] == "value"
        for message, what in damages(codec, version):
            refused += write_alike(codec, version, message, what)[0] == "EncodeError"
    assert refused or not codec.schema.fields


@each("codec", CODECS)
def test_values_that_are_no_such_message(codec: MessageCodec) -> None:
    twin = type(codec.name, (), {})
    subclass = type("Subclass", (codec.cls,), {})
    for version in codec.valid_versions:
        for value in (None, 0, "", twin(), codec.cls, object()):
            kind = "null" if value is None and codec.schema.encoding != "text" else "type"
            assert write_alike(codec, version, value) == ("EncodeError", kind, codec.name)
        assert write_alike(codec, version, subclass()) == write_alike(codec, version, codec.cls())


def emptied(message: Any, steps: tuple[Step, ...]) -> Any:
    """The message with null wherever its plan allows it: what follows a value that takes a length alone."""
    for step in steps:
        value = getattr(message, step.attr)
        if step.presence is not Presence.PLAIN:
            continue
        if step.nullable:
            setattr(message, step.attr, None)
        elif isinstance(value, list) and step.item is not None and step.item.op is Op.STRUCT and step.item.struct:
            setattr(message, step.attr, [emptied(each, step.item.struct.steps) for each in value[:1]])
        elif isinstance(value, list):
            setattr(message, step.attr, [])
        elif is_dataclass(value) and step.struct:
            emptied(value, step.struct.steps)
    return message


@each("codec", [codec for codec in CODECS if codec.schema.encoding == "binary"])
def test_prefixes_of_the_shortest_values(codec: MessageCodec) -> None:
    """The native reader compares once for a run of fields: a null or an empty list ends one as other values do."""
    for version in codec.valid_versions:
        message = emptied(filled(codec, version), codec.plan(version).steps)
        data = codecs(codec, version)[0].encode(message)
        for end in range(len(data)):
            for strict in (True, False):
                kind = read_alike(codec, version, data[:end], strict, slow=False)[0]
                assert kind == "DecodeError" or not strict or end >= codec.plan(version).min_size, (version, end)


def test_numbers_of_two_digits_and_their_neighbours() -> None:
    """An int of CPython's has digits of 15 or of 30 bits; those of one and of two are read in place."""
    codec = registry["OffsetCommitRequest"]
    near = {sign * (2**bits) + d for bits in (15, 30, 45, 60, 63) for sign in (1, -1) for d in (-2, -1, 0, 1)}
    for number in sorted(near):
        partition = kw.messages.OffsetCommitRequestPartition(committed_offset=number)
        request = kw.OffsetCommitRequest(topics=[kw.messages.OffsetCommitRequestTopic(partitions=[partition])])
        if -(2**63) <= number < 2**63:
            data = codec.encode(request, 8)
            assert number.to_bytes(8, "big", signed=True) in data
            assert codec.decode(data, 8) == request
        else:
            with pytest.raises(kw.EncodeError) as caught:
                codec.encode(request, 8)
            assert caught.value.kind == "range"
