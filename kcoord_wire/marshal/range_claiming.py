"""How a member claims ranges of offsets instead of partitions, and holds them. Pure.

A range is a tenure (`holding.Holding`): it has a fence, heartbeats, a drain and a release like that of a partition, by
the messages of ranges. Its position is where it goes on; what lies below is done, for all members and for ever.

Laws:

* A range is won only if the log has it as this instance's after it was read up to its end. What the log has as ours and
  no tenure works on is released.
* Ranges are claimed in advance, `RangeClaims.ahead` of each partition; what others have left behind goes before that.
* A claim of offsets is stamped later than what this member has sent about a range with the same first offset.
* Delivery is at least once: with a range that ends early, what was processed and is not in the log comes again.
* None is claimed below the group's committed offset. Members commit up to the first offset that is not done. What was
  done behind it, and is trimmed from the log, may come again.
* The topic has an id, or nothing of it is claimed: without one the ranges of a topic that was deleted would count for
  the next one of its name, and its first records would be lost.

Source: Marshal PROTOCOL.md, its last section.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping
from functools import partial
from itertools import count
from typing import Any, Final

from kcoord_wire.kernel.procedures import Procedure, Sleep, Until
from kcoord_wire.marshal.context import Context, TopicPartition
from kcoord_wire.marshal.holding import Holding, Phase
from kcoord_wire.marshal.inbox import Start, choose_start
from kcoord_wire.marshal.member_events import (
    Append,
    CommitOffset,
    FindStart,
    LossReason,
    RangeClaims,
    ReadToEnd,
    StartFailed,
    Tenure,
)
from kcoord_wire.marshal.ranges import Range, RangePlace, Ranges
from kcoord_wire.marshal.world_state import Place
from kcoord_wire.messages.marshal import ClaimingRange, RangeHeartbeat, ReleasingRange

_LOOKS: Final = 3
"""Looks for free offsets in a heartbeat interval, at least."""


class RangeHolding(Holding):
    """A tenure of a range.

    :param held: as the log has it
    :param committed: returns up to where the group has processed all offsets; None for a topic that is not there now
    :ivar at: partition and topic
    :ivar first: its first offset
    """

    renews = RangeHeartbeat
    releases = ReleasingRange

    def __init__(
        self,
        context: Context,
        tenure: Tenure,
        at: RangePlace,
        held: Range,
        sent_at: int,
        over: Callable[[Holding, LossReason], None],
        committed: Callable[[RangePlace], int | None],
    ) -> None:
        super().__init__(context, tenure, held.current, held.claimed_at, sent_at, over)
        self.at = at
        self.first = held.first
        self.end_offset = held.end
        self._topic_id = at.topic_id
        self._committed = committed

    def _live(self) -> Procedure:
        yield from self._consume()
        yield from self._say_goodbye()

    def _claim_in_log(self) -> Any:
        held = _own(self._context, self.at, self.first)
        return held if held is not None and held.token == self.tenure.token else None

    def _find_start(self, position: int) -> Generator[Any, Any, Start | None]:
        """Offsets that the partition does not have any more count as processed: the next holder would not get them."""
        found = yield FindStart(self.tenure, is_unknown=False)
        is_same = not isinstance(found, StartFailed) and found.topic_id == self._topic_id
        low = found.low if is_same else 0
        return Start(min(max(position, low), self.end_offset or 0))

    def _identify(self) -> Procedure:
        yield from ()  # each message of a range names the topic

    def _said_goodbye(self) -> Procedure:
        yield ReadToEnd(self.coordination_partition)  # so that the commit covers this range
        self._commit(self.position)

    def _commit(self, position: int) -> None:
        if self.phase is Phase.LEAVING and (committed := self._committed(self.at)) is not None:
            self._context.emit(CommitOffset(self.tenure, committed))

    def message(self, kind: type, **fields: Any) -> Any:
        """Return a message about the range."""
        return _message(self._context, kind, self.at, self.first, not_before=self.claimed_at, **fields)


def _message(context: Context, kind: type, at: RangePlace, first: int, **fields: Any) -> Any:
    """Return a message about a range."""
    place = TopicPartition(at.place.topic, at.place.partition)
    return context.message(kind, place, about=(place, first), first_offset=first, topic_id=at.topic_id, **fields)


def _own(context: Context, place: RangePlace, first: int) -> Range | None:
    """Return the range at an offset, if the log has it as this member's."""
    assert context.ranges is not None
    own = context.ranges.held_by(place, context.settings.instance_id)
    return next((held for held in own if held.first == first), None)


class RangeClaiming:
    """The ranges of one member; what a member needs of it has the names of `claiming.Claiming`.

    :param claims: sizes
    :param barred: returns why this member may claim nothing at all; empty if it may
    :ivar counts: partitions of each topic, where they are known
    :ivar ids: of the topics, likewise
    """

    def __init__(self, context: Context, claims: RangeClaims, barred: Callable[[], str]) -> None:
        assert context.ranges is not None
        self.counts: Mapping[str, int] = {}
        self.ids: Mapping[str, str] = {}
        self._context = context
        self._state = context.ranges
        self._claims = claims
        self._barred = barred
        self._held: defaultdict[TopicPartition, dict[int, RangeHolding]] = defaultdict(dict)
        self._under_way: set[tuple[TopicPartition, int]] = set()
        self._letting_go: set[tuple[TopicPartition, int]] = set()
        self._starts: dict[TopicPartition, tuple[str, int]] = {}
        self._cool_until: dict[TopicPartition, int] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held, claimed or released."""
        return not (any(self._held.values()) or self._under_way or self._letting_go)

    def all(self) -> list[Holding]:
        """Return the tenures."""
        return [holding for held in self._held.values() for holding in held.values()]

    def of(self, tenure: Tenure) -> Holding | None:
        """Return a tenure that is not over."""
        held = self._held[TopicPartition(tenure.topic, tenure.partition)].values()
        return next((holding for holding in held if holding.tenure == tenure), None)

    def obstacle(self, place: TopicPartition) -> str:
        """Return why this member claims no range of a partition now; empty if it may."""
        if barred := self._barred():
            return barred
        if self._context.is_paused(place.topic):
            return "the group is paused"
        if place.partition >= self.counts.get(place.topic, 0):
            return "there is no such partition"
        is_cool = self._context.now < self._cool_until.get(place, self._context.now)
        return "this member has given it up a short time ago" if is_cool else ""

    # ---- claiming

    def claim_all(self, topic: str) -> Procedure:
        """Claim ranges of each partition, also of those that are added."""
        for partition in count():
            yield Until(partial(self._has, topic, partition))
            self._context.procedures.start(self._claim_of(TopicPartition(topic, partition)), self._context.now)

    def _has(self, topic: str, partition: int) -> bool:
        return partition < self.counts.get(topic, 0)

    def _claim_of(self, place: TopicPartition) -> Procedure:
        context, on = self._context, self._context.coordinating(place.topic)
        while True:
            has_room = yield Until(lambda: self._lacks(place), context.interval_ms // _LOOKS)
            if not (yield from self._find_start(place)):
                yield Sleep(context.interval_ms)
                continue
            yield ReadToEnd(on)
            free = self._free(place)
            if self._is_barred(place) or free is None or not self._wants(place, free[0]):
                yield Sleep(context.retry_ms if has_room else 0)
            elif not (yield from self._claim(place, *free)):  # somebody else won the race, or the claim was lost
                yield Sleep(context.jitter(1, context.retry_ms))

    def _is_barred(self, place: TopicPartition) -> bool:
        return bool(self.obstacle(place)) or not self._is_of_topic(place)

    def _lacks(self, place: TopicPartition) -> bool:
        return len(self._held[place]) < self._claims.ahead

    def _find_start(self, place: TopicPartition) -> Generator[Any, Any, bool]:
        """Find the first offset that may be claimed, of a topic that has not been looked at; False if that fails."""
        if self._is_of_topic(place):
            return True
        context = self._context
        found = yield FindStart(Tenure(*place, -1), is_unknown=True)
        reason = found.reason if isinstance(found, StartFailed) else ""
        if not reason and not found.topic_id:
            reason = "the brokers give topics no ids, without which ranges of a former topic would count"
        if reason:
            context.note(logging.ERROR, "no ranges", topic=place.topic, partition=place.partition, reason=reason)
            return False
        start = choose_start(0, found.committed, found.low, found.end, context.settings.reset)
        if start.note:
            where = {"topic": place.topic, "partition": place.partition, "start": start.offset}
            context.note(logging.WARNING, "start moved", **where, reason=start.note)
        self._starts[place] = found.topic_id, start.offset
        return True

    def _is_of_topic(self, place: TopicPartition) -> bool:
        """Return whether what is known of a partition is known of the topic that is there now."""
        known = self._starts.get(place)
        return known is not None and self.ids.get(place.topic, known[0]) == known[0]

    def _at(self, place: TopicPartition) -> RangePlace:
        return RangePlace(Place(self._context.settings.group_id, *place), self._starts[place][0])

    def _ranges(self, place: TopicPartition) -> Ranges:
        on = self._context.coordinating(place.topic)
        return self._state.of(self._at(place), on, self._context.log_ms(on))

    def _free(self, place: TopicPartition) -> tuple[int, int] | None:
        """Return the first offsets that may be claimed now."""
        context, on = self._context, self._context.coordinating(place.topic)
        if not context.state.is_warm(on, context.log_ms(on)):
            return None
        free = self._ranges(place).next_free(self._starts[place][1], self._claims.size)
        if free is None or (place, free[0]) in self._letting_go or not context.can_claim_now((place, free[0])):
            return None
        return free

    def _wants(self, place: TopicPartition, first: int) -> bool:
        """Return whether to claim a free range. What somebody has left behind goes before ranges held in advance."""
        held, ahead = self._held[place], self._claims.ahead
        return len(held) < ahead or (first < min(held) and len(held) < 2 * ahead)

    def _claim(self, place: TopicPartition, first: int, end: int) -> Generator[Any, Any, bool]:
        """Claim a range, as the eleven steps claim a partition; return whether it is held."""
        context, on, about = self._context, self._context.coordinating(place.topic), (place, first)
        at, sent_at = self._at(place), context.now
        self._under_way.add(about)
        try:
            message = _message(context, ClaimingRange, at, first, end_offset=end)
            yield Append(on, message)
            yield ReadToEnd(on)
            own = _own(context, at, first)
            is_late = context.now >= sent_at + context.interval_ms or self._is_barred(place)
            if own is None or own.claimed_at != message.time or is_late or first in self._held[place]:
                return False
            tenure = Tenure(*place, own.token)
            holding = RangeHolding(context, tenure, at, own, sent_at, self._over, self._committed)
            self._held[place][first] = holding
            context.note(logging.INFO, "tenure began", **tenure._asdict(), offset=own.current, end=own.end)
            holding.begin()
            return True
        finally:
            self._under_way.discard(about)
            self.check(place)

    def _committed(self, at: RangePlace) -> int | None:
        place = TopicPartition(at.place.topic, at.place.partition)
        is_there = self._is_of_topic(place) and at == self._at(place)
        return self._ranges(place).prefix(self._starts[place][1]) if is_there else None

    # ---- the end of tenures

    def check(self, place: TopicPartition) -> None:
        """Compare with the log, after it has new entries about a partition."""
        for holding in list(self._held[place].values()):
            holding.check()
        if place not in self._starts:
            return
        at = self._at(place)
        for own in self._state.held_by(at, self._context.settings.instance_id):
            about = (place, own.first)
            if own.first not in self._held[place] and about not in self._under_way and about not in self._letting_go:
                self._context.procedures.start(self._let_go(place, at, own.first, own.current), self._context.now)

    def _over(self, holding: Holding, why: LossReason) -> None:
        assert isinstance(holding, RangeHolding)
        place, context, first = holding.place, self._context, holding.first
        del self._held[place][first]
        if why is LossReason.DONE:
            context.forget((place, first))
        if why in (LossReason.RELEASED, LossReason.FETCH_FAILED):
            cooldown_ms = context.settings.cooldown_ms
            self._cool_until[place] = context.now + (cooldown_ms if cooldown_ms >= 0 else context.interval_ms)
        if why in (LossReason.EXPIRED, LossReason.CLIENT_ID_REUSED):
            context.procedures.start(self._let_go(place, holding.at, first, holding.position), context.now)

    def _let_go(self, place: TopicPartition, at: RangePlace, first: int, position: int) -> Procedure:
        """Release what the log has as ours and no tenure works on."""
        context, on, about = self._context, self._context.coordinating(place.topic), (place, first)
        self._letting_go.add(about)
        try:
            while (own := _own(context, at, first)) is not None:
                current = min(max(position, own.current), own.end)
                fields = {"not_before": own.claimed_at, "current_offset": current}
                yield Append(on, _message(context, ReleasingRange, at, first, **fields))
                yield ReadToEnd(on)
                yield Sleep(context.retry_ms)
        finally:
            self._letting_go.discard(about)
