"""Nothing is left of what was read, refused, read lazily or written: as many references and blocks as before.

The same inputs are used over and over: a block that one of them leaves behind is there once for each pass, and there
are more passes than `SLACK`. So the bound stays the same however long the test runs; `make proof` reads a million.
A debugging Python counts references as well, also those to objects that never go.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest

import kcoord_wire as kw
from fuzz.lazy import lazy_arrays, widened
from kcoord_wire.codec.registry import MessageCodec, registry
from kcoord_wire.errors import DecodeError, EncodeError, ProtocolError
from tests.support.codecs import REPLACEMENTS
from tests.support.strategies import filled

INPUTS = int(os.environ.get("KCOORD_WIRE_DAMAGED", "100000"))
SLACK = 25  # blocks or references: tables of Python's that grow once in a while
WARM = 3  # passes after which caches are full
DAMAGED = 6  # inputs made of each message
COUNTED: dict[str, Callable[[], int]] = {"blocks": sys.getallocatedblocks}
if hasattr(sys, "gettotalrefcount"):
    COUNTED["references"] = sys.gettotalrefcount
BLOCKS = pytest.mark.skipif(not sys.getallocatedblocks(), reason="this allocator, that of sanitizers, counts no blocks")
NEWEST = [
    (codec, version)
    for codec in registry.values()
    for version in {codec.valid_versions[0], codec.valid_versions[-1]}
    if codec.schema.encoding == "binary"
]


def damaged(data: bytes, rng: random.Random) -> Iterable[bytes]:
    """The bytes themselves, cut short, with more behind them, and with one or two that are others."""
    yield data
    yield data + b"\0"
    for _ in range(DAMAGED - 2):
        kind, changed = rng.randrange(4), bytearray(data or b"\0")
        at = rng.randrange(len(changed))
        if not kind:
            yield bytes(changed[:at])
            continue
        for _ in range(kind):
            changed[at] = rng.choice(REPLACEMENTS)
            at = rng.randrange(len(changed))
        yield bytes(changed)


def decoding(codec: MessageCodec, version: int, data: bytes, rng: random.Random) -> Callable[[], object]:
    cls, strict = codec.cls, rng.random() < 0.7
    given: Any = rng.choice((bytes, bytearray, memoryview))(data)
    return lambda: kw.decode(cls, given, version, strict=strict)


def decoding_lazily(codec: MessageCodec, version: int, data: bytes, rng: random.Random) -> Callable[[], object]:
    cls, strict, step = codec.cls, rng.random() < 0.7, rng.randrange(1, 4)
    long = kw.encode(widened(filled(codec, version), rng.randrange(2)), version)
    given = rng.choice([*damaged(long, rng)])
    return lambda: [array[::step] for array in lazy_arrays(kw.decode(cls, given, version, strict=strict, lazy=True))]


def reading_frames(codec: MessageCodec, version: int, data: bytes, rng: random.Random) -> Callable[[], object]:
    cls, message = codec.cls, filled(codec, version)
    body = len(kw.encode(message, version))
    if codec.schema.header != "kafka" or codec.schema.type not in ("request", "response"):
        return lambda: kw.decode_request(data)
    if codec.schema.type == "request":
        frame = kw.encode_request(message, version, correlation_id=5, client_id="c")[:-body] + data
        return lambda: kw.decode_request(frame)
    frame = kw.encode_response(message, version, correlation_id=5)[:-body] + data
    return lambda: kw.decode_response(frame, cls, version)


def writing(codec: MessageCodec, version: int, data: bytes, rng: random.Random) -> Callable[[], object]:
    message = filled(codec, version)
    if names := codec.cls.__slots__:
        name = rng.choice(names)
        values = (None, -1, 1 << 70, "x" * 40_000, "\ud800", b"b", [None], getattr(message, name))
        setattr(message, name, rng.choice(values))
    return lambda: kw.encode(message, version)


def used(call: Callable[[], object]) -> None:
    with suppress(DecodeError, EncodeError, ProtocolError, kw.SchemaError):
        call()


def growth(calls: list[Callable[[], object]], passes: int) -> dict[str, int]:
    """What is there more after so many passes than after the first ones, which fill caches."""

    def levels() -> dict[str, int]:
        gc.collect()
        kw.trim()  # what pools keep is no leak: it is bounded
        gc.collect()  # empties Python's own free lists, which that has filled
        return {name: count() for name, count in COUNTED.items()}

    for _ in range(WARM):
        for call in calls:
            used(call)
    levels()
    before = levels()
    for _ in range(passes):
        for call in calls:
            used(call)
    after = levels()
    return {name: after[name] - before[name] for name in COUNTED}


@BLOCKS
@pytest.mark.slow
@pytest.mark.parametrize("way", [decoding, decoding_lazily, reading_frames, writing])
def test_nothing_is_left_behind(way: Callable[..., Callable[[], object]]) -> None:
    rng = random.Random(way.__name__)
    calls = [
        way(codec, version, data, rng)
        for codec, version in NEWEST
        for data in damaged(kw.encode(filled(codec, version), version), rng)
    ]
    passes = max(2 * SLACK, INPUTS // len(calls))
    grown = growth(calls, passes)
    assert all(more < SLACK for more in grown.values()), f"{grown} after {passes} passes over {len(calls)} inputs"


@BLOCKS
def test_one_reference_that_is_left_in_a_pass_is_seen() -> None:
    kept: list[object] = []
    calls: list[Callable[[], object]] = [lambda: kept.append(object()), lambda: kw.encode(kw.HeartbeatRequest(), 4)]
    assert growth(calls, 2 * SLACK)["blocks"] >= SLACK
