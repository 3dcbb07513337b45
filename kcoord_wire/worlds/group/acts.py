"""The actions of a group's script: start, stop and disturb members, the network, the coordinator and its disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final, Literal

from kcoord_wire import messages as m
from kcoord_wire.coordinator.fault_injection import Fault
from kcoord_wire.kernel.virtual.script import Action
from kcoord_wire.worlds.group.cluster import Cluster
from kcoord_wire.worlds.group.members import MemberOptions, MemberProcess

# ---- members


@dataclass(frozen=True, kw_only=True, repr=False)
class Join(Action[Cluster]):
    """A consumer starts. If one of that name runs, it is killed first.

    :ivar name: the process's name
    :ivar options: how the consumer is set up
    """

    name: str
    options: MemberOptions = field(default_factory=MemberOptions)

    def play(self, world: Cluster) -> None:
        """Start it."""
        if self.name in world.processes and world.processes[self.name].is_working:
            world.crash(self.name)
        world.member(self.name, self.options)


@dataclass(frozen=True, kw_only=True, repr=False)
class MemberAction(Action[Cluster]):
    """Something that happens to one consumer, if it runs.

    :ivar name: the process's name
    """

    name: str

    def play(self, world: Cluster) -> None:
        """Let it happen if the consumer is working."""
        process = world.processes.get(self.name)
        if process is not None and process.is_working:
            self.act(world)

    def act(self, world: Cluster) -> None:
        """Let it happen."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True, repr=False)
class LeaveGroup(MemberAction):
    """A consumer is closed."""

    def act(self, world: Cluster) -> None:
        """Close it."""
        world.leave(self.name)


@dataclass(frozen=True, kw_only=True, repr=False)
class Crash(MemberAction):
    """A consumer's process is killed."""

    def act(self, world: Cluster) -> None:
        """Kill it."""
        world.crash(self.name)


@dataclass(frozen=True, kw_only=True, repr=False)
class Pause(MemberAction):
    """A consumer's process stands still: a long garbage collection, a stopped virtual machine.

    :ivar ms: for how long
    """

    ms: int

    def act(self, world: Cluster) -> None:
        """Pause it."""
        world.pause(self.name, self.ms)


@dataclass(frozen=True, kw_only=True, repr=False)
class CutOff(MemberAction):
    """The network carries nothing between a consumer and the coordinator.

    :ivar ms: for how long
    """

    ms: int

    def act(self, world: Cluster) -> None:
        """Cut it off."""
        world.partition(self.name, self.ms)


@dataclass(frozen=True, kw_only=True, repr=False)
class Resubscribe(MemberAction):
    """A consumer subscribes to other topics.

    :ivar topics: all that it wants from now on
    """

    topics: tuple[str, ...]

    def act(self, world: Cluster) -> None:
        """Change the subscription."""
        world.subscribe(self.name, self.topics)


# ---- network and topics


@dataclass(frozen=True, kw_only=True, repr=False)
class Lose(Action[Cluster]):
    """The network loses messages.

    :ivar ms: for how long
    :ivar drop: probability that a message vanishes
    :ivar reset: probability that a message vanishes and its connection is reset
    """

    ms: int
    drop: float = 0.0
    reset: float = 0.0

    def play(self, world: Cluster) -> None:
        """Begin to lose messages."""
        world.lose(self.ms, drop=self.drop, reset=self.reset)


@dataclass(frozen=True, kw_only=True, repr=False)
class Meddle(Action[Cluster]):
    """From now on a fault is injected into requests or responses of an api; the fields are those of `Fault`."""

    api: str
    action: Literal["delay", "drop", "duplicate", "error", "disconnect"]
    on: Literal["request", "response"] = "request"
    count: int = 1
    every: int = 1
    delay_ms: int = 0
    error: str | None = None
    client_id: str | None = None

    def play(self, world: Cluster) -> None:
        """Add the fault to those in force."""
        world.meddle(Fault(**{item.name: getattr(self, item.name) for item in fields(self) if item.name != "at"}))


@dataclass(frozen=True, kw_only=True, repr=False)
class AddPartitions(Action[Cluster]):
    """A topic gets more partitions, or is created.

    :ivar topic: its name
    :ivar count: how many it gets
    """

    topic: str
    count: int

    def play(self, world: Cluster) -> None:
        """Add them."""
        world.add_partitions(self.topic, self.count)


# ---- the coordinator


@dataclass(frozen=True, kw_only=True, repr=False)
class CrashCoordinator(Action[Cluster]):
    """The coordinator loses power.

    :ivar down_ms: for how long connections are refused
    :ivar load_ms: for how long it answers COORDINATOR_LOAD_IN_PROGRESS after that
    :ivar writes: power is lost during the n-th disk operation from now; 0 for at once
    """

    down_ms: int = 1_000
    load_ms: int = 100
    writes: int = 0

    def play(self, world: Cluster) -> None:
        """Crash it."""
        world.crash_coordinator(self.down_ms, load_ms=self.load_ms, writes=self.writes)


@dataclass(frozen=True, kw_only=True, repr=False)
class MoveCoordinator(Action[Cluster]):
    """The other broker coordinates the groups from now on.

    :ivar load_ms: for how long it answers COORDINATOR_LOAD_IN_PROGRESS
    :ivar stops: whether the broker that did so until now stops
    """

    load_ms: int = 100
    stops: bool = False

    def play(self, world: Cluster) -> None:
        """Move it."""
        world.move_coordinator(load_ms=self.load_ms, stops=self.stops)


@dataclass(frozen=True, kw_only=True, repr=False)
class FailDisk(Action[Cluster]):
    """One operation of the coordinator's disk fails.

    :ivar repaired_after_ms: how long after that the coordinator reads its log again
    :ivar writes: how many operations succeed before that
    """

    repaired_after_ms: int = 1_000
    writes: int = 0

    def play(self, world: Cluster) -> None:
        """Let the disk fail."""
        world.fail_disk(self.repaired_after_ms, writes=self.writes)


# ---- requests of others


@dataclass(frozen=True, kw_only=True, repr=False)
class Stray(Action[Cluster]):
    """A request arrives that no running member sent: an administrator's, or one that a client sent long ago.

    :ivar kind: ``heartbeat``, ``sync`` or ``commit`` for the member `name`; ``leave`` (an administrator removes it);
        ``simple commit`` from outside the group; ``delete group``, ``delete offsets``, ``describe`` or ``list``
    :ivar name: the process whose group, member id and generation it carries
    :ivar ahead: added to the generation
    """

    kind: str
    name: str
    ahead: int = 0

    def play(self, world: Cluster) -> None:
        """Send the request past all faults; its answer is discarded."""
        process = world.processes.get(self.name)
        if process is not None and world.is_up:
            build = _STRAYS.get(self.kind)
            if build is None:
                raise ValueError(f"no stray request is called {self.kind!r}")
            world.send(*build(self, process, world))

    def _heartbeat(self, process: MemberProcess, _world: Cluster) -> tuple[Any, int]:
        return m.HeartbeatRequest(**self._identity(process)), 4

    def _sync(self, process: MemberProcess, _world: Cluster) -> tuple[Any, int]:
        return m.SyncGroupRequest(**self._identity(process)), 5

    def _identity(self, process: MemberProcess) -> dict[str, Any]:
        member = process.member
        return {
            "group_id": member.settings.group_id,
            "generation_id": member.generation_id + self.ahead,
            "member_id": member.member_id,
        }

    def _leave(self, process: MemberProcess, _world: Cluster) -> tuple[Any, int]:
        settings = process.member.settings
        if settings.group_instance_id is None:
            removed = m.LeaveGroupRequestMemberIdentity(member_id=process.member.member_id)
        else:
            removed = m.LeaveGroupRequestMemberIdentity(group_instance_id=settings.group_instance_id)
        return m.LeaveGroupRequest(group_id=settings.group_id, members=[removed]), 5

    def _simple_commit(self, process: MemberProcess, world: Cluster) -> tuple[m.OffsetCommitRequest, int]:
        partition = m.OffsetCommitRequestPartition(partition_index=0, committed_offset=world.fresh_offset())
        topic = m.OffsetCommitRequestTopic(name=min(world.topics), partitions=[partition])
        return m.OffsetCommitRequest(group_id=process.member.settings.group_id, topics=[topic]), 9

    def _commit(self, process: MemberProcess, world: Cluster) -> tuple[Any, int]:
        request, version = self._simple_commit(process, world)
        request.generation_id_or_member_epoch = process.member.generation_id + self.ahead
        request.member_id = process.member.member_id
        return request, version

    def _delete_group(self, process: MemberProcess, _world: Cluster) -> tuple[Any, int]:
        return m.DeleteGroupsRequest(groups_names=[process.member.settings.group_id]), 2

    def _delete_offsets(self, process: MemberProcess, world: Cluster) -> tuple[Any, int]:
        partitions = [m.OffsetDeleteRequestPartition(partition_index=0)]
        topic = m.OffsetDeleteRequestTopic(name=min(world.topics), partitions=partitions)
        return m.OffsetDeleteRequest(group_id=process.member.settings.group_id, topics=[topic]), 0

    def _describe(self, process: MemberProcess, _world: Cluster) -> tuple[Any, int]:
        return m.DescribeGroupsRequest(groups=[process.member.settings.group_id]), 5

    def _list(self, _process: MemberProcess, _world: Cluster) -> tuple[Any, int]:
        return m.ListGroupsRequest(), 5


_STRAYS: Final[Mapping[str, Callable[[Stray, MemberProcess, Cluster], tuple[Any, int]]]] = MappingProxyType(
    {
        "heartbeat": Stray._heartbeat,
        "sync": Stray._sync,
        "leave": Stray._leave,
        "commit": Stray._commit,
        "simple commit": Stray._simple_commit,
        "delete group": Stray._delete_group,
        "delete offsets": Stray._delete_offsets,
        "describe": Stray._describe,
        "list": Stray._list,
    }
)
