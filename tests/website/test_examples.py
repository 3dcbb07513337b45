"""Examples of messages: every version carries its own, which has a value for each field."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

import kcoord_wire as kw
from docs.website.examples import example
from kcoord_wire.records import read_records
from kcoord_wire.schema.plan import attribute_name
from tests.support.each import each


@each("codec", kw.registry.values())
def test_every_version_gives_its_example_back(codec: kw.MessageCodec) -> None:
    for version in codec.valid_versions:
        message = example(codec, version)
        assert codec.decode(codec.encode(message, version), version) == message


@each("codec", kw.registry.values())
def test_an_example_has_a_value_for_each_field(codec: kw.MessageCodec) -> None:
    version = codec.valid_versions[-1]
    names = {attribute_name(field.name) for field in codec.schema.fields if version in field.versions}
    message = example(codec, version)
    empty = {name for name in names if getattr(message, name) in (None, [], "", b"")}
    assert empty <= ({"topic"} if codec.name == "ReleaseGroup" else {"error_message"})  # that topic has no letters


def test_an_example_is_the_same_each_time() -> None:
    codec = kw.registry["ConsumerGroupHeartbeatRequest"]
    assert example(codec, 1) == example(codec, 1)


def test_names_suggest_values() -> None:
    message = example(kw.registry["JoinGroupRequest"], 9)
    assert (message.group_id, message.session_timeout_ms, message.protocols[0].name) == ("billing", 45_000, "range")
    _, subscription = kw.decode_prefixed(kw.ConsumerProtocolSubscription, message.protocols[0].metadata)
    assert subscription.topics == ["orders"]
    response = example(kw.registry["FindCoordinatorResponse"], 0)
    assert (response.error_code, response.port) == (0, 9092)


def test_records_are_records() -> None:
    [data] = batches(example(kw.registry["ProduceRequest"], 13))
    [batch] = read_records(data)
    assert [record.value for record in batch.records] == [b"hello"]


def batches(message: Any) -> Iterator[bytes]:
    """The values of the fields named `records`, at any depth."""
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if field.name == "records":
            yield value
        for inner in value if isinstance(value, list) else ():
            yield from batches(inner)


@pytest.mark.parametrize("name", ["SingleAssignorJoinGroupRequest"])
def test_a_union_has_its_first_variant(name: str) -> None:
    codec = kw.registry[name]
    [field] = [field for field in codec.schema.fields if field.variants]
    message = example(codec, 0)
    assert type(getattr(message, attribute_name(field.name))).__name__ == f"{name}{field.variants[0].struct.name}"
