"""Values of subclasses are written as what they inherit, whatever they override, by both codecs."""

from __future__ import annotations

import enum
import uuid
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.backend import ProgramClass
from kcoord_wire.codec.lazy import LAZY_ARRAYS
from kcoord_wire.codec.registry import registry
from kcoord_wire.codec.stored import stored_bytes, stored_int, stored_items, stored_message
from kcoord_wire.errors import EncodeError

LIE: Any = property(lambda self: pytest.fail("an overridden attribute was read"))


def lies(*args: Any, **kwargs: Any) -> Any:
    pytest.fail("an overridden method was called")


class Items(list[Any]):
    __iter__ = __len__ = __getitem__ = __eq__ = __ne__ = __bool__ = lies  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class Pair(tuple[Any, ...]):
    __iter__ = __len__ = __getitem__ = lies  # type: ignore[assignment]


class Text(str):
    encode = __len__ = __str__ = lies  # type: ignore[assignment]


class Raw(bytes):
    __bytes__ = __len__ = lies  # type: ignore[assignment]


class Array(bytearray):
    __bytes__ = __len__ = lies  # type: ignore[assignment]


class Number(int):
    __index__ = __int__ = __le__ = __ge__ = __lt__ = __gt__ = lies  # type: ignore[assignment]


class Id(uuid.UUID):
    int = bytes = LIE


class Color(enum.IntEnum):
    RED = 3


class Heartbeat(kw.HeartbeatRequest):  # type: ignore[misc]
    group_id = LIE

    def __eq__(self, other: object) -> bool:
        return lies()

    __hash__ = None  # type: ignore[assignment]


def write(program_class: ProgramClass, message: Any, version: int, cls: type | None = None) -> bytes:
    codec = registry.by_class(cls or type(message))
    return program_class(codec.plan(version), codec.classes).encode(message)


def identifier(number: int) -> Id:
    value = Id.__new__(Id)
    vars(uuid.UUID)["int"].__set__(value, number)
    return value


def test_fields_of_subclasses(program_class: ProgramClass) -> None:
    plain = kw.JoinGroupRequest(
        group_id="g\xe9", session_timeout_ms=3, protocols=[kw.JoinGroupRequestProtocol(name="range", metadata=b"xy")]
    )
    for raw in (Raw(b"xy"), Array(b"xy")):
        protocols = Items([kw.JoinGroupRequestProtocol(name=Text("range"), metadata=raw)])
        given = kw.JoinGroupRequest(group_id=Text("g\xe9"), session_timeout_ms=Number(3), protocols=protocols)
        assert write(program_class, given, 7) == write(program_class, plain, 7)
        given.session_timeout_ms = Color.RED
        assert write(program_class, given, 7) == write(program_class, plain, 7)


def test_lists_of_numbers_and_tags(program_class: ProgramClass) -> None:
    def fetch(items: Any, tags: Any) -> bytes:
        topics = [kw.FetchRequestForgottenTopic(topic="t", partitions=items)]
        return write(program_class, kw.FetchRequest(forgotten_topics_data=topics, unknown_tags=tags), 12)

    plain = fetch([1, 2], ((90, b"x"),))
    for items in (Items([1, 2]), Pair([1, 2]), Items([Number(1), Number(2)])):
        for tags in (Items([(90, b"x")]), Pair([Pair([Number(90), Raw(b"x")])])):
            assert fetch(items, tags) == plain


def test_uuids_of_a_subclass(program_class: ProgramClass) -> None:
    def topics(topic_id: uuid.UUID) -> bytes:
        return write(program_class, kw.MetadataRequest(topics=[kw.MetadataRequestTopic(topic_id=topic_id)]), 12)

    assert topics(identifier(5)) == topics(uuid.UUID(int=5))


def test_messages_of_a_subclass(program_class: ProgramClass) -> None:
    given = object.__new__(Heartbeat)
    for name, value in (("group_id", "g"), ("generation_id", 1), ("member_id", "m"), ("group_instance_id", None)):
        vars(kw.HeartbeatRequest)[name].__set__(given, value)
    given.unknown_tags = ()
    plain = kw.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert write(program_class, given, 4, kw.HeartbeatRequest) == write(program_class, plain, 4)
    vars(kw.HeartbeatRequest)["group_id"].__delete__(given)
    with pytest.raises(EncodeError, match=r"group_id: .*missing"):
        write(program_class, given, 4, kw.HeartbeatRequest)


def test_fields_a_version_lacks(program_class: ProgramClass) -> None:
    assert write(program_class, kw.OffsetFetchRequest(group_id="g", topics=None, groups=Items()), 7)
    with pytest.raises(EncodeError) as caught:
        write(program_class, kw.OffsetFetchRequest(group_id="g", topics=None, groups=Items([1])), 7)
    assert (caught.value.kind, caught.value.path) == ("version", "OffsetFetchRequest.groups")


def test_a_false_claim_of_a_class_is_refused(program_class: ProgramClass) -> None:
    class Claims:
        def __init__(self, cls: type) -> None:
            self.claimed = cls

        @property
        def __class__(self) -> type:  # type: ignore[override]
            return self.claimed

    for attr, cls in (("protocols", list), ("group_id", str), ("protocols", tuple)):
        with pytest.raises(EncodeError) as caught:
            write(program_class, kw.JoinGroupRequest(**{attr: Claims(cls)}), 7)
        assert (caught.value.kind, caught.value.path) == ("type", f"JoinGroupRequest.{attr}")


def test_a_class_that_claims_to_be_equal_is_refused(program_class: ProgramClass) -> None:
    class Unhashable(type):
        def __eq__(cls, other: object) -> bool:
            return True

    class Equal(Unhashable):
        def __hash__(cls) -> int:
            return hash(LAZY_ARRAYS[0])

    for metaclass in (Unhashable, Equal):
        value = metaclass("Value", (), {})()
        with pytest.raises(EncodeError) as caught:
            write(program_class, kw.JoinGroupRequest(protocols=value), 7)
        assert (caught.value.kind, caught.value.path) == ("type", "JoinGroupRequest.protocols")


def test_stored_values_ignore_overridden_methods() -> None:
    assert stored_items(Items([1])) == [1]
    assert stored_items(Pair([1])) == (1,)
    assert stored_items({1}) is None
    assert stored_bytes(Raw(b"x")) == b"x" == stored_bytes(memoryview(b"x"))
    assert stored_bytes(memoryview(b"abcd")[::2]) is None
    assert stored_bytes(memoryview(b"abcd")[::2], contiguous=False) == b"ac"
    assert stored_bytes("x") is None
    assert type(stored_int(Color.RED)) is int
    assert stored_message(3, kw.HeartbeatRequest) is None
