"""The settings of a group coordinator, with the names and defaults of Kafka's broker; reading settings files."""

from __future__ import annotations

import enum
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

_PROPERTIES = {
    "group.initial.rebalance.delay.ms": ("initial_rebalance_delay_ms", 1),
    "group.min.session.timeout.ms": ("min_session_timeout_ms", 1),
    "group.max.session.timeout.ms": ("max_session_timeout_ms", 1),
    "group.max.size": ("max_size", 1),
    "group.new.member.join.timeout.ms": ("new_member_join_timeout_ms", 1),
    "group.consumer.session.timeout.ms": ("consumer_session_timeout_ms", 1),
    "group.consumer.heartbeat.interval.ms": ("consumer_heartbeat_interval_ms", 1),
    "group.consumer.max.size": ("consumer_max_size", 1),
    "group.consumer.assignment.interval.ms": ("consumer_assignment_interval_ms", 1),
    "group.consumer.regex.refresh.interval.ms": ("consumer_regex_refresh_interval_ms", 1),
    "offset.metadata.max.bytes": ("offset_metadata_max_bytes", 1),
    "offsets.topic.num.partitions": ("offsets_topic_partitions", 1),
    "offsets.retention.minutes": ("offsets_retention_ms", 60_000),
    "offsets.retention.ms": ("offsets_retention_ms", 1),
    "offsets.retention.check.interval.ms": ("offsets_retention_check_interval_ms", 1),
    "transaction.max.timeout.ms": ("transaction_max_timeout_ms", 1),
    "transactional.id.expiration.ms": ("transactional_id_expiration_ms", 1),
}
_POSITIVE = {
    "max_size",
    "consumer_max_size",
    "consumer_session_timeout_ms",
    "consumer_heartbeat_interval_ms",
    "offsets_retention_check_interval_ms",
    "offsets_topic_partitions",
    "transaction_max_timeout_ms",
    "transactional_id_expiration_ms",
}
_NOT_NUMBERS = {"consumer_assignors", "consumer_migration_policy"}

SERVER_ASSIGNORS: Final = ("uniform", "range")
"""The names of the server assignors, the default first (`kcoord_wire.assignors.server`)."""


class MigrationPolicy(enum.StrEnum):
    """Which conversions of groups with members are allowed between the classic protocol and KIP-848's; those of groups
    without members always are."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def upgrades(self) -> bool:
        """Whether a classic group may become one of KIP-848."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        """Whether a group of KIP-848 may become a classic one."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


class Endpoint(NamedTuple):
    """The broker's address, as Metadata and FindCoordinator return it.

    :ivar node_id: the broker's
    :ivar host: of its listener
    :ivar port: of its listener
    """

    node_id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of the coordinator. Times are in milliseconds; the defaults are Kafka's.

    :ivar initial_rebalance_delay_ms: how long an empty group waits for more members after the first (KIP-134)
    :ivar min_session_timeout_ms: a JoinGroup with a shorter session timeout is refused
    :ivar max_session_timeout_ms: likewise for a longer one
    :ivar max_size: members a group may have (KIP-389)
    :ivar new_member_join_timeout_ms: how long a member may take to get its first JoinGroup response
    :ivar offset_metadata_max_bytes: length of the text with a committed offset, in UTF-16 units, as Java counts it
    :ivar offsets_retention_ms: how long offsets outlive their last use (KIP-211)
    :ivar offsets_retention_check_interval_ms: how often expired offsets are removed
    :ivar offsets_topic_partitions: of ``__consumer_offsets``; a group belongs to one of them
    :ivar transaction_max_timeout_ms: a producer with a longer transaction timeout is refused
    :ivar transactional_id_expiration_ms: how long a transactional id outlives its last transaction
    :ivar consumer_session_timeout_ms: how long a member of KIP-848 may be silent
    :ivar consumer_heartbeat_interval_ms: how often such a member is to send a heartbeat
    :ivar consumer_max_size: members a group of KIP-848 may have
    :ivar consumer_assignment_interval_ms: the least time between two assignments of such a group
    :ivar consumer_regex_refresh_interval_ms: how often regular expressions are resolved anew without a new topic
    :ivar consumer_assignors: the server assignors that members may ask for, the default first
    :ivar consumer_migration_policy: which groups with members may change their protocol
    :raises ValueError: a setting is negative, or must not be 0 and is, or is not one of the known values
    :raises TypeError: a setting has the wrong type
    """

    initial_rebalance_delay_ms: int = 3_000
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    max_size: int = 0x7FFFFFFF
    new_member_join_timeout_ms: int = 300_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_partitions: int = 50
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_max_size: int = 0x7FFFFFFF
    consumer_assignment_interval_ms: int = 1_000
    consumer_regex_refresh_interval_ms: int = 600_000
    consumer_assignors: tuple[str, ...] = SERVER_ASSIGNORS
    consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _NOT_NUMBERS:
                continue
            if type(value) is not int:
                raise TypeError(f"{field.name} must be a whole number, not {value!r}")
            least = 1 if field.name in _POSITIVE else 0
            if value < least:
                raise ValueError(f"{field.name} must be {least} or more, not {value}")
        if self.min_session_timeout_ms > self.max_session_timeout_ms:
            raise ValueError("min_session_timeout_ms is greater than max_session_timeout_ms")
        object.__setattr__(self, "consumer_migration_policy", MigrationPolicy(self.consumer_migration_policy))
        if not self.consumer_assignors:
            raise ValueError("consumer_assignors must name an assignor")
        for name in self.consumer_assignors:
            if name not in SERVER_ASSIGNORS:
                raise ValueError(f"{name!r} is not a server assignor; there are {', '.join(SERVER_ASSIGNORS)}")

    def properties(self) -> dict[str, str]:
        """Return the settings by Kafka's names, as DescribeConfigs shows those of a broker."""
        values = ((name, getattr(self, attribute), factor) for name, (attribute, factor) in _PROPERTIES.items())
        return {name: str(value // factor) for name, value, factor in values if value % factor == 0}

    @classmethod
    def from_properties(cls, properties: Mapping[str, str | int]) -> Self:
        """Read settings by Kafka's names, such as ``group.initial.rebalance.delay.ms``.

        :raises SettingsError: a setting does not exist, or cannot have this value
        """
        settings: dict[str, Any] = {}
        for name, text in properties.items():
            if name in _TEXTS:
                attribute, read = _TEXTS[name]
                settings[attribute] = read(name, str(text))
                continue
            if name not in _PROPERTIES:
                raise SettingsError(name, f"unknown; {suggestion(name, {**_PROPERTIES, **_TEXTS})}")
            attribute, factor = _PROPERTIES[name]
            try:
                value = int(text)
            except ValueError:
                raise SettingsError(name, f"must be a whole number, not {text!r}") from None
            least = 1 if attribute in _POSITIVE else 0
            if value < least:
                raise SettingsError(name, f"must be {least} or more, not {value}")
            settings[attribute] = value * factor
        return cls(**settings)


def _read_assignors(setting: str, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in SERVER_ASSIGNORS:
            raise SettingsError(setting, f"{name!r} is not an assignor; {suggestion(name, SERVER_ASSIGNORS)}")
    return names


def _read_policy(setting: str, text: str) -> MigrationPolicy:
    try:
        return MigrationPolicy(text.lower())
    except ValueError:
        raise SettingsError(setting, f"{text!r} is not a policy; {suggestion(text, list(MigrationPolicy))}") from None


_TEXTS: Final[Mapping[str, tuple[str, Callable[[str, str], Any]]]] = {
    "group.consumer.assignors": ("consumer_assignors", _read_assignors),
    "group.consumer.migration.policy": ("consumer_migration_policy", _read_policy),
}


class SettingsError(ValueError):
    """A setting that is invalid.

    :ivar where: the file and the place in it, ``permissions.toml: allow[2].operations`` (counted from 1); of a value
        that is not from a file, its name
    :ivar what: what is wrong with it
    """

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}")
        self.where = where
        self.what = what


def read_tables(path: Path | str, known: Mapping[str, str]) -> dict[str, Any]:
    """Return the tables of a TOML file.

    :param known: the tables that it may have, and how each is written
    :raises SettingsError: it is not TOML, or has another table
    :raises OSError: it cannot be read
    """
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        raise SettingsError(str(path), str(cause)) from None
    for name in document:
        if name not in known:
            raise SettingsError(f"{path}: {name}", f"unknown; there can be {' and '.join(known.values())}")
    return document


def read_rules(path: Path | str, keys: Mapping[str, Collection[str]]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return the rules of a TOML file of ``[[kind]]`` tables, each with its place in the file. Errors as `read_tables`.

    :param keys: for each kind of rule, the keys that it may have
    """
    document = read_tables(path, {kind: f"[[{kind}]]" for kind in keys})
    rules = {}
    for kind, known in keys.items():
        tables = document.get(kind, [])
        if not isinstance(tables, list):
            raise SettingsError(f"{path}: {kind}", f"rules are written [[{kind}]]")
        rules[kind] = [(f"{path}: {kind}[{number}]", table) for number, table in enumerate(tables, 1)]
        for where, table in rules[kind]:
            if not isinstance(table, dict):
                raise SettingsError(where, "must be a table")
            for key in table:
                if key not in known:
                    raise SettingsError(f"{where}.{key}", f"unknown; {suggestion(key, known)}")
    return rules


def suggestion(name: str, known: Collection[str]) -> str:
    """Return what somebody may have meant by an unknown name."""
    near = get_close_matches(name, known, 1, 0.5) or get_close_matches(name.lower(), known, 1, 0.5)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
