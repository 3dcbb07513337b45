"""Rebalances by StopFetcher and StartFetcher (sections 9 and 11).

Law: a request of one attempt is never taken for answered by an answer to an earlier one (see `Purgatory`): when an
attempt begins, the requests of the one before are given up.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcoord_wire.central.draft.committer import Committer
from kcoord_wire.central.draft.context import Context
from kcoord_wire.central.draft.groups import Attempt, Group, Member
from kcoord_wire.central.draft.ping_schedule import PingSchedule
from kcoord_wire.central.draft.purgatory import Answer, Purgatory
from kcoord_wire.central.draft.rebalance import Owned, Rebalancer, Stopping, start_offset
from kcoord_wire.kernel.procedures import Opened, Procedure
from kcoord_wire.messages.central import (
    RegisterConsumerResponse,
    StartFetcherRequest,
    StartFetcherRequestBroker,
    StartFetcherRequestFence,
    StartFetcherRequestOwnership,
    StartFetcherRequestPartition,
    StopFetcherRequest,
    StopFetcherRequestFence,
)


class FetcherRebalancer(Rebalancer):
    """See the module.

    :ivar stops: the StopFetcherRequestPurgatory
    :ivar starts: the StartFetcherRequestPurgatory
    """

    def __init__(
        self,
        context: Context,
        committer: Committer,
        pings: PingSchedule,
        partitions: Mapping[str, tuple[str, ...]],
    ) -> None:
        super().__init__(context, committer, pings, partitions)
        self.stops = Purgatory(context.timers, self._late)
        self.starts = Purgatory(context.timers, self._late)

    def added(self, member: Member) -> None:
        """Answer the registration."""
        self.context.send(member, RegisterConsumerResponse())
        self.pings.add(member)

    def removed(self, member: Member) -> None:
        """Stop waiting for its answers; the rebalance of its group fails at once."""
        self.stops.forget(member)
        self.starts.forget(member)
        super().removed(member)

    def keep(self, group: Group) -> None:
        """The fetchers run on."""

    def answered(self, purgatory: Purgatory, member: Member) -> Answer:
        """Handling Stop/StartFetcherResponse: clear the watcher; with the last one, notify the handler."""
        answer = purgatory.answered(member)
        if answer is Answer.IN_TIME and (attempt := member.group.attempt) is not None:
            attempt.answered(member)
        return answer

    def _late(self, member: Member) -> None:
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
            fence = self.context.fence(member, attempt.generation)
            message = StopFetcherRequest(
                consumer_id=member.consumer_id,
                fence=None if fence is None else [StopFetcherRequestFence(**fence._asdict())],
            )
            member.is_started = False
            self.context.send(member, message)
            self.stops.watch(member, self.context.now + member.session_timeout_ms * 2 // 3)
        yield Opened(attempt.changed)
        attempt.check()
        return members

    def start(self, attempt: Attempt, owned: Mapping[Member, Owned]) -> Procedure:
        """Send StartFetcherRequest to each consumer, and wait for the answers."""
        brokers = [
            StartFetcherRequestBroker(id=broker.broker_id, host=broker.host, port=broker.port)
            for broker in self.context.brokers()
        ]
        attempt.wait_for("starting", owned)
        for member, threads in owned.items():
            fence = self.context.fence(member, attempt.generation)
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
            self.context.send(member, message)
            self.starts.watch(member, self.context.now + member.session_timeout_ms * 2 // 3)
        yield Opened(attempt.changed)
        attempt.check()
