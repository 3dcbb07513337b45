"""The rationalizer: from the entries of the coordination log to who holds what. Pure.

Two rule sets judge the same log. With `Rules.LIBRARY` the state is that of the Go library, which reads the reader's
clock, so that two readers may differ. With `Rules.DOCUMENT` the state follows from the log alone.

* Time of an entry. Library: the sender's, in the message. Document: that of the broker that appended it; where the
  topic has none, the sender's.
* A claim is live, library: 0 to 119 s after its last heartbeat, by the reader's clock at the moment. Document: until
  more than two heartbeat intervals have passed from it to the entry that asks (stale).
* ClaimingPartition is refused while a claim is live, else it wins; the offset stays.
* Heartbeat. Library: it overwrites everything. Document: it renews the claim of its sender that is not stale; of
  another instance of the same client it takes over a fresh one, for a restart.
* ReleasingPartition counts if it is from the holder's instance. Library: also late and repeated. Document: while the
  claim is not stale.
* What an instance has sent before its claim and lands after it, because a broker or the network was slow, does not
  count (document): by the times of the sender, who stamps a claim later than everything before. Else the late release
  of a former tenure would free a partition that is held.
* ClaimingMessages. Library: no effect on the state, but it is remembered here. Document: the same, while the claim is
  not stale.
* An entry on the wrong coordination partition. Library: it counts. Document: it is skipped, because it has no order
  with the others.

Times of entries never go back within a coordination partition (document): a broker with a slower clock that becomes
leader does not make a claim younger.

Positions never go back (document): an append that lands late, or twice, would have records delivered again. A holder
that has claimed the partition while the group was paused sets any position: the admin does so.

A log whose beginning was trimmed shows heartbeats without their claims. With `DOCUMENT` a reader of such a partition
takes each heartbeat for the holder's during the first two intervals of the log's time (`is_warm` is False); after that
its state is that of a reader who has seen everything.

Sources: Marshal PROTOCOL.md, "Determining World State", "Heartbeats", "Partition Assignment for Consumption"; the Go
library's `state.go` and `rationalizer.go`, by their measured behaviour.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kcoord_wire.marshal.log import coordination_partition
from kcoord_wire.messages import (
    ClaimingMessages,
    ClaimingPartition,
    HandingOver,
    Heartbeat,
    Presence,
    ReleaseGroup,
    ReleasingPartition,
)

__all__ = ["Claim", "Entry", "Freshness", "Handoff", "Member", "Outcome", "Place", "Rules", "WorldState"]

HEARTBEAT_INTERVAL_S: Final = 60
"""Of the Go library, where it is a constant that all members must share."""


class Rules(enum.StrEnum):
    """Who judges."""

    LIBRARY = "library"
    DOCUMENT = "document"


class Freshness(enum.StrEnum):
    """How old a claim's last heartbeat is: below one interval, up to two, more than two; or there is no claim."""

    FRESH = "fresh"
    UNKNOWN = "unknown"
    STALE = "stale"
    FREE = "free"


class Outcome(enum.StrEnum):
    """What an entry has done to the state."""

    CLAIMED = "claimed"
    CLAIM_REFUSED = "claim refused"
    CLAIM_REPEATED = "claim repeated"
    RENEWED = "renewed"
    TAKEN_OVER = "taken over"  # a heartbeat that changed the holder
    HEARTBEAT_REFUSED = "heartbeat refused"
    RELEASED = "released"
    RELEASE_REFUSED = "release refused"
    PROPOSED = "proposed"  # ClaimingMessages of the holder
    PROPOSAL_REFUSED = "proposal refused"
    PAUSED = "paused"
    PRESENT = "present"
    HANDING_OVER = "handing over"
    SKIPPED = "skipped"  # no message, no effect under these rules, or the wrong coordination partition


class Place(NamedTuple):
    """What is claimed."""

    group_id: str
    topic: str
    partition: int


class Entry(NamedTuple):
    """An entry of the log whose text was read.

    :ivar partition: of the coordination topic
    :ivar time_ms: of the record; see `log.RawEntry`
    :ivar message: one of the family ``marshal``; a str says why the text is none
    """

    partition: int
    offset: int
    time_ms: int
    is_append_time: bool
    message: Any


@dataclass(slots=True)
class Handoff:
    """The holder's word that it will release a partition for somebody.

    :ivar until_ms: log time after which it has no effect
    """

    to_instance_id: str
    until_ms: int


@dataclass(slots=True)
class Claim:
    """The state of one partition for one group.

    :ivar last_heartbeat: of the holder, s by its own clock; 0 for a released or never claimed partition
    :ivar last_release: s by the sender's clock; 0 for none
    :ivar current_offset: next offset to consume; the Go library takes 0 for unknown
    :ivar heartbeat_ms: log time of the last accepted claim or heartbeat
    :ivar claimed_at: time of the message with which the holder's instance began to hold it, s by its own clock
    :ivar token: offset of the entry with which the holder's instance began to hold it: a fencing token; -1 if that was
        trimmed
    :ivar proposed_offset: of the holder's last ClaimingMessages; -1 for none
    :ivar proposed_at: offset of that entry; -1 for none
    """

    place: Place
    instance_id: str = ""
    client_id: str = ""
    last_heartbeat: int = 0
    last_release: int = 0
    current_offset: int = 0
    heartbeat_ms: int = 0
    claimed_at: int = 0
    token: int = -1
    proposed_offset: int = -1
    proposed_at: int = -1
    handoff: Handoff | None = None


@dataclass(slots=True)
class Member:
    """An instance that was heard of, by any message of a group about a topic.

    :ivar seen_ms: log time of its last message
    :ivar max_claims: by its last Presence; None if it has sent none
    """

    instance_id: str
    client_id: str
    seen_ms: int
    max_claims: int | None = None


@dataclass(slots=True)
class _Progress:
    """How far a coordination partition was read.

    :ivar pauses: by group: offset of its last ReleaseGroup here, and log time at which that pause ends
    """

    next_offset: int = 0
    first_ms: int = 0
    time_ms: int = 0
    is_trimmed: bool = False
    pauses: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class WorldState:
    """The state of all groups, from the entries read so far.

    :param partitions: of the coordination topic; None if that is not known, and then none is the wrong one
    :ivar claims: by place
    :ivar paused_until: by group: s by the admin's clock (library), log time in ms (document)
    """

    rules: Rules
    heartbeat_interval_s: int = HEARTBEAT_INTERVAL_S
    partitions: int | None = None
    claims: dict[Place, Claim] = field(default_factory=dict)
    paused_until: dict[str, int] = field(default_factory=dict)
    members: dict[tuple[str, str], dict[str, Member]] = field(default_factory=dict)
    _progress: dict[int, _Progress] = field(default_factory=dict)

    def apply(self, entry: Entry, now: int) -> Outcome:
        """Take in the next entry of its partition.

        :param now: the reader's clock, whole seconds since the Unix epoch; `DOCUMENT` does not look at it
        """
        message = entry.message
        progress = self._advance(entry)
        if isinstance(message, str) or (self.rules is Rules.DOCUMENT and self.is_misplaced(entry)):
            return Outcome.SKIPPED
        if self.rules is Rules.DOCUMENT:
            now = progress.time_ms
        self._see(message, progress.time_ms)
        return _HANDLERS[type(message)](self, message, entry, now) if type(message) in _HANDLERS else Outcome.SKIPPED

    def is_misplaced(self, entry: Entry) -> bool:
        """Return whether a message lies on another coordination partition than that of its topic."""
        topic = getattr(entry.message, "topic", "")
        if self.partitions is None or not topic:  # ReleaseGroup names no topic: it is sent to several partitions
            return False
        return coordination_partition(topic, self.partitions) != entry.partition

    def is_claimed(self, claim: Claim, now: int) -> bool:
        """Return whether a claim is live for a reader.

        :param now: the reader's clock in s (library); the log's time in ms (document), see `log_time_ms`
        """
        if self.rules is Rules.LIBRARY:
            return claim.last_heartbeat != 0 and 0 <= now - claim.last_heartbeat < 2 * self.heartbeat_interval_s
        return self.freshness(claim, now) in (Freshness.FRESH, Freshness.UNKNOWN)

    def freshness(self, claim: Claim, now: int) -> Freshness:
        """Return how old a claim is; `now` as in `is_claimed`."""
        if claim.last_heartbeat == 0:
            return Freshness.FREE
        if self.rules is Rules.LIBRARY:
            age, interval = now - claim.last_heartbeat, self.heartbeat_interval_s
        else:
            age, interval = now - claim.heartbeat_ms, self.heartbeat_interval_s * 1000
        if age < interval:
            return Freshness.FRESH
        return Freshness.UNKNOWN if age <= 2 * interval else Freshness.STALE

    def is_paused(self, group_id: str, now: int) -> bool:
        """Return whether a group is paused; `now` as in `is_claimed`."""
        return now < self.paused_until.get(group_id, now)

    def is_warm(self, partition: int, now_ms: int = 0) -> bool:
        """Return whether what is known of a coordination partition is what every reader of it knows.

        :param now_ms: log time, where it is known to be later than the last entry's
        """
        progress = self._progress.get(partition)
        if progress is None or not progress.is_trimmed:
            return True
        return max(progress.time_ms, now_ms) - progress.first_ms > 2 * self.heartbeat_interval_s * 1000

    def log_time_ms(self, partition: int) -> int:
        """Return the largest time read from a coordination partition; 0 before the first entry."""
        progress = self._progress.get(partition)
        return 0 if progress is None else progress.time_ms

    def of_group(self, group_id: str, topic: str | None = None) -> Iterator[Claim]:
        """Yield the claims of a group, in order of topic and partition."""
        for place in sorted(self.claims):
            if place.group_id == group_id and topic in (None, place.topic):
                yield self.claims[place]

    # ---- one message

    def _advance(self, entry: Entry) -> _Progress:
        """Note how far a coordination partition was read, and the log's time."""
        progress = self._progress.get(entry.partition)
        if progress is None:
            progress = self._progress[entry.partition] = _Progress(is_trimmed=entry.offset > 0)
        time_ms = entry.time_ms
        if not entry.is_append_time and not isinstance(entry.message, str):
            time_ms = entry.message.time * 1000
        if progress.first_ms == 0:
            progress.first_ms = time_ms
        progress.time_ms = max(progress.time_ms, time_ms)
        progress.next_offset = entry.offset + 1
        return progress

    def _see(self, message: Any, time_ms: int) -> None:
        """Record who has sent a message."""
        members = self.members.setdefault((message.group_id, message.topic), {})
        member = members.get(message.instance_id)
        if member is None:
            members[message.instance_id] = Member(message.instance_id, message.client_id, time_ms)
        else:
            member.seen_ms = time_ms

    def _claim_of(self, message: Any) -> Claim:
        place = Place(message.group_id, message.topic, message.partition)
        claim = self.claims.get(place)
        if claim is None:
            claim = self.claims[place] = Claim(place)
        return claim

    def _claiming(self, message: ClaimingPartition, entry: Entry, now: int) -> Outcome:
        claim = self._claim_of(message)
        if self.is_claimed(claim, now):
            is_own = claim.instance_id == message.instance_id and claim.client_id == message.client_id
            return Outcome.CLAIM_REPEATED if is_own else Outcome.CLAIM_REFUSED
        self._hold(claim, message, entry, is_new=True)
        return Outcome.CLAIMED

    def _heartbeat(self, message: Heartbeat, entry: Entry, now: int) -> Outcome:
        claim = self._claim_of(message)
        is_same = claim.instance_id == message.instance_id and claim.client_id == message.client_id
        if self.rules is Rules.DOCUMENT and self.is_warm(entry.partition):
            fresh = self.freshness(claim, now)
            is_restart = fresh is Freshness.FRESH and claim.client_id == message.client_id
            if not is_restart and (not is_same or fresh is not Freshness.UNKNOWN):
                return Outcome.HEARTBEAT_REFUSED
            if is_same and message.time < claim.claimed_at:
                return Outcome.HEARTBEAT_REFUSED
        is_new = not is_same or claim.last_heartbeat == 0
        self._hold(claim, message, entry, is_new=is_new)
        self._move(claim, message, entry, now)
        return Outcome.TAKEN_OVER if is_new else Outcome.RENEWED

    def _hold(self, claim: Claim, message: Any, entry: Entry, *, is_new: bool) -> None:
        """Make the sender the holder."""
        claim.instance_id, claim.client_id = message.instance_id, message.client_id
        claim.last_heartbeat, claim.last_release = message.time, 0
        claim.heartbeat_ms = self._progress[entry.partition].time_ms
        if is_new:
            is_known = isinstance(message, ClaimingPartition) or self.is_warm(entry.partition)
            claim.token = entry.offset if is_known else -1
            claim.claimed_at = message.time
            claim.proposed_offset = claim.proposed_at = -1
            claim.handoff = None

    def _move(self, claim: Claim, message: Any, entry: Entry, now: int) -> None:
        """Set the position. By the document it goes back only for a claim made while the group is paused."""
        paused_at, until = self._progress[entry.partition].pauses.get(message.group_id, (0, 0))
        may_go_back = self.rules is Rules.LIBRARY or (claim.token > paused_at and now < until)
        if may_go_back or message.current_offset > claim.current_offset:
            claim.current_offset = message.current_offset

    def _is_holder(self, claim: Claim, message: Any, now: int) -> bool:
        """Return whether the sender's instance is the last holder; by the document its claim must be live, too."""
        if (claim.instance_id, claim.client_id) != (message.instance_id, message.client_id):
            return False
        return self.rules is Rules.LIBRARY or (message.time >= claim.claimed_at and self.is_claimed(claim, now))

    def _releasing(self, message: ReleasingPartition, entry: Entry, now: int) -> Outcome:
        claim = self._claim_of(message)
        if not self._is_holder(claim, message, now):
            return Outcome.RELEASE_REFUSED
        self._move(claim, message, entry, now)
        claim.last_heartbeat, claim.last_release = 0, message.time
        return Outcome.RELEASED

    def _proposing(self, message: ClaimingMessages, entry: Entry, now: int) -> Outcome:
        claim = self._claim_of(message)
        if not self._is_holder(claim, message, now):
            return Outcome.PROPOSAL_REFUSED
        claim.proposed_offset, claim.proposed_at = message.proposed_current_offset, entry.offset
        return Outcome.PROPOSED

    def _releasing_group(self, message: ReleaseGroup, entry: Entry, now: int) -> Outcome:
        until = message.msg_expire_time
        if self.rules is Rules.DOCUMENT:  # how long by the admin's clock, from now on by the log's
            until = now + (message.msg_expire_time - message.time) * 1000
        self.paused_until[message.group_id] = until
        self._progress[entry.partition].pauses[message.group_id] = (entry.offset, until)
        return Outcome.PAUSED

    def _present(self, message: Presence, entry: Entry, now: int) -> Outcome:
        self.members[message.group_id, message.topic][message.instance_id].max_claims = message.max_claims
        return Outcome.PRESENT

    def _handing_over(self, message: HandingOver, entry: Entry, now: int) -> Outcome:
        claim = self._claim_of(message)
        if not self._is_holder(claim, message, now):
            return Outcome.SKIPPED
        until_ms = self._progress[entry.partition].time_ms + (message.deadline - message.time) * 1000
        claim.handoff = Handoff(message.to_instance_id, until_ms)
        return Outcome.HANDING_OVER


_HANDLERS: Final[dict[type, Any]] = {
    ClaimingPartition: WorldState._claiming,
    Heartbeat: WorldState._heartbeat,
    ReleasingPartition: WorldState._releasing,
    ClaimingMessages: WorldState._proposing,
    ReleaseGroup: WorldState._releasing_group,
    Presence: WorldState._present,
    HandingOver: WorldState._handing_over,
}
