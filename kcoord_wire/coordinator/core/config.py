"""The settings of a group coordinator, with the names and defaults of Kafka's broker."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from kcoord_wire.kernel import settings
from kcoord_wire.kernel.settings import MAX_INT32, setting, suggestion

__tracebackhide__ = settings.__tracebackhide__

MAX_NODE_ID: Final = MAX_INT32

SERVER_ASSIGNORS: Final = ("uniform", "range")
"""The names of the server assignors, the default first (`kcoord_wire.assignors.kip848`)."""

OF_EACH_GROUP: Final = (
    "group.consumer.assignment.interval.ms",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.session.timeout.ms",
    "group.share.assignment.interval.ms",
    "group.share.delivery.count.limit",
    "group.share.heartbeat.interval.ms",
    "group.share.partition.max.record.locks",
    "group.share.record.lock.duration.ms",
    "group.share.session.timeout.ms",
    "group.streams.acceptable.recovery.lag",
    "group.streams.assignment.interval.ms",
    "group.streams.heartbeat.interval.ms",
    "group.streams.initial.rebalance.delay.ms",
    "group.streams.num.standby.replicas",
    "group.streams.session.timeout.ms",
    "group.streams.task.offset.interval.ms",
)
"""The settings that a group may have itself, without ``group.`` at the beginning."""


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

    :ivar node_id: the broker's, at most `MAX_NODE_ID`
    :ivar host: of its listener
    :ivar port: of its listener
    """

    node_id: int
    host: str
    port: int


def _read_assignors(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in SERVER_ASSIGNORS:
            raise ValueError(f"{name!r} is not an assignor; {suggestion(name, SERVER_ASSIGNORS)}")
    return names


def _read_policy(text: str) -> MigrationPolicy:
    try:
        return MigrationPolicy(text.lower())
    except ValueError:
        raise ValueError(f"{text!r} is not a policy; {suggestion(text, list(MigrationPolicy))}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of the coordinator. Times are in milliseconds; the defaults are Kafka's.

    :raises ValueError: a setting is out of range, or not one of the known values
    :raises TypeError: a setting has the wrong type
    """

    initial_rebalance_delay_ms: int = setting(
        3_000,
        "how long an empty group waits for more members after the first (KIP-134)",
        "group.initial.rebalance.delay.ms",
    )
    min_session_timeout_ms: int = setting(
        6_000, "a JoinGroup with a shorter session timeout is refused", "group.min.session.timeout.ms"
    )
    max_session_timeout_ms: int = setting(1_800_000, "likewise for a longer one", "group.max.session.timeout.ms")
    max_size: int = setting(MAX_INT32, "members a group may have (KIP-389)", "group.max.size", least=1)
    new_member_join_timeout_ms: int = setting(
        300_000,
        "how long a member may take to get its first JoinGroup response",
        "group.new.member.join.timeout.ms",
    )
    offset_metadata_max_bytes: int = setting(
        4_096,
        "length of the text with a committed offset, in UTF-16 units, as Java counts it",
        "offset.metadata.max.bytes",
    )
    offsets_retention_ms: int = setting(
        7 * 24 * 3_600_000,
        "how long offsets outlive their last use (KIP-211)",
        "offsets.retention.ms",
        most=MAX_INT32 * 60_000,
        coarse=("offsets.retention.minutes", 60_000),
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000,
        "how often expired offsets are removed",
        "offsets.retention.check.interval.ms",
        least=1,
        most=MAX_INT32 * 60_000,
    )
    offsets_topic_partitions: int = setting(
        50, "of __consumer_offsets; a group belongs to one of them", "offsets.topic.num.partitions", least=1
    )
    consumer_session_timeout_ms: int = setting(
        45_000, "how long a member of KIP-848 may be silent", "group.consumer.session.timeout.ms", least=1
    )
    consumer_heartbeat_interval_ms: int = setting(
        5_000, "how often such a member is to send a heartbeat", "group.consumer.heartbeat.interval.ms", least=1
    )
    consumer_max_size: int = setting(
        MAX_INT32, "members a group of KIP-848 may have", "group.consumer.max.size", least=1
    )
    consumer_assignment_interval_ms: int = setting(
        1_000, "the least time between two assignments of such a group", "group.consumer.assignment.interval.ms"
    )
    consumer_regex_refresh_interval_ms: int = setting(
        600_000,
        "how often regular expressions are resolved anew without a new topic",
        "group.consumer.regex.refresh.interval.ms",
    )
    consumer_assignors: tuple[str, ...] = setting(
        SERVER_ASSIGNORS,
        "the server assignors that members may ask for, the default first",
        "group.consumer.assignors",
        read=_read_assignors,
    )
    consumer_migration_policy: MigrationPolicy = setting(  # noqa: RUF009
        MigrationPolicy.BIDIRECTIONAL,
        "which groups with members may change their protocol",
        "group.consumer.migration.policy",
        read=_read_policy,
    )
    share_session_timeout_ms: int = setting(
        45_000, "how long a member of a share group may be silent", "group.share.session.timeout.ms", least=1
    )
    share_heartbeat_interval_ms: int = setting(
        5_000, "how often such a member is to send a heartbeat", "group.share.heartbeat.interval.ms", least=1
    )
    share_max_size: int = setting(200, "members a share group may have", "group.share.max.size", least=1, most=1_000)
    share_assignment_interval_ms: int = setting(
        1_000, "the least time between two assignments of such a group", "group.share.assignment.interval.ms"
    )
    streams_session_timeout_ms: int = setting(
        45_000, "how long a member of a streams group may be silent", "group.streams.session.timeout.ms", least=1
    )
    streams_heartbeat_interval_ms: int = setting(
        5_000, "how often such a member is to send a heartbeat", "group.streams.heartbeat.interval.ms", least=1
    )
    streams_max_size: int = setting(MAX_INT32, "members a streams group may have", "group.streams.max.size", least=1)
    streams_num_standby_replicas: int = setting(
        0, "standbys of each task with a state", "group.streams.num.standby.replicas"
    )
    streams_initial_rebalance_delay_ms: int = setting(
        3_000,
        "how long an empty streams group waits for more members after the first",
        "group.streams.initial.rebalance.delay.ms",
    )
    streams_assignment_interval_ms: int = setting(
        1_000, "the least time between two assignments of a streams group", "group.streams.assignment.interval.ms"
    )
    streams_task_offset_interval_ms: int = setting(
        60_000, "how often members are to report the offsets of tasks", "group.streams.task.offset.interval.ms", least=1
    )
    streams_acceptable_recovery_lag: int = setting(
        10_000, "the lag at which a state counts as caught up", "group.streams.acceptable.recovery.lag"
    )
    transaction_max_timeout_ms: int = setting(
        900_000, "a producer with a longer transaction timeout is refused", "transaction.max.timeout.ms", least=1
    )
    transactional_id_expiration_ms: int = setting(
        7 * 24 * 3_600_000,
        "how long a transactional id outlives its last transaction",
        "transactional.id.expiration.ms",
        least=1,
    )
    share_delivery_count_limit: int = setting(
        5, "how often a record of a share group is delivered (KIP-932)", "group.share.delivery.count.limit", least=2
    )
    share_record_lock_duration_ms: int = setting(
        30_000, "how long a member of a share group has a record", "group.share.record.lock.duration.ms", least=1
    )
    share_partition_max_record_locks: int = setting(
        2_000,
        "records of a partition that a share group has in flight",
        "group.share.partition.max.record.locks",
        least=1,
    )
    share_max_sessions: int = setting(2_000, "share sessions of a broker", "group.share.max.share.sessions", least=1)

    log_cleaner_backoff_ms: int = setting(
        15_000, "how long after a look for partitions to compact the next follows", "log.cleaner.backoff.ms", least=1
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "consumer_migration_policy", MigrationPolicy(self.consumer_migration_policy))
        settings.check_values(self)
        if self.min_session_timeout_ms > self.max_session_timeout_ms:
            raise ValueError("min_session_timeout_ms is greater than max_session_timeout_ms")
        if not self.consumer_assignors:
            raise ValueError("consumer_assignors must name an assignor")
        for name in self.consumer_assignors:
            if name not in SERVER_ASSIGNORS:
                raise ValueError(f"{name!r} is not a server assignor; there are {', '.join(SERVER_ASSIGNORS)}")

    def properties(self) -> dict[str, str]:
        """Return the settings by Kafka's names, as DescribeConfigs shows those of a broker."""
        return settings.properties_of(self)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str | int]) -> Self:
        """Read settings by Kafka's names, such as ``group.initial.rebalance.delay.ms``.

        :raises SettingsError: a setting does not exist, or cannot have this value
        """
        return settings.from_properties(cls, properties)
