"""`drop=True`: what a version lacks is left out of the bytes, and nothing else differs. Each test with both codecs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.backend import Program, ProgramClass
from kcoord_wire.codec.registry import MessageCodec, compile_schemas, registry
from kcoord_wire.errors import EncodeError
from kcoord_wire.messages import marshal
from kcoord_wire.schema.plan import Op, Presence, Step, StructPlan, compile_plan
from tests.support.backends import BACKENDS
from tests.support.each import each
from tests.support.frame_readers import native_frames, pure_frames
from tests.support.golden import DATA

EVERYTHING = compile_schemas(DATA / "parity")
NUMBERS = {Op.INT8, Op.INT16, Op.INT32, Op.INT64, Op.UINT16, Op.UINT32}


def rows() -> Iterator[tuple[MessageCodec, int]]:
    for codec in (*registry.values(), *EVERYTHING.values()):
        yield from ((codec, version) for version in codec.valid_versions)


def other_than_default(step: Step, plans: dict[str, StructPlan], classes: Any) -> Any:
    """A value of the field's type that is not its default, and that may be written."""
    if step.op is Op.ARRAY:
        assert step.item is not None
        return [other_than_default(step.item, plans, classes)]
    if step.op is Op.STRUCT or step.op is Op.UNION:
        inner = step.struct or step.variants[0][1]
        return filled(inner, plans, classes)
    if step.op in NUMBERS:
        return step.high if step.high != step.default else step.low
    if step.op is Op.BOOL:
        return not step.default
    if step.op is Op.STRING:
        return "other" if step.high >= 5 else ""
    return {Op.BYTES: b"other", Op.FLOAT64: 0.5, Op.UUID: UUID(int=5)}.get(step.op)


def filled(plan: StructPlan, plans: dict[str, StructPlan], classes: Any) -> Any:
    """A struct with a value in every field of every version."""
    values = {}
    for step in plan.steps:
        value = other_than_default(step, plans, classes)
        if value is not None:
            values[step.attr] = value
    made = classes[plan.name](**values)
    if plan.holds_tags:
        made.unknown_tags = ((4_000_000, b"unknown"),)
    return made


def downgraded(plan: StructPlan, classes: Any, message: Any) -> Any:
    """A copy in which what the version lacks holds its default: what a caller would do by hand."""
    plain = classes[plan.name]()
    for step in plan.steps:
        if step.presence is not Presence.ABSENT:
            setattr(plain, step.attr, downgraded_value(step, classes, getattr(message, step.attr)))
    if plan.holds_tags and plan.flexible:
        plain.unknown_tags = message.unknown_tags
    return plain


def downgraded_value(step: Step, classes: Any, value: Any) -> Any:
    if isinstance(value, list):
        assert step.item is not None
        return [downgraded_value(step.item, classes, each) for each in value]
    if step.struct is not None and value is not None:
        return downgraded(step.struct, classes, value)
    for _, variant in step.variants:
        if type(value) is classes[variant.name]:
            return downgraded(variant, classes, value)
    return value


def dropping(program_class: ProgramClass, codec: MessageCodec, version: int) -> Program:
    if codec.schema.encoding == "text":
        return codec.program(version, drop=True)
    return program_class(compile_plan(codec.schema, version, drops=True), codec.classes)


@each("codec, version", rows())
def test_the_bytes_are_those_of_a_message_without_it(
    program_class: ProgramClass, codec: MessageCodec, version: int
) -> None:
    message = filled(codec.plan(version), {}, codec.classes)
    if codec.schema.encoding == "binary":
        assert dropping(program_class, codec, version).encode(message) == codec.encode(
            downgraded(codec.plan(version), codec.classes, message), version
        )
    assert codec.encode(message, version, drop=True) == codec.encode(
        downgraded(codec.plan(version), codec.classes, message), version
    )


def test_there_is_much_to_drop() -> None:
    """Without the option most of these messages are refused: else the test above would show nothing."""
    refused = set()
    for codec, version in rows():
        try:
            codec.encode(filled(codec.plan(version), {}, codec.classes), version)
        except EncodeError as error:
            refused.add((codec.name, version, error.kind))
    assert {kind for *_, kind in refused} == {"version", "tag"}
    assert len(refused) > 100


def asked() -> kw.OffsetFetchRequest:
    """With the fields of old versions, of one group, and of new ones, of several: whichever the client speaks."""
    topics = kw.messages.OffsetFetchRequestTopics(name="t", partition_indexes=[1])
    return kw.OffsetFetchRequest(
        group_id="g",
        topics=[kw.messages.OffsetFetchRequestTopic(name="t", partition_indexes=[1])],
        groups=[kw.messages.OffsetFetchRequestGroup(group_id="g", topics=[topics])],
    )


def test_a_message_for_all_versions() -> None:
    for version in kw.registry["OffsetFetchRequest"].valid_versions:
        with pytest.raises(EncodeError, match="carries nothing but the default"):
            kw.encode(asked(), version)
        read = kw.decode(kw.OffsetFetchRequest, kw.encode(asked(), version, drop=True), version)
        assert (len(read.topics), len(read.groups)) == ((1, 0) if version < 8 else (0, 1))


@each("field, value, kind, path", [
    ("group_id", None, "null", "OffsetFetchRequest.group_id"),
    ("topics", [None], "null", "OffsetFetchRequest.topics[0]"),
    ("topics", 3, "type", "OffsetFetchRequest.topics"),
])  # fmt: skip
def test_what_the_version_has_is_refused_as_without(
    program_class: ProgramClass, field: str, value: Any, kind: str, path: str
) -> None:
    message = asked()
    setattr(message, field, value)
    message.unknown_tags = "nonsense"  # type: ignore[assignment]  # which version 5 lacks
    with pytest.raises(EncodeError) as caught:
        dropping(program_class, kw.registry["OffsetFetchRequest"], 5).encode(message)
    assert (caught.value.kind, caught.value.path) == (kind, path)


def test_fields_of_versions_that_are_no_more_may_be_missing(program_class: ProgramClass) -> None:
    message = asked()
    del message.groups
    program = dropping(program_class, kw.registry["OffsetFetchRequest"], 5)
    assert program.encode(message) == kw.encode(asked(), 5, drop=True)
    del message.topics
    with pytest.raises(EncodeError, match=r"topics: .*missing"):
        program.encode(message)


@pytest.fixture(params=BACKENDS)
def frames(request: pytest.FixtureRequest) -> Any:
    return pure_frames() if request.param == "python" else native_frames()


def test_frames(frames: Any) -> None:
    plain = asked()
    plain.groups = []
    for version in (5, 7):
        body = frames.encode_request(asked(), version, correlation_id=4, client_id="c", drop=True)
        assert body == frames.encode_request(plain, version, correlation_id=4, client_id="c")
        header, _ = frames.decode_request(body)
        assert frames.encode_request(asked(), version, header=header, drop=True, registry=registry) == body
    answer = kw.HeartbeatResponse(throttle_time_ms=5, unknown_tags=((9, b""),))
    without = frames.encode_response(kw.HeartbeatResponse(throttle_time_ms=5), 3, correlation_id=1)
    assert frames.encode_response(answer, 3, correlation_id=1, drop=True) == without
    assert frames.encode_response(answer, 3, correlation_id=1, drop=True, registry=registry) == without
    with pytest.raises(EncodeError):
        frames.encode_response(answer, 3)
    with pytest.raises(EncodeError, match="no version"):
        frames.encode_response(answer, 99, drop=True)
    with pytest.raises(TypeError):
        frames.encode_request(answer, 3, drop=True)


def test_functions() -> None:
    everything = EVERYTHING["Everything"]
    message = filled(everything.plan(0), {}, everything.classes)
    with pytest.raises(EncodeError):
        kw.encode_prefixed(message, 0, registry=EVERYTHING)
    blob = kw.encode_prefixed(message, 0, drop=True, registry=EVERYTHING)
    assert blob == b"\0\0" + everything.encode(message, 0, drop=True)
    with pytest.raises(EncodeError, match="no version"):
        kw.encode(asked(), 99, drop=True)
    with pytest.raises(TypeError):
        kw.encode(3, 0, drop=True)
    assert kw.encode(marshal.Heartbeat(), 0, drop=True) == kw.encode(marshal.Heartbeat(), 0)
