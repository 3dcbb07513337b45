"""The records of ``__consumer_offsets``, in which the group coordinator stores groups and offsets.

Layout: a key is an int16 record type and that type's key message, version 0; a value is an int16 version and that
type's value message, or null for a tombstone, which deletes the key.

Laws:

* A record type without a schema is reported with its bytes; Kafka ignores it as well. A value of a version without a
  schema is an error, as for Kafka, which refuses to load the partition.
* Subscriptions and assignments are a client's bytes in a broker's record: one that does not decode is reported with
  the record (`ConsumerMember.error`), never instead of it.
* Offsets of errors count from the start of the key or the value, whichever the path names. This is the only module of
  the folder that knows the codec.
* A value is written in the version that Kafka 3.9 writes, the last one that is not flexible, unless the caller gives
  another: 3, but 1 for an offset with a time of expiry; 0 for the record types that have no other.

Source: kafka/group-coordinator `GroupCoordinatorRecordSerde.java`, `GroupCoordinatorRecordHelpers.java`,
`CoordinatorRecordType`; kafka/clients `ConsumerProtocol.java`; KIP-848, KIP-915.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import kcoord_wire as kw
from kcoord_wire.errors import DecodeError, EncodeError
from kcoord_wire.records.control import ControlRecord, decode_control_record
from kcoord_wire.records.limits import below
from kcoord_wire.records.model import Batch, Record, RecordBatch

UNKNOWN: Final = "Unknown"
_VERSION_SIZE: Final = 2
_GROUP_SIZE_AT: Final = 2  # in every key, behind the record type
_GROUP_AT: Final = 4
_NEWEST_WRITTEN: Final = 3
_WITH_EXPIRY: Final = 1


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """The nested messages of one member of a classic group whose protocol type is ``consumer``.

    :ivar member_id: the member's id, as in the record
    :ivar subscription: `ConsumerProtocolSubscription`; None where the blob is empty or does not decode
    :ivar assignment: `ConsumerProtocolAssignment`; None where the blob is empty or does not decode
    :ivar error: of the first of the two that does not decode; its offset counts from the start of that blob
    """

    member_id: str
    subscription: Any | None
    assignment: Any | None
    error: DecodeError | None


@dataclass(frozen=True, slots=True)
class OffsetsRecord:
    """One record of ``__consumer_offsets``.

    :ivar kind: name of the record type, as the schemas have it without ``Key``: ``OffsetCommit``, ``GroupMetadata``
        ...; ``Unknown`` for a type without schema
    :ivar record_type: the number of the type
    :ivar key: the key message; None where the kind is ``Unknown``
    :ivar value: the value message; None for a tombstone and where the kind is ``Unknown``
    :ivar value_version: version the value was written in; None for a tombstone and where the kind is ``Unknown``
    :ivar members: the members of ``value`` with their nested messages; empty unless the kind is ``GroupMetadata`` and
        the protocol type ``consumer``
    :ivar raw_key: the key as stored
    :ivar raw_value: the value as stored, null for a tombstone
    """

    kind: str
    record_type: int
    key: Any | None
    value: Any | None
    value_version: int | None
    members: tuple[ConsumerMember, ...]
    raw_key: bytes
    raw_value: bytes | None

    @property
    def is_tombstone(self) -> bool:
        return self.raw_value is None


class OffsetsLogEntry(NamedTuple):
    """One record where it lies in the log.

    :ivar batch: for the position, and for a transactional offset commit the producer whose end marker commits it
    :ivar record: undecoded
    :ivar content: a `ControlRecord` if the batch holds markers
    """

    batch: Batch
    record: Record
    content: OffsetsRecord | ControlRecord


def read_offsets(
    batches: Iterable[Batch], *, strict: bool = True, registry: kw.Registry = kw.registry
) -> Iterator[OffsetsLogEntry]:
    """Yield the records of `batches`, decoded, in log order.

    :param batches: from `read_records` or a `SegmentReader`
    :param strict: as for `kcoord_wire.decode`
    :param registry: as for `decode_offsets_record`
    :raises DecodeError: while iterating; offset that of the batch, path
        ``RecordBatch.records[3].OffsetCommitValue.metadata``
    """
    for batch in batches:
        is_control = isinstance(batch, RecordBatch) and batch.is_control
        for index, record in enumerate(batch.records):
            try:
                content: OffsetsRecord | ControlRecord
                if is_control:
                    content = decode_control_record(record)
                else:
                    content = decode_offsets_record(record.key, record.value, strict=strict, registry=registry)
            except DecodeError as error:
                inner = DecodeError(error.kind, batch.position, error.path, error.detail)
                raise below(f"{type(batch).__name__}.records[{index}]", inner) from None
            yield OffsetsLogEntry(batch, record, content)


def decode_offsets_record(
    key: bytes | None, value: bytes | None, *, strict: bool = True, registry: kw.Registry = kw.registry
) -> OffsetsRecord:
    """Return the decoded record of `key` and `value`.

    :param strict: as for `kcoord_wire.decode`
    :param registry: whose schemas to read it with, as `compile_schemas` makes one of a newer Kafka's; record types that
        it lacks are read with the package's own
    :raises DecodeError: ``null`` for a record without key, else as for `kcoord_wire.decode`
    """
    if key is None:
        raise DecodeError("null", 0, "key", "a record of __consumer_offsets has a key")
    record_type = _read_int16(key, "key")
    codecs = _codecs(registry, record_type) or _codecs(kw.registry, record_type)
    if codecs is None:
        return OffsetsRecord(UNKNOWN, record_type, None, None, None, (), key, value)
    key_codec, value_codec = codecs
    key_message = _decode_rest(key_codec, key, 0, strict)
    version = message = None
    members: tuple[ConsumerMember, ...] = ()
    if value is not None:
        version = _read_int16(value, "value")
        message = _decode_rest(value_codec, value, version, strict)
        if value_codec.name == "GroupMetadataValue" and message.protocol_type == "consumer":
            members = tuple(_consumer_member(member, strict) for member in message.members)
    kind = key_codec.name.removesuffix("Key")
    return OffsetsRecord(kind, record_type, key_message, message, version, members, key, value)


def group_of_key(key: bytes) -> str:
    """Return the group id in the key of a record: keys of all types begin with it.

    :raises DecodeError: the key is too short, or the id is not UTF-8
    """
    end = _GROUP_AT + int.from_bytes(key[_GROUP_SIZE_AT:_GROUP_AT], "big")
    if len(key) < max(end, _GROUP_AT):
        raise DecodeError("truncated", 0, "key.group", f"{len(key)} bytes of {max(end, _GROUP_AT)}")
    try:
        return key[_GROUP_AT:end].decode()
    except UnicodeDecodeError as error:
        raise DecodeError("utf8", _GROUP_AT, "key.group", str(error)) from None


def encode_offsets_record(
    key: Any, value: Any | None, *, value_version: int | None = None
) -> tuple[bytes, bytes | None]:
    """Return key and value of a record, as `decode_offsets_record` reads them.

    :param key: a key message, such as `OffsetCommitKey`
    :param value: the value message that belongs to it; None for a tombstone
    :param value_version: default: the one that Kafka 3.9 writes
    :raises EncodeError: ``type`` for messages that do not belong together, else as for `kcoord_wire.encode`
    """
    key_class: type = type(key)
    value_class: type | None = None if value is None else type(value)
    record_type, newest = _written_as(key_class, value_class)
    raw_key = record_type + kw.encode(key, 0)
    if value is None:
        return raw_key, None
    if value_version is None:
        value_version = _WITH_EXPIRY if getattr(value, "expire_timestamp", -1) != -1 else newest
    raw_value = kw.encode(value, value_version)
    return raw_key, value_version.to_bytes(_VERSION_SIZE, "big") + raw_value


@cache
def _written_as(key_class: type, value_class: type | None) -> tuple[bytes, int]:
    """The bytes of the record type that has these classes, and the version its value is written in.

    :raises EncodeError: ``type``
    """
    try:
        key_codec = kw.registry.by_class(key_class)
    except TypeError:
        key_codec = None
    if key_codec is None or key_codec.type != "coordinator-key" or key_codec.api_key is None:
        raise EncodeError("type", "key", f"{key_class.__name__} is not the key of a record")
    value_codec = kw.registry.record_value(key_codec.api_key)
    if value_class is not None and not issubclass(value_class, value_codec.cls):
        raise EncodeError("type", "value", f"{value_class.__name__} does not belong to {key_class.__name__}")
    newest = min(value_codec.valid_versions[-1], _NEWEST_WRITTEN)
    return key_codec.api_key.to_bytes(_VERSION_SIZE, "big"), newest


def _codecs(registry: kw.Registry, record_type: int) -> tuple[kw.MessageCodec, kw.MessageCodec] | None:
    """How the type's key and value are read; None where the registry lacks the type."""
    try:
        return registry.record_key(record_type), registry.record_value(record_type)
    except KeyError:
        return None


def _read_int16(data: bytes, path: str) -> int:
    if len(data) < _VERSION_SIZE:
        raise DecodeError("truncated", 0, path, f"{len(data)} bytes where {_VERSION_SIZE} are needed")
    return int.from_bytes(data[:_VERSION_SIZE], "big", signed=True)


def _decode_rest(codec: kw.MessageCodec, data: bytes, version: int, strict: bool) -> Any:
    """The message after the int16."""
    message, end = codec.decode_prefix(data, version, offset=_VERSION_SIZE, strict=strict)
    if strict and end != len(data):
        raise DecodeError("trailing", end, codec.name, f"{len(data) - end} bytes after the message")
    return message


def _consumer_member(member: kw.GroupMetadataValueMemberMetadata, strict: bool) -> ConsumerMember:
    subscription, wrong_subscription = _nested(kw.ConsumerProtocolSubscription, member.subscription, strict)
    assignment, wrong_assignment = _nested(kw.ConsumerProtocolAssignment, member.assignment, strict)
    return ConsumerMember(member.member_id, subscription, assignment, wrong_subscription or wrong_assignment)


def _nested(cls: type, blob: bytes, strict: bool) -> tuple[Any | None, DecodeError | None]:
    if not blob:
        return None, None
    try:
        return kw.decode_prefixed(cls, blob, strict=strict)[1], None
    except DecodeError as error:
        return None, error
