"""From class and version to program, in Python: `kcoord_wire.decode` and `encode` where the native core is not used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kcoord_wire.codec import backend
from kcoord_wire.codec.backend import Buffer, BytesAs, Find, Program
from kcoord_wire.codec.view import wants_parts

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Dispatch:
    """Implements `codec.backend.Dispatch`; calls `find` once for each pair of class and version."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._programs: dict[tuple[type, int], Program] = {}

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
        program = self._programs.get((cls, version)) or self._add(cls, version, True)
        return program.decode(data, strict, wants_parts(bytes), lazy)

    def encode(self, message: DataclassInstance, version: int, *, drop: bool = False) -> bytes:
        return self._writer(type(message), version, drop).encode(message)

    def encode_into(
        self, message: DataclassInstance, version: int, buffer: bytearray, *, offset: int = 0, drop: bool = False
    ) -> int:
        return self._writer(type(message), version, drop).encode_into(message, buffer, offset)

    decode.__doc__ = backend.Dispatch.decode.__doc__
    encode.__doc__ = backend.Dispatch.encode.__doc__
    encode_into.__doc__ = backend.Dispatch.encode_into.__doc__

    def _writer(self, cls: type, version: int, drop: bool) -> Program:
        if drop:
            return self._find(cls, version, False, drop=True)
        return self._programs.get((cls, version)) or self._add(cls, version, False)

    def _add(self, cls: type, version: int, reading: bool) -> Program:
        program = self._programs[cls, version] = self._find(cls, version, reading)
        return program
