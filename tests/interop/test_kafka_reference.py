"""Apache Kafka and our coordinator say the same, field by field, to everything that the scripts of `exchanges` ask.

What differs stands in the table of its `Reference`, with the reason; a line that no exchange needs fails as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from kcoord_wire.protocol.error_codes import ErrorCode
from tests.interop.exchanges import SCRIPTS, VERSION_OF, Script
from tests.interop.exchanges.comparison import recorded, unexplained, unneeded
from tests.interop.exchanges.played import Played


@dataclass(frozen=True)
class Reference:
    """What scripts are about, and what they have to ask and hear of Kafka.

    :ivar settings: the beginning of the settings of its scripts; the classic ones have those of Kafka 3.9
    :ivar differences: the table of what differs
    :ivar versions: of the apis that are to be answered
    :ivar codes: the error codes that are to come
    :ivar others: whether other codes may come as well
    """

    name: str
    settings: str
    differences: Path
    versions: Mapping[str, range]
    codes: str
    others: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def scripts(self) -> list[Script]:
        return [script for script in SCRIPTS if self.has(script)]

    def has(self, script: Script) -> bool:
        if script.settings in VERSION_OF:
            return bool(self.settings) and script.settings.startswith(self.settings)
        return not self.settings


DIFFERENCES = Path(__file__).with_name("differences.toml")
TOPIC_APIS = [
    "CreateTopics",
    "DeleteTopics",
    "CreatePartitions",
    "DescribeTopicPartitions",
    "DescribeConfigs",
    "AlterConfigs",
    "IncrementalAlterConfigs",
    "DescribeCluster",
    "DescribeAcls",
    "ListPartitionReassignments",
]
REFERENCES = (
    Reference(
        "classic",
        "",
        DIFFERENCES,
        {
            "OffsetCommit": range(10),
            "OffsetFetch": range(10),
            "FindCoordinator": range(7),
            "JoinGroup": range(10),
            "Heartbeat": range(5),
            "LeaveGroup": range(6),
            "SyncGroup": range(6),
            "DescribeGroups": range(6),
            "ListGroups": range(6),
            "ApiVersions": range(5),
            "DeleteGroups": range(3),
            "OffsetDelete": range(1),
        },  # every version of Kafka 3.9
        # what a client can cause on a broker that is up, without security and without transactions
        """UNKNOWN_SERVER_ERROR UNKNOWN_TOPIC_OR_PARTITION OFFSET_METADATA_TOO_LARGE ILLEGAL_GENERATION
        INCONSISTENT_GROUP_PROTOCOL INVALID_GROUP_ID UNKNOWN_MEMBER_ID INVALID_SESSION_TIMEOUT
        REBALANCE_IN_PROGRESS UNSUPPORTED_VERSION INVALID_REQUEST NON_EMPTY_GROUP GROUP_ID_NOT_FOUND MEMBER_ID_REQUIRED
        GROUP_MAX_SIZE_REACHED FENCED_INSTANCE_ID GROUP_SUBSCRIBED_TO_TOPIC""",
    ),
    Reference(
        "consumer groups",
        "consumer",
        DIFFERENCES.with_name("consumer_group_differences.toml"),
        # besides what the classic scripts ask
        {"ConsumerGroupHeartbeat": range(2), "ConsumerGroupDescribe": range(2), "OffsetCommit": range(9, 11)},
        # what a member of the newer protocol can cause, and an operator of its group
        """INVALID_REQUEST UNKNOWN_MEMBER_ID GROUP_ID_NOT_FOUND INVALID_GROUP_ID FENCED_INSTANCE_ID FENCED_MEMBER_EPOCH
        UNRELEASED_INSTANCE_ID UNSUPPORTED_ASSIGNOR STALE_MEMBER_EPOCH INVALID_REGULAR_EXPRESSION NON_EMPTY_GROUP
        GROUP_SUBSCRIBED_TO_TOPIC UNSUPPORTED_VERSION INCONSISTENT_GROUP_PROTOCOL ILLEGAL_GENERATION
        REBALANCE_IN_PROGRESS GROUP_MAX_SIZE_REACHED""",
        others=True,
    ),
    Reference(
        "share groups",
        "share",
        DIFFERENCES.with_name("share_group_differences.toml"),
        {
            "ShareGroupHeartbeat": range(1, 2),
            "ShareGroupDescribe": range(1, 2),
            "ShareFetch": range(1, 3),
            "ShareAcknowledge": range(1, 3),
            "DescribeShareGroupOffsets": range(2),
            "AlterShareGroupOffsets": range(1),
            "DeleteShareGroupOffsets": range(1),
        },
        # what a member of a share group can cause, and an operator of it
        """INVALID_REQUEST UNKNOWN_MEMBER_ID GROUP_ID_NOT_FOUND INVALID_GROUP_ID FENCED_MEMBER_EPOCH NON_EMPTY_GROUP
        INCONSISTENT_GROUP_PROTOCOL GROUP_MAX_SIZE_REACHED SHARE_SESSION_NOT_FOUND INVALID_SHARE_SESSION_EPOCH
        INVALID_RECORD_STATE UNKNOWN_TOPIC_OR_PARTITION FENCED_STATE_EPOCH FENCED_LEADER_EPOCH""",
        others=True,
    ),
    Reference(
        "streams groups",
        "streams",
        DIFFERENCES.with_name("streams_group_differences.toml"),
        {
            "StreamsGroupHeartbeat": range(2),
            "StreamsGroupDescribe": range(2),
            "StreamsGroupTopologyDescriptionUpdate": range(1),
        },
        # what a member of a streams group can cause, and an operator of its group
        """INVALID_REQUEST UNKNOWN_MEMBER_ID GROUP_ID_NOT_FOUND FENCED_INSTANCE_ID FENCED_MEMBER_EPOCH
        UNRELEASED_INSTANCE_ID STALE_MEMBER_EPOCH NON_EMPTY_GROUP UNSUPPORTED_VERSION INCONSISTENT_GROUP_PROTOCOL
        GROUP_MAX_SIZE_REACHED STREAMS_INVALID_TOPOLOGY""",
        others=True,
    ),
    Reference(
        "topics",
        "topics",
        DIFFERENCES.with_name("topic_differences.toml"),
        dict.fromkeys(TOPIC_APIS, range(0)),
        # what AdminClients can cause without security, and a producer of records that its topic does not take
        """UNKNOWN_TOPIC_OR_PARTITION INVALID_TOPIC_EXCEPTION TOPIC_ALREADY_EXISTS INVALID_PARTITIONS
        INVALID_REPLICATION_FACTOR INVALID_REPLICA_ASSIGNMENT INVALID_CONFIG INVALID_REQUEST SECURITY_DISABLED
        UNKNOWN_TOPIC_ID MISMATCHED_ENDPOINT_TYPE UNSUPPORTED_ENDPOINT_TYPE INVALID_RECORD INVALID_TIMESTAMP""",
    ),
    Reference(
        "transactions",
        "transactions",
        DIFFERENCES.with_name("transaction_differences.toml"),
        {
            "InitProducerId": range(6),
            "AddPartitionsToTxn": range(6),
            "AddOffsetsToTxn": range(5),
            "TxnOffsetCommit": range(6),
            "EndTxn": range(4, 6),
            "Produce": range(8, 14),
            "WriteTxnMarkers": range(1, 3),
            "DescribeTransactions": range(1),
            "ListTransactions": range(3),
            "DescribeProducers": range(1),
        },
        # what a producer with a transactional id can cause, and a reader of offsets
        """UNKNOWN_TOPIC_OR_PARTITION ILLEGAL_GENERATION UNKNOWN_MEMBER_ID INVALID_GROUP_ID INVALID_REQUEST
        OUT_OF_ORDER_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH INVALID_TXN_STATE INVALID_PRODUCER_ID_MAPPING
        INVALID_TRANSACTION_TIMEOUT MEMBER_ID_REQUIRED UNSTABLE_OFFSET_COMMIT PRODUCER_FENCED
        TRANSACTIONAL_ID_NOT_FOUND TRANSACTION_ABORTABLE INVALID_REGULAR_EXPRESSION INVALID_RECORD""",
    ),
    Reference(
        "applications",
        "applications",
        DIFFERENCES.with_name("application_differences.toml"),
        {
            "CreateAcls": range(1, 4),
            "DescribeAcls": range(1, 4),
            "DeleteAcls": range(1, 4),
            "AlterUserScramCredentials": range(1),
            "DescribeUserScramCredentials": range(1),
            "ElectLeaders": range(3),
            "AlterPartitionReassignments": range(2),
            "ListPartitionReassignments": range(1),
            "AlterClientQuotas": range(2),
            "DescribeClientQuotas": range(2),
        },
        # what AdminClients can cause where there is an authorizer
        """UNKNOWN_SERVER_ERROR INVALID_REQUEST UNSUPPORTED_SASL_MECHANISM UNSUPPORTED_VERSION RESOURCE_NOT_FOUND
        DUPLICATE_RESOURCE UNACCEPTABLE_CREDENTIAL
        ELECTION_NOT_NEEDED UNKNOWN_TOPIC_OR_PARTITION INVALID_REPLICA_ASSIGNMENT NO_REASSIGNMENT_IN_PROGRESS""",
    ),
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_same_answers(script: Script, played: Played) -> None:
    (reference,) = (each for each in REFERENCES if each.has(script))
    found = unexplained(script, played, reference.differences)
    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("reference", REFERENCES, ids=str)
def test_every_difference_is_needed(reference: Reference, played: Played) -> None:
    assert unneeded(reference.scripts, played, reference.differences) == []


@pytest.mark.parametrize("reference", REFERENCES, ids=str)
def test_every_version_and_error_code_is_exchanged(
    reference: Reference, played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    exchanges = [exchange for s in reference.scripts for exchange in recorded("Kafka", played.kafka[s.name])]
    counts = Counter((exchange.api, exchange.version) for exchange in exchanges if "outcome" not in exchange.fields)
    codes = Counter(value for e in exchanges for field, value in e.fields.items() if field.endswith("ErrorCode"))
    with capsys.disabled():
        print(f"\n{reference}: {len(exchanges)} exchanges with Kafka in {len(reference.scripts)} scripts; by version:")
        for api, versions in reference.versions.items():
            print(f"  {api:16}", *(f"v{version}:{counts[api, version]}" for version in versions))
        print("  fields with an error code:", *(f"{ErrorCode(c).name}:{n}" for c, n in sorted(codes.items()) if c))
    asked = [(api, version) for api, versions in reference.versions.items() for version in versions]
    assert not [pair for pair in asked if not counts[pair]]
    assert reference.versions.keys() <= {api for api, _ in counts}
    wanted = {ErrorCode[name] for name in reference.codes.split()}
    assert codes.keys() >= wanted
    assert reference.others or codes.keys() - {ErrorCode.NONE} == wanted
    assert reference.name != "classic" or len(exchanges) >= 2000
