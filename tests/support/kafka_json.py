"""Messages as Kafka's own classes write them, and golden values in the JSON of those classes."""

from __future__ import annotations

import base64
import subprocess
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kcoord_wire.schema.model import Field, Message, Struct
from tests.support.kafka_broker import compile_java, java

_SOURCE = Path(__file__).with_name("java") / "Rewrite.java"


def class_of(message: Message) -> str:
    """The Java class that Kafka generates for a schema."""
    if message.type.startswith("coordinator-"):
        return f"org.apache.kafka.coordinator.group.generated.{message.name}"
    suffix = "" if message.type == "data" else "Data"
    return f"org.apache.kafka.common.message.{message.name}{suffix}"


def to_kafka_json(message: Message, value: dict[str, Any], version: int) -> dict[str, Any]:
    """A golden value as the class's JsonConverter reads it: names in lower camel case, bytes and uuids in base64."""
    return _struct(message, message.root, value, version)


def _struct(message: Message, struct: Struct, value: dict[str, Any], version: int) -> dict[str, Any]:
    fields = {field.name: field for field in struct.fields}
    return {name[0].lower() + name[1:]: _field(message, fields[name], each, version) for name, each in value.items()}


def _field(message: Message, field: Field, value: Any, version: int) -> Any:
    if value is None:
        return None
    if field.type.array:
        return [_item(message, field, each, version) for each in value]
    return _item(message, field, value, version)


def _item(message: Message, field: Field, value: Any, version: int) -> Any:
    if field.type.is_struct:
        return _struct(message, message.struct_of(field), value, version)
    if field.type.base in ("bytes", "records"):
        return base64.b64encode(bytes.fromhex(value)).decode()
    if field.type.base == "uuid":
        return base64.urlsafe_b64encode(uuid.UUID(value).bytes).decode().rstrip("=")
    return value


def written_by_kafka(cases: Iterable[tuple[Message, int, str]], path: str, classes: Path) -> list[tuple[str, str]]:
    """The body in hex that Kafka writes for each message and version, and the message in Kafka's JSON.

    ``none`` and "" where Kafka's class lacks the version; ``error`` and the reason for a message that it refuses.

    :param cases: the message's schema, its version, and the message: the body in hex, or Kafka's JSON
    :param path: the class path of Kafka's classes
    :param classes: a folder for the compiled program
    """
    lines = "".join(f"{class_of(schema)}\t{version}\t{given}\n" for schema, version, given in cases)
    command = java(compile_java(_SOURCE, classes, path), _SOURCE.stem)
    done = subprocess.run(command, input=lines, capture_output=True, encoding="utf-8", timeout=900, check=True)
    answers = [line.partition("\t") for line in done.stdout.splitlines()]
    return [(first, second) for first, _, second in answers]
