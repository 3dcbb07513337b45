"""What is true of the native core alone: which classes it fills, and memory that changes while it is read."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import make_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.registry import registry
from kcoord_wire.errors import DecodeError
from tests.support.backends import BACKENDS

pytestmark = pytest.mark.skipif("native" not in BACKENDS, reason="the pure codec was asked for")
HEARTBEAT = registry["HeartbeatRequest"]
FIELDS = [*kw.HeartbeatRequest.__slots__]


def program(cls: type) -> Any:
    return import_module("kcoord_wire._native").Program(HEARTBEAT.plan(4), {"HeartbeatRequest": cls})


def slotted() -> Any:
    return make_dataclass("HeartbeatRequest", FIELDS, slots=True)


def test_a_class_with_the_plans_slots_is_filled() -> None:
    data = kw.encode(kw.HeartbeatRequest(group_id="g", member_id="m"), 4)
    assert program(slotted()).decode(data).member_id == "m"


@pytest.mark.parametrize("module", ["kcoord_wire._native", "kcoord_wire._columns"])
def test_no_class_is_restored_from_a_state(module: str) -> None:
    """What Cython would add lets Python code store pointers' owners and offsets; copies of lazy arrays are lists."""
    classes = [each for each in vars(import_module(module)).values() if getattr(each, "__module__", None) == module]
    found = {each.__name__: {name for name in vars(each) if "reduce" in name or "state" in name} for each in classes}
    assert found
    ours = {"LazyArray": {"__reduce__"}}
    assert {name: methods for name, methods in found.items() if methods} == {
        name: methods for name, methods in ours.items() if name in found
    }


def test_two_attributes_in_one_slot_are_refused() -> None:
    cls = slotted()
    cls.member_id = vars(cls)["group_id"]
    with pytest.raises(TypeError, match="two attributes in one slot"):
        program(cls)


def test_the_slot_of_another_class_is_refused() -> None:
    class Other:
        __slots__ = ("a", "b", "c", "d", "e", "f", "g")

    cls = slotted()
    cls.member_id = vars(Other)["g"]
    with pytest.raises(TypeError, match="is a slot of Other"):
        program(cls)


def test_other_slots_than_the_plan_has_are_refused() -> None:
    for fields in (FIELDS[:-1], [*FIELDS, "more"]):
        with pytest.raises(TypeError):
            program(make_dataclass("HeartbeatRequest", fields, slots=True))
    with pytest.raises(TypeError, match="dataclass with slots"):
        program(make_dataclass("HeartbeatRequest", FIELDS))


FLIPPER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
    print(flush=True)
    at = len(memory) - 20
    while True:
        for _ in range(1000):
            memory[at] = 0xE9
            memory[at] = 0x61
"""


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Another process writes one byte of the file's end, ASCII and not in turn, as fast as it can."""
    child = subprocess.Popen([sys.executable, "-S", "-c", FLIPPER, str(path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        yield
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def test_memory_that_another_process_changes(tmp_path: Path) -> None:
    """A str never claims to be ASCII without being so, whatever becomes of the bytes while they are read."""
    path = tmp_path / "frame"
    path.write_bytes(kw.encode(kw.HeartbeatRequest(group_id="g" * 32_000, member_id="m"), 0))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory, memoryview(memory) as view, changing(path):
        text = ""
        for _ in range(3_000):
            for strict in (True, False):
                with suppress(DecodeError):  # strict, and the byte was not ASCII
                    text = kw.decode(kw.HeartbeatRequest, view, 0, strict=strict).group_id
                assert text.isascii() == text.encode("utf-8", "surrogatepass").isascii()
                assert not text.isascii() or bytes(text, "latin-1").isascii()
