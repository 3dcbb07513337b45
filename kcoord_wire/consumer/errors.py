"""The errors of a consumer: those of a connection to a broker, and those that its methods raise besides.

Laws:

* Those of a connection are `BrokerError`, and name the broker. What is lost, silent or wrong at one moment may work on
  another connection (`retriable`); refused credentials, or a version that one side lacks, will not. One error ends a
  connection, and every request that waits on it fails with that same error.
* All others are `ConsumerError`. Each says what the application can do: ``retriable`` errors may go away by themselves.
* An error of the application's own code (a listener, an assignor) is the ``__cause__`` of the error that reports it.

Source: the exceptions of Kafka's Java consumer (org.apache.kafka.clients.consumer, org.apache.kafka.common.errors).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from kcoord_wire.assignors import TopicPartition
from kcoord_wire.consumer.member_events import Offsets
from kcoord_wire.protocol.error_codes import ErrorCode


class BrokerError(Exception):
    """A broker could not be asked, or its answer could not be understood.

    :ivar address: ``HOST:PORT`` of the broker
    :ivar retriable: whether the same request may succeed on another connection
    """

    retriable: ClassVar[bool] = True

    def __init__(self, address: str, detail: str) -> None:
        super().__init__(address, detail)
        self.address = address
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.address}: {self.detail}"


class ConnectionLostError(BrokerError):
    """The connection could not be made, or has ended: requests in flight may or may not have been carried out."""


class RequestTimeoutError(BrokerError):
    """A response has not come in time. The connection is closed: responses come in the order of the requests, so none
    behind this one would have come either."""


class ForeignBytesError(BrokerError):
    """The peer has sent what is not the response to the oldest request. The connection is closed."""


class UnsupportedVersionError(BrokerError):
    """The broker and this package have no version of a request in common. The connection remains."""

    retriable = False


class AuthenticationError(BrokerError):
    """TLS or SASL has failed: a certificate is not trusted, or the credentials are refused."""

    retriable = False


class ConsumerError(Exception):
    """A consumer could not do what it was asked for.

    :ivar retriable: whether the same call may succeed later
    """

    retriable: ClassVar[bool] = False


class ConsumerClosedError(ConsumerError):
    """The consumer is closed, or was never started."""


class ConcurrentPollError(ConsumerError):
    """A second task polls while the first still does; listeners and positions belong to one task."""


class ConsumerTimeoutError(ConsumerError):
    """It took longer than ``default_api_timeout_ms``."""

    retriable = True


class NotAssignedError(ConsumerError):
    """A partition is not assigned to this consumer.

    :ivar partition: the partition
    """

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"{partition.topic}-{partition.partition} is not assigned to this consumer")
        self.partition = partition


class GroupError(ConsumerError):
    """The coordinator refuses the member for good: it is fenced, or not allowed. The consumer can only be closed.

    :ivar error: the coordinator's answer
    """

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(f"{error.name}: {error.meaning}")
        self.error = error


class CommitFailedError(ConsumerError):
    """Offsets were not committed.

    With REBALANCE_IN_PROGRESS the partitions may still be this member's: poll, then commit what it owns then. With
    NETWORK_EXCEPTION the outcome is unknown. With others the partitions belong to another member.

    :ivar offsets: those that were not
    :ivar error: why
    """

    def __init__(self, offsets: Offsets, error: ErrorCode) -> None:
        super().__init__(f"{error.name}: {error.meaning}")
        self.offsets: Offsets = dict(offsets)
        self.error = error


class PollIntervalExceededError(CommitFailedError):
    """Offsets were not committed, and the partitions are lost: the application has not polled for
    ``max_poll_interval_ms``, so that the member has left. The next poll joins again; a longer interval or smaller
    ``max_poll_records`` prevent it."""


class ListenerError(ConsumerError):
    """The rebalance listener has raised; the rebalance goes on as if it had returned. The cause is its error.

    :ivar method: ``on_revoked``, ``on_assigned`` or ``on_lost``
    :ivar partitions: those that it was called for
    """

    def __init__(self, method: str, partitions: Collection[TopicPartition]) -> None:
        super().__init__(f"the listener's {method} has failed for {len(partitions)} partitions")
        self.method = method
        self.partitions: frozenset[TopicPartition] = frozenset(partitions)


class AssignmentError(ConsumerError):
    """This member, as leader, has no valid assignment to distribute; it has left the group so that another can lead.

    It joins again when the application polls again. The cause, if any, is the assignor's error.

    :ivar assignor: its name
    """

    retriable = True

    def __init__(self, assignor: str, detail: str) -> None:
        super().__init__(f"the assignor {assignor!r}: {detail}")
        self.assignor = assignor


class AssignorHookError(AssignmentError):
    """An assignor's `on_join` or `on_assignment` has failed, which ends the membership: each poll raises this, until
    `unsubscribe`. The cause is the assignor's error.
    """

    retriable = False


class NoOffsetError(ConsumerError):
    """Partitions have no committed offset, and ``auto_offset_reset`` is ``none``: `seek` decides where to begin.

    :ivar partitions: the partitions
    """

    def __init__(self, partitions: Collection[TopicPartition]) -> None:
        super().__init__(f"no offset is committed for {', '.join(f'{t}-{p}' for t, p in sorted(partitions))}")
        self.partitions: frozenset[TopicPartition] = frozenset(partitions)


class OffsetOutOfRangeError(ConsumerError):
    """The leader does not have the position, and ``auto_offset_reset`` is ``none``: `seek` decides where to go on.

    :ivar partition: the partition
    :ivar offset: its position
    """

    def __init__(self, partition: TopicPartition, offset: int) -> None:
        super().__init__(f"{partition.topic}-{partition.partition} has no offset {offset}")
        self.partition = partition
        self.offset = offset


class CorruptRecordsError(ConsumerError):
    """The bytes at the position are no valid records. The position stays there: `seek` past it, or close.

    :ivar partition: the partition
    :ivar offset: its position
    """

    def __init__(self, partition: TopicPartition, offset: int, detail: str) -> None:
        super().__init__(f"{partition.topic}-{partition.partition} from offset {offset}: {detail}")
        self.partition = partition
        self.offset = offset


class TopicError(ConsumerError):
    """A topic, or its committed offsets, cannot be read: it is not allowed, not known, or its name is not valid.

    :ivar topic: its name
    :ivar error: the broker's answer
    """

    def __init__(self, topic: str, error: ErrorCode) -> None:
        super().__init__(f"{topic!r}: {error.name}: {error.meaning}")
        self.topic = topic
        self.error = error
