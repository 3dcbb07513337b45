"""Which apis and versions the coordinator answers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kcoord_wire.protocol.api_keys import ApiKey

SERVED: Final[Mapping[int, range]] = MappingProxyType(
    {
        ApiKey.PRODUCE: range(3, 14),
        ApiKey.FETCH: range(4, 19),
        ApiKey.LIST_OFFSETS: range(12),
        ApiKey.METADATA: range(14),
        ApiKey.OFFSET_COMMIT: range(11),
        ApiKey.OFFSET_FETCH: range(11),
        ApiKey.FIND_COORDINATOR: range(7),
        ApiKey.JOIN_GROUP: range(10),
        ApiKey.HEARTBEAT: range(5),
        ApiKey.LEAVE_GROUP: range(6),
        ApiKey.SYNC_GROUP: range(6),
        ApiKey.DESCRIBE_GROUPS: range(7),
        ApiKey.LIST_GROUPS: range(6),
        ApiKey.SASL_HANDSHAKE: range(2),
        ApiKey.API_VERSIONS: range(6),
        ApiKey.CREATE_TOPICS: range(8),
        ApiKey.DELETE_TOPICS: range(7),
        ApiKey.DELETE_RECORDS: range(3),
        ApiKey.INIT_PRODUCER_ID: range(6),  # v6 is in no release yet
        ApiKey.OFFSET_FOR_LEADER_EPOCH: range(5),
        ApiKey.ADD_PARTITIONS_TO_TXN: range(6),
        ApiKey.ADD_OFFSETS_TO_TXN: range(5),
        ApiKey.END_TXN: range(6),
        ApiKey.WRITE_TXN_MARKERS: range(1, 3),
        ApiKey.TXN_OFFSET_COMMIT: range(7),
        ApiKey.DESCRIBE_ACLS: range(4),
        ApiKey.CREATE_ACLS: range(4),
        ApiKey.DELETE_ACLS: range(4),
        ApiKey.DESCRIBE_CONFIGS: range(5),
        ApiKey.ALTER_CONFIGS: range(3),
        ApiKey.DESCRIBE_LOG_DIRS: range(5),  # v5 is in no release yet
        ApiKey.SASL_AUTHENTICATE: range(3),
        ApiKey.CREATE_PARTITIONS: range(4),
        ApiKey.DELETE_GROUPS: range(4),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: range(2),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: range(1),
        ApiKey.OFFSET_DELETE: range(1),
        ApiKey.DESCRIBE_CLUSTER: range(3),
        ApiKey.DESCRIBE_PRODUCERS: range(1),
        ApiKey.DESCRIBE_TRANSACTIONS: range(1),
        ApiKey.LIST_TRANSACTIONS: range(3),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: range(2),
        ApiKey.CONSUMER_GROUP_DESCRIBE: range(2),
        ApiKey.LIST_CONFIG_RESOURCES: range(2),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: range(1),
    }
)
"""Api key to the versions that are answered, including group apis and SASL.

These are advertised, except that Produce is advertised from 0 on, as by Kafka 4: older librdkafka does not work with a
broker otherwise (KAFKA-18659). A request of such a version closes the connection.
"""
