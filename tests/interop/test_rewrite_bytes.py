"""The rewrite's messages against kafka-clients 0.8.2.2, which was released with them: the same bytes, both ways.

Heartbeat, ConsumerMetadata, OffsetCommit and OffsetFetch are messages of the family `kafka`. That they have the bytes
of 0.8.2 is the reason why the family `rewrite` does not repeat them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings

from kcoord_wire.codec.convert import to_dict
from kcoord_wire.codec.registry import MessageCodec, registry
from tests.support import kafka_broker
from tests.support.kafka_broker import class_path, compile_java, java
from tests.support.processes import Process
from tests.support.strategies import messages

VERSION = "0.8.2.2"
EXAMPLES = 200
PROGRAM = Path(kafka_broker.__file__).with_name("java") / "Schemas.java"
CASES = [
    ("RewriteJoinGroupRequest", 0),
    ("RewriteJoinGroupResponse", 0),
    ("FindCoordinatorRequest", 0),
    ("FindCoordinatorResponse", 0),
    ("HeartbeatRequest", 0),
    ("HeartbeatResponse", 0),
    ("OffsetCommitRequest", 1),
    ("OffsetCommitResponse", 1),
    ("OffsetFetchRequest", 1),
    ("OffsetFetchResponse", 1),
]


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """The program on the old clients."""
    path = compile_java(PROGRAM, tmp_path_factory.mktemp("classes"), class_path("kafka-clients", VERSION))
    with Process(java(path, "Schemas")) as process:
        yield process
        process.finish()


def ask(clients: Process, codec: MessageCodec, version: int, **what: object) -> dict[str, Any]:
    asked = {"api": codec.api_key, "version": version, "request": codec.type == "request", **what}
    answer: dict[str, Any] = json.loads(clients.ask(json.dumps(asked)))
    return answer


def in_wire_order(value: Any) -> Any:
    """The values of a message's dict, as the program writes them."""
    if isinstance(value, dict):
        return [in_wire_order(each) for each in value.values()]
    return [in_wire_order(each) for each in value] if isinstance(value, list) else value


def has_null(value: Any) -> bool:
    return any(map(has_null, value)) if isinstance(value, list) else value is None


@pytest.mark.parametrize(("name", "version"), CASES)
def test_the_bytes_are_those_of_0_8_2(clients: Process, name: str, version: int) -> None:
    codec = registry[name]
    compared = set()

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(message=messages(codec, version))
    def compare(message: Any) -> None:
        values = in_wire_order(to_dict(message, version))
        assume(not has_null(values))  # the strings of 0.8.2 are never null
        data = codec.encode(message, version)
        assert ask(clients, codec, version, values=values) == {"hex": data.hex()}
        assert ask(clients, codec, version, hex=data.hex()) == {"values": values, "hex": data.hex()}
        compared.add(data)

    compare()
    assert len(compared) > EXAMPLES // 2 or name == "HeartbeatResponse", "hardly any value was compared"


@pytest.mark.parametrize(("name", "version"), CASES)
def test_the_longest_that_0_8_2_writes_is_read(clients: Process, name: str, version: int) -> None:
    """The longest strings and extreme numbers, which the drawn values do not have."""
    codec = registry[name]
    longest = {"string": "ä" * 16_383, "int16": -(1 << 15), "int32": (1 << 31) - 1, "int64": -(1 << 63)}

    def fill(fields: Any) -> list[Any]:
        made = []
        for field in fields:
            if version not in field.versions:
                continue
            struct = codec.schema.struct_of(field) if field.type.is_struct else None
            value = fill(struct.fields) if struct else longest[field.type.base]
            made.append([value] * 3 if field.type.array else value)
        return made

    answer = ask(clients, codec, version, values=fill(codec.schema.root.fields))
    data = bytes.fromhex(answer["hex"])
    message = codec.decode(data, version)
    assert codec.encode(message, version) == data
    assert in_wire_order(to_dict(message, version)) == fill(codec.schema.root.fields)
