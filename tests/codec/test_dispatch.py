"""From class and version to program, in both codecs: the right program, whatever runs in between."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from kcoord_wire.codec.dispatch import Dispatch
from kcoord_wire.codec.registry import registry
from kcoord_wire.errors import DecodeError
from tests.support.backends import BACKENDS


@pytest.fixture(params=BACKENDS)
def dispatch_class(request: pytest.FixtureRequest) -> Any:
    return Dispatch if request.param == "python" else import_module("kcoord_wire._native").Dispatch


class Answer:
    """A program that says which pair it was made for."""

    def __init__(self, pair: tuple[type, int]) -> None:
        self.pair = pair

    def decode(self, data: bytes, *options: bool) -> tuple[type, int]:
        return self.pair

    def encode(self, message: object) -> bytes:
        return repr(self.pair).encode()


class First: ...


class Second: ...


def test_find_is_called_once_for_each_pair(dispatch_class: Any) -> None:
    asked: list[tuple[type, int, bool]] = []

    def find(cls: type, version: int, reading: bool) -> Answer:
        asked.append((cls, version, reading))
        return Answer((cls, version))

    dispatch = dispatch_class(find)
    for _ in range(3):
        for cls in (First, Second):
            for version in (0, 1, 1000):
                assert dispatch.decode(cls, b"", version) == (cls, version)
                assert dispatch.encode(cls(), version) == repr((cls, version)).encode()
    assert asked == [(cls, version, True) for cls in (First, Second) for version in (0, 1, 1000)]


def test_a_version_that_decodes_when_it_is_dropped(dispatch_class: Any) -> None:
    dispatch = dispatch_class(lambda cls, version, reading: Answer((cls, int(version))))

    class Version(int):
        def __del__(self) -> None:
            dispatch.decode(Second, b"", 2)

    for _ in range(3):
        dispatch.decode(First, b"", Version(1))
        assert dispatch.decode(First, b"", 7) == (First, 7)
        assert dispatch.decode(Second, b"", 2) == (Second, 2)
        assert dispatch.decode(First, b"", 7) == (First, 7)
        dispatch.decode(First, b"", Version(7))
        assert dispatch.decode(Second, b"", 8) == (Second, 8)
        assert dispatch.decode(First, b"", 1) == (First, 1)


def test_what_find_raises_is_raised_and_not_kept(dispatch_class: Any) -> None:
    dispatch = dispatch_class(lambda cls, version, reading: registry.by_class(cls).program(version, reading))
    heartbeat = registry["HeartbeatRequest"].cls
    for _ in range(2):
        with pytest.raises(DecodeError, match="no version 77"):
            dispatch.decode(heartbeat, b"", 77)
        with pytest.raises(TypeError, match="not a message class"):
            dispatch.decode(None, b"", None)
