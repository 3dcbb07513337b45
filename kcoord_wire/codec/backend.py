"""Which codec runs: the native core where it is built, else the pure-Python one. Decided here and nowhere else.

``KCOORD_WIRE_BACKEND`` is ``auto`` (the default), ``native`` or ``python``. `auto` falls back only where the extension
is absent, and in a subinterpreter; an extension that exists but does not load, or was built for another plan format, is
an error.

The extensions belong to the process's main interpreter: they keep objects in C variables, of which a process has one
set. A subinterpreter never tries to load them, for the first interpreter that did would keep the others from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, Protocol

from kcoord_wire.schema.plan import Length, Op, Presence, StructPlan

__all__ = [
    "Dispatch",
    "DispatchClass",
    "PlainText",
    "Program",
    "ProgramClass",
    "backend",
    "dispatch_class",
    "load_native",
    "plain_text",
    "program_class",
]

REBUILD: Final = "make native (in a checkout) or pip install --force-reinstall kcoord_wire"


class Program(Protocol):
    """A message at one version, ready to read and write. Every method raises `DecodeError` or `EncodeError` alone."""

    def decode(self, data: bytes | bytearray | memoryview, strict: bool = True) -> Any:
        """The message that `data` holds; in strict mode bytes left over are an error."""

    def decode_prefix(self, data: bytes | bytearray | memoryview, offset: int, strict: bool) -> tuple[Any, int]:
        """The message that starts at `offset`, and the offset of the byte after it."""

    def encode(self, message: Any) -> bytes:
        """The bytes of `message`."""


class ProgramClass(Protocol):
    """Makes a `Program` of a plan and the classes of its structs by name."""

    def __call__(self, plan: StructPlan, classes: Mapping[str, type]) -> Program: ...


PlainText = Callable[[bytes, int], Any]
"""Reads the text-encoded message whose fields start at an offset; None where the form is not plain (`codec.text`)."""

Find = Callable[[type, int, bool], Program]


class Dispatch(Protocol):
    """From a message's class and version to its program: `kcoord_wire.decode` and `encode` are methods of one."""

    def decode(self, cls: type, data: bytes | bytearray | memoryview, version: int, *, strict: bool = True) -> Any:
        """The message of class `cls` that `data` holds at `version`: a body without size or header.

        :param strict: see `MessageCodec.decode`
        :raises DecodeError: the bytes are not such a message, or it has no such version
        :raises TypeError: `cls` is not a message class of this package, or `data` not contiguous bytes
        """

    def encode(self, message: object, version: int) -> bytes:
        """The bytes of a message of this package at `version`: the body alone, without size or header.

        :raises EncodeError: the message has no such version, or the value cannot be written in it
        :raises TypeError: `message` is not a message of this package (for one of `compile_schemas`, use its registry)
        """


class DispatchClass(Protocol):
    """Makes a `Dispatch` that calls `find(cls, version, reading)` once for each pair of class and version."""

    def __call__(self, find: Find) -> Dispatch: ...


def load_native(name: str) -> Any | None:
    """The extension of that name where it is built and `KCOORD_WIRE_BACKEND` allows it; else None.

    :raises ImportError: the variable is wrong; or the extension is required and not built, or this is a subinterpreter;
        or it does not load, or was built for another plan format
    """
    wanted = os.environ.get("KCOORD_WIRE_BACKEND", "auto")
    if wanted not in ("auto", "native", "python"):
        raise ImportError(f"KCOORD_WIRE_BACKEND is auto, native or python, not {wanted!r}")
    if wanted == "python":
        return None
    if not _main_interpreter():
        if wanted == "native":
            raise ImportError(f"KCOORD_WIRE_BACKEND=native, but {name} does not load in a subinterpreter")
        return None
    try:
        native: Any = import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        if wanted == "native":
            raise ImportError(f"KCOORD_WIRE_BACKEND=native, but {name} is not built: {REBUILD}") from None
        return None
    except ImportError as error:  # it exists and does not load: built for another Python
        error.add_note("KCOORD_WIRE_BACKEND=python does without it")
        raise
    ours = {kind.__name__: {member.name: member.value for member in kind} for kind in (Op, Length, Presence)}
    if ours != native.PLAN_FORMAT:
        raise ImportError(f"{name} was built for another plan format: rebuild it with {REBUILD}")
    return native


def _main_interpreter() -> bool:
    """Whether this is the process's first interpreter; yes where Python cannot say, because it has no others."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # since 3.13, and before
        try:
            interpreters = import_module(name)
        except ModuleNotFoundError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True


def _native_plain_text(plan: StructPlan, classes: Mapping[str, type]) -> PlainText:
    reads: PlainText = program_class(plan, classes).decode_plain_text  # type: ignore[attr-defined]  # native has it
    return reads


def _no_plain_text(plan: StructPlan, classes: Mapping[str, type]) -> PlainText:
    return lambda data, offset: None


def _choose() -> tuple[str, ProgramClass, DispatchClass]:
    native = load_native("kcoord_wire._native")
    if native is not None:
        return "native", native.Program, native.Dispatch
    from kcoord_wire.codec.dispatch import Dispatch as PythonDispatch
    from kcoord_wire.codec.python import Program as PythonProgram

    return "python", PythonProgram, PythonDispatch


backend, program_class, dispatch_class = _choose()
plain_text = _native_plain_text if backend == "native" else _no_plain_text
