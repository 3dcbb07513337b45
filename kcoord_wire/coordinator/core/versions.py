"""The versions from which on answers differ, each with the api and the proposal that brought it."""

from __future__ import annotations

from typing import Final

from kcoord_wire import messages as m

# JoinGroup, SyncGroup, LeaveGroup
REBALANCE_TIMEOUT_FROM: Final = 1  # JoinGroup; before that the session timeout counts (KIP-62)
MEMBER_ID_REQUIRED_FROM: Final = 4  # JoinGroup (KIP-394)
NULLABLE_PROTOCOL_FROM: Final = 7  # JoinGroup: an error has null for a protocol, not "" (KIP-559)
SKIP_ASSIGNMENT_FROM: Final = 9  # JoinGroup (KIP-814)
PROTOCOL_NAMED_FROM: Final = 5  # SyncGroup (KIP-559)
BATCH_LEAVE_FROM: Final = 3  # LeaveGroup (KIP-345)

# OffsetCommit, OffsetFetch
GROUP_OFFSETS_FROM: Final = 1  # both; offsets of version 0 were in ZooKeeper
TIMESTAMP_VERSION: Final = 1  # OffsetCommit: the only one in which a client sets the time of a commit
RETENTION_VERSIONS: Final = range(2, 5)  # OffsetCommit: those in which a client says how long to keep the offset
GROUP_NOT_FOUND_FROM: Final = 9  # OffsetCommit (KIP-848)
FETCH_ERROR_FROM: Final = 2  # OffsetFetch: an error of the group is at the top, not on each partition
BATCH_FETCH_FROM: Final = 8  # OffsetFetch (KIP-709)
TOPIC_IDS_FROM: Final = 10  # both (KIP-848)

# FindCoordinator, DescribeGroups, ListGroups
BATCH_FIND_FROM: Final = 4  # FindCoordinator (KIP-699)
SHARE_GROUPS_FROM: Final = 6  # FindCoordinator (KIP-932)
GROUP_OPERATIONS_FROM: Final = 3  # DescribeGroups (KIP-430)
NO_DESCRIPTION_FROM: Final = 6  # DescribeGroups: a group that does not exist is an error, not Dead (KIP-1043)
GROUP_STATE_FROM: Final = 4  # ListGroups (KIP-518)
GROUP_TYPE_FROM: Final = 5  # ListGroups (KIP-848)

# topics
SOFTWARE_NAMED_FROM: Final = 3  # ApiVersions (KIP-511)
FEATURES_FROM_0_FROM: Final = 4  # ApiVersions: lists features whose range begins at 0 (KAFKA-17011)
TOPIC_OPERATIONS_FROM: Final = 8  # Metadata (KIP-430)
NULLABLE_TOPIC_NAME_FROM: Final = 12  # Metadata: topics may be asked for by id alone (KIP-516)
TOPIC_UUIDS_FROM: Final = 13  # Produce and Fetch (KIP-516)
ZSTD_FROM: Final = 7  # Produce (KIP-110)
PRODUCE_NAMES_LEADER_FROM: Final = 10  # Produce: the leader beside an error (KIP-951)
FETCH_NAMES_LEADER_FROM: Final = 16  # Fetch: likewise
CREATED_CONFIGS_FROM: Final = 5  # CreateTopics: the answer has the new topic's configs (KIP-525)
FETCH_SESSION_FROM: Final = 7  # Fetch: an error can be at the top (KIP-227)
LEADER_EPOCH_FROM: Final = 4  # ListOffsets (KIP-320)

# transactions
BATCH_ADD_FROM: Final = 4  # AddPartitionsToTxn: several transactions, sent by brokers (KIP-890)
TXN_TOPIC_IDS_FROM: Final = 6  # TxnOffsetCommit (KIP-1319)
BUMPED_FROM: Final = 5  # EndTxn: it raises the producer's epoch (KIP-890)
ADD_TO_TRANSACTION_FROM: Final = {m.ProduceRequest: 12, m.TxnOffsetCommitRequest: 5}
"""The versions from which a write adds its partition to the transaction (KIP-890)."""

ABORTABLE_FROM: Final = {m.ProduceRequest: 11, m.TxnOffsetCommitRequest: 4}
"""The versions that have TRANSACTION_ABORTABLE; before, it is INVALID_TXN_STATE (KIP-890)."""

PRODUCER_FENCED_FROM: Final = {
    m.InitProducerIdRequest: 4,
    m.AddPartitionsToTxnRequest: 2,
    m.AddOffsetsToTxnRequest: 2,
    m.EndTxnRequest: 2,
}
"""The versions that have PRODUCER_FENCED; before, it is INVALID_PRODUCER_EPOCH (KIP-588)."""
