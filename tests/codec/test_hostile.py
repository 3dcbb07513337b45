"""Bytes and values made to do harm: each is refused by name and place, in bounded memory, and nothing is left behind.

Memory: no frame makes decoding allocate more than `WORST` times its size, its result included. The worst of all
messages are arrays of structs that hold nothing but empty lists: 61 times for StreamsGroupCurrentMemberAssignmentValue.
tracemalloc counts what Python asks for; the codecs allocate nothing else that grows with the input.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import tracemalloc
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kcoord_wire.codec.backend import Program, ProgramClass, trim
from kcoord_wire.codec.registry import MessageCodec, compile_schemas, registry
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.schema.plan import Op
from kcoord_wire.schema.reader import MAX_STRUCT_DEPTH
from tests.support.each import each
from tests.support.hostile_bytes import FRAME, HOSTILE, bombs
from tests.support.strategies import filled

ROOT = Path(__file__).resolve().parent.parent.parent
EVERYTHING = compile_schemas(ROOT / "tests" / "data" / "parity")["Everything"]
CODECS = [*(codec for codec in registry.values() if codec.schema.encoding == "binary"), EVERYTHING]
WORST = 64
MANY = 4_000


@pytest.fixture(autouse=True, scope="module")
def _small_heap() -> Iterator[None]:
    """What was there before is out of the collector's sight: hundreds of collections then cost little each."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def program(program_class: ProgramClass, codec: MessageCodec, version: int) -> Program:
    return program_class(codec.plan(version), codec.classes)


@each("case, name, version, body, expected", HOSTILE)
def test_a_hostile_body_is_refused_cheaply(
    program_class: ProgramClass, case: str, name: str, version: int, body: bytes, expected: tuple[str, int, str]
) -> None:
    kind, offset, field = expected
    for data in (body, bytearray(body), memoryview(body)):
        with pytest.raises(DecodeError) as caught:
            program(program_class, registry[name], version).decode(data)
        path = f"{name}.{field}" if field else name
        assert (caught.value.kind, caught.value.offset, caught.value.path) == (kind, offset, path)
        assert f"at byte {offset}" in str(caught.value)
        assert path in str(caught.value)


@pytest.mark.parametrize("data", ["text", None, 7, [0], memoryview(b"abcdefgh")[::2], memoryview(b"abcdefgh")[::-1]])
def test_a_value_without_a_buffer_is_a_type_error(program_class: ProgramClass, data: Any) -> None:
    heartbeat = program(program_class, registry["HeartbeatRequest"], 4)
    for strict in (True, False):
        with pytest.raises(TypeError):
            heartbeat.decode(data, strict)
        with pytest.raises(TypeError):
            heartbeat.decode_prefix(data, 0, strict)
    with pytest.raises(TypeError):
        registry["HeartbeatRequest"].decode(data, 4)


def test_the_buffer_is_released(program_class: ProgramClass) -> None:
    """A bytearray that was decoded, with an error or without, can change its size again."""
    heartbeat = program(program_class, registry["HeartbeatRequest"], 0)
    for body in (b"\0\1g\0\0\0\1\0\1m", b"\0\1g", b"\0\1\xff\0\0\0\1\0\1m"):
        data = bytearray(body)
        try:
            heartbeat.decode(data)
        except DecodeError as error:
            kept = error
            assert kept.__traceback__ is not None
        data += b"more"


# ---- depth and memory


@pytest.mark.parametrize("nullable", [True, False])
def test_the_deepest_schema_is_walked_on_a_small_stack(
    program_class: ProgramClass, tmp_path: Path, nullable: bool
) -> None:
    """33 structs: in arrays, or nullable ones. Threads of musl have 128 KB; a chain without end took 512 KB."""
    kind = {"nullableVersions": "0+", "default": "null"} if nullable else {}
    structs = [
        {
            "name": f"S{depth}",
            "versions": "0+",
            "fields": [{"name": "N", "type": f"{'' if nullable else '[]'}S{depth + 1}", "versions": "0+"} | kind],
        }
        for depth in range(MAX_STRUCT_DEPTH)
    ]
    structs.append(
        {"name": f"S{MAX_STRUCT_DEPTH}", "versions": "0+", "fields": [{"name": "A", "type": "int8", "versions": "0+"}]}
    )
    schema = {"type": "data", "name": "Deep", "validVersions": "0", "flexibleVersions": "none"}
    schema |= {"fields": structs[0]["fields"], "commonStructs": structs[1:]}
    (tmp_path / "Deep.json").write_text(json.dumps(schema))
    codec = compile_schemas(tmp_path)["Deep"]
    reader = program(program_class, codec, 0)
    body = (b"\1" if nullable else b"\0\0\0\1") * MAX_STRUCT_DEPTH + b"\7"
    done = []

    def walk() -> None:
        message = reader.decode(body)
        done.append(reader.encode(message) == body)
        with suppress(DecodeError):
            reader.decode(body[:-1])
        wide = b"\0\0\0\x10" + 16 * body[4:]
        with suppress(DecodeError):
            reader.decode(wide[:-1], lazy=True)
        done.append(nullable or reader.decode(wide, lazy=True).n[15] == message.n[0])

    size = threading.stack_size(128 << 10)
    try:
        thread = threading.Thread(target=walk)
        thread.start()
    finally:
        threading.stack_size(size)
    thread.join()
    assert done == [True, True]


def growth(call: Callable[[], object], size: int) -> float:
    """The memory that a call takes at its peak, its result included, in times of `size`."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        call()
        return (tracemalloc.get_traced_memory()[1] - before) / size
    finally:
        tracemalloc.stop()


NEWEST = [(codec, codec.valid_versions[-1]) for codec in CODECS]
HEAVIEST = [(registry["OffsetFetchRequest"], 8), (EVERYTHING, 0)]
HEAVIEST += [(registry[name], 1) for name in ("AlterClientQuotasRequest", "DescribeClientQuotasResponse")]


def test_memory_is_bounded_by_the_frame(program_class: ProgramClass) -> None:
    # Both make the same objects; the pure codec, twenty times slower at it, makes those of few messages.
    is_pure = program_class.__module__ == "kcoord_wire.codec.python"
    for codec, version in (*(NEWEST[::16] if is_pure else NEWEST), *HEAVIEST):
        reader = program(program_class, codec, version)
        frames = 0
        for frame in bombs(codec, version):
            reader.decode(frame)
            if len(frame) > FRAME // 4:
                frames += 1
                # What a collection, another thread or a first call allocates beside it is no more in a third call.
                grown = min(
                    growth(lambda reader=reader, frame=frame: reader.decode(frame), len(frame)) for _ in range(3)
                )
                assert grown < WORST, (codec.name, version)
            # The last byte is missing: what was made until then is as large, and is let go again.
            with pytest.raises(DecodeError):
                reader.decode(frame[:-1])
        assert frames or not any(step.op is Op.ARRAY for step in codec.plan(version).steps), (codec.name, version)


SURVIVOR = r"""
import random, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from importlib import import_module
from kcoord_wire.codec.registry import registry
from kcoord_wire.errors import DecodeError
from tests.support.apis import spoken
from tests.support.hostile_bytes import HOSTILE, bombs
program_class = import_module(sys.argv[1]).Program
rng = random.Random(7)
bodies = [(registry[name], version, body) for _, name, version, body, _ in HOSTILE]
for name in ("JoinGroupResponse", "OffsetFetchResponse", "FetchResponse"):
    codec = registry[name]
    bodies += [(codec, codec.valid_versions[-1], body) for body in bombs(codec, codec.valid_versions[-1])]
programs = {(c.name, v): program_class(c.plan(v), c.classes) for c, v, _ in bodies}
refused = read = 0
for turn in range(4000):
    codec, version, body = bodies[turn % len(bodies)]
    data = bytearray(body[:6000])
    if turn >= len(bodies):
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(1, 5)] = rng.choice((b"\x7f\xff\xff\xff", b"\xff", b"\x80", rng.randbytes(3)))
    for strict in (True, False):
        try:
            programs[codec.name, version].decode(bytes(data), strict)
            read += 1
        except DecodeError:
            refused += 1
print(read > 0, refused > 4000)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no limit on the address space of a process")
@pytest.mark.skipif(
    "LD_PRELOAD" in os.environ, reason="the address sanitizer reserves more address space than the limit"
)
@pytest.mark.parametrize("module", ["kcoord_wire._native", "kcoord_wire.codec.python"])
def test_all_of_it_within_a_gigabyte_of_addresses(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SURVIVOR, module], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True True\n", "")


# Values that fight back: what the writer calls may change what it is writing.


class Changes:
    """An int and a default to be compared with; each use calls `change`."""

    def __init__(self, change: Callable[[], None], number: int = 1) -> None:
        self.change = change
        self.number = number

    def __index__(self) -> int:
        self.change()
        return self.number

    def __eq__(self, other: object) -> bool:
        self.change()
        return False

    def __float__(self) -> float:
        self.change()
        return 1.0

    __hash__ = None  # type: ignore[assignment]


def empty_slots(value: Any) -> Callable[[], None]:
    def change() -> None:
        for attr in type(value).__slots__:
            if hasattr(value, attr):
                delattr(value, attr)
        gc.collect()

    return change


def clear(target: list[Any]) -> Callable[[], None]:
    def change() -> None:
        target.clear()
        target.extend([None] * 3)
        target.clear()
        gc.collect()

    return change


def attempt(writer: Program, message: Any) -> None:
    """Encode: bytes or an error, whatever the value does to itself."""
    try:
        written = writer.encode(message)
    except SystemError:
        raise
    except Exception:
        return
    assert isinstance(written, bytes)


@pytest.mark.parametrize("version", EVERYTHING.valid_versions)
@pytest.mark.parametrize("how", ["clear list", "grow list", "empty slots", "raise"])
def test_values_that_change_the_message_while_it_is_written(
    program_class: ProgramClass, version: int, how: str
) -> None:
    writer = program(program_class, EVERYTHING, version)
    inner = EVERYTHING.classes["EverythingInner"]
    for attr in (
        "plain", "real", "tiny", "longs", "reals", "inners", "gone", "gone_inner", "tagged_list", "tagged_id",
        "late_tag", "ids", "ignored", "note", "unknown_tags",
    ):  # fmt: skip
        message = EVERYTHING.cls()
        message.inners = [inner(), inner(), inner()]
        for items in (message.longs, message.reals, message.ports, message.tinies):
            items.extend([1, 2, 3])
        target: list[Any] = message.inners

        def change(how: str = how, message: Any = message, target: Any = target) -> None:
            if how == "empty slots":
                empty_slots(message)()
            elif how == "raise":
                raise ZeroDivisionError
            elif how == "grow list":
                target.append(Changes(lambda: None))
            else:
                clear(target)()

        evil = Changes(change)
        held = getattr(message, attr, None)
        if attr == "inners":
            message.inners[0].number = evil
            message.inners[1].numbers = [evil, evil]
        elif attr == "gone_inner":
            message.gone_inner.number = evil
            message.tagged_inner.number = evil
        elif attr == "note":
            message.inners[0].note = evil
        elif attr == "unknown_tags":
            message.unknown_tags = [(7, b"x"), (evil, b"y"), (9, evil)]
        elif isinstance(held, list):
            target = held
            held[1:1] = [Changes(lambda held=held: clear(held)()), evil]
        elif attr == "tagged_list":
            message.tagged_list = target = []
            target += [1, Changes(lambda target=target: clear(target)()), evil]
        else:
            setattr(message, attr, evil)
        attempt(writer, message)


def test_uuids_with_foreign_slots_do_no_harm(program_class: ProgramClass) -> None:
    for version in EVERYTHING.valid_versions:
        writer = program(program_class, EVERYTHING, version)
        for number in (Changes(gc.collect), -1, 2**128, "x", b"xy", None, 2.0):
            for attr in ("id", "tagged_id"):
                message = EVERYTHING.cls()
                forged = uuid.UUID(int=5)
                object.__setattr__(forged, "int", number)
                setattr(message, attr, forged)
                attempt(writer, message)
        message = EVERYTHING.cls()
        empty = uuid.UUID(int=5)
        object.__delattr__(empty, "int")
        message.id = empty
        attempt(writer, message)


# ---- leaks

SHARED = [None, True, False, (), "", b"", 0, 1, uuid.UUID(int=0)]


def settle() -> None:
    """Free what is kept without need: cycles, what the codec keeps, then CPython's own free lists."""
    gc.collect()
    trim()
    gc.collect()


def leaks(jobs: list[Callable[[], None]]) -> tuple[int, int]:
    """What `MANY` calls of the jobs in turn leave: bytes of memory, and references to objects that are shared."""
    for job in jobs:
        job()
    settle()
    tracemalloc.start()
    try:
        memory = tracemalloc.get_traced_memory()[0]
        references = [sys.getrefcount(value) for value in SHARED]
        for turn in range(MANY):
            jobs[turn % len(jobs)]()
        settle()
        grown = [sys.getrefcount(value) - old for value, old in zip(SHARED, references, strict=True)]
        return tracemalloc.get_traced_memory()[0] - memory, max(map(abs, grown))
    finally:
        tracemalloc.stop()


def reading(reader: Program, body: bytes) -> Callable[[], None]:
    def work() -> None:
        with suppress(DecodeError):
            reader.decode(body)

    return work


def writing(writer: Program, message: Any) -> Callable[[], None]:
    def work() -> None:
        with suppress(EncodeError):
            writer.encode(message)

    return work


@pytest.mark.parametrize("kind", ["decode", "encode"])
def test_nothing_leaks(program_class: ProgramClass, kind: str) -> None:
    """Success and failures in turn: a prefix of each length, a changed byte at each place, each attribute damaged."""
    everything = program(program_class, EVERYTHING, 3)
    message = filled(EVERYTHING, 3)
    jobs: list[Callable[[], None]] = []
    if kind == "decode":
        whole = everything.encode(message)
        bodies = [whole[:size] for size in range(len(whole) + 1)]
        for at in range(len(whole)):
            bodies += [whole[:at] + bytes([byte]) + whole[at + 1 :] for byte in (0x00, 0x80, 0xFF)]
        jobs += [reading(everything, body) for body in bodies]
        for name, version, body, _ in (case[1:] for case in HOSTILE):
            jobs.append(reading(program(program_class, registry[name], version), body[:64]))
    else:
        jobs.append(writing(everything, message))
        for attr in type(message).__slots__:
            for bad in (None, object(), "\ud800", 2**70, [None], [object(), 1], ((1, b""),), ((9, b""), (8, b""))):
                damaged = filled(EVERYTHING, 3)
                setattr(damaged, attr, bad)
                jobs.append(writing(everything, damaged))
            damaged = filled(EVERYTHING, 3)
            delattr(damaged, attr)
            jobs.append(writing(everything, damaged))
    # A thousand calls are too few: what the interpreter itself allocates once (about 1 KB) is a byte a call then.
    memory, references = leaks(jobs)
    assert memory < MANY, "less than a byte a call"
    assert references < MANY // 100
