"""The scheduler of pings (section 5, ``scheduler.run``; section 8; ``handlePingResponse`` of section 11).

Its priority queue is the machine's `Timers`.

Laws:

* A consumer is pinged every third of its session timeout, and each ping has two thirds for its answer. A slow machine
  skips pings instead of sending several at once.
* More than ``max_ping_retries`` pings in a row without an answer in time: `failed` is called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kcoord_wire.central.draft.context import Context
from kcoord_wire.central.draft.groups import Member
from kcoord_wire.central.draft.purgatory import Answer, Purgatory
from kcoord_wire.messages.central import PingRequest, PingRequestFence


class PingSchedule:
    """The pings of all consumers.

    :param failed: called with a consumer that has failed, and why
    :ivar purgatory: of the pings that have no answer
    """

    def __init__(self, context: Context, failed: Callable[[Member, str], None]) -> None:
        self._context = context
        self._failed = failed
        self.purgatory = Purgatory(context.timers, self._ping_failed)

    def add(self, member: Member) -> None:
        """handleAddedConsumer, step 1."""
        self._schedule(member, self._context.now + member.session_timeout_ms // 3)

    def remove(self, member: Member) -> None:
        """handleConsumerFailure, step 1."""
        if member.ping_timer is not None:
            member.ping_timer.cancel()
        self.purgatory.forget(member)

    def answered(self, member: Member) -> Answer:
        """handlePingResponse, step 2."""
        answer = self.purgatory.answered(member)
        if answer is Answer.IN_TIME:
            member.failed_pings = 0
        return answer

    def _schedule(self, member: Member, when: int) -> None:
        member.ping_timer = self._context.timers.start(when, partial(self._ping, member, when))

    def _ping(self, member: Member, scheduled: int) -> None:
        """scheduler.run, steps 2 and 3."""
        context, timeout_ms = self._context, member.session_timeout_ms
        fence = context.fence(member, member.group.generation)
        message = PingRequest(
            consumer_id=member.consumer_id,
            num_retries=member.failed_pings,
            fence=None if fence is None else [PingRequestFence(epoch=fence.epoch, generation=fence.generation)],
        )
        context.send(member, message)
        self.purgatory.watch(member, context.now + timeout_ms * 2 // 3)
        following = scheduled + timeout_ms // 3
        self._schedule(member, following if following > context.now else context.now + timeout_ms // 3)

    def _ping_failed(self, member: Member) -> None:
        """Section 8, points 3 and 4."""
        member.failed_pings += 1
        if member.failed_pings > self._context.settings.max_ping_retries:
            self._failed(member, f"{member.failed_pings} pings without an answer in time")
