"""The procedure ``rebalance (group)`` of section 9, both ways in which consumers change partitions, and when it runs.

By StopFetcher and StartFetcher (sections 9 and 11), or by closed connections, the older passage of the draft (section
2, "Co-ordinator", steps 2, 5 and 6): there the coordinator closes the connections of the group's consumers. They notice
it, stop fetching and register again; the answers wait until all of them have, and hold their partitions. There is no
pool of handlers (section 5, field 5): a handler is a procedure and no thread, so each group has its own.

Laws:

* Partitions are given to consumers only after the consumers of the group have stopped, and after the offsets that are
  known then are in ZooKeeper.
* Before the first consumer gets partitions, ZooKeeper has a mark (`GroupRecord.is_starting`) that stays until the new
  owners are there: a coordinator that takes over in between knows that the owners are not the whole truth.
* After ``max_rebalance_retries`` retries the rebalance has failed. The consumers that did not answer the last one are
  taken for failed: else one that answers pings, but nothing else, would stop its group for ever.
* The retries end when the group has a new task: that begins at once, with the consumers and partitions of then. A
  consumer that answers none of them is taken for failed after as many attempts.
* A request of one attempt is never taken for answered by an answer to an earlier one (see `Purgatory`): when an attempt
  begins, the requests of the one before are given up.
* A registration that waits (`SocketRebalancer`) is answered when its partitions are decided, and never before the
  consumers whose connections were closed have registered again or were silent for their session timeout, after which
  they have stopped too. From its answer on a consumer is pinged; before it, its connection tells that it is gone.
* Epochs are not part of RegisterConsumerResponse, so consumers that get partitions with it are not fenced.
* A group is rebalanced once at a time, and consumers that do not answer delay no other group.
* The rebalance bit of a group is set while its task waits: further requests change nothing. It is cleared when the task
  begins, so what changes during a rebalance leads to another one.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from kcoord_wire.central.draft.context import Context, TopicWatches, assign, keep_owners, why_rebalance
from kcoord_wire.central.draft.events import LARGEST_MESSAGE, Partition
from kcoord_wire.central.draft.groups import (
    BACKING_OFF,
    Attempt,
    AttemptFailedError,
    Group,
    RegisteredConsumer,
    consumer_of,
)
from kcoord_wire.central.draft.purgatory import Answer, Committer, PingSchedule, Purgatory
from kcoord_wire.kernel.procedures import Latch, Latched, Procedure
from kcoord_wire.messages.central import (
    RegisterConsumerResponse,
    RegisterConsumerResponseOwnership,
    RegisterConsumerResponsePartition,
    StartFetcherRequest,
    StartFetcherRequestBroker,
    StartFetcherRequestFence,
    StartFetcherRequestOwnership,
    StartFetcherRequestPartition,
    StopFetcherRequest,
    StopFetcherRequestFence,
)
from kcoord_wire.zookeeper.layout import GroupRecord
from kcoord_wire.zookeeper.requests import RegistryError

OwnershipT = TypeVar("OwnershipT")

LATEST: Final = -1  # OffsetRequest.LatestTime of Kafka 0.7: the consumer's fetcher finds the offset
EARLIEST: Final = -2
MOST_ENTRIES: Final = 32_767  # of a list in a message
_ENTRY_BYTES: Final = 12  # of a partition besides its names: their lengths, int16, and the offset, int64
_BESIDE_OWNERSHIP: Final = 1 << 20  # consumer id, brokers, and what threads have besides their ids

Owned: TypeAlias = Mapping[str, Sequence[Partition]]
"""The partitions of each thread of a consumer."""
Stopping: TypeAlias = Generator[Any, Any, list[RegisteredConsumer]]
"""A procedure that returns the consumers that have stopped."""


def start_offset(member: RegisteredConsumer, partition: Partition) -> int:
    """Return the offset at which a consumer begins: the recorded one, or what its ``auto_offset_reset`` says."""
    known = member.group.offsets.get(partition)
    if known is not None:
        return known
    return LATEST if member.auto_offset_reset == "largest" else EARLIEST


def _ownership(
    thread: Callable[..., OwnershipT], part: Callable[..., Any], member: RegisteredConsumer, threads: Owned
) -> list[OwnershipT]:
    """Return a consumer's threads as entries of a message, each partition with the offset to begin at."""
    return [
        thread(
            consumer_thread_id=thread_id,
            assigned_parts=[
                part(topic=each.topic, partition=each.name, offset=start_offset(member, each)) for each in partitions
            ],
        )
        for thread_id, partitions in threads.items()
    ]


class Rebalancer(ABC):
    """Rebalances groups.

    :param watches: the topics
    :ivar pings: of all consumers
    """

    def __init__(
        self,
        context: Context,
        committer: Committer,
        pings: PingSchedule,
        watches: TopicWatches,
    ) -> None:
        self.context = context
        self.pings = pings
        self._committer = committer
        self._watches = watches

    @abstractmethod
    def added(self, member: RegisteredConsumer) -> None:
        """A consumer has registered: answer it, now or later, and ping it from then on."""

    @abstractmethod
    def stop(self, group: Group, attempt: Attempt) -> Stopping:
        """Let the consumers stop (4.1, 4.2), and return those that take part.

        :raises AttemptFailedError: some have not
        """

    @abstractmethod
    def start(self, attempt: Attempt, owned: Mapping[RegisteredConsumer, Owned]) -> Procedure:
        """Let the consumers start with these partitions (4.4, 4.5).

        :raises AttemptFailedError: some have not
        """

    @abstractmethod
    def keep(self, group: Group) -> None:
        """No rebalance is necessary (3.5)."""

    def removed(self, member: RegisteredConsumer) -> None:
        """handleConsumerFailure, step 4: the rebalance of its group fails directly."""
        if (attempt := member.group.attempt) is not None:
            attempt.waiting.discard(member)
            attempt.fail(f"consumer {member.consumer_id} failed")

    def rebalance(self, group: Group) -> Generator[Any, Any, set[RegisteredConsumer]]:
        """Rebalance with retries (step 5); return the consumers that have failed."""
        settings = self.context.settings
        late: set[RegisteredConsumer] = set()
        for retry in range(settings.max_rebalance_retries + 1):
            if not group.members:
                break
            attempt = group.attempt = Attempt(group.generation + 1)
            try:
                yield from self._attempt(group, attempt)
            except (AttemptFailedError, RegistryError) as error:
                attempt.fail(str(error))
            if not attempt.failed:
                for member in group.members.values():
                    member.late_attempts = 0
                break
            self._note(logging.WARNING, "rebalance attempt failed", group, attempt, retry=retry, reason=attempt.failed)
            if not group.needs_rebalance and retry < settings.max_rebalance_retries:
                attempt.phase, attempt.changed = BACKING_OFF, Latch()
                yield Latched(attempt.changed, settings.rebalance_backoff_ms)
            if group.needs_rebalance:
                late = {member for member in attempt.late if member.late_attempts > settings.max_rebalance_retries}
                break
        else:
            error_name = "ConsumerRebalanceFailedException"
            self._note(logging.ERROR, "rebalance failed", group, attempt, error=error_name, reason=attempt.failed)
            late = attempt.late
        group.attempt = None
        return late

    def _attempt(self, group: Group, attempt: Attempt) -> Procedure:
        """Steps 1 to 4."""
        if not group.store.is_loaded:
            yield from self._committer.load(group)
        reason = why_rebalance(group, self._assign(group, list(group.members.values())))
        if not reason:
            self.keep(group)
            return
        self._note(logging.INFO, "rebalance started", group, attempt, reason=reason)
        group.generation = attempt.generation
        members = yield from self.stop(group, attempt)
        owners = self._assign(group, members)
        owned = _by_member(owners, members)
        timeout_ms = max((member.session_timeout_ms for member in members), default=0)
        attempt.phase = "committing"
        mark = group.store.plan_record(GroupRecord(timeout_ms, is_starting=True))
        yield from self._committer.commit(group, mark)  # 4.3
        if not group.store.is_loaded:  # the committer, which had taken some of the offsets, has failed
            attempt.fail("the offsets are not committed")
        attempt.check()
        for member, threads in owned.items():
            member.owned = frozenset(partition for partitions in threads.values() for partition in partitions)
            member.is_started = True
        yield from self.start(attempt, owned)
        attempt.phase = "writing owners"
        yield from self.context.write([group], group.store.plan_owners(owners, timeout_ms))  # 4.6
        counts = {"consumers": len(members), "partitions": len(owners)}
        self._note(logging.INFO, "rebalance completed", group, attempt, **counts)

    def _assign(self, group: Group, members: Sequence[RegisteredConsumer]) -> dict[Partition, str]:
        """Compute the new ownership (1.3)."""
        return keep_owners(assign(members, self._watches.partitions), group.store.owners, self._watches.fixed)

    def _note(self, level: int, what: str, group: Group, attempt: Attempt, **facts: object) -> None:
        where = {"group": group.group_id, "epoch": self.context.epoch, "generation": attempt.generation}
        self.context.note(level, what, **where, **facts)


def _size(thread_id: str, partitions: Sequence[Partition]) -> int:
    """Return the bytes of a thread in a message; each character of its id takes at most 4."""
    return 4 * len(thread_id) + sum(len(each.topic) + len(each.name) + _ENTRY_BYTES for each in partitions)


def _by_member(
    owners: Mapping[Partition, str], members: Sequence[RegisteredConsumer]
) -> dict[RegisteredConsumer, dict[str, list[Partition]]]:
    """Sort the partitions by consumer and thread; a consumer without partitions has no threads.

    Partitions of a topic whose rebalancing is switched off are fetched by none while their owner is away, or does not
    subscribe to the topic.

    :raises AttemptFailedError: a thread or a consumer would get more than a message can name
    """
    found: dict[str, dict[str, list[Partition]]] = {member.consumer_id: {} for member in members}
    subscriptions = {member.consumer_id: member.topic_count for member in members}
    for partition, thread_id in owners.items():
        consumer_id = consumer_of(thread_id)
        if consumer_id in found and subscriptions[consumer_id].streams_of(partition.topic):
            found[consumer_id].setdefault(thread_id, []).append(partition)
    if any(len(partitions) > MOST_ENTRIES for threads in found.values() for partitions in threads.values()):
        raise AttemptFailedError(f"a thread would own more than {MOST_ENTRIES} partitions")
    for consumer_id, threads in found.items():
        size = sum(map(_size, threads.keys(), threads.values()))
        if size > LARGEST_MESSAGE - _BESIDE_OWNERSHIP:
            raise AttemptFailedError(f"the partitions of {consumer_id} take {size} bytes of a message")
    return {member: found[member.consumer_id] for member in members}


class FetcherRebalancer(Rebalancer):
    """By StopFetcher and StartFetcher.

    :ivar stops: the StopFetcherRequestPurgatory
    :ivar starts: the StartFetcherRequestPurgatory
    """

    def __init__(
        self,
        context: Context,
        committer: Committer,
        pings: PingSchedule,
        watches: TopicWatches,
    ) -> None:
        super().__init__(context, committer, pings, watches)
        self.stops = Purgatory(context.timers, self._late)
        self.starts = Purgatory(context.timers, self._late)

    def added(self, member: RegisteredConsumer) -> None:
        """Answer the registration."""
        self.context.send(member, RegisterConsumerResponse())
        self.pings.add(member)

    def removed(self, member: RegisteredConsumer) -> None:
        """Stop waiting for its answers; the rebalance of its group fails at once."""
        self.stops.forget(member)
        self.starts.forget(member)
        super().removed(member)

    def keep(self, group: Group) -> None:
        """The fetchers run on."""

    def answered(self, purgatory: Purgatory, member: RegisteredConsumer) -> Answer:
        """Handling Stop/StartFetcherResponse: clear the watcher; with the last one, the rebalance goes on."""
        answer = purgatory.answered(member)
        if answer is Answer.IN_TIME and (attempt := member.group.attempt) is not None:
            attempt.answered(member)
        return answer

    def _late(self, member: RegisteredConsumer) -> None:
        if (attempt := member.group.attempt) is not None and member in attempt.waiting:
            member.late_attempts += 1
            attempt.late.add(member)
            attempt.fail(f"no answer in time from {member.consumer_id}")

    def stop(self, group: Group, attempt: Attempt) -> Stopping:
        """Send StopFetcherRequest to each consumer, and wait for the answers."""
        members = list(group.members.values())
        attempt.wait_for("stopping", members)
        for member in members:
            self.stops.give_up(member)
            self.starts.give_up(member)
            fence = self.context.fence(StopFetcherRequestFence, member, attempt.generation)
            message = StopFetcherRequest(consumer_id=member.consumer_id, fence=fence)
            member.is_started = False
            self.context.send(member, message)
            self.stops.watch(member, self.context.now + member.session_timeout_ms * 2 // 3)
        yield Latched(attempt.changed)
        attempt.check()
        return members

    def start(self, attempt: Attempt, owned: Mapping[RegisteredConsumer, Owned]) -> Procedure:
        """Send StartFetcherRequest to each consumer, and wait for the answers."""
        brokers = [
            StartFetcherRequestBroker(id=broker.broker_id, host=broker.host, port=broker.port)
            for broker in self.context.brokers()
        ]
        attempt.wait_for("starting", owned)
        for member, threads in owned.items():
            message = StartFetcherRequest(
                consumer_id=member.consumer_id,
                ownership_info=_ownership(StartFetcherRequestOwnership, StartFetcherRequestPartition, member, threads),
                brokers_info=brokers,
                fence=self.context.fence(StartFetcherRequestFence, member, attempt.generation),
            )
            self.context.send(member, message)
            self.starts.watch(member, self.context.now + member.session_timeout_ms * 2 // 3)
        yield Latched(attempt.changed)
        attempt.check()


class SocketRebalancer(Rebalancer):
    """By closed connections."""

    def added(self, member: RegisteredConsumer) -> None:
        """Park the registration."""
        group = member.group
        member.is_parked = True
        group.reconnecting.discard(member.consumer_id)
        if group.attempt is not None and not group.reconnecting:
            group.attempt.changed.open()

    def removed(self, member: RegisteredConsumer) -> None:
        """A consumer that waits for its answer is not missed; one that has partitions is."""
        if not member.is_parked:
            super().removed(member)

    def keep(self, group: Group) -> None:
        """Answer those for which there are no partitions."""
        for member in group.members.values():
            if member.is_parked:
                self._answer(member, {})

    def stop(self, group: Group, attempt: Attempt) -> Stopping:
        """Close the connections, and wait until the consumers have registered again."""
        closed = [member for member in group.members.values() if not member.is_parked]
        group.reconnecting = {member.consumer_id for member in closed}
        for member in closed:
            self.pings.remove(member)
            self.context.close(member)
            self.context.groups.remove_member(member)
        attempt.phase, attempt.changed = "waiting for registrations", Latch()
        if closed:
            yield Latched(attempt.changed, max(member.session_timeout_ms for member in closed))
        group.reconnecting.clear()
        if not group.members:
            raise AttemptFailedError("no consumer has registered again")
        return list(group.members.values())

    def start(self, attempt: Attempt, owned: Mapping[RegisteredConsumer, Owned]) -> Procedure:
        """Answer the registrations."""
        attempt.phase = "answering"
        for member, threads in owned.items():
            if member.group.members.get(member.consumer_id) is member:
                self._answer(member, threads)
        yield from ()

    def _answer(self, member: RegisteredConsumer, threads: Owned) -> None:
        member.is_parked = False
        ownership = _ownership(RegisterConsumerResponseOwnership, RegisterConsumerResponsePartition, member, threads)
        self.context.send(member, RegisterConsumerResponse(ownership_info=ownership))
        self.pings.add(member)


class Rebalances:
    """The rebalances of all groups.

    :param rebalance: the procedure for one group; it returns the consumers to take for failed
    :param failed: called with each of them, and why
    """

    def __init__(
        self,
        context: Context,
        rebalance: Callable[[Group], Generator[Any, Any, set[RegisteredConsumer]]],
        failed: Callable[[RegisteredConsumer, str], None],
    ) -> None:
        self._context = context
        self._rebalance = rebalance
        self._failed = failed
        self._running: set[Group] = set()

    def request(self, group: Group) -> None:
        """Set the group's rebalance bit; unless it was set before, a rebalance begins, or follows the present one.

        A group that is not restored is rebalanced when it is (`restored`)."""
        if not group.needs_rebalance:
            group.needs_rebalance = True
            if group.attempt is not None:
                group.attempt.end_backoff()
            if group.is_restored:
                self._begin(group)

    def restored(self, group: Group) -> None:
        """The group may be rebalanced from now on."""
        group.is_restored = True
        self._begin(group)

    def _begin(self, group: Group) -> None:
        if group not in self._running:
            self._running.add(group)
            self._context.start(self._run(group))

    def _run(self, group: Group) -> Procedure:
        while group.needs_rebalance:
            group.needs_rebalance = False
            late = yield from self._rebalance(group)
            for member in late:
                if group.members.get(member.consumer_id) is member:
                    self._failed(member, "no answer to StopFetcher or StartFetcher")
        self._running.discard(group)
