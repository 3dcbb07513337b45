"""The garbage collector and decoded messages: cycles that a caller makes are collected, and programs with them."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.backend import ProgramClass
from kcoord_wire.codec.registry import MessageCodec


class Note:
    """What a caller may hang to a message, and that knows the message it hangs to."""

    def __init__(self, about: object) -> None:
        self.about = about


CASES = [
    ("JoinGroupResponse", 7, "members"),
    ("MetadataResponse", 9, "topics"),
    ("FetchResponse", 12, "node_endpoints"),  # absent in this version: a default
]


@pytest.mark.parametrize("name", [name for name, _, _ in CASES])
def test_a_cycle_through_a_decoded_list_is_collected(program_class: ProgramClass, name: str) -> None:
    _, version, attr = next(case for case in CASES if case[0] == name)
    codec: MessageCodec = kw.registry[name]
    program = program_class(codec.plan(version), codec.classes)
    message = program.decode(program.encode(codec.cls()))
    note = Note(message)
    getattr(message, attr).append(note)
    gone = weakref.ref(note)
    del message, note
    gc.collect()
    assert gone() is None


def test_a_program_in_a_cycle_gives_its_memory_back(program_class: ProgramClass) -> None:
    codec = kw.registry["FetchResponse"]
    plan, classes = codec.plan(12), codec.classes

    def cycles(count: int) -> int:
        for _ in range(count):
            holder: list[object] = [program_class(plan, classes)]
            holder.append(holder)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = cycles(50)
        # A plan of this message takes several KiB.
        assert cycles(200) - before < 20_000
    finally:
        tracemalloc.stop()
