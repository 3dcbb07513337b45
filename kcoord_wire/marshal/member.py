"""A member of a group that coordinates through Marshal's log. Pure.

Two processes with one client id and group take each other's partitions: a heartbeat of the one takes over a fresh claim
of the other, as after a restart. One has to stop, and both must decide alike (`ClientIdReuse`). The one that was heard
of first yields, by the log's order: it is the former process after a restart, and a process that was paused while it
was replaced. The later one also yields if the other goes on for more than a heartbeat interval, because it does not
know this rule (the Go library). Who yields claims again when the other was silent for two heartbeat intervals.

Laws:

* A host asks `is_held` before it gives records to the application, because time passes also between events.
* By the document's rules no two members hold a partition at one time, unless they share a client id: a tenure ends one
  interval after its last heartbeat was sent, by the monotonic clock, and others may claim two intervals after that
  heartbeat landed, by the log's time. Clocks of members may differ as they like; the log's may be wrong by one interval
  within two.
* What cannot be read is skipped. The first entry of each kind (those of `world_state.Unreadable`, and ``misplaced``) on
  each coordination partition is reported, further ones are counted: foreign writers cannot fill a host's log.

Sources: Marshal PROTOCOL.md: a client id "should be unique within a group_id"; the Go library's `claim.go` and
`consumer.go`, by their measured behaviour, and its issue #8, open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kcoord_wire.kernel.machines import LogEvent
from kcoord_wire.kernel.procedures import Procedure, Sleep, Until
from kcoord_wire.marshal import member_events as events
from kcoord_wire.marshal.claiming import Claiming, Handoffs
from kcoord_wire.marshal.context import LogMachine, TopicPartition
from kcoord_wire.marshal.holding import Holding
from kcoord_wire.marshal.member_events import LossReason, MemberSettings, ReadToEnd, Tenure
from kcoord_wire.marshal.range_claiming import RangeClaiming
from kcoord_wire.marshal.world_state import Entry, Outcome, Unreadable
from kcoord_wire.messages.marshal import Heartbeat, Presence, ReleaseGroup, ReleasingPartition

_NO_SIGN: Final = (ReleasingPartition, Presence)
"""Who yields still releases what it has, and presents itself: else two would yield to each other for ever."""


@dataclass(slots=True)
class _Other:
    """Another instance.

    :ivar first: log time and instance id of its first message: the order of the instances
    :ivar alive_at: when it was last heard after our start, ms; None for never
    :ivar alive_ms: log time of that
    """

    first: tuple[int, str]
    alive_at: int | None = None
    alive_ms: int = 0


class ClientIdReuse:
    """The other instances of one client.

    :ivar own_first: log time and instance id of our own first message; None before it was read
    """

    def __init__(self, group_id: str, client_id: str, instance_id: str, interval_ms: int) -> None:
        self._client = group_id, client_id
        self._instance_id = instance_id
        self._interval_ms = interval_ms
        self._others: dict[str, _Other] = {}
        self.own_first: tuple[int, str] | None = None

    def see(self, message: Any, time_ms: int, now: int, *, is_after_start: bool) -> None:
        """Take in a message.

        :param time_ms: the log's time
        :param is_after_start: it has landed after we began
        """
        if (message.group_id, message.client_id) != self._client or isinstance(message, ReleaseGroup):
            return  # an admin may use any client id
        order = time_ms, message.instance_id
        if message.instance_id == self._instance_id:
            self.own_first = self.own_first or order
            return
        other = self._others.setdefault(message.instance_id, _Other(order))
        if is_after_start and not isinstance(message, _NO_SIGN):
            other.alive_at, other.alive_ms = now, time_ms

    def rival(self, now: int) -> str:
        """Return the instance that we yield to; empty if there is none."""
        return next((name for name, other in self._others.items() if self._yields_to(other, now)), "")

    def _yields_to(self, other: _Other, now: int) -> bool:
        if self.own_first is None or other.alive_at is None or now - other.alive_at > 2 * self._interval_ms:
            return False
        return other.first > self.own_first or other.alive_ms - self.own_first[0] > self._interval_ms


MISPLACED: Final = "misplaced"
"""The kind of a message that lies on another coordination partition than that of its topic."""


class Refusals:
    """The skipped entries of one reader.

    :ivar counts: how many, by kind and coordination partition
    """

    def __init__(self) -> None:
        self.counts: dict[tuple[str, int], int] = {}

    def skipped(self, entry: Entry) -> LogEvent | None:
        """Count an entry that had no effect; return what to log, None for a kind that was reported before."""
        message = entry.message
        if isinstance(message, Unreadable):
            kind, reason = message.kind, str(message)
        else:
            kind, reason = MISPLACED, f"{message.topic!r} belongs to another coordination partition"
        key = kind, entry.partition
        self.counts[key] = self.counts.get(key, 0) + 1
        if self.counts[key] > 1:
            return None
        where = {"partition": entry.partition, "offset": entry.offset}
        return LogEvent(logging.WARNING, "entry skipped", {**where, "kind": kind, "reason": reason})


class MarshalMember(LogMachine):
    """One member. A `machines.Machine`; `member_events.WallClock` starts it.

    :raises ValueError: the settings cannot be used
    """

    def __init__(self, settings: MemberSettings) -> None:
        super().__init__(settings)
        self.settings = settings
        self._partitions = Claiming(self._context, self._barred)
        self._ranges = None if settings.ranges is None else RangeClaiming(self._context, settings.ranges, self._barred)
        self._claiming = self._ranges or self._partitions
        self._handoffs = Handoffs(self._context, self._partitions)
        self._sharing: list[Procedure] = []
        self._reuse = ClientIdReuse(
            settings.group_id, settings.client_id, settings.instance_id, settings.heartbeat_interval_ms
        )
        self._reported: set[str] = set()
        self._refused: dict[TopicPartition, str] = {}  # who sent the last heartbeat that does not count
        self._refusals = Refusals()
        self._is_current = False
        self._leaving: LossReason | None = None

    def is_held(self, tenure: Tenure, now: int) -> bool:
        """Return whether the application may work on a record of this tenure at this moment.

        :param now: ms; it may be later than that of the last event
        """
        holding = self._claiming.of(tenure)
        return holding is not None and holding.is_open(now)

    def tenures(self) -> list[Tenure]:
        """Return what is held, also while it is being released."""
        return sorted(holding.tenure for holding in self._claiming.all())

    def describe(self) -> dict[TopicPartition, str]:
        """Return for each partition of the topics how this member holds it, or why it does not."""
        found = {}
        for topic in self.settings.topics:
            for partition in range(self._claiming.counts.get(topic, 0)):
                place = TopicPartition(topic, partition)
                phases = [each.phase.value for each in self._claiming.all() if each.place == place]
                found[place] = ", ".join(phases) or self._claiming.obstacle(place) or "free"
        return found

    # ---- the life of a member

    def _begin(self) -> None:
        self._launch(self._live())

    def _live(self) -> Procedure:
        """Determine the complete state of the world, then look for partitions of each topic."""
        settings = self.settings
        yield [ReadToEnd(each) for each in sorted({self._context.coordinating(topic) for topic in settings.topics})]
        self._is_current = True
        for topic in settings.topics:
            self._launch(self._passes(topic) if self._ranges is None else self._ranges.claim_all(topic))
            self._share(topic)

    def _share(self, topic: str) -> None:
        """Take part in the balance, as far as the settings say."""
        settings = self.settings
        if settings.presence:
            self._sharing.append(self._launch(self._handoffs.present(topic)))
        if settings.balance is not None:
            self._sharing.append(self._launch(self._handoffs.rounds(topic, settings.balance)))

    def _passes(self, topic: str) -> Procedure:
        settings, claiming = self.settings, self._partitions
        yield Until(lambda: topic in claiming.counts)
        if settings.fast_reclaim:
            yield from self._limited(claiming.recover(topic))
        while self._leaving is None:
            yield from self._limited(claiming.consume_new_partition(topic))
            yield Sleep(self._context.jitter(settings.pass_ms // 2, settings.pass_ms))

    def _limited(self, procedure: Procedure) -> Procedure:
        """Run a procedure, for as long as a claim may take; what lands later is released (`Claiming.check`)."""
        procedures = self._context.procedures
        self._launch(procedure)
        if not (yield Until(lambda: not procedures.is_running(procedure), self.settings.claim_timeout_ms)):
            self._context.note(logging.WARNING, "claim timed out")
            procedures.cancel(procedure)

    def _barred(self) -> str:
        if self._leaving is not None:
            return "this member ends"
        if rival := self._reuse.rival(self._context.now):
            return f"instance {rival} uses the client id {self.settings.client_id}, too"
        return ""

    def _shutdown(self) -> None:
        self._leave(LossReason.RELEASED)

    def _suspend(self, _event: events.Suspend) -> None:
        self._leave(LossReason.KEPT)

    def _leave(self, why: LossReason) -> None:
        """End; a second event waits for nothing."""
        if self._leaving is not None:
            self._end()
            return
        self._leaving = why
        self._leave_balance()
        for holding in self._claiming.all():
            holding.release(why)
        self._launch(self._end_when_idle())

    def _leave_balance(self) -> None:
        for procedure in self._sharing:
            self._context.procedures.cancel(procedure)
        for topic in self.settings.topics if self._sharing else ():
            self._launch(self._handoffs.leave(topic))

    def _end_when_idle(self) -> Procedure:
        yield Until(lambda: self._claiming.is_idle)
        self._end()

    # ---- the log

    def _entries(self, event: events.Entries) -> None:
        super()._entries(event)
        if rival := self._reuse.rival(self._context.now):
            self._yield_to(rival)

    def _entry(self, entry: Entry) -> Outcome:
        outcome = super()._entry(entry)
        context, message = self._context, entry.message
        if isinstance(message, str) or context.state.is_misplaced(entry):
            if (note := self._refusals.skipped(entry)) is not None:
                context.note(note.level, note.what, **note.facts)
            if isinstance(message, str):
                return outcome
        self._measure(entry)
        log_ms = context.state.log_time_ms(entry.partition)
        self._reuse.see(message, log_ms, context.now, is_after_start=self._is_current)
        if message.group_id != self.settings.group_id or not self._is_current:
            return outcome
        if outcome is Outcome.PAUSED:
            self._pause(message)
        elif message.topic in self.settings.topics:
            place = TopicPartition(message.topic, message.partition)
            self._claiming.check(place)
            if outcome is Outcome.HEARTBEAT_REFUSED and place in self._partitions.holdings:
                self._warn_of(place, message)
            if outcome is Outcome.RELEASED and self._handoffs.is_successor(place):
                claim = self._partitions.consume_new_partition(place.topic, [place])
                self._launch(self._limited(claim))
        return outcome

    def _warn_of(self, place: TopicPartition, message: Heartbeat) -> None:
        """Report another that believes that it holds what we hold.

        One heartbeat of a former holder may land late. Who sends two judges the log otherwise than we do.
        """
        sender = message.instance_id
        if self._refused.get(place) == sender and sender not in self._reported:
            self._reported.add(sender)
            facts = {"topic": place.topic, "partition": place.partition, "other": message.client_id, "instance": sender}
            note = "two members hold a partition: their heartbeat intervals or rules differ"
            self._context.note(logging.WARNING, note, **facts)
        self._refused[place] = sender

    def _measure(self, entry: Entry) -> None:
        """Compare the sender's clock with the log's, or where that has none with ours."""
        if not (entry.is_append_time or self._is_current):
            return
        context, message = self._context, entry.message
        landed_ms = entry.time_ms if entry.is_append_time else context.wall_ms
        sender = context.clocks.measure(message.client_id, message.instance_id, message.time, landed_ms)
        if sender is not None:
            whose = "own" if sender.instance_id == self.settings.instance_id else sender.client_id
            facts = {"clock": whose, "instance": sender.instance_id, "ahead_ms": sender.ahead_ms}
            context.note(logging.WARNING, "clock skewed", **facts)

    def _pause(self, message: ReleaseGroup) -> None:
        """By the document a pause holds for the topics of its coordination partition."""
        paused = {topic for topic in self.settings.topics if self._context.is_paused(topic)}
        if paused:
            until = {"by": message.client_id, "until": message.msg_expire_time}
            self._context.note(logging.WARNING, "group paused", **until, topics=", ".join(sorted(paused)))
        for holding in self._claiming.all():
            if holding.place.topic in paused:
                holding.release(LossReason.PAUSED)

    def _yield_to(self, rival: str) -> None:
        if rival not in self._reported:
            self._reported.add(rival)
            self._context.note(logging.ERROR, "client id reused", instance=rival)
        for holding in self._claiming.all():
            holding.end(LossReason.CLIENT_ID_REUSED)

    def _answer(self, event: events.StartFound | events.StartFailed) -> None:
        self._context.procedures.answered(event.request, event, self._context.now)

    # ---- the application, and the topics

    def _topic_partitions(self, event: events.TopicPartitions) -> None:
        self._claiming.counts, self._claiming.ids = dict(event.counts), dict(event.ids)
        for holding in self._claiming.all():
            topic, partition = holding.place
            if partition >= event.counts.get(topic, 0):
                holding.fetch_failed(events.FetchFailed(holding.tenure, "the partition does not exist any more"))
            else:
                holding.topic_is(event.ids.get(topic, ""))

    def _release(self, event: events.Release) -> None:
        for holding in self._claiming.all():
            if holding.place == (event.topic, event.partition):
                holding.release(LossReason.RELEASED)


def _of_tenure(handle: Callable[[Holding, Any], None]) -> Callable[[MarshalMember, Any], None]:
    """Return the handler of an event of a tenure, which is dropped if that is over."""

    def handler(member: MarshalMember, event: Any) -> None:
        holding = member._claiming.of(event.tenure)
        if holding is not None:
            handle(holding, event)

    return handler


MarshalMember.handlers = {
    events.StartFound: MarshalMember._answer,
    events.StartFailed: MarshalMember._answer,
    events.Suspend: MarshalMember._suspend,
    events.TopicPartitions: MarshalMember._topic_partitions,
    events.Delivered: _of_tenure(Holding.delivered),
    events.Processed: _of_tenure(Holding.processed),
    events.Fetched: _of_tenure(Holding.fetched),
    events.Abandoned: _of_tenure(Holding.abandoned),
    events.FetchFailed: _of_tenure(Holding.fetch_failed),
    events.Release: MarshalMember._release,
}
