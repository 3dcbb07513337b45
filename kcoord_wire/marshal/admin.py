"""The admin: pausing a group, and setting its position ("Setting Consumer Group Position"). Pure.

The document has the title of that section, and no text ("Documentation being written"). The steps are those of the Go
library's former admin: pause the group, wait until its partitions are unclaimed, claim each, send heartbeats with the
old positions until all are claimed, stop the heartbeats, release each with its new position; and resume. In the log,
position 0 stands for unknown, and then the offset counts that the group has committed in Kafka. So the new positions
are committed there, too, before they are released.

Laws:

* ReleaseGroup has version 0, as the Go library's former admin wrote it; no reader looks at the version.
* A pause ends by itself, within `LONGEST_PAUSE_MS`.
* An admin's client id is its own, so that no member takes its claims for those of a former process (fast reclaim), or
  for a reuse of its id.
* The position of a partition is the old or the new one at any time, whatever fails, and whenever the admin's process
  ends: before the first release in the log it writes old positions, afterwards new ones.
* New positions are written only while the admin holds every partition, and has read that in the log. On any failure
  before that each partition that it holds is released with its old position, and the group resumes.
* Ranges of offsets have no position: what is done of them is done for ever, and the rest is free. So none is set where
  the log has ranges of the group that are claimed or done; nothing is written then.
* Members that ignore ReleaseGroup, as the Go library does since 2017-05, are recognised by what they write later than
  `AdminSettings.grace_ms` after the pause; the failure names them. No wait is longer than `AdminSettings.wait_ms`.
* An admin that has died holds the group up for two heartbeat intervals (its claims) or until the end of the pause,
  whichever is later.

Source: Marshal PROTOCOL.md, ReleaseGroup; the Go library's admin, from August 2016 to May 2017.
"""

from __future__ import annotations

import enum
import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kcoord_wire.kernel.procedures import Procedure, Sleep, Until
from kcoord_wire.marshal.context import LogMachine, TopicPartition
from kcoord_wire.marshal.log import Appended, AppendFailed
from kcoord_wire.marshal.member_events import Append, MemberSettings, ReadToEnd
from kcoord_wire.marshal.ranges import RangeState
from kcoord_wire.marshal.world_state import ADMIN_PREFIX, Entry, Outcome, Place, Rules
from kcoord_wire.messages.marshal import ClaimingPartition, Heartbeat, ReleaseGroup, ReleasingPartition

LONGEST_PAUSE_MS: Final = 7 * 86_400_000
"""A pause ends by itself, also if its admin is gone; a longer one takes a second ReleaseGroup."""
ATTEMPTS: Final = 5
"""Of an append, or of a round of releases."""


class Step(enum.StrEnum):
    """What the admin does."""

    READ = "reading the log"
    PAUSE = "pausing the group"
    WAIT = "waiting until the partitions are unclaimed"
    CLAIM = "claiming"
    COMMIT = "committing to Kafka"
    RELEASE = "releasing"
    RESUME = "resuming the group"


class Result(enum.StrEnum):
    """What has become of a partition's position."""

    SET = "set"
    KEPT = "kept"
    UNKNOWN = "unknown"  # the release may be in the log, now or later: the old one or the new one


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """Of an admin. The group id was checked (`values.check_id`).

    :ivar instance_id: eight random hex digits
    :ivar partitions: of the coordination topic
    :ivar pause_ms: how long the group is paused at most; 0 for `wait_ms` and four heartbeat intervals
    :ivar wait_ms: how long its partitions may take to be unclaimed; 0 for three heartbeat intervals: a dead member's
        claims are stale after two
    """

    group_id: str
    instance_id: str
    partitions: int
    rules: Rules = Rules.DOCUMENT
    heartbeat_interval_ms: int = 60_000
    pause_ms: int = 0
    wait_ms: int = 0

    @property
    def longest_wait_ms(self) -> int:
        """`wait_ms`, or its default."""
        return self.wait_ms or 3 * self.heartbeat_interval_ms

    @property
    def longest_pause_ms(self) -> int:
        """`pause_ms`, or its default."""
        return self.pause_ms or self.longest_wait_ms + 4 * self.heartbeat_interval_ms

    @property
    def grace_ms(self) -> int:
        """For how long after the pause members may still finish what they have begun."""
        return self.heartbeat_interval_ms

    @property
    def client_id(self) -> str:
        """Unique, so that no other client takes over the admin's claims by it."""
        return f"{ADMIN_PREFIX}{self.instance_id}"


# ---- an event, beside those of member_events.py


@dataclass(slots=True)
class PositionsCommitted:
    """The answer to `CommitPositions`."""

    request: int


@dataclass(slots=True)
class CommitFailed:
    """The other answer to `CommitPositions`; some of the offsets may be committed."""

    request: int
    reason: str


# ---- effects, beside those of member_events.py


@dataclass(slots=True)
class CommitPositions:
    """Commit offsets of the group in Kafka."""

    offsets: Mapping[TopicPartition, int]
    request: int = 0


@dataclass(frozen=True, slots=True)
class Progressed:
    """For the person who waits.

    :ivar done: of `of` partitions
    :ivar waiting_for: in words; empty if nothing is waited for
    """

    step: Step
    done: int
    of: int
    waiting_for: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """What has become of one partition.

    :ivar old: position in the log before; 0 for unknown
    """

    place: TopicPartition
    old: int
    new: int
    result: Result


@dataclass(frozen=True, slots=True)
class Finished:
    """The last effect before `machines.Ended`.

    :ivar failure: why the new positions were not set, or not all of them; empty if they were
    :ivar paused_until: the resumption has failed, so the group is paused until then, ms since the Unix epoch; 0 if not
    """

    failure: str
    positions: Sequence[Moved]
    paused_until: int = 0


class FailedStep(Exception):
    """The positions cannot be set."""


class Admin(LogMachine):
    """What pausing and setting positions share.

    :ivar reads: the coordination partitions that it reads
    """

    reads: Collection[int] = ()

    def __init__(self, settings: AdminSettings) -> None:
        if not 0 < settings.longest_pause_ms <= LONGEST_PAUSE_MS:
            raise ValueError(f"a pause lasts between 1 ms and 7 days, not {settings.longest_pause_ms} ms")
        self.settings = settings
        super().__init__(
            MemberSettings(
                group_id=settings.group_id,
                client_id=settings.client_id,
                instance_id=settings.instance_id,
                topics=(),
                partitions=settings.partitions,
                rules=settings.rules,
                heartbeat_interval_ms=settings.heartbeat_interval_ms,
            )
        )
        self._failure = ""

    def _begin(self) -> None:
        self._launch(self._run())

    @abstractmethod
    def _run(self) -> Procedure:
        """Do what this admin is for."""

    def _fail(self, reason: str) -> None:
        """Fail for the first reason."""
        self._failure = self._failure or reason

    def _shutdown(self) -> None:
        """The person who waits wants to end."""
        self._fail("it was interrupted")

    def _answer(self, event: PositionsCommitted | CommitFailed) -> None:
        self._context.procedures.answered(event.request, event, self._context.now)

    def _check(self) -> None:
        if self._failure:
            raise FailedStep(self._failure)

    def _release_group(self, partition: int, until_ms: int) -> Append:
        group = TopicPartition("", 0)
        return Append(partition, self._context.message(ReleaseGroup, group, msg_expire_time=until_ms // 1_000))

    def _append_all(self, make: Callable[[int], Append], partitions: Collection[int]) -> Generator[Any, Any, str]:
        """Append to each partition, and again where that fails; return why one has failed at last, or an empty str."""
        left, reason = list(partitions), ""
        for _ in range(ATTEMPTS):
            answers = yield [make(partition) for partition in left]
            failed = [index for index, answer in enumerate(answers) if isinstance(answer, AppendFailed)]
            if not failed:
                return ""
            reason = answers[failed[0]].reason
            left = [left[index] for index in failed]
            yield Sleep(self._context.retry_ms)
        return f"coordination partition {left[0]}: {reason}"


Admin.handlers = {PositionsCommitted: Admin._answer, CommitFailed: Admin._answer}


class GroupPauser(Admin):
    """Pauses a group until a time, or ends its pause: ReleaseGroup on coordination partitions.

    :param until_ms: by the wall clock, ms since the Unix epoch; 0 ends a pause
    :param partitions: coordination partitions to write to; all of them reach every member
    """

    def __init__(self, settings: AdminSettings, until_ms: int, partitions: Collection[int]) -> None:
        super().__init__(settings)
        self._until_ms = until_ms
        self._partitions = sorted(partitions)

    def _run(self) -> Procedure:
        until_ms, now_ms = self._until_ms, self._context.wall_ms
        if until_ms and not 0 < until_ms - now_ms <= LONGEST_PAUSE_MS:
            failure = "a pause ends in the future, within 7 days"
        else:
            at = until_ms or now_ms
            failure = yield from self._append_all(lambda each: self._release_group(each, at), self._partitions)
        self._context.emit(Finished(failure, (), 0 if failure else until_ms))
        self._end()


@dataclass(slots=True)
class _Claimed:
    """A partition that the admin has claimed.

    :ivar old: its position in the log
    :ivar renewed: when the last heartbeat that has landed, or the claim, was sent
    :ivar beats_at: when the next one is due
    """

    old: int
    renewed: int
    beats_at: int = 0


@dataclass(slots=True)
class _Run:
    """How far it has come.

    :ivar paused_at: log time at which the pause was in each coordination partition
    :ivar pause_ends: wall clock in ms of the pause of this admin
    :ivar pause_before: wall clock in ms at which a pause ends that was there before; 0 for none
    :ivar released: position with which a release of this admin has landed
    :ivar unknown: releases that may still land
    :ivar is_decided: the releases begin, with the new positions or the old ones; nothing changes that any more
    """

    paused_at: dict[int, int] = field(default_factory=dict)
    pause_ends: int = 0
    pause_before: int = 0
    held: dict[TopicPartition, _Claimed] = field(default_factory=dict)
    released: dict[TopicPartition, int] = field(default_factory=dict)
    unknown: set[TopicPartition] = field(default_factory=set)
    stops_beating: bool = False
    has_asked_to_commit: bool = False
    is_decided: bool = False


def obstacle_of_ranges(
    ranges: RangeState, group_id: str, places: Collection[TopicPartition], topic_ids: Mapping[str, str]
) -> str:
    """Return why no position can be set where members claim ranges; empty if they do not.

    :param topic_ids: of the topics, where they are known
    """
    known = [each for each in places if ranges.knows(Place(group_id, *each), topic_ids.get(each.topic))]
    if not known:
        return ""
    return (
        f"members claim ranges of offsets of {known[0].topic}-{known[0].partition}, which have no position: what is"
        " done of them stays done; a group with another id begins anew"
    )


class PositionSetter(Admin):
    """Sets positions of a group.

    :param positions: next offsets to consume, at least 0
    :param topic_ids: of the topics, where the brokers have them; of others, ranges of a former topic count, too
    :raises ValueError: there are none, one is negative, or the pause is not longer than the wait
    """

    def __init__(
        self,
        settings: AdminSettings,
        positions: Mapping[TopicPartition, int],
        topic_ids: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(settings)
        if not positions:
            raise ValueError("no position is given")
        for place, offset in positions.items():
            if offset < 0:
                raise ValueError(f"{place.topic}-{place.partition}: an offset is at least 0, not {offset}")
        if settings.longest_pause_ms < settings.longest_wait_ms + 2 * settings.heartbeat_interval_ms:
            raise ValueError("the pause must outlast the wait by two heartbeat intervals")
        self._wanted = dict(sorted(positions.items()))
        self.reads = self._on = sorted({self._context.coordinating(place.topic) for place in positions})
        self._at = _Run()
        self._topic_ids = topic_ids or {}
        self._ranges = RangeState(self._context.state)
        self._old: dict[TopicPartition, int] = {}
        self._beating: Procedure | None = None

    # ---- the steps

    def _run(self) -> Procedure:
        offsets: Mapping[TopicPartition, int] = self._wanted
        try:
            yield from self._read()
            yield from self._pause()
            yield from self._take_all()
            yield from self._stop_heartbeats()
            yield from self._commit()
        except FailedStep as failed:
            self._fail(str(failed))
            self._at.stops_beating = True
            yield Until(lambda: not self._is_beating)
            yield [ReadToEnd(partition) for partition in self._on]
            offsets = self._old
        self._at.is_decided = True
        yield from self._release_all(offsets)
        paused_until = yield from self._resume()
        positions = [self._moved(place) for place in self._wanted]
        if not self._failure and any(each.result is not Result.SET for each in positions):
            self._failure = "the log has not accepted all releases"
        self._context.emit(Finished(self._failure, positions, paused_until))
        self._end()

    def _read(self) -> Procedure:
        """Read what is there: the pause of somebody else stays, and two admins do not run at once."""
        self._progress(Step.READ)
        yield [ReadToEnd(partition) for partition in self._on]
        self._check()
        if obstacle := obstacle_of_ranges(self._ranges, self.settings.group_id, self._wanted, self._topic_ids):
            raise FailedStep(obstacle)
        for place in self._wanted:
            claim = self._context.live_claim(place)
            if claim is not None and claim.client_id.startswith(ADMIN_PREFIX):
                raise FailedStep(f"another admin, {claim.client_id}, holds {place.topic}-{place.partition}")
        context = self._context
        left_ms = max(self._paused_for(partition) for partition in self._on)
        self._at.pause_before = context.wall_ms + left_ms if left_ms > 0 else 0

    def _paused_for(self, partition: int) -> int:
        """Return how long the group is still paused for the topics of a coordination partition, ms."""
        context = self._context
        paused = context.state.paused_until(self.settings.group_id, partition)
        if self.settings.rules is Rules.DOCUMENT:
            return paused - context.log_now(partition)
        return paused * 1_000 - context.wall_ms

    def _pause(self) -> Procedure:
        """Step 1: ReleaseGroup, once for each coordination partition of the topics."""
        self._progress(Step.PAUSE)
        until_ms = max(self._context.wall_ms + self.settings.longest_pause_ms, self._at.pause_before)
        self._at.pause_ends = until_ms
        failure = yield from self._append_all(lambda each: self._release_group(each, until_ms), self._on)
        if failure:
            raise FailedStep(f"the group cannot be paused: {failure}")
        yield [ReadToEnd(partition) for partition in self._on]
        self._at.paused_at = {partition: self._context.state.log_time_ms(partition) for partition in self._on}

    def _take_all(self) -> Procedure:
        """Steps 2 to 4: wait until the partitions are unclaimed, claim them, and send heartbeats until all are held."""
        until = self._context.now + self.settings.longest_wait_ms
        while left := [place for place in self._wanted if place not in self._at.held]:
            yield from self._wait_for_release(left, until)
            yield from self._claim(left)
            if self._at.held and not self._is_beating:
                self._beating = self._launch(self._beat())
            if len(self._at.held) < len(self._wanted):
                if self._context.now >= until:
                    raise FailedStep(f"after {self._waited} the partitions could not be claimed")
                yield Sleep(max(self._context.retry_ms, 1_000))  # a claim is stamped later than the one before
        self._progress(Step.CLAIM)

    def _wait_for_release(self, left: Collection[TopicPartition], until: int) -> Procedure:
        """Step 2."""
        while True:
            self._check()
            claims = {place: self._context.live_claim(place) for place in left}
            holders = sorted({claim.client_id for claim in claims.values() if claim is not None})
            if not holders:
                return
            names = ", ".join(holders[:5])
            if self._context.now >= until:
                raise FailedStep(f"after {self._waited} partitions are still claimed by {names}")
            done = len(self._wanted) - sum(claim is not None for claim in claims.values())
            self._progress(Step.WAIT, done, names)
            yield Sleep(self._context.retry_ms)

    def _claim(self, places: Sequence[TopicPartition]) -> Procedure:
        """Step 3: claim, and find in the log which claims have won."""
        context, sent_at = self._context, self._context.now
        yield [Append(context.coordinating(place.topic), context.message(ClaimingPartition, place)) for place in places]
        yield [ReadToEnd(partition) for partition in self._on]
        for place in places:
            claim = context.own_claim(place)
            if claim is not None:
                self._old[place] = claim.current_offset
                self._at.held[place] = _Claimed(claim.current_offset, sent_at)
        self._check()
        self._progress(Step.CLAIM)

    def _beat(self) -> Procedure:
        """Step 4: heartbeats with the old positions, jittered."""
        context, interval = self._context, self._context.interval_ms
        while not self._at.stops_beating:
            due = [place for place, held in self._at.held.items() if held.beats_at <= context.now]
            sent_at = context.now
            answers = yield [self._heartbeat(place) for place in due]
            for place, answer in zip(due, answers, strict=True):
                held = self._at.held[place]
                if isinstance(answer, Appended):
                    held.renewed = sent_at
                    held.beats_at = sent_at + context.jitter(interval // 4, interval // 2)
                else:
                    held.beats_at = context.now + context.retry_ms
                    self._heartbeat_failed(answer)
            self._fence()
            if not self._at.stops_beating:
                yield Sleep(context.retry_ms)

    def _heartbeat(self, place: TopicPartition) -> Append:
        message = self._context.message(Heartbeat, place, current_offset=self._at.held[place].old)
        return Append(self._context.coordinating(place.topic), message)

    def _heartbeat_failed(self, answer: AppendFailed) -> None:
        """By the library a heartbeat that lands after the release would bring the old position back."""
        if answer.may_have_landed and self.settings.rules is Rules.LIBRARY:
            self._fail(f"a heartbeat may still land behind the release: {answer.reason}")

    def _fence(self) -> None:
        """Nothing is held for longer than one interval after the last heartbeat that has landed was sent."""
        for place, held in self._at.held.items():
            if self._context.now - held.renewed >= self._context.interval_ms:
                self._fail(f"no heartbeat for {place.topic}-{place.partition} has landed for one interval")

    def _stop_heartbeats(self) -> Procedure:
        """Step 5: wait for those that are under way, then read that every partition is held."""
        self._at.stops_beating = True
        yield Until(lambda: not self._is_beating)
        yield [ReadToEnd(partition) for partition in self._on]
        self._fence()
        for place in self._wanted:
            if self._context.own_claim(place) is None:
                self._fail(f"{place.topic}-{place.partition} is not held any more")
        if self._at.pause_ends - self._context.wall_ms < self._context.interval_ms:
            self._fail("the pause ends too soon")
        self._check()

    def _commit(self) -> Procedure:
        """The positions in Kafka, which count where the log has 0."""
        self._progress(Step.COMMIT)
        self._at.has_asked_to_commit = True
        answer = yield CommitPositions(self._wanted)
        if isinstance(answer, CommitFailed):
            raise FailedStep(f"the positions cannot be committed in Kafka: {answer.reason}")
        self._fence()
        self._check()

    def _release_all(self, offsets: Mapping[TopicPartition, int]) -> Procedure:
        """Step 6: release each; again where the log does not show it."""
        for attempt in range(ATTEMPTS):
            left = [place for place in self._wanted if self._is_ours(place) and place not in self._at.released]
            if not left:
                return
            if attempt:
                yield Sleep(self._context.retry_ms)
            self._progress(Step.RELEASE, len(self._wanted) - len(left))
            answers = yield [self._releasing(place, offsets) for place in left]
            for place, answer in zip(left, answers, strict=True):
                if isinstance(answer, AppendFailed) and answer.may_have_landed:
                    self._at.unknown.add(place)
            yield [ReadToEnd(partition) for partition in self._on]

    def _releasing(self, place: TopicPartition, offsets: Mapping[TopicPartition, int]) -> Append:
        claim = self._context.claim(place)
        assert claim is not None  # it is ours
        offset = offsets.get(place, claim.current_offset)
        message = self._context.message(ReleasingPartition, place, current_offset=offset)
        return Append(self._context.coordinating(place.topic), message)

    def _resume(self) -> Generator[Any, Any, int]:
        """Step 7: ReleaseGroup that ends now, or when a pause ends that was there before."""
        if not self._at.pause_ends:
            return 0
        self._progress(Step.RESUME)
        until_ms = max(self._at.pause_before, self._context.wall_ms)
        failure = yield from self._append_all(lambda each: self._release_group(each, until_ms), self._on)
        if failure:
            self._context.note(logging.WARNING, "group stays paused", until_ms=self._at.pause_ends, reason=failure)
        return self._at.pause_ends if failure else 0

    def _shutdown(self) -> None:
        if not self._at.is_decided:
            super()._shutdown()

    # ---- what the log says

    def _entry(self, entry: Entry) -> Outcome:
        outcome = super()._entry(entry)
        self._ranges.apply(entry)
        message = entry.message
        if isinstance(message, str) or message.group_id != self.settings.group_id:
            return outcome
        place = TopicPartition(message.topic, message.partition)
        if message.instance_id == self.settings.instance_id:
            if outcome is Outcome.RELEASED:
                claim = self._context.claim(place)
                assert claim is not None  # it was released now
                self._at.released[place] = claim.current_offset
            return outcome
        if not self._at.is_decided and place in self._wanted:
            self._check_peer(message, place, entry.partition)
        return outcome

    def _check_peer(self, message: Any, place: TopicPartition, coordinating: int) -> None:
        """Notice a member that takes a partition, or that goes on although the group is paused."""
        if place in self._at.held and not self._is_ours(place):
            self._fail(f"{message.client_id} has taken {place.topic}-{place.partition} from the admin")
        paused_at = self._at.paused_at.get(coordinating)
        if paused_at is None or not isinstance(message, ClaimingPartition | Heartbeat):
            return
        if self._context.state.log_time_ms(coordinating) - paused_at > self.settings.grace_ms:
            self._fail(
                f"{message.client_id} goes on although the group is paused: it ignores ReleaseGroup, as the Go library"
                " does since May 2017; stop it first"
            )

    @property
    def _waited(self) -> str:
        return f"{self.settings.longest_wait_ms / 1_000:.0f} s"

    @property
    def _is_beating(self) -> bool:
        return self._beating is not None and self._context.procedures.is_running(self._beating)

    def _is_ours(self, place: TopicPartition) -> bool:
        claim = self._context.claim(place)
        is_ours = claim is not None and claim.instance_id == self.settings.instance_id
        return is_ours and claim is not None and claim.last_heartbeat != 0

    def _moved(self, place: TopicPartition) -> Moved:
        """Return what has become of a partition, by the log and by what may still land."""
        claim, new = self._context.claim(place), self._wanted[place]
        old = self._old.get(place, 0 if claim is None else claim.current_offset)
        released = self._at.released.get(place)
        if not self._failure:
            late = Result.UNKNOWN if released is None and place in self._at.unknown else Result.KEPT
            return Moved(place, old, new, Result.SET if released == new else late)
        is_committed = old == 0 and self._at.has_asked_to_commit  # and then Kafka's offset counts
        return Moved(place, old, new, Result.UNKNOWN if is_committed else Result.KEPT)

    def _progress(self, step: Step, done: int | None = None, waiting_for: str = "") -> None:
        held = len(self._at.held) if done is None else done
        self._context.emit(Progressed(step, held, len(self._wanted), waiting_for))
