"""`python -m tests.support.kafka_vectors`: record tests/data/golden/apis.jsonl.gz by the classes of kafka-clients.

A vector for each message and version of the APIs that no part of this package speaks, in the form of the other golden
vectors. Kafka reads a message in which every field holds something; the vector is what Kafka writes, and the values as
Kafka's JSON has them. Versions that the jar does not have come from an older jar.
"""

from __future__ import annotations

import base64
import gzip
import json
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kcoord_wire as kw
from kcoord_wire.schema.model import Field, Message, Struct
from tests.support.apis import spoken
from tests.support.kafka_broker import class_path
from tests.support.kafka_json import written_by_kafka
from tests.support.strategies import filled

VECTORS = Path(__file__).parent.parent / "data" / "golden" / "apis.jsonl.gz"
RELEASES = ("4.4.0", "3.9.2")


def main() -> None:
    wanted = {
        (codec.name, version) for codec in kw.registry.values() if not spoken(codec) for version in codec.valid_versions
    }
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for release in RELEASES:
        path = class_path("kafka-clients", release)
        jar = next(Path(path).parent.glob("kafka-clients-*.jar"))
        known = kw.compile_schemas(jar)
        here = sorted(
            (name, version)
            for name, version in wanted - set(rows)
            if name in known and version in known[name].valid_versions
        )
        rows |= {(row["message"], row["version"]): row for row in rewritten(path, here)}
    print(f"{len(rows)} of {len(wanted)}; without a vector: {sorted(wanted - set(rows))}")
    text = "".join(json.dumps(rows[key], separators=(",", ":")) + "\n" for key in sorted(rows))
    VECTORS.write_bytes(gzip.compress(text.encode(), mtime=0))


def rewritten(path: str, messages: list[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """What Kafka makes of the filled messages, by the classes of a class path."""
    codecs = [(kw.registry[name], version) for name, version in messages]
    cases = [
        (codec.schema, version, codec.encode(without_unknown_tags(filled(codec, version)), version).hex())
        for codec, version in codecs
    ]
    with tempfile.TemporaryDirectory() as scratch:
        answers = written_by_kafka(cases, path, Path(scratch))
    for (name, version), (raw, values) in zip(messages, answers, strict=True):
        schema = kw.registry[name].schema
        value = struct_values(schema, schema.root, json.loads(values), version)
        yield {"message": name, "version": version, "value": value, "hex": raw}


def without_unknown_tags(message: Any) -> Any:
    for name in getattr(message, "__slots__", ()):
        held = getattr(message, name)
        for each in held if isinstance(held, list) else [held]:
            without_unknown_tags(each)
    if hasattr(message, "unknown_tags"):
        message.unknown_tags = ()
    return message


def struct_values(message: Message, struct: Struct, values: dict[str, Any], version: int) -> dict[str, Any]:
    """Kafka's JSON of a struct in the form of `to_dict`: names as in the schema, bytes and uuids as hex."""
    names = {name.lower(): name for name in values}
    return {
        field.name: field_value(message, field, values[names[field.name.lower()]], version)
        for field in struct.fields
        if version in field.versions and field.type.base != "records"  # of records the JSON has the size alone
    }


def field_value(message: Message, field: Field, value: Any, version: int) -> Any:
    if field.type.array and value is not None:
        return [scalar(message, field, each, version) for each in value]
    return scalar(message, field, value, version)


def scalar(message: Message, field: Field, value: Any, version: int) -> Any:
    if value is None:
        return None
    if field.type.is_struct:
        return struct_values(message, message.struct_of(field), value, version)
    if field.type.base == "bytes":
        return base64.b64decode(value).hex()
    if field.type.base == "uuid":
        return uuid.UUID(bytes=base64.urlsafe_b64decode(value + "==")).hex
    return value


if __name__ == "__main__":
    main()
