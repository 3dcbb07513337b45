"""The coordination log of a virtual cluster, and the topics that members consume.

Laws:

* Each reader of a partition of the log gets the same entries in the same order, and none twice.
* The time of an entry is that of the broker which leads the partition at the moment (LogAppendTime), or that of the
  writer (CreateTime).
* Entries of one writer land in the order of its calls; only one whose append has failed may land after later ones.
* An entry's text is decoded once; readers share the result, and none changes it.
* A partition of a topic begins with offset 0 and grows by a constant rate from the moment at which it was added. A
  topic with holes has no record at each tenth offset, as after a transaction or a compaction.
* A topic that is created again has another id. Fetches name the id, as from Fetch 13 on: none reads a topic of the same
  name.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from kcoord_wire.kernel.virtual.clock import VirtualClock
from kcoord_wire.kernel.virtual.scripts import choose
from kcoord_wire.marshal.log import Appended, AppendFailed, RawEntry
from kcoord_wire.marshal.values import read_entry
from kcoord_wire.marshal.world_state import Entry

_HOLE_EACH: Final = 10
_MS: Final = 1000


class VirtualTopics:
    """Topics, and the offsets that groups have committed.

    :param counts: name to number of partitions
    :param rate: offsets a second of each partition
    :param has_holes: whether some offsets have no record
    :ivar counts: as they are now
    :ivar ids: of the topics
    :ivar committed: by group, topic and partition
    """

    def __init__(self, clock: VirtualClock, counts: Mapping[str, int], rate: float, *, has_holes: bool) -> None:
        self.counts: dict[str, int] = {}
        self.ids: dict[str, str] = {}
        self._times = 1
        self.committed: dict[tuple[str, str, int], int] = {}
        self._clock = clock
        self._rate = rate
        self._has_holes = has_holes
        self._since: dict[tuple[str, int], int] = {}
        for topic, count in counts.items():
            self.grow(topic, count)

    def grow(self, topic: str, count: int) -> None:
        """Add partitions of a topic, or create it."""
        before = self.counts.get(topic, 0)
        self.ids.setdefault(topic, f"{topic}-1")
        self.counts[topic] = before + count
        for number in range(before, before + count):
            self._since[topic, number] = self._clock.time_ms

    def recreate(self, topic: str) -> None:
        """Delete a topic, with the offsets that groups have committed, and create it again."""
        self._times += 1
        self.ids[topic] = f"{topic}-{self._times}"
        for place in [place for place in self.committed if place[1] == topic]:
            del self.committed[place]
        for number in range(self.counts[topic]):
            self._since[topic, number] = self._clock.time_ms

    @property
    def has_recreated(self) -> bool:
        """Whether any topic was created again."""
        return self._times > 1

    def end(self, topic: str, partition: int) -> int:
        """Return the offset behind the last record."""
        return int((self._clock.time_ms - self._since[topic, partition]) * self._rate / _MS)

    def records(self, topic: str, partition: int, start: int, most: int) -> Iterator[int]:
        """Yield the offsets of the records from `start` on, at most so many."""
        end = self.end(topic, partition)
        while start < end and most > 0:
            if self.is_record(start):
                most -= 1
                yield start
            start += 1

    def is_record(self, offset: int) -> bool:
        """Return whether there is a record at an offset below the end."""
        return not self._has_holes or offset % _HOLE_EACH != _HOLE_EACH - 1


LATENCY_MS: Final = (1, 20)
_CHUNK: Final = 200  # entries that a reader gets at once when it catches up


class Fate(enum.StrEnum):
    """What becomes of an append."""

    LANDS = "lands"
    TWICE = "lands twice"
    UNANSWERED = "lands, the answer is lost"
    LATE = "times out and lands later"
    LOST = "times out and is lost"
    REFUSED = "is refused"


_FATES: Final = (
    (50, Fate.LANDS),
    (15, Fate.TWICE),
    (10, Fate.UNANSWERED),
    (10, Fate.LATE),
    (10, Fate.LOST),
    (5, Fate.REFUSED),
)
_LANDS: Final = (Fate.LANDS, Fate.TWICE, Fate.UNANSWERED)
_FAILS: Final = (Fate.UNANSWERED, Fate.LATE, Fate.LOST, Fate.REFUSED)


@dataclass(frozen=True, slots=True)
class Trouble:
    """How appends go at the moment.

    :ivar until_ms: of the clock; later all of them land
    :ivar delay_ms: the most that an append takes on its way to the broker
    :ivar fates: how often each happens, in percent
    """

    until_ms: int = 0
    delay_ms: int = 0
    fates: Sequence[tuple[int, Fate]] = _FATES


@dataclass(slots=True)
class _Partition:
    """One partition: all entries that it ever had, and the first that retention has left."""

    entries: list[Entry] = field(default_factory=list)
    first: int = 0
    leader: int = 0


class VirtualLog:
    """A coordination topic.

    :param partitions: how many it has
    :param clocks_ms: by broker, how far its clock is ahead
    :param is_append_time: LogAppendTime; False for CreateTime
    :param timeout_ms: after which an append without an answer has failed
    :param on_append: called with each entry that lands, before a reader sees it
    :param latency_ms: least and most that a message takes to a broker or back
    :ivar clock: as given
    :ivar trouble: of appends
    """

    def __init__(
        self,
        clock: VirtualClock,
        random: Random,
        partitions: int,
        clocks_ms: Sequence[int],
        timeout_ms: int,
        on_append: Callable[[Entry], None],
        *,
        is_append_time: bool = True,
        latency_ms: tuple[int, int] = LATENCY_MS,
    ) -> None:
        self.clock = clock
        self.partitions = partitions
        self.latency_ms = latency_ms
        self.clocks_ms = list(clocks_ms)
        self.is_append_time = is_append_time
        self.trouble = Trouble()
        self._random = random
        self._timeout_ms = timeout_ms
        self._on_append = on_append
        self._logs = [_Partition() for _ in range(partitions)]
        self._readers: dict[Reader, None] = {}
        self._lands_at: dict[tuple[str, int], int] = {}  # the last entry of a writer

    # ---- appending

    def append(
        self,
        writer: str,
        partition: int,
        value: bytes | None,
        time_ms: int,
        request: int = 0,
        done: Callable[[Appended | AppendFailed], None] | None = None,
        *,
        is_cut_off: bool = False,
    ) -> None:
        """Send an entry to the partition's leader; `done` is called later, once.

        :param time_ms: by the writer's clock, for CreateTime
        :param is_cut_off: nothing reaches the leader
        """
        trouble, random, now = self.trouble, self._random, self.clock.time_ms
        is_troubled = now < trouble.until_ms
        fate = choose(random, trouble.fates) if is_troubled else Fate.LANDS
        fate = Fate.LOST if is_cut_off else fate
        up = random.randint(*self.latency_ms) + (random.randint(0, trouble.delay_ms) if is_troubled else 0)
        if fate in _FAILS and done is not None:
            after = up if fate is Fate.REFUSED else self._timeout_ms
            failed = AppendFailed(request, fate.value, may_have_landed=fate is not Fate.REFUSED)
            self.clock.after(after, done, failed)
            done = None
        if fate is Fate.LATE:
            self.clock.at(now + self._timeout_ms + up, self._land, partition, value, time_ms, request, done)
        elif fate in _LANDS:
            at = max(self._lands_at.get((writer, partition), 0), now + up)
            self._lands_at[writer, partition] = at
            self.clock.at(at, self._land, partition, value, time_ms, request, done)
            if fate is Fate.TWICE:
                at += random.randint(0, self._timeout_ms)
                self.clock.at(at, self._land, partition, value, time_ms, request, None)

    def _land(
        self,
        partition: int,
        value: bytes | None,
        time_ms: int,
        request: int,
        done: Callable[[Appended | AppendFailed], None] | None,
    ) -> None:
        log = self._logs[partition]
        if self.is_append_time:
            time_ms = self.clock.time_ms + self.clocks_ms[log.leader]
        offset = len(log.entries)
        entry = read_entry(RawEntry(partition, offset, time_ms, self.is_append_time, value))
        log.entries.append(entry)
        self.clock.record(f"log-{partition}", "appends", entry)
        self._on_append(entry)
        for reader in self._readers:
            reader.expect(partition, offset + 1)
        if done is not None:
            self.clock.after(self._random.randint(*self.latency_ms), done, Appended(request, offset))

    # ---- brokers

    def lead(self, partition: int, broker: int) -> None:
        """Make a broker the leader of a partition: its clock counts from now on."""
        self._logs[partition].leader = broker

    def trim(self, before_ms: int) -> None:
        """Remove the entries that were appended before that time, by the leader's clock."""
        for log in self._logs:
            while log.first < len(log.entries) and log.entries[log.first].time_ms < before_ms:
                log.first += 1

    # ---- reading

    def first(self, partition: int) -> int:
        """Return the offset of the first entry that is still there."""
        return self._logs[partition].first

    def end(self, partition: int) -> int:
        """Return the offset behind the last entry."""
        return len(self._logs[partition].entries)

    def entries(self, partition: int, start: int, end: int) -> Sequence[Entry]:
        """Return entries, also those that were trimmed."""
        return self._logs[partition].entries[start:end]

    def read(self, reader: Reader) -> None:
        """Let a reader have the entries, from the first one that is still there."""
        self._readers[reader] = None

    def forget(self, reader: Reader) -> None:
        """A reader has ended."""
        self._readers.pop(reader, None)


class Reader:
    """Reads partitions from their start on, each entry some time after it was appended.

    :param see: called with new entries of one partition
    :ivar lag_ms: least and most that an entry takes to the reader
    :ivar cut_until: until when nothing reaches it, in ms since the Unix epoch
    """

    def __init__(
        self,
        clock: VirtualClock,
        log: VirtualLog,
        random: Random,
        partitions: Collection[int],
        lag_ms: tuple[int, int],
        see: Callable[[Sequence[Entry]], None],
    ) -> None:
        self.lag_ms = lag_ms
        self.cut_until = 0
        self._clock = clock
        self._log = log
        self._random = random
        self._see = see
        self._next = {partition: log.first(partition) for partition in partitions}
        self._arrives_at = dict.fromkeys(partitions, 0)
        self._asked: list[tuple[int, int, Callable[[int], None]]] = []
        self._is_open = True
        for partition, start in self._next.items():
            end = log.end(partition)
            for middle in range(start + _CHUNK, end, _CHUNK):
                self.expect(partition, middle)
            if end > start:
                self.expect(partition, end)
        log.read(self)

    def close(self) -> None:
        """Read nothing more."""
        self._is_open = False
        self._log.forget(self)

    def expect(self, partition: int, end: int) -> None:
        """Entries below `end` are there: see them after the lag."""
        if partition in self._next:
            at = max(self._arrives_at[partition], self._clock.time_ms + self._random.randint(*self.lag_ms))
            self._arrives_at[partition] = at
            self._clock.at(at, self._arrive, partition, end)

    def _arrive(self, partition: int, end: int) -> None:
        if self.cut_until > self._clock.time_ms:
            self._clock.at(self.cut_until, self._arrive, partition, end)
            return
        start = self._next[partition]
        if end <= start or not self._is_open:
            return
        self._next[partition] = end
        self._see(self._log.entries(partition, start, end))
        waiting, self._asked = self._asked, []
        for asked in waiting:
            self._answer(*asked)

    def read_to_end(self, partition: int, done: Callable[[int], None]) -> None:
        """Call `done` with the present end of a partition when everything below it was seen."""
        self._clock.after(self._random.randint(*self._log.latency_ms), self._ask_end, partition, done)

    def _ask_end(self, partition: int, done: Callable[[int], None]) -> None:
        if self.cut_until > self._clock.time_ms:
            self._clock.at(self.cut_until, self._ask_end, partition, done)
        elif self._is_open:
            self._answer(partition, self._log.end(partition), done)

    def _answer(self, partition: int, end: int, done: Callable[[int], None]) -> None:
        if self._next[partition] >= end:
            done(end)
        else:
            self._asked.append((partition, end, done))
