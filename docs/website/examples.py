"""A plausible message of each kind, made from its schema: the same one each time.

Laws:

* Every field that the version has is set to a value that its name suggests, also where it may be null; arrays have one
  element, unions their first variant, and fields that embed a message an example of that one.
* Every version can carry its example, and gives it back.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any, Final

import kcoord_wire as kw
from kcoord_wire.schema.model import INTEGERS, Field, Struct
from kcoord_wire.schema.plan import attribute_name, class_name

_TEXTS: Final = (
    (r"transactional_id", "payments-tx-0"),
    (r"regex", "orders-.*"),
    (r"protocol_type|group_type", "consumer"),
    (r"group_instance|instance_id", "billing-0"),
    (r"member|leader|consumer_(thread_)?id", "consumer-1"),
    (r"group", "billing"),
    (r"state", "Stable"),
    (r"topic", "orders"),
    (r"host|endpoint|address", "broker-1.example"),
    (r"client_id", "billing-app"),
    (r"software_name", "kcoord"),
    (r"version", "4.4"),
    (r"rack", "rack-a"),
    (r"assignor|protocol_name|strateg", "range"),
    (r"mechanism", "SCRAM-SHA-256"),
    (r"principal_type", "User"),
    (r"principal|user|owner", "alice"),
    (r"listener|security_protocol", "PLAINTEXT"),
    (r"log_dir|path", "/var/lib/kafka"),
    (r"reason", "the application closes"),
    (r"key", "billing"),
    (r"metadata", "checked"),
)
_NUMBERS: Final = (
    (r"error_code|throttle_time", 0),
    (r"port", 9092),
    (r"session_timeout", 45_000),
    (r"rebalance_timeout|max_poll", 300_000),
    (r"heartbeat_interval", 5_000),
    (r"timestamp|time_ms$|_at$", 1_700_000_000_000),
    (r"(timeout|wait|interval|backoff|lifetime|_ms$)", 500),
    (r"partition(s|_ind|_id|$)|index", 3),
    (r"offset|watermark", 42),
    (r"max_bytes|bytes", 1_048_576),
    (r"epoch|generation", 5),
    (r"producer_id", 4000),
    (r"(^|_)(broker|node|leader|replica|controller|voter|coordinator)(_id|_nodes|s)?$", 1),
    (r"acks", -1),
    (r"size|count|num", 2),
)
_TOPIC_ID: Final = uuid.UUID("6b0b1b52-7d1c-4a5e-9a57-2f6f3a1e9c01")
_NAMES: Final = (
    (r"topic", "orders"),
    (r"protocol", "range"),
    (r"config|override|entry|synonym", "retention.ms"),
    (r"feature|update", "metadata.version"),
    (r"listener|endpoint", "PLAINTEXT"),
    (r"metric", "org.apache.kafka.consumer."),
    (r"user|scram", "alice"),
)
_BYTES: Final = b"\x01\x02"
_MOST_FOR_TEXT: Final = 16  # characters of a text that no row above names
# A batch of one record with the value "hello", as a producer writes it: magic 2, no compression.
_RECORDS: Final = bytes.fromhex(
    "00000000000000000000003dffffffff02e641a44b0000000000000000018bcf"
    "e568000000018bcfe56800ffffffffffffffffffffffffffff00000001160000"
    "00010a68656c6c6f00"
)


def example(codec: kw.MessageCodec, version: int) -> Any:
    """Return an instance of the message's class with a value for each field of a version."""
    return _Filled(codec, version).struct(codec.schema.root)


class _Filled:
    def __init__(self, codec: kw.MessageCodec, version: int) -> None:
        self.codec = codec
        self.version = version

    def struct(self, struct: Struct) -> Any:
        fields = [field for field in struct.fields if self.version in field.versions]
        name = class_name(self.codec.schema, struct)
        return self.codec.classes[name](**{attribute_name(field.name): self.value(field, name) for field in fields})

    def value(self, field: Field, within: str) -> Any:
        if field.nullable and attribute_name(field.name) == "error_message":
            return None  # as its code is 0
        return [self.scalar(field, within)] if field.type.array else self.scalar(field, within)

    def scalar(self, field: Field, within: str) -> Any:
        base = field.type.base
        if field.type.is_struct:
            return self.struct(self.codec.schema.struct_of(field))
        if base == "union":
            return self.struct(field.variants[0].struct)
        if base in INTEGERS:
            return _number(field)
        if base == "bytes" and field.embeds is not None:
            inner = kw.registry[field.embeds]
            newest = inner.valid_versions[-1]
            return kw.encode_prefixed(example(inner, newest), newest)
        if base == "string":
            return _text(field, within)
        return {"bool": True, "float64": 0.5, "uuid": _TOPIC_ID, "bytes": _BYTES, "records": _RECORDS}[base]


def _like(name: str, rows: Sequence[tuple[str, Any]], otherwise: Any) -> Any:
    return next((value for pattern, value in rows if re.search(pattern, name)), otherwise)


def _number(field: Field) -> int:
    low, high = INTEGERS[field.type.base]
    value: int = _like(attribute_name(field.name), _NUMBERS, 1)
    most = high if field.maximum is None else field.maximum
    return max(low if field.minimum is None else field.minimum, min(value, most))


def _text(field: Field, within: str) -> str:
    name = attribute_name(field.name)
    value: str = name.replace("_", "-")[:_MOST_FOR_TEXT]
    if field.entity_type == "topicName":
        value = "orders"
    elif name == "name":
        value = _like(attribute_name(within), _NAMES, value)
    else:
        value = _like(name, _TEXTS, value)
    return value if field.max_length is None else value[: field.max_length]
