"""Which codec runs: the native core where it is built, else the pure-Python one. Decided here and nowhere else.

``KCOORD_WIRE_BACKEND`` is ``auto`` (the default), ``native`` or ``python``. `auto` falls back only where the extension
is absent, and in a subinterpreter; an extension that exists but does not load, or was built for another plan format or
from other sources than those beside the package, is an error.

The extensions belong to the process's main interpreter: they keep objects in C variables, of which a process has one
set. A subinterpreter never tries to load them, for the first interpreter that did would keep the others from it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, overload

from kcoord_wire.codec.sources import digest
from kcoord_wire.schema.plan import Length, Op, Presence, StructPlan

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from kcoord_wire.codec.frames import Form, Header
    from kcoord_wire.codec.registry import Registry
    from kcoord_wire.messages.request_header import RequestHeader
    from kcoord_wire.messages.response_header import ResponseHeader

M = TypeVar("M")
Buffer = bytes | bytearray | memoryview
BytesAs = Literal["copy", "view"]

SOURCES: Final = Path(__file__).parents[2] / "_speedups"
POOL_BYTES: Final = 4 << 20
BLOCK_BYTES: Final = 1 << 20
REBUILD: Final = "make native (in a checkout) or pip install --force-reinstall kcoord_wire"


class Program(Protocol):
    """A message at one version, ready to read and write. Every method raises `DecodeError` or `EncodeError` alone."""

    def decode(self, data: Buffer, strict: bool = True, parts: bool = False, lazy: bool = False) -> Any:
        """The message that `data` holds; in strict mode bytes left over are an error.

        :param parts: long bytes fields become parts of the input (`MessageCodec.decode` with ``bytes="view"``)
        :param lazy: long arrays of structs become lazy arrays (`codec.lazy`)
        """

    def decode_prefix(
        self, data: Buffer, offset: int, strict: bool, parts: bool = False, lazy: bool = False
    ) -> tuple[Any, int]:
        """The message that starts at `offset`, and the offset of the byte after it."""

    def encode(self, message: Any) -> bytes:
        """The bytes of `message`."""

    def encode_into(self, message: Any, buffer: bytearray, offset: int = 0) -> int:
        """Write these bytes into `buffer` from `offset` on; return the offset of the byte after them (`codec.into`)."""


class ProgramClass(Protocol):
    """Makes a `Program` of a plan and the classes of its structs by name.

    With `subclass`, one of the message's class, it reads instances of that: without a call of their `__init__`.
    """

    def __call__(self, plan: StructPlan, classes: Mapping[str, type], subclass: type | None = None) -> Program: ...


PlainText = Callable[[bytes, int], Any]
"""Reads the text-encoded message whose fields start at an offset; None where the form is not plain (`codec.text`)."""


class Find(Protocol):
    """Finds the program of a class at a version; `drop`: one that writes, and leaves out what the version lacks."""

    def __call__(self, cls: type, version: int, reading: bool, *, drop: bool = False) -> Program: ...


class Dispatch(Protocol):
    """From a message's class and version to its program: `kcoord_wire.decode` and `encode` are methods of one."""

    def decode(
        self,
        cls: type,
        data: Buffer,
        version: int,
        *,
        strict: bool = True,
        bytes: BytesAs = "copy",
        lazy: bool = False,
    ) -> Any:
        """The message of class `cls` that `data` holds at `version`: a body without size or header.

        :param strict, bytes, lazy: see `MessageCodec.decode`
        :raises DecodeError: the bytes are not such a message, or it has no such version
        :raises TypeError: `cls` is not a message class of this package, or `data` not contiguous bytes
        """

    def encode(self, message: DataclassInstance, version: int, *, drop: bool = False) -> bytes:
        """The bytes of a message of this package at `version`: the body alone, without size or header.

        :param drop: see `MessageCodec.encode`
        :raises EncodeError: the message has no such version, or the value cannot be written in it
        :raises TypeError: `message` is not a message of this package (for one of `compile_schemas`, use its registry)
        """

    def encode_into(
        self, message: DataclassInstance, version: int, buffer: bytearray, *, offset: int = 0, drop: bool = False
    ) -> int:
        """Write what `encode` would return into a buffer that the caller keeps; return the offset of the byte after it.

        No object is made, so that a program which sends many messages can use one buffer for all of them. The buffer
        grows where it must and never shrinks; its other bytes stay. After an error it is as it was before.

        :param offset: where the message's first byte goes, at most the buffer's length
        :param drop: see `MessageCodec.encode`
        :raises EncodeError: as `encode`
        :raises TypeError: as `encode`, or `buffer` is no bytearray
        :raises ValueError: `offset` is negative, or above the buffer's length
        :raises BufferError: the buffer has to grow, and a memoryview of it is held
        """


class DispatchClass(Protocol):
    """Makes a `Dispatch` that calls `find(cls, version, reading)` once for each pair of class and version."""

    def __call__(self, find: Find) -> Dispatch: ...


class Frames(Protocol):
    """The frame bodies of a registry: header and message, without the four bytes of size.

    With `registry`, each method is that of the other registry's frames.
    """

    @overload
    def decode_request(
        self,
        body: Buffer,
        *,
        strict: bool = True,
        bytes: BytesAs = "copy",
        lazy: bool = False,
        registry: Registry | None = None,
    ) -> tuple[RequestHeader, Any]: ...

    @overload
    def decode_request(
        self,
        body: Buffer,
        *,
        family: str,
        strict: bool = True,
        bytes: BytesAs = "copy",
        lazy: bool = False,
        registry: Registry | None = None,
    ) -> tuple[Any, Any]: ...

    def decode_request(
        self,
        body: Buffer,
        *,
        family: str = "kafka",
        strict: bool = True,
        bytes: BytesAs = "copy",
        lazy: bool = False,
        registry: Registry | None = None,
    ) -> tuple[Any, Any]:
        """Header and request of a frame body.

        :param family: whose frames these are: ``kafka``, or ``central`` for the draft's. All requests of a family have
            the same kind of header
        :param strict, bytes, lazy: see `MessageCodec.decode`
        :param registry: where to look the api key up; the package's own by default
        :raises DecodeError: kind ``api`` for an api key and ``version`` for a version that the registry does not have;
            else as `MessageCodec.decode`, with offsets from the start of `body`
        """

    # The class of a draft's response has another header or none: hence Any, beside which editors still complete.
    @overload
    def decode_response(
        self,
        body: Buffer,
        api: type[M],
        version: int,
        *,
        strict: bool = True,
        bytes: BytesAs = "copy",
        lazy: bool = False,
        registry: Registry | None = None,
    ) -> tuple[ResponseHeader | Any, M]: ...

    @overload
    def decode_response(
        self,
        body: Buffer,
        api: int,
        version: int,
        *,
        strict: bool = True,
        bytes: BytesAs = "copy",
        lazy: bool = False,
        registry: Registry | None = None,
    ) -> tuple[ResponseHeader, Any]: ...

    @overload
    def decode_response(
        self,
        body: Buffer,
        api: type[M] | int,
        version: int,
        *,
        strict: bool = True,
        bytes: BytesAs = "copy",
        lazy: bool = False,
        registry: Registry | None = None,
    ) -> tuple[Any, Any]: ...

    def decode_response(
        self,
        body: Buffer,
        api: type | int,
        version: int,
        *,
        strict: bool = True,
        bytes: BytesAs = "copy",
        lazy: bool = False,
        registry: Registry | None = None,
    ) -> tuple[Any, Any]:
        """Header and response of a frame body. What it answers, the caller knows by its correlation id.

        :param api: the response's class, or its api key (family ``kafka``)
        :param version: the version of the request that it answers. A broker that does not know that version of
            ApiVersions answers in version 0 with error 35; such an answer is read as that (KIP-511), or, where that
            fails, in the version asked for: some brokers write error 35 in that version
        :raises DecodeError: as `decode_request`
        :raises TypeError: `api` is not the class of a response
        """

    def decode_prefixed(
        self, cls: type[M], blob: Buffer, *, strict: bool = True, registry: Registry | None = None
    ) -> tuple[int, M]:
        """Version and message of a blob that starts with its version as int16, as subscriptions and assignments do.

        A version above our newest is read as our newest, and what follows it is left unread: newer versions may only
        append (Kafka's ConsumerProtocol.java).

        :raises DecodeError: the bytes are not such a blob; offsets count from its start
        :raises TypeError: `cls` is not a message class of the registry, or `blob` not contiguous bytes
        """

    def encode_request(
        self,
        request: DataclassInstance,
        version: int,
        *,
        correlation_id: int = 0,
        client_id: str | None = None,
        header: Header = None,
        drop: bool = False,
        registry: Registry | None = None,
    ) -> bytes:
        """The frame body of a request: header and message; `frame` puts the size before it.

        :param correlation_id: int32, comes back in the response; the draft's frames have none
        :param client_id: at most 32767 bytes of UTF-8, None for null
        :param header: the whole header instead of these two, as `decode_request` returned it: its unknown tags are
            written, too
        :param drop: see `MessageCodec.encode`
        :raises EncodeError: the value cannot be written in that version
        :raises TypeError: `request` is not a request of the registry; or `header` is not one of its api key and
            `version`, or is given besides a correlation id or client id
        """

    def encode_response(
        self,
        response: DataclassInstance,
        version: int,
        *,
        correlation_id: int = 0,
        header: Header = None,
        drop: bool = False,
        registry: Registry | None = None,
    ) -> bytes:
        """The frame body of a response: header and message; `frame` puts the size before it.

        :param header: the whole header instead of the correlation id, as `decode_response` returned it
        :param drop: see `MessageCodec.encode`
        :raises EncodeError: the value cannot be written in that version
        :raises TypeError: `response` is not a response of the registry; or `header` is not that of a response, or is
            given besides a correlation id
        """

    def encode_request_into(
        self,
        request: DataclassInstance,
        version: int,
        buffer: bytearray,
        *,
        offset: int = 0,
        correlation_id: int = 0,
        client_id: str | None = None,
        header: Header = None,
        drop: bool = False,
        registry: Registry | None = None,
    ) -> int:
        """Write what `encode_request` would return into a buffer that the caller keeps, as `encode_into` does.

        :returns: the offset of the byte after it. With an offset of 4 the size has its place: that number less 4
        :raises EncodeError, TypeError: as `encode_request`
        :raises TypeError, ValueError, BufferError: as `encode_into`
        """

    def encode_response_into(
        self,
        response: DataclassInstance,
        version: int,
        buffer: bytearray,
        *,
        offset: int = 0,
        correlation_id: int = 0,
        header: Header = None,
        drop: bool = False,
        registry: Registry | None = None,
    ) -> int:
        """Write what `encode_response` would return into a buffer that the caller keeps, as `encode_request_into`."""


class Twin(Frames, Protocol):
    """The frames that the native ones pass on what they do not read or write themselves, and take their forms from."""

    def form(self, kind: str, api: int | type, version: int, family: str = "kafka") -> Form | None:
        """See `codec.frames.Frames.form`."""

    def prefixed(self, cls: type, version: int) -> Program | None:
        """See `codec.frames.Frames.prefixed`."""

    def has_kafka_header(self, family: str) -> bool:
        """Whether Kafka's header precedes the requests of a family."""


FramesClass = Callable[[Twin], Frames]


def load_native(name: str) -> Any | None:
    """The extension of that name where it is built and `KCOORD_WIRE_BACKEND` allows it; else None.

    :raises ImportError: the variable is wrong; or the extension is required and not built, or this is a subinterpreter;
        or it does not load, or was built for another plan format or from other sources than those beside the package
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
    except ImportError as error:  # it exists and does not load: built for another Python, or for another package
        error.add_note(f"rebuild {name} with {REBUILD}; KCOORD_WIRE_BACKEND=python does without it")
        raise
    _check_build(name, native)
    return native


def _check_build(name: str, native: Any) -> None:
    """ImportError where the extension was built for other numbers of the plan, or from other sources."""
    ours = {kind.__name__: {member.name: member.value for member in kind} for kind in (Op, Length, Presence)}
    if ours != native.PLAN_FORMAT:
        raise ImportError(f"{name} was built for another plan format: rebuild it with {REBUILD}")
    beside = _digest_beside()
    if beside and beside != getattr(native, "SOURCES", None):
        raise ImportError(f"{name} was not built from the sources in {SOURCES}: rebuild it with {REBUILD}")


@cache
def _digest_beside() -> int:
    """`digest` of the sources beside the package, which each column decoder would read again."""
    return digest(SOURCES)


def _main_interpreter() -> bool:
    """Whether this is the process's first interpreter; yes where Python cannot say, because it has no others."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # since 3.13, and before
        try:
            interpreters = import_module(name)
        except ModuleNotFoundError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True


def trim() -> int:
    """Give back all memory that the native codec keeps for messages to come; the number of bytes.

    Of dropped messages it keeps as much as the next ones are likely to take, at most `KCOORD_WIRE_POOL_BYTES`
    (environment; 4 MiB by default, 0 turns it off); of messages that were written into a buffer, one block of at most
    1 MiB, or of that number if it is less. The codec in Python keeps none: 0. Worth calling after a burst of large
    messages, or before memory is measured.
    """
    return _trim()


def _native_plain_text(plan: StructPlan, classes: Mapping[str, type]) -> PlainText:
    reads: PlainText = program_class(plan, classes).decode_plain_text  # type: ignore[attr-defined]  # native has it
    return reads


def _no_plain_text(plan: StructPlan, classes: Mapping[str, type]) -> PlainText:
    return lambda data, offset: None


def _same(twin: Twin) -> Frames:
    return twin


def _document(cls: type, protocol: type) -> None:
    """Give the methods of a native class the docstrings of its protocol, for `help` and editors."""
    for name, method in vars(protocol).items():
        if not name.startswith("_"):
            getattr(cls, name).__doc__ = method.__doc__


def _limits(native: Any) -> tuple[int, int]:
    """The bytes that the pools may keep, and the block of `encode_into`: at most `KCOORD_WIRE_POOL_BYTES`.

    Without it 4 MiB and 1 MiB; no pools where something debugs memory.

    :raises ImportError: the variable is not a number of bytes
    """
    wanted = os.environ.get("KCOORD_WIRE_POOL_BYTES", "")
    if wanted:
        if not wanted.isascii() or not wanted.isdigit() or int(wanted) > sys.maxsize:
            raise ImportError(f"KCOORD_WIRE_POOL_BYTES is a number of bytes, not {wanted!r}")
        return int(wanted), min(int(wanted), BLOCK_BYTES)
    # An allocator that finds uses of freed memory finds none in memory that a pool keeps.
    plain = os.environ.get("PYTHONMALLOC", "") in ("", "default", "pymalloc") and not sys.flags.dev_mode
    return POOL_BYTES if native.POOLS and plain else 0, BLOCK_BYTES


def _choose() -> tuple[str, ProgramClass, DispatchClass, FramesClass, Callable[[], int]]:
    native = load_native("kcoord_wire._native")
    if native is not None:
        native.limit_pools(*_limits(native))
        for ours, theirs in ((Dispatch, native.Dispatch), (Frames, native.Frames)):
            _document(theirs, ours)
        return "native", native.Program, native.Dispatch, native.Frames, native.trim
    from kcoord_wire.codec.dispatch import Dispatch as PythonDispatch
    from kcoord_wire.codec.python import Program as PythonProgram

    return "python", PythonProgram, PythonDispatch, _same, lambda: 0


backend: str
backend, program_class, dispatch_class, frames_class, _trim = _choose()
plain_text = _native_plain_text if backend == "native" else _no_plain_text
