"""Native equals pure Python equals construct: the same value or the same error, for every message at every version.

The three are written apart from each other: two walk the plan, the third reads the schema model. An error is the same
if its class, kind and path are, and the offset where it has one.

Laws of each of them, checked on the way: what is written is read back equal; what strict mode reads is written again
byte for byte, but for a tagged field that held its default on the wire.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcoord_wire.codec.registry import MessageCodec, compile_schemas, registry
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.schema.construct_model import construct_model
from kcoord_wire.schema.constructs import Leaf
from tests.support.apis import drawn_versions, spoken
from tests.support.codecs import codecs
from tests.support.strategies import filled, messages

DATA = Path(__file__).parent.parent / "data"
CODECS = [*registry.values(), *compile_schemas(DATA / "parity").values()]
EXAMPLES = 8  # of each version
WHOLE = 1  # golden vectors, the longest of each layout, of which every prefix and every byte is tried in strict mode
SAMPLE = 12  # prefixes, and changed bytes, of every golden vector, which construct and lenient mode read as well
DAMAGES = 80  # of a filled message, at each version
REPLACEMENTS = (0x00, 0x01, 0x02, 0x7F, 0x80, 0xFE, 0xFF)
JUNK = b"\x00\xff\x80"


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


def golden() -> dict[str, list[tuple[int, bytes]]]:
    vectors: dict[str, dict[tuple[int, bytes], None]] = {}
    with (DATA / "golden" / "kafka.jsonl").open() as lines:
        for line in lines:
            case = json.loads(line)
            vectors.setdefault(case["message"], {})[case["version"], bytes.fromhex(case["hex"])] = None
    return {name: list(of_message) for name, of_message in vectors.items()}


GOLDEN = golden()


def sampled(data: bytes, rng: random.Random) -> list[int]:
    return sorted(rng.sample(range(len(data)), min(SAMPLE, len(data))))


@cache
def layout(name: str, version: int) -> str:
    """The plan without its version: messages whose versions differ in their number alone have one layout."""
    return "\n".join(registry[name].plan(version).describe()).replace(f" v{version}", "")


@cache
def tried_whole(name: str) -> set[tuple[int, bytes]]:
    """The vectors of the message that are worth every prefix: the longest of each layout."""
    of_layout: dict[str, list[tuple[int, bytes]]] = {}
    for version, data in sorted(GOLDEN[name], key=lambda vector: -len(vector[1])):
        of_layout.setdefault(layout(name, version), []).append((version, data))
    return {vector for vectors in of_layout.values() for vector in vectors[:WHOLE]}


def places(name: str, version: int, data: bytes, some: Sequence[int]) -> Sequence[int]:
    return range(len(data)) if (version, data) in tried_whole(name) else some


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_vectors_and_their_prefixes(name: str) -> None:
    rng = random.Random(name)
    for version, data in GOLDEN[name]:
        kind, message = read_alike(registry[name], version, data, True)
        assert kind == "value"
        assert same(read_alike(registry[name], version, data, False), ("value", message))
        assert write_alike(registry[name], version, message) == ("value", data)
        some = sampled(data, rng)
        for size in places(name, version, data, some):
            refused = read_alike(registry[name], version, data[:size], True, size in some)
            assert refused[:2] == ("DecodeError", "truncated"), size
        for size in some:
            read_alike(registry[name], version, data[:size], False)
        read_alike(registry[name], version, data + JUNK, True)
        assert same(read_alike(registry[name], version, data + JUNK, False), ("value", message))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_vectors_with_a_byte_changed(name: str) -> None:
    rng = random.Random(name)
    for version, data in GOLDEN[name]:
        some = sampled(data, rng)
        for at in places(name, version, data, some):
            old = data[at]
            byte = rng.choice([new for new in (*REPLACEMENTS, old + 1 & 0xFF, old - 1 & 0xFF) if new != old])
            changed = data[:at] + bytes([byte]) + data[at + 1 :]
            read_alike(registry[name], version, changed, True, at in some)
            if at in some:
                read_alike(registry[name], version, changed, False)


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


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_values_that_are_no_such_message(codec: MessageCodec) -> None:
    twin = type(codec.name, (), {})
    subclass = type("Subclass", (codec.cls,), {})
    for version in codec.valid_versions:
        for value in (None, 0, "", twin(), codec.cls, object()):
            kind = "null" if value is None and codec.schema.encoding != "text" else "type"
            assert write_alike(codec, version, value) == ("EncodeError", kind, codec.name)
        assert write_alike(codec, version, subclass()) == write_alike(codec, version, codec.cls())
