"""Rebalances by closed connections: the older passage of the draft (section 2, "Co-ordinator", steps 2, 5 and 6).

To rebalance, the coordinator closes the connections of the group's consumers. They notice it, stop fetching and
register again; the answers wait until all of them have, and hold their partitions.

Laws:

* A registration is answered when its partitions are decided, and never before the consumers whose connections were
  closed have registered again or were silent for their session timeout, after which they have stopped too.
* A consumer is pinged from its answer on; one that waits for the answer is noticed to be gone by its connection.
* Epochs are not part of RegisterConsumerResponse, so these consumers are not fenced.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcoord_wire.central.draft.groups import Attempt, AttemptFailedError, Group, Member
from kcoord_wire.central.draft.rebalance import Owned, Rebalancer, Stopping, start_offset
from kcoord_wire.kernel.procedures import Gate, Opened, Procedure
from kcoord_wire.messages.central import (
    RegisterConsumerResponse,
    RegisterConsumerResponseOwnership,
    RegisterConsumerResponsePartition,
)


class SocketRebalancer(Rebalancer):
    """See the module."""

    def added(self, member: Member) -> None:
        """Park the registration."""
        group = member.group
        member.is_parked = True
        group.reconnecting.discard(member.consumer_id)
        if group.attempt is not None and not group.reconnecting:
            group.attempt.changed.open()

    def removed(self, member: Member) -> None:
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
        attempt.phase, attempt.changed = "waiting for registrations", Gate()
        if closed:
            yield Opened(attempt.changed, max(member.session_timeout_ms for member in closed))
        group.reconnecting.clear()
        if not group.members:
            raise AttemptFailedError("no consumer has registered again")
        return list(group.members.values())

    def start(self, attempt: Attempt, owned: Mapping[Member, Owned]) -> Procedure:
        """Answer the registrations."""
        attempt.phase = "answering"
        for member, threads in owned.items():
            if member.group.members.get(member.consumer_id) is member:
                self._answer(member, threads)
        yield from ()

    def _answer(self, member: Member, threads: Owned) -> None:
        member.is_parked = False
        ownership = [
            RegisterConsumerResponseOwnership(
                consumer_thread_id=thread_id,
                assigned_parts=[
                    RegisterConsumerResponsePartition(
                        topic=partition.topic, partition=partition.name, offset=start_offset(member, partition)
                    )
                    for partition in partitions
                ],
            )
            for thread_id, partitions in threads.items()
        ]
        self.context.send(member, RegisterConsumerResponse(ownership_info=ownership))
        self.pings.add(member)
