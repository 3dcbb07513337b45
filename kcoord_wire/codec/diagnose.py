"""Why a message was rejected: the slow walk that names the field and the byte.

The generated codec (`kcoord_wire.codec.python`) only rejects. This module walks what it rejected once more, step by
step in wire order, and raises the error that a reader or writer working field by field would have met first. Laws:

* This is the reference for the rules. Generated source rejects exactly what this rejects; tests compare the two.
* Nothing is built and no count is trusted: the walk takes time linear in the bytes, or in the value.
* Offsets count from the start of the buffer; paths name Python attributes (``JoinGroupResponse.members[3].metadata``).
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Final

from kcoord_wire.codec.stored import stored_bytes, stored_int, stored_items, stored_message
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.schema.plan import MAX_STRING, Length, Op, Presence, Step, StructPlan

MAX_BYTES: Final = 0x7FFFFFFF
MAX_COUNT: Final = {Length.INT16: 0x7FFF, Length.INT32: 0x7FFFFFFF, Length.COMPACT: 0x7FFFFFFF}
MAX_TAG: Final = 0xFFFFFFFF

_PREFIX_SIZES: Final = {Length.INT8: 1, Length.INT16: 2, Length.INT32: 4}


def explain_bytes(plan: StructPlan, data: bytes | bytearray | memoryview, pos: int, strict: bool, whole: bool) -> None:
    """Raise what is wrong with the message that starts at `pos`; return if nothing is.

    :param whole: the message must end where `data` ends (strict mode only)
    :raises DecodeError: the first fault, in the order of the wire
    """
    end = _Reader(data, strict).struct(plan, pos, plan.name)
    if whole and strict and end != len(data):
        raise DecodeError("trailing", end, plan.name, f"{len(data) - end} bytes are left over after the message")


def java_int(value: int) -> int:
    """The low 32 bits of `value` as a signed number, as Kafka computes with what readUnsignedVarint returns."""
    return ((value + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def explain_value(plan: StructPlan, classes: Mapping[str, type], message: object) -> None:
    """Raise what is wrong with `message`; return if nothing is.

    :raises EncodeError: the first fault, in the order of the plan's steps
    """
    _Writer(classes).struct(plan, message, plan.name)


class _Reader:
    """Each method starts at `pos`, raises or returns the position after what it read."""

    def __init__(self, data: bytes | bytearray | memoryview, strict: bool) -> None:
        self.data = data
        self.end = len(data)
        self.strict = strict

    def need(self, size: int, pos: int, at: int, path: str) -> None:
        left = self.end - pos
        if size > left:
            raise DecodeError("truncated", at, path, f"{size} bytes are needed, {left} are left")

    def struct(self, plan: StructPlan, pos: int, path: str) -> int:
        for step in plan.wire:
            if step.presence is not Presence.REMAINING:
                pos = self.value(step, pos, f"{path}.{step.attr}", step.nullable)
            elif pos != self.end:
                pos = self.value(step, pos, f"{path}.{step.attr}", False)
        return self.tags(plan, pos, path) if plan.flexible else pos

    def value(self, step: Step, pos: int, path: str, nullable: bool) -> int:
        if step.fixed_size:
            return self.fixed(step, pos, path)
        if step.op is Op.STRING:
            return self.string(step, pos, path, nullable)
        if step.op is Op.BYTES:
            size, start = self.length(step.length, pos, path, nullable)
            self.need(size, start, pos, path)
            return start + size
        if step.op is Op.ARRAY:
            return self.array(step, pos, path, nullable)
        if step.op is Op.UNION:
            return self.union(step, pos, path)
        assert step.struct is not None
        if nullable:
            present, pos = self.marker(step, pos, path)
            if not present:
                return pos
        return self.struct(step.struct, pos, path)

    def fixed(self, step: Step, pos: int, path: str) -> int:
        stop = pos + step.fixed_size
        self.need(step.fixed_size, pos, pos, path)
        if step.op is Op.BOOL and self.strict and self.data[pos] > 1:
            raise DecodeError("value", pos, path, f"a bool is 0 or 1, not {self.data[pos]}")
        if step.bounded:
            number = int.from_bytes(self.data[pos:stop], "big", signed=step.op not in (Op.UINT16, Op.UINT32))
            if not step.low <= number <= step.high:
                raise DecodeError("range", pos, path, f"{number} is not between {step.low} and {step.high}")
        return stop

    def uvarint(self, pos: int, path: str) -> tuple[int, int]:
        value = 0
        for i in range(5):
            self.need(1, pos + i, pos, path)
            byte = self.data[pos + i]
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                if self.strict and i and not byte:
                    raise DecodeError("varint", pos, path, "the varint is longer than its value needs")
                if self.strict and value > 0xFFFFFFFF:
                    raise DecodeError("varint", pos, path, "the varint has more than 32 bits")
                return value & 0xFFFFFFFF, pos + i + 1
        raise DecodeError("varint", pos, path, "the varint has more than five bytes")

    def prefix(self, length: Length, pos: int, path: str) -> tuple[int, int]:
        if length is Length.COMPACT:
            number, start = self.uvarint(pos, path)
            return (number - 1 if self.strict else java_int(number - 1)), start
        start = pos + _PREFIX_SIZES[length]
        self.need(start - pos, pos, pos, path)
        return int.from_bytes(self.data[pos:start], "big", signed=True), start

    def length(self, length: Length, pos: int, path: str, nullable: bool) -> tuple[int, int]:
        """The length or count at `pos`, 0 for a null one; and where its bytes start."""
        number, start = self.prefix(length, pos, path)
        if number < 0:
            if number == -1 and self.strict and not nullable:
                raise DecodeError("null", pos, path, "the value is null, which it may not be")
            if number < -1 and (self.strict or not nullable):
                raise DecodeError("length", pos, path, f"the length is {number}")
            number = 0
        return number, start

    def string(self, step: Step, pos: int, path: str, nullable: bool) -> int:
        size, start = self.length(step.length, pos, path, nullable)
        if size > MAX_STRING:
            raise DecodeError("length", pos, path, f"the string has {size} bytes, at most {MAX_STRING} may be")
        self.need(size, start, pos, path)
        if size > step.high:
            raise DecodeError("range", pos, path, f"the string has {size} bytes, at most {step.high} may be")
        if not self.strict:
            return start + size
        try:
            str(self.data[start : start + size], "utf-8")
        except UnicodeDecodeError as error:
            reason, invalid = error.reason, start + error.start
        else:
            return start + size
        raise DecodeError("utf8", invalid, path, f"the string is not UTF-8: {reason}")

    def array(self, step: Step, pos: int, path: str, nullable: bool) -> int:
        assert step.item is not None
        count, start = self.length(step.length, pos, path, nullable)
        size, left = count * max(1, step.item.min_size), self.end - start
        if size > left:
            raise DecodeError("truncated", pos, path, f"{count} elements take at least {size} bytes, {left} are left")
        for i in range(count):
            start = self.value(step.item, start, f"{path}[{i}]", step.item.nullable)
        return start

    def marker(self, step: Step, pos: int, path: str) -> tuple[bool, int]:
        if step.length is Length.COMPACT:
            number, start = self.uvarint(pos, path)
            null, present = 0, java_int(number) > 0
        else:
            number, start = self.prefix(step.length, pos, path)
            null, present = -1, number >= 0
        if self.strict and number not in (1, null):
            raise DecodeError("value", pos, path, f"a struct is marked 1, or {null} for null, not {number}")
        return present, start

    def union(self, step: Step, pos: int, path: str) -> int:
        tag, start = self.prefix(Length.INT8, pos, path)
        for known, plan in step.variants:
            if known == tag:
                return self.struct(plan, start, path)
        raise DecodeError("value", pos, path, f"the union has no variant {tag}")

    def tags(self, plan: StructPlan, pos: int, path: str) -> int:
        own = f"{path}.unknown_tags"
        count, start = self.uvarint(pos, own)
        if not self.strict and java_int(count) < 0:
            return start
        if count * 2 > self.end - start:
            detail = f"{count} tags take at least {count * 2} bytes, {self.end - start} are left"
            raise DecodeError("truncated", pos, own, detail)
        steps = {step.tag: step for step in plan.tagged}
        last = -1
        pos = start
        for _ in range(count):
            tag, size_at = self.uvarint(pos, own)
            size, start = self.uvarint(size_at, own)
            if self.strict and tag <= last:
                raise DecodeError("tag", pos, own, f"tag {tag} follows tag {last}")
            last = tag
            if tag in steps:
                field = f"{path}.{steps[tag].attr}"
                pos = self.value(steps[tag], start, field, steps[tag].nullable)
                if self.strict and pos - start != size:
                    raise DecodeError("tag", start, field, f"tag {tag} has {pos - start} bytes, not the {size} it says")
            elif tag in plan.known_tags:
                raise DecodeError("tag", pos, own, f"version {plan.version} does not have tag {tag}")
            else:
                self.need(size, start, size_at, own)
                pos = start + size
        return pos


class _Writer:
    """Each method raises or returns."""

    def __init__(self, classes: Mapping[str, type]) -> None:
        self.classes = classes

    def struct(self, plan: StructPlan, value: object, path: str) -> None:
        if value is None:
            raise EncodeError("null", path, "the value is None, which it may not be")
        message = stored_message(value, self.classes[plan.name])
        if message is None:
            raise _wrong_type(value, plan.name, path)
        for step in plan.steps:
            if step.presence is not Presence.TAGGED:
                self.untagged(step, plan, self.get(message, step.attr, path), f"{path}.{step.attr}")
        if plan.holds_tags and not plan.drops_tags:
            self.unknown_tags(plan, self.get(message, "unknown_tags", path), f"{path}.unknown_tags")
        for step in plan.tagged:
            held = self.get(message, step.attr, path)
            if not is_default(step, held, self.classes):
                self.value(step, held, f"{path}.{step.attr}", step.nullable)

    def untagged(self, step: Step, plan: StructPlan, held: object, path: str) -> None:
        if step.presence is Presence.PLAIN:
            self.value(step, held, path, step.nullable)
        elif step.presence is Presence.REMAINING:
            if held is not None:
                self.value(step, held, path, False)
        elif not step.ignorable and not is_default(step, held, self.classes):
            raise EncodeError("version", path, f"version {plan.version} carries nothing but the default")

    def get(self, value: object, attr: str, path: str) -> object:
        try:
            return getattr(value, attr)
        except AttributeError:
            raise EncodeError("type", f"{path}.{attr}", "the attribute is missing") from None

    def value(self, step: Step, value: object, path: str, nullable: bool) -> None:
        if value is None and step.length is not Length.NONE:
            if not nullable:
                raise EncodeError("null", path, "the value is None, which it may not be")
        elif step.op is Op.STRING:
            self.string(step, value, path)
        elif step.op is Op.BYTES:
            self.bytes(value, path)
        elif step.op is Op.ARRAY:
            self.array(step, value, path)
        elif step.op is Op.STRUCT:
            assert step.struct is not None
            self.struct(step.struct, value, path)
        elif step.op is Op.UNION:
            for _, plan in step.variants:
                if isinstance(value, self.classes[plan.name]):
                    return self.struct(plan, value, path)
            raise _wrong_type(value, " or ".join(plan.name for _, plan in step.variants), path)
        else:
            self.fixed(step, value, path)

    def fixed(self, step: Step, value: object, path: str) -> None:
        if step.op is Op.BOOL:
            if value is not True and value is not False:
                raise _wrong_type(value, "True or False", path)
        elif step.op is Op.UUID:
            if not isinstance(value, uuid.UUID):
                raise _wrong_type(value, "uuid.UUID", path)
        elif step.op is Op.FLOAT64:
            try:
                math.isnan(value)  # type: ignore[arg-type]
            except TypeError:
                raise _wrong_type(value, "float", path) from None
            except OverflowError:
                raise EncodeError("range", path, "the number is too big for a float64") from None
        else:
            try:
                number = stored_int(value)
            except TypeError:
                raise _wrong_type(value, "int", path) from None
            if not step.low <= number <= step.high:
                raise EncodeError("range", path, f"{number} is not between {step.low} and {step.high}")

    def string(self, step: Step, value: object, path: str) -> None:
        if not issubclass(type(value), str):
            raise _wrong_type(value, "str", path)
        try:
            size = len(str.encode(value))  # type: ignore[arg-type]
        except UnicodeEncodeError:
            raise EncodeError("type", path, "the string holds a lone surrogate, which UTF-8 cannot carry") from None
        if size > MAX_STRING:
            raise EncodeError("length", path, f"the string has {size} bytes, at most {MAX_STRING} may be")
        if size > step.high:
            raise EncodeError("range", path, f"the string has {size} bytes, at most {step.high} may be")

    def bytes(self, value: object, path: str) -> None:
        raw = stored_bytes(value)
        if raw is None:
            raise _wrong_type(value, "bytes", path)
        size = len(raw)
        if size > MAX_BYTES:
            raise EncodeError("length", path, f"there are {size} bytes, at most {MAX_BYTES} may be")

    def array(self, step: Step, value: object, path: str) -> None:
        assert step.item is not None
        items = stored_items(value)
        if items is None:
            raise _wrong_type(value, "list", path)
        if len(items) > MAX_COUNT[step.length]:
            limit = MAX_COUNT[step.length]
            raise EncodeError("length", path, f"there are {len(items)} elements, at most {limit} may be")
        for i, item in enumerate(items):
            self.value(step.item, item, f"{path}[{i}]", step.item.nullable)

    def unknown_tags(self, plan: StructPlan, tags: object, path: str) -> None:
        given = stored_items(tags)
        if given is None:
            raise _wrong_type(tags, "tuple of (tag, bytes)", path)
        last = -1
        for one in given:
            tag = _tag_of(one, path)
            if not plan.flexible:
                raise EncodeError("tag", path, f"version {plan.version} has no tagged fields")
            if tag <= last:
                raise EncodeError("tag", path, f"tag {tag} follows tag {last}")
            if tag in plan.known_tags:
                raise EncodeError("tag", path, f"tag {tag} is a field of {plan.name}")
            last = tag


def _tag_of(pair: object, path: str) -> int:
    """The number of an unknown tag, given as (tag, bytes)."""
    parts = stored_items(pair)
    if parts is None or len(parts) != 2:
        raise _wrong_type(pair, "(tag, bytes)", path)
    if not issubclass(type(parts[0]), int) or not 0 <= stored_int(parts[0]) <= MAX_TAG:
        raise EncodeError("type", path, f"a tag is an int from 0 to {MAX_TAG}")
    if stored_bytes(parts[1], contiguous=False) is None:
        raise _wrong_type(parts[1], "bytes", path)
    return stored_int(parts[0])


def is_default(step: Step, value: object, classes: Mapping[str, type]) -> bool:
    """Whether a field that does not travel loses nothing: `value` is what a reader would put there."""
    if step.default is None:
        return value is None
    if step.default == ():
        items = stored_items(value)
        return items is not None and len(items) == 0
    if step.default is ...:
        plan = step.struct if step.struct is not None else step.variants[0][1]
        try:
            cls = classes[plan.name]
            return type(value) is cls and bool(value == cls())
        except AttributeError:  # one of its slots is empty: writing it will say which
            return False
    return bool(value == step.default)


def _wrong_type(value: object, wanted: str, path: str) -> EncodeError:
    return EncodeError("type", path, f"{type(value).__name__} where {wanted} must be")
