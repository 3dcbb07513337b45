"""From class and version to program, in Python: `kcoord_wire.decode` and `encode` where the native core is not used."""

from __future__ import annotations

from typing import Any

from kcoord_wire.codec.backend import Find, Program

__all__ = ["Dispatch"]


class Dispatch:
    """`codec.backend.Dispatch`. A pair of class and version is asked of `find` once."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._programs: dict[tuple[type, int], Program] = {}

    def decode(self, cls: type, data: bytes | bytearray | memoryview, version: int, *, strict: bool = True) -> Any:
        """The message of class `cls` that `data` holds at `version`: a body without size or header.

        :param strict: see `MessageCodec.decode`
        :raises DecodeError: the bytes are not such a message, or it has no such version
        :raises TypeError: `cls` is not a message class of this package, or `data` no contiguous bytes
        """
        program = self._programs.get((cls, version)) or self._add(cls, version, True)
        return program.decode(data, strict)

    def encode(self, message: object, version: int) -> bytes:
        """The bytes of a message of this package at `version`: the body alone, without size or header.

        :raises EncodeError: the version is none of the message's, or the value cannot be written in it
        :raises TypeError: `message` is not a message of this package (for one of `compile_schemas`, use its registry)
        """
        cls = type(message)
        program = self._programs.get((cls, version)) or self._add(cls, version, False)
        return program.encode(message)

    def _add(self, cls: type, version: int, reading: bool) -> Program:
        program = self._programs[cls, version] = self._find(cls, version, reading)
        return program
