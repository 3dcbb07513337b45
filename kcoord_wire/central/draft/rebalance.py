"""The procedure ``rebalance (group)`` of section 9, whichever way the consumers change their partitions.

Laws:

* Partitions are given to consumers only after the consumers of the group have stopped, and after the offsets that are
  known then are in ZooKeeper.
* Before the first consumer gets partitions, ZooKeeper has a mark (`GroupRecord.is_starting`) that stays until the new
  owners are there: a coordinator that takes over in between knows that the owners are not the whole truth.
* After ``max_rebalance_retries`` retries the rebalance has failed. The consumers that did not answer the last one are
  taken for failed: else one that answers pings, but nothing else, would stop its group for ever.
* The retries end when the group has a new task: that begins at once, with the consumers and partitions of then. A
  consumer that answers none of them is taken for failed after as many attempts.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from kcoord_wire.central.draft.assignment import assign, why_rebalance
from kcoord_wire.central.draft.committer import Committer
from kcoord_wire.central.draft.context import Context
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.group_store import consumer_of
from kcoord_wire.central.draft.groups import Attempt, AttemptFailedError, Group, Member
from kcoord_wire.central.draft.ping_schedule import PingSchedule
from kcoord_wire.kernel.procedures import Gate, Opened, Procedure
from kcoord_wire.zookeeper.layout import GroupRecord
from kcoord_wire.zookeeper.procedures import RegistryError

LATEST: Final = -1  # OffsetRequest.LatestTime of Kafka 0.7: the consumer's fetcher finds the offset
EARLIEST: Final = -2
MOST_ENTRIES: Final = 32_767  # of a list in a message

Owned: TypeAlias = Mapping[str, Sequence[Partition]]
"""The partitions of each thread of a consumer."""
Stopping: TypeAlias = Generator[Any, Any, list[Member]]
"""A procedure that returns the consumers that have stopped."""


def start_offset(member: Member, partition: Partition) -> int:
    """Return the offset at which a consumer begins: the recorded one, or what its ``auto_offset_reset`` says."""
    known = member.group.offsets.get(partition)
    if known is not None:
        return known
    return LATEST if member.auto_offset_reset == "largest" else EARLIEST


class Rebalancer(ABC):
    """Rebalances groups, one at a time for each handler.

    :param partitions: names of the partitions of each topic
    :ivar pings: of all consumers
    """

    def __init__(
        self,
        context: Context,
        committer: Committer,
        pings: PingSchedule,
        partitions: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.context = context
        self.pings = pings
        self._committer = committer
        self._partitions = partitions

    @abstractmethod
    def added(self, member: Member) -> None:
        """A consumer has registered: answer it, now or later, and ping it from then on."""

    @abstractmethod
    def stop(self, group: Group, attempt: Attempt) -> Stopping:
        """Let the consumers stop (4.1, 4.2), and return those that take part.

        :raises AttemptFailedError: some have not
        """

    @abstractmethod
    def start(self, attempt: Attempt, owned: Mapping[Member, Owned]) -> Procedure:
        """Let the consumers start with these partitions (4.4, 4.5).

        :raises AttemptFailedError: some have not
        """

    @abstractmethod
    def keep(self, group: Group) -> None:
        """No rebalance is necessary (3.5)."""

    def removed(self, member: Member) -> None:
        """handleConsumerFailure, step 4: the rebalance of its group fails directly."""
        if (attempt := member.group.attempt) is not None:
            attempt.waiting.discard(member)
            attempt.fail(f"consumer {member.consumer_id} failed")

    def rebalance(self, group: Group) -> Generator[Any, Any, set[Member]]:
        """Rebalance with retries (step 5); return the consumers that have failed."""
        settings = self.context.settings
        late: set[Member] = set()
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
                attempt.phase, attempt.changed = "backing off", Gate()
                yield Opened(attempt.changed, settings.rebalance_backoff_ms)
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
        reason = why_rebalance(group, assign(list(group.members.values()), self._partitions))
        if not reason:
            self.keep(group)
            return
        self._note(logging.INFO, "rebalance started", group, attempt, reason=reason)
        group.generation = attempt.generation
        members = yield from self.stop(group, attempt)
        owners = assign(members, self._partitions)
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

    def _note(self, level: int, what: str, group: Group, attempt: Attempt, **facts: object) -> None:
        where = {"group": group.group_id, "epoch": self.context.epoch, "generation": attempt.generation}
        self.context.note(level, what, **where, **facts)


def _by_member(owners: Mapping[Partition, str], members: Sequence[Member]) -> dict[Member, dict[str, list[Partition]]]:
    """Sort the partitions by consumer and thread; a consumer without partitions has no threads.

    :raises AttemptFailedError: a thread would get more than a message can name
    """
    found: dict[str, dict[str, list[Partition]]] = {member.consumer_id: {} for member in members}
    for partition, thread_id in owners.items():
        found[consumer_of(thread_id)].setdefault(thread_id, []).append(partition)
    if any(len(partitions) > MOST_ENTRIES for threads in found.values() for partitions in threads.values()):
        raise AttemptFailedError(f"a thread would own more than {MOST_ENTRIES} partitions")
    return {member: found[member.consumer_id] for member in members}
