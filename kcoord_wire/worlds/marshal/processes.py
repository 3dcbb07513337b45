"""The processes of a virtual Marshal cluster: members with an application, and admins.

Laws:

* A machine's monotonic clock runs a little too fast or too slowly; its wall clock is off, and is set at times.
* What a process has sent lands, also if it is killed meanwhile; it reads nothing more then.
* Between a process that is cut off and the log nothing passes: what it appends is lost, what it reads comes later.
* A member gives its application records between `StartFetching` and `StopFetching`, and not while it is paused; when it
  resumes, its machine is first. Records at most once are given after `Deliver`.
* The application finishes records in any order, some of them late.
* ``positions``: the last position that an admin has written for a partition is the one that it reports: the new one for
  ``set``, the one from before for ``kept``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import kcoord_wire as kw
from kcoord_wire.kernel.machines import Ended, LogEvent, Machine, Tick
from kcoord_wire.kernel.virtual.clock import EPOCH_MS
from kcoord_wire.kernel.virtual.processes import Process
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.marshal import member_events as events
from kcoord_wire.marshal.admin import Admin, CommitPositions, Finished, Moved, PositionsCommitted, Result
from kcoord_wire.marshal.context import TopicPartition
from kcoord_wire.marshal.log import coordination_partition
from kcoord_wire.marshal.member import MarshalMember
from kcoord_wire.marshal.member_events import Delivery, LossReason, Tenure
from kcoord_wire.marshal.world_state import Entry
from kcoord_wire.worlds.marshal.conduct import Conduct
from kcoord_wire.worlds.marshal.marshal_laws import Fetching
from kcoord_wire.worlds.marshal.virtual_log import LATENCY_MS, Reader, VirtualLog

if TYPE_CHECKING:
    from kcoord_wire.worlds.marshal.marshal_world import MarshalCluster

LAG_MS: Final = (1, 60)
_MILLION: Final = 1_000_000


class LocalClock:
    """The clocks of a process.

    :param origin: of its monotonic clock
    :param ppm: by so many millionths its monotonic clock is too fast
    :ivar ahead_ms: how far its wall clock is ahead of the true time
    """

    def __init__(self, origin: int, ppm: int, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms
        self._origin = origin
        self._speed = _MILLION + ppm

    def monotonic(self, time_ms: int) -> int:
        """Return what its monotonic clock shows at a time."""
        return self._origin + (time_ms - EPOCH_MS) * self._speed // _MILLION

    def time_of(self, monotonic: int) -> int:
        """Return the first time at which its monotonic clock shows that, or more."""
        return EPOCH_MS - (self._origin - monotonic) * _MILLION // self._speed

    def wall(self, time_ms: int) -> events.WallClock:
        """Return what its machine has to know of its wall clock."""
        return events.WallClock(time_ms + self.ahead_ms - self.monotonic(time_ms))


class LocalMachine:
    """A machine that sees the monotonic clock of its process."""

    def __init__(self, machine: Machine, clock: LocalClock) -> None:
        self.machine = machine
        self._clock = clock

    @property
    def deadline(self) -> int | None:
        """When it wants the next `Tick`, by the true time."""
        deadline = self.machine.deadline
        return None if deadline is None else self._clock.time_of(deadline)

    def handle(self, event: Any, now: int) -> Sequence[Any]:
        """Take in an event at a true time."""
        return self.machine.handle(event, self._clock.monotonic(now))


class LogProcess(Process):
    """A process whose machine reads the log and appends to it.

    :param reads: coordination partitions
    :ivar local: its clocks
    :ivar reader: of the log
    """

    __slots__ = ("_has_ended", "_log", "local", "reader")

    def __init__(
        self,
        log: VirtualLog,
        name: str,
        machine: Machine,
        local: LocalClock,
        random: Random,
        lag_ms: tuple[int, int],
        reads: Collection[int],
    ) -> None:
        clock = log.clock
        super().__init__(clock, name, f"host-{name}", LocalMachine(machine, local), random)
        self.local = local
        self._log = log
        self._has_ended = False
        self.reader = Reader(clock, log, random, sorted(reads), lag_ms, self._see)
        self.deliver(local.wall(clock.time_ms))
        self.deliver(Tick())

    @property
    def is_working(self) -> bool:
        """Whether it is alive and has not ended."""
        return self.is_alive and not self._has_ended

    def _see(self, entries: Sequence[Entry]) -> None:
        self.deliver(events.Entries(entries))

    def set_clock(self, ahead_ms: int) -> None:
        """Set its wall clock."""
        self.local.ahead_ms = ahead_ms
        self.deliver(self.local.wall(self._clock.time_ms))

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants."""
        match effect:
            case events.Append():
                value = kw.encode(effect.message, 0)
                now = self._clock.time_ms
                cut = self.cut_until > now
                at_ms = now + self.local.ahead_ms
                self._log.append(
                    self.name, effect.partition, value, at_ms, effect.request, self.deliver, is_cut_off=cut
                )
            case events.ReadToEnd():
                self._read_to_end(effect)
            case LogEvent():
                self._clock.record(self.name, effect.what, dict(effect.facts))
            case Ended():
                self.end()

    def _read_to_end(self, effect: events.ReadToEnd) -> None:
        def reached(end: int) -> None:
            self.deliver(events.CaughtUp(effect.request, end))

        self.reader.read_to_end(effect.partition, reached)

    def handled(self) -> None:
        """Nothing is checked here: the laws look at entries, tenures and records."""

    def cut_off(self, ms: int) -> None:
        """Let nothing pass between it and the log for so long; what it appends meanwhile is lost."""
        super().cut_off(ms)
        self.reader.cut_until = self.cut_until

    def changed(self) -> None:
        """It was paused, resumed or killed."""
        if not self.is_alive:
            self.end()

    def end(self) -> None:
        """It has ended, or was killed: it reads nothing more."""
        self._has_ended = True
        self._clock.record(self.name, "ends")
        self.reader.close()


_DRAINS: Final = (LossReason.RELEASED, LossReason.HANDED_OVER, LossReason.PAUSED, LossReason.KEPT)
_FETCH_MS: Final = (20, 200)  # between fetches
_WORK_MS: Final = (0, 80)  # of the application on a record
_SLOW: Final = 0.02  # of the records take up to `_SLOWEST_MS`
_SLOWEST_MS: Final = 3_000
_BATCH: Final = 5  # records given at once
_MOST_OPEN: Final = 20  # records that the application works on


class _Found(NamedTuple):
    """Where a tenure may start.

    :ivar topic_id: of the topic that is there
    :ivar is_known: the log says which topic its position is of
    """

    topic_id: str
    is_known: bool


class MemberProcess(LogProcess):
    """A member's process.

    :ivar settings: of its machine
    :ivar fetching: what it fetches
    :ivar reads_all: nothing of the log was trimmed when it began
    """

    def __init__(
        self, world: MarshalCluster, name: str, settings: events.MemberSettings, local: LocalClock, random: Random
    ) -> None:
        self.settings = settings
        self.fetching: dict[Tenure, Fetching] = {}
        self._topics = world.topics
        self._invariants = world.invariants
        self._stopped: dict[Tenure, Fetching] = {}
        self._open = 0
        self._found: dict[TopicPartition, _Found] = {}
        reads = {coordination_partition(topic, world.log.partitions) for topic in settings.topics}
        self.reads_all = not any(world.log.first(partition) for partition in reads)
        self._member = MarshalMember(settings)
        self._conduct: Conduct | None = None
        self._event: Any = None
        if settings.ranges is None:
            self._conduct = Conduct(name, self._member.context, self.fetching, world.topics)
        super().__init__(world.log, name, self._member, local, random, LAG_MS, reads)
        self.learn_topics()

    def learn_topics(self) -> None:
        """It reads how many partitions the topics have."""
        counts = {topic: self._topics.counts.get(topic, 0) for topic in self.settings.topics}
        self.deliver(events.TopicPartitions(counts, dict(self._topics.ids)))

    # ---- the machine

    @property
    def _now(self) -> int:
        return self.local.monotonic(self._clock.time_ms)

    def deliver(self, event: Any) -> None:
        """See `Process.deliver`."""
        self._event = event
        super().deliver(event)

    def handled(self) -> None:
        """See `Process.handled`."""
        if self._conduct is not None:
            self._conduct.handled(self._event, self._now)

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants."""
        if self._conduct is not None and isinstance(effect, events.Append):
            self._conduct.appends(effect, self._now, self._clock.time_ms)
        match effect:
            case events.FindStart():
                self._clock.after(self.random.randint(*LATENCY_MS), self._find_start, effect)
            case events.StartFetching():
                self._start(effect.tenure, effect.offset, effect.end)
            case events.Deliver():
                self._give_batch(effect)
            case events.StopFetching():
                self._stop(effect)
            case events.CommitOffset():
                self._clock.after(self.random.randint(*LATENCY_MS), self._commit, effect)
            case _:
                super().carry_out(effect)

    def _find_start(self, effect: events.FindStart) -> None:
        topic, partition, _ = effect.tenure
        committed = self._topics.committed.get((self.settings.group_id, topic, partition))
        end, topic_id = self._topics.end(topic, partition), self._topics.ids[topic]
        place = TopicPartition(topic, partition)
        claim = self._member.context.claim(place)
        self._found[place] = _Found(topic_id, claim is not None and bool(claim.topic_id))
        self.deliver(events.StartFound(effect.request, 0, end, committed, topic_id))

    def _commit(self, effect: events.CommitOffset) -> None:
        topic, partition, _ = effect.tenure
        found = self._found.get(TopicPartition(topic, partition))
        if found is not None and found.topic_id == self._topics.ids[topic]:
            self._topics.committed[self.settings.group_id, topic, partition] = effect.offset

    def end(self) -> None:
        """It has ended, or was killed: it fetches and reads nothing."""
        super().end()
        for fetching in [*self.fetching.values()]:
            self._finish(fetching)

    # ---- the application

    def _start(self, tenure: Tenure, offset: int, end: int | None) -> None:
        self._clock.record(self.name, "fetches", (tenure, offset, end))
        found = self._found[TopicPartition(*tenure[:2])]
        if end is not None:
            found = found._replace(topic_id=self._topic_of(tenure))
        fetching = Fetching(self, tenure, *found, offset, end, self._clock.time_ms)
        self.fetching[tenure] = fetching
        if self._conduct is not None:
            self._conduct.starts(tenure, self._now)
        self._invariants.started(fetching)
        self._plan(fetching)

    def _topic_of(self, tenure: Tenure) -> str:
        """Return the id of the topic of which a range is."""
        state = self._member.context.ranges
        assert state is not None
        places = ((at, found) for at, found in state.places.items() if at.place[1:] == tenure[:2])
        claimed = ((at, held) for at, found in places for held in found.held.values())
        return next(at.topic_id for at, held in claimed if held.token == tenure.token)

    def _finish(self, fetching: Fetching) -> None:
        fetching.is_running = False
        del self.fetching[fetching.tenure]
        self._invariants.ended(fetching)

    def _stop(self, effect: events.StopFetching) -> None:
        self._clock.record(self.name, "stops", (effect.tenure, effect.why.value))
        fetching = self.fetching.get(effect.tenure)
        if fetching is not None:
            self._finish(fetching)
            self._stopped[effect.tenure] = fetching
        elif (fetching := self._stopped.pop(effect.tenure, None)) is None:
            raise ViolationError("tenures", f"{self.name} stops {effect.tenure}, which has not begun or has ended")
        if self._conduct is not None:
            self._conduct.stops(fetching, effect.why, self._now)
        fetching.drains_until = self.local.time_of(effect.deadline) if effect.why in _DRAINS else 0

    def _plan(self, fetching: Fetching) -> None:
        self._clock.after(self.random.randint(*_FETCH_MS), self._fetch, fetching)

    def _fetch(self, fetching: Fetching) -> None:
        if not fetching.is_running:
            return
        self._plan(fetching)
        if self.is_paused or self._open >= _MOST_OPEN:
            return
        topic, partition, _ = fetching.tenure
        if fetching.topic_id != self._topics.ids[topic]:
            return
        most = self.random.randint(1, _BATCH)
        offsets = list(self._topics.records(topic, partition, fetching.position, most))
        if fetching.end is not None:
            offsets = self._of_range(fetching, offsets, fetching.end)
        if self.settings.delivery is Delivery.AT_LEAST_ONCE:
            self._give(fetching, offsets)
        elif offsets and fetching.position >= fetching.asked:
            fetching.asked = offsets[-1] + 1
            self.deliver(events.Fetched(fetching.tenure, offsets[0], fetching.asked))

    def _of_range(self, fetching: Fetching, offsets: Sequence[int], end: int) -> list[int]:
        """Return those below the end of a range; if there will be none, say so."""
        below = [offset for offset in offsets if offset < end]
        if not below and fetching.position < end <= self._topics.end(*fetching.tenure[:2]):
            fetching.position = end
            self.deliver(events.Delivered(fetching.tenure, [], end))
        return below

    def _give(self, fetching: Fetching, offsets: Sequence[int]) -> None:
        if not offsets:
            return
        for offset in offsets:
            self._invariants.given(fetching, offset)
            longest = _SLOWEST_MS if self.random.random() < _SLOW else _WORK_MS[1]
            self._clock.after(self.random.randint(_WORK_MS[0], longest), self._processed, fetching, offset)
        self._open += len(offsets)
        fetching.position = offsets[-1] + 1
        self.deliver(events.Delivered(fetching.tenure, offsets, fetching.position))

    def _processed(self, fetching: Fetching, offset: int) -> None:
        if self.is_paused:
            self._clock.after(_FETCH_MS[0], self._processed, fetching, offset)
            return
        self._open -= 1
        is_in_time = fetching.is_running or self._clock.time_ms < fetching.drains_until
        if is_in_time and self.is_working:
            self._invariants.processed(fetching, offset)
            self.deliver(events.Processed(fetching.tenure, [offset]))

    def _give_batch(self, effect: events.Deliver) -> None:
        fetching = self.fetching.get(effect.tenure)
        if fetching is None or effect.end != fetching.asked:
            raise ViolationError("tenures", f"{self.name}: {effect} without a batch that waits")
        for offset in range(fetching.position, effect.end):
            if self._topics.is_record(offset):
                self._invariants.given(fetching, offset)
        fetching.position = effect.end


class AdminProcess(LogProcess):
    """An admin's process; it ends by itself.

    :ivar finished: what it has reported; None before
    """

    def __init__(self, world: MarshalCluster, name: str, admin: Admin, local: LocalClock, random: Random) -> None:
        self.finished: Finished | None = None
        self._admin = admin
        self._topics = world.topics
        self._invariants = world.invariants
        super().__init__(world.log, name, admin, local, random, LAG_MS, admin.reads)

    def carry_out(self, effect: Any) -> None:
        """Do what the machine wants."""
        match effect:
            case CommitPositions():
                self._clock.after(self.random.randint(*LATENCY_MS), self._commit, effect)
            case Finished():
                self.finished = effect
                self._clock.record(self.name, "finishes", effect)
                for moved in effect.positions:
                    self._check(moved)
            case _:
                super().carry_out(effect)

    def _commit(self, effect: CommitPositions) -> None:
        for place, offset in effect.offsets.items():
            self._topics.committed[self._admin.settings.group_id, *place] = offset
        self.deliver(PositionsCommitted(effect.request))

    def _check(self, moved: Moved) -> None:
        settings = self._admin.settings
        written = self._invariants.written_by(settings.instance_id, settings.group_id, *moved.place)
        expected = {Result.SET: moved.new, Result.KEPT: moved.old}.get(moved.result)
        if written is not None and expected is not None and written != expected:
            raise ViolationError("positions", f"{self.name} reports {moved}, and has written {written}")
