"""How a member comes to hold partitions: by a claim, by the heartbeats of its former process, or by a handoff. Pure.

A handoff, step by step: the holder announces it (HandingOver: to whom, until when), reads the log up to its end, and
validates that the announcement is there, that the claim is still its own and that the successor is still heard of. Then
it fetches nothing more and lets the application process what it has, for half of the time at most; the other half is
the successor's. It releases the partition with the processed prefix. The successor claims it at once; others leave it
alone until the handoff expires. Newest first: what a member has got last is given first, as the application has the
least state for it.

Laws of claims:

* A claim is won only if the log says so after it was read up to its end, whatever the answer to the append was.
* The offset is that of the log at the winning entry, so no release that landed before it is missed.
* A claim that this instance has in the log and does not work on, because its entry landed too late, is released.
* A partition that this member gave up is not claimed by it again before the cooldown is over, so that others can.

Laws of handoffs:

* Each handoff ends by its deadline: the partition is released with what was processed by then, or stays where it is.
* A handoff that has expired means nothing: the partition is its holder's, or free for all members.
* A handoff ends with the tenure that it is of. The next holder, also the same client after a restart, does not inherit
  it.
* Heartbeats go on while the application drains, and end with the release.

Laws of who gives what to whom (`plan_gives`):

* Only a holder gives; a live claim is never taken. A member gives `Balance.gives_per_round` at once at most, those
  included that it is handing over already.
* A partition is given to a member with at least 2 + `Balance.hysteresis` fewer, or to one that has none from one that
  has two: so each move makes the counts more even, and none is undone by the next.
* Members that have sent Presence are given partitions, up to their `max_claims`, while their last message is fresh.
  Others, as those of the Go library, keep what they hold.
* Partitions that are being handed over count for the successor; free ones for the members with the fewest, who will
  claim them.
* All members with one view make one plan, of which each carries out its own part. So all that send Presence have to
  balance, or none: the plan counts on the fullest member.

Sources: Marshal PROTOCOL.md, "Consuming a New Partition", "Consuming Recently Used Partitions on Restart"; KCL 3, whose
graceful handoff left leases without a worker: an expired handoff counted as available
(awslabs/amazon-kinesis-client#1765), heartbeats of a lease in shutdown went on (#1729), and a worker was started again
with a handoff pending (#1718); KCL 2, which takes from a random victim among the fullest, with a limit per round;
Azure's EventProcessor, whose members took partitions from each other in turns. The Go library has neither presence nor
balance.
"""

from __future__ import annotations

import heapq
import logging
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from kcoord_wire.kernel.procedures import Procedure, Sleep
from kcoord_wire.marshal.context import Context, TopicPartition
from kcoord_wire.marshal.holding import Holding, Phase
from kcoord_wire.marshal.log import AppendFailed
from kcoord_wire.marshal.member_events import Append, Balance, LossReason, ReadToEnd, Tenure
from kcoord_wire.marshal.world_state import Claim, Freshness, Place, Rules, WorldState
from kcoord_wire.messages.marshal import ClaimingPartition, HandingOver, Heartbeat, ReleasingPartition

_MOST_AT_ONCE: Final = 256
"""Claims of one attempt of a greedy member: they have the claim timeout together."""
_MOST_COOLDOWNS: Final = 10
"""Partitions whose records cannot be fetched are left alone for longer each time, up to so many cooldowns."""


class Claiming:
    """The claims of one member.

    :param barred: returns why this member may claim nothing at all; empty if it may
    :ivar holdings: the tenures
    :ivar counts: partitions of each topic, where they are known
    :ivar ids: of the topics, likewise
    """

    def __init__(self, context: Context, barred: Callable[[], str]) -> None:
        self.holdings: dict[TopicPartition, Holding] = {}
        self.counts: Mapping[str, int] = {}
        self.ids: Mapping[str, str] = {}
        self._context = context
        self._barred = barred
        self._under_way: set[TopicPartition] = set()
        self._letting_go: set[TopicPartition] = set()
        self._cool_until: dict[TopicPartition, int] = {}
        self._failures: dict[TopicPartition, int] = {}
        self._passes = zlib.crc32(context.settings.instance_id.encode())

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held, claimed or released."""
        return not (self.holdings or self._under_way or self._letting_go)

    def all(self) -> list[Holding]:
        """Return the tenures."""
        return list(self.holdings.values())

    def of(self, tenure: Tenure) -> Holding | None:
        """Return a tenure that is not over."""
        found = self.holdings.get(TopicPartition(tenure.topic, tenure.partition))
        return found if found is not None and found.tenure == tenure else None

    # ---- "Consuming a New Partition"

    def consume_new_partition(self, topic: str, places: Iterable[TopicPartition] | None = None) -> Procedure:
        """Claim a partition; a greedy member claims all that it can get.

        :param places: which to pick from; by default all of the topic
        """
        untried = self._in_random_order(topic) if places is None else iter(places)
        while picked := self._pick(topic, untried):  # 1, 2
            coordinating = self._context.coordinating(topic)  # 3
            try:
                self._under_way.update(picked)
                yield ReadToEnd(coordinating)  # 4
                free = self._still_free(topic, picked)  # 5
                claims = [self._context.message(ClaimingPartition, place) for place in free]  # 6
                sent_at = self._context.now
                if claims:
                    yield from self._append(coordinating, claims)  # 7
                    yield ReadToEnd(coordinating)  # 8
                won = [message for message in claims if self._is_earliest(message)]  # 9
                for message in won:  # 10: the others go back to step 1
                    self._begin(message, sent_at)  # 11
            finally:
                self._set_down(picked)
            if won and not self._context.settings.greedy:
                return

    def _still_free(self, topic: str, picked: list[TopicPartition]) -> list[TopicPartition]:
        now = self._log_now(topic)
        return [place for place in picked if not (self.unwanted(topic) or self._reserved_for_others(place, now))]

    def _log_now(self, topic: str) -> int:
        return self._context.log_now(self._context.coordinating(topic))

    def _in_random_order(self, topic: str) -> Iterator[TopicPartition]:
        """Yield the partitions, beginning with one that differs from member to member and from pass to pass."""
        count = self.counts.get(topic, 0)
        self._passes += 1
        start = zlib.crc32(f"{topic} {self._passes}".encode())
        return (TopicPartition(topic, (start + index) % count) for index in range(count))

    def _pick(self, topic: str, untried: Iterator[TopicPartition]) -> list[TopicPartition]:
        """Return partitions that look free: one, or as many as there may be."""
        if self._of_topic(topic):
            return []
        most = min(self._room(topic), _MOST_AT_ONCE if self._context.settings.greedy else 1)
        now = self._log_now(topic)
        return list(islice((place for place in untried if not self._of_place(place, now)), most))

    def _room(self, topic: str) -> int:
        most = self._context.settings.max_claims
        if not most:
            return _MOST_AT_ONCE
        taken = {place for place in (*self.holdings, *self._under_way) if place.topic == topic}
        return max(0, most - len(taken))

    def _append(self, coordinating: int, messages: list[Any]) -> Procedure:
        answers = yield [Append(coordinating, message) for message in messages]
        failed = [answer for answer in answers if isinstance(answer, AppendFailed)]
        if failed:
            facts = {"topic": messages[0].topic, "claims": len(messages), "failed": len(failed)}
            self._context.note(logging.WARNING, "claims not appended", **facts, reason=failed[0].reason)

    def _is_earliest(self, message: Any) -> bool:
        """Return whether the log has this message as the one that won: the earliest valid claim."""
        claim = self._context.own_claim(TopicPartition(message.topic, message.partition))
        return claim is not None and claim.claimed_at == message.time

    def _begin(self, message: Any, sent_at: int) -> None:
        place = TopicPartition(message.topic, message.partition)
        if self.unwanted(place.topic) or self._context.now >= sent_at + self._context.interval_ms:
            return
        claim = self._context.claim(place)
        assert claim is not None
        tenure = Tenure(*place, claim.token)
        holding = Holding(self._context, tenure, claim.current_offset, message.time, sent_at, self._over)
        self.holdings[place] = holding
        self._context.note(logging.INFO, "tenure began", **tenure._asdict(), offset=claim.current_offset)
        holding.begin()

    def _set_down(self, places: Collection[TopicPartition]) -> None:
        """An attempt is over; what it has in the log and did not begin is released."""
        self._under_way.difference_update(places)
        for place in places:
            self.check(place)

    # ---- "Consuming Recently Used Partitions on Restart"

    def recover(self, topic: str) -> Procedure:
        """Take over the fresh claims of this client's former process; the state of the world is known (1, 2)."""
        context, coordinating = self._context, self._context.coordinating(topic)
        former = (claim for claim in context.state.of_group(context.settings.group_id, topic) if self._is_former(claim))
        fresh = [] if self._of_topic(topic) else list(islice(former, self._room(topic)))  # 3
        if not fresh:
            return
        places = [TopicPartition(topic, claim.place.partition) for claim in fresh]
        try:
            self._under_way.update(places)
            beats = [
                context.message(Heartbeat, place, current_offset=claim.current_offset)
                for place, claim in zip(places, fresh, strict=True)
            ]
            sent_at, heard = context.now, [claim.heartbeat_ms for claim in fresh]
            yield from self._append(coordinating, beats)
            yield ReadToEnd(coordinating)
            for message, heard_ms in zip(beats, heard, strict=True):
                if self._is_earliest(message) and self._was_fresh(message, heard_ms):
                    self._begin(message, sent_at)
        finally:
            self._set_down(places)

    def _was_fresh(self, message: Any, heard_ms: int) -> bool:
        """Return whether the former process was fresh when our heartbeat landed, by the log's time.

        A silent log may be behind our estimate of its time. A reader of a trimmed one takes a heartbeat after a stale
        claim for that of a holder whom it has not seen; ours is none.
        """
        claim = self._context.claim(TopicPartition(message.topic, message.partition))
        is_late = claim is None or claim.heartbeat_ms - heard_ms >= self._context.interval_ms
        return self._context.settings.rules is Rules.LIBRARY or not is_late

    def _is_former(self, claim: Claim) -> bool:
        place, settings = TopicPartition(claim.place.topic, claim.place.partition), self._context.settings
        is_ours = claim.client_id == settings.client_id and claim.instance_id != settings.instance_id
        freshness = self._context.state.freshness(claim, self._log_now(place.topic))
        return is_ours and freshness is Freshness.FRESH and place.partition < self.counts[place.topic]

    # ---- what stands against a claim

    def obstacle(self, place: TopicPartition) -> str:
        """Return why this member does not claim a partition now; empty if it may."""
        blocked = self.unwanted(place.topic) or self._of_place(place, self._log_now(place.topic))
        return blocked or self._of_topic(place.topic)

    def unwanted(self, topic: str) -> str:
        """Return why this member may not hold anything of a topic."""
        return self._barred() or ("the group is paused" if self._context.is_paused(topic) else "")

    def _of_topic(self, topic: str) -> str:
        """Return why nothing of a topic is claimed now."""
        if unwanted := self.unwanted(topic):
            return unwanted
        if not self._context.is_warm(topic):
            return "the log's beginning was trimmed: claims without a heartbeat may not be known yet"
        return "" if self._room(topic) else "this member has as many as it may"

    def _of_place(self, place: TopicPartition, now: int) -> str:
        """Return what is in the way of claiming one partition; `now` is the log's."""
        context = self._context
        if place in self.holdings or place in self._under_way or place in self._letting_go:
            return "this member holds, claims or releases it"
        if reserved := self._reserved_for_others(place, now):
            return reserved
        if place.partition >= self.counts.get(place.topic, 0):
            return "there is no such partition"
        if context.now < self._cool_until.get(place, context.now):
            return "this member has given it up a short time ago"
        return "" if context.can_claim_now(place) else "this member's last message about it has the same second"

    def _reserved_for_others(self, place: TopicPartition, now: int) -> str:
        """Return who else has it, or will."""
        context = self._context
        claim = context.claim(place)
        if claim is None:
            return ""
        if context.state.is_claimed(claim, now):
            return f"held by {claim.client_id} (instance {claim.instance_id})"
        if context.is_uncertain(claim):
            return "whether it is free is not known yet: the log's beginning was trimmed"
        to_instance = context.reserved_for(claim)
        if to_instance in (None, context.settings.instance_id):
            return ""
        return f"handed over to instance {to_instance}"

    # ---- the end of tenures

    def check(self, place: TopicPartition) -> None:
        """Compare with the log, after it has new entries about a partition."""
        if (holding := self.holdings.get(place)) is not None:
            holding.check()
        elif place not in self._under_way and place not in self._letting_go and self._context.own_claim(place):
            self._context.procedures.start(self._let_go(place, None), self._context.now)

    def _over(self, holding: Holding, why: LossReason) -> None:
        place, context = holding.place, self._context
        del self.holdings[place]
        self._failures[place] = self._failures.get(place, 0) + 1 if why is LossReason.FETCH_FAILED else 0
        cooldown = context.settings.cooldown_ms if context.settings.cooldown_ms >= 0 else context.interval_ms
        if why is LossReason.FETCH_FAILED:
            cooldown = max(cooldown, context.interval_ms) * min(self._failures[place], _MOST_COOLDOWNS)
        if why is not LossReason.PAUSED:
            self._cool_until[place] = context.now + cooldown
        if why in (LossReason.EXPIRED, LossReason.CLIENT_ID_REUSED):
            context.procedures.start(self._let_go(place, holding), context.now)

    def _let_go(self, place: TopicPartition, holding: Holding | None) -> Procedure:
        """Release what the log has as ours and no holding works on, with the position of its tenure."""
        context = self._context
        coordinating = context.coordinating(place.topic)
        self._letting_go.add(place)
        try:
            while (claim := context.own_claim(place)) is not None:
                is_same = holding is not None and holding.tenure.token == claim.token
                offset = holding.position if is_same and holding is not None else claim.current_offset
                fields = {"not_before": claim.claimed_at, "current_offset": offset}
                yield Append(coordinating, context.message(ReleasingPartition, place, **fields))
                yield ReadToEnd(coordinating)
                yield Sleep(context.retry_ms)
        finally:
            self._letting_go.discard(place)


class View(NamedTuple):
    """A topic as a member of a group sees it.

    :ivar partitions: of the topic
    :ivar now: by which claims are live, as in `WorldState.is_claimed`
    :ivar log_ms: time of the topic's coordination partition
    """

    state: WorldState
    group_id: str
    topic: str
    partitions: int
    now: int
    log_ms: int


class Give(NamedTuple):
    """One partition to hand over."""

    partition: int
    to_instance_id: str


def receivers(view: View) -> dict[str, int]:
    """Return the members that take partitions: how many at most (0: any number), by instance id.

    Of the instances of one client only the one that was heard of last counts; the others are former processes.
    """
    fresh_ms = view.state.interval_ms
    latest: dict[str, tuple[int, str, int]] = {}
    for member in view.state.members.get((view.group_id, view.topic), {}).values():
        if member.max_claims is not None and view.log_ms - member.seen_ms < fresh_ms:
            found = (member.seen_ms, member.instance_id, member.max_claims)
            latest[member.client_id] = max(found, latest.get(member.client_id, found))
    return {instance_id: max_claims for _, instance_id, max_claims in latest.values()}


class _Holders(NamedTuple):
    """Who holds what, with handoffs counted for the successors.

    :ivar own: partitions of the member that asks, with the offset that won each
    :ivar giving: by instance: how many it is handing over
    """

    counts: Counter[str]
    own: list[tuple[int, int]]
    giving: Counter[str]
    free: int


def plan_gives(view: View, instance_id: str, balance: Balance, giving: Mapping[int, str]) -> list[Give]:
    """Return what a member should begin to hand over now.

    :param instance_id: the member that asks
    :param giving: what it is handing over already, to whom; the log may not show it yet
    """
    limits = receivers(view)
    held = _held(view, instance_id, giving)
    _give_free(held, limits)
    counts = [(held.counts[each], each) for each in limits]
    budgets = {each: balance.gives_per_round - held.giving[each] for each in limits}
    to = _plan(counts, limits, budgets, balance.hysteresis, instance_id)
    newest = sorted(held.own, reverse=True)
    return [Give(partition, successor) for (_, partition), successor in zip(newest, to, strict=False)]


def _held(view: View, instance_id: str, giving: Mapping[int, str]) -> _Holders:
    held = _Holders(Counter(), [], Counter(), 0)
    free = 0
    for partition in range(view.partitions):
        claim = view.state.claims.get(Place(view.group_id, view.topic, partition))
        if claim is None:
            free += 1
            continue
        holder = claim.instance_id if view.state.is_claimed(claim, view.now) else ""
        successor = giving.get(partition, "") if holder == instance_id else ""
        successor = successor or _successor(claim, view.log_ms)
        if holder and successor:
            held.giving[holder] += 1
        elif holder == instance_id:
            held.own.append((claim.token, partition))
        if successor or holder:
            held.counts[successor or holder] += 1
        else:
            free += 1
    return held._replace(free=free)


def _successor(claim: Claim, log_ms: int) -> str:
    """Return for which member a partition is meant; empty for none."""
    handoff = claim.handoff
    return handoff.to_instance_id if handoff is not None and log_ms <= handoff.until_ms else ""


def _give_free(held: _Holders, limits: Mapping[str, int]) -> None:
    """Count the free partitions for the members with the fewest."""
    fewest = [(held.counts[each], each) for each in limits]
    heapq.heapify(fewest)
    free = held.free
    while free and fewest:
        count, each = heapq.heappop(fewest)
        if _has_room(count, limits[each]):
            held.counts[each] += 1
            free -= 1
            heapq.heappush(fewest, (count + 1, each))


def _has_room(count: int, limit: int) -> bool:
    return not limit or count < limit


def _plan(
    counts: Collection[tuple[int, str]],
    limits: Mapping[str, int],
    budgets: dict[str, int],
    hysteresis: int,
    instance_id: str,
) -> list[str]:
    """Return to whom the member that asks gives, one name for each partition, as its part of everybody's plan."""
    fewest = list(counts)
    fullest = [(-count, each) for count, each in counts if budgets[each] > 0]
    heapq.heapify(fewest)
    heapq.heapify(fullest)
    gives: list[str] = []
    while fewest and fullest:
        (least, receiver), (most, giver) = fewest[0], fullest[0]
        if not _has_room(least, limits[receiver]):
            heapq.heappop(fewest)
        elif -most - least >= 2 + hysteresis or (least == 0 and -most >= 2):
            heapq.heapreplace(fewest, (least + 1, receiver))
            budgets[giver] -= 1
            if giver == instance_id:
                gives.append(receiver)
            if budgets[giver]:
                heapq.heapreplace(fullest, (most + 1, giver))
            else:
                heapq.heappop(fullest)
        else:
            break
    return gives


_SOONEST: Final = 0.25  # of a heartbeat interval, from one Presence to the next
_LATEST: Final = 0.73


class Handoffs:
    """The handoffs of one member.

    :ivar announcing: to whom, for each partition whose handoff is not yet validated
    """

    def __init__(self, context: Context, claiming: Claiming) -> None:
        self.announcing: dict[TopicPartition, str] = {}
        self._context = context
        self._claiming = claiming

    def present(self, topic: str) -> Procedure:
        """Let the others know of this member, also while it holds nothing."""
        context = self._context
        soonest, latest = (int(context.interval_ms * part) for part in (_SOONEST, _LATEST))
        while True:
            max_claims = -1 if self._claiming.unwanted(topic) else context.settings.max_claims
            yield Append(context.coordinating(topic), context.presence(topic, max_claims))
            yield Sleep(context.jitter(soonest, latest))

    def leave(self, topic: str) -> Procedure:
        """Let the others know that this member takes nothing any more: while it drains, it would look present."""
        message = self._context.presence(topic, -1)
        while isinstance((yield Append(self._context.coordinating(topic), message)), AppendFailed):
            yield Sleep(self._context.retry_ms)

    def rounds(self, topic: str, balance: Balance) -> Procedure:
        """Look from time to time for members that should have more."""
        context = self._context
        while True:
            yield Sleep(context.jitter(balance.round_ms // 2, balance.round_ms))
            giving = {place.partition: to for place, to in self.announcing.items() if place.topic == topic}
            for give in plan_gives(self._view(topic), context.settings.instance_id, balance, giving):
                holding = self._claiming.holdings.get(TopicPartition(topic, give.partition))
                if holding is not None and holding.phase is Phase.HELD:
                    context.procedures.start(self._hand_over(holding, give.to_instance_id, balance), context.now)

    def is_successor(self, place: TopicPartition) -> bool:
        """Return whether a partition is to be claimed by this member before others."""
        claim = self._context.claim(place)
        return claim is not None and self._context.reserved_for(claim) == self._context.settings.instance_id

    def _hand_over(self, holding: Holding, successor: str, balance: Balance) -> Procedure:
        self.announcing[holding.place] = successor
        try:
            began = self._context.now
            message = holding.message(HandingOver, to_instance_id=successor)
            message.deadline = message.time + balance.handoff_ms // 1_000
            yield Append(holding.coordination_partition, message)
            yield ReadToEnd(holding.coordination_partition)
            drain_ms = balance.handoff_ms // 2 - (self._context.now - began)
            obstacle = self._obstacle(holding, successor) or ("it has taken too long" if drain_ms <= 0 else "")
            facts = {**holding.tenure._asdict(), "to": successor}
            if obstacle:
                self._context.note(logging.WARNING, "handoff given up", **facts, reason=obstacle)
            else:
                self._context.note(logging.INFO, "handing over", **facts)
                holding.release(LossReason.HANDED_OVER, drain_ms)
        finally:
            del self.announcing[holding.place]

    def _obstacle(self, holding: Holding, successor: str) -> str:
        """Return why a handoff that was announced cannot go on; empty if it can."""
        claim = holding.claim()
        if claim is None:
            return "the claim is lost"
        if claim.handoff is None or claim.handoff.to_instance_id != successor:
            return "the announcement has not landed"
        if successor not in receivers(self._view(holding.tenure.topic)):
            return "the successor is not heard of"
        return ""

    def _view(self, topic: str) -> View:
        context, coordinating = self._context, self._context.coordinating(topic)
        count = self._claiming.counts.get(topic, 0)
        now, log_ms = context.log_now(coordinating), context.log_ms(coordinating)
        return View(context.state, context.settings.group_id, topic, count, now, log_ms)
