"""What one member does, checked against what it has read of the log and what its application has done.

Laws, of members that claim partitions; by both rule sets but where one is named:

* ``follows the log``: a member fetches a partition only while the log, as it has read it, has its claim.
* ``fence``: it fetches until one heartbeat interval after it has sent the claim, or the last heartbeat that it knows to
  have landed, by its monotonic clock.
* ``heartbeats``: while it fetches it sends a heartbeat within four fifths of an interval after the one before.
* ``progress``, at least once: a heartbeat, and a release of a tenure, has the end of the contiguous processed prefix.
* ``drained``, at least once: a partition is released when the application has processed what it was given, or its time
  is over.
* ``obeys``: a member stops fetching at once what its application releases or cannot fetch; everything when that ends
  it; and by the document what is paused, when it has read so.
* ``claims``: it claims nothing that somebody holds, as it has read the log, that is handed over to another, that is
  paused, or that it had one interval ago.
* ``handoffs``: it hands a partition over to a member that has said that it takes some, and holds two fewer at least.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from kcoord_wire.kernel.machines import Shutdown
from kcoord_wire.kernel.virtual.scripts import ViolationError
from kcoord_wire.marshal import member_events as events
from kcoord_wire.marshal.context import Context, TopicPartition
from kcoord_wire.marshal.log import Appended, AppendFailed
from kcoord_wire.marshal.member_events import Delivery, LossReason, Tenure
from kcoord_wire.marshal.world_state import Claim, Rules
from kcoord_wire.messages.marshal import ClaimingPartition, HandingOver, Heartbeat, ReleaseGroup, ReleasingPartition

if TYPE_CHECKING:
    from kcoord_wire.worlds.marshal.marshal_laws import Fetching
    from kcoord_wire.worlds.marshal.virtual_log import VirtualTopics

_LATEST: Final = 0.8  # of an interval: 0.73, and one more wait where an append has failed


class Conduct:
    """The laws of one member.

    :param context: of its machine
    :param fetching: its tenures, which its process keeps
    """

    def __init__(self, name: str, context: Context, fetching: dict[Tenure, Fetching], topics: VirtualTopics) -> None:
        self._name = name
        self._context = context
        self._settings = context.settings
        self._fetching = fetching
        self._topics = topics
        self._under_way: dict[int, tuple[TopicPartition, int]] = {}
        self._valid_from: dict[TopicPartition, int] = {}
        self._beaten: dict[TopicPartition, int] = {}
        self._ended: dict[TopicPartition, tuple[int, LossReason, Fetching]] = {}

    def _break(self, law: str, what: object) -> None:
        raise ViolationError(law, f"{self._name}: {what}")

    # ---- what it does

    def starts(self, tenure: Tenure, now: int) -> None:
        """It begins to fetch; `now` is that of its monotonic clock, here and below."""
        self._beaten[TopicPartition(*tenure[:2])] = now

    def stops(self, fetching: Fetching, why: LossReason, now: int) -> None:
        """It has stopped."""
        self._ended[TopicPartition(*fetching.tenure[:2])] = now, why, fetching

    def appends(self, effect: events.Append, now: int, true_ms: int) -> None:
        """It sends a message."""
        message = effect.message
        place = TopicPartition(message.topic, getattr(message, "partition", 0))
        if isinstance(message, ClaimingPartition):
            self._check_claim(place, now)
            self._valid_from[place] = now
        elif isinstance(message, Heartbeat):
            self._beaten[place] = now
            if (claim := self._context.claim(place)) is None or claim.instance_id != self._settings.instance_id:
                self._valid_from[place] = now  # of a restart: it claims by that
            self._under_way[effect.request] = place, now
            self._check_progress((each for each in self._fetching.values() if each.tenure[:2] == place), message)
        elif isinstance(message, ReleasingPartition):
            self._check_release(place, message, true_ms)
        elif isinstance(message, HandingOver):
            self._check_handoff(message)

    def _check_claim(self, place: TopicPartition, now: int) -> None:
        context = self._context
        claim = context.claim(place)
        if context.live_claim(place) is not None:
            self._break("claims", f"{place} is held: {claim}")
        if claim is not None and context.reserved_for(claim) not in (None, self._settings.instance_id):
            self._break("claims", f"{place} is handed over: {claim}")
        if context.is_paused(place.topic):
            self._break("claims", f"{place} is paused")
        ended, why, _ = self._ended.get(place, (now - context.interval_ms, None, None))
        if now - ended < context.interval_ms and why is not LossReason.PAUSED:
            self._break("claims", f"{place} again {now - ended} ms after it has ended, {why}")

    def _check_progress(self, tenures: Iterable[Fetching], message: Any) -> None:
        if self._settings.delivery is Delivery.AT_MOST_ONCE:
            return
        for each in tenures:
            if any(map(self._topics.is_record, range(message.current_offset, each.next))):
                self._break("progress", f"{message} of {each}, which has processed those before {each.next}")

    def _check_release(self, place: TopicPartition, message: ReleasingPartition, true_ms: int) -> None:
        _, why, fetching = self._ended.get(place, (0, None, None))
        claim = self._context.claim(place)
        is_of_tenure = fetching is not None and claim is not None and claim.token == fetching.tenure.token
        if fetching is None or not is_of_tenure or fetching.drains_until == 0:
            return
        self._check_progress([fetching], message)
        is_open = self._settings.delivery is Delivery.AT_LEAST_ONCE and fetching.next < fetching.position
        if is_open and true_ms < fetching.drains_until:
            self._break("drained", f"{fetching}, {why}, released with records before {fetching.position} in hand")

    def _check_handoff(self, message: HandingOver) -> None:
        context, group = self._context, self._settings.group_id
        member = context.state.members.get((group, message.topic), {}).get(message.to_instance_id)
        if member is None or member.max_claims is None:
            self._break("handoffs", f"{message}: it takes nothing")
        holders = [self._holder(claim) for claim in context.state.of_group(group, message.topic)]
        if holders.count(self._settings.instance_id) < holders.count(message.to_instance_id) + 2:
            self._break("handoffs", f"{message}: of {holders}")

    def _holder(self, claim: Claim) -> str:
        """Return who holds a partition, or will when it was handed over; empty for none."""
        context, place = self._context, TopicPartition(*claim.place[1:])
        is_given = (
            claim.handoff is not None and context.log_ms(context.coordinating(place.topic)) <= claim.handoff.until_ms
        )
        if is_given and claim.handoff is not None:
            return claim.handoff.to_instance_id
        return claim.instance_id if context.live_claim(place) is not None else ""

    # ---- after an event

    def handled(self, event: Any, now: int) -> None:
        """It has handled an event."""
        if isinstance(event, Appended | AppendFailed):
            self._answered(event)
        for tenure in self._fetching:
            self._check_tenure(tenure, now)
        if isinstance(event, Shutdown | events.Suspend) and self._fetching:
            self._break("obeys", f"it ends, and fetches {list(self._fetching)}")
        if isinstance(event, events.Release | events.FetchFailed):
            self._check_obeys(event)
        if isinstance(event, events.Entries) and self._settings.rules is Rules.DOCUMENT:
            self._check_pause(event)

    def _answered(self, event: Appended | AppendFailed) -> None:
        place, sent_at = self._under_way.pop(event.request, (None, 0))
        if place is not None and isinstance(event, Appended):
            self._valid_from[place] = max(sent_at, self._valid_from.get(place, sent_at))

    def _check_pause(self, event: events.Entries) -> None:
        has_paused = any(isinstance(each.message, ReleaseGroup) for each in event.entries)
        paused = [each for each in self._fetching if self._context.is_paused(each.topic)]
        if has_paused and paused:
            self._break("obeys", f"the group is paused, and it fetches {paused}")

    def _check_obeys(self, event: events.Release | events.FetchFailed) -> None:
        place = event.tenure[:2] if isinstance(event, events.FetchFailed) else (event.topic, event.partition)
        if any(tenure[:2] == place for tenure in self._fetching):
            self._break("obeys", f"{event}, and it goes on")

    def _check_tenure(self, tenure: Tenure, now: int) -> None:
        context, place = self._context, TopicPartition(*tenure[:2])
        claim = context.claim(place)
        is_own = claim is not None and claim.instance_id == self._settings.instance_id
        if claim is None or not is_own or claim.token != tenure.token or not claim.last_heartbeat:
            self._break("follows the log", f"it fetches {tenure}, and the log has {claim}")
        if now >= self._valid_from[place] + context.interval_ms:
            self._break("fence", f"{tenure} {now - self._valid_from[place]} ms after the last heartbeat")
        if now - self._beaten[place] > context.interval_ms * _LATEST:
            self._break("heartbeats", f"{tenure} without one for {now - self._beaten[place]} ms")
