"""Where a member's records come from, and how they reach its application. No IO, no clock, no thread.

Laws of every `DataTopics`:

* The records of a tenure come in order of offset, from its start on, each once, until `DataTopics.stop`; then none.
* `DataRecord.covers_from` to `DataRecord.next_offset` of a tenure's records leave no gap: markers of transactions and
  removed records count to the record behind them. So the contiguous processed prefix never waits for an offset that
  has no record.
* A topic that was deleted and created again under its name has another id, where the broker has ids
  (`TopicPartitions.ids`, `StartFound.topic_id`): a position of the former one is none of this.
* What is fetched ahead is bounded in bytes, also while tenures are paused.
* No method but `poll` waits, and that no longer than it may; answers come from `poll`.

Laws of `Inbox`:

* A record is handed out only while its tenure is open, at most once: with the end of the tenure, what waits is dropped.
* Notices (`Gained`, `Lost`) are handed out in the order in which things have happened, before and behind the records of
  their tenure.
* At least once: what was handed out and what was processed goes to the machine, in this order; what was only fetched
  does not, so that a draining tenure does not wait for it.
* At most once: a batch waits until the machine has committed it (`committed`), and the next one is proposed when the
  application has taken the one before. So the end of a tenure costs one batch at most.

Sources: Marshal PROTOCOL.md, "At Most Once (AMO)" and "At Least Once (ALO)"; the Go library's order of offsets (log,
committed, earliest), and its issue #35, an offset beyond the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from kcoord_wire.kernel.machines import LogEvent
from kcoord_wire.marshal.member_events import (
    Abandoned,
    Delivered,
    Delivery,
    Fetched,
    FetchFailed,
    FindStart,
    LossReason,
    Processed,
    Reset,
    StartFailed,
    StartFound,
    Tenure,
    TopicPartitions,
)


class TopicsError(OSError):
    """The topics cannot be used: they are not there, or no broker answers, or one refuses."""


class DataRecord(NamedTuple):
    """A record of a topic that a tenure consumes.

    :ivar covers_from: the offset behind the tenure's former record, or where the tenure has started; below `offset` if
        there is a gap
    :ivar time_ms: ms since the Unix epoch; -1 for none
    """

    tenure: Tenure
    offset: int
    covers_from: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()

    @property
    def topic(self) -> str:
        """Of the record."""
        return self.tenure.topic

    @property
    def partition(self) -> int:
        """Of the record."""
        return self.tenure.partition

    @property
    def token(self) -> int:
        """The fencing token: see `member_events.Tenure`."""
        return self.tenure.token

    @property
    def next_offset(self) -> int:
        """The position of a group that has processed this record."""
        return self.offset + 1


class Covered(NamedTuple):
    """A range has no record more below its end."""

    tenure: Tenure
    end: int


DataEvent = DataRecord | Covered | StartFound | StartFailed | FetchFailed | TopicPartitions | LogEvent
"""What `DataTopics.poll` returns: records for the application, `LogEvent` for the log, the others for the machine."""


class DataTopics(Protocol):
    """The topics of one member of one group. Not safe for several threads."""

    def poll(self, seconds: float) -> Sequence[DataEvent]:
        """Return what has come; wait up to so long for the first. A bounded number of records in one call.

        `TopicPartitions` comes first, and again when a count or an id has changed.
        """

    def find_start(self, request: FindStart) -> None:
        """Find where a tenure may start; `StartFound` or `StartFailed` comes from `poll`."""

    def start(self, tenure: Tenure, offset: int) -> None:
        """Fetch a tenure's records from an offset on. A former tenure of the partition ends."""

    def stop(self, tenure: Tenure) -> None:
        """Fetch nothing more of a tenure; nothing happens if it has ended."""

    def pause(self, tenure: Tenure) -> None:
        """Let `poll` return nothing more of a tenure until `resume`: the application is behind."""

    def resume(self, tenure: Tenure) -> None:
        """End a `pause`."""

    def commit(self, tenure: Tenure, offset: int) -> None:
        """Commit the group's offset, for lag tools and as the start when the log has none; best effort, no answer."""

    def end(self, tenure: Tenure) -> int:
        """Return the offset behind the partition's last record, as last heard; -1 before anything was heard."""

    def close(self) -> None:
        """Deliver the commits, then release everything."""


class Start(NamedTuple):
    """Where a tenure starts, within what the partition has.

    :ivar note: why it is not the wanted offset; empty if it is
    :ivar is_reset: the position was none of this partition: `Reset` has chosen another, which may be below it
    """

    offset: int
    note: str = ""
    is_reset: bool = False


def choose_start(
    from_log: int,
    committed: int | None,
    low: int,
    end: int,
    reset: Reset = Reset.EARLIEST,
    *,
    is_replaced: bool = False,
) -> Start:
    """Return where to start in a partition.

    :param from_log: next offset by the coordination log; 0 for unknown
    :param committed: by the group in Kafka; None for none
    :param low: the first offset that is there
    :param end: the offset behind the last one
    :param reset: where, if the position is none of this partition
    :param is_replaced: the position is that of another topic, which had the same name
    """
    wanted = from_log if from_log > 0 else committed
    if wanted is None or wanted < 0:
        return Start(low)
    source = "the log's offset" if from_log > 0 else "the group's committed offset"
    other = low if reset is Reset.EARLIEST else end
    if is_replaced:
        return Start(other, f"{source} {wanted} is of a topic that was deleted, and created again", is_reset=True)
    if wanted > end:
        return Start(other, f"{source} {wanted} is above the end, {end}", is_reset=True)
    if wanted < low:
        return Start(low, f"{source} {wanted} is below the first record, {low}: {low - wanted} offsets were removed")
    return Start(wanted)


MOST_WAITING: Final = 1_000
"""Records that wait for the application before no more are fetched."""


class Gained(NamedTuple):
    """A tenure has begun: its records follow, from this offset on."""

    tenure: Tenure
    offset: int


class Lost(NamedTuple):
    """A tenure is over; none of its records follows.

    :ivar processed_until: until when records that were handed out may still be `Inbox.processed`, in ms of the machine
    """

    tenure: Tenure
    why: LossReason
    processed_until: int


@dataclass(slots=True)
class _Open:
    """A tenure whose records are handed out.

    :ivar waiting: records that may be handed out and were not yet
    :ivar fetched: at most once: records whose batch was not yet committed
    :ivar proposed: how many of them are the batch that the machine commits now
    :ivar in_hand: at least once: offsets that were handed out and not yet processed
    :ivar handed: offsets that were handed out since the last `Inbox.news`
    :ivar processed: likewise, that were processed
    :ivar end: offset behind the last one that was handed out, or of the range
    :ivar is_covered: the end of the range is to be reported, though no record was handed out
    """

    waiting: int = 0
    fetched: deque[DataRecord] = field(default_factory=deque)
    proposed: int = 0
    in_hand: set[int] = field(default_factory=set)
    handed: list[int] = field(default_factory=list)
    processed: list[int] = field(default_factory=list)
    end: int = 0
    is_covered: bool = False


class Inbox:
    """See the module.

    :param batch_records: of a batch at most, at most once
    :ivar is_at_most_once: which delivery it is
    """

    def __init__(self, delivery: Delivery, batch_records: int) -> None:
        self.is_at_most_once = delivery is Delivery.AT_MOST_ONCE
        self._batch_records = batch_records
        self._queue: deque[DataRecord | Covered | Gained | Lost] = deque()
        self._open: dict[Tenure, _Open] = {}
        self._draining: dict[Tenure, tuple[_Open, int]] = {}
        self._waiting = 0
        self._is_abandoned = False

    @property
    def has_room(self) -> bool:
        """Whether more records should be fetched."""
        return self._waiting < MOST_WAITING

    @property
    def tenures(self) -> Mapping[Tenure, object]:
        """Those that are open."""
        return self._open

    # ---- the machine's side

    def open(self, tenure: Tenure, offset: int) -> None:
        """A tenure begins."""
        self._open[tenure] = _Open()
        self._queue.append(Gained(tenure, offset))

    def put(self, record: DataRecord) -> None:
        """Add a record that was fetched; it is dropped if its tenure is over."""
        tenure = self._open.get(record.tenure)
        if tenure is None:
            return
        self._waiting += 1
        if self.is_at_most_once:
            tenure.fetched.append(record)
        else:
            tenure.waiting += 1
            self._queue.append(record)

    def cover(self, covered: Covered) -> None:
        """A range has no further record: it ends behind those that wait."""
        if covered.tenure in self._open:
            self._queue.append(covered)

    def committed(self, tenure: Tenure) -> None:
        """At most once: the batch of this tenure that was proposed may be handed out."""
        held = self._open.get(tenure)
        if held is not None:
            self._queue.extend(held.fetched.popleft() for _ in range(held.proposed))
            held.waiting, held.proposed = held.proposed, 0

    def close(self, tenure: Tenure, why: LossReason, processed_until: int) -> None:
        """A tenure ends; nothing happens if it is over."""
        held = self._open.pop(tenure, None)
        if held is not None:
            self._waiting -= len(held.fetched) + held.waiting
            self._queue.append(Lost(tenure, why, processed_until))
            self._draining[tenure] = held, processed_until

    def news(self, now: int) -> Iterator[Delivered | Processed | Fetched | Abandoned]:
        """Yield what the machine does not know yet."""
        for tenure, held in self._open.items():
            yield from _handed_and_processed(tenure, held)
            if held.fetched and not held.proposed and not held.waiting:
                held.proposed = min(len(held.fetched), self._batch_records)
                last = held.fetched[held.proposed - 1]
                yield Fetched(tenure, held.fetched[0].covers_from, last.next_offset)
            if held.in_hand and self._is_abandoned:
                yield Abandoned(tenure)
        for tenure, (held, until) in list(self._draining.items()):
            yield from _handed_and_processed(tenure, held)
            if now >= until:
                del self._draining[tenure]

    # ---- the application's side

    def abandon(self) -> None:
        """The application processes nothing more of what it has in hand."""
        self._is_abandoned = True

    def next_item(self) -> DataRecord | Gained | Lost | None:
        """Hand out the next record or notice; None if none waits."""
        while self._queue:
            item = self._queue.popleft()
            if isinstance(item, Gained | Lost):
                return item
            held = self._open.get(item.tenure)
            if held is not None and isinstance(item, Covered):
                held.end, held.is_covered = item.end, True
            elif held is not None and isinstance(item, DataRecord):
                self._waiting -= 1
                held.waiting -= 1
                if not self.is_at_most_once:
                    held.in_hand.add(item.offset)
                    held.handed.append(item.offset)
                    held.end = item.offset + 1
                return item
        return None

    def processed(self, record: DataRecord) -> bool:
        """Note that the application has processed a record; return whether that still counts.

        :raises ValueError: it was processed before, or was not handed out
        """
        if self.is_at_most_once:
            return record.tenure in self._open
        held = self._open.get(record.tenure)
        if held is None:
            if record.tenure not in self._draining:
                return False
            held = self._draining[record.tenure][0]
        if record.offset not in held.in_hand:
            where = f"{record.tenure.topic}-{record.tenure.partition}"
            raise ValueError(f"the record at offset {record.offset} of {where} was processed before, or not handed out")
        held.in_hand.remove(record.offset)
        held.processed.append(record.offset)
        return True


def _handed_and_processed(tenure: Tenure, held: _Open) -> Iterator[Delivered | Processed]:
    if held.handed or held.is_covered:
        handed, held.handed, held.is_covered = held.handed, [], False
        yield Delivered(tenure, handed, held.end)
    if held.processed:
        processed, held.processed = held.processed, []
        yield Processed(tenure, processed)
