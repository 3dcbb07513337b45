"""Which versions of each api a release of Kafka answers, so that the coordinator can be taken for that release.

Laws:

* What is answered as a release is what that release has and `SERVED` has, never more.
* A row lists changes only: ``2.0:0-3`` is versions 0 to 3 from Kafka 2.0 on, until the next entry.

Source: `ApiKeys` (oldest and latest stable version) of the jars of kafka-clients
0.11.0.3, 1.0.2, 1.1.1, 2.0.1, 2.1.1, 2.2.2, 2.3.1, 2.4.1, 2.5.1, 2.6.3, 2.7.2, 2.8.2, 3.0.2, 3.1.2, 3.2.3, 3.3.2,
3.4.1, 3.5.2, 3.6.2, 3.7.2, 3.8.1, 3.9.2, 4.0.0, 4.1.0, 4.2.0, 4.3.0, 4.4.0.
KIP-848 (ConsumerGroupHeartbeat, ConsumerGroupDescribe) begins at 4.0, where it is on by default; before, it is a
preview. KIP-932 (ShareGroupHeartbeat, ShareGroupDescribe) begins at 4.2 for the same reason: 4.1 advertises the apis,
and refuses them unless ``share.version`` is raised by hand; so does KIP-1071 (streams groups). Releases older than 0.11
lack the record format that the topics hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kcoord_wire.coordinator.core.apis import SERVED
from kcoord_wire.protocol.api_keys import ApiKey

RELEASES: Final = (
    *("0.11", "1.0", "1.1", "2.0", "2.1", "2.2", "2.3", "2.4", "2.5", "2.6", "2.7", "2.8"),
    *("3.0", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "3.7", "3.8", "3.9", "4.0", "4.1", "4.2", "4.3", "4.4"),
)
"""The known releases, oldest first."""

_CHANGES: Final[Mapping[ApiKey, str]] = {
    ApiKey.PRODUCE: "0.11:0-3 1.0:0-5 2.0:0-6 2.1:0-7 2.4:0-8 2.8:0-9 3.7:0-10 3.8:0-11 4.0:3-12 4.1:3-13",
    ApiKey.FETCH: (
        "0.11:0-5 1.0:0-6 1.1:0-7 2.0:0-8 2.1:0-10 2.3:0-11 "
        "2.7:0-12 3.1:0-13 3.5:0-15 3.7:0-16 3.9:0-17 4.0:4-17 4.1:4-18"
    ),
    ApiKey.LIST_OFFSETS: "0.11:0-2 2.0:0-3 2.1:0-4 2.2:0-5 2.8:0-6 3.0:0-7 3.5:0-8 3.9:0-9 4.0:1-10 4.2:1-11",
    ApiKey.METADATA: "0.11:0-4 1.0:0-5 2.0:0-6 2.1:0-7 2.3:0-8 2.4:0-9 2.8:0-11 3.1:0-12 4.0:0-13",
    ApiKey.OFFSET_COMMIT: "0.11:0-3 2.0:0-4 2.1:0-6 2.3:0-7 2.4:0-8 3.7:0-9 4.0:2-9 4.2:2-10",
    ApiKey.OFFSET_FETCH: "0.11:0-3 2.0:0-4 2.1:0-5 2.4:0-6 2.5:0-7 3.0:0-8 3.7:0-9 4.0:1-9 4.2:1-10",
    ApiKey.FIND_COORDINATOR: "0.11:0-1 2.0:0-2 2.4:0-3 3.0:0-4 3.8:0-5 3.9:0-6",
    ApiKey.JOIN_GROUP: "0.11:0-2 2.0:0-3 2.2:0-4 2.3:0-5 2.4:0-6 2.5:0-7 3.2:0-9 4.0:2-9 4.1:0-9",
    ApiKey.HEARTBEAT: "0.11:0-1 2.0:0-2 2.3:0-3 2.4:0-4",
    ApiKey.LEAVE_GROUP: "0.11:0-1 2.0:0-2 2.4:0-4 3.2:0-5",
    ApiKey.SYNC_GROUP: "0.11:0-1 2.0:0-2 2.3:0-3 2.4:0-4 2.5:0-5",
    ApiKey.DESCRIBE_GROUPS: "0.11:0-1 2.0:0-2 2.3:0-3 2.4:0-5 4.0:0-6",
    ApiKey.LIST_GROUPS: "0.11:0-1 2.0:0-2 2.4:0-3 2.6:0-4 3.8:0-5",
    ApiKey.SASL_HANDSHAKE: "0.11:0-0 1.0:0-1",
    ApiKey.API_VERSIONS: "0.11:0-1 2.0:0-2 2.4:0-3 3.9:0-4 4.4:0-5",
    ApiKey.CREATE_TOPICS: "0.11:0-2 2.0:0-3 2.4:0-5 2.7:0-6 2.8:0-7 4.0:2-7",
    ApiKey.DELETE_TOPICS: "0.11:0-1 2.0:0-2 2.1:0-3 2.4:0-4 2.7:0-5 2.8:0-6 4.0:1-6",
    ApiKey.DELETE_RECORDS: "0.11:0-0 2.0:0-1 2.6:0-2",
    ApiKey.INIT_PRODUCER_ID: "0.11:0-0 2.0:0-1 2.4:0-2 2.5:0-3 2.7:0-4 3.8:0-5",
    ApiKey.OFFSET_FOR_LEADER_EPOCH: "0.11:0-0 2.0:0-1 2.1:0-2 2.3:0-3 2.8:0-4 4.0:2-4",
    ApiKey.ADD_PARTITIONS_TO_TXN: "0.11:0-0 2.0:0-1 2.7:0-2 2.8:0-3 3.6:0-4 3.8:0-5",
    ApiKey.ADD_OFFSETS_TO_TXN: "0.11:0-0 2.0:0-1 2.7:0-2 2.8:0-3 3.8:0-4",
    ApiKey.END_TXN: "0.11:0-0 2.0:0-1 2.7:0-2 2.8:0-3 3.8:0-4 4.0:0-5",
    ApiKey.WRITE_TXN_MARKERS: "0.11:0-0 2.8:0-1 4.0:1-1 4.2:1-2",
    ApiKey.TXN_OFFSET_COMMIT: "0.11:0-0 2.0:0-1 2.1:0-2 2.5:0-3 3.8:0-4 4.0:0-5 4.4:0-6",
    ApiKey.DESCRIBE_ACLS: "0.11:0-0 2.0:0-1 2.5:0-2 3.3:0-3 4.0:1-3",
    ApiKey.CREATE_ACLS: "0.11:0-0 2.0:0-1 2.5:0-2 3.3:0-3 4.0:1-3",
    ApiKey.DELETE_ACLS: "0.11:0-0 2.0:0-1 2.5:0-2 3.3:0-3 4.0:1-3",
    ApiKey.DESCRIBE_CONFIGS: "0.11:0-0 1.1:0-1 2.0:0-2 2.6:0-3 2.8:0-4 4.0:1-4",
    ApiKey.ALTER_CONFIGS: "0.11:0-0 2.0:0-1 2.8:0-2",
    ApiKey.DESCRIBE_LOG_DIRS: "1.0:0-0 2.0:0-1 2.6:0-2 3.2:0-3 3.3:0-4 4.0:1-4 4.3:1-5",
    ApiKey.SASL_AUTHENTICATE: "1.0:0-0 2.2:0-1 2.5:0-2",
    ApiKey.CREATE_PARTITIONS: "1.0:0-0 2.0:0-1 2.5:0-2 2.7:0-3",
    ApiKey.DELETE_GROUPS: "1.1:0-0 2.0:0-1 2.4:0-2 4.4:0-3",
    ApiKey.ELECT_LEADERS: "2.2:0-0 2.4:0-2",
    ApiKey.INCREMENTAL_ALTER_CONFIGS: "2.3:0-0 2.4:0-1",
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: "2.4:0-0 4.1:0-1",
    ApiKey.LIST_PARTITION_REASSIGNMENTS: "2.4:0-0",
    ApiKey.OFFSET_DELETE: "2.4:0-0",
    ApiKey.DESCRIBE_CLIENT_QUOTAS: "2.6:0-0 2.8:0-1",
    ApiKey.ALTER_CLIENT_QUOTAS: "2.6:0-0 2.8:0-1",
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: "2.7:0-0",
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: "2.7:0-0",
    ApiKey.DESCRIBE_CLUSTER: "2.8:0-0 3.7:0-1 4.0:0-2",
    ApiKey.DESCRIBE_PRODUCERS: "2.8:0-0",
    ApiKey.DESCRIBE_TRANSACTIONS: "3.0:0-0",
    ApiKey.LIST_TRANSACTIONS: "3.0:0-0 3.8:0-1 4.1:0-2",
    ApiKey.CONSUMER_GROUP_HEARTBEAT: "4.0:0-1",
    ApiKey.CONSUMER_GROUP_DESCRIBE: "4.0:0-1",
    ApiKey.SHARE_GROUP_HEARTBEAT: "4.2:1-1",
    ApiKey.SHARE_GROUP_DESCRIBE: "4.2:1-1",
    ApiKey.SHARE_FETCH: "4.2:1-2",
    ApiKey.SHARE_ACKNOWLEDGE: "4.2:1-2",
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: "4.2:0-0",
    ApiKey.READ_SHARE_GROUP_STATE: "4.2:0-0",
    ApiKey.WRITE_SHARE_GROUP_STATE: "4.2:0-1",
    ApiKey.DELETE_SHARE_GROUP_STATE: "4.2:0-0",
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: "4.2:0-1",
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: "4.2:0-1",
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: "4.2:0-0",
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: "4.2:0-0",
    ApiKey.STREAMS_GROUP_HEARTBEAT: "4.2:0-0 4.4:0-1",
    ApiKey.STREAMS_GROUP_DESCRIBE: "4.2:0-0 4.4:0-1",
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: "4.4:0-0",
    ApiKey.LIST_CONFIG_RESOURCES: "3.7:0-0 4.1:0-1",
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: "3.8:0-0",
}


def served_by(release: str) -> Mapping[int, range]:
    """Return api key to versions, as `SERVED`, of what is answered as a release of Kafka.

    :param release: one of `RELEASES`, such as ``2.8``; further numbers make no difference
    :raises ValueError: the release is unknown; the text names those that are known
    """
    name = ".".join(release.split(".")[:2])
    if name not in RELEASES:
        raise ValueError(f"{release!r} is no known release of Kafka: {', '.join(RELEASES)}")
    at = RELEASES.index(name)
    found: dict[int, range] = {}
    for api, versions in SERVED.items():
        then = _versions(_CHANGES[ApiKey(api)], at)
        both = range(max(then.start, versions.start), min(then.stop, versions.stop))
        if both:
            found[api] = both
    return MappingProxyType(found)


def _versions(changes: str, at: int) -> range:
    versions = range(0)
    for change in changes.split():
        since, _, span = change.partition(":")
        if RELEASES.index(since) > at:
            break
        oldest, _, newest = span.partition("-")
        versions = range(int(oldest), int(newest) + 1) if newest else range(0)
    return versions
