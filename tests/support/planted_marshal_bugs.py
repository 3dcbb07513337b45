"""Bugs of Marshal's member and of its world state, planted one by one, and the law of the simulation each breaks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple

from kcoord_wire.kernel.virtual.scripts import Row
from kcoord_wire.marshal import claiming, world_state
from kcoord_wire.marshal.claiming import Claiming
from kcoord_wire.marshal.context import Context, TopicPartition
from kcoord_wire.marshal.holding import AckTracker, AtMostOnce, Holding, Phase
from kcoord_wire.marshal.member_events import (
    Delivery,
    Fetched,
    LossReason,
    StartFetching,
    StopFetching,
)
from kcoord_wire.marshal.range_claiming import RangeClaiming, RangeHolding
from kcoord_wire.marshal.ranges import Range, Ranges, RangeState
from kcoord_wire.marshal.world_state import Claim, Entry, Freshness, Outcome, WorldState
from kcoord_wire.messages.marshal import IdentifyingTopic
from kcoord_wire.worlds.marshal.marshal_world import DOUBLES, HANDOVERS, PAUSES, RECREATES, ROWS, WRITERS
from tests.support.planting import Patch, replaces

# ---- the member


def fences_too_late(patch: Patch) -> None:
    """A tenure goes on for three intervals after its last heartbeat."""
    correct = Holding.__init__

    def planted(self: Holding, context: Context, *arguments: Any) -> None:
        correct(self, context, *arguments)
        self.fence += 2 * context.interval_ms
        self._fence = context.fences.move(self._fence, self.fence)

    heartbeat = Holding.heartbeat

    def planted_heartbeat(self: Holding, offset: int) -> Generator[Any, Any, Any]:
        answer = yield from heartbeat(self, offset)
        self.fence += 2 * self._context.interval_ms
        self._fence = self._context.fences.move(self._fence, self.fence)
        return answer

    patch.setattr(Holding, "__init__", planted)
    patch.setattr(Holding, "heartbeat", planted_heartbeat)


@replaces(Holding, "end")
def goes_on_after_the_fence(correct: Any, self: Holding, why: LossReason) -> None:
    """The fence is not looked at: a member fetches, and sends heartbeats, until the log shows another holder."""
    if why is not LossReason.EXPIRED:
        correct(self, why)


@replaces(Claiming, "_is_earliest")
def does_not_read_back_its_claim(_right: Any, self: Claiming, message: Any) -> bool:
    """A member takes each claim that it has sent for won."""
    return self._context.claim(TopicPartition(message.topic, message.partition)) is not None


@replaces(Context, "emit")
def starts_behind_the_position(correct: Any, self: Context, effect: Any) -> None:
    """A member leaves records out."""
    if isinstance(effect, StartFetching):
        effect.offset += 5
    correct(self, effect)


@replaces(Context, "emit")
def starts_again_at_zero(correct: Any, self: Context, effect: Any) -> None:
    """A member begins with the oldest record."""
    if isinstance(effect, StartFetching):
        effect.offset = 0
    correct(self, effect)


@replaces(AckTracker, "processed")
def counts_gaps_of_the_prefix(correct: Any, self: AckTracker, offset: int) -> None:
    """The position is behind the last processed record, also if earlier ones were not processed."""
    correct(self, offset)
    for earlier in [each for each in self._unprocessed if each < offset]:
        del self._unprocessed[earlier]


@replaces(AtMostOnce, "_commit")
def does_not_determine_the_state_again(_right: Any, self: AtMostOnce, batch: Fetched) -> Generator[Any, Any, bool]:
    """At most once without the steps 5 to 8: a batch is delivered before it is committed."""
    self._held.deliver(batch.end)
    return True
    yield  # makes it a procedure


@replaces(Context, "emit")
def takes_the_first_token_of_the_log(correct: Any, self: Context, effect: Any) -> None:
    """The token is not that of the entry that won the claim."""
    if isinstance(effect, StartFetching | StopFetching):
        effect.tenure = effect.tenure._replace(token=7)
    correct(self, effect)


@replaces(Claiming, "_of_place")
def never_claims_what_was_held(correct: Any, self: Claiming, place: TopicPartition, now: int) -> str:
    """A partition that somebody has held is left alone."""
    claim = self._context.claim(place)
    return "it was held" if claim is not None and claim.instance_id else correct(self, place, now)


@replaces(Holding, "check")
def goes_on_when_another_holds_it(_right: Any, self: Holding) -> None:
    """A member does not compare its tenure with the log."""


@replaces(Context, "jitter")
def waits_too_long_between_heartbeats(_right: Any, self: Context, low: int, high: int) -> int:
    """A heartbeat is sent shortly before the fence."""
    return high + (high - low) // 2


def sends_no_progress(patch: Patch) -> None:
    """A heartbeat has the position at which the tenure began."""
    patch.setattr(Holding, "position", property(lambda self: self._offset))


@replaces(Holding, "_track")
def drains_until_the_next_record(correct: Any, self: Holding, change: Any) -> None:
    """A release waits for one record, and not for all."""
    correct(self, change)
    if self.phase is Phase.DRAINING:
        self._drained.open()


@replaces(Holding, "release")
def holds_what_it_cannot_fetch(correct: Any, self: Holding, why: LossReason, drain_ms: int = -1) -> None:
    """That fetching has failed ends nothing."""
    if why is not LossReason.FETCH_FAILED:
        correct(self, why, drain_ms)


@replaces(Claiming, "_over")
def claims_again_what_it_has_given_up(correct: Any, self: Claiming, holding: Holding, why: LossReason) -> None:
    """Nobody else gets the partition."""
    correct(self, holding, why)
    self._cool_until.clear()


def hands_over_to_who_has_one_fewer(patch: Patch) -> None:
    """The counts are as even as before."""
    right = claiming._plan

    def wrong(counts: Any, limits: Any, budgets: Any, _hysteresis: int, instance_id: str) -> list[str]:
        return right(counts, limits, budgets, -1, instance_id)

    patch.setattr(claiming, "_plan", wrong)


# ---- the world state


@replaces(WorldState, "freshness")
def grants_claims_after_one_interval(correct: Any, self: WorldState, claim: Claim, now: int) -> Freshness:
    """A claim is stale where it should be unknown."""
    found = correct(self, claim, now)
    return Freshness.STALE if found is Freshness.UNKNOWN else found


@replaces(WorldState, "is_claimed")
def grants_claims_at_two_intervals(correct: Any, self: WorldState, claim: Claim, now: int) -> bool:
    """A claim is stale at exactly two intervals, as in the Go library."""
    if claim.last_heartbeat and now - claim.heartbeat_ms == 2 * self.interval_ms:
        return False
    return correct(self, claim, now)


@replaces(WorldState, "_held")
def takes_releases_of_anybody(_right: Any, self: WorldState, message: Any, entry: Entry, now: int) -> Claim | None:
    """A release is not compared with the holder."""
    claim = self._find(message)
    return claim if claim is not None and self.is_claimed(claim, now) else None


def takes_heartbeats_of_anybody(patch: Patch) -> None:
    """A heartbeat overwrites, as in the Go library."""
    patch.setattr(world_state, "_may_beat", lambda claim, message, is_same, freshness: True)


@replaces(WorldState, "_move")
def lets_positions_go_back(_right: Any, self: WorldState, claim: Claim, message: Any, entry: Entry, now: int) -> None:
    """The last message wins."""
    claim.current_offset = message.current_offset


@replaces(WorldState, "apply")
def looks_at_misplaced_entries(correct: Any, self: WorldState, entry: Entry, now: int) -> Outcome:
    """An entry counts wherever it lies, for the state; the law knows better."""
    partitions, self.partitions = self.partitions, None
    try:
        return correct(self, entry, now)
    finally:
        self.partitions = partitions


def forgets_the_position_when_the_topic_is_named(patch: Patch) -> None:
    """The first name of a topic is taken for another one."""
    right = world_state._HANDLERS[IdentifyingTopic]

    def wrong(self: WorldState, message: Any, entry: Entry, now: int) -> Outcome:
        claim = self._find(message)
        is_first = claim is not None and not claim.topic_id
        outcome = right(self, message, entry, now)
        if claim is not None and is_first and claim.topic_id and message.current_offset < 0:
            claim.current_offset = 0
        return outcome

    patch.setitem(world_state._HANDLERS, IdentifyingTopic, wrong)


@replaces(Holding, "_agree")
def keeps_the_position_of_the_former_topic(_right: Any, self: Holding, start: Any) -> Generator[Any, Any, None]:
    """A tenure begins at the start of the new topic, and the log has the position of the former one."""
    yield from ()


# ---- ranges


@replaces(RangeHolding, "end")
def holds_a_range_after_its_fence(correct: Any, self: RangeHolding, why: LossReason) -> None:
    """The fence of a range is not looked at."""
    if why is not LossReason.EXPIRED:
        correct(self, why)


@replaces(Ranges, "drop_stale")
def ranges_are_stale_after_one_interval(correct: Any, self: Ranges, oldest_ms: int) -> None:
    """Half of the time: the interval is not known here, so each range loses a second."""
    correct(self, oldest_ms + 1_000)


@replaces(Ranges, "next_free")
def what_is_done_is_claimed_again(correct: Any, self: Ranges, start: int, size: int) -> tuple[int, int] | None:
    """Only what is held is in the way of a claim."""
    return correct(Ranges(self.held, doubted=self.doubted), start, size)


@replaces(Context, "emit")
def a_range_begins_below_its_offsets(correct: Any, self: Context, effect: Any) -> None:
    """A member reads what others have done."""
    if isinstance(effect, StartFetching) and effect.offset >= 60:
        effect.offset -= 60
    correct(self, effect)


@replaces(WorldState, "apply")
def ranges_by_the_readers_clock(correct: Any, self: WorldState, entry: Entry, now: int) -> Outcome:
    """The log's time is that of the member that reads."""
    outcome: Outcome = correct(self, entry, now)
    self._progress[entry.partition].time_ms = now * 1_000
    return outcome


@replaces(RangeState, "_held")
def tokens_of_ranges_fall(correct: Any, self: RangeState, *arguments: Any) -> Range:
    """The token is not the offset of the entry that won the claim."""
    held: Range = correct(self, *arguments)
    held.token = 1_000_000 - held.token
    return held


@replaces(RangeClaiming, "_wants")
def what_others_leave_behind_is_left(_right: Any, self: RangeClaiming, place: TopicPartition, first: int) -> bool:
    """A member claims behind everything that was claimed."""
    at = self._at(place)
    ranges = self._state.places.get(at)
    return first >= max((end for _, end in ranges.done), default=0) if ranges is not None else True


class Planted(NamedTuple):
    """A bug.

    :ivar laws: that it breaks: one of them, whichever comes first in a run
    :ivar rows: of the actions that bring it out
    """

    laws: Sequence[str]
    plant: Callable[[Patch], None]
    rows: Sequence[Row] = ROWS
    delivery: Delivery = Delivery.AT_LEAST_ONCE


PLANTED: Final = (
    Planted(("fence",), fences_too_late, PAUSES),
    Planted(("fence",), goes_on_after_the_fence, PAUSES),
    Planted(("one holder", "repeats", "tokens"), does_not_read_back_its_claim, PAUSES),
    Planted(("follows the log",), goes_on_when_another_holds_it, DOUBLES),
    Planted(("heartbeats",), waits_too_long_between_heartbeats),
    Planted(("progress",), sends_no_progress),
    Planted(("drained",), drains_until_the_next_record, HANDOVERS),
    Planted(("obeys",), holds_what_it_cannot_fetch, HANDOVERS),
    Planted(("claims",), claims_again_what_it_has_given_up, HANDOVERS),
    Planted(("handoffs",), hands_over_to_who_has_one_fewer),
    Planted(("nothing lost",), starts_behind_the_position),
    Planted(("repeats",), starts_again_at_zero),
    Planted(("nothing lost",), counts_gaps_of_the_prefix),
    Planted(("at most once",), does_not_determine_the_state_again, delivery=Delivery.AT_MOST_ONCE),
    Planted(("tokens",), takes_the_first_token_of_the_log),
    Planted(("settles",), never_claims_what_was_held),
    Planted(("holder",), grants_claims_after_one_interval),
    Planted(("holder",), takes_releases_of_anybody, WRITERS),
    Planted(("holder",), takes_heartbeats_of_anybody, WRITERS),
    Planted(("offsets",), lets_positions_go_back),
    Planted(("offsets",), forgets_the_position_when_the_topic_is_named),
    Planted(("nothing lost",), keeps_the_position_of_the_former_topic, RECREATES),
    Planted(("garbage",), looks_at_misplaced_entries, WRITERS),
)

RANGES: Final = (
    Planted(("one range",), holds_a_range_after_its_fence),
    Planted(("claims",), ranges_are_stale_after_one_interval),
    Planted(("claims",), what_is_done_is_claimed_again),
    Planted(("done is processed",), counts_gaps_of_the_prefix),
    Planted(("done once",), a_range_begins_below_its_offsets),
    Planted(("same ranges",), ranges_by_the_readers_clock),
    Planted(("range tokens",), tokens_of_ranges_fall),
    Planted(("settles",), what_others_leave_behind_is_left),
)
"""Of members that claim ranges."""
