"""The broker's error codes as data: number, name, whether to try again, and what it means.

Laws:

* Every code from -1 to 136 stands here once, under its present name. The numbers never change; names have.
* `ErrorCode.retriable` is Kafka's own notion: the same request may succeed later, perhaps elsewhere and after a look at
  fresh metadata. An error that asks for another request first (rejoin, fetch a member id) is not retriable.
* A code that a newer broker sends and this table lacks is not an error of ours: `describe_error` takes any number.

Source: Kafka's clients/src/main/java/org/apache/kafka/common/protocol/Errors.java and the exception classes it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final, Self

__all__ = ["EARLY_NAMES", "ErrorCode", "describe_error"]


class ErrorCode(IntEnum):
    """An error code of Kafka's protocol, equal to its number.

    :ivar retriable: whether the same request may be sent again
    :ivar meaning: one line on what has happened
    """

    retriable: bool
    meaning: str

    def __new__(cls, code: int, retriable: bool = False, meaning: str = "") -> Self:
        # The defaults are for type checkers: they take a look-up, ErrorCode(27), for a call of this.
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.meaning = meaning
        return member

    UNKNOWN_SERVER_ERROR = -1, False, "The broker failed in a way that has no code of its own."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = 1, False, "The log does not reach back, or not yet on, to the offset asked for."
    CORRUPT_MESSAGE = 2, True, "A record batch fails its checksum, or lacks the key that a compacted topic needs."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "The broker does not have this topic or partition."
    INVALID_FETCH_SIZE = 4, False, "The fetch size makes no sense."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment; an election may be under way."
    NOT_LEADER_OR_FOLLOWER = 6, True, "The broker is not the partition's leader, or not even a replica of it."
    REQUEST_TIMED_OUT = 7, True, "The broker could not finish within the time given."
    BROKER_NOT_AVAILABLE = 8, False, "The broker asked for is not there."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica asked for is not there."
    MESSAGE_TOO_LARGE = 10, False, "A record batch is larger than the topic accepts."
    STALE_CONTROLLER_EPOCH = 11, False, "The sender follows a controller that has since been replaced."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The text committed beside an offset is too long."
    NETWORK_EXCEPTION = 13, True, "The connection went away before the answer came."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still reading its groups from the log."
    COORDINATOR_NOT_AVAILABLE = 15, True, "There is no coordinator at the moment."
    NOT_COORDINATOR = 16, True, "The group or transaction has its coordinator elsewhere."
    INVALID_TOPIC_EXCEPTION = 17, False, "The topic name is not allowed, or not for this operation."
    RECORD_LIST_TOO_LARGE = 18, False, "The batches together are larger than a log segment."
    NOT_ENOUGH_REPLICAS = 19, True, "Too few replicas are in sync, nothing was written."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "Written, but meanwhile too few replicas are in sync."
    INVALID_REQUIRED_ACKS = 21, False, "acks is none of -1, 0 and 1."
    ILLEGAL_GENERATION = 22, False, "The member speaks of a generation that is not the group's present one."
    INCONSISTENT_GROUP_PROTOCOL = 23, False, "The member offers no protocol that the whole group supports."
    INVALID_GROUP_ID = 24, False, "The group id is empty or otherwise not allowed."
    UNKNOWN_MEMBER_ID = 25, False, "The coordinator does not have this member: join anew."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is outside the broker's bounds."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing: join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The offset commit would not fit into one record batch."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Not allowed on this topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "Not allowed in this group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "Not allowed on the cluster."
    INVALID_TIMESTAMP = 32, False, "A record's timestamp is too far from the broker's clock."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not have this SASL mechanism switched on."
    ILLEGAL_SASL_STATE = 34, False, "The request does not belong at this point of the authentication."
    UNSUPPORTED_VERSION = 35, False, "The broker does not have this version of the API."
    TOPIC_ALREADY_EXISTS = 36, False, "There is a topic of this name already."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not allowed."
    INVALID_REPLICATION_FACTOR = 38, False, "The replication factor is below one or above the number of brokers."
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The replicas named do not make a valid assignment."
    INVALID_CONFIG = 40, False, "A setting has a value that is not allowed."
    NOT_CONTROLLER = 41, True, "The node is not the controller."
    INVALID_REQUEST = 42, False, "The request contradicts itself or cannot be read."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The partition's message format is too old for the request."
    POLICY_VIOLATION = 44, False, "A policy configured on the broker forbids it."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "A batch of this producer is missing before this one."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "This batch of this producer has been written already."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer's epoch is an old one."
    INVALID_TXN_STATE = 48, False, "The transaction is in no state for this operation."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id is not the one that belongs to the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout is above the broker's maximum."
    CONCURRENT_TRANSACTIONS = 51, True, "An earlier operation on the same transaction is not finished."
    TRANSACTION_COORDINATOR_FENCED = 52, False, "The sender of the markers no longer coordinates this transaction."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Not allowed to use this transactional id."
    SECURITY_DISABLED = 54, False, "The broker has no authorizer."
    OPERATION_NOT_ATTEMPTED = 55, False, "Left out, because another part of the same request failed."
    KAFKA_STORAGE_ERROR = 56, True, "The broker's disk failed under the log."
    LOG_DIR_NOT_FOUND = 57, False, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, False, "The credentials were refused."
    UNKNOWN_PRODUCER_ID = 59, False, "The broker remembers nothing of this producer, perhaps as its records are gone."
    REASSIGNMENT_IN_PROGRESS = 60, False, "The partition is being moved already."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are not switched on."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, "Neither the token's owner nor one of its renewers."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, "Tokens are not given out over a channel authenticated like this."
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "Not allowed on this delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has run out."
    INVALID_PRINCIPAL_TYPE = 67, False, "Principals of this type are not supported."
    NON_EMPTY_GROUP = 68, False, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, False, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "The broker has dropped the fetch session: start a new one."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The fetch session is at another epoch."
    LISTENER_NOT_FOUND = 72, True, "The leader does not have the listener that the request came in on."
    TOPIC_DELETION_DISABLED = 73, False, "Deleting topics is switched off."
    FENCED_LEADER_EPOCH = 74, True, "The client follows a leader that has since been replaced."
    UNKNOWN_LEADER_EPOCH = 75, True, "The client follows a leader that the broker has not heard of yet."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The client's version cannot take the compression of the data."
    STALE_BROKER_EPOCH = 77, False, "The broker has restarted since."
    OFFSET_NOT_AVAILABLE = 78, True, "A new leader does not know its high watermark yet."
    MEMBER_ID_REQUIRED = 79, False, "Join again with the member id that the response gives."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader is not there."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group is full."
    FENCED_INSTANCE_ID = 82, False, "Another member has taken over this group instance id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica that may lead is there."
    ELECTION_NOT_NEEDED = 84, True, "The partition is led as it should be."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "The partition is not being moved."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "Members of the group are subscribed to the topic."
    INVALID_RECORD = 87, False, "The broker's checks refused a record."
    UNSTABLE_OFFSET_COMMIT = 88, True, "A transaction that commits this offset is still open."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "The quota is used up: wait."
    PRODUCER_FENCED = 90, False, "A newer producer uses the same transactional id."
    RESOURCE_NOT_FOUND = 91, False, "The request refers to something that does not exist."
    DUPLICATE_RESOURCE = 92, False, "The request names the same thing twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential does not meet the rules."
    INCONSISTENT_VOTER_SET = 94, False, "Sender or receiver is not among the expected voters."
    INVALID_UPDATE_VERSION = 95, False, "The feature cannot go to this version."
    FEATURE_UPDATE_FAILED = 96, False, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The principal of a forwarded request cannot be read."
    SNAPSHOT_NOT_FOUND = 98, False, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, False, "The position is not within the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "The broker does not have a topic with this id."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "The broker id is taken by a broker that lives."
    BROKER_ID_NOT_REGISTERED = 102, False, "No broker with this id is registered."
    INCONSISTENT_TOPIC_ID = 103, True, "The log's topic id is not the one in the request."
    INCONSISTENT_CLUSTER_ID = 104, False, "The request is meant for another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session mixes topic names and topic ids."
    INELIGIBLE_REPLICA = 107, False, "The replica may not join the in-sync set."
    NEW_LEADER_ELECTED = 108, False, "The change made another replica the leader."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset is no longer on the broker's own disk."
    FENCED_MEMBER_EPOCH = 110, False, "The member's epoch cannot be: give up all partitions and join anew."
    UNRELEASED_INSTANCE_ID = 111, False, "The group instance id is still held by another member."
    UNSUPPORTED_ASSIGNOR = 112, False, "The coordinator does not have this assignor."
    STALE_MEMBER_EPOCH = 113, False, "The member's epoch is old: wait for the next heartbeat's."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request went to a node of the other kind, broker or controller."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "Nodes of this kind cannot be asked about yet."
    UNKNOWN_CONTROLLER_ID = 116, False, "There is no controller with this id."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The telemetry subscription is not the present one."
    TELEMETRY_TOO_LARGE = 118, False, "More metrics than the broker accepts at once."
    INVALID_REGISTRATION = 119, False, "The controller refused the broker's registration."
    TRANSACTION_ABORTABLE = 120, False, "The transaction must be aborted; the producer may go on after that."
    INVALID_RECORD_STATE = 121, False, "The record is in no state to be acknowledged."
    SHARE_SESSION_NOT_FOUND = 122, True, "The broker has dropped the share session: start a new one."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The share session is at another epoch."
    FENCED_STATE_EPOCH = 124, False, "The share group's state is at another epoch."
    INVALID_VOTER_KEY = 125, False, "The voter key is not the receiver's."
    DUPLICATE_VOTER = 126, False, "Is a voter already."
    VOTER_NOT_FOUND = 127, False, "Is not a voter."
    INVALID_REGULAR_EXPRESSION = 128, False, "The subscription's pattern does not compile."
    REBOOTSTRAP_REQUIRED = 129, False, "The client's metadata is no good: start over from the bootstrap list."
    STREAMS_INVALID_TOPOLOGY = 130, False, "The topology contradicts itself or the topics."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The topology's epoch is not allowed."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The topology's epoch is an old one."
    SHARE_SESSION_LIMIT_REACHED = 133, True, "The broker keeps as many share sessions as it may."
    GROUP_DELETION_FAILED = 134, False, "The group could not be deleted."
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, False, "The topology's description could not be stored."
    CONTROLLER_ID_NOT_REGISTERED = 136, False, "No controller with this id is registered."


EARLY_NAMES: Final[Mapping[str, int]] = MappingProxyType(
    {
        # The drafts of the 0.9 consumer (2013-14) gave no numbers: these are today's closest, and IllegalGeneration
        # there announced a rebalance (27) as well.
        "CoordinatorStartupNotComplete": 14,
        "ConsumerCoordinatorNotAvailable": 15,
        "NotCoordinatorForGroup": 16,
        "NotCoordinatorForConsumer": 16,
        "IllegalGeneration": 22,
        "InconsistentPartitioningStrategy": 23,
        "UnknownConsumer": 25,
        "InvalidSessionTimeout": 26,
        "RebalanceFailed": 27,
        # Kafka 0.8.2; its 15 and 16 are named as in the drafts.
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
        # Drafts of static membership (KIP-345), without numbers: today's closest.
        "GROUP_INSTANCE_ID_NOT_FOUND": 25,
        "MEMBER_ID_MISMATCH": 82,
    }
)
"""Names that drafts and old releases used, none of them a name of today, to the number that each stood for.

The number's present meaning can be another one: 24, 27 and 29 were reassigned before 0.9 was released, and the
REBALANCE_IN_PROGRESS of May 2015 was 30.
"""


def describe_error(code: int) -> str:
    """An error code for people to read: ``27 REBALANCE_IN_PROGRESS``, or ``999 (unknown error code)``."""
    try:
        return f"{code} {ErrorCode(code).name}"
    except ValueError:
        return f"{code} (unknown error code)"
