"""The registry of groups and consumers, and which groups are interested in which topic (section 5, fields 2 to 4).

Laws:

* `Groups.interested_in` has a group exactly while a consumer of it subscribes to the topic, by name or by a wildcard
  that has been compared with it (`topic_added`).
* Adding or removing a consumer costs in proportion to its own subscription, not to the size of its group: equal
  subscriptions of a group are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.group_store import GroupStore
from kcoord_wire.central.draft.topic_count import TopicCount
from kcoord_wire.kernel.procedures import Gate
from kcoord_wire.kernel.timers import Timer


@dataclass(slots=True, eq=False)
class Member:
    """A registered consumer.

    :ivar connection: the one on which it has registered
    :ivar is_fenced: it compares epochs, the extension
    :ivar failed_pings: in a row
    :ivar late_attempts: that it did not answer in time, since the group's last rebalance that succeeded
    :ivar ping_timer: of its next ping
    :ivar owned: what it was started with; an offset of another partition is not recorded
    :ivar is_started: since it has registered, and not stopped since
    :ivar is_parked: its registration is not yet answered (`RebalanceBy.SOCKETS`)
    """

    group: Group
    consumer_id: str
    connection: int
    topic_count: TopicCount
    auto_commit: bool
    auto_offset_reset: str
    session_timeout_ms: int
    is_fenced: bool
    failed_pings: int = 0
    late_attempts: int = 0
    ping_timer: Timer | None = None
    owned: frozenset[Partition] = frozenset()
    is_started: bool = False
    is_parked: bool = False


class AttemptFailedError(Exception):
    """The present attempt to rebalance a group cannot go on; the text says why."""


class Attempt:
    """One attempt to rebalance a group.

    :ivar generation: of the assignment that it is to bring
    :ivar phase: what it does at the moment
    :ivar waiting: those that have not answered
    :ivar late: those whose time to answer is over
    :ivar failed: why it cannot go on; empty while it can
    :ivar changed: opened when all have answered, or it has failed
    """

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.phase = "computing"
        self.waiting: set[Member] = set()
        self.late: set[Member] = set()
        self.failed = ""
        self.changed = Gate()

    def wait_for(self, phase: str, members: Iterable[Member]) -> None:
        """Begin a phase, which ends when all of them have answered."""
        self.phase = phase
        self.waiting = set(members)
        self.changed = Gate()
        if self.failed or not self.waiting:
            self.changed.open()

    def answered(self, member: Member) -> None:
        """One has answered in time."""
        self.waiting.discard(member)
        if not self.waiting:
            self.changed.open()

    def fail(self, reason: str) -> None:
        """Let the attempt fail directly."""
        self.failed = self.failed or reason
        self.changed.open()

    def check(self) -> None:
        """Continue only if nothing has failed.

        :raises AttemptFailedError: something has
        """
        if self.failed:
            raise AttemptFailedError(self.failed)


@dataclass(slots=True, eq=False)
class Group:
    """A group and its consumers.

    :ivar members: by consumer id
    :ivar store: its nodes in ZooKeeper, as far as they are known
    :ivar generation: of the last assignment; 0 before the first
    :ivar needs_rebalance: the rebalance bit: a task waits in a handler's queue
    :ivar attempt: the rebalance that is under way
    :ivar offsets: current consumed offset of each partition
    :ivar is_restored: what the former coordinator has left no longer matters
    :ivar awaited: consumers that had partitions and have not registered again
    :ivar all_back: opened when `awaited` is empty
    :ivar subscriptions: number of members of each
    :ivar interests: by topic, number of subscriptions that have it
    :ivar reconnecting: consumers whose connection a rebalance has closed (`RebalanceBy.SOCKETS`)
    """

    group_id: str
    store: GroupStore
    members: dict[str, Member] = field(default_factory=dict)
    generation: int = 0
    needs_rebalance: bool = False
    attempt: Attempt | None = None
    offsets: dict[Partition, int] = field(default_factory=dict)
    is_restored: bool = False
    awaited: set[str] = field(default_factory=set)
    all_back: Gate = field(default_factory=Gate)
    subscriptions: Counter[TopicCount] = field(default_factory=Counter)
    interests: Counter[str] = field(default_factory=Counter)
    reconnecting: set[str] = field(default_factory=set)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way for it."""
        return self.is_restored and self.attempt is None and not self.needs_rebalance


class Groups:
    """All groups of one coordinator.

    :ivar by_id: the groups
    :ivar by_connection: the registered consumers
    :ivar wildcards: the groups with wildcard subscriptions
    :ivar topics: those that exist, or have existed
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Group] = {}
        self.by_connection: dict[int, Member] = {}
        self.wildcards: dict[str, Group] = {}
        self.topics: set[str] = set()
        self._interested: dict[str, dict[str, Group]] = {}

    def interested_in(self, topic: str) -> list[Group]:
        """Return the groups that subscribe to a topic."""
        return list(self._interested.get(topic, {}).values())

    def add_member(self, member: Member) -> None:
        """handleAddedConsumer, steps 2 and 3."""
        group, subscription = member.group, member.topic_count
        group.members[member.consumer_id] = member
        self.by_connection[member.connection] = member
        group.subscriptions[subscription] += 1
        if group.subscriptions[subscription] == 1:
            if subscription.is_wildcard:
                self.wildcards[group.group_id] = group
            for topic in self.topics if subscription.is_wildcard else subscription.streams:
                self._compare(group, subscription, topic)

    def remove_member(self, member: Member) -> None:
        """Undo `add_member`."""
        group, subscription = member.group, member.topic_count
        del group.members[member.consumer_id]
        del self.by_connection[member.connection]
        group.subscriptions[subscription] -= 1
        if group.subscriptions[subscription]:
            return
        del group.subscriptions[subscription]
        if not any(other.is_wildcard for other in group.subscriptions):
            self.wildcards.pop(group.group_id, None)
        for topic in self.topics.intersection(group.interests) if subscription.is_wildcard else subscription.streams:
            if subscription.streams_of(topic):
                self._lose_interest(group, topic)

    def _lose_interest(self, group: Group, topic: str) -> None:
        group.interests[topic] -= 1
        if not group.interests[topic]:
            del group.interests[topic]
            del self._interested[topic][group.group_id]
            if not self._interested[topic]:
                del self._interested[topic]

    def topic_added(self, topic: str) -> None:
        """TopicChangeListener.handleChildChange, step 2.2: compare a new topic with the wildcards."""
        self.topics.add(topic)
        for group in self.wildcards.values():
            for subscription in group.subscriptions:
                if subscription.is_wildcard:
                    self._compare(group, subscription, topic)

    def _compare(self, group: Group, subscription: TopicCount, topic: str) -> None:
        if subscription.streams_of(topic):
            group.interests[topic] += 1
            self._interested.setdefault(topic, {})[group.group_id] = group
