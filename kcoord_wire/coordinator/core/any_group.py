"""What groups of both protocols have in common: topics that they may name, offsets that they commit."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from kcoord_wire.coordinator.core import events
from kcoord_wire.protocol.error_codes import ErrorCode

CONSUMER: Final = "consumer"
"""The protocol type of consumers; the coordinator reads subscriptions of such groups only."""

FOREVER: Final = -1
"""The expiry of an offset that the coordinator's retention decides about."""

NO_EPOCH: Final = -1
"""The leader epoch of an offset that was committed without one."""


class TopicNames(Protocol):
    """What the coordinator needs to know of topics: which exist, and their ids."""

    @property
    def changes(self) -> int:
        """How often a topic was created, deleted or given more partitions; it never decreases."""

    def names(self) -> Iterable[str]:
        """Return the names of all topics."""

    def partitions(self, name: str) -> int | None:
        """Return the number of partitions; None if the topic does not exist."""

    def id_of(self, name: str) -> uuid.UUID | None:
        """Return the topic's id; None if the topic does not exist."""

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """Return the topic's name; None if no topic has the id."""


Subscribed = Callable[[bytes], frozenset[str] | None]
"""Returns the topics that a subscription names; None if it cannot be decoded. The machine itself has no codec."""


class Committed(NamedTuple):
    """A committed offset, as the log has it.

    :ivar offset: the committed offset
    :ivar leader_epoch: of the last record consumed; `NO_EPOCH` if unknown
    :ivar metadata: the client's text
    :ivar commit_timestamp: ms
    :ivar expire_timestamp: ms at which it expires; `FOREVER` where the coordinator's retention decides
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int


class AnyGroup(ABC):
    """What groups of both protocols have: an id, a state, members and committed offsets.

    :cvar kind: as ListGroups names the protocol
    :ivar state: a member of an enum of strings; its value is what ListGroups returns
    :ivar protocol_type: None for a group that never had a member (offsets only)
    :ivar members: by id
    :ivar offsets: topic to partition to committed offset
    :ivar written: number of the last `Append` that concerns this group
    :ivar state_since: ms of the last move
    """

    __slots__ = ("group_id", "offsets", "state_since", "written")

    kind: ClassVar[str]
    state: Any
    protocol_type: str | None
    members: dict[str, Any]

    def __init__(self, group_id: str, now: int) -> None:
        self.group_id = group_id
        self.offsets: dict[str, dict[int, Committed]] = {}
        self.state_since = now
        self.written = 0

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        return bool(self.state.value == "Empty")

    @property
    def is_unused(self) -> bool:
        """Whether it has no members, and none is about to join."""
        return self.is_empty

    @abstractmethod
    def check_commit(self, member_id: str, group_instance_id: str | None, epoch: int, version: int) -> ErrorCode:
        """Return what is wrong with a commit of this member in this generation or member epoch; NONE if nothing.

        :param version: of the OffsetCommit
        """

    @abstractmethod
    def check_partition(self, member_id: str, epoch: int, topic_id: uuid.UUID | None, partition: int) -> ErrorCode:
        """Return what is wrong with the commit of one partition, which `check_commit` has allowed; NONE if nothing."""

    @abstractmethod
    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Return what is wrong with an OffsetFetch (v9 and later) in the name of this member; NONE if nothing."""

    @abstractmethod
    def is_subscribed(self, topic: str) -> bool:
        """Return whether a member may read the topic."""

    @property
    @abstractmethod
    def may_expire(self) -> bool:
        """Whether offsets of topics that no member subscribes to may expire."""

    @abstractmethod
    def unused_since(self, committed: Committed) -> int:
        """Return since when an offset is not in use, in ms, where no member subscribes to its topic."""

    @abstractmethod
    def tombstones(self) -> list[events.LogRecord]:
        """Return what removes the group, but not its offsets, from the log."""

    @abstractmethod
    def end(self, now: int) -> None:
        """Mark the group as deleted, or as no longer coordinated here."""
