"""How a member comes to hold partitions: by a claim, or by the heartbeats of its former process.

Laws:

* A claim is won only if the log says so after it was read up to its end, whatever the answer to the append was.
* The offset is that of the log at the winning entry, so no release that landed before it is missed.
* A claim that this instance has in the log and does not work on, because its entry landed too late, is released.
* A partition that this member gave up is not claimed by it again before the cooldown is over, so that others can.

Sources: Marshal PROTOCOL.md, "Consuming a New Partition", "Consuming Recently Used Partitions on Restart".
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from kcoord_wire.kernel.procedures import Procedure, Sleep
from kcoord_wire.marshal.context import Context, TopicPartition
from kcoord_wire.marshal.events import Append, ReadToEnd, Tenure, Why
from kcoord_wire.marshal.holding import Holding
from kcoord_wire.marshal.log import AppendFailed
from kcoord_wire.marshal.state import Claim, Freshness
from kcoord_wire.messages.marshal import ClaimingPartition, Heartbeat, ReleasingPartition

_MOST_AT_ONCE: Final = 256
"""Claims of one attempt of a greedy member: they have the claim timeout together."""
_MOST_COOLDOWNS: Final = 10
"""Partitions whose records cannot be fetched are left alone for longer each time, up to so many cooldowns."""


class Claiming:
    """The claims of one member.

    :param barred: returns why this member may claim nothing at all; empty if it may
    :ivar holdings: the tenures
    :ivar counts: partitions of each topic, where they are known
    """

    def __init__(self, context: Context, barred: Callable[[], str]) -> None:
        self.holdings: dict[TopicPartition, Holding] = {}
        self.counts: Mapping[str, int] = {}
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
            sent_at = context.now
            yield from self._append(coordinating, beats)
            yield ReadToEnd(coordinating)
            for message in beats:
                if self._is_earliest(message):
                    self._begin(message, sent_at)
        finally:
            self._set_down(places)

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
        if context.is_guessed(claim):
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

    def _over(self, holding: Holding, why: Why) -> None:
        place, context = holding.place, self._context
        del self.holdings[place]
        self._failures[place] = self._failures.get(place, 0) + 1 if why is Why.FETCH_FAILED else 0
        cooldown = context.settings.cooldown_ms if context.settings.cooldown_ms >= 0 else context.interval_ms
        if why is Why.FETCH_FAILED:
            cooldown = max(cooldown, context.interval_ms) * min(self._failures[place], _MOST_COOLDOWNS)
        if why is not Why.PAUSED:
            self._cool_until[place] = context.now + cooldown
        if why in (Why.EXPIRED, Why.CLIENT_ID_REUSED):
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
