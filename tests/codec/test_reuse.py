"""Whatever a program does with messages and their contents, the next message is read as if nothing had been before.

A random walk over all messages: it reads, keeps pieces, changes, hashes, interns, copies and drops them, and reads
again. Two laws are checked at each step: what is read equals what the pure codec reads, and what is kept never changes
by itself. They hold without effort where each object is fresh memory; where objects come from dropped ones, they are
what a mistake breaks. Each walk is the same in every run; KCOORD_WIRE_STEPS sets its length, `make proof` draws others.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import random
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any, Final

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.python import Program as PureProgram
from kcoord_wire.codec.registry import registry
from kcoord_wire.errors import DecodeError, EncodeError
from tests.support.backends import BACKENDS
from tests.support.codecs import REPLACEMENTS
from tests.support.strategies import filled

STEPS: Final = int(os.environ.get("KCOORD_WIRE_STEPS", "3000"))
KEPT: Final = 60  # pieces that are kept at a time: the oldest goes, so that memory is reused in another order
SEEDS: Final = range(3) if os.environ.get("KCOORD_WIRE_DRAWS") != "random" else [random.randrange(1 << 32)]
pytestmark = pytest.mark.skipif("native" not in BACKENDS, reason="the pure codec was asked for")


class Text(str):
    """A subclass, as a field may hold it."""

    __slots__ = ()


class Number(int):
    pass


class Owner:
    """What reads and drops messages itself while one is dropped."""

    def __init__(self, walk: Walk) -> None:
        self.walk = walk

    def __del__(self) -> None:
        self.walk.read()
        if self.walk.rng.random() < 0.2:
            gc.collect()


class Case:
    """A message at a version: the bytes of one that is filled, and what damages have made of them."""

    def __init__(self, codec: Any, version: int, rng: random.Random) -> None:
        plan, classes = codec.plan(version), codec.classes
        self.native = import_module("kcoord_wire._native").Program(plan, classes)
        self.pure = PureProgram(plan, classes)
        self.classes = list(classes.values())
        message = filled(codec, version)
        if lists := [piece for piece in pieces(message) if type(piece) is list and piece]:
            longer = rng.choice(lists)
            longer.extend(copy.deepcopy(longer) * rng.randrange(20))
        self.inputs = [self.pure.encode(message), self.pure.encode(filled(codec, version))]
        for _ in range(3):
            damaged = bytearray(self.inputs[0] or b"\0")
            damaged[rng.randrange(len(damaged))] = rng.choice(REPLACEMENTS)
            self.inputs += [bytes(damaged), bytes(damaged[: rng.randrange(len(damaged) + 1)])]


def pieces(value: Any) -> Iterator[Any]:
    """All that a message holds, itself first."""
    yield value
    if isinstance(value, list | tuple):
        for item in value:
            yield from pieces(item)
    elif is_dataclass(value):
        for name in value.__slots__:
            yield from pieces(getattr(value, name))


def outcome(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except (DecodeError, EncodeError) as error:
        return type(error), error.kind, error.path, getattr(error, "offset", None)


class Walk:
    def __init__(self, seed: int, cases: list[Case]) -> None:
        self.rng = random.Random(seed)
        self.cases = cases
        self.kept: deque[tuple[Any, str]] = deque()
        self.read_steps = 0

    def read(self) -> Any:
        """One message, or its error, by both codecs: the same."""
        case = self.rng.choice(self.cases)
        data, strict = self.rng.choice(case.inputs), self.rng.random() < 0.7
        given = self.rng.choice((bytes, bytearray, memoryview))(data)
        found = outcome(case.native.decode, given, strict)
        expected = outcome(case.pure.decode, data, strict)
        assert found == expected or repr(found) == repr(expected), (case.native, data, strict)
        if is_dataclass(found) and strict:
            assert outcome(case.native.encode, found) == outcome(case.pure.encode, expected)
        self.read_steps += 1
        return found

    def step(self) -> None:
        found = self.read()
        held = list(pieces(found))
        piece = self.rng.choice(held)
        self.rng.choice(ACTIONS)(self, found, piece)
        del found, held, piece
        while len(self.kept) > self.rng.randrange(KEPT):
            self.check(*self.kept.popleft())

    def keep(self, piece: Any) -> None:
        self.kept.append((piece, shown(piece)))

    def check(self, piece: Any, before: str) -> None:
        assert shown(piece) == before, "what was kept has changed"
        if type(piece) in (str, bytes):
            fresh = piece[:1] + piece[1:] if len(piece) > 1 else piece
            assert hash(piece) == hash(fresh)
            assert {fresh: True}.get(piece), "a hash of what the memory held before"

    def finish(self) -> None:
        while self.kept:
            self.check(*self.kept.pop())


def shown(piece: Any) -> str:
    return f"{type(piece).__name__} {piece!r}"


# ---- what a program does


def drop(walk: Walk, found: Any, piece: Any) -> None:
    del found, piece


def keep(walk: Walk, found: Any, piece: Any) -> None:
    walk.keep(piece)


def keep_all(walk: Walk, found: Any, piece: Any) -> None:
    walk.keep(found)


def use_as_keys(walk: Walk, found: Any, piece: Any) -> None:
    seen: dict[Any, int] = {}
    for each in pieces(found):
        with suppress(TypeError):
            seen[each] = seen.get(each, 0) + 1
    if isinstance(piece, str | bytes | int):
        walk.keep(piece)


def intern(walk: Walk, found: Any, piece: Any) -> None:
    for each in pieces(found):
        if type(each) is str:
            setattr(Owner, "x" + each[:50].replace("\0", ""), None)
            sys.intern(each)


def change_lists(walk: Walk, found: Any, piece: Any) -> None:
    lists = [each for each in pieces(found) if type(each) is list]
    for each in lists:
        walk.rng.choice((each.clear, each.reverse, each.copy, lambda each=each: each.extend(each[:3]), lambda: None))()
        if each and walk.rng.random() < 0.5:
            iterator = iter(each)
            next(iterator)
            each.pop()
            each.insert(0, each[-1] if each else None)
    if lists:
        walk.keep(walk.rng.choice(lists)[:2])


def change_fields(walk: Walk, found: Any, piece: Any) -> None:
    for each in [each for each in pieces(found) if is_dataclass(each) and each.__slots__]:
        name = walk.rng.choice(each.__slots__)
        values = (
            None, Text("subclass of text"), Number(1 << 40), True, 1.5, b"", [], [each], each, Owner(walk),
            memoryview(b"x" * 2000), getattr(each, name), -1, 1 << 70, "\u00e9" * 9,
        )  # fmt: skip
        setattr(each, name, walk.rng.choice(values))
        if walk.rng.random() < 0.1:
            delattr(each, name)


def copy_it(walk: Walk, found: Any, piece: Any) -> None:
    walk.keep(walk.rng.choice((copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))))(found))


def make_a_cycle(walk: Walk, found: Any, piece: Any) -> None:
    lists = [each for each in pieces(found) if type(each) is list]
    if lists:
        walk.rng.choice(lists).append(found)


def make_instances(walk: Walk, found: Any, piece: Any) -> None:
    cls = walk.rng.choice(walk.rng.choice(walk.cases).classes)
    walk.keep(cls())
    sub = type(
        "Sub",
        (cls,),
        walk.rng.choice(({}, {"__slots__": ()}, {"__slots__": ("more",)}, {"__slots__": ("__weakref__",)})),
    )
    made = sub()
    with suppress(TypeError):
        weakref.ref(made)
    if cls.__slots__:
        setattr(made, cls.__slots__[0], walk.rng.choice((made, found, piece)))
    if walk.rng.random() < 0.5 and cls.__slots__:
        twin = type("Twin", (), {"__slots__": cls.__slots__})
        other = cls()
        with suppress(TypeError):
            other.__class__ = twin


def finalize(walk: Walk, found: Any, piece: Any) -> None:
    """A class gets a `__del__` while instances are there, and loses it."""
    cls = type(found)
    if not is_dataclass(found):
        return
    cls.__del__ = lambda self: walk.kept.append((self, shown(self)))
    try:
        del found, piece
        walk.read()
    finally:
        del cls.__del__


def collect(walk: Walk, found: Any, piece: Any) -> None:
    gc.collect(walk.rng.randrange(3))


def trim(walk: Walk, found: Any, piece: Any) -> None:
    walk.keep(piece)
    getattr(kw, "trim", gc.collect)()


def read_lazily(walk: Walk, found: Any, piece: Any) -> None:
    """Lazy arrays keep their bytes, and make their elements in any order, or never."""
    case = walk.rng.choice(walk.cases)
    data, parts = walk.rng.choice(case.inputs), walk.rng.random() < 0.5
    lazy, whole = outcome(case.native.decode, data, True, parts, True), outcome(case.native.decode, data, True)
    if not is_dataclass(lazy):
        assert lazy == whole
        return
    arrays = [getattr(lazy, name) for name in lazy.__slots__ if isinstance(getattr(lazy, name), Sequence)]
    for array in arrays:
        if array and walk.rng.random() < 0.8:
            walk.keep(array[walk.rng.randrange(-len(array), len(array))])
            walk.keep(array[:: walk.rng.choice((-3, 2))])
    walk.rng.choice((lambda: walk.keep(lazy), lambda: walk.keep(arrays[0]) if arrays else None, lambda: None))()
    if walk.rng.random() < 0.5:
        assert repr(lazy) == repr(whole) or parts
        walk.keep(lazy)


def in_a_thread(walk: Walk, found: Any, piece: Any) -> None:
    """Another thread has the last reference."""
    box = [found, piece]
    del found, piece
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()


ACTIONS: Final[list[Callable[[Walk, Any, Any], None]]] = [
    drop, drop, drop, keep, keep, keep_all, use_as_keys, intern, change_lists, change_lists, change_fields,
    change_fields, copy_it, make_a_cycle, make_instances, finalize, collect, trim, read_lazily,
    read_lazily, in_a_thread,
]  # fmt: skip


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    rng = random.Random("cases")
    versions = [(codec, codec.valid_versions) for codec in registry.values() if codec.schema.encoding == "binary"]
    return [Case(codec, version, rng) for codec, valid in versions for version in {valid[0], valid[-1]}]


@pytest.fixture
def quick_collections(cases: list[Case]) -> Iterator[None]:
    """Collections leave out what was there before: a walk makes a hundred of them."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures("quick_collections")
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_before_is_not_seen(cases: list[Case], seed: int) -> None:
    walk = Walk(seed, cases)
    for _ in range(STEPS):
        walk.step()
    walk.finish()
    assert walk.read_steps >= STEPS


def test_a_change_of_what_is_kept_is_seen(cases: list[Case]) -> None:
    walk = Walk(0, cases)
    message = kw.HeartbeatRequest(group_id="g")
    walk.keep(message)
    message.group_id = "changed"
    with pytest.raises(AssertionError, match="has changed"):
        walk.finish()
