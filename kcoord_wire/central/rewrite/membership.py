"""Who is in the groups: JoinGroup, Heartbeat, session timeouts, the rebalance of a group, and its committed offsets.

A rebalance: the group waits for the JoinGroup of every member (PREPARING); when it has them and the partition counts of
its topics, it writes the new generation to ZooKeeper (COMPLETING), and answers all of them (STABLE). Offsets are kept
in ZooKeeper where the old consumers have them.

Laws:

* The generation goes up when all members have joined, and ZooKeeper has it before any member does. (The code that stood
  in Kafka's trunk until May 2015 increments it when the rebalance is prepared.)
* From the start of a rebalance a member has its session timeout to send JoinGroup, and its heartbeats are answered
  ILLEGAL_GENERATION without extending that. If the time ends, the member is dead, the JoinGroups received so far are
  answered REBALANCE_FAILED, and their senders have their session timeout to join again.
* A member whose JoinGroup is parked has no timer. It restarts with the response, whether that could be sent or not.
* A member that was never sent its consumer id cannot come back, so it is forgotten with its failed or closed JoinGroup.
* JoinGroup of a member of a stable group that changes nothing is answered with the current generation, and counts as a
  heartbeat (as in trunk, 2015): its sender has lost the response.
* A commit is answered after ZooKeeper has it. Its last check and its write are one step, and the write is guarded, so
  an offset of a generation is never written after the next generation.
* A commit of another generation than the group's is refused; a higher one is logged as a bug of the consumer.
* While the new generation is being written all members have joined, so none may commit (point 3).
* The text that OffsetCommit has beside an offset is not kept: the old layout has no place for it.

Source: "Kafka 0.9 Consumer Rewrite Design": "Partition changes for subscribed topics", "Offset commits during
rebalance", "Heartbeats during rebalance".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final

from kcoord_wire import messages as m
from kcoord_wire.central.rewrite.context import Outbox
from kcoord_wire.central.rewrite.events import RewriteError, committed, joined, refusal
from kcoord_wire.central.rewrite.group import Group, GroupMember, GroupState, Shard, Topics, is_fenced_off
from kcoord_wire.central.rewrite.layout import LARGEST_GROUP, ConsumerRecord, metadata_path
from kcoord_wire.kernel.procedures import Procedure, Wait
from kcoord_wire.zookeeper.layout import CONSUMERS, offset_path
from kcoord_wire.zookeeper.requests import Create, Node, Outcome, Read, RegistryError, SetData, create_missing


class Membership:
    """The members of the groups that this broker coordinates.

    :param fenced: called with a shard when a write for one of its groups was refused
    """

    def __init__(self, outbox: Outbox, fenced: Callable[[Shard], None]) -> None:
        self.topics = Topics(outbox, self._topics_changed)
        self._outbox = outbox
        self._fenced = fenced
        self._shards: dict[Group, Shard] = {}
        self._parked: dict[int, Group] = {}
        self._last_id = 0

    # ---- groups come and go

    def loaded(self, shard: Shard) -> None:
        """Begin with the groups of a shard: their members have a session timeout from now to send a heartbeat."""
        for group in shard.groups.values():
            self._shards[group] = shard
            for member in group.members.values():
                self._restart_timer(group, member)
            self.topics.subscribe(group, group.topics)

    def lost(self, shard: Shard) -> None:
        """End with the groups of a shard; parked requests are refused."""
        for group in shard.groups.values():
            if group.procedure is not None:
                self._outbox.procedures.cancel(group.procedure)
            waiting = [member.connection for member in group.members.values() if member.has_joined]
            for connection in (*waiting, *group.late):
                self._outbox.refuse(connection, RewriteError.NOT_COORDINATOR_FOR_GROUP)
                if connection is not None:
                    self._parked.pop(connection, None)
            for member in group.members.values():
                self._stop_timer(member)
            self.topics.subscribe(group, ())
            self._shards.pop(group, None)
        shard.groups.clear()

    def disconnected(self, connection: int) -> None:
        """Take in that a connection has ended."""
        group = self._parked.pop(connection, None)
        if group is None:
            return
        group.late.pop(connection, None)
        for member in [member for member in group.members.values() if member.connection == connection]:
            member.connection = None
            if member.is_new and group.state is GroupState.PREPARING:
                self._remove(group, member)
                self._try_to_complete(group)

    # ---- requests

    def heartbeat(self, shard: Shard, connection: int, request: m.HeartbeatRequest) -> None:
        """Answer a heartbeat."""
        group = shard.groups.get(request.group_id)
        member = None if group is None else group.members.get(request.member_id)
        if group is None or member is None:
            self._outbox.refuse(connection, RewriteError.UNKNOWN_CONSUMER_ID)
            return
        if not member.has_joined:
            member.connection = connection
        if group.state is not GroupState.STABLE or request.generation_id != group.generation:
            self._outbox.refuse(connection, RewriteError.ILLEGAL_GENERATION)
            return
        self._restart_timer(group, member)
        self._outbox.answer(connection, m.HeartbeatResponse())

    def join(self, shard: Shard, connection: int, request: m.rewrite.RewriteJoinGroupRequest) -> None:
        """Park a JoinGroup, whose fields are valid, until its group has a new generation; or answer it."""
        group = shard.groups.get(request.group_id)
        if group is None and not request.consumer_id:
            group = shard.groups[request.group_id] = Group(request.group_id, shard.number)
            self._shards[group] = shard
        if group is None or (request.consumer_id and request.consumer_id not in group.members):
            self._outbox.refuse(connection, RewriteError.UNKNOWN_CONSUMER_ID)
            return
        if group.state is GroupState.COMPLETING:
            group.late[connection] = request
            self._parked[connection] = group
            return
        member = group.members.get(request.consumer_id)
        wanted = ConsumerRecord(request.session_timeout_ms, tuple(sorted(set(request.topics))))
        is_same = member is not None and (request.strategy, wanted) == (group.strategy, member.record)
        if member is not None and is_same and group.state is GroupState.STABLE:
            member.connection = connection
            self._answer(group, member)
        elif (misfit := _misfit(group, member, wanted, request.strategy)) is not None:
            self._outbox.refuse(connection, *misfit)
        else:
            group.strategy = request.strategy
            self._park(group, member or self._new_member(group, shard), connection, wanted)

    # ---- a rebalance

    def _new_member(self, group: Group, shard: Shard) -> GroupMember:
        """Return a member with an id that no other takeover of the shard gives."""
        self._last_id += 1
        member = GroupMember(f"{group.name}-{shard.epoch}-{self._last_id}", (), 0)
        group.add(member)
        return member

    def _park(self, group: Group, member: GroupMember, connection: int, wanted: ConsumerRecord) -> None:
        if member.has_joined and member.connection is not None:
            self._parked.pop(member.connection, None)
            self._outbox.close(member.connection)  # its client has given that request up
        self._stop_timer(member)
        group.subscribe(member, wanted)
        group.set_joined(member, True)
        member.connection = connection
        self._parked[connection] = group
        if group.state is not GroupState.PREPARING:
            self._prepare(group, "JoinGroup", consumer=member.consumer_id)
        self.topics.subscribe(group, group.topics)
        self._try_to_complete(group)

    def _prepare(self, group: Group, reason: str, consumer: str = "") -> None:
        """Wait for the JoinGroup of every member."""
        group.move(GroupState.PREPARING)
        facts = {"generation": group.generation, "reason": reason} | ({"consumer": consumer} if consumer else {})
        self._outbox.note("rebalance started", logging.INFO, group=group.name, **facts)
        for member in group.members.values():
            if not member.has_joined:
                self._restart_timer(group, member)

    def _try_to_complete(self, group: Group) -> None:
        """Write the new generation if every member has joined and the partition counts are known."""
        if group.state is not GroupState.PREPARING or not group.have_all_joined:
            return
        counts = self.topics.known(group)
        if counts is not None:
            group.move(GroupState.COMPLETING)
            group.procedure = self._outbox.start(self._complete(group, self._shards[group], counts))

    def _complete(self, group: Group, shard: Shard, counts: dict[str, int]) -> Procedure:
        record = group.record(counts)
        path, data = metadata_path(shard.number, group.name), record.to_bytes()
        write = Create(path, data) if group.version is None else SetData(path, data, group.version)
        try:
            yield shard.guarded(write)
        except RegistryError as error:
            if not is_fenced_off(error):
                raise
            group.procedure = None
            self._fenced(shard)
            return
        group.procedure = None
        group.version = 0 if group.version is None else group.version + 1
        group.begin(record)
        self._begin_generation(group)

    def _begin_generation(self, group: Group) -> None:
        group.move(GroupState.STABLE if group.members else GroupState.EMPTY)
        facts = {"generation": group.generation, "members": len(group.members)}
        self._outbox.note("rebalance completed", group=group.name, **facts)
        for member in group.members.values():
            self._answer(group, member)
        late, group.late = group.late, {}
        shard = self._shards[group]
        for connection, request in late.items():
            self._parked.pop(connection, None)
            self.join(shard, connection, request)
        self._topics_changed(group)

    def _answer(self, group: Group, member: GroupMember) -> None:
        """Send a member its place in the generation, and wait for its heartbeats."""
        self._unpark(group, member)
        member.is_new = False
        self._restart_timer(group, member)
        partitions = group.assignment()[member.consumer_id]
        self._outbox.answer(member.connection, joined(group.generation, member.consumer_id, partitions))

    def _fail(self, group: Group, dead: GroupMember) -> None:
        """End an attempt to rebalance: the members that have joined have to join again."""
        waiting = [member for member in group.members.values() if member.has_joined]
        facts = {"generation": group.generation, "dead": dead.consumer_id, "joined": len(waiting)}
        self._outbox.note("rebalance failed", logging.WARNING, group=group.name, **facts)
        for member in waiting:
            self._unpark(group, member)
            self._outbox.refuse(member.connection, RewriteError.REBALANCE_FAILED)
            if member.is_new:
                self._remove(group, member)
            else:
                self._restart_timer(group, member)

    # ---- failures and changes

    def _expired(self, group: Group, member: GroupMember) -> None:
        """Mark a member dead: its session timeout has passed without a heartbeat, or without its JoinGroup."""
        member.timer = None
        self._remove(group, member)
        facts = {"consumer": member.consumer_id, "session_timeout_ms": member.session_timeout_ms}
        self._outbox.note("consumer failed", logging.WARNING, group=group.name, **facts)
        if group.state is GroupState.STABLE:
            self._prepare(group, "session timeout", consumer=member.consumer_id)
        else:
            self._fail(group, member)
        self._try_to_complete(group)

    def _topics_changed(self, group: Group) -> None:
        """Compare the partition counts with those of the assignment."""
        counts = self.topics.known(group)
        if group.state is GroupState.STABLE and counts is not None and counts != group.partitions:
            connections = [member.connection for member in group.members.values()]
            self._prepare(group, "partition change")
            for connection in connections:
                if connection is not None:
                    self._outbox.close(connection)
                    self.disconnected(connection)  # another group's JoinGroup may be parked on it
        self._try_to_complete(group)

    def _remove(self, group: Group, member: GroupMember) -> None:
        self._stop_timer(member)
        self._unpark(group, member)
        group.remove(member)
        self.topics.subscribe(group, group.topics)

    def _unpark(self, group: Group, member: GroupMember) -> None:
        group.set_joined(member, False)
        if member.connection is not None:
            self._parked.pop(member.connection, None)

    # ---- session timeouts

    def _restart_timer(self, group: Group, member: GroupMember) -> None:
        when = self._outbox.now + member.session_timeout_ms
        if member.timer is not None and member.timer.live:
            member.timer = self._outbox.timers.move(member.timer, when)
        else:
            member.timer = self._outbox.timers.start(when, partial(self._expired, group, member))

    def _stop_timer(self, member: GroupMember) -> None:
        if member.timer is not None:
            member.timer.cancel()
            member.timer = None


def _misfit(
    group: Group, member: GroupMember | None, wanted: ConsumerRecord, strategy: str
) -> tuple[RewriteError, str] | None:
    """Return why a subscription does not go with the group's other members; None if it does."""
    if len(group.members) > (member is not None) and strategy != group.strategy:
        return RewriteError.INCONSISTENT_STRATEGY, f"strategy {strategy}, the group's is {group.strategy}"
    others = group.size - (0 if member is None else member.size)
    if others + wanted.size("" if member is None else member.consumer_id) > LARGEST_GROUP:
        why = f"{len(group.members)} members with {group.size} bytes of subscriptions"
        return RewriteError.GROUP_TOO_LARGE, why
    return None


WRITES: Final = 500
"""Of one `Multi`: ZooKeeper takes a request of 1 MB at most, and a path is shorter than 600 bytes."""


class Offsets:
    """The offsets of the groups that this broker coordinates.

    :param fenced: called with a shard when a write for one of its groups was refused
    """

    def __init__(self, outbox: Outbox, fenced: Callable[[Shard], None]) -> None:
        self._outbox = outbox
        self._fenced = fenced

    def commit(self, shard: Shard, connection: int, request: m.OffsetCommitRequest) -> None:
        """Write the offsets of a request, whose names and numbers are valid, and answer it; or refuse it."""
        group = shard.groups.get(request.group_id)
        if group is None or request.member_id not in group.members:
            self._outbox.refuse(connection, RewriteError.UNKNOWN_CONSUMER_ID)
        elif request.generation_id_or_member_epoch > group.generation:
            why = f"generation {request.generation_id_or_member_epoch}, the group's is {group.generation}"
            self._outbox.refuse(connection, RewriteError.ILLEGAL_GENERATION, f"a bug of the consumer: {why}")
        elif not _is_current(group, request):
            self._outbox.refuse(connection, RewriteError.ILLEGAL_GENERATION)
        else:
            self._outbox.start(self._write(shard, group, connection, request))

    def fetch(self, connection: int, request: m.OffsetFetchRequest) -> None:
        """Answer with the committed offsets, -1 where there is none."""
        self._outbox.start(self._read(connection, request))

    def _write(self, shard: Shard, group: Group, connection: int, request: m.OffsetCommitRequest) -> Procedure:
        offsets = {
            offset_path(group.name, topic.name, str(partition.partition_index)): partition.committed_offset
            for topic in request.topics
            for partition in topic.partitions
        }
        paths = list(offsets)
        for part in (paths[at : at + WRITES] for at in range(0, len(paths), WRITES)):
            missing: set[str] = set()
            is_written = False
            while not is_written:
                if shard.groups.get(group.name) is not group or not _is_current(group, request):
                    self._outbox.refuse(connection, RewriteError.ILLEGAL_GENERATION)
                    return
                try:
                    yield shard.guarded(*(_write(path, offsets[path], path in missing) for path in part))
                    is_written = True
                except RegistryError as error:
                    if error.reply.failed <= 0 and is_fenced_off(error):
                        self._fenced(shard)
                        self._outbox.refuse(connection, RewriteError.NOT_COORDINATOR_FOR_GROUP)
                        return
                    if error.outcome not in (Outcome.NO_NODE, Outcome.NODE_EXISTS):
                        raise
                    missing = yield from _missing(group.name, part)
        self._outbox.answer(connection, committed(request, RewriteError.NONE))

    def _read(self, connection: int, request: m.OffsetFetchRequest) -> Procedure:
        response = refusal(request, RewriteError.NONE)
        assert isinstance(response, m.OffsetFetchResponse)
        wanted = [(topic.name, partition) for topic in response.topics for partition in topic.partitions]
        paths = [offset_path(request.group_id, topic, str(partition.partition_index)) for topic, partition in wanted]
        nodes: list[Node | None] = yield [Read(path) for path in paths]
        for path, node, (_, partition) in zip(paths, nodes, wanted, strict=True):
            if node is not None:
                try:
                    partition.committed_offset = int(node.data)
                except ValueError:
                    self._outbox.note("offset not readable", logging.ERROR, path=path, data=node.data[:100])
        self._outbox.answer(connection, response)


def _is_current(group: Group, request: m.OffsetCommitRequest) -> bool:
    return group.state is not GroupState.COMPLETING and request.generation_id_or_member_epoch == group.generation


def _write(path: str, offset: int, is_missing: bool) -> Create | SetData:
    return Create(path, b"%d" % offset) if is_missing else SetData(path, b"%d" % offset)


def _missing(group: str, paths: Sequence[str]) -> Generator[Wait, Any, set[str]]:
    """Return which of the nodes do not exist, after their parents have been created."""
    nodes: list[Node | None] = yield [Read(path) for path in paths]
    missing = {path for path, node in zip(paths, nodes, strict=True) if node is None}
    topics = sorted({path.rpartition("/")[0] for path in missing})
    yield from create_missing(f"{CONSUMERS}/{group}", f"{CONSUMERS}/{group}/offsets", *topics)
    return missing
