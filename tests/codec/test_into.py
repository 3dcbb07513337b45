"""Encoding into a bytearray that the caller keeps: the bytes of `encode` in their place, or the buffer as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest

import kcoord_wire as kw
from kcoord_wire import messages
from kcoord_wire.codec.dispatch import Dispatch
from kcoord_wire.codec.python import Program
from kcoord_wire.codec.registry import MessageCodec, registry
from tests.support.backends import BACKENDS
from tests.support.each import each
from tests.support.frame_readers import native_frames, pure_frames
from tests.support.strategies import filled

OLD = bytes(range(256)) * 16  # what a buffer holds before


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def frames(backend: str) -> Any:
    return pure_frames() if backend == "python" else native_frames()


def program(program_class: Any, codec: MessageCodec, version: int) -> Any:
    if codec.schema.encoding == "text":
        return codec.program(version)
    return program_class(codec.plan(version), codec.classes)


@pytest.fixture
def heartbeats(program_class: Any) -> Any:
    return program(program_class, registry["HeartbeatRequest"], 4)


@pytest.fixture
def joins(program_class: Any) -> Any:
    return program(program_class, registry["JoinGroupResponse"], 9)


HEARTBEAT = kw.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def join(last: Any = b"subscription", members: int = 200) -> Any:
    """A message that is not built on the C stack, whose last member holds `last`."""
    return kw.JoinGroupResponse(
        members=[messages.JoinGroupResponseMember(member_id=f"m-{i}", metadata=b"abc" * i) for i in range(members)]
        + [messages.JoinGroupResponseMember(member_id="last", metadata=last)]
    )


@each("codec", list(registry.values()))
def test_the_bytes_of_encode(codec: MessageCodec) -> None:
    for name in BACKENDS:
        cls = Program if name == "python" else import_module("kcoord_wire._native").Program
        for version in (codec.valid_versions[0], codec.valid_versions[-1]):
            writer, message = program(cls, codec, version), filled(codec, version)
            data = writer.encode(message)
            buffer = bytearray(OLD)
            assert writer.encode_into(message, buffer, 5) == 5 + len(data)
            assert buffer == OLD[:5] + data + OLD[5 + len(data) :]


def test_messages_one_after_the_other(heartbeats: Any, joins: Any) -> None:
    buffer = bytearray()
    expected = b""
    for message, writer in [(HEARTBEAT, heartbeats), (join(), joins), (HEARTBEAT, heartbeats), (join(), joins)] * 3:
        expected += writer.encode(message)
        assert writer.encode_into(message, buffer, len(buffer)) == len(expected)
        assert buffer == expected


def test_a_buffer_grows_and_never_shrinks(joins: Any, heartbeats: Any) -> None:
    data, small = joins.encode(join()), heartbeats.encode(HEARTBEAT)
    for size in (0, 1, len(data) - 1, len(data), len(data) + 1):
        buffer = bytearray(b"x" * size)
        assert joins.encode_into(join(), buffer) == len(data)
        assert buffer == data + b"x" * (size - len(data))
        assert heartbeats.encode_into(HEARTBEAT, buffer) == len(small)
        assert buffer == small + data[len(small) :] + b"x" * (size - len(data))


@pytest.mark.parametrize("offset", [-1, -5000, 4, 2**62, 2**70, -(2**70)])
def test_an_offset_outside_of_the_buffer(heartbeats: Any, offset: int) -> None:
    buffer = bytearray(b"abc")
    with pytest.raises(ValueError, match=f"offset {offset} is outside of a buffer of 3 bytes"):
        heartbeats.encode_into(HEARTBEAT, buffer, offset)
    assert buffer == b"abc"


def test_an_offset_is_an_integer(heartbeats: Any) -> None:
    class Three:
        def __index__(self) -> int:
            return 3

    with pytest.raises(TypeError, match="float"):
        heartbeats.encode_into(HEARTBEAT, bytearray(8), 3.0)
    buffer = bytearray(b"abc")
    assert heartbeats.encode_into(HEARTBEAT, buffer, Three()) == len(buffer)
    assert buffer == b"abc" + heartbeats.encode(HEARTBEAT)


@pytest.mark.parametrize("buffer", [None, b"abc", memoryview(bytearray(100)), "text", [0] * 100])
def test_what_is_no_bytearray(heartbeats: Any, frames: Any, buffer: Any) -> None:
    refusal = f"written into a bytearray, not into a {type(buffer).__name__}"
    for write in (
        lambda: heartbeats.encode_into(HEARTBEAT, buffer),
        lambda: heartbeats.encode_into(None, buffer),  # before the message is looked at
        lambda: frames.encode_request_into(HEARTBEAT, 4, buffer),
        lambda: frames.encode_response_into(kw.HeartbeatResponse(), 4, buffer),
    ):
        with pytest.raises(TypeError, match=refusal):
            write()


def test_a_subclass_of_bytearray(heartbeats: Any) -> None:
    class Loud(bytearray):
        def __len__(self) -> int:
            raise AssertionError

        def __setitem__(self, at: Any, value: Any) -> None:
            raise AssertionError

    buffer = Loud(b"abc")
    data = heartbeats.encode(HEARTBEAT)
    assert heartbeats.encode_into(HEARTBEAT, buffer, 3) == 3 + len(data)
    assert bytes(buffer) == b"abc" + data


@pytest.mark.parametrize("size", [0, 10, len(OLD)])
def test_an_error_leaves_the_buffer_as_it_was(joins: Any, heartbeats: Any, frames: Any, size: int) -> None:
    buffer = bytearray(OLD[:size])
    writes: list[Callable[[], Any]] = [
        lambda: joins.encode_into(join(None), buffer),
        lambda: joins.encode_into(join("text"), buffer, size),
        lambda: joins.encode_into(join(members=0).members[0], buffer),
        lambda: heartbeats.encode_into(kw.HeartbeatRequest(generation_id=2**31), buffer),
        lambda: frames.encode_response_into(join(None), 9, buffer),
        lambda: frames.encode_response_into(join(), 99, buffer),
        lambda: frames.encode_response_into(join(), 9, buffer, correlation_id=2**31),
        lambda: frames.encode_request_into(kw.HeartbeatRequest(group_id=None), 4, buffer, client_id="c"),
    ]
    for write in writes:
        with pytest.raises(kw.EncodeError):
            write()
        assert buffer == OLD[:size]


def test_a_buffer_that_is_exported(joins: Any) -> None:
    data = joins.encode(join())
    buffer = bytearray(len(data) + 2)
    with memoryview(buffer) as held:
        assert joins.encode_into(join(), buffer, 2) == len(buffer)
        assert held == b"\0\0" + data
        with pytest.raises(BufferError):
            joins.encode_into(join(), buffer, 3)
        assert held == b"\0\0" + data
    assert joins.encode_into(join(), buffer, 3) == len(data) + 3
    assert buffer == b"\0\0" + data[:1] + data


def test_a_message_that_holds_bytes_of_the_buffer(joins: Any) -> None:
    buffer = bytearray(OLD * 32)
    with memoryview(buffer) as whole, whole[:300] as held:
        expected = joins.encode(join(held.tobytes()))
        assert joins.encode_into(join(held), buffer, 100) == 100 + len(expected)
        assert buffer[100 : 100 + len(expected)] == expected
        with pytest.raises(BufferError):
            joins.encode_into(join(held), buffer, len(buffer))


@dataclass
class Number:
    """A number whose code runs while the message is encoded."""

    work: Callable[[], Any]

    def __index__(self) -> int:
        self.work()
        return 7


@pytest.mark.parametrize("large", [False, True])
def test_a_value_whose_code_changes_the_buffer(joins: Any, large: bool) -> None:
    def answer(work: Callable[[], Any]) -> Any:
        message = join(members=300 if large else 0)
        message.generation_id = Number(work)
        return message

    data = joins.encode(answer(lambda: None))
    buffer = bytearray(OLD)
    # Smaller: what was there before the offset is gone, and the message cannot begin behind the end.
    with pytest.raises(ValueError, match="offset 100 is outside of a buffer of 50 bytes"):
        joins.encode_into(answer(lambda: buffer.__delitem__(slice(50, None))), buffer, 100)
    assert buffer == OLD[:50]
    assert joins.encode_into(answer(buffer.clear), buffer, 0) == len(data)
    assert buffer == data
    # Larger, so that its memory is another one.
    buffer = bytearray(b"abc")
    assert joins.encode_into(answer(lambda: buffer.extend(OLD * 64)), buffer, 3) == 3 + len(data)
    assert buffer == b"abc" + data + (OLD * 64)[len(data) :]
    # Written to by the same function, and exported from then on.
    held: list[memoryview] = []

    def write() -> None:
        assert joins.encode_into(join(), buffer, 1) == 1 + len(inner)
        held.append(memoryview(buffer))

    inner = joins.encode(join())
    buffer = bytearray(b"abc")
    if large:
        with pytest.raises(BufferError):
            joins.encode_into(answer(write), buffer, 3)
        assert buffer == b"a" + inner
    else:
        assert joins.encode_into(answer(write), buffer, 3) == 3 + len(data)
        assert buffer == b"a" + inner[:2] + data + inner[2 + len(data) :]


def test_a_message_written_while_another_one_is(joins: Any) -> None:
    def answer(depth: int) -> Any:
        message = join(members=300)
        message.generation_id = Number(lambda: inside(depth + 1)) if depth < 4 else 7
        return message

    def inside(depth: int) -> None:
        buffer = bytearray()
        joins.encode_into(answer(depth), buffer)
        assert buffer == expected

    expected = joins.encode(answer(4))
    inside(0)


def test_whole_frames(frames: Any) -> None:
    header = kw.RequestHeader(
        request_api_key=12, request_api_version=4, correlation_id=9, client_id="c", unknown_tags=((7, b"x"),)
    )
    own = kw.RequestHeader(request_api_key=12, request_api_version=4, correlation_id=9, client_id="c")
    api, version = header.request_api_key, header.request_api_version  # the objects that a native core compares with
    assert (api, version) == (12, 4)
    requests: list[tuple[Any, int, dict[str, Any]]] = [
        (HEARTBEAT, 4, {}),
        (HEARTBEAT, 4, {"correlation_id": 5, "client_id": "cl"}),
        (HEARTBEAT, 4, {"header": header}),
        (HEARTBEAT, 4, {"header": own}),
        (HEARTBEAT, 0, {"registry": registry}),
        (registry["PingRequest"].cls(), 0, {}),
    ]
    responses: list[tuple[Any, int, dict[str, Any]]] = [
        (join(), 9, {"correlation_id": 5}),
        (join(), 9, {"header": kw.ResponseHeader(correlation_id=5, unknown_tags=((7, b"x"),))}),
        (join(), 5, {"correlation_id": 2, "registry": registry}),
        (registry["PingResponse"].cls(), 0, {}),
        (registry["CentralFetchResponse"].cls(), 0, {}),
    ]
    requests.append((kw.HeartbeatRequest(group_instance_id="i"), 0, {"drop": True, "correlation_id": 3}))
    responses.append((kw.HeartbeatResponse(throttle_time_ms=7), 0, {"drop": True}))
    for encode, encode_into, cases in (
        (frames.encode_request, frames.encode_request_into, requests),
        (frames.encode_response, frames.encode_response_into, responses),
    ):
        for message, version, options in cases:
            body = encode(message, version, **options)
            buffer = bytearray(b"1234")
            end = encode_into(message, version, buffer, offset=4, **options)
            assert (end, bytes(buffer)) == (4 + len(body), b"1234" + body)
            buffer[:4] = (end - 4).to_bytes(4, "big")
            assert buffer == kw.frame(body)
            assert encode_into(message, version, buffer, **options) == len(body)
            assert buffer == body + kw.frame(body)[len(body) :]


def test_frames_that_are_refused(frames: Any) -> None:
    buffer = bytearray(b"abc")
    for write in (
        lambda: frames.encode_request_into(kw.HeartbeatResponse(), 4, buffer),
        lambda: frames.encode_response_into(HEARTBEAT, 4, buffer),
        lambda: frames.encode_request_into(HEARTBEAT, 4, buffer, client_id="c", header=kw.ResponseHeader()),
        lambda: frames.encode_response_into(object(), 4, buffer),
    ):
        with pytest.raises(TypeError):
            write()
    for offset in (-1, 4):
        with pytest.raises(ValueError, match="outside of a buffer of 3 bytes"):
            frames.encode_request_into(HEARTBEAT, 4, buffer, offset=offset)
        with pytest.raises(ValueError, match="outside of a buffer of 3 bytes"):
            frames.encode_response_into(kw.HeartbeatResponse(), 4, buffer, offset=offset, registry=registry)
    assert buffer == b"abc"


def test_the_functions_of_the_package(backend: str) -> None:
    def find(cls: type, version: int, reading: bool, *, drop: bool = False) -> Any:
        return registry.by_class(cls).program(version, reading, drop)

    dispatch = (Dispatch if backend == "python" else import_module("kcoord_wire._native").Dispatch)(find)
    data = kw.encode(HEARTBEAT, 4)
    for write in (dispatch.encode_into, kw.encode_into):
        buffer = bytearray(b"abc")
        assert write(HEARTBEAT, 4, buffer) == len(data)
        assert buffer == data
        assert write(HEARTBEAT, 4, buffer, offset=2) == 2 + len(data)
        assert buffer == data[:2] + data
        with pytest.raises(kw.EncodeError, match="version"):
            write(HEARTBEAT, 99, buffer)
        with pytest.raises(TypeError):
            write(object(), 4, buffer)
        with pytest.raises(ValueError, match="offset -1"):
            write(HEARTBEAT, 4, buffer, offset=-1)
        assert buffer == data[:2] + data
        newer = kw.HeartbeatRequest(group_instance_id="i")
        assert buffer[: write(newer, 0, buffer, drop=True)] == kw.encode(newer, 0, drop=True)
        with pytest.raises(kw.EncodeError, match="version"):
            write(newer, 0, buffer)
    buffer = bytearray()
    assert registry["HeartbeatRequest"].encode_into(newer, 0, buffer, drop=True) == len(buffer)
    assert buffer == kw.encode(newer, 0, drop=True)
    buffer.clear()
    assert registry["HeartbeatRequest"].encode_into(HEARTBEAT, 4, buffer) == len(data)
    assert registry["HeartbeatRequest"].encode_into(HEARTBEAT, 4, buffer, offset=len(data)) == 2 * len(data)
    assert buffer == data * 2
    with pytest.raises(kw.EncodeError, match="version"):
        registry["HeartbeatRequest"].encode_into(HEARTBEAT, 99, buffer)
    body = kw.encode_request(HEARTBEAT, 4, client_id="c")
    assert kw.encode_request_into(HEARTBEAT, 4, buffer, client_id="c") == len(body)
    assert buffer[: len(body)] == body
    body = kw.encode_response(kw.HeartbeatResponse(), 4, correlation_id=3)
    assert kw.encode_response_into(kw.HeartbeatResponse(), 4, buffer, correlation_id=3) == len(body)
    assert buffer[: len(body)] == body


@pytest.mark.skipif("native" not in BACKENDS, reason="the pure codec keeps nothing")
def test_trim_drops_the_block_that_is_kept() -> None:
    message = messages.OffsetCommitRequest(group_id="g" * 9_000)
    kw.trim()
    buffer = bytearray()
    for _ in range(2):  # the first finds that the message is large
        assert kw.encode_into(message, 8, buffer) == len(kw.encode(message, 8))
    assert kw.trim() > 9_000
    assert kw.trim() == 0
