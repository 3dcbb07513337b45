"""What waits for consumers: requests for an answer (`Purgatory`), the next ping, and offsets for their commit.

A purgatory holds requests that wait for an answer, or for the end of its time (section 5, field 8). The scheduler of
pings (section 5, ``scheduler.run``; section 8; ``handlePingResponse`` of section 11) has the machine's `Timers` for its
priority queue. The committer writes consumed offsets at an interval (section 5, field 7; section 9, step 4.3).

Laws:

* A consumer answers the requests of one kind in their order, on one connection. So an answer belongs to the oldest
  request that has none, also if its time is over: a late answer is never taken for that of a later request, with which
  a consumer that has started again in between would be taken for a stopped one.
* `expired` is called once for each request whose time is over.
* A consumer is pinged every third of its session timeout, and each ping has two thirds for its answer. A slow machine
  skips pings instead of sending several at once.
* More than ``max_ping_retries`` pings in a row without an answer in time: `failed` is called.
* Only offsets that have changed are written, guarded by the epoch.
* After `commit` has returned, the offsets that the group had when it was called are in ZooKeeper.
* An offset is recorded only from the consumer that owns the partition.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from kcoord_wire.central.draft.context import MOST_WRITES, Context
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.groups import Group, RegisteredConsumer
from kcoord_wire.kernel.procedures import Procedure, Sleep
from kcoord_wire.kernel.timers import Timer, Timers
from kcoord_wire.messages.central import PingRequest, PingRequestFence
from kcoord_wire.zookeeper.requests import RegistryError, Write


class Answer(enum.Enum):
    """How an answer fits to what was asked."""

    IN_TIME = "in time"
    LATE = "late"
    UNASKED = "unasked"


class Purgatory:
    """The watchers of one kind of request.

    :param expired: called with the consumer whose time to answer is over
    """

    def __init__(self, timers: Timers, expired: Callable[[RegisteredConsumer], None]) -> None:
        self._timers = timers
        self._expired = expired
        self._watchers: dict[RegisteredConsumer, deque[Timer]] = {}

    def __len__(self) -> int:
        """Return the number of requests without an answer."""
        return sum(map(len, self._watchers.values()))

    def watch(self, member: RegisteredConsumer, until: int) -> None:
        """A request was sent; its answer has to come before `until` (ms)."""
        timer = self._timers.start(until, partial(self._expired, member))
        self._watchers.setdefault(member, deque()).append(timer)

    def answered(self, member: RegisteredConsumer) -> Answer:
        """An answer has come: clear the watcher of its request."""
        watchers = self._watchers.get(member)
        if not watchers:
            return Answer.UNASKED
        timer = watchers.popleft()
        in_time = timer.live
        timer.cancel()
        return Answer.IN_TIME if in_time else Answer.LATE

    def give_up(self, member: RegisteredConsumer) -> None:
        """The requests so far are void: their answers are late, whenever they come."""
        for timer in self._watchers.get(member, ()):
            timer.cancel()

    def forget(self, member: RegisteredConsumer) -> None:
        """The consumer is gone: clear its watchers."""
        for timer in self._watchers.pop(member, ()):
            timer.cancel()


class PingSchedule:
    """The pings of all consumers.

    :param failed: called with a consumer that has failed, and why
    :ivar purgatory: of the pings that have no answer
    """

    def __init__(self, context: Context, failed: Callable[[RegisteredConsumer, str], None]) -> None:
        self._context = context
        self._failed = failed
        self.purgatory = Purgatory(context.timers, self._ping_failed)

    def add(self, member: RegisteredConsumer) -> None:
        """handleAddedConsumer, step 1."""
        self._schedule(member, self._context.now + member.session_timeout_ms // 3)

    def remove(self, member: RegisteredConsumer) -> None:
        """handleConsumerFailure, step 1."""
        if member.ping_timer is not None:
            member.ping_timer.cancel()
        self.purgatory.forget(member)

    def answered(self, member: RegisteredConsumer) -> Answer:
        """handlePingResponse, step 2."""
        answer = self.purgatory.answered(member)
        if answer is Answer.IN_TIME:
            member.failed_pings = 0
        return answer

    def _schedule(self, member: RegisteredConsumer, when: int) -> None:
        member.ping_timer = self._context.timers.start(when, partial(self._ping, member, when))

    def _ping(self, member: RegisteredConsumer, scheduled: int) -> None:
        """scheduler.run, steps 2 and 3."""
        context, timeout_ms = self._context, member.session_timeout_ms
        message = PingRequest(
            consumer_id=member.consumer_id,
            num_retries=member.failed_pings,
            fence=context.fence(PingRequestFence, member, member.group.generation),
        )
        context.send(member, message)
        self.purgatory.watch(member, context.now + timeout_ms * 2 // 3)
        following = scheduled + timeout_ms // 3
        self._schedule(member, following if following > context.now else context.now + timeout_ms // 3)

    def _ping_failed(self, member: RegisteredConsumer) -> None:
        """Section 8, points 3 and 4."""
        member.failed_pings += 1
        if member.failed_pings > self._context.settings.max_ping_retries:
            self._failed(member, f"{member.failed_pings} pings without an answer in time")


class Committer:
    """Records and commits the offsets of all groups.

    :param unsure: called with a group whose nodes have to be read again, after a write that failed
    """

    def __init__(self, context: Context, unsure: Callable[[Group], None]) -> None:
        self._context = context
        self._unsure = unsure
        self._changed: dict[Group, set[Partition]] = {}

    @property
    def waiting(self) -> int:
        """Number of offsets that are not committed."""
        return sum(map(len, self._changed.values()))

    def is_behind(self, group: Group) -> bool:
        """Whether offsets of the group are going to be committed."""
        return group.store.is_loaded and group in self._changed

    def forget(self, group: Group) -> None:
        """The group is dropped."""
        self._changed.pop(group, None)

    def record(self, member: RegisteredConsumer, positions: Mapping[Partition, int]) -> list[Partition]:
        """handlePingResponse, step 1: take a consumer's positions; return the partitions that are not its own."""
        offsets, foreign = member.group.offsets, []
        for partition, offset in positions.items():
            if partition not in member.owned or offset < 0:
                foreign.append(partition)
            elif offsets.get(partition) != offset:
                offsets[partition] = offset
                self._changed.setdefault(member.group, set()).add(partition)
        return foreign

    def run(self) -> Procedure:
        """Commit what has changed, at the interval."""
        while True:
            yield Sleep(self._context.settings.offset_commit_interval_ms)
            waiting = list(self._changed)
            while waiting := [group for group in waiting if group.store.is_loaded]:
                batch = _fill(waiting, self._changed)
                try:
                    yield from self._commit(batch, ())
                except RegistryError:
                    for group in batch:
                        self._unsure(group)

    def load(self, group: Group) -> Procedure:
        """Read the group's nodes, and take over the offsets of which nothing newer is known; a part of others."""
        yield from group.store.load()
        for partition, offset in group.store.offsets.items():
            if offset >= 0:
                group.offsets.setdefault(partition, offset)
        if group.offsets.items() - group.store.offsets.items():
            self._changed.setdefault(group, set()).update(group.offsets)

    def commit(self, group: Group, first: Sequence[Write] = ()) -> Procedure:
        """Execute `first`, and write the group's offsets; a part of other procedures.

        :raises RegistryError: it failed; the offsets stay among the changed ones
        """
        yield from self._commit([group], first)

    def _commit(self, groups: Sequence[Group], first: Sequence[Write]) -> Procedure:
        changed = {group: self._changed.pop(group, set()) for group in groups}
        writes = list(first)
        for group, partitions in changed.items():
            writes += group.store.plan_offsets({partition: group.offsets[partition] for partition in partitions})
        try:
            yield from self._context.write(groups, writes)
        except RegistryError:
            for group, partitions in changed.items():
                self._changed.setdefault(group, set()).update(partitions)
            raise


def _fill(waiting: list[Group], changed: Mapping[Group, set[Partition]]) -> list[Group]:
    """Take groups off the list, as many as a `Multi` has room for the offsets of, and at least one."""
    batch = [waiting.pop()]
    room = MOST_WRITES - len(changed.get(batch[0], ()))
    while waiting and len(changed.get(waiting[-1], ())) <= room:
        batch.append(waiting.pop())
        room -= len(changed.get(batch[-1], ()))
    return batch
