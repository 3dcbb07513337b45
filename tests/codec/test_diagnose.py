"""The slow walk on its own: nothing is raised where nothing is wrong, and the first fault in wire order otherwise."""

from __future__ import annotations

import pytest

import kcoord_wire as kw
from kcoord_wire.codec.diagnose import explain_bytes, explain_value, java_int
from kcoord_wire.codec.registry import registry
from kcoord_wire.errors import DecodeError, EncodeError
from tests.support.strategies import filled

BINARY = [codec for codec in registry.values() if codec.schema.encoding == "binary"]


def test_correct_messages_raise_nothing() -> None:
    for codec in BINARY:
        for version in {codec.valid_versions[0], codec.valid_versions[-1]}:
            message = filled(codec, version)
            plan = codec.plan(version)
            explain_value(plan, codec.classes, message)
            for strict in (True, False):
                explain_bytes(plan, codec.encode(message, version), 0, strict, True)


def test_the_first_fault_is_raised() -> None:
    codec = registry["HeartbeatRequest"]
    with pytest.raises(DecodeError) as reading:
        explain_bytes(codec.plan(0), b"\0\1\xff\0\0\0\1\xff\xff", 0, True, True)
    assert (reading.value.kind, reading.value.path) == ("utf8", "HeartbeatRequest.group_id")
    with pytest.raises(EncodeError) as writing:
        explain_value(codec.plan(0), codec.classes, kw.HeartbeatRequest(generation_id=2**31, member_id=None))
    assert (writing.value.kind, writing.value.path) == ("range", "HeartbeatRequest.generation_id")


def test_numbers_wrap_as_java_ints() -> None:
    cases = {0: 0, -1: -1, 0x7FFFFFFF: 0x7FFFFFFF, 0x80000000: -(2**31), 0xFFFFFFFE: -2, 2**35: 0}
    assert {number: java_int(number) for number in cases} == cases
