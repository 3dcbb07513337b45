"""The procedure ``rebalance (group)`` of section 9, by StopFetcher and StartFetcher.

Laws:

* Partitions are given to consumers only after every consumer of the group has answered that it has stopped, and after
  the offsets of these answers are in ZooKeeper.
* Before the first StartFetcher, ZooKeeper has a mark (`GroupRecord.is_starting`) that stays until the new owners are
  there: a coordinator that takes over in between knows that the owners are not the whole truth.
* After ``max_rebalance_retries`` retries the rebalance has failed. The consumers that did not answer the last one are
  taken for failed: else one that answers pings, but nothing else, would stop its group for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from kcoord_wire.central.draft.assignment import assign, why_rebalance
from kcoord_wire.central.draft.committer import Committer
from kcoord_wire.central.draft.context import Context
from kcoord_wire.central.draft.events import Partition
from kcoord_wire.central.draft.group_store import consumer_of
from kcoord_wire.central.draft.groups import Attempt, AttemptFailedError, Group, Member
from kcoord_wire.central.draft.purgatory import Answer, Purgatory
from kcoord_wire.messages import (
    StartFetcherRequest,
    StartFetcherRequestBroker,
    StartFetcherRequestFence,
    StartFetcherRequestOwnership,
    StartFetcherRequestPartition,
    StopFetcherRequest,
    StopFetcherRequestFence,
)
from kcoord_wire.zookeeper.layout import GroupRecord
from kcoord_wire.zookeeper.procedures import Gate, Opened, Procedure, RegistryError

__all__ = ["Rebalancer", "start_offset"]

LATEST: Final = -1  # OffsetRequest.LatestTime of Kafka 0.7: the consumer's fetcher finds the offset
EARLIEST: Final = -2


def start_offset(member: Member, partition: Partition) -> int:
    """Return the offset at which a consumer begins: the recorded one, or what its ``auto_offset_reset`` says."""
    known = member.group.offsets.get(partition)
    if known is not None:
        return known
    return LATEST if member.auto_offset_reset == "largest" else EARLIEST


class Rebalancer:
    """Rebalances one group at a time for each handler.

    :param partitions: returns the partitions of each topic
    :param failed: called with a consumer that has failed, and why
    :ivar stops: the StopFetcherRequestPurgatory
    :ivar starts: the StartFetcherRequestPurgatory
    """

    def __init__(
        self,
        context: Context,
        committer: Committer,
        partitions: Mapping[str, tuple[str, ...]],
        failed: Callable[[Member, str], None],
    ) -> None:
        self._context = context
        self._committer = committer
        self._partitions = partitions
        self._failed = failed
        self.stops = Purgatory(context.timers, self._late)
        self.starts = Purgatory(context.timers, self._late)

    def forget(self, member: Member) -> None:
        """handleConsumerFailure: no answer is expected from it, and the rebalance of its group fails directly."""
        self.stops.forget(member)
        self.starts.forget(member)
        if (attempt := member.group.attempt) is not None:
            attempt.waiting.discard(member)
            attempt.fail(f"consumer {member.consumer_id} failed")

    def answered(self, purgatory: Purgatory, member: Member) -> Answer:
        """Handling Stop/StartFetcherResponse: clear the watcher; with the last one, notify the handler."""
        answer = purgatory.answered(member)
        if answer is Answer.IN_TIME and (attempt := member.group.attempt) is not None:
            attempt.answered(member)
        return answer

    def _late(self, member: Member) -> None:
        if (attempt := member.group.attempt) is not None and member in attempt.waiting:
            attempt.late.add(member)
            attempt.fail(f"no answer in time from {member.consumer_id}")

    # ---- the procedure

    def rebalance(self, group: Group) -> Procedure:
        """Rebalance with retries (step 5)."""
        if not group.members:
            return
        settings = self._context.settings
        for retry in range(settings.max_rebalance_retries + 1):
            attempt = group.attempt = Attempt(group.generation + 1)
            try:
                yield from self._attempt(group, attempt)
            except (AttemptFailedError, RegistryError) as error:
                attempt.fail(str(error))
            if not attempt.failed or not group.members:
                break
            self._context.note(
                logging.WARNING, "rebalance attempt failed", group=group.group_id, retry=retry, reason=attempt.failed
            )
            if not group.needs_rebalance:
                attempt.phase, attempt.changed = "backing off", Gate()
                yield Opened(attempt.changed, settings.rebalance_backoff_ms)
            if group.needs_rebalance:
                break  # the next task begins again with the present consumers
        group.attempt = None
        if attempt.failed and group.members and not group.needs_rebalance:
            self._give_up(group, attempt)

    def _give_up(self, group: Group, attempt: Attempt) -> None:
        self._context.note(
            logging.ERROR,
            "rebalance failed",
            error="ConsumerRebalanceFailedException",
            group=group.group_id,
            retries=self._context.settings.max_rebalance_retries,
            reason=attempt.failed,
        )
        for member in attempt.late:
            if group.members.get(member.consumer_id) is member:
                self._failed(member, "no answer to StopFetcher or StartFetcher")

    def _attempt(self, group: Group, attempt: Attempt) -> Procedure:
        """Steps 1 to 4."""
        if not group.store.is_loaded:
            yield from self._committer.load(group)
        owners = assign(group, self._partitions)
        members = list(group.members.values())
        consumers = {consumer_of(thread_id) for thread_id in owners.values()}
        reason = why_rebalance(group, owners, [member for member in members if member.consumer_id in consumers])
        if not reason and not group.store.record.is_starting:
            return
        self._note(group, attempt, "rebalance started", reason=reason or "the former coordinator did not finish")
        group.generation = attempt.generation
        yield from self._stop(attempt, members)  # 4.1, 4.2
        timeout_ms = max((member.session_timeout_ms for member in members), default=0)
        mark = group.store.plan_record(GroupRecord(timeout_ms, is_starting=True))
        attempt.phase = "committing"
        yield from self._committer.commit(group, mark)  # 4.3
        if not group.store.is_loaded:  # the committer, which had taken some of the offsets, has failed
            attempt.fail("the offsets are not committed")
        attempt.check()
        yield from self._start(attempt, members, owners)  # 4.4, 4.5
        attempt.phase = "writing owners"
        yield from self._context.write(group, group.store.plan_owners(owners, timeout_ms))  # 4.6
        self._note(group, attempt, "rebalance completed", consumers=len(members), partitions=len(owners))

    def _note(self, group: Group, attempt: Attempt, what: str, **facts: object) -> None:
        self._context.note(
            logging.INFO,
            what,
            group=group.group_id,
            epoch=self._context.epoch,
            generation=attempt.generation,
            **facts,
        )

    def _stop(self, attempt: Attempt, members: list[Member]) -> Procedure:
        attempt.wait_for("stopping", members)
        for member in members:
            fence = self._context.fence(member, attempt.generation)
            message = StopFetcherRequest(
                consumer_id=member.consumer_id,
                fence=None if fence is None else [StopFetcherRequestFence(**fence._asdict())],
            )
            member.is_started = False
            self._context.send(member, message)
            self.stops.watch(member, self._context.now + member.session_timeout_ms * 2 // 3)
        yield Opened(attempt.changed)
        attempt.check()

    def _start(self, attempt: Attempt, members: list[Member], owners: Mapping[Partition, str]) -> Procedure:
        by_consumer: dict[str, dict[str, list[Partition]]] = {}
        for partition, thread_id in owners.items():
            by_consumer.setdefault(consumer_of(thread_id), {}).setdefault(thread_id, []).append(partition)
        brokers = [
            StartFetcherRequestBroker(id=broker.broker_id, host=broker.host, port=broker.port)
            for broker in self._context.brokers()
        ]
        attempt.wait_for("starting", members)
        for member in members:
            threads = by_consumer.get(member.consumer_id, {})
            fence = self._context.fence(member, attempt.generation)
            message = StartFetcherRequest(
                consumer_id=member.consumer_id,
                ownership_info=[
                    StartFetcherRequestOwnership(
                        consumer_thread_id=thread_id,
                        assigned_parts=[
                            StartFetcherRequestPartition(
                                topic=partition.topic, partition=partition.name, offset=start_offset(member, partition)
                            )
                            for partition in partitions
                        ],
                    )
                    for thread_id, partitions in threads.items()
                ],
                brokers_info=brokers,
                fence=None if fence is None else [StartFetcherRequestFence(**fence._asdict())],
            )
            member.owned = frozenset(partition for partitions in threads.values() for partition in partitions)
            member.is_started = True
            self._context.send(member, message)
            self.starts.watch(member, self._context.now + member.session_timeout_ms * 2 // 3)
        yield Opened(attempt.changed)
        attempt.check()
