"""Decoding into subclasses of the message classes, with both codecs."""

from __future__ import annotations

import gc
import pickle
import weakref
from abc import ABC, abstractmethod
from typing import Any

import pytest

import kcoord_wire as kw
from fuzz.lazy import facts, outcome
from kcoord_wire.codec.backend import ProgramClass
from kcoord_wire.codec.registry import registry
from kcoord_wire.messages import marshal
from tests.support.each import each
from tests.support.frame_readers import native_frames, pure_frames


class Answer(kw.JoinGroupResponse):
    """A client's message: with slots of its own, and a constructor that reading does not call."""

    __slots__ = ("received_at", "version")

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.version = 7

    def leader_is_us(self) -> bool:
        return self.leader == self.member_id


class Open(Answer):
    """With a dict, and weak references."""


class Guarded(kw.JoinGroupResponse):
    """Reading runs none of a class's own code."""

    __slots__ = ()
    leader = property(lambda self: "overridden")  # type: ignore[assignment]

    def __new__(cls, *args: object) -> Guarded:
        raise AssertionError("called")

    def __setattr__(self, name: str, value: object) -> None:
        raise AssertionError("called")


class Mixin:
    __slots__ = ()


class Mixed(Mixin, kw.JoinGroupResponse): ...


SENT = kw.JoinGroupResponse(
    leader="a", member_id="a", members=[kw.JoinGroupResponseMember(member_id="a", metadata=b"\0" * 40)],
    unknown_tags=((77, b"tag"),),
)  # fmt: skip
FIELDS = [*kw.JoinGroupResponse.__slots__]


def program_of(program_class: ProgramClass, cls: type, version: int = 7) -> Any:
    codec = registry["JoinGroupResponse"]
    return program_class(codec.plan(version), codec.classes, cls)


def stored(message: object) -> list[Any]:
    """The fields by their slots, whatever the class overrides."""
    return [vars(kw.JoinGroupResponse)[name].__get__(message) for name in FIELDS]


@each("cls", [Answer, Open, Guarded, Mixed])
def test_an_instance_of_the_subclass_is_read(program_class: ProgramClass, cls: type) -> None:
    program = program_of(program_class, cls)
    for version in (0, 5, 7, 9):
        sent = SENT if version >= 6 else kw.JoinGroupResponse(leader="a", members=[kw.JoinGroupResponseMember()])
        data = kw.encode(sent, version)
        program = program_of(program_class, cls, version)
        for strict in (True, False):
            message, end = program.decode_prefix(b"-" + data, 1, strict)
            for read in (program.decode(data, strict), message, program.decode(bytearray(data), strict, True)):
                assert type(read) is cls
                assert stored(read) == stored(sent)
                assert program.encode(read) == data
            assert end == 1 + len(data)


def test_what_the_subclass_adds_is_unset(program_class: ProgramClass) -> None:
    read = program_of(program_class, Answer).decode(kw.encode(SENT, 7))
    with pytest.raises(AttributeError):
        _ = read.version
    read.version = 3
    assert read.leader_is_us()
    opened = program_of(program_class, Open).decode(kw.encode(SENT, 7))
    assert vars(opened) == {}
    opened.anything = [opened]
    gone = weakref.ref(opened)
    del opened
    gc.collect()
    assert gone() is None


def test_errors_are_those_of_the_message(program_class: ProgramClass) -> None:
    data = kw.encode(SENT, 7)
    plain, sub = (program_of(program_class, cls) for cls in (None, Answer))  # type: ignore[arg-type]
    for damaged in (data[:-1], b"", data + b"\0", b"\xff" * len(data)):
        errors = [outcome(lambda: p.decode(damaged)) for p in (plain, sub)]  # noqa: B023  # called at once
        assert facts(errors[0]) == facts(errors[1])


class Abstract(kw.JoinGroupResponse, ABC):
    @abstractmethod
    def missing(self) -> None: ...


def test_an_abstract_class_has_no_instances(program_class: ProgramClass) -> None:
    program = program_of(program_class, Abstract)
    for _ in range(3):
        with pytest.raises(TypeError, match="abstract"):
            program.decode(kw.encode(SENT, 7))


@each("base", [dict, list, Exception])
def test_another_base_in_c_is_refused(program_class: ProgramClass, base: type) -> None:
    codec = registry["CentralStatusRequest"]  # without a field, so that its class fits beside any other
    both = type("Both", (codec.cls, base), {})
    program = program_class(codec.plan(0), codec.classes, both)
    for _ in range(2):
        with pytest.raises(TypeError, match="is not safe"):
            program.decode(codec.encode(codec.cls(), 0))


class Claimed:
    __mro__ = (kw.JoinGroupResponse, object)


@each("wrong", [Claimed(), kw.HeartbeatRequest, int])
def test_what_is_no_subclass_is_refused(program_class: ProgramClass, wrong: Any) -> None:
    with pytest.raises(TypeError):
        program_of(program_class, wrong).decode(kw.encode(SENT, 7))


@pytest.fixture(params=["python", "native"])
def frames(request: pytest.FixtureRequest) -> Any:
    return pure_frames() if request.param == "python" else native_frames()


def test_frames(frames: Any) -> None:
    class Asked(kw.HeartbeatRequest):
        __slots__ = ("sent_at",)

    body = kw.encode_response(SENT, 7, correlation_id=5)
    for given in (body, bytearray(body)):
        header, read = frames.decode_response(given, Answer, 7)
        assert (type(read), header.correlation_id, stored(read)) == (Answer, 5, stored(SENT))
    assert type(frames.decode_response(body, kw.JoinGroupResponse, 7)[1]) is kw.JoinGroupResponse
    asked = Asked(member_id="m")
    assert frames.encode_request(asked, 4) == frames.encode_request(kw.HeartbeatRequest(member_id="m"), 4)
    assert frames.encode_response(read, 7, correlation_id=5) == body


def test_functions_and_the_registry() -> None:
    data = kw.encode(SENT, 7)
    read = kw.decode(Answer, data, 7)
    assert (type(read), stored(read)) == (Answer, stored(SENT))
    codec = kw.registry.by_class(Answer)
    assert codec is kw.registry.by_class(Answer)
    assert codec.cls is Answer
    assert type(codec.decode(data, 7)) is Answer
    assert type(kw.registry.by_class(kw.JoinGroupResponse).decode(data, 7)) is kw.JoinGroupResponse
    assert kw.registry["JoinGroupResponse"].cls is kw.JoinGroupResponse
    assert type(kw.from_dict(Answer, kw.to_dict(SENT))) is Answer
    assert pickle.loads(pickle.dumps(read)).members == SENT.members
    with pytest.raises(TypeError, match="not a message class"):
        kw.registry.by_class(Claimed())  # type: ignore[arg-type]


def test_text_and_blobs() -> None:
    class Beat(marshal.Heartbeat):
        __slots__ = ("offset",)

        def __init__(self) -> None:
            raise AssertionError("called")

    class Subscription(kw.ConsumerProtocolSubscription):
        __slots__ = ()

    codec = kw.registry.by_class(Beat)
    sent = marshal.Heartbeat(time=4)
    text = codec.encode(sent, 0)
    for read in (codec.decode(text, 0), codec.decode_prefix(b"-" + text, 0, offset=1)[0], kw.decode(Beat, text, 0)):
        assert type(read) is Beat
        assert read.time == 4
    blob = kw.encode_prefixed(kw.ConsumerProtocolSubscription(topics=["t"]), 1)
    version, subscription = kw.decode_prefixed(Subscription, blob)
    assert (version, type(subscription), subscription.topics) == (1, Subscription, ["t"])


def test_an_instance_is_made_of_one_reference_each(program_class: ProgramClass) -> None:
    """Nothing is kept or dropped twice: a leak or a crash would show after so many."""
    program, data = program_of(program_class, Answer), kw.encode(SENT, 7)
    freed: list[int] = []

    class Counted(Answer):
        def __del__(self) -> None:
            freed.append(1)

    counted = program_of(program_class, Counted)
    held = [program.decode(data) for _ in range(1000)]
    for _ in range(1000):
        counted.decode(data)
    gc.collect()
    assert len(freed) == 1000
    assert all(each.members == SENT.members for each in held)
