"""Bodies made to do harm: what claims more than it holds, and what takes the most memory for its size."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, Final

from kcoord_wire.codec.registry import MessageCodec
from kcoord_wire.schema.plan import Op, Presence, Step, StructPlan

FRAME: Final = 2048  # bytes, about: large enough that what is not proportional does not count

# A name, the message, the version, the body, and how strict decoding refuses it: kind, offset, field.
# JoinGroupResponse v0: error_code, generation_id, protocol_name, leader, member_id, members; v6 the same, flexible.
JOIN_0 = b"\0\0\0\0\0\1\0\1p\0\1l\0\1m"
JOIN_6 = b"\0\0\0\0\0\0\0\0\0\1\2p\2l\2m"
HOSTILE: list[tuple[str, str, int, bytes, tuple[str, int, str]]] = [
    ("array of 2**31-1, no data", "JoinGroupResponse", 0, JOIN_0 + b"\x7f\xff\xff\xff", ("truncated", 15, "members")),
    ("array of 2**32-2", "JoinGroupResponse", 6, JOIN_6 + b"\xff\xff\xff\xff\x0f", ("truncated", 16, "members")),
    ("array of -2", "JoinGroupResponse", 0, JOIN_0 + b"\xff\xff\xff\xfe", ("length", 15, "members")),
    ("null array", "JoinGroupResponse", 0, JOIN_0 + b"\xff\xff\xff\xff", ("null", 15, "members")),
    ("null compact array", "JoinGroupResponse", 6, JOIN_6 + b"\0\0", ("null", 16, "members")),
    ("string of -2", "JoinGroupResponse", 0, b"\0\0\0\0\0\1\xff\xfe", ("length", 6, "protocol_name")),
    ("last string past the end", "HeartbeatRequest", 0, b"\0\1g\0\0\0\1\0\5mmmm", ("truncated", 7, "member_id")),
    ("compact string past the end", "HeartbeatRequest", 4, b"\2g\0\0\0\1\7mmmm", ("truncated", 6, "member_id")),
    ("compact string of 2**32-2", "HeartbeatRequest", 4, b"\xff\xff\xff\xff\x0fg", ("length", 0, "group_id")),
    ("null string", "HeartbeatRequest", 0, b"\xff\xff\0\0\0\1\0\1m", ("null", 0, "group_id")),
    ("null compact string", "HeartbeatRequest", 4, b"\0\0\0\0\1\2m\0\0", ("null", 0, "group_id")),
    ("bad UTF-8", "HeartbeatRequest", 0, b"\0\3g\xc3\x28\0\0\0\1\0\1m", ("utf8", 3, "group_id")),
    ("surrogate in UTF-8", "HeartbeatRequest", 0, b"\0\4g\xed\xa0\x80\0\0\0\1\0\1m", ("utf8", 3, "group_id")),
    ("UTF-8 cut short", "HeartbeatRequest", 0, b"\0\2g\xc3\0\0\0\1\0\1m", ("utf8", 3, "group_id")),
    ("trailing bytes", "HeartbeatRequest", 0, b"\0\1g\0\0\0\1\0\1mXY", ("trailing", 10, "")),
    ("tag twice", "HeartbeatRequest", 4, b"\2g\0\0\0\1\2m\0\2\5\0\5\0", ("tag", 12, "unknown_tags")),
    ("tags descending", "HeartbeatRequest", 4, b"\2g\0\0\0\1\2m\0\2\5\0\4\0", ("tag", 12, "unknown_tags")),
    ("tag past the end", "HeartbeatRequest", 4, b"\2g\0\0\0\1\2m\0\1\5\x20x", ("truncated", 11, "unknown_tags")),
    ("more tags than bytes", "HeartbeatRequest", 4, b"\2g\0\0\0\1\2m\0\x7f\5\0", ("truncated", 9, "unknown_tags")),
    ("overlong varint", "HeartbeatRequest", 4, b"\x82\x00g\0\0\0\1\2m\0\0", ("varint", 0, "group_id")),
    ("varint of 35 bits", "HeartbeatRequest", 4, b"\xff\xff\xff\xff\x7fg", ("varint", 0, "group_id")),
    ("varint of six bytes", "HeartbeatRequest", 4, b"\x82\x80\x80\x80\x80\x00g", ("varint", 0, "group_id")),
    ("200 KB of 0x80", "HeartbeatRequest", 4, b"\x80" * 200_000, ("varint", 0, "group_id")),
    ("200 KB of 0xff", "HeartbeatRequest", 4, b"\xff" * 200_000, ("varint", 0, "group_id")),
    ("0x80 as tags", "HeartbeatRequest", 4, b"\2g\0\0\0\1\2m\0" + b"\x80" * 200_000, ("varint", 9, "unknown_tags")),
]  # fmt: skip


def minimal(plan: StructPlan, classes: Any, present: bool) -> Any:
    """An instance that takes as few bytes as there can be; `present` puts structs where null could be."""
    value = classes[plan.name]()
    for step in plan.steps:
        if step.presence is Presence.PLAIN:
            setattr(value, step.attr, smallest(step, classes, present))
    return value


def smallest(step: Step, classes: Any, present: bool) -> Any:
    if step.op is Op.STRUCT:
        assert step.struct is not None
        return None if step.nullable and not present else minimal(step.struct, classes, present)
    if step.op is Op.UNION:
        return min((minimal(plan, classes, present) for _, plan in step.variants), key=repr)
    if step.op is Op.ARRAY:
        return []
    if step.op in (Op.STRING, Op.BYTES):
        return "" if step.op is Op.STRING else b""
    if step.op is Op.UUID:
        return uuid.UUID(int=1)
    return False if step.op is Op.BOOL else step.low


def bombs(codec: MessageCodec, version: int) -> Iterator[bytes]:
    """Frames of about `FRAME` bytes, each nearly all one array, or one tag section, of the least there can be."""
    plan, classes = codec.plan(version), codec.classes
    for present in (True, False):
        root = minimal(plan, classes, present)
        yield from struct_bombs(codec, version, root, root, plan, present)


def struct_bombs(
    codec: MessageCodec, version: int, root: Any, value: Any, plan: StructPlan, present: bool
) -> Iterator[bytes]:
    if plan.flexible:
        first = max(plan.known_tags, default=-1) + 1
        value.unknown_tags = tuple((tag, b"") for tag in range(first, first + FRAME // 4))
        yield codec.encode(root, version)
        value.unknown_tags = ()
    for step in plan.steps:
        if step.presence is Presence.ABSENT or step.op is not Op.ARRAY:
            continue
        assert step.item is not None
        for element in elements(step.item, codec.classes, present):
            held = getattr(value, step.attr)
            limit = 0x7000 if step.length == 2 else FRAME
            setattr(value, step.attr, [element] * min(limit, FRAME // step.item.min_size))
            yield codec.encode(root, version)
            setattr(value, step.attr, [element])
            if step.item.struct is not None and step.item.struct.flexible:
                # One unknown tag each: two bytes on the wire are two tuples.
                element.unknown_tags = ((max(step.item.struct.known_tags, default=-1) + 1, b""),)
                setattr(value, step.attr, [element] * (FRAME // (step.item.min_size + 2)))
                yield codec.encode(root, version)
                element.unknown_tags = ()
                setattr(value, step.attr, [element])
            if step.item.struct is not None:
                yield from struct_bombs(codec, version, root, element, step.item.struct, present)
            setattr(value, step.attr, held)


def elements(item: Step, classes: Any, present: bool) -> list[Any]:
    if item.op is Op.STRING:
        return ["", "ab"]
    if item.op is Op.BYTES:
        return [b"", b"ab"]
    return [smallest(item, classes, present)]
