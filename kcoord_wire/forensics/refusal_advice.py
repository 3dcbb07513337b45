"""What an error in a response means for a consumer, and what to do about it: one table for findings and causes.

Laws:

* Every error code has an entry: `refusal_of` derives one from the code's meaning where the table has none.
* `tolerated` is how often the protocol itself uses an error with one client within ten minutes: REBALANCE_IN_PROGRESS
  and MEMBER_ID_REQUIRED are no refusals at all, UNKNOWN_MEMBER_ID follows each session timeout once.

Source: Kafka's GroupMetadataManager and GroupCoordinator (which error when), AbstractCoordinator and
ConsumerCoordinator (what the Java client does then); KIP-345 for static members, KIP-848 for epochs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from kcoord_wire.protocol.error_codes import ErrorCode

ALWAYS: Final = 1 << 30
"""`Refusal.tolerated` of errors that are part of the protocol, however often they come."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error in words.

    :ivar meaning: why the broker answers it, as the end of a sentence
    :ivar advice: what to do
    :ivar tolerated: refusals of one client within ten minutes that are normal
    :ivar is_fatal: a retry does not help: the client stops, or is refused until a setting, permission or
        process is changed
    """

    meaning: str
    advice: str
    tolerated: int = 0
    is_fatal: bool = False


_ACL: Final = "kafka-acls.sh --bootstrap-server HOST:PORT --add --allow-principal User:NAME"
_ONCE: Final = 2  # once for what happened, once more for a request that was under way then
_WHILE_MOVING: Final = ALWAYS  # outages and moves of coordinators are rows of their own, see `model.Outage`

REFUSALS: Final[Mapping[ErrorCode, Refusal]] = MappingProxyType(
    {
        ErrorCode.REBALANCE_IN_PROGRESS: Refusal("the group rebalances, join again", "", ALWAYS),
        ErrorCode.MEMBER_ID_REQUIRED: Refusal("the member gets its id first (KIP-394)", "", ALWAYS),
        ErrorCode.NOT_COORDINATOR: Refusal("another broker coordinates the group", "", _WHILE_MOVING),
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: Refusal("the coordinator reads its log", "", _WHILE_MOVING),
        ErrorCode.COORDINATOR_NOT_AVAILABLE: Refusal(
            "no broker leads the group's partition of __consumer_offsets",
            "Look whether __consumer_offsets exists and all its partitions have a leader (kafka-topics.sh --describe "
            "--topic __consumer_offsets); a new cluster with fewer brokers than offsets.topic.replication.factor "
            "cannot make it.",
            _WHILE_MOVING,
        ),
        ErrorCode.GROUP_AUTHORIZATION_FAILED: Refusal(
            "its principal may not use this group",
            f"Grant READ on the group to the client's principal: {_ACL} --operation Read --group GROUP; check which "
            "principal it authenticates as, and whether an ACL was changed at that time.",
            is_fatal=True,
        ),
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: Refusal(
            "its principal may not read a topic that it subscribes to or commits for",
            f"Grant READ and DESCRIBE on the topic to the client's principal: {_ACL} --operation Read --operation "
            "Describe --topic TOPIC.",
            is_fatal=True,
        ),
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Refusal(
            "its principal may not do this on the cluster",
            f"Grant the operation on the cluster to the client's principal: {_ACL} --operation NAME --cluster.",
            is_fatal=True,
        ),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Refusal(
            "its principal may not use its transactional id",
            f"Grant WRITE on the transactional id: {_ACL} --operation Write --transactional-id ID.",
            is_fatal=True,
        ),
        ErrorCode.SASL_AUTHENTICATION_FAILED: Refusal(
            "its credentials are wrong, or have expired",
            "Check user, password or token of that client, and that the user exists with this mechanism; a client that "
            "retries without end may lock its account.",
            is_fatal=True,
        ),
        ErrorCode.UNSUPPORTED_SASL_MECHANISM: Refusal(
            "the listener does not offer its SASL mechanism",
            "Set sasl.mechanism of the client to one of the listener's sasl.enabled.mechanisms.",
            is_fatal=True,
        ),
        ErrorCode.ILLEGAL_SASL_STATE: Refusal(
            "it is not authenticated as the listener requires",
            "Compare security.protocol of the client with that of the listener it connects to.",
            is_fatal=True,
        ),
        ErrorCode.UNSUPPORTED_VERSION: Refusal(
            "the broker does not know this version of the request: it is older than the client",
            "Update the brokers, or use a client release that still speaks their versions. Of ApiVersions one refusal "
            "for each connection is normal, a client that never gets beyond it is not.",
            is_fatal=True,
        ),
        ErrorCode.INVALID_REQUEST: Refusal(
            "the broker takes the request for inconsistent or malformed",
            "Look for the reason in the broker's log at that time, and update the client library: a broker answers "
            "this where fields contradict each other (as with an assignment or member id that does not fit).",
            is_fatal=True,
        ),
        ErrorCode.FENCED_INSTANCE_ID: Refusal(
            "another process has joined with the same group.instance.id",
            "Give each process a group.instance.id of its own (the pod's ordinal, not a constant in a shared "
            "configuration), then restart those that were fenced: they do not come back by themselves.",
            is_fatal=True,
        ),
        ErrorCode.UNRELEASED_INSTANCE_ID: Refusal(
            "its group.instance.id is in use by another member",
            "Give each process a group.instance.id of its own (the pod's ordinal, not a constant in a shared "
            "configuration). After a crash the name is free again when the session of the former process has timed out "
            "(group.consumer.session.timeout.ms); clients stop at this error, so that a supervisor has to try again.",
            is_fatal=True,
        ),
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL: Refusal(
            "it has no assignor in common with all members, or another protocol type",
            "All members must have one assignor in common. librdkafka cannot offer eager and cooperative ones side by "
            "side: stop the group, then start all with the new one.",
            is_fatal=True,
        ),
        ErrorCode.INVALID_SESSION_TIMEOUT: Refusal(
            "its session.timeout.ms is outside the broker's limits",
            "Set session.timeout.ms between the broker's group.min.session.timeout.ms (6 s by default) and "
            "group.max.session.timeout.ms (30 min).",
            is_fatal=True,
        ),
        ErrorCode.INVALID_GROUP_ID: Refusal(
            "the group id is empty or not valid", "Set group.id of the client.", is_fatal=True
        ),
        ErrorCode.GROUP_MAX_SIZE_REACHED: Refusal(
            "the group is full",
            "Start fewer members, or raise the broker's group.max.size (group.consumer.max.size for KIP-848 groups).",
            is_fatal=True,
        ),
        ErrorCode.GROUP_ID_NOT_FOUND: Refusal(
            "there is no such group, or it is of another type", "Check the name of the group and its protocol.", 1
        ),
        ErrorCode.NON_EMPTY_GROUP: Refusal(
            "the group has members", "Stop all members before the group is deleted or its offsets are changed."
        ),
        ErrorCode.UNKNOWN_MEMBER_ID: Refusal(
            "the coordinator had removed it",
            "It is removed again and again: look why its session or poll timeout runs out each time, and for two "
            "processes that share a member id.",
            _ONCE,
        ),
        ErrorCode.ILLEGAL_GENERATION: Refusal(
            "it uses a generation that is over",
            "It does not take part in the rebalances of the others: look whether it polls, and update the client "
            "library if it repeats the same generation.",
            _ONCE,
        ),
        ErrorCode.FENCED_MEMBER_EPOCH: Refusal(
            "its epoch or its partitions are not those that the coordinator has of it, and it has to join again",
            "Look for a coordinator that has lost what it had written (an unclean election of a leader of "
            "__consumer_offsets), and for two processes that use one member id; update the client library if neither "
            "is there. A member that gives partitions up too slowly is refused with UNKNOWN_MEMBER_ID.",
        ),
        ErrorCode.STALE_MEMBER_EPOCH: Refusal(
            "it commits or fetches with an epoch that is over",
            "Retry with the epoch of the next heartbeat's response; a client that repeats the old one needs an update.",
            _ONCE,
        ),
        ErrorCode.UNSUPPORTED_ASSIGNOR: Refusal(
            "the coordinator does not have the assignor it asks for",
            "Set group.remote.assignor to one of the broker's group.consumer.assignors (uniform, range), or leave it "
            "out.",
            is_fatal=True,
        ),
        ErrorCode.INVALID_REGULAR_EXPRESSION: Refusal(
            "the pattern it subscribes to does not compile",
            "Write the pattern in RE2's syntax: with KIP-848 the broker evaluates it, without look-ahead and back "
            "references.",
            is_fatal=True,
        ),
        ErrorCode.OFFSET_METADATA_TOO_LARGE: Refusal(
            "the text it commits with an offset is too long",
            "Commit a shorter text with the offset, or raise the broker's offset.metadata.max.bytes (4,096). Until "
            "then nothing is committed, and a restart reads everything since again.",
            is_fatal=True,
        ),
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE: Refusal(
            "its commit does not fit into one batch of __consumer_offsets",
            "Commit fewer partitions at once, or raise max.message.bytes of __consumer_offsets.",
            is_fatal=True,
        ),
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Refusal(
            "the topic or partition does not exist",
            "Look whether the topic was deleted or made again with fewer partitions; remove it from the subscription.",
            _ONCE,
        ),
        ErrorCode.REQUEST_TIMED_OUT: Refusal(
            "the broker could not write to __consumer_offsets in time",
            "Look for under-replicated partitions of __consumer_offsets and for slow disks.",
            _ONCE,
        ),
        ErrorCode.UNSTABLE_OFFSET_COMMIT: Refusal(
            "a transaction that commits offsets of the group is still open",
            "Find transactions that hang (kafka-transactions.sh find-hanging) and abort them: the member cannot start "
            "to read before.",
            tolerated=30,
        ),
        ErrorCode.THROTTLING_QUOTA_EXCEEDED: Refusal(
            "its quota is used up", "Raise the quota of that client, or send less.", tolerated=30
        ),
    }
)
"""By error code. What is not here is derived from the code's meaning."""


def refusal_of(code: int) -> Refusal:
    """Return the entry of any error code."""
    try:
        error = ErrorCode(code)
    except ValueError:
        return Refusal("this release does not know the code", "Look into the logs of client and broker.", _ONCE)
    if (known := REFUSALS.get(error)) is not None:
        return known
    advice = "It may pass by itself." if error.retriable else "Look into the logs of client and broker."
    return Refusal(error.meaning[:1].lower() + error.meaning[1:].rstrip("."), advice, _ONCE)
