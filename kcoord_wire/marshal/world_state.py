"""The rationalizer: from the entries of the coordination log to who holds what. Pure.

Two rule sets judge the same log. With `Rules.LIBRARY` the state is that of the Go library, which reads the reader's
clock, so that two readers may differ. With `Rules.DOCUMENT` the state follows from the log alone.

* Time of an entry. Library: the sender's, in the message. Document: that of the broker that appended it; where the
  topic has none, the sender's, and then one sender with a clock ahead keeps claims from expiring until the others'
  clocks have passed it.
* A claim is live, library: 0 to 119 s after its last heartbeat, by the reader's clock at the moment. Document: until
  more than two heartbeat intervals have passed from it to the entry that asks (stale).
* ClaimingPartition is refused while a claim is live, else it wins; the offset stays.
* Heartbeat. Library: it overwrites everything. Document: it renews the claim of its sender that is not stale; of
  another instance of the same client it takes over a fresh one, for a restart, and the heartbeats of the former
  instance are refused from then on.
* ReleasingPartition counts if it is from the holder's instance. Library: also late and repeated. Document: while the
  claim is not stale.
* What an instance has sent before its claim and lands after it, because a broker or the network was slow, does not
  count (document): by the times of the sender, who stamps a claim later than everything before. Else the late release
  of a former tenure would free a partition that is held. Nor does another copy of a claim count after its release.
* ClaimingMessages. Library: no effect on the state, but it is remembered here. Document: the same, while the claim is
  not stale.
* ReleaseGroup. Library: it pauses the group. Document: it pauses the group's topics on its coordination partition,
  because entries of two partitions have no order.
* Positions, document: they never go back, because an append that lands late, or twice, would have records delivered
  again. A holder that has claimed the partition while the group was paused sets any position but 0, and an admin
  any: by its client id, since a reader of a trimmed log may not see its pause. So does a holder by IdentifyingTopic, if
  it has sent that after all its heartbeats that have landed. What it has sent before does not count from then on.
* An entry on the wrong coordination partition. Library: it counts. Document: it is skipped, for the same reason.

Laws with `DOCUMENT`:

* Readers of the same entries of a partition have the same state of its groups, whatever their clocks and however the
  partitions are interleaved.
* Times of entries never go back within a partition: a broker with a slower clock that becomes leader does not make a
  claim younger.
* A reader of a trimmed partition cannot know which heartbeats and claims a reader of everything refuses. It takes each
  heartbeat for the holder's, until two intervals without an entry about the place have made every possible claim stale,
  or heartbeats of one member alone have come for longer than that (`Certainty`). What is certain is what a reader of
  everything knows, but for the position, which may be behind. So is what is inferred or shown, if members sent
  heartbeats and releases only for what they held. Both suppose that the log's time went back by one interval at most
  where it was cut.
* Memory: members are dropped that were silent for `MEMBER_INTERVALS`, and places without a holder after `FORGET_MS`,
  at multiples of these times.

Sources: Marshal PROTOCOL.md, "Determining World State", "Heartbeats", "Partition Assignment for Consumption"; the Go
library's `state.go` and `rationalizer.go`, by their measured behaviour.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kcoord_wire.marshal.log import coordination_partition
from kcoord_wire.messages.marshal import (
    ClaimingMessages,
    ClaimingPartition,
    HandingOver,
    Heartbeat,
    IdentifyingTopic,
    Presence,
    ReleaseGroup,
    ReleasingPartition,
)

ADMIN_PREFIX: Final = "kcoord-admin-"
"""Client ids of an admin begin with it; its instance id follows, so that no member has the same one."""


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


class Certainty(enum.StrEnum):
    """How much of a place's past a reader has seen whose log was trimmed; see "Laws" above."""

    CERTAIN = "certain"  # all that counts
    SHOWN = "shown"  # the holder is known from its heartbeats of more than two intervals, or there is none after two
    INFERRED = "inferred"  # the holder is known from a heartbeat
    GUESSED = "guessed"  # a claim, which a reader of everything may have refused


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
    IDENTIFIED = "identified"  # IdentifyingTopic of the holder
    SKIPPED = "skipped"  # no message, no effect under these rules, or the wrong coordination partition


class Place(NamedTuple):
    """What is claimed."""

    group_id: str
    topic: str
    partition: int


class Unreadable(str):
    """Why a value holds no message, in words.

    :ivar kind: ``empty``, ``length`` (too long), ``text`` (of no known type, another number of fields, no integer),
        ``range`` (an integer out of bounds) or ``utf8``
    """

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, kind: str, reason: str) -> Unreadable:
        self = super().__new__(cls, reason)
        self.kind = kind
        return self


class Entry(NamedTuple):
    """An entry of the log whose text was read.

    :ivar partition: of the coordination topic
    :ivar time_ms: of the record; see `log.RawEntry`
    :ivar message: one of the family ``marshal``, or `Unreadable`
    """

    partition: int
    offset: int
    time_ms: int
    is_append_time: bool
    message: Any


class Pause(NamedTuple):
    """A group is paused.

    :ivar until: s by the admin's clock (library), log time in ms (document)
    :ivar offset: of its ReleaseGroup
    """

    until: int
    offset: int


@dataclass(slots=True)
class Handoff:
    """The holder's word that it will release a partition for somebody.

    :ivar until_ms: log time after which it has no effect; at most two intervals after the release
    """

    to_instance_id: str
    until_ms: int


@dataclass(slots=True)
class Claim:
    """The state of one partition for one group.

    :ivar last_heartbeat: of the holder, s by its own clock; 0 for a released or never claimed partition
    :ivar last_release: s by the sender's clock; 0 for none
    :ivar current_offset: next offset to consume; the Go library takes 0 for unknown
    :ivar heartbeat_ms: log time of the last accepted claim or heartbeat; -1 for a released partition
    :ivar touched_ms: log time of the last entry about this place, a refused one included
    :ivar claimed_at: time of the message with which the holder's instance began to hold it, s by its own clock
    :ivar token: offset of the entry with which the holder's instance began to hold it: a fencing token; -1 if that was
        trimmed, or may have been
    :ivar certainty: less than certain only where the log was trimmed, and only by the document
    :ivar inferred_ms: log time of the first entry from which the holder was inferred; -1 if it was not
    :ivar former_instance_id: that the holder, another instance of its client, has replaced by a heartbeat
    :ivar proposed_offset: of the holder's last ClaimingMessages; -1 for none
    :ivar topic_id: of the topic that the position is of; empty for unknown, as always with the library
    """

    place: Place
    instance_id: str = ""
    client_id: str = ""
    last_heartbeat: int = 0
    last_release: int = 0
    current_offset: int = 0
    heartbeat_ms: int = -1
    touched_ms: int = 0
    claimed_at: int = 0
    token: int = -1
    certainty: Certainty = Certainty.CERTAIN
    inferred_ms: int = -1
    former_instance_id: str | None = None
    proposed_offset: int = -1
    handoff: Handoff | None = None
    topic_id: str = ""


@dataclass(slots=True)
class KnownMember:
    """An instance that was heard of, by any message of a group about a topic.

    :ivar seen_ms: log time of its last message
    :ivar max_claims: by its last Presence; None if it has sent none, or takes none
    """

    instance_id: str
    client_id: str
    seen_ms: int
    max_claims: int | None = None


HEARTBEAT_INTERVAL_S: Final = 60
"""Of the Go library, where it is a constant that all members must share."""

WARM_INTERVALS: Final = 3
"""Two, after which no trimmed heartbeat counts; and one for a log whose time went back where it was cut."""

MEMBER_INTERVALS: Final = 10
"""How long a silent member is remembered. Members beat once per interval."""

FORGET_MS: Final = 7 * 24 * 3_600_000
"""How long a place without a holder is remembered: as long as Kafka keeps offsets (offsets.retention.minutes)."""

_ANY: Final = -1
"""The coordination partition of a pause that holds for all."""

_LONG_AGO: Final = -(1 << 63)
"""Before the time of any message."""

_NO_PAUSE: Final = Pause(0, 0)


@dataclass(slots=True)
class _Progress:
    """How far a coordination partition was read.

    :ivar first_ms: log time of the first entry that has one; -1 before it
    :ivar time_ms: the largest log time
    :ivar topics: the keys of `WorldState.members` that its entries have made
    """

    is_trimmed: bool
    first_ms: int = -1
    time_ms: int = 0
    topics: set[tuple[str, str]] = field(default_factory=set)


@dataclass(slots=True)
class WorldState:
    """The state of all groups, from the entries read so far.

    In a silent log no time passes. A reader may add the time that it has waited, by its own clock, since it read the
    last entry of a partition to `log_time_ms`, and ask with that what the state would be if an entry came now.

    :param partitions: of the coordination topic; None if that is not known, and then none is the wrong one
    :ivar claims: by place; none for places that were never claimed
    :ivar pauses: by group and coordination partition; -1 for all
    :ivar members: by group and topic, then by instance id
    """

    rules: Rules
    heartbeat_interval_s: int = HEARTBEAT_INTERVAL_S
    partitions: int | None = None
    claims: dict[Place, Claim] = field(default_factory=dict)
    pauses: dict[tuple[str, int], Pause] = field(default_factory=dict)
    members: dict[tuple[str, str], dict[str, KnownMember]] = field(default_factory=dict)
    _named_by: dict[Place, tuple[str, int]] = field(default_factory=dict)
    _passed_over: dict[Place, tuple[int, int]] = field(default_factory=dict)
    _progress: dict[int, _Progress] = field(default_factory=dict)

    @property
    def interval_ms(self) -> int:
        """The heartbeat interval."""
        return self.heartbeat_interval_s * 1000

    def apply(self, entry: Entry, now: int) -> Outcome:
        """Take in the next entry of its partition.

        :param now: the reader's clock, whole seconds since the Unix epoch; `DOCUMENT` does not look at it
        """
        message = entry.message
        progress = self._advance(entry)
        handle = _HANDLERS.get(type(message))
        if handle is None or (self.rules is Rules.DOCUMENT and self.is_misplaced(entry)):
            return Outcome.SKIPPED
        if self.rules is Rules.DOCUMENT:
            now = progress.time_ms
        if message.topic:  # ReleaseGroup names none
            self._see(message, progress)
        return handle(self, message, entry, now)

    def is_misplaced(self, entry: Entry) -> bool:
        """Return whether a message lies on another coordination partition than that of its topic."""
        if self.partitions is None or isinstance(entry.message, (str, ReleaseGroup)):  # that is sent to several
            return False
        return coordination_partition(entry.message.topic, self.partitions) != entry.partition

    def is_claimed(self, claim: Claim, now: int) -> bool:
        """Return whether a claim is live for a reader.

        :param now: the reader's clock in s (library); the log's time in ms (document), see `log_time_ms`
        """
        return self.freshness(claim, now) in (Freshness.FRESH, Freshness.UNKNOWN)

    def freshness(self, claim: Claim, now: int) -> Freshness:
        """Return how old a claim is; `now` as in `is_claimed`. For the library a heartbeat of the future is stale."""
        if self.rules is Rules.LIBRARY:
            age, interval = now - claim.last_heartbeat, self.heartbeat_interval_s
            is_free, is_stale = claim.last_heartbeat == 0, not 0 <= age < 2 * interval
        else:
            age, interval = now - claim.heartbeat_ms, self.heartbeat_interval_s * 1000
            is_free, is_stale = claim.heartbeat_ms < 0, age > 2 * interval
        if is_free:
            return Freshness.FREE
        if is_stale:
            return Freshness.STALE
        return Freshness.FRESH if age < interval else Freshness.UNKNOWN

    def reserved_for(self, claim: Claim, log_ms: int) -> str | None:
        """Return the instance for which the others leave a released partition alone, None where there is none.

        Advice: a claim of another instance wins nevertheless.
        """
        handoff = claim.handoff if claim.heartbeat_ms < 0 else None
        return handoff.to_instance_id if handoff is not None and log_ms <= handoff.until_ms else None

    def paused_until(self, group_id: str, partition: int) -> int:
        """Return until when a group is paused for the topics of a coordination partition; 0 for never.

        In s by the admin's clock (library), in ms of log time (document).
        """
        return self.pauses.get((group_id, self._pausing(partition)), _NO_PAUSE).until

    def is_paused(self, group_id: str, partition: int, now: int) -> bool:
        """Return whether a group is paused for the topics of a coordination partition; `now` as in `is_claimed`."""
        return now < self.paused_until(group_id, partition)

    def is_warm(self, partition: int, now_ms: int = 0) -> bool:
        """Return whether no trimmed entry of a coordination partition has an effect on who holds what any more.

        :param now_ms: log time, where it is known to be later than the last entry's
        """
        progress = self._progress.get(partition)
        if progress is None or not progress.is_trimmed:
            return True
        now_ms = max(progress.time_ms, now_ms)
        return 0 <= progress.first_ms < now_ms - WARM_INTERVALS * self.interval_ms

    def sees_all(self, partition: int) -> bool:
        """Return whether nothing of a coordination partition was trimmed before it was read."""
        progress = self._progress.get(partition)
        return progress is None or not progress.is_trimmed

    def log_time_ms(self, partition: int) -> int:
        """Return the largest time read from a coordination partition; 0 before the first entry."""
        progress = self._progress.get(partition)
        return 0 if progress is None else progress.time_ms

    def of_group(self, group_id: str, topic: str | None = None) -> Iterator[Claim]:
        """Yield the claims of a group, in order of topic and partition."""
        for place in sorted(self.claims):
            if place.group_id == group_id and topic in (None, place.topic):
                yield self.claims[place]

    # ---- the log's time, and what it forgets

    def _advance(self, entry: Entry) -> _Progress:
        """Note how far a coordination partition was read, and the log's time."""
        progress = self._progress.get(entry.partition)
        if progress is None:
            progress = self._progress[entry.partition] = _Progress(is_trimmed=entry.offset > 0)
        if entry.is_append_time:
            time_ms = entry.time_ms
        elif isinstance(entry.message, str):  # no broker's time, and no sender's
            return progress
        else:
            time_ms = entry.message.time * 1000
        if progress.first_ms < 0:
            progress.first_ms = time_ms
        if time_ms > progress.time_ms:
            before, progress.time_ms = progress.time_ms, time_ms
            self._forget(entry.partition, progress, before)
        return progress

    def _forget(self, partition: int, progress: _Progress, before: int) -> None:
        """Drop what was silent for long, where the log's time has passed a multiple of that: for every reader alike."""
        now, keep_ms = progress.time_ms, MEMBER_INTERVALS * self.interval_ms
        if now // keep_ms != before // keep_ms:
            self._forget_members(progress, now - keep_ms)
        if now // FORGET_MS != before // FORGET_MS and self.rules is Rules.DOCUMENT and self.partitions is not None:
            for place in [place for place, claim in self.claims.items() if claim.touched_ms < now - FORGET_MS]:
                if coordination_partition(place.topic, self.partitions) == partition:
                    del self.claims[place]
                    self._named_by.pop(place, None)
                    self._passed_over.pop(place, None)
            for group in [
                group for group, pause in self.pauses.items() if group[1] == partition and pause.until <= now
            ]:
                del self.pauses[group]

    def _forget_members(self, progress: _Progress, before_ms: int) -> None:
        for key in list(progress.topics):
            members = self.members[key]
            for name in [name for name, member in members.items() if member.seen_ms < before_ms]:
                del members[name]
            if not members:
                del self.members[key]
                progress.topics.remove(key)

    def _see(self, message: Any, progress: _Progress) -> None:
        """Record who has sent a message."""
        key = (message.group_id, message.topic)
        members = self.members.get(key)
        if members is None:
            members = self.members[key] = {}
            progress.topics.add(key)
        member = members.get(message.instance_id)
        if member is None:
            members[message.instance_id] = KnownMember(message.instance_id, message.client_id, progress.time_ms)
        else:
            member.seen_ms = progress.time_ms

    # ---- claims

    def _find(self, message: Any) -> Claim | None:
        return self.claims.get(Place(message.group_id, message.topic, message.partition))

    def _add(self, message: Any, entry: Entry) -> Claim:
        """Begin a place. Names are shared, which makes a claim of a large group smaller by half."""
        place = Place(sys.intern(message.group_id), sys.intern(message.topic), message.partition)
        claim = self.claims[place] = Claim(place)
        if self.rules is Rules.DOCUMENT and not self.is_warm(entry.partition):
            claim.certainty = Certainty.GUESSED
        return claim

    def _touch(self, claim: Claim, entry: Entry) -> int:
        """Note an entry about a place; return how long there was none."""
        now_ms = self._progress[entry.partition].time_ms
        silent_ms, claim.touched_ms = now_ms - claim.touched_ms, now_ms
        return silent_ms

    def _claiming(self, message: ClaimingPartition, entry: Entry, now: int) -> Outcome:
        claim = self._find(message)
        if claim is None:
            claim = self._add(message, entry)
            self._touch(claim, entry)
        else:
            silent_ms = self._touch(claim, entry)
            if self.is_claimed(claim, now):
                return Outcome.CLAIM_REPEATED if _is_of(claim, message) else Outcome.CLAIM_REFUSED
            if self.rules is Rules.DOCUMENT and silent_ms <= 2 * self.interval_ms and _is_late(claim, message):
                return Outcome.CLAIM_REFUSED
            if silent_ms > 2 * self.interval_ms and self.is_warm(entry.partition):
                claim.certainty = Certainty.CERTAIN
        self._hold(claim, message)
        self._begin(claim, message, -1 if claim.certainty is Certainty.GUESSED else entry.offset)
        return Outcome.CLAIMED

    def _heartbeat(self, message: Heartbeat, entry: Entry, now: int) -> Outcome:
        claim = self._find(message)
        is_shown = claim is not None or self.is_warm(entry.partition)
        if claim is None:
            if self.rules is Rules.DOCUMENT and is_shown:
                return Outcome.HEARTBEAT_REFUSED
            claim = self._add(message, entry)
        self._end_silence(claim, entry)
        is_same, freshness = _is_of(claim, message), self.freshness(claim, now)
        if self.rules is Rules.DOCUMENT and not _may_beat(claim, message, is_same, freshness):
            return Outcome.HEARTBEAT_REFUSED
        certainty = claim.certainty
        _infer(claim, freshness)
        self._hold(claim, message)
        if is_same and freshness is not Freshness.FREE:
            self._renew(claim, message, entry, now)
            return Outcome.RENEWED
        is_restart = claim.client_id == message.client_id and freshness is not Freshness.FREE
        former = claim.instance_id if is_restart else None
        # Else the sender has begun to hold it by an entry that is gone, or that this reader has taken for refused.
        is_seen = is_shown if certainty is Certainty.CERTAIN else is_restart and certainty is not Certainty.GUESSED
        self._begin(claim, message, entry.offset if is_seen else -1)
        self._replace(claim, former, message, entry, now)
        return Outcome.TAKEN_OVER

    def _replace(self, claim: Claim, former: str | None, message: Heartbeat, entry: Entry, now: int) -> None:
        """The sender has begun to hold it by a heartbeat. Of a restart that has the position which the sender has read,
        and that may be one of a topic that was there before; where the log knows the topic, it keeps its own, also when
        another copy of the heartbeat lands."""
        claim.former_instance_id = former
        if former is None or not claim.topic_id:
            self._move(claim, message, entry, now)
        elif message.current_offset > claim.current_offset:
            self._passed_over[claim.place] = message.time, message.current_offset

    def _end_silence(self, claim: Claim, entry: Entry) -> None:
        """After two intervals without an entry about a place its claim is stale, whichever member has held it."""
        is_stale = self._touch(claim, entry) > 2 * self.interval_ms and self.is_warm(entry.partition)
        if is_stale and claim.certainty is not Certainty.CERTAIN:
            claim.certainty = Certainty.SHOWN

    def _renew(self, claim: Claim, message: Heartbeat, entry: Entry, now: int) -> None:
        """The holder goes on. A member whose heartbeats alone have come for more than two intervals holds it: a former
        holder ends before, and what it has sent by then lands among the other's."""
        if claim.certainty is Certainty.INFERRED and claim.heartbeat_ms - claim.inferred_ms > 2 * self.interval_ms:
            claim.certainty = Certainty.SHOWN
        self._move(claim, message, entry, now)

    def _hold(self, claim: Claim, message: Any) -> None:
        """The sender holds it, from the entry that was last noted on for two intervals."""
        claim.last_heartbeat, claim.last_release = message.time, 0
        claim.heartbeat_ms = claim.touched_ms

    def _begin(self, claim: Claim, message: Any, token: int) -> None:
        """The sender begins to hold it."""
        claim.instance_id, claim.client_id = sys.intern(message.instance_id), sys.intern(message.client_id)
        claim.token = token
        claim.claimed_at = message.time if token >= 0 else _LONG_AGO
        claim.proposed_offset = -1
        claim.inferred_ms = -1 if claim.certainty is Certainty.CERTAIN else claim.heartbeat_ms
        claim.former_instance_id = claim.handoff = None
        self._passed_over.pop(claim.place, None)

    def _move(self, claim: Claim, message: Any, entry: Entry, now: int) -> None:
        """Set the position. By the document it goes back only by a release, of a claim made while the group is paused:
        a member may claim in a pause, too, and its heartbeats overtake each other. In a trimmed log it may know no
        position when it releases what it has claimed too late: its 0 sets none, but that of an admin does."""
        is_admin = claim.client_id.startswith(ADMIN_PREFIX)  # its pause may have been trimmed
        if not is_admin and not self._is_of_topic(claim, message):
            return
        if self.rules is Rules.DOCUMENT and message.current_offset < claim.current_offset:
            pause = self.pauses.get((message.group_id, entry.partition), _NO_PAUSE)
            is_claim = claim.former_instance_id is None  # not a restart, whose late heartbeat may have begun it
            is_known = message.current_offset > 0
            is_in_pause = is_known and is_claim and claim.token > pause.offset and now < pause.until
            if not isinstance(message, ReleasingPartition) or not (is_in_pause or is_admin):
                return
        claim.current_offset = message.current_offset

    def _held(self, message: Any, entry: Entry, now: int) -> Claim | None:
        """Return the claim whose last holder the sender's instance is; by the document it must be live, too."""
        claim = self._find(message)
        if claim is None:
            return None
        self._touch(claim, entry)
        is_live = self.rules is Rules.LIBRARY or (message.time >= claim.claimed_at and self.is_claimed(claim, now))
        return claim if is_live and _is_of(claim, message) else None

    def _releasing(self, message: ReleasingPartition, entry: Entry, now: int) -> Outcome:
        claim = self._held(message, entry, now)
        if claim is None:
            return Outcome.RELEASE_REFUSED
        self._move(claim, message, entry, now)
        if claim.client_id.startswith(ADMIN_PREFIX):  # what it sets is of the topic that is there now
            claim.topic_id = ""
        claim.last_heartbeat, claim.last_release = 0, message.time
        claim.heartbeat_ms = -1
        if claim.handoff is not None:  # so that no member waits until a far deadline for one that is gone
            claim.handoff.until_ms = min(claim.handoff.until_ms, claim.touched_ms + 2 * self.interval_ms)
        return Outcome.RELEASED

    def _proposing(self, message: ClaimingMessages, entry: Entry, now: int) -> Outcome:
        claim = self._held(message, entry, now)
        if claim is None:
            return Outcome.PROPOSAL_REFUSED
        claim.proposed_offset = message.proposed_current_offset
        return Outcome.PROPOSED

    def _handing_over(self, message: HandingOver, entry: Entry, now: int) -> Outcome:
        claim = self._held(message, entry, now)
        if claim is None or claim.heartbeat_ms < 0:
            return Outcome.SKIPPED
        until_ms = claim.touched_ms + (message.deadline - message.time) * 1000
        claim.handoff = Handoff(message.to_instance_id, until_ms)
        return Outcome.HANDING_OVER

    def _identifying(self, message: IdentifyingTopic, entry: Entry, now: int) -> Outcome:
        if self.rules is not Rules.DOCUMENT:
            return Outcome.SKIPPED
        claim = self._held(message, entry, now)
        if claim is None:
            return self._identify_uncertain(message, now)
        self._name(claim, message)
        is_unknown = not claim.topic_id and claim.certainty is Certainty.CERTAIN
        if message.topic_id != claim.topic_id and not is_unknown:  # the position was that of another topic, or may be
            claim.current_offset, claim.proposed_offset = 0, -1
        claim.topic_id = sys.intern(message.topic_id)
        if message.current_offset >= 0 and message.time > claim.last_heartbeat:
            claim.current_offset, claim.claimed_at, claim.proposed_offset = message.current_offset, message.time, -1
        return Outcome.IDENTIFIED

    def _identify_uncertain(self, message: IdentifyingTopic, now: int) -> Outcome:
        """In a trimmed log another member may be the holder than the one that this reader knows."""
        claim = self._find(message)
        if claim is None or claim.certainty not in (Certainty.GUESSED, Certainty.INFERRED):
            return Outcome.SKIPPED
        if _is_of(claim, message) and self.freshness(claim, now) is Freshness.STALE:
            return Outcome.SKIPPED
        self._name(claim, message)
        if claim.topic_id == message.topic_id:
            return Outcome.SKIPPED
        claim.topic_id, claim.current_offset = sys.intern(message.topic_id), max(message.current_offset, 0)
        return Outcome.IDENTIFIED

    def _name(self, claim: Claim, message: IdentifyingTopic) -> None:
        """Remember who has said of which topic its positions are, where another member may be the holder."""
        if claim.certainty is Certainty.CERTAIN:
            self._named_by.pop(claim.place, None)
        else:
            self._named_by[claim.place] = message.instance_id, message.time

    def _is_of_topic(self, claim: Claim, message: Any) -> bool:
        """Return whether the sender's position is one of the topic that the log knows. In a trimmed log that of a
        former holder may have landed late, and a member may have read it: so who has named the topic counts, from then
        on."""
        if self._passed_over.get(claim.place) == (message.time, message.current_offset):
            return False
        named_by, since = self._named_by.get(claim.place, ("", 0))
        is_known = claim.certainty in (Certainty.CERTAIN, Certainty.SHOWN) or not (named_by and claim.topic_id)
        return is_known or (named_by == message.instance_id and since <= message.time)

    # ---- groups and members

    def _pausing(self, partition: int) -> int:
        return partition if self.rules is Rules.DOCUMENT else _ANY

    def _releasing_group(self, message: ReleaseGroup, entry: Entry, now: int) -> Outcome:
        until = message.msg_expire_time
        if self.rules is Rules.DOCUMENT:  # how long by the admin's clock, from now on by the log's
            until = now + (message.msg_expire_time - message.time) * 1000
        self.pauses[message.group_id, self._pausing(entry.partition)] = Pause(until, entry.offset)
        return Outcome.PAUSED

    def _present(self, message: Presence, entry: Entry, now: int) -> Outcome:
        if message.topic:
            member = self.members[message.group_id, message.topic][message.instance_id]
            member.max_claims = message.max_claims if message.max_claims >= 0 else None
        return Outcome.PRESENT


def _is_of(claim: Claim, message: Any) -> bool:
    """Return whether the sender's instance is the last holder."""
    return bool(claim.instance_id == message.instance_id and claim.client_id == message.client_id)


def _is_late(claim: Claim, message: ClaimingPartition) -> bool:
    """Return whether a claim was sent before its sender's release: another copy of it, which landed late."""
    return _is_of(claim, message) and message.time <= claim.last_release


def _may_beat(claim: Claim, message: Heartbeat, is_same: bool, freshness: Freshness) -> bool:
    """Return whether a heartbeat is its sender's to send, by the document."""
    if claim.certainty in (Certainty.GUESSED, Certainty.INFERRED):
        return not (is_same and freshness is Freshness.STALE)  # its entries of the last two intervals were seen
    if claim.certainty is Certainty.SHOWN and freshness in (Freshness.FREE, Freshness.STALE):
        # Another's shows a holder that was not seen, unless the claim was: what a former holder has sent lands late.
        return not is_same and claim.token < 0
    if is_same and message.time < claim.claimed_at:
        return False
    if freshness is Freshness.FRESH:
        return bool(claim.client_id == message.client_id and claim.former_instance_id != message.instance_id)
    return freshness is Freshness.UNKNOWN and is_same


def _infer(claim: Claim, freshness: Freshness) -> None:
    """A heartbeat counts: whoever holds it is known from that alone, if no holder was known."""
    is_free = freshness in (Freshness.FREE, Freshness.STALE)
    if claim.certainty is Certainty.GUESSED or (claim.certainty is Certainty.SHOWN and is_free):
        claim.certainty = Certainty.INFERRED


_Handler = Callable[[WorldState, Any, Entry, int], Outcome]

_HANDLERS: Final[dict[type, _Handler]] = {
    ClaimingPartition: WorldState._claiming,
    Heartbeat: WorldState._heartbeat,
    ReleasingPartition: WorldState._releasing,
    ClaimingMessages: WorldState._proposing,
    ReleaseGroup: WorldState._releasing_group,
    Presence: WorldState._present,
    HandingOver: WorldState._handing_over,
    IdentifyingTopic: WorldState._identifying,
}
