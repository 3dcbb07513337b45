"""Golden values in the JSON of Kafka's own classes, and the bytes that those classes write for it."""

from __future__ import annotations

import base64
import json
import subprocess
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kcoord_wire.schema.model import Field, Message, Struct
from tests.support.kafka_broker import class_path, compile_java, java

__all__ = ["bytes_of_kafka", "class_of", "to_kafka_json"]

_SOURCE = Path(__file__).with_name("java") / "MessageBytes.java"
_ARTIFACT = ("kafka-group-coordinator", "4.4.0")


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


def bytes_of_kafka(cases: Iterable[tuple[str, int, dict[str, Any]]], classes: Path) -> list[str]:
    """The bodies in hex that Kafka 4.4.0 writes for class, version and JSON.

    ``none`` where the class lacks the version; ``error`` and the reason for a message that it refuses.

    :param classes: a folder for the compiled program
    """
    path = compile_java(_SOURCE, classes, class_path(*_ARTIFACT))
    lines = "".join(f"{name}\t{version}\t{json.dumps(value)}\n" for name, version, value in cases)
    command = java(path, _SOURCE.stem)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=900, check=True)
    return done.stdout.splitlines()
