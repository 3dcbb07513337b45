"""Bytes that another implementation made: each decodes to its value and is written again the same, by all codecs.

Laws, with native, pure Python and construct alike: a prefix fails as truncated, at a byte within it; a byte too many is
named as such in strict mode and ignored otherwise; whatever a changed byte makes of a message, the error is a
`DecodeError` whose offset lies within the input, and what is read is written back. `tried` says at which places.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcoord_wire.codec.convert import from_dict, to_dict
from kcoord_wire.codec.registry import registry
from kcoord_wire.schema.construct_model import construct_model
from kcoord_wire.schema.constructs import Leaf
from tests.support.codecs import JUNK, REPLACEMENTS, codecs, read_alike, same
from tests.support.golden import Vector, vectors

NAMES = list(vectors())
FIRST = 256  # bytes
SPREAD = 64  # places over the rest
FEW = 12  # places


class Lengths:
    """A trace of where each length and count lies, the first of each field."""

    def __init__(self) -> None:
        self.starts: dict[str, int] = {}

    def leaf(self, leaf: Leaf) -> None:
        if leaf.type.endswith((" length", " count")):
            self.starts.setdefault(re.sub(r"\[\d+\]", "", leaf.path), leaf.start)

    def enter(self, start: int, path: str, type_: str) -> None: ...

    def leave(self, end: int) -> None: ...


def spread(start: int, size: int, most: int) -> set[int]:
    return set(range(start, size, max(1, (size - start) // most)))


@cache
def layout(name: str, version: int) -> str:
    """The plan without its version: messages whose versions differ in their number alone have one layout."""
    return "\n".join(registry[name].plan(version).describe()).replace(f" v{version}", "")


@cache
def longest_of_layouts(name: str) -> set[int]:
    longest: dict[str, Vector] = {}
    for vector in sorted(vectors()[name], key=lambda vector: len(vector.data)):
        longest[layout(name, vector.version)] = vector
    return {id(vector) for vector in longest.values()}


def few(vector: Vector) -> set[int]:
    """The places at which construct, which is slow, and lenient mode read as well."""
    return spread(0, len(vector.data), FEW)


def tried(vector: Vector) -> Iterable[int]:
    """A few places of each vector; of the longest of each layout the first bytes, the lengths, and some of the rest."""
    places = few(vector)
    if id(vector) in longest_of_layouts(vector.message):
        lengths, codec = Lengths(), registry[vector.message]
        construct_model(codec.schema, vector.version, codec.classes).parse(vector.data, trace=lengths)
        places |= {*range(min(FIRST, len(vector.data))), *lengths.starts.values()}
        places |= spread(FIRST, len(vector.data), SPREAD)
    return sorted(places)


def test_every_golden_case_is_read() -> None:
    assert sum(len(of_message) for of_message in vectors().values()) == 2412


@pytest.mark.parametrize("name", NAMES)
def test_values(name: str) -> None:
    cls = registry[name].cls
    for vector in vectors()[name]:
        message = from_dict(cls, vector.value)
        assert to_dict(message, vector.version, json=True) == vector.value, vector
        for codec in codecs(registry[name], vector.version):
            for data in (vector.data, bytearray(vector.data), memoryview(vector.data)):
                assert codec.decode(data, True) == message, (codec.name, vector)
                assert codec.decode(data, False) == message, (codec.name, vector)
            assert codec.encode(message) == vector.data, (codec.name, vector)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_prefixes_and_trailing_bytes(name: str) -> None:
    codec = registry[name]
    for vector in vectors()[name]:
        version, data = vector.version, vector.data
        some = few(vector)
        for size in tried(vector):
            refused = read_alike(codec, version, data[:size], True, size in some)
            assert refused[:2] == ("DecodeError", "truncated"), (vector, size)
            assert 0 <= refused[2] <= size, (vector, size)
            assert refused[3].startswith(f"{name}."), (vector, size)
            if size in some:
                read_alike(codec, version, data[:size], False)
        trailing = read_alike(codec, version, data + b"\0", True)
        assert trailing == ("DecodeError", "trailing", len(data), name), vector
        whole = read_alike(codec, version, data, True)
        for behind in (b"\0", JUNK):
            assert same(read_alike(codec, version, data + behind, False), whole), vector
        for one in codecs(codec, version)[:2]:
            assert one.decode_prefix(b"\xff" + data + b"\xff", 1, True) == (whole[1], len(data) + 1), (one.name, vector)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_changed_byte_is_read_or_refused_with_its_place(name: str) -> None:
    rng = random.Random(name)
    for vector in vectors()[name]:
        data, some = vector.data, few(vector)
        for at in tried(vector):
            old = data[at]
            byte = rng.choice([new for new in (*REPLACEMENTS, old + 1 & 0xFF, old - 1 & 0xFF) if new != old])
            changed = data[:at] + bytes([byte]) + data[at + 1 :]
            for strict in (True, False) if at in some else (True,):
                found = read_alike(registry[name], vector.version, changed, strict, at in some)
                if found[0] == "DecodeError":
                    assert 0 <= found[2] <= len(data), (vector, changed.hex())
                    assert found[3].startswith(name), (vector, changed.hex())


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, int, bytes]:
    vector = draw(st.sampled_from(vectors()[draw(st.sampled_from(NAMES))]))
    data = bytearray(vector.data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3) | st.just(b"\x80") | st.just(b"\xff\xff"))
    return vector.message, vector.version, bytes(data)


@given(damaged(), st.booleans())
def test_damaged_vectors_are_read_alike(case: tuple[str, int, bytes], strict: bool) -> None:
    name, version, data = case
    read_alike(registry[name], version, data, strict)
