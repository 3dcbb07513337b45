"""A member's presence, and how it hands partitions over to members that have fewer. Pure.

A handoff, step by step: the holder announces it (HandingOver: to whom, until when), reads the log up to its end, and
validates that the announcement is there, that the claim is still its own and that the successor is still heard of. Then
it fetches nothing more and lets the application process what it has, for half of the time at most; the other half is
the successor's. It releases the partition with the processed prefix. The successor claims it at once; others leave it
alone until the handoff expires.

Laws:

* Each handoff ends by its deadline: the partition is released with what was processed by then, or stays where it is.
* A handoff that has expired means nothing: the partition is its holder's, or free for all members.
* A handoff ends with the tenure that it is of. The next holder, also the same client after a restart,
  does not inherit it.
* Heartbeats go on while the application drains, and end with the release.

Sources: KCL 3, whose graceful handoff left leases without a worker: an expired handoff counted as available
(awslabs/amazon-kinesis-client#1765), heartbeats of a lease in shutdown went on (#1729), and a worker was started again
with a handoff pending (#1718). A presence without partitions is what newcomers of the Go library and of Azure's
EventProcessor lack.
"""

from __future__ import annotations

import logging
from typing import Final

from kcoord_wire.kernel.procedures import Procedure, Sleep
from kcoord_wire.marshal.balance import View, plan_gives, receivers
from kcoord_wire.marshal.claiming import Claiming
from kcoord_wire.marshal.context import Context, TopicPartition
from kcoord_wire.marshal.events import Append, Balance, ReadToEnd, Why
from kcoord_wire.marshal.holding import Holding, Phase
from kcoord_wire.marshal.log import AppendFailed
from kcoord_wire.messages.marshal import HandingOver

_SOONEST: Final = 0.25  # of a heartbeat interval, from one Presence to the next
_LATEST: Final = 0.73


class Handoffs:
    """The handoffs of one member.

    :ivar announcing: to whom, for each partition whose handoff is not yet validated
    """

    def __init__(self, context: Context, claiming: Claiming) -> None:
        self.announcing: dict[TopicPartition, str] = {}
        self._context = context
        self._claiming = claiming

    def present(self, topic: str) -> Procedure:
        """Let the others know of this member, also while it holds nothing."""
        context = self._context
        soonest, latest = (int(context.interval_ms * part) for part in (_SOONEST, _LATEST))
        while True:
            max_claims = -1 if self._claiming.unwanted(topic) else context.settings.max_claims
            yield Append(context.coordinating(topic), context.presence(topic, max_claims))
            yield Sleep(context.jitter(soonest, latest))

    def leave(self, topic: str) -> Procedure:
        """Let the others know that this member takes nothing any more: while it drains, it would look present."""
        message = self._context.presence(topic, -1)
        while isinstance((yield Append(self._context.coordinating(topic), message)), AppendFailed):
            yield Sleep(self._context.retry_ms)

    def rounds(self, topic: str, balance: Balance) -> Procedure:
        """Look from time to time for members that should have more."""
        context = self._context
        while True:
            yield Sleep(context.jitter(balance.round_ms // 2, balance.round_ms))
            giving = {place.partition: to for place, to in self.announcing.items() if place.topic == topic}
            for give in plan_gives(self._view(topic), context.settings.instance_id, balance, giving):
                holding = self._claiming.holdings.get(TopicPartition(topic, give.partition))
                if holding is not None and holding.phase is Phase.HELD:
                    context.procedures.start(self._hand_over(holding, give.to_instance_id, balance), context.now)

    def is_successor(self, place: TopicPartition) -> bool:
        """Return whether a partition is to be claimed by this member before others."""
        claim = self._context.claim(place)
        return claim is not None and self._context.reserved_for(claim) == self._context.settings.instance_id

    def _hand_over(self, holding: Holding, successor: str, balance: Balance) -> Procedure:
        self.announcing[holding.place] = successor
        try:
            began = self._context.now
            message = holding.message(HandingOver, to_instance_id=successor)
            message.deadline = message.time + balance.handoff_ms // 1_000
            yield Append(holding.coordination_partition, message)
            yield ReadToEnd(holding.coordination_partition)
            drain_ms = balance.handoff_ms // 2 - (self._context.now - began)
            obstacle = self._obstacle(holding, successor) or ("it has taken too long" if drain_ms <= 0 else "")
            facts = {**holding.tenure._asdict(), "to": successor}
            if obstacle:
                self._context.note(logging.WARNING, "handoff given up", **facts, reason=obstacle)
            else:
                self._context.note(logging.INFO, "handing over", **facts)
                holding.release(Why.HANDED_OVER, drain_ms)
        finally:
            del self.announcing[holding.place]

    def _obstacle(self, holding: Holding, successor: str) -> str:
        """Return why a handoff that was announced cannot go on; empty if it can."""
        claim = holding.claim()
        if claim is None:
            return "the claim is lost"
        if claim.handoff is None or claim.handoff.to_instance_id != successor:
            return "the announcement has not landed"
        if successor not in receivers(self._view(holding.tenure.topic)):
            return "the successor is not heard of"
        return ""

    def _view(self, topic: str) -> View:
        context, coordinating = self._context, self._context.coordinating(topic)
        count = self._claiming.counts.get(topic, 0)
        now, log_ms = context.log_now(coordinating), context.log_ms(coordinating)
        return View(context.state, context.settings.group_id, topic, count, now, log_ms)
