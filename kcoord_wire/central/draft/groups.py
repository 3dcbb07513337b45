"""Groups, their consumers and their nodes in ZooKeeper, and the checks of a registration (section 5, fields 2 to 4).

Laws:

* `Groups.interested_in` has a group exactly while a consumer of it subscribes to the topic, by name or by a wildcard
  that has been compared with it (`topic_added`).
* Adding or removing a consumer costs in proportion to its own subscription, not to the size of its group: equal
  subscriptions of a group are counted.
* A registration that is refused (section 7) changes nothing, and its connection stays open: the consumer closes it.
* What is accepted can be written to ZooKeeper: ids are names of nodes, topics are names of topics.
* Only the coordinator of the present epoch writes a group's nodes, guarded, and ZooKeeper executes its requests in
  their order. So what was read once stays true, and writes are planned without reading: a caller sends what it has
  planned, or calls `GroupStore.forget`.
* After any error the content is unknown (`GroupStore.is_loaded` is False) and is read again by `load`.
* The owners are written together with the end of the mark `GroupRecord.is_starting`: the last of the writes that
  `plan_owners` returns removes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kcoord_wire.central.draft.events import CentralError, CoordinatorSettings, Partition
from kcoord_wire.central.draft.subscription import TopicCount, parse_topic_count
from kcoord_wire.kernel.procedures import Latch, Procedure
from kcoord_wire.kernel.timers import Timer
from kcoord_wire.messages.central import RegisterConsumerRequest
from kcoord_wire.zookeeper.layout import (
    GroupRecord,
    format_group,
    group_path,
    is_node_name,
    offset_path,
    owner_path,
    parse_group,
)
from kcoord_wire.zookeeper.requests import Create, Delete, Node, Read, ReadChildren, SetData, Write


@dataclass(slots=True, eq=False)
class RegisteredConsumer:
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


BACKING_OFF: Final = "backing off"


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
        self.waiting: set[RegisteredConsumer] = set()
        self.late: set[RegisteredConsumer] = set()
        self.failed = ""
        self.changed = Latch()

    def wait_for(self, phase: str, members: Iterable[RegisteredConsumer]) -> None:
        """Begin a phase, which ends when all of them have answered."""
        self.phase = phase
        self.waiting = set(members)
        self.changed = Latch()
        if self.failed or not self.waiting:
            self.changed.open()

    def end_backoff(self) -> None:
        """Let a failed attempt wait no longer for the next one."""
        if self.phase == BACKING_OFF:
            self.changed.open()

    def answered(self, member: RegisteredConsumer) -> None:
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
    :ivar needs_rebalance: the rebalance bit: a rebalance is to begin
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
    members: dict[str, RegisteredConsumer] = field(default_factory=dict)
    generation: int = 0
    needs_rebalance: bool = False
    attempt: Attempt | None = None
    offsets: dict[Partition, int] = field(default_factory=dict)
    is_restored: bool = False
    awaited: set[str] = field(default_factory=set)
    all_back: Latch = field(default_factory=Latch)
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
        self.by_connection: dict[int, RegisteredConsumer] = {}
        self.wildcards: dict[str, Group] = {}
        self.topics: set[str] = set()
        self._interested: dict[str, dict[str, Group]] = {}

    def interested_in(self, topic: str) -> list[Group]:
        """Return the groups that subscribe to a topic."""
        return list(self._interested.get(topic, {}).values())

    def add_member(self, member: RegisteredConsumer) -> None:
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

    def remove_member(self, member: RegisteredConsumer) -> None:
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


_OFFSET_RESETS: Final = ("smallest", "largest")


class RegistrationError(Exception):
    """The consumer cannot be registered.

    :ivar error: for the response
    """

    def __init__(self, error: CentralError, reason: str) -> None:
        super().__init__(reason)
        self.error = error


def check_registration(
    request: RegisterConsumerRequest, groups: Mapping[str, Group], settings: CoordinatorSettings
) -> None:
    """Check a request.

    :raises RegistrationError: with the first check that fails
    """
    if not is_node_name(request.group_id):
        raise RegistrationError(CentralError.INVALID_GROUP_ID, "the group id cannot be the name of a node")
    if not is_node_name(request.consumer_id):
        raise RegistrationError(CentralError.INVALID_CONSUMER_ID, "the consumer id cannot be the name of a node")
    group = groups.get(request.group_id)
    if group is not None and request.consumer_id in group.members:
        raise RegistrationError(CentralError.DUPLICATE_CONSUMER_ID, "the consumer id is taken")
    least, most = settings.min_session_timeout_ms, settings.max_session_timeout_ms
    if not least <= request.session_timeout_ms <= most:
        raise RegistrationError(CentralError.INVALID_SESSION_TIMEOUT, f"a session timeout is {least} to {most} ms")
    if request.auto_offset_rest not in _OFFSET_RESETS:
        raise RegistrationError(CentralError.INVALID_OFFSET_RESET, "auto_offset_reset is smallest or largest")
    try:
        parse_topic_count(request.topic_count)
    except ValueError as error:
        raise RegistrationError(CentralError.INVALID_TOPIC_COUNT, str(error)) from None


def new_member(request: RegisterConsumerRequest, group: Group, connection: int) -> RegisteredConsumer:
    """Return the consumer of a request that has been checked."""
    return RegisteredConsumer(
        group,
        request.consumer_id,
        connection,
        parse_topic_count(request.topic_count),
        request.auto_commit,
        request.auto_offset_rest,
        request.session_timeout_ms,
        is_fenced=request.fence is not None,
    )


OWNERS: Final = "owners"
OFFSETS: Final = "offsets"
_PATH_OF: Final = {OWNERS: owner_path, OFFSETS: offset_path}


def consumer_of(thread_id: str) -> str:
    """Return the consumer of a thread, ``CONSUMER-NUMBER``."""
    return thread_id.rpartition("-")[0]


class GroupStore:
    """The nodes of one group.

    :ivar is_loaded: what follows is known
    :ivar record: the data of the group's own node
    :ivar owners: thread id by partition
    :ivar offsets: committed offset by partition
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.is_loaded = False
        self.record = GroupRecord()
        self.owners: dict[Partition, str] = {}
        self.offsets: dict[Partition, int] = {}
        self._parents: set[str] = set()

    def forget(self) -> None:
        """A write has failed: nothing is known any more."""
        self.is_loaded = False

    def load(self) -> Procedure:
        """Read everything; a part of other procedures. Nodes with data of another form are taken for missing data."""
        self._parents.clear()
        self.owners.clear()
        self.offsets.clear()
        node: Node | None = yield Read(group_path(self.group_id))
        self.record = GroupRecord()
        if node is not None:
            self._parents.add(group_path(self.group_id))
            self.record = _record_of(node)
        for kind in (OWNERS, OFFSETS):
            yield from self._load(kind)
        self.is_loaded = True

    def _load(self, kind: str) -> Procedure:
        path = f"{group_path(self.group_id)}/{kind}"
        topics: tuple[str, ...] | None = yield ReadChildren(path)
        if topics is None:
            return
        names: list[tuple[str, ...] | None] = yield [ReadChildren(f"{path}/{topic}") for topic in topics]
        self._parents |= {path, *(f"{path}/{topic}" for topic in topics)}
        partitions = [
            Partition(topic, name) for topic, found in zip(topics, names, strict=True) for name in found or ()
        ]
        nodes: list[Node | None] = yield [Read(f"{path}/{topic}/{name}") for topic, name in partitions]
        for partition, node in zip(partitions, nodes, strict=True):
            if node is not None:
                self._take(kind, partition, node.data.decode(errors="replace"))

    def _take(self, kind: str, partition: Partition, text: str) -> None:
        if kind == OWNERS:
            self.owners[partition] = text
        else:
            self.offsets[partition] = int(text) if text.isascii() and text.isdecimal() else -1

    # ---- writes

    def plan_record(self, record: GroupRecord) -> list[Write]:
        """Return the writes after which the group's node has this record."""
        path, data = group_path(self.group_id), format_group(record)
        if path not in self._parents:
            self._parents.add(path)
        elif self.record == record:
            return []
        else:
            self.record = record
            return [SetData(path, data)]
        self.record = record
        return [Create(path, data)]

    def plan_offsets(self, offsets: Mapping[Partition, int]) -> list[Write]:
        """Return the writes after which these offsets are committed."""
        writes: list[Write] = []
        for partition, offset in offsets.items():
            if self.offsets.get(partition) != offset:
                writes += self._put(OFFSETS, partition, b"%d" % offset, partition in self.offsets)
                self.offsets[partition] = offset
        return writes

    def plan_owners(self, owners: Mapping[Partition, str], session_timeout_ms: int) -> list[Write]:
        """Return the writes after which exactly these own partitions, and none is being started."""
        writes: list[Write] = []
        for partition in [partition for partition in self.owners if partition not in owners]:
            del self.owners[partition]
            writes.append(Delete(owner_path(self.group_id, *partition)))
        for partition, thread_id in owners.items():
            if self.owners.get(partition) != thread_id:
                writes += self._put(OWNERS, partition, thread_id.encode(), partition in self.owners)
                self.owners[partition] = thread_id
        return writes + self.plan_record(GroupRecord(session_timeout_ms))

    def _put(self, kind: str, partition: Partition, data: bytes, exists: bool) -> Iterable[Write]:
        path = _PATH_OF[kind](self.group_id, *partition)
        if exists:
            return [SetData(path, data)]
        top = f"{group_path(self.group_id)}/{kind}"
        parents = [parent for parent in (top, f"{top}/{partition.topic}") if parent not in self._parents]
        self._parents.update(parents)
        root = self.plan_record(self.record) if group_path(self.group_id) not in self._parents else []
        return [*root, *(Create(parent) for parent in parents), Create(path, data)]


def _record_of(node: Node) -> GroupRecord:
    try:
        return parse_group(node.data)
    except ValueError:
        return GroupRecord()
