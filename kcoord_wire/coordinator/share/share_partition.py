"""What a share group does with the records of one partition: to whom they are delivered, how often, and what became
of them.

    partition = SharePartition(start_offset=0)
    partition.acquire("m1", [Span(0, 9)], 0, max_records=500, batch_size=500, now=0)    # [Acquired(0, 9, deliveries=1)]
    partition.acknowledge("m1", [Acknowledgement(0, 9, (ACCEPT,))], now=5)

A record goes through

    available      it can be delivered
    acquired       a member has it, until its lock runs out
    acknowledged   accepted: never delivered again
    archived       rejected, delivered too often, a gap, of an aborted transaction, or removed from the log: likewise

Records that were fetched together have one state until a request treats them differently; from then on each has its
own. Readers of the answers see that: the ranges that are acquired end where what was fetched together does.

Laws:

* A record is acquired by one member at a time, and only that member may say what became of it.
* What is acknowledged or archived stays so. `TRANSITIONS` has every legal move.
* An acquired record becomes available or archived when its lock runs out or its member's session ends, whatever the
  member does. It becomes archived instead of available once it was delivered `ShareLimits.delivery_count` times.
* All acknowledgements of a request to one partition hold, or none.
* The start offset never decreases (but by `reset`), and all before it is acknowledged or archived. At most
  `ShareLimits.record_locks` records are between it and the next offset to fetch, but for the rest of a batch.
* `snapshot` and `restore` are inverse for all but acquired records, which are available again with the count that they
  had before.

Source: KIP-932, KIP-1206, KIP-1222, KIP-1226; Kafka's `SharePartition.java`, `InFlightBatch.java`,
`InFlightState.java`, `RecordState.java`. Kafka writes rejected records to a dead letter queue where a group has one
(KIP-1191), with a state of their own meanwhile (ARCHIVING); there is none here.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from kcoord_wire.coordinator.core.apis import Refused
from kcoord_wire.coordinator.core.events import target_of
from kcoord_wire.protocol.error_codes import ErrorCode

GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
"""The types of an acknowledgement, as requests have them."""

_MIN_THROTTLE: Final = 2  # deliveries from which on fewer records are acquired at once, however low the limit is

_MOST_AT_ONCE: Final = 100_000  # records of one fetch; a compressed batch may hold millions in a few bytes


class State(enum.StrEnum):
    """State of a record."""

    AVAILABLE = "available"
    ACQUIRED = "acquired"
    ACKNOWLEDGED = "acknowledged"
    ARCHIVED = "archived"


class Move(enum.StrEnum):
    """What can happen to a record."""

    ACQUIRE = "be acquired"
    ACCEPT = "be accepted"
    RELEASE = "be released"
    ARCHIVE = "be archived"


TRANSITIONS: Final[Mapping[tuple[State, Move], State]] = MappingProxyType(
    {
        (State.AVAILABLE, Move.ACQUIRE): State.ACQUIRED,
        (State.AVAILABLE, Move.ARCHIVE): State.ARCHIVED,
        (State.ACQUIRED, Move.ACCEPT): State.ACKNOWLEDGED,
        (State.ACQUIRED, Move.RELEASE): State.AVAILABLE,
        (State.ACQUIRED, Move.ARCHIVE): State.ARCHIVED,
    }
)
"""Every legal move, and where it leads."""

TERMINAL: Final = frozenset((State.ACKNOWLEDGED, State.ARCHIVED))
"""The states that a record keeps."""

_MOVES: Final = {GAP: Move.ARCHIVE, ACCEPT: Move.ACCEPT, RELEASE: Move.RELEASE, REJECT: Move.ARCHIVE}


class AcquireMode(enum.IntEnum):
    """How the number of records counts (KIP-1206), with Kafka's numbers (``ShareAcquireMode``)."""

    BATCH_OPTIMIZED = 0  # up to the end of a batch of the log
    RECORD_LIMIT = 1  # strictly


class Span(NamedTuple):
    """The offsets of a batch of the log: the first and the last."""

    first: int
    last: int


class Acquired(NamedTuple):
    """Records that a member has acquired.

    :ivar first: the first offset
    :ivar last: the last one
    :ivar deliveries: how often they were delivered, this time included
    """

    first: int
    last: int
    deliveries: int


class Acknowledgement(NamedTuple):
    """What became of records.

    :ivar first: the first offset
    :ivar last: the last one
    :ivar types: of each record, or one for all: `GAP`, `ACCEPT`, `RELEASE`, `REJECT`, `RENEW`
    """

    first: int
    last: int
    types: Sequence[int]


class StateRange(NamedTuple):
    """Records with one state, as the log of share groups has them.

    :ivar first: the first offset
    :ivar last: the last one
    :ivar state: never `State.ACQUIRED`
    :ivar deliveries: how often they were delivered
    """

    first: int
    last: int
    state: State
    deliveries: int


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """Settings of a share group. The defaults are Kafka's.

    :ivar record_locks: records in flight in a partition (``share.partition.max.record.locks``)
    :ivar delivery_count: deliveries of a record (``share.delivery.count.limit``)
    :ivar lock_ms: how long a member has a record (``share.record.lock.duration.ms``)
    """

    record_locks: int = 2_000
    delivery_count: int = 5
    lock_ms: int = 30_000

    @property
    def throttle_count(self) -> int:
        """The deliveries from which on records are acquired in smaller portions, at last one by one, so that one that
        breaks its consumer does not use up the deliveries of the others."""
        return max(_MIN_THROTTLE, -(-self.delivery_count // 2))


@dataclass(slots=True)
class _Delivery:
    """State of one or more records.

    :ivar state: the state
    :ivar count: of deliveries
    :ivar member_id: that has acquired them; empty for none
    :ivar until: when the lock of that member runs out, in ms
    """

    state: State = State.AVAILABLE
    count: int = 0
    member_id: str = ""
    until: int = 0

    def move(self, move: Move) -> None:
        self.state = target_of(TRANSITIONS, self.state, move, "a record")
        self.member_id = ""

    def acquire(self, member_id: str, until: int) -> None:
        self.move(Move.ACQUIRE)
        self.count += 1
        self.member_id, self.until = member_id, until

    def release(self, limit: int) -> None:
        self.move(Move.ARCHIVE if self.count >= limit else Move.RELEASE)


@dataclass(slots=True)
class _Batch:
    """Records that were fetched together.

    :ivar first: the first offset
    :ivar last: the last one
    :ivar whole: the state of all; what it has does not count if there is `each`
    :ivar each: of each, by offset; None as long as all have the same
    """

    first: int
    last: int
    whole: _Delivery
    each: dict[int, _Delivery] | None = None

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def split(self) -> dict[int, _Delivery]:
        """Give each record a state of its own."""
        if self.each is None:
            of = self.whole
            self.each = {
                offset: _Delivery(of.state, of.count, of.member_id, of.until)
                for offset in range(self.first, self.last + 1)
            }
        return self.each

    def parts(self) -> Iterator[tuple[int, int, _Delivery]]:
        """Yield first offset, last offset and state of what has one state."""
        if self.each is None:
            yield self.first, self.last, self.whole
        else:
            for offset, delivery in self.each.items():
                yield offset, offset, delivery


@dataclass(slots=True)
class _Taking:
    """What a member acquires.

    :ivar member_id: the member
    :ivar until: when its lock runs out, in ms
    :ivar is_strict: whether no more than `left` records may be acquired
    :ivar left: number of records
    :ivar acquired: so far
    :ivar joins: whether the next records may lengthen the last range
    """

    member_id: str
    until: int
    is_strict: bool
    left: int
    acquired: list[Acquired]
    joins: bool = False

    def take(self, first: int, last: int, delivery: _Delivery) -> None:
        delivery.acquire(self.member_id, self.until)
        before = self.acquired[-1] if self.acquired and self.joins else None
        if before is not None and before[1:] == (first - 1, delivery.count):
            self.acquired[-1] = before._replace(last=last)
        else:
            self.acquired.append(Acquired(first, last, delivery.count))
        self.joins = True
        self.left -= last - first + 1


def _first_of(batch: _Batch) -> int:
    return batch.first


class SharePartition:
    """The records of a partition that a share group has fetched and not done with.

    :param start_offset: of the first record that the group has not done with
    :param limits: the group's settings, which may be replaced at any time
    :ivar start_offset: all before is done with
    :ivar end_offset: all from here on was never fetched
    :ivar deadline: when `expire` is due at the latest, in ms; None if no record is acquired
    """

    __slots__ = ("_batches", "deadline", "end_offset", "limits", "start_offset")

    def __init__(self, start_offset: int, limits: ShareLimits | None = None) -> None:
        self.limits = limits or ShareLimits()
        self.reset(start_offset)

    def reset(self, start_offset: int) -> None:
        """Forget all records, and begin at another offset."""
        self.start_offset = self.end_offset = start_offset
        self.deadline: int | None = None
        self._batches: list[_Batch] = []

    # ---- what it holds

    @property
    def in_flight(self) -> int:
        """Number of records between the start offset and the end offset."""
        return self.end_offset - self.start_offset if self._batches else 0

    @property
    def next_offset(self) -> int:
        """The offset from which on records are to be fetched: of the first that is available, or was never fetched."""
        for first, last, delivery in self._parts():
            if delivery.state is State.AVAILABLE and last >= self.start_offset:
                return first
        return self.end_offset

    @property
    def can_acquire(self) -> bool:
        """Whether a fetch can acquire anything."""
        return self.in_flight < self.limits.record_locks or self.next_offset < self.end_offset

    @property
    def done(self) -> int:
        """Number of records from the start offset on that are acknowledged or archived (KIP-1226)."""
        return sum(
            last - max(first, self.start_offset) + 1
            for first, last, delivery in self._parts()
            if delivery.state in TERMINAL and last >= self.start_offset
        )

    def states(self) -> Iterator[tuple[int, State, int, str]]:
        """Yield for each record from the start offset on: offset, state, number of deliveries, and the member that has
        acquired it, empty for none."""
        for first, last, delivery in self._parts():
            for offset in range(max(first, self.start_offset), last + 1):
                yield offset, delivery.state, delivery.count, delivery.member_id

    def state_key(self, now: int) -> Hashable:
        """Return what decides its further course: two partitions with the same key do the same when the same happens to
        them at the same time.

        :param now: ms, from which on the ends of locks count
        """

        def shown(delivery: _Delivery) -> Hashable:
            until = delivery.until - now if delivery.state is State.ACQUIRED else None
            return delivery.state, delivery.count, delivery.member_id, until

        parts = tuple(
            (batch.first, batch.last, batch.each is None, tuple((*part[:2], shown(part[2])) for part in batch.parts()))
            for batch in self._batches
        )
        return self.start_offset, self.end_offset, parts, None if self.deadline is None else self.deadline - now

    def _parts(self) -> Iterator[tuple[int, int, _Delivery]]:
        for batch in self._batches:
            yield from batch.parts()

    # ---- acquiring

    def acquire(
        self,
        member_id: str,
        fetched: Sequence[Span],
        offset: int,
        *,
        max_records: int,
        batch_size: int,
        now: int,
        mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED,
    ) -> list[Acquired]:
        """Acquire records for a member, and return which.

        :param fetched: the batches that were read from the log at `offset`; the first may begin before it
        :param offset: that `next_offset` was
        :param max_records: so many, in the mode BATCH_OPTIMIZED up to the end of a batch of the log
        :param batch_size: how many records a range has about
        """
        if not fetched or max_records <= 0:
            return []
        first, last = fetched[0].first, fetched[-1].last
        most = min(max_records, self.limits.record_locks - self.in_flight)
        if most <= 0:  # what was released may still be acquired, and nothing else
            if offset >= self.end_offset:
                return []
            most = min(max_records, self.end_offset - offset)
            last = min(last, self.end_offset - 1)
        self._archive_missing(offset, first)
        taking = _Taking(member_id, now + self.limits.lock_ms, mode is AcquireMode.RECORD_LIMIT, most, [])
        self._acquire_again(taking, Span(first, last))
        if taking.left > 0 and max(first, self.end_offset) <= last:
            self._acquire_new(taking, fetched, last, batch_size)
        if taking.acquired:
            self._expire_at(taking.until)
        return taking.acquired

    def _acquire_again(self, taking: _Taking, wanted: Span) -> None:
        """Acquire what is available of records that were fetched before."""
        for batch in self._overlapping(wanted.first, wanted.last):
            if taking.left <= 0:
                return
            is_throttled = self._throttles(batch, wanted)
            if is_throttled and taking.acquired:
                taking.left = 0  # they are acquired alone
                return
            if batch.each is None and batch.whole.state is not State.AVAILABLE:
                continue
            is_covered = wanted.first <= batch.first and batch.last <= wanted.last
            is_too_large = taking.is_strict and batch.size > taking.left
            if is_covered and batch.each is None and not is_too_large and not is_throttled:
                taking.joins = False
                taking.take(batch.first, batch.last, batch.whole)
                continue
            self._acquire_each(taking, batch, wanted)
            if is_throttled and taking.acquired:
                taking.left = 0

    def _throttles(self, batch: _Batch, wanted: Span) -> bool:
        """Return whether records of a batch were delivered so often that it is acquired in portions."""
        limit = self.limits.throttle_count
        return any(
            delivery.state is State.AVAILABLE and delivery.count >= limit
            for first, last, delivery in batch.parts()
            if batch.each is None or wanted.first <= first <= wanted.last
        )

    def _acquire_each(self, taking: _Taking, batch: _Batch, wanted: Span) -> None:
        """Acquire single records of a batch."""
        limits = self.limits
        most = taking.left if taking.is_strict else batch.size
        count = 0
        taking.joins = False
        for offset, delivery in batch.split().items():
            if not wanted.first <= offset <= wanted.last or delivery.state is not State.AVAILABLE:
                continue
            is_last = limits.delivery_count > _MIN_THROTTLE and delivery.count == limits.delivery_count - 1
            if is_last and count:
                return  # its last delivery is its own
            if (excess := delivery.count - limits.throttle_count + 1) > 0:
                most = min(most, max(1, batch.size >> excess))
            taking.take(offset, offset, delivery)
            count += 1
            if is_last or count >= most:
                return

    def _acquire_new(self, taking: _Taking, fetched: Sequence[Span], last: int, batch_size: int) -> None:
        """Acquire records that were never fetched."""
        first = max(fetched[0].first, self.end_offset)
        if taking.left < last - first + 1:
            last = _end_of_batch(fetched, first + taking.left - 1)
        last = min(last, first + _MOST_AT_ONCE - 1)
        if not self._batches:
            self.start_offset = first
        self.end_offset = last + 1
        if taking.is_strict and taking.left < last - first + 1:
            batch = _Batch(first, last, _Delivery())
            self._batches.append(batch)
            end = first + taking.left
            for offset, delivery in batch.split().items():
                if offset < end:
                    delivery.acquire(taking.member_id, taking.until)
            taking.acquired.append(Acquired(first, end - 1, 1))
            return
        size = last - first + 1 if taking.is_strict else batch_size
        for span in _portions(fetched, Span(first, last), size):
            batch = _Batch(span.first, span.last, _Delivery())
            self._batches.append(batch)
            taking.joins = False
            taking.take(span.first, span.last, batch.whole)

    def _archive_missing(self, offset: int, first: int) -> None:
        """Archive what is available from `offset` on up to `first`, since the log has it no longer."""
        if offset >= first:
            return
        for batch in self._overlapping(offset, first - 1):
            if batch.each is None and (batch.first < offset or batch.last >= first):
                if batch.whole.state is not State.AVAILABLE:
                    continue
                batch.split()
            for at, _, delivery in batch.parts():
                if offset <= at < first and delivery.state is State.AVAILABLE:
                    delivery.move(Move.ARCHIVE)
        self._advance()

    def archive(self, member_id: str, spans: Iterable[Span], acquired: Sequence[Acquired]) -> list[Acquired]:
        """Archive records that a member has just acquired and does not get, since their transaction was aborted; return
        what it keeps.

        :param spans: the batches of aborted transactions, ascending
        :param acquired: what `acquire` has returned
        """
        kept = list(acquired)
        for span in spans:
            for batch in self._overlapping(span.first, span.last):
                if not (span.first <= batch.first and batch.last <= span.last):
                    batch.split()
                for first, _, delivery in batch.parts():
                    if span.first <= first <= span.last and delivery.member_id == member_id:
                        delivery.move(Move.ARCHIVE)
            kept = [part for one in kept for part in _without(one, span)]
        self._advance()
        return kept

    # ---- acknowledging

    def acknowledge(self, member_id: str, acknowledgements: Iterable[Acknowledgement], now: int) -> bool:
        """Take in what became of records, and return whether that changes more than how long they are locked.

        :param acknowledgements: ascending
        :raises Refused: INVALID_RECORD_STATE for records that the member has not acquired, INVALID_REQUEST for records
            that were not fetched, and for what no acknowledgement can be; then nothing has changed
        """
        taken: list[tuple[_Delivery, int]] = []
        previous = -1
        for acknowledgement in acknowledgements:
            _check(acknowledgement, previous)
            previous = acknowledgement.last
            if acknowledgement.last < self.start_offset:
                continue  # done with already
            for batch in self._acknowledged_batches(acknowledgement):
                taken += self._acknowledged(member_id, batch, acknowledgement)
        is_changed = False
        for delivery, kind in taken:
            if kind == RENEW:
                delivery.until = now + self.limits.lock_ms
                continue
            is_changed = True
            if kind == RELEASE:
                delivery.release(self.limits.delivery_count)
            else:
                delivery.move(_MOVES[kind])
        if is_changed:
            self._advance()
        return is_changed

    def _acknowledged_batches(self, asked: Acknowledgement) -> Sequence[_Batch]:
        """Return the batches that an acknowledgement is about. Errors as `acknowledge`."""
        batches = self._batches
        floor = bisect_right(batches, asked.first, key=_first_of) - 1
        if floor < 0:
            if not asked.first < self.start_offset <= asked.last:
                raise Refused(ErrorCode.INVALID_RECORD_STATE, _NOT_FOUND)
            floor = max(bisect_right(batches, self.start_offset, key=_first_of) - 1, 0)
        found = batches[floor : bisect_right(batches, asked.last, key=_first_of)]
        if not found or found[-1].last < asked.first:
            raise Refused(ErrorCode.INVALID_REQUEST, _NOT_FETCHED.format("first"))
        if asked.last > found[-1].last:
            raise Refused(ErrorCode.INVALID_REQUEST, _NOT_FETCHED.format("last"))
        return found

    def _acknowledged(self, member_id: str, batch: _Batch, asked: Acknowledgement) -> Iterator[tuple[_Delivery, int]]:
        """Yield the states of records of a batch that an acknowledgement is about, each with its type. Errors as
        `acknowledge`."""
        if batch.last < self.start_offset:
            return
        if batch.each is None:
            _check_owner(batch.whole, member_id, _BATCH_NOT_ACQUIRED, "Member is not the owner of batch record")
            is_covered = asked.first <= batch.first and batch.last <= asked.last
            if is_covered and len(asked.types) == 1 and batch.first >= self.start_offset:
                yield batch.whole, asked.types[0]
                return
        for offset, delivery in batch.split().items():
            if max(asked.first, self.start_offset) <= offset <= asked.last:
                _check_owner(delivery, member_id, _OFFSET_NOT_ACQUIRED, "Member is not the owner of offset")
                yield delivery, asked.types[offset - asked.first if len(asked.types) > 1 else 0]

    # ---- records that are not asked for

    def release(self, member_id: str) -> bool:
        """Take back what a member has acquired, whose session has ended; return whether there was anything."""
        return self._give_up(lambda delivery: delivery.member_id == member_id)

    def expire(self, now: int) -> bool:
        """Take back the records whose lock has run out, and return whether there were any."""
        if self.deadline is None or now < self.deadline:
            return False
        found = self._give_up(lambda delivery: delivery.until <= now)
        self.deadline = min(
            (delivery.until for _, _, delivery in self._parts() if delivery.state is State.ACQUIRED), default=None
        )
        return found

    def _give_up(self, is_meant: Callable[[_Delivery], bool]) -> bool:
        found = False
        for _, _, delivery in self._parts():
            if delivery.state is State.ACQUIRED and is_meant(delivery):
                found = True
                delivery.release(self.limits.delivery_count)
        if found:
            self._advance()
        return found

    def begin_at(self, log_start: int) -> bool:
        """Note that the log begins at `log_start` now, and return whether that has removed anything: records before it
        are done with, whatever they were."""
        if log_start <= self.start_offset:
            return False
        for batch in self._overlapping(self.start_offset, log_start - 1):
            if batch.last >= log_start:
                batch.split()
        self._batches = [batch for batch in self._batches if batch.last >= log_start]
        for batch in self._batches:
            for first, _, delivery in batch.parts():
                if first < log_start and delivery.state not in TERMINAL:
                    delivery.move(Move.ARCHIVE)
        self.start_offset = log_start
        self.end_offset = max(self.end_offset, log_start)
        self._advance()
        return True

    # ---- what is kept

    def snapshot(self) -> list[StateRange]:
        """Return the states that are kept, in as few ranges as possible. What is missing between them is available,
        and was not delivered."""
        ranges: list[StateRange] = []
        for first, last, delivery in self._parts():
            state, count = delivery.state, delivery.count
            if state is State.ACQUIRED:
                state, count = State.AVAILABLE, count - 1
            first = max(first, self.start_offset)
            if last < first or (state is State.AVAILABLE and not count):
                continue
            if ranges and ranges[-1][1:] == (first - 1, state, count):
                ranges[-1] = ranges[-1]._replace(last=last)
            else:
                ranges.append(StateRange(first, last, state, count))
        return ranges

    def restore(self, start_offset: int, ranges: Iterable[StateRange]) -> None:
        """Replace all by what was kept."""
        self.reset(start_offset)
        for each in ranges:
            if each.last < self.end_offset:
                continue
            first = max(each.first, self.end_offset)
            self._extend(first - 1, State.AVAILABLE, 0)
            self._extend(each.last, each.state, each.deliveries)
        self._advance()

    def _extend(self, last: int, state: State, count: int) -> None:
        """Add records from the end offset up to `last`, in batches that may be split."""
        while self.end_offset <= last:
            end = min(last, self.end_offset + _MOST_AT_ONCE - 1)
            self._batches.append(_Batch(self.end_offset, end, _Delivery(state, count)))
            self.end_offset = end + 1

    # ---- inside

    def _overlapping(self, first: int, last: int) -> list[_Batch]:
        batches = self._batches
        begin = max(bisect_right(batches, first, key=_first_of) - 1, 0)
        found = batches[begin : bisect_right(batches, last, key=_first_of)]
        return found[1:] if found and found[0].last < first else found

    def _expire_at(self, until: int) -> None:
        if self.deadline is None or until < self.deadline:
            self.deadline = until

    def _advance(self) -> None:
        """Move the start offset over what is done with."""
        whole = 0
        for batch in self._batches:
            for _, last, delivery in batch.parts():
                if delivery.state not in TERMINAL and last >= self.start_offset:
                    break
                self.start_offset = max(self.start_offset, last + 1)
            else:
                whole += 1
                continue
            break
        del self._batches[:whole]
        if self._batches:  # offsets that the log does not have lie between batches
            self.start_offset = max(self.start_offset, self._batches[0].first)


_NOT_FOUND: Final = "Batch record not found. The request batch offsets are not found in the cache."
_NOT_FETCHED: Final = "Batch record not found. The {} offset in request is past acquired records."
_BATCH_NOT_ACQUIRED: Final = "The batch cannot be acknowledged. The batch is not in the acquired state."
_OFFSET_NOT_ACQUIRED: Final = "The offset cannot be acknowledged. The offset is not acquired."


def _check(asked: Acknowledgement, previous: int) -> None:
    """Raise `Refused` for what no acknowledgement can be.

    :param previous: the last offset of the one before it
    """
    first, last, types = asked
    is_wrong = first > last or first < previous or not types or not all(GAP <= kind <= RENEW for kind in types)
    if is_wrong or (len(types) > 1 and last - first + 1 != len(types)):
        raise Refused(ErrorCode.INVALID_REQUEST)
    if first == previous:
        raise Refused(ErrorCode.INVALID_RECORD_STATE, _OFFSET_NOT_ACQUIRED)


def _check_owner(delivery: _Delivery, member_id: str, not_acquired: str, not_owner: str) -> None:
    if delivery.state is not State.ACQUIRED:
        raise Refused(ErrorCode.INVALID_RECORD_STATE, not_acquired)
    if delivery.member_id != member_id:
        raise Refused(ErrorCode.INVALID_RECORD_STATE, not_owner)


def _without(acquired: Acquired, span: Span) -> Iterator[Acquired]:
    """Yield what is left of a range outside another."""
    if span.last < acquired.first or acquired.last < span.first:
        yield acquired
        return
    if acquired.first < span.first:
        yield acquired._replace(last=span.first - 1)
    if span.last < acquired.last:
        yield acquired._replace(first=span.last + 1)


def _end_of_batch(fetched: Sequence[Span], offset: int) -> int:
    """Return the last offset of the batch that has an offset; that offset if none has it."""
    at = bisect_right(fetched, offset, key=lambda span: span.first) - 1
    return fetched[at].last if at >= 0 and offset <= fetched[at].last else offset


def _portions(fetched: Sequence[Span], wanted: Span, size: int) -> Iterator[Span]:
    """Divide a range where batches of the log begin, into parts of `size` records or more."""
    first = wanted.first
    if wanted.last - wanted.first + 1 > size:
        for span in fetched:
            if first + size <= span.first <= wanted.last:
                yield Span(first, span.first - 1)
                first = span.first
    yield Span(first, wanted.last)
