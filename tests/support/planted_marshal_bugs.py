"""Bugs of Marshal's member and of its world state, planted one by one, and the law of the simulation each breaks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple

import pytest

from kcoord_wire.kernel.virtual.scripts import Row, with_odds
from kcoord_wire.marshal import world_state
from kcoord_wire.marshal.claiming import Claiming
from kcoord_wire.marshal.context import Context, TopicPartition
from kcoord_wire.marshal.holding import AckTracker, AtMostOnce, Holding
from kcoord_wire.marshal.member_events import Delivery, Fetched, LossReason, StartFetching, StopFetching
from kcoord_wire.marshal.state import Claim, Entry, Freshness, Outcome
from kcoord_wire.marshal.world_state import WorldState
from kcoord_wire.worlds.marshal.marshal_world import ROWS, WRITERS

Patch = pytest.MonkeyPatch


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


def goes_on_after_the_fence(patch: Patch) -> None:
    """The fence is not looked at: a member fetches, and sends heartbeats, until the log shows another holder."""
    correct = Holding.end

    def planted(self: Holding, why: LossReason) -> None:
        if why is not LossReason.EXPIRED:
            correct(self, why)

    patch.setattr(Holding, "end", planted)


def does_not_read_back_its_claim(patch: Patch) -> None:
    """A member takes each claim that it has sent for won."""

    def planted(self: Claiming, message: Any) -> bool:
        return self._context.claim(TopicPartition(message.topic, message.partition)) is not None

    patch.setattr(Claiming, "_is_earliest", planted)


def starts_behind_the_position(patch: Patch) -> None:
    """A member leaves records out."""
    correct = Context.emit

    def planted(self: Context, effect: Any) -> None:
        if isinstance(effect, StartFetching):
            effect.offset += 5
        correct(self, effect)

    patch.setattr(Context, "emit", planted)


def starts_again_at_zero(patch: Patch) -> None:
    """A member begins with the oldest record."""
    correct = Context.emit

    def planted(self: Context, effect: Any) -> None:
        if isinstance(effect, StartFetching):
            effect.offset = 0
        correct(self, effect)

    patch.setattr(Context, "emit", planted)


def counts_gaps_of_the_prefix(patch: Patch) -> None:
    """The position is behind the last processed record, also if earlier ones were not processed."""
    correct = AckTracker.processed

    def planted(self: AckTracker, offset: int) -> None:
        correct(self, offset)
        for earlier in [each for each in self._unprocessed if each < offset]:
            del self._unprocessed[earlier]

    patch.setattr(AckTracker, "processed", planted)


def does_not_determine_the_state_again(patch: Patch) -> None:
    """At most once without the steps 5 to 8: a batch is delivered before it is committed."""

    def planted(self: AtMostOnce, batch: Fetched) -> Generator[Any, Any, bool]:
        self._held.deliver(batch.end)
        return True
        yield  # makes it a procedure

    patch.setattr(AtMostOnce, "_commit", planted)


def takes_the_first_token_of_the_log(patch: Patch) -> None:
    """The token is not that of the entry that won the claim."""
    correct = Context.emit

    def planted(self: Context, effect: Any) -> None:
        if isinstance(effect, StartFetching | StopFetching):
            effect.tenure = effect.tenure._replace(token=7)
        correct(self, effect)

    patch.setattr(Context, "emit", planted)


def never_claims_what_was_held(patch: Patch) -> None:
    """A partition that somebody has held is left alone."""
    correct = Claiming._of_place

    def planted(self: Claiming, place: TopicPartition, now: int) -> str:
        claim = self._context.claim(place)
        return "it was held" if claim is not None and claim.instance_id else correct(self, place, now)

    patch.setattr(Claiming, "_of_place", planted)


# ---- the world state


def grants_claims_after_one_interval(patch: Patch) -> None:
    """A claim is stale where it should be unknown."""
    correct = WorldState.freshness

    def planted(self: WorldState, claim: Claim, now: int) -> Freshness:
        found = correct(self, claim, now)
        return Freshness.STALE if found is Freshness.UNKNOWN else found

    patch.setattr(WorldState, "freshness", planted)


def grants_claims_at_two_intervals(patch: Patch) -> None:
    """A claim is stale at exactly two intervals, as in the Go library."""

    def planted(self: WorldState, claim: Claim, now: int) -> bool:
        if claim.last_heartbeat and now - claim.heartbeat_ms == 2 * self.interval_ms:
            return False
        return correct(self, claim, now)

    correct = WorldState.is_claimed
    patch.setattr(WorldState, "is_claimed", planted)


def takes_releases_of_anybody(patch: Patch) -> None:
    """A release is not compared with the holder."""

    def planted(self: WorldState, message: Any, entry: Entry, now: int) -> Claim | None:
        claim = self._find(message)
        return claim if claim is not None and self.is_claimed(claim, now) else None

    patch.setattr(WorldState, "_held", planted)


def takes_heartbeats_of_anybody(patch: Patch) -> None:
    """A heartbeat overwrites, as in the Go library."""
    patch.setattr(world_state, "_may_beat", lambda claim, message, is_same, freshness: True)


def lets_positions_go_back(patch: Patch) -> None:
    """The last message wins."""

    def planted(self: WorldState, claim: Claim, message: Any, entry: Entry, now: int) -> None:
        claim.current_offset = message.current_offset

    patch.setattr(WorldState, "_move", planted)


def looks_at_misplaced_entries(patch: Patch) -> None:
    """An entry counts wherever it lies, for the state; the law knows better."""
    correct = WorldState.apply

    def planted(self: WorldState, entry: Entry, now: int) -> Outcome:
        partitions, self.partitions = self.partitions, None
        try:
            return correct(self, entry, now)
        finally:
            self.partitions = partitions

    patch.setattr(WorldState, "apply", planted)


class Planted(NamedTuple):
    """A bug.

    :ivar laws: that it breaks: one of them, whichever comes first in a run
    :ivar rows: of the actions that bring it out
    """

    laws: Sequence[str]
    plant: Callable[[Patch], None]
    rows: Sequence[Row] = ROWS
    delivery: Delivery = Delivery.AT_LEAST_ONCE


_PAUSES: Final = with_odds(ROWS, pause=40, trouble=30, member=20, lead=10)
PLANTED: Final = (
    Planted(("one holder", "repeats"), fences_too_late, _PAUSES),
    Planted(("one holder", "repeats"), goes_on_after_the_fence, _PAUSES),
    Planted(("one holder", "repeats", "tokens"), does_not_read_back_its_claim, _PAUSES),
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
    Planted(("garbage",), looks_at_misplaced_entries, WRITERS),
)
