"""Who processes which offsets of a partition: claims of ranges, without anybody holding the partition. Pure.

An extension of this project, opt-in; the Go library skips its messages. It judges as `Rules.DOCUMENT` does: by the
entries of the topic's coordination partition and the log's time. A `RangeClaimer` claims the next ranges before it
needs them.

Laws:

* Readers of the same entries have the same ranges, and no offset is in two ranges that are live or done.
* A claim of [first, end) wins if it overlaps nothing that is live or done; the offsets need not exist yet.
* A range is live until more than two heartbeat intervals after its last heartbeat, and its holder alone moves it, never
  back. What was processed of it is done; the rest is free again once it is stale or released.
* A reader whose log was trimmed never lets a claim win that overlaps a live range: none wins while it does not know
  all of them (`WorldState.is_warm`), the range of a claim that it refuses counts as held as long, because a reader of
  everything may have let it win, and of a range that it knows from heartbeats alone so does everything behind it.
  What was done and trimmed, however, is free for it. Therefore ranges are claimed only above the position that the
  group has committed (`start` of a claimer), and what was done above that may be repeated.
* The application works on a range only between `RangeHeld` and `RangeLost`, or its end; a range is lost at the latest
  one interval after its last heartbeat that landed was sent, while others wait for two.
* Each range costs one claim, heartbeats, of which the last one says that it is done, and no claim of the partition.
* Memory: neighbouring ranges that are done become one.

Source: Marshal PROTOCOL.md, its last section ("just saying I claim message offsets X-Y", "you can also then fix latency
issues by pre-claiming ranges").
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from kcoord_wire.kernel.procedures import Procedure, Sleep, Until
from kcoord_wire.kernel.timers import Timer
from kcoord_wire.marshal import member_events as events
from kcoord_wire.marshal.context import LogMachine, TopicPartition
from kcoord_wire.marshal.log import Appended
from kcoord_wire.marshal.member_events import Append, MemberSettings, ReadToEnd
from kcoord_wire.marshal.world_state import Entry, Outcome, Place, WorldState
from kcoord_wire.messages.marshal import ClaimingRange, RangeHeartbeat, ReleasingRange

UNKNOWN_END: Final = (1 << 63) - 1
"""The end of a range whose claim was trimmed."""


class RangeOutcome(enum.StrEnum):
    """What an entry has done to the ranges."""

    CLAIMED = "claimed"
    RENEWED = "renewed"
    DONE = "done"
    RELEASED = "released"
    INFERRED = "inferred"  # a heartbeat of a range whose claim was trimmed
    REFUSED = "refused"
    SKIPPED = "skipped"  # another message, or on the wrong coordination partition


@dataclass(slots=True)
class Range:
    """A claimed range.

    :ivar end: the offset behind it; `UNKNOWN_END` if its claim was trimmed
    :ivar current: next offset to process
    :ivar heartbeat_ms: log time of its last claim or heartbeat
    :ivar token: offset of the entry that won it, a fencing token; -1 if that was trimmed
    """

    first: int
    end: int
    current: int
    instance_id: str
    client_id: str
    heartbeat_ms: int
    token: int


@dataclass(slots=True)
class Ranges:
    """The ranges of one place.

    :ivar held: by first offset; none overlap, but the stale ones of them that no claim has met yet
    :ivar done: disjoint pairs of first offset and end, ascending, neighbours joined
    :ivar doubted: log time of claims of these offsets that were refused but may count, in a trimmed log
    """

    held: dict[int, Range] = field(default_factory=dict)
    done: list[tuple[int, int]] = field(default_factory=list)
    doubted: dict[tuple[int, int], int] = field(default_factory=dict)

    def finish(self, first: int, end: int) -> None:
        """Offsets are done."""
        if first >= end:
            return
        low = bisect_left(self.done, first, key=lambda pair: pair[1])
        high = bisect_right(self.done, end, key=lambda pair: pair[0])
        if low < high:
            first, end = min(first, self.done[low][0]), max(end, self.done[high - 1][1])
        self.done[low:high] = [(first, end)]

    def drop_stale(self, oldest_ms: int) -> None:
        """Free the rest of ranges whose last heartbeat is older."""
        for held in [held for held in self.held.values() if held.heartbeat_ms < oldest_ms]:
            del self.held[held.first]
            self.finish(held.first, held.current)
        for pair in [pair for pair, claimed_ms in self.doubted.items() if claimed_ms < oldest_ms]:
            del self.doubted[pair]

    def taken(self) -> list[tuple[int, int]]:
        """Return pairs of first offset and end of everything that is held, doubted or done, ascending."""
        return sorted([*self.done, *self.doubted, *((held.first, held.end) for held in self.held.values())])

    def next_free(self, start: int, size: int) -> tuple[int, int] | None:
        """Return the first free offsets from `start` on, `size` at most; None if an end is not known."""
        for first, end in self.taken():
            if first > start:
                return start, min(start + size, first)
            start = max(start, end)
        return None if start >= UNKNOWN_END else (start, min(start + size, UNKNOWN_END))


class RangeState:
    """The ranges of all places.

    :param world: the world state of the same log, which takes in each entry first: it keeps the log's time
    """

    def __init__(self, world: WorldState) -> None:
        self._world = world
        self.places: dict[Place, Ranges] = {}

    def of(self, place: Place, partition: int, now_ms: int = 0) -> Ranges:
        """Return the ranges of a place that are live at a time, and those that are done.

        :param partition: the coordination partition of its topic
        :param now_ms: log time, where it is known to be later than the last entry's
        """
        found = self.places.get(place) or Ranges()
        now_ms = max(now_ms, self._world.log_time_ms(partition))
        shown = Ranges(dict(found.held), list(found.done), dict(found.doubted))
        shown.drop_stale(now_ms - 2 * self._world.interval_ms)
        return shown

    def apply(self, entry: Entry) -> RangeOutcome:
        """Take in the next entry of its partition, after `WorldState.apply`."""
        handle = _HANDLERS.get(type(entry.message))
        if handle is None or self._world.is_misplaced(entry):
            return RangeOutcome.SKIPPED
        message = entry.message
        place = Place(message.group_id, message.topic, message.partition)
        ranges = self.places.get(place) or Ranges()
        ranges.drop_stale(self._world.log_time_ms(entry.partition) - 2 * self._world.interval_ms)
        outcome = handle(self, ranges, message, entry)
        if ranges.held or ranges.done or ranges.doubted:
            self.places[place] = ranges
        return outcome

    def _claiming(self, ranges: Ranges, message: ClaimingRange, entry: Entry) -> RangeOutcome:
        first, end = message.first_offset, message.end_offset
        is_free = first < end and ranges.next_free(first, end - first) == (first, end)
        if not is_free or not self._world.is_warm(entry.partition):
            if first < end and not self._world.sees_all(entry.partition):
                ranges.doubted[first, end] = self._world.log_time_ms(entry.partition)
            return RangeOutcome.REFUSED
        ranges.held[first] = self._held(message, entry, end, first, entry.offset)
        return RangeOutcome.CLAIMED

    def _heartbeat(self, ranges: Ranges, message: RangeHeartbeat, entry: Entry) -> RangeOutcome:
        held = _own(ranges, message)
        if held is None:
            return self._infer(ranges, message, entry)
        held.current = message.current_offset
        held.heartbeat_ms = self._world.log_time_ms(entry.partition)
        if held.current < held.end:
            return RangeOutcome.RENEWED
        del ranges.held[held.first]
        ranges.finish(held.first, held.end)
        return RangeOutcome.DONE

    def _infer(self, ranges: Ranges, message: RangeHeartbeat, entry: Entry) -> RangeOutcome:
        """A heartbeat for no range that is known: it is refused, if all claims that count were seen."""
        first = message.first_offset
        is_new = first not in ranges.held and first <= message.current_offset
        if self._world.sees_all(entry.partition) or not is_new or _covers(ranges.done, first):
            return RangeOutcome.REFUSED
        ranges.held[first] = self._held(message, entry, UNKNOWN_END, message.current_offset, -1)
        return RangeOutcome.INFERRED

    def _held(self, message: Any, entry: Entry, end: int, current: int, token: int) -> Range:
        now_ms = self._world.log_time_ms(entry.partition)
        return Range(message.first_offset, end, current, message.instance_id, message.client_id, now_ms, token)

    def _releasing(self, ranges: Ranges, message: ReleasingRange, entry: Entry) -> RangeOutcome:
        held = _own(ranges, message)
        if held is None:
            return RangeOutcome.REFUSED
        del ranges.held[held.first]
        ranges.finish(held.first, message.current_offset)
        return RangeOutcome.RELEASED


def _own(ranges: Ranges, message: Any) -> Range | None:
    """Return the range that its holder's message is about, if it moves it forward and not beyond its end."""
    held = ranges.held.get(message.first_offset)
    if held is None or (held.instance_id, held.client_id) != (message.instance_id, message.client_id):
        return None
    return held if held.current <= message.current_offset <= held.end else None


def _covers(done: list[tuple[int, int]], offset: int) -> bool:
    at = bisect_right(done, offset, key=lambda pair: pair[0]) - 1
    return at >= 0 and offset < done[at][1]


_Handler = Callable[[RangeState, Ranges, Any, Entry], RangeOutcome]

_HANDLERS: Final[dict[type, _Handler]] = {
    ClaimingRange: RangeState._claiming,
    RangeHeartbeat: RangeState._heartbeat,
    ReleasingRange: RangeState._releasing,
}


_BEATS: Final = 3
"""Heartbeats an interval: two may fail."""


@dataclass(slots=True)
class RangeProcessed:
    """An event: the application has processed a range up to `current`, which is the next offset to process."""

    first: int
    current: int


@dataclass(slots=True)
class RangeHeld:
    """An effect: the application may process [first, end).

    :ivar token: offset of the claim in the log, a fencing token
    """

    first: int
    end: int
    token: int


@dataclass(slots=True)
class RangeLost:
    """An effect: the rest of a range is no longer this member's."""

    first: int
    reason: str


@dataclass(slots=True)
class _HeldRange:
    """A range of this member.

    :ivar current: next offset to process
    :ivar fence: from then on it is lost, whatever the log says
    """

    end: int
    current: int
    fence: Timer


class RangeClaimer(LogMachine):
    """A state machine (`machines.Machine`) for one topic and partition.

    Events, besides those of `LogMachine`: `RangeProcessed`.
    Effects: `Append`, `ReadToEnd`, `RangeHeld`, `RangeLost`, `LogEvent`, `Ended`.

    :param settings: the heartbeat interval, ids and coordination partitions are used
    :param start: the group's committed position: no range below is claimed
    :param size: offsets of a range, at most
    :param ahead: how many ranges are held at once: the one that is processed, and those claimed in advance; as many
        more, if others leave some behind below them
    """

    def __init__(self, settings: MemberSettings, place: TopicPartition, start: int, size: int, ahead: int = 2) -> None:
        if start < 0 or size < 1 or ahead < 1:
            raise ValueError("a range has an offset or more from 0 on, and a claimer a range or more")
        super().__init__(settings)
        self.settings = settings
        self._ranges = RangeState(self._context.state)
        self._topic_partition = place
        self._place = Place(settings.group_id, place.topic, place.partition)
        self._on = self._context.coordinating(place.topic)
        self._start, self._size, self._ahead = start, size, ahead
        self._holdings: dict[int, _HeldRange] = {}
        self._is_claiming = self._is_leaving = False

    @property
    def state(self) -> RangeState:
        """The ranges, as the log was read so far."""
        return self._ranges

    def is_held(self, first: int, now: int) -> bool:
        """Return whether the application may process the range at this moment; `now` in ms."""
        holding = self._holdings.get(first)
        return holding is not None and now < holding.fence.when

    def position(self, first: int) -> int:
        """Return the next offset to process of a range that is held."""
        return self._holdings[first].current

    # ---- events

    def _begin(self) -> None:
        self._launch(self._claim_ranges())
        self._launch(self._beat())

    def _entries(self, event: events.Entries) -> None:
        super()._entries(event)
        for first in list(self._holdings):
            if self._own(first) is None and not self._is_done(first):
                self._lose(first, "the log has it no longer as ours")

    def _entry(self, entry: Entry) -> Outcome:
        outcome = super()._entry(entry)
        self._ranges.apply(entry)
        return outcome

    def _processed(self, event: RangeProcessed) -> None:
        holding = self._holdings.get(event.first)
        if holding is not None and holding.current <= event.current <= holding.end:
            holding.current = event.current

    def _shutdown(self) -> None:
        if not self._is_leaving:
            self._is_leaving = True
            self._launch(self._leave())

    # ---- procedures

    def _claim_ranges(self) -> Procedure:
        """Claim ranges in order, as the eleven steps claim a partition, until there are enough."""
        context = self._context
        while True:
            yield Until(lambda: len(self._holdings) < self._ahead, context.interval_ms // _BEATS)
            yield ReadToEnd(self._on)
            now_ms = context.log_ms(self._on)
            free = self._ranges.of(self._place, self._on, now_ms).next_free(self._start, self._size)
            if free is None or not self._wants(free[0]) or not context.state.is_warm(self._on, now_ms):
                yield Sleep(context.retry_ms)
                continue
            self._is_claiming = True
            is_won = yield from self._claim(*free)
            self._is_claiming = False
            if not is_won:  # somebody else won the race, or the claim was lost
                yield Sleep(context.jitter(1, context.retry_ms))

    def _claim(self, first: int, end: int) -> Generator[Any, Any, bool]:
        """Claim a range; return whether the log has it as ours."""
        context, sent = self._context, self._context.now
        message = context.message(ClaimingRange, self._topic_partition, first_offset=first, end_offset=end)
        yield Append(self._on, message)
        yield ReadToEnd(self._on)
        own = self._own(first)
        if own is None or context.now >= sent + context.interval_ms:
            return False
        fence = context.fences.start(
            sent + context.interval_ms, partial(self._lose, first, "no heartbeat has landed for one interval")
        )
        self._holdings[first] = _HeldRange(own.end, own.current, fence)
        if not self._is_leaving:
            context.emit(RangeHeld(first, own.end, own.token))
        return True

    def _beat(self) -> Procedure:
        """Send heartbeats; one that says that a range is done goes at once."""
        context = self._context
        while True:
            wait_ms = context.jitter(context.interval_ms // _BEATS * 3 // 4, context.interval_ms // _BEATS)
            yield Until(self._has_done, wait_ms)
            due = [first for first in self._holdings if not self._has_done() or self._is_finished(first)]
            sent = context.now
            positions = {first: self._holdings[first].current for first in due}
            answers = yield [Append(self._on, self._message(RangeHeartbeat, first)) for first in due]
            for first, answer in zip(due, answers, strict=True):
                self._beaten(first, positions[first], sent, isinstance(answer, Appended))
            if not all(isinstance(answer, Appended) for answer in answers):
                yield Sleep(context.retry_ms)

    def _beaten(self, first: int, position: int, sent: int, is_landed: bool) -> None:
        holding = self._holdings.get(first)
        if holding is None or not is_landed:
            return
        fence = max(holding.fence.when, sent + self._context.interval_ms)
        holding.fence = self._context.fences.move(holding.fence, fence)
        if position == holding.end:
            self._drop(first)

    def _leave(self) -> Procedure:
        """Release what is not done, also what a claim that is under way wins."""
        yield Until(lambda: not self._is_claiming, self._context.interval_ms)
        while self._holdings:
            firsts = list(self._holdings)
            answers = yield [Append(self._on, self._message(ReleasingRange, first)) for first in firsts]
            for first, answer in zip(firsts, answers, strict=True):
                if isinstance(answer, Appended) and first in self._holdings:
                    self._drop(first)
            yield Sleep(self._context.retry_ms if self._holdings else 0)
        self._end()

    # ---- its ranges

    def _wants(self, first: int) -> bool:
        """Return whether to claim a free range. What somebody has left behind goes before ranges held in advance."""
        is_gap = first < min(self._holdings, default=first) and len(self._holdings) < 2 * self._ahead
        return not self._is_leaving and (len(self._holdings) < self._ahead or is_gap)

    def _message(self, kind: type, first: int) -> Any:
        position = self._holdings[first].current
        return self._context.message(kind, self._topic_partition, first_offset=first, current_offset=position)

    def _own(self, first: int) -> Range | None:
        """Return a range, if the log has it as this member's."""
        held = self._ranges.of(self._place, self._on).held.get(first)
        return held if held is not None and held.instance_id == self.settings.instance_id else None

    def _is_done(self, first: int) -> bool:
        return any(low <= first < end for low, end in self._ranges.of(self._place, self._on).done)

    def _is_finished(self, first: int) -> bool:
        return self._holdings[first].current == self._holdings[first].end

    def _has_done(self) -> bool:
        return any(self._is_finished(first) for first in self._holdings)

    def _drop(self, first: int) -> None:
        self._holdings.pop(first).fence.cancel()

    def _lose(self, first: int, reason: str) -> None:
        self._drop(first)
        self._context.emit(RangeLost(first, reason))


RangeClaimer.handlers = {RangeProcessed: RangeClaimer._processed}
