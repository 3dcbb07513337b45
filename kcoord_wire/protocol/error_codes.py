"""The broker's error codes as data: number, name, whether a retry may succeed, and meaning.

Laws:

* Every code from -1 to 136 is here once, under its present name. The numbers never change; some names have changed.
* `ErrorCode.retriable` is Kafka's definition: the same request may succeed later, perhaps at another broker and after
  a metadata update. An error that requires another request first (rejoin, get a member id) is not retriable.
* A newer broker may send a code that this table lacks: `describe_error` takes any number.

Source: Kafka's clients/src/main/java/org/apache/kafka/common/protocol/Errors.java and the exception classes it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, Self


class ErrorCode(IntEnum):
    """An error code of Kafka's protocol, equal to its number.

    :ivar retriable: whether the same request may be sent again
    :ivar meaning: one sentence about the cause
    """

    retriable: bool
    meaning: str

    def __new__(cls, code: int, retriable: bool = False, meaning: str = "") -> Self:
        # The defaults are for type checkers, which read a look-up, ErrorCode(27), as a call of this method.
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.meaning = meaning
        return member

    UNKNOWN_SERVER_ERROR = -1, False, "The broker failed in a way that no other code describes."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = 1, False, "The requested offset is before the log's start or after its end."
    CORRUPT_MESSAGE = 2, True, "A record batch fails its checksum, or lacks the key that a compacted topic needs."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "The broker does not have this topic or partition."
    INVALID_FETCH_SIZE = 4, False, "The fetch size is not valid."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment; an election may be under way."
    NOT_LEADER_OR_FOLLOWER = 6, True, "The broker is not the partition's leader, or does not have a replica of it."
    REQUEST_TIMED_OUT = 7, True, "The broker could not finish the request in time."
    BROKER_NOT_AVAILABLE = 8, False, "The requested broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The requested replica is not available."
    MESSAGE_TOO_LARGE = 10, False, "A record batch is larger than the topic accepts."
    STALE_CONTROLLER_EPOCH = 11, False, "The sender follows a controller that has since been replaced."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata text committed with an offset is too long."
    NETWORK_EXCEPTION = 13, True, "The connection was closed before the response arrived."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still reading its groups from the log."
    COORDINATOR_NOT_AVAILABLE = 15, True, "No coordinator is available at the moment."
    NOT_COORDINATOR = 16, True, "Another broker coordinates the group or transaction."
    INVALID_TOPIC_EXCEPTION = 17, False, "The topic name is not valid, or not allowed for this operation."
    RECORD_LIST_TOO_LARGE = 18, False, "The batches together are larger than a log segment."
    NOT_ENOUGH_REPLICAS = 19, True, "Too few replicas are in sync; nothing was written."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        True,
        "The records were written, but too few replicas were in sync afterwards.",
    )
    INVALID_REQUIRED_ACKS = 21, False, "acks is not -1, 0 or 1."
    ILLEGAL_GENERATION = 22, False, "The member's generation is not the group's current one."
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member offers no protocol that all members of the group support."
    INVALID_GROUP_ID = 24, False, "The group id is empty or not valid."
    UNKNOWN_MEMBER_ID = 25, False, "The coordinator does not know this member: join again without a member id."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is outside the broker's limits."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing: join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The offset commit would not fit into one record batch."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "The client may not access this topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "The client may not access this group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "The client may not do this on the cluster."
    INVALID_TIMESTAMP = 32, False, "A record's timestamp is too far from the broker's time."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, False, "The request is not valid in this state of the authentication."
    UNSUPPORTED_VERSION = 35, False, "The broker does not support this version of the API."
    TOPIC_ALREADY_EXISTS = 36, False, "A topic with this name already exists."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = 38, False, "The replication factor is below one or above the number of brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The replica assignment is not valid."
    INVALID_CONFIG = 40, False, "A setting has an invalid value."
    NOT_CONTROLLER = 41, True, "The node is not the controller."
    INVALID_REQUEST = 42, False, "The request is inconsistent or malformed."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The partition's message format is too old for the request."
    POLICY_VIOLATION = 44, False, "A policy of the broker forbids the request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "An earlier batch of this producer is missing."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "This batch of this producer was already written."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer's epoch is outdated."
    INVALID_TXN_STATE = 48, False, "The transaction's state does not allow this operation."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id does not belong to the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout is above the broker's maximum."
    CONCURRENT_TRANSACTIONS = 51, True, "An earlier operation on the same transaction is not finished."
    TRANSACTION_COORDINATOR_FENCED = 52, False, "The sender of the markers no longer coordinates this transaction."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Not allowed to use this transactional id."
    SECURITY_DISABLED = 54, False, "The broker has no authorizer."
    OPERATION_NOT_ATTEMPTED = 55, False, "The operation was skipped because another part of the request failed."
    KAFKA_STORAGE_ERROR = 56, True, "The broker's disk failed."
    LOG_DIR_NOT_FOUND = 57, False, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, False, "The credentials were refused."
    UNKNOWN_PRODUCER_ID = 59, False, "The broker does not know this producer, perhaps because its records expired."
    REASSIGNMENT_IN_PROGRESS = 60, False, "The partition is already being reassigned."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "The client is neither the token's owner nor one of its renewers."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        False,
        "The connection's authentication does not allow delegation tokens.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "The client may not use this delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "Principals of this type are not supported."
    NON_EMPTY_GROUP = 68, False, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, False, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "The broker has dropped the fetch session: start a new one."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The fetch session has another epoch."
    LISTENER_NOT_FOUND = 72, True, "The leader lacks the listener on which the request arrived."
    TOPIC_DELETION_DISABLED = 73, False, "Topic deletion is disabled."
    FENCED_LEADER_EPOCH = 74, True, "The client follows a leader that has since been replaced."
    UNKNOWN_LEADER_EPOCH = 75, True, "The client knows a newer leader than the broker does."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The request's version does not support the compression of the data."
    STALE_BROKER_EPOCH = 77, False, "The broker has restarted since the epoch in the request."
    OFFSET_NOT_AVAILABLE = 78, True, "A new leader does not know its high watermark yet."
    MEMBER_ID_REQUIRED = 79, False, "Join again with the member id that the response gives."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group is full."
    FENCED_INSTANCE_ID = 82, False, "Another member has taken over this group instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No eligible leader is available."
    ELECTION_NOT_NEEDED = 84, True, "The partition already has the right leader."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "The partition is not being reassigned."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "Members of the group are subscribed to the topic."
    INVALID_RECORD = 87, False, "The broker's checks refused a record."
    UNSTABLE_OFFSET_COMMIT = 88, True, "A transaction that commits this offset is still open."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "The quota is exceeded: wait before the next request."
    PRODUCER_FENCED = 90, False, "A newer producer uses the same transactional id."
    RESOURCE_NOT_FOUND = 91, False, "The request refers to something that does not exist."
    DUPLICATE_RESOURCE = 92, False, "The request names the same thing twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential does not meet the rules."
    INCONSISTENT_VOTER_SET = 94, False, "Sender or receiver is not among the expected voters."
    INVALID_UPDATE_VERSION = 95, False, "The feature cannot be changed to this version."
    FEATURE_UPDATE_FAILED = 96, False, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The principal of a forwarded request cannot be read."
    SNAPSHOT_NOT_FOUND = 98, False, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, False, "The position is not within the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "The broker does not have a topic with this id."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "Another live broker has this broker id."
    BROKER_ID_NOT_REGISTERED = 102, False, "No broker with this id is registered."
    INCONSISTENT_TOPIC_ID = 103, True, "The log's topic id is not the one in the request."
    INCONSISTENT_CLUSTER_ID = 104, False, "The request's cluster id is that of another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session mixes topic names and topic ids."
    INELIGIBLE_REPLICA = 107, False, "The replica may not join the in-sync set."
    NEW_LEADER_ELECTED = 108, False, "The change made another replica the leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset is no longer on the broker's own disk."
    FENCED_MEMBER_EPOCH = 110, False, "The coordinator has fenced the member: give up all partitions and join again."
    UNRELEASED_INSTANCE_ID = 111, False, "Another member still holds the group instance id."
    UNSUPPORTED_ASSIGNOR = 112, False, "The coordinator does not have this assignor."
    STALE_MEMBER_EPOCH = 113, False, "The member's epoch is outdated: take the one of the next heartbeat's response."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request is for a controller but went to a broker, or the reverse."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "The request does not support this kind of node yet."
    UNKNOWN_CONTROLLER_ID = 116, False, "There is no controller with this id."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The telemetry subscription is not the current one."
    TELEMETRY_TOO_LARGE = 118, False, "The request has more metrics than the broker accepts at once."
    INVALID_REGISTRATION = 119, False, "The controller refused the broker's registration."
    TRANSACTION_ABORTABLE = 120, False, "The transaction must be aborted; the producer may go on after that."
    INVALID_RECORD_STATE = 121, False, "The record's state does not allow this acknowledgement."
    SHARE_SESSION_NOT_FOUND = 122, True, "The broker has dropped the share session: start a new one."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The share session has another epoch."
    FENCED_STATE_EPOCH = 124, False, "The share group's state has another epoch."
    INVALID_VOTER_KEY = 125, False, "The voter key is not the receiver's."
    DUPLICATE_VOTER = 126, False, "The node is already a voter."
    VOTER_NOT_FOUND = 127, False, "The node is not a voter."
    INVALID_REGULAR_EXPRESSION = 128, False, "The subscription's pattern does not compile."
    REBOOTSTRAP_REQUIRED = 129, False, "The client's metadata is not usable: start again with the bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, False, "The topology is inconsistent, or does not match the topics."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The topology's epoch is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The topology's epoch is outdated."
    SHARE_SESSION_LIMIT_REACHED = 133, True, "The broker has reached its limit of share sessions."
    GROUP_DELETION_FAILED = 134, False, "The group could not be deleted."
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, False, "The topology's description could not be stored."
    CONTROLLER_ID_NOT_REGISTERED = 136, False, "No controller with this id is registered."


EARLY_NAMES: Final[Mapping[str, int]] = MappingProxyType(
    {
        # The drafts of the 0.9 consumer (2013-14) gave no numbers: these are the closest ones of today.
        # IllegalGeneration there also announced a rebalance (27).
        "CoordinatorStartupNotComplete": 14,
        "ConsumerCoordinatorNotAvailable": 15,
        "NotCoordinatorForGroup": 16,
        "NotCoordinatorForConsumer": 16,
        "IllegalGeneration": 22,
        "InconsistentPartitioningStrategy": 23,
        "UnknownConsumer": 25,
        "InvalidSessionTimeout": 26,
        "RebalanceFailed": 27,
        # Kafka 0.8.2; its names of 15 and 16 are those of the drafts.
        "OffsetsLoadInProgress": 14,
        # Kafka's source in May 2015, between releases.
        "OFFSET_LOAD_IN_PROGRESS": 14,
        "CONSUMER_COORDINATOR_NOT_AVAILABLE": 15,
        "NOT_COORDINATOR_FOR_CONSUMER": 16,
        "INCONSISTENT_PARTITION_ASSIGNMENT_STRATEGY": 23,
        "UNKNOWN_PARTITION_ASSIGNMENT_STRATEGY": 24,
        "UNKNOWN_CONSUMER_ID": 25,
        "COMMITTING_PARTITIONS_NOT_ASSIGNED": 27,
        "AUTHORIZATION_FAILED": 29,
        # Kafka 0.9.0.
        "UNKNOWN": -1,
        "NOT_LEADER_FOR_PARTITION": 6,
        "GROUP_LOAD_IN_PROGRESS": 14,
        "GROUP_COORDINATOR_NOT_AVAILABLE": 15,
        "NOT_COORDINATOR_FOR_GROUP": 16,
        # Drafts of static membership (KIP-345), without numbers: the closest ones of today.
        "GROUP_INSTANCE_ID_NOT_FOUND": 25,
        "MEMBER_ID_MISMATCH": 82,
    }
)
"""Names that drafts and old releases used, none of them in use today, with the number that each had.

The number can have another meaning today: 24, 27 and 29 were reassigned before 0.9 was released, and the
REBALANCE_IN_PROGRESS of May 2015 was 30.
"""


def describe_error(code: int) -> str:
    """An error code for people to read: ``27 REBALANCE_IN_PROGRESS``, or ``999 (unknown error code)``."""
    try:
        return f"{code} {ErrorCode(code).name}"
    except ValueError:
        return f"{code} (unknown error code)"
