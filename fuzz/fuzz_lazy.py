"""Lazy decoding accepts the bytes that decode accepts, and no others, and each element is what decode returns."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from fuzz.lazy import check_lazy
from fuzz.shapes import choose
from kcoord_wire.codec.backend import Program
from kcoord_wire.codec.python import Program as PythonProgram
from kcoord_wire.codec.registry import registry


def check(data: bytes) -> None:
    """`data`: a message behind its selector."""
    codec, version, body = choose(data)
    for program in programs(codec.name, version):
        for strict in (True, False):
            check_lazy(program, body, strict)


@cache
def programs(name: str, version: int) -> list[Program]:
    codec = registry[name]
    if codec.schema.encoding == "text":
        return [codec.program(version)]
    native: Program = import_module("kcoord_wire._native").Program(codec.plan(version), codec.classes)
    return [native, PythonProgram(codec.plan(version), codec.classes)]
