"""What the machines on a coordination log share: the world state, time, messages, and the ways in and out.

Laws:

* The stamp of a message is the wall clock in whole seconds, rounded down: never ahead of it. One exception: within a
  tenure it does not go back below the stamp of its claim, if the wall clock was set back.
* A claim is stamped later than every earlier message of this member about the partition (`can_claim_now`), so that
  readers recognise late ones.
* A sender's clock is measured against the broker's append times; where the topic has none, against the reader's clock,
  by what lands while it reads. One late landing does not make it slow: of the last two messages the one that landed
  sooner counts.
* Times in messages are whole seconds, rounded down, so a right clock measures between 0 and -1,000 ms less the time to
  land; what is reported is beyond that.
* Fences are run before anything else in `LogMachine.handle`: what arrives after a pause of the process finds the
  tenures over.

Sources: the Go library reads a claim that was stamped ahead of the reader's clock as none, and judges by the reader's
clock whether one is live.
"""

from __future__ import annotations

import zlib
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

from kcoord_wire.kernel.machines import Ended, LogEvent, Machine, Shutdown, Tick
from kcoord_wire.kernel.procedures import Procedure, Procedures
from kcoord_wire.kernel.timers import Timers
from kcoord_wire.marshal.log import Appended, AppendFailed, coordination_partition
from kcoord_wire.marshal.member_events import CaughtUp, Delivery, Entries, MemberSettings, WallClock
from kcoord_wire.marshal.ranges import RangeState
from kcoord_wire.marshal.world_state import Certainty, Claim, Entry, Outcome, Place, Rules, WorldState
from kcoord_wire.messages.marshal import Presence

_ROUNDING_MS: Final = 1_000


@dataclass(slots=True)
class SenderClock:
    """The clock of one instance.

    :ivar ahead_ms: of the log's clock; negative for behind
    :ivar is_reported: it was beyond the limit once
    """

    client_id: str
    instance_id: str
    ahead_ms: int
    is_reported: bool = False
    last_ms: int = 0

    @property
    def off_ms(self) -> int:
        """What rounding cannot explain of `ahead_ms`; 0 for a right clock."""
        return max(self.ahead_ms, 0) + min(self.ahead_ms + _ROUNDING_MS, 0)


class Clocks:
    """The clocks of all senders that were measured.

    :param limit_ms: from this difference on a clock is reported
    :ivar senders: by instance id
    """

    def __init__(self, limit_ms: int) -> None:
        self._limit_ms = limit_ms
        self.senders: dict[str, SenderClock] = {}

    def surely_ahead_ms(self, instance_id: str) -> int:
        """Return how far a sender's clock is ahead at least; 0 if it is not, or was not measured: what looks slow may
        have landed late."""
        sender = self.senders.get(instance_id)
        return 0 if sender is None else max(0, sender.ahead_ms)

    def measure(self, client_id: str, instance_id: str, time_s: int, landed_ms: int) -> SenderClock | None:
        """Take in a message; return its sender if it is to be reported now, which happens once.

        :param time_s: in the message
        :param landed_ms: by the clock to compare with
        """
        measured = time_s * 1_000 - landed_ms
        sender = self.senders.get(instance_id)
        is_second = sender is not None
        if sender is None:
            sender = self.senders[instance_id] = SenderClock(client_id, instance_id, measured, last_ms=measured)
        sender.ahead_ms, sender.last_ms = max(sender.last_ms, measured), measured
        is_slow = is_second and sender.ahead_ms + _ROUNDING_MS <= -self._limit_ms
        if sender.is_reported or not (is_slow or sender.ahead_ms >= self._limit_ms):
            return None
        sender.is_reported = True
        return sender


_RETRIES_PER_INTERVAL: Final = 20


class TopicPartition(NamedTuple):
    """A partition that the group consumes."""

    topic: str
    partition: int


class Context:
    """One member.

    :ivar now: of the present event, ms
    :ivar ahead_ms: of the wall clock before `now`
    :ivar fences: of the tenures; they are run before anything else
    :ivar effects: of the present event
    :ivar ranges: of a member that claims ranges
    :raises ValueError: the heartbeat interval is not a number of whole seconds, which times in messages are; the member
        balances without presence; or it claims ranges, and other settings do not go with that
    """

    def __init__(self, settings: MemberSettings) -> None:
        interval_s, rest = divmod(settings.heartbeat_interval_ms, 1_000)
        if interval_s < 1 or rest:
            raise ValueError(f"a heartbeat interval has whole seconds, not {settings.heartbeat_interval_ms} ms")
        if settings.balance is not None and not settings.presence:
            raise ValueError("a member that balances sends Presence, or no other gives to it")
        _check_ranges(settings)
        self.settings = settings
        self.interval_ms = settings.heartbeat_interval_ms
        self.retry_ms = self.interval_ms // _RETRIES_PER_INTERVAL
        self.state = WorldState(settings.rules, interval_s, settings.partitions)
        self.ranges = None if settings.ranges is None else RangeState(self.state)
        self.clocks = Clocks(settings.skew_ms)
        self.now = 0
        self.ahead_ms = 0
        self.fences = Timers()
        self.effects: list[Any] = []
        self.procedures = Procedures(self._ask)
        self.read_at: dict[int, int] = {}
        self._coordinating: dict[str, int] = {}
        self._stamps: dict[Hashable, int] = {}
        self._drawn = 0

    # ---- the ways out

    def emit(self, effect: Any) -> None:
        """Add an effect."""
        self.effects.append(effect)

    def note(self, level: int, what: str, **facts: Any) -> None:
        """Add a `LogEvent`."""
        who = {"group": self.settings.group_id, "client": self.settings.client_id}
        self.effects.append(LogEvent(level, what, who | facts))

    def _ask(self, token: int, request: Any) -> None:
        request.request = token
        self.effects.append(request)

    # ---- time

    @property
    def wall_ms(self) -> int:
        """Of the wall clock."""
        return self.now + self.ahead_ms

    def jitter(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`, another one each time and for each instance."""
        self._drawn += 1
        drawn = zlib.crc32(f"{self.settings.instance_id} {self._drawn}".encode())
        return low + drawn % (high - low + 1)

    def log_now(self, coordinating: int) -> int:
        """Return the time by which to judge claims now (`WorldState.is_claimed`).

        By the document the log decides, by the time at which the next entry is appended. That is estimated: the last
        entry's time and what has passed since, or the wall clock less what it is surely ahead. A wrong estimate costs
        an entry that is refused.
        """
        if self.settings.rules is Rules.LIBRARY:
            return self.wall_ms // 1_000
        return self.log_ms(coordinating)

    def log_ms(self, coordinating: int) -> int:
        """Return the log's time: that which the next entry is likely to be appended at."""
        wall_ms = self.wall_ms - self.clocks.surely_ahead_ms(self.settings.instance_id)
        return max(self._read_ms(coordinating), wall_ms)

    def _read_ms(self, coordinating: int) -> int:
        """Return the log's time by what was read: that of the last entry, and what has passed since."""
        passed = self.now - self.read_at.get(coordinating, self.now)
        return self.state.log_time_ms(coordinating) + passed

    # ---- messages

    def coordinating(self, topic: str) -> int:
        """Return the coordination partition of a topic."""
        found = self._coordinating.get(topic)
        if found is None:
            found = self._coordinating[topic] = coordination_partition(topic, self.settings.partitions)
        return found

    def can_claim_now(self, about: Hashable) -> bool:
        """Return whether a claim would be stamped later than what this member has sent about a partition or range."""
        return self.wall_ms // 1_000 > self._stamps.get(about, -1)

    def forget(self, about: Hashable) -> None:
        """A range is claimed never again."""
        self._stamps.pop(about, None)

    def message(
        self, kind: type, place: TopicPartition, *, not_before: int = 0, about: Hashable = None, **fields: Any
    ) -> Any:
        """Return a message about a partition, stamped now.

        :param not_before: stamp of the tenure's claim
        :param about: what `can_claim_now` asks for; None for the partition
        """
        time = max(self.wall_ms // 1_000, not_before)
        about = place if about is None else about
        self._stamps[about] = max(time, self._stamps.get(about, time))
        return kind(time=time, **self._who(), topic=place.topic, partition=place.partition, **fields)

    def presence(self, topic: str, max_claims: int) -> Presence:
        """Return a message that says how many partitions of a topic this member takes."""
        return Presence(time=self.wall_ms // 1_000, **self._who(), topic=topic, max_claims=max_claims)

    def _who(self) -> Mapping[str, Any]:
        settings = self.settings
        return {
            "instance_id": settings.instance_id,
            "client_id": settings.client_id,
            "group_id": settings.group_id,
        }

    # ---- the world state

    def claim(self, place: TopicPartition) -> Claim | None:
        """Return what the log says of a partition; None if nothing."""
        return self.state.claims.get(Place(self.settings.group_id, *place))

    def live_claim(self, place: TopicPartition) -> Claim | None:
        """Return the claim of a partition, if there is one that counts now."""
        claim = self.claim(place)
        is_live = claim is not None and self.state.is_claimed(claim, self.log_now(self.coordinating(place.topic)))
        return claim if is_live else None

    def own_claim(self, place: TopicPartition) -> Claim | None:
        """Return the claim of a partition, if it counts and is of this instance."""
        claim = self.live_claim(place)
        return claim if claim is not None and claim.instance_id == self.settings.instance_id else None

    def is_warm(self, topic: str) -> bool:
        """Return whether all that counts about a topic is known (`WorldState.is_warm`); the library never asks."""
        if self.settings.rules is Rules.LIBRARY:
            return True
        coordinating = self.coordinating(topic)
        return self.state.is_warm(coordinating, self.log_now(coordinating))

    def reserved_for(self, claim: Claim) -> str | None:
        """Return the instance that a released partition was handed over to, while others leave it alone."""
        return self.state.reserved_for(claim, self.log_ms(self.coordinating(claim.place.topic)))

    def is_uncertain(self, claim: Claim) -> bool:
        """Return whether the log is trimmed so that another may hold it than is known: a claim that was won now would
        not be seen as such, and what a former holder has sent, and lands late, is taken for the holder's.

        The wall clock is not looked at: a claim that is sent too early is an entry about the place, and puts off the
        time from which on it is certain. With a clock ahead that would go on for ever.
        """
        silent_ms = self._read_ms(self.coordinating(claim.place.topic)) - claim.touched_ms
        return claim.certainty in (Certainty.GUESSED, Certainty.INFERRED) and silent_ms <= 2 * self.interval_ms

    def is_paused(self, topic: str) -> bool:
        """Return whether the group is paused (ReleaseGroup)."""
        coordinating = self.coordinating(topic)
        return self.state.is_paused(self.settings.group_id, coordinating, self.log_now(coordinating))


def _check_ranges(settings: MemberSettings) -> None:
    """Raise ValueError if a member that claims ranges has settings that do not go with that."""
    ranges = settings.ranges
    if ranges is None:
        return
    if ranges.size < 1 or ranges.ahead < 1:
        raise ValueError("a range has an offset or more, and a member a range or more")
    if settings.rules is not Rules.DOCUMENT or settings.delivery is not Delivery.AT_LEAST_ONCE:
        raise ValueError("ranges are judged by the rules of the document, and delivered at least once")
    if settings.presence or settings.max_claims or settings.greedy:
        raise ValueError("presence, balance, max_claims and greedy are of claims of partitions, not of ranges")


class LogMachine(Machine):
    """What runs on a coordination log. The first `WallClock` starts it.

    :cvar handlers: of events besides those of the log
    """

    handlers: ClassVar[Mapping[type, Callable[[Any, Any], None]]] = {}

    def __init__(self, settings: MemberSettings) -> None:
        self._context = Context(settings)
        self._has_begun = self._has_ended = False

    @property
    def context(self) -> Context:
        """The world state and the senders' clocks, for status."""
        return self._context

    @property
    def deadline(self) -> int | None:
        """See `machines.Machine`."""
        ends = (self._context.procedures.deadline, self._context.fences.next)
        return None if self._has_ended else min((end for end in ends if end is not None), default=None)

    def handle(self, event: Any, now: int) -> Sequence[Any]:
        """See `machines.Machine`."""
        context = self._context
        context.now, context.effects = now, []
        if not self._has_ended:
            context.fences.run_due(now)
            kind = type(event)
            if kind in _ANSWERS:
                context.procedures.answered(event.request, event, now)
            elif kind is Entries:
                self._entries(event)
            elif kind is WallClock:
                self._wall_clock(event)
            elif kind is Shutdown:
                self._shutdown()
            elif kind is not Tick:  # for which what follows does what is due
                self.handlers[kind](self, event)
            context.procedures.advance(now)
        return context.effects

    @abstractmethod
    def _begin(self) -> None:
        """Start the procedures."""

    @abstractmethod
    def _shutdown(self) -> None:
        """The application wants to end."""

    def _launch(self, procedure: Procedure) -> Procedure:
        return self._context.procedures.start(procedure, self._context.now)

    def _end(self) -> None:
        self._has_ended = True
        self._context.emit(Ended())

    def _wall_clock(self, event: WallClock) -> None:
        self._context.ahead_ms = event.ahead_ms
        if not self._has_begun:
            self._has_begun = True
            self._begin()

    def _entries(self, event: Entries) -> None:
        for entry in event.entries:
            self._entry(entry)

    def _entry(self, entry: Entry) -> Outcome:
        """Apply an entry to the world state."""
        context = self._context
        outcome = context.state.apply(entry, context.wall_ms // 1_000)
        if context.ranges is not None:
            context.ranges.apply(entry)
        context.read_at[entry.partition] = context.now
        return outcome


_ANSWERS: Final = frozenset({Appended, AppendFailed, CaughtUp})
