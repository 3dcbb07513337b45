"""The configs of topics and groups, as Kafka 4 has them: names, types, defaults, and which values each may have.

Laws:

* A config that is not in these tables, or a value that Kafka does not allow, is refused with INVALID_CONFIG (40) and
  Kafka's text for it. Every other one is kept and described.
* Those with an effect here are `EFFECTIVE`. The others say how a broker keeps files or replicates them.

Source: kafka `LogConfig.java`, `GroupConfig.java`, `ServerTopicConfigSynonyms.java`, `ConfigDef.java`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.core.config import OF_EACH_GROUP, GroupConfig
from kcoord_wire.kernel.settings import numbers_of, texts_of
from kcoord_wire.protocol.error_codes import ErrorCode

_LONGEST_VALUE: Final = 0x7FFF  # UTF-8 bytes of a text in the older form of strings, as Kafka keeps configs


class Resource(enum.IntEnum):
    """What has configs, with Kafka's number (``ConfigResource.Type``)."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


class Kind(enum.IntEnum):
    """The type of a config, with its number in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_WIDTHS: Final = {Kind.SHORT: 1 << 15, Kind.INT: 1 << 31, Kind.LONG: 1 << 63}
_LONGEST: Final = (1 << 63) - 1


class Config(NamedTuple):
    """A config.

    :ivar kind: its type
    :ivar default: as text
    :ivar least: the least number that is allowed; None where any is
    :ivar most: likewise the greatest
    :ivar choices: the texts that are allowed, each of a list's; empty where any is
    :ivar broker: the broker's config that is its default, if there is one
    :ivar form: what a text has to be like; None where it may be any
    """

    kind: Kind
    default: str
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    broker: str | None = None
    form: re.Pattern[str] | None = None


DURATION: Final = re.compile(
    r"by_duration:(?i:P(?=\d|T\d)(?:(?P<days>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?)"
)
"""``by_duration:`` and a duration in ISO 8601, as ``share.auto.offset.reset`` may be."""

_CODECS: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")

TOPIC_CONFIGS: Final[Mapping[str, Config]] = MappingProxyType(
    {
        "cleanup.policy": Config(Kind.LIST, "delete", choices=("compact", "delete"), broker="log.cleanup.policy"),
        "compression.gzip.level": Config(Kind.INT, "-1", -1, 9, broker="compression.gzip.level"),
        "compression.lz4.level": Config(Kind.INT, "9", 1, 17, broker="compression.lz4.level"),
        "compression.type": Config(Kind.STRING, "producer", choices=_CODECS, broker="compression.type"),
        "compression.zstd.level": Config(Kind.INT, "3", -131_072, 22, broker="compression.zstd.level"),
        "delete.retention.ms": Config(Kind.LONG, "86400000", 0, broker="log.cleaner.delete.retention.ms"),
        "errors.deadletterqueue.group.enable": Config(Kind.BOOLEAN, "false"),
        "file.delete.delay.ms": Config(Kind.LONG, "60000", 0, broker="log.segment.delete.delay.ms"),
        "flush.messages": Config(Kind.LONG, str(_LONGEST), 1, broker="log.flush.interval.messages"),
        "flush.ms": Config(Kind.LONG, str(_LONGEST), 0),
        "follower.replication.throttled.replicas": Config(Kind.LIST, ""),
        "index.interval.bytes": Config(Kind.INT, "4096", 0, broker="log.index.interval.bytes"),
        "leader.replication.throttled.replicas": Config(Kind.LIST, ""),
        "local.retention.bytes": Config(Kind.LONG, "-2", -2, broker="log.local.retention.bytes"),
        "local.retention.ms": Config(Kind.LONG, "-2", -2, broker="log.local.retention.ms"),
        "max.compaction.lag.ms": Config(Kind.LONG, str(_LONGEST), 1, broker="log.cleaner.max.compaction.lag.ms"),
        "max.decompressed.message.bytes": Config(Kind.INT, "2147483639", 1, broker="max.decompressed.message.bytes"),
        "max.message.bytes": Config(Kind.INT, "1048588", 0, broker="message.max.bytes"),
        "message.timestamp.after.max.ms": Config(Kind.LONG, "3600000", 0, broker="log.message.timestamp.after.max.ms"),
        "message.timestamp.before.max.ms": Config(
            Kind.LONG, str(_LONGEST), 0, broker="log.message.timestamp.before.max.ms"
        ),
        "message.timestamp.type": Config(
            Kind.STRING, "CreateTime", choices=("CreateTime", "LogAppendTime"), broker="log.message.timestamp.type"
        ),
        "min.cleanable.dirty.ratio": Config(Kind.DOUBLE, "0.5", 0, 1, broker="log.cleaner.min.cleanable.ratio"),
        "min.compaction.lag.ms": Config(Kind.LONG, "0", 0, broker="log.cleaner.min.compaction.lag.ms"),
        "min.insync.replicas": Config(Kind.INT, "1", 1, broker="min.insync.replicas"),
        "preallocate": Config(Kind.BOOLEAN, "false", broker="log.preallocate"),
        "remote.copy.lag.bytes": Config(Kind.LONG, "-1", -1, broker="log.remote.copy.lag.bytes"),
        "remote.copy.lag.ms": Config(Kind.LONG, "0", -1, broker="log.remote.copy.lag.ms"),
        "remote.log.copy.disable": Config(Kind.BOOLEAN, "false"),
        "remote.log.delete.on.disable": Config(Kind.BOOLEAN, "false"),
        "remote.storage.enable": Config(Kind.BOOLEAN, "false"),
        "retention.bytes": Config(Kind.LONG, "-1", broker="log.retention.bytes"),
        "retention.ms": Config(Kind.LONG, "604800000", -1),
        "segment.bytes": Config(Kind.INT, "1073741824", 1 << 20, broker="log.segment.bytes"),
        "segment.index.bytes": Config(Kind.INT, "10485760", 4, broker="log.index.size.max.bytes"),
        "segment.jitter.ms": Config(Kind.LONG, "0", 0),
        "segment.ms": Config(Kind.LONG, "604800000", 1),
        "unclean.leader.election.enable": Config(Kind.BOOLEAN, "false", broker="unclean.leader.election.enable"),
    }
)
"""Name to config, of topics."""

TEXTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "cleanup.policy": "what becomes of old records: delete, compact (the last of each key stays), or both",
        "compression.gzip.level": "level of gzip, where the broker compresses",
        "compression.lz4.level": "level of LZ4, where the broker compresses",
        "compression.type": "the codec of stored batches; producer keeps the one that they were sent with",
        "compression.zstd.level": "level of zstd, where the broker compresses",
        "delete.retention.ms": "how long compaction keeps records without a value",
        "errors.deadletterqueue.group.enable": "whether share groups may use the topic as their dead letter queue",
        "file.delete.delay.ms": "how long files of dropped segments stay",
        "flush.messages": "records after which the log is written to the disk (fsync)",
        "flush.ms": "the time after which the log is written to the disk (fsync)",
        "follower.replication.throttled.replicas": "PARTITION:BROKER of the followers that are throttled, or *",
        "index.interval.bytes": "bytes of batches between two entries of the offset index",
        "leader.replication.throttled.replicas": "PARTITION:BROKER of the leaders that are throttled, or *",
        "local.retention.bytes": "with tiered storage, bytes of a partition that stay; -2: retention.bytes",
        "local.retention.ms": "with tiered storage, how long records stay on the broker; -2: retention.ms",
        "max.compaction.lag.ms": "the longest time that a record stays uncompacted",
        "max.decompressed.message.bytes": "bytes that a record may have when it is decompressed",
        "max.message.bytes": "bytes that a record batch may have, as it is sent",
        "message.timestamp.after.max.ms": "how far ahead of the broker's clock a record's time may be",
        "message.timestamp.before.max.ms": "how far behind the broker's clock a record's time may be",
        "message.timestamp.type": "whose time a record has: CreateTime (its producer's), LogAppendTime (the broker's)",
        "min.cleanable.dirty.ratio": "the part of a log that is uncompacted, from which on it is compacted",
        "min.compaction.lag.ms": "the least time that a record stays uncompacted",
        "min.insync.replicas": "replicas in sync that a write with acks=all needs",
        "preallocate": "whether files of segments are made with their full size",
        "remote.copy.lag.bytes": "with tiered storage, bytes of newer records from which on a segment is copied",
        "remote.copy.lag.ms": "with tiered storage, the age from which on a segment is copied",
        "remote.log.copy.disable": "with tiered storage, whether no more segments are copied",
        "remote.log.delete.on.disable": "whether remote segments are deleted when tiered storage is switched off",
        "remote.storage.enable": "whether the topic uses tiered storage",
        "retention.bytes": "bytes that a partition may hold; -1: any number",
        "retention.ms": "how long records are kept; -1: for ever",
        "segment.bytes": "bytes of a segment of the log",
        "segment.index.bytes": "bytes of the offset index of a segment",
        "segment.jitter.ms": "the most by which the begin of the next segment is moved, at random",
        "segment.ms": "the age at which a segment is followed by the next one",
        "unclean.leader.election.enable": "whether a replica that is not in sync may lead when no other one is left",
        "share.auto.offset.reset": "where the first reader begins: earliest, latest, or by_duration:PnDTnHnMn.nS",
        "share.isolation.level": "whether records of open and aborted transactions are left out: read_committed",
        "share.renew.acknowledge.enable": "whether a member may renew the lock of a record (KIP-1222)",
        "streams.rack.aware.assignment.tags": "keys of the client tags that members of a streams group must have",
        **{name.removeprefix("group."): text for name, text in texts_of(GroupConfig).items() if name in OF_EACH_GROUP},
    }
)
"""What DescribeConfigs says of a topic's or group's config, by name."""

_OF_GROUPS: Final = {
    name.removeprefix("group."): Config(Kind.INT, default, least, broker=name)
    for name, (default, least) in numbers_of(GroupConfig).items()
    if name in OF_EACH_GROUP
} | {
    "share.auto.offset.reset": Config(Kind.STRING, "latest", form=re.compile(rf"earliest|latest|{DURATION.pattern}")),
    "share.isolation.level": Config(Kind.STRING, "read_uncommitted", choices=("read_committed", "read_uncommitted")),
    "share.renew.acknowledge.enable": Config(Kind.BOOLEAN, "true"),
    "streams.rack.aware.assignment.tags": Config(Kind.LIST, ""),
}

GROUP_CONFIGS: Final[Mapping[str, Config]] = MappingProxyType(dict(sorted(_OF_GROUPS.items())))
"""Likewise, of groups (KIP-848, KIP-932, KIP-1071)."""

BROKER_CONFIGS: Final[Mapping[str, Config]] = MappingProxyType(
    {
        config.broker: config
        for table in (TOPIC_CONFIGS, GROUP_CONFIGS)
        for config in table.values()
        if config.broker is not None
    }
)
"""Likewise, of brokers: the defaults of topics and groups."""

EFFECTIVE: Final = frozenset(
    {
        *("cleanup.policy", "delete.retention.ms", "max.compaction.lag.ms", "max.message.bytes"),
        *("message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.type"),
        *("min.cleanable.dirty.ratio", "min.compaction.lag.ms", "retention.bytes", "retention.ms"),
        *("segment.bytes", "segment.ms"),
    }
)
"""The configs of topics that have an effect here."""


def check_configs(table: Mapping[str, Config], what: str, configs: Mapping[str, str]) -> None:
    """Check that configs exist and may have their values.

    :param what: ``topic`` or ``group``, for the error's text
    :raises Refused: INVALID_CONFIG, with the config and what is wrong with it
    """
    for name, text in configs.items():
        if name not in table:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown {what} config name: {name}")
        if len(text) > _LONGEST_VALUE:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Invalid value for configuration {name}: it is too long")
        wrong = _wrong_value(table[name], text)
        if wrong is not None:
            raise Refused(ErrorCode.INVALID_CONFIG, f"Invalid value {wrong[0]} for configuration {name}: {wrong[1]}")


def read_value(config: Config, text: str) -> int | float | bool | str | list[str]:
    """Return a config's value.

    :raises ValueError: the text is not of the config's type
    """
    return _READERS[config.kind](text.strip())


def _read_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _read_int(text: str) -> int:
    if not _INTEGER.fullmatch(text):  # Python reads more: "1_000"
        raise ValueError(text)
    return int(text)


def _read_list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")] if text else []


_READERS: Final[Mapping[Kind, Callable[[str], int | float | bool | str | list[str]]]] = {
    Kind.BOOLEAN: _read_bool,
    Kind.STRING: str,
    Kind.INT: _read_int,
    Kind.SHORT: _read_int,
    Kind.LONG: _read_int,
    Kind.DOUBLE: float,
    Kind.LIST: _read_list,
}


def _wrong_value(config: Config, text: str) -> tuple[object, str] | None:
    """Return a value as Kafka shows it, and what is wrong with it; None if nothing is."""
    try:
        value = read_value(config, text)
    except ValueError:
        if config.kind is Kind.BOOLEAN:
            return text, "Expected value to be either true or false"
        return text, f"Not a number of type {config.kind.name}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        wrong = _wrong_number(config, value)
        return None if wrong is None else (value, wrong)
    parts: Iterable[str] = value if isinstance(value, list) else [str(value)]
    for part in parts:
        if config.choices and part not in config.choices:
            return part, f"String must be one of: {', '.join(config.choices)}"
        if config.form is not None and not config.form.fullmatch(part):
            return part, "The value must be 'earliest', 'latest' or 'by_duration:<PnDTnHnMn.nS>'"
    return None


def _wrong_number(config: Config, value: float) -> str | None:
    width = _WIDTHS.get(config.kind)
    if width is not None and not -width <= value < width:
        return f"Not a number of type {config.kind.name}"
    if config.least is not None and not value >= config.least:
        return f"Value must be at least {config.least}"
    if config.most is not None and not value <= config.most:
        return f"Value must be no more than {config.most}"
    return None
