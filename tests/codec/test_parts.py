"""`bytes="view"`: long bytes fields are parts of the input, and nothing else differs. Each test with both codecs."""

from __future__ import annotations

import copy
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import kcoord_wire as kw
from fuzz.lazy import facts, outcome, same
from kcoord_wire.codec.backend import Program, ProgramClass
from kcoord_wire.codec.registry import MessageCodec, compile_schemas, registry
from kcoord_wire.codec.view import VIEWED
from kcoord_wire.errors import DecodeError
from kcoord_wire.messages import marshal
from kcoord_wire.schema.plan import Op, Presence, Step, StructPlan
from tests.support.backends import BACKENDS
from tests.support.each import each
from tests.support.frame_readers import native_frames, pure_frames
from tests.support.golden import DATA

EVERYTHING = compile_schemas(DATA / "parity")
LONG = bytes(range(256)) * 20


def held(step: Step, classes: Mapping[str, type], data: bytes) -> Any:
    """A value for the field with `data` wherever bytes may be."""
    if step.op is Op.BYTES:
        return data
    if step.op is Op.ARRAY:
        assert step.item is not None
        item = held(step.item, classes, data)
        return item if item is ... else [item] * 2
    if step.op is Op.UNION:
        return filled(step.variants[0][1], classes, data)
    if step.struct is not None:
        return filled(step.struct, classes, data)
    return ...


def filled(plan: StructPlan, classes: Mapping[str, type], data: bytes) -> Any:
    values = {s.attr: held(s, classes, data) for s in plan.steps if s.presence is not Presence.ABSENT}
    return classes[plan.name](**{attr: value for attr, value in values.items() if value is not ...})


def has_bytes(plan: StructPlan) -> bool:
    def inside(step: Step) -> bool:
        structs = [step.struct, *(variant for _, variant in step.variants)]
        return step.op is Op.BYTES or (step.item is not None and inside(step.item)) or any(map(_has, structs))

    def _has(struct: StructPlan | None) -> bool:
        return struct is not None and has_bytes(struct)

    return any(inside(step) for step in plan.steps if step.presence is not Presence.ABSENT)


def rows() -> Iterator[tuple[MessageCodec, int]]:
    for codec in (*registry.values(), *EVERYTHING.values()):
        if codec.schema.encoding == "binary":
            yield from ((codec, version) for version in codec.valid_versions if has_bytes(codec.plan(version)))


def leaves(value: Any) -> Iterator[Any]:
    """Every bytes field of a message, as it is held."""
    if isinstance(value, bytes | memoryview):
        yield value
    for inner in value if isinstance(value, list) else ():
        yield from leaves(inner)
    for name in getattr(value, "__dataclass_fields__", ()):
        if name != "unknown_tags":
            yield from leaves(getattr(value, name))


def fetched(size: int = len(LONG)) -> kw.FetchResponse:
    partition = kw.FetchResponsePartitionData(records=LONG[:size])
    return kw.FetchResponse(responses=[kw.FetchResponseFetchableTopicResponse(topic="orders", partitions=[partition])])


def records(response: Any) -> Any:
    return response.responses[0].partitions[0].records


@pytest.fixture
def program(program_class: ProgramClass) -> Program:
    codec = registry["FetchResponse"]
    return program_class(codec.plan(12), codec.classes)


@pytest.fixture(params=BACKENDS)
def frames(request: pytest.FixtureRequest) -> Any:
    return pure_frames() if request.param == "python" else native_frames()


@each("codec, version", rows())
def test_every_message_is_read_as_without(program_class: ProgramClass, codec: MessageCodec, version: int) -> None:
    program = program_class(codec.plan(version), codec.classes)
    data = codec.encode(filled(codec.plan(version), codec.classes, LONG), version)
    for strict in (True, False):
        copied, message = program.decode(data, strict), program.decode(data, strict, True)
        assert message == copied
        assert repr(message) == repr(copied)
        assert program.encode(message) == data
        assert {type(leaf) for leaf in leaves(message) if leaf == LONG} == {memoryview}
        assert all(leaf.obj is data and leaf.readonly for leaf in leaves(message) if type(leaf) is memoryview)
        assert program.decode_prefix(b"--" + data, 2, strict, True) == (copied, len(data) + 2)


@each("codec, version", [row for row in rows() if row[1] == row[0].valid_versions[-1]])
def test_damage_is_refused_as_without(program_class: ProgramClass, codec: MessageCodec, version: int) -> None:
    rng = random.Random(version)
    program = program_class(codec.plan(version), codec.classes)
    data = codec.encode(filled(codec.plan(version), codec.classes, LONG[:VIEWED]), version)
    worn = [data[:at] for at in rng.sample(range(len(data)), 6)] + [data + b"\0"]
    for at in range(0, len(data), max(1, len(data) // 40)):
        worn.append(data[:at] + bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF))]) + data[at + 1 :])
    for damaged in worn:
        for strict in (True, False):
            copied = outcome(lambda: program.decode(damaged, strict))  # noqa: B023  # called at once
            message = outcome(lambda: program.decode(damaged, strict, True))  # noqa: B023
            if isinstance(copied, DecodeError):
                assert facts(message) == facts(copied)
            else:
                assert same(message, copied)


@each("size, kind", [(0, bytes), (VIEWED - 1, bytes), (VIEWED, memoryview), (VIEWED + 1, memoryview)])
def test_fields_below_a_kilobyte_are_copied(program: Program, size: int, kind: type) -> None:
    message = program.decode(program.encode(fetched(size)), True, True)
    assert type(records(message)) is kind
    assert records(message) == LONG[:size]


def test_an_unknown_tag_is_bytes(program: Program) -> None:
    tagged = fetched()
    tagged.unknown_tags = ((100, LONG),)
    read = program.decode(program.encode(tagged), True, True)
    assert type(read.unknown_tags[0][1]) is bytes
    assert read == tagged


class Blob(bytes): ...


@each(
    "wrapped, is_kept",
    [
        (lambda data: data, True),
        (memoryview, True),
        (lambda data: memoryview(b"--" + data + b"--")[2:-2], True),
        (lambda data: memoryview(data + bytes(-len(data) % 4)).cast("i"), True),
        (Blob, False),
        (bytearray, False),
        (lambda data: memoryview(bytearray(data)), False),
        (lambda data: memoryview(bytearray(data)).toreadonly(), False),
    ],
)
def test_only_bytes_are_kept(program: Program, wrapped: Callable[[bytes], Any], is_kept: bool) -> None:
    given = wrapped(program.encode(fetched()))
    part = records(program.decode(given, False, True))
    assert part == LONG
    assert part.readonly
    base = given.obj if isinstance(given, memoryview) else given
    assert type(part.obj) is bytes
    assert (part.obj is base) is is_kept
    assert (part.format, part.itemsize, part.ndim, part.shape, part.strides, part.nbytes, part.contiguous) == (
        "B", 1, 1, (len(LONG),), (1,), len(LONG), True,
    )  # fmt: skip


def test_a_bytearray_may_change_afterwards(program: Program) -> None:
    given = bytearray(program.encode(fetched()))
    message = program.decode(given, True, True)
    given[:] = b"\xff" * 9 * len(given)
    assert records(message) == LONG


def test_a_part_is_a_memoryview_like_any_other(program: Program) -> None:
    part = records(program.decode(program.encode(fetched()), True, True))
    assert part[256:512] == LONG[:256]
    assert part[::-1].tobytes() == LONG[::-1]
    assert hash(part) == hash(LONG)
    assert part.cast("I").nbytes == len(LONG)
    assert bytes(part) == part.tobytes() == LONG
    with pytest.raises(TypeError, match="read-only"):
        part[0] = 1


def test_the_input_lives_as_long_as_a_part(program: Program) -> None:
    data = program.encode(fetched())
    before = sys.getrefcount(data)
    message = program.decode(data, True, True)
    part = records(message)
    assert sys.getrefcount(data) > before
    del message
    assert sys.getrefcount(data) > before
    assert part == LONG
    del part
    assert sys.getrefcount(data) == before
    with pytest.raises(DecodeError):
        program.decode(data[:-1], True, True)
    assert sys.getrefcount(data) == before


def test_a_part_may_be_released(program: Program) -> None:
    data = program.encode(fetched())
    first, second = (records(program.decode(data, True, True)) for _ in range(2))
    first.release()
    assert second == LONG


def test_what_has_no_bytes_in_one_piece_is_refused(program: Program) -> None:
    for given in (3, "text", None, memoryview(bytes(8))[::2]):
        with pytest.raises(TypeError):
            program.decode(given, True, True)  # type: ignore[arg-type]


def test_copies_share_the_input_and_pickles_are_refused() -> None:
    message = kw.decode(kw.FetchResponse, kw.encode(fetched(), 12), 12, bytes="view")
    assert records(copy.copy(message)).obj is records(message).obj
    for write in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"cannot pickle '?memoryview'? object"):
            write(message)
    records_copied = bytes(records(message))
    message.responses[0].partitions[0].records = records_copied
    assert pickle.loads(pickle.dumps(message)) == message == fetched()


def test_dicts_are_the_same() -> None:
    message = kw.decode(kw.FetchResponse, kw.encode(fetched(), 12), 12, bytes="view")
    assert kw.to_dict(message, json=True) == kw.to_dict(fetched(), json=True)
    plain = kw.to_dict(message)
    assert plain == kw.to_dict(fetched())
    assert kw.from_dict(kw.FetchResponse, plain) == fetched()


def test_frames(frames: Any) -> None:
    answer = kw.encode_response(fetched(), 12, correlation_id=7)
    for body in (answer, bytearray(answer)):
        header, response = frames.decode_response(body, kw.FetchResponse, 12, bytes="view")
        assert (header.correlation_id, response) == (7, fetched())
        assert type(records(response)) is memoryview
        assert (records(response).obj is answer) is (body is answer)
        assert type(records(frames.decode_response(body, kw.FetchResponse, 12, bytes="copy")[1])) is bytes
    asked = kw.SyncGroupRequest(assignments=[kw.SyncGroupRequestAssignment(assignment=LONG)])
    body = kw.encode_request(asked, 5, client_id="c")
    _, request = frames.decode_request(body, bytes="view", registry=registry)
    assert request == asked
    assert type(request.assignments[0].assignment) is memoryview
    for damaged in (body[:-1], b""):
        errors = [outcome(lambda: frames.decode_request(damaged, bytes=b)) for b in ("copy", "view")]  # noqa: B023
        assert facts(errors[0]) == facts(errors[1])
    with pytest.raises(TypeError):
        frames.decode_response(3, kw.FetchResponse, 12, bytes="view")


def test_functions_and_methods() -> None:
    data = kw.encode(fetched(), 12)
    codec = kw.registry.by_class(kw.FetchResponse)
    framed = kw.encode_response(fetched(), 12)
    for message in (
        kw.decode(kw.FetchResponse, data, 12, bytes="view"),
        codec.decode(data, 12, bytes="view"),
        codec.decode_prefix(data, 12, bytes="view")[0],
        kw.decode_response(framed, kw.FetchResponse, 12, bytes="view")[1],
    ):
        assert type(records(message)) is memoryview
    heartbeat = marshal.Heartbeat()
    text = kw.registry.by_class(marshal.Heartbeat).encode(heartbeat, 0)
    assert kw.decode(marshal.Heartbeat, text, 0, bytes="view") == heartbeat


@each("wrong", ["views", "", None, True, b"view"])
def test_the_option_is_one_of_two_words(frames: Any, wrong: Any) -> None:
    data = kw.encode(fetched(), 12)
    for call in (
        lambda: kw.decode(kw.FetchResponse, data, 12, bytes=wrong),
        lambda: kw.registry["FetchResponse"].decode(data, 12, bytes=wrong),
        lambda: kw.registry["FetchResponse"].decode_prefix(data, 12, bytes=wrong),
        lambda: frames.decode_response(data, kw.FetchResponse, 12, bytes=wrong),
        lambda: frames.decode_request(data, bytes=wrong),
    ):
        with pytest.raises(ValueError, match='bytes is "copy" or "view"'):
            call()
