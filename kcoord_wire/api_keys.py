"""Kafka's api keys by name: 0 to 94, those included that no broker serves any more.

A name here is Kafka's schema name without its Request or Response. That a key has a name says nothing of whether the
registry can decode it. Source: Kafka's message-definition files (clients/src/main/resources/common/message).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

__all__ = ["API_NAMES", "api_name"]

# Ten keys to an entry, in order from the entry's number.
_BY_TENS = {
    0: "Produce Fetch ListOffsets Metadata LeaderAndIsr StopReplica UpdateMetadata ControlledShutdown "
    "OffsetCommit OffsetFetch",
    10: "FindCoordinator JoinGroup Heartbeat LeaveGroup SyncGroup DescribeGroups ListGroups SaslHandshake "
    "ApiVersions CreateTopics",
    20: "DeleteTopics DeleteRecords InitProducerId OffsetForLeaderEpoch AddPartitionsToTxn "
    "AddOffsetsToTxn EndTxn WriteTxnMarkers TxnOffsetCommit DescribeAcls",
    30: "CreateAcls DeleteAcls DescribeConfigs AlterConfigs AlterReplicaLogDirs DescribeLogDirs "
    "SaslAuthenticate CreatePartitions CreateDelegationToken RenewDelegationToken",
    40: "ExpireDelegationToken DescribeDelegationToken DeleteGroups ElectLeaders IncrementalAlterConfigs "
    "AlterPartitionReassignments ListPartitionReassignments OffsetDelete DescribeClientQuotas "
    "AlterClientQuotas",
    50: "DescribeUserScramCredentials AlterUserScramCredentials Vote BeginQuorumEpoch EndQuorumEpoch "
    "DescribeQuorum AlterPartition UpdateFeatures Envelope FetchSnapshot",
    60: "DescribeCluster DescribeProducers BrokerRegistration BrokerHeartbeat UnregisterBroker "
    "DescribeTransactions ListTransactions AllocateProducerIds ConsumerGroupHeartbeat "
    "ConsumerGroupDescribe",
    70: "ControllerRegistration GetTelemetrySubscriptions PushTelemetry AssignReplicasToDirs "
    "ListConfigResources DescribeTopicPartitions ShareGroupHeartbeat ShareGroupDescribe ShareFetch "
    "ShareAcknowledge",
    80: "AddRaftVoter RemoveRaftVoter UpdateRaftVoter InitializeShareGroupState ReadShareGroupState "
    "WriteShareGroupState DeleteShareGroupState ReadShareGroupStateSummary StreamsGroupHeartbeat "
    "StreamsGroupDescribe",
    90: "DescribeShareGroupOffsets AlterShareGroupOffsets DeleteShareGroupOffsets "
    "StreamsGroupTopologyDescriptionUpdate UnregisterController",
}

API_NAMES: Final[Mapping[int, str]] = MappingProxyType(
    {first + step: name for first, names in _BY_TENS.items() for step, name in enumerate(names.split())}
)
"""Api key to name, by today's names: a key keeps its number for ever, but some have been renamed."""


def api_name(key: int) -> str:
    """The name of an api key, without Request or Response; ``UnknownApi123`` for a key that Kafka has not given out."""
    return API_NAMES.get(key, f"UnknownApi{key}")
