"""Who processes which offsets of a partition: claims of ranges, by the log. Pure.

An extension of this project, opt-in; the Go library skips its messages. It judges as `Rules.DOCUMENT` does: by the
entries of the topic's coordination partition and the log's time. Members claim by it in `range_claiming`.

Laws:

* Readers of the same entries have the same ranges, and no offset is in two ranges that are live or done.
* A claim of [first, end) wins if it overlaps nothing that is live or done; the offsets need not exist yet.
* A range is live until more than two heartbeat intervals after its last heartbeat, and its holder alone moves it, never
  back, by messages that are stamped no earlier than its claim. What was processed of it is done; the rest is free again
  once it is stale or released.
* A range is of one topic, by its id: one that is created again under the name begins with nothing claimed or done.
* A reader whose log was trimmed never lets a claim win that overlaps a live range: none wins while it does not know
  all of them (`WorldState.is_warm`), the range of a claim that it refuses counts as held as long, because a reader of
  everything may have let it win, and of a range that it knows from heartbeats alone so does everything behind it.
  What was done and trimmed, however, is free for it.
* Memory: neighbouring ranges that are done become one.

Source: Marshal PROTOCOL.md, its last section ("just saying I claim message offsets X-Y", "you can also then fix latency
issues by pre-claiming ranges").
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kcoord_wire.marshal.world_state import Entry, Place, WorldState
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


class RangePlace(NamedTuple):
    """A partition of one topic."""

    place: Place
    topic_id: str


@dataclass(slots=True)
class Range:
    """A claimed range.

    :ivar end: the offset behind it; `UNKNOWN_END` if its claim was trimmed
    :ivar current: next offset to process
    :ivar heartbeat_ms: log time of its last claim or heartbeat
    :ivar token: offset of the entry that won it, a fencing token; -1 if that was trimmed
    :ivar claimed_at: stamp of its claim
    """

    first: int
    end: int
    current: int
    instance_id: str
    client_id: str
    heartbeat_ms: int
    token: int
    claimed_at: int


@dataclass(slots=True)
class Ranges:
    """The ranges of one place.

    :ivar held: by first offset; none overlap, but the stale ones of them that no claim has met yet
    :ivar done: disjoint pairs of first offset and end, ascending, neighbours joined
    :ivar ended: instance and first offset of ranges that have ended with nothing processed: a late heartbeat of one is
        of no range whose claim was trimmed
    :ivar doubted: log time of claims of these offsets that were refused but may count, in a trimmed log
    """

    held: dict[int, Range] = field(default_factory=dict)
    done: list[tuple[int, int]] = field(default_factory=list)
    ended: set[tuple[str, int]] = field(default_factory=set)
    doubted: dict[tuple[int, int], int] = field(default_factory=dict)

    def over(self, held: Range) -> None:
        """A range has ended: what was processed of it is done."""
        del self.held[held.first]
        if held.current == held.first:
            self.ended.add((held.instance_id, held.first))
        self.finish(held.first, held.current)

    def finish(self, first: int, end: int) -> None:
        """Offsets are done."""
        if first >= end:
            return
        self.ended = {each for each in self.ended if not first <= each[1] < end}
        low = bisect_left(self.done, first, key=lambda pair: pair[1])
        high = bisect_right(self.done, end, key=lambda pair: pair[0])
        if low < high:
            first, end = min(first, self.done[low][0]), max(end, self.done[high - 1][1])
        self.done[low:high] = [(first, end)]

    def drop_stale(self, oldest_ms: int) -> None:
        """Free the rest of ranges whose last heartbeat is older."""
        for held in [held for held in self.held.values() if held.heartbeat_ms < oldest_ms]:
            self.over(held)
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

    def is_done(self, first: int, end: int) -> bool:
        """Return whether all of these offsets are done."""
        return self.prefix(first) >= end

    def prefix(self, start: int) -> int:
        """Return the first offset from `start` on that is not done."""
        at = bisect_right(self.done, start, key=lambda pair: pair[0]) - 1
        return max(start, self.done[at][1]) if at >= 0 else start


class RangeState:
    """The ranges of all places.

    :param world: the world state of the same log, which takes in each entry first: it keeps the log's time
    """

    def __init__(self, world: WorldState) -> None:
        self._world = world
        self.places: dict[RangePlace, Ranges] = {}

    def of(self, place: RangePlace, partition: int, now_ms: int = 0) -> Ranges:
        """Return the ranges of a place that are live at a time, and those that are done.

        :param partition: the coordination partition of its topic
        :param now_ms: log time, where it is known to be later than the last entry's
        """
        found = self.places.get(place) or Ranges()
        now_ms = max(now_ms, self._world.log_time_ms(partition))
        shown = Ranges(dict(found.held), list(found.done), set(found.ended), dict(found.doubted))
        shown.drop_stale(now_ms - 2 * self._world.interval_ms)
        return shown

    def held_by(self, place: RangePlace, instance_id: str) -> list[Range]:
        """Return the ranges that an instance has in the log, by their first offset; those that are stale, too, while no
        claim has met them."""
        found = self.places.get(place)
        return [] if found is None else [each for each in found.held.values() if each.instance_id == instance_id]

    def knows(self, place: Place, topic_id: str | None = None) -> bool:
        """Return whether anything of a place is claimed or done.

        :param topic_id: of the topic that is there now; None if it is not known, and then ranges of any topic count
        """
        found = (each for at, each in self.places.items() if at.place == place and topic_id in (None, at.topic_id))
        return any(each.held or each.done for each in found)

    def apply(self, entry: Entry) -> RangeOutcome:
        """Take in the next entry of its partition, after `WorldState.apply`."""
        handle = _HANDLERS.get(type(entry.message))
        if handle is None or self._world.is_misplaced(entry):
            return RangeOutcome.SKIPPED
        place = range_place(entry.message)
        ranges = self.places.get(place) or Ranges()
        ranges.drop_stale(self._world.log_time_ms(entry.partition) - 2 * self._world.interval_ms)
        outcome = handle(self, ranges, entry.message, entry)
        if ranges.held or ranges.done or ranges.ended or ranges.doubted:
            self.places[place] = ranges
        return outcome

    def _claiming(self, ranges: Ranges, message: ClaimingRange, entry: Entry) -> RangeOutcome:
        first, end = message.first_offset, message.end_offset
        is_free = first < end and ranges.next_free(first, end - first) == (first, end)
        if not is_free or not self._world.is_warm(entry.partition):
            if first < end and not self._world.sees_all(entry.partition):
                ranges.doubted[first, end] = self._world.log_time_ms(entry.partition)
                ranges.ended.discard((message.instance_id, first))  # its heartbeats show whether it counts
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
        ranges.over(held)
        return RangeOutcome.DONE

    def _infer(self, ranges: Ranges, message: RangeHeartbeat, entry: Entry) -> RangeOutcome:
        """A heartbeat for no range that is known: it is refused, if all claims that count were seen."""
        first = message.first_offset
        is_over = (message.instance_id, first) in ranges.ended
        is_new = first not in ranges.held and first <= message.current_offset and not is_over
        if self._world.sees_all(entry.partition) or not is_new or _covers(ranges.done, first):
            return RangeOutcome.REFUSED
        ranges.held[first] = self._held(message, entry, UNKNOWN_END, message.current_offset, -1)
        return RangeOutcome.INFERRED

    def _held(self, message: Any, entry: Entry, end: int, current: int, token: int) -> Range:
        now_ms = self._world.log_time_ms(entry.partition)
        ids = message.instance_id, message.client_id
        return Range(message.first_offset, end, current, *ids, now_ms, token, message.time if token >= 0 else 0)

    def _releasing(self, ranges: Ranges, message: ReleasingRange, entry: Entry) -> RangeOutcome:
        held = _own(ranges, message)
        if held is None:
            return RangeOutcome.REFUSED
        held.current = message.current_offset
        ranges.over(held)
        return RangeOutcome.RELEASED


def range_place(message: Any) -> RangePlace:
    """Return the place of a message about a range."""
    return RangePlace(Place(message.group_id, message.topic, message.partition), message.topic_id)


def _own(ranges: Ranges, message: Any) -> Range | None:
    """Return the range that its holder's message is about, if it moves it forward and not beyond its end.

    A message with an earlier stamp than the claim is of a former tenure of the same offsets, and has landed late.
    """
    held = ranges.held.get(message.first_offset)
    if held is None or (held.instance_id, held.client_id) != (message.instance_id, message.client_id):
        return None
    if message.time < held.claimed_at:
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
