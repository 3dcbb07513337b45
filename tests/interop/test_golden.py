"""Kafka 4.4.0's own classes write the golden vectors: the same bytes for the same values, in all versions they have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import kcoord_wire as kw
from tests.support.kafka_broker import class_path
from tests.support.kafka_json import to_kafka_json, written_by_kafka

GOLDEN: Final = Path(__file__).parents[1] / "data" / "golden" / "kafka.jsonl"
MOST_DROPPED: Final = 200
"""Vectors of versions that Kafka 4 no longer has: Produce 0 to 2, Fetch 0 to 3 and others."""


def test_kafka_writes_the_golden_vectors(tmp_path: Path) -> None:
    vectors = [json.loads(line) for line in GOLDEN.read_text("utf-8").splitlines()]
    schemas = [kw.registry[each["message"]].schema for each in vectors]
    cases = [
        (schema, each["version"], json.dumps(to_kafka_json(schema, each["value"], each["version"])))
        for schema, each in zip(schemas, vectors, strict=True)
    ]
    written = [body for body, _ in written_by_kafka(cases, class_path("kafka-group-coordinator", "4.4.0"), tmp_path)]
    assert len(written) == len(vectors)
    dropped = {index for index, body in enumerate(written) if body == "none"}
    different = [
        f"{each['message']} {each['version']}: {written[index]} where {each['hex']} is kept"
        for index, each in enumerate(vectors)
        if index not in dropped and written[index] != each["hex"]
    ]
    assert not different, different[:3]
    assert len(dropped) <= MOST_DROPPED
