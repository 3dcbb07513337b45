"""The laws of the rewrite, checked against what ZooKeeper has and what members consume.

Laws; a broken one raises `ViolationError`:

* ``one owner``: in one generation a partition belongs to one member.
* ``members only``: a member of an older generation consumes a partition that a newer one has begun only if the newer
  generation does not count it among its members: the coordinator has declared it dead, and no response has shown
  it that. These are the overlaps that the document allows ("The consumer does not stop fetching data during the
  co-ordinator failover"); `Invariants.overlaps` has them. With `stops_with_session` there must be none.
* ``one coordinator``: only the broker that has taken a shard over last writes for its groups.
* ``generations``: a group's generation rises with each assignment, and a member's generation is in ZooKeeper.
* ``offsets``: a committed offset never goes back, and nothing is committed that was not consumed.
* ``no gap``: no record is left out.
* ``join``: nothing is fetched when JoinGroup leaves.
* ``sessions``: a coordinator declares a member dead no earlier than a session timeout after it has accepted its last
  heartbeat, answered its JoinGroup, read the group, or begun a rebalance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kcoord_wire import messages as m
from kcoord_wire.assignors import TopicPartition
from kcoord_wire.central.rewrite.events import RewriteError
from kcoord_wire.central.rewrite.layout import SHARDS, GroupMetadata, parse_metadata
from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.protocol.key_partitions import partition_of
from kcoord_wire.zookeeper.layout import CONSUMERS
from kcoord_wire.zookeeper.requests import Create, SetData, Write

if TYPE_CHECKING:
    from kcoord_wire.worlds.central.rewrite_world import MemberProcess

_NO_GROUP: Final = GroupMetadata(0)
_HEARD: Final = (RewriteError.NONE, RewriteError.REBALANCE_FAILED)  # answers to JoinGroup after which a session begins


class Fetching:
    """One assignment of a member, from `StartFetching` to `StopFetching`.

    :ivar process: the member's
    :ivar consumer_id: its id in that generation
    :ivar positions: the next offset to consume
    """

    __slots__ = ("consumer_id", "generation", "positions", "process")

    def __init__(self, process: MemberProcess, generation: int, positions: dict[TopicPartition, int]) -> None:
        self.process = process
        self.consumer_id = process.machine.consumer_id
        self.generation = generation
        self.positions = positions

    def __str__(self) -> str:
        return f"{self.process.name} of generation {self.generation}"


class Sessions:
    """The law ``sessions``, as far as one process of a broker goes.

    :param shard: of the group
    """

    def __init__(self, clock: VirtualClock, shard: int) -> None:
        self._clock = clock
        self._shard = shard
        self._since = clock.time_ms  # when all members' timers began anew
        self._heard: dict[str, int] = {}
        self._asked: dict[int, str] = {}  # by connection

    def asked(self, connection: int, message: object) -> None:
        """A request has come."""
        if isinstance(message, m.HeartbeatRequest):
            self._asked[connection] = message.member_id
        elif isinstance(message, m.rewrite.RewriteJoinGroupRequest):
            self._asked[connection] = message.consumer_id

    def answered(self, connection: int, message: Any) -> None:
        """A request is answered."""
        consumer_id = self._asked.pop(connection, "")
        if isinstance(message, m.HeartbeatResponse) and not message.error_code:
            self._heard[consumer_id] = self._clock.time_ms
        elif isinstance(message, m.rewrite.RewriteJoinGroupResponse) and message.error_code in _HEARD:
            self._heard[message.consumer_id or consumer_id] = self._clock.time_ms

    def noted(self, what: str, facts: Mapping[str, Any]) -> None:
        """The coordinator has noted something.

        :raises ViolationError: it has declared a member dead too early
        """
        if what == "rebalance started" or (what == "coordination started" and facts["shard"] == self._shard):
            self._since = self._clock.time_ms
        elif what == "consumer failed":
            silent_ms = self._clock.time_ms - max(self._since, self._heard.get(facts["consumer"], 0))
            if silent_ms < facts["session_timeout_ms"]:
                raise ViolationError("sessions", f"{facts} is declared dead after {silent_ms} ms")


class Overlap(NamedTuple):
    """A partition that was consumed by two members at once.

    :ivar at: when that was first seen, ms since the start
    :ivar older: the one that has been declared dead
    """

    at: int
    partition: TopicPartition
    older: str
    newer: str


class Invariants:
    """The state that the laws speak of.

    :param shards: number of shards of the cluster
    :param allows_overlaps: whether members declared dead may consume until a response shows them that
    :ivar records: the groups' metadata in ZooKeeper
    :ivar committed: the offsets there, by group and partition
    :ivar overlaps: see `Overlap`; one for each pair of assignments and partition
    """

    def __init__(self, clock: VirtualClock, group: str, shards: int, *, allows_overlaps: bool) -> None:
        self.record = _NO_GROUP
        self.committed: dict[TopicPartition, int] = {}
        self.overlaps: list[Overlap] = []
        self._clock = clock
        self._group = group
        self._shard = partition_of(group, shards)
        self._allows_overlaps = allows_overlaps
        self._writer = 0  # the session that has taken the group's shard over
        self._owners: dict[tuple[int, TopicPartition], str] = {}
        self._running: dict[TopicPartition, list[Fetching]] = {}
        self._consumed: dict[TopicPartition, int] = {}
        self._seen: set[tuple[Fetching, Fetching, TopicPartition]] = set()

    # ---- ZooKeeper

    def written(self, writes: Sequence[Write], session_id: int) -> None:
        """ZooKeeper has executed the writes of one request."""
        shard, offsets = f"{SHARDS}/{self._shard}", f"{CONSUMERS}/{self._group}/offsets/"
        for write in writes:
            if not isinstance(write, Create | SetData):
                continue
            if write.path == shard and isinstance(write, SetData):
                self._writer = session_id
            elif write.path == f"{shard}/{self._group}":
                self._expect_writer(write.path, session_id)
                self._has_record(parse_metadata(write.data))
            elif write.path.startswith(offsets) and write.path.count("/") == offsets.count("/") + 1:
                self._expect_writer(write.path, session_id)
                topic, partition = write.path.removeprefix(offsets).split("/")
                self._has_offset(TopicPartition(topic, int(partition)), int(write.data))

    def _expect_writer(self, path: str, session_id: int) -> None:
        if session_id != self._writer:
            raise ViolationError(
                "one coordinator", f"session {session_id:x} writes {path}, which is {self._writer:x}'s"
            )

    def _has_record(self, record: GroupMetadata) -> None:
        before = self.record.generation
        if record.generation < before + bool(record.consumers):
            raise ViolationError("generations", f"generation {record.generation} after {before}")
        self.record = record

    def _has_offset(self, partition: TopicPartition, offset: int) -> None:
        before = self.committed.get(partition, 0)
        if offset < before:
            raise ViolationError("offsets", f"{offset} is committed after {before} for {partition}")
        if offset > self._consumed.get(partition, 0):
            raise ViolationError("offsets", f"{offset} of {partition} is committed and was not consumed")
        self.committed[partition] = offset

    # ---- members

    def joins(self, process: MemberProcess) -> None:
        """A JoinGroup leaves a process."""
        if process.fetching is not None:
            raise ViolationError("join", f"{process.fetching} joins while it fetches")

    def started(self, fetching: Fetching) -> None:
        """A member begins to fetch."""
        if fetching.generation > self.record.generation:
            raise ViolationError("generations", f"{fetching} begins, ZooKeeper has {self.record.generation}")
        for partition in fetching.positions:
            owner = self._owners.setdefault((fetching.generation, partition), fetching.consumer_id)
            if owner != fetching.consumer_id:
                raise ViolationError("one owner", f"{fetching} begins with {partition}, which is {owner}'s")
            self._running.setdefault(partition, []).append(fetching)

    def stopped(self, fetching: Fetching) -> None:
        """A member has stopped fetching, or its process was killed."""
        for partition in fetching.positions:
            self._running[partition].remove(fetching)

    def consumed(self, fetching: Fetching, partition: TopicPartition, first: int, end: int) -> None:
        """A member has consumed the records from `first` to before `end`."""
        known = self._consumed.get(partition, 0)
        if first > known:
            raise ViolationError(
                "no gap", f"{fetching} begins at {first} of {partition}, the last one ended at {known}"
            )
        self._consumed[partition] = max(known, end)
        for other in self._running[partition]:
            if other.generation > fetching.generation:
                self._overlaps(fetching, other, partition)

    def _overlaps(self, older: Fetching, newer: Fetching, partition: TopicPartition) -> None:
        what = f"{older} consumes {partition} beside {newer}"
        if older.consumer_id in self.record.consumers:
            raise ViolationError("members only", what)
        if not self._allows_overlaps:
            raise ViolationError("no overlap", what)
        if (older, newer, partition) not in self._seen:
            self._seen.add((older, newer, partition))
            self.overlaps.append(Overlap(self._clock.now, partition, str(older), str(newer)))
            self._clock.record(older.process.name, "overlaps", f"{partition} with {newer}")
